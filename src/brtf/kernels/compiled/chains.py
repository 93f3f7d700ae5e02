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
    return Smoothed(mean, cov, cross, float(log_det[0]))


def chain_evidence(precision: Array, linear: Array, scale: Array, own: Array, beside: Array) -> Array:
    """The log evidence of every column for every chain, (K, R)."""
    found = np.empty((len(own), linear.shape[1]))
    plain = [np.require(array, np.float64, ["C", "W"]) for array in (precision, linear, scale, own, beside)]
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
        own_log_det = 0.0
        for k in range(rank):  # Gauss–Jordan: the matrix becomes its inverse
            pivot_k = matrix[k, k]
            if not pivot_k > 0.0:
                return False
            own_log_det -= np.log(pivot_k)
            inverse = 1.0 / pivot_k
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
        alike = (
            t < n_rows - 2 and steady[t + 1]
        )  # which has the matrix of this row, and the same steps before and after
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
def _is_near(first, second):
    """Whether two covariance matrices agree to rounding."""
    for r in range(len(first)):
        for s in range(len(first)):
            if abs(first[r, s] - second[r, s]) > 1e-14 * np.sqrt(first[r, r] * first[s, s]):
                return False
    return True


@loop
def _evidence(precision, linear, scale, own, beside, found):
    """See :func:`brtf.kernels.reference.chains.chain_evidence`."""
    n_rows, n_columns = linear.shape
    for k in range(len(own)):
        for r in range(n_columns):
            total, product, pivot, term, edge = 0.5 * n_rows * np.log(scale[r]), 1.0, 1.0, 0.0, 0.0
            for t in range(n_rows):
                term = linear[t, r] - edge / pivot * term
                pivot = precision[t, r] + scale[r] * own[k, t] - edge * edge / pivot
                total += 0.5 * term * term / pivot
                product *= pivot / scale[r]
                if not 1e-100 < product < 1e100:
                    total -= 0.5 * np.log(product)
                    product = 1.0
                if t < n_rows - 1:
                    edge = scale[r] * beside[k, t]
            found[k, r] = total - 0.5 * (np.log(product) + n_rows * np.log(scale[r]))
