"""Products of thin matrices, whose number of columns or rows is the rank.

BLAS first packs its arguments, which takes as long as such a product itself. Here they are read in place, and the sums
of a few rows and columns stay in registers. Arrays are C-contiguous and of one type.
"""

from __future__ import annotations

from brtf.kernels.jit import inlined, loop, sum_loop
from brtf.kernels.vectors import combine, n_at_once

COLUMNS = 512
"""Columns per tile, which stays in L1 cache."""


@inlined
def _combine_all(steps, fresh, weights, rows, column, out):
    """:func:`combine` for all rows of ``out``."""
    n_rows, i = len(out), 0
    while i + 5 <= n_rows:
        combine(5, steps, fresh, weights, i, rows, column, out)
        i += 5
    while i + 2 <= n_rows:
        combine(2, steps, fresh, weights, i, rows, column, out)
        i += 2
    if i < n_rows:
        combine(1, steps, fresh, weights, i, rows, column, out)


@inlined
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
    """out += left rightᵀ, with (n, C) ``left`` and (R, C) ``right``, R small: two rows by five, whose ten sums the
    compiler keeps in registers."""
    (n_left, n_columns), n_right, zero = left.shape, len(right), left.dtype.type(0.0)
    for start in range(0, n_columns, COLUMNS):
        stop = min(start + COLUMNS, n_columns)
        for i in range(0, n_left, 2):
            next_i = min(i + 1, n_left - 1)  # an odd last row is used twice
            a, b, j = left[i, start:stop], left[next_i, start:stop], 0
            while j + 5 <= n_right:
                r0, r1, r2 = right[j, start:stop], right[j + 1, start:stop], right[j + 2, start:stop]
                r3, r4 = right[j + 3, start:stop], right[j + 4, start:stop]
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
                for c in range(a.size):
                    a0 += a[c] * r0[c]
                    a1 += a[c] * r1[c]
                    a2 += a[c] * r2[c]
                    a3 += a[c] * r3[c]
                    a4 += a[c] * r4[c]
                    b0 += b[c] * r0[c]
                    b1 += b[c] * r1[c]
                    b2 += b[c] * r2[c]
                    b3 += b[c] * r3[c]
                    b4 += b[c] * r4[c]
                out[i, j] += a0
                out[i, j + 1] += a1
                out[i, j + 2] += a2
                out[i, j + 3] += a3
                out[i, j + 4] += a4
                if next_i > i:
                    out[next_i, j] += b0
                    out[next_i, j + 1] += b1
                    out[next_i, j + 2] += b2
                    out[next_i, j + 3] += b3
                    out[next_i, j + 4] += b4
                j += 5
            while j < n_right:
                r0, a0, b0 = right[j, start:stop], zero, zero
                for c in range(a.size):
                    a0 += a[c] * r0[c]
                    b0 += b[c] * r0[c]
                out[i, j] += a0
                if next_i > i:
                    out[next_i, j] += b0
                j += 1


@loop
def put(matrix, out):
    """Copy a matrix number by number: to assign a slice would compile its error message, which takes seconds."""
    for i in range(len(matrix)):
        for r in range(matrix.shape[1]):
            out[i, r] = matrix[i, r]
