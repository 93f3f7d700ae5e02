"""A geoscientist with a field: units, coordinates and precision survive, clouds are filled, their edges are listed."""

import numpy as np
import pytest
import xarray as xr

import brtf
from pages import looked_at
from people import brtf_command, page_text, temperature


@pytest.fixture(scope="module")
def brought():
    return temperature()


@pytest.fixture(scope="module")
def model(brought):
    return brtf.BRTF(random_state=0).fit(brought[0])


def test_answers_are_fields_with_units(model, brought):
    measured, _ = brought
    low, high = model.predict_interval()
    for answer in (model.impute(), model.low_rank(), model.outliers(), model.predict(), low, high):
        assert isinstance(answer, xr.DataArray)
        assert answer.attrs == {"units": "K", "long_name": "air temperature"}
        assert answer.dtype == np.float32
        assert set(answer.coords) == {"time", "latitude", "longitude", "month", "height"}
    assert model.outlier_probability().attrs == {}
    np.testing.assert_array_equal(model.impute().where(measured.notnull()), measured)


def test_clouds_are_filled_within_the_noise(model, brought):
    measured, truth = brought
    cloudy = measured.isnull()
    error = (model.low_rank() - truth).where(cloudy)
    assert float(np.sqrt((error**2).mean())) < 0.3
    # Entries share few parameters, so that the share that is covered varies by some hundredths.
    low, high = model.predict_interval()
    assert 0.88 < float(((low <= truth) & (truth <= high)).where(cloudy).sum() / cloudy.sum()) <= 1


def test_edges_of_clouds_are_listed(model, brought):
    measured, truth = brought
    cold = measured - truth < -5
    listed = [(row.time, row.latitude, row.longitude) for row in model.anomalies(q=0.1).itertuples()]
    # The list is as long as one false alarm in ten allows: certain ones come first, and one more may follow them.
    n_cold = int(cold.sum())
    assert n_cold > 5
    assert all(bool(cold.loc[place]) for place in listed[:n_cold])
    assert len(listed) <= n_cold + 2


def test_questions_are_asked_with_dates_and_degrees(model, brought):
    answer = model.predict({"time": ["2021-07-01"], "latitude": [45.0], "longitude": [20.0]})
    truth = float(brought[1].sel(time="2021-07-01", latitude=45.0, longitude=20.0))
    assert abs(answer[0] - truth) < 1
    with pytest.raises(ValueError, match=r"mode 'latitude' has no label 45\.1"):
        model.predict({"time": ["2021-07-01"], "latitude": [45.1], "longitude": [20.0]})


def test_loadings_run_along_time(model, brought):
    loadings = model.transform(Y=brought[0].isel(time=slice(0, 12)))
    assert loadings.dims == ("time", "component")
    assert list(loadings["month"].to_numpy()) == list(range(1, 13))


def test_a_dataset_is_refused_with_the_variable_to_pass(brought):
    with pytest.raises(
        TypeError, match=r"xarray\.Dataset with the variables \['t2m'\]: pass one of them, such as Y\['t2m'\]"
    ):
        brtf.BRTF().fit(brought[0].to_dataset())


def test_chunked_fields_answer_the_same_way(brought, model):
    ours = brtf.BRTF(max_rank=2, random_state=0).fit(brought[0].chunk({"time": 12}))
    filled = ours.impute()
    assert filled.attrs["units"] == "K"
    # fewer choices are made for data in chunks: the answers differ by less than the noise
    np.testing.assert_allclose(filled, model.impute(), atol=0.3)


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:.*has no checksums")
def test_zarr_in_zarr_out(brought, model, tmp_path):
    pytest.importorskip("zarr")
    brought[0].to_dataset().to_zarr(tmp_path / "t2m.zarr")  # beside the field: its labels, a month and a height
    brtf_command("fit", tmp_path / "t2m.zarr", "--out", tmp_path / "out")
    with xr.open_zarr(tmp_path / "out" / "imputed.zarr", consolidated=False) as filled:
        assert filled["t2m"].attrs == brought[0].attrs and {"month", "height"} <= set(filled.coords)
        np.testing.assert_allclose(filled["t2m"], model.impute(), atol=1e-3)


def test_netcdf_in_netcdf_out(brought, model, tmp_path, visit):
    brought[0].to_netcdf(tmp_path / "t2m.nc")
    told = brtf_command("fit", tmp_path / "t2m.nc", "--out", tmp_path / "out")
    assert "36 time (2020-01-01 … 2022-12-01) × 9 latitude (40 … 50) × 12 longitude (0 … 20)" in told
    assert "t2m in K" in told
    with xr.open_dataarray(tmp_path / "out" / "imputed.nc") as filled:
        assert filled.attrs["units"] == "K"
        assert filled.dtype == np.float32
        np.testing.assert_allclose(filled, model.impute(), atol=1e-3)
    assert "latitude" in page_text(tmp_path / "out" / "report.html")
    looked_at(visit, tmp_path / "out" / "report.html")
