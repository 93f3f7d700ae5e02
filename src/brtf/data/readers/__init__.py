"""Tensors and masks from files: arrays, MATLAB files, tables, coordinate lists, NetCDF and Zarr.

Files may come from untrusted sources: nothing in them is executed or unpickled, and declared sizes are compared with
the memory available to this process before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.readers.arrays import read_npy, read_npz
from brtf.data.readers.coordinates import read_tns
from brtf.data.readers.labelled import open_zarr, read_nc, read_zarr
from brtf.data.readers.matlab import read_mat
from brtf.data.readers.tables import Dialect, read_csv, read_excel, read_feather, read_parquet

__all__ = ["TensorFile", "open_file", "read_file", "read_mask", "read_tensor", "suffix_of"]

CLIPS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".gif")
"""Suffixes of clips, which are read as such."""


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A tensor as stored in a file.

    Attributes
    ----------
    suffix
        The format, in lower case.
    tensor
        What goes to `brtf.data.observe.observe`: an array of the file's own type; a sparse matrix where a ``.mat``
        file holds one; an xarray.DataArray where the file names its modes; `Observations` of the coordinate layout
        for long tables and coordinate lists, of a dense one for wide tables.
    name
        Name of the array, in formats that hold several.
    dialect
        How a table in text is written.
    """

    suffix: str
    tensor: Any
    name: str | None = None
    dialect: Dialect | None = None


def read_tensor(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    index: Sequence[str] | None = None,
    value: str | None = None,
    wide: bool = False,
) -> Any:
    """Read a tensor from a file, in a form accepted by `brtf.BRTF.fit` and `brtf.data.observe.observe`.

    ========================  =============================================================================
    ``.npy``                  one array, mapped into memory and not copied
    ``.npz``, ``.mat``        one array, or the one called `key`; MATLAB files of any version
    ``.csv``, ``.tsv``        table with a header: long, a row per observed entry with labels and a value, or
                              wide, a matrix whose rows have labels; also gzipped, as ``.csv.gz``, and with other
                              separators and decimal commas
    ``.parquet``              table, likewise; also ``.feather`` and ``.arrow``
    ``.xlsx``                 table in an Excel sheet, or the one called `key`
    ``.tns``                  FROSTT coordinates: per line the position in every mode, from 1, and a value
    ``.nc``                   NetCDF 3 or 4: one variable, or the one called `key`, with its labels
    ``.zarr``                 Zarr 2 or 3, a directory: an array, or one array of a group
    ========================  =============================================================================

    Parameters
    ----------
    path
        The file; its suffix says what it is.
    key
        Name of the array in an ``.npz``, ``.mat``, ``.nc`` or ``.zarr`` file, or of the sheet of an ``.xlsx`` file; not
        needed if there is only one.
    index
        Columns of a table that index the modes, in order; all columns but `value` if None. Of a wide table, the columns
        that label the rows; if None, the first one if it does not hold numbers.
    value
        Column of a table that holds the values; the last one that is not in `index` if None.
    wide
        The table has values in many columns: it is a matrix, or with several columns that label its rows a tensor,
        whose last mode are the others. Without it, and without `index` and `value`, a table is a matrix if its first
        column holds distinct labels and all others hold numbers; it is long if its last column holds numbers and the
        others hold labels or integers that repeat like positions; any other table is refused.

    Returns
    -------
    ndarray, scipy.sparse, xarray.DataArray or Observations
        See `TensorFile`. The shape of a ``.tns`` tensor is the largest position in every mode.

    Raises
    ------
    ValueError
        The file is not what its suffix says, does not fit into memory, needs a library that is not installed, or an
        argument does not apply to it; the message names the file.
    OSError
        The file is missing or cannot be opened.
    """
    return read_file(path, key=key, index=index, value=value, wide=wide).tensor


def read_file(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    index: Sequence[str] | None = None,
    value: str | None = None,
    wide: bool = False,
) -> TensorFile:
    """Read a tensor together with what is needed to write another in the same format; see `read_tensor`."""
    return _read(Path(path), _TENSOR_READERS, {"key": key, "index": index, "value": value, "wide": wide or None})


