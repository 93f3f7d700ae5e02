"""Solves for the rows of a mode in compiled loops: the twin of :mod:`brtf.kernels.reference.rows`.

The Cholesky factor, its inverse and the covariance are sums over earlier rows of a matrix. Four rows are summed at a
time, in registers, with the tiles of :func:`brtf.kernels.vectors.combine`; matrices are padded to whole tiles.
"""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import plain
from brtf.kernels.jit import sum_loop
from brtf.kernels.packed import unpack_symmetric
from brtf.kernels.reference import rows
from brtf.kernels.vectors import combine

TOGETHER, WIDTH = 4, 8
"""Rows and columns summed at once."""


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows from precision matrices and linear terms: means, packed covariances, ln|cov|."""
    n_rows, rank = len(precision), linear.shape[1]
    mean, packed, log_det = np.empty((n_rows, rank)), np.empty((n_rows, rank * (rank + 1) // 2)), np.empty(n_rows)
    if not _solve(plain(precision), plain(linear[:n_rows]), mean, packed, log_det):
        return rows.solve_rows(precision, linear)  # singular to rounding, or not finite
    return mean if n_rows == len(linear) else linear @ unpack_symmetric(packed[0], rank), packed, log_det


@sum_loop
def _solve(precision, linear, mean, packed, log_det):
    """Solve row by row, after scaling each precision P to unit diagonal; False if one is not positive definite.

    ``upper`` becomes U with P = UᵀU, ``minus`` −Uᵀ below the diagonal tiles, and ``inverse`` U⁻ᵀ, scaled back at last.
    """
    n_rows, rank = linear.shape
    wide, high = -(-rank // WIDTH) * WIDTH, -(-rank // TOGETHER) * TOGETHER
    upper, minus, inverse = np.zeros((wide, wide)), np.zeros((wide, wide)), np.zeros((wide, wide))
    weights, product = np.zeros((TOGETHER, wide)), np.zeros((TOGETHER, wide))
    spread = np.ones(wide)
    for i in range(n_rows):
        matrix, out = precision[i], packed[i]
        for r in range(rank):
            if not matrix[r, r] > 0.0:
                return False
            spread[r] = 1.0 / np.sqrt(matrix[r, r])
        for r in range(rank):
            row, own, given, own_spread = upper[r], inverse[r], matrix[r], spread[r]
            for c in range(r, rank):
                row[c] = given[c] * own_spread * spread[c]
            own[:] = 0.0
        for r in range(rank, high):
            upper[r] = 0.0
            inverse[r] = 0.0
            upper[r, r] = 1.0
        log_sum = 0.0
        for first in range(0, rank, TOGETHER):
            last = first + TOGETHER
            for column in range(first - first % WIDTH, wide, WIDTH):
                combine(4, (0, 0), False, minus, first, upper[:first], column, upper)
            for column in range(0, first, WIDTH):
                combine(4, (0, 0), False, minus, first, inverse[:first], column, inverse)
            for r in range(first, last):
                row, own = upper[r], inverse[r]
                if not row[r] > 0.0:
                    return False
                own[r] = 1.0
                root = 1.0 / np.sqrt(row[r])
                log_sum += np.log(spread[r] * root)
                for c in range(first, wide):
                    row[c] *= root
                for c in range(last):
                    own[c] *= root
                for other in range(r + 1, last):
                    weight, next_row, next_own = row[other], upper[other], inverse[other]
                    for c in range(first, wide):
                        next_row[c] -= weight * row[c]
                    for c in range(last):
                        next_own[c] -= weight * own[c]
            for c in range(last, wide):
                for k in range(TOGETHER):
                    minus[c, first + k] = -upper[first + k, c]
        log_det[i] = 2.0 * log_sum
        mean[i] = 0.0
        for r in range(rank):
            own, total = inverse[r], 0.0
            for c in range(r + 1):
                own[c] *= spread[c]
                total += own[c] * linear[i, c]
            for c in range(r + 1):
                mean[i, c] += total * own[c]
        for first in range(0, rank, TOGETHER):
            for t in range(high - first):
                for k in range(TOGETHER):
                    weights[k, t] = inverse[first + t, first + k]
            for column in range(0, first + TOGETHER, WIDTH):
                combine(4, (0, 0), True, weights, 0, inverse[first:high], column, product)
            for r in range(first, min(first + TOGETHER, rank)):
                row, place = product[r - first], r
                for c in range(r + 1):
                    out[place] = row[c]
                    place += rank - c - 1
    return True
