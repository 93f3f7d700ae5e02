"""Moments of normal distributions cut off below zero."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfc

from brtf.data.arrays import Array

FAR, N_FRACTIONS = 4.0, 40
"""Scales below zero from which moments follow from a continued fraction, and its length: both are then accurate to
rounding, where the difference of nearly equal numbers would not be."""
SQRT_2, LOG_SQRT_2PI_E = math.sqrt(2.0), 0.5 * (1.0 + math.log(2.0 * math.pi))


def truncated_moments(location: Array, scale: Array) -> tuple[Array, Array, Array]:
    """Mean, variance and entropy of N(location, scale²) cut off below zero, elementwise.

    With α = location/scale and h = φ(α)/Φ(α): mean = scale (α + h), variance = scale² (1 − h (α + h)), entropy
    ln(√(2πe) scale Φ(α)) − αh/2. For z = −α > 4 the continued fraction K₁ = 1/(z + K₂), K₂ = 2/(z + 3/(z + …)) gives
    them without cancellation: h = z + K₁, α + h = K₁, 1 − h (α + h) = K₁ (K₂ − K₁).
    """
    alpha = location / scale
    near, far = np.maximum(alpha, -FAR), np.maximum(-alpha, FAR)
    mass = 0.5 * erfc(-near / SQRT_2)
    hazard = np.exp(-0.5 * near**2) / (math.sqrt(2.0 * math.pi) * mass)
    shift = near + hazard
    entropy = LOG_SQRT_2PI_E + np.log(mass) - 0.5 * near * hazard
    second = np.zeros_like(far)
    for k in range(N_FRACTIONS, 1, -1):
        second = k / (far + second)
    first = 1.0 / (far + second)
    is_far = alpha < -FAR
    mean = np.where(is_far, first, shift)
    variance = np.where(is_far, first * (second - first), 1.0 - hazard * shift)
    entropy = np.where(is_far, 0.5 - np.log(far + first) + 0.5 * far * first, entropy)
    return mean * scale, variance * scale**2, entropy + np.log(scale)
