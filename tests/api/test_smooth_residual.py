"""Fits with a smooth residual: the right rank, intervals that cover, the same in every layout, and off where idle."""

import json

import numpy as np
import pytest

import brtf
from brtf import BRTF, Observations
from brtf.io.storage import CorruptFile, read_archive, write_archive

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::brtf.FitWarning")
SHAPE, RANK, MODE = (6, 50, 24), 3, 1
PLAIN = {"link": None, "arrangement": None, "modes": None, "noise": "common", "random_state": 0}


def course(rng, n_fibres, length, memory):
    """Autoregressive series of unit variance, (n_fibres, length)."""
    series = rng.standard_normal((n_fibres, length))
    for t in range(1, length):
        series[:, t] = memory * series[:, t - 1] + np.sqrt(1 - memory**2) * series[:, t]
    return series


def mixture(seed=0, missing=0.2, size=0.3):
    """A mixture of three, its smooth misfit, and the data with noise and gaps."""
    rng = np.random.default_rng(seed)
    factors = [np.abs(rng.standard_normal((SHAPE[0], RANK)))]
    factors += [
        np.abs(course(rng, RANK, length, memory)).T for length, memory in zip(SHAPE[1:], (0.97, 0.9), strict=True)
    ]
    x = np.einsum("ir,jr,kr->ijk", *factors)
    g = size * course(rng, SHAPE[0] * SHAPE[2], SHAPE[1], 0.95).reshape(SHAPE[0], SHAPE[2], SHAPE[1]).transpose(0, 2, 1)
    y = x + g + 0.05 * rng.standard_normal(SHAPE)
    return x, g, np.where(rng.random(SHAPE) < missing, np.nan, y)


@pytest.fixture(scope="module")
def fitted():
    x, g, y = mixture()
    return x, g, y, BRTF(smooth_residual="auto", **PLAIN).fit(y)


class TestChosen:
    @pytest.mark.parametrize("missing", [0.0, 0.2])
    def test_the_rank_is_right_with_it_and_too_large_without(self, missing):
        for seed in range(3):
            x, _, y = mixture(seed, missing)
            model, without = BRTF(smooth_residual="auto", **PLAIN).fit(y), BRTF(smooth_residual=None, **PLAIN).fit(y)
            assert model.smooth_residual_ == MODE
            assert model.rank_ == RANK
            assert without.rank_ > RANK + 2
            assert model.bound_ > without.bound_ + 500
            errors = [np.sqrt(np.mean((fit.low_rank() - x) ** 2)) for fit in (model, without)]
            assert errors[0] < 0.7 * errors[1]
            assert model.choices_["smooth_residual"].value == MODE
            assert "smooth course" in str(model.summary())

    @pytest.mark.parametrize("missing", [0.0, 0.6])
    def test_nothing_changes_where_there_is_none(self, missing):
        tensor = brtf.datasets.paper_synthetic(outliers=0.1, missing=missing, seed=5).observed
        model, plain = (BRTF(random_state=0, smooth_residual=asked).fit(tensor) for asked in ("auto", None))
        assert model.smooth_residual_ is None
        assert model.bound_ == plain.bound_
        np.testing.assert_array_equal(model.low_rank(), plain.low_rank())

    def test_one_that_was_asked_for_dies_out(self):
        """On white noise its variance is learnt to be next to nothing, and it costs little."""
        data = brtf.datasets.synthetic((12, 15, 10), 2, noise=0.1, seed=0)
        model, plain = (BRTF(smooth_residual=asked, **PLAIN).fit(data.observed) for asked in (1, None))
        assert model.smooth_residual_ == 1
        assert model.bound_ > plain.bound_ - 10
        smooth = model.predict(of="signal") - model.low_rank()
        assert np.sqrt(np.mean(smooth**2)) < 0.3 * np.sqrt(plain.noise_variance_)


@pytest.fixture(scope="module")
def unequal():
    """Half of the fibres have a strong course of their own, the others next to none."""
    x, _, _ = mixture()
    rng = np.random.default_rng(100)
    size = np.where(rng.random((SHAPE[0], 1, SHAPE[2])) < 0.5, 0.02, 0.5)
    courses = course(rng, SHAPE[0] * SHAPE[2], SHAPE[1], 0.95).reshape(SHAPE[0], SHAPE[2], SHAPE[1])
    y = x + size * courses.transpose(0, 2, 1) + 0.05 * rng.standard_normal(SHAPE)
    hidden = rng.random(SHAPE) < 0.2
    return y, hidden, size[:, 0] > 0.1, BRTF(smooth_residual=MODE, **PLAIN).fit(np.where(hidden, np.nan, y))


