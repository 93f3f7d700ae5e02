"""Data too large for memory: described by shape and counts, and read chunk by chunk where they are needed.

A chunk is a run of rows of the first mode, or a file of coordinates. It describes where its entries are stored and can
be sent to another process, which reads the entries and divides them into the usual blocks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from brtf.data.blocks import Block, Layout
from brtf.data.checks import Labels, cast_values
from brtf.data.chunk_cache import HELD, compact
from brtf.data.observations import Observations
from brtf.data.plan import Plan
from brtf.data.readers.stores import read_stored

NOT_HERE = (
    "This needs all entries in memory, but the data are read in chunks. Ask for some entries with "
    "predict(coords=…), or write the results chunk by chunk with write(STORE.zarr)."
)
LEFT_BEHIND = (
    "This file does not contain the data of the fit. Ask for some entries with predict(coords=…), fit again, or resume "
    "from a checkpoint with fit(Y, resume=…)."
)
LANE_BYTES = 2**26
"""Bytes of a lane, if that makes more lanes than the plan asks for."""
LANE_COORDINATES, LANE_PER_ROW = 2**20, 4
"""Entries of a lane of coordinates, which take longer, and the minimum per row of all modes, whose sums are sent."""


class ChunkError(ValueError):
    """A chunk that cannot be read or processed; the message names it."""


@dataclass(frozen=True)
class Elsewhere:
    """Placeholder for the array of data in memory: only its type and size are known."""

    dtype: np.dtype[Any]
    size: int
    why: str = NOT_HERE

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise ValueError(self.why)

    def __getitem__(self, index: Any) -> NoReturn:
        raise ValueError(self.why)

    def __ge__(self, other: Any) -> NoReturn:
        raise ValueError(self.why)

    __gt__ = __ge__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # special attributes that Python looks up
            raise AttributeError(name)
        raise ValueError(self.why)


@dataclass(frozen=True, eq=False)
class Piece:
    """The entries of a chunk as they are stored.

    Attributes
    ----------
    values : (b, I_1, …, I_{N−1}), or (m,) with coordinates
    mask : of the same shape, True = observed; None if only NaN is missing
    coords : (N, m); None if the values are dense
    """

    values: NDArray[Any]
    mask: NDArray[np.bool_] | None = None
    coords: NDArray[np.intp] | None = None


ReadChunk = Callable[[], Piece]
"""Reads the entries of a chunk."""


class Source(Protocol):
    """Where the entries of a chunk are stored.

    ``inputs`` are parts of a Dask graph that are computed first and passed to ``read``.
    """

    @property
    def inputs(self) -> tuple[Any, ...]: ...

    def read(self, *given: Any) -> Piece: ...


@dataclass(frozen=True, eq=False)
class Chunk:
    """One chunk: its position in the data, and where its entries are stored.

    Attributes
    ----------
    name : for messages to the user
    source : where it is read
    key : the data set it belongs to, and its number in it
    rows : the rows of the first mode that it covers; all of them for coordinates
    entries : its range of the entry vector; empty before the first pass
    """

    name: str
    source: Source
    key: tuple[str, int]
    rows: slice
    entries: slice = field(default_factory=lambda: slice(0, 0))

    def read(self, *given: Any) -> Piece:
        """Read the entries; errors name this chunk."""
        try:
            return self.source.read(*given)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise ChunkError(f"{self.name} cannot be read: {reason}.") from error


@dataclass(frozen=True, eq=False, repr=False)
class ChunkedObservations(Observations):
    """Observations whose entries are stored elsewhere, in chunks.

    The arrays of :class:`Observations` are :class:`Elsewhere`. Pickling leaves out chunks and labels, which workers do
    not need.

    Attributes
    ----------
    chunks : in the order of the entry vector
    largest_size : max |y|
    seen : per mode, whether anything is observed at each position; None if everywhere
    """

    chunks: tuple[Chunk, ...] = ()
    largest_size: float = 0.0
    seen: tuple[NDArray[np.bool_], ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = {own.name: getattr(self, own.name) for own in fields(self)}
        return kept | {"chunks": (), "labels": None, "seen": None, "container": None}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)

    @property
    def in_chunks(self) -> bool:
        return True

    @property
    def largest(self) -> float:
        return self.largest_size

    @property
    def bytes_at_once(self) -> int:
        """Bytes of the values of a lane."""
        return self.values.nbytes // max(len(self.lanes), 1)

    @property
    def lanes(self) -> tuple[tuple[Chunk, ...], ...]:
        """Groups of consecutive chunks whose sums are returned together; they depend on the data alone."""
        n_lanes = dense_lanes(self.values.nbytes, self.plan.fewest_lanes)
        if self.layout == "coordinates":
            n_lanes = max(self.plan.fewest_lanes, self.n_observed // LANE_COORDINATES)
            n_lanes = max(1, min(n_lanes, self.n_observed // (LANE_PER_ROW * sum(self.shape))))
        return lanes_of(self.chunks, n_lanes)

    def positions_seen(self, mode: int) -> NDArray[np.intp]:
        return np.arange(self.shape[mode]) if self.seen is None else np.flatnonzero(self.seen[mode])

    def blocks(self, n_entries: int = 0) -> Iterator[Block]:
        raise ValueError(_why_not_here(self.chunks))

    def entry_coords(self) -> NDArray[np.intp]:
        raise ValueError(_why_not_here(self.chunks))

    def in_one_block(self) -> Observations:
        raise ValueError(
            "Outliers shared along the first mode, or between coordinates, need data in memory, but Y is read in "
            "chunks. Leave the first mode out of outlier_modes, or put another mode first."
        )

    def select(self, chosen: NDArray[np.bool_]) -> Observations:
        raise ValueError(_why_not_here(self.chunks))

    def cut(self, chunk: Chunk, read: ReadChunk) -> Iterator[Block]:
        """The blocks of a chunk, at their positions in the whole tensor."""
        part = HELD.get(chunk.key)
        if part is None:
            part = compact(as_observations(read(), self.values.dtype, self.layout, self.shape, self.plan))
            self._check(chunk, part)
            HELD.put(chunk.key, part)
        for block in part.block_list:
            rows, coords = block.rows, block.coords
            if coords is None:
                rows = slice(rows.start + chunk.rows.start, rows.stop + chunk.rows.start)
            else:
                coords = coords.astype(np.intp)
            entries = slice(block.entries.start + chunk.entries.start, block.entries.stop + chunk.entries.start)
            yield replace(block, entries=entries, rows=rows, coords=coords, shape=self.shape)

    @staticmethod
    def _check(chunk: Chunk, part: Observations) -> None:
        expected = chunk.entries.stop - chunk.entries.start
        if part.n_observed != expected:
            raise ChunkError(
                f"{chunk.name} has {part.n_observed} observed entries, but had {expected} when the fit began: "
                "it was changed or is damaged. Restore it, or start again."
            )


def dense_lanes(n_bytes: int, fewest: int) -> int:
    """Number of lanes of dense data: enough for many workers, few enough that their sums are small in comparison."""
    return max(fewest, n_bytes // LANE_BYTES)


def lanes_of(chunks: tuple[Chunk, ...], n_lanes: int) -> tuple[tuple[Chunk, ...], ...]:
    """Divide the chunks into at most ``n_lanes`` lanes, in order.

    Blocks of a Dask array are computed before their task, so each is a separate lane.
    """
    if n_lanes >= len(chunks) or chunks[0].source.inputs:
        return tuple((chunk,) for chunk in chunks)
    return tuple(chunks[k * len(chunks) // n_lanes : (k + 1) * len(chunks) // n_lanes] for k in range(n_lanes))


def outline(
    shape: tuple[int, ...],
    scale: float,
    labels: Labels | None,
    *,
    layout: Layout,
    dtype: Any,
    n_observed: int,
    largest: float,
    chunks: tuple[Chunk, ...] = (),
    seen: tuple[NDArray[np.bool_], ...] | None = None,
) -> ChunkedObservations:
    """Observations in chunks, or an outline of them without the chunks."""
    why = _why_not_here(chunks)
    masks = {"masked": Elsewhere(np.dtype(np.bool_), math.prod(shape), why)}
    columns = {"coordinates": Elsewhere(np.dtype(np.intp), len(shape) * n_observed, why)}
    values: Any = Elsewhere(np.dtype(dtype), n_observed, why)
    mask: Any = masks.get(layout)
    coords: Any = columns.get(layout)
    return ChunkedObservations(shape, values, mask, coords, scale, labels, chunks, float(largest), seen)


def _why_not_here(chunks: tuple[Chunk, ...]) -> str:
    return NOT_HERE if chunks else LEFT_BEHIND


def as_observations(
    piece: Piece, dtype: np.dtype[Any], layout: Layout, shape: tuple[int, ...], plan: Plan
) -> Observations:
    """The entries of a chunk as observations in the layout of the whole tensor."""
    if piece.coords is not None:
        coords, entries = in_order(piece.coords, piece.values)
        return Observations(shape, cast_values(entries, dtype), None, coords, 1.0, plan=plan)
    values = cast_values(piece.values, dtype)
    lengths = (len(values), *shape[1:])
    if layout == "complete" and piece.mask is None and np.isfinite(values.sum()):  # NaN would show in the sum
        return Observations(lengths, values, None, None, 1.0, plan=plan)
    observed = observed_of(piece.mask, values)
    if layout == "complete" and observed.all():
        return Observations(lengths, values, None, None, 1.0, plan=plan)
    return Observations(lengths, values[observed], observed, None, 1.0, plan=plan)


def in_order(coords: NDArray[np.intp], values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Coordinates (N, m) and their values in C order without duplicates; unchanged if they are already."""
    ahead = np.zeros(max(coords.shape[1] - 1, 0), np.bool_)
    for positions in coords[::-1]:
        ahead = (positions[1:] > positions[:-1]) | ((positions[1:] == positions[:-1]) & ahead)
    if ahead.all():
        return coords, values
    order = np.lexsort(coords[::-1])
    return np.ascontiguousarray(coords[:, order]), values[order]


