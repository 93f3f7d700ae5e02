"""Var x and sums of many products at the entries of dense blocks, fibre by fibre along the longest mode.

What the other modes make of a column, their product or the recursion of
:func:`brtf.kernels.reference.contractions.variance_at`, is the same for all entries of a fibre. It is formed in tiles,
and its product with the longest mode's rows is left to BLAS where many entries of a fibre are observed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.dense import khatri_rao
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.masked import Lists

FIBRES_TOGETHER = 256
"""Fibres in a tile: rows enough for the product to reach its speed."""
NUMBERS_TOGETHER = 2**16
"""Numbers in a tile: half a megabyte, which stays in cache between the loop and the product."""


class Fibres(ABC):
    """The fibres of a dense block along one mode.

    Attributes
    ----------
    lengths : of all other modes
    last : (I, k, C) the rows of that mode: k numbers of every column
    """

    def __init__(self, lengths: list[int], last: Array) -> None:
        self._lengths, self._last = lengths, last

    @abstractmethod
    def _form(self, start: int, column: int, out: Array) -> None:
        """What the other modes make of the columns from one on, for fibres from ``start`` on, (f, k, c)."""

    def __len__(self) -> int:
        return math.prod(self._lengths)

    def everywhere(self) -> Array:
        """The sums at all entries of the fibres, (fibres, I)."""
        n_last, n_numbers, n_columns = self._last.shape
        out, step = np.zeros((len(self), n_last)), NUMBERS_TOGETHER // (FIBRES_TOGETHER * n_numbers)
        for start in range(0, len(self), FIBRES_TOGETHER):
            part = out[start : start + FIBRES_TOGETHER]
            for column in range(0, n_columns, step):
                right = np.ascontiguousarray(self._last[:, :, column : column + step])
                left = np.empty((len(part), *right.shape[1:]))
                self._form(start, column, left)
                part += left.reshape(len(left), -1) @ right.reshape(len(right), -1).T
        return out

    def at(self, entries: tuple[Lists, NDArray[np.int32]], n_entries: int) -> Array:
        """The sums at the entries listed by fibre, at their numbers, (m,)."""
        (stops, places), numbers = entries
        n_last, n_numbers, n_columns = self._last.shape
        last, out = self._last.reshape(n_last, -1), np.empty(n_entries)
        step = max(1, NUMBERS_TOGETHER // max(1, n_numbers * n_columns))
        for start in range(0, len(self), step):
            left = np.empty((min(step, len(self) - start), n_numbers, n_columns))
            self._form(start, 0, left)
            _products_at(left.reshape(len(left), -1), last, stops, start, places, numbers, out)
        return out


class Products(Fibres):
    """Σ_c Π_n M⁽ⁿ⁾[i_n, c], with the matrices of all modes, of the first mode for the block's rows alone."""

    def __init__(self, mode: int, matrices: Sequence[Array]) -> None:
        *leading, before = [k for k in range(len(matrices)) if k != mode]
        last = matrices[mode]
        super().__init__([len(matrices[k]) for k in (*leading, before)], last[:, None])
        self._beside = matrices[before]
        self._left = khatri_rao([np.ones((1, last.shape[1])), *(matrices[k] for k in leading)])

    def _form(self, start: int, column: int, out: Array) -> None:
        _multiply(self._left, self._beside, start, column, out[:, 0])


class Variances(Fibres):
    """Var x, with the packed products of all modes.

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
        own = np.stack([moments[mode], np.broadcast_to(covs[mode], moments[mode].shape)], axis=1)
        super().__init__([len(outers[k]) for k in (*leading, before)], own * multiplicity)
        self._beside = outers[before], moments[before], covs[before]
        self._left = np.stack([np.zeros((1, multiplicity.size)), np.ones((1, multiplicity.size))], axis=1)
        for k in leading:
            both = np.empty((len(self._left) * len(outers[k]), 2, multiplicity.size))
            _extend(self._left, outers[k], moments[k], covs[k], 0, 0, both)
            self._left = both

    def _form(self, start: int, column: int, out: Array) -> None:
        _extend(self._left, *self._beside, start, column, out)


@loop
def _multiply(left, matrix, start, column, out):
    """Rows of the Khatri–Rao product of two matrices from ``start`` on, some columns."""
    n_rows, stop = len(matrix), column + out.shape[1]
    for f in range(len(out)):
        i, j = (start + f) // n_rows, (start + f) % n_rows
        one, other, product = left[i, column:stop], matrix[j, column:stop], out[f]
        for c in range(product.size):
            product[c] = one[c] * other[c]


@loop
def _extend(left, outers, moments, covs, start, column, out):
    """One step of the recursion, d ← d⊛(Q+V) + q⊛V and q ← q⊛Q, for fibres from ``start`` on and some columns."""
    n_rows, each, stop = len(outers), len(covs) > 1, column + out.shape[2]
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
