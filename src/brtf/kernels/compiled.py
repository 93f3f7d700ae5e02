"""The contractions compiled: twins of :mod:`brtf.kernels.reference`, for what NumPy cannot do in one pass.

Whatever is a product of dense matrices stays with BLAS, on blocks that fit a core's cache. Numba does the rest: entries
picked from a mask or from coordinates, the local posteriors, the histogram, and small Cholesky solves. All loops
release the interpreter's lock, so that blocks can be handled by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from brtf.distributions import Array
from brtf.kernels import reference
from brtf.kernels.reference import (
    FIRST_BIN_OCTAVE,
    LOG2_BINS,
    N_BINS,
    khatri_rao,
    left_variance,
    reduce_mode,
    rows_of_block,
    symmetric_multiplicity,
)
from brtf.observations import Block
from brtf.tables import FIRST_OCTAVE, EvidenceTable

DENSE_SHARE = 0.4
"""Share of observed entries from which a block is cheaper as a dense product with zeros than entry by entry."""
LARGEST_OWN_SOLVE = 48
"""Rank up to which the own Cholesky loops beat LAPACK's calls per row."""

_compile = njit(cache=True, nogil=True)
_compile_sums = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})  # sums in any order: SIMD


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries, (m,)."""
    if block.coords is not None:
        out = np.zeros(block.coords.shape[1])
        _sum_of_products(block.coords, _together(matrices), out)
        return out
    if block.mask is None:
        return reference.low_rank_at(block, matrices)
    *left, last = rows_of_block(block, matrices)
    return _products_at(block.mask, khatri_rao(left), last)


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries, (m,)."""
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
        out = np.zeros(block.coords.shape[1])
        _variances(block.coords, _together(outers), _together(moments), _together(covs), multiplicity, out)
        return out
    if block.mask is None:
        return reference.variance_at(block, outers, moments, covs)
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    spread, product = left_variance(block, outers, moments, covs)
    left = np.hstack([spread * multiplicity, product * multiplicity])
    return _products_at(block.mask, left, np.hstack([moments[-1], covs[-1]]))


