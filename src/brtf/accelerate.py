"""Guarded Anderson acceleration of the sweeps, on the factors' means."""

from __future__ import annotations

import numpy as np

from brtf.distributions import Array, RowGaussians
from brtf.model import State

DEPTH = 5
"""Differences remembered; more add nothing on the problems measured."""


class Anderson:
    """Extrapolation from the last sweeps x → g(x): towards the combination of their results with the least residual.

    With f = g(x) − x, the next x is g − θ ΔG γ, γ minimising ‖f − ΔF γ‖. Only the means are extrapolated; precisions
    and noise follow from them. The low-rank part is a product, so long steps overshoot: θ grows when an extrapolated
    state is kept and shrinks, the past forgotten, when it is refused. The caller decides, by the bound.
    """

    def __init__(self) -> None:
        self._points: list[Array] = []
        self._images: list[Array] = []
        self._damping = 0.5

    def extrapolate(self, before: State, after: State) -> State | None:
        """A state beyond ``after``, which a sweep made from ``before``; None while there is too little to go by."""
        point, image = _means(before), _means(after)
        if point.size != image.size or (self._points and self._points[-1].size != point.size):
            self._forget()
            return None
        self._points.append(point)
        self._images.append(image)
        del self._points[: -DEPTH - 1], self._images[: -DEPTH - 1]
        if len(self._points) < 3:
            return None
        images = np.array(self._images)
        residuals = images - np.array(self._points)
        weights, *_ = np.linalg.lstsq(np.diff(residuals, axis=0).T, residuals[-1], rcond=1e-10)
        return _with_means(after, image - self._damping * (weights @ np.diff(images, axis=0)))

    def kept(self) -> None:
        """The last extrapolated state was better."""
        self._damping = min(1.0, 1.5 * self._damping)

    def refused(self) -> None:
        """The last extrapolated state was worse."""
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
        moved = RowGaussians(part.reshape(rows.mean.shape), rows.cov, rows.centre)
        moved.__dict__["log_det_cov"] = rows.log_det_cov
        state = state.with_factor(mode, moved)
    return state
