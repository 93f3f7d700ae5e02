"""The ``.brtf`` container: a JSON header and named arrays in one file that is checked before it is read.

A file is a plain zip: ``header.json`` first, then one ``.npy`` member per array in order of name, so that ``unzip`` and
``numpy.load`` open it too. Members are stored, not compressed: reading never needs more memory than the size of the
file, and the bytes depend on the content alone.

``header.json`` holds::

    {"format": "brtf", "version": 2, "library": ...,
     "arrays": {name: {"dtype": ..., "shape": [...], "sha256": ...}}, "header": {...}}
"""

import hashlib
import json
import math
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brtf.io.atomic_file import atomic_file, require_regular_file

FORMAT = "brtf"
FORMAT_VERSION = 2

_HEADER = "header.json"
MAX_HEADER_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_NAME = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,63}")
# Types with the same bytes on every machine; long double is not one of them.
_DTYPE = re.compile(
    r"\|b1|\|[iu]1|[<>][iu][248]|[<>]f[248]|\|S[1-9]\d{0,7}|[<>]U[1-9]\d{0,7}"
    r"|[<>][mM]8(\[([1-9]\d{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
_LOCAL_HEADER, _LOCAL_HEADER_BYTES = b"PK\x03\x04", 30
_END_RECORD, _END_RECORD_BYTES = b"PK\x05\x06", 22
# What zipfile and the JSON parser raise on bytes that make no sense; RuntimeError covers unsupported zip
# features and nesting too deep to follow.
_UNREADABLE = (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OverflowError, struct.error)


class CorruptFile(ValueError):
    """A file that is not a whole, unaltered ``.brtf`` file; the message names the file and the reason."""


def write_archive(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a header and named arrays to one file, atomically.

    The content is written to a new file in the same directory, synced to disk, and only then renamed to `path`: any
    failure before that (a full disk, an interrupt, a power cut) leaves an earlier file at `path` unchanged. The same
    content always gives the same bytes.

    Parameters
    ----------
    path : path-like
        Where to write. An existing regular file is replaced and keeps its permissions; a link is followed.
    header : mapping
        JSON values under string keys: None, bool, int, finite float, str, lists and mappings of these.
        Tuples come back as lists, and mappings with their keys sorted. ``header["library"]``, the version
        of the library, is also copied to the top of the file, for people who look into it.
    arrays : mapping of str to ndarray
        Any shapes; bool, integer, float (up to 64 bits), fixed-width string and date types. Names are 1 to
        64 of ``a-z 0-9 _ . -`` and do not begin with a dot. Memory layout is not kept: arrays come back in
        C order.

    Raises
    ------
    ValueError
        A float in the header is not finite, the header is too large, a name is not allowed, or `path` is a
        directory or a device.
    TypeError
        A header value has no JSON form, or an array has a type that cannot be stored.
    OSError
        The disk refuses.
    """
    stored = {name: _as_stored(name, arrays[name]) for name in sorted(arrays)}
    members = {_HEADER: (_encode_header(header, stored), b"")} | {
        f"{name}.npy": (_npy_header(array.dtype, array.shape), _raw_bytes(array)) for name, array in stored.items()
    }
    with atomic_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for member_name, parts in members.items():
            with archive.open(_member(member_name, sum(map(len, parts))), "w") as member:
                for part in parts:
                    member.write(part)


def read_archive(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read and verify a file written by `write_archive`.

    Names, sizes, types and the digest of every array are verified before memory is allocated for any of
    them, and nothing in a file is ever executed or unpickled.

    Parameters
    ----------
    path : path-like
        The file to read.

    Returns
    -------
    header : dict
        As written, with lists for tuples.
    arrays : dict of str to ndarray
        New writable arrays in C order, with their names sorted.

    Raises
    ------
    CorruptFile
        The file is not a ``.brtf`` file, is damaged or forged, or comes from a newer format.
    ValueError
        `path` is a directory or a device.
    OSError
        The file is missing or the disk refuses.
    """
    path = os.fspath(path)
    require_regular_file(path)
    with open(path, "rb") as file:
        try:
            _check_ends(file)
            with zipfile.ZipFile(file) as archive:
                return _read_members(archive, os.fstat(file.fileno()).st_size)
        except _UNREADABLE as error:
            reason = str(error).rstrip(".") or "it ends in the middle of a member"  # zipfile's EOFError is mute
            raise CorruptFile(f"{path} cannot be read: {reason}.") from error


def _as_stored(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Check the name and type of one array and return it in C order."""
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            f"arrays has the name {name!r}; use 1 to 64 of the characters a-z 0-9 _ . - with no dot in front."
        )
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"arrays[{name!r}] is a {type(array).__name__}; pass a plain numpy array.")
    if not _DTYPE.fullmatch(array.dtype.str):
        raise TypeError(
            f"arrays[{name!r}] has dtype {array.dtype}, which is not stored; "
            "convert it to bool, integer, float (up to 64 bits), fixed-width string or date."
        )
    return np.asarray(array, order="C")


def _raw_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array in C order, without copying them."""
    return array.reshape(-1).view(np.uint8).data


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes that open a version 1.0 ``.npy`` file of this type and shape.

    They are a function of type and shape alone (numpy's own writer pads differently from version to
    version), so reading compares bytes and never parses what a file claims.
    """
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = np.lib.format.magic(1, 0)
    padding = -(len(prefix) + 2 + len(text) + 1) % np.lib.format.ARRAY_ALIGN
    text += " " * padding + "\n"
    return prefix + struct.pack("<H", len(text)) + text.encode("ascii")


def _member(name: str, n_bytes: int) -> zipfile.ZipInfo:
    """Describe one member by its name and size: the same date, system and permissions for all."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = n_bytes  # known in advance, so that zipfile allows for sizes beyond 2 GB
    return info


def _encode_header(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of ``header.json``."""
    plain = _as_json(header, "header")
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "library": plain.get("library"),
        "arrays": {
            name: {
                "dtype": array.dtype.str,
                "shape": array.shape,
                "sha256": hashlib.sha256(_raw_bytes(array)).hexdigest(),
            }
            for name, array in arrays.items()
        },
        "header": plain,
    }
    encoded = json.dumps(document, allow_nan=False, sort_keys=True).encode("ascii")
    if len(encoded) > MAX_HEADER_BYTES:
        raise ValueError(
            f"header takes {len(encoded)} bytes as JSON, more than {MAX_HEADER_BYTES}; move its long lists to arrays."
        )
    return encoded


def _as_json(value: Any, where: str) -> Any:
    """Return a value as plain JSON types, or raise with its location in the header."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; JSON keys are strings, so write {str(key)!r}.")
        return {key: _as_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON cannot hold; encode it as a string or store an array.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it, or store an array.")


def _check_ends(file: IO[bytes]) -> None:
    """Raise if the first and last bytes are not those of a complete zip file."""
    beginning = file.read(len(_LOCAL_HEADER))
    if beginning[:1] == b"\x80":
        raise ValueError("it is a pickle, which brtf never opens")
    if beginning != _LOCAL_HEADER:
        raise ValueError("it is not a .brtf file (not a zip)" if beginning else "it is empty")
    file.seek(max(0, file.seek(0, os.SEEK_END) - _END_RECORD_BYTES))
    if not file.read().startswith(_END_RECORD):
        raise ValueError("it is cut short, or has bytes added at its end")


def _read_members(archive: zipfile.ZipFile, file_bytes: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Verify everything a zip holds, then read it; a ValueError says what is wrong."""
    members = _members_by_name(archive, file_bytes)
    document = _read_document(archive, members)
    declared = {name: _declared(name, entry) for name, entry in document["arrays"].items()}
    listed = {_HEADER, *(f"{name}.npy" for name in declared)}
    if members.keys() != listed:
        odd = min(members.keys() ^ listed)
        raise ValueError(f"member {odd!r} is {'not listed in the header' if odd in members else 'missing'}")
    for name, (dtype, shape) in declared.items():
        _verify_array(archive, members[f"{name}.npy"], dtype, shape, document["arrays"][name]["sha256"])
    arrays = {
        name: _read_array(archive, members[f"{name}.npy"], dtype, shape) for name, (dtype, shape) in declared.items()
    }
    return document["header"], arrays


def _members_by_name(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip; raise if any are duplicated, overlap or exceed the size of the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.orig_filename in members:
            raise ValueError(f"member {info.orig_filename!r} is there twice")
        if info.header_offset < end:
            raise ValueError(f"member {info.orig_filename!r} overlaps another")
        end = info.header_offset + _LOCAL_HEADER_BYTES + len(info.orig_filename) + info.compress_size
        members[info.orig_filename] = info
    if end > file_bytes:
        raise ValueError("its members claim more bytes than the file has")
    return members


def _check_member(info: zipfile.ZipInfo) -> None:
    """Raise if a member is not a plain stored file."""
    if info.flag_bits & 1:
        raise ValueError(f"member {info.orig_filename!r} is encrypted")
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError(f"member {info.orig_filename!r} is compressed, while brtf stores members as they are")
    if not stat.S_ISREG(info.external_attr >> 16):
        raise ValueError(f"member {info.orig_filename!r} is a link or a directory, not a file")


def _read_document(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Any]:
    """Return the content of ``header.json``, of a format this version knows.

    The version is checked before anything that a newer format may change.
    """
    if _HEADER not in members:
        raise ValueError(f"it is not a .brtf file (no {_HEADER} inside)")
    _check_member(members[_HEADER])
    if members[_HEADER].file_size > MAX_HEADER_BYTES:
        raise ValueError(f"{_HEADER} is larger than {MAX_HEADER_BYTES} bytes")
    document = json.loads(archive.read(members[_HEADER]).decode("utf-8"), parse_constant=_refuse_constant)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"it is not a .brtf file ({_HEADER} does not say so)")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{_HEADER} gives the format version {version!r}")
    if version > FORMAT_VERSION:
        raise ValueError(f"it was written by a newer brtf (format {version}); upgrade brtf to read it")
    if version < FORMAT_VERSION:
        raise ValueError(f"it was written by an older brtf (format {version}) that this one does not read; fit again")
    if not (isinstance(document.get("arrays"), dict) and isinstance(document.get("header"), dict)):
        raise ValueError(f"{_HEADER} lacks its arrays or its header")
    return document


def _refuse_constant(constant: str) -> None:
    """Raise on NaN and Infinity, which Python's JSON parser accepts."""
    raise ValueError(f"{_HEADER} holds {constant}, which is not JSON")


def _declared(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type and shape that the header declares for one array."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{_HEADER} lists an array under the name {name!r}")
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "sha256": str()} if (
            _DTYPE.fullmatch(dtype)
            and len(shape) <= 64
            and all(type(length) is int and 0 <= length < 2**63 for length in shape)
        ):
            return np.dtype(dtype), tuple(shape)
    raise ValueError(f"{_HEADER} describes array {name!r} by a type or shape that is not allowed")


def _verify_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: np.dtype[Any], shape: tuple[int, ...], sha256: str
) -> None:
    """Check that a member is exactly the declared array, with one block of it in memory at a time."""
    _check_member(info)
    npy_header = _npy_header(dtype, shape)
    if info.file_size != len(npy_header) + math.prod(shape) * dtype.itemsize:
        raise ValueError(f"member {info.orig_filename!r} is not of the size that its type and shape need")
    digest = hashlib.sha256()
    with archive.open(info) as member:
        if member.read(len(npy_header)) != npy_header:
            raise ValueError(f"member {info.orig_filename!r} is not of the type and shape that the header says")
        for block in _blocks(member):
            digest.update(block)
            if dtype == np.bool_ and max(block) > 1:  # numpy assumes that bools are 0 or 1 when it counts them
                raise ValueError(f"member {info.orig_filename!r} holds bools other than 0 and 1")
    if digest.hexdigest() != sha256:
        raise ValueError(f"member {info.orig_filename!r} does not match its sha256")


def _read_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Read a verified member into a new array."""
    raw = np.empty(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    filled = 0
    with archive.open(info) as member:
        member.read(info.file_size - raw.size)
        for block in _blocks(member):
            raw[filled : filled + len(block)] = np.frombuffer(block, dtype=np.uint8)
            filled += len(block)
    return np.ndarray(shape, dtype, buffer=raw)


def _blocks(member: IO[bytes]) -> Iterator[bytes]:
    """Iterate over the rest of a member; zipfile checks its CRC on the way to the end."""
    return iter(lambda: member.read(_BLOCK_BYTES), b"")
