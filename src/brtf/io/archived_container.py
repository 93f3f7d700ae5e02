"""What the data came in as header and arrays, and back, so that a loaded model answers like the one that was saved."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import Labels
from brtf.data.containers import Container, Coordinate, LabelledArrays, LongFrame, MaskedArrays, SparseArrays, WideFrame
from brtf.io.contents import Arrays, Header

STORED_KINDS = "biufUSmM"
"""Kinds of arrays that a file holds as they are."""
SPARSE_CLASSES = tuple(f"{name}_{kind}" for name in ("coo", "csr", "csc", "bsr") for kind in ("array", "matrix"))


def pack_container(container: Container, arrays: Arrays) -> Header:
    """What describes a container beside the labels of the data."""
    if isinstance(container, LabelledArrays):
        return {"kind": "labelled", **_pack_labelled(container, arrays)}
    if isinstance(container, WideFrame):
        names: list[str | None] = [None, None]
        if not container.is_polars:
            names = [_text(axis.name) for axis in (container.index, container.columns)]
        elif container.index is not None:
            names[0] = str(container.index.name)
        return {"kind": "wide", "is_polars": container.is_polars, "names": names}
    if isinstance(container, LongFrame):
        return {"kind": "long", "is_polars": container.is_polars}
    if isinstance(container, SparseArrays):
        return {"kind": "sparse", "class": container.kind.__name__}
    return {"kind": "masked" if isinstance(container, MaskedArrays) else "plain"}


def unpack_container(header: Header, arrays: Arrays, labels: Labels | None, shape: tuple[int, ...]) -> Container | None:
    """The container described by :func:`pack_container`; raises if it does not go with the data.

    None for a table where the library of tables is not installed.
    """
    kind = header["kind"]
    if kind == "plain":
        return Container()
    if kind == "masked":
        return MaskedArrays()
    if kind == "long":
        return LongFrame(is_polars=header["is_polars"] is True)
    if kind == "sparse" and header["class"] in SPARSE_CLASSES:
        import scipy.sparse

        return SparseArrays(getattr(scipy.sparse, header["class"]))
    if labels is not None and kind == "labelled":
        return _unpack_labelled(header, arrays, labels, shape)
    if labels is not None and kind == "wide" and len(shape) == 2:
        return _unpack_wide(header, labels, shape)
    raise ValueError(f"data of shape {shape} do not come in {kind!r}")


def _unpack_wide(header: Header, labels: Labels, shape: tuple[int, ...]) -> WideFrame | None:
    is_polars = header["is_polars"] is True
    if find_spec("polars" if is_polars else "pandas") is None:
        return None
    names = [_text(name) for name in header["names"]]
    if is_polars:
        import polars

        rows, columns = labels.coords
        index = None if names[0] is None else polars.Series(names[0], rows)
        named = range(shape[1]) if columns is None else columns
        return WideFrame(index, [str(name) for name in named], is_polars=True)
    import pandas

    index, table_columns = (
        pandas.RangeIndex(length, name=name) if own is None else pandas.Index(own, name=name)
        for own, length, name in zip(labels.coords, shape, names, strict=True)
    )
    return WideFrame(index, table_columns, is_polars=False)


def _pack_labelled(container: LabelledArrays, arrays: Arrays) -> Header:
    """Attributes of the values and of all coordinates, and the coordinates that are no labels."""
    coords: list[Header] = []
    for name, coord in container.coords.items():
        is_label = coord.dims == (name,)
        if not is_label:
            values = np.asarray(coord.values)
            arrays[f"container.{len(coords)}"] = values if values.dtype.kind in STORED_KINDS else values.astype(str)
        own = _pack_attrs(coord.attrs, f"container.{len(coords)}.attrs", arrays, f"the coordinate {name!r} of Y")
        dims = [str(dim) for dim in coord.dims]
        coords.append({"name": str(name), "dims": dims, "is_label": is_label, "attrs": own})
    attrs = _pack_attrs(container.attrs, "container.attrs", arrays, "Y")
    return {"coords": coords, "attrs": attrs, "name": _text(container.name)}


def _unpack_labelled(header: Header, arrays: Arrays, labels: Labels, shape: tuple[int, ...]) -> LabelledArrays:
    lengths = dict(zip(labels.dims, shape, strict=True))
    own_labels = dict(zip(labels.dims, labels.coords, strict=True))
    coords: dict[str, Coordinate] = {}
    for number, packed in enumerate(header["coords"]):
        name, dims = str(packed["name"]), tuple(packed["dims"])
        values = own_labels[name] if packed["is_label"] is True else arrays[f"container.{number}"]
        if values is None or values.shape != tuple(lengths[dim] for dim in dims):
            raise ValueError(f"the coordinate {name!r} does not go with data of shape {shape}")
        coords[name] = Coordinate(dims, values, _unpack_attrs(packed["attrs"], f"container.{number}.attrs", arrays))
    attrs = _unpack_attrs(header["attrs"], "container.attrs", arrays)
    return LabelledArrays(labels.dims, coords, attrs, _text(header["name"]))


def _pack_attrs(attrs: Mapping[Any, Any], prefix: str, arrays: Arrays, of: str) -> list[list[Any]]:
    """Attributes as triples of a name, a plain value and whether it is an array of the file instead."""
    packed: list[list[Any]] = []
    for name, value in attrs.items():
        array = _as_array(value)
        if isinstance(name, str) and array is not None:
            arrays[f"{prefix}.{len(packed)}"] = array
            packed.append([name, None, True])
        elif isinstance(name, str) and _is_plain(value):
            packed.append([name, value, False])
        else:
            what = type(value).__name__
            warnings.warn(
                f"The attribute {name!r} of {of}, a {what}, is not saved: .brtf files hold text, numbers and arrays.",
                UserWarning,
                stacklevel=2,
            )
    return packed


def _unpack_attrs(packed: Sequence[Sequence[Any]], prefix: str, arrays: Arrays) -> dict[str, Any]:
    found = {}
    for number, (name, value, is_array) in enumerate(packed):
        found[str(name)] = arrays[f"{prefix}.{number}"][()] if is_array is True else value
    return found


def _as_array(value: Any) -> NDArray[Any] | None:
    """NumPy's numbers and arrays, and floats that JSON cannot hold, as arrays; None for all else."""
    if isinstance(value, np.ndarray | np.generic) or (isinstance(value, float) and not math.isfinite(value)):
        array = np.asarray(value)
        return array if array.dtype.kind in STORED_KINDS else None
    return None


def _is_plain(value: Any) -> bool:
    """Whether JSON gives the value back as it is."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _text(name: Any) -> str | None:
    return None if name is None else str(name)
