"""A loop over histogram bins, where the overhead of NumPy calls would dominate.

The definitions are those of :mod:`brtf.model.local_models`, bin by bin.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.jit import loop

SQRT_2, SQRT_PI = math.sqrt(2.0), math.sqrt(math.pi)
TINY_ROOT = 1e-8
"""ρ^{1/2} below which the slopes of the two edges of a flat slab cancel to rounding."""


@loop
def _scaled_erfc(x):
    """e^{x²} erfc(x); beyond 20 by its series, to rounding."""
    if x < 20.0:
        return math.exp(x * x) * math.erfc(x)
    u = 0.5 / (x * x)
    return (1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u * (1.0 - 9.0 * u))))) / (x * SQRT_PI)


@loop
def _log_normal_below(x):
    """ln Φ(x)."""
    if x > -5.0:
        return math.log1p(-0.5 * math.erfc(x / SQRT_2)) if x > 0.0 else math.log(0.5 * math.erfc(-x / SQRT_2))
    return math.log(0.5 * _scaled_erfc(-x / SQRT_2)) - 0.5 * x * x


@loop
def student_scores(flat, tau, probability, nu, width, constants, deviation, count, gradient, information):
    """Σ ln f over the bins; derivatives of Σ (½ ln τ + ln f) by (ln τ, logit π, 1/ν, ln ζ); Σ of products of scores.

    ``constants`` are ln Γ((ν+1)/2) / Γ(ν/2) · (2/ν)^{1/2}, and twice its derivative by ln ν.
    """
    log_inlier, log_outlier = math.log1p(-probability), math.log(probability)
    kappa, root_width = 1.0 / (1.0 + width), math.sqrt(width)
    log_height = 0.5 * math.log(0.5 * math.pi / width) if flat else 0.5 * math.log(kappa)
    score, total = np.empty(4), 0.0
    for b in range(deviation.size):
        rho = tau * deviation[b]
        log_tail = math.log1p(rho / nu)
        log_spike = log_inlier + constants[0] - 0.5 * (nu + 1.0) * log_tail
        weight = (nu + 1.0) / (nu + rho)
        if flat:
            root = math.sqrt(rho)
            near, log_ratio = root_width - root, -2.0 * root_width * root
            log_near, ratio = _log_normal_below(near), math.exp(log_ratio)
            inside = -math.expm1(min(_log_normal_below(-root_width - root) - log_near, log_ratio))
            hazard = math.sqrt(2.0 / math.pi) / _scaled_erfc(-near / SQRT_2) / inside
            log_slab = log_height + log_near + math.log(inside)
            shrinkage = -hazard * math.expm1(log_ratio) / root if root > TINY_ROOT else 2.0 * hazard * root_width
            by_width = -0.5 + 0.5 * root_width * hazard * (1.0 + ratio)
        else:
            log_slab, shrinkage = log_height - 0.5 * kappa * rho, kappa
            by_width = -0.5 * (1.0 - kappa) * (1.0 - rho * kappa)
        log_slab += log_outlier
        larger = max(log_spike, log_slab)
        log_evidence = larger + math.log1p(math.exp(min(log_spike, log_slab) - larger))
        outlier = math.exp(log_slab - log_evidence)
        inlier = 1.0 - outlier
        score[0] = 0.5 - 0.5 * rho * (inlier * weight + outlier * shrinkage)
        score[1] = outlier - probability
        score[2] = -0.5 * nu * inlier * (constants[1] - nu * log_tail + weight * rho)
        score[3] = outlier * by_width
        total += count[b] * log_evidence
        for k in range(4):
            gradient[k] += count[b] * score[k]
            for j in range(4):
                information[k, j] += count[b] * score[k] * score[j]
    return total
