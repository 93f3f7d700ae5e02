"""Fits with a folded mode: chosen where a period is clear, and with answers in the user's shape."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import brtf
from brtf import BRTF, Observations
from brtf.data.observe import observe
from brtf.data.plan import Plan
from brtf.io.storage import CorruptFile, read_archive, write_archive
from brtf.metrics import rrse

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::brtf.FitWarning", "ignore:.*empty slice:UserWarning"
)
ROUNDS, PERIOD, WIDTH, RANK = 30, 12, 6, 2
LENGTH = ROUNDS * PERIOD - 5
SHAPE = (LENGTH, WIDTH)
PLAIN = {"link": None, "noise": "common", "random_state": 0}


def periodic(seed=0, missing=0.2, mode=0, noise=0.1):
    """Days × hours × sensors of low rank, written as hours × sensors, and the same with noise and gaps."""
    rng = np.random.default_rng(seed)
    days, hours, sensors = (rng.standard_normal((length, RANK)) for length in (ROUNDS, PERIOD, WIDTH))
    truth = np.einsum("ir,jr,kr->ijk", days + 1.0, hours, sensors).reshape(-1, WIDTH)[:LENGTH]
    data = truth + noise * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < missing] = np.nan
    return (truth, data) if mode == 0 else (truth.T, data.T)


@pytest.fixture(scope="module", params=["masked", "coordinates"])
def fits(request):
    """A fit of the long matrix with its first mode folded, and one of the folded tensor."""
    truth, data = periodic()
    tensor = np.full((ROUNDS * PERIOD, WIDTH), np.nan)
    tensor[:LENGTH] = data
    tensor = tensor.reshape(ROUNDS, PERIOD, WIDTH)
    given = [data, tensor]
    if request.param == "coordinates":
        given = [
            Observations.from_coords(np.nonzero(np.isfinite(one)), one[np.isfinite(one)], one.shape) for one in given
        ]
    model = BRTF(arrangement={0: PERIOD}, **PLAIN).fit(given[0])
    return truth, data, model, BRTF(arrangement=None, **PLAIN).fit(given[1])


def flat(array):
    """Days × hours × sensors as hours × sensors."""
    return np.asarray(array).reshape(-1, WIDTH)[:LENGTH]


class TestChosen:
    @pytest.mark.parametrize("mode", [0, 1])
    def test_a_clear_period_is_folded(self, mode):
        for seed in range(3):
            truth, data = periodic(seed, mode=mode)
            model = BRTF(random_state=0).fit(data)
            assert model.folding_ == {mode: PERIOD}
            assert model.arrangement_ == ((0,), (1,))
            kept = BRTF(random_state=0, arrangement=None).fit(data)
            assert kept.folding_ == {}
            assert model.bound_ > kept.bound_ + 100
            assert rrse(truth, model.low_rank()) < 0.5 * rrse(truth, kept.low_rank())
            assert model.choices_["arrangement"].value == {mode: PERIOD}
            assert model.choices_["arrangement"].gain > 100
            assert f"folded by its period of {PERIOD}" in str(model.summary())

    def test_series_without_a_period_are_not_folded(self):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            series = np.cumsum(rng.standard_normal((LENGTH, RANK)), axis=0) @ rng.standard_normal((RANK, WIDTH))
            data = series + 0.1 * rng.standard_normal(series.shape)
            model, plain = (BRTF(random_state=0, arrangement=a).fit(data) for a in ("auto", None))
            assert model.folding_ == {}
            assert model.bound_ == plain.bound_
            np.testing.assert_array_equal(model.low_rank(), plain.low_rank())

    def test_time_stamps_without_a_pattern_are_not_folded(self):
        rng = np.random.default_rng(0)
        series = rng.standard_normal((240, RANK)) @ rng.standard_normal((RANK, WIDTH))
        stamps = pd.date_range("2020-01-01", periods=240, freq="h")
        frame = pd.DataFrame(series + 0.1 * rng.standard_normal(series.shape), index=stamps)
        model = BRTF(random_state=0).fit(frame)
        assert model.folding_ == {}
        assert model.rank_ == RANK

    def test_large_data_race_on_neighbouring_positions(self):
        _, data = periodic(1)
        large = replace(observe(data), plan=Plan(raced_data=1200))
        assert BRTF(random_state=0).fit(large).folding_ == {0: PERIOD}


class TestAnswers:
    def test_they_are_those_of_the_folded_tensor(self, fits):
        truth, _, model, other = fits
        assert model.folding_ == {0: PERIOD}
        assert model.bound_ == pytest.approx(other.bound_, rel=1e-9)
        assert model.rank_ == other.rank_ == RANK
        close = {"rtol": 1e-9, "atol": 1e-9}
        np.testing.assert_allclose(model.low_rank(), flat(other.low_rank()), **close)
        assert rrse(truth, model.low_rank()) < 0.05
        for of in ("low_rank", "observation"):
            for found, wanted in zip(model.predict_interval(of=of), other.predict_interval(of=of), strict=True):
                np.testing.assert_allclose(found, flat(wanted), **close)
        probability = model.outlier_probability()
        assert probability.shape == SHAPE
        assert model.impute().shape == model.predict().shape == SHAPE
        assert model.sample(2).shape == (2, *SHAPE)
        assert [factor.shape for factor in model.factors_] == [(ROUNDS, RANK), (PERIOD, RANK), (WIDTH, RANK)]

    def test_some_entries(self, fits):
        _, data, model, _ = fits
        coords = np.array([[0, 13, LENGTH - 1], [5, 0, 2]])
        np.testing.assert_allclose(model.predict(coords), model.low_rank()[tuple(coords)], rtol=1e-12)
        assert np.isfinite(model.score(data))

    def test_saved_and_read(self, fits, tmp_path):
        _, _, model, _ = fits
        model.save(tmp_path / "fit.brtf")
        again = brtf.load(tmp_path / "fit.brtf")
        assert again.folding_ == again.get_params()["arrangement"] == {0: PERIOD}
        np.testing.assert_array_equal(again.low_rank(), model.low_rank())
        header, arrays = read_archive(tmp_path / "fit.brtf")
        for folds in ([[0, LENGTH]], [[2, 3]], [[0]], "x"):
            forged = json.loads(json.dumps(header))
            forged["reading"]["folds"] = folds
            write_archive(tmp_path / "forged.brtf", forged, arrays)
            with pytest.raises(CorruptFile):
                brtf.load(tmp_path / "forged.brtf")

    def test_loadings_are_along_the_mode(self, fits):
        truth, data, model, _ = fits
        loadings, std = model.transform(data, return_std=True)
        assert loadings.shape == std.shape == (LENGTH, RANK)
        assert (std > 0).all()
        assert rrse(truth, model.inverse_transform(loadings)) < 0.05
        fewer = model.transform(data[: 2 * PERIOD + 3])
        np.testing.assert_allclose(fewer[: 2 * PERIOD], loadings[: 2 * PERIOD], rtol=1e-6, atol=1e-6)

    def test_products_of_rounds_and_phases(self, fits):
        model = fits[2]
        dataset = model.to_xarray()
        found = np.einsum("ir,jr->ij", dataset["factor_mode_0"], dataset["factor_mode_1"])
        np.testing.assert_allclose(found, model.low_rank(), atol=1e-9)
        tensor = model.to_tensorly()
        np.testing.assert_allclose(tensor.factors[0] @ tensor.factors[1].T, model.low_rank(), atol=1e-9)

    def test_views_and_anomalies(self, fits, tmp_path):
        model = fits[2]
        assert model.plot_factors().shape == (RANK, 3)
        model.report(tmp_path / "page.html")
        assert "mode 0, within a round of 12" in (tmp_path / "page.html").read_text(encoding="utf-8")
        for of in ("entries", "fibres", "slices", "rows"):
            model.anomalies(0.1, of=of)


def test_noise_along_half_of_a_mode_is_told_along_all_of_it():
    rng = np.random.default_rng(0)
    truth, _ = periodic()
    std = 10 ** rng.uniform(-2, 0, PERIOD)
    data = truth + std[np.arange(LENGTH) % PERIOD, None] * rng.standard_normal(truth.shape)
    model = BRTF(arrangement={0: PERIOD}, link=None, random_state=0).fit(data)
    assert model.noise_modes_ == (0,)
    assert model.noise_variances_.shape == (LENGTH,)
    assert np.corrcoef(np.log(model.noise_variances_[:PERIOD]), np.log(std))[0, 1] > 0.95
    low, high = model.predict_interval(of="observation")
    assert 0.92 < np.mean((data > low) & (data < high)) < 0.98


def test_rounds_and_positions_in_order_are_told_apart():
    rng = np.random.default_rng(1)
    days, hours = np.cumsum(rng.standard_normal((ROUNDS, 1)), axis=0), np.sin(np.arange(PERIOD) / 2)[:, None]
    values = (days @ hours.T).reshape(-1, 1) * rng.standard_normal((1, WIDTH))
    model = BRTF(arrangement={0: PERIOD}, **PLAIN).fit(values + 0.3 * rng.standard_normal(values.shape))
    sentence = model.choices_["modes"].sentence
    assert sentence.startswith("Rows follow each other along mode 0 (")
    assert " and the positions within a period of mode 0 (" in sentence


def test_labels_stay():
    truth, data = periodic()
    stamps = pd.date_range("2020-01-01", periods=LENGTH, freq="2h").to_numpy()
    given = xr.DataArray(data, dims=("time", "sensor"), coords={"time": stamps})
    model = BRTF(random_state=0).fit(given)
    assert model.folding_ == {"time": PERIOD} or model.folding_ == {0: PERIOD}
    for answer in (model.low_rank(), model.impute(), model.transform(given)):
        assert answer.dims[0] == "time"
        np.testing.assert_array_equal(answer.time, stamps)
    asked = {"time": stamps[[5, 40]], "sensor": [0, 3]}
    np.testing.assert_allclose(model.predict(asked), truth[[5, 40], [0, 3]], atol=0.3)


def test_a_resumed_fit_keeps_the_folding(tmp_path):
    _, data = periodic()
    whole = BRTF(random_state=0).fit(data)
    BRTF(random_state=0).fit(data, checkpoint=tmp_path / "c.brtf", every=0)
    resumed = BRTF(random_state=0).fit(data, resume=tmp_path / "c.brtf")
    assert resumed.folding_ == whole.folding_ == {0: PERIOD}
    assert resumed.bound_ == whole.bound_
    np.testing.assert_array_equal(resumed.low_rank(), whole.low_rank())
    named = tmp_path / "named.brtf"
    BRTF(arrangement={0: PERIOD}, random_state=0).fit(data, checkpoint=named)
    assert brtf.load(named).folding_ == {0: PERIOD}


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"arrangement": {}}, "arrangement must be None"),
            ({"arrangement": {0: 2.5}}, "arrangement must be None"),
            ({"arrangement": {3: 2}}, "folds mode 3"),
            ({"arrangement": {0: 30}}, "below its length"),
            ({"arrangement": {0: 4}, "inference": "paper"}, 'arrangement needs inference="calibrated"'),
        ],
    )
    def test_bad_options_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            BRTF(**options).fit(np.random.default_rng(0).standard_normal((30, 5)))

    def test_blocks_cannot_go_on_in_the_middle_of_a_period(self):
        _, data = periodic()
        with pytest.raises(ValueError, match="partial_fit cannot fold"):
            BRTF(arrangement={0: PERIOD}).partial_fit(data)
        model = BRTF(arrangement={0: PERIOD}, **PLAIN).fit(data)
        with pytest.raises(ValueError, match="partial_fit cannot continue a fit with folded modes"):
            model.partial_fit(data)
        assert BRTF(random_state=0).partial_fit(data).folding_ == {}
