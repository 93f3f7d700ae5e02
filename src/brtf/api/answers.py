"""Answers in the user's own terms: in the container that the data came in, and at labels instead of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import did_you_mean
from brtf.data.containers import Container, LongFrame, labelled
from brtf.data.dataframes import as_pandas
from brtf.data.description import label_text
from brtf.data.exports import mode_names
from brtf.data.observations import Observations
from brtf.results.result import Result


def contained(result: Result, values: Array, coords: Any = None, name: str | None = None) -> Any:
    """A tensor of the shape of the data in their container; numbers at some coordinates are left as they are."""
    if coords is not None:
        return values
    return _container(result.observations).dense(values, result.observations, name)


def entries_contained(result: Result, vector: Array, name: str) -> Any:
    """Numbers at the observed entries, (M,), in the container of the data."""
    return _container(result.observations).entries(result.place(vector), vector, result.observations, name)


def draws_contained(result: Result, values: Array) -> Any:
    """Several tensors of the shape of the data, (n, …), in the container of these."""
    return _container(result.observations).draws(values, result.observations)


def loadings_contained(observations: Observations, values: Array, modes: tuple[int, ...], names: Sequence[str]) -> Any:
    """Loadings of new data in the container of those: (n, R), or along all modes that are read as one with the first.

    The rows of ``values`` are the positions of these modes in C order.
    """
    shaped = values.reshape(*(observations.shape[mode] for mode in modes), values.shape[1])
    return (observations.container or Container()).loadings(shaped, modes, names, observations)


def _container(observations: Observations) -> Container:
    """What the data came in; where that is not known, plain arrays.

    With labels it is xarray then, or a table with a row per entry if only some entries are stored.
    """
    labels = observations.labels
    if observations.container is not None or labels is None:
        return observations.container or Container()
    if observations.layout == "coordinates":
        return LongFrame(is_polars=False)
    return labelled(labels)


def positions_of(observations: Observations, coords: Any) -> Any:
    """Coordinates as positions (N, M): unchanged, or looked up if they are labels by the names of the modes."""
    is_table = hasattr(coords, "columns")
    names = mode_names(observations)
    if not is_table and not isinstance(coords, Mapping):
        if isinstance(coords, (list, tuple)) and any(np.asarray(row).dtype.kind in "UMm" for row in coords):
            example = ", ".join(f"{name!r}: […]" for name in names)
            raise TypeError(f"coords as rows are positions. Pass labels by the names of the modes: {{{example}}}.")
        return coords
    columns = as_pandas(coords) if is_table else coords
    absent = [name for name in names if name not in columns]
    if absent:
        raise ValueError(f"coords needs labels of every mode, {names}, but has none of {absent}.")
    given = [np.atleast_1d(np.asarray(columns[name])) for name in names]
    if len({column.shape for column in given}) > 1 or given[0].ndim != 1:
        lengths = {name: column.shape for name, column in zip(names, given, strict=True)}
        raise ValueError(f"coords needs as many labels of one mode as of the others, got {lengths}.")
    return [_look_up(name, own, asked) for name, own, asked in zip(names, observations.mode_labels, given, strict=True)]


def _nearest(labels: NDArray[Any], asked: Any) -> str:
    """The label nearest to a number that is none, as a sentence with a space before it; empty for other labels."""
    if labels.dtype.kind not in "iuf" or not isinstance(asked, (int, float)):
        return ""
    return f" The nearest is {labels[np.nanargmin(np.abs(labels - asked))].item()!r}."


def _look_up(name: str, labels: NDArray[Any] | None, asked: NDArray[Any]) -> NDArray[Any]:
    """Positions of labels along a mode; of a mode without labels they are the positions."""
    if labels is None:
        return asked
    if labels.dtype.kind == "M":
        asked = asked.astype(labels.dtype)
    places = {label: place for place, label in enumerate(labels.tolist())}
    unknown = [label for label in asked.tolist() if label not in places]
    if unknown:
        ends = " … ".join(dict.fromkeys(label_text(labels[end]) for end in (0, -1)))
        close = did_you_mean(unknown[0], labels) if isinstance(unknown[0], str) else _nearest(labels, unknown[0])
        raise ValueError(
            f"coords: mode {name!r} has no label {label_text(unknown[0])} ({len(unknown)} unknown in all); its labels "
            f"are {ends}.{close}"
        )
    return np.array([places[label] for label in asked.tolist()], dtype=np.intp)
