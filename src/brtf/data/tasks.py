"""Tasks on lanes of chunks: how they are packed and sent, and how their values are added."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import SentOnce
from brtf.data.chunks import Chunk, ReadChunk
from brtf.data.extras import require

Value = TypeVar("Value")
Finished = TypeVar("Finished")
Lane = tuple[Chunk, ...]
"""Consecutive chunks whose sums are returned together."""
Task = Callable[[Iterable[tuple[Chunk, ReadChunk]]], Value]
"""A function of the chunks of a lane, with functions that read them."""
Adding = Callable[[Value, Value], Value]
ALIGNMENT = 64
"""Alignment of received arrays in bytes."""


def as_it_is(total: Value) -> Value:
    return total


def pack_task(task: Task[Value], separate_bytes: int) -> tuple[bytes, list[SentOnce]]:
    """A task as bytes, without posteriors of rows of ``separate_bytes`` or more, which are sent separately and once."""
    cloudpickle = require("cloudpickle", extra="big", purpose="data in chunks")
    pieces: list[SentOnce] = []

    class Packing(cloudpickle.Pickler):  # type: ignore[name-defined]
        def persistent_id(self, thing: Any) -> int | None:
            if not isinstance(thing, SentOnce) or thing.nbytes < separate_bytes:
                return None
            if not any(thing is rows for rows in pieces):
                pieces.append(thing)
            return next(number for number, rows in enumerate(pieces) if rows is thing)

    file = io.BytesIO()
    Packing(file).dump(task)
    return file.getvalue(), pieces


def unpack_task(packed: bytes, pieces: Sequence[SentOnce]) -> Task[Any]:
    """The task, with the large posteriors of rows put back in place."""

    class Unpacking(pickle.Unpickler):
        def persistent_load(self, number: int) -> SentOnce:
            return pieces[number]

    task: Task[Any] = Unpacking(io.BytesIO(packed)).load()
    return task


def in_tree(values: Iterable[Value], add: Adding[Value]) -> Value:
    """Pairwise sum of values in order; at most log₂ of their number are in memory at a time."""
    held: list[tuple[int, Value]] = []
    for value in values:
        size = 1
        while held and held[-1][0] == size:
            value, size = add(held.pop()[1], value), 2 * size
        held.append((size, value))
    _, total = held.pop()
    while held:
        total = add(held.pop()[1], total)
    return total


class Parcel(Generic[Value]):
    """A value being sent, whose arrays are aligned when it is received.

    Dask leaves them at arbitrary addresses in its receive buffer, and NumPy's matrix products of unaligned arrays
    differ in the last digits.
    """

    def __init__(self, value: Value) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(self.value, protocol=5, buffer_callback=buffers.append)
        return _received, (packed, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])

    def __sizeof__(self) -> int:
        return int(require("dask.sizeof", extra="big", purpose="executor=").sizeof(self.value))


def _received(packed: bytes, given: list[NDArray[np.uint8]]) -> Parcel[Any]:
    return Parcel(pickle.loads(packed, buffers=map(_aligned, given)))


def _aligned(given: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of some bytes at an aligned address."""
    room = np.empty(given.size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + given.size]
    copy[...] = given
    return copy


class Message:
    """A task being sent as bytes, unpacked once by every worker that has lanes."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self._task: Task[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"packed": self.packed, "_task": None}

    def __sizeof__(self) -> int:
        return len(self.packed)

    def task(self, pieces: Sequence[SentOnce]) -> Task[Any]:
        """The function of a lane."""
        if self._task is None:
            self._task = unpack_task(self.packed, pieces)
        return self._task
