"""The posterior factors: Gamma and independent Gaussian rows, with their moments, entropies and divergences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gamma:
    """Gamma distributions Ga(concentration, rate), elementwise over their arrays.

    The density is rateᶜ xᶜ⁻¹ exp(−rate·x) / Γ(c) with c the concentration; the mean is concentration / rate.
    """

    concentration: Array
    rate: Array

    @property
    def mean(self) -> Array:
        """E[x]."""
        return self.concentration / self.rate

    @property
    def mean_log(self) -> Array:
        """E[ln x] = ψ(concentration) − ln rate."""
        return digamma(self.concentration) - np.log(self.rate)

    def kl(self, prior_concentration: Any, prior_rate: Any) -> float:
        """Summed divergence KL(self ‖ Ga(prior_concentration, prior_rate)), every constant kept."""
        ratio = np.log(self.rate) - np.log(prior_rate)
        terms = (
            (self.concentration - prior_concentration) * digamma(self.concentration)
            - gammaln(self.concentration)
            + gammaln(prior_concentration)
            + prior_concentration * ratio
            + self.concentration * (prior_rate / self.rate - 1.0)
        )
        return float(np.sum(terms))


@lru_cache(maxsize=256)
def packed_indices(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper half of a symmetric (rank, rank) matrix, the order used when packing."""
    return np.triu_indices(rank)


def unpack_symmetric(packed: Array, rank: int) -> Array:
    """Symmetric matrices (..., R, R) from their packed upper halves (..., R(R+1)/2)."""
    rows, cols = packed_indices(rank)
    full = np.empty((*packed.shape[:-1], rank, rank))
    full[..., rows, cols] = packed
    full[..., cols, rows] = packed
    return full


@dataclass(frozen=True, eq=False)
class RowGaussians:
    """Independent Gaussian rows q(A⁽ⁿ⁾) = Π_i N(a_i | mean_i, cov_i) of one mode's factor matrix.

    Attributes
    ----------
    mean : (I, R)
    cov : (I, R, R), or (1, R, R) where all rows share one covariance (complete data).
    """

    mean: Array
    cov: Array

    @property
    def n_rows(self) -> int:
        return int(self.mean.shape[0])

    @property
    def rank(self) -> int:
        return int(self.mean.shape[1])

    @property
    def shared(self) -> bool:
        """Whether one covariance stands for all rows."""
        return self.cov.shape[0] != self.n_rows

    @cached_property
    def log_det_cov(self) -> Array:
        """ln |cov_i|, one per stored covariance."""
        return np.linalg.slogdet(self.cov)[1]

    @cached_property
    def second_moment_packed(self) -> Array:
        """E[a_i a_iᵀ] = mean_i mean_iᵀ + cov_i as packed upper halves, (I, R(R+1)/2)."""
        return self.outer_packed + self.cov_packed

    @cached_property
    def outer_packed(self) -> Array:
        """mean_i mean_iᵀ as packed upper halves, (I, R(R+1)/2)."""
        rows, cols = packed_indices(self.rank)
        return self.mean[:, rows] * self.mean[:, cols]

    @cached_property
    def cov_packed(self) -> Array:
        """cov_i as packed upper halves, (I or 1, R(R+1)/2)."""
        rows, cols = packed_indices(self.rank)
        return self.cov[:, rows, cols]

    @property
    def gram(self) -> Array:
        """Σ_i mean_i mean_iᵀ, (R, R)."""
        return self.mean.T @ self.mean

    @property
    def cov_sum(self) -> Array:
        """Σ_i cov_i over all rows, (R, R)."""
        return self.cov[0] * self.n_rows if self.shared else self.cov.sum(axis=0)

    @property
    def component_power(self) -> Array:
        """Σ_i E[a_ir²], (R,)."""
        variances = np.einsum("irr->ir", self.cov)
        return np.einsum("ir,ir->r", self.mean, self.mean) + (
            variances[0] * self.n_rows if self.shared else variances.sum(axis=0)
        )

    def kl(self, lam: Gamma) -> float:
        """KL(q(A⁽ⁿ⁾) ‖ Π_i N(0, diag(λ)⁻¹)), averaged over q(λ)."""
        log_dets = self.log_det_cov.sum() * (self.n_rows if self.shared else 1)
        return float(
            -0.5 * log_dets
            - 0.5 * self.n_rows * (self.rank + np.sum(lam.mean_log))
            + 0.5 * np.sum(lam.mean * self.component_power)
        )

    def select(self, keep: NDArray[Any]) -> RowGaussians:
        """The marginal over the kept components."""
        return RowGaussians(self.mean[:, keep], self.cov[np.ix_(np.arange(self.cov.shape[0]), keep, keep)])
