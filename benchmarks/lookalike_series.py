"""Lookalike data with a course in time: trips, traffic, temperatures, sensors, sales, car parks, electricity, air.

Nothing in them was drawn from the model. Every set knows its mean without noise, so that the least possible error of a
prediction of new observations is known.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from lookalike_parts import Array, Lookalike, hide, overdispersed, remembering, runs, smooth_field


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
    ground = 27 - 9 * latitude**2 + 2 * smooth_field(rng, (n_lon, n_lat), (5, 4))
    season = (0.3 + 1.8 * np.abs(latitude)) * np.sign(latitude + 0.1)
    delay = 0.3 * smooth_field(rng, (n_lon, n_lat), (6, 4))
    depth = 1 + 0.2 * smooth_field(rng, (n_lon, n_lat), (5, 4))
    cycle = np.cos(2 * np.pi * month / 12 - delay[:, :, None])
    slow = gaussian_filter(rng.standard_normal(n_months), 4, mode="reflect")
    oscillation = np.exp(-4 * latitude**2) * (0.3 + np.linspace(0, 1, n_lon))[:, None]
    eddies = smooth_field(rng, shape, (2.5, 2.0, 2.0))
    mean = ground[:, :, None] + (season * depth)[:, :, None] * cycle + 0.5 * eddies
    mean = mean + 0.9 * oscillation[:, :, None] * slow / slow.std()
    land = smooth_field(rng, (n_lon, n_lat), (3, 3)) > 1.1
    values = np.where(land[:, :, None], np.nan, mean + 0.1 * rng.standard_normal(shape))
    return Lookalike(np.where(rng.random(shape) < share, np.nan, values), values, mean, 2, 12)


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
    gone = runs(values.shape, share, 36, rng)
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


def bursts(seed: int, *, nodes: int = 10, days: int = 4, share: float = 0.1, rate: float = 0.02) -> Lookalike:
    """Network traffic, from × to × quarter of an hour, with bursts at known places: one entry, or some in a row."""
    rng = np.random.default_rng(seed)
    time = np.arange(96 * days)
    level = 20 * np.exp(1.2 * rng.standard_normal((nodes, nodes)))
    level = level * np.outer(*np.exp(0.6 * rng.standard_normal((2, nodes))))
    profiles = np.stack([1 + d * np.cos(2 * np.pi * (time - p) / 96) for d, p in ((0.2, 50), (0.6, 60), (0.9, 70))])
    profiles = profiles * np.exp(0.12 * remembering((len(time), 3), 0.95, rng)).T
    mean = np.einsum("ijk,kt->ijt", level[:, :, None] * rng.dirichlet([0.7] * 3, (nodes, nodes)), profiles)
    values = mean * np.exp(0.08 * remembering((len(time), nodes, nodes), 0.6, rng).transpose(1, 2, 0))
    values = np.maximum(values + 0.5 * np.sqrt(values) * rng.standard_normal(values.shape), 0)
    hits = rng.random(values.shape) < rate / 2
    longer = rng.random(values.shape) < rate / 12
    for shift in range(6):
        hits |= np.roll(longer, shift, axis=2)
    typical = np.median(mean, axis=2, keepdims=True)
    values = np.where(hits, values + typical * rng.gamma(2.0, 1.2, values.shape), values)
    return Lookalike(hide(values, share, rng), values, mean, 2, 96, hits)


def parks(seed: int, *, shape: tuple[int, int, int] = (25, 63, 18), share: float = 0.4) -> Lookalike:
    """Cars in car parks, park × day × half hour: capacities over two decades, full parks, weekends, days that jump."""
    rng = np.random.default_rng(seed)
    n_parks, n_days, n_times = shape
    hour, day = np.linspace(8, 17, n_times), np.arange(n_days)
    capacity = np.exp(rng.uniform(np.log(150), np.log(4000), n_parks))
    kinds = rng.dirichlet([0.7] * 3, n_parks)
    office = np.exp(-0.5 * ((hour - 12.5) / 2.6) ** 2)
    shops = np.exp(-0.5 * ((hour - 14.0) / 2.0) ** 2)
    evening = 1 / (1 + np.exp(-(hour - 15.5)))
    weekend = (day % 7 >= 5)[:, None]
    of_day = np.stack(
        [
            np.where(weekend, 0.25, 1) * office,
            np.where(weekend, 1.2, 0.8) * shops,
            np.where(weekend, 0.9, 0.7) * evening,
        ]
    )
    size = np.exp(0.1 * remembering((n_days, n_parks), 0.5, rng) + 0.1 * remembering((n_days, 1), 0.6, rng))
    shift = 0.25 * remembering((n_days, n_parks), 0.3, rng)
    wanted = np.einsum("pk,kdt->pdt", kinds, of_day) * size.T[:, :, None]
    wanted = wanted + shift.T[:, :, None] * np.gradient(np.einsum("pk,kdt->pdt", kinds, of_day), axis=2)
    wanted = 0.1 + rng.uniform(0.5, 1.1, n_parks)[:, None, None] * wanted
    course = 0.02 * remembering((n_times, n_parks, n_days), 0.8, rng).transpose(1, 2, 0)
    mean = capacity[:, None, None] * np.clip(wanted + course, 0.01, 0.98)
    values = np.rint(mean + 0.004 * capacity[:, None, None] * rng.standard_normal(shape))
    values[:, rng.choice(n_days, 2, replace=False)] = np.nan
    return Lookalike(hide(values, share, rng), values, mean, 2)


def metro(seed: int, *, shape: tuple[int, int, int] = (40, 21, 72), share: float = 0.4) -> Lookalike:
    """Passengers, station × day × quarter of an hour: counts, rushes, stations that closed, some days hidden whole."""
    rng = np.random.default_rng(seed)
    n_stations, n_days, n_times = shape
    hour, day = np.linspace(6, 24, n_times, endpoint=False), np.arange(n_days)
    profiles = daily_profiles(hour)  # of a working day
    size = np.exp(0.8 * rng.standard_normal(n_stations)) * 60
    mixing = rng.dirichlet([0.6] * 4, n_stations)
    late = 0.4 * rng.standard_normal(n_stations)
    working = np.where(day % 7 >= 5, 0.35, 1.0)[:, None] * np.array([1.0, 1.0, 0.0, 0.0])
    working = working + np.where(day % 7 >= 5, 1.3, 1.0)[:, None] * np.array([0.0, 0.0, 1.0, 1.0])
    courses = np.stack([np.interp(hour - delay, hour, profile) for delay in late for profile in profiles.T])
    courses = courses.reshape(n_stations, 4, n_times)
    mean = np.einsum("sk,dk,skt->sdt", mixing, working, courses) + 0.03
    mean = mean * np.exp(0.06 * remembering((n_days, 1), 0.4, rng))[None] * size[:, None, None] * 3
    mean = mean * np.exp(0.1 * remembering((n_times, n_stations, n_days), 0.7, rng)).transpose(1, 2, 0)
    values = overdispersed(mean, 0.01, rng)
    observed = hide(hide(values, share, rng), 0.05, rng, fibres=(2,))
    return Lookalike(observed, values, mean, 2)


def households(seed: int, *, shape: tuple[int, int, int] = (30, 42, 48), share: float = 0.2) -> Lookalike:
    """Electricity, household × day × half hour: skewed, empty houses, appliances that jump, days without a reading."""
    rng = np.random.default_rng(seed)
    n_houses, n_days, n_times = shape
    hour, day = np.arange(n_times) / 2, np.arange(n_days)
    shapes = daily_profiles(hour)
    taste = rng.dirichlet([0.8] * 4, n_houses)
    weekend = np.where((day % 7 >= 5)[:, None], [0.5, 0.9, 1.6, 1.2], 1.0)
    usual = np.einsum("hk,dk,tk->hdt", taste, weekend, shapes)
    size = np.exp(0.5 * rng.standard_normal(n_houses))[:, None, None]
    cold = 1 + rng.beta(1, 3, (n_houses, 1, 1)) * remembering((n_days, 1), 0.8, rng)[None]
    away = np.ones((n_houses, n_days))
    for house in np.flatnonzero(rng.random(n_houses) < 0.4):
        first = rng.integers(n_days)
        away[house, first : first + rng.integers(3, 12)] = 0.0
    base = rng.uniform(0.04, 0.12, (n_houses, 1, 1))
    mean = base + size * usual * np.maximum(cold, 0.2) * away[:, :, None]
    moment = remembering((n_times, n_houses, n_days), 0.6, rng).transpose(1, 2, 0)
    values = base + (mean - base) * np.exp(0.6 * moment - 0.18)
    values = np.round(values + 0.01 * np.abs(rng.standard_normal(shape)), 3)
    values[rng.random(n_houses) < 0.1] *= rng.random((n_days, n_times)) > 0.3  # meters that often say nothing was used
    observed = hide(hide(values, share / 2, rng), share / 2, rng, fibres=(2,))
    return Lookalike(observed, values, mean, 2)


def air(seed: int, *, days: int = 70, share: float = 0.1) -> Lookalike:
    """Air quality, hours × 13 sensors: gases that follow traffic and weather, sensors of bent response, outages.

    Some outages take all sensors of the box, one sensor works on a tenth of the days only.
    """
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    traffic = daily_profiles(hours)[:, :2].sum(axis=1) + 0.3
    weather = remembering((len(hours), 3), 0.985, rng)
    sun = np.maximum(np.cos(2 * np.pi * (hours % 24 - 13) / 24), 0)
    emitted = np.log(traffic) * 0.6 - 0.4 * weather[:, 0] + 0.35 * remembering((len(hours), 1), 0.9, rng)[:, 0]
    gases = np.exp(emitted[:, None] * rng.uniform(0.6, 1.2, 5) + 0.2 * remembering((len(hours), 5), 0.9, rng))
    bent = gases ** rng.uniform(0.3, 0.6, 5) * np.exp(0.1 * weather[:, 1:2] * rng.standard_normal(5))
    warm = 15 + 6 * weather[:, 1] + 7 * sun
    damp = 50 - 2 * (warm - 15) + 9 * weather[:, 2]
    wet = damp * np.exp(0.06 * warm) / 100
    mean = np.column_stack([gases * 10 ** rng.uniform(-0.5, 2.3, 5), 900 * bent, warm, damp, wet])
    spread = np.r_[0.12 * mean[:, :5].std(axis=0), 0.03 * mean[:, 5:10].std(axis=0), 0.2, 1.0, 0.02]
    values = mean + spread * rng.standard_normal(mean.shape)
    gone = runs(mean.shape, share, 30, rng) | np.repeat(runs((len(hours), 1), share / 3, 12, rng), 13, 1)
    working = np.zeros(days, dtype=bool)
    working[: days // 10] = True
    measured = values.copy()
    measured[~working[hours // 24], 3] = np.nan  # nothing is known of this sensor later, and nothing is asked
    return Lookalike(np.where(gone | (rng.random(mean.shape) < share), np.nan, measured), measured, mean, 0, 24)


def climate(seed: int, *, shape: tuple[int, int, int] = (20, 18, 120), share: float = 0.15) -> Lookalike:
    """Land temperature, longitude × latitude × month: trend and season by distance from an irregular coast.

    Stations begin at different months, and some places have none: their fibres are hidden whole.
    """
    rng = np.random.default_rng(seed)
    n_lat, n_months = shape[1:]
    month, north = np.arange(n_months), np.linspace(0, 1, n_lat)
    ground = smooth_field(rng, shape[:2], (3, 3))
    land, inland = ground > -0.3, np.clip(ground + 0.3, 0, 1.5)
    height = np.exp(smooth_field(rng, shape[:2], (2, 2))) * 0.4
    level = 25 - 22 * north - 6 * height
    season = -(3 + 8 * inland + 6 * north)[:, :, None] * np.cos(
        2 * np.pi * (month - 0.5) / 12 - 0.4 * (1.5 - inland)[:, :, None]
    )
    trend = (0.5 + north + 0.5 * inland)[:, :, None] * np.maximum(month - n_months / 3, 0) / n_months * 1.5
    fields = np.stack([smooth_field(rng, shape[:2], (6, 5)) for _ in range(5)], axis=2)
    anomaly = fields @ (remembering((n_months, 5), 0.5, rng).T * 0.8) + 0.4 * smooth_field(rng, shape, (2, 2, 0.8))
    mean = np.where(land[:, :, None], level[:, :, None] + season + trend + anomaly, np.nan)
    values = mean + 0.25 * rng.standard_normal(shape)
    observed = hide(hide(values, share, rng), share / 2, rng, fibres=(2,))
    begun = np.where(rng.random(shape[:2]) < 0.4, rng.integers(0, n_months // 2, shape[:2]), 0)
    return Lookalike(np.where(month < begun[:, :, None], np.nan, observed), values, mean, 2, 12)
