"""The posterior factors: Gamma and independent Gaussian rows, with their moments, entropies and divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from brtf.data.arrays import Array, SentOnce
from brtf.kernels.packed import pack_symmetric, packed_diagonal, packed_indices, unpack_symmetric

LOG_TWO_PI = math.log(2.0 * math.pi)
LARGEST_MAPPED = 16
"""Largest rank at which one (P, P) map on packed matrices is faster than two products per matrix."""


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


def congruent(packed: Array, matrix: Array) -> Array:
    """MᵀVM of packed symmetric matrices V (I, P), packed."""
    rank = len(matrix)
    if rank > LARGEST_MAPPED:
        return pack_symmetric(matrix.T @ unpack_symmetric(packed, rank) @ matrix)
    rows, cols = packed_indices(rank)
    mapped = matrix[rows][:, rows] * matrix[cols][:, cols]
    mapped += (rows != cols)[:, None] * matrix[rows][:, cols] * matrix[cols][:, rows]
    return packed @ mapped


def selected(packed: Array, rank: int, keep: NDArray[Any]) -> Array:
    """Packed symmetric matrices (I, P) of that rank with only the kept rows and columns, packed."""
    return packed.take(selected_places(rank, keep), axis=1)


def selected_places(rank: int, keep: NDArray[Any]) -> NDArray[np.intp]:
    """Where the kept rows and columns of a packed symmetric matrix of that rank are, in packed order."""
    places = unpack_symmetric(np.arange(rank * (rank + 1) / 2.0), rank)
    return pack_symmetric(places[np.ix_(keep, keep)]).astype(np.intp)


def _in_order(array: Array) -> Array:
    """The array in C order. Sums round differently in other memory layouts; results must not depend on that."""
    return array if array.flags.carray else np.require(array, requirements=["C", "A", "W"])


@dataclass(frozen=True, eq=False)
class RowGaussians(SentOnce):
    """Independent Gaussian rows q(A⁽ⁿ⁾) = Π_i N(a_i | mean_i, cov_i) of one mode's factor matrix.

    Covariances may be given as matrices (I, R, R) or packed, and are stored packed. Only the means and the packed
    covariances are pickled; cached quantities are recomputed when needed.

    Attributes
    ----------
    mean : (I, R)
    cov_packed : (I, R(R+1)/2) upper halves of cov_i, or (1, R(R+1)/2) where all rows share one (complete data)
    known_log_det : ln |cov_i|, one per stored covariance, where it is known already; otherwise ``log_det_cov`` sets it
    """

    mean: Array
    cov_packed: Array
    known_log_det: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        packed = self.cov_packed if self.cov_packed.ndim == 2 else pack_symmetric(self.cov_packed)
        object.__setattr__(self, "mean", _in_order(self.mean))
        object.__setattr__(self, "cov_packed", _in_order(packed))

    def __reduce__(self) -> tuple[type[RowGaussians], tuple[Array, Array]]:
        return RowGaussians, (self.mean, self.cov_packed)

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
        """Whether all rows share one covariance."""
        return self.cov_packed.shape[0] != self.n_rows

    @property
    def cov(self) -> Array:
        """cov_i, (I, R, R), or (1, R, R) where all rows share one; unpacked at every call."""
        return self._shared_cov if self.shared else unpack_symmetric(self.cov_packed, self.rank)

    @cached_property
    def _shared_cov(self) -> Array:
        return unpack_symmetric(self.cov_packed, self.rank)

    @property
    def log_det_cov(self) -> Array:
        """ln |cov_i|, one per stored covariance; computed once."""
        known = self.known_log_det
        if known is None:
            known = np.linalg.slogdet(self.cov)[1]
            object.__setattr__(self, "known_log_det", known)
        return known

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
        return self.mean.take(rows, axis=1) * self.mean.take(cols, axis=1)  # unlike [:, rows], this keeps C order

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
        return self.cov_packed.take(packed_diagonal(self.rank), axis=1)

    @cached_property
    def component_power(self) -> Array:
        """Σ_i E[a_ir²], (R,)."""
        variances = self.variances
        spread = variances[0] * self.n_rows if self.shared else variances.sum(axis=0)
        return np.asarray(np.einsum("ir,ir->r", self.mean, self.mean) + spread)

    def part(self, rows: slice) -> RowGaussians:
        """A contiguous range of the rows, without a copy."""
        return RowGaussians(self.mean[rows], self.cov_packed if self.shared else self.cov_packed[rows])

    def scaled(self, ratio: Array) -> RowGaussians:
        """The distribution of the rows with their components multiplied by (R,) numbers, signs among them."""
        cov = self.cov_packed * pack_symmetric(np.outer(ratio, ratio))
        return RowGaussians(self.mean * ratio, cov, self._log_det_plus(2.0 * float(np.log(np.abs(ratio)).sum())))

    def transformed(self, matrix: Array, log_det: float) -> RowGaussians:
        """The distribution of the rows times a matrix M (R, R) with the given ln|det M|."""
        return RowGaussians(self.mean @ matrix, congruent(self.cov_packed, matrix), self._log_det_plus(2.0 * log_det))

    def with_mean(self, mean: Array) -> RowGaussians:
        """The rows with other means, (I, R), and the same covariances."""
        return RowGaussians(mean, self.cov_packed, self.known_log_det)

    def _log_det_plus(self, change: float) -> Array | None:
        return None if self.known_log_det is None else self.known_log_det + change

    def joined(self, mean: Array, variances: Array) -> RowGaussians:
        """The rows with K more components that are independent of the others, of means (I, K) and variances (K,)."""
        rank = self.rank + mean.shape[1]
        own = selected_places(rank, np.arange(self.rank))
        packed = np.zeros((self.cov_packed.shape[0], rank * (rank + 1) // 2))
        packed[:, own] = self.cov_packed
        packed[:, packed_diagonal(rank)[self.rank :]] = variances
        return RowGaussians(np.hstack([self.mean, mean]), packed)

    def select(self, keep: NDArray[Any]) -> RowGaussians:
        """The marginal over the kept components."""
        return RowGaussians(self.mean[:, keep], selected(self.cov_packed, self.rank, keep))
