"""The content of a file, a header and named arrays, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.io.storage import CorruptFile

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
PYTHON_SAYS = (
    *("instances of", "object", "unsupported operand", "unhashable", "not convert", "to unpack", "out of bounds"),
    *("zip()", "iteration over", "argument must be", "must be a mapping", "too large to convert"),
)
"""Words that identify an error message of the interpreter or NumPy, which is replaced by our own."""


@contextmanager
def refusing(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """A context in which inconsistent content of a file raises CorruptFile with the name of the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        if any(words in reason for words in PYTHON_SAYS):
            reason = "a value has the wrong type or size"
        raise CorruptFile(f"{os.fspath(path)} is not {what} of brtf: its content does not fit ({reason}).") from error


def check_positive(array: NDArray[Any], name: str) -> NDArray[Any]:
    if not (array > 0).all():
        raise ValueError(f"{name} is not positive")
    return array


def checked_array(arrays: Arrays, name: str, shape: tuple[int, ...], *, kind: str = "f") -> NDArray[Any]:
    """An array of the file; raises unless it has the expected shape, in which −1 is any length, and kind."""
    array = arrays[name]
    fits = len(array.shape) == len(shape) and all(n in (-1, own) for n, own in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind != kind or not np.isfinite(array).all():
        raise ValueError(f"{name} is not what it should be, finite numbers of shape {shape}")
    return array


def add_part(arrays: Arrays, prefix: str, pack: Callable[[Any, Header, Arrays], None], value: Any) -> Header:
    """Pack a value under a prefix; returns its header."""
    header: Header = {}
    own: Arrays = {}
    pack(value, header, own)
    arrays.update({prefix + name: array for name, array in own.items()})
    return header


def part_of(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays that :func:`add_part` stored under a prefix."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
