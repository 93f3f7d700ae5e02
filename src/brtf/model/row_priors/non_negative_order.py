"""Rows without negative loadings that follow each other: spectra."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax, xlogy

from brtf import kernels
from brtf.data.arrays import Array
from brtf.kernels.packed import pack_symmetric
from brtf.kernels.truncated import truncated_moments
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import Kinds, kinds_of
from brtf.model.row_priors.non_negative import NonNegative
from brtf.model.row_priors.row_prior import RowPrior, RowSolver, register

ROUNDS = 3
"""Times that every other row is solved given the rows between, and these given the others."""


@register
@dataclass(frozen=True, eq=False)
class NonNegativeOrder(NonNegative):
    """Half-normal loadings in order: a_t | a_{t−1} ~ N(ρ a_{t−1}, (1 − ρ²)/λ) cut off below zero, q as without order.

    The kinds are those of rows in order. Cutting off divides by Φ(ρ a √λ/√(1 − ρ²)), which is ½ where there is no order
    and is bounded by one where there is: so ln p(A | λ) is at least that of the chain, ln 2 higher for every row that
    does not follow another. With no order it is the prior without.

    Attributes
    ----------
    location, precision : see :class:`NonNegative`; the diagonal is τ̄ G_irr + λ̄_r Q_ii
    steps : (I − 1,) distances of neighbours, in units of the typical one
    share : (R, K) q(k_r)
    """

    steps: Array
    share: Array
    name = "non-negative in order"
    words = "are never negative and follow each other"
    ordered = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.steps > 0).all():
            raise ValueError("the steps of an order are not positive")
        if not ((self.share >= 0).all() and np.allclose(self.share.sum(axis=1), 1.0)):
            raise ValueError("the shares of the kinds do not add up to one")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {**super().shapes(n_rows, rank), "steps": (n_rows - 1,), "share": (rank, -1)}

    @property
    def _kinds(self) -> Kinds:
        """Q_k, and ln|Q_k| + 2 ln 2 for every row that does not follow another."""
        kinds = kinds_of(self.steps, self.share.shape[1])
        n_free = np.where(np.arange(self.share.shape[1]) == 0, len(self.location), 1)
        return kinds._replace(log_det=kinds.log_det + 2.0 * math.log(2.0) * n_free)

    def _mixed(self) -> tuple[Array, Array]:
        """Σ_k q(k_r) Q_k of every component: its diagonal (I, R) and the numbers beside it."""
        kinds = self._kinds
        return kinds.own.T @ self.share.T, kinds.beside.T @ self.share.T

    def _traces(self, rows: RowGaussians) -> Array:
        """tr(Q_k E[a aᵀ]) of every kind and component, (K, R); loadings are independent in q."""
        kinds = self._kinds
        square = rows.mean**2 + np.broadcast_to(rows.variances, rows.mean.shape)
        return kinds.own @ square + 2.0 * (kinds.beside @ (rows.mean[:-1] * rows.mean[1:]))

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """The best truncated normals of every other row given the rows between, then of these, a few times."""
        rank, places = linear.shape[1], np.arange(linear.shape[1])
        own, beside = (lam.mean * part for part in self._mixed())
        whole = np.array(np.broadcast_to(precision, (len(linear), rank, rank)))
        whole[:, places, places] += own
        scale = 1.0 / np.sqrt(whole[:, places, places])
        location = np.array(self.location)
        mean = truncated_moments(location, scale)[0]
        for _ in range(ROUNDS):
            for rows in (slice(0, None, 2), slice(1, None, 2)):
                given = (linear - _neighbours(beside, mean))[rows]
                location[rows] = kernels.solve_truncated(whole[rows], given, location[rows])
                mean[rows] = truncated_moments(location[rows], scale[rows])[0]
        prior = NonNegativeOrder(location, pack_symmetric(whole), self.steps, self.share)
        return prior.rows, prior

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        own, beside = (lam.mean * part for part in self._mixed())
        excess, linear = super().likelihood(rows, lam, solve)
        places = np.arange(rows.rank)
        excess[:, places, places] = np.maximum(self._diagonal - own, 0.0)
        return excess, linear + _neighbours(beside, rows.mean)

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """ln p of every row given its neighbours."""
        own, beside = (lam.mean * part for part in self._mixed())
        return np.asarray(-np.sum(mean * (0.5 * own * mean + _neighbours(beside, mean)), axis=1))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and tr(Q E[a aᵀ]), averaged over the kinds."""
        return rows.n_rows, np.einsum("rk,kr->r", self.share, self._traces(rows))

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """½ Σ_r [λ̄_r tr(Q M_r) − I E ln λ_r − ln|Q|] + ½ I R ln 2π less entropies, averaged over the kinds."""
        n_rows, power = self.squares(rows)
        of_prior = n_rows * np.sum(lam.mean_log - math.log(2.0 * math.pi)) + np.sum(self.share @ self._kinds.log_det)
        of_kinds = float(np.sum(xlogy(self.share, self.share * self.share.shape[1])))
        return float(0.5 * (lam.mean @ power - of_prior) - np.sum(self._moments[2])) + of_kinds

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        """q(k_r) ∝ exp(½ ln|Q_k| − ½ λ̄_r tr(Q_k M_r))."""
        log_share = (0.5 * (self._kinds.log_det[:, None] - lam.mean * self._traces(rows))).T
        return NonNegativeOrder(self.location, self.precision, self.steps, softmax(log_share, axis=1))

    def adapted(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, RowPrior]:
        near, plain = NonNegative.of(rows)
        n_kinds = self.share.shape[1]
        share = np.full((rows.rank, n_kinds), 1.0 / n_kinds)
        return near, NonNegativeOrder(plain.location, plain.precision, self.steps, share).learnt(near, lam)

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        """New rows on their own: half-normal loadings in no order."""
        return NonNegative(self.location, self.precision).for_new_rows(n_rows, after)

    def _with(self, plain: RowPrior, steps: Array, share: Array) -> RowPrior:
        if not isinstance(plain, NonNegative):
            raise TypeError(f"rows without negative loadings are not {plain.name}")
        return NonNegativeOrder(plain.location, plain.precision, steps, share)

    def moved(self, rows: RowGaussians, mean: Array) -> tuple[RowGaussians, RowPrior]:
        near, plain = super().moved(rows, mean)
        return near, self._with(plain, self.steps, self.share)

    def followed_by(self, new: RowPrior) -> RowPrior:
        joined = super().followed_by(new)
        n_more = len(joined.location) - len(self.location) if isinstance(joined, NonNegative) else 0
        return self._with(joined, np.concatenate([self.steps, np.ones(n_more)]), self.share)

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return self._with(super().select(keep), self.steps, self.share[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return self._with(super().rescaled(ratio), self.steps, self.share)


def _neighbours(beside: Array, mean: Array) -> Array:
    """Σ over the neighbours of every row of e times their loadings, (I, R)."""
    found = np.zeros_like(mean)
    found[:-1] += beside * mean[1:]
    found[1:] += beside * mean[:-1]
    return found
