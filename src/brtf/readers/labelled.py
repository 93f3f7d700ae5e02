"""Arrays whose file names their modes and positions: NetCDF and Zarr."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from brtf.extras import require
from brtf.memory import check_memory
from brtf.readers.sizes import check_fits, check_numbers, choose

NO_NAME = "__xarray_dataarray_variable__"
"""What xarray calls a variable in a file that has no name."""
SAFE_CODECS = {
    *("bytes", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes"),
    *("blosc", "zstd", "gzip", "zlib", "lz4", "bz2", "lzma"),
    *("shuffle", "delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"),
    *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
}
"""Ways to encode a Zarr chunk that only move numbers; pickle, which runs code, is another."""
CHECKSUMS = {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
"""Codecs that notice a flipped bit, as zstd does where it is told to."""
BYTES_PER_CHUNK = 4096
"""What zarr needs to keep track of a chunk while it reads an array, roughly."""


def read_nc(path: Path, *, key: str | None = None) -> tuple[Any, str]:
    """One variable of a NetCDF file as an xarray.DataArray, and its name."""
    xarray, _, h5py = (require(name, extra="label", purpose=".nc files") for name in ("xarray", "h5netcdf", "h5py"))
    content: IO[bytes]
    with open(path, "rb") as file:
        beginning = file.read(4)
        file.seek(0)
        if beginning.startswith(b"CDF"):
            check_memory(2 * path.stat().st_size, "its content", "save it as NetCDF 4")
            # Not mapped: SciPy's reader leaves a file open when it cannot make sense of it.
            content, engine = io.BytesIO(file.read()), "scipy"
        elif beginning == b"\x89HDF":
            content, engine = file, "h5netcdf"
            _check_links(h5py, file)
        else:
            raise ValueError("it is not a NetCDF file, of version 3 or 4.")
        with xarray.open_dataset(content, engine=engine, decode_timedelta=False) as dataset:
            return _load_variable(dataset, key)


def read_zarr(path: Path, *, key: str | None = None) -> tuple[Any, str | None]:
    """A Zarr array, and its name if it is one of a group; an xarray.DataArray where its modes have names."""
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    store = zarr.open(path, mode="r", use_consolidated=False)
    if isinstance(store, zarr.Array):
        if key is not None:
            raise ValueError("it is a single array: leave key out.")
        _check_stored(store)
        check_numbers(store.dtype)
        dims = dimension_names(store)
        if dims is None:
            return store[...], None
        return require("xarray", extra="label", purpose="labels").DataArray(store[...], dims=dims), None
    arrays = dict(store.arrays())
    for array in arrays.values():
        _check_stored(array)
    if all(dimension_names(array) is not None for array in arrays.values()):
        xarray = require("xarray", extra="label", purpose="labels")
        with xarray.open_zarr(path, chunks=None, consolidated=False, decode_timedelta=False) as dataset:
            return _load_variable(dataset, key)
    name = choose(list(arrays), key)
    check_numbers(arrays[name].dtype)
    return arrays[name][...], name


def open_zarr(path: Path, *, key: str | None = None) -> tuple[Any, str | None]:
    """A Zarr array that is read chunk by chunk when it is needed, and its name if it is one of a group."""
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    store = zarr.open(path, mode="r", use_consolidated=False)
    name = None
    if isinstance(store, zarr.Array):
        if key is not None:
            raise ValueError("it is a single array: leave key out.")
    else:
        arrays = dict(store.arrays())
        name = choose(list(arrays), key)
        store = arrays[name]
    _check_codecs(store)
    check_numbers(store.dtype)
    return store, name


def _load_variable(dataset: Any, key: str | None) -> tuple[Any, str]:
    """The variable of an xarray.Dataset that was asked for, in memory."""
    name = choose([str(variable) for variable in dataset.data_vars], key)
    array = dataset[name]
    check_numbers(array.dtype)
    check_fits(array.shape, array.dtype, overhead=sum(coord.nbytes for coord in array.coords.values()))
    array = array.load()
    return (array.rename(None) if name == NO_NAME else array), name


def _check_links(h5py: Any, content: IO[bytes]) -> None:
    """Refuse an HDF5 file whose variables lie in other files."""
    with h5py.File(content, "r") as file:
        for name in file:
            link = file.get(name, getlink=True)
            outside = isinstance(link, h5py.ExternalLink)
            if not outside and isinstance(file.get(name), h5py.Dataset):
                outside = bool(file[name].external) or file[name].is_virtual
            if outside:
                raise ValueError(f"its variable {name!r} lies in another file, which is not opened; copy it in.")


def _check_stored(array: Any) -> None:
    """Refuse a Zarr array that could run code or exhaust the memory when it is read."""
    _check_codecs(array)
    dtype = np.dtype(object) if array.dtype.hasobject else np.dtype(array.dtype)
    check_fits(array.shape, dtype, overhead=array.nchunks * BYTES_PER_CHUNK)
    check_fits(array.shards or array.chunks, dtype)


def _check_codecs(array: Any) -> None:
    unsafe = sorted({name for name, _ in _codecs(array)} - SAFE_CODECS)
    if unsafe:
        raise ValueError(f"its array {array.name!r} is encoded with {', '.join(unsafe)}, which is not opened.")


def has_checksums(array: Any) -> bool:
    """Whether a flipped bit in a stored chunk of a Zarr array is noticed."""
    return any(name in CHECKSUMS or options.get("checksum") is True for name, options in _codecs(array))


def _codecs(array: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every codec of an array and its options: filters and compressor in version 2, nested lists in version 3."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        for codec in (*(metadata.filters or ()), metadata.compressor):
            if codec is not None:
                yield codec.get_config()["id"], codec.get_config()
        return
    remaining = [codec.to_dict() for codec in metadata.codecs]
    while remaining:
        codec = remaining.pop()
        options = codec.get("configuration", {})
        yield codec["name"].removeprefix("numcodecs."), options
        remaining += [*options.get("codecs", ()), *options.get("index_codecs", ())]


def dimension_names(array: Any) -> tuple[str, ...] | None:
    """What a Zarr array calls its modes, in version 3 or as xarray writes it in version 2; None if it does not."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if names is None or len(names) != array.ndim or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
