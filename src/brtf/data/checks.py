"""Checks of the input: numbers, shapes, masks, labels and coordinates, each with its error message."""

from __future__ import annotations

import math
import numbers
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.description import label_text

LONGEST_MODE = 2**62
"""Largest length of a mode, so that positions and their sums fit into 64-bit integers."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The user's names of the modes and labels of their positions.

    Attributes
    ----------
    dims : a name per mode
    coords : per mode an array (I_n,) with the labels of its positions; None for plain positions 0..I_n-1
    name : name of the values, if they have one
    """

    dims: tuple[str, ...]
    coords: tuple[NDArray[Any] | None, ...]
    name: str | None = None


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether this is an integer; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> TypeGuard[float]:
    """Whether this is a finite real number; True and False are none."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:  # an integer beyond the range of floats
        return False


def check_dtype(dtype: DTypeLike | None) -> None:
    """Raise unless the dtype is float32, float64 or None."""
    try:
        known = dtype is None or np.dtype(dtype) in (np.dtype(np.float32), np.dtype(np.float64))
    except TypeError:
        known = False
    if not known or isinstance(dtype, np.generic):  # a number, whose type NumPy would take
        got = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else repr(dtype)
        raise ValueError(f"dtype must be float32 or float64, got {got}.")


def cast_values(values: NDArray[Any], dtype: DTypeLike | None) -> NDArray[np.floating[Any]]:
    """Observed values as native, aligned, C-contiguous floats; shared if they are already."""
    kind, itemsize = values.dtype.kind, values.dtype.itemsize
    if dtype is None:
        dtype = np.float32 if (kind, itemsize) == ("f", 4) else np.float64
    limits = np.finfo(np.dtype(dtype))
    if kind in "iu" and itemsize == 8 and (values.max() > 2**53 or values.min() < -(2**53)):
        warnings.warn(
            "Y holds integers beyond 2**53 in magnitude: float64 cannot hold them exactly, they are rounded.",
            UserWarning,
            stacklevel=2,
        )
    if kind == "f" and itemsize > limits.dtype.itemsize:
        largest = np.abs(values).max()
        if largest > limits.max or 0 < largest < limits.smallest_subnormal:
            raise ValueError(
                f"Y reaches {largest} in magnitude, beyond the range of {limits.dtype} "
                f"({limits.smallest_subnormal} to {limits.max}). Rescale it, or pass a wider dtype."
            )
    return np.require(values, dtype=limits.dtype, requirements=["C", "ALIGNED", "ENSUREARRAY"])


def read_numbers(data: Any, name: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The data as an array of real numbers, and the observed entries according to numpy.ma (None = all)."""
    try:
        array = np.asarray(data)
    except ValueError as error:
        if not isinstance(data, (list, tuple)):
            raise
        raise ValueError(
            f"{name} is ragged: its nested lists differ in length. Pad them with NaN, which means missing."
        ) from error
    if array.dtype.kind not in "biuf":
        if array.ndim == 0:
            path = isinstance(data, str | PathLike)
            remedy = f" To read a file, pass brtf.data.readers.read_tensor({str(data)!r})." if path else ""
            raise TypeError(f"{name} needs order >= 2: an array of numbers, got {type_name(data)}.{remedy}")
        raise TypeError(
            f"{name} must hold real numbers, got dtype {array.dtype}. Convert it first, for example with "
            f"{name}.astype(float); missing entries are NaN."
        )
    return array, ~np.ma.getmaskarray(data) if isinstance(data, np.ma.MaskedArray) else None


def drop_missing(
    values: NDArray[Any], observed: NDArray[np.bool_] | None, place: Callable[[Sequence[Any]], str]
) -> NDArray[np.bool_] | None:
    """The observed entries with NaN counted as missing (None = all); infinite observed values are an error."""
    pieces = [slice(start, start + _rows_at_once(values)) for start in range(0, len(values), _rows_at_once(values))]
    if all(np.isfinite(values[rows]).all() for rows in pieces):
        return observed
    present: NDArray[np.bool_] = np.isnan(values)
    np.logical_not(present, out=present)
    if observed is not None:
        present &= observed
    if any((present[rows] & np.isinf(values[rows])).any() for rows in pieces):
        infinite = present & np.isinf(values)
        index = np.unravel_index(infinite.argmax(), values.shape)
        n_infinite = count_of(np.count_nonzero(infinite), "infinite entry", "infinite entries")
        raise ValueError(
            f"Y{place(index)} is {values[index]} ({n_infinite} in all). "
            "Remove them or mark them missing: pass mask=, or set them to NaN."
        )
    return present


