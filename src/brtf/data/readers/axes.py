"""Vectors in a file that say where the positions of a mode are: wavelengths, times, depths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

SHORTEST = 5
"""Shortest vector taken for an axis: of numbers in random order, 2 in n! rise or fall throughout, here 1 in 60."""


def with_axes(tensor: Any, name: str, shapes: Mapping[str, Sequence[int] | None], read: Callable[[str], Any]) -> Any:
    """The tensor with vectors of the same file as labels of its modes, where it is clear which belongs to which.

    A vector labels a mode if its length is that of this mode alone, no other vector has this length, and its numbers
    rise or fall throughout. Without xarray, or where there is none, the tensor is unchanged.

    Parameters
    ----------
    tensor : an array, or a sparse matrix, which is left as it is
    name : its name in the file
    shapes : the shapes of all arrays of numbers in the file, by name; None for other things
    read : reads one of them
    """
    if not isinstance(tensor, np.ndarray) or find_spec("xarray") is None:
        return tensor
    axes = {}
    for mode, length in enumerate(tensor.shape):
        own = [
            other
            for other, shape in shapes.items()
            if other != name and shape is not None and sorted(shape)[-1:] == [length] == [n for n in shape if n != 1]
        ]
        if length < SHORTEST or tensor.shape.count(length) > 1 or len(own) != 1:
            continue
        vector = np.ravel(read(own[0]))
        steps = np.diff(vector)
        if vector.dtype.kind in "iuf" and ((steps > 0).all() or (steps < 0).all()):
            axes[mode] = (own[0], vector)
    if not axes:
        return tensor
    import xarray

    dims = [axes[mode][0] if mode in axes else f"mode_{mode}" for mode in range(tensor.ndim)]
    return xarray.DataArray(tensor, dims=dims, coords=dict(axes.values()))
