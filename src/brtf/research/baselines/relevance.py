"""What CP and Tucker with automatic relevance determination share: the noise level, and what is still relevant."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from brtf.research.baselines.algebra import Array, squared_norm

MIN_SWEEPS = 10
STILL = 1e-8
"""Change of ‖Y − X‖² in a sweep, relative to ‖Y‖², below which a fit has converged."""
IRRELEVANT = 1e-3
"""Size relative to the largest below which a component goes."""


def assumed_noise(Y: Array, snr: float) -> float:
    """The variance of the noise from a ratio of signal to noise in decibels: mean(Y²) / (1 + 10^(snr/10))."""
    return squared_norm(Y) / Y.size / (1 + 10 ** (snr / 10))


def learnt_noise(Y: Array, error: float) -> float:
    """The variance of the noise from the squared error of a fit; what is below 1e-12 of mean(Y²) is rounding."""
    return max(error, 1e-12 * squared_norm(Y)) / Y.size


def relevant(sizes: Array, total: float) -> NDArray[np.bool_]:
    """Which components stay: not far below the largest, nor lost in the rounding of data of squared norm ``total``."""
    return sizes > max(IRRELEVANT * float(sizes.max(initial=0.0)), np.finfo(np.float64).eps * math.sqrt(total))
