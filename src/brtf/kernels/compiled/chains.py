"""Gaussian chains in compiled loops: the twin of :mod:`brtf.kernels.reference.chains`."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.jit import loop
from brtf.kernels.products import put
from brtf.kernels.reference import chains
from brtf.kernels.reference.chains import Smoothed


def smooth_chain(precision: Array, beside: Array, linear: Array) -> Smoothed:
    """The distribution of a chain's rows."""
    n_rows, rank = linear.shape
    mean, cov, cross = np.empty((n_rows, rank)), np.array(precision, np.float64, order="C"), np.empty((0, rank, rank))
    if n_rows > 1:
        cross = np.empty((n_rows - 1, rank, rank))
    log_det = np.zeros(1)
    edges = np.require(beside, np.float64, ["C", "W"])
    if not _smooth(cov, edges, np.require(linear, np.float64, ["C", "W"]), mean, cross, log_det):
        return chains.smooth_chain(precision, beside, linear)  # singular to rounding, or not finite
    return Smoothed(mean, cov, cross, float(log_det[0]), np.empty((0, rank, rank)))


def smooth_wide_chain(precision: Array, beside: Array, far: Array, linear: Array) -> Smoothed:
    """The distribution of a wide chain's rows."""
    n_rows, rank = linear.shape
    mean, cov = np.array(linear, np.float64, order="C"), np.array(precision, np.float64, order="C")
    cross, across = (np.empty((max(n_rows - k, 0), rank, rank)) for k in (1, 2))
    log_det = np.zeros(1)
    edges = (np.require(part, np.float64, ["C", "W"]) for part in (beside, far))
    if not _smooth_wide(cov, *edges, mean, cross, across, log_det):
        return chains.smooth_wide_chain(precision, beside, far, linear)  # singular to rounding, or not finite
    return Smoothed(mean, cov, cross, float(log_det[0]), across)


def chain_evidence(precision: Array, linear: Array, scale: Array, own: Array, beside: Array, far: Array) -> Array:
    """The log evidence of every column for every chain, (K, R)."""
    found = np.empty((len(own), linear.shape[1]))
    plain = [np.require(array, np.float64, ["C", "W"]) for array in (precision, linear, scale, own, beside, far)]
    _evidence(*plain, found)
    return found


@loop
def _smooth(cov, beside, linear, mean, cross, log_det):
    """Smooth in place: ``cov`` holds the precisions at first. False if a pivot is not positive.

    Where neighbouring rows have the same precisions, the recursions soon arrive at a fixed matrix, which is copied.
    """
    n_rows, rank = linear.shape
    pivot, back, ahead = np.empty((rank, rank)), np.empty((rank, rank)), np.empty((n_rows, rank))
    given, steady, own_log_det = np.empty((rank, rank)), np.zeros(n_rows, np.bool_), 0.0
    for t in range(n_rows):
        matrix = cov[t]
        alike = t > 1
        for r in range(rank):
            ahead[t, r] = linear[t, r]
            alike = alike and beside[t - 1, r] == beside[t - 2, r]
        for r in range(rank):
            if alike:
                for s in range(rank):
                    alike = alike and matrix[r, s] == given[r, s]
        if not alike:
            put(matrix, given)
        if t > 0:
            last = cov[t - 1]
            for r in range(rank):
                edge, total = beside[t - 1, r], 0.0
                for s in range(rank):
                    matrix[r, s] -= edge * last[r, s] * beside[t - 1, s]
                    total += last[r, s] * ahead[t - 1, s]
                ahead[t, r] -= edge * total
        if alike and steady[t - 1]:
            steady[t] = True
            put(cov[t - 1], matrix)
            log_det[0] += own_log_det
            continue
        own_log_det = _invert(matrix)
        if own_log_det == np.inf:
            return False
        log_det[0] += own_log_det
        steady[t] = alike and _is_near(matrix, cov[t - 1])
    settled = False
    for t in range(n_rows - 1, -1, -1):
        matrix = cov[t]
        for r in range(rank):
            total = 0.0
            for s in range(rank):
                edge = beside[t, s] * mean[t + 1, s] if t < n_rows - 1 else 0.0
                total += matrix[r, s] * (ahead[t, s] - edge)
            mean[t, r] = total
        if t == n_rows - 1:
            continue
        alike = t < n_rows - 2 and steady[t + 1]  # it has the matrix of this row, and equal steps before and after
        for r in range(rank):
            alike = alike and beside[t, r] == beside[t + 1, r]
        if alike and settled:
            put(cross[t + 1], cross[t])
            put(cov[t + 1], matrix)
            continue
        following, shared = cov[t + 1], cross[t]
        for r in range(rank):
            for s in range(rank):
                shared[r, s] = 0.0
                pivot[r, s] = beside[t, r] * matrix[r, s]
            for k in range(rank):
                factor = matrix[r, k] * beside[t, k]
                for s in range(rank):
                    shared[r, s] -= factor * following[k, s]
        for r in range(rank):
            for s in range(rank):
                back[r, s] = matrix[r, s]
            for k in range(rank):
                factor = shared[r, k]
                for s in range(r, rank):
                    back[r, s] -= factor * pivot[k, s]
        for r in range(rank):
            for s in range(r, rank):
                matrix[r, s] = back[r, s]
                matrix[s, r] = back[r, s]
        settled = alike and _is_near(matrix, following)
    return True


