"""Periods along a mode, from time stamps or from a clear line in the spectrum of the data.

Only whole numbers of positions count, as a mode of length 1464 with a period of 24 can be read as 61 × 24.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammaincc, gammaincinv

from brtf.data.arrays import Array, evenly_spaced
from brtf.data.observations import Observations, entry_numbers
from brtf.data.scale import SD_PER_MEDIAN
from brtf.data.times import as_times

NEEDLESS = 0.01
"""Chance that a mode without a period seems to have one."""
FEWEST_CYCLES = 3
"""Cycles needed to distinguish a period from a slow change."""
SHORTEST = 3
"""Shortest period: one of two positions lies at the end of the spectrum, where one side has no neighbours."""
MOST = 2
"""Largest number of periods found along a mode."""
WEIGHTS = math.pi**2 / 6 - 1.25
"""Σ 1/P² over all periods of at least three positions."""
NUMBERS = 2**18
"""Largest number of values whose spectrum is computed; of larger data some fibres are used."""
LARGEST_SIZE = 3.0
"""Standard deviations at which values are clipped, so that a few outliers cannot hide a period."""
LONGEST = 2**14
"""Longest period that is looked for in a spectrum: a week has 10,080 minutes."""
HARMONICS = 16
"""Harmonics that are tested together."""
FINE = 40
"""Below this many cycles the level of the spectrum is computed at every frequency, above at every 2 %."""
OVERSAMPLED = 4
"""Frequencies computed per 1/length."""
PARTS = 16
"""Groups of fibres that are transformed together."""
NEIGHBOURHOOD = 1.5
"""The level around a frequency f is that of the frequencies between f/1.5 and 1.5 f."""


def suggested_periods(observations: Observations, mode: int) -> list[int]:
    """The periods that time stamps or the spectrum suggest along a mode, the likeliest first."""
    found = [*spectral_periods(fibres_along(observations, mode)), *calendar_periods(observations, mode)]
    return list(dict.fromkeys(found))


def calendar_periods(observations: Observations, mode: int) -> list[int]:
    """A day and a week, or a year of months, in positions of a mode with evenly spaced time stamps."""
    labels = observations.mode_labels[mode]
    stamps, length = None if labels is None else as_times(labels), observations.shape[mode]
    if stamps is None or length < FEWEST_CYCLES * SHORTEST or np.isnat(stamps).any():
        return []
    months = stamps.astype("M8[M]")
    if (months == stamps).all() and (np.diff(months).astype(np.int64) == 1).all():
        return [12] if length >= FEWEST_CYCLES * 12 else []
    steps = np.diff(stamps.astype("M8[us]").astype(np.int64))
    if steps[0] <= 0 or (steps != steps[0]).any():
        return []
    day = 86_400_000_000
    whole = [span // int(steps[0]) for span in (day, 7 * day) if span % int(steps[0]) == 0]
    return [period for period in whole if SHORTEST <= period <= length // FEWEST_CYCLES][:1]


def spectral_periods(fibres: Array) -> list[int]:
    """Periods with lines in the spectrum of fibres (F, T) beyond chance, the clearest first; NaN = missing.

    The harmonics of a period P that no shorter period has are at the frequencies j/P, with j and P coprime. The power
    at each is compared with the level around it: see :class:`_Spectrum`. A period counts where the first of them, or
    the first few together (Fisher's sum of ln chance), exceed chance. Many periods are tried: their chances have
    weights of 1/P², so that the sum over all periods is bounded. Lines that a clearer period explains are no evidence
    for another. A pattern may lack its first harmonics: a common multiple, up to four times the longer period, counts
    too.
    """
    length = fibres.shape[1]
    longest = min(length // FEWEST_CYCLES, LONGEST)
    power = _power(fibres) if longest >= SHORTEST else None
    if power is None:
        return []
    spectrum = _Spectrum(power, length)
    found: list[int] = []
    clear = list(range(SHORTEST, longest + 1))
    while len(found) < MOST:
        chances = {period: 2.0 * WEIGHTS * period**2 * spectrum.chance(period) for period in clear}
        clear = [period for period in clear if chances[period] < NEEDLESS]
        if not clear:
            break
        found.append(min(clear, key=lambda period: chances[period]))
        spectrum.explain(found[-1])
    multiple = math.lcm(*found)
    if len(found) > 1 and max(found) < multiple <= min(4 * max(found), longest):
        found.append(multiple)
    return found


def fibres_along(observations: Observations, mode: int) -> Array:
    """Fibres (F, T) along a mode, NaN where missing; of large data some of those with most entries."""
    length = observations.shape[mode]
    n_fibres = max(1, NUMBERS // length)
    if length > NUMBERS:
        return np.empty((0, length))
    values = observations.values
    others = [other for other in range(observations.order) if other != mode]
    shape = tuple(observations.shape[other] for other in others)
    if observations.coords is None:
        n_all = math.prod(shape)
        fibres = evenly_spaced(n_all, n_fibres)
        index = [at[:, None] for at in np.unravel_index(fibres, shape)]
        index.insert(mode, np.arange(length)[None])
        if observations.mask is None:
            return values[tuple(index)].astype(np.float64)
        seen, found = observations.mask[tuple(index)], np.full((fibres.size, length), np.nan)
        cells = [np.broadcast_to(at, seen.shape)[seen] for at in index]
        found[seen] = values[entry_numbers(observations.mask, cells)]
        return found
    fullest = _fullest_fibres(observations, others, n_fibres)
    order, found = np.argsort(fullest), np.full((fullest.size, length), np.nan)
    for block in observations.block_list:
        coords = observations.coords[:, block.entries]
        rows, chosen = _places(_fibre_names(coords, others, observations.shape), fullest[order])
        found[order[rows[chosen]], coords[mode, chosen]] = block.values[chosen]
    return found


def _fullest_fibres(observations: Observations, others: list[int], n_fibres: int) -> NDArray[np.uint64]:
    """The names of the fibres of coordinates with most entries, the fullest first.

    Of large data, those that evenly spaced entries belong to. Blocks are named one by one, so that nothing as large as
    the coordinates is made.
    """
    coords, shape = observations.entry_coords(), observations.shape
    names = np.unique(_fibre_names(coords[:, evenly_spaced(observations.n_observed, NUMBERS)], others, shape))
    counts = np.zeros(names.size, np.intp)
    for block in observations.block_list:
        places, known = _places(_fibre_names(coords[:, block.entries], others, shape), names)
        counts += np.bincount(places[known], minlength=names.size)
    return np.asarray(names[np.argsort(-counts, kind="stable")[:n_fibres]])


def _fibre_names(coords: NDArray[np.intp], others: list[int], shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """A number for every column of coordinates, equal where those of the other modes are: their place in C order.

    Beyond 64 bits, the sum of the coordinates times random odd numbers, modulo 2⁶⁴, which two fibres hardly share.
    """
    lengths = tuple(shape[other] for other in others)
    if math.prod(lengths) < 2**63:
        return np.ravel_multi_index(tuple(coords[others]), lengths).astype(np.uint64)
    odd = np.random.default_rng(0).integers(2**63, size=len(others), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray(odd @ coords[others].astype(np.uint64))


def _places(names: NDArray[np.uint64], known: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Where each name is among known ones, ascending, and whether it is one of them."""
    places = np.searchsorted(known, names).clip(max=known.size - 1)
    return places, known[places] == names


def _power(fibres: Array) -> Array | None:
    """The power at the frequencies k / (4T), of fibres with mean 0 and variance 1; None if all are constant."""
    observed = np.isfinite(fibres)
    counts = observed.sum(axis=1, keepdims=True)
    fibres, observed, counts = (array[counts[:, 0] > FEWEST_CYCLES] for array in (fibres, observed, counts))
    if not fibres.size:
        return None
    centred = np.where(observed, fibres - _row_medians(fibres, counts), 0.0)
    spread = SD_PER_MEDIAN * _row_medians(np.where(observed, np.abs(centred), np.nan), counts)
    largest = np.abs(centred).max(axis=1, keepdims=True)
    relative = centred / np.where(largest > 0, largest, 1.0)  # squares of the values themselves might overflow
    spread = np.where(spread > 0, spread, largest * np.sqrt((relative**2).sum(axis=1, keepdims=True) / counts))
    spread = np.where(spread > 0, spread, np.inf)
    cut = np.clip(centred / spread, -LARGEST_SIZE, LARGEST_SIZE)
    cut = np.where(observed, cut - cut.sum(axis=1, keepdims=True) / counts, 0.0)
    if not cut.any():
        return None
    length = fibres.shape[1]
    tapered = cut * np.hanning(length + 2)[1:-1]  # a line leaks little into frequencies beyond 2/T
    power = np.zeros(OVERSAMPLED * length // 2 + 1)
    for part in np.array_split(tapered, min(len(tapered), PARTS)):  # a whole spectrum is eight times as large
        power += np.sum(np.abs(np.fft.rfft(part, OVERSAMPLED * length, axis=1)) ** 2, axis=0)
    return power


def _row_medians(rows: Array, counts: NDArray[np.intp]) -> Array:
    """The medians (F, 1) of the numbers in each row; ``counts`` (F, 1) says how many are not NaN."""
    in_order = np.sort(rows, axis=1)  # NaN last
    low, high = (np.take_along_axis(in_order, place, axis=1) for place in ((counts - 1) // 2, counts // 2))
    return 0.5 * low + 0.5 * high


class _Spectrum:
    """A spectrum, its level, and how far frequencies stand out of it.

    Without a period the power in units of its level has a gamma distribution with the shape ν, at most the number of
    fibres: those that resemble each other count as one. It is read off the quartiles of all frequencies.
    """

    def __init__(self, power: Array, length: int) -> None:
        self.power, self.n_frequencies = power, OVERSAMPLED * length
        finest = min(FINE * OVERSAMPLED, power.size)
        coarse = np.geomspace(finest, power.size, max(2, math.ceil(math.log(power.size / finest) / 0.02)) + 1)
        places = np.unique(np.concatenate([np.arange(1, finest), coarse.astype(np.intp)]).clip(1, power.size - 1))
        levels, counts = np.transpose([_level(power, int(place)) for place in places])
        everywhere = np.arange(power.size)
        self.ratio = power * np.exp(-np.interp(everywhere, places, np.log(levels)))
        self.n_around = np.interp(everywhere, places, counts)
        known = self.ratio[FEWEST_CYCLES * OVERSAMPLED :]
        quartiles = np.quantile(known[known > 0], (0.25, 0.75)) if (known > 0).any() else np.ones(2)
        shapes = np.geomspace(1.0, 1e4, 200)
        spreads = gammaincinv(shapes, 0.75) / gammaincinv(shapes, 0.25)  # falls
        self.shape = float(np.interp(-quartiles[1] / quartiles[0], -spreads, shapes))
        self.ratio *= gammaincinv(self.shape, 0.5) / self.shape  # the level is a median
        self.left = self.ratio.copy()

    def chance(self, period: int) -> float:
        """The chance of lines as strong as those of a period, if it has none: of the first, or of some together."""
        numbers = np.arange(1, (period + 1) // 2)
        harmonics = numbers[np.gcd(numbers, period) == 1][:HARMONICS]
        nats = self._nats(harmonics / period)
        if not self._has_line(harmonics[int(np.argmax(nats))] / period):
            return 1.0
        return min(math.exp(-nats[0]), float(gammaincc(harmonics.size, nats.sum())))

    def explain(self, period: int) -> None:
        """Forget the lines of a period, as wide as they are: a pattern whose strength changes has wide lines."""
        for place in np.rint(np.arange(1, period // 2 + 1) * self.n_frequencies / period).astype(np.intp):
            low, high = max(0, place - 2 * OVERSAMPLED), min(place + 2 * OVERSAMPLED, self.ratio.size - 1)
            while low > 0 and self.ratio[low] > 1.0:
                low -= 1
            while high < self.ratio.size - 1 and self.ratio[high] > 1.0:
                high += 1
            self.left[low : high + 1] = 0.0

    def _nats(self, frequencies: Array) -> Array:
        """−ln of the chance that the power at the frequencies exceeds the level around them as much.

        The ratio of a gamma variable to a level from w frequencies has an F distribution. A level that is not even over
        its neighbourhood is no better for many fibres: it counts as that of one.
        """
        places = np.rint(frequencies * self.n_frequencies).astype(np.intp).clip(0, self.power.size - 1)
        return -np.log(np.maximum(fdtrc(2.0 * self.shape, 2.0 * self.n_around[places], self.left[places]), 1e-300))

    def _has_line(self, frequency: float) -> bool:
        """Whether the power has its maximum here, among frequencies that a line would spread to."""
        place, reach = frequency * self.n_frequencies, 2 * OVERSAMPLED
        first = max(0, round(place) - reach)
        peak = first + int(np.argmax(self.power[first : round(place) + reach + 1]))
        return 2.0 * abs(peak - place) <= OVERSAMPLED


def _level(power: Array, place: int) -> tuple[float, float]:
    """The power around a frequency, and of how many independent frequencies with that precision it is the mean.

    It is the geometric mean of the medians below and above, so that a spectrum that falls as a power is no line.
    Medians are about as precise as means of half as many.
    """
    gap = 2 * OVERSAMPLED
    below = power[max(math.floor(place / NEIGHBOURHOOD), OVERSAMPLED) : max(place - gap, 0)]
    above = power[place + gap + 1 : max(math.ceil(place * NEIGHBOURHOOD), place + 3 * gap) + 1]
    sides = [side for side in (below, above) if side.size]
    if not sides:
        return 1e300, 1.0
    level = math.exp(sum(math.log(max(float(np.median(side)), 1e-300)) for side in sides) / len(sides))
    n_around = sum(side.size for side in sides) / (2.0 * OVERSAMPLED)  # the taper makes neighbours 1/T apart alike
    return level, max(1.0, 0.5 * n_around)
