"""Var x at the entries of dense blocks, fibre by fibre along the longest mode.

The recursion of :func:`brtf.kernels.reference.contractions.variance_at` over all modes but the longest is the same for
all entries of a fibre. It is formed in tiles, and its product with the longest mode's moments is left to BLAS where
many entries of a fibre are observed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.masked import Lists

FIBRES_TOGETHER, COLUMNS_TOGETHER = 256, 128
"""Fibres and packed elements in a tile: half a megabyte, which stays in cache between the loop and the product, and
rows enough for the product to reach its speed."""
NUMBERS_TOGETHER = 2 * FIBRES_TOGETHER * COLUMNS_TOGETHER
"""Numbers in a tile."""


class Fibres:
    """The fibres of a dense block along one mode, with the packed products of all modes.

    ``outers``, ``moments`` and ``covs`` are those of
    :func:`brtf.kernels.reference.contractions.variance_at`, of the first mode for the block's rows
    alone; ``multiplicity`` (P,) counts each packed element.
    """

    def __init__(
        self,
        mode: int,
        outers: Sequence[Array],
        moments: Sequence[Array],
        covs: Sequence[Array],
        multiplicity: Array,
    ) -> None:
        *leading, before = [k for k in range(len(outers)) if k != mode]
        self._lengths = [len(outers[k]) for k in (*leading, before)]
        self._beside = outers[before], moments[before], covs[before]
        self._left = np.stack([np.zeros((1, multiplicity.size)), np.ones((1, multiplicity.size))], axis=1)
        for k in leading:
            both = np.empty((len(self._left) * len(outers[k]), 2, multiplicity.size))
            _extend(self._left, outers[k], moments[k], covs[k], 0, 0, multiplicity.size, both)
            self._left = both
        own = np.stack([moments[mode], np.broadcast_to(covs[mode], moments[mode].shape)], axis=1)
        self._last = own * multiplicity

    def __len__(self) -> int:
        return math.prod(self._lengths)

    def everywhere(self) -> Array:
        """Var x of all entries of the fibres, (fibres, I)."""
        n_packed = self._last.shape[2]
        out = np.zeros((len(self), len(self._last)))
        for start in range(0, len(self), FIBRES_TOGETHER):
            part = out[start : start + FIBRES_TOGETHER]
            for column in range(0, n_packed, COLUMNS_TOGETHER):
                stop = min(column + COLUMNS_TOGETHER, n_packed)
                left = self._formed(start, len(part), column, stop)
                right = np.ascontiguousarray(self._last[:, :, column:stop])
                part += left.reshape(len(left), -1) @ right.reshape(len(right), -1).T
        return out

    def at(self, entries: tuple[Lists, NDArray[np.int32]], n_entries: int) -> Array:
        """Var x of the entries listed by fibre, at their numbers, (m,)."""
        (stops, places), numbers = entries
        n_last, _, n_packed = self._last.shape
        last, out = self._last.reshape(n_last, 2 * n_packed), np.empty(n_entries)
        step = max(1, NUMBERS_TOGETHER // max(1, 2 * n_packed))
        for start in range(0, len(self), step):
            left = self._formed(start, min(step, len(self) - start), 0, n_packed)
            _products_at(left.reshape(len(left), 2 * n_packed), last, stops, start, places, numbers, out)
        return out

    def _formed(self, start: int, n_fibres: int, column: int, stop: int) -> Array:
        """The recursion for some fibres and packed elements."""
        left = np.empty((n_fibres, 2, stop - column))
        _extend(self._left, *self._beside, start, column, stop, left)
        return left


@loop
def _extend(left, outers, moments, covs, start, column, stop, out):
    """One step of the recursion, d ← d⊛(Q+V) + q⊛V and q ← q⊛Q, for fibres from ``start`` on and some columns."""
    n_rows, each = len(outers), len(covs) > 1
    for f in range(len(out)):
        i, j = (start + f) // n_rows, (start + f) % n_rows
        spread, product = left[i, 0, column:stop], left[i, 1, column:stop]
        outer, moment, cov = outers[j, column:stop], moments[j, column:stop], covs[j if each else 0, column:stop]
        new_spread, new_product = out[f, 0], out[f, 1]
        for c in range(new_spread.size):
            new_spread[c] = spread[c] * moment[c] + product[c] * cov[c]
            new_product[c] = product[c] * outer[c]


@sum_loop
def _products_at(left, last, stops, first, places, numbers, out):
    """Σ_c left[f, c] last[k, c] for the listed entries (first + f, k), at their numbers in ``out``."""
    for f in range(len(left)):
        row = left[f]
        begin = stops[first + f - 1] if first + f else 0
        for p in range(begin, stops[first + f]):
            other = last[places[p]]
            total = 0.0
            for c in range(row.size):
                total += row[c] * other[c]
            out[numbers[p]] = total
