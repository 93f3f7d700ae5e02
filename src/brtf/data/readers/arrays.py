"""NumPy's ``.npy`` and ``.npz``."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.readers.sizes import check_fits, check_numbers, choose

READ_HEADER = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
"""For every version of the format: the number of bytes of the header length, and the function that reads it."""
LONGEST_HEADER = 10_000
"""Largest header that numpy reads from untrusted files."""


def read_npy(path: Path) -> tuple[NDArray[Any], None]:
    """The array of an ``.npy`` file, mapped and not copied."""
    # numpy.load would take a file without the right first bytes for a pickle, and suggest allowing it.
    with open(path, "rb") as file:
        _check_npy(file, os.fstat(file.fileno()).st_size)
    return np.lib.format.open_memmap(path, mode="r"), None


def read_npz(path: Path, *, key: str | None = None) -> tuple[NDArray[Any], str]:
    """One array of an ``.npz`` file, and its name."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive of arrays, as numpy.savez writes it.")
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        name = choose([name for name, info in members.items() if info.filename.endswith(".npy")], key)
        with archive.open(members[name]) as member:
            _check_npy(member, members[name].file_size)
        with archive.open(members[name]) as member:
            return np.lib.format.read_array(member, allow_pickle=False), name


def _check_npy(file: IO[bytes], n_bytes: int) -> None:
    """Raise unless a stream of that many bytes is one complete array of numbers that fits into memory."""
    version = np.lib.format.read_magic(file)
    if version not in READ_HEADER:
        raise ValueError(f"its format {version} is not for plain numbers, which numpy.save writes as (1, 0).")
    n_length, read_header = READ_HEADER[version]
    length = file.read(n_length)
    n_header = int.from_bytes(length, "little")
    if n_header > LONGEST_HEADER:
        raise ValueError(f"its header claims {n_header} bytes, where an array of numbers needs some 100.")
    shape, _, dtype = read_header(io.BytesIO(length + file.read(n_header)))
    check_numbers(dtype)
    declared, there = check_fits(shape, dtype), n_bytes - file.tell()
    if declared != there:
        raise ValueError(
            f"an array of shape {shape} takes {declared} bytes, but {there} follow its header: it is cut short or was "
            "modified."
        )
