"""Student-t noise and outliers that are uniform up to a largest size."""

from __future__ import annotations

import math
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
BEYOND_THE_EDGE = 3.0
"""Noise standard deviations by which the largest deviation may exceed the edge."""
TINY_ROOT = 1e-8
"""ρ^{1/2} below which the slopes of the two edges cancel to rounding, so that the limit at zero is used."""


@register
@dataclass(frozen=True, eq=False)
class FlatSlab(StudentNoise):
    """Student-t noise; uniform outliers: s ~ U(−h, h), h = (ζ/τ̄)^{1/2}.

    The deviation of an outlier has density [Φ(ζ^{1/2} − ρ^{1/2}) − Φ(−ζ^{1/2} − ρ^{1/2})]/(2h): constant except at the
    edges, which the noise blurs. An outlier inside carries no information about x. At the edge ln f is not convex in ρ,
    and for the few entries there the bound is accurate to first order in τ̄ Var x.
    """

    description = "Student-t noise; outliers of any size up to a largest, all equally likely"
    narrowest = 3.0  # h²/3 = 1
    pulls = False

    @classmethod
    def starts(cls, tau: float, quantile: Callable[[float], float]) -> list[Self]:
        """Several shares of outliers, with the edge where the largest deviation is still likely."""
        width = cls._clipped(_edge_for(tau * quantile(1.0)))
        return [cls(share, cls.start_shape, width) for share in OUTLIER_SHARES]

    @classmethod
    def resembling(cls, other: LocalModel) -> Self:
        """The model with the outlier share, outlier variance h²/3 and Student-t noise of another model."""
        return replace(super().resembling(other), width=cls._clipped(3.0 * other.outlier_scale_sq))

    def reaching(self, rho: float) -> Self:
        """The model, wide enough for an entry of that ρ; it cannot explain entries far beyond the edge."""
        return replace(self, width=max(self.width, _edge_for(rho)))

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
        log_mass, hazard, root, log_ratio = self._edges(rho)
        half = np.sqrt(self.width)
        per_root = np.where(root > TINY_ROOT, -np.expm1(log_ratio) / np.maximum(root, TINY_ROOT), 2.0 * half)
        return 0.5 * np.log(0.5 * np.pi / self.width) + log_mass, hazard * per_root

    def _slab_by_width(self, rho: Array, shrinkage: Array) -> Array:
        _, hazard, _, log_ratio = self._edges(rho)
        return -0.5 + 0.5 * np.sqrt(self.width) * hazard * (1.0 + np.exp(log_ratio))

    def _edges(self, rho: Array) -> tuple[Array, Array, Array, Array]:
        """ln of P = Φ(a) − Φ(b), φ(a)/P, ρ^{1/2} and ln of φ(b)/φ(a), where a, b = ±ζ^{1/2} − ρ^{1/2}."""
        root, half = np.sqrt(rho), np.sqrt(self.width)
        log_near, log_ratio = log_ndtr(half - root), -2.0 * half * root
        inside = -np.expm1(np.minimum(log_ndtr(-half - root) - log_near, log_ratio))  # Φ/φ grows: lost to rounding only
        hazard = np.sqrt(2.0 / np.pi) / erfcx((root - half) / np.sqrt(2.0))  # φ(a)/Φ(a), accurate in both tails
        return log_near + np.log(inside), hazard / inside, root, log_ratio

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


def _edge_for(rho: float) -> float:
    """The narrowest ζ with which an outlier of that ρ is likely: it may lie beyond the edge by what noise adds."""
    return max(math.sqrt(rho) - BEYOND_THE_EDGE, 0.0) ** 2
