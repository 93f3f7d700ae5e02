"""Somebody with a notebook: what a cell shows, what it prints meanwhile, plots, and a page to hand on."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest

import brtf
from pages import looked_at
from people import page_text


@pytest.fixture(scope="module")
def data():
    return brtf.datasets.synthetic((15, 12, 10), 2, outliers=0.05, missing=0.3, seed=3)


@pytest.fixture(scope="module")
def model(data):
    return brtf.BRTF(random_state=0).fit(data.observed)


def test_cells_show_words_and_numbers_not_arrays(model, data):
    assert repr(brtf.BRTF(max_rank=3)) == "BRTF(max_rank=3)"
    shown = repr(brtf.Observations.from_coords(np.indices((3, 4)).reshape(2, -1), np.arange(12.0), (3, 4)))
    assert shown == "<Observations: 3 × 4; 12 values, none missing>"
    assert "BRTF" in model._repr_html_()
    summary = model.summary()
    assert "<table" in summary._repr_html_()
    assert f"rank       {model.rank_}" in str(summary)
    assert "<table" in model.result_._repr_html_()


def test_a_quiet_fit_prints_nothing(data, capsys):
    brtf.BRTF(random_state=0).fit(data.observed)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_loud_fit_shows_its_phase(data, capsys):
    brtf.BRTF(random_state=0, progress=True).fit(data.observed)
    assert "rank" in capsys.readouterr().err


def test_plots_have_words(model):
    backend = plt.get_backend()
    plt.switch_backend("agg")
    try:
        for draw in (model.plot_factors, model.plot_components, model.plot_outliers, model.plot_trace):
            draw()
            figure = plt.gcf()
            assert any(axis.get_xlabel() or axis.get_title() for axis in figure.axes)
            figure.savefig(io.BytesIO())
            plt.close("all")
    finally:
        plt.switch_backend(backend)


def test_a_page_to_hand_on(model, tmp_path, visit):
    model.report(tmp_path / "page.html")
    text = page_text(tmp_path / "page.html")
    assert "15 × 12 × 10" in text
    looked_at(visit, tmp_path / "page.html")
