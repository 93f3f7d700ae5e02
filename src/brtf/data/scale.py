"""The typical size of the data, which outliers do not move: a median that is found by counting bits.

Floats of one sign are in the order of their bits, so the median of |y| is known to the last bit after two (float32) or
four (float64) passes that each count the next sixteen. Counts add, whoever counts which part of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Count = Callable[[list[int], int], NDArray[np.int64]]
"""The counts of `count_next_bits` for all values together, as a function of prefixes and shift."""

SD_PER_MEDIAN = 1.4826
"""Standard deviation of centred Gaussian values per median of their absolute values, 1/Φ⁻¹(¾)."""
PIECE_ENTRIES = 2**16
"""Values that are counted together; their bits stay in the cache."""


def robust_scale(values: Floats) -> float:
    """The typical size of the values, which outliers do not move.

    1.4826 median|y|, the standard deviation of centred Gaussian values; max|y| if that is zero; 1 if
    all values are zero. At least 1e-40 of max|y|, so that y / scale and products of its squares are finite
    (1e-12 for float32): divide by the scale, for 1 / scale may overflow.

    Parameters
    ----------
    values : finite floats of any shape, at least one
    """
    flat = values.reshape(-1)
    pieces = [flat[start : start + PIECE_ENTRIES] for start in range(0, flat.size, PIECE_ENTRIES)]

    def count(prefixes: list[int], shift: int) -> NDArray[np.int64]:
        counts = np.zeros((len(prefixes), 2**16), np.int64)
        for piece in pieces:
            count_next_bits(counts, piece, prefixes, shift)
        return counts

    return scale_by_counts(flat.dtype, flat.size, max(float(flat.max()), -float(flat.min())), count)


def root_mean_square(values: Floats) -> float:
    """√(mean y²) of a vector (M,), also where squares would overflow."""
    return float(np.hypot.reduce(values)) / math.sqrt(values.size)


def scale_by_counts(dtype: np.dtype[Any], n_values: int, largest: float, count: Count) -> float:
    """`robust_scale` of values that are only counted.

    Parameters
    ----------
    dtype : float32 or float64
    n_values : how many there are
    largest : max |y|
    count : of the |y| whose bits begin with each prefix, how many have each of the next sixteen bits
    """
    if largest == 0.0:
        return 1.0
    middle = [(0, (n_values - 1) // 2), (0, n_values // 2)]  # two values, or one of them twice
    for shift in range(8 * dtype.itemsize - 16, -1, -16):
        middle = _with_next_bits(middle, count, shift)
    low, high = (float(np.array(bits, _unsigned(dtype)).view(dtype)) for bits, _ in middle)
    typical = SD_PER_MEDIAN * (low + 0.5 * (high - low)) or largest  # low + high may overflow
    lowest_share = 1e-40 if dtype == np.float64 else 1e-12
    return min(max(typical, largest * lowest_share), float(np.finfo(dtype).max))


def _with_next_bits(wanted: list[tuple[int, int]], count: Count, shift: int) -> list[tuple[int, int]]:
    """Sixteen bits more of values given by their first bits and their rank among those that begin with them."""
    prefixes = sorted({prefix for prefix, _ in wanted})
    counts = count(prefixes, shift)
    below = np.cumsum(counts, axis=1)
    found = []
    for prefix, rank in wanted:
        row = prefixes.index(prefix)
        bits = int(np.searchsorted(below[row], rank, side="right"))
        found.append(((prefix << 16) | bits, rank - int(below[row, bits] - counts[row, bits])))
    return found


def count_next_bits(counts: NDArray[Any], values: Floats, prefixes: list[int], shift: int) -> None:
    """Count, of the |y| whose bits begin with each of the prefixes, how many have each of the next sixteen.

    Parameters
    ----------
    counts : to add to, (prefixes, 2**16)
    values : floats, (M,)
    prefixes : the bits that come before; [0] where nothing does
    shift : how many bits come after the sixteen
    """
    kind: Any = _unsigned(values.dtype)
    bits = np.abs(values).view(kind) >> kind(shift)
    everything = shift == 8 * values.dtype.itemsize - 16
    for count, prefix in zip(counts, prefixes, strict=True):
        chosen = bits if everything else bits[bits >> kind(16) == kind(prefix)]
        count += np.bincount((chosen & kind(2**16 - 1)).astype(np.intp), minlength=2**16)


def _unsigned(dtype: np.dtype[Any]) -> type[np.unsignedinteger[Any]]:
    return np.uint32 if dtype == np.float32 else np.uint64
