"""Gaussian noise and outliers from a Student-t law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.interpolate import PPoly
from scipy.special import digamma, gammaln

from brtf.data.arrays import Array
from brtf.model.local_models.local_model import Branch, register
from brtf.model.local_models.slab_model import SlabModel

LOG_RHO_STEP = 0.15
"""Step in ln ρ of the table of ln J; cubic Hermite interpolation is then accurate to 2e-7."""
SMALLEST_LOG_RHO = -14.0
"""Below it ln J is linear."""


@register
@dataclass(frozen=True, eq=False)
class StudentSlab(SlabModel):
    """Gaussian noise; outliers from a Student-t: s | γ ~ N(0, 1/γ), γ ~ Ga(a₀, b₀), ζ = b₀ τ̄ / a₀.

    With u = γ/τ̄ and κ = u/(1+u): f(ρ) = (1−π) e^{−ρ/2} + π J(ρ), J(ρ) = E_u[κ^{1/2} e^{−ρκ/2}], u ~ Ga(a₀, a₀ζ).
    J is a smooth function of ln ρ: its values come from a trapezoidal rule in ln u and are interpolated by Hermite
    cubics.
    """

    description = "Gaussian noise; outliers from a Student-t law"
    shape_range = (0.1, 50.0)
    start_shape = 1.0
    narrowest = 4.0  # the table of ln J is not as accurate below

    @classmethod
    def shape_parameter(cls, shape: float) -> float:
        """ln a₀."""
        return float(np.log(shape))

    @classmethod
    def shape_from_parameter(cls, parameter: float) -> float:
        return float(np.exp(parameter))

    def _nodes(self, largest_rho: float) -> tuple[Array, Array, Array]:
        """ln x, κ and log weights of the quadrature for x = a₀ζu ~ Ga(a₀, 1); converges exponentially in the step."""
        rate = self.shape * self.width
        half = self.shape + 0.5
        step = min(0.3, 0.5 / np.sqrt(half))
        upper = np.log(self.shape + 12.0 * np.sqrt(half) + 40.0)
        reach = min(0.0, np.log(rate) - np.log(max(largest_rho, 1e-300)))  # large ρ moves the mass there
        lower = np.log(half) + reach - 34.0 / half - 10.0 / np.sqrt(half)
        log_x = np.arange(upper, lower, -step)
        x = np.exp(log_x)
        kappa = x / (x + rate)
        log_weight = np.log(step) + self.shape * log_x - x - gammaln(self.shape)
        return log_x, kappa, log_weight + 0.5 * np.log(kappa)

    @lru_cache(maxsize=8)  # noqa: B019 (keeps a few small models)
    def _table(self, largest_log_rho: int) -> PPoly:
        """Cubics of (ln J, ln E[κ]) over ln ρ, up to the largest ρ requested."""
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
        return (
            Branch(-0.5 * rho, -0.5 * rho, (0.0, 0.0)),
            Branch(log_slab, -0.5 * rho * mean_kappa, (by_shape, by_width)),
        )

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


def _hermite(knots: Array, values: Array, slopes: Array) -> PPoly:
    """Hermite cubics at equally spaced knots; the caller handles extrapolation."""
    step = knots[1] - knots[0]
    rise = (values[1:] - values[:-1]) / step
    cubic = (slopes[:-1] + slopes[1:] - 2 * rise) / step**2
    square = (3 * rise - 2 * slopes[:-1] - slopes[1:]) / step
    return PPoly(np.stack([cubic, square, slopes[:-1], values[:-1]]), knots, extrapolate=True)