@loop
def _invert(matrix):
    """Replace a matrix by its inverse, by Gauss–Jordan elimination; ln|inverse|, or ∞ if a pivot is not positive."""
    log_det, rank = 0.0, len(matrix)
    for k in range(rank):
        pivot = matrix[k, k]
        if not pivot > 0.0:
            return np.inf
        log_det -= np.log(pivot)
        inverse = 1.0 / pivot
        row_k = matrix[k]
        row_k[k] = 1.0
        for s in range(rank):
            row_k[s] *= inverse
        for r in range(rank):
            if r != k:
                row, factor = matrix[r], matrix[r, k]
                row[k] = 0.0
                for s in range(rank):
                    row[s] -= factor * row_k[s]
    return log_det


@loop
def _mirror(matrix):
    """Copy the upper triangle of a matrix to the lower one."""
    for r in range(len(matrix)):
        for s in range(r):
            matrix[r, s] = matrix[s, r]


@loop
def _is_near(first, second):
    """Whether two covariance matrices agree to rounding."""
    for r in range(len(first)):
        for s in range(len(first)):
            if abs(first[r, s] - second[r, s]) > 1e-14 * np.sqrt(first[r, r] * first[s, s]):
                return False
    return True


@loop
def _smooth_wide(cov, beside, far, mean, cross, across, log_det):
    """Smooth in place: ``cov`` holds the precisions at first, ``mean`` the linear terms. False as in :func:`_smooth`.

    ``cross`` and ``across`` hold J and K on the way forward. Fixed matrices are copied, as there.
    """
    n_rows, rank = mean.shape
    edge, given, before = np.empty((rank, rank)), np.empty((rank, rank)), np.empty((rank, rank))
    steady, own_log_det = np.zeros(n_rows, np.bool_), 0.0
    for t in range(n_rows):
        matrix, alike = cov[t], t > 3
        for r in range(rank):
            alike = alike and beside[t - 1, r] == beside[t - 2, r]
            alike = alike and far[t - 2, r] == far[t - 3, r] and far[t - 3, r] == far[t - 4, r]
        for r in range(rank):
            if alike:
                for s in range(rank):
                    alike = alike and matrix[r, s] == given[r, s]
        if not alike:
            put(matrix, given)
        fixed = alike and steady[t - 1]
        if t > 0:
            last, gain = cov[t - 1], cross[t - 1]
            if fixed:
                put(cross[t - 2], gain)
            else:
                for r in range(rank):
                    for s in range(rank):
                        edge[r, s] = -cross[t - 2, s, r] * far[t - 2, s] if t > 1 else 0.0
                    edge[r, r] += beside[t - 1, r]
                _product(last, edge, gain)
                _subtract_transposed(edge, gain, matrix)
            for s in range(rank):
                for r in range(rank):
                    mean[t, r] -= gain[s, r] * mean[t - 1, s]
        if t > 1:
            further, further_gain = cov[t - 2], across[t - 2]
            for r in range(rank):
                for s in range(rank):
                    further_gain[r, s] = further[r, s] * far[t - 2, s]
                    mean[t, s] -= further_gain[r, s] * mean[t - 2, r]
                    if not fixed:
                        matrix[r, s] -= far[t - 2, r] * further_gain[r, s]
        if fixed:
            steady[t] = True
            put(cov[t - 1], matrix)
            log_det[0] += own_log_det
            continue
        _mirror(matrix)
        own_log_det = _invert(matrix)
        if own_log_det == np.inf:
            return False
        log_det[0] += own_log_det
        steady[t] = alike and _is_near(matrix, cov[t - 1]) and _is_near(cov[t - 1], cov[t - 2])
        for r in range(rank):
            for s in range(rank):
                if steady[t]:
                    scale = np.sqrt(matrix[r, r] / matrix[s, s])
                    steady[t] = abs(cross[t - 1, r, s] - cross[t - 2, r, s]) <= 1e-14 * scale
    settled = False
    for t in range(n_rows - 1, -1, -1):
        matrix = cov[t]
        for r in range(rank):
            edge[0, r] = 0.0
            for s in range(rank):
                edge[0, r] += matrix[r, s] * mean[t, s]
                if t < n_rows - 1:
                    edge[0, r] -= cross[t, r, s] * mean[t + 1, s]
                if t < n_rows - 2:
                    edge[0, r] -= across[t, r, s] * mean[t + 2, s]
        for r in range(rank):
            mean[t, r] = edge[0, r]
        if t == n_rows - 1:
            continue
        alike = t < n_rows - 4 and steady[t] and steady[t + 1] and steady[t + 2]
        for r in range(rank):
            alike = alike and beside[t, r] == beside[t + 1, r] and far[t, r] == far[t + 1, r]
        if alike and settled:
            put(cross[t + 1], cross[t])
            put(across[t + 1], across[t])
            put(cov[t + 1], matrix)
            continue
        put(cross[t], edge)
        _product(edge, cov[t + 1], cross[t])
        for r in range(rank):
            for s in range(rank):
                cross[t, r, s] = -cross[t, r, s]
        if t < n_rows - 2:
            put(across[t], given)
            for r in range(rank):
                for s in range(rank):
                    total = 0.0
                    for k in range(rank):
                        total += given[r, k] * cross[t + 1, s, k]
                    cross[t, r, s] -= total
            _product(edge, cross[t + 1], before)
            _product(given, cov[t + 2], across[t])
            for r in range(rank):
                for s in range(rank):
                    across[t, r, s] = -across[t, r, s] - before[r, s]
            _subtract_outer(across[t], given, matrix)
        _subtract_outer(cross[t], edge, matrix)
        _mirror(matrix)
        settled = alike and _is_near(matrix, cov[t + 1]) and _is_near(cov[t + 1], cov[t + 2])
        for r in range(rank):
            for s in range(rank):
                if settled:
                    scale = np.sqrt(matrix[r, r] * matrix[s, s])
                    settled = abs(cross[t, r, s] - cross[t + 1, r, s]) <= 1e-14 * scale
    return True


