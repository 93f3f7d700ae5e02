"""The law of an observation around the low-rank part: what a new measurement will deviate by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import log_ndtr, logsumexp, ndtr, stdtr, stdtrit
from scipy.stats import t as student_t

from brtf.distributions import Array
from brtf.local import SlabModel
from brtf.model import State

INTERVAL_KNOTS = 257
"""Knots of the table of half widths over the logarithm of a variance; halving them moves widths by less than 1e-6."""


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """A symmetric law of y − x̄: a mixture whose components widen with the variance of x.

    Component k has weight ``weight[k]``. Where ``reach[k]`` is zero it is a Student-t with ``dof[k]`` degrees of
    freedom and squared scale ``scale_sq[k]`` + Var x; otherwise a uniform law on ± ``reach[k]`` plus a Gaussian of
    that variance.
    """

    weight: Array
    dof: Array
    scale_sq: Array
    reach: Array

    def log_density(self, deviation: Array, variance: Array) -> Array:
        """ln p(y − x̄) at each entry, given Var x there; shapes (m,)."""
        terms = []
        for weight, dof, scale_sq, reach in zip(self.weight, self.dof, self.scale_sq, self.reach, strict=True):
            if weight > 0:
                scale = np.sqrt(scale_sq + variance)
                if reach > 0:
                    density = _flat_log_density(np.abs(deviation), reach, scale)
                else:
                    density = student_t.logpdf(deviation, dof, scale=scale)
                terms.append(np.log(weight) + density)
        return np.asarray(logsumexp(terms, axis=0))

    def without_outliers(self) -> ErrorLaw:
        """The law of an entry that is no outlier: the first component alone."""
        return ErrorLaw(np.ones(1), self.dof[:1], self.scale_sq[:1], self.reach[:1])

    def std(self, variance: Array) -> Array:
        """Standard deviation of y at each entry; infinite where a component has no more than two degrees of freedom."""
        used = self.weight > 0
        student = used & (self.reach == 0)
        if np.any(self.dof[student] <= 2):
            return np.full_like(variance, np.inf)
        inflation = np.where(student, self.dof / np.where(self.dof > 2, self.dof - 2, 1.0), 1.0)
        offset = self.weight @ (inflation * self.scale_sq + self.reach**2 / 3.0)
        return np.sqrt(offset + (self.weight @ inflation) * variance)

    def half_width(self, level: float, variance: Array) -> Array:
        """The h with P(|y − x̄| ≤ h) = level at each entry; infinite where no float tells the level from one."""
        if 0.5 * (1 + level) >= 1:
            return np.full_like(variance, np.inf)
        if self.weight.size == 1 and self.reach[0] == 0:
            return stdtrit(self.dof[0], 0.5 * (1 + level)) * np.sqrt(self.scale_sq[0] + variance)
        # a smooth function of one number: tabulate it over ln(narrowest squared scale + Var x) and interpolate
        narrowest = float(self.scale_sq.min())
        knots = np.linspace(
            np.log(narrowest + float(variance.min())),
            np.log(narrowest + float(variance.max())) + 1e-6,  # apart even where all variances are equal
            INTERVAL_KNOTS,
        )
        widths = self._solve_half_width(level, np.exp(knots) - narrowest)
        widths = np.maximum(widths, np.finfo(float).tiny)
        return np.exp(CubicSpline(knots, np.log(widths))(np.log(narrowest + variance)))

    def _solve_half_width(self, level: float, variance: Array) -> Array:
        scales = np.sqrt(self.scale_sq[:, None] + variance)
        single = self.reach[:, None] + stdtrit(self.dof, 0.5 * (1 + level))[:, None] * scales
        low, high = np.zeros_like(variance), single.max(axis=0)
        for _ in range(60):  # bisection to the last bit that matters: 2⁻⁶⁰ of the widest component
            middle = 0.5 * (low + high)
            inside = self.weight @ self._within(middle, scales)
            low, high = np.where(inside < level, middle, low), np.where(inside < level, high, middle)
        return high

    def _within(self, limit: Array, scales: Array) -> Array:
        """P(|y − x̄| ≤ limit) of every component, (K, m)."""
        student = 2 * stdtr(self.dof[:, None], limit / scales) - 1
        reach = self.reach[:, None]
        flat = 2 * _flat_distribution(limit, np.where(reach > 0, reach, 1.0), scales) - 1
        return np.where(reach > 0, flat, student)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Deviations y − x for a known x, of the given shape."""
        component = rng.choice(self.weight.size, size=shape, p=self.weight / self.weight.sum())
        dof = np.where(self.reach > 0, 1e12, self.dof)  # a uniform law is blurred by Gaussian noise
        noise = rng.standard_t(dof[component]) * np.sqrt(self.scale_sq[component])
        return noise + self.reach[component] * rng.uniform(-1.0, 1.0, size=shape)


