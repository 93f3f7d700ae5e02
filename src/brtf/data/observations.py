"""Conversion of any accepted input to `Observations`, checked once.

No layout stores values for missing entries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.arrays import read_only
from brtf.data.checks import (
    Labels,
    cast_values,
    check_coords,
    check_dtype,
    check_labels,
    check_mask,
    check_shape,
    count_of,
    drop_missing,
    nothing_observed,
    place_of,
    read_numbers,
)
from brtf.data.containers import Container, LongFrame, container_of
from brtf.data.dataframes import LARGEST_GUESSED_ORDER, as_pandas, numbers_in, refuse_long
from brtf.data.description import described
from brtf.data.plan import BLOCK_ENTRIES, DEFAULT_PLAN, Plan
from brtf.data.scale import robust_scale

__all__ = [
    "BLOCK_ENTRIES",
    "Block",
    "Labels",
    "Observations",
    "block_positions",
    "distinct_columns",
    "entry_positions",
    "observe",
    "observe_matrix",
    "row_and_column_positions",
    "warn_empty_slices",
]

FEW_ROWS = 128
"""Number of rows of mode 0 from which matrix products are efficient."""

Layout = Literal["complete", "masked", "coordinates"]


@dataclass(frozen=True, eq=False)
class Block:
    """Entries processed together: a range of the entry vector.

    Attributes
    ----------
    entries
        Range of the block's m entries in the entry vector 0..M-1.
    values
        (m,) observed values, unscaled; a view.
    rows
        The b rows of mode 0 it covers; all of them for the coordinate layout.
    mask
        (b, I_1, ..., I_{N-1}) True = observed; masked layout only.
    coords
        (N, m) coordinates of the entries; coordinate layout only.
    shape
        (I_0, ..., I_{N-1}) of the whole tensor.
    """

    entries: slice
    values: NDArray[np.floating[Any]]
    rows: slice
    mask: NDArray[np.bool_] | None
    coords: NDArray[np.intp] | None
    shape: tuple[int, ...]

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
        return _layout(self.mask, self.coords)


@dataclass(frozen=True, eq=False, repr=False)
class Observations:
    """The observed entries of a tensor, in one of three layouts.

    Built by `observe`, `from_coords` or `from_frame`, which check everything; the arrays are read-only.
    The entry vector numbers the M observed entries 0..M-1 in C order (the last mode runs fastest),
    whatever the layout.

    Attributes
    ----------
    shape
        (I_0, ..., I_{N-1}).
    values
        Complete layout: an array of `shape`, C-contiguous. Otherwise (M,), in the order of the entries.
    mask
        Array of `shape`, True = observed; masked layout only.
    coords
        (N, M), sorted in C order, without duplicates; coordinate layout only.
    scale
        Robust scale of the values, see :func:`brtf.data.scale.robust_scale`.
    labels
        Names of modes and positions, if the input had them.
    mask_doubted
        Whether the given mask looks inverted.
    plan
        Sizes at which the work on the entries is divided, cached or sent.
    container
        What the data came in; None if that is not known.
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

    def __repr__(self) -> str:
        return f"<Observations: {described(self)}>"

    @property
    def order(self) -> int:
        """Number of modes, N."""
        return len(self.shape)

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
        return _layout(self.mask, self.coords)

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
        together = replace(self)
        everything = self.n_observed if self.coords is not None else self.n_entries
        together.__dict__["block_list"] = tuple(self.blocks(everything))
        return together

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
            kept = _build(self.shape, values, None, self.coords[:, chosen], self.labels, None, self.plan)
            return replace(kept, container=self.container)
        if self.mask is None:
            mask = chosen.reshape(self.shape).copy()
        else:
            mask = np.zeros_like(self.mask)
            mask[self.mask] = chosen
        kept = _build(self.shape, values, mask, None, self.labels, None, self.plan)
        return replace(kept, container=self.container)

    def at_positions(self, positions: Sequence[NDArray[np.intp]]) -> Observations:
        """The sub-tensor at some positions of every mode, ascending; at least one of its entries must be observed."""
        shape = tuple(len(own) for own in positions)
        if self.coords is None:
            box = np.ix_(*positions)
            mask = None if self.mask is None else self.mask[box]
            if self.mask is None:
                return _build(shape, self.values[box], None, None, None, None)
            numbers = np.cumsum(self.mask.reshape(-1)).reshape(self.shape) - 1
            return _build(shape, self.values[numbers[box][mask]], mask, None, None, None)
        places = [np.full(length, -1, dtype=np.intp) for length in self.shape]
        for own, place in zip(positions, places, strict=True):
            place[own] = np.arange(len(own))
        coords = np.stack([place[column] for place, column in zip(places, self.coords, strict=True)])
        inside = (coords >= 0).all(axis=0)
        return _build(shape, self.values[inside], None, np.ascontiguousarray(coords[:, inside]), None, None)

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
        return _from_coords(coords, values, shape, labels, dtype=None)

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

        data, labels = _unlabel(Y)
        return replace(observe_chunks(data, _unlabel(mask)[0], labels, dtype, n_entries), container=container_of(Y))

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
        cls,
        frame: Any,
        *,
        index: Sequence[Any] | None = None,
        value: Any = None,
        shape: Sequence[int] | None = None,
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
        return _from_frame(frame, index, value, shape)