def observed_of(mask: NDArray[np.bool_] | None, values: NDArray[Any]) -> NDArray[np.bool_]:
    """True where the entries of a chunk are observed: True in its mask and not NaN."""
    present: NDArray[np.bool_] = ~np.isnan(values)
    return present if mask is None else present & mask


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a stored array, a Zarr array or a :class:`MappedFile`, and optionally of its mask."""

    array: Any
    mask: Any
    rows: slice

    @property
    def inputs(self) -> tuple[Any, ...]:
        return ()

    def read(self, *given: Any) -> Piece:
        mask = None if self.mask is None else read_rows(self.mask, self.rows).astype(np.bool_, copy=False)
        return Piece(read_rows(self.array, self.rows), mask)


@dataclass(frozen=True, eq=False)
class DaskRows:
    """A block of a Dask array, and optionally of its mask, computed by Dask where the task runs."""

    inputs: tuple[Any, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"inputs": ()}  # they are sent as dependencies of the task

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)

    def read(self, *given: Any) -> Piece:
        return Piece(np.asarray(given[0]), np.asarray(given[1]) if len(given) > 1 else None)


@dataclass(frozen=True)
class MappedFile:
    """A file of numbers in C order, memory-mapped wherever rows of it are read."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        needed = self.offset + math.prod(self.shape) * self.dtype.itemsize
        if os.path.getsize(self.path) < needed:
            raise ValueError(f"the file has been cut short, to {os.path.getsize(self.path)} bytes of {needed}")
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)[rows]


def read_rows(array: Any, rows: slice) -> NDArray[Any]:
    """Read rows of a stored array; for Zarr, raise if a stored chunk is missing."""
    return array[rows] if isinstance(array, MappedFile) else read_stored(array, rows)
