"""Guarded Anderson acceleration of the sweeps, on the factors' means."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from brtf.data.arrays import Array
from brtf.model.state import State

DEPTH = 5
"""Number of differences kept; more do not help on the problems measured."""


@dataclass(frozen=True, eq=False)
class AndersonHistory:
    """History of the acceleration: factor means before and after the last sweeps, and the damping.

    Attributes
    ----------
    points, images : x and g(x) of up to DEPTH + 1 sweeps in order, each (P,)
    damping : θ
    """

    points: tuple[Array, ...] = ()
    images: tuple[Array, ...] = ()
    damping: float = 0.5


class Anderson:
    """Anderson acceleration of sweeps x → g(x): extrapolate to the combination with the smallest residual.

    With f = g(x) − x, the next x is g − θ ΔG γ, γ minimising ‖f − ΔF γ‖. Only the means are extrapolated; precisions
    and noise follow from them. The low-rank part is a product, so long steps overshoot: θ grows when an extrapolated
    state is accepted; when it is rejected, θ shrinks and the history is cleared. The caller decides, by the bound.
    """

    def __init__(self, memory: AndersonHistory | None = None) -> None:
        memory = memory or AndersonHistory()
        self._points, self._images = list(memory.points), list(memory.images)
        self._damping = memory.damping

    @property
    def memory(self) -> AndersonHistory:
        """Everything on which the next extrapolation depends."""
        return AndersonHistory(tuple(self._points), tuple(self._images), self._damping)

    def extrapolate(self, before: State, after: State) -> State | None:
        """A state beyond ``after``, the result of a sweep from ``before``; None while the history is too short."""
        point, image = _means(before), _means(after)
        if point.size != image.size or (self._points and self._points[-1].size != point.size):
            self._forget()
            return None
        if self._images and np.array_equal(point, self._images[-1]):
            point = self._images[-1]  # shared unless an extrapolated state was accepted in between
        self._points.append(point)
        self._images.append(image)
        del self._points[: -DEPTH - 1], self._images[: -DEPTH - 1]
        if len(self._points) < 3:
            return None
        changes = np.empty((len(self._points) - 1, point.size))  # differences of the residuals, then of the images
        sweeps = zip(self._images, self._points, strict=True)
        for change, (one, other) in zip(changes, pairwise(sweeps), strict=True):
            np.subtract(other[0] - other[1], one[0] - one[1], out=change)
        if not (np.isfinite(changes).all() and np.isfinite(image - point).all()):  # LAPACK would print a warning
            self._forget()
            return None
        weights, *_ = np.linalg.lstsq(changes.T, image - point, rcond=1e-10)
        for change, (earlier, later) in zip(changes, pairwise(self._images), strict=True):
            np.subtract(later, earlier, out=change)
        return _with_means(after, image - self._damping * (weights @ changes))

    def kept(self) -> None:
        """Record that the last extrapolated state was accepted."""
        self._damping = min(1.0, 1.5 * self._damping)

    def refused(self) -> None:
        """Record that the last extrapolated state was rejected."""
        self._damping *= 0.5
        self._forget()

    def _forget(self) -> None:
        self._points.clear()
        self._images.clear()


def _means(state: State) -> Array:
    return np.concatenate([rows.mean.ravel() for rows in state.factors])


def _with_means(state: State, means: Array) -> State:
    ends = np.cumsum([rows.mean.size for rows in state.factors])[:-1]
    for mode, part in enumerate(np.split(means, ends)):
        rows = state.factors[mode]
        state = state.with_factor(mode, *state.row_priors[mode].moved(rows, part.reshape(rows.mean.shape)))
    return state
