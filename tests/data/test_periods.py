"""Periods along a mode: found where time stamps or lines in the spectrum tell of them, and only there."""

import tracemalloc

import numpy as np
import pytest

from brtf.data.checks import Labels
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.periods import NEEDLESS, calendar_periods, fibres_along, spectral_periods, suggested_periods


def smooth(rng, n_fibres, length, memory):
    """Autoregressive series of unit variance."""
    series = rng.standard_normal((n_fibres, length))
    for t in range(1, length):
        series[:, t] = memory * series[:, t - 1] + np.sqrt(1 - memory**2) * series[:, t]
    return series


def repeated(rng, length, period):
    """A random course of a day again and again, of unit variance: a closed random walk."""
    steps = rng.standard_normal(period)
    walk = np.cumsum(steps - steps.mean())
    return np.tile((walk - walk.mean()) / walk.std(), length // period + 1)[:length]


@pytest.mark.parametrize(("length", "period"), [(150, 7), (400, 12), (1464, 24), (1500, 30)])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_periods_are_found(length, period, missing):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        series = rng.standard_normal((6, 1)) * repeated(rng, length, period) + 0.3 * smooth(rng, 6, length, 0.8)
        series[rng.random(series.shape) < missing] = np.nan
        assert period in spectral_periods(series)


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("n_fibres", [1, 8])
def test_series_without_a_period_have_none(memory, n_fibres):
    rng = np.random.default_rng(0)
    n_trials = 80
    found = 0
    for _ in range(n_trials):
        series = smooth(rng, n_fibres, int(rng.integers(20, 400)), memory)
        series = np.repeat(series, 2, axis=0)  # fibres that are alike are no further evidence
        found += bool(spectral_periods(series))
    assert found <= n_trials * NEEDLESS + 3 * np.sqrt(n_trials * NEEDLESS)


def test_a_period_between_whole_numbers_is_none():
    times = np.arange(4000)
    tide = np.cos(2 * np.pi * times / 24.84) + 0.5 * np.random.default_rng(0).standard_normal((3, 4000))
    assert not {24, 25} & set(spectral_periods(tide))
    assert 25 in spectral_periods(np.cos(2 * np.pi * times / 25) + 0.1 * tide)


def test_outliers_do_not_hide_a_period():
    rng = np.random.default_rng(0)
    series = repeated(rng, 500, 10) + 0.3 * rng.standard_normal((4, 500))
    series[rng.random(series.shape) < 0.05] += 100.0
    assert 10 in spectral_periods(series)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_every_layout_has_the_same_fibres(mode):
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((20, 5, 4))
    dense[rng.random(dense.shape) < 0.3] = np.nan
    coords = np.nonzero(np.isfinite(dense))
    wanted = np.moveaxis(dense, mode, -1).reshape(-1, dense.shape[mode])
    np.testing.assert_array_equal(fibres_along(observe(dense), mode), wanted)
    sparse = fibres_along(Observations.from_coords(coords, dense[coords], dense.shape), mode)
    wanted = wanted[np.isfinite(wanted).any(axis=1)]
    order = [np.lexsort(np.nan_to_num(array, nan=-9.0).T) for array in (sparse, wanted)]
    np.testing.assert_array_equal(sparse[order[0]], wanted[order[1]])


def test_of_many_coordinates_the_fullest_fibres_are_found():
    """Beyond the number of entries that name fibres, too, and of shapes of which no index fits into 64 bits."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((4000, 8, 12)) < 0.9, rng.standard_normal((4000, 8, 12)), np.nan)
    dense[100:] = np.where(rng.random((3900, 8, 12)) < 0.8, dense[100:], np.nan)
    coords = np.array(np.nonzero(np.isfinite(dense)))
    full = np.moveaxis(dense, 2, -1).reshape(-1, 12)
    wanted = np.sort(np.isfinite(full).sum(axis=1))[::-1]
    for stretch in (1, 2**41):
        stretched = coords * np.array([stretch, stretch, 1])[:, None]
        observations = Observations.from_coords(stretched, dense[tuple(coords)], (4000 * stretch, 8 * stretch, 12))
        fibres = fibres_along(observations, 2)
        assert len(fibres) == 2**18 // 12
        np.testing.assert_array_equal(np.isfinite(fibres).sum(axis=1), wanted[: len(fibres)])


def test_looking_for_periods_of_many_coordinates_takes_little_memory():
    """Less than one of the indices of the entries."""
    rng = np.random.default_rng(0)
    places = np.unique(rng.integers(0, 300**3, 1_000_000))
    observations = Observations.from_coords(np.unravel_index(places, (300,) * 3), np.ones(places.size), (300,) * 3)
    tracemalloc.start()
    try:
        fibres_along(observations, 1)
        observations.at_positions([np.arange(0, 300, 10)] * 3)
        assert tracemalloc.get_traced_memory()[1] < 24 * places.size
    finally:
        tracemalloc.stop()


def test_fibres_of_a_large_tensor_take_little_memory():
    """Less than an index of all cells, of eight bytes each."""
    mask = np.random.default_rng(0).random((4000, 50, 40)) < 0.5
    observations = observe(np.where(mask, np.float32(1.0), np.float32(np.nan)))
    tracemalloc.start()
    try:
        fibres_along(observations, 1)
        observations.at_positions([np.arange(0, 4000, 100), np.arange(50), np.arange(40)])
        assert tracemalloc.get_traced_memory()[1] < 4 * mask.size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("first", "step", "length", "wanted"),
    [
        ("2020-01-01T05", "h", 100, [24]),
        ("2020-01-01", "D", 50, [7]),
        ("2020-01", "M", 48, [12]),
        ("2020-01-01T05", "h", 60, []),
        ("2020-01-01", "Y", 50, []),
    ],
)
def test_time_stamps_suggest_periods(first, step, length, wanted):
    stamps = np.datetime64(first, step) + np.arange(length)
    noise = np.random.default_rng(0).standard_normal((length, 3))
    labels = Labels(("time", "sensor"), (stamps.astype("M8[ns]"), None))
    coords = np.indices(noise.shape).reshape(2, -1)
    observations = Observations.from_coords(coords, noise.ravel(), noise.shape, labels=labels)
    assert calendar_periods(observations, 0) == suggested_periods(observations, 0) == wanted
    as_text = Labels(labels.dims, (stamps.astype("M8[s]").astype(str), None))
    told = Observations.from_coords(coords, noise.ravel(), noise.shape, labels=as_text)
    assert calendar_periods(told, 0) == wanted
    uneven = Labels(labels.dims, (stamps.astype("M8[s]") + np.arange(length) ** 2, None))
    observations = Observations.from_coords(coords, noise.ravel(), noise.shape, labels=uneven)
    assert calendar_periods(observations, 0) == []