@loop
def _product(left, right, out):
    """out = left right."""
    for r in range(len(left)):
        for s in range(len(left)):
            out[r, s] = 0.0
        for k in range(len(left)):
            factor = left[r, k]
            for s in range(len(left)):
                out[r, s] += factor * right[k, s]


@loop
def _subtract_transposed(left, right, out):
    """The upper triangle of out − leftᵀ right, which is symmetric."""
    for k in range(len(left)):
        for r in range(len(left)):
            factor = left[k, r]
            for s in range(r, len(left)):
                out[r, s] -= factor * right[k, s]


@loop
def _subtract_outer(left, right, out):
    """The upper triangle of out − left rightᵀ, which is symmetric."""
    for r in range(len(left)):
        for s in range(r, len(left)):
            total = 0.0
            for k in range(len(left)):
                total += left[r, k] * right[s, k]
            out[r, s] -= total


@loop
def _evidence(precision, linear, scale, own, beside, far, found):
    """See :func:`brtf.kernels.reference.chains.chain_evidence`."""
    n_rows, n_columns = linear.shape
    wide = far.shape[1] > 0
    for k in range(len(own)):
        for r in range(n_columns):
            total, product, pivot, term, edge = 0.5 * n_rows * np.log(scale[r]), 1.0, 1.0, 0.0, 0.0
            pivot_before, term_before, two = 1.0, 0.0, 0.0
            for t in range(n_rows):
                now = linear[t, r] - edge / pivot * term - two / pivot_before * term_before
                own_now = precision[t, r] + scale[r] * own[k, t] - edge * edge / pivot - two * two / pivot_before
                total += 0.5 * now * now / own_now
                product *= own_now / scale[r]
                if not 1e-100 < product < 1e100:
                    total -= 0.5 * np.log(product)
                    product = 1.0
                if t < n_rows - 1:
                    pull = 0.0
                    if wide and t > 0:
                        two = scale[r] * far[k, t - 1]
                        pull = edge * two / pivot
                    edge = scale[r] * beside[k, t] - pull
                pivot_before, term_before, pivot, term = pivot, term, own_now, now
            found[k, r] = total - 0.5 * (np.log(product) + n_rows * np.log(scale[r]))
