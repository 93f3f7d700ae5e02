"""A local model as a table: ln f and its slope for any ρ by one look-up, for every model.

An entry's share in the bound is a function of one number, so it is tabulated once per change of the model and looked up
for every entry. Knots are equally spaced within an octave of ρ + 2⁻¹², so the leading bits of that number index the
table; between knots ln f is interpolated by a cubic that matches values and slopes. The weight is the slope of the same
cubic, so sweeps ascend exactly the function that is evaluated. Coefficients are rounded to single precision even for
entries in double, so that the four of a segment share a cache line.
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
"""Octaves of ρ + 2⁻¹²; the first begins at ρ = 0. Beyond the last, where only huge outliers of very accurate data lie,
ln f is extrapolated as a power of ρ, like the tail of a Student-t."""
SHIFT = 2.0**FIRST_OCTAVE
"""Added to ρ, so that the octaves start at a finite exponent."""
LAST_FEATURE = 10
"""First octave of the coarse table. Below it noise gives way to outliers; from here on ln f is smooth in ln ρ."""
LOG2_SEGMENTS, LOG2_SEGMENTS_FEATURES, LOG2_SEGMENTS_EDGE = 4, 7, 12
"""Log2 of the segments per octave: coarse, fine, and at most at the edge of a flat slab."""
USUAL = tuple(
    LOG2_SEGMENTS_FEATURES if octave < LAST_FEATURE else LOG2_SEGMENTS for octave in range(FIRST_OCTAVE, LAST_OCTAVE)
)
"""Log2 of the segments of every octave of a table without the edge of a flat slab."""


@dataclass(frozen=True, eq=False)
class EvidenceTable:
    """Cubics of ln f over segments of ρ.

    Attributes
    ----------
    rows : (K, 6) per segment its lower end, the inverse of its width, and the coefficients c₀…c₃ of ln f in the
        fraction t of the segment. The last row is the slope at their end
    first : (octaves,) the row of each octave's first segment
    log2_segments : (octaves,) ln₂ of the number of segments of each octave
    n_usual : number of leading segments whose octaves have the standard number of segments
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
        """(n_usual + 1, 4) coefficients of w as a quadratic in t for each usual segment, and −½ width.

        −½ width times ∫w dt is the change of ln f within the segment. The last row, all zeros, is for ρ beyond them.
        """
        padded = np.zeros((self.n_usual + 1, 4), np.float32)
        half_width = -0.5 / self.rows[:-1, 1]
        for power in range(3):
            padded[:-1, power] = ((power + 1) * self.rows[:-1, 3 + power] / half_width)[: self.n_usual]
        padded[:-1, 3] = half_width[: self.n_usual]
        return padded


@cache
def usual_places(dtype: np.dtype[np.floating[Any]]) -> NDArray[np.signedinteger[Any]]:
    """Five integers that map the bits of ρ + 2⁻¹² to the index of a usual segment, in the integer type of ρ's width.

    From the third number on, the bits of the first coarse octave, the index is (bits >> second) − fifth; below it
    (bits >> first) − fourth. The bits shifted out are the fraction t.
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
    """The table of a local model, accurate to about 1e-6 in ln f at the sharpest features."""
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
    for power, coefficient in enumerate(quadratic):  # of w in t; the change of ln f is −½ width times its integral
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
    """Row of each octave's first segment, the segment boundaries, and the segment widths."""
    counts = np.array([1 << power for power in log2_segments])
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lower = [2.0**octave * (1.0 + np.arange(n) / n) for octave, n in enumerate(counts, FIRST_OCTAVE)]
    ends = np.append(np.concatenate(lower), 2.0**LAST_OCTAVE)
    return first, ends - SHIFT, np.diff(ends)
