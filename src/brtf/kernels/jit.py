"""How loops are compiled: once per type, kept on disk, without the interpreter's lock."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

loop = njit(cache=True, nogil=True)
"""A loop compiled as it stands."""
sum_loop = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
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
