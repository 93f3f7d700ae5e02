"""What all packages share about arrays: their type, read-only views, even spacing, caches, and what is sent once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view; the array itself stays writable."""
    view = array.view()
    view.flags.writeable = False
    return view


def evenly_spaced(length: int, most: int) -> NDArray[np.intp]:
    """At most so many positions of 0, …, length − 1, both ends among them, at even distances."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.intp)


class Cache(dict[Any, Any]):
    """What was computed from an immutable object, by name; a copy or a pickle of the object begins with nothing."""

    def __reduce__(self) -> tuple[type[Cache], tuple[()]]:
        return Cache, ()


class SentOnce:
    """Base class of large immutable data that are sent to a cluster once and kept there while in use."""

    @property
    def nbytes(self) -> int:
        """Number of bytes to send."""
        raise TypeError("SentOnce is abstract")