def observe(Y: Any, mask: Any = None, *, dtype: DTypeLike | None = None) -> Observations:
    """Turn any accepted input into `Observations`, checking it once; the input is never modified.

    Parameters
    ----------
    Y
        A tensor of order >= 2: anything NumPy can read as an array (NaN = missing), numpy.ma (masked =
        missing), xarray.DataArray or a wide pandas or polars table (labels kept), scipy.sparse or anything
        with ``.coords .data .shape`` (stored = observed, absent = missing; never made dense), or
        `Observations`. A Dask array, alone or in xarray, and a Zarr array are read chunk by chunk, whenever
        they are needed. A pandas long table, one row per entry, goes through
        `Observations.from_frame`.
    mask
        Booleans of the shape of `Y`, True = observed. Values of `Y` elsewhere are ignored.
    dtype
        float32 or float64. None keeps float32 and converts every other real type to float64.

    Returns
    -------
    Observations
        A complete float32 or float64 C-contiguous array (a memmap too) is shared, not copied.
    """
    check_dtype(dtype)
    if isinstance(Y, Observations):
        if mask is not None:
            raise ValueError("mask= was given together with Observations, which know what is observed: drop it.")
        if dtype is None or Y.values.dtype == np.dtype(dtype):
            return Y
        values = cast_values(Y.values, dtype)
        return replace(Y, values=read_only(values), scale=robust_scale(values))

    return replace(_observe(Y, mask, dtype), container=container_of(Y))


def _observe(Y: Any, mask: Any, dtype: DTypeLike | None) -> Observations:
    data, labels = _unlabel(Y)
    from brtf.data.chunked_input import comes_in_chunks, observe_chunks

    if comes_in_chunks(data):
        return observe_chunks(data, _unlabel(mask)[0], labels, dtype)
    if _is_sparse(data):
        if mask is not None:
            raise ValueError(
                "mask= was given together with a sparse Y, whose stored entries are the observed ones: "
                "drop the mask, and leave the missing entries out of Y."
            )
        entries = data.tocoo() if hasattr(data, "tocoo") else data
        return _from_coords(entries.coords, entries.data, entries.shape, labels, dtype)
    return _from_dense(data, mask, labels, dtype)


def observe_matrix(frame: Any) -> Observations:
    """Observations of a pandas table that is known to be wide: the matrix of its numbers, with its labels."""
    return _from_dense(numbers_in(frame), None, _axes_of(frame), dtype=None)


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
            listed = ", ".join(str(i) for i in first) + (", ..." if n_empty > 5 else "")
            warnings.warn(
                f"Mode {mode} has {count_of(n_empty, 'empty slice', 'empty slices')} (index {listed}): "
                "nothing is observed there, so the rows fall back to their prior with a wide standard deviation.",
                UserWarning,
                stacklevel=2,
            )


def entry_positions(observations: Observations, modes: Sequence[int]) -> NDArray[np.intp]:
    """Position of every entry along the given modes, (M,), numbered in C order over them."""
    return np.concatenate([block_positions(block, modes) for block in observations.block_list])


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


