"""Zarr arrays as they are stored: which chunks are there, what these unfold to, and how rows are read.

Zarr reads a chunk that is not stored as the fill value, and unfolds a packed one whatever its size. Here a chunk that
is lost is not taken for numbers, and one that holds more than the array declares is not unfolded.
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
"""Codecs that notice a flipped bit, as zstd does where it is told to; each adds four bytes."""
LABELS = {"vlen-utf8", "vlen-bytes"}
"""Codecs of texts of any length: their number, and every one after its length."""
LABEL_BYTES = 1024
"""What a label may take on average."""
SPARE_BYTES = 2**20
"""What a chunk may unfold to beyond its entries: headers, and the last block of a packer."""
ZSTD_FRAME, ZSTD_BLOCK = b"\x28\xb5\x2f\xfd", 2**17
"""How a frame of zstd begins, and what one of its blocks unfolds to at most."""


def codecs_of(array: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every codec of a Zarr array and its options, in the order of encoding; what shards use inside comes after."""
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
    """Rows of a Zarr array, or all of it, once all their stored chunks are known to be there and of their size."""
    check_chunks(array, rows)
    with decoding():
        return np.asarray(array[...] if rows is None else array[rows])


@contextmanager
def decoding() -> Iterator[None]:
    """Whatever stops Zarr from decoding an array within is damage of its chunks, and is said so."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        reason = "fails its checksum" if "checksum" in str(error) else "does not hold what the array declares"
        raise ValueError(f"one of its stored chunks {reason}: it is damaged.") from error


def warn_of_damage(array: Any) -> None:
    """Warn of a Zarr array in which damage would go unnoticed, or parts are missing."""
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
    """Refuse rows of a Zarr array if a stored chunk would be read as other numbers than NaN, or holds too much."""
    missing = [] if fills_with_nan(array) else missing_chunks(array, rows)
    if missing:
        raise ValueError(
            f"its stored chunk {missing[0]} does not exist ({len(missing)} in all), and would be read as "
            f"{array.fill_value}; write it, with write_empty_chunks=True, or have a fill_value of NaN"
        )
    _check_sizes(array, rows)


def check_stored_labels(array: Any) -> None:
    """Refuse labels that unfold to more than they declare; warn of those that are lost."""
    _check_sizes(array, None)
    if array.size > 1:  # a single zero is not stored by default
        _warn_of_missing(array, f"labels are read as {array.fill_value!r} there")


def fills_with_nan(array: Any) -> bool:
    """Whether what is not stored of a Zarr array reads as missing."""
    kind = np.dtype(array.dtype).kind if not array.dtype.hasobject else "O"
    return kind == "f" and array.fill_value is not None and bool(np.isnan(array.fill_value))


def missing_chunks(array: Any, rows: slice | None = None) -> list[str]:
    """Keys of the stored chunks of some rows, or of all, that are not there."""
    from zarr.core.sync import sync

    return [key for key in _keys(array, rows) if not sync((array.store_path / key).exists())]


def _keys(array: Any, rows: slice | None) -> Iterator[str]:
    """Keys of the stored chunks that hold some rows, or all."""
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


# ---- what a chunk unfolds to -------------------------------------------------------------------------------------


def _check_sizes(array: Any, rows: slice | None) -> None:
    """Refuse chunks in files that would unfold to more than the array declares; other stores are the user's own."""
    root = getattr(array.store_path.store, "root", None)
    codecs = [(name, options) for name, options in codecs_of(array) if name != "transpose"]
    if not isinstance(root, Path) or all(name == "bytes" for name, _ in codecs):
        return
    n_entries = math.prod(array.chunks)
    itemsize = LABEL_BYTES if array.dtype.hasobject or array.dtype.kind == "T" else np.dtype(array.dtype).itemsize
    limit = n_entries * max(itemsize, 16) + SPARE_BYTES  # filters may have widened what are numbers in the end
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
    """The chunks in a shard, by its index: pairs of where they begin and how long they are."""
    n_index = 16 * n_parts
    n_checks = 4 * sum(codec["name"].removeprefix("numcodecs.") in CHECKSUMS for codec in options["index_codecs"])
    if len(shard) < n_index + n_checks or len(options["index_codecs"]) != 1 + n_checks // 4:
        raise ValueError("its shards have an index of another size or kind than they declare.")
    start = 0 if options.get("index_location") == "start" else len(shard) - n_index - n_checks
    index = np.frombuffer(shard[start : start + n_index], "<u8").reshape(-1, 2)
    return [shard[int(begin) : int(begin + length)] for begin, length in index if begin != 2**64 - 1]


def _overflow(stored: memoryview, codecs: list[tuple[str, dict[str, Any]]], limit: int, n_entries: int) -> str | None:
    """Why a chunk must not be unfolded, if so."""
    numcodecs = require("numcodecs", extra="big", purpose=".zarr stores")
    packers = [name for name, _ in codecs if name in SIZES]
    for name, options in reversed(codecs):
        if name in CHECKSUMS:
            in_front = name in ("crc32", "adler32") and options.get("location", "start") == "start"
            stored = stored[4:] if in_front else stored[:-4]
        elif name in SIZES:
            packers.pop()
            if SIZES[name](stored, limit) > limit:
                return f"unfolds to more than {limit} bytes, where {n_entries} entries are declared"
            if packers or codecs[0][0] in LABELS:
                stored = memoryview(numcodecs.get_codec({"id": name}).decode(bytes(stored)))
        elif name in LABELS and int.from_bytes(stored[:4], "little") != n_entries:
            return f"claims {int.from_bytes(stored[:4], 'little')} labels, where {n_entries} are declared"
    return None


def _zstd_size(stored: memoryview, limit: int) -> int:
    """What frames of zstd claim to unfold to, or may at most."""
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
            possible += n_bytes if kind < 2 else 0  # of packed blocks the frame says how much they are
            possible += ZSTD_BLOCK if kind == 2 and n_size == 0 else 0
            place += 3 + (1 if kind == 1 else n_bytes)
        place += 4 * (flags >> 2 & 1)
    return max(claimed, possible)


def streamed_size(unpacker: Any, stored: memoryview, limit: int) -> int:
    """What a stream unfolds to, looked at a megabyte at a time and no further than the limit."""
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
    while given and n_bytes <= limit:  # members, one after another
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
"""How many bytes a packed chunk unfolds to, or more than the limit, without the memory for it."""
