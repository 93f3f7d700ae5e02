"""Checks shared by all readers: which array to read, that it holds numbers, and that it fits into memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brtf.data.memory import check_memory


def choose(arrays: Sequence[str] | Mapping[str, Sequence[int] | None], key: str | None) -> str:
    """The name of the requested array, or of the only one; vectors, text and the like do not count beside a tensor.

    ``arrays`` are names, or shapes by name, None for what is no array of numbers.
    """
    shapes = arrays if isinstance(arrays, Mapping) else {}
    names = [name for name, shape in shapes.items() if shape is not None and sum(n != 1 for n in shape) > 1]
    names = names or list(arrays)
    if key is not None and key not in arrays:
        raise ValueError(f"it has no array {key!r}; its arrays are: {', '.join(arrays) or 'none'}.")
    if key is None and len(names) != 1:
        listed = ", ".join(_sized(name, shapes.get(name)) for name in names) or "none"
        largest = max(names, key=lambda name: math.prod(shapes.get(name) or ()), default="NAME")
        raise ValueError(
            f"it should hold one array, but its arrays are: {listed}. Choose one, such as --key {largest} or "
            f'key="{largest}".'
        )
    return names[0] if key is None else key


def _sized(name: str, shape: Sequence[int] | None) -> str:
    return name if shape is None else f"{name} ({' × '.join(map(str, shape))})"


def check_numbers(dtype: np.dtype[Any]) -> None:
    """Raise unless the dtype is a real number type."""
    if dtype.kind not in "biuf":
        raise ValueError(f"it holds dtype {dtype}, not real numbers; save it as an array of numbers.")


def check_fits(shape: Sequence[int], dtype: np.dtype[Any], *, overhead: int = 0) -> int:
    """Raise if an array would not fit into memory, before it is allocated; returns its size in bytes.

    Parameters
    ----------
    shape, dtype : as the file declares them
    overhead : additional bytes needed for reading
    """
    if any(length < 0 for length in shape):
        raise ValueError(f"it declares the shape {tuple(shape)}.")
    n_bytes = math.prod(int(length) for length in shape) * dtype.itemsize
    check_memory(n_bytes + overhead, f"its array of shape {tuple(shape)}", "cut it into smaller files")
    return n_bytes
