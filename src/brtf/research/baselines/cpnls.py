"""CP by nonlinear least squares: Gauss–Newton steps within a trust region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, contract, design, row_grams, squared_norm, typical_size, unfold
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.starts import Factors, best_start

MAX_CG = 15
CG_TOL = 1e-6
"""Largest number of conjugate-gradient steps towards a Gauss–Newton step, and the relative residual that suffices."""
MAX_REJECTED = 30
"""Consecutive rejected steps after which a fit stops."""
SMALLEST_STEP = 1e-8
"""Length of a step relative to that of the factors below which a fit has converged."""


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    n_starts: int = 5,
    max_sweeps: int = 200,
    tol: float = 1e-12,
) -> Recovery:
    """Least squares over the observed entries, all R rank-one terms at once, by Gauss–Newton with a dogleg.

    Minimises ½ Σ_Ω (y − x)². Every step solves JᵀJ p = −g by conjugate gradients, preconditioned by the diagonal
    blocks of the rows, and goes from the steepest-descent point towards it as far as the trust region allows. Of
    several standard normal starts the one is kept that predicts a held-out tenth of the entries best, and fitted to
    all. With missing entries and large outliers the fit may diverge where nothing is observed.

    Parameters
    ----------
    rank : int
        R.
    n_starts : int
        Number of starts.
    max_sweeps : int
        Steps of every fit.
    tol : float
        Decrease of the objective in a step, relative to its first value, below which a fit has converged.

    Returns
    -------
    Recovery
        Without outliers.
    """
    scale = typical_size(Y[observed])
    starts = [[rng.standard_normal((length, rank)) for length in Y.shape] for _ in range(n_starts)]
    factors = best_start(partial(_fit, max_sweeps=max_sweeps, tol=tol), starts, Y / scale, observed, rng)
    factors = [factors[0] * scale, *factors[1:]]
    return Recovery(compose(factors), None, rank, factors)


def _fit(tensor: Array, mask: Mask, start: Factors, max_sweeps: int, tol: float) -> Factors:
    """Follow the dogleg from one start: accept steps that lower the objective, and adapt the trust region."""
    observed = mask.astype(np.float64)
    point = _join(start)
    residual = observed * (compose(start) - tensor)
    objective = first = 0.5 * squared_norm(residual)
    linear = _LinearModel(start, observed, residual)
    radius = 0.3 * max(1.0, float(np.linalg.norm(point)))
    n_rejected = 0
    for _ in range(max_sweeps):
        step = linear.dogleg(radius)
        length = float(np.linalg.norm(step))
        predicted = linear.predicted_decrease(step)
        if predicted <= 0:
            break
        trial = linear.split(point + step)
        residual = observed * (compose(trial) - tensor)
        decrease = objective - 0.5 * squared_norm(residual)
        ratio = decrease / predicted
        radius = max(radius, 2 * length) if ratio > 0.5 else radius * (0.25 + 0.75 * float(expit(14 * (ratio - 0.25))))
        if decrease > 0:
            n_rejected = 0
            point, objective = point + step, objective - decrease
            linear = _LinearModel(trial, observed, residual)
        else:
            n_rejected += 1
        if n_rejected == MAX_REJECTED or length <= SMALLEST_STEP * np.linalg.norm(point) or 0 < decrease <= tol * first:
            break
    return linear.split(point)


class _LinearModel:
    """The residual near given factors, r(z + s) ≈ r + J s over the observed entries, z all their entries in one vector.

    J is never formed: J s is the sum over the modes of the tensor with the mode's factor replaced by its part of s, and
    Jᵀ v the contraction of v with the factors of all other modes.
    """

    def __init__(self, factors: Factors, observed: Array, residual: Array) -> None:
        self.factors = factors
        self.observed = observed
        self.gradient = self._transposed(residual)

    def split(self, vector: Array) -> Factors:
        """The vector's part for every mode, as a matrix."""
        ends = np.cumsum([factor.size for factor in self.factors])[:-1]
        parts = np.split(vector, ends)
        return [part.reshape(factor.shape) for part, factor in zip(parts, self.factors, strict=True)]

    def _change(self, step: Array) -> Array:
        """J s, zero at missing entries."""
        parts = self.split(step)
        return self.observed * sum(
            compose([*self.factors[:mode], part, *self.factors[mode + 1 :]]) for mode, part in enumerate(parts)
        )

    def _transposed(self, values: Array) -> Array:
        """Jᵀ v of values that are zero at missing entries."""
        return _join([contract(values, self.factors, mode) for mode in range(values.ndim)])

    def predicted_decrease(self, step: Array) -> float:
        """What the step gains if the model is right: −(gᵀs + ½ ‖J s‖²)."""
        return -float(self.gradient @ step) - 0.5 * squared_norm(self._change(step))

    def dogleg(self, radius: float) -> Array:
        """The step of at most the given length on the way over the Cauchy point to the Gauss–Newton point."""
        if np.linalg.norm(self.gauss_newton) <= radius:
            return self.gauss_newton
        length = float(np.linalg.norm(self.cauchy))
        if length >= radius:
            return self.cauchy * (radius / length)
        # The t at which ‖c + t d‖ = radius, 0 ≤ t ≤ 1: the positive root of a quadratic.
        onward = self.gauss_newton - self.cauchy
        linear, square = float(self.cauchy @ onward), squared_norm(onward)
        root = math.sqrt(linear**2 + square * (radius**2 - length**2))
        return self.cauchy + onward * ((root - linear) / square)

    @cached_property
    def cauchy(self) -> Array:
        """The best step along the steepest descent: −(‖g‖² / ‖J g‖²) g."""
        curvature = squared_norm(self._change(self.gradient))
        return self.gradient * (-squared_norm(self.gradient) / curvature if curvature > 0 else 0.0)

    @cached_property
    def gauss_newton(self) -> Array:
        """An approximate solution of JᵀJ p = −g by conjugate gradients, preconditioned by the rows' own blocks."""
        blocks = [self._row_blocks(mode) for mode in range(len(self.factors))]

        def precondition(vector: Array) -> Array:
            parts = zip(blocks, self.split(vector), strict=True)
            return _join([np.linalg.solve(block, part[..., None]) for block, part in parts])

        solution = np.zeros_like(self.gradient)
        rest = -self.gradient
        towards = precondition(rest)
        direction, size = towards, float(rest @ towards)
        for _ in range(MAX_CG):
            change = self._change(direction)
            curvature = squared_norm(change)
            if curvature <= 0:
                break
            length = size / curvature
            solution = solution + length * direction
            rest = rest - length * self._transposed(change)
            if np.linalg.norm(rest) <= CG_TOL * np.linalg.norm(self.gradient):
                break
            towards = precondition(rest)
            previous, size = size, float(rest @ towards)
            direction = towards + (size / previous) * direction
        return solution

    def _row_blocks(self, mode: int) -> Array:
        """The diagonal blocks of JᵀJ of a mode's rows, made definite by a little of their mean: (I_n, R, R)."""
        blocks = row_grams(unfold(self.observed, mode), design(self.factors, mode))
        mean = float(np.mean(np.diagonal(blocks, axis1=1, axis2=2)))
        return blocks + 1e-10 * (mean or 1.0) * np.eye(blocks.shape[1])


def _join(matrices: Sequence[NDArray[np.floating[Any]]]) -> Array:
    return np.concatenate([matrix.ravel() for matrix in matrices])


METHOD = Method(
    name="cpnls",
    recover=recover,
    missing=True,
    robust=False,
    works_on="tensor",
    source="Sorber, Van Barel & De Lathauwer, SIAM J. Optim. 23 (2013); written from the equations.",
)
