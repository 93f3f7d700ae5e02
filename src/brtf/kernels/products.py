"""Products of matrices that are thin: with as many columns, or as few rows, as there are components.

BLAS brings its arguments into an order of its own first, which takes as long as such a product itself. Here they are
read where they are, and the sums of a few rows and columns stay in registers: in LLVM's terms, as in
:mod:`brtf.kernels.vectors`. Arrays are C-contiguous and of one type.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from brtf.kernels.jit import sum_loop
from brtf.kernels.vectors import FREE, KINDS, LONG, Elements, multiply_add, n_at_once, splat, sum_of

COLUMNS = 512
"""Columns that are worked on together: what they meet stays in the innermost cache."""


@intrinsic(prefer_literal=True)
def _combine(typing_context, n_rows, steps, fresh, weights, first, rows, column, out):
    """out[i, c] = Σ_k weights[i, k] rows[k, c], for ``n_rows`` i from ``first`` on and as many steps of c as ``steps``
    has elements.

    It is added to ``out`` unless that is ``fresh``. No steps stand for a single column.
    """
    kind, n_own = KINDS[out.dtype], n_rows.literal_value
    width = max(1, steps.count * kind.lanes)

    def generate(context, builder, signature, arguments):
        element, vector = Elements(context, builder, signature, arguments), ir.VectorType(kind.real, width)
        places = [builder.add(arguments[4], LONG(row)) for row in range(n_own)]
        targets = [element.pointer(vector, 7, place, arguments[6]) for place in places]
        totals = [cgutils.alloca_once(builder, vector) for _ in places]
        for total, target in zip(totals, targets, strict=True):
            zero, before = ir.Constant(vector, [0.0] * width), builder.load(target, align=4)
            builder.store(builder.select(arguments[2], zero, before), total)
        with cgutils.for_range_slice(builder, LONG(0), element.length(5), LONG(1)) as (k, _):
            own = element.vector(vector, 5, k, arguments[6])
            for total, place in zip(totals, places, strict=True):
                weight = splat(builder, builder.load(element.pointer(kind.real, 3, place, k)), width)
                builder.store(multiply_add(builder, builder.load(total), weight, own), total)
        for total, target in zip(totals, targets, strict=True):
            builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    return types.void(n_rows, steps, fresh, weights, first, rows, column, out), generate


@intrinsic(prefer_literal=True)
def _add_dots(typing_context, n_left, n_right, left, i, right, j, start, stop, out):
    """out[i, j] += Σ_c left[i, c] right[j, c], for a few rows of both, over a whole number of steps of c."""
    kind, n_rows, n_columns = KINDS[out.dtype], n_left.literal_value, n_right.literal_value

    def generate(context, builder, signature, arguments):
        element = Elements(context, builder, signature, arguments)
        own, others = (
            [builder.add(arguments[first], LONG(row)) for row in range(n)] for first, n in ((3, n_rows), (5, n_columns))
        )
        totals = [[cgutils.alloca_once(builder, kind.reals) for _ in others] for _ in own]
        for total in (total for row in totals for total in row):
            builder.store(kind.all(0.0), total)
        with cgutils.for_range_slice(builder, arguments[6], arguments[7], LONG(kind.lanes)) as (c, _):
            vectors = [element.vector(kind.reals, 2, place, c) for place in own]
            for k, place in enumerate(others):
                other = element.vector(kind.reals, 4, place, c)
                for vector, row in zip(vectors, totals, strict=True):
                    builder.store(multiply_add(builder, builder.load(row[k]), vector, other), row[k])
        for place, row in zip(own, totals, strict=True):
            for other, total in zip(others, row, strict=True):
                target = element.pointer(kind.real, 8, place, other)
                found = sum_of(builder, kind, total)
                builder.store(builder.fadd(builder.load(target), found, flags=FREE), target)
        return context.get_dummy_value()

    return types.void(n_left, n_right, left, i, right, j, start, stop, out), generate


@sum_loop
def _combine_all(steps, fresh, weights, rows, column, out):
    """:func:`_combine` for all rows of ``out``."""
    n_rows, i = len(out), 0
    while i + 5 <= n_rows:
        _combine(5, steps, fresh, weights, i, rows, column, out)
        i += 5
    while i + 2 <= n_rows:
        _combine(2, steps, fresh, weights, i, rows, column, out)
        i += 2
    if i < n_rows:
        _combine(1, steps, fresh, weights, i, rows, column, out)


@sum_loop
def _multiply(fresh, weights, rows, out):
    n_columns, step = out.shape[1], n_at_once(out)
    n_whole = n_columns - n_columns % step
    n_double = n_columns - n_columns % (2 * step)
    for column in range(0, n_double, 2 * step):
        _combine_all((0, 0), fresh, weights, rows, column, out)
    for column in range(n_double, n_whole, step):
        _combine_all((0,), fresh, weights, rows, column, out)
    for column in range(n_whole, n_columns):
        _combine_all((), fresh, weights, rows, column, out)


@sum_loop
def multiply(weights, rows, out):
    """out = weights rows, with (n, k) ``weights`` and (k, C) ``rows``, n or k small."""
    _multiply(True, weights, rows, out)


@sum_loop
def add_product(weights, rows, out):
    """out += weights rows."""
    _multiply(False, weights, rows, out)


@sum_loop
def add_projections(left, right, out):
    """out += left rightᵀ, with (n, C) ``left`` and (R, C) ``right``, R small."""
    (n_left, n_columns), n_right = left.shape, len(right)
    n_whole = n_columns - n_columns % n_at_once(left)
    for start in range(0, n_whole, COLUMNS):
        stop = min(start + COLUMNS, n_whole)
        for i in range(0, n_left - n_left % 2, 2):
            j = 0
            while j + 5 <= n_right:
                _add_dots(2, 5, left, i, right, j, start, stop, out)
                j += 5
            while j < n_right:
                _add_dots(2, 1, left, i, right, j, start, stop, out)
                j += 1
        for i in range(n_left - n_left % 2, n_left):
            for j in range(n_right):
                _add_dots(1, 1, left, i, right, j, start, stop, out)
    for c in range(n_whole, n_columns):
        for i in range(n_left):
            for j in range(n_right):
                out[i, j] += left[i, c] * right[j, c]
