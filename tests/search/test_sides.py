"""Outliers of one sign: a fit finds them, says how many there are, and its predictions are as lopsided as the data."""

from dataclasses import replace

import numpy as np
import pytest

from brtf import BRTF, load
from brtf.datasets import synthetic
from brtf.metrics import rrse

SHAPE = (20, 16, 12)
NOISE = 0.1


def one_sided(seed, *, rate=0.2, size=20.0, sign=1.0, shape=SHAPE, rank=3):
    """Data of the given rank, and the law of their noise and of outliers between 0 and ``size`` noise levels."""
    rng = np.random.default_rng(seed)
    names = "ijkl"[: len(shape)]
    factors = (rng.standard_normal((length, rank)) for length in shape)
    low_rank = np.einsum(f"{','.join(name + 'r' for name in names)}->{names}", *factors)

    def observed():
        hit = rng.random(shape) < rate
        return low_rank + NOISE * (rng.standard_normal(shape) + sign * hit * rng.uniform(0.0, size, shape))

    return low_rank, observed


def sides_of(model):
    structure = model.result_.state.structure
    return None if structure is None else structure.sides


@pytest.fixture(scope="module")
def found():
    low_rank, observed = one_sided(0)
    data = observed()
    return low_rank, observed, data, BRTF(random_state=0).fit(data)


def test_they_are_found(found):
    low_rank, _, data, model = found
    assert model.converged_
    assert model.rank_ == 3
    assert sides_of(model).mean > 0.97
    assert model.noise_variance_ == pytest.approx(NOISE**2, rel=0.1)
    assert model.outlier_rate_ == pytest.approx(0.2, abs=0.03)
    assert any(event.startswith("one-sided outliers (+") for event in model.trace_["event"])
    # Few entries below the low-rank part are outliers, however far below.
    below = data < model.low_rank() - 3.0 * NOISE
    assert model.outlier_probability()[below].mean() < 0.2
    # 144 parameters of 3840 entries, a fifth of them outliers.
    assert rrse(model.low_rank(), low_rank) < 1.2 * np.sqrt(144 / 3840 / 0.8) * NOISE / low_rank.std()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_their_mean_is_told_from_a_constant(sign):
    """Data with an offset have a component that takes up the mean of many small outliers, and skewed noise is left."""
    low_rank, observed = one_sided(101, rate=0.35, size=4.5, sign=sign)
    model = BRTF(random_state=0).fit(observed() + 1.0)
    assert sign * (sides_of(model).mean - 0.5) > 0.45
    assert model.outlier_rate_ > 0.2
    # A third of the outliers' mean of .35 × 4.5 / 2 noise levels, and what noise adds.
    assert np.abs(np.mean(model.low_rank() - low_rank - 1.0)) < 0.35 * NOISE
    words = [event for event in model.trace_["event"] if event.startswith("one-sided outliers")]
    assert any("(+" in event for event in words)


@pytest.mark.parametrize(("seed", "size"), [(0, 2.2), (3, 2.2)])
def test_a_component_that_held_their_mean_gives_it_back(seed, size):
    """Born before the outliers had a side, it ended as a sixth component, some 50 nats below five without it."""
    low_rank, observed = one_sided(seed, rate=0.3, size=size, shape=(14, 6, 5, 20), rank=5)
    model = BRTF(random_state=0).fit(observed())
    assert model.rank_ == 5
    assert sides_of(model).mean > 0.9
    assert model.outlier_rate_ == pytest.approx(0.3, abs=0.1)
    # 5 × 42 parameters of 8400 entries, a third of them less certain than the others, give .19; their mean alone .33.
    assert np.sqrt(np.mean((model.low_rank() - low_rank) ** 2)) < 0.25 * NOISE


def test_symmetric_noise_is_not_shifted():
    rng = np.random.default_rng(3)
    model = BRTF(random_state=0).fit(one_sided(3, rate=0.0)[1]() + 1.0)
    heavy = BRTF(random_state=0).fit(1.0 + one_sided(4, rate=0.0)[1]() + NOISE * rng.standard_t(3, SHAPE))
    for fitted in (model, heavy):
        assert sides_of(fitted) is None
        assert not any(event.startswith("one-sided outliers") for event in fitted.trace_["event"])


