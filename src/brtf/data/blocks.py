"""Blocks of entries, which are processed together, and the positions of their entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Cache

Layout = Literal["complete", "masked", "coordinates"]


@dataclass(frozen=True, eq=False)
class Block:
    """Entries processed together: a range of the entry vector.

    Attributes
    ----------
    entries : range of the block's m entries in the entry vector 0..M-1
    values : (m,) observed values, unscaled; a view
    rows : the b rows of mode 0 it covers; all of them for the coordinate layout
    mask : (b, I_1, ..., I_{N-1}) True = observed; masked layout only
    coords : (N, m) coordinates of the entries; coordinate layout only
    shape : (I_0, ..., I_{N-1}) of the whole tensor
    cache : lists and positions of the entries that were computed already
    """

    entries: slice
    values: NDArray[np.floating[Any]]
    rows: slice
    mask: NDArray[np.bool_] | None
    coords: NDArray[np.intp] | None
    shape: tuple[int, ...]
    cache: Cache = field(default_factory=Cache, init=False, repr=False)

    @property
    def n_entries(self) -> int:
        """Entries of the block, m."""
        return self.entries.stop - self.entries.start

    @property
    def n_rows(self) -> int:
        """Rows of mode 0 it covers, b."""
        return self.rows.stop - self.rows.start

    @property
    def layout(self) -> Layout:
        """Which of the three layouts the block has."""
        return layout_of(self.mask, self.coords)


def block_positions(block: Block, modes: Sequence[int]) -> NDArray[np.intp]:
    """Position of every entry of a block along the given modes, (m,), numbered in C order over them."""
    shape = block.shape
    lengths = tuple(shape[mode] for mode in modes)
    if block.coords is not None:
        return np.ravel_multi_index(tuple(block.coords[mode] for mode in modes), lengths)
    numbers = np.arange(math.prod(lengths)).reshape(lengths).transpose(np.argsort(modes))
    numbers = numbers.reshape([shape[mode] if mode in modes else 1 for mode in range(len(shape))])
    if 0 in modes:
        numbers = numbers[block.rows]
    everywhere = np.broadcast_to(numbers, (block.rows.stop - block.rows.start, *shape[1:]))
    return everywhere.ravel() if block.mask is None else everywhere[block.mask]


def row_and_column_positions(block: Block, modes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions along the given modes of rows (b,) and columns (C,) of a complete block; an entry's is their sum."""
    lengths = [block.shape[mode] for mode in modes]
    strides = {mode: math.prod(lengths[k + 1 :]) for k, mode in enumerate(modes)}
    rows = strides.get(0, 0) * np.arange(block.rows.start, block.rows.stop)
    columns = np.zeros(1, np.int64)
    for mode, length in enumerate(block.shape[1:], start=1):
        columns = np.add.outer(columns, strides.get(mode, 0) * np.arange(length)).reshape(-1)
    return rows, columns


def layout_of(mask: NDArray[np.bool_] | None, coords: NDArray[np.intp] | None) -> Layout:
    if coords is not None:
        return "coordinates"
    return "complete" if mask is None else "masked"