def _rows_at_once(values: NDArray[Any]) -> int:
    """Number of rows to check at once, so that no temporary is as large as the data."""
    return max(1, len(values) * 2**16 // max(values.size, 1))


def check_shape(shape: Any, name: str) -> tuple[int, ...]:
    try:
        lengths = tuple(operator.index(length) for length in shape)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, a length per mode, got {shape!r}.") from None
    if len(lengths) < 2:
        raise ValueError(
            f"{name} needs order >= 2 (a matrix or a tensor), got order {len(lengths)} with shape {lengths}."
        )
    for mode, length in enumerate(lengths):
        if not 1 <= length <= LONGEST_MODE:
            raise ValueError(
                f"{name}: mode {mode} has length {length}, in shape {lengths}. "
                "Every mode needs a length between 1 and 2**62."
            )
    return lengths


def check_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    refuse_no_booleans(array.dtype)
    if array.shape != shape:
        raise ValueError(f"mask has shape {array.shape}, but Y has shape {shape}: they must agree.")
    return array


def refuse_no_booleans(dtype: Any) -> None:
    """Raise for a mask of another type; the remedy is one that gives the mask that was meant."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return
    remedy = "Pass mask == 1 if that is what its numbers mean."
    if kind in "OUST":  # "False" and None would become True or an error
        remedy = "Compare it with what stands for an observed entry, such as mask == 'True'."
    elif kind in "fc":  # NaN would become True
        remedy = "Pass mask == 1 if 1 stands for observed, or ~numpy.isnan(mask) if NaN stands for missing."
    raise TypeError(f"mask must be boolean, True = observed, got dtype {dtype}. {remedy}")


def check_labels(labels: Labels | None, shape: tuple[int, ...]) -> None:
    if labels is None:
        return
    if len(labels.dims) != len(shape) or len(labels.coords) != len(shape):
        raise ValueError(
            f"labels has {len(labels.dims)} dims and {len(labels.coords)} coords, but shape {shape} has "
            f"{len(shape)} modes: give one of each per mode."
        )
    for mode, positions in enumerate(labels.coords):
        if positions is not None and len(positions) != shape[mode]:
            raise ValueError(
                f"labels.coords[{mode}] has {len(positions)} labels, but the mode has length {shape[mode]}."
            )


def check_coords(coords: Any, n_values: int, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """One array (M,) of integers within range per mode."""
    n_modes = len(shape)
    rows = coords if isinstance(coords, (list, tuple)) else np.atleast_1d(np.asarray(coords))
    columns = [np.asarray(row) for row in rows] if len(rows) == n_modes else []
    if not columns or any(column.ndim != 1 for column in columns):
        got = (len(rows), *np.shape(rows[0])) if len(rows) else (0,)
        advice = " Pass coords.T." if got == (n_values, n_modes) else ""
        if got == (n_modes,) and n_values == 1:
            advice = f" For one entry pass {np.asarray(rows)[:, None].tolist()}."
        raise ValueError(
            f"coords must have shape (N, M) = ({n_modes}, {n_values}), a row per mode and a column per "
            f"entry, got {got}.{advice}"
        )
    for mode, column in enumerate(columns):
        if column.size != n_values:
            raise ValueError(
                f"coords[{mode}] has length {column.size}, but there are {n_values} values: they must agree."
            )
    if n_values == 0:
        raise nothing_observed()
    for mode, column in enumerate(columns):
        if column.dtype.kind not in "iu":
            # Report the first value that is not an integer; floats with integer values are refused too.
            odd = column != np.floor(column) if column.dtype.kind == "f" else np.zeros(1, dtype=bool)
            entry = int(odd.argmax())
            raise TypeError(
                f"coords must be integers, got dtype {column.dtype} in mode {mode}: entry {entry} is at "
                f"{place_of([column[entry] for column in columns])}. Convert them with coords.astype(int)."
            )
    outside = np.zeros(n_values, dtype=bool)
    for column, length in zip(columns, shape, strict=True):
        outside |= (column < 0) | (column >= length)
    if outside.any():
        entry = int(outside.argmax())
        raise ValueError(
            f"coords: entry {entry} is at {place_of([column[entry] for column in columns])}, outside shape "
            f"{shape} ({count_of(np.count_nonzero(outside), 'such entry', 'such entries')} in all). "
            "Positions count from 0 to the length of the mode minus one."
        )
    return columns


def place_of(index: Sequence[Any] | NDArray[Any], labels: Labels | None = None) -> str:
    """An entry's index, as the user would write it: [3, 0, 8], or [user=ann, item=8] with labels."""
    if labels is None:
        return f"[{', '.join(str(position) for position in index)}]"
    named = (
        f"{dim}={position if names is None else label_text(names[position])}"
        for dim, names, position in zip(labels.dims, labels.coords, index, strict=True)
    )
    return f"[{', '.join(named)}]"


def did_you_mean(given: Any, known: Iterable[Any]) -> str:
    """A question for what was probably meant, with a space before it; empty where nothing known is similar."""
    close = get_close_matches(str(given), [str(name) for name in known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def count_of(number: int | np.integer[Any], singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def type_name(data: Any) -> str:
    return "None" if data is None else f"a {type(data).__name__}"


def nothing_observed() -> ValueError:
    return ValueError("Y has no observed entry: everything is missing. Give at least one number.")
