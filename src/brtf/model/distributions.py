"""The posterior factors: Gamma and independent Gaussian rows, with their moments, entropies and divergences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from brtf.data.arrays import Array, SentOnce


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


@lru_cache(maxsize=256)
def _flat_indices(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Where packed elements are in a flat (rank, rank) matrix, where its elements are among these, and its diagonal."""
    rows, cols = packed_indices(rank)
    packed = np.empty((rank, rank), np.intp)
    packed[rows, cols] = packed[cols, rows] = np.arange(rows.size)
    return rows * rank + cols, packed.reshape(-1), packed.diagonal().copy()


def unpack_symmetric(packed: Array, rank: int) -> Array:
    """Symmetric matrices (..., R, R) from their packed upper halves (..., R(R+1)/2)."""
    return packed.take(_flat_indices(rank)[1], axis=-1).reshape(*packed.shape[:-1], rank, rank)


@dataclass(frozen=True, eq=False)
class Centre:
    """Where the rows of a mode are expected: q(μ_r) = N(mean_r, var_r), with the prior N(0, 1/λ_r) of a row.

    Attributes
    ----------
    mean, var : (R,)
    """

    mean: Array
    var: Array

    def kl(self, lam: Gamma) -> float:
        """KL(q(μ) ‖ N(0, diag(λ)⁻¹)), averaged over q(λ)."""
        power = np.sum(lam.mean * (self.mean**2 + self.var))
        return float(0.5 * (power - np.sum(np.log(self.var) + lam.mean_log + 1.0)))


def pack_symmetric(full: Array) -> Array:
    """The packed upper halves (..., R(R+1)/2) of symmetric matrices (..., R, R)."""
    rank = full.shape[-1]
    return full.reshape(*full.shape[:-2], rank * rank).take(_flat_indices(rank)[0], axis=-1)


def _in_order(array: Array) -> Array:
    """The array as C has it: one layout in memory for the same numbers, as sums over other layouts round otherwise."""
    return array if array.flags.carray else np.require(array, requirements=["C", "A", "W"])


