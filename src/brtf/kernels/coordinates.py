"""Loops over entries given by their coordinates.

The rows that an entry needs are scattered over matrices that may exceed the cache, so they are prefetched some entries
ahead, except those of the first mode, which vary slowest. Order three, the most common, has dedicated loops that keep
products in registers.
"""

from __future__ import annotations

import numpy as np

from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.vectors import prefetch

AHEAD = 8
"""Prefetch distance in entries."""
CACHE_LINE = 8
"""float64 numbers per cache line."""


@sum_loop
def sum_of_products(coords, matrices, out):
    """out[m] = Σ_c Π_n M⁽ⁿ⁾[i_n, c]."""
    order = len(matrices)
    n_columns = matrices[0].shape[1]
    product = np.empty(n_columns)
    for m in range(out.size):
        total = 0.0
        if order == 3:
            first, second, third = matrices[0][coords[0, m]], matrices[1][coords[1, m]], matrices[2][coords[2, m]]
            for c in range(n_columns):
                total += first[c] * second[c] * third[c]
        else:
            product[:] = 1.0
            for n in range(order):
                row = matrices[n][coords[n, m]]
                for c in range(n_columns):
                    product[c] *= row[c]
            for c in range(n_columns):
                total += product[c]
        out[m] = total


@sum_loop
def variances(coords, outers, moments, covs, multiplicity, out):
    """The recursion d ← d⊛(Q+V) + q⊛V, q ← q⊛Q of every entry, summed over the packed elements."""
    order = len(outers)
    n_columns = multiplicity.size
    spread, product = np.empty(n_columns), np.empty(n_columns)
    for m in range(out.size):
        first, second = coords[0, m], coords[1, m]
        outer, cov = outers[0][first], covs[0][first]
        next_outer, next_moment, next_cov = outers[1][second], moments[1][second], covs[1][second]
        total = 0.0
        if order == 3:
            ahead = min(m + AHEAD, out.size - 1)
            _prefetch_row(outers[1], coords[1, ahead])
            _prefetch_row(moments[1], coords[1, ahead])
            _prefetch_row(covs[1], coords[1, ahead])
            _prefetch_row(moments[2], coords[2, ahead])
            _prefetch_row(covs[2], coords[2, ahead])
            last_moment, last_cov = moments[2][coords[2, m]], covs[2][coords[2, m]]
            for c in range(n_columns):
                both = cov[c] * next_moment[c] + outer[c] * next_cov[c]
                total += multiplicity[c] * (both * last_moment[c] + outer[c] * next_outer[c] * last_cov[c])
        else:
            for c in range(n_columns):
                spread[c] = cov[c] * next_moment[c] + outer[c] * next_cov[c]
                product[c] = outer[c] * next_outer[c]
            for n in range(2, order):
                i = coords[n, m]
                next_outer, next_moment, next_cov = outers[n][i], moments[n][i], covs[n][i]
                for c in range(n_columns):
                    spread[c] = spread[c] * next_moment[c] + product[c] * next_cov[c]
                    product[c] *= next_outer[c]
            for c in range(n_columns):
                total += multiplicity[c] * spread[c]
        out[m] = total


@sum_loop
def scatter_products(coords, entry_values, matrices, mode, out):
    """out[i_mode] += v_m ⊛_{n≠mode} M⁽ⁿ⁾[i_n]."""
    order = len(matrices)
    n_columns = out.shape[1]
    product = np.empty(n_columns)
    one, other = (1 if mode == 0 else 0), (1 if mode == 2 else 2)
    for m in range(entry_values.size):
        value, i = entry_values[m], coords[mode, m]
        if order == 3:
            ahead = min(m + AHEAD, entry_values.size - 1)
            _prefetch_row(out if mode == 1 else matrices[1], coords[1, ahead])
            _prefetch_row(out if mode == 2 else matrices[2], coords[2, ahead])
            _add_outer(value, matrices[one], coords[one, m], matrices[other], coords[other, m], out, i)
        else:
            target = out[i]
            product[:] = value
            for n in range(order):
                if n != mode:
                    row = matrices[n][coords[n, m]]
                    for c in range(n_columns):
                        product[c] *= row[c]
            for c in range(n_columns):
                target[c] += product[c]


@sum_loop
def _add_outer(value, first, j, second, k, out, i):
    """out[i] += value first[j] ⊛ second[k]."""
    target, one, other = out[i], first[j], second[k]
    for c in range(target.size):
        target[c] += value * one[c] * other[c]


@loop
def _prefetch_row(matrix, row):
    """Prefetch a row of a matrix."""
    for column in range(0, matrix.shape[1], CACHE_LINE):
        prefetch(matrix, row, column)


@loop
def positions(coords, modes, strides, out):
    """Σ_k stride_k i_{n_k} of every entry, over the given modes n_k."""
    out[:] = 0
    for k in range(modes.size):
        index, stride = coords[modes[k]], strides[k]
        for m in range(out.size):
            out[m] += stride * index[m]
