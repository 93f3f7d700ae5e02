"""Generated data that look like what people bring: trips, network traffic, sea temperature, spectra, sensors, sales.

Nothing in them was drawn from the model. Every set knows its mean without noise, so that the least possible error of a
prediction of new observations is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lookalike:
    """Generated data and what is known of them.

    Attributes
    ----------
    observed : what a fit may see, NaN elsewhere
    values : what was or would be measured; NaN where there is nothing to measure, such as temperatures on land
    mean : expected values without noise
    time : the mode of time
    period : positions after which time repeats itself, at least roughly
    """

    observed: Array
    values: Array
    mean: Array
    time: int
    period: int

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Entries to predict."""
        return np.isfinite(self.values) & ~np.isfinite(self.observed)


def remembering(shape: tuple[int, ...], memory: float, rng: np.random.Generator) -> Array:
    """Courses of unit variance along the first mode, each value remembering the one before."""
    course = rng.standard_normal(shape)
    for step in range(1, len(course)):
        course[step] = memory * course[step - 1] + np.sqrt(1 - memory**2) * course[step]
    return course


def overdispersed(mean: Array, share: float, rng: np.random.Generator) -> Array:
    """Counts of this mean and of the variance mean + share · mean²."""
    return rng.poisson(mean * rng.gamma(1 / share, share, mean.shape)).astype(float)


