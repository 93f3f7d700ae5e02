"""Newton scoring of the noise in compiled loops: the twin of :mod:`brtf.kernels.reference.scoring`."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels import scoring
from brtf.kernels.arguments import Gradient, StudentNumbers, plain
from brtf.kernels.reference import scoring as definition


def scores(
    gradient: Gradient, numbers: StudentNumbers | None, tau: float, deviation: Array, count: Array
) -> tuple[float, Array, Array]:
    """Σ ln f over bins of D; derivatives (1 + K,) of Σ (½ ln τ + ln f) by ln τ and the K parameters; information."""
    if numbers is None:
        return definition.scores(gradient, numbers, tau, deviation, count)
    by_parameter, information = np.zeros(4), np.zeros((4, 4))
    flat, *others = numbers
    value = scoring.student_scores(flat, tau, *others, plain(deviation), plain(count), by_parameter, information)
    return value, by_parameter, information
