"""The layout of a table of ln f: a function of ρ that kernels look up for every entry.

Knots are equally spaced within an octave of ρ + 2⁻¹², so the leading bits of that number index the table; between knots
ln f is a cubic. The weight is the slope of the same cubic, so sweeps ascend exactly the function that is evaluated.
Coefficients are rounded to single precision even for entries in double, so that the four of a segment share a cache
line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array

FIRST_OCTAVE, LAST_OCTAVE = -12, 70
"""Octaves of ρ + 2⁻¹²; the first begins at ρ = 0. Beyond the last, where only huge outliers of very accurate data lie,
ln f is extrapolated as a power of ρ, like the tail of a Student-t."""
SHIFT = 2.0**FIRST_OCTAVE
"""Added to ρ, so that the octaves start at a finite exponent."""
LAST_FEATURE = 10
"""First octave of the coarse table. Below it noise gives way to outliers; from here on ln f is smooth in ln ρ."""
LOG2_SEGMENTS, LOG2_SEGMENTS_FEATURES = 4, 7
"""Log2 of the segments per octave: coarse and fine."""
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
