"""How far positions along two modes are apart, where their labels compare: emission from excitation, to from from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.times import as_times

ROOM = 1e-6
"""Steps by which a difference may fall short of half a step, as labels are rounded."""


def offsets(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64] | None:
    """A label for every pair of positions along two modes, (I, J), numbered from 0; None where these do not compare.

    For numbers, durations or times whose ranges overlap, the difference in steps of the coarser spacing: scattered
    light is at a fixed distance from the excitation. For names of which some occur along both modes, whether the two
    are the same, as on the diagonal of a table of origins × destinations.
    """
    one, other = _numbers(first), _numbers(second)
    if one is None and other is None:
        apart: NDArray[Any] = first[:, None] != second[None, :]
    elif one is None or other is None:
        return None
    else:
        (kind, row), (other_kind, column) = one, other
        if kind != other_kind or min(row.max(), column.max()) < max(row.min(), column.min()):
            return None
        step = max(_spacing(row), _spacing(column))
        apart = np.floor((row[:, None] - column[None, :]) / step + 0.5 + ROOM)
    values, labels = np.unique(apart, return_inverse=True)
    return labels.reshape(apart.shape).astype(np.int64) if values.size > 1 else None


def _numbers(labels: NDArray[Any]) -> tuple[str, Array] | None:
    """What labels count, and as numbers, in seconds if they are times; None unless they are two or more."""
    times = as_times(labels)
    if times is not None:
        kind, numbers = "M", (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    elif labels.dtype.kind == "m":
        kind, numbers = "m", labels / np.timedelta64(1, "s")
    elif labels.dtype.kind in "iuf":
        kind, numbers = "f", labels.astype(np.float64)
    else:
        return None
    return (kind, numbers) if np.isfinite(numbers).all() and np.unique(numbers).size > 1 else None


def _spacing(numbers: Array) -> float:
    return float(np.median(np.diff(np.unique(numbers))))
