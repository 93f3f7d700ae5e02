"""The Kalman smoother of scalar chains in compiled loops: the twin of :mod:`brtf.kernels.reference.fibres`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.jit import loop
from brtf.kernels.reference.fibres import SmoothedChains


def smooth_fibres(
    starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array
) -> SmoothedChains:
    """The posterior of Gaussian chains g given Π_m exp(−½ p_m (g_m − t_m)²)."""
    n_chains = starts.size - 1
    found = SmoothedChains(*(np.empty(size) for size in (decay.size,) * 3 + (n_chains,) * 2))
    _smooth(starts, decay, precision, target, variance, *found)
    return found


def fibre_evidence(starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array) -> float:
    """The log evidence of all chains."""
    return float(_evidence(starts, decay, precision, target, variance))


@loop
def _smooth(
    starts: NDArray[np.int64],
    decay: Array,
    precision: Array,
    target: Array,
    variance: Array,
    mean: Array,
    var: Array,
    next_cov: Array,
    evidence: Array,
    squares: Array,
) -> None:
    """See :func:`brtf.kernels.reference.fibres.smooth_fibres`; the last five arguments are filled."""
    for f in range(starts.size - 1):
        first, end, own = starts[f], starts[f + 1], variance[f]
        before, before_var, total = 0.0, own, 0.0
        for m in range(first, end):
            if m > first:
                before = decay[m] * mean[m - 1]
                before_var = decay[m] * decay[m] * var[m - 1] + own * (1.0 - decay[m] * decay[m])
            spread = 1.0 + precision[m] * before_var
            miss = target[m] - before
            total -= 0.5 * (math.log(spread) + precision[m] * miss * miss / spread)
            var[m] = before_var / spread
            mean[m] = before + var[m] * precision[m] * miss
        evidence[f] = total
        next_cov[end - 1] = 0.0
        for m in range(end - 2, first - 1, -1):
            step = decay[m + 1]
            ahead_var = step * step * var[m] + own * (1.0 - step * step)
            gain = var[m] * step / ahead_var if ahead_var > 0.0 else 0.0
            mean[m] += gain * (mean[m + 1] - step * mean[m])
            var[m] += gain * gain * (var[m + 1] - ahead_var)
            next_cov[m] = gain * var[m + 1]
        total = var[first] + mean[first] * mean[first]
        for m in range(first + 1, end):
            step = decay[m]
            difference = mean[m] - step * mean[m - 1]
            power = var[m] - 2.0 * step * next_cov[m - 1] + step * step * var[m - 1] + difference * difference
            total += power / (1.0 - step * step)
        squares[f] = total


@loop
def _evidence(starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array) -> float:
    """The sum of the evidence of all chains, without the moments."""
    total = 0.0
    for f in range(starts.size - 1):
        own, before, before_var, last, last_var = variance[f], 0.0, variance[f], 0.0, 0.0
        for m in range(starts[f], starts[f + 1]):
            if m > starts[f]:
                before = decay[m] * last
                before_var = decay[m] * decay[m] * last_var + own * (1.0 - decay[m] * decay[m])
            spread = 1.0 + precision[m] * before_var
            miss = target[m] - before
            total -= 0.5 * (math.log(spread) + precision[m] * miss * miss / spread)
            last_var = before_var / spread
            last = before + last_var * precision[m] * miss
    return total
