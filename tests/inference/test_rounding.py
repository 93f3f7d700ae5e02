"""Data that were rounded: the step is found whatever the unit, and noise is never below what rounding alone makes."""

import dask.array
import numpy as np
import pytest

from brtf import BRTF
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.inference.rounding import largest_precision, rounding_step, typical_gap
from brtf.model.state import LARGEST_PRECISION

RNG = np.random.default_rng(0)
PIXELS = RNG.normal(100, 20, (30, 40, 4)).round().clip(0, 255)
NUMBERS = RNG.standard_normal((30, 40))


def video(n_frames=30, height=7, width=8):
    """Eight-bit pixels, half of them constant but for something bright that passes by, the others noisy."""
    rng = np.random.default_rng(1)
    background = rng.uniform(40, 200, (height, width)).round()
    sd = np.where(np.arange(height)[:, None] < height // 2, 0.0, 3.0)
    frames = background + sd * rng.standard_normal((n_frames, height, width))
    for frame in range(n_frames):
        frames[frame, 2:4, frame % width] = 230.0
    return frames.round().clip(0, 255)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("unit", [1.0, 1000.0, 1 / 255, 0.37, 1e-3, 1e-30])
def test_the_step_of_pixels_is_found_in_any_unit(unit, dtype):
    assert rounding_step(observe((unit * PIXELS).astype(dtype))) == pytest.approx(unit, rel=1e-6)


@pytest.mark.parametrize("unit", [7e305, 1e-300])
def test_the_step_of_the_largest_and_smallest_numbers_is_found(unit):
    assert rounding_step(observe(unit * (PIXELS - 100))) == pytest.approx(unit)


def test_the_step_of_other_rounded_numbers():
    assert rounding_step(observe(2 * PIXELS + 1)) == pytest.approx(2)
    assert rounding_step(observe(PIXELS - PIXELS.mean())) == pytest.approx(1)
    assert rounding_step(observe(PIXELS.astype(np.uint8))) == pytest.approx(1)
    assert rounding_step(observe(np.round(3 * NUMBERS, 1))) == pytest.approx(0.1)
    assert rounding_step(observe(np.round(0.3 * NUMBERS, 2))) == pytest.approx(0.01)
    assert rounding_step(observe(RNG.choice([0.0, 6.0, 10.0, 21.0], (9, 9)))) == pytest.approx(1)
    assert rounding_step(observe(np.where(RNG.random(PIXELS.shape) < 0.9, np.nan, PIXELS))) == pytest.approx(1)


@pytest.mark.parametrize("mask", [False, True])
def test_blocks_are_looked_at_together(mask):
    pixels = np.where(np.arange(500)[:, None] < 400, 10.0, np.arange(1500) % 3 * 4.0)
    pixels[-1, 0] = np.nan if mask else 0.0
    observations = observe(pixels)
    assert len(list(observations.block_list)) > 1
    assert rounding_step(observations) == pytest.approx(2)
    assert rounding_step(observe(dask.array.from_array(pixels, chunks=(90, 1500)))) == pytest.approx(2)


UNROUNDED = {
    "numbers": NUMBERS,
    "single precision": NUMBERS.astype(np.float32),
    "half precision": NUMBERS.astype(np.float16),
    "repeated": np.repeat(NUMBERS, 4, axis=0),
    "mostly zero": np.where(RNG.random(NUMBERS.shape) < 0.7, 0.0, NUMBERS),
    "all different": np.arange(12.0).reshape(3, 4),
    "two values": np.eye(5),
    "one value": np.full((4, 5), 3.0),
    "exact": synthetic((9, 8, 7), 2, noise=0.0, seed=0).low_rank,
}


@pytest.mark.parametrize("name", UNROUNDED)
def test_other_data_have_no_step(name):
    assert rounding_step(observe(UNROUNDED[name])) == 0.0
    assert largest_precision(observe(UNROUNDED[name])) == LARGEST_PRECISION


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")
@pytest.mark.parametrize("noise", ["per-slice", "common"])
@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_noise_is_not_below_rounding(noise, robust, unit):
    pixels = unit * video().reshape(30, -1).T
    model = BRTF(4, noise=noise, link=None, robust=robust, random_state=0).fit(pixels)
    sd = np.sqrt(model.noise_variances_)
    rounded = unit / np.sqrt(12)
    assert np.min(sd) >= rounded * (1 - 1e-9)
    if noise == "per-slice":
        assert np.min(sd) < 1.2 * rounded and np.max(sd) > 2 * unit


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")
@pytest.mark.parametrize("link", ["sqrt", "log", "auto"])
def test_noise_of_a_link_is_not_below_rounding_either(link):
    pixels = video().reshape(30, -1).T
    model = BRTF(4, link=link, noise="common", random_state=0).fit(pixels)
    at_largest = {None: 1.0, "sqrt": 0.5 / np.sqrt(pixels.max()), "log": 1.0 / pixels.max()}[model.link_]
    assert np.sqrt(model.noise_variance_) >= 0.99 * at_largest / np.sqrt(12)


def test_exact_whole_numbers_keep_their_rank():
    rng = np.random.default_rng(0)
    factors = [rng.integers(0, 5, (length, 2)) for length in (10, 12, 8)]
    exact = np.einsum("ir,jr,kr->ijk", *factors)
    model = BRTF(random_state=0).fit(np.where(rng.random(exact.shape) < 0.05, 99, exact))
    assert model.rank_ == 2 and not model.diagnosis_
    assert np.array_equal(np.rint(model.low_rank()), exact)


def test_rounding_above_which_there_is_noise_changes_nothing():
    data = synthetic((12, 11, 10), 2, noise=0.3, seed=0).observed
    exact, rounded = (BRTF(random_state=0).fit(values) for values in (data, np.round(data, 1)))
    assert rounded.rank_ == exact.rank_ and not rounded.diagnosis_
    assert rounded.noise_variance_ == pytest.approx(exact.noise_variance_ + 0.01 / 12, rel=0.02)


def test_of_transformed_data_the_typical_gap_is_known():
    """The geometric mean over the entries of half the distance between the values above and below."""
    plain, logged = (BRTF(2, link=name, random_state=0).fit(PIXELS + 1).result_ for name in (None, "log"))
    assert plain.state.prior.largest_precision == pytest.approx(12 * plain.observations.scale**2)
    levels = np.log(np.unique(PIXELS + 1))
    gaps = np.gradient(levels)  # at the ends the distance to the only neighbour
    of_entries = gaps[np.searchsorted(levels, np.log(PIXELS + 1).ravel() - 1e-9)]
    gap = np.exp(np.mean(np.log(of_entries)))
    assert logged.state.prior.largest_precision == pytest.approx(12 * (logged.scale / gap) ** 2, rel=1e-6)


def test_gap_of_values_a_step_apart_is_the_step():
    values = observe(0.25 * np.random.default_rng(0).integers(0, 9, (12, 11, 10)))
    assert typical_gap(values) == pytest.approx(0.25, rel=1e-9) == rounding_step(values)
    assert typical_gap(observe(np.random.default_rng(0).normal(size=(12, 11, 10)))) == 0.0


def test_what_is_known_stays_known():
    rows = np.tile(video()[:, :3].reshape(30, -1), (1, 2))
    model = BRTF(2, outlier_kind="additive", random_state=0).fit(rows[:20])
    known = model.result_.state.prior.largest_precision
    assert known < LARGEST_PRECISION
    model.partial_fit(rows[20:])
    assert model.result_.state.prior.largest_precision == known
    assert np.sqrt(model.noise_variance_) >= (1 - 1e-9) / np.sqrt(12)
