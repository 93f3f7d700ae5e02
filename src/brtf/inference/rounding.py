"""The step to which data were rounded. It limits the noise from below: rounding alone has variance step²/12."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, visit
from brtf.model.state import LARGEST_PRECISION

FEWEST_LEVELS, MOST_STEPS = 3, 2**20
"""Fewest distinct values of rounded numbers, as opposed to class labels, and the most steps between their extremes."""
ENTRIES_PER_LEVEL = 2
"""Fewest entries per distinct value: numbers that were not rounded do not repeat."""
ATOM = 10
"""Rounding counts where one in so many entries has the same value: of counts with a common mean μ that is where μ is
below 16, and rounding has a two-hundredth of their variance or more. A convention."""
GLANCE = 4096
"""Entries in a first check that recognizes data that were not rounded."""
ULPS, COARSE = 4.0, 16.0
"""Error of rounded numbers in units in the last place, and the smallest step as a multiple of that error."""


def largest_precision(observations: Observations, *, linked: bool = False) -> float:
    """Upper limit of the noise precision, in units of the data's scale: that of rounding, or a very large one.

    Values that were rounded and then transformed by a link are not a step apart; there the typical gap takes its place.
    """
    step = typical_gap(observations) if linked else rounding_step(observations)
    return min(LARGEST_PRECISION, 12.0 * (observations.scale / step) ** 2) if step > 0 else LARGEST_PRECISION


def rounding_step(observations: Observations) -> float:
    """The step δ such that all values are an offset plus integer multiples of δ; zero if they were not rounded.

    One pass. Integers have a step of one or more, prices 0.01, pixels divided by 255 a step of 1/255. Values count as
    rounded if at least three are distinct and they repeat.
    """
    error, unit = ULPS * float(np.finfo(observations.values.dtype).eps), observations.largest or 1.0

    def look(_: Sums, block: Block) -> tuple[Array, Array, int] | None:
        return _levels_of(block.values, unit, error)

    _, looks = visit(observations, tuple, look)
    found = [levels for levels in looks if levels is not None]
    if len(found) < len(looks):
        return 0.0
    ends, steps, n_levels = zip(*found, strict=True)
    levels = np.unique(np.concatenate(ends))
    if sum(n_levels) > max(FEWEST_LEVELS, observations.n_observed // ENTRIES_PER_LEVEL):
        return 0.0
    step = _common_step(np.concatenate([np.diff(levels), *steps]), error)
    enough = step > 0 and FEWEST_LEVELS - 1 <= round(float(np.ptp(levels)) / step) <= MOST_STEPS
    return step * unit if enough else 0.0


def coarse_step(observations: Observations) -> float:
    """The step of rounded data in which one value holds so many entries that rounding counts beside the noise, or zero.

    Their values are multiples of the step. Only of data small enough that a pass more costs little.
    """
    if not observations.is_small:
        return 0.0
    counts = np.unique(observations.values, return_counts=True)[1]
    if counts.max() * ATOM < observations.n_observed:
        return 0.0
    step = rounding_step(observations)
    if step == 0.0:
        return 0.0
    n_steps = observations.values / step
    return step if np.allclose(n_steps, np.rint(n_steps), rtol=0.0, atol=1e-3) else 0.0


def typical_gap(observations: Observations) -> float:
    """Geometric mean over the entries of the gaps around their values, where these repeat as rounded ones do; or zero.

    Rounded values have probabilities, which are at most one: on average over the entries, no density may exceed the
    inverse of the gap. Where all values are a step apart, this is the step.
    """

    def look(_: Sums, block: Block) -> tuple[NDArray[np.floating[Any]], NDArray[np.intp]] | None:
        levels, counts = np.unique(block.values, return_counts=True)
        return (levels, counts) if levels.size <= max(FEWEST_LEVELS, block.n_entries // ENTRIES_PER_LEVEL) else None

    _, looks = visit(observations, tuple, look)
    found = [levels for levels in looks if levels is not None]
    if len(found) < len(looks):
        return 0.0
    levels, at = np.unique(np.concatenate([levels for levels, _ in found]).astype(np.float64), return_inverse=True)
    counts = np.bincount(at, np.concatenate([counts for _, counts in found]))
    error = COARSE * ULPS * float(np.finfo(observations.values.dtype).eps) * float(np.abs(levels).max())
    first = np.concatenate([[0], 1 + np.flatnonzero(np.diff(levels) > error)])  # others are apart by rounding only
    levels, counts = levels[first], np.add.reduceat(counts, first)
    if not FEWEST_LEVELS <= levels.size <= observations.n_observed // ENTRIES_PER_LEVEL:
        return 0.0
    between = np.diff(levels)
    around = 0.5 * (np.concatenate([between[:1], between]) + np.concatenate([between, between[-1:]]))
    return float(np.exp(counts @ np.log(around) / counts.sum()))


def _levels_of(values: NDArray[np.floating[Any]], unit: float, error: float) -> tuple[Array, Array, int] | None:
    """Smallest and largest value, the step between values, if any, and their number; None if not rounded.

    All in multiples of the unit.
    """
    glance = values[:: max(1, values.size // GLANCE)]
    if glance.size >= GLANCE and np.unique(glance).size > glance.size // ENTRIES_PER_LEVEL:
        return None
    levels = np.unique(values).astype(np.float64) / unit
    if levels.size < 2:
        return levels, np.zeros(0), levels.size
    step = _common_step(np.diff(levels), error)
    return (levels[[0, -1]], np.array([step]), levels.size) if step > 0 else None


def _common_step(gaps: Array, error: float) -> float:
    """The greatest common divisor of the gaps, by Euclid's algorithm; zero where there is none.

    Gaps are accurate to ``error``.
    """
    step = float(gaps.min(initial=np.inf))
    while COARSE * error < step < np.inf:
        n_steps = np.rint(gaps / step)
        rest = np.abs(gaps - n_steps * step)
        off = rest > error * (1.0 + n_steps)
        if not off.any():
            return float(gaps.sum() / n_steps.sum())
        step = float(rest[off].min())
    return 0.0
