"""Base classes of local models with a slab: one outlier scale, and a shape parameter of the noise or the outliers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from scipy.special import digamma, expit, gammaln, logit

from brtf.data.arrays import Array
from brtf.model.local_models.local_model import OUTLIER_SHARES, PROBABILITY_RANGE, Branch, LocalModel

WIDEST_SLAB = 1e30
"""Largest squared scale of outliers in units of the noise: at the smallest noise, 1e7 times the scale of the data."""
NEAR_THE_LARGEST = 0.3
"""Squared size of the outliers of one start, as a share of the largest D."""


@dataclass(frozen=True, eq=False)
class SlabModel(LocalModel):
    """A local model with three parameters, in units of the noise.

    Attributes
    ----------
    probability : π, the share of outliers
    shape : a₀ of the outliers' Student-t, or ν of the noise's
    width : ζ, the outliers' squared scale in units of the noise variance; at least ``narrowest``
    """

    shape: float
    width: float
    shape_range: ClassVar[tuple[float, float]]
    start_shape: ClassVar[float]
    narrowest: ClassVar[float]

    @property
    def parameters(self) -> Array:
        """(logit π, shape parameter, ln ζ), coordinates in which the bound is smooth up to the limits."""
        return np.array([logit(self.probability), self.shape_parameter(self.shape), np.log(self.width)])

    @classmethod
    def from_parameters(cls, parameters: Array) -> Self:
        shape = cls.shape_from_parameter(float(parameters[1]))
        return cls(float(expit(parameters[0])), shape, float(np.exp(parameters[2])))

    @classmethod
    def shape_parameter(cls, shape: float) -> float:
        """1/ν: Gaussian noise is at zero instead of infinity, where an ascent can reach it."""
        return 1.0 / shape

    @classmethod
    def shape_from_parameter(cls, parameter: float) -> float:
        """The inverse of :meth:`shape_parameter`."""
        return 1.0 / parameter

    @classmethod
    def limits(cls) -> list[tuple[float, float]]:
        shape = sorted(cls.shape_parameter(value) for value in cls.shape_range)
        return [
            (float(logit(PROBABILITY_RANGE[0])), float(logit(PROBABILITY_RANGE[1]))),
            (shape[0], shape[1]),
            (float(np.log(cls.narrowest)), float(np.log(WIDEST_SLAB))),
        ]

    @classmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        """Several shares of outliers, each with the matching quantile of D as size, and one near the largest D."""
        sizes = [(share, quantile(1.0 - 0.5 * share)) for share in OUTLIER_SHARES]
        sizes.append((OUTLIER_SHARES[0], NEAR_THE_LARGEST * quantile(1.0)))
        return [cls(share, cls.start_shape, cls._clipped(tau * size)) for share, size in sizes]

    @classmethod
    def resembling(cls, other: LocalModel) -> Self:
        return cls(other.probability, cls.start_shape, cls._clipped(other.outlier_scale_sq))

    def rescaled(self, ratio: float) -> Self:
        return replace(self, width=float(np.clip(self.width * ratio, self.narrowest, WIDEST_SLAB)))

    @property
    def outlier_scale_sq(self) -> float:
        return self.width

    @classmethod
    def _clipped(cls, width: float) -> float:
        """The width clipped to its limits, and kept well above the lower one, where the gradient vanishes."""
        return float(np.clip(width, 2.0 * cls.narrowest, WIDEST_SLAB))


@dataclass(frozen=True, eq=False)
class StudentNoise(SlabModel):
    """Student-t noise with ν degrees of freedom: the common part of Gaussian and flat slabs.

    Outliers have at least the variance of the noise: smaller ones cannot be told from noise, whatever their number.
    """

    shape_range = (2.1, 1e4)
    start_shape = 30.0
    narrowest = 1.0

    @classmethod
    def resembling(cls, other: LocalModel) -> Self:
        """The model closest to another: same share and size of outliers, and the same noise if that is Student-t."""
        found = super().resembling(other)
        return found if math.isinf(other.noise_dof) else replace(found, shape=other.noise_dof)

    @property
    def noise_dof(self) -> float:
        """ν."""
        return self.shape

    @property
    def largest_weight_gradient(self) -> Array:
        """(3,) derivatives of w_max = 1 + 1/ν by the parameters, of which 1/ν is the second."""
        return np.array([0.0, 1.0, 0.0])

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
            Branch(log_spike, -0.5 * rho * weight, (self._spike_by_shape(rho), 0.0)),
            Branch(log_slab, -0.5 * rho * shrinkage, (0.0, by_width)),
        )

    def _spike_by_shape(self, rho: Array) -> Array:
        """Derivative by 1/ν of ln Γ((ν+1)/2) / Γ(ν/2) · (2/ν)^{1/2} (1 + ρ/ν)^{−(ν+1)/2}."""
        nu = self.shape
        return -0.5 * nu * (self.constants[1] - nu * np.log1p(rho / nu) + (nu + 1.0) * rho / (nu + rho))

    @abstractmethod
    def _slab(self, rho: Array) -> tuple[Array, Array]:
        """ln f with an outlier, and the share κ attributed to noise."""

    @abstractmethod
    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        """Derivative of the slab's ln f by ln ζ."""
