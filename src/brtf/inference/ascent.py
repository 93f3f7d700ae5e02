"""Newton scoring: the nearest maximum in a few parameters within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brtf.data.arrays import Array

LITTLE = 1e-6
"""Gain in nats at which the optimization stops."""
LONGEST_STEP = 3.0
"""Longest step of any parameter; all are logarithms, or have a smaller range."""


@dataclass(frozen=True, eq=False)
class Ascent:
    """The part of the bound that depends on K parameters, with the derivatives for Newton scoring.

    Attributes
    ----------
    value : float
    gradient : (K,)
    information : (K, K) sum of the outer products of the scores: the expected curvature if the model is correct
    """

    value: float
    gradient: Array
    information: Array


def ascend(
    objective: Callable[[Array], Ascent],
    start: Array,
    limits: list[tuple[float, float]],
    *,
    max_steps: int,
    little: float = LITTLE,
) -> tuple[Array, float]:
    """The nearest maximum within limits, by Newton scoring: Newton's method with the information as curvature.

    Along the last step the curvature is replaced by the one observed (BFGS), since the model may be misspecified. A
    step that does not raise the objective is shortened. Stops when a step gains less than ``little`` nats. Returns the
    parameters and the value.
    """
    low, high = np.array(limits).T
    place = np.clip(start, low, high)
    here, damping = objective(place), 0.0
    curvature = here.information
    for _ in range(max_steps):
        candidate = scoring_step(place, here.gradient, curvature, low, high, damping)
        if np.array_equal(candidate, place):
            break
        there = objective(candidate)
        gain, moved, drop = there.value - here.value, candidate - place, here.gradient - there.gradient
        if gain > 0.0:
            place, here, damping = candidate, there, 0.2 * damping if damping > 0.01 else 0.0
        else:
            damping = max(10.0 * damping, 0.3)
        curvature = corrected(here.information, moved, drop)
        if abs(gain) < little:
            break
    return place, here.value


def scoring_step(place: Array, gradient: Array, curvature: Array, low: Array, high: Array, damping: float) -> Array:
    """The parameters (K,) after one step of Newton scoring within limits: solve with the curvature plus a ridge.

    Parameters at a limit are fixed if the gradient points beyond it; no step is longer than ``LONGEST_STEP``.
    """
    free = ~((place <= low) & (gradient < 0) | (place >= high) & (gradient > 0))
    if not free.any():
        return place
    matrix, own = curvature[np.ix_(free, free)], np.diag(curvature)[free]
    step = np.zeros(place.size)
    ridge = damping * own + 1e-10 * own.max() + 1e-300
    step[free] = np.linalg.solve(matrix + np.diag(ridge), gradient[free])
    return np.clip(place + np.clip(step, -LONGEST_STEP, LONGEST_STEP), low, high)


def corrected(curvature: Array, step: Array, drop: Array) -> Array:
    """The curvature (K, K) after a BFGS update with the ``drop`` of the gradient along a step."""
    along = curvature @ step
    if not (drop @ step > 0.0 and along @ step > 0.0):
        return curvature
    return curvature - np.outer(along, along) / (along @ step) + np.outer(drop, drop) / (drop @ step)
