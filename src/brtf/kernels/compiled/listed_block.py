"""Masked blocks that list their entries once for several contractions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array, read_only
from brtf.data.blocks import Block
from brtf.kernels import (
    masked,
)
from brtf.kernels.arguments import plain

MOST_REMEMBERED = 2**17
"""Most entries of the only block of data that keeps their lists and positions, a megabyte per array; blocks of a dense
tensor keep them if it has at most twice as many cells."""
Listed = tuple[masked.Lists, Array, NDArray[np.bool_] | None]
"""Lists of entries and their values. For sums of ones a list never exceeds half a fibre: where most entries are
observed it holds the missing ones, with value −1, and the last element marks these fibres."""


@dataclass(frozen=True, eq=False)
class ListedBlock(Block):
    """A masked block that lists its entries once and reuses the lists in all contractions."""

    _columns: dict[tuple[int, int], tuple[masked.Lists, NDArray[np.int32]]] = field(default_factory=dict)
    _columns_of_ones: dict[tuple[int, int], Listed] = field(default_factory=dict)

    @cached_property
    def _rows(self) -> masked.Lists:
        return _list_rows(fibres_of(self), self.n_entries)

    @cached_property
    def _rows_of_ones(self) -> Listed:
        shorter, amounts, full = _shorter(fibres_of(self))
        return _list_rows(shorter, amounts.size), amounts, full

    def by_row(self, entry_values: Array | None) -> Listed:
        """The entries of fibres (f, k) by f, and their values."""
        return self._rows_of_ones if entry_values is None else (self._rows, plain(entry_values), None)

    def by_column(self, entry_values: Array | None, n_slabs: int, length: int) -> Listed:
        """The entries of slabs (a, n, b) by (a, b), and their values, with a of ``n_slabs`` and n of ``length``."""
        mask, key = fibres_of(self).reshape(n_slabs, length, -1), (n_slabs, length)
        if entry_values is None:
            if key not in self._columns_of_ones:
                shorter, ones, full = _shorter(mask)
                self._columns_of_ones[key] = _list_columns(shorter, ones.size)[0], ones, full
            return self._columns_of_ones[key]
        lists, numbers = self.numbered(*key)
        amounts = np.empty(self.n_entries)
        masked.take(entry_values, numbers, amounts)
        return lists, amounts, None

    def numbered(self, n_slabs: int, length: int) -> tuple[masked.Lists, NDArray[np.int32]]:
        """The entries of slabs (a, n, b) by (a, b), and their numbers within the block."""
        key = n_slabs, length
        if key not in self._columns:
            self._columns[key] = _list_columns(fibres_of(self).reshape(n_slabs, length, -1), self.n_entries)
        return self._columns[key]


def _list_rows(mask: NDArray[np.bool_], n_entries: int) -> masked.Lists:
    stops, places = np.empty(len(mask), np.int64), np.empty(n_entries + masked.SPARE, np.int32)
    masked.list_rows(mask, masked.PLACES_OF_BITS, stops, places)
    return stops, places


def _list_columns(mask: NDArray[np.bool_], n_entries: int) -> tuple[masked.Lists, NDArray[np.int32]]:
    stops = np.empty(len(mask) * mask.shape[2], np.int64)
    places, numbers = np.empty((2, n_entries), np.int32)
    masked.list_columns(mask, masked.PLACES_OF_BITS, stops, places, numbers)
    return (stops, places), numbers


def _shorter(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Array, NDArray[np.bool_]]:
    """The mask of every fibre along the second axis, inverted where most entries are observed: see :data:`Listed`."""
    n_observed = np.count_nonzero(mask, axis=1)
    full = 2 * n_observed > mask.shape[1]
    n_listed = np.where(full, mask.shape[1] - n_observed, n_observed)
    amounts = np.repeat(np.where(full, -1.0, 1.0).reshape(-1), n_listed.reshape(-1))
    return read_only(mask ^ np.expand_dims(full, 1)), amounts, full


def remembers(block: Block) -> bool:
    """Whether a block keeps lists and positions: the data are small."""
    alone = block.n_rows == block.shape[0] and block.n_entries <= MOST_REMEMBERED
    return alone or (block.coords is None and math.prod(block.shape) <= 2 * MOST_REMEMBERED)


def listed(block: Block) -> ListedBlock:
    """The block, with its entries listed on first use; blocks of small data keep the lists."""
    if isinstance(block, ListedBlock):
        return block
    known: ListedBlock | None = block.cache.get("listed")
    if known is None:
        known = ListedBlock(**{part.name: getattr(block, part.name) for part in fields(block) if part.init})
        if remembers(block):
            block.cache["listed"] = known
    return known


def fibres_of(block: Block) -> NDArray[np.bool_]:
    """The mask as (fibres, I_{N-1})."""
    if block.mask is None:
        raise TypeError("a block of complete data has no mask")
    return block.mask.reshape(-1, block.shape[-1])
