"""Export to other libraries: long tables for pandas, labelled arrays for xarray, factors for TensorLy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.containers import LabelledArrays
from brtf.data.extras import require
from brtf.data.observations import Observations

IN_UNITS = ("observed", "low_rank", "outliers", "mean", "std", "low", "high")
"""Variables of a dataset that have the units of the data."""

Table = dict[str, NDArray[Any]]
"""Columns of equal length, by name."""


def mode_names(observations: Observations) -> list[str]:
    """Names of the modes: the user's names, or mode_0, mode_1, …"""
    labels = observations.labels
    return [f"mode_{mode}" for mode in range(observations.order)] if labels is None else distinct_names(labels.dims)


def long_table(
    observations: Observations,
    coords: NDArray[np.intp],
    numbers: Sequence[tuple[str, NDArray[Any]]],
    *,
    first_position: int = 0,
) -> Table:
    """A row per entry: a column per mode with its labels, then the numbers.

    Parameters
    ----------
    observations : whose labels to use
    coords : (N, M) entries, in the order of the rows
    numbers : names and columns (M,). A name that is already taken gets a trailing underscore.
    first_position : first position of modes without labels
    """
    positions = [
        entries + first_position if labelled is None else labelled[entries]
        for labelled, entries in zip(observations.mode_labels, coords, strict=True)
    ]
    names = distinct_names([*mode_names(observations), *(name for name, _ in numbers)])
    return dict(zip(names, [*positions, *(column for _, column in numbers)], strict=True))


def with_gaps(observations: Observations, entry_vector: NDArray[Any]) -> NDArray[np.float64]:
    """An entry vector (M,) as a dense tensor, NaN where missing, whatever the layout."""
    dense = np.full(observations.shape, np.nan)
    dense[tuple(observations.entry_coords())] = entry_vector
    return dense


def to_frame(table: Table) -> Any:
    """A table as a pandas.DataFrame."""
    return require("pandas", extra="label", purpose="to_frame()").DataFrame(table)


def as_frame(table: Table, observations: Observations) -> Any:
    """A table as a polars.DataFrame if the data came in one, otherwise as a pandas.DataFrame.

    Without pandas it is unchanged.
    """
    if getattr(observations.container, "is_polars", False):
        polars = require("polars", extra="polars", purpose="polars tables")
        return polars.DataFrame({name: _plain(column) for name, column in table.items()})
    return to_frame(table) if find_spec("pandas") else table


def _plain(column: NDArray[Any]) -> Any:
    return column.tolist() if column.dtype == object else column


def to_dataset(
    observations: Observations,
    tensors: Mapping[str, NDArray[Any]],
    factors: Mapping[tuple[int, ...], NDArray[Any]],
    slices: Mapping[str, tuple[Sequence[int], NDArray[Any]]],
    attrs: Mapping[str, Any],
) -> Any:
    """The results of a fit as an xarray.Dataset with the labels of the data.

    Parameters
    ----------
    observations : whose labels to use
    tensors : arrays of the shape of the data, by name
    factors : (…, R) by modes, which become ``factor_<mode>`` along the mode, or ``factor_<mode>_<mode>`` along modes
        that were read as one, and ``component``.
    slices : arrays along some modes, by name: the modes and the array
    attrs : plain numbers and text
    """
    xarray = require("xarray", extra="label", purpose="to_xarray()")
    dims, labels, own = mode_names(observations), observations.labels, observations.container
    units: dict[Any, Any] = {}
    coords: dict[Any, Any] = {}
    if isinstance(own, LabelledArrays) and [*own.dims] == dims:
        units, coords = {**own.attrs}, {**own.coords}
    elif labels is not None:
        coords = {dim: names for dim, names in zip(dims, labels.coords, strict=True) if names is not None}
    variables: dict[str, tuple[Any, ...]] = {
        **{name: (dims, tensor, units if name in IN_UNITS else {}) for name, tensor in tensors.items()},
        **{name: ([dims[mode] for mode in modes], array) for name, (modes, array) in slices.items()},
    }
    groups = [[dims[mode] for mode in modes] for modes in factors]
    names = distinct_names([*dims, "component", *variables, *("_".join(("factor", *group)) for group in groups)])
    component = names[len(dims)]
    along = [
        *variables.values(),
        *(([*group, component], factor) for group, factor in zip(groups, factors.values(), strict=True)),
    ]
    coords = {name: coord for name, coord in coords.items() if name not in names[len(dims) :]}
    return xarray.Dataset(dict(zip(names[len(dims) + 1 :], along, strict=True)), coords=coords, attrs=dict(attrs))


def to_cp_tensor(factors: Sequence[NDArray[np.float64]]) -> Any:
    """Factors (I_n, R) as a tensorly.cp_tensor.CPTensor with unit weights, in TensorLy's current backend.

    Rank 0, which TensorLy cannot expand, becomes one component of zeros.
    """
    tensorly = require("tensorly", extra="baselines", purpose="to_tensorly()")
    cp_tensor = require("tensorly.cp_tensor", extra="baselines", purpose="to_tensorly()")
    if factors[0].shape[1] == 0:
        factors = [np.zeros((len(factor), 1)) for factor in factors]
    return cp_tensor.CPTensor((None, [tensorly.tensor(factor) for factor in factors]))


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names, with a trailing underscore for duplicates."""
    distinct: dict[str, None] = {}
    for name in names:
        while name in distinct:
            name += "_"
        distinct[name] = None
    return list(distinct)
