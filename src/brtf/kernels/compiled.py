"""The contractions compiled: twins of :mod:`brtf.kernels.reference`, for what NumPy cannot do in one pass.

Whatever is a product of dense matrices stays with BLAS, on blocks that fit a core's cache. Numba does the rest: entries
picked from a mask or from coordinates, the local posteriors, the histogram, and small Cholesky solves. All loops
release the interpreter's lock, so that blocks can be handled by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.distributions import Array
from brtf.kernels import coordinates, masked, reference
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.reference import (
    FIRST_BIN_OCTAVE,
    LOG2_BINS,
    as_matrix,
    khatri_rao,
    left_variance,
    rows_of_block,
    symmetric_multiplicity,
)
from brtf.observations import Block
from brtf.tables import FIRST_OCTAVE, EvidenceTable

DENSE_SHARE = 0.4
"""Share of observed entries from which a block is cheaper as a dense product with zeros than entry by entry."""
LARGEST_OWN_SOLVE = 48
"""Rank up to which the own Cholesky loops beat LAPACK's calls per row."""


PIECE = 512
"""Entries whose local posteriors are found together: a few kilobytes for each number of theirs."""
TILE, LEAST_TILE = 2**15, 64
"""Entries that are fitted, completed and contracted together, and the fewest rows of them."""
NO_SHARES = np.ones(1)
"""Every entry counts in full."""
LARGEST_RHO = 1e38
"""What is larger is infinite in single precision, and counted as this."""
BINS = (52 - LOG2_BINS, (1023 + FIRST_BIN_OCTAVE) << LOG2_BINS)
"""Bits of D below those of its bin, and the bits of the first bin."""


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries, (m,)."""
    if block.coords is not None:
        out = np.zeros(block.coords.shape[1])
        coordinates.sum_of_products(block.coords, _together(matrices), out)
        return out
    if block.mask is None:
        return reference.low_rank_at(block, matrices)
    if _is_dense(block):
        rows, columns = as_matrix(rows_of_block(block, matrices))
        return _compressed(block, khatri_rao(rows) @ khatri_rao(columns).T)
    *left, last = rows_of_block(block, matrices)
    return _products_at(block, khatri_rao(left), last)


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries, (m,)."""
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        covs = [_one_per_row(cov, moment) for cov, moment in zip(covs, moments, strict=True)]
        out = np.zeros(block.coords.shape[1])
        coordinates.variances(block.coords, _together(outers), _together(moments), _together(covs), multiplicity, out)
        return out
    if block.mask is None:
        return reference.variance_at(block, outers, moments, covs)
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    spread, product = left_variance(block, outers, moments, covs)
    left = np.hstack([spread * multiplicity, product * multiplicity])
    last = np.hstack([moments[-1], covs[-1]])
    return _compressed(block, left @ last.T) if _is_dense(block) else _products_at(block, left, last)