def contract(block: Block, entry_values: Array, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector with the matrices of all other modes, added to ``out``."""
    if block.coords is not None:
        _scatter_products(block.coords, entry_values, _together(matrices), mode, out)
        return
    if _is_dense(block):
        reference.contract_dense(block, _dense(block, entry_values), matrices, mode, out)
        return
    *left, last = rows_of_block(block, matrices)
    mask = _fibres(block)
    if mode == len(left):
        _scatter_fibres(mask, entry_values, khatri_rao(left), out)
        return
    gathered = np.zeros((mask.shape[0], last.shape[1]))
    _gather_fibres(mask, entry_values, np.ascontiguousarray(last), gathered)
    partial = gathered.reshape(*(matrix.shape[0] for matrix in left), last.shape[1])
    for k in range(len(left) - 1, -1, -1):
        if k != mode:
            partial = reduce_mode(partial, left[k], k)
    if mode == 0:
        out[block.rows] += partial
    else:
        out += partial


def contract_one(block: Block, entry_values: Array, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector with the matrix of one mode, added to ``out``; dense layouts only."""
    if _is_dense(block):
        reference.contract_one_dense(block, _dense(block, entry_values), matrix, mode, out)
        return
    own = np.ascontiguousarray(matrix[block.rows] if mode == 0 else matrix)
    target = out if mode == 0 else out[block.rows]
    fibres = _fibres(block)
    if mode == len(block.shape) - 1:
        _gather_fibres(fibres, entry_values, own, target.reshape(fibres.shape[0], out.shape[-1]))
        return
    n_before = 1 if mode == 0 else (block.rows.stop - block.rows.start) * math.prod(block.shape[1:mode])
    split = fibres.reshape(n_before, own.shape[0], -1)
    _spread_fibres(split, entry_values, own, target.reshape(n_before, split.shape[2], out.shape[-1]))


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f(ρ) of the entries and their weights, each (m,)."""
    log_evidence, weight = np.empty(rho.size), np.empty(rho.size)
    _look_up(rho.view(np.int64), rho, table.rows, table.first, 52 - table.log2_segments, log_evidence, weight)
    return log_evidence, weight


def mix_branches(log_spike: Array, log_slab: Array) -> tuple[Array, Array]:
    """ln(e^spike + e^slab), and the slab's share in it; each (m,)."""
    log_evidence, share = np.empty(log_spike.size), np.empty(log_spike.size)
    _mix(log_spike, log_slab, log_evidence, share)
    return log_evidence, share


def count_deviations(deviation: Array, counts: Array, totals: Array, share: Array | None = None) -> None:
    """Add entries, or a share of each, to a histogram of D."""
    _count(deviation.view(np.int64), deviation, counts, totals, np.ones(1) if share is None else share)


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows from precision matrices and linear terms: means, covariances, ln|cov|."""
    n_rows, rank = linear.shape
    if precision.shape[0] != n_rows or not 0 < rank <= LARGEST_OWN_SOLVE:
        return reference.solve_rows(precision, linear)
    mean, cov, log_det = np.empty((n_rows, rank)), np.empty((n_rows, rank, rank)), np.empty(n_rows)
    if _solve(np.ascontiguousarray(precision), np.ascontiguousarray(linear), mean, cov, log_det):
        return mean, cov, log_det
    return reference.solve_rows(precision, linear)  # singular to rounding, or not finite


# ---- blocks ------------------------------------------------------------------------------------------------


def _together(matrices: Sequence[Array]) -> tuple[Array, ...]:
    # a tuple of one type, for which loops are compiled once
    return tuple(np.require(matrix, np.float64, ["C", "W"]) for matrix in matrices)


def _fibres(block: Block) -> NDArray[np.bool_]:
    """The mask as (fibres, I_{N-1})."""
    if block.mask is None:
        raise TypeError("a block of complete data has no mask")
    return block.mask.reshape(-1, block.shape[-1])


def _is_dense(block: Block) -> bool:
    return block.mask is None or block.entries.stop - block.entries.start > DENSE_SHARE * block.mask.size


def _dense(block: Block, entry_values: Array) -> Array:
    if block.mask is None:
        return reference.dense_block(block, entry_values)
    dense = np.zeros(block.mask.shape)
    _expand(block.mask.reshape(-1), entry_values, dense.reshape(-1))
    return dense


def _products_at(mask: NDArray[np.bool_], left: Array, last: Array) -> Array:
    """Σ_c left[f, c] last[k, c] at the observed (f, k), (m,)."""
    flat = mask.reshape(-1)
    n_observed = int(np.count_nonzero(flat))
    out = np.empty(n_observed)
    if n_observed > DENSE_SHARE * flat.size:
        _compress(flat, (left @ last.T).reshape(-1), out)
    else:
        fibres = mask.reshape(-1, mask.shape[-1])
        _products_of_fibres(fibres, np.ascontiguousarray(left), np.ascontiguousarray(last), out)
    return out


@_compile
def _expand(mask, entry_values, dense):
    position = 0
    for k in range(mask.size):
        if mask[k]:
            dense[k] = entry_values[position]
            position += 1


@_compile
def _compress(mask, dense, out):
    position = 0
    for k in range(mask.size):
        if mask[k]:
            out[position] = dense[k]
            position += 1


@_compile_sums
def _products_of_fibres(mask, left, last, out):
    position = 0
    for f in range(mask.shape[0]):
        row = left[f]
        for k in range(mask.shape[1]):
            if mask[f, k]:
                other = last[k]
                total = 0.0
                for c in range(row.size):
                    total += row[c] * other[c]
                out[position] = total
                position += 1


@_compile
def _gather_fibres(mask, entry_values, last, out):
    """out[f] += Σ_k v[f, k] last[k], four entries at a time: the sum is loaded and stored once for all four."""
    n_last, n_columns = last.shape
    observed = np.empty(n_last, np.int64)
    position = 0
    for f in range(mask.shape[0]):
        n_observed = 0
        for k in range(n_last):
            if mask[f, k]:
                observed[n_observed] = k
                n_observed += 1
        target = out[f]
        done = 0
        while done + 4 <= n_observed:
            first, second = last[observed[done]], last[observed[done + 1]]
            third, fourth = last[observed[done + 2]], last[observed[done + 3]]
            v0, v1 = entry_values[position + done], entry_values[position + done + 1]
            v2, v3 = entry_values[position + done + 2], entry_values[position + done + 3]
            for c in range(n_columns):
                target[c] += v0 * first[c] + v1 * second[c] + v2 * third[c] + v3 * fourth[c]
            done += 4
        while done < n_observed:
            only, value = last[observed[done]], entry_values[position + done]
            for c in range(n_columns):
                target[c] += value * only[c]
            done += 1
        position += n_observed


@_compile
def _scatter_fibres(mask, entry_values, left, out):
    """out[k] += Σ_f v[f, k] left[f]."""
    position = 0
    for f in range(mask.shape[0]):
        row = left[f]
        for k in range(mask.shape[1]):
            if mask[f, k]:
                value, target = entry_values[position], out[k]
                for c in range(row.size):
                    target[c] += value * row[c]
                position += 1


@_compile
def _spread_fibres(mask, entry_values, matrix, out):
    """out[a, b] += Σ_n v[a, n, b] matrix[n]."""
    position = 0
    for a in range(mask.shape[0]):
        for n in range(mask.shape[1]):
            row = matrix[n]
            for b in range(mask.shape[2]):
                if mask[a, n, b]:
                    value, target = entry_values[position], out[a, b]
                    for c in range(row.size):
                        target[c] += value * row[c]
                    position += 1


# ---- coordinates -------------------------------------------------------------------------------------------


@_compile_sums
def _sum_of_products(coords, matrices, out):
    order = len(matrices)
    n_columns = matrices[0].shape[1]
    product = np.empty(n_columns)
    for m in range(out.size):
        if order == 3:
            first, second, third = matrices[0][coords[0, m]], matrices[1][coords[1, m]], matrices[2][coords[2, m]]
            total = 0.0
            for c in range(n_columns):
                total += first[c] * second[c] * third[c]
        else:
            product[:] = matrices[0][coords[0, m]]
            for n in range(1, order):
                row = matrices[n][coords[n, m]]
                for c in range(n_columns):
                    product[c] *= row[c]
            total = 0.0
            for c in range(n_columns):
                total += product[c]
        out[m] = total


@_compile_sums
def _variances(coords, outers, moments, covs, multiplicity, out):
    order = len(outers)
    n_columns = multiplicity.size
    spread, product = np.empty(n_columns), np.empty(n_columns)
    for m in range(out.size):
        first = coords[0, m]
        spread[:] = covs[0][first]
        product[:] = outers[0][first]
        for n in range(1, order):
            i = coords[n, m]
            outer, moment, cov = outers[n][i], moments[n][i], covs[n][i]
            for c in range(n_columns):
                spread[c] = spread[c] * moment[c] + product[c] * cov[c]
                product[c] *= outer[c]
        total = 0.0
        for c in range(n_columns):
            total += multiplicity[c] * spread[c]
        out[m] = total


@_compile
def _scatter_products(coords, entry_values, matrices, mode, out):
    order = len(matrices)
    n_columns = out.shape[1]
    product = np.empty(n_columns)
    one, other = (1 if mode == 0 else 0), (1 if mode == 2 else 2)
    for m in range(entry_values.size):
        value, target = entry_values[m], out[coords[mode, m]]
        if order == 3:
            first, second = matrices[one][coords[one, m]], matrices[other][coords[other, m]]
            for c in range(n_columns):
                target[c] += value * first[c] * second[c]
        else:
            product[:] = value
            for n in range(order):
                if n != mode:
                    row = matrices[n][coords[n, m]]
                    for c in range(n_columns):
                        product[c] *= row[c]
            for c in range(n_columns):
                target[c] += product[c]


# ---- entries -----------------------------------------------------------------------------------------------


@_compile
def _look_up(bits, rho, rows, first, shift, log_evidence, weight):
    """The leading bits of ρ are its place in the table."""
    n_octaves = first.size
    mantissa = (1 << 52) - 1
    for m in range(rho.size):
        octave = (bits[m] >> 52) - 1023 - FIRST_OCTAVE
        if octave < 0:
            place = 0
        elif octave >= n_octaves:
            place = rows.shape[0] - 1
        else:
            place = first[octave] + ((bits[m] & mantissa) >> shift[octave])
        row = rows[place]
        step = (rho[m] - row[0]) * row[1]
        log_evidence[m] = row[2] + step * (row[3] + step * (row[4] + step * row[5]))
        weight[m] = -2.0 * row[1] * (row[3] + step * (2.0 * row[4] + 3.0 * step * row[5]))


@_compile
def _mix(log_spike, log_slab, log_evidence, share):
    for m in range(log_spike.size):
        odds = log_slab[m] - log_spike[m]
        small = np.exp(-abs(odds))
        larger = log_slab[m] if odds > 0.0 else log_spike[m]
        log_evidence[m] = larger + np.log1p(small)
        share[m] = (1.0 if odds > 0.0 else small) / (1.0 + small)


@_compile
def _count(bits, deviation, counts, totals, share):
    each = share.size == deviation.size
    first = (1023 + FIRST_BIN_OCTAVE) << LOG2_BINS
    for m in range(deviation.size):
        place = (bits[m] >> (52 - LOG2_BINS)) - first
        place = min(max(place, 0), N_BINS - 1)
        amount = share[m] if each else share[0]
        counts[place] += amount
        totals[place] += amount * deviation[m]


@_compile
def _solve(precision, linear, mean, cov, log_det):
    """Cholesky of every scaled precision, its inverse, and what follows; False where one is not positive definite."""
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
