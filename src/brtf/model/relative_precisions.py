"""Relative precisions ω_g ~ Ga(c, c) of groups of numbers, such as slices or rows: the concentration c that fits them.

A group of 2n numbers whose squares, in units of their common variance, total 2s has a density that is larger by
∫ Ga(ω | c, c) ωⁿ exp(−(ω − 1) s) dω than without a precision of its own. c → ∞ is one precision for all.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import digamma, gammaln, polygamma

from brtf.data.arrays import Array

SMALLEST, LARGEST = 1e-3, 1e8
"""Limits of c: at the upper one all groups have one precision to rounding."""
STEPS = 2
"""Newton steps from one c to a better one."""


def log_gain(c: float, half_n: Array | float, half_s: Array) -> float:
    """Σ_g ln ∫ Ga(ω | c, c) ω^{n_g} exp(−(ω − 1) s_g) dω; n is a number or (G,), s (G,)."""
    constant = gammaln(c + half_n) - gammaln(c) - half_n * math.log(c)
    return float(np.sum(constant - (c + half_n) * np.log1p(half_s / c) + half_s))


def best_concentration(half_n: Array | float, half_s: Array, smallest: float = SMALLEST) -> tuple[float, float]:
    """The c at which the gain is largest, and the gain."""

    def loss(log_c: float) -> float:
        return -log_gain(math.exp(log_c), half_n, half_s)

    found = minimize_scalar(loss, bounds=(math.log(smallest), math.log(LARGEST)), method="bounded")
    return math.exp(float(found.x)), -float(found.fun)


def better_concentration(c: float, half_n: float, half_s: Array, smallest: float = SMALLEST) -> float:
    """A c with a larger gain than the given one, by Newton steps in ln c; the same where none is found."""
    if not half_s.size:
        return c
    present = log_gain(c, half_n, half_s)
    for _ in range(STEPS):
        both = c * (c + half_s)
        slope = float(digamma(c + half_n) - digamma(c) - half_n / c)
        slope += float(np.mean((c + half_n) * half_s / both - np.log1p(half_s / c)))
        bend = float(polygamma(1, c + half_n) - polygamma(1, c) + half_n / c**2)
        bend += float(np.mean(half_s / both * (2.0 - (c + half_n) * (2.0 * c + half_s) / both)))
        rise, curvature = c * slope, c * slope + c * c * bend  # by ln c
        step = -rise / curvature if curvature < 0.0 else math.copysign(1.0, rise)
        other = min(max(c * math.exp(min(max(step, -1.0), 1.0)), smallest), LARGEST)
        gain = log_gain(other, half_n, half_s)
        if not gain > present:
            break
        c, present = other, gain
    return c
