"""Answers in the forms of other libraries say what the methods say, under the names of the user."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorly
import xarray as xr

import brtf

DATA = brtf.datasets.synthetic((8, 7, 6), 2, outliers=0.05, missing=0.2, noise=0.01, seed=3)
SITES = np.array([f"site {letter}" for letter in "abcdefgh"])
LABELLED = xr.DataArray(DATA.observed, dims=("site", "year", "kind"), coords={"site": SITES}, name="level")
OPTIONS = {"max_rank": 4, "inference": "paper", "tol": 1e-2, "random_state": 0}  # a short fit is as good as any
PLAIN = brtf.BRTF(**OPTIONS).fit(DATA.observed)
NAMED = brtf.BRTF(**OPTIONS).fit(LABELLED)
COORDS = np.nonzero(DATA.mask)
SPARSE = brtf.BRTF(**OPTIONS).fit(
    brtf.Observations.from_coords(np.stack(COORDS), DATA.observed[COORDS], DATA.observed.shape)
)


class TestFrame:
    def test_outliers_are_those_of_the_methods(self) -> None:
        frame = PLAIN.to_frame()
        assert list(frame) == ["mode_0", "mode_1", "mode_2", "observed", "low_rank", "outlier", "probability"]
        at = tuple(frame[f"mode_{mode}"].to_numpy() for mode in range(3))
        flagged = PLAIN.outlier_probability() > 0.5
        assert sorted(zip(*at, strict=True)) == [tuple(place) for place in np.argwhere(flagged)]
        np.testing.assert_array_equal(frame["observed"], DATA.observed[at])
        np.testing.assert_array_equal(frame["outlier"], PLAIN.outliers()[at])
        np.testing.assert_array_equal(frame["probability"], PLAIN.outlier_probability()[at])
        np.testing.assert_allclose(frame["low_rank"], PLAIN.low_rank()[at], rtol=1e-12)  # another order of summation
        assert frame["outlier"].abs().is_monotonic_decreasing

    def test_imputed_are_all_entries(self) -> None:
        frame = PLAIN.to_frame(of="imputed")
        assert list(frame) == ["mode_0", "mode_1", "mode_2", "value", "std", "missing"]
        assert len(frame.drop_duplicates(["mode_0", "mode_1", "mode_2"])) == DATA.observed.size
        at = tuple(frame[f"mode_{mode}"].to_numpy() for mode in range(3))
        np.testing.assert_array_equal(frame["value"], PLAIN.impute()[at])
        np.testing.assert_array_equal(frame["std"], PLAIN.predict(return_std=True)[1][at])
        np.testing.assert_array_equal(frame["missing"], ~DATA.mask[at])

    def test_index_columns_have_the_names_of_the_data(self) -> None:
        frame = NAMED.to_frame(of="imputed")
        assert list(frame) == ["site", "year", "kind", "level", "std", "missing"]
        series = frame.set_index(["site", "year", "kind"])["level"]
        assert series["site c", 2, 3] == NAMED.impute().sel(site="site c").values[2, 3]
        assert set(NAMED.to_frame()["site"]) <= set(SITES)

    def test_a_long_table_comes_back_as_one(self) -> None:
        long = LABELLED.to_series().dropna().reset_index()
        frame = brtf.BRTF(**OPTIONS).fit(brtf.Observations.from_frame(long)).to_frame("imputed")
        known = frame[~frame["missing"]].drop(columns=["std", "missing"]).reset_index(drop=True)
        wanted = long.sort_values(["site", "year", "kind"]).reset_index(drop=True)
        pd.testing.assert_frame_equal(known, wanted, check_dtype=False)  # text may be of either type of pandas

    def test_layout_does_not_matter(self) -> None:
        # Other kernels, and hence another rounding, which a loose tolerance may carry into another number of sweeps.
        for of in ("outliers", "imputed"):
            assert list(SPARSE.to_frame(of)) == list(PLAIN.to_frame(of))
        np.testing.assert_array_equal(SPARSE.to_frame("imputed")["missing"], PLAIN.to_frame("imputed")["missing"])

    def test_names_that_are_taken_get_an_underscore(self) -> None:
        clashing = LABELLED.rename(site="observed", year="std", kind="missing").rename("std")
        model = brtf.BRTF(**OPTIONS).fit(clashing)
        assert list(model.to_frame()) == [
            *("observed", "std", "missing"),
            *("observed_", "low_rank", "outlier", "probability"),
        ]
        assert list(model.to_frame("imputed")) == ["observed", "std", "missing", "std_", "std__", "missing_"]

    def test_no_outlier_no_row(self) -> None:
        model = brtf.BRTF(**OPTIONS, robust=False).fit(DATA.observed)
        assert model.to_frame().shape == (0, 7)

    def test_what_was_held_back_is_not_missing(self) -> None:
        data = brtf.datasets.synthetic((12, 10, 8), 1, missing=0.2, noise=0.1, seed=0)
        model = brtf.BRTF(2, calibrate="conformal", random_state=0).fit(data.observed)
        assert model.result_.held_back is not None
        np.testing.assert_array_equal(model.to_frame("imputed")["missing"], ~data.mask.ravel())
        np.testing.assert_array_equal(model.to_xarray()["observed"], data.observed)

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(ValueError, match="of must be 'outliers' or 'imputed', got 'all'"):
            PLAIN.to_frame(of="all")


class TestXarray:
    def test_variables_are_those_of_the_methods(self) -> None:
        dataset = NAMED.to_xarray()
        mean, std = NAMED.predict(return_std=True)
        missing = ~DATA.mask
        for name, wanted in {
            "observed": DATA.observed,
            "low_rank": mean,
            "std": std,
            "outliers": np.where(missing, np.nan, NAMED.outliers()),
            "outlier_probability": np.where(missing, np.nan, NAMED.outlier_probability()),
        }.items():
            assert dataset[name].dims == ("site", "year", "kind")
            np.testing.assert_array_equal(dataset[name], wanted, err_msg=name)
        for dim, factor in zip(("site", "year", "kind"), NAMED.factors_, strict=True):
            assert dataset[f"factor_{dim}"].dims == (dim, "component")
            np.testing.assert_array_equal(dataset[f"factor_{dim}"], factor)
        assert dataset["site"].values.tolist() == SITES.tolist()
        assert dataset["noise_variance"] == NAMED.noise_variance_
        assert dataset.attrs["rank"] == NAMED.rank_
        assert dataset.attrs["bound"] == NAMED.bound_
        assert dataset.attrs["stop_reason"] == NAMED.stop_reason_

    def test_factors_multiply_to_the_low_rank_part(self) -> None:
        dataset = NAMED.to_xarray()
        product = (dataset.factor_site * dataset.factor_year * dataset.factor_kind).sum("component")
        np.testing.assert_allclose(product, dataset.low_rank, atol=1e-12)  # another order of summation

    def test_without_names_the_modes_are_numbered(self) -> None:
        assert PLAIN.to_xarray()["low_rank"].dims == ("mode_0", "mode_1", "mode_2")
        assert SPARSE.to_xarray()["observed"].notnull().sum() == DATA.mask.sum()

    def test_it_survives_a_netcdf_file(self, tmp_path: Path) -> None:
        dataset = NAMED.to_xarray()
        dataset.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
        with xr.open_dataset(tmp_path / "fit.nc", engine="h5netcdf") as read:
            xr.testing.assert_identical(read.load(), dataset)

    def test_noise_per_slice_runs_along_its_modes(self) -> None:
        model = brtf.BRTF(2, noise="per-slice", noise_modes=(0, 2), max_sweeps=500, tol=1e-4, random_state=0)
        noise = model.fit(LABELLED).to_xarray()["noise_variance"]
        assert noise.dims == ("site", "kind")
        np.testing.assert_array_equal(noise, model.noise_variances_)

    def test_names_that_are_taken_get_an_underscore(self) -> None:
        model = brtf.BRTF(**OPTIONS).fit(LABELLED.rename(site="low_rank", year="component"))
        dataset = model.to_xarray()
        assert dataset["low_rank_"].dims == ("low_rank", "component", "kind")
        assert dataset["factor_component"].dims == ("component", "component_")


class TestTensorly:
    def test_it_expands_to_the_low_rank_part(self) -> None:
        cp = PLAIN.to_tensorly()
        assert cp.rank == PLAIN.rank_
        assert cp.shape == PLAIN.shape_in_
        np.testing.assert_allclose(cp.to_tensor(), PLAIN.low_rank(), atol=1e-12)  # another order of summation
        np.testing.assert_array_equal(tensorly.cp_norm(cp) > 0, True)

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # the constant is a third component
    def test_with_a_transform_it_is_that_of_the_transformed_data(self) -> None:
        model = brtf.BRTF(2, link="log", random_state=0).fit(np.exp(0.1 * DATA.low_rank + 0.01))
        expanded = model.to_tensorly().to_tensor()
        # E[exp x] = exp(x̄ + Var x / 2), with a variance that data without noise make small.
        np.testing.assert_allclose(np.exp(expanded), model.low_rank(), rtol=1e-2)

    def test_rank_zero_expands_to_zeros(self) -> None:
        model = brtf.BRTF(inference="paper", robust=False, random_state=0).fit(np.zeros((4, 3, 2)))
        assert model.rank_ == 0
        np.testing.assert_array_equal(model.to_tensorly().to_tensor(), np.zeros((4, 3, 2)))


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [("to_frame", "pandas", "label"), ("to_xarray", "xarray", "label"), ("to_tensorly", "tensorly", "baselines")],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, method: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        getattr(PLAIN, method)()
    assert str(caught.value) == f'{module} is needed for {method}(): pip install "brtf[{extra}]".'
    assert isinstance(caught.value, ValueError)  # which the command line shows as a sentence


def test_what_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 10_000)
    for answer in (lambda: PLAIN.to_frame("imputed"), PLAIN.to_xarray):
        with pytest.raises(MemoryError, match="GB"):
            answer()