def distinct_columns(coords: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Number the distinct index tuples 0, 1, …; nothing overflows however large the shape."""
    if math.prod(shape) < 2**62:
        return np.unique(np.ravel_multi_index(tuple(coords), shape), return_inverse=True)[1]
    return np.unique(coords, axis=1, return_inverse=True)[1].ravel()


def _layout(mask: NDArray[np.bool_] | None, coords: NDArray[np.intp] | None) -> Layout:
    if coords is not None:
        return "coordinates"
    return "complete" if mask is None else "masked"


def _unlabel(Y: Any) -> tuple[Any, Labels | None]:
    """Split a labelled array (xarray, pandas) into its data and its labels; other arrays have no labels."""
    package = type(Y).__module__.partition(".")[0]
    if package == "polars" and hasattr(Y, "columns"):
        Y, package = as_pandas(Y), "pandas"
    if package == "xarray" and hasattr(Y, "dims") and hasattr(Y, "data"):
        coords = tuple(np.asarray(Y.coords[dim]) if dim in Y.coords else None for dim in Y.dims)
        name = None if Y.name is None else str(Y.name)
        return Y.data, Labels(tuple(str(dim) for dim in Y.dims), coords, name)
    if package == "xarray" and hasattr(Y, "data_vars"):
        first = next(iter(Y.data_vars), "name")
        raise TypeError(
            f"Y is an xarray.Dataset with the variables {list(Y.data_vars)}: pass one of them, such as Y[{first!r}]."
        )
    if package == "pandas" and getattr(getattr(Y, "index", None), "nlevels", 1) > 1:
        raise ValueError(
            "Y has a MultiIndex, so it is a long table with a row per entry: pass "
            "brtf.Observations.from_frame(Y.reset_index())."
        )
    if package == "pandas" and hasattr(Y, "columns"):
        refuse_long(Y)
        return numbers_in(Y), _axes_of(Y)
    return Y, None


def _axes_of(frame: Any) -> Labels:
    """The labels of the rows and columns of a wide table."""
    axes = (frame.index, frame.columns)
    dims = tuple(f"dim_{mode}" if axis.name is None else str(axis.name) for mode, axis in enumerate(axes))
    return Labels(dims, tuple(_axis_labels(axis) for axis in axes))


def _axis_labels(axis: Any) -> NDArray[Any] | None:
    """Labels of a pandas axis; None if they are 0, 1, 2, ..."""
    import pandas

    counts = isinstance(axis, pandas.RangeIndex) and axis.equals(pandas.RangeIndex(len(axis)))
    return None if counts else np.asarray(axis)


def _is_sparse(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return False
    return hasattr(data, "tocoo") or all(hasattr(data, name) for name in ("coords", "data", "shape"))


def _from_dense(Y: Any, mask: Any, labels: Labels | None, dtype: DTypeLike | None) -> Observations:
    array, observed = read_numbers(Y, "Y")
    shape = check_shape(array.shape, "Y")
    if mask is not None:
        observed = check_mask(mask, shape) if observed is None else observed & check_mask(mask, shape)
        missing = np.isnan(array) & observed
        if missing.any():
            index = np.unravel_index(missing.argmax(), shape)
            n_missing = count_of(np.count_nonzero(missing), "such entry", "such entries")
            raise ValueError(
                f"mask says that Y{place_of(index)} is observed, but it is NaN ({n_missing} in all). "
                "Set the mask to False there, or give the values."
            )
    observed = drop_missing(array, observed, place_of)
    if observed is None or observed.all():
        return _build(shape, array, None, None, labels, dtype)
    n_observed = np.count_nonzero(observed)
    if n_observed == 0:
        raise nothing_observed()
    given = mask is not None or isinstance(Y, np.ma.MaskedArray)  # then the mask may belong to the caller
    doubted = mask is not None and _looks_inverted(array, observed)
    kept = np.array(observed, order="C") if given else np.ascontiguousarray(observed)
    built = _build(shape, array[observed], kept, None, labels, dtype)
    return replace(built, mask_doubted=doubted)


def _looks_inverted(array: NDArray[Any], observed: NDArray[np.bool_]) -> bool:
    """Whether all observed entries are equal while most of the masked ones, which should be empty, differ."""
    value = array[observed][0]
    if (array[observed] != value).any():
        return False
    others = array[~observed]
    return bool(np.mean((others != value) & ~np.isnan(others)) > 0.5)


def _from_coords(
    coords: Any, values: Any, shape: Sequence[int], labels: Labels | None, dtype: DTypeLike | None
) -> Observations:
    shape = check_shape(shape, "shape")
    check_labels(labels, shape)
    numbers, observed = read_numbers(values, "values")
    if numbers.ndim != 1:
        raise ValueError(f"values must have one mode, a number per entry, got shape {numbers.shape}.")
    columns = check_coords(coords, numbers.size, shape)
    order = np.lexsort(columns[::-1])
    positions = np.stack([column[order].astype(np.intp) for column in columns])

    def place(entry: Sequence[Any]) -> str:
        return place_of(positions[:, entry[0]], labels)

    repeated = np.all(positions[:, 1:] == positions[:, :-1], axis=0)
    if repeated.any():
        # The sort is stable, so among equals the later entry comes second.
        second = 1 + np.flatnonzero(repeated)
        offender = second[order[second].argmin()]
        raise ValueError(
            f"coords has duplicates: entries {order[offender - 1]} and {order[offender]} are both at "
            f"{place((offender,))} ({count_of(second.size, 'duplicate', 'duplicates')} in all). "
            "Keep one of them, or average them."
        )
    numbers = numbers[order]
    observed = drop_missing(numbers, None if observed is None else observed[order], place)
    if observed is not None:
        numbers, positions = numbers[observed], positions[:, observed]
    if numbers.size == 0:
        raise nothing_observed()
    return _build(shape, numbers, None, positions, labels, dtype)


def _from_frame(frame: Any, index: Sequence[Any] | None, value: Any, shape: Sequence[int] | None) -> Observations:
    given, frame = frame, as_pandas(frame)
    import pandas

    if not frame.columns.is_unique:
        raise ValueError(f"frame has several columns of one name: {list(frame.columns)}. Rename them.")
    if isinstance(index, str):
        raise TypeError(f"index must be a list of columns, one per mode, got {index!r}.")
    if not isinstance(index, Iterable | None):
        raise TypeError(f"index must be a list of columns, one per mode, got {index!r}.")
    indexed = [] if index is None else list(index)
    for column in (*indexed, value):
        if not isinstance(column, Hashable):
            raise TypeError(f"index and value must name columns of frame, got {column!r}.")
    if value is None:
        rest = [column for column in frame.columns if column not in indexed]
        if not rest:
            raise ValueError(f"frame has no column of values besides index={indexed}.")
        value = rest[-1]
    if index is None:
        indexed = [column for column in frame.columns if column != value]
        if len(indexed) > LARGEST_GUESSED_ORDER:
            raise ValueError(
                f"frame has {len(indexed)} columns besides its values, so it may be no long table: name the columns "
                "that index the modes, index=[…], or pass it to fit as it is if it is a matrix."
            )
    for column in [*indexed, value]:
        if column not in frame.columns:
            raise ValueError(f"frame has no column {column!r}; its columns are {list(frame.columns)}.")
    if len(indexed) < 2:
        raise ValueError(f"frame needs order >= 2: two index columns or more and a value column, got index {indexed}.")
    if len(frame) == 0:
        raise nothing_observed()

    positions = [frame[column].to_numpy() for column in indexed]
    labels: list[NDArray[Any] | None] = [None] * len(indexed)
    if shape is None:
        for mode, column in enumerate(indexed):
            positions[mode], uniques = pandas.factorize(frame[column], sort=True)
            labels[mode] = np.asarray(uniques)
            unlabelled = positions[mode] < 0
            if unlabelled.any():
                raise ValueError(
                    f"frame has no label in column {column!r} at row {unlabelled.argmax()} "
                    f"({count_of(unlabelled.sum(), 'such row', 'such rows')} in all). "
                    "Fill it in, or drop the row."
                )
        shape = [len(uniques) for uniques in labels if uniques is not None]
    names = Labels(tuple(str(column) for column in indexed), tuple(labels), str(value))
    found = _from_coords(positions, numbers_in(frame[[value]])[:, 0], shape, names, dtype=None)
    return replace(found, container=LongFrame(is_polars=type(given).__module__.partition(".")[0] == "polars"))


def _build(
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
