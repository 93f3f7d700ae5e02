"""Rows of unequal size: a few positions with large loadings among many with small ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.kernels.packed import unpack_symmetric
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.relative_precisions import best_concentration, better_concentration
from brtf.model.row_priors.centred import Centred, LearntCentre
from brtf.model.row_priors.row_prior import IndependentRows, RowPrior, RowTerms, excess, register
from brtf.model.row_priors.zero_mean import ZeroMean

SMALLEST = 2.0
"""Smallest c: with less, the variance of an unobserved row would be more than twice that of q(a) q(η)."""
ROUNDS = 3
"""Rounds of centre and sizes in a proposal."""


@dataclass(frozen=True, eq=False)
class KnownUnequal(IndependentRows):
    """Rows of unequal size: a_i ~ N(μ, (η_i diag λ)⁻¹), η_i ~ Ga(c, c), with c and q(μ) learnt from other rows.

    Given everything else a row has Student's t distribution with 2c degrees of freedom; c → ∞ is the paper's prior.

    Attributes
    ----------
    concentration : (), c
    shape, rate : (I,), of q(η_i) = Ga(shape_i, rate_i)
    mean, var : (R,), of q(μ_r) = N(mean_r, var_r); both zero where rows are about zero
    """

    concentration: Array
    shape: Array
    rate: Array
    mean: Array
    var: Array
    name = "of unequal size, as known"
    words = "differ much in size, few large among many small"

    def __post_init__(self) -> None:
        numbers = (self.concentration, self.shape, self.rate)
        if not all((np.asarray(number) > 0.0).all() and np.isfinite(number).all() for number in numbers):
            raise ValueError("the size of a row is not positive")
        if not ((self.var >= 0.0).all() and np.isfinite(self.var).all() and np.isfinite(self.mean).all()):
            raise ValueError("the variance of a centre is negative")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"concentration": (), "shape": (n_rows,), "rate": (n_rows,), "mean": (rank,), "var": (rank,)}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        return None

    @cached_property
    def sizes(self) -> Gamma:
        """q(η), (I,)."""
        return Gamma(self.shape, self.rate)

    def terms(self, lam: Gamma) -> tuple[Array, Array]:
        """η̄_i diag λ̄ and η̄_i λ̄ μ̄."""
        return self.shared_terms(lam).at(slice(None))

    def shared_terms(self, lam: Gamma) -> RowTerms:
        """Those of one size, times η̄_i."""
        return RowTerms(np.diag(lam.mean), lam.mean * self.mean, self.sizes.mean)

    def second_moments(self, rows: RowGaussians) -> Array:
        """Σ_i η̄_i E[a_i a_iᵀ], (R, R)."""
        eta = self.sizes.mean
        packed = np.sum(eta) * rows.cov_packed[0] if rows.shared else eta @ rows.cov_packed
        return (eta[:, None] * rows.mean).T @ rows.mean + unpack_symmetric(packed, rows.rank)

    def _deviations(self, rows: RowGaussians) -> Array:
        """E[(a_ir − μ_r)²], (I, R)."""
        return np.asarray((rows.mean - self.mean) ** 2 + rows.variances + self.var)

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and Σ_i η̄_i E[(a_ir − μ_r)²]."""
        return rows.n_rows, self.sizes.mean @ self._deviations(rows)

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """That of rows with weighted squares, less ½ R Σ_i E[ln η_i], plus Σ_i KL(q(η_i) ‖ Ga(c, c))."""
        own = self.sizes.kl(self.concentration, self.concentration)
        return super().kl(rows, lam) + own - 0.5 * rows.rank * float(np.sum(self.sizes.mean_log))

    def _with_sizes(self, concentration: float, half_squares: Array, rank: int) -> Self:
        """C32: q(η_i) = Ga(c + ½R, c + ½ Σ_r λ̄_r E[(a_ir − μ_r)²])."""
        shape = np.full(half_squares.size, concentration + 0.5 * rank)
        return type(self)(np.asarray(concentration), shape, concentration + half_squares, self.mean, self.var)

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        half_squares = 0.5 * self._deviations(rows) @ lam.mean
        return self._with_sizes(float(self.concentration), half_squares, rows.rank)

    def reported(self, rows: RowGaussians, lam: Gamma) -> RowGaussians:
        """C33: (V_i⁻¹ − η̄_i diag(λ̄)/c)⁻¹: an unobserved row varies as Student's t, by c/((c − 1)λ̄).

        V_i⁻¹ has the prior's η̄_i diag λ̄ of the last update; what the data say is its excess over the present one.
        """
        own, _ = self.terms(lam)
        nothing = np.zeros(rows.mean.shape)
        natural = unpack_symmetric(kernels.solve_rows(np.broadcast_to(rows.cov, own.shape), nothing)[1], rows.rank)
        left = excess(natural, own) + (1.0 - 1.0 / float(self.concentration)) * own
        return RowGaussians(rows.mean, kernels.solve_rows(left, nothing)[1])

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        typical = np.full(n_rows, float(self.concentration))
        return KnownUnequal(self.concentration, typical, typical, self.mean, self.var)

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, KnownUnequal):
            raise TypeError(f"rows of unequal size are followed by others of their kind, not {new.name}")
        shape, rate = np.concatenate([self.shape, new.shape]), np.concatenate([self.rate, new.rate])
        return type(self)(self.concentration, shape, rate, self.mean, self.var)

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return type(self)(self.concentration, self.shape, self.rate, self.mean[keep], self.var[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return type(self)(self.concentration, self.shape, self.rate, self.mean * ratio, self.var * ratio**2)


@register
@dataclass(frozen=True, eq=False)
class Unequal(KnownUnequal):
    """Rows of unequal size about zero: a_i ~ N(0, (η_i diag λ)⁻¹), η_i ~ Ga(c, c), with c learnt from them."""

    name = "of unequal size"
    rotates = True

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        """The best c with its q(η); None where it does not pay.

        It does not if the gain is below ½ ln I, the price of a number learnt from I rows, or where all rows share one
        covariance: each would need its own.
        """
        if rows.shared:
            return None
        one, nothing = np.ones(rows.n_rows), np.zeros(rows.rank)
        found, gain = cls(np.asarray(1.0), one, one, nothing, nothing), 0.0
        for _ in range(ROUNDS):
            found = found._about_best_centre(rows, lam)
            half_squares = 0.5 * found._deviations(rows) @ lam.mean
            best, gain = best_concentration(0.5 * rows.rank, half_squares, SMALLEST)
            found = found._with_sizes(best, half_squares, rows.rank)
        return found if gain > 0.5 * math.log(rows.n_rows) else None

    def evened(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return ZeroMean()

    def _about_best_centre(self, rows: RowGaussians, lam: Gamma) -> Self:
        """The prior about zero, for as many components as the rows have."""
        nothing = np.zeros(rows.rank)
        return type(self)(self.concentration, self.shape, self.rate, nothing, nothing)

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        centred = self._about_best_centre(rows, lam)
        half_squares = 0.5 * centred._deviations(rows) @ lam.mean
        better = better_concentration(float(self.concentration), 0.5 * rows.rank, half_squares, SMALLEST)
        return centred._with_sizes(better, half_squares, rows.rank)


@register
@dataclass(frozen=True, eq=False)
class UnequalCentred(LearntCentre, Unequal):
    """Rows of unequal size around a centre learnt from them: μ ~ N(0, diag(λ)⁻¹), as a row of size one."""

    name = "centred, of unequal size"
    words = "vary about a common centre, some of them far from it"
    rotates = False

    def evened(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return Centred.proposed(rows, lam)

    def _about_best_centre(self, rows: RowGaussians, lam: Gamma) -> Self:
        """C18 with weights: q(μ_r) = N(Σ_i η̄_i ã_ir/(Σ_i η̄_i + 1), 1/((Σ_i η̄_i + 1) λ̄_r))."""
        eta = self.sizes.mean
        counted = 1.0 + float(np.sum(eta))
        mean, var = eta @ rows.mean / counted, 1.0 / (counted * lam.mean)
        return type(self)(self.concentration, self.shape, self.rate, mean, var)
