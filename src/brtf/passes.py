"""Passes over the data: sums over blocks of entries, by as many threads as asked for, always in the same order.

Nothing else loops over the data. Blocks are dealt to a fixed number of lanes; each lane adds up its blocks one after
another, and the lanes are added in order. Threads only decide who works on which lane, so they never change a digit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from brtf.distributions import Array
from brtf.observations import Block, Observations

Field = Callable[[Block], Array]
"""An entry vector that exists block by block: the values (m,) at the entries of a block."""
Value = TypeVar("Value")
Sums = tuple[Array, ...]
"""Arrays that add up over blocks."""

LANES = 8
"""Sums kept side by side: more than this many threads have nothing to do."""
SMALL_DATA = 2**18
"""Entries up to which what was computed of each block is remembered; beyond, computing again beats storing."""

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("brtf_pool", default=None)


@contextmanager
def workers(n_jobs: int | None) -> Iterator[None]:
    """Let the passes within use that many threads (None: one; −1: as many as the machine has cores).

    BLAS is held to one thread meanwhile: its own would fight with these, and on blocks of this size they cost more in
    waiting than they give.
    """
    n_threads = count_workers(n_jobs)
    with threadpool_limits(limits=1, user_api="blas"):
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
    blocks = observations.block_list
    lanes = [blocks[k * len(blocks) // LANES : (k + 1) * len(blocks) // LANES] for k in range(LANES)]

    def lane_sums(lane: tuple[Block, ...]) -> Sums:
        sums = zeros()
        for block in lane:
            add(sums, block)
        return sums

    pool = _pool.get()
    used = [lane for lane in lanes if lane]
    parts = map(lane_sums, used) if pool is None or len(used) == 1 else pool.map(lane_sums, used)
    return reduce(_added, parts)


def _added(total: Sums, part: Sums) -> Sums:
    for array, other in zip(total, part, strict=True):
        array += other
    return total


def of_entries(vector: Array) -> Field:
    """An entry vector (M,) that exists as a whole."""
    return lambda block: vector[block.entries]


def remembered(observations: Observations, of_block: Callable[[Block], Value]) -> Callable[[Block], Value]:
    """The same function of a block, computed once for each; for small data only."""
    if observations.n_observed > SMALL_DATA:
        return of_block
    memory: dict[int, Value] = {}

    def recall(block: Block) -> Value:
        start = block.entries.start
        if start not in memory:
            memory[start] = of_block(block)
        return memory[start]

    return recall


def whole(observations: Observations, field: Field) -> Array:
    """The field at all entries, (M,)."""
    return np.concatenate([field(block) for block in observations.block_list])