def open_file(path: str | os.PathLike[str], *, key: str | None = None) -> TensorFile:
    """Open a tensor or mask for reading in chunks: a ``.zarr`` store or a ``.npy`` file."""
    return _read(Path(path), {".zarr": (open_zarr, ("key",)), ".npy": (read_npy, ())}, {"key": key})


def read_mask(path: str | os.PathLike[str]) -> NDArray[np.bool_]:
    """Read a mask, True = observed, from a file of booleans or of 0 and 1: any format except tables and coordinates.

    Parameters
    ----------
    path
        The file; it holds one array.

    Returns
    -------
    ndarray of bool

    Raises
    ------
    ValueError
        The file cannot be read, or it holds other numbers than 0 and 1.
    OSError
        The file is missing or cannot be opened.
    """
    path = Path(path)
    tensor = _read(path, _ARRAY_READERS, {}).tensor
    if hasattr(tensor, "tocoo"):
        raise ValueError(f"{path} holds a sparse matrix: save the mask as a full array of 0 and 1.")
    mask = np.asarray(tensor)
    wrong = (mask != 0) & (mask != 1)
    if wrong.any():
        raise ValueError(
            f"{path} is not a mask: it holds {mask[wrong][0]}, but only 0 and 1 mean missing and observed."
        )
    return np.asarray(mask != 0)


def _read(path: Path, readers: dict[str, _Reader], options: dict[str, Any]) -> TensorFile:
    """Read a file with the reader for its suffix; errors name the file."""
    suffix = suffix_of(path)
    if suffix not in readers:
        remedy = f"brtf video {path} reads clips" if suffix in CLIPS else "convert it first"
        raise ValueError(f"{path} has the suffix {suffix!r}, which is none of {', '.join(readers)}: {remedy}.")
    reader, accepted = readers[suffix]
    given = {name: option for name, option in options.items() if option is not None}
    for name in given:
        if name not in accepted:
            raise ValueError(f"{path}: {name} does not apply to {suffix} files; leave it out.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if suffix == ".zarr" and not path.is_dir():
        raise ValueError(f"{path} is not a directory, as a Zarr store is; unpack it if it is an archive.")
    if suffix != ".zarr" and not path.is_file():
        raise ValueError(f"{path} is a directory or a device; give the path of one file.")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    try:
        tensor, array_name, *dialect = reader(path, **given)
    except Exception as error:  # parsers raise almost any exception on invalid files, including OSError
        if isinstance(error, OSError) and error.filename is not None:
            raise
        damaged = isinstance(error, KeyError)  # HDF5 cannot open what it announces
        why = "it announces a part that is missing or damaged" if damaged else error or type(error).__name__
        raise ValueError(f"{path} cannot be read: {why}") from error
    return TensorFile(suffix, tensor, array_name, dialect[0] if dialect else None)


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is, in lower case; that of a gzipped table has two parts."""
    name = path.name.lower()
    return next((suffix for suffix in (".csv.gz", ".tsv.gz") if name.endswith(suffix)), path.suffix.lower())


_Reader = tuple[Callable[..., tuple[Any, ...]], tuple[str, ...]]
"""A reader returns the tensor, the name of its array and, of text, the dialect; with the options that it accepts."""
_ARRAY_READERS: dict[str, _Reader] = {
    ".npy": (read_npy, ()),
    ".npz": (read_npz, ("key",)),
    ".mat": (read_mat, ("key",)),
    ".nc": (read_nc, ("key",)),
    ".zarr": (read_zarr, ("key",)),
}
_TENSOR_READERS: dict[str, _Reader] = {
    **_ARRAY_READERS,
    ".csv": (read_csv, ("index", "value", "wide")),
    ".tsv": (read_csv, ("index", "value", "wide")),
    ".csv.gz": (read_csv, ("index", "value", "wide")),
    ".tsv.gz": (read_csv, ("index", "value", "wide")),
    ".parquet": (read_parquet, ("index", "value", "wide")),
    ".feather": (read_feather, ("index", "value", "wide")),
    ".arrow": (read_feather, ("index", "value", "wide")),
    ".xlsx": (read_excel, ("key", "index", "value", "wide")),
    ".tns": (read_tns, ()),
}
