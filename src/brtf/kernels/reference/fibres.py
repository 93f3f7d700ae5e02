"""The Kalman smoother of scalar chains, in NumPy: all chains together, position by position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array


class SmoothedChains(NamedTuple):
    """Posterior of chains: see :func:`smooth_fibres`."""

    mean: Array
    var: Array
    next_cov: Array
    evidence: Array
    squares: Array


def smooth_fibres(
    starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array
) -> SmoothedChains:
    """The posterior of Gaussian chains g given Π_m exp(−½ p_m (g_m − t_m)²).

    Chain f are the numbers from ``starts[f]`` to ``starts[f + 1]``, with g ~ N(0, ``variance[f]``) each and correlation
    ``decay[m]`` with the one before. Returns means, variances and covariances with the next (M,), and per chain the
    log evidence ln E[Π_m exp(−½ p_m (g_m − t_m)²)] and E[gᵀQg], Q the inverse of the correlation matrix; (F,).
    """
    sizes = np.diff(starts)
    n_chains, longest = sizes.size, int(sizes.max(initial=0))
    columns = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    place = np.repeat(np.arange(n_chains), sizes), columns

    def padded(vector: Array) -> Array:
        """A row per chain; numbers past its end are not observed and say nothing about it."""
        table = np.zeros((n_chains, longest + 1))
        table[place] = vector
        return table

    decay, precision, target = padded(decay), padded(precision), padded(target)
    mean, var, next_cov = (np.zeros((n_chains, longest + 1)) for _ in range(3))
    evidence, squares = np.zeros(n_chains), np.zeros(n_chains)
    before, before_var = np.zeros(n_chains), variance.copy()
    for k in range(longest):
        if k:
            before = decay[:, k] * mean[:, k - 1]
            before_var = decay[:, k] ** 2 * var[:, k - 1] + variance * (1.0 - decay[:, k] ** 2)
        spread, miss = 1.0 + precision[:, k] * before_var, target[:, k] - before
        evidence -= 0.5 * (np.log(spread) + precision[:, k] * miss**2 / spread)
        var[:, k] = before_var / spread
        mean[:, k] = before + var[:, k] * precision[:, k] * miss
    for k in range(longest - 2, -1, -1):
        step, inside = decay[:, k + 1], k + 1 < sizes
        ahead_var = step**2 * var[:, k] + variance * (1.0 - step**2)
        gain = np.where(inside & (ahead_var > 0), var[:, k] * step / np.where(ahead_var > 0, ahead_var, 1.0), 0.0)
        mean[:, k] += gain * (mean[:, k + 1] - step * mean[:, k])
        var[:, k] += gain**2 * (var[:, k + 1] - ahead_var)
        next_cov[:, k] = gain * var[:, k + 1]
    squares += var[:, 0] + mean[:, 0] ** 2
    for k in range(1, longest):
        step = decay[:, k]
        power = var[:, k] - 2.0 * step * next_cov[:, k - 1] + step**2 * var[:, k - 1]
        power += (mean[:, k] - step * mean[:, k - 1]) ** 2
        squares += np.where(k < sizes, power / (1.0 - step**2), 0.0)
    return SmoothedChains(mean[place], var[place], next_cov[place], evidence, squares)


def fibre_evidence(starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array) -> float:
    """The sum of the evidence of all chains."""
    return float(smooth_fibres(starts, decay, precision, target, variance).evidence.sum())
