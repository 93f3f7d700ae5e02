"""Tensors and masks from files: arrays, MATLAB files, long tables and coordinate lists."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.observations import Observations

__all__ = ["read_mask", "read_tensor"]


def read_tensor(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    index: Sequence[str] | None = None,
    value: str | None = None,
) -> Any:
    """Read a tensor from a file; what comes back goes to `brtf.BRTF.fit` or `brtf.observations.observe`.

    ====================  =================================================================================
    ``.npy``              one array, mapped into memory and not copied
    ``.npz``, ``.mat``    one array, or the one called `key`; MATLAB files up to version 7
    ``.csv``, ``.tsv``    long table with a header: a row per observed entry, with labels and a value
    ``.tns``              FROSTT coordinates: per line the position in every mode, from 1, and a value
    ====================  =================================================================================

    Parameters
    ----------
    path
        The file; its suffix says what it is.
    key
        Name of the array in an ``.npz`` or ``.mat`` file; not needed if there is only one.
    index
        Columns of a table that index the modes, in order; all columns but `value` if None.
    value
        Column of a table that holds the values; the last one that is not in `index` if None.

    Returns
    -------
    ndarray, scipy.sparse or Observations
        An array of the file's own type; a sparse matrix where a ``.mat`` file holds one; `Observations` of
        the coordinate layout, with labels for a table, for ``.csv``, ``.tsv`` and ``.tns``. The shape of a
        ``.tns`` tensor is the largest position in every mode.

    Raises
    ------
    ValueError
        The file is not what its suffix says, or an argument does not apply to it; the sentence names the file.
    OSError
        The file is missing or cannot be opened.
    """
    return _read(Path(path), _TENSOR_READERS, {"key": key, "index": index, "value": value})


def read_mask(path: str | os.PathLike[str]) -> NDArray[np.bool_]:
    """Read a mask, True = observed, from an ``.npy``, ``.npz`` or ``.mat`` file of booleans or of 0 and 1.

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
    mask = _read(path, _ARRAY_READERS, {})
    if not isinstance(mask, np.ndarray):
        raise ValueError(f"{path} holds a sparse matrix: save the mask as a full array of 0 and 1.")
    wrong = (mask != 0) & (mask != 1)
    if wrong.any():
        raise ValueError(
            f"{path} is not a mask: it holds {mask[wrong][0]}, but only 0 and 1 mean missing and observed."
        )
    return np.asarray(mask != 0)


def _read(path: Path, readers: dict[str, _Reader], options: dict[str, Any]) -> Any:
    """What the reader for the suffix makes of the file; whatever stops it becomes a sentence that names the file."""
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{path} has the suffix {suffix!r}, which is none of {', '.join(readers)}: convert it first.")
    reader, accepted = readers[suffix]
    given = {name: option for name, option in options.items() if option is not None}
    for name in given:
        if name not in accepted:
            raise ValueError(f"{path}: {name} does not apply to {suffix} files; leave it out.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_file():
        raise ValueError(f"{path} is a directory or a device; give the path of one file.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    try:
        return reader(path, **given)
    except Exception as error:  # parsers raise almost anything on bytes that make no sense, OSError included
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} cannot be read: {error or type(error).__name__}") from error


def _read_npy(path: Path) -> NDArray[Any]:
    # numpy.load would take a file without the right first bytes for a pickle, and say how to run it.
    return _check_numbers(np.lib.format.open_memmap(path, mode="r"))


def _read_npz(path: Path, *, key: str | None = None) -> NDArray[Any]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive of arrays, as numpy.savez writes it.")
    with np.load(path, allow_pickle=False) as arrays:
        return _check_numbers(np.asarray(arrays[_choose(arrays.files, key)]))


def _read_mat(path: Path, *, key: str | None = None) -> Any:
    from scipy.io import loadmat, whosmat

    try:
        name = _choose([name for name, _, _ in whosmat(path)], key)
    except NotImplementedError:
        raise ValueError("it is a MATLAB file of version 7.3 (HDF5); save it as version 7: save(..., '-v7').") from None
    return _check_numbers(loadmat(path, variable_names=[name])[name])


def _read_table(path: Path, *, index: Sequence[str] | None = None, value: str | None = None) -> Observations:
    try:
        import pandas
    except ImportError:
        raise ValueError('tables need pandas: pip install "brtf[label]".') from None
    # In one go: read in pieces, a column's labels could be numbers in one piece and text in the next.
    frame = pandas.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",", low_memory=False)
    if index is None and str(frame.columns[0]).startswith("Unnamed: "):
        raise ValueError(
            "its first column has no name; it may only number the rows. Say which columns index the modes (index)."
        )
    return Observations.from_frame(frame, index=index, value=value)


def _read_tns(path: Path) -> Observations:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
        lines = np.loadtxt(path, comments="#", ndmin=2, encoding="utf-8")
    if lines.size == 0:
        raise ValueError("it has no entry.")
    positions, values = lines[:, :-1], lines[:, -1]
    # Beyond 2**53 a float64 no longer tells neighbouring positions apart.
    wrong = ~((positions >= 1) & (positions <= 2**53) & (positions == np.floor(positions)))
    if wrong.any():
        entry, mode = np.argwhere(wrong)[0]
        raise ValueError(
            f"the position of entry {entry + 1} in mode {mode} is {positions[entry, mode]:g}, "
            "but positions are whole numbers from 1."
        )
    coords = positions.T.astype(np.intp) - 1
    return Observations.from_coords(coords, values, [int(length) for length in coords.max(axis=1) + 1])


def _choose(names: Sequence[str], key: str | None) -> str:
    """The array asked for, or the only one."""
    listed = ", ".join(names) or "none"
    if key is not None and key not in names:
        raise ValueError(f"it has no array {key!r}; its arrays are: {listed}.")
    if key is None and len(names) != 1:
        raise ValueError(
            f"it should hold one array, but its arrays are: {listed}. Choose one with key, or save it alone."
        )
    return names[0] if key is None else key


def _check_numbers(array: Any) -> Any:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds dtype {array.dtype}, not real numbers; save it as an array of numbers.")
    return array


_Reader = tuple[Callable[..., Any], tuple[str, ...]]
_ARRAY_READERS: dict[str, _Reader] = {
    ".npy": (_read_npy, ()),
    ".npz": (_read_npz, ("key",)),
    ".mat": (_read_mat, ("key",)),
}
_TENSOR_READERS: dict[str, _Reader] = {
    **_ARRAY_READERS,
    ".csv": (_read_table, ("index", "value")),
    ".tsv": (_read_table, ("index", "value")),
    ".tns": (_read_tns, ()),
}
