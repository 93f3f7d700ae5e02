"""Stored Zarr arrays: which chunks exist, what they decompress to, and how rows are read.

Zarr reads a missing chunk as the fill value, and decompresses a chunk whatever its size. Here a lost chunk is not read
as numbers, and one that holds more than the array declares is not decompressed.
"""

from __future__ import annotations

import bz2
import lzma
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import count_of
from brtf.data.extras import require

CHECKSUMS = {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
"""Codecs with a checksum, which zstd has as an option; each adds four bytes."""
LABELS = {"vlen-utf8", "vlen-bytes"}
"""Codecs of variable-length text: the number of texts, then each preceded by its length."""
LABEL_BYTES = 1024
"""Largest average size of a label in bytes."""
SPARE_BYTES = 2**20
"""Bytes that a chunk may decompress to beyond its entries: headers, and the last block of a compressor."""
ZSTD_FRAME, ZSTD_BLOCK = b"\x28\xb5\x2f\xfd", 2**17
"""First bytes of a zstd frame, and the largest decompressed size of a block."""


def codecs_of(array: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every codec of a Zarr array and its options, in the order of encoding; codecs inside shards come last."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        for codec in (*(metadata.filters or ()), metadata.compressor):
            if codec is not None:
                yield codec.get_config()["id"], codec.get_config()
        return
    remaining = [codec.to_dict() for codec in metadata.codecs]
    while remaining:
        codec = remaining.pop(0)
        options = codec.get("configuration", {})
        yield codec["name"].removeprefix("numcodecs."), options
        remaining += [*options.get("codecs", ()), *options.get("index_codecs", ())]


def read_stored(array: Any, rows: slice | None = None) -> NDArray[Any]:
    """Read rows of a Zarr array, or all of it, after checking that their chunks exist and have the right size."""
    check_chunks(array, rows)
    with decoding():
        return np.asarray(array[...] if rows is None else array[rows])


@contextmanager
def decoding() -> Iterator[None]:
    """A context in which an error of Zarr while decoding an array is reported as damage of its chunks."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        reason = "fails its checksum" if "checksum" in str(error) else "does not hold what the array declares"
        raise ValueError(f"one of its stored chunks {reason}: it is damaged.") from error


def warn_of_damage(array: Any) -> None:
    """Warn if damage to a Zarr array would go unnoticed, or if parts are missing."""
    if not any(name in CHECKSUMS or options.get("checksum") is True for name, options in codecs_of(array)):
        warnings.warn(
            f"{array.store_path} has no checksums, so that a damaged chunk may be read as numbers. Write it with "
            "zarr.codecs.Crc32cCodec among its compressors.",
            UserWarning,
            stacklevel=2,
        )
    if fills_with_nan(array):
        _warn_of_missing(array, "nothing is observed there")


def check_chunks(array: Any, rows: slice | None = None) -> None:
    """Raise if a stored chunk of some rows is missing and would not be read as NaN, or is too large."""
    missing = [] if fills_with_nan(array) else missing_chunks(array, rows)
    if missing:
        raise ValueError(
            f"its stored chunk {missing[0]} does not exist ({len(missing)} in all), and would be read as "
            f"{array.fill_value}; write it, with write_empty_chunks=True, or have a fill_value of NaN"
        )
    _check_sizes(array, rows)


def check_stored_labels(array: Any) -> None:
    """Raise if labels decompress to more than they declare; warn about lost ones."""
    _check_sizes(array, None)
    if array.size > 1:  # a single zero is not stored by default
        _warn_of_missing(array, f"labels are read as {array.fill_value!r} there")


def fills_with_nan(array: Any) -> bool:
    """Whether missing chunks of a Zarr array are read as missing entries."""
    kind = np.dtype(array.dtype).kind if not array.dtype.hasobject else "O"
    return kind == "f" and array.fill_value is not None and bool(np.isnan(array.fill_value))


def missing_chunks(array: Any, rows: slice | None = None) -> list[str]:
    """Keys of the missing chunks of some rows, or of all."""
    from zarr.core.sync import sync

    return [key for key in _keys(array, rows) if not sync((array.store_path / key).exists())]


def _keys(array: Any, rows: slice | None) -> Iterator[str]:
    """Keys of the chunks that contain some rows, or all."""
    counts = [-(-n // step) for n, step in zip(array.shape, array.shards or array.chunks, strict=True)]
    first = 0
    if rows is not None:
        step = (array.shards or array.chunks)[0]
        first, counts[0] = rows.start // step, -(-rows.stop // step) - rows.start // step
    for place in np.ndindex(*counts):
        yield array.metadata.encode_chunk_key((first + place[0], *place[1:]) if place else ())


def _warn_of_missing(array: Any, so: str) -> None:
    missing = missing_chunks(array)
    if missing:
        warnings.warn(
            f"{count_of(len(missing), 'stored chunk', 'stored chunks')} of {array.store_path} "
            f"{'does' if len(missing) == 1 else 'do'} not exist ({missing[0]}, …): {so}.",
            UserWarning,
            stacklevel=3,
        )


# ---- what a chunk decompresses to --------------------------------------------------------------------------------


def _check_sizes(array: Any, rows: slice | None) -> None:
    """Raise if chunks in files would decompress to more than the array declares; other stores are trusted."""
    root = getattr(array.store_path.store, "root", None)
    codecs = [(name, options) for name, options in codecs_of(array) if name != "transpose"]
    if not isinstance(root, Path) or all(name == "bytes" for name, _ in codecs):
        return
    n_entries = math.prod(array.chunks)
    itemsize = LABEL_BYTES if array.dtype.hasobject or array.dtype.kind == "T" else np.dtype(array.dtype).itemsize
    limit = n_entries * max(itemsize, 16) + SPARE_BYTES  # filters may have used a wider type
    inner = list(codecs)
    n_inner = 0
    if codecs[0][0] == "sharding_indexed":
        options = codecs[0][1]
        inner = [
            (codec["name"].removeprefix("numcodecs."), codec.get("configuration", {})) for codec in options["codecs"]
        ]
        n_inner = math.prod(array.shards) // n_entries
    for key in _keys(array, rows):
        file = root / array.store_path.path / key
        if not file.is_file():
            continue
        stored = memoryview(file.read_bytes())
        parts = _shard_parts(stored, codecs[0][1], n_inner) if n_inner else [stored]
        for part in parts:
            reason = _overflow(part, inner, limit, n_entries)
            if reason is not None:
                raise ValueError(f"its stored chunk {key} of {array.name!r} {reason}: it is damaged or forged.")


def _shard_parts(shard: memoryview, options: dict[str, Any], n_parts: int) -> list[memoryview]:
    """The chunks in a shard, located by its index of offsets and lengths."""
    n_index = 16 * n_parts
    n_checks = 4 * sum(codec["name"].removeprefix("numcodecs.") in CHECKSUMS for codec in options["index_codecs"])
    if len(shard) < n_index + n_checks or len(options["index_codecs"]) != 1 + n_checks // 4:
        raise ValueError("its shards have an index of another size or kind than they declare.")
    start = 0 if options.get("index_location") == "start" else len(shard) - n_index - n_checks
    index = np.frombuffer(shard[start : start + n_index], "<u8").reshape(-1, 2)
    return [shard[int(begin) : int(begin + length)] for begin, length in index if begin != 2**64 - 1]


def _overflow(stored: memoryview, codecs: list[tuple[str, dict[str, Any]]], limit: int, n_entries: int) -> str | None:
    """Why a chunk must not be decompressed; None if it may be."""
    numcodecs = require("numcodecs", extra="big", purpose=".zarr stores")
    packers = [name for name, _ in codecs if name in SIZES]
    for name, options in reversed(codecs):
        if name in CHECKSUMS:
            in_front = name in ("crc32", "adler32") and options.get("location", "start") == "start"
            stored = stored[4:] if in_front else stored[:-4]
        elif name in SIZES:
            packers.pop()
            if SIZES[name](stored, limit) > limit:
                return f"decompresses to more than {limit} bytes, where {n_entries} entries are declared"
            if packers or codecs[0][0] in LABELS:
                stored = memoryview(numcodecs.get_codec({"id": name}).decode(bytes(stored)))
        elif name in LABELS and int.from_bytes(stored[:4], "little") != n_entries:
            return f"claims {int.from_bytes(stored[:4], 'little')} labels, where {n_entries} are declared"
    return None


def _zstd_size(stored: memoryview, limit: int) -> int:
    """The decompressed size declared by zstd frames, or an upper limit."""
    claimed = possible = place = 0
    while stored[place : place + 4] == ZSTD_FRAME and max(claimed, possible) <= limit + ZSTD_BLOCK:
        flags = stored[place + 4]
        single, n_size = flags >> 5 & 1, (0, 2, 4, 8)[flags >> 6]
        n_size = 1 if single and n_size == 0 else n_size
        place += 5 + (not single) + (0, 1, 2, 4)[flags & 3]
        claimed += int.from_bytes(stored[place : place + n_size], "little")
        place, last = place + n_size, False
        while not last and place + 3 <= len(stored):
            block = int.from_bytes(stored[place : place + 3], "little")
            last, kind, n_bytes = bool(block & 1), block >> 1 & 3, block >> 3
            possible += n_bytes if kind < 2 else 0  # for compressed blocks the frame gives the size
            possible += ZSTD_BLOCK if kind == 2 and n_size == 0 else 0
            place += 3 + (1 if kind == 1 else n_bytes)
        place += 4 * (flags >> 2 & 1)
    return max(claimed, possible)


def streamed_size(unpacker: Any, stored: memoryview, limit: int) -> int:
    """Decompressed size of a stream, read a megabyte at a time and no further than the limit."""
    n_bytes, given = 0, bytes(stored)
    while not unpacker.eof and n_bytes <= limit:
        piece = unpacker.decompress(given, SPARE_BYTES)
        given = getattr(unpacker, "unconsumed_tail", b"")
        n_bytes += len(piece)
        if not piece and not given:
            break
    return n_bytes


def _gzip_size(stored: memoryview, limit: int) -> int:
    n_bytes, given = 0, bytes(stored)
    while given and n_bytes <= limit:  # a stream may have several members
        unpacker = zlib.decompressobj(wbits=47)  # gzip or zlib
        n_bytes += streamed_size(unpacker, memoryview(given), limit)
        if not unpacker.eof or unpacker.unused_data == given:
            break
        given = unpacker.unused_data
    return n_bytes


SIZES: dict[str, Callable[[memoryview, int], int]] = {
    "zstd": _zstd_size,
    "blosc": lambda stored, limit: int.from_bytes(stored[4:8], "little"),
    "lz4": lambda stored, limit: int.from_bytes(stored[:4], "little"),
    "gzip": _gzip_size,
    "zlib": _gzip_size,
    "bz2": lambda stored, limit: streamed_size(bz2.BZ2Decompressor(), stored, limit),
    "lzma": lambda stored, limit: streamed_size(lzma.LZMADecompressor(), stored, limit),
}
"""Decompressed size of a chunk by codec, or more than the limit, without allocating it."""
