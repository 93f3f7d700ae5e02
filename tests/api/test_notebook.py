"""In a notebook a model shows its options and, once fitted, the fit in plain words; all text is escaped."""

import sys
import types

import numpy as np
import pytest
import sklearn
import tqdm.auto

from brtf import BRTF
from brtf.api.progress import progress_bar
from brtf.datasets import synthetic
from brtf.results.headline import headline
from pages import Page

DATA = synthetic((12, 10, 8), 2, outliers=0.05, missing=0.1, seed=0)


@pytest.fixture(scope="module")
def model():
    return BRTF(random_state=0).fit(DATA.observed)


def test_an_unfitted_model_shows_its_options():
    shown = BRTF(max_rank=7)._repr_html_()
    assert "max_rank" in shown and "brtf-fit" not in shown


def test_a_fitted_model_shows_the_fit_below_them(model):
    shown = model._repr_html_()
    assert shown.index("random_state") < shown.index("brtf-fit")
    words = Page(shown).text
    for sentence in headline(model.result_):
        assert " ".join(sentence.split()) in words
    for name, text in model.summary().rows():
        assert f"{name}" in words and text in words
    assert "component 1" in words
    bundle = model._repr_mimebundle_()
    assert bundle == {"text/plain": repr(model), "text/html": bundle["text/html"]}
    assert bundle["text/html"].count("brtf-fit") == shown.count("brtf-fit")


def test_a_result_shows_the_same(model):
    assert model.result_._repr_html_() in model._repr_html_()


def test_scikit_learns_option_turns_it_off(model):
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert list(model._repr_mimebundle_()) == ["text/plain"]


@pytest.mark.parametrize("tensor", [np.zeros((5, 4)), np.random.default_rng(0).standard_normal((6, 5, 4))])
def test_nothing_found_is_shown_too(tensor):
    assert "No pattern was found" in BRTF(random_state=0).fit(tensor)._repr_html_()


def test_the_bar_ends_full(monkeypatch):
    """A notebook calls a bar that is not quite full a failure, and shares of phases do not add up to one exactly."""
    ends = []

    class Bar(tqdm.auto.tqdm):
        def close(self):
            ends.append(self.n)
            super().close()

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    with progress_bar("", 500, None) as show:
        for phase in (1, 3, 2, 6):
            show(phase, None, types.SimpleNamespace(phase=phase))
    assert ends[0] == 1.0
    with pytest.raises(KeyboardInterrupt), progress_bar("", 500, None) as show:
        show(1, None, types.SimpleNamespace(phase=1))
        raise KeyboardInterrupt
    assert ends[-1] < 1.0


def test_a_notebook_without_widgets_has_a_bar_in_text(monkeypatch, capsys, recwarn):
    """tqdm warns when it is imported there; the bar works all the same."""
    for name in [name for name in sys.modules if name.startswith("tqdm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    kernel = types.ModuleType("IPython")
    kernel.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=print))
    with progress_bar("", 500, None) as show:
        show(5, None, types.SimpleNamespace(phase=0))
    assert "phase 1/" in capsys.readouterr().err
    assert not [warning for warning in recwarn if "IProgress" in str(warning.message)]
