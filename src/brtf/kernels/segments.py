"""Where entries are in a table, and what it says of them there: several entries a step.

In LLVM's terms, as :mod:`brtf.kernels.vectors`. Arrays are C-contiguous; ``n`` entries are taken in steps of
``n_at_once`` of their type, so that there must be a whole number of these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from brtf.kernels.vectors import (
    FREE,
    INDEX,
    KINDS,
    LONG,
    REAL,
    SINGLE,
    Elements,
    Kind,
    multiply_add,
    splat,
    sum_of,
)

PAIR = types.UniTuple(types.float64, 2)


@intrinsic
def locate(typing_context, rho, n, shift, bits, last, places, fractions):
    """Places of entries among the segments of a table, fractions t of these, and the largest ρ.

    ``bits`` is what :func:`brtf.model.evidence_table.usual_places` says, ``shift`` what is added to ρ before; places
    are at most ``last``. An entry's t is in the bits of its ρ below those of the segment.
    """

    def generate(context, builder, signature, arguments):
        step = _Step(KINDS[rho.dtype], context, builder, signature, arguments)
        return step.locate(lambda m: step.reals(0, m), 2)

    return rho.dtype(rho, n, shift, bits, last, places, fractions), generate


@intrinsic
def locate_left(typing_context, values, n, fitted, per_scale, tau, shift, bits, last, places, fractions):
    """The same for ρ = τ (values per_scale − fitted)²."""

    def generate(context, builder, signature, arguments):
        step = _Step(KINDS[values.dtype], context, builder, signature, arguments)

        def rho(m):
            residual = step.left(m, 0, 2, 3)
            return builder.fmul(step.all(arguments[4]), builder.fmul(residual, residual, flags=FREE), flags=FREE)

        return step.locate(rho, 5)

    return values.dtype(values, n, fitted, per_scale, tau, shift, bits, last, places, fractions), generate


@intrinsic
def weigh(typing_context, places, n, fractions, quadratics, seen, weights):
    """Weights of entries, the sum of what ln f gains within their segments, and of the weights; places are counted."""

    def generate(context, builder, signature, arguments):
        step = _Step(KINDS[weights.dtype], context, builder, signature, arguments)
        return step.weigh(lambda m, weight: step.store(weight, 5, m))

    return PAIR(places, n, fractions, quadratics, seen, weights), generate


@intrinsic
def weigh_left(typing_context, places, n, fractions, quadratics, seen, values, fitted, per_scale, per_weight):
    """The same, with the weights put to use: weight per_weight (values per_scale − fitted) is added to ``fitted``."""

    def generate(context, builder, signature, arguments):
        step = _Step(KINDS[values.dtype], context, builder, signature, arguments)

        def complete(m, weight):
            share = builder.fmul(weight, step.all(arguments[8]), flags=FREE)
            step.store(multiply_add(builder, step.reals(6, m), share, step.left(m, 5, 6, 7)), 6, m)

        return step.weigh(complete)

    return PAIR(places, n, fractions, quadratics, seen, values, fitted, per_scale, per_weight), generate


class _Step:
    """What is done with the entries of a step; arguments are known by their positions."""

    def __init__(self, kind: Kind, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.kind, self._builder, self._arguments = kind, builder, arguments
        self._element = Elements(context, builder, signature, arguments)
        self._pair = partial(context.make_tuple, builder, signature.return_type)

    def reals(self, which: int, m: Any) -> Any:
        return self._element.vector(self.kind.reals, which, m)

    def store(self, vector: Any, which: int, m: Any) -> None:
        self._builder.store(vector, self._element.pointer(vector.type, which, m), align=4)

    def all(self, value: Any) -> Any:
        return splat(self._builder, value, self.kind.lanes)

    def left(self, m: Any, values: int, fitted: int, per_scale: int) -> Any:
        """What the low-rank part leaves of the values."""
        scaled = self._builder.fmul(self.reals(values, m), self.all(self._arguments[per_scale]), flags=FREE)
        return self._builder.fsub(scaled, self.reals(fitted, m), flags=FREE)

    def locate(self, rho: Callable[[Any], Any], first: int) -> Any:
        """Places and fractions of all entries; arguments from ``first`` on are those of :func:`locate` from ``shift``.

        Returns the largest ρ.
        """
        builder, kind = self._builder, self.kind
        shift, last = self._arguments[first], self._arguments[first + 2]
        fine, rough, turn, before_fine, before_rough = (
            self.all(builder.load(self._element.pointer(kind.integer, first + 1, LONG(k)))) for k in range(5)
        )
        above_fine, above_rough = (builder.sub(kind.each(kind.n_mantissa), below) for below in (fine, rough))
        end = self.all(builder.trunc(last, kind.integer) if kind.integer is INDEX else last)
        largest = cgutils.alloca_once_value(builder, kind.all(0.0))
        with cgutils.for_range_slice(builder, LONG(0), self._arguments[1], LONG(kind.lanes)) as (m, _):
            own, before = rho(m), builder.load(largest)
            builder.store(builder.select(builder.fcmp_ordered(">", own, before), own, before), largest)
            pattern = builder.bitcast(builder.fadd(own, self.all(shift)), kind.integers)
            is_rough = builder.icmp_signed(">=", pattern, turn)
            place = builder.sub(
                builder.lshr(pattern, builder.select(is_rough, rough, fine)),
                builder.select(is_rough, before_rough, before_fine),
            )
            self.store(builder.select(builder.icmp_signed("<", place, end), place, end), first + 3, m)
            leading = builder.shl(pattern, builder.select(is_rough, above_rough, above_fine))
            mantissa = builder.and_(leading, kind.each((1 << kind.n_mantissa) - 1))
            from_one = builder.bitcast(builder.or_(mantissa, kind.each(kind.bias << kind.n_mantissa)), kind.reals)
            self.store(builder.fsub(from_one, kind.all(1.0)), first + 4, m)
        vector = builder.load(largest)
        found = builder.extract_element(vector, INDEX(0))
        for k in range(1, kind.lanes):
            other = builder.extract_element(vector, INDEX(k))
            found = builder.select(builder.fcmp_ordered(">", found, other), found, other)
        return found

    def weigh(self, use: Callable[[Any, Any], None]) -> Any:
        """Weights of all entries, each handed to ``use``; the first arguments are those of :func:`weigh`.

        Returns the sums of the gains and of the weights.
        """
        builder, kind = self._builder, self.kind
        gains, sums = (cgutils.alloca_once_value(builder, kind.all(0.0)) for _ in range(2))
        with cgutils.for_range_slice(builder, LONG(0), self._arguments[1], LONG(kind.lanes)) as (m, _):
            rows = []
            for k in range(kind.lanes):
                place = builder.load(self._element.pointer(kind.integer, 0, builder.add(m, LONG(k))))
                place = builder.zext(place, LONG) if kind.integer is INDEX else place
                rows.append(self._element.vector(ir.VectorType(SINGLE, 4), 3, place, LONG(0)))
                count = self._element.pointer(LONG, 4, place)
                builder.store(builder.add(builder.load(count), LONG(1)), count)
            constant, slope, curve, half_width = _columns(builder, kind, rows)
            fraction = self.reals(2, m)
            curved = builder.fmul(fraction, curve, flags=FREE)
            weight = multiply_add(builder, constant, fraction, builder.fadd(slope, curved, flags=FREE))
            rise = multiply_add(builder, builder.fmul(slope, kind.all(1 / 2), flags=FREE), curved, kind.all(1 / 3))
            mean = multiply_add(builder, constant, fraction, rise)
            gain = builder.fmul(half_width, fraction, flags=FREE)
            builder.store(multiply_add(builder, builder.load(gains), gain, mean), gains)
            builder.store(builder.fadd(builder.load(sums), weight, flags=FREE), sums)
            use(m, weight)
        totals = (sum_of(builder, kind, part) for part in (gains, sums))
        return self._pair([builder.fpext(total, REAL) if kind.real is SINGLE else total for total in totals])


def _columns(builder: Any, kind: Kind, rows: list[Any]) -> list[Any]:
    """Columns of a matrix whose rows, of four numbers, are given."""

    def shuffle(one: Any, other: Any, chosen: list[int]) -> Any:
        # the same for every four numbers of both, those of the other being 4, 5, 6, 7
        quarters = range(one.type.count // 4)
        indices = [4 * part + k if k < 4 else one.type.count + 4 * part + k - 4 for part in quarters for k in chosen]
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(INDEX, len(indices)), indices))

    if kind.lanes == 8:
        both = ir.Constant(ir.VectorType(INDEX, 8), list(range(8)))
        rows = [builder.shuffle_vector(row, other, both) for row, other in zip(rows[:4], rows[4:], strict=True)]
    low = [shuffle(rows[k], rows[k + 1], [0, 4, 1, 5]) for k in (0, 2)]
    high = [shuffle(rows[k], rows[k + 1], [2, 6, 3, 7]) for k in (0, 2)]
    halves = ([0, 1, 4, 5], [2, 3, 6, 7])
    columns = [shuffle(one, other, chosen) for one, other in (low, high) for chosen in halves]
    return columns if kind.real is SINGLE else [builder.fpext(column, kind.reals) for column in columns]