class TestFibresDiffer:
    def test_their_variances_are_told_apart(self, unequal):
        *_, strong, model = unequal
        variances = model.result_.state.smooth.variances.reshape(strong.shape)
        assert np.median(variances[strong]) > 50 * np.median(variances[~strong])

    def test_intervals_cover_in_both(self, unequal):
        y, hidden, strong, model = unequal
        low, high = model.predict_interval(of="observation")
        covered = (low < y) & (y < high)
        for kind in (strong, ~strong):
            assert 0.90 < covered[hidden & kind[:, None]].mean() < 0.98


class TestAnswers:
    def test_signal_and_low_rank(self, fitted):
        x, g, y, model = fitted
        signal, hidden = model.predict(of="signal"), np.isnan(y)
        assert np.sqrt(np.mean((signal - x - g)[hidden] ** 2)) < 0.5 * np.std(g)
        np.testing.assert_array_equal(model.impute()[hidden], signal[hidden])
        np.testing.assert_array_equal(model.predict(), model.low_rank())
        np.testing.assert_allclose(model.predict(of="observation"), signal)

    def test_intervals_cover(self):
        covered = {"signal": [], "observation": []}
        for seed in range(3):
            x, g, y = mixture(seed)
            model = BRTF(smooth_residual="auto", **PLAIN).fit(y)
            hidden, rng = np.isnan(y), np.random.default_rng(seed)
            truth = {"signal": x + g, "observation": x + g + 0.05 * rng.standard_normal(SHAPE)}
            for of, wanted in truth.items():
                low, high = model.predict_interval(of=of)
                covered[of].append(np.mean(((low < wanted) & (wanted < high))[hidden]))
        assert 0.90 < np.mean(covered["signal"]) < 0.99
        assert 0.92 < np.mean(covered["observation"]) < 0.99

    def test_long_gaps_widen_to_the_variance_of_the_fibre(self):
        _, _, y = mixture(1, missing=0.1)
        y[2, 10:45, 7] = np.nan
        model = BRTF(smooth_residual="auto", **PLAIN).fit(y)
        _, std = model.predict(return_std=True, of="signal")
        _, of_low_rank = model.predict(return_std=True)
        own = np.sqrt(std**2 - of_low_rank**2)[2, :, 7]
        smooth = model.result_.state.smooth
        limit = np.sqrt(smooth.variance) * model.result_.scale
        assert own[27] > 0.7 * limit
        assert own[27] <= 1.01 * limit * np.sqrt(1.0 / smooth.relative.mean.min())
        assert own[np.isfinite(y[2, :, 7])].max() < own[27]

    def test_some_entries_and_scores(self, fitted):
        _, _, y, model = fitted
        coords = np.array([[0, 5, 3], [0, 49, 20], [0, 23, 11]])
        np.testing.assert_allclose(model.predict(coords, of="signal"), model.predict(of="signal")[tuple(coords)])
        found, wanted = model.predict_interval(coords, of="observation"), model.predict_interval(of="observation")
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other[tuple(coords)], rtol=1e-9)
        assert model.sample(2, coords, of="signal").shape == (2, 3)
        x, g, _ = mixture()
        held_out = np.where(np.isnan(y), x + g + 0.05 * np.random.default_rng(0).standard_normal(SHAPE), np.nan)
        assert model.score(held_out) > BRTF(smooth_residual=None, **PLAIN).fit(y).score(held_out) + 0.2

    def test_layouts_do_not_matter(self, fitted):
        _, _, y, model = fitted
        coords = np.nonzero(np.isfinite(y))
        other = BRTF(smooth_residual="auto", **PLAIN).fit(Observations.from_coords(coords, y[coords], SHAPE))
        assert other.bound_ == pytest.approx(model.bound_, abs=1.0)  # both end at max_sweeps
        np.testing.assert_allclose(other.predict(of="signal"), model.predict(of="signal"), atol=1e-2)
        turned = BRTF(smooth_residual="auto", **PLAIN).fit(y.transpose(1, 0, 2))
        assert turned.smooth_residual_ == 0
        assert turned.rank_ == RANK
        assert turned.bound_ == pytest.approx(model.bound_, abs=20)

    def test_order_reversed_is_the_same(self, fitted):
        _, _, y, model = fitted
        turned = BRTF(smooth_residual="auto", **PLAIN).fit(y[:, ::-1])
        assert turned.bound_ == pytest.approx(model.bound_, abs=20)
        np.testing.assert_allclose(turned.predict(of="signal")[:, ::-1], model.predict(of="signal"), atol=0.1)


