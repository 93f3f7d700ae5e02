"""The step to which data were rounded, below which their noise cannot be: rounding alone has a variance of step²/12."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.observations import Block, Observations
from brtf.data.passes import Sums, visit
from brtf.model.state import LARGEST_PRECISION

FEWEST_LEVELS, MOST_STEPS = 3, 2**20
"""Distinct values from which they count as rounded numbers rather than names of classes, and steps from the smallest to
the largest of them at most."""
ENTRIES_PER_LEVEL = 2
"""Entries per distinct value, at least: numbers that were not rounded do not repeat."""
GLANCE = 4096
"""Entries that tell data that were not rounded at a glance."""
ULPS, COARSE = 4.0, 16.0
"""Units in the last place by which rounded numbers may be off, and how many times as much a step is at least."""


def largest_precision(observations: Observations) -> float:
    """The largest precision that noise can have, in units of the data's scale: that of rounding, or next to none."""
    step = rounding_step(observations)
    return min(LARGEST_PRECISION, 12.0 * (observations.scale / step) ** 2) if step > 0 else LARGEST_PRECISION


def rounding_step(observations: Observations) -> float:
    """The step δ such that all values are some number plus whole multiples of δ; zero where they were not rounded.

    One pass. Integers have a step of one or more, prices one of 0.01, and pixels divided by 255 one of 1/255. Values
    count as rounded if there are at least three of them and they repeat.
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


def _levels_of(values: NDArray[np.floating[Any]], unit: float, error: float) -> tuple[Array, Array, int] | None:
    """Smallest and largest of the values, the step between them, if any, and their number; None if not rounded.

    In terms of the unit.
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
    """The largest number of which all gaps are whole multiples, by Euclid's algorithm; zero where there is none.

    Gaps are right to within ``error``.
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
