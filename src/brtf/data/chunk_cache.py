"""Cache of chunks between passes: in memory while they fit; coordinates that do not fit go into a file.

Coordinates are cached after checking and sorting, with positions in the smallest sufficient integer type, so that a
table is decoded once and not at every pass.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from threading import RLock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.memory import process_bytes, scratch_directory
from brtf.data.observations import Observations
from brtf.data.plan import Plan

ALIGNMENT = 64
"""Alignment of values in the file, in bytes."""
Key = tuple[str, int]
"""The data set a chunk belongs to, and its number in it."""


@dataclass(frozen=True)
class Place:
    """Location of a chunk of coordinates in a file: its values (m,), followed by its positions (N, m)."""

    file: IO[bytes]
    start: int
    dtype: np.dtype[Any]
    kind: np.dtype[Any]
    shape: tuple[int, ...]
    n_observed: int
    plan: Plan

    def read(self) -> Observations:
        """The chunk, mapped into memory."""
        n_bytes = self.n_observed * self.dtype.itemsize
        n_all = n_bytes + len(self.shape) * self.n_observed * self.kind.itemsize
        mapped = np.asarray(np.memmap(self.file, np.uint8, "r", self.start, (n_all,)))
        coords: Any = mapped[n_bytes:].view(self.kind).reshape(len(self.shape), -1)
        return Observations(self.shape, mapped[:n_bytes].view(self.dtype), None, coords, 1.0, plan=self.plan)


class Held:
    """The cached chunks of a process.

    Every pass visits all chunks in order, so the first ones that fit stay in memory; chunks of earlier data are
    evicted. The file has no name: no other process can change it, and it disappears with the process, however that
    ends.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._parts: dict[Key, Observations | Place] = {}
        self._n_bytes = 0
        self._file: IO[bytes] | None = None

    def release(self) -> None:
        """Empty the cache; chunks in use stay alive until they are no longer needed."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._parts, self._n_bytes, self._file = {}, 0, None

    def get(self, key: Key) -> Observations | None:
        """The entries of a chunk, if they are cached."""
        with self._lock:
            part = self._parts.get(key)
            return part.read() if isinstance(part, Place) else part

    def put(self, key: Key, part: Observations) -> None:
        """Cache the entries of a chunk if there is room for them."""
        with self._lock:
            if any(other[0] != key[0] for other in self._parts):
                self.release()
            n_bytes = sum(array.nbytes for array in (part.values, part.mask, part.coords) if array is not None)
            if self._n_bytes + n_bytes <= part.plan.cached_share * process_bytes():
                self._parts[key] = part
                self._n_bytes += n_bytes
            elif part.coords is not None and part.n_observed:
                try:
                    place = self._written(part.values, part.coords, part.shape, part.plan)
                except OSError:  # the directory does not exist, or the disk is full
                    return
                if place is not None:
                    self._parts[key] = place

    def _written(self, values: NDArray[Any], coords: NDArray[Any], shape: tuple[int, ...], plan: Plan) -> Place | None:
        directory = scratch_directory()
        disk = shutil.disk_usage(directory)
        if disk.free - values.nbytes - coords.nbytes < plan.free_share * disk.total:
            return None
        if self._file is None:
            self._file = TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 (closed when nothing needs it)
        start = -(-self._file.seek(0, os.SEEK_END) // ALIGNMENT) * ALIGNMENT
        self._file.seek(start)
        for array in (values, coords):
            np.ascontiguousarray(array).tofile(self._file)
        return Place(self._file, start, values.dtype, coords.dtype, shape, values.size, plan)


HELD = Held()
"""The cache of this process."""


def compact(part: Observations) -> Observations:
    """Copy of a chunk with positions in the smallest sufficient integer type."""
    if part.coords is None:
        return part
    coords: Any = part.coords.astype(np.min_scalar_type(max(part.shape) - 1))
    return replace(part, coords=coords)