class TestKept:
    def test_saved_and_read(self, fitted, tmp_path):
        model = fitted[3]
        model.save(tmp_path / "fit.brtf")
        again = brtf.load(tmp_path / "fit.brtf")
        assert again.smooth_residual_ == MODE
        for of in ("low_rank", "signal", "observation"):
            np.testing.assert_array_equal(again.predict(of=of), model.predict(of=of))
            np.testing.assert_array_equal(again.predict_interval(of=of)[0], model.predict_interval(of=of)[0])
        header, arrays = read_archive(tmp_path / "fit.brtf")
        for change in ({"mode": 3}, {"memory": 1.5}, {"variance": -1.0}, {"divergence": "x"}):
            forged = json.loads(json.dumps(header))
            forged["smooth"].update(change)
            write_archive(tmp_path / "forged.brtf", forged, arrays)
            with pytest.raises(CorruptFile):
                brtf.load(tmp_path / "forged.brtf")

    def test_a_resumed_fit_ends_the_same(self, fitted, tmp_path):
        y = fitted[2]
        path = tmp_path / "c.brtf"
        model = BRTF(smooth_residual=MODE, **PLAIN).fit(y)
        BRTF(smooth_residual=MODE, **PLAIN, max_seconds=0.5).fit(y, checkpoint=path, every=0)
        resumed = BRTF(smooth_residual=MODE, **PLAIN).fit(y, resume=path)
        assert resumed.bound_ == model.bound_
        np.testing.assert_array_equal(resumed.predict(of="signal"), model.predict(of="signal"))


class TestTogether:
    def test_with_outliers_links_and_noise_per_slice(self):
        x, g, y = mixture(0)
        rng = np.random.default_rng(0)
        spikes = (rng.random(SHAPE) < 0.03) & np.isfinite(y)
        y = y + 5.0 * spikes
        model = BRTF(random_state=0, link=None, arrangement=None, smooth_residual="auto").fit(y)
        assert model.smooth_residual_ == MODE
        assert model.outlier_probability()[spikes].mean() > 0.9
        assert model.outlier_rate_ < 0.06
        hidden = np.isnan(y)
        assert np.sqrt(np.mean((model.predict(of="signal") - x - g)[hidden] ** 2)) < 0.6 * np.std(g)
        rooted = BRTF(random_state=0, link="sqrt", arrangement=None, smooth_residual=MODE).fit(np.square(2.0 + 0.3 * y))
        assert np.isfinite(rooted.impute()).all()
        assert rooted.smooth_residual_ == MODE

    def test_anomalies_and_the_page(self, fitted, tmp_path):
        model = fitted[3]
        for of in ("entries", "fibres", "slices", "rows"):
            model.anomalies(0.1, of=of)
        assert model.transform(fitted[2][:2]).shape == (2, RANK)
        model.report(tmp_path / "page.html")


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"smooth_residual": "time"}, "smooth_residual must be None"),
            ({"smooth_residual": 3}, "smooth_residual must be different modes"),
            ({"smooth_residual": 1, "inference": "paper"}, 'smooth_residual needs inference="calibrated"'),
            ({"smooth_residual": 1, "arrangement": ((0, 1), (2,))}, "needs its mode as it is"),
        ],
    )
    def test_bad_options_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            BRTF(**options).fit(np.random.default_rng(0).standard_normal((8, 9, 10)))

    def test_blocks_and_chunks(self, fitted):
        _, _, y, model = fitted
        with pytest.raises(ValueError, match="partial_fit has no smooth residual"):
            BRTF(smooth_residual=1).partial_fit(y)
        with pytest.raises(ValueError, match="cannot continue a fit with a smooth residual"):
            model.partial_fit(y)
        da = pytest.importorskip("dask.array")
        with pytest.raises(ValueError, match="smooth_residual=1 needs data in memory"):
            BRTF(smooth_residual=1).fit(da.from_array(y, chunks=(3, 50, 24)))


def test_an_exact_fit_leaves_nothing_to_be_smooth():
    model = brtf.BRTF(random_state=0, smooth_residual=0, max_sweeps=20).fit(np.zeros((12, 4)))
    assert model.rank_ == 0
    assert np.all(model.low_rank() == 0)
