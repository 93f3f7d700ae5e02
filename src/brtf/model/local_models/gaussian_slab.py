"""Student-t noise and outliers from one Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.arguments import StudentNumbers
from brtf.model.local_models.local_model import register
from brtf.model.local_models.slab_model import StudentNoise


@register
@dataclass(frozen=True, eq=False)
class GaussianSlab(StudentNoise):
    """Student-t noise; Gaussian outliers of variance ζ/τ̄. Everything is in closed form."""

    description = "Student-t noise; outliers from one Gaussian law"

    def _slab(self, rho: Array) -> tuple[Array, Array]:
        kappa = 1.0 / (1.0 + self.width)
        return 0.5 * np.log(kappa) - 0.5 * kappa * rho, np.full_like(rho, kappa)

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        return -0.5 * (1.0 - shrinkage) * (1.0 - rho * shrinkage)

    @property
    def student_numbers(self) -> StudentNumbers:
        return StudentNumbers(False, self.probability, self.shape, self.width, self.constants)

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.array([1.0 - self.probability, self.probability]),
            np.array([self.shape, np.inf]),
            np.array([1.0, 1.0 + self.width]),
            np.zeros(2),
        )
