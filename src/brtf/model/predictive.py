"""The posterior predictive of an observation: the distribution of its deviation from the low-rank part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import gamma, gammaln, log_ndtr, logsumexp, ndtr, stdtr, stdtrit
from scipy.stats import t as student_t

from brtf.data.arrays import Array
from brtf.model.state import MeanFieldOutliers, State

INTERVAL_KNOTS = 257
"""Knots of the table of half widths over the logarithm of a variance; halving them moves widths by less than 1e-6."""
GAUSSIAN_DOF = 1e12
"""Degrees of freedom at which Student-t draws equal Gaussian draws to rounding."""


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """Distribution of y − x̄: a mixture whose components widen with the variance of x.

    Component k has weight ``weight[k]``. Where ``reach[k]`` is zero it is a Student-t with ``dof[k]`` degrees of
    freedom and squared scale ``scale_sq[k]`` + Var x; otherwise a uniform on ± ``reach[k]`` plus a Gaussian of that
    variance. The noise, component 0, is symmetric. Of the outliers, the other components, a share ``positive`` lies
    above zero: the symmetric density is multiplied by 2 · ``positive`` there, and by 2 (1 − ``positive``) below.
    """

    weight: Array
    dof: Array
    scale_sq: Array
    reach: Array
    positive: float = 0.5

    def log_density(self, deviation: Array, variance: Array) -> Array:
        """ln p(y − x̄) at each entry, given Var x there; shapes (m,)."""
        terms = []
        for place, (weight, dof, scale_sq, reach) in enumerate(
            zip(self.weight, self.dof, self.scale_sq, self.reach, strict=True)
        ):
            if weight > 0:
                scale = np.sqrt(scale_sq + variance)
                if reach > 0:
                    density = _flat_log_density(np.abs(deviation), reach, scale)
                else:
                    density = student_t.logpdf(deviation, dof, scale=scale)
                if place and not self.is_symmetric:
                    density += np.log(2.0 * np.where(deviation >= 0.0, self.positive, 1.0 - self.positive))
                terms.append(np.log(weight) + density)
        return np.asarray(logsumexp(terms, axis=0))

    @property
    def is_symmetric(self) -> bool:
        return self.positive == 0.5

    def without_outliers(self) -> ErrorLaw:
        """The distribution for an entry that is not an outlier: the first component alone."""
        return ErrorLaw(np.ones(1), self.dof[:1], self.scale_sq[:1], self.reach[:1])

    def std(self, variance: Array) -> Array:
        """Standard deviation of y at each entry; infinite where a component has two or fewer degrees of freedom."""
        used = self.weight > 0
        student = used & (self.reach == 0)
        if np.any(self.dof[student] <= 2):
            return np.full_like(variance, np.inf)
        inflation = np.where(student, self.dof / np.where(self.dof > 2, self.dof - 2, 1.0), 1.0)
        offset = self.weight @ (inflation * self.scale_sq + self.reach**2 / 3.0)
        square = offset + (self.weight @ inflation) * variance
        return np.sqrt(square if self.is_symmetric else square - self.odd_moment(1, variance) ** 2)

    def odd_moment(self, power: Literal[1, 3], variance: Array) -> Array:
        """E[(y − x̄)] or E[(y − x̄)³] at each entry; zero for a symmetric distribution."""
        total = np.zeros_like(variance)
        if self.is_symmetric:
            return total
        for weight, dof, scale_sq, reach in zip(
            self.weight[1:], self.dof[1:], self.scale_sq[1:], self.reach[1:], strict=True
        ):
            if weight > 0:
                scale = np.sqrt(scale_sq + variance)
                size = _flat_moment(power, reach, scale) if reach > 0 else _student_moment(power, dof) * scale**power
                total = total + weight * (2.0 * self.positive - 1.0) * size
        return total

    def interval(self, level: float, variance: Array) -> tuple[Array, Array]:
        """The central interval (low, high) at each entry: probability (1 − level)/2 on either side.

        Infinite where the level rounds to one.
        """
        if self.is_symmetric or self.weight.size == 1 or 0.5 * (1 + level) >= 1:
            half = self.half_width(level, variance)
            return -half, half
        tail = 0.5 * (1 - level)
        return self._quantile(tail, variance), self._quantile(1 - tail, variance)

    def half_width(self, level: float, variance: Array) -> Array:
        """The h with P(|y − x̄| ≤ h) = level at each entry; infinite where the level rounds to one."""
        if 0.5 * (1 + level) >= 1:
            return np.full_like(variance, np.inf)
        if self.weight.size == 1 and self.reach[0] == 0:
            return stdtrit(self.dof[0], 0.5 * (1 + level)) * np.sqrt(self.scale_sq[0] + variance)
        # a smooth function of one number: tabulate it and interpolate
        narrowest, knots = self._knots(variance)
        widths = self._solve_half_width(level, np.exp(knots) - narrowest)
        widths = np.maximum(widths, np.finfo(float).tiny)
        return np.exp(CubicSpline(knots, np.log(widths))(np.log(narrowest + variance)))

    def _knots(self, variance: Array) -> tuple[float, Array]:
        """The narrowest squared scale, and knots over ln(that + Var x)."""
        narrowest = float(self.scale_sq.min())
        return narrowest, np.linspace(
            np.log(narrowest + float(variance.min())),
            np.log(narrowest + float(variance.max())) + 1e-6,  # distinct even where all variances are equal
            INTERVAL_KNOTS,
        )

    def _quantile(self, probability: float, variance: Array) -> Array:
        """The q with P(y − x̄ ≤ q) = probability at each entry, interpolated in the variance like half widths."""
        narrowest, knots = self._knots(variance)
        scales = np.sqrt(self.scale_sq[:, None] + np.exp(knots) - narrowest)
        far = stdtrit(self.dof, 0.5 * min(probability, 1 - probability))  # sides at most double the density
        high = np.max(self.reach[:, None] - far[:, None] * scales, axis=0)
        low = -high
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.weight @ self._below(middle, scales) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        unit = np.exp(0.5 * knots)
        at = np.log(narrowest + variance)
        return CubicSpline(knots, high / unit)(at) * np.exp(0.5 * at)

    def below(self, deviation: Array, variance: Array) -> Array:
        """P(y − x̄ ≤ deviation) at each entry, given Var x there; shapes (m,)."""
        return np.asarray(self.weight @ self._below(deviation, np.sqrt(self.scale_sq[:, None] + variance)))

    def _below(self, limit: Array, scales: Array) -> Array:
        """P(y − x̄ ≤ limit) of every component, (K, m)."""
        reach = self.reach[:, None]
        flat = _flat_distribution(limit, np.where(reach > 0, reach, 1.0), scales)
        below = np.where(reach > 0, flat, stdtr(self.dof[:, None], limit / scales))
        negative = 1.0 - self.positive
        sided = np.where(limit < 0.0, 2.0 * negative * below, negative + 2.0 * self.positive * (below - 0.5))
        return np.concatenate([below[:1], sided[1:]])

    def _solve_half_width(self, level: float, variance: Array) -> Array:
        scales = np.sqrt(self.scale_sq[:, None] + variance)
        single = self.reach[:, None] + stdtrit(self.dof, 0.5 * (1 + level))[:, None] * scales
        low, high = np.zeros_like(variance), single.max(axis=0)
        for _ in range(60):  # bisection to 2⁻⁶⁰ of the widest component
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
        # the Gaussian noise that blurs a uniform part is drawn as a Student-t with that many degrees of freedom
        dof = np.where(self.reach > 0, GAUSSIAN_DOF, np.minimum(self.dof, GAUSSIAN_DOF))
        noise = rng.standard_t(dof[component]) * np.sqrt(self.scale_sq[component])
        deviation = noise + self.reach[component] * rng.uniform(-1.0, 1.0, size=shape)
        if self.is_symmetric:
            return deviation
        sided = np.where(rng.uniform(size=shape) < self.positive, 1.0, -1.0) * np.abs(deviation)
        return np.where(component > 0, sided, deviation)


def split_conformal(scores: Array, level: float) -> float:
    """The ⌈(n + 1) level⌉-th smallest of n scores; infinite where n is too small for that level.

    Another score, exchangeable with these n, is no larger with probability at least ``level`` and, without ties, at
    most ``level`` + 1/(n + 1).
    """
    place = math.ceil((scores.size + 1) * level)
    return float(np.partition(scores, place - 1)[place - 1]) if place <= scores.size else math.inf


def _flat_log_density(size: Array, reach: float, scale: Array) -> Array:
    """ln of [Φ((e+h)/σ) − Φ((e−h)/σ)] / 2h at e = ``size`` ≥ 0, accurate in the far tail."""
    near, far = log_ndtr((reach - size) / scale), log_ndtr((-reach - size) / scale)
    return near + np.log1p(-np.exp(far - near)) - np.log(2.0 * reach)


def _student_moment(power: int, dof: float) -> float:
    """E|t|^power of a Student-t: ν^{k/2} Γ((k+1)/2) Γ((ν−k)/2) / (√π Γ(ν/2)); infinite where ν ≤ k."""
    constant = gamma(0.5 * (power + 1)) / math.sqrt(math.pi)
    if dof > 1e8:
        return float(constant * 2.0 ** (0.5 * power))  # Gaussian
    if dof <= power:
        return math.inf
    log_ratio = gammaln(0.5 * (dof - power)) - gammaln(0.5 * dof) + 0.5 * power * math.log(dof)
    return float(constant * np.exp(log_ratio))


def _flat_moment(power: Literal[1, 3], reach: float, scale: Array) -> Array:
    """E|e| or E|e|³ for e uniform on ± reach plus a Gaussian: E[sign(z) z^{k+1}] / ((k+1) h), z ~ N(h, σ²)."""
    v = reach / scale
    inner, density = 2.0 * ndtr(v) - 1.0, 2.0 * np.exp(-0.5 * v**2) / np.sqrt(2.0 * np.pi)
    if power == 1:
        signed = (v**2 + 1.0) * inner + v * density
    else:
        signed = (v**4 + 6.0 * v**2 + 3.0) * inner + (v**3 + 5.0 * v) * density
    return scale ** (power + 1) * signed / ((power + 1) * reach)


def _flat_distribution(limit: Array, reach: Array, scale: Array) -> Array:
    """P(e ≤ limit) for e uniform on ± reach plus a Gaussian of standard deviation ``scale``."""

    def integral(t: Array) -> Array:
        return t * ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)

    return scale / (2.0 * reach) * (integral((limit + reach) / scale) - integral((limit - reach) / scale))


def error_law(state: State) -> ErrorLaw:
    """P1 (27): y ~ Student-t with ν = 2a^τ and squared scale 1/τ̄ + Var x, in units of the data's scale.

    The paper's Ψ is the inverse of that squared scale, and in the paper a new observation has no outlier. With a learnt
    local model it has one at the learnt rate: the predictive is (1 − π) noise + π (noise + outlier), with a share E[a]
    of the outliers positive.
    """
    dof, var = 2.0 * float(state.tau.concentration), 1.0 / float(state.tau.mean)
    if state.slices is not None:  # only a slice's own entries inform its noise
        dof = min(dof, 2.0 * float(np.mean(state.slices.precision.concentration)))
    if isinstance(state.local, MeanFieldOutliers):
        return ErrorLaw(np.ones(1), np.array([dof]), np.array([var]), np.zeros(1))
    weight, noise_dof, variance, reach = state.local.mixture()
    structure = state.structure
    if structure is not None and structure.law is not None:  # a replaced value deviates by at most the range
        extent = (structure.law.highest - structure.law.lowest) / np.sqrt(var)
        weight, noise_dof, variance, reach = (
            np.array([1.0 - state.local.probability, state.local.probability]),
            np.array([noise_dof[0], np.inf]),
            np.array([variance[0], 1.0]),
            np.array([0.0, extent]),
        )
    elif structure is not None and structure.rates is not None:
        rate = structure.rates.typical
        weight = np.concatenate([[1.0 - rate], weight[1:] * rate / weight[1:].sum()])
    positive = 0.5 if structure is None or structure.sides is None else structure.sides.mean
    return ErrorLaw(weight, np.minimum(noise_dof, dof), variance * var, reach * np.sqrt(var), positive)
