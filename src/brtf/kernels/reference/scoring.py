"""Newton scoring of the noise in plain NumPy: the definition that compiled kernels must match."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import Gradient, StudentNumbers


def scores(
    gradient: Gradient, numbers: StudentNumbers | None, tau: float, deviation: Array, count: Array
) -> tuple[float, Array, Array]:
    """Σ ln f over bins of D, derivatives of Σ (½ ln τ + ln f) by ln τ and the model's K parameters, and information.

    The gradient is (1 + K,). The information (1 + K, 1 + K) is the sum of the outer products of the scores: the
    expected curvature if the model is correct.
    """
    log_evidence, by_rho, *by_model = gradient(tau * deviation)
    by_parameter = np.stack([0.5 + by_rho, *by_model])
    counted = by_parameter * count
    return float(count @ log_evidence), counted.sum(axis=1), counted @ by_parameter.T


def scoring_step(
    place: Array, gradient: Array, curvature: Array, low: Array, high: Array, damping: float, longest: float
) -> Array:
    """The parameters (K,) after one step of Newton scoring within limits: solve with the curvature plus a ridge.

    Parameters at a limit are fixed if the gradient points beyond it; no step is longer than ``longest``.
    """
    free = ~((place <= low) & (gradient < 0) | (place >= high) & (gradient > 0))
    if not free.any():
        return place
    matrix, own = curvature[np.ix_(free, free)], np.diag(curvature)[free]
    step = np.zeros(place.size)
    ridge = damping * own + 1e-10 * own.max() + 1e-300
    step[free] = np.linalg.solve(matrix + np.diag(ridge), gradient[free])
    return np.clip(place + np.clip(step, -longest, longest), low, high)


def corrected(curvature: Array, step: Array, drop: Array) -> Array:
    """The curvature (K, K) after a BFGS update with the ``drop`` of the gradient along a step."""
    along = curvature @ step
    if not (drop @ step > 0.0 and along @ step > 0.0):
        return curvature
    return curvature - np.outer(along, along) / (along @ step) + np.outer(drop, drop) / (drop @ step)