@pytest.mark.parametrize("size", [3.0, 10.0, 50.0])
def test_new_observations_lie_anywhere_within_the_prediction(size):
    """PIT of new data: every tenth of the prediction holds a tenth of them, within a tenth of that."""
    counts = np.zeros(10)
    for seed in range(3):
        _, observed = one_sided(10 + seed, size=size, rate=0.25)
        model = BRTF(random_state=0).fit(observed())
        assert model.rank_ == 3
        draws, new = model.sample(99, random_state=1), observed()
        counts += np.bincount(np.sum(draws < new, axis=0).ravel() // 10, minlength=10)
    shares = 10.0 * counts / counts.sum()
    # 11,520 entries: a share of a tenth is known to 3 %.
    np.testing.assert_allclose(shares, 1.0, atol=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_symmetric_outliers_have_no_sides(seed):
    data = synthetic((14, 12, 10), 2, outliers=(0.0, 0.05, 0.2, 0.35)[seed], seed=seed).observed
    model = BRTF(random_state=0).fit(data)
    assert model.result_.state.structure is None
    assert model.rank_ == 2


def test_they_are_kept_where_they_are_asked_for():
    """Two outliers are too few to show a side, so that "auto" sees none; who asks for sides keeps them."""
    data = synthetic((10, 9, 8), 2, noise=0.01, seed=5).observed.copy()
    data[3, 4, 5] += 3.0
    data[7, 1, 2] += 5.0
    asked = BRTF(outlier_kind="one-sided", random_state=0).fit(data)
    assert asked.outlier_kind_ == "one-sided"
    assert sides_of(asked).mean > 0.5
    assert asked.rank_ == 2
    assert asked.outlier_probability()[3, 4, 5] > 0.9
    free = BRTF(random_state=0).fit(data)
    assert free.outlier_kind_ == "additive"
    # A Beta-distributed share of signs costs what it cannot predict.
    assert asked.bound_ < free.bound_ + 1.0


@pytest.mark.parametrize(
    ("options", "named"),
    [({"robust": False}, "robust"), ({"inference": "paper"}, "calibrated"), ({"outlier_modes": (1,)}, "outlier_modes")],
)
def test_they_do_not_go_with_everything(options, named):
    with pytest.raises(ValueError, match=named):
        BRTF(outlier_kind="one-sided", **options).fit(np.eye(4))


def test_mirrored_data_have_mirrored_answers(found):
    _, _, data, model = found
    mirrored = BRTF(random_state=0).fit(-data)
    assert mirrored.bound_ == pytest.approx(model.bound_, abs=0.5)
    ours, theirs = sides_of(model), sides_of(mirrored)
    assert theirs.mean == pytest.approx(1.0 - ours.mean, abs=1e-3)
    np.testing.assert_allclose(mirrored.low_rank(), -model.low_rank(), atol=0.02 * NOISE)
    for level in (0.5, 0.95):
        low, high = model.predict_interval(level=level, of="observation")
        other = mirrored.predict_interval(level=level, of="observation")
        np.testing.assert_allclose(other, (-high, -low), atol=0.1 * NOISE)


def test_intervals_have_equal_tails(found):
    _, observed, _, model = found
    new = observed()
    for level in (0.5, 0.8, 0.95):
        low, high = model.predict_interval(level=level, of="observation")
        tail = 0.5 * (1.0 - level)
        error = 4.0 * np.sqrt(tail * (1.0 - tail) / new.size)
        assert np.mean(new < low) == pytest.approx(tail, abs=error)
        assert np.mean(new > high) == pytest.approx(tail, abs=error)
    mean, std = model.predict(return_std=True, of="observation")
    np.testing.assert_array_equal(mean, model.low_rank())
    # Of an outlier between 0 and h, with probability π: π h²/3 − (π h/2)².
    expected = NOISE * np.sqrt(1.0 + 0.2 * 400.0 / 3.0 - (0.2 * 10.0) ** 2)
    np.testing.assert_allclose(std, expected, rtol=0.05)


def test_conformal_intervals_widen_about_their_middle():
    _, observed = one_sided(1)
    model = BRTF(calibrate="conformal", random_state=0).fit(observed())
    result, held_back = model.result_, model.result_.held_back
    for level in (0.5, 0.9):
        low, high = model.predict_interval(held_back.entry_coords(), level, of="observation")
        slack = 1e-9 * (high - low)  # the interval ends just at the entry that decides
        n_covered = np.count_nonzero((low - slack <= held_back.values) & (held_back.values <= high + slack))
        assert n_covered == np.ceil((held_back.n_observed + 1) * level)
        uncalibrated = replace(result, held_back=None).interval(held_back.entry_coords(), level=level, of="observation")
        np.testing.assert_allclose(low + high, sum(uncalibrated), atol=1e-9)
        assert np.mean(0.5 * (low + high) - model.predict(held_back.entry_coords())) > 0.3 * NOISE


def test_a_file_keeps_them(found, tmp_path):
    _, _, data, model = found
    model.save(tmp_path / "fit.brtf")
    again = load(tmp_path / "fit.brtf")
    ours, theirs = sides_of(again), sides_of(model)
    assert (ours.positive, ours.negative) == (theirs.positive, theirs.negative)
    for ask in ("outlier_probability", "outliers", "low_rank"):
        np.testing.assert_array_equal(getattr(again, ask)(), getattr(model, ask)())
    np.testing.assert_array_equal(again.predict_interval(of="observation"), model.predict_interval(of="observation"))
    assert again.score(data) == model.score(data)
    np.testing.assert_array_equal(again.sample(2, random_state=0), model.sample(2, random_state=0))


def test_noise_and_rates_of_slices_go_with_them():
    _, observed = one_sided(2, size=40.0)
    data = observed()
    rng = np.random.default_rng(3)
    data[:4] += 5.0 * NOISE * rng.standard_normal((4, *SHAPE[1:]))
    data[10:13] += NOISE * (rng.random((3, *SHAPE[1:])) < 0.5) * rng.uniform(0.0, 40.0, (3, *SHAPE[1:]))
    model = BRTF(noise="per-slice", noise_modes=(0,), random_state=0).fit(data)
    structure = model.result_.state.structure
    assert structure.rates is not None
    assert structure.sides.mean > 0.9
    assert model.rank_ == 3
    np.testing.assert_allclose(np.ravel(model.noise_variances_)[13:], NOISE**2, rtol=0.4)


def test_new_rows_are_absorbed():
    """In two blocks as in one; the share of positive outliers stays that of the first."""
    low_rank, observed = one_sided(4, shape=(40, 14, 10))
    data = observed()
    first = BRTF(random_state=0).fit(data[:30])
    whole = BRTF(random_state=0).fit(data)
    before = sides_of(first)
    first.partial_fit(data[30:])
    assert sides_of(first).mean == before.mean > 0.97
    assert first.noise_variance_ == pytest.approx(whole.noise_variance_, rel=0.1)
    ours, theirs = (rrse(model.low_rank(), low_rank) for model in (first, whole))
    assert ours < 1.2 * theirs
    with_outliers = first.transform(data[30:])
    np.testing.assert_allclose(with_outliers, first.factors_[0][30:], atol=0.2 * np.abs(first.factors_[0]).max())
