"""The law of an observation around the low-rank part: what a new measurement will deviate by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, stdtr, stdtrit
from scipy.stats import t as student_t

from brtf.distributions import Array
from brtf.model import State

INTERVAL_KNOTS = 257
"""Knots of the table of half widths over ln Var x; halving them moves widths by less than 1e-6."""


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """A symmetric law of y − x̄: a mixture of Student-t distributions that widen with the variance of x.

    Component k has weight ``weight[k]``, ``dof[k]`` degrees of freedom and squared scale ``scale_sq[k]`` + Var x.
    """

    weight: Array
    dof: Array
    scale_sq: Array

    def log_density(self, deviation: Array, variance: Array) -> Array:
        """ln p(y − x̄) at each entry, given Var x there; shapes (m,)."""
        terms = [
            np.log(weight) + student_t.logpdf(deviation, dof, scale=np.sqrt(scale_sq + variance))
            for weight, dof, scale_sq in zip(self.weight, self.dof, self.scale_sq, strict=True)
            if weight > 0
        ]
        return np.asarray(logsumexp(terms, axis=0))

    def std(self, variance: Array) -> Array:
        """Standard deviation of y at each entry; infinite where a component has no more than two degrees of freedom."""
        inflation = np.where(self.dof > 2, self.dof / np.where(self.dof > 2, self.dof - 2, 1.0), np.inf)
        used = self.weight > 0
        offset = float(np.sum((self.weight * inflation * self.scale_sq)[used]))
        return np.sqrt(offset + float(np.sum((self.weight * inflation)[used])) * variance)

    def half_width(self, level: float, variance: Array) -> Array:
        """The h with P(|y − x̄| ≤ h) = level at each entry."""
        if self.weight.size == 1:
            return stdtrit(self.dof[0], 0.5 * (1 + level)) * np.sqrt(self.scale_sq[0] + variance)
        # a smooth function of one number: tabulate it over ln Var x and interpolate
        floor = float(self.scale_sq.min()) * 1e-9
        knots = np.linspace(
            np.log(floor + float(variance.min())),
            np.log(floor + float(variance.max())) + 1e-9,
            INTERVAL_KNOTS,
        )
        widths = self._solve_half_width(level, np.exp(knots) - floor)
        return np.exp(np.interp(np.log(floor + variance), knots, np.log(widths)))

    def _solve_half_width(self, level: float, variance: Array) -> Array:
        scales = np.sqrt(self.scale_sq[:, None] + variance)
        single = stdtrit(self.dof, 0.5 * (1 + level))[:, None] * scales
        low, high = np.zeros_like(variance), single.max(axis=0)
        for _ in range(60):  # bisection to the last bit that matters: 2⁻⁶⁰ of the widest component
            middle = 0.5 * (low + high)
            inside = self.weight @ (2 * stdtr(self.dof[:, None], middle / scales) - 1)
            low, high = np.where(inside < level, middle, low), np.where(inside < level, high, middle)
        return high

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Deviations y − x for a known x, of the given shape."""
        component = rng.choice(self.weight.size, size=shape, p=self.weight / self.weight.sum())
        return rng.standard_t(self.dof[component]) * np.sqrt(self.scale_sq[component])


def error_law(state: State) -> ErrorLaw:
    """P1 (27): y ~ Student-t with ν = 2a^τ and squared scale 1/τ̄ + Var x, in units of the data's scale.

    The paper's Ψ is the inverse of that squared scale. As in the paper, a new observation carries no outlier.
    """
    return ErrorLaw(
        weight=np.ones(1),
        dof=np.array([2.0 * float(state.tau.concentration)]),
        scale_sq=np.array([1.0 / float(state.tau.mean)]),
    )
