"""Arrays with named modes and labelled positions: NetCDF and Zarr."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.data.readers.hdf5 import check_links, check_written
from brtf.data.readers.sizes import check_fits, check_numbers, choose
from brtf.data.readers.stores import check_chunks, check_stored_labels, codecs_of, decoding, read_stored, warn_of_damage

NO_NAME = "__xarray_dataarray_variable__"
"""xarray's name in a file for a variable without a name."""
SAFE_CODECS = {
    *("bytes", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes"),
    *("blosc", "zstd", "gzip", "zlib", "lz4", "bz2", "lzma"),
    *("shuffle", "delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"),
    *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
}
"""Zarr codecs that only transform bytes; others, such as pickle, can run code."""
PACKED = ("scale_factor", "add_offset", "missing_value")
"""Attributes that change the meaning of the stored numbers."""
GROUP_FILES = ("zarr.json", ".zgroup", ".zattrs", ".zmetadata")
"""Metadata files of a Zarr group."""
BYTES_PER_CHUNK = 4096
"""Approximate bytes that zarr needs per chunk while reading an array."""


def read_nc(path: Path, *, key: str | None = None) -> tuple[Any, str]:
    """One variable of a NetCDF file as an xarray.DataArray, and its name."""
    xarray, _, h5py = (require(name, extra="label", purpose=".nc files") for name in ("xarray", "h5netcdf", "h5py"))
    content: IO[bytes]
    with open(path, "rb") as file:
        beginning = file.read(4)
        file.seek(0)
        if beginning.startswith(b"CDF"):
            check_memory(2 * path.stat().st_size, "its content", "save it as NetCDF 4")
            # Not mapped: SciPy's reader leaves an invalid file open.
            whole = file.read()
            _check_classic(whole)
            content, engine = io.BytesIO(whole), "scipy"
        elif beginning == b"\x89HDF":
            content, engine = file, "h5netcdf"
            check_links(h5py, file)
        else:
            raise ValueError("it is not a NetCDF file, of version 3 or 4.")
        with xarray.open_dataset(content, engine=engine, decode_timedelta=False) as dataset:
            if engine == "h5netcdf":
                name = choose(_shapes(dataset), key)
                with h5py.File(path, "r") as stored:
                    check_written(name, stored[name])
            return _load_variable(dataset, key)


def _check_classic(content: bytes) -> None:
    """Raise if SciPy cannot parse a NetCDF 3 file; its own exceptions vary and do not describe the file."""
    from scipy.io import netcdf_file

    try:
        netcdf_file(io.BytesIO(content), mmap=False)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError("its header does not match its content: it is cut short or was modified.") from error


def read_zarr(path: Path, *, key: str | None = None) -> tuple[Any, str | None]:
    """A Zarr array, and its name if it is one of a group; an xarray.DataArray where its modes have names."""
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    store = _open(path)
    if isinstance(store, zarr.Array):
        array, name = open_zarr(path, key=key)
        _check_stored(array)
        warn_of_damage(array)
        numbers, dims = read_stored(array), dimension_names(array)
        if dims is None:
            return numbers, name
        return require("xarray", extra="label", purpose="labels").DataArray(numbers, dims=dims), name
    arrays = _arrays_in(path)
    for array in arrays.values():
        _check_stored(array)
    if not all(dimension_names(array) is not None for array in arrays.values()):
        array, name = open_zarr(path, key=key)
        warn_of_damage(array)
        return read_stored(array), name
    for own, array in arrays.items():
        if dimension_names(array) == (own,):  # xarray reads them immediately, and says of damage what NumPy says
            check_stored_labels(array)
            with decoding():
                array[...]
    xarray = require("xarray", extra="label", purpose="labels")
    with _told_of_strays(), xarray.open_zarr(path, chunks=None, consolidated=False, decode_timedelta=False) as dataset:
        name = choose(_shapes(dataset), key)
        for label in dataset[name].coords:
            if label not in dataset.indexes and label in arrays:
                check_stored_labels(arrays[str(label)])
        warn_of_damage(arrays[name])
        check_chunks(arrays[name])
        with decoding():
            return _load_variable(dataset, name)


def open_zarr(path: Path, *, key: str | None = None) -> tuple[Any, str | None]:
    """Open a Zarr array for reading in chunks; returns it and its name if it is one of a group."""
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    store = _open(path)
    name = None
    if isinstance(store, zarr.Array):
        if key is not None:
            raise ValueError("it is a single array: leave key out.")
    else:
        arrays = _arrays_in(path)
        named = {other for array in arrays.values() for other in str(array.attrs.get("coordinates", "")).split()}
        labels = {own for own, array in arrays.items() if own in named or dimension_names(array) == (own,)}
        name = choose({own: None if own in labels else array.shape for own, array in arrays.items()}, key)
        store = arrays[name]
    _check_codecs(store)
    check_numbers(store.dtype)
    packed = [attribute for attribute in PACKED if attribute in store.attrs]
    if packed:
        raise ValueError(
            f"its values are packed ({', '.join(packed)}), and only labelled arrays read as a whole are unpacked "
            "here; unpack them with xarray first."
        )
    return store, name


def _open(path: Path) -> Any:
    """The Zarr array or group in a directory; metadata that make no sense are refused."""
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    try:
        return zarr.open(path, mode="r", use_consolidated=False)
    except Exception as error:
        if isinstance(error, MemoryError) or getattr(error, "filename", None) is not None:
            raise
        raise ValueError(f"Zarr cannot parse the metadata of {path.name}: they are damaged.") from error


def _arrays_in(path: Path) -> dict[str, Any]:
    """The arrays of a Zarr group by their names; warns of anything in it that is neither an array nor a group.

    They are opened one by one: opened together, Zarr leaves errors behind that are printed later.
    """
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    nodes, strays = {}, []
    for place in sorted(path.iterdir()):
        if any((place / file).is_file() for file in ("zarr.json", ".zarray", ".zgroup")):
            nodes[place.name] = _open(place)
        elif place.name not in GROUP_FILES:
            strays.append(place.name)
    if strays:
        warnings.warn(
            f"{path} holds {', '.join(map(repr, strays))}, which is no Zarr array and is not read. If it was one, its "
            "zarr.json is lost.",
            UserWarning,
            stacklevel=2,
        )
    return {name: node for name, node in nodes.items() if isinstance(node, zarr.Array)}


@contextmanager
def _told_of_strays() -> Iterator[None]:
    """Silence Zarr's warning about other files in a group: `_arrays_in` has warned of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Object at .* is not recognized as a component of a Zarr hierarchy")
        yield


def _shapes(dataset: Any) -> dict[str, tuple[int, ...]]:
    return {str(name): variable.shape for name, variable in dataset.data_vars.items()}


def _load_variable(dataset: Any, key: str | None) -> tuple[Any, str]:
    """The requested variable of an xarray.Dataset, in memory."""
    name = choose(_shapes(dataset), key)
    array = dataset[name]
    check_numbers(array.dtype)
    check_fits(array.shape, array.dtype, overhead=sum(coord.nbytes for coord in array.coords.values()))
    array = array.load()
    return (array.rename(None) if name == NO_NAME else array), name


def _check_stored(array: Any) -> None:
    """Raise if reading a Zarr array could run code or exhaust the memory."""
    _check_codecs(array)
    dtype = np.dtype(object) if array.dtype.hasobject else np.dtype(array.dtype)
    check_fits(array.shape, dtype, overhead=array.nchunks * BYTES_PER_CHUNK)
    check_fits(array.shards or array.chunks, dtype)


def _check_codecs(array: Any) -> None:
    unsafe = sorted({name for name, _ in codecs_of(array)} - SAFE_CODECS)
    if unsafe:
        raise ValueError(f"its array {array.name!r} is encoded with {', '.join(unsafe)}, which brtf does not run.")


def dimension_names(array: Any) -> tuple[str, ...] | None:
    """Names of the modes of a Zarr array, in version 3 or as written by xarray in version 2; None without names."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if array.ndim == 0:
        return ()
    if names is None or len(names) != array.ndim or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
