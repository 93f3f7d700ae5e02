"""The model without outliers: Gaussian noise only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from brtf.data.arrays import Array
from brtf.model.local_models.local_model import Branch, LocalModel, LocalPosterior, register


@register
@dataclass(frozen=True, eq=False)
class NoOutliers(LocalModel):
    """Gaussian noise alone: π = 0, ln f = −ρ/2, and every entry has weight one."""

    probability: float = field(default=0.0, init=False)
    description = "none"
    is_gaussian = True

    @property
    def parameters(self) -> Array:
        return np.zeros(0)

    @classmethod
    def from_parameters(cls, parameters: Array) -> Self:
        return cls()

    @classmethod
    def limits(cls) -> list[tuple[float, float]]:
        return []

    @classmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        return [cls()]

    @classmethod
    def resembling(cls, other: LocalModel) -> Self:
        return cls()

    def rescaled(self, ratio: float) -> Self:
        return self

    def branches(self, rho: Array) -> tuple[Array, Array | float, Array, Array]:
        return -0.5 * rho, 1.0, np.full_like(rho, -np.inf), np.ones_like(rho)

    def branch_gradients(self, rho: Array) -> tuple[Branch, Branch]:
        nothing = np.zeros_like(rho)
        return Branch(-0.5 * rho, -0.5 * rho, ()), Branch(np.full_like(rho, -np.inf), nothing, ())

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        return np.ones(1), np.full(1, np.inf), np.ones(1), np.zeros(1)

    @property
    def outlier_scale_sq(self) -> float:
        return 0.0

    def posterior(self, rho: Array) -> LocalPosterior:
        return LocalPosterior(-0.5 * rho, np.ones_like(rho), np.zeros_like(rho), np.ones_like(rho))

    def gradient(self, rho: Array) -> tuple[Array, ...]:
        return -0.5 * rho, -0.5 * rho

    def on_side(self, log_factor: float) -> tuple[Self, float]:
        return self, 0.0
