"""The front door: any accepted input becomes `Observations`, checked once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from brtf.data.arrays import read_only
from brtf.data.checks import (
    Labels,
    cast_values,
    check_coords,
    check_dtype,
    check_labels,
    check_mask,
    check_shape,
    count_of,
    did_you_mean,
    drop_missing,
    nothing_observed,
    place_of,
    read_numbers,
    type_name,
)
from brtf.data.containers import LongFrame, container_of
from brtf.data.dataframes import LARGEST_GUESSED_ORDER, as_pandas, kinds_of, numbers_in, refuse_long, row_label
from brtf.data.observations import Observations, build
from brtf.data.scale import robust_scale
from brtf.data.times import warn_dates_as_text


def observe(Y: Any, mask: Any = None, *, dtype: DTypeLike | None = None) -> Observations:
    """Turn any accepted input into `Observations`, checking it once; the input is never modified.

    Parameters
    ----------
    Y
        A tensor of order >= 2: anything NumPy can read as an array (NaN = missing), numpy.ma (masked =
        missing), xarray.DataArray or a wide pandas or polars table (labels kept), scipy.sparse or anything
        with ``.coords .data .shape`` (stored = observed, absent = missing; never made dense), or
        `Observations`. A Dask array, alone or in xarray, and a Zarr array are read chunk by chunk, whenever
        they are needed. A pandas long table, one row per entry, goes through
        `Observations.from_frame`.
    mask
        Booleans of the shape of `Y`, True = observed. Values of `Y` elsewhere are ignored.
    dtype
        float32 or float64. None keeps float32 and converts every other real type to float64.

    Returns
    -------
    Observations
        A complete float32 or float64 C-contiguous array (a memmap too) is shared, not copied.
    """
    check_dtype(dtype)
    if isinstance(Y, Observations):
        if mask is not None:
            raise ValueError("mask= was given together with Observations, which know what is observed: drop it.")
        if dtype is None or Y.values.dtype == np.dtype(dtype):
            return Y
        values = cast_values(Y.values, dtype)
        return replace(Y, values=read_only(values), scale=robust_scale(values))

    return replace(_observe(Y, mask, dtype), container=container_of(Y))


def _observe(Y: Any, mask: Any, dtype: DTypeLike | None) -> Observations:
    data, labels = unlabel(Y)
    from brtf.data.chunked_input import comes_in_chunks, observe_chunks

    if comes_in_chunks(data):
        return observe_chunks(data, unlabelled_mask(mask, labels), labels, dtype)
    if _is_sparse(data):
        if mask is not None:
            raise ValueError(
                "mask= was given together with a sparse Y, whose stored entries are the observed ones: "
                "drop the mask, and leave the missing entries out of Y."
            )
        entries = data.tocoo() if hasattr(data, "tocoo") else data
        return from_coords(entries.coords, entries.data, entries.shape, labels, dtype)
    return _from_dense(data, unlabelled_mask(mask, labels), labels, dtype)


def unlabelled_mask(mask: Any, labels: Labels | None) -> Any:
    """A mask without its labels; raises if it has others than the data, or in another order."""
    package = type(mask).__module__.partition(".")[0]
    if package == "xarray" and hasattr(mask, "dims") and hasattr(mask, "data"):
        data, own = unlabel(mask)
    elif package == "pandas" and hasattr(mask, "columns"):
        data, own = mask.to_numpy(), _axes_of(mask)
    else:
        return mask
    if own is None or labels is None or len(own.dims) != len(labels.dims):
        return data
    if own.dims != labels.dims and sorted(own.dims) == sorted(labels.dims):
        raise ValueError(f"The modes of mask are {own.dims}, but those of Y are {labels.dims}: transpose the mask.")
    for name, positions, wanted in zip(labels.dims, own.coords, labels.coords, strict=True):
        if positions is None or wanted is None or len(positions) != len(wanted):
            continue
        differ = np.flatnonzero(positions.astype(str) != wanted.astype(str))
        if differ.size:
            raise ValueError(
                f"The labels of mode {name!r} of mask are not those of Y: at position {differ[0]} there is "
                f"{positions[differ[0]]!s}, but {wanted[differ[0]]!s} in Y. Order the mask as Y, with "
                "mask.reindex_like(Y), or pass it without labels."
            )
    return data


def observe_matrix(frame: Any) -> Observations:
    """Observations of a pandas table that is known to be wide: the matrix of its numbers, with its labels."""
    return _from_dense(numbers_in(frame), None, _axes_of(frame), dtype=None)


def unlabel(Y: Any) -> tuple[Any, Labels | None]:
    """Split a labelled array (xarray, pandas) into its data and its labels; other arrays have no labels."""
    package = type(Y).__module__.partition(".")[0]
    if package == "polars" and hasattr(Y, "columns"):
        label = row_label(Y)
        frame = as_pandas(Y) if label is None else as_pandas(Y).set_index(label)
        refuse_long(frame, has_index=False)
        return numbers_in(frame), _axes_of(frame)
    if package.lstrip("_") in ("pyarrow", "duckdb") and (hasattr(Y, "to_pandas") or hasattr(Y, "df")):
        convert = "Y.to_pandas()" if hasattr(Y, "to_pandas") else "Y.df()"
        raise TypeError(
            f"Y is {type_name(Y)} of {package.lstrip('_')}: if a row is one entry of a tensor, pass "
            f"brtf.Observations.from_frame(Y, index=[…], value=…); if it is a matrix, pass {convert}."
        )
    if package == "xarray" and hasattr(Y, "dims") and hasattr(Y, "data"):
        coords = tuple(np.asarray(Y.coords[dim]) if dim in Y.coords else None for dim in Y.dims)
        name = None if Y.name is None else str(Y.name)
        return Y.data, Labels(tuple(str(dim) for dim in Y.dims), coords, name)
    if package == "xarray" and hasattr(Y, "data_vars"):
        first = next(iter(Y.data_vars), "name")
        raise TypeError(
            f"Y is an xarray.Dataset with the variables {list(Y.data_vars)}: pass one of them, such as Y[{first!r}]."
        )
    if package == "pandas" and getattr(getattr(Y, "index", None), "nlevels", 1) > 1:
        is_wide = getattr(Y, "ndim", 1) == 2 and Y.shape[1] > 1
        levels, modes = ("stack().reset_index()", "these and the columns") if is_wide else ("reset_index()", "these")
        raise ValueError(
            f"The rows of Y have {Y.index.nlevels} labels each, so it is a tensor of higher order than a matrix: pass "
            f"brtf.Observations.from_frame(Y.{levels}), whose modes are {modes}."
        )
    if package == "pandas" and hasattr(Y, "columns"):
        refuse_long(Y)
        return numbers_in(Y), _axes_of(Y)
    return Y, None


def _axes_of(frame: Any) -> Labels:
    """The labels of the rows and columns of a wide table."""
    axes = (frame.index, frame.columns)
    known = [[name for name in axis.names if name is not None] for axis in axes]  # several levels have several names
    dims = tuple(", ".join(map(str, names)) or plain for names, plain in zip(known, ("row", "column"), strict=True))
    return Labels(dims, tuple(_axis_labels(axis) for axis in axes))


def _axis_labels(axis: Any) -> NDArray[Any] | None:
    """Labels of a pandas axis; None if they are 0, 1, 2, ..."""
    import pandas

    counts = isinstance(axis, pandas.RangeIndex) and axis.equals(pandas.RangeIndex(len(axis)))
    return None if counts else np.asarray(axis)


def _is_sparse(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return False
    return hasattr(data, "tocoo") or all(hasattr(data, name) for name in ("coords", "data", "shape"))


def _from_dense(Y: Any, mask: Any, labels: Labels | None, dtype: DTypeLike | None) -> Observations:
    array, observed = read_numbers(Y, "Y")
    shape = check_shape(array.shape, "Y")
    if mask is not None:
        observed = check_mask(mask, shape) if observed is None else observed & check_mask(mask, shape)
        missing = np.isnan(array) & observed
        if missing.any():
            index = np.unravel_index(missing.argmax(), shape)
            n_missing = count_of(np.count_nonzero(missing), "such entry", "such entries")
            raise ValueError(
                f"mask says that Y{place_of(index)} is observed, but it is NaN ({n_missing} in all). "
                "Set the mask to False there, or give the values."
            )
    observed = drop_missing(array, observed, place_of)
    if observed is None or observed.all():
        return build(shape, array, None, None, labels, dtype)
    n_observed = np.count_nonzero(observed)
    if n_observed == 0:
        raise nothing_observed()
    given = mask is not None or isinstance(Y, np.ma.MaskedArray)  # then the mask may belong to the caller
    doubted = mask is not None and _looks_inverted(array, observed)
    kept = np.array(observed, order="C") if given else np.ascontiguousarray(observed)
    built = build(shape, array[observed], kept, None, labels, dtype)
    return replace(built, mask_doubted=doubted)


def _looks_inverted(array: NDArray[Any], observed: NDArray[np.bool_]) -> bool:
    """Whether all observed entries are equal while most of the masked ones, which should be empty, differ."""
    value = array[observed][0]
    if (array[observed] != value).any():
        return False
    others = array[~observed]
    return bool(np.mean((others != value) & ~np.isnan(others)) > 0.5)


def from_coords(
    coords: Any,
    values: Any,
    shape: Sequence[int],
    labels: Labels | None,
    dtype: DTypeLike | None,
    *,
    if_repeated: str = "Keep one of them, or average them.",
) -> Observations:
    shape = check_shape(shape, "shape")
    check_labels(labels, shape)
    numbers, observed = read_numbers(values, "values")
    if numbers.ndim != 1:
        raise ValueError(f"values must have one mode, a number per entry, got shape {numbers.shape}.")
    columns = check_coords(coords, numbers.size, shape)
    order = np.lexsort(columns[::-1])
    positions = np.stack([column[order].astype(np.intp) for column in columns])

    def place(entry: Sequence[Any]) -> str:
        return place_of(positions[:, entry[0]], labels)

    repeated = np.all(positions[:, 1:] == positions[:, :-1], axis=0)
    if repeated.any():
        # The sort is stable, so among equals the later entry comes second.
        second = 1 + np.flatnonzero(repeated)
        offender = second[order[second].argmin()]
        raise ValueError(
            f"coords has duplicates: entries {order[offender - 1]} and {order[offender]} are both at "
            f"{place((offender,))} ({count_of(second.size, 'duplicate', 'duplicates')} in all). {if_repeated}"
        )
    numbers = numbers[order]
    observed = drop_missing(numbers, None if observed is None else observed[order], place)
    if observed is not None:
        numbers, positions = numbers[observed], positions[:, observed]
    if numbers.size == 0:
        raise nothing_observed()
    return build(shape, numbers, None, positions, labels, dtype)


def from_frame(frame: Any, index: Sequence[Any] | None, value: Any, shape: Sequence[int] | None) -> Observations:
    given, frame = frame, as_pandas(frame)
    import pandas

    if not frame.columns.is_unique:
        raise ValueError(f"frame has several columns of one name: {list(frame.columns)}. Rename them.")
    if isinstance(index, str):
        raise TypeError(f"index must be a list of columns, one per mode, got {index!r}.")
    if not isinstance(index, Iterable | None):
        raise TypeError(f"index must be a list of columns, one per mode, got {index!r}.")
    indexed = [] if index is None else list(index)
    for column in (*indexed, value):
        if not isinstance(column, Hashable):
            raise TypeError(f"index and value must name columns of frame, got {column!r}.")
    if value is None:
        rest = [column for column in frame.columns if column not in indexed]
        if not rest:
            raise ValueError(f"frame has no column of values besides index={indexed}.")
        value = rest[-1]
    if index is None:
        indexed = [column for column in frame.columns if column != value]
        if len(indexed) > LARGEST_GUESSED_ORDER:
            raise ValueError(
                f"frame has {len(indexed)} columns besides its values, so it may be no long table: name the columns "
                "that index the modes, index=[…], or pass it to fit as it is if it is a matrix."
            )
    for column in [*indexed, value]:
        if column not in frame.columns:
            close = did_you_mean(column, frame.columns)
            raise ValueError(f"frame has no column {column!r}; its columns are {list(frame.columns)}.{close}")
    named = [*indexed, value]
    for column in named:
        if named.count(column) > 1:
            raise ValueError(
                f"frame: {column!r} is named twice, in index={indexed} and value={value!r}. Every mode and the values "
                "need a column of their own."
            )
    if len(indexed) < 2:
        raise ValueError(f"frame needs order >= 2: two index columns or more and a value column, got index {indexed}.")
    if len(frame) == 0:
        raise nothing_observed()
    if kinds_of(frame[[value]]) == ["labels"]:
        raise TypeError(
            f"frame: the column of values, {value!r}, must hold real numbers, got dtype {frame[value].dtype}, such as "
            f"{frame[value].iloc[0]!r}. Convert it, for example with pandas.to_numeric, or name another, value=…."
        )

    positions = [frame[column].to_numpy() for column in indexed]
    labels: list[NDArray[Any] | None] = [None] * len(indexed)
    if shape is None:
        for mode, column in enumerate(indexed):
            positions[mode], uniques = pandas.factorize(frame[column], sort=True)
            labels[mode] = np.asarray(uniques)
            warn_dates_as_text(column, np.asarray(uniques))
            unlabelled = positions[mode] < 0
            if unlabelled.any():
                raise ValueError(
                    f"frame has no label in column {column!r} at row {unlabelled.argmax()} "
                    f"({count_of(unlabelled.sum(), 'such row', 'such rows')} in all). "
                    "Fill it in, or drop the row."
                )
        shape = [len(uniques) for uniques in labels if uniques is not None]
    names = Labels(tuple(str(column) for column in indexed), tuple(labels), str(value))
    others = [column for column in frame.columns if column not in (*indexed, value)]
    more = f", or tell them apart by another column, index={[*indexed, others[0]]}" if others else ""
    if_repeated = f"Keep one of them, average them{more}." if others else "Keep one of them, or average them."
    numbers = numbers_in(frame[[value]])[:, 0]
    found = from_coords(positions, numbers, shape, names, dtype=None, if_repeated=if_repeated)
    return replace(found, container=LongFrame(is_polars=type(given).__module__.partition(".")[0] == "polars"))