def split_conformal(scores: Array, level: float) -> float:
    """The ⌈(n + 1) level⌉-th smallest of n scores; infinite where n is too small for that level.

    One more score, exchangeable with these n, does not exceed it with probability ``level`` or more, and, where no two
    scores are equal, at most ``level`` + 1/(n + 1).
    """
    place = math.ceil((scores.size + 1) * level)
    return float(np.partition(scores, place - 1)[place - 1]) if place <= scores.size else math.inf


def _flat_log_density(size: Array, reach: float, scale: Array) -> Array:
    """ln of [Φ((e+h)/σ) − Φ((e−h)/σ)] / 2h at e = ``size`` ≥ 0, right in the far tail too."""
    near, far = log_ndtr((reach - size) / scale), log_ndtr((-reach - size) / scale)
    return near + np.log1p(-np.exp(far - near)) - np.log(2.0 * reach)


def _flat_distribution(limit: Array, reach: Array, scale: Array) -> Array:
    """P(e ≤ limit) for e uniform on ± reach plus a Gaussian of standard deviation ``scale``."""

    def integral(t: Array) -> Array:
        return t * ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)

    return scale / (2.0 * reach) * (integral((limit + reach) / scale) - integral((limit - reach) / scale))


def error_law(state: State) -> ErrorLaw:
    """P1 (27): y ~ Student-t with ν = 2a^τ and squared scale 1/τ̄ + Var x, in units of the data's scale.

    The paper's Ψ is the inverse of that squared scale, and a new observation carries no outlier. With a learnt model of
    outliers it does, with their learnt rate: the law is (1 − π) noise + π (noise + outlier).
    """
    dof, var = 2.0 * float(state.tau.concentration), 1.0 / float(state.tau.mean)
    if state.slices is not None:  # a slice's noise is known from its own entries only
        dof = min(dof, 2.0 * float(np.mean(state.slices.precision.concentration)))
    if not isinstance(state.outliers, SlabModel):
        return ErrorLaw(np.ones(1), np.array([dof]), np.array([var]), np.zeros(1))
    weight, noise_dof, variance, reach = state.outliers.mixture()
    structure = state.structure
    if structure is not None and structure.law is not None:  # a replaced value deviates by no more than the range
        extent = (structure.law.highest - structure.law.lowest) / np.sqrt(var)
        weight, noise_dof, variance, reach = (
            np.array([1.0 - state.outliers.probability, state.outliers.probability]),
            np.array([noise_dof[0], np.inf]),
            np.array([variance[0], 1.0]),
            np.array([0.0, extent]),
        )
    elif structure is not None and structure.rates is not None:
        rate = float(np.mean(structure.rates.mean))
        weight = np.concatenate([[1.0 - rate], weight[1:] * rate / weight[1:].sum()])
    return ErrorLaw(weight, np.minimum(noise_dof, dof), variance * var, reach * np.sqrt(var))
