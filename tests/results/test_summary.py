"""The summary says the same to a script, a terminal and a notebook, from the model and from its result."""

import numpy as np
import pytest
import xarray as xr
from sklearn.exceptions import NotFittedError

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.results.summary import Summary

DATA = synthetic((8, 7, 6), 1, outliers=0.05, missing=0.2, seed=3)


@pytest.fixture(scope="module")
def model():
    return BRTF(max_rank=3, random_state=0).fit(DATA.observed)


def test_numbers_are_those_of_the_model(model):
    numbers = model.summary().numbers
    assert numbers == model.result_.summary().numbers
    assert numbers["rank"] == model.rank_
    assert numbers["bound"] == model.bound_
    assert numbers["noise_variance"] == model.noise_variance_
    assert numbers["noise_sd"] == pytest.approx(np.sqrt(model.noise_variance_))
    assert numbers["outlier_rate"] == model.outlier_rate_
    assert numbers["n_observed"] == model.n_observed_


@pytest.mark.parametrize("unit", [1e200, 1e-200])
def test_standard_deviations_are_told_where_variances_overflow(model, unit):
    found = BRTF(max_rank=3, random_state=0).fit(unit * DATA.observed).summary()
    assert found.numbers["noise_sd"] == pytest.approx(unit * model.summary().numbers["noise_sd"], rel=1e-6)
    assert f"standard deviation {found.numbers['noise_sd']:.4g}" in str(found)


def test_text_and_table_hold_every_row(model):
    summary = model.summary()
    text, table = " ".join(str(summary).split()), summary._repr_html_()
    assert repr(summary) == str(summary)
    for name, said in summary.rows():
        assert name in text
        assert " ".join(said.split()) in text
        assert f"<tr><th>{name}</th><td>{said}</td></tr>" in table
    assert table in model.result_._repr_html_()


def test_long_rows_are_broken_to_fit_a_page(model):
    lines = str(Summary({**model.summary().numbers, "rows": " ".join(["word"] * 60)})).splitlines()
    assert max(map(len, lines)) <= 96
    told = [line for line in lines if "word" in line]
    assert len(told) > 2
    assert {line.index("word") for line in told} == {told[0].index("word")}


def test_the_table_escapes_what_it_shows(model):
    numbers = {**model.summary().numbers, "stop_reason": "<img src=x onerror=alert(1)>"}
    assert "<img" not in Summary(numbers)._repr_html_()


def test_noise_per_slice_is_told_as_a_range():
    found = BRTF(max_rank=2, noise="per-slice", random_state=0).fit(DATA.observed)
    assert "differs along mode 0" in str(found.summary())
    assert np.shape(found.summary().numbers["noise_sd"]) == (8,)


def test_rows_are_told_in_plain_words():
    rng = np.random.default_rng(0)
    stations = rng.normal(size=(40, 2)) * np.where(np.arange(40) < 4, 10.0, 0.3)[:, None]
    hours, days = 1 + 0.3 * rng.normal(size=(30, 2)), rng.normal(size=(10, 2))
    level = np.einsum("ir,jr,kr->ijk", stations, hours, days) + 0.1 * rng.normal(size=(40, 30, 10))
    found = BRTF(2, random_state=0).fit(xr.DataArray(level, dims=("station", "hour", "day")))
    assert ("rows", found.summary().numbers["rows"]) in found.summary().rows()
    assert found.summary().numbers["rows"] == (
        "Loadings of station differ much in size, few large among many small; those of hour vary about a common "
        "centre; those of day vary about zero."
    )
    assert BRTF(2, inference="paper", tol=1e-3, random_state=0).fit(level).summary().numbers["rows"] == (
        "Loadings of mode 0, mode 1 and mode 2 vary about zero."
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_was_not_tried_in_time_is_not_said_to_be_absent():
    found = {n: BRTF(max_sweeps=n, random_state=0).fit(DATA.observed).choices_["modes"].sentence for n in (10, 500)}
    assert "Rows are in no order: no other was found before the fit stopped." in found[10]
    assert "Loadings have either sign: no other was found before the fit stopped." in found[10]
    assert "before the fit stopped" not in found[500]


def test_a_model_that_is_not_fitted_says_so():
    for method in ("summary", "plot_factors", "plot_trace", "plot_outliers", "plot_components"):
        with pytest.raises(NotFittedError):
            getattr(BRTF(), method)()
    with pytest.raises(NotFittedError):
        BRTF().report("page.html")
