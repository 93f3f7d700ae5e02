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
