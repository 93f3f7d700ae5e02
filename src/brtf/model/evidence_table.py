"""A local model as a table: ln f and its slope for any ρ by one look-up, whatever the model.

An entry's share in the bound is a function of one number, so it is tabulated once per change of the model and looked up
for every entry. Knots are equally spaced within an octave of ρ + 2⁻¹², so that its leading bits are the place in the
table; between knots stands the cubic with the right values and slopes. The weight is the slope of that cubic itself:
sweeps climb the very function that is evaluated. Its coefficients have single precision, also where entries have more:
so a segment's take four numbers that come into the cache together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.local_models import LocalModel

FIRST_OCTAVE, LAST_OCTAVE = -12, 70
"""Octaves of ρ + 2⁻¹², the first of which has ρ from zero on. Beyond the last, where only gigantic outliers of accurate
data are, ln f goes on as a power of ρ, as the tails of Student-t laws do."""
SHIFT = 2.0**FIRST_OCTAVE
"""Added to ρ, so that its octaves begin somewhere."""
LAST_FEATURE = 10
"""Octaves up to here, where noise turns into outliers, have the finer table; beyond, ln f is smooth in ln ρ."""
LOG2_SEGMENTS, LOG2_SEGMENTS_FEATURES, LOG2_SEGMENTS_EDGE = 4, 7, 12
"""Segments per octave, as powers of two; the last is the most that the edge of a flat slab may take."""
USUAL = tuple(
    LOG2_SEGMENTS_FEATURES if octave < LAST_FEATURE else LOG2_SEGMENTS for octave in range(FIRST_OCTAVE, LAST_OCTAVE)
)
"""The same for every octave of a table without such an edge."""


@dataclass(frozen=True, eq=False)
class EvidenceTable:
    """Cubics of ln f over segments of ρ.

    Attributes
    ----------
    rows : (K, 6) per segment its lower end, the inverse of its width, and the coefficients c₀…c₃ of ln f in the
        fraction t of the segment. The last row is the slope at their end
    first : (octaves,) the row of each octave's first segment
    log2_segments : (octaves,) ln₂ of the number of segments of each octave
    n_usual : segments, from the first on, in octaves with as many of them as those of most tables have
    middles : (K,) the middle of each segment, at which its entries are counted
    """

    rows: Array
    first: NDArray[np.int64]
    log2_segments: NDArray[np.int64]

    @cached_property
    def n_usual(self) -> int:
        unusual = np.flatnonzero(self.log2_segments != USUAL)
        return int(self.first[unusual[0]]) if unusual.size else len(self.rows) - 1

    @cached_property
    def middles(self) -> Array:
        return np.asarray(self.rows[:, 0] + 0.5 / self.rows[:, 1])

    @cached_property
    def quadratics(self) -> NDArray[np.float32]:
        """(n_usual + 1, 4) for usual segments w as a quadratic of t, and −½ width: times ∫w dt it is what ln f gains.

        The last row, all zeros, is for ρ beyond.
        """
        padded = np.zeros((self.n_usual + 1, 4), np.float32)
        half_width = -0.5 / self.rows[:-1, 1]
        for power in range(3):
            padded[:-1, power] = ((power + 1) * self.rows[:-1, 3 + power] / half_width)[: self.n_usual]
        padded[:-1, 3] = half_width[: self.n_usual]
        return padded


@cache
def usual_places(dtype: np.dtype[np.floating[Any]]) -> NDArray[np.signedinteger[Any]]:
    """What bits of ρ + 2⁻¹² say of its place among usual segments, as integers of the size of ρ.

    From the third number on, which is the bits of the first octave without features, it is (bits >> second) − fifth,
    before that (bits >> first) − fourth; the fraction t is in the bits that are shifted out.
    """
    layout = np.finfo(dtype)
    bias, n_fine = layout.maxexp - 1, (LAST_FEATURE - FIRST_OCTAVE) << LOG2_SEGMENTS_FEATURES
    numbers = (
        layout.nmant - LOG2_SEGMENTS_FEATURES,
        layout.nmant - LOG2_SEGMENTS,
        (bias + LAST_FEATURE) << layout.nmant,
        (bias + FIRST_OCTAVE) << LOG2_SEGMENTS_FEATURES,
        ((bias + LAST_FEATURE) << LOG2_SEGMENTS) - n_fine,
    )
    return np.array(numbers, f"i{dtype.itemsize}")


@lru_cache(maxsize=16)
def tabulate(model: LocalModel) -> EvidenceTable:
    """The table of a local model; right to some 1e-6 in ln f at the sharpest features."""
    log2_segments = _resolution(model)
    posterior = model.posterior(_segments(log2_segments)[1])
    return _cubics(log2_segments, posterior.log_evidence, posterior.weight)


@lru_cache(maxsize=16)
def tabulate_branches(model: LocalModel) -> tuple[EvidenceTable, EvidenceTable]:
    """The tables of a local model's two branches: noise alone, and with an outlier."""
    log2_segments = _resolution(model)
    knots = _segments(log2_segments)[1]
    log_spike, spike_weight, log_slab, slab_shrinkage = model.branches(knots)
    return (
        _cubics(log2_segments, log_spike, np.broadcast_to(spike_weight, knots.shape)),
        _cubics(log2_segments, log_slab, slab_shrinkage),
    )


def _cubics(log2_segments: tuple[int, ...], values: Array, weights: Array) -> EvidenceTable:
    """The table through values and weights at all knots."""
    first, lower, width = _segments(log2_segments)
    rise = np.diff(values) / width
    left, right = weights[:-1], weights[1:]
    rows = np.empty((width.size + 1, 6))
    rows[:-1, 0], rows[:-1, 1], rows[:-1, 2] = lower[:-1], 1.0 / width, values[:-1]
    quadratic = (left, -4.0 * left - 2.0 * right - 12.0 * rise, 3.0 * (left + right) + 12.0 * rise)
    for power, coefficient in enumerate(quadratic):  # of w in t, whose integral is −2/width of what ln f gains
        rows[:-1, 3 + power] = (-0.5 / (power + 1)) * width * coefficient.astype(np.float32)
    rows[-1] = (lower[-1], 1.0, values[-1], -0.5 * weights[-1], 0.0, 0.0)
    return EvidenceTable(rows, first, np.array(log2_segments))


def _resolution(model: LocalModel) -> tuple[int, ...]:
    """ln₂ of the number of segments of each octave."""
    octaves, log2_segments = range(FIRST_OCTAVE, LAST_OCTAVE), list(USUAL)
    if model.edge is not None:
        finest = min(math.ceil(0.5 * math.log2(model.edge)) + 4, LOG2_SEGMENTS_EDGE)
        nearest = math.floor(math.log2(model.edge))
        for octave in range(nearest - 1, nearest + 2):
            if octave in octaves:
                place = octave - FIRST_OCTAVE
                log2_segments[place] = max(log2_segments[place], finest)
    return tuple(log2_segments)


@lru_cache(maxsize=64)
def _segments(log2_segments: tuple[int, ...]) -> tuple[NDArray[np.int64], Array, Array]:
    """The row of each octave's first segment, the lower ends of all segments with the last upper end, and widths."""
    counts = np.array([1 << power for power in log2_segments])
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lower = [2.0**octave * (1.0 + np.arange(n) / n) for octave, n in enumerate(counts, FIRST_OCTAVE)]
    ends = np.append(np.concatenate(lower), 2.0**LAST_OCTAVE)
    return first, ends - SHIFT, np.diff(ends)
