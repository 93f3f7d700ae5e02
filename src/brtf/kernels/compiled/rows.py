"""Solves for the rows of a mode in compiled loops: the twin of :mod:`brtf.kernels.reference.rows`."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import plain
from brtf.kernels.jit import loop
from brtf.kernels.reference import rows

LARGEST_OWN_SOLVE = 48
"""Largest rank at which the Cholesky loops here are faster than one LAPACK call per row."""


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows from precision matrices and linear terms: means, covariances, ln|cov|."""
    n_rows, rank = len(precision), linear.shape[1]
    if not 0 < rank <= LARGEST_OWN_SOLVE:
        return rows.solve_rows(precision, linear)
    mean, cov, log_det = np.empty((n_rows, rank)), np.empty((n_rows, rank, rank)), np.empty(n_rows)
    if not _solve(plain(precision), plain(linear[:n_rows]), mean, cov, log_det):
        return rows.solve_rows(precision, linear)  # singular to rounding, or not finite
    return mean if n_rows == len(linear) else linear @ cov[0], cov, log_det


@loop
def _solve(precision, linear, mean, cov, log_det):
    """Cholesky of every scaled precision, its inverse, means and ln|cov|; False if one is not positive definite."""
    n_rows, rank = linear.shape
    lower, inverse, spread = np.zeros((rank, rank)), np.zeros((rank, rank)), np.empty(rank)
    for i in range(n_rows):
        matrix = precision[i]
        for r in range(rank):
            if not matrix[r, r] > 0.0:
                return False
            spread[r] = 1.0 / np.sqrt(matrix[r, r])
        log_sum = 0.0
        for r in range(rank):
            for s in range(r + 1):
                total = matrix[r, s] * spread[r] * spread[s]
                for t in range(s):
                    total -= lower[r, t] * lower[s, t]
                if r == s:
                    if not total > 0.0:
                        return False
                    lower[r, r] = np.sqrt(total)
                else:
                    lower[r, s] = total / lower[s, s]
            log_sum += np.log(spread[r]) - np.log(lower[r, r])
        log_det[i] = 2.0 * log_sum
        for s in range(rank):
            inverse[s, s] = spread[s] / lower[s, s]
            for r in range(s + 1, rank):
                total = 0.0
                for t in range(s, r):
                    total -= lower[r, t] * inverse[t, s]
                inverse[r, s] = total / lower[r, r]
        out = cov[i]
        for r in range(rank):
            for s in range(r + 1):
                total = 0.0
                for t in range(r, rank):
                    total += inverse[t, r] * inverse[t, s]
                out[r, s] = total
                out[s, r] = total
        for r in range(rank):
            total = 0.0
            for s in range(rank):
                total += out[r, s] * linear[i, s]
            mean[i, r] = total
    return True
