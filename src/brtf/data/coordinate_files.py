"""Directories of coordinate files, each of which is a chunk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.blocks import Block
from brtf.data.checks import Labels, cast_values, check_shape, count_of, nothing_observed, place_of
from brtf.data.chunked_input import scale_of_chunks
from brtf.data.chunks import Chunk, ChunkedObservations, Piece, ReadChunk, in_order, outline
from brtf.data.executors import over_lanes
from brtf.data.extras import require
from brtf.data.passes import Sums, add_up, visit
from brtf.data.readers.tables import exact_numbers, parquet_header
from brtf.data.tasks import in_tree

SUFFIXES = (".parquet", ".csv", ".tsv")
COMPARED_AT_ONCE = 2**24
"""Number of coordinates compared at a time to find duplicates between files."""
MIXERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)
"""Odd multipliers that spread positions over all 64 bits of a hash."""


@dataclass(frozen=True)
class PartFile:
    """A table with a column of positions per mode and a column of values."""

    path: str
    index: tuple[str, ...]
    value: str

    @property
    def inputs(self) -> tuple[Any, ...]:
        return ()

    def read(self, *given: Any) -> Piece:
        columns = _columns(self.path, [*self.index, self.value])
        values = columns[-1]
        for name, column in zip(self.index, columns, strict=False):
            if column.dtype.kind not in "iu":
                raise TypeError(f"its column {name!r} must hold positions, integers from 0, got dtype {column.dtype}")
        if values.dtype.kind not in "biuf":
            raise TypeError(f"its column {self.value!r} must hold numbers, got dtype {values.dtype}")
        coords = np.stack(columns[:-1]).astype(np.intp, copy=False)
        present = ~np.isnan(values)
        return Piece(values, None, coords) if present.all() else Piece(values[present], None, coords[:, present])


def _columns(path: str, names: list[str]) -> list[NDArray[Any]]:
    """Columns of a table as arrays."""
    if path.endswith(".parquet"):
        parquet = require("pyarrow.parquet", extra="label", purpose=".parquet files")
        table = parquet.read_table(path, columns=names, use_threads=False)
        return [table[name].to_numpy() for name in names]
    pandas = require("pandas", extra="label", purpose="tables")
    separator = "\t" if path.endswith(".tsv") else ","
    frame = pandas.read_csv(path, sep=separator, usecols=names, **exact_numbers(pandas))
    return [frame[name].to_numpy() for name in names]


def _header(path: str) -> list[str]:
    if path.endswith(".parquet"):
        parquet = require("pyarrow.parquet", extra="label", purpose=".parquet files")
        return parquet_header(parquet.read_schema(path))
    pandas = require("pandas", extra="label", purpose="tables")
    return [str(name) for name in pandas.read_csv(path, sep="\t" if path.endswith(".tsv") else ",", nrows=0).columns]


def observe_parts(
    directory: str | os.PathLike[str],
    index: Sequence[str] | None,
    value: str | None,
    shape: Sequence[int] | None,
    dtype: DTypeLike | None,
) -> ChunkedObservations:
    """Observations from all tables in a directory; see `Observations.from_parts`."""
    paths = sorted(str(path) for path in Path(directory).iterdir() if path.suffix in SUFFIXES)
    if not paths:
        raise ValueError(f"{os.fspath(directory)} holds no table: give a directory of {', '.join(SUFFIXES)} files.")
    header = _header(paths[0])
    if value is None:
        value = [name for name in header if name not in (index or ())][-1]
    indexed = tuple(name for name in header if name != value) if index is None else tuple(index)
    data = uuid4().hex
    chunks = tuple(
        Chunk(path, PartFile(path, indexed, value), (data, number), slice(0, 0)) for number, path in enumerate(paths)
    )
    order = len(indexed)
    found = over_lanes(
        tuple((chunk,) for chunk in chunks),
        lambda lane: in_tree((_survey(order, *chunk) for chunk in lane), _both),
        _both,
    )
    lengths = check_shape([last + 1 for last in found.highest] if shape is None else shape, "shape")
    found.check(lengths)
    wanted = cast_values(np.zeros(1, found.dtype), dtype).dtype
    ends = list(accumulate(found.n_observed, initial=0))
    if ends[-1] == 0:
        raise nothing_observed()
    observations = outline(
        lengths,
        1.0,
        Labels(indexed, (None,) * len(indexed), value),
        layout="coordinates",
        dtype=wanted,
        n_observed=ends[-1],
        largest=found.largest,
        chunks=tuple(
            replace(chunk, rows=slice(0, lengths[0]), entries=slice(*run))
            for chunk, run in zip(chunks, pairwise(ends), strict=True)
        ),
    )
    if found.overlapping:
        _check_duplicates(observations)
    return replace(observations, scale=scale_of_chunks(observations), seen=_seen(observations))


# ---- the first pass ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSurvey:
    """Results of the first pass over some files.

    Attributes
    ----------
    n_observed : of every file
    largest : max |y|
    lowest, highest : positions along every mode
    first, last : index tuples, in C order
    overlapping : whether the ranges between first and last of two files overlap: only then can files share an entry
    dtype : of the values
    wrong : an error message, if the data are invalid
    """

    n_observed: tuple[int, ...]
    largest: float
    lowest: tuple[int, ...]
    highest: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    overlapping: bool
    dtype: np.dtype[Any]
    wrong: str | None

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise if the data are invalid."""
        if self.wrong is not None:
            raise ValueError(self.wrong)
        for mode, (low, high) in enumerate(zip(self.lowest, self.highest, strict=True)):
            if low < 0 or high >= shape[mode]:
                raise ValueError(
                    f"positions along mode {mode} reach from {low} to {high}, outside shape {shape}. Positions count "
                    "from 0 to the length of the mode minus one."
                )