def daily_profiles(hours: Array) -> Array:
    """Activity by hour of the week: morning rush, evening rush, midday, night, (hours, 4)."""
    of_day, weekend = hours % 24, (hours // 24) % 7 >= 5

    def bump(centre: float, width: float) -> Array:
        distance = np.minimum(np.abs(of_day - centre), 24 - np.abs(of_day - centre))
        return np.asarray(np.exp(-0.5 * (distance / width) ** 2))

    working = np.where(weekend, 0.25, 1.0)
    return np.stack(
        [
            working * bump(8, 1.5),
            working * bump(18, 2.0),
            np.where(weekend, 1.3, 0.8) * bump(13, 4.0),
            np.where(weekend, 1.8, 0.5) * bump(23, 2.5) + 0.05,
        ],
        axis=1,
    )


def trips(seed: int, *, zones: int = 18, days: int = 14, share: float = 0.4) -> Lookalike:
    """Taxi trips, origin × destination × hour: counts with heavy tails and many zeros, a pattern for every pair.

    Pairs have levels by size and distance and by taste, which no product of origin and destination gives; hours are
    mixtures of profiles by the kinds of the two zones, on days of their own size.
    """
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    place, size = rng.uniform(0, 1, (zones, 2)), np.exp(0.9 * rng.standard_normal(zones))
    distance = np.linalg.norm(place[:, None] - place, axis=2)
    level = np.outer(size, size) * np.exp(-3 * distance + 0.7 * rng.standard_normal((zones, zones)))
    kind, profiles = rng.dirichlet([0.6] * 3, zones), daily_profiles(hours)
    mixing = rng.gamma(0.7, 1.0, (3, 3, 4))
    weights = np.einsum("oa,db,abp->odp", kind, kind, mixing) * rng.gamma(6.0, 1 / 6.0, (zones, zones, 4))
    course = np.einsum("odp,hp->odh", weights, profiles)
    day = np.exp(0.12 * remembering((days, 1), 0.5, rng))[hours // 24, 0]
    mean = level[:, :, None] * course * day * (1.5 / level.mean())
    mean = mean * np.exp(0.15 * remembering((len(hours), 1, zones), 0.8, rng)).transpose(1, 2, 0)
    values = overdispersed(mean * 6, 0.05, rng)
    return Lookalike(np.where(rng.random(values.shape) < share, np.nan, values), values, mean * 6, 2, 24)


def network(seed: int, *, nodes: int = 11, steps: int = 288, share: float = 0.5) -> Lookalike:
    """Network traffic, time × from × to: levels over decades, daily rhythm, noise that grows with the level, bursts.

    Some whole measurements are missing.
    """
    rng = np.random.default_rng(seed)
    time = np.arange(steps) / 96
    level = np.exp(1.3 * rng.standard_normal((nodes, nodes))) * np.outer(*np.exp(0.7 * rng.standard_normal((2, nodes))))
    phase, depth = 0.6 * rng.standard_normal((nodes, nodes)), rng.beta(2, 2, (nodes, nodes))
    rhythm = 1 + depth * np.cos(2 * np.pi * time[:, None, None] + phase)
    common = np.exp(0.15 * remembering((steps, nodes, 1), 0.95, rng))
    own = np.exp(0.35 * rng.gamma(2, 0.5, (nodes, nodes)) * remembering((steps, nodes, nodes), 0.9, rng))
    mean = level * rhythm * common * own
    values = mean * np.exp(0.1 * rng.standard_normal(mean.shape))
    bursts = rng.random(values.shape) < 0.004
    values = np.where(bursts, values * rng.uniform(3, 20, values.shape), values)
    observed = np.where(rng.random(values.shape) < share, np.nan, values)
    observed[rng.choice(steps, steps // 40, replace=False)] = np.nan
    return Lookalike(observed, values, mean, 0, 96)


def sea(seed: int, *, shape: tuple[int, int, int] = (30, 24, 72), share: float = 0.5) -> Lookalike:
    """Sea temperature, longitude × latitude × month: a season by latitude, a slow oscillation, eddies, land."""
    rng = np.random.default_rng(seed)
    n_lon, n_lat, n_months = shape
    latitude, month = np.linspace(-1, 1, n_lat), np.arange(n_months)
    ground = 27 - 9 * latitude**2 + 2 * _smooth(rng, (n_lon, n_lat), (5, 4))
    season = (0.3 + 1.8 * np.abs(latitude)) * np.sign(latitude + 0.1)
    delay = 0.3 * _smooth(rng, (n_lon, n_lat), (6, 4))
    depth = 1 + 0.2 * _smooth(rng, (n_lon, n_lat), (5, 4))
    cycle = np.cos(2 * np.pi * month / 12 - delay[:, :, None])
    slow = gaussian_filter(rng.standard_normal(n_months), 4, mode="reflect")
    oscillation = np.exp(-4 * latitude**2) * (0.3 + np.linspace(0, 1, n_lon))[:, None]
    eddies = _smooth(rng, shape, (2.5, 2.0, 2.0))
    mean = ground[:, :, None] + (season * depth)[:, :, None] * cycle + 0.5 * eddies
    mean = mean + 0.9 * oscillation[:, :, None] * slow / slow.std()
    land = _smooth(rng, (n_lon, n_lat), (3, 3)) > 1.1
    values = np.where(land[:, :, None], np.nan, mean + 0.1 * rng.standard_normal(shape))
    return Lookalike(np.where(rng.random(shape) < share, np.nan, values), values, mean, 2, 12)


def _smooth(rng: np.random.Generator, shape: tuple[int, ...], widths: tuple[float, ...]) -> Array:
    """A smooth random field of unit variance."""
    field = gaussian_filter(rng.standard_normal(shape), widths, mode="reflect")
    return np.asarray(field / field.std())


def spectra(seed: int, *, shape: tuple[int, int, int] = (24, 50, 22), share: float = 0.3) -> Lookalike:
    """Fluorescence of four chemicals, samples × emission × excitation: scatter where both are alike, quantum noise.

    The dyes absorb what others emit, a little, so that the sum is not exact. The part of the scatter that instruments
    cut out is missing. The mean is that of the dyes alone, without scatter, which is no noise.
    """
    rng = np.random.default_rng(seed)
    emission, excitation = np.linspace(300, 500, shape[1]), np.linspace(230, 340, shape[2])
    spectrum = np.zeros(shape[1:])
    dyes = []
    for centre in np.linspace(305, 400, 4) + 6 * rng.standard_normal(4):
        emitted = np.exp(-0.5 * ((emission - centre) / rng.uniform(16, 30)) ** 2)
        emitted *= 1 + 0.3 * np.tanh((emission - centre) / 25)
        peak = centre - rng.uniform(60, 90)
        excited = np.exp(-0.5 * ((excitation - peak) / 12) ** 2)
        excited += rng.uniform(0.2, 0.8) * np.exp(-0.5 * ((excitation - peak + 45) / 10) ** 2)
        dyes.append(np.outer(emitted, excited))
    amounts = rng.gamma(1.5, 1.0, (shape[0], 4))
    spectrum = np.einsum("sd,dex->sex", amounts, np.array(dyes))
    spectrum = spectrum / (1 + 0.02 * amounts.sum(axis=1)[:, None, None] * np.linspace(1, 0, shape[2]))
    distance = emission[:, None] - excitation
    scatter = np.exp(-0.5 * (distance / 7) ** 2) * rng.uniform(2, 4, (shape[0], 1, 1))
    scatter = scatter + 0.03 * np.exp(-0.5 * ((distance - 0.0035 * excitation**2 / 10) / 9) ** 2)
    light = 400 * (spectrum + scatter)
    values = rng.poisson(light) + 4 * rng.standard_normal(shape)
    values = np.where((distance < 12), np.nan, values)
    return Lookalike(np.where(rng.random(shape) < share, np.nan, values), values, light, 1, 1)


def sensors(seed: int, *, n_sensors: int = 12, days: int = 60, share: float = 0.3) -> Lookalike:
    """Industrial sensors, hours × sensors: units over decades, daily rhythm, shared drifts, gaps of days, steps."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    shared = np.column_stack([remembering((len(hours), 3), memory, rng) for memory in (0.995, 0.9)])
    angle = 2 * np.pi * (hours[:, None] - rng.uniform(0, 24, n_sensors)) / 24
    rhythm = rng.gamma(1.0, 0.7, n_sensors) * (np.cos(angle) + 0.4 * np.cos(2 * angle))
    load = (
        np.exp(0.2 * remembering((days, 1), 0.6, rng))[hours // 24] * np.where((hours // 24) % 7 >= 5, 0.6, 1)[:, None]
    )
    mean = shared @ rng.standard_normal((6, n_sensors)) * 0.6 + rhythm * load
    mean = mean + 0.4 * remembering((len(hours), n_sensors), 0.97, rng)
    noise = 10 ** rng.uniform(-1.5, -0.3, n_sensors) * rng.standard_t(4, mean.shape)
    unit, offset = 10 ** rng.uniform(-1, 2.5, n_sensors), 3 * rng.standard_normal(n_sensors)
    values, mean = unit * (mean + noise + offset), unit * (mean + offset)
    gone = np.zeros(values.shape, dtype=bool)
    while gone.mean() < share:
        sensor, first = rng.integers(n_sensors), rng.integers(len(hours))
        gone[first : first + int(rng.exponential(36)) + 1, sensor] = True
    return Lookalike(np.where(gone, np.nan, values), values, mean, 0, 24)


def sales(seed: int, *, shape: tuple[int, int, int] = (20, 60, 52), share: float = 0.3) -> Lookalike:
    """Units sold, stores × products × weeks: mostly zeros, popular products, seasons, promotions, products that end."""
    rng = np.random.default_rng(seed)
    n_stores, n_products, n_weeks = shape
    week = np.arange(n_weeks)
    size = np.exp(0.5 * rng.standard_normal(n_stores))
    popular = 3.0 / (1 + np.arange(n_products)) ** 0.9 * np.exp(0.4 * rng.standard_normal(n_products)) * 4
    taste = np.exp(0.4 * rng.standard_normal((n_stores, 3)) @ rng.standard_normal((3, n_products)))
    season = 1 + rng.beta(1, 2, (n_products, 1)) * np.cos(2 * np.pi * (week - rng.uniform(0, 52, (n_products, 1))) / 52)
    promoted = 1 + rng.uniform(0.5, 3, (n_products, 1)) * (rng.random((n_products, n_weeks)) < 0.06)
    listed = week < np.where(rng.random(n_products) < 0.15, rng.integers(10, 45, n_products), n_weeks)[:, None]
    mean = size[:, None, None] * (popular * taste)[:, :, None] * season * promoted * listed
    values = overdispersed(mean, 0.15, rng)
    return Lookalike(np.where(rng.random(shape) < share, np.nan, values), values, mean, 2, 52)


GENERATORS: dict[str, Callable[..., Lookalike]] = {
    "trips": trips,
    "network": network,
    "sea": sea,
    "spectra": spectra,
    "sensors": sensors,
    "sales": sales,
}
