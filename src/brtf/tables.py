"""A local model as a table: ln f and its slope for any ρ by one look-up, whatever the model.

An entry's share in the bound is a function of one number, so it is tabulated once per change of the model and looked up
for every entry. Knots are equally spaced within an octave of ρ + 2⁻¹², so that its leading bits are the place in the
table; between knots stands the cubic with the right values and slopes. The weight is the slope of that cubic itself:
sweeps climb the very function that is evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.distributions import Array
from brtf.local import FlatSlab, SlabModel

FIRST_OCTAVE, LAST_OCTAVE = -12, 70
"""Octaves of ρ + 2⁻¹², the first of which has ρ from zero on. Beyond the last, where only gigantic outliers of accurate
data are, ln f goes on as a power of ρ, as the tails of Student-t laws do."""
SHIFT = 2.0**FIRST_OCTAVE
"""Added to ρ, so that its octaves begin somewhere."""
LAST_FEATURE = 10
"""Octaves up to here, where noise turns into outliers, have the finer table, addressed by a plain shift of the bits;
beyond, ln f is smooth in ln ρ."""
LOG2_SEGMENTS, LOG2_SEGMENTS_FEATURES, LOG2_SEGMENTS_EDGE = 3, 7, 12
"""Segments per octave, as powers of two; the last is the most that the edge of a flat slab may take."""


@dataclass(frozen=True, eq=False)
class EvidenceTable:
    """Cubics of ln f over segments of ρ.

    Attributes
    ----------
    rows : (K, 6) per segment its lower end, the inverse of its width, and the coefficients c₀…c₃ of ln f in the
        fraction t of the segment. The last row is the slope at their end
    first : (octaves,) the row of each octave's first segment
    log2_segments : (octaves,) ln₂ of the number of segments of each octave
    n_even : segments, from the first on, that have ``LOG2_SEGMENTS_FEATURES`` to the octave without exception
    middles : (K,) the middle of each segment, at which its entries are counted
    """

    rows: Array
    first: NDArray[np.int64]
    log2_segments: NDArray[np.int64]

    @cached_property
    def n_even(self) -> int:
        uneven = np.flatnonzero(self.log2_segments != LOG2_SEGMENTS_FEATURES)
        return int(uneven[0]) << LOG2_SEGMENTS_FEATURES

    @cached_property
    def middles(self) -> Array:
        return np.asarray(self.rows[:, 0] + 0.5 / self.rows[:, 1])

    def evenly(self, dtype: np.dtype[np.floating[Any]]) -> EvenSegments:
        """The even segments for numbers of the given type."""
        if dtype not in self._even:
            self._even[dtype] = EvenSegments.of(self.rows[: self.n_even, 3:], dtype)
        return self._even[dtype]

    @cached_property
    def _even(self) -> dict[np.dtype[np.floating[Any]], EvenSegments]:
        return {}


@dataclass(frozen=True, eq=False)
class EvenSegments:
    """Segments whose place, and the fraction t within them, are nothing but bits of ρ + 2⁻¹².

    Attributes
    ----------
    cubics : (n_even + 1, 4) c₁, c₂, c₃ and a zero, of the type of ρ; the last row, all zeros, is for ρ beyond
    bits : (6,) what the bits mean, integers of the size of ρ: how many stand below those of the segment, a mask of all
        but those, a mask of the exponent, the sum of the exponents of a number and of its inverse, the number of
        segments to the octave, and what stands before the place of the first
    """

    cubics: NDArray[np.floating[Any]]
    bits: NDArray[np.signedinteger[Any]]

    @classmethod
    def of(cls, cubics: Array, dtype: np.dtype[np.floating[Any]]) -> EvenSegments:
        """The segments with the given c₁, c₂, c₃, (n_even, 3)."""
        padded = np.zeros((len(cubics) + 1, 4), dtype)
        padded[:-1, :3] = cubics
        layout = np.finfo(dtype)
        bias, below = layout.maxexp - 1, layout.nmant - LOG2_SEGMENTS_FEATURES
        exponent = ((1 << (8 * dtype.itemsize - 1 - layout.nmant)) - 1) << layout.nmant
        before = (bias + FIRST_OCTAVE) << LOG2_SEGMENTS_FEATURES
        numbers = (below, -1 << below, exponent, 2 * bias << layout.nmant, 1 << LOG2_SEGMENTS_FEATURES, before)
        return cls(padded, np.array(numbers, f"i{dtype.itemsize}"))


@lru_cache(maxsize=16)
def tabulate(model: SlabModel) -> EvidenceTable:
    """The table of a local model; right to some 1e-6 in ln f at the sharpest features."""
    log2_segments = _resolution(model)
    posterior = model.posterior(_segments(log2_segments)[1])
    return _cubics(log2_segments, posterior.log_evidence, posterior.weight)


@lru_cache(maxsize=16)
def tabulate_branches(model: SlabModel) -> tuple[EvidenceTable, EvidenceTable]:
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
    slopes = -0.5 * weights
    rise = np.diff(values)
    left, right = slopes[:-1] * width, slopes[1:] * width
    rows = np.empty((width.size + 1, 6))
    inner = (lower[:-1], 1.0 / width, values[:-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise)
    rows[:-1] = np.stack(inner, axis=1)
    rows[-1] = (lower[-1], 1.0, values[-1], slopes[-1], 0.0, 0.0)
    return EvidenceTable(rows, first, np.array(log2_segments))


def _resolution(model: SlabModel) -> tuple[int, ...]:
    """ln₂ of the number of segments of each octave."""
    octaves = range(FIRST_OCTAVE, LAST_OCTAVE)
    log2_segments = [LOG2_SEGMENTS_FEATURES if octave < LAST_FEATURE else LOG2_SEGMENTS for octave in octaves]
    if isinstance(model, FlatSlab):  # the noise blurs its edge over a share ζ^{−1/2} of ρ
        edge = min(math.ceil(0.5 * math.log2(model.width)) + 4, LOG2_SEGMENTS_EDGE)
        for octave in range(math.floor(math.log2(model.width)) - 1, math.floor(math.log2(model.width)) + 2):
            if octave in octaves:
                place = octave - FIRST_OCTAVE
                log2_segments[place] = max(log2_segments[place], edge)
    return tuple(log2_segments)


@lru_cache(maxsize=64)
def _segments(log2_segments: tuple[int, ...]) -> tuple[NDArray[np.int64], Array, Array]:
    """The row of each octave's first segment, the lower ends of all segments with the last upper end, and widths."""
    counts = np.array([1 << power for power in log2_segments])
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lower = [2.0**octave * (1.0 + np.arange(n) / n) for octave, n in enumerate(counts, FIRST_OCTAVE)]
    ends = np.append(np.concatenate(lower), 2.0**LAST_OCTAVE)
    return first, ends - SHIFT, np.diff(ends)
