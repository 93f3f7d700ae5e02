"""The observed entries of a tensor in one of three layouts, none of which stores values for missing entries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.arrays import Array, Cache, read_only
from brtf.data.blocks import Block, Layout, block_positions, layout_of
from brtf.data.checks import Labels, cast_values, count_of
from brtf.data.containers import Container, container_of
from brtf.data.description import described, label_text
from brtf.data.plan import BLOCK_ENTRIES, DEFAULT_PLAN, Plan
from brtf.data.scale import robust_scale

FEW_ROWS = 128
"""Number of rows of mode 0 from which matrix products are efficient."""


class Rounding(Protocol):
    """How the values were rounded: all that the data layer needs to know about a link."""

    def widths(self, modelled: NDArray[np.floating[Any]], /) -> Array:
        """Lengths of the intervals with the given midpoints."""


@dataclass(frozen=True, eq=False, repr=False)
class Observations:
    """The observed entries of a tensor, in one of three layouts.

    Built by `observe`, `from_coords` or `from_frame`, which check everything; the arrays are read-only.
    The entry vector numbers the M observed entries 0..M-1 in C order (the last mode runs fastest),
    whatever the layout.

    Attributes
    ----------
    shape : (I_0, ..., I_{N-1})
    values : complete layout: an array of `shape`, C-contiguous. Otherwise (M,), in the order of the entries.
    mask : array of `shape`, True = observed; masked layout only
    coords : (N, M), sorted in C order, without duplicates; coordinate layout only
    scale : robust scale of the values, see :func:`brtf.data.scale.robust_scale`
    labels : names of modes and positions, if the input had them
    mask_doubted : whether the given mask looks inverted
    plan : sizes at which the work on the entries is divided, cached or sent
    container : what the data came in; None if that is not known
    rounding : what tells the intervals that were rounded to the values, where rounding counts beside the noise; else
        None
    cache : sizes and orders of the entries that were computed already
    """

    shape: tuple[int, ...]
    values: NDArray[np.floating[Any]]
    mask: NDArray[np.bool_] | None
    coords: NDArray[np.intp] | None
    scale: float
    labels: Labels | None = None
    mask_doubted: bool = field(default=False, kw_only=True)
    plan: Plan = field(default=DEFAULT_PLAN, kw_only=True)
    container: Container | None = field(default=None, kw_only=True)
    rounding: Rounding | None = field(default=None, kw_only=True)
    cache: Cache = field(default_factory=Cache, init=False)

    def __repr__(self) -> str:
        return f"<Observations: {described(self)}>"

    @property
    def order(self) -> int:
        """Number of modes, N."""
        return len(self.shape)

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The user's names of the modes; empty without names."""
        return () if self.labels is None else self.labels.dims

    @property
    def mode_labels(self) -> tuple[NDArray[Any] | None, ...]:
        """Per mode the labels of its positions, (I_n,); None for plain positions."""
        return (None,) * self.order if self.labels is None else self.labels.coords

    @property
    def name(self) -> str | None:
        """Name of the values, if they have one."""
        return None if self.labels is None else self.labels.name

    @property
    def n_observed(self) -> int:
        """Number of observed entries, M."""
        return self.values.size

    @property
    def n_entries(self) -> int:
        """Number of entries, observed or missing: the product of the shape, exact however large."""
        return math.prod(self.shape)

    @property
    def in_chunks(self) -> bool:
        """Whether the entries are stored elsewhere, in chunks that are read when needed."""
        return False

    @property
    def is_small(self) -> bool:
        """Whether the entries are in memory, and so few that a pass per mode costs little."""
        return self.n_observed <= self.plan.small_data and not self.in_chunks

    @property
    def bytes_at_once(self) -> int:
        """Bytes of the values in memory at a time: all of them, or those of a chunk."""
        return self.values.nbytes

    @property
    def largest(self) -> float:
        """max |y|."""
        return max(float(self.values.max()), -float(self.values.min()))

    def positions_seen(self, mode: int) -> NDArray[np.intp]:
        """The positions along a mode at which anything is observed, in order."""
        if self.coords is not None:
            if self.shape[mode] > self.n_observed:
                return np.unique(self.coords[mode])
            seen = np.zeros(self.shape[mode], dtype=bool)
            seen[self.coords[mode]] = True
            return np.flatnonzero(seen)
        if self.mask is None:
            return np.arange(self.shape[mode])
        other_modes = tuple(m for m in range(self.order) if m != mode)
        return np.flatnonzero(self.mask.any(axis=other_modes))

    @property
    def layout(self) -> Layout:
        """Which of the three layouts holds the entries."""
        return layout_of(self.mask, self.coords)

    @property
    def _row_starts(self) -> NDArray[np.intp]:
        """(I_0 + 1,) where the entries of each row of mode 0 start in the entry vector; dense layouts."""
        if self.mask is None:
            return np.arange(self.shape[0] + 1) * math.prod(self.shape[1:])
        n_per_row = np.count_nonzero(self.mask.reshape(self.shape[0], -1), axis=1)
        return np.concatenate([[0], np.cumsum(n_per_row)])

    @cached_property
    def block_list(self) -> tuple[Block, ...]:
        """The blocks of the plan's size, in order; for dense data at least a few rows, unless rows are very long."""
        n_entries = self.plan.block_entries
        larger = 2 if self.mask is None else 1  # complete data are processed in tiles
        several = larger * FEW_ROWS * math.prod(self.shape[1:])
        if self.coords is not None or several <= n_entries:
            return tuple(self.blocks(n_entries))
        return tuple(self.blocks(min(several, larger * 4 * n_entries)))

    def in_one_block(self) -> Observations:
        """Copy of the observations with all entries in one block."""
        everything = self.n_observed if self.coords is not None else self.n_entries
        return replace(self, plan=replace(self.plan, block_entries=everything))

    def blocks(self, n_entries: int = BLOCK_ENTRIES) -> Iterator[Block]:
        """Cut the entry vector into blocks, in order.

        The dense layouts are cut into runs of whole rows of mode 0 with about `n_entries` entries, observed or missing
        (at least one row); coordinates into runs of `n_entries`. Concatenated, the blocks are the entry vector.

        Parameters
        ----------
        n_entries
            Target size of a block, at least 1.
        """
        if n_entries < 1:
            raise ValueError(f"n_entries must be at least 1, got {n_entries}.")
        values = self.values.reshape(-1)
        if self.coords is not None:
            for start in range(0, self.n_observed, n_entries):
                entries = slice(start, min(start + n_entries, self.n_observed))
                yield Block(
                    entries, values[entries], slice(0, self.shape[0]), None, self.coords[:, entries], self.shape
                )
            return
        n_rows, row_starts = max(1, n_entries // math.prod(self.shape[1:])), self._row_starts
        for start in range(0, self.shape[0], n_rows):
            rows = slice(start, min(start + n_rows, self.shape[0]))
            entries = slice(int(row_starts[rows.start]), int(row_starts[rows.stop]))
            mask = None if self.mask is None else self.mask[rows]
            yield Block(entries, values[entries], rows, mask, None, self.shape)

    def entry_coords(self) -> NDArray[np.intp]:
        """Coordinates (N, M) of the entries, in the order of the entry vector, for every layout."""
        if self.coords is not None:
            return self.coords
        if self.mask is not None:
            return np.stack(np.nonzero(self.mask))
        return np.indices(self.shape, dtype=np.intp).reshape(self.order, -1)

    def coords_at(self, entries: NDArray[np.intp]) -> NDArray[np.intp]:
        """Coordinates (N, K) of some entries of the entry vector."""
        if self.coords is not None:
            return self.coords[:, entries]
        if self.mask is not None:
            entries = np.flatnonzero(self.mask)[entries]
        return np.stack(np.unravel_index(entries, self.shape)).astype(np.intp)

    def select(self, chosen: NDArray[np.bool_]) -> Observations:
        """Keep the chosen entries and treat the others as missing: dense data stay dense, sparse data sparse.

        Parameters
        ----------
        chosen
            (M,) True for entries to keep; at least one of them.
        """
        if chosen.all():
            return self
        values = self.values.reshape(-1)[chosen]
        if self.coords is not None:
            kept = build(self.shape, values, None, self.coords[:, chosen], self.labels, None, self.plan)
            return replace(kept, container=self.container)
        if self.mask is None:
            mask = chosen.reshape(self.shape).copy()
        else:
            mask = np.zeros_like(self.mask)
            mask[self.mask] = chosen
        kept = build(self.shape, values, mask, None, self.labels, None, self.plan)
        return replace(kept, container=self.container)

    def at_positions(self, positions: Sequence[NDArray[np.intp]]) -> Observations:
        """The sub-tensor at some positions of every mode, ascending; at least one of its entries must be observed."""
        shape = tuple(len(own) for own in positions)
        if self.coords is None:
            box = np.ix_(*positions)
            if self.mask is None:
                return build(shape, self.values[box], None, None, None, None)
            mask = self.mask[box]
            cells = [own[at] for own, at in zip(positions, np.nonzero(mask), strict=True)]
            return build(shape, self.values[entry_numbers(self.mask, cells)], mask, None, None, None)
        places = [np.full(length, -1, dtype=np.intp) for length in self.shape]
        for own, place in zip(positions, places, strict=True):
            place[own] = np.arange(len(own))
        coords, values = [], []
        for block in self.block_list:
            own = self.coords[:, block.entries]
            moved = np.stack([place[column] for place, column in zip(places, own, strict=True)])
            inside = (moved >= 0).all(axis=0)
            coords.append(moved[:, inside])
            values.append(block.values[inside])
        return build(shape, np.concatenate(values), None, np.concatenate(coords, axis=1), None, None)

    @classmethod
    def from_coords(
        cls, coords: Any, values: Any, shape: Sequence[int], *, labels: Labels | None = None
    ) -> Observations:
        """Observations from coordinates and values; entries that are not listed are missing.

        Parameters
        ----------
        coords
            Integers (N, M), one column per entry, as in ``scipy.sparse.coo_array.coords``; or a sequence
            of N index arrays. Any order, no duplicates.
        values
            (M,) numbers. NaN = missing.
        shape
            (I_0, ..., I_{N-1}). Nothing of this size is allocated.
        labels
            Names of modes and positions.
        """
        from brtf.data.observe import from_coords

        return from_coords(coords, values, shape, labels, dtype=None)

    @classmethod
    def from_chunks(
        cls, Y: Any, mask: Any = None, *, dtype: DTypeLike | None = None, n_entries: int | None = None
    ) -> Observations:
        """Observations that are read chunk by chunk whenever they are needed, and never all at once.

        `BRTF.fit` reads Dask and Zarr arrays in this way; here memory-mapped files are accepted too, and the size of
        the chunks can be chosen.

        Parameters
        ----------
        Y
            A Dask array, a Zarr array or a numpy.memmap of a whole file. NaN = missing.
        mask
            An array of the same kind and shape, True = observed.
        dtype
            float32, float64 or None, as for `brtf.BRTF`.
        n_entries
            Target number of entries of a chunk; None: at most 2**24, in whole stored chunks.
        """
        from brtf.data.chunked_input import observe_chunks
        from brtf.data.observe import unlabel, unlabelled_mask

        data, labels = unlabel(Y)
        observed = observe_chunks(data, unlabelled_mask(mask, labels), labels, dtype, n_entries)
        return replace(observed, container=container_of(Y))

    @classmethod
    def from_parts(
        cls,
        directory: Any,
        *,
        index: Sequence[str] | None = None,
        value: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
    ) -> Observations:
        """Observations from a directory of coordinate files, each read when it is needed.

        Parameters
        ----------
        directory
            Directory of .parquet, .csv or .tsv tables with the same columns and a row per observed entry, each small
            enough for the memory of a worker. Entries that are not listed, or whose value is NaN, are missing; no entry
            may be listed twice.
        index
            The columns that hold positions 0..I_n-1, one per mode, in order; all columns but `value` if None.
        value
            The column of values; the last one that is not in `index` if None.
        shape
            (I_0, ..., I_{N-1}); None: one more than the largest position in every mode.
        dtype
            float32, float64 or None, as for `brtf.BRTF`.
        """
        from brtf.data.coordinate_files import observe_parts

        return replace(observe_parts(directory, index, value, shape, dtype), container=Container())

    @classmethod
    def from_frame(
        cls, frame: Any, index: Sequence[Any] | None = None, value: Any = None, *, shape: Sequence[int] | None = None
    ) -> Observations:
        """Observations from a long table: a row per observed entry.

        Parameters
        ----------
        frame
            pandas or polars DataFrame, Arrow table or DuckDB relation with a column per mode and a column of values.
            Rows whose value is NaN are missing entries.
        index
            The columns that index the modes, in order; all columns but `value` if None.
        value
            The column of values; the last one that is not in `index` if None.
        shape
            None: the positions of a mode are its distinct labels, sorted. If given, the index columns hold positions
            0..I_n-1 of a tensor of this shape.
        """
        from brtf.data.observe import from_frame

        return from_frame(frame, index, value, shape)


def warn_empty_slices(observations: Observations) -> None:
    """Warn, once per mode, about slices in which nothing is observed.

    Parameters
    ----------
    observations
        For the coordinate layout nothing as large as the shape is allocated.
    """
    if observations.layout == "complete":
        return
    for mode, length in enumerate(observations.shape):
        seen = observations.positions_seen(mode)
        n_empty = length - seen.size
        if n_empty:
            # At most n of the first n + 5 positions are observed, so they include the first five empty ones.
            first = np.setdiff1d(np.arange(min(length, seen.size + 5)), seen)[:5]
            own, names = observations.mode_labels[mode], observations.dim_names
            shown = (f"index {i}" if own is None else label_text(own[i]) for i in first)
            listed = ", ".join(shown).replace(", index", ",") + (", ..." if n_empty > 5 else "")
            warnings.warn(
                f"Mode {names[mode] if names else mode} has {count_of(n_empty, 'empty slice', 'empty slices')} "
                f"({listed}): nothing is observed there, so estimates rest on the other slices and are uncertain.",
                UserWarning,
                stacklevel=2,
            )


def entry_positions(observations: Observations, modes: Sequence[int]) -> NDArray[np.intp]:
    """Position of every entry along the given modes, (M,), numbered in C order over them."""
    return np.concatenate([block_positions(block, modes) for block in observations.block_list])


def numbered_along(observations: Observations, modes: Sequence[int]) -> NDArray[np.intp]:
    """The entries' positions along the given modes, (M,), those that occur numbered 0, 1, …; for any shape."""
    if observations.coords is None:
        return np.unique(entry_positions(observations, modes), return_inverse=True)[1]
    return distinct_columns(observations.coords[list(modes)], tuple(observations.shape[mode] for mode in modes))


def entry_numbers(mask: NDArray[np.bool_], coords: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Numbers (K,) in the entry vector of some distinct observed cells, given by their coordinates, each (K,).

    Counts the observed cells before each; nothing as large as the mask is made for it.
    """
    places, cells = np.atleast_1d(np.ravel_multi_index(tuple(coords), mask.shape)), mask.reshape(-1)
    order, numbers, n_before = np.argsort(places), np.empty(places.size, dtype=np.intp), 0
    starts = range(0, cells.size, BLOCK_ENTRIES)
    ends = np.searchsorted(places[order], [start + BLOCK_ENTRIES for start in starts])
    for start, first, last in zip(starts, (0, *ends), ends, strict=False):
        own, piece = order[first:last], cells[start : start + BLOCK_ENTRIES]
        numbers[own] = n_before - 1 + np.cumsum(piece)[places[own] - start]
        n_before += int(np.count_nonzero(piece))
    return numbers


def distinct_columns(coords: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Number the distinct index tuples 0, 1, …; nothing overflows however large the shape."""
    if math.prod(shape) < 2**62:
        return np.unique(np.ravel_multi_index(tuple(coords), shape), return_inverse=True)[1]
    return np.unique(coords, axis=1, return_inverse=True)[1].ravel()


def build(
    shape: tuple[int, ...],
    values: NDArray[Any],
    mask: NDArray[np.bool_] | None,
    coords: NDArray[np.intp] | None,
    labels: Labels | None,
    dtype: DTypeLike | None,
    plan: Plan = DEFAULT_PLAN,
) -> Observations:
    floats = cast_values(values, dtype)
    return Observations(
        shape,
        read_only(floats),
        None if mask is None else read_only(mask),
        None if coords is None else read_only(coords),
        robust_scale(floats),
        labels,
        plan=plan,
    )
