"""The posterior of one entry: is it an outlier, how much does it count, what does it add to the bound.

An entry's deviation y − x is noise, or noise plus an outlier (probability π). With everything local integrated out, its
share in the bound is ½(E ln τ − ln 2π) + ln f(ρ), ρ = τ̄ D: a function of one number. D = E[(y−x)²] when the outlier
may depend on the factors (collapsed, form 2); D = (y−x̄)² when it may not (form 1). Three models of f share one
interface; π, their shape and their width are learnt.

``f`` is a mixture of exponentials in ρ (but for the edge of a flat slab), so ln f is convex and its slope −w/2 gives
the entry's weight w in the factors' regression: weighting by w is an ascent of the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.interpolate import PPoly
from scipy.special import digamma, erfcx, expit, gammaln, log_ndtr, logit

from brtf.data.arrays import Array

WIDEST_SLAB = 1e30
"""Largest squared scale of outliers in units of the noise: 1e7 scales of the data at the smallest noise."""
LOG_RHO_STEP = 0.15
"""Step of the table of ln J; cubics through values and slopes are then right to 2e-7."""
SMALLEST_LOG_RHO = -14.0
"""Below it ln J is a line."""


@dataclass(frozen=True, eq=False)
class LocalPosterior:
    """What the entries' local posteriors say; all (M,).

    Attributes
    ----------
    log_evidence : ln f(ρ)
    weight : w, the entry's weight in the regression of the factors
    outlier_probability : p
    slab_shrinkage : E[κ | outlier], the share of the deviation that noise keeps when the entry is an outlier
    """

    log_evidence: Array
    weight: Array
    outlier_probability: Array
    slab_shrinkage: Array


@dataclass(frozen=True, eq=False)
class Branch:
    """ln f of one branch, and its derivatives by ln ρ, by the shape parameter and by ln ζ; of the shape of ρ."""

    log_evidence: Array
    by_log_rho: Array
    by_shape: Array | float
    by_width: Array | float


@dataclass(frozen=True, eq=False)
class SlabModel:
    """The learnt numbers of a local model, in units of the noise: shared by the implementations.

    Attributes
    ----------
    probability : π, the share of outliers
    shape : a₀ of the outliers' Student-t, or ν of the noise's
    width : ζ, the outliers' squared scale in units of the noise variance
    """

    probability: float
    shape: float
    width: float
    shape_range: ClassVar[tuple[float, float]]
    narrowest: ClassVar[float] = 4.0  # a narrower slab cannot be told from noise

    @property
    def parameters(self) -> Array:
        """(logit π, shape parameter, ln ζ): where the numbers are free, and the bound is smooth up to their limits."""
        return np.array([logit(self.probability), self.shape_parameter(self.shape), np.log(self.width)])

    @classmethod
    def from_parameters(cls, parameters: Array) -> SlabModel:
        """The model with the given parameters."""
        shape = cls.shape_from_parameter(float(parameters[1]))
        return cls(float(expit(parameters[0])), shape, float(np.exp(parameters[2])))

    @classmethod
    def shape_parameter(cls, shape: float) -> float:
        """1/ν: Gaussian noise is at zero, not at infinity, so a descent gets there."""
        return 1.0 / shape

    @classmethod
    def shape_from_parameter(cls, parameter: float) -> float:
        """The inverse of :meth:`shape_parameter`."""
        return 1.0 / parameter

    def rescaled(self, ratio: float) -> SlabModel:
        """The same outliers when the noise precision is multiplied by ``ratio``."""
        width = float(np.clip(self.width * ratio, self.narrowest, WIDEST_SLAB))
        return type(self)(self.probability, self.shape, width)

    def on_side(self, log_factor: float) -> tuple[SlabModel, float]:
        """The model where the slab's density is multiplied by a factor, and ln of what its f must be multiplied with.

        (1 − π) f₀ + π c f₁ = (1 − π + π c) ((1 − π') f₀ + π' f₁).
        """
        if not log_factor:
            return self, 0.0
        outlying = self.probability * math.exp(log_factor)
        total = 1.0 - self.probability + outlying
        return replace(self, probability=outlying / total), math.log(total)

    def posterior(self, rho: Array) -> LocalPosterior:
        """C1: the local posterior of entries with ρ = τ̄ D."""
        log_spike, spike_weight, log_slab, slab_shrinkage = self.branches(rho)
        log_spike = log_spike + np.log1p(-self.probability)
        log_slab = log_slab + np.log(self.probability)
        odds = log_slab - log_spike
        small = np.exp(-np.abs(odds))
        log_evidence = np.maximum(log_spike, log_slab) + np.log1p(small)
        likely, unlikely = 1.0 / (1.0 + small), small / (1.0 + small)
        outlier, inlier = np.where(odds > 0.0, (likely, unlikely), (unlikely, likely))
        weight = inlier * spike_weight + outlier * slab_shrinkage
        return LocalPosterior(log_evidence, weight, outlier, slab_shrinkage)

    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        """ln f of the noise alone and its weight; ln f with an outlier and the share κ that noise keeps."""
        raise TypeError("SlabModel is abstract")  # every implementation defines it

    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        """ln f of the noise alone, and with an outlier, with their derivatives."""
        raise TypeError("SlabModel is abstract")

    def gradient(self, rho: Array) -> tuple[Array, Array, Array, Array, Array]:
        """ln f, and its derivatives by ln ρ and by the three parameters; each of the shape of ρ."""
        spike, slab = self.branch_gradients(rho)
        log_spike = spike.log_evidence + np.log1p(-self.probability)
        log_slab = slab.log_evidence + np.log(self.probability)
        log_evidence = np.logaddexp(log_spike, log_slab)
        outlier = np.exp(log_slab - log_evidence)
        inlier = 1.0 - outlier
        return (
            log_evidence,
            inlier * spike.by_log_rho + outlier * slab.by_log_rho,
            outlier - self.probability,
            inlier * spike.by_shape + outlier * slab.by_shape,
            outlier * slab.by_width,
        )

    @property
    def largest_weight(self) -> float:
        """The largest weight an entry can have."""
        raise TypeError("SlabModel is abstract")

    @property
    def noise_inflation(self) -> float:
        """Variance of the noise in units of 1/τ̄."""
        raise TypeError("SlabModel is abstract")

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        """The law of y − x as a mixture: weights, degrees of freedom, squared scales, reach of a uniform part.

        In units of the noise: squared scales of 1/τ̄, reach of τ̄^{−1/2}.
        """
        raise TypeError("SlabModel is abstract")


class StudentSlab(SlabModel):
    """Gaussian noise; outliers from a Student-t: s | γ ~ N(0, 1/γ), γ ~ Ga(a₀, b₀), ζ = b₀ τ̄ / a₀.

    With u = γ/τ̄ and κ = u/(1+u): f(ρ) = (1−π) e^{−ρ/2} + π J(ρ), J(ρ) = E_u[κ^{1/2} e^{−ρκ/2}], u ~ Ga(a₀, a₀ζ).
    J is a smooth function of ln ρ: it is tabulated by a trapezoidal rule in ln u and interpolated by cubics through
    its values and slopes.
    """

    shape_range = (0.1, 50.0)

    @classmethod
    def shape_parameter(cls, shape: float) -> float:
        """ln a₀."""
        return float(np.log(shape))

    @classmethod
    def shape_from_parameter(cls, parameter: float) -> float:
        return float(np.exp(parameter))

    @property
    def largest_weight(self) -> float:
        return 1.0

    def _nodes(self, largest_rho: float) -> tuple[Array, Array, Array]:
        """ln x, κ and log weights of the rule for x = a₀ζu ~ Ga(a₀, 1); exponentially accurate in its step."""
        rate = self.shape * self.width
        half = self.shape + 0.5
        step = min(0.3, 0.5 / np.sqrt(half))
        upper = np.log(self.shape + 12.0 * np.sqrt(half) + 40.0)
        reach = min(0.0, np.log(rate) - np.log(max(largest_rho, 1e-300)))  # where large ρ moves the mass
        lower = np.log(half) + reach - 34.0 / half - 10.0 / np.sqrt(half)
        log_x = np.arange(upper, lower, -step)
        x = np.exp(log_x)
        kappa = x / (x + rate)
        log_weight = np.log(step) + self.shape * log_x - x - gammaln(self.shape)
        return log_x, kappa, log_weight + 0.5 * np.log(kappa)

    @lru_cache(maxsize=8)  # noqa: B019 (keeps a few small models)
    def _table(self, largest_log_rho: int) -> PPoly:
        """Cubics of (ln J, ln E[κ]) over ln ρ, up to the largest asked for."""
        log_rho = np.arange(SMALLEST_LOG_RHO, largest_log_rho + 2 * LOG_RHO_STEP, LOG_RHO_STEP)
        rho = np.exp(log_rho)
        _, kappa, log_weight = self._nodes(float(rho[-1]))
        exponent = log_weight - 0.5 * rho[:, None] * kappa
        peak = exponent.max(axis=1, keepdims=True)
        mass = np.exp(exponent - peak)
        total = mass.sum(axis=1)
        first, second = (mass @ kappa) / total, (mass @ kappa**2) / total
        values = np.stack([np.log(total) + peak[:, 0], np.log(first)], axis=1)
        slopes = np.stack([-0.5 * rho * first, -0.5 * rho * (second - first**2) / first], axis=1)
        return _hermite(log_rho, values, slopes)

    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        inside = np.maximum(rho, np.exp(SMALLEST_LOG_RHO))
        log_rho = np.log(inside)
        interpolated = self._table(math.ceil(log_rho.max(initial=SMALLEST_LOG_RHO)))(log_rho)
        shrinkage = np.exp(interpolated[..., 1])
        return -0.5 * rho, 1.0, interpolated[..., 0] + 0.5 * shrinkage * (inside - rho), shrinkage

    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        log_x, kappa, log_weight = self._nodes(float(rho.max(initial=0.0)))
        exponent = log_weight - 0.5 * rho[:, None] * kappa
        peak = exponent.max(axis=1, keepdims=True)
        mass = np.exp(exponent - peak)
        total = mass.sum(axis=1)
        log_slab = np.log(total) + peak[:, 0]
        mean_kappa, mean_log_x = (mass @ kappa) / total, (mass @ log_x) / total
        mean_square = (mass @ kappa**2) / total
        by_width = -0.5 * (1.0 - mean_kappa - rho * (mean_kappa - mean_square))
        by_shape = self.shape * (mean_log_x - digamma(self.shape)) + by_width
        return Branch(-0.5 * rho, -0.5 * rho, 0.0, 0.0), Branch(log_slab, -0.5 * rho * mean_kappa, by_shape, by_width)

    @property
    def noise_inflation(self) -> float:
        return 1.0

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        _, kappa, log_weight = (part[::2] for part in self._nodes(1.0))  # still far finer than the law's features
        weight = np.exp(log_weight - 0.5 * np.log(kappa))
        keep = weight > 1e-9 * weight.max()
        slab = self.probability * weight[keep] / weight[keep].sum()
        return (
            np.concatenate([[1.0 - self.probability], slab]),
            np.full(1 + slab.size, np.inf),
            np.concatenate([[1.0], 1.0 / kappa[keep]]),
            np.zeros(1 + slab.size),
        )


class StudentNoise(SlabModel):
    """Student-t noise of ν degrees of freedom, whatever the outliers: what Gaussian and flat slabs share."""

    shape_range = (2.1, 1e4)

    @property
    def largest_weight(self) -> float:
        return (self.shape + 1.0) / self.shape

    @property
    def noise_inflation(self) -> float:
        return self.shape / (self.shape - 2.0)

    @property
    def constants(self) -> tuple[float, float]:
        """ln of Γ((ν+1)/2) / Γ(ν/2) · (2/ν)^{1/2}, which is zero for ν → ∞, and twice its derivative by ln ν."""
        half = 0.5 * self.shape
        constant = float(gammaln(half + 0.5) - gammaln(half)) - 0.5 * math.log(half)
        return constant, self.shape * float(digamma(half + 0.5) - digamma(half)) - 1.0

    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        nu = self.shape
        log_spike = self.constants[0] - 0.5 * (nu + 1.0) * np.log1p(rho / nu)
        log_slab, shrinkage = self._slab(rho)
        return log_spike, (nu + 1.0) / (nu + rho), log_slab, shrinkage

    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        log_spike, weight, log_slab, shrinkage = self.branches(rho)
        by_width = self._slab_by_width(rho, shrinkage)
        return (
            Branch(log_spike, -0.5 * rho * weight, self._spike_by_shape(rho), 0.0),
            Branch(log_slab, -0.5 * rho * shrinkage, 0.0, by_width),
        )

    def _spike_by_shape(self, rho: Array) -> Array:
        """Derivative by 1/ν of ln Γ((ν+1)/2) / Γ(ν/2) · (2/ν)^{1/2} (1 + ρ/ν)^{−(ν+1)/2}."""
        nu = self.shape
        return -0.5 * nu * (self.constants[1] - nu * np.log1p(rho / nu) + (nu + 1.0) * rho / (nu + rho))

    def _slab(self, rho: Array) -> tuple[Array, Array]:
        """ln f with an outlier, and the share κ that noise keeps."""
        raise TypeError("StudentNoise is abstract")

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        """Derivative of the slab's ln f by ln ζ."""
        raise TypeError("StudentNoise is abstract")


class GaussianSlab(StudentNoise):
    """Student-t noise; outliers from one Gaussian of variance ζ/τ̄. All in closed form."""

    def _slab(self, rho: Array) -> tuple[Array, Array]:
        kappa = 1.0 / (1.0 + self.width)
        return 0.5 * np.log(kappa) - 0.5 * kappa * rho, np.full_like(rho, kappa)

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        return -0.5 * (1.0 - shrinkage) * (1.0 - rho * shrinkage)

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.array([1.0 - self.probability, self.probability]),
            np.array([self.shape, np.inf]),
            np.array([1.0, 1.0 + self.width]),
            np.zeros(2),
        )


