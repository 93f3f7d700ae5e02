"""Rows without negative loadings that follow each other: spectra."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.kernels.packed import pack_symmetric
from brtf.kernels.truncated import truncated_moments
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import Form, Kinds, kinds_of
from brtf.model.row_priors.in_order import InOrder
from brtf.model.row_priors.non_negative import NonNegative
from brtf.model.row_priors.row_prior import RowPrior, RowSolver, register

ROUNDS = 3
"""Times that every other row is solved given the rows between, and these given the others; every third where rows
depend on two before them."""


@register
@dataclass(frozen=True, eq=False)
class NonNegativeOrder(InOrder, NonNegative):
    """Half-normal loadings in order: a_t | a_{t−1} ~ N(ρ a_{t−1}, (1 − ρ²)/λ) cut off below zero, q as without order.

    The kinds are those of rows in order. Cutting off divides by Φ(ρ a √λ/√(1 − ρ²)), which is ½ where there is no order
    and is bounded by one where there is: so ln p(A | λ) is at least that of the chain, ln 2 higher for every row that
    does not follow another. A row of a chain of second order is cut off given the two before it, a ring as a whole,
    which divides by at most ½. With no order it is the prior without.

    Attributes
    ----------
    location, precision : see :class:`NonNegative`; the diagonal is τ̄ G_irr + λ̄_r Q_ii
    steps, share, n_second, ring : see :class:`InOrder`
    """

    steps: Array
    share: Array
    n_second: Array
    ring: Array
    name = "non-negative in order"
    words = "are never negative and follow each other"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_kinds()
        if self.ring[0] and self.n_second[0]:
            raise ValueError("the kinds of a ring are of first order")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        own = {"steps": (n_rows - 1,), "share": (rank, -1), "n_second": (1,), "ring": (1,)}
        return {**super().shapes(n_rows, rank), **own}

    @classmethod
    def begun(cls, plain: NonNegative, steps: Array, share: Array, form: Form) -> NonNegativeOrder:
        """The same q with a prior in order."""
        ring = np.full(1, form.ring)
        return cls(plain.location, plain.precision, steps, share, np.full(1, float(form.n_second)), ring)

    @property
    def kinds(self) -> Kinds:
        """Q_k, and ln|Q_k| + 2 ln 2 for every row that does not follow another."""
        kinds = kinds_of(self.steps, self.share.shape[1], form=self.form)
        n_free = np.where(np.arange(self.share.shape[1]) == 0, len(self.location), 1)
        return kinds._replace(log_det=kinds.log_det + 2.0 * math.log(2.0) * n_free)

    def _traces(self, rows: RowGaussians) -> Array:
        kinds, mean = self.kinds, self._deviation(rows.mean)
        square = mean**2 + np.broadcast_to(rows.variances, rows.mean.shape)[self._order]  # independent in q
        traces = kinds.own @ square + 2.0 * (kinds.beside @ (mean[:-1] * mean[1:]))
        return traces + 2.0 * (kinds.far @ (mean[:-2] * mean[2:])) if self.form.wide else traces

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """The best truncated normals of every other row given the rows between, then of these, a few times."""
        rank, places = linear.shape[1], np.arange(linear.shape[1])
        band, order, back = self._mixed().times(lam.mean), self._order, self._back
        whole = np.broadcast_to(precision, (len(linear), rank, rank))[order]
        whole[:, places, places] += band.own
        scale = 1.0 / np.sqrt(whole[:, places, places])
        location, pulled, neighbours = self.location[order], linear[order], band.off_diagonal
        mean = truncated_moments(location, scale)[0]
        apart = 3 if self.form.wide else 2
        for _ in range(ROUNDS):
            for rows in (slice(first, None, apart) for first in range(apart)):
                given = (pulled - neighbours.of(mean))[rows]
                location[rows] = kernels.solve_truncated(whole[rows], given, location[rows])
                mean[rows] = truncated_moments(location[rows], scale[rows])[0]
        prior = replace(self, location=location[back], precision=pack_symmetric(whole)[back])
        return prior.rows, prior

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        band, order, back = self._mixed().times(lam.mean), self._order, self._back
        excess, linear = super().likelihood(rows, lam, solve)
        places = np.arange(rows.rank)
        excess[:, places, places] = np.maximum(self._diagonal - band.own[back], 0.0)
        return excess, linear + band.off_diagonal.of(rows.mean[order])[back]

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """½ Σ_r [λ̄_r tr(Q M_r) − I E ln λ_r − ln|Q|] + ½ I R ln 2π less entropies, averaged over the kinds."""
        n_rows, power = self.squares(rows)
        of_prior = n_rows * np.sum(lam.mean_log - math.log(2.0 * math.pi)) + np.sum(self.share @ self.kinds.log_det)
        return float(0.5 * (lam.mean @ power - of_prior) - np.sum(self._moments[2])) + self._divergence_of_kinds

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        """The most probable kinds."""
        return replace(self, share=self._likely_share(rows, lam))

    def adapted(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, RowPrior]:
        near, plain = NonNegative.of(rows)
        n_kinds = self.share.shape[1]
        share = np.full((rows.rank, n_kinds), 1.0 / n_kinds)
        return near, self._with(plain, self.steps, share).learnt(near, lam)

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        """New rows on their own: half-normal loadings in no order."""
        return NonNegative(self.location, self.precision).for_new_rows(n_rows, after)

    def _with(self, plain: RowPrior, steps: Array, share: Array) -> RowPrior:
        if not isinstance(plain, NonNegative):
            raise TypeError(f"rows without negative loadings are not {plain.name}")
        return NonNegativeOrder.begun(plain, steps, share, self.form)

    def moved(self, rows: RowGaussians, mean: Array) -> tuple[RowGaussians, RowPrior]:
        near, plain = super().moved(rows, mean)
        return near, self._with(plain, self.steps, self.share)

    def followed_by(self, new: RowPrior) -> RowPrior:
        joined = super().followed_by(new)
        n_more = len(joined.location) - len(self.location) if isinstance(joined, NonNegative) else 0
        opened = replace(self, ring=np.zeros(1))
        return opened._with(joined, np.concatenate([self.steps, np.ones(n_more)]), self.share)

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return self._with(super().select(keep), self.steps, self.share[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return self._with(super().rescaled(ratio), self.steps, self.share)
