"""Steps that a processor takes with many numbers at once, where a loop would not become that.

Written in LLVM's own terms, for vectors of any width: a processor with narrower registers uses several. Indices are
not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

FREE = ("reassoc", "contract", "nsz")
"""What rounding leaves open: a product and a sum may become one step."""
BYTE, INDEX, LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
SINGLE, REAL = ir.FloatType(), ir.DoubleType()


@dataclass(frozen=True)
class Kind:
    """Entries of one type: how many make a step, their numbers and integers, and how these are made up."""

    lanes: int
    real: Any
    integer: Any
    n_mantissa: int
    bias: int

    @property
    def reals(self) -> Any:
        return ir.VectorType(self.real, self.lanes)

    @property
    def integers(self) -> Any:
        return ir.VectorType(self.integer, self.lanes)

    def all(self, value: float) -> Any:
        """A vector of a number."""
        return ir.Constant(self.reals, [value] * self.lanes)

    def each(self, value: int) -> Any:
        """A vector of an integer."""
        return ir.Constant(self.integers, [value] * self.lanes)


KINDS = {
    types.float32: Kind(8, SINGLE, INDEX, 23, 127),
    types.float64: Kind(4, REAL, LONG, 52, 1023),
}


@intrinsic
def n_at_once(typing_context, numbers):
    """Numbers of an array's type that are taken in one step."""
    return types.int64(numbers), lambda *_: LONG(KINDS[numbers.dtype].lanes)


@intrinsic
def add_rows(
    typing_context, lanes, panel, before, places, amounts, start, stop, others, other, out, target, left, right
):
    """out[target] += others[other] ⊛ Σ_p amounts[p] panel[before + places[p]], for two halves of as many columns as
    ``lanes`` has elements.

    The sum, over start ≤ p < stop, stays in registers. The halves of a row of ``panel`` are the columns from ``left``
    and from ``right`` on. Arrays are C-contiguous and of float64, but for ``places`` of int32.
    """
    width = lanes.count
    signature = types.void(lanes, panel, before, places, amounts, start, stop, others, other, out, target, left, right)

    def generate(context, builder, signature, arguments):
        _, _, before, _, _, start, stop, _, other, _, target, left, right = arguments
        element = Elements(context, builder, signature, arguments)
        whole, part = ir.VectorType(REAL, 2 * width), ir.VectorType(REAL, width)
        total = cgutils.alloca_once_value(builder, ir.Constant(whole, [0.0] * 2 * width))  # LLVM keeps it in registers
        with cgutils.for_range_slice(builder, start, stop, LONG(1)) as (p, _):
            place = builder.sext(builder.load(element.pointer(INDEX, 3, p)), LONG)
            amount = splat(builder, builder.load(element.pointer(REAL, 4, p)), 2 * width)
            row = element.vector(whole, 1, builder.add(place, before), LONG(0))
            builder.store(multiply_add(builder, builder.load(total), amount, row), total)
        for column, first in ((left, 0), (right, width)):
            chosen = ir.Constant(ir.VectorType(INDEX, width), list(range(first, first + width)))
            own = builder.shuffle_vector(builder.load(total), ir.Constant(whole, ir.Undefined), chosen)
            there = element.pointer(part, 9, target, column)
            old = builder.load(there, align=8)
            new = multiply_add(builder, old, own, element.vector(part, 7, other, column))
            builder.store(new, there, align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def add_product(typing_context, width, value, first, j, second, k, out, i, column):
    """out[i] += value first[j] ⊛ second[k], for ``width`` columns from the given one on.

    Arrays are C-contiguous and of float64.
    """
    n_columns = width.literal_value

    def generate(context, builder, signature, arguments):
        _, value, _, j, _, k, _, i, column = arguments
        element, vector = Elements(context, builder, signature, arguments), ir.VectorType(REAL, n_columns)
        there = element.pointer(vector, 6, i, column)
        scaled = builder.fmul(splat(builder, value, n_columns), element.vector(vector, 2, j, column), flags=FREE)
        old = builder.load(there, align=8)
        builder.store(multiply_add(builder, old, scaled, element.vector(vector, 4, k, column)), there, align=8)
        return context.get_dummy_value()

    return types.void(width, value, first, j, second, k, out, i, column), generate


@intrinsic
def list_eight(typing_context, mask, start, table, first, places, position):
    """Write ``first`` + k of the k = 0…7 with mask[start + k], in order, to places[position:]; returns their number.

    ``table`` (256, 8) has these k for every byte whose bits are the eight, whatever beyond them. All eight places are
    written.
    """

    def generate(context, builder, signature, arguments):
        _, start, _, first, _, position = arguments
        element = Elements(context, builder, signature, arguments)
        eight = ir.VectorType(BYTE, 8)
        seen = builder.icmp_unsigned("!=", element.vector(eight, 0, start), ir.Constant(eight, [0] * 8))
        bits = builder.zext(builder.bitcast(seen, BYTE), LONG)
        indices = ir.VectorType(INDEX, 8)
        listed = builder.add(element.vector(indices, 2, bits, LONG(0)), splat(builder, builder.trunc(first, INDEX), 8))
        builder.store(listed, element.pointer(indices, 4, position), align=4)
        return builder.ctpop(bits)

    return types.int64(mask, start, table, first, places, position), generate


class Elements:
    """Addresses within the arrays that a step is given."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self._builder, self._types, self._arguments = context, builder, signature.args, arguments
        if any(isinstance(of_type, types.Array) and of_type.layout != "C" for of_type in signature.args):
            raise TypingError("Several numbers a step are read from arrays in C order only.")

    def pointer(self, kind: Any, which: int, *index: Any) -> Any:
        """Where the element of an argument is, as an address of the given kind."""
        of_type = self._types[which]
        array = self._context.make_array(of_type)(self._context, self._builder, self._arguments[which])
        at = cgutils.get_item_pointer(self._context, self._builder, of_type, array, list(index))
        return self._builder.bitcast(at, kind.as_pointer())

    def length(self, which: int) -> Any:
        """Rows of an argument."""
        array = self._context.make_array(self._types[which])(self._context, self._builder, self._arguments[which])
        return self._builder.extract_value(array.shape, 0)

    def vector(self, kind: Any, which: int, *index: Any) -> Any:
        """The vector that begins at the element of an argument."""
        return self._builder.load(self.pointer(kind, which, *index), align=1)


def multiply_add(builder: Any, old: Any, one: Any, another: Any) -> Any:
    return builder.fadd(old, builder.fmul(one, another, flags=FREE), flags=FREE)


def splat(builder: Any, value: Any, width: int) -> Any:
    """A vector of equal numbers."""
    nothing = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    one = builder.insert_element(nothing, value, INDEX(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(INDEX, width), [0] * width))


def sum_of(builder: Any, kind: Kind, there: Any) -> Any:
    """The sum of the vector of that kind that is kept there."""
    vector = builder.load(there)
    total = builder.extract_element(vector, INDEX(0))
    for k in range(1, kind.lanes):
        total = builder.fadd(total, builder.extract_element(vector, INDEX(k)), flags=FREE)
    return total