def contract(block: Block, entry_values: Array, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector with the matrices of all other modes, added to ``out``."""
    if block.coords is not None:
        coordinates.scatter_products(block.coords, entry_values, _together(matrices), mode, out)
        return
    if _is_dense(block):
        reference.contract_dense(block, _dense(block, entry_values), matrices, mode, out)
        return
    *left, last = map(np.ascontiguousarray, rows_of_block(block, matrices))
    if mode == len(left):
        others, inner = (left[0], khatri_rao(left[1:])) if len(left) > 1 else (np.ones((1, last.shape[1])), left[0])
        slabs = _fibres(block).reshape(len(others), len(inner), -1)
        masked.spread_onto(slabs, entry_values, inner, others, out)
        return
    rest = [matrix for k, matrix in enumerate(left) if k != mode]
    others = khatri_rao(rest) if rest else np.ones((1, last.shape[1]))
    n_after = math.prod(len(matrix) for matrix in left[mode + 1 :])
    masked.gather_onto(_fibres(block), entry_values, last, others, len(left[mode]), n_after, out)


def contract_one(block: Block, entry_values: Array, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector with the matrix of one mode, added to ``out``; dense layouts only."""
    if _is_dense(block):
        reference.contract_one_dense(block, _dense(block, entry_values), matrix, mode, out)
        return
    own = np.ascontiguousarray(matrix[block.rows] if mode == 0 else matrix)
    fibres = _fibres(block)
    if mode == len(block.shape) - 1:
        masked.gather(fibres, entry_values, own, out.reshape(fibres.shape[0], out.shape[-1]))
        return
    n_before = 1 if mode == 0 else block.n_rows * math.prod(block.shape[1:mode])
    split = fibres.reshape(n_before, own.shape[0], -1)
    masked.spread(split, entry_values, own, out.reshape(n_before, split.shape[2], out.shape[-1]))


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f(ρ) of the entries and their weights, each (m,)."""
    log_evidence, weight = np.empty(rho.size), np.empty(rho.size)
    _look_up(rho.astype(np.float64, copy=False), _uneven(table), log_evidence, weight)
    return log_evidence, weight


def local_posteriors(
    table: EvidenceTable,
    tau: float,
    residual: Array,
    variance: Array | None,
    relative: Array | None,
    counts: Array,
    totals: Array,
) -> reference.LocalPosteriors:
    """Local posteriors of entries with the given residuals, which are added to a histogram of ω̄ D."""
    rho, weight, nothing = np.empty_like(residual), np.empty_like(residual), residual[:0]
    variance = nothing if variance is None else variance.astype(residual.dtype, copy=False)
    relative = nothing if relative is None else relative.astype(residual.dtype, copy=False)
    log_evidence, weight_sum, largest = _judge(
        residual, variance, relative, tau, _layout(table, residual.dtype), (counts, totals), rho, weight
    )
    return reference.LocalPosteriors(log_evidence, weight_sum, largest / tau, rho, weight)


def completed(values: Array, residual: Array, weight: Array, largest_weight: float) -> Array:
    """The data less their outliers, (m,)."""
    out = np.empty_like(values)
    _complete(values, residual, weight, values.dtype.type(1.0 / largest_weight), out)
    return out


def solve_completed(
    values: Array,
    scale: float,
    left: Array,
    right: Array,
    table: EvidenceTable,
    tau: float,
    largest_weight: float,
    cov: Array,
    offset: Array,
    counts: Array,
    totals: Array,
    sums: Array,
) -> reference.CompletedRows:
    """Form 1 for rows of complete data in one go, in tiles that stay in the cache."""
    kind, mean = values.dtype.type, np.empty(left.shape)
    log_evidence, weight_sum, largest = _solve_completed(
        values,
        np.ascontiguousarray(left),
        np.ascontiguousarray(right),
        kind(1.0 / scale),
        kind(1.0 / largest_weight),
        tau,
        _layout(table, values.dtype),
        cov.astype(kind),
        offset.astype(kind),
        (counts, totals),
        mean,
        sums,
    )
    return reference.CompletedRows(log_evidence, weight_sum, largest / tau, mean)


def mix_branches(log_spike: Array, log_slab: Array) -> tuple[Array, Array]:
    """ln(e^spike + e^slab), and the slab's share in it; each (m,)."""
    log_evidence, share = np.empty(log_spike.size), np.empty(log_spike.size)
    _mix(log_spike, log_slab, log_evidence, share)
    return log_evidence, share


def count_deviations(deviation: Array, counts: Array, totals: Array, share: Array | None = None) -> None:
    """Add entries, or a share of each, to a histogram of D."""
    deviation = deviation.astype(np.float64, copy=False)
    _count(deviation.view(np.int64), deviation, BINS, (counts, totals), NO_SHARES if share is None else share)


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


def _one_per_row(cov: Array, moment: Array) -> Array:
    return cov if cov.shape == moment.shape else np.broadcast_to(cov, moment.shape)


def _together(matrices: Sequence[Array]) -> tuple[Array, ...]:
    # a tuple of one type, for which loops are compiled once
    return tuple(np.require(matrix, np.float64, ["C", "W"]) for matrix in matrices)


def _fibres(block: Block) -> NDArray[np.bool_]:
    """The mask as (fibres, I_{N-1})."""
    if block.mask is None:
        raise TypeError("a block of complete data has no mask")
    return block.mask.reshape(-1, block.shape[-1])


def _is_dense(block: Block) -> bool:
    return block.mask is None or block.n_entries > DENSE_SHARE * block.mask.size


def _dense(block: Block, entry_values: Array) -> Array:
    if block.mask is None:
        return reference.dense_block(block, entry_values)
    dense = np.empty(block.mask.shape)
    masked.expand(block.mask.reshape(-1), entry_values, dense.reshape(-1))
    return dense


def _compressed(block: Block, dense: Array) -> Array:
    """The entries (m,) of a dense array."""
    n_observed = block.n_entries
    out = np.empty(n_observed + 1)
    masked.compress(_fibres(block).reshape(-1), dense.reshape(-1), out)
    return out[:n_observed]


def _products_at(block: Block, left: Array, last: Array) -> Array:
    """Σ_c left[f, c] last[k, c] at the observed (f, k), (m,)."""
    out = np.empty(block.n_entries)
    masked.products_at(_fibres(block), np.ascontiguousarray(left), np.ascontiguousarray(last), out)
    return out


# ---- entries -----------------------------------------------------------------------------------------------

# What loops know of tables and bins is handed to them: compiled code is kept on disk for as long as this file is the
# same, whatever numbers of other files say.


def _layout(table: EvidenceTable, dtype: np.dtype[np.floating[Any]]) -> tuple[Any, ...]:
    """Even segments for entries of the given type, all segments, and the bins of histograms."""
    even = table.evenly(dtype)
    return (even.cubics, even.bits), _uneven(table), BINS


def _uneven(table: EvidenceTable) -> tuple[Any, ...]:
    return table.rows, table.first, table.log2_segments, FIRST_OCTAVE


@sum_loop
def _cubic(row, rho):
    """ln f and w by the cubic of a segment."""
    step = (rho - row[0]) * row[1]
    log_evidence = row[2] + step * (row[3] + step * (row[4] + step * row[5]))
    return log_evidence, -2.0 * row[1] * (row[3] + step * (2.0 * row[4] + 3.0 * step * row[5]))


@sum_loop
def _look_up(rho, uneven, log_evidence, weight):
    """ln f and w, whatever the segments; beyond their end ln f is a power of ρ."""
    rows, first, log2_segments, first_octave = uneven
    for m in range(rho.size):
        mantissa, exponent = math.frexp(rho[m] + 2.0**first_octave)
        octave = exponent - 1 - first_octave
        if octave < first.size and np.isfinite(rho[m]):
            place = first[octave] + int((2.0 * mantissa - 1.0) * (1 << log2_segments[octave]))
            log_evidence[m], weight[m] = _cubic(rows[place], rho[m])
        else:
            end, fall = rows[-1, 0], rows[-1, 0] * rows[-1, 3]
            log_evidence[m] = rows[-1, 2] + fall * np.log(rho[m] / end)
            weight[m] = -2.0 * fall / rho[m]


@loop
def _scratch(even):
    """Room for what is known of a piece of entries, and the number of entries in every even segment, none so far."""
    cubics, bits = even
    return (
        np.empty((3, PIECE), cubics.dtype),
        np.empty((2, PIECE), bits.dtype),
        np.empty((3, PIECE)),
        np.empty(PIECE + 1, np.int64),
        np.zeros(cubics.shape[0], np.int64),
    )


@sum_loop
def _weigh(rho, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of a piece, whose weights are kept.

    Entries of even segments are counted, and c₀ is left out of their ln f. Bits below those of the segment are the
    fraction t of it, the exponent its width: both are found for all entries at once, and nothing is decided entry by
    entry. Those beyond even segments are looked at once more.
    """
    (cubics, bits), uneven, bins = table
    floats, integers, doubles, others, seen = scratch
    n_below, from_segment, octave, both, n_segments, before = bits
    n, beyond = rho.size, cubics.shape[0] - 1
    shifted, fraction, gain = floats[0, :n], floats[1, :n], floats[2, :n]
    lower_bits, width_bits, pattern = integers[0, :n], integers[1, :n], shifted.view(bits.dtype)
    lower, per_width = lower_bits.view(rho.dtype), width_bits.view(rho.dtype)
    shift, n_each = rho.dtype.type(2.0 ** uneven[3]), rho.dtype.type(n_segments)
    for m in range(n):
        shifted[m] = rho[m] + shift
    for m in range(n):
        lower_bits[m] = pattern[m] & from_segment
        width_bits[m] = both - (pattern[m] & octave)
    for m in range(n):
        per_width[m] *= n_each
        fraction[m] = (shifted[m] - lower[m]) * per_width[m]
    plain = rho.view(bits.dtype)
    largest = plain[0]  # numbers that are not negative are ordered as their bits are
    for m in range(n):
        largest = max(largest, plain[m])
    two, three, n_before = rho.dtype.type(2.0), rho.dtype.type(3.0), seen[beyond]
    for m in range(n):
        place = min((pattern[m] >> n_below) - before, beyond)
        c1, c2, c3, t = cubics[place, 0], cubics[place, 1], cubics[place, 2], fraction[m]
        gain[m] = t * (c1 + t * (c2 + t * c3))
        weight[m] = c1 + t * (two * c2 + three * t * c3)
        seen[place] += 1
    for m in range(n):
        weight[m] *= -two * per_width[m]
    total, n_others = 0.0, 0
    if seen[beyond] > n_before:
        for m in range(n):
            others[n_others] = m
            n_others += (pattern[m] >> n_below) - before >= beyond
        total = _weigh_others(rho, tau, uneven, bins, histogram, doubles, others[:n_others], weight)
    gain_sum, weight_sum = rho.dtype.type(0.0), rho.dtype.type(0.0)
    for m in range(n):
        gain_sum += gain[m]
        weight_sum += weight[m]
    lower_bits[0] = largest
    return total + gain_sum, np.float64(weight_sum), np.float64(lower[0])


@sum_loop
def _weigh_others(rho, tau, uneven, bins, histogram, doubles, others, weight):
    """The same for entries that are not in even segments, one by one."""
    own, log_evidence, found = doubles[0, : others.size], doubles[1, : others.size], doubles[2, : others.size]
    for k in range(others.size):
        own[k] = min(np.float64(rho[others[k]]), LARGEST_RHO)
    _look_up(own, uneven, log_evidence, found)
    total = 0.0
    for k in range(others.size):
        total += log_evidence[k]
        weight[others[k]] = found[k]
        own[k] /= tau
    _count(own.view(np.int64), own, bins, histogram, NO_SHARES)
    return total


@sum_loop
def _settle(seen, tau, uneven, bins, histogram):
    """Σ c₀ of the entries in even segments, which are counted at the middle of each."""
    rows = uneven[0]
    deviation, share = np.empty(seen.size), np.empty(seen.size)
    n_used, total = 0, 0.0
    for place in range(seen.size - 1):
        row = rows[place]
        deviation[n_used] = (row[0] + 0.5 / row[1]) / tau
        share[n_used] = seen[place]
        total += seen[place] * row[2]
        n_used += seen[place] > 0
    own = deviation[:n_used]
    _count(own.view(np.int64), own, bins, histogram, share[:n_used])
    return total


@sum_loop
def _judge(residual, variance, relative, tau, table, histogram, rho, weight):
    """Σ ln f, Σ w and the largest ρ, in pieces that stay in the innermost cache."""
    even, uneven, bins = table
    scratch = _scratch(even)
    precision = rho.dtype.type(tau)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, residual.size, PIECE):
        n = min(PIECE, residual.size - start)
        part, own = residual[start : start + n], rho[start : start + n]
        if variance.size:
            spread = variance[start : start + n]
            for m in range(n):
                own[m] = precision * (part[m] * part[m] + spread[m])
        else:
            for m in range(n):
                own[m] = precision * (part[m] * part[m])
        if relative.size:
            factor = relative[start : start + n]
            for m in range(n):
                own[m] *= factor[m]
        sums = _weigh(own, tau, table, histogram, scratch, weight[start : start + n])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@sum_loop
def _judge_and_complete(values, per_scale, per_weight, tau, table, histogram, scratch, low_rank):
    """The same for the low-rank part at complete data, which the data less their outliers replace."""
    residual, rho, weight = np.empty(PIECE, values.dtype), np.empty(PIECE, values.dtype), np.empty(PIECE, values.dtype)
    precision = values.dtype.type(tau)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, values.size, PIECE):
        n = min(PIECE, values.size - start)
        part, fitted = values[start : start + n], low_rank[start : start + n]
        left, own, found = residual[:n], rho[:n], weight[:n]
        for m in range(n):
            left[m] = part[m] * per_scale - fitted[m]
        for m in range(n):
            own[m] = precision * (left[m] * left[m])
        sums = _weigh(own, tau, table, histogram, scratch, found)
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        for m in range(n):
            fitted[m] += found[m] * per_weight * left[m]
    return total, weight_sum, largest


@sum_loop
def _solve_completed(values, left, right, per_scale, per_weight, tau, table, cov, offset, histogram, mean, sums):
    """Tiles of rows: the low-rank part, the completed data, their product with the other modes, the rows, the sums."""
    even, uneven, bins = table
    scratch = _scratch(even)
    n_rows, n_columns = values.shape
    n_tiles = max(1, round(n_rows / max(LEAST_TILE, TILE / n_columns)))
    tile = -(-n_rows // n_tiles)
    low_rank = np.empty((tile, n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, n_rows, tile):
        stop = min(start + tile, n_rows)
        n = stop - start
        fitted, flat = low_rank[:n], values[start:stop].reshape(n * n_columns)
        np.dot(left[start:stop], right.T, fitted)
        found = _judge_and_complete(
            flat, per_scale, per_weight, tau, table, histogram, scratch, fitted.reshape(n * n_columns)
        )
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        solved = np.dot(np.dot(fitted, right) + offset, cov)
        mean[start:stop] = solved
        sums += np.dot(fitted.T, solved)
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@sum_loop
def _complete(values, residual, weight, per_weight, out):
    for m in range(values.size):
        out[m] = values[m] - residual[m] + weight[m] * per_weight * residual[m]


@loop
def _mix(log_spike, log_slab, log_evidence, share):
    for m in range(log_spike.size):
        odds = log_slab[m] - log_spike[m]
        small = np.exp(-abs(odds))
        larger = log_slab[m] if odds > 0.0 else log_spike[m]
        log_evidence[m] = larger + np.log1p(small)
        share[m] = (1.0 if odds > 0.0 else small) / (1.0 + small)


@loop
def _count(pattern, deviation, bins, histogram, share):
    counts, totals = histogram
    below, first = bins
    each = share.size == deviation.size
    for m in range(deviation.size):
        place = (pattern[m] >> below) - first
        place = min(max(place, 0), counts.size - 1)
        amount = share[m] if each else share[0]
        counts[place] += amount
        totals[place] += amount * deviation[m]


@loop
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
