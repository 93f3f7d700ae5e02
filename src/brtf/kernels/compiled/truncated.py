"""Rows of truncated normals in compiled loops: the twin of :mod:`brtf.kernels.reference.truncated`."""

from __future__ import annotations

import math

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import plain
from brtf.kernels.jit import loop
from brtf.kernels.reference.truncated import JITTER, LEAST_GAIN, MOST_HALVINGS, MOST_STEPS
from brtf.kernels.truncated import FAR, LOG_SQRT_2PI_E, N_FRACTIONS, SQRT_2

SQRT_2PI = math.sqrt(2.0 * math.pi)


def solve_truncated(precision: Array, linear: Array, location: Array) -> Array:
    """Locations (I, R) of rows of truncated normals that best match densities ∝ exp(hᵀa − ½ aᵀPa), a ≥ 0."""
    found = np.array(location, dtype=np.float64, order="C")
    _solve(plain(precision), plain(linear), found)
    return found


@loop
def _moments(alpha):
    """Mean, variance and entropy of a unit normal about α, cut off below zero."""
    if alpha < -FAR:
        second = 0.0
        for k in range(N_FRACTIONS, 1, -1):
            second = k / (second - alpha)
        first = 1.0 / (second - alpha)
        return first, first * (second - first), 0.5 - math.log(first - alpha) - 0.5 * alpha * first
    mass = 0.5 * math.erfc(-alpha / SQRT_2)
    hazard = math.exp(-0.5 * alpha * alpha) / (SQRT_2PI * mass)
    shift = alpha + hazard
    return shift, 1.0 - hazard * shift, LOG_SQRT_2PI_E + math.log(mass) - 0.5 * alpha * hazard


@loop
def _cost(matrix, linear, scale, natural, mean, variance):
    """The cost of a row, and its means and variances, from the natural parameters."""
    rank, total = linear.size, 0.0
    for r in range(rank):
        first, second, entropy = _moments(natural[r] * scale[r])
        mean[r], variance[r] = first * scale[r], second * scale[r] ** 2
        total += 0.5 * (first * first + second) - entropy - math.log(scale[r]) - linear[r] * mean[r]
    for r in range(rank):
        for s in range(r):
            total += matrix[r, s] * mean[r] * mean[s]
    return total


@loop
def _newton(matrix, variance, slope, lower, spread, step):
    """The solution of (offdiag P + diag 1/variance) step = −slope, by Cholesky after scaling to unit diagonal."""
    rank = slope.size
    for r in range(rank):
        spread[r] = math.sqrt(variance[r])
    for r in range(rank):
        for s in range(r + 1):
            total = matrix[r, s] * spread[r] * spread[s] if s < r else 1.0 + rank * JITTER
            for t in range(s):
                total -= lower[r, t] * lower[s, t]
            lower[r, s] = math.sqrt(max(total, JITTER)) if r == s else total / lower[s, s]
    for r in range(rank):
        total = -slope[r] * spread[r]
        for t in range(r):
            total -= lower[r, t] * step[t]
        step[r] = total / lower[r, r]
    for r in range(rank - 1, -1, -1):
        total = step[r]
        for t in range(r + 1, rank):
            total -= lower[t, r] * step[t]
        step[r] = total / lower[r, r]
    for r in range(rank):
        step[r] *= spread[r]


@loop
def _solve(precision, linear, location):
    """Move every row's location to the optimum, in place; see the definition."""
    n_rows, rank = linear.shape
    lower, slope, step, spread = np.zeros((rank, rank)), np.empty(rank), np.empty(rank), np.empty(rank)
    scale, natural, mean, variance = np.empty(rank), np.empty(rank), np.empty(rank), np.empty(rank)
    tried, new_mean, new_variance = np.empty(rank), np.empty(rank), np.empty(rank)
    for i in range(n_rows):
        matrix, own = precision[i if len(precision) > 1 else 0], linear[i]
        for r in range(rank):
            scale[r] = 1.0 / math.sqrt(matrix[r, r])
            natural[r] = location[i, r] * matrix[r, r]
        cost = _cost(matrix, own, scale, natural, mean, variance)
        for _ in range(MOST_STEPS):
            for r in range(rank):
                slope[r] = natural[r] - own[r]
                for s in range(rank):
                    if s != r:
                        slope[r] += matrix[r, s] * mean[s]
            _newton(matrix, variance, slope, lower, spread, step)
            gain = 0.0
            for r in range(rank):
                gain -= slope[r] * step[r]
            if not gain > LEAST_GAIN:
                if math.isnan(gain):
                    natural[:] = math.nan
                break
            length, better = 1.0, False
            for _ in range(MOST_HALVINGS):
                for r in range(rank):
                    tried[r] = natural[r] + length * step[r] / variance[r]
                new = _cost(matrix, own, scale, tried, new_mean, new_variance)
                if new < cost:
                    better = True
                    break
                length *= 0.5
            if not better:
                break
            cost = new
            for r in range(rank):
                natural[r], mean[r], variance[r] = tried[r], new_mean[r], new_variance[r]
        for r in range(rank):
            location[i, r] = natural[r] * scale[r] ** 2
