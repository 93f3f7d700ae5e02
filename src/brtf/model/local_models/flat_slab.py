"""Student-t noise and outliers that are uniform up to a largest size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import erfcx, log_ndtr

from brtf.data.arrays import Array
from brtf.kernels.arguments import StudentNumbers
from brtf.model.local_models.local_model import OUTLIER_SHARES, LocalModel, register
from brtf.model.local_models.slab_model import WIDEST_SLAB, StudentNoise

SHARPEST_EDGE, EDGE_MARGIN = 2.0**22, 2.0**-11
"""ζ beyond which the edge of a flat slab is too sharp for the table, and the relative margin in ρ that is then kept
between the edge and the largest outlier: a table that smears the edge would make that outlier nearly impossible."""


@register
@dataclass(frozen=True, eq=False)
class FlatSlab(StudentNoise):
    """Student-t noise; uniform outliers: s ~ U(−h, h), h = (ζ/τ̄)^{1/2}.

    The deviation of an outlier has density Φ(h√τ̄ − ρ^{1/2})/(2h): constant except at the edge, which the noise blurs.
    An outlier inside carries no information about x. At the edge ln f is not convex in ρ, and for the few entries there
    the bound is accurate to first order in τ̄ Var x.
    """

    description = "Student-t noise; outliers of any size up to a largest, all equally likely"
    narrowest = 36.0
    pulls = False

    @classmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        """Several shares of outliers, with the edge at the largest deviation."""
        width = cls._clipped(tau * quantile(1.0))
        return [cls(share, cls.start_shape, width) for share in OUTLIER_SHARES]

    @classmethod
    def resembling(cls, other: LocalModel) -> Self:
        """The model with the outlier share, outlier variance h²/3 and Student-t noise of another model."""
        return replace(super().resembling(other), width=cls._clipped(3.0 * other.outlier_scale_sq))

    def reaching(self, rho: float) -> Self:
        """The model with its edge at ρ or beyond; it cannot explain entries beyond the edge."""
        return replace(self, width=max(self.width, rho))

    def clear_of(self, rho: float) -> Self:
        """The model with its edge moved beyond the largest ρ where the edge is too sharp for the table."""
        if self.width <= SHARPEST_EDGE:
            return self
        return replace(self, width=min(max(self.width, (1.0 + EDGE_MARGIN) * rho), WIDEST_SLAB))

    @property
    def outlier_scale_sq(self) -> float:
        """The variance ζ/3 of the outliers, in units of the noise."""
        return self.width / 3.0

    @property
    def edge(self) -> float:
        """ζ: the noise blurs the edge over a share ζ^{−1/2} of ρ."""
        return self.width

    def _slab(self, rho: Array) -> tuple[Array, Array]:
        root = np.sqrt(rho)
        inside = np.sqrt(self.width) - root
        hazard = np.sqrt(2.0 / np.pi) / erfcx(-inside / np.sqrt(2.0))  # φ/Φ, accurate in both tails
        shrinkage = hazard / np.maximum(root, self.width**-0.5)  # further inside, the two edges cancel
        return 0.5 * np.log(0.5 * np.pi / self.width) + log_ndtr(inside), shrinkage

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        return -0.5 + 0.5 * np.sqrt(self.width * rho) * shrinkage

    @property
    def student_numbers(self) -> StudentNumbers:
        return StudentNumbers(True, self.probability, self.shape, self.width, self.constants)

    def mixture(self) -> tuple[Array, Array, Array, Array]:
        return (
            np.array([1.0 - self.probability, self.probability]),
            np.array([self.shape, np.inf]),
            np.ones(2),
            np.array([0.0, np.sqrt(self.width)]),
        )
