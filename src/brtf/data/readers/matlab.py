"""MATLAB's ``.mat`` files, versions 4 to 7.3.

SciPy reads them with compiled code that trusts every number in the file, so that one wrong bit can crash the process.
Here every number is checked before it is used, and only arrays of numbers are read. The layout is that of MATLAB's
"MAT-File Format", level 5; version 7.3 is HDF5 and has a library of its own.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.data.readers.axes import with_axes
from brtf.data.readers.hdf5 import check_links, check_written
from brtf.data.readers.sizes import check_fits, check_numbers, choose

N_HEADER = 128
N_TAG = 8
N_BEGINNING = 4096
"""Number of leading bytes of an array that contain its class, shape and name."""
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8", 16: "u1"}
"""Storage types of numbers, which may be narrower than their class; the last is UTF-8, for names."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
OTHER_CLASSES = {1: "cell", 2: "struct", 3: "object", 4: "char", 16: "function", 17: "opaque"}
HDF5_CLASSES = ("double", "single", "logical", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""Numeric classes by the names that version 7.3 has for them."""
SPARSE, OPAQUE = 5, 17
IS_LOGICAL, IS_COMPLEX = 2, 8


def read_mat(path: Path, *, key: str | None = None) -> tuple[Any, str]:
    """One numeric array or sparse matrix of a ``.mat`` file, and its name."""
    with open(path, "rb") as file:
        header = file.read(N_HEADER)
        if 0 in header[:4]:
            return _read_version_4(path, key)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:])
        if order is None:
            raise ValueError("it is not a MATLAB file.")
        (version,) = struct.unpack(f"{order}H", header[124:126])
        if version == 0x200:
            return _read_version_7_3(path, key)
        variables = {variable.name: variable for variable in _variables(file, order) if variable.name}
        shapes = {name: variable.shape if variable.is_numeric else None for name, variable in variables.items()}
        name = choose(shapes, key)
        return with_axes(variables[name].read(file), name, shapes, lambda own: variables[own].read(file)), name


@dataclass(frozen=True)
class _Variable:
    """Location of an array in the file, and the content of its header."""

    name: str
    kind: int
    flags: int
    shape: tuple[int, ...]
    start: int
    n_bytes: int
    n_unpacked: int
    compressed: bool
    data_offset: int
    order: str

    @property
    def is_numeric(self) -> bool:
        return (self.kind in CLASSES or self.kind == SPARSE) and not self.flags & IS_COMPLEX

    def read(self, file: IO[bytes]) -> Any:
        """The array in memory."""
        if self.kind not in CLASSES and self.kind != SPARSE:
            kind = OTHER_CLASSES.get(self.kind, self.kind)
            raise ValueError(
                f"its array {self.name!r} is of class {kind}, not numeric; save it as an array of numbers."
            )
        if self.flags & IS_COMPLEX:
            raise ValueError(f"its array {self.name!r} is complex, not real; save it as an array of real numbers.")
        check_memory(self.n_unpacked, f"its array {self.name!r}", "cut it into smaller files")
        if self.kind == SPARSE:
            return self._read_sparse(self._body(file))
        dtype = np.dtype(CLASSES[self.kind])
        check_fits(self.shape, dtype)
        numbers, _ = _read_numbers(self._body(file), self.data_offset, self.order)
        if numbers.size != math.prod(self.shape) or (dtype.kind != "f" and numbers.dtype.kind == "f"):
            raise ValueError(
                f"its array {self.name!r} should hold {math.prod(self.shape)} numbers of type {dtype}, but it holds "
                f"{numbers.size} of type {numbers.dtype}."
            )
        return numbers.astype(np.bool_ if self.flags & IS_LOGICAL else dtype).reshape(self.shape, order="F")

    def _body(self, file: IO[bytes]) -> memoryview:
        """The decompressed bytes of the array after its tag."""
        file.seek(self.start)
        body = file.read(self.n_bytes)
        if self.compressed:
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(body, N_TAG + self.n_unpacked + 1)[N_TAG:]
            if not unpacker.eof:
                raise ValueError(f"its array {self.name!r} is damaged: it does not decompress to its declared size.")
        if len(body) != self.n_unpacked:
            raise ValueError(f"its array {self.name!r} is cut short.")
        return memoryview(body)

    def _read_sparse(self, body: memoryview) -> Any:
        rows, offset = _read_numbers(body, self.data_offset, self.order)
        starts, offset = _read_numbers(body, offset, self.order)
        if len(self.shape) != 2:
            raise ValueError(f"its sparse array {self.name!r} has no valid positions.")
        starts = _column_starts(self.name, starts, rows)
        n_stored = int(starts[-1])
        if n_stored > rows.size:
            raise ValueError(
                f"its sparse array {self.name!r} claims {n_stored} stored entries, but it stores {rows.size} positions."
            )
        numbers: NDArray[Any]
        if self.flags & IS_LOGICAL:  # the tag of its numbers is wrong; all stored entries are True
            numbers = np.ones(n_stored, dtype=np.bool_)
        else:
            numbers = _read_numbers(body, offset, self.order)[0][:n_stored].astype(np.float64)
        return _sparse_matrix(numbers, rows[:n_stored], starts, self.shape)


def _column_starts(name: str, starts: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.int64]:
    """Where the columns of a sparse array start among its rows; raises unless these are positions and do not fall."""
    if starts.size == 0 or any(array.dtype.kind == "f" for array in (rows, starts)):
        raise ValueError(f"its sparse array {name!r} has no valid positions.")
    starts = starts.astype(np.int64)
    if starts[0] != 0 or np.any(np.diff(starts) < 0):  # which SciPy does not check where nothing is stored
        raise ValueError(f"its sparse array {name!r} has column pointers that decrease.")
    return starts


def _sparse_matrix(numbers: NDArray[Any], rows: NDArray[Any], starts: NDArray[np.int64], shape: Sequence[int]) -> Any:
    from scipy.sparse import csc_array

    matrix = csc_array((numbers, rows.astype(np.int64), starts), shape=tuple(shape))
    matrix.check_format(full_check=True)  # the compiled code that reads them next trusts the positions
    return matrix


def _variables(file: IO[bytes], order: str) -> Iterator[_Variable]:
    """The headers of the arrays of a file."""
    n_file = os.fstat(file.fileno()).st_size
    start = N_HEADER
    while start < n_file:
        file.seek(start)
        kind, n_bytes = _tag(file.read(N_TAG), order)
        start += N_TAG
        if start + n_bytes > n_file:
            raise ValueError(f"it is cut short: an array of {n_bytes} bytes begins {n_file - start} before the end.")
        beginning = file.read(min(n_bytes, 2 * N_BEGINNING))
        n_unpacked = n_bytes
        if kind == COMPRESSED:
            beginning = zlib.decompressobj().decompress(beginning, N_TAG + N_BEGINNING)
            inner, n_unpacked = _tag(beginning, order)
            beginning = beginning[N_TAG:]
        if (inner if kind == COMPRESSED else kind) != MATRIX:
            raise ValueError("something in it is not an array.")
        yield _describe(memoryview(beginning), start, n_bytes, n_unpacked, kind == COMPRESSED, order)
        start += n_bytes


def _describe(
    beginning: memoryview, start: int, n_bytes: int, n_unpacked: int, compressed: bool, order: str
) -> _Variable:
    """Class, shape and name of an array, from the bytes that follow its tag."""
    flags, offset = _read_numbers(beginning, 0, order)
    if flags.size != 2 or flags.dtype.itemsize != 4:
        raise ValueError("an array in it has no class.")
    kind = int(flags[0]) & 0xFF
    shape: tuple[int, ...] = ()
    if kind != OPAQUE:
        lengths, offset = _read_numbers(beginning, offset, order)
        shape = tuple(int(length) for length in lengths)
    name, offset = _read_numbers(beginning, offset, order)
    text = name.tobytes().decode("utf-8")
    return _Variable(
        text, kind, int(flags[0]) >> 8 & 0xFF, shape, start, n_bytes, n_unpacked, compressed, offset, order
    )


def _tag(content: bytes | memoryview, order: str) -> tuple[int, int]:
    """Type and number of bytes of what follows."""
    if len(content) < N_TAG:
        raise ValueError("it is cut short.")
    kind, n_bytes = struct.unpack(f"{order}II", content[:N_TAG])
    return kind, n_bytes


def _read_numbers(body: memoryview, offset: int, order: str) -> tuple[NDArray[Any], int]:
    """The numbers at an offset, and the offset of the next ones."""
    kind, n_bytes = _tag(body[offset:], order)
    if kind >> 16:  # up to four bytes are stored in the tag itself
        kind, n_bytes, data, following = kind & 0xFFFF, kind >> 16, body[offset + 4 : offset + N_TAG], offset + N_TAG
    else:
        data, following = body[offset + N_TAG :], offset + N_TAG + n_bytes + -n_bytes % 8
    if kind not in TYPES or n_bytes > len(data):
        raise ValueError("an array in it is cut short, or stores its numbers in an unknown format.")
    dtype = np.dtype(order + TYPES[kind])
    return np.frombuffer(data, dtype, count=n_bytes // dtype.itemsize), following


def _read_version_4(path: Path, key: str | None) -> tuple[Any, str]:
    """One array of a file of version 4, which SciPy reads without compiled code."""
    from scipy.io import loadmat, whosmat

    variables = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    name = choose({name: shape if kind != "char" else None for name, (shape, kind) in variables.items()}, key)
    shape, kind = variables[name]
    if kind == "double":
        check_fits(shape, np.dtype(np.float64))
    elif kind != "sparse":
        raise ValueError(f"its array {name!r} is of class {kind}, not numeric; save it as an array of numbers.")
    array = loadmat(path, variable_names=[name])[name]
    check_numbers(array.dtype)
    return array, name


def _read_version_7_3(path: Path, key: str | None) -> tuple[Any, str]:
    """One array of a file of version 7.3, an HDF5 file with MATLAB's classes as attributes."""
    h5py = require("h5py", extra="label", purpose=".mat files of version 7.3")
    with open(path, "rb") as content:
        check_links(h5py, content)
    with h5py.File(path, "r") as file:
        classes = {name: _class_of(file[name]) for name in file if not name.startswith("#")}
        shapes = {
            name: file[name].shape[::-1] if isinstance(file[name], h5py.Dataset) else ()  # sparse ones are groups
            for name, kind in classes.items()
            if kind in HDF5_CLASSES
        }
        only_dense = all(shapes.values())
        name = choose(dict.fromkeys(classes) | shapes if only_dense else list(classes), key)
        stored, kind = file[name], classes[name]
        if kind not in HDF5_CLASSES:
            raise ValueError(f"its array {name!r} is of class {kind}, not numeric; save it as an array of numbers.")
        if not isinstance(stored, h5py.Dataset):
            return _sparse_of_version_7_3(h5py, stored, name), name
        if stored.attrs.get("MATLAB_empty", 0):
            raise ValueError(f"its array {name!r} is empty.")
        numbers = _checked(name, stored)
        tensor = (numbers != 0 if kind == "logical" else numbers).T
        return with_axes(tensor, name, shapes, lambda own: _checked(own, file[own])), name


def _checked(name: str, stored: Any) -> NDArray[Any]:
    """The numbers of an array of version 7.3, in the order of HDF5."""
    check_numbers(stored.dtype)
    check_fits(stored.shape, stored.dtype)
    check_written(name, stored)
    return np.asarray(stored[()])


def _class_of(stored: Any) -> str:
    """MATLAB's class of an array in a file of version 7.3."""
    kind = stored.attrs.get("MATLAB_class", b"unknown")
    return kind.decode("utf-8", "replace") if isinstance(kind, bytes) else str(kind)


def _sparse_of_version_7_3(h5py: Any, group: Any, name: str) -> Any:
    """A sparse matrix: the starts of its columns, and the rows and values of its entries."""
    n_rows = group.attrs.get("MATLAB_sparse")
    parts = {part: group.get(part) for part in ("jc", "ir", "data")}
    links = [group.get(part, getlink=True) for part in parts]
    plain = all(isinstance(part, h5py.Dataset) and part.ndim == 1 and not part.external for part in parts.values())
    if n_rows is None or any(isinstance(link, h5py.ExternalLink) for link in links) or not plain:
        raise ValueError(f"its array {name!r} is neither an array of numbers nor a sparse matrix.")
    starts, rows, numbers = (_checked(f"{name}/{part}", stored) for part, stored in parts.items())
    starts = _column_starts(name, starts, rows)
    if starts[-1] != rows.size or rows.size != numbers.size:
        raise ValueError(f"its sparse array {name!r} has columns that do not agree with its entries.")
    return _sparse_matrix(numbers, rows, starts, (int(n_rows), starts.size - 1))
