"""Observations as header and arrays, and back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from brtf.data.checks import Labels, check_labels, check_shape
from brtf.data.chunks import outline
from brtf.data.observations import Observations
from brtf.io.archived_container import STORED_KINDS, pack_container, unpack_container
from brtf.io.contents import Arrays, Header, checked_array


def pack_outline(observations: Observations, header: Header, arrays: Arrays) -> None:
    """Add what a result needs to know about its data, without the entries, to header and arrays."""
    _pack_frame(observations, header, arrays)
    header["chunked"] = {
        "layout": observations.layout,
        "dtype": observations.values.dtype.name,
        "n_observed": observations.n_observed,
        "largest": observations.largest,
    }


def pack_entries(observations: Observations, header: Header, arrays: Arrays) -> None:
    _pack_frame(observations, header, arrays)
    arrays["values"] = observations.values
    if observations.mask is not None:
        arrays["mask"] = observations.mask
    if observations.coords is not None:
        arrays["coords"] = observations.coords


def _pack_frame(observations: Observations, header: Header, arrays: Arrays) -> None:
    header["shape"] = list(observations.shape)
    header["scale"] = observations.scale
    if observations.labels is not None:
        labels = observations.labels
        header["labels"] = {"dims": list(labels.dims), "name": labels.name}
        for mode, coords in enumerate(labels.coords):
            if coords is not None:
                plain = coords.dtype.kind in STORED_KINDS
                arrays[f"labels.{mode}"] = coords if plain else coords.astype(str)
    if observations.container is not None:
        header["container"] = pack_container(observations.container, arrays)


def unpack_observations(header: Header, arrays: Arrays) -> Observations:
    """The data, or an outline of data that were not saved, with what they came in."""
    observations = _unpack_frame(header, arrays)
    if "container" not in header:  # files of earlier versions
        return observations
    container = unpack_container(header["container"], arrays, observations.labels, observations.shape)
    return replace(observations, container=container)


def _unpack_frame(header: Header, arrays: Arrays) -> Observations:
    shape = check_shape(header["shape"], "shape")
    scale = float(header["scale"])
    if not 0 < scale < np.inf:
        raise ValueError(f"the scale is {scale}")
    labels = None
    if "labels" in header:
        names = tuple(arrays.get(f"labels.{mode}") for mode in range(len(shape)))
        labels = Labels(tuple(header["labels"]["dims"]), names, header["labels"]["name"])
    if "chunked" in header:
        check_labels(labels, shape)
        return _unpack_outline(shape, scale, labels, **header["chunked"])
    if "coords" in arrays:
        coords = checked_array(arrays, "coords", (len(shape), arrays["values"].size), kind="i")
        values = checked_array(arrays, "values", coords.shape[1:])
        return replace(Observations.from_coords(coords, values, shape, labels=labels), scale=scale)
    check_labels(labels, shape)
    mask = checked_array(arrays, "mask", shape, kind="b") if "mask" in arrays else None
    values = checked_array(arrays, "values", shape if mask is None else (int(np.count_nonzero(mask)),))
    return Observations(shape, values, mask, None, scale, labels)


def _unpack_outline(
    shape: tuple[int, ...],
    scale: float,
    labels: Labels | None,
    layout: Literal["complete", "masked", "coordinates"],
    dtype: str,
    n_observed: int,
    largest: float,
) -> Observations:
    """Outline of data in chunks, whose entries were not saved."""
    if layout not in ("complete", "masked", "coordinates") or dtype not in ("float32", "float64"):
        raise ValueError(f"there is no layout {layout!r} of {dtype!r}")
    if type(n_observed) is not int or not 0 < n_observed <= math.prod(shape) or not 0 <= float(largest) < np.inf:
        raise ValueError(f"{n_observed} entries of size {largest} are not what a tensor of shape {shape} can have")
    return outline(
        shape, scale, labels, layout=layout, dtype=np.dtype(dtype), n_observed=n_observed, largest=float(largest)
    )


def unpack_held_back(arrays: Arrays, observations: Observations) -> Observations | None:
    if "held_back.values" not in arrays:
        return None
    n_held_back = arrays["held_back.values"].size
    coords = checked_array(arrays, "held_back.coords", (observations.order, n_held_back), kind="i")
    values = checked_array(arrays, "held_back.values", (n_held_back,))
    return Observations.from_coords(coords, values, observations.shape)
