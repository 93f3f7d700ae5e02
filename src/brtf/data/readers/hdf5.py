"""Checks of HDF5 files, NetCDF 4 and MATLAB 7.3, before anything in them is read."""

from __future__ import annotations

import math
import zlib
from typing import IO, Any

from brtf.data.readers.stores import SPARE_BYTES, streamed_size

ONLY_A_LENGTH = b"This is a netCDF dimension but not a netCDF variable"
"""NetCDF's mark for a dimension without labels, which is never written."""
MOST_DEFLATED = 1032
"""Largest expansion of a deflated stream, in bytes per byte."""


def check_links(h5py: Any, content: IO[bytes]) -> None:
    """Raise if variables of an HDF5 file are stored in other files, or labels are missing."""
    with h5py.File(content, "r") as file:
        for name in file:
            link = file.get(name, getlink=True)
            outside = isinstance(link, h5py.ExternalLink)
            if not outside and isinstance(file.get(name), h5py.Dataset):
                outside = bool(file[name].external) or file[name].is_virtual
            if outside:
                raise ValueError(
                    f"its variable {name!r} is stored in another file, which is not opened; copy it into this one."
                )
            if isinstance(file.get(name), h5py.Dataset) and _holds_labels(file[name]):
                check_written(name, file[name])


def _holds_labels(variable: Any) -> bool:
    """Whether an HDF5 variable labels the positions of a dimension; xarray reads those when it opens a file."""
    marked = variable.attrs.get("CLASS") == b"DIMENSION_SCALE"
    return marked and not bytes(variable.attrs.get("NAME", b"")).startswith(ONLY_A_LENGTH)


def check_written(name: str, variable: Any) -> None:
    """Raise if a variable of an HDF5 file was not written, or decompresses to more than it declares.

    HDF5 reads unwritten parts as the fill value, which is accepted only if it means missing.
    """
    if variable.size and variable.id.get_storage_size() == 0:
        raise ValueError(f"its variable {name!r} of shape {variable.shape} was never written: only its size is there.")
    if variable.chunks is None:
        return
    n_declared = math.prod(-(-n // step) for n, step in zip(variable.shape, variable.chunks, strict=True))
    n_stored = variable.id.get_num_chunks()
    fill = variable.fillvalue
    if n_stored < n_declared and "_FillValue" not in variable.attrs and fill == fill:
        raise ValueError(
            f"its variable {name!r} has {n_stored} of {n_declared} chunks, and the others would be read as {fill}; "
            "write them, or give it a _FillValue."
        )
    limit = math.prod(variable.chunks) * variable.dtype.itemsize + SPARE_BYTES
    for number in range(n_stored if variable.compression == "gzip" else 0):
        chunk = variable.id.get_chunk_info(number)
        if chunk.filter_mask == 0 and chunk.size * MOST_DEFLATED > limit:
            _, packed = variable.id.read_direct_chunk(chunk.chunk_offset)
            if streamed_size(zlib.decompressobj(), memoryview(packed), limit) > limit:
                raise ValueError(
                    f"the chunk of its variable {name!r} at {chunk.chunk_offset} decompresses to more than {limit} "
                    f"bytes, where {math.prod(variable.chunks)} entries are declared: it is damaged or forged."
                )
