"""Passes over the data: sums over blocks of entries, by any number of threads, always in the same order.

Nothing else loops over the data. Blocks are divided into a fixed number of lanes; each lane adds up its blocks in
order, and the lanes are added in order. The number of threads therefore never changes a digit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.blas import blas_on_one_thread
from brtf.data.blocks import Block
from brtf.data.chunks import Chunk, ChunkedObservations, ReadChunk
from brtf.data.executors import over_lanes, parts_over_lanes
from brtf.data.observations import Observations
from brtf.data.plan import Plan

Field = Callable[[Block], Array]
"""An entry vector that exists block by block: the values (m,) at the entries of a block."""
Value = TypeVar("Value")
Sums = tuple[Array, ...]
"""Arrays that are summed over blocks."""

LANES = 8
"""Number of lanes, and so the largest useful number of threads."""

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("brtf_pool", default=None)


@contextmanager
def workers(n_jobs: int | None) -> Iterator[None]:
    """A context in which passes use that many threads (None: one; −1: all cores).

    BLAS is limited to one thread meanwhile: its own threads would compete with these, and do not pay off on blocks of
    this size.
    """
    n_threads = count_workers(n_jobs)
    with blas_on_one_thread():
        if n_threads == 1:
            yield
            return
        with ThreadPoolExecutor(n_threads) as pool:
            token = _pool.set(pool)
            try:
                yield
            finally:
                _pool.reset(token)


def count_workers(n_jobs: int | None) -> int:
    """The number of threads for this ``n_jobs``."""
    n_cores = os.cpu_count() or 1
    n_threads = 1 if n_jobs is None else n_jobs if n_jobs > 0 else n_cores + 1 + n_jobs
    return max(1, min(n_threads, LANES))


def add_up(observations: Observations, zeros: Callable[[], Sums], add: Callable[[Sums, Block], None]) -> Sums:
    """Sum over all blocks: ``add`` adds the contribution of a block to sums that start as ``zeros``."""
    return visit(observations, zeros, add)[0]


def visit(
    observations: Observations, zeros: Callable[[], Sums], look: Callable[[Sums, Block], Value]
) -> tuple[Sums, list[Value]]:
    """Visit all blocks: the sums to which ``look`` adds, and the values that it returns, in the order of the blocks.

    Data in chunks define their own lanes, and :mod:`~brtf.data.executors` decides where both functions run.
    """
    if isinstance(observations, ChunkedObservations):

        def of_chunks(lane: Iterable[tuple[Chunk, ReadChunk]]) -> tuple[tuple[Array | SomeRows, ...], list[Value]]:
            sums = zeros()
            looks = [look(sums, block) for chunk, read in lane for block in observations.cut(chunk, read)]
            return tuple(SomeRows.of(array, observations.plan.sparse_sums) for array in sums), looks

        sums, looks = over_lanes(observations.lanes, of_chunks, _sum, _pool.get(), observations.plan)
        return _dense(sums), looks
    blocks = observations.block_list
    lanes = [blocks[k * len(blocks) // LANES : (k + 1) * len(blocks) // LANES] for k in range(LANES)]

    def of_lane(lane: tuple[Block, ...]) -> tuple[Sums, list[Value]]:
        sums = zeros()
        return sums, [look(sums, block) for block in lane]

    pool = _pool.get()
    used = [lane for lane in lanes if lane]
    parts = iter(map(of_lane, used) if pool is None or len(used) == 1 else pool.map(of_lane, used))
    total = next(parts)
    for part in parts:
        total = _added(total, part)
        del part  # before the next lane begins
    return total


def in_runs(
    observations: Observations,
    shapes: list[tuple[int, ...]],
    add: Callable[[Sums, Block], None],
    finish: Callable[[Sums], Value],
) -> Iterator[tuple[slice, Value]]:
    """Sums over all blocks of arrays (I_n, …) over the rows of a mode, yielded run by run as ``finish`` returns them.

    This partitions the statistics of a long mode: for data in chunks the sums of each run are added separately,
    ``finish`` is called on the worker that has them, and only its value is returned.
    """
    plan = observations.plan

    def zeros() -> Sums:
        return tuple(np.zeros(shape) for shape in shapes)

    if not isinstance(observations, ChunkedObservations):
        yield from finished_in_runs(add_up(observations, zeros, add), finish, plan)
        return
    runs = runs_of(shapes, plan.run_bytes)

    def of_chunks(lane: Iterable[tuple[Chunk, ReadChunk]]) -> tuple[tuple[Array | SomeRows, ...], ...]:
        sums = zeros()
        for chunk, read in lane:
            for block in observations.cut(chunk, read):
                add(sums, block)
        return tuple(tuple(SomeRows.of(array[run], plan.sparse_sums) for array in sums) for run in runs)

    found = parts_over_lanes(
        observations.lanes, of_chunks, len(runs), _sum_arrays, partial(_finish, finish), _pool.get(), plan
    )
    yield from zip(runs, found, strict=True)


def finished_in_runs(sums: Sums, finish: Callable[[Sums], Value], plan: Plan) -> Iterator[tuple[slice, Value]]:
    """Sums over the rows of a mode that are in memory, finished run by run: what that needs is as small as a run."""
    for run in runs_of([array.shape for array in sums], plan.finished_bytes):
        yield run, finish(tuple(array[run] for array in sums))


def runs_of(shapes: list[tuple[int, ...]], run_bytes: int) -> list[slice]:
    """The rows of arrays (I_n, …) in runs of at most ``run_bytes``."""
    n_rows = shapes[0][0]
    per_row = 8 * sum(math.prod(shape[1:]) for shape in shapes)
    n_runs = max(1, min(n_rows, -(-n_rows * per_row // run_bytes)))
    return [slice(k * n_rows // n_runs, (k + 1) * n_rows // n_runs) for k in range(n_runs)]


def _finish(finish: Callable[[Sums], Value], sums: tuple[Array | SomeRows, ...]) -> Value:
    return finish(_dense(sums))


def _dense(sums: tuple[Array | SomeRows, ...]) -> Sums:
    return tuple(array.dense() if isinstance(array, SomeRows) else array for array in sums)


def _added(total: tuple[Sums, list[Value]], part: tuple[Sums, list[Value]]) -> tuple[Sums, list[Value]]:
    for array, other in zip(total[0], part[0], strict=True):
        array += other
    return total[0], total[1] + part[1]


def _sum(
    first: tuple[tuple[Any, ...], list[Value]], second: tuple[tuple[Any, ...], list[Value]]
) -> tuple[tuple[Any, ...], list[Value]]:
    """Sums and values of two lanes as new objects; the arguments are not changed, as a worker may have to add again."""
    return _sum_arrays(first[0], second[0]), first[1] + second[1]


def _sum_arrays(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(array + other for array, other in zip(first, second, strict=True))


@dataclass(frozen=True, eq=False)
class SomeRows:
    """An array (I, …) that is zero except for some rows: the sums of a lane that covers only part of a long mode.

    Only the rows that are not zero are stored and sent.

    Attributes
    ----------
    positions : (k,) rows that are not zero, in order
    values : (k, …) these rows
    n_rows : I
    """

    positions: NDArray[np.intp]
    values: Array
    n_rows: int
    __array_ufunc__ = None  # so that array + SomeRows calls __radd__

    @classmethod
    def of(cls, array: Array, least_size: int) -> Array | SomeRows:
        """The array, as SomeRows if that is less than half its size; arrays below ``least_size`` are left alone."""
        if array.ndim < 2 or array.size < least_size:
            return array
        positions = np.flatnonzero(array.reshape(len(array), -1).any(axis=1))
        return array if 2 * positions.size > len(array) else cls(positions, array[positions], len(array))

    def dense(self) -> Array:
        """The whole array."""
        array = np.zeros((self.n_rows, *self.values.shape[1:]), self.values.dtype)
        array[self.positions] = self.values
        return array

    def __add__(self, other: Array | SomeRows) -> Array | SomeRows:
        if not isinstance(other, SomeRows):
            total = other.copy()
            total[self.positions] += self.values
            return total
        positions = np.union1d(self.positions, other.positions)
        values = np.zeros((positions.size, *self.values.shape[1:]), self.values.dtype)
        for rows in (self, other):
            values[np.searchsorted(positions, rows.positions)] += rows.values
        both = SomeRows(positions, values, self.n_rows)
        return both.dense() if 2 * positions.size > self.n_rows else both

    __radd__ = __add__


def of_entries(vector: Array) -> Field:
    """A field from a whole entry vector (M,)."""
    return lambda block: vector[block.entries]


class Remembered(Generic[Value]):
    """A function of blocks whose values are cached, unless the data are large."""

    def __init__(self, observations: Observations, of_block: Callable[[Block], Value]) -> None:
        self._of_block = of_block
        cached = observations.n_observed <= observations.plan.cached_data and not observations.in_chunks
        self._memory: dict[tuple[int, int], Value] | None = {} if cached else None

    def __call__(self, block: Block) -> Value:
        if self._memory is None:
            return self._of_block(block)
        key = _key(block)
        if key not in self._memory:
            self._memory[key] = self._of_block(block)
        return self._memory[key]

    def keep(self, block: Block, value: Value) -> None:
        """Store the value of a block that is already known."""
        if self._memory is not None:
            self._memory[_key(block)] = value


def _key(block: Block) -> tuple[int, int]:
    return block.entries.start, block.entries.stop  # a block without entries starts at the same entry as the next one


def whole(observations: Observations, field: Field) -> Array:
    """The field at all entries, (M,)."""
    return np.concatenate([field(block) for block in observations.block_list])
