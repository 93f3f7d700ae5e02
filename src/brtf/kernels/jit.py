"""How loops are compiled: once per type, kept on disk, without the interpreter's lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
"""Stands for all files of loops as they are."""


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for loops.

    Numba keeps compiled code for as long as the file of its function is the same. It holds what it calls in other
    files, too: here it is kept for as long as all files of loops are the same.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
        kept = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if kept is not None:
            kept._source_stamp = kept._source_stamp, SOURCES
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