class FlatSlab(StudentNoise):
    """Student-t noise; outliers of any size up to a largest, all equally likely: s ~ U(−h, h), h = (ζ/τ̄)^{1/2}.

    The deviation of an outlier has density Φ(h√τ̄ − ρ^{1/2})/(2h): constant but for the edge, which the noise blurs. An
    outlier inside tells nothing about x. At the edge ln f is not convex in ρ, and the bound is right to first order in
    τ̄ Var x of the few entries there.
    """

    narrowest = 36.0

    def _slab(self, rho: Array) -> tuple[Array, Array]:
        root = np.sqrt(rho)
        inside = np.sqrt(self.width) - root
        hazard = np.sqrt(2.0 / np.pi) / erfcx(-inside / np.sqrt(2.0))  # φ/Φ, right in both tails
        shrinkage = hazard / np.maximum(root, self.width**-0.5)  # further inside the two edges cancel
        return 0.5 * np.log(0.5 * np.pi / self.width) + log_ndtr(inside), shrinkage

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        return -0.5 + 0.5 * np.sqrt(self.width * rho) * shrinkage

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.array([1.0 - self.probability, self.probability]),
            np.array([self.shape, np.inf]),
            np.ones(2),
            np.array([0.0, np.sqrt(self.width)]),
        )


LOCAL_MODELS: dict[str, type[SlabModel]] = {kind.__name__: kind for kind in (GaussianSlab, StudentSlab, FlatSlab)}
"""The local models among which the bound chooses, by name."""


def _hermite(knots: Array, values: Array, slopes: Array) -> PPoly:
    """Cubics through values and slopes at equally spaced knots; constant ends are the caller's business."""
    step = knots[1] - knots[0]
    rise = (values[1:] - values[:-1]) / step
    cubic = (slopes[:-1] + slopes[1:] - 2 * rise) / step**2
    square = (3 * rise - 2 * slopes[:-1] - slopes[1:]) / step
    return PPoly(np.stack([cubic, square, slopes[:-1], values[:-1]]), knots, extrapolate=True)
