"""How loops are compiled: once per type, kept on disk, without the interpreter's lock."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic

SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
"""Stands for all files of loops as they are."""
DIGEST_BYTES = hashlib.sha256().digest_size


class CheckedFile(IndexDataCacheFile):
    """Numba's files of a function's compiled code, each behind its SHA-256.

    A file that is damaged, or of another version, counts as absent, and is written anew. Numba alone would fail over
    it in every process from then on, or run what a flipped bit has made of the code.
    """

    def _dump(self, content):
        packed = super()._dump(content)
        return hashlib.sha256(packed).digest() + packed

    def _save_index(self, overloads):
        with self._open_for_write(self._index_path) as file:
            file.write(self._dump((self._version, self._source_stamp, overloads)))

    def _load_index(self):
        match self._read(self._index_path):
            case version, stamp, overloads if (version, stamp) == (self._version, self._source_stamp):
                return overloads
        return {}

    def _load_data(self, name):
        return self._read(self._data_path(name))

    def _read(self, path):
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        digest, packed = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != digest:
            return None
        try:
            return pickle.loads(packed)
        except Exception:  # of a version whose classes had other names
            return None


class Kept(FunctionCache):
    """Where compiled code of a function is kept for other processes: for as long as all files of loops are the same.

    Numba alone looks at the file of the function only, and compiled code holds what it calls in other files, too.
    """

    def __init__(self, function):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), SOURCES
        self._cache_file = CheckedFile(self._cache_path, self._impl.filename_base, stamp)

    def save_overload(self, signature, compiled):
        try:
            super().save_overload(signature, compiled)
        except OSError:  # the directory is full, or was taken away
            _warn_that_nothing_is_kept()


@cache
def _warn_that_nothing_is_kept() -> None:
    """Say so, once."""
    warnings.warn(
        "Compiled code cannot be kept, as no directory for it can be written to: every process compiles anew, which "
        "takes ten seconds or more. Set NUMBA_CACHE_DIR to a directory that can be written to.",
        UserWarning,
        stacklevel=2,
    )


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for loops."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, **options)(function)
        if hasattr(dispatcher, "enable_caching"):  # NUMBA_DISABLE_JIT leaves the function as it is
            try:
                dispatcher._cache = Kept(function)
            except RuntimeError:  # there is no directory that can be written to
                _warn_that_nothing_is_kept()
        return dispatcher

    return decorate


loop = _compiled()
"""A loop compiled as it stands."""
sum_loop = _compiled(fastmath={"reassoc", "contract", "nsz"})
"""A loop whose sums may be taken in any order, so that a processor adds several terms at once."""
CACHE_LINE = 8
"""Numbers of float64 that come into the cache together."""


@intrinsic
def _prefetch(typing_context, matrix, row, column):
    """Ask for matrix[row, column] to be brought into the cache, and do not wait."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(context, builder, signature.args[0], array, list(arguments[1:]))
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        ask = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        builder.call(ask, [builder.bitcast(pointer, byte), flag(0), flag(3), flag(1)])  # to read, to keep, data
        return context.get_dummy_value()

    return types.void(matrix, row, column), generate


@loop
def prefetch_row(matrix, row):
    """Ask for a row of a matrix to be brought into the cache, and do not wait."""
    for column in range(0, matrix.shape[1], CACHE_LINE):
        _prefetch(matrix, row, column)