@dataclass(frozen=True, eq=False)
class RowGaussians(SentOnce):
    """Independent Gaussian rows q(A⁽ⁿ⁾) = Π_i N(a_i | mean_i, cov_i) of one mode's factor matrix.

    Their prior is N(μ, diag(λ)⁻¹), with μ = 0 unless a centre is learnt; a centre counts as one more row. Covariances
    may be given as matrices (I, R, R) or packed, and are kept packed. Pickled, the rows are these numbers alone:
    whoever receives them computes the rest when it is needed.

    Attributes
    ----------
    mean : (I, R)
    cov_packed : (I, R(R+1)/2) upper halves of cov_i, or (1, R(R+1)/2) where all rows share one (complete data)
    centre : of the prior; None where that is zero
    """

    mean: Array
    cov_packed: Array
    centre: Centre | None = None

    def __post_init__(self) -> None:
        packed = self.cov_packed if self.cov_packed.ndim == 2 else pack_symmetric(self.cov_packed)
        object.__setattr__(self, "mean", _in_order(self.mean))
        object.__setattr__(self, "cov_packed", _in_order(packed))

    def __reduce__(self) -> tuple[type[RowGaussians], tuple[Array, Array, Centre | None]]:
        return RowGaussians, (self.mean, self.cov_packed, self.centre)

    def __sizeof__(self) -> int:
        return sum(kept.nbytes for kept in self.__dict__.values() if isinstance(kept, np.ndarray))

    @property
    def n_rows(self) -> int:
        return int(self.mean.shape[0])

    @property
    def rank(self) -> int:
        return int(self.mean.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the means and the packed covariances."""
        return int(self.mean.nbytes + self.cov_packed.nbytes)

    @property
    def shared(self) -> bool:
        """Whether one covariance stands for all rows."""
        return self.cov_packed.shape[0] != self.n_rows

    @property
    def cov(self) -> Array:
        """cov_i, (I, R, R), made anew when it is asked for, or (1, R, R) where all rows share one."""
        return self._shared_cov if self.shared else unpack_symmetric(self.cov_packed, self.rank)

    @cached_property
    def _shared_cov(self) -> Array:
        return unpack_symmetric(self.cov_packed, self.rank)

    @cached_property
    def log_det_cov(self) -> Array:
        """ln |cov_i|, one per stored covariance."""
        return np.linalg.slogdet(self.cov)[1]

    @cached_property
    def mean_single(self) -> NDArray[np.float32]:
        """The means in single precision, (I, R)."""
        return self.mean.astype(np.float32)

    def mean_as(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The means as float64 or float32, (I, R)."""
        return self.mean_single if dtype == np.float32 else self.mean

    @cached_property
    def second_moment_packed(self) -> Array:
        """E[a_i a_iᵀ] = mean_i mean_iᵀ + cov_i as packed upper halves, (I, R(R+1)/2)."""
        return self.outer_packed + self.cov_packed

    @property
    def outer_packed(self) -> Array:
        """mean_i mean_iᵀ as packed upper halves, (I, R(R+1)/2)."""
        rows, cols = packed_indices(self.rank)
        return self.mean.take(rows, axis=1) * self.mean.take(
            cols, axis=1
        )  # which, unlike [:, rows], keeps rows together

    @cached_property
    def gram(self) -> Array:
        """Σ_i mean_i mean_iᵀ, (R, R)."""
        return self.mean.T @ self.mean

    @cached_property
    def cov_sum(self) -> Array:
        """Σ_i cov_i over all rows, (R, R)."""
        if self.shared:
            return self._shared_cov[0] * self.n_rows
        return unpack_symmetric(self.cov_packed.sum(axis=0), self.rank)

    @property
    def variances(self) -> Array:
        """The diagonals of cov_i, (I or 1, R)."""
        return self.cov_packed.take(_flat_indices(self.rank)[2], axis=1)

    @cached_property
    def component_power(self) -> Array:
        """Σ_i E[(a_ir − μ_r)²] + E[μ_r²], (R,): Σ_i E[a_ir²] where there is no centre."""
        variances = self.variances
        deviation = self.mean if self.centre is None else self.mean - self.centre.mean
        power = np.einsum("ir,ir->r", deviation, deviation) + (
            variances[0] * self.n_rows if self.shared else variances.sum(axis=0)
        )
        if self.centre is None:
            return power
        return power + (self.n_rows + 1) * self.centre.var + self.centre.mean**2

    @property
    def n_counted(self) -> int:
        """Rows that the prior is about: those of the mode, and the centre where one is learnt."""
        return self.n_rows + (self.centre is not None)

    def kl(self, lam: Gamma) -> float:
        """KL(q(A⁽ⁿ⁾) q(μ) ‖ Π_i N(μ, diag(λ)⁻¹) N(μ | 0, diag(λ)⁻¹)), averaged over q(λ)."""
        log_dets = self.log_det_cov.sum() * (self.n_rows if self.shared else 1)
        if self.centre is not None:
            log_dets += np.sum(np.log(self.centre.var))
        return float(
            -0.5 * log_dets
            - 0.5 * self.n_counted * (self.rank + np.sum(lam.mean_log))
            + 0.5 * np.sum(lam.mean * self.component_power)
        )

    def centred(self, lam: Gamma) -> RowGaussians:
        """C18: the same rows with the best centre: q(μ_r) = N(Σ_i ã_ir/(I+1), 1/((I+1) λ̄_r))."""
        n_counted = self.n_rows + 1
        centre = Centre(self.mean.sum(axis=0) / n_counted, 1.0 / (n_counted * lam.mean))
        return self.with_centre(centre)

    def with_centre(self, centre: Centre | None) -> RowGaussians:
        """The same rows with another centre of their prior."""
        rows = RowGaussians(self.mean, self.cov_packed, centre)
        for name in ("log_det_cov", "second_moment_packed"):
            if name in self.__dict__:  # what is known of the rows does not depend on it
                rows.__dict__[name] = self.__dict__[name]
        return rows

    def part(self, rows: slice) -> RowGaussians:
        """A run of the rows alone, without a copy; their centre is left out."""
        return RowGaussians(self.mean[rows], self.cov_packed if self.shared else self.cov_packed[rows])

    def select(self, keep: NDArray[Any]) -> RowGaussians:
        """The marginal over the kept components."""
        centre = None if self.centre is None else Centre(self.centre.mean[keep], self.centre.var[keep])
        places = unpack_symmetric(np.arange(float(self.cov_packed.shape[1])), self.rank)
        chosen = pack_symmetric(places[np.ix_(keep, keep)]).astype(np.intp)
        return RowGaussians(self.mean[:, keep], self.cov_packed.take(chosen, axis=1), centre)
