"""Input in chunks: how data are divided, and a first pass that checks everything.

Dask arrays, Zarr arrays, memory-mapped files and directories of coordinates become `ChunkedObservations`; the driver
never holds anything of their size.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.blocks import Block
from brtf.data.checks import (
    Labels,
    cast_values,
    check_shape,
    count_of,
    nothing_observed,
    place_of,
    read_numbers,
    refuse_no_booleans,
)
from brtf.data.chunks import (
    Chunk,
    ChunkedObservations,
    DaskRows,
    MappedFile,
    ReadChunk,
    Source,
    StoredRows,
    dense_lanes,
    lanes_of,
    observed_of,
    outline,
)
from brtf.data.executors import is_remote, over_lanes
from brtf.data.memory import available_bytes
from brtf.data.passes import Sums, visit
from brtf.data.plan import BLOCK_ENTRIES, DEFAULT_PLAN
from brtf.data.readers.labelled import dimension_names
from brtf.data.readers.stores import warn_of_damage
from brtf.data.scale import count_next_bits, scale_by_counts
from brtf.data.tasks import in_tree

CHUNK_ENTRIES = 2**24
"""Largest number of entries of a chunk, unless the store has larger ones: 64 MB of float32."""
LEAST_CHUNKS = 64
"""Smallest number of chunks, as long as each has a few blocks, to keep that many workers busy."""


def comes_in_chunks(data: Any) -> bool:
    """Whether data are read chunk by chunk.

    Dask and Zarr arrays always are; memory-mapped files if a cluster reads them or they exceed half of the memory.
    """
    package = type(data).__module__.partition(".")[0]
    if package in ("dask", "zarr"):
        return hasattr(data, "shape") and hasattr(data, "chunks")
    return _is_whole_map(data) and (is_remote() or data.nbytes > available_bytes() // 2)


def observe_chunks(
    Y: Any, mask: Any, labels: Labels | None, dtype: DTypeLike | None, n_entries: int | None = None
) -> ChunkedObservations:
    """Observations of a Dask array, a Zarr array or a memory-mapped file, after a first pass over all chunks.

    Parameters
    ----------
    Y, mask : arrays of one kind and shape
    labels : names of modes and positions
    dtype : float32, float64 or None, as in `observe`
    n_entries : target number of entries of a chunk; None for the default
    """
    shape = check_shape(Y.shape, "Y")
    read_numbers(np.empty((0, 0), Y.dtype), "Y")
    if mask is not None:
        _check_mask(mask, Y)
    if type(Y).__module__.startswith("dask"):
        chunks = _dask_chunks(Y, mask, n_entries)
    else:
        chunks = _stored_chunks(Y, mask, n_entries)
        dims = None if isinstance(Y, np.memmap) else dimension_names(Y)
        labels = labels if dims is None else Labels(dims, (None,) * len(dims))
    wanted = cast_values(np.zeros(1, Y.dtype), dtype).dtype
    lanes = lanes_of(chunks, dense_lanes(math.prod(shape) * wanted.itemsize, DEFAULT_PLAN.fewest_lanes))
    found = over_lanes(lanes, lambda lane: in_tree((_survey(shape, wanted, *chunk) for chunk in lane), _both), _both)
    found.check(mask is not None)
    ends = list(accumulate(found.n_observed, initial=0))
    n_observed = ends[-1]
    if n_observed == 0:
        raise nothing_observed()
    complete = n_observed == math.prod(shape)
    observations = outline(
        shape,
        1.0,
        labels,
        layout="complete" if complete else "masked",
        dtype=wanted,
        n_observed=n_observed,
        largest=found.largest,
        chunks=tuple(replace(chunk, entries=slice(*run)) for chunk, run in zip(chunks, pairwise(ends), strict=True)),
        seen=None if complete else found.seen,
    )
    return replace(observations, scale=scale_of_chunks(observations))


def row_blocks(Y: Any, mask: Any, n_entries: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Iterate over chunked data as arrays of rows with their masks, one in memory at a time.

    Parameters
    ----------
    Y : a Dask array, an xarray.DataArray of one (labels are kept), or a Zarr array
    mask : of the same shape, or None
    n_entries : target number of entries at a time of a Zarr array; None for the default. Blocks of Dask stay as they
        are.
    """
    data = Y if hasattr(Y, "chunks") and not hasattr(Y, "dims") else Y.data
    lengths = data.chunks[0]
    if not isinstance(lengths, tuple):  # of Zarr
        n_rows = _rows_per_chunk(data.shape, lengths, n_entries)
        lengths = (n_rows,) * -(-data.shape[0] // n_rows)
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        rows = slice(start, min(stop, data.shape[0]))
        yield _computed(Y, rows), None if mask is None else _computed(mask, rows)


def _computed(array: Any, rows: slice) -> Any:
    part = array[rows]
    return part.compute() if hasattr(part, "compute") else np.asarray(part)


# ---- what the data are cut into ----------------------------------------------------------------------------------


def _is_whole_map(data: Any) -> bool:
    """Whether an array is a memory map of a whole file, which another process can map too."""
    return (
        isinstance(data, np.memmap)
        and isinstance(data.base, mmap.mmap)
        and data.filename is not None
        and data.flags.c_contiguous
    )


def _check_mask(mask: Any, Y: Any) -> None:
    if type(mask).__module__.partition(".")[0] != type(Y).__module__.partition(".")[0]:
        raise TypeError(
            f"mask is a {type(mask).__name__}, but Y is a {type(Y).__name__}, which is read in chunks. Give a mask of "
            "that kind."
        )
    refuse_no_booleans(mask.dtype)
    if tuple(mask.shape) != tuple(Y.shape):
        raise ValueError(f"mask has shape {mask.shape}, but Y has shape {Y.shape}: they must agree.")


def _rows_per_chunk(shape: tuple[int, ...], stored_rows: int, n_entries: int | None) -> int:
    """Number of rows of a chunk: whole stored chunks, and whole blocks if both are possible."""
    row_size = math.prod(shape[1:])
    if n_entries is None:
        n_entries = min(CHUNK_ENTRIES, max(4 * BLOCK_ENTRIES, math.prod(shape) // LEAST_CHUNKS))
    wanted = max(1, n_entries // row_size)
    unit = math.lcm(stored_rows, max(1, BLOCK_ENTRIES // row_size))
    unit = unit if unit <= wanted else stored_rows
    return max(1, wanted // unit) * unit


def _row_chunks(runs: list[slice], name: str, source: Callable[[slice], Source]) -> tuple[Chunk, ...]:
    data = uuid4().hex
    return tuple(
        Chunk(f"The chunk of rows {rows.start}:{rows.stop} of {name}", source(rows), (data, number), rows)
        for number, rows in enumerate(runs)
    )


def _stored_chunks(Y: Any, mask: Any, n_entries: int | None) -> tuple[Chunk, ...]:
    arrays: list[Any] = []
    stored_rows = 1
    for array in (Y, mask):
        if isinstance(array, np.memmap):
            arrays.append(MappedFile(str(array.filename), array.dtype, array.shape, array.offset))
        else:
            arrays.append(array)
            if array is not None:
                stored_rows = math.lcm(stored_rows, (array.shards or array.chunks)[0])
                warn_of_damage(array)
    name = arrays[0].path if isinstance(arrays[0], MappedFile) else str(Y.store_path)
    n_rows = _rows_per_chunk(Y.shape, min(stored_rows, Y.shape[0]), n_entries)
    runs = [slice(start, min(start + n_rows, Y.shape[0])) for start in range(0, Y.shape[0], n_rows)]
    return _row_chunks(runs, name, lambda rows: StoredRows(arrays[0], arrays[1], rows))


def _dask_chunks(Y: Any, mask: Any, n_entries: int | None) -> tuple[Chunk, ...]:
    """A chunk for each block of a Dask array along the first mode, joined along the others."""
    if any(math.isnan(length) for lengths in Y.chunks for length in lengths):
        raise ValueError("Y has chunks of unknown size: call Y.compute_chunk_sizes() first.")
    if n_entries is not None:
        Y = Y.rechunk({0: _rows_per_chunk(Y.shape, 1, n_entries)})
    if any(n_blocks > 1 for n_blocks in Y.numblocks[1:]):
        warnings.warn(
            f"Y is split along {count_of(sum(n > 1 for n in Y.numblocks[1:]), 'mode', 'modes')} other than the first: "
            "it is rechunked into whole rows, which moves data at every pass. Store it with chunks of whole rows.",
            UserWarning,
            stacklevel=2,
        )
        row_size, n_blocks = math.prod(Y.shape[1:]), math.prod(Y.numblocks[1:])
        rows = max(1, max(Y.chunks[0]) // n_blocks, 4 * BLOCK_ENTRIES // row_size)
        Y = Y.rechunk({mode: rows if mode == 0 else -1 for mode in range(Y.ndim)})
    arrays = [Y] if mask is None else [Y, mask.rechunk(Y.chunks)]
    blocks = zip(*(array.to_delayed().ravel() for array in arrays), strict=True)
    ends = list(accumulate(Y.chunks[0], initial=0))
    sources = dict(zip(pairwise(ends), (DaskRows(tuple(parts)) for parts in blocks), strict=True))
    return _row_chunks([slice(*run) for run in sources], "the Dask array", lambda r: sources[r.start, r.stop])


# ---- the first pass ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowSurvey:
    """Results of the first pass over some chunks.

    Attributes
    ----------
    n_observed : of every chunk
    largest : max |y|
    seen : per mode, whether anything is observed at each position
    n_infinite, infinite : number of infinite entries, and index and value of the first
    n_clashes, clash : number of NaN entries that the mask marks as observed, and index of the first
    """

    n_observed: tuple[int, ...]
    largest: float
    seen: tuple[NDArray[np.bool_], ...]
    n_infinite: int = 0
    infinite: tuple[tuple[int, ...], float] | None = None
    n_clashes: int = 0
    clash: tuple[int, ...] | None = None

    def check(self, masked: bool) -> None:
        """Raise if the data contain invalid entries."""
        if masked and self.clash is not None:
            raise ValueError(
                f"mask says that Y{place_of(self.clash)} is observed, but it is NaN "
                f"({count_of(self.n_clashes, 'such entry', 'such entries')} in all). "
                "Set the mask to False there, or give the values."
            )
        if self.infinite is not None:
            raise ValueError(
                f"Y{place_of(self.infinite[0])} is {self.infinite[1]} "
                f"({count_of(self.n_infinite, 'infinite entry', 'infinite entries')} in all). "
                "Remove them or mark them missing: pass mask=, or set them to NaN."
            )


def _survey(shape: tuple[int, ...], dtype: np.dtype[Any], chunk: Chunk, read: ReadChunk) -> RowSurvey:
    """The first pass over a chunk of rows."""
    piece = read()
    values = cast_values(piece.values, dtype)
    expected = (chunk.rows.stop - chunk.rows.start, *shape[1:])
    if values.shape != expected:
        raise ValueError(f"{chunk.name} has shape {values.shape} instead of {expected}.")
    if piece.mask is None and np.isfinite(values.sum(dtype=np.float64)):  # the usual case: all entries are finite
        rows = np.zeros(shape[0], np.bool_)
        rows[chunk.rows] = True
        everywhere = (rows, *(np.ones(length, np.bool_) for length in shape[1:]))
        return RowSurvey((values.size,), max(float(values.max()), -float(values.min())), everywhere)
    observed = observed_of(piece.mask, values)
    infinite = np.isinf(values) & observed
    clashes = np.zeros((), np.bool_) if piece.mask is None else piece.mask & np.isnan(values)

    def first(where: NDArray[np.bool_]) -> tuple[int, ...] | None:
        if not where.any():
            return None
        row, *others = (int(k) for k in np.unravel_index(where.argmax(), where.shape))
        return (row + chunk.rows.start, *others)

    index = first(infinite)
    modes = range(values.ndim)
    own = [np.asarray(observed.any(axis=tuple(k for k in modes if k != mode))) for mode in modes]
    seen = np.zeros(shape[0], np.bool_)
    seen[chunk.rows] = own[0]
    return RowSurvey(
        (int(np.count_nonzero(observed)),),
        float(np.max(np.abs(values), initial=0.0, where=observed)),
        (seen, *own[1:]),
        int(np.count_nonzero(infinite)),
        None if index is None else (index, float(values[(index[0] - chunk.rows.start, *index[1:])])),
        int(np.count_nonzero(clashes)),
        first(clashes),
    )


def _both(one: RowSurvey, other: RowSurvey) -> RowSurvey:
    return RowSurvey(
        one.n_observed + other.n_observed,
        max(one.largest, other.largest),
        tuple(first | second for first, second in zip(one.seen, other.seen, strict=True)),
        one.n_infinite + other.n_infinite,
        one.infinite or other.infinite,
        one.n_clashes + other.n_clashes,
        one.clash or other.clash,
    )


def scale_of_chunks(observations: ChunkedObservations) -> float:
    """`robust_scale` of all values, bit-identical, with one pass over the chunks per sixteen bits."""

    def count(prefixes: list[int], shift: int) -> NDArray[np.int64]:
        def add(sums: Sums, block: Block) -> None:
            count_next_bits(sums[0], block.values, prefixes, shift)

        (counts,), _ = visit(observations, lambda: (np.zeros((len(prefixes), 2**16), np.int64),), add)
        return np.asarray(counts, np.int64)

    return scale_by_counts(observations.values.dtype, observations.n_observed, observations.largest, count)
