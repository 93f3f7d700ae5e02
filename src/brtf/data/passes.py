"""Passes over the data: sums over blocks of entries, by as many threads as asked for, always in the same order.

Nothing else loops over the data. Blocks are dealt to a fixed number of lanes; each lane adds up its blocks one after
another, and the lanes are added in order. Threads only decide who works on which lane, so they never change a digit.
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
from brtf.data.chunks import Chunk, ChunkedObservations, Reading
from brtf.data.executors import over_lanes, parts_over_lanes
from brtf.data.observations import Block, Observations

Field = Callable[[Block], Array]
"""An entry vector that exists block by block: the values (m,) at the entries of a block."""
Value = TypeVar("Value")
Sums = tuple[Array, ...]
"""Arrays that add up over blocks."""

LANES = 8
"""Sums kept side by side: more than this many threads have nothing to do."""
SMALL_DATA = 2**18
"""Entries up to which what was computed of each block is remembered; beyond, computing again beats storing."""

RUN_BYTES = 2**26
"""Bytes of sums of a mode's rows that are added up and finished together; a longer mode has several such runs."""
FEWEST_APART = 2**16
"""Numbers from which a sum is looked through for rows that are zero."""

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("brtf_pool", default=None)


@contextmanager
def workers(n_jobs: int | None) -> Iterator[None]:
    """Let the passes within use that many threads (None: one; −1: as many as the machine has cores).

    BLAS is held to one thread meanwhile: its own would fight with these, and on blocks of this size they cost more in
    waiting than they give.
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
    """The number of threads that ``n_jobs`` stands for."""
    n_cores = os.cpu_count() or 1
    n_threads = 1 if n_jobs is None else n_jobs if n_jobs > 0 else n_cores + 1 + n_jobs
    return max(1, min(n_threads, LANES))


def add_up(observations: Observations, zeros: Callable[[], Sums], add: Callable[[Sums, Block], None]) -> Sums:
    """Σ over all blocks: ``add`` adds the share of a block to sums that started as ``zeros``."""
    return visit(observations, zeros, add)[0]


def visit(
    observations: Observations, zeros: Callable[[], Sums], look: Callable[[Sums, Block], Value]
) -> tuple[Sums, list[Value]]:
    """The same, with what ``look`` says of every block, in their order.

    Data in chunks have lanes of their own, and whoever works on them (:mod:`~brtf.data.executors`) gets both functions.
    """
    if isinstance(observations, ChunkedObservations):

        def of_chunks(lane: Iterable[tuple[Chunk, Reading]]) -> tuple[tuple[Array | SomeRows, ...], list[Value]]:
            sums = zeros()
            looks = [look(sums, block) for chunk, read in lane for block in observations.cut(chunk, read)]
            return tuple(SomeRows.of(array) for array in sums), looks

        sums, looks = over_lanes(observations.lanes, of_chunks, _sum, _pool.get())
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
    """Sums over all blocks of arrays (I_n, …) of a mode's rows, in runs of these: each run, and what its sums become.

    So statistics are partitioned along a long mode: of data in chunks the sums of each run are added up by themselves,
    ``finish`` is called where they are, and only what it returns comes here, run after run.
    """
    runs = runs_of(shapes)

    def zeros() -> Sums:
        return tuple(np.zeros(shape) for shape in shapes)

    if not isinstance(observations, ChunkedObservations):
        sums = add_up(observations, zeros, add)
        yield from ((run, finish(tuple(array[run] for array in sums))) for run in runs)
        return

    def of_chunks(lane: Iterable[tuple[Chunk, Reading]]) -> tuple[tuple[Array | SomeRows, ...], ...]:
        sums = zeros()
        for chunk, read in lane:
            for block in observations.cut(chunk, read):
                add(sums, block)
        return tuple(tuple(SomeRows.of(array[run]) for array in sums) for run in runs)

    found = parts_over_lanes(
        observations.lanes, of_chunks, len(runs), _sum_arrays, partial(_finish, finish), _pool.get()
    )
    yield from zip(runs, found, strict=True)


def runs_of(shapes: list[tuple[int, ...]]) -> list[slice]:
    """The rows of arrays (I_n, …) in runs of at most ``RUN_BYTES``."""
    n_rows = shapes[0][0]
    per_row = 8 * sum(math.prod(shape[1:]) for shape in shapes)
    n_runs = max(1, min(n_rows, -(-n_rows * per_row // RUN_BYTES)))
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
    """The same, with nothing changed: a worker may have to add again."""
    return _sum_arrays(first[0], second[0]), first[1] + second[1]


def _sum_arrays(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(array + other for array, other in zip(first, second, strict=True))


@dataclass(frozen=True, eq=False)
class SomeRows:
    """An array (I, …) that is zero but for some rows: what a lane says of a mode that is longer than it reaches.

    So statistics of a long mode stay apart as far as the data are, and only what there is of them travels.

    Attributes
    ----------
    positions : (k,) rows that are not zero, in order
    values : (k, …) these rows
    n_rows : I
    """

    positions: NDArray[np.intp]
    values: Array
    n_rows: int
    __array_ufunc__ = None  # an array that is to be added asks here

    @classmethod
    def of(cls, array: Array) -> Array | SomeRows:
        """The array, in this form where that is less than half of it."""
        if array.ndim < 2 or array.size < FEWEST_APART:
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
    """An entry vector (M,) that exists as a whole."""
    return lambda block: vector[block.entries]


class Remembered(Generic[Value]):
    """A function of blocks that is computed once for each; for small data only."""

    def __init__(self, observations: Observations, of_block: Callable[[Block], Value]) -> None:
        self._of_block = of_block
        small = observations.n_observed <= SMALL_DATA and not observations.in_chunks
        self._memory: dict[tuple[int, int], Value] | None = {} if small else None

    def __call__(self, block: Block) -> Value:
        if self._memory is None:
            return self._of_block(block)
        key = _key(block)
        if key not in self._memory:
            self._memory[key] = self._of_block(block)
        return self._memory[key]

    def keep(self, block: Block, value: Value) -> None:
        """What is known already of a block."""
        if self._memory is not None:
            self._memory[_key(block)] = value


def _key(block: Block) -> tuple[int, int]:
    return block.entries.start, block.entries.stop  # a block without entries starts where the next one does


def whole(observations: Observations, field: Field) -> Array:
    """The field at all entries, (M,)."""
    return np.concatenate([field(block) for block in observations.block_list])