def _survey(order: int, chunk: Chunk, read: ReadChunk) -> FileSurvey:
    """The first pass over a file."""
    piece = read()
    values, coords = piece.values, piece.coords
    kind = np.dtype(np.float32 if values.dtype == np.float32 else np.float64)
    if coords is None or values.size == 0:
        nothing = (0,) * order
        return FileSurvey((0,), 0.0, (2**62,) * order, (-1,) * order, nothing, nothing, False, kind, None)
    sorted_coords, _ = in_order(coords, values)
    repeated = np.all(sorted_coords[:, 1:] == sorted_coords[:, :-1], axis=0)
    infinite, wrong = np.isinf(values), None
    if repeated.any():
        n_repeated = count_of(np.count_nonzero(repeated), "duplicate", "duplicates")
        wrong = (
            f"{chunk.name} has two entries at {place_of(sorted_coords[:, repeated.argmax()])} ({n_repeated} in all)."
        )
    elif infinite.any():
        n_infinite = count_of(np.count_nonzero(infinite), "infinite entry", "infinite entries")
        wrong = (
            f"{chunk.name}: the entry at {place_of(coords[:, infinite.argmax()])} is infinite ({n_infinite} in all)."
        )
    return FileSurvey(
        (values.size,),
        float(np.abs(values).max()),
        tuple(coords.min(axis=1).tolist()),
        tuple(coords.max(axis=1).tolist()),
        tuple(sorted_coords[:, 0].tolist()),
        tuple(sorted_coords[:, -1].tolist()),
        False,
        kind,
        wrong,
    )


def _both(one: FileSurvey, other: FileSurvey) -> FileSurvey:
    empty = [found for found in (one, other) if sum(found.n_observed) == 0]
    if empty:
        full = other if empty[0] is one else one
        return replace(full, n_observed=one.n_observed + other.n_observed)
    return FileSurvey(
        one.n_observed + other.n_observed,
        max(one.largest, other.largest),
        tuple(map(min, one.lowest, other.lowest)),
        tuple(map(max, one.highest, other.highest)),
        min(one.first, other.first),
        max(one.last, other.last),
        one.overlapping or other.overlapping or not (one.last < other.first or other.last < one.first),
        np.promote_types(one.dtype, other.dtype),
        one.wrong or other.wrong,
    )


def _check_duplicates(observations: ChunkedObservations) -> None:
    """Raise if two files contain the same entry; coordinates are compared in parts to limit memory."""
    n_classes = -(-observations.n_observed // COMPARED_AT_ONCE)
    mixers = np.resize(MIXERS, observations.order)[:, None]
    for which in range(n_classes):

        def chosen(_: Sums, block: Block, which: int = which) -> NDArray[np.intp]:
            coords = np.asarray(block.coords)
            mixed = (coords.astype(np.uint64) * mixers).sum(axis=0) >> np.uint64(32)
            return coords[:, mixed % np.uint64(n_classes) == np.uint64(which)]

        coords = np.concatenate(visit(observations, tuple, chosen)[1], axis=1)
        coords = coords[:, np.lexsort(coords[::-1])]
        repeated = np.all(coords[:, 1:] == coords[:, :-1], axis=0)
        if repeated.any():
            raise ValueError(
                f"Two files hold an entry at {place_of(coords[:, repeated.argmax()], observations.labels)}. "
                "Keep one of them, or average them."
            )


def _seen(observations: ChunkedObservations) -> tuple[NDArray[np.bool_], ...]:
    """Per mode, whether anything is observed at each position."""

    def add(sums: Sums, block: Block) -> None:
        for total, positions in zip(sums, np.asarray(block.coords), strict=True):
            total[positions] = 1.0

    counts = add_up(observations, lambda: tuple(np.zeros(length) for length in observations.shape), add)
    return tuple(count > 0 for count in counts)
