"""Chunks that were read and are kept for the next pass: in memory while they fit, of coordinates then in a file.

What is kept of coordinates is what was read of them, checked, sorted, and in the smallest integers that hold the
positions. So a table is decoded once, not at every pass.
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

HELD_SHARE = 0.25
"""Share of the memory of a process in which chunks are kept."""
FREE_SHARE = 0.1
"""Share of the disk that stays free."""
ALIGNMENT = 64
"""Where values may begin in the file."""
Key = tuple[str, int]
"""Which data a chunk belongs to, and its number there."""


@dataclass(frozen=True)
class Place:
    """Where a chunk of coordinates is in a file: its values (m,), and then its positions (N, m)."""

    file: IO[bytes]
    start: int
    dtype: np.dtype[Any]
    kind: np.dtype[Any]
    shape: tuple[int, ...]
    n_observed: int

    def read(self) -> Observations:
        """The chunk, mapped into memory."""
        n_bytes = self.n_observed * self.dtype.itemsize
        n_all = n_bytes + len(self.shape) * self.n_observed * self.kind.itemsize
        mapped = np.asarray(np.memmap(self.file, np.uint8, "r", self.start, (n_all,)))
        coords: Any = mapped[n_bytes:].view(self.kind).reshape(len(self.shape), -1)
        return Observations(self.shape, mapped[:n_bytes].view(self.dtype), None, coords, 1.0)


class Held:
    """Chunks that are kept.

    Every pass goes over all chunks in turn, so the first that fit stay in memory; those of earlier data make way. The
    file has no name: nobody else can change it, and it is gone as soon as the process is, however that ends.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._parts: dict[Key, Observations | Place] = {}
        self._n_bytes = 0
        self._file: IO[bytes] | None = None

    def release(self) -> None:
        """Keep nothing; what is being worked on stays as long as it is."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._parts, self._n_bytes, self._file = {}, 0, None

    def get(self, key: Key) -> Observations | None:
        """The entries of a chunk, if they are kept."""
        with self._lock:
            part = self._parts.get(key)
            return part.read() if isinstance(part, Place) else part

    def put(self, key: Key, part: Observations) -> None:
        """Keep the entries of a chunk if there is room for them."""
        with self._lock:
            if any(other[0] != key[0] for other in self._parts):
                self.release()
            n_bytes = sum(array.nbytes for array in (part.values, part.mask, part.coords) if array is not None)
            if self._n_bytes + n_bytes <= HELD_SHARE * process_bytes():
                self._parts[key] = part
                self._n_bytes += n_bytes
            elif part.coords is not None and part.n_observed:
                try:
                    place = self._written(part.values, part.coords, part.shape)
                except OSError:  # there is no such disk, or no room on it after all
                    return
                if place is not None:
                    self._parts[key] = place

    def _written(self, values: NDArray[Any], coords: NDArray[Any], shape: tuple[int, ...]) -> Place | None:
        directory = scratch_directory()
        disk = shutil.disk_usage(directory)
        if disk.free - values.nbytes - coords.nbytes < FREE_SHARE * disk.total:
            return None
        if self._file is None:
            self._file = TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 (closed when nothing needs it)
        start = -(-self._file.seek(0, os.SEEK_END) // ALIGNMENT) * ALIGNMENT
        self._file.seek(start)
        for array in (values, coords):
            np.ascontiguousarray(array).tofile(self._file)
        return Place(self._file, start, values.dtype, coords.dtype, shape, values.size)


HELD = Held()
"""Those of this process."""


def compact(part: Observations) -> Observations:
    """The same, with positions in the smallest integers that hold them."""
    if part.coords is None:
        return part
    coords: Any = part.coords.astype(np.min_scalar_type(max(part.shape) - 1))
    return replace(part, coords=coords)
