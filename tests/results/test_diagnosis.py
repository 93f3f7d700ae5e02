"""Doubts about a fit: raised where the model does not describe the data, and nowhere else."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from brtf import BRTF, FitWarning, load
from brtf.datasets import paper_synthetic, synthetic
from brtf.results.diagnosis import diagnose


def inverted():
    rng = np.random.default_rng(0)
    seen = rng.random((8, 9, 7)) < 0.5
    return np.where(seen, rng.standard_normal(seen.shape), 0.0), ~seen


def half_explained():
    return synthetic((12, 11, 10), 2, noise=0.01, seed=0).observed


def draw(law):
    return law(np.random.default_rng(0))


def spectra():
    """Peaks of heights that span decades, with noise in proportion."""
    rng = np.random.default_rng(0)
    peaks = np.exp(-0.5 * ((np.linspace(0, 1, 40)[:, None] - rng.uniform(0.1, 0.9, 3)) / 0.05) ** 2)
    return rng.lognormal(0, 2, (10, 3)) @ peaks.T * np.exp(0.7 * rng.standard_normal((10, 40)))


def moving_peak():
    place, where = np.linspace(0, 1, 60), np.linspace(0.2, 0.8, 20)[:, None]
    noise = 0.01 * np.random.default_rng(0).standard_normal((20, 60))
    return 100 * np.exp(-0.5 * ((place - where) / 0.02) ** 2) + noise


def coded(code, share=0.2, other=None):
    """A matrix of one pattern in which a code stands for what was not measured; and another code at the other end."""
    rng = np.random.default_rng(0)
    data = np.outer(rng.uniform(1, 2, 20), rng.uniform(10, 20, 15)) + rng.normal(0, 0.3, (20, 15))
    lost = rng.random(data.shape)
    data[lost < share] = code
    if other is not None:
        data[lost > 1 - share] = other
    return data


DOUBTED = {
    "a code for missing values": ("code", coded(-999), {}),
    "a code near the others": ("code", np.where(coded(-999) == -999, -99, 2 * coded(0, 0) - 70), {}),
    "zeros among numbers of either sign": ("code", np.where(coded(-999) == -999, 0, coded(0, 0) - 20), {}),
    "zeros below numbers that are positive": ("code", coded(0, 0.1), {}),
    "-1 below counts": ("code", np.where(coded(-999, 0.1) == -999, -1, np.round(coded(0, 0))), {}),
    "-1 below what is positive": ("code", np.where(coded(-999, 0.1) == -999, -1, coded(0, 0)), {}),
    "patterns far below their offset": ("offset", 1e9 + half_explained(), {}),
    "a code in blocks": (
        "code",
        np.where(np.add.outer(np.arange(20) // 4, np.arange(15) // 5) == 2, 1e4, coded(5, 0)),
        {},
    ),
    "noise in proportion to the level": ("outliers", spectra(), {"max_rank": 1, "link": None, "noise": "common"}),
    "a peak that moves": ("rank 0", moving_peak(), {}),
    "booleans": ("binary", draw(lambda rng: rng.random((10, 11, 6)) < 0.3), {}),
    "counts with many zeros": ("equal values", draw(lambda rng: rng.poisson(0.4, (12, 10, 9))), {}),
    "too small a cap": ("cap", half_explained(), {"max_rank": 1}),
    "nothing to replace": (
        "replacement",
        np.random.default_rng(0).standard_normal((20, 20, 20)),
        {"outlier_kind": "replacement"},
    ),
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_the_model_does_not_describe_is_said(name, tmp_path):
    kind, data, options = DOUBTED[name]
    model = BRTF(random_state=0, **options)
    with pytest.warns(FitWarning) as told:
        model.fit(data)
    assert kind in [doubt.kind for doubt in model.diagnosis_]
    assert [str(warning.message) for warning in told] == [str(doubt) for doubt in model.diagnosis_]
    assert told[0].filename == __file__
    told_first = " ".join(str(model.summary()).split())
    assert told_first.startswith(f"doubt {model.diagnosis_[0].sentence}")
    model.save(tmp_path / "fit.brtf")
    assert load(tmp_path / "fit.brtf").diagnosis_ == model.diagnosis_
    model.report(tmp_path / "fit.html")
    assert 'class="doubt"' in (tmp_path / "fit.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["booleans", "counts with many zeros"])
def test_values_in_chunks_are_doubted_like_those_in_memory(name):
    dask_array = pytest.importorskip("dask.array")
    kind, data, _ = DOUBTED[name]
    data = np.asarray(data, float)
    told = []
    for given in (data, dask_array.from_array(data, chunks=(3, 4, 9))):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            doubts = BRTF(random_state=0, outlier_kind="additive").fit(given).diagnosis_
        told.append([str(doubt) for doubt in doubts if doubt.kind == kind])
    assert told[0] == told[1]
    assert told[0]


def test_rank_0_of_data_in_chunks_says_what_was_not_looked_at():
    dask_array = pytest.importorskip("dask.array")
    noise = np.random.default_rng(0).standard_normal((9, 8, 7))
    with pytest.warns(FitWarning, match="No component was found, and the data are in chunks"):
        model = BRTF(random_state=0).fit(dask_array.from_array(noise, chunks=(3, 8, 7)))
    assert [doubt.kind for doubt in model.diagnosis_] == ["rank 0"]


def test_an_inverted_mask_is_noticed():
    data, mask = inverted()
    with pytest.warns(FitWarning, match="probably inverted"):
        model = BRTF(random_state=0).fit(data, mask=mask)
    assert model.diagnosis_[0].kind == "mask"
    assert not BRTF(random_state=0).fit(data, mask=~mask).diagnosis_


def test_a_fit_that_has_not_converged_says_so():
    with pytest.warns(ConvergenceWarning, match="max_sweeps"):
        model = BRTF(random_state=0, max_sweeps=3).fit(half_explained())
    assert model.diagnosis_[0].kind == "not converged"


def test_the_gain_of_one_more_component_decides():
    result = BRTF(2, random_state=0).fit(half_explained()).result_
    assert result.cap_gain is None and not diagnose(result)
    (doubt,) = diagnose(replace(result, cap_gain=1234.4))
    assert str(doubt) == (
        "max_rank=2 was reached; one more component would raise the bound by about 1,234 nats. "
        "Raise max_rank, or leave it out to have the rank determined."
    )
    assert "about 2.7 nats" in diagnose(replace(result, cap_gain=2.71))[0].sentence


SOUND = {
    **{
        f"paper {seed} {share}": paper_synthetic(seed=seed, **share).observed
        for seed in range(2)
        for share in ({"outliers": 0.1, "missing": 0.5}, {"outliers": 0.4}, {"missing": 0.9})
    },
    "noise": draw(lambda rng: rng.standard_normal((9, 8, 7))),
    "heavy tails": draw(lambda rng: rng.standard_t(2, (9, 8, 7))),
    "tiny": draw(lambda rng: rng.standard_normal((3, 2))),
    "black and white pixels": coded(0, 0.1, other=255),
    "bright objects, some of them saturated": np.minimum(
        coded(0, 0) + np.where(np.arange(300).reshape(20, 15) % 10 == 3, np.linspace(60, 160, 300).reshape(20, 15), 0),
        150,
    ),
    "integers": np.round(coded(0, 0)),
    "integers from -1 on": np.maximum(np.round(coded(0, 0) / 5 - 4), -1),
    "votes": np.sign(np.round(coded(0, 0) / 10 - 2)),
    "a few typing errors": np.where(np.arange(300).reshape(20, 15) % 100 == 7, 1880.0, coded(0, 0)),
    "one value": np.full((4, 5, 3), 2.0),
    "zeros": np.zeros((4, 5)),
    "exact": synthetic((9, 8, 7), 2, noise=0.0, seed=0).low_rank,
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_what_is_sound(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not BRTF(random_state=0).fit(SOUND[name]).diagnosis_
