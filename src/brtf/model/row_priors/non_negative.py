"""Rows without negative loadings: concentrations, spectra, counts of parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from brtf import kernels
from brtf.data.arrays import Array
from brtf.kernels.packed import pack_symmetric, packed_diagonal, unpack_symmetric
from brtf.kernels.truncated import truncated_moments
from brtf.model.distributions import LOG_TWO_PI, Gamma, RowGaussians, selected
from brtf.model.row_priors.row_prior import RowPrior, RowSolver, RowTerms, register

LOG_HALF_NORMAL = math.log(2.0) - 0.5 * LOG_TWO_PI
CLOSE_TO_EXPONENTIAL = 0.999
"""Squared coefficient of variation above which a truncated normal is an exponential distribution to 1e-3: one, its
limit, has no location."""
BISECTIONS = 60
"""Halvings of the bracket of a location: to rounding."""


@register
@dataclass(frozen=True, eq=False)
class NonNegative(RowPrior):
    """Half-normal loadings p(a_ir | λ) = 2 N(a_ir | 0, 1/λ_r), a_ir ≥ 0, with q(a_ir) a normal cut off below zero.

    The parameters of q(A) are kept here: its rows are known elsewhere by their means and variances only.

    Attributes
    ----------
    location : (I, R), of the normals before they were cut off
    precision : (I, R(R+1)/2), packed P_i = τ̄ G_i + diag λ̄: the diagonal holds the inverse squared scales of the
        normals, the rest couples the loadings of a row
    """

    location: Array
    precision: Array
    name = "non-negative"
    words = "are never negative"
    signed = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.location).all() and (self._diagonal > 0).all() and np.isfinite(self.precision).all()):
            raise ValueError("a location is not finite or a scale not positive")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"location": (n_rows, rank), "precision": (n_rows, rank * (rank + 1) // 2)}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        return None  # rows about zero have negative loadings: another posterior goes with it, see `of`

    @classmethod
    def of(cls, rows: RowGaussians) -> tuple[RowGaussians, NonNegative]:
        """The nearest rows without negative loadings, and their prior.

        Loadings keep their means and variances where a truncated normal can have them; otherwise their normals are cut
        off below zero.
        """
        mean = rows.mean
        variance = np.broadcast_to(rows.variances, mean.shape)
        possible = (mean > 0.0) & (variance < CLOSE_TO_EXPONENTIAL * mean**2)
        location, scale = mean.copy(), np.sqrt(variance)
        if possible.any():
            location[possible], scale[possible] = _matched(mean[possible], variance[possible])
        prior = cls(location, _packed_diagonal(1.0 / scale**2))
        return prior.rows, prior

    @property
    def _diagonal(self) -> Array:
        return self.precision.take(packed_diagonal(self.location.shape[1]), axis=1)

    @cached_property
    def _moments(self) -> tuple[Array, Array, Array]:
        """⟨a⟩, Var a and the entropy of every loading, each (I, R)."""
        return truncated_moments(self.location, 1.0 / np.sqrt(self._diagonal))

    @cached_property
    def rows(self) -> RowGaussians:
        """The means and variances of q(A)."""
        mean, variance, _ = self._moments
        return RowGaussians(mean, _packed_diagonal(variance))

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """C30: the best product of truncated normals for every row, given P_i + diag λ̄ and h_i."""
        whole = precision + np.diag(lam.mean)
        location = kernels.solve_truncated(whole, linear, self.location)
        packed = np.broadcast_to(pack_symmetric(whole), (len(linear), self.precision.shape[1]))
        prior = NonNegative(location, np.ascontiguousarray(packed))
        return prior.rows, prior

    def shared_terms(self, lam: Gamma) -> RowTerms | None:
        """None: the posterior of a row is not Gaussian."""
        return None

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """P_i − diag λ̄ and h_ir = P_irr m_ir + Σ_{k≠r} P_irk ⟨a_ik⟩. λ̄ may have moved; the diagonal stays positive."""
        whole = unpack_symmetric(self.precision, rows.rank)
        linear = np.einsum("irs,is->ir", whole, rows.mean) + self._diagonal * (self.location - rows.mean)
        excess, places = whole.copy(), np.arange(rows.rank)
        excess[:, places, places] = np.maximum(self._diagonal - lam.mean, 0.0)
        return excess, linear

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """−½ Σ_r λ̄_r a_ir²."""
        return np.asarray(-0.5 * mean**2 @ lam.mean)

    def slope(self, mean: Array, lam: Gamma) -> Array:
        """λ̄ a_i."""
        return np.asarray(lam.mean * mean)

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and Σ_i E[a_ir²]."""
        return rows.n_rows, rows.component_power

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """Σ_ir ½ λ̄_r E[a_ir²] − ½ E[ln λ_r] + ½ ln 2π − ln 2, minus the entropy of every loading."""
        per_row = np.sum(0.5 * lam.mean_log + LOG_HALF_NORMAL)
        return float(0.5 * np.sum(lam.mean * rows.component_power) - rows.n_rows * per_row - np.sum(self._moments[2]))

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return self

    def adapted(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, RowPrior]:
        return NonNegative.of(rows)

    def moved(self, rows: RowGaussians, mean: Array) -> tuple[RowGaussians, RowPrior]:
        """Locations move as far as the means should; the means then stay positive."""
        prior = NonNegative(self.location + (mean - rows.mean), self.precision)
        return prior.rows, prior

    def reported(self, rows: RowGaussians, lam: Gamma) -> RowGaussians:
        """Linear response: V_i = (diag(1/Var a_ir) + offdiag P_i)⁻¹, which knows how loadings of a row depend."""
        curvature, places = unpack_symmetric(self.precision, rows.rank).copy(), np.arange(rows.rank)
        curvature[:, places, places] = 1.0 / rows.variances
        _, cov, _ = kernels.solve_rows(curvature, np.zeros_like(rows.mean))
        return RowGaussians(rows.mean, cov)

    def sampler(self, rows: RowGaussians, reported: RowGaussians) -> Callable[[np.random.Generator], Array]:
        """Draws without negative loadings: truncated normals of the reported moments, joined by a Gaussian copula."""
        near = NonNegative.of(reported)[1]
        scale = 1.0 / np.sqrt(near._diagonal)
        standard = np.sqrt(np.broadcast_to(reported.variances, reported.mean.shape))
        root = np.linalg.cholesky(reported.cov) / standard[:, :, None]
        log_inside = log_ndtr(near.location / scale)

        def draw(rng: np.random.Generator) -> Array:
            normal = np.einsum("irs,is->ir", root, rng.standard_normal(reported.mean.shape))
            # the upper tail a share Φ(−z) of what was not cut off, in logarithms: the cut may leave little
            return np.maximum(near.location - scale * ndtri_exp(log_inside + log_ndtr(-normal)), 0.0)

        return draw

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        rank = self.location.shape[1]
        typical = self.precision.mean(axis=0) if len(self.precision) else _packed_diagonal(np.ones((1, rank)))[0]
        return NonNegative(np.zeros((n_rows, rank)), np.tile(typical, (n_rows, 1)))

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, NonNegative):
            raise TypeError(f"rows without negative loadings are followed by others of their kind, not {new.name}")
        return NonNegative(
            np.concatenate([self.location, new.location]), np.concatenate([self.precision, new.precision])
        )

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return NonNegative(self.location[:, keep], selected(self.precision, self.location.shape[1], keep))

    def rescaled(self, ratio: Array) -> RowPrior:
        if not (ratio > 0.0).all():
            raise ValueError("rows without negative loadings keep their sign")
        return NonNegative(self.location * ratio, self.precision / pack_symmetric(np.outer(ratio, ratio)))


def _packed_diagonal(diagonal: Array) -> Array:
    """Packed matrices (I, R(R+1)/2) with the given diagonals (I, R)."""
    n_rows, rank = diagonal.shape
    packed = np.zeros((n_rows, rank * (rank + 1) // 2))
    packed[:, packed_diagonal(rank)] = diagonal
    return packed


def _matched(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Location and scale of truncated normals with the given moments, (m,): variance/mean² falls as α rises.

    It is at most 1/α² for α > 0, and about 1 − 2/α² for α ≪ 0.
    """
    wanted = variance / mean**2
    low, high = -4.0 - np.sqrt(8.0 / (1.0 - wanted)), 1.0 / np.sqrt(wanted)
    one = np.ones_like(mean)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        first, second, _ = truncated_moments(middle, one)
        above = second > wanted * first**2
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    alpha = 0.5 * (low + high)
    scale = mean / truncated_moments(alpha, one)[0]
    return alpha * scale, scale
