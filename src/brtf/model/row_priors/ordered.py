"""Rows that follow each other: every component's course is a Markov chain of a kind learnt from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import LINE, NO_CARRIERS, Form
from brtf.model.row_priors.known_order import KnownOrder
from brtf.model.row_priors.row_prior import register

FEWEST_ROWS = 8
"""Rows of a mode from which an order may show."""


@register
@dataclass(frozen=True, eq=False)
class Ordered(KnownOrder):
    """Rows in order, with the kind of every component's chain learnt, and a centre for every group of rows.

    k_r is uniform over the kinds; μ_gr ~ N(0, 1/λ_r).
    """

    name = "in order"

    @classmethod
    def begun(
        cls,
        rows: RowGaussians,
        lam: Gamma,
        steps: Array,
        share: Array,
        groups: NDArray[Any] | None = None,
        carriers: Array = NO_CARRIERS,
        form: Form = LINE,
    ) -> Ordered:
        """The prior of rows that are still independent in the posterior; ``groups`` if they have centres."""
        n_rows, rank = rows.mean.shape
        nothing = np.zeros(0)
        begun = cls(
            steps,
            share,
            np.zeros((n_rows - 1, rank, rank)),
            nothing,
            np.zeros(n_rows),
            np.zeros((rank, 0)),
            np.zeros((rank, 0, 0)),
            nothing,
            nothing,
            np.zeros((0, rank)),
            np.zeros((0, rank)),
            carriers,
            np.zeros(1),
            np.zeros((max(n_rows - 2, 0) if form.wide else 0, rank, rank)),
            np.zeros((0, rank)),
            np.full(1, float(form.n_second)),
            np.full(1, form.ring),
        )
        return begun.regrouped(rows, lam, groups)

    def begun_again(self, rows: RowGaussians, lam: Gamma) -> tuple[RowGaussians, Ordered]:
        """Other rows at the same places, still independent in the posterior, and the prior with the same groups."""
        share = np.full((rows.rank, self.share.shape[1]), 1.0 / self.share.shape[1])
        groups = self.groups if self.centre.shape[1] else None
        return rows, Ordered.begun(rows, lam, self.steps, share, groups, self.carriers, self.form).learnt(rows, lam)

    def regrouped(self, rows: RowGaussians, lam: Gamma, groups: NDArray[Any] | None) -> Ordered:
        """The prior with other groups of rows, each around a centre of its own; None for rows around zero."""
        rank, n_groups = rows.rank, 0 if groups is None else int(groups.max()) + 1
        prior = replace(
            self,
            groups=np.zeros(rows.n_rows) if groups is None else np.asarray(groups, float),
            centre=np.zeros((rank, n_groups)),
            centre_cov=np.zeros((rank, n_groups, n_groups)),
        )
        return prior._with_centres(rows, lam) if n_groups else prior

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I + G and tr(Q M_r) + Σ_g E[μ_gr²]."""
        n_rows, power = super().squares(rows)
        of_centres = np.sum(self.centre**2, axis=1) + np.einsum("rgg->r", self.centre_cov)
        return n_rows + self.centre.shape[1], power + of_centres

    def _own_divergence(self) -> float:
        """Σ_r KL(q(k_r) ‖ uniform) − ½ ln|cov(μ_r)|."""
        return self._divergence_of_kinds - 0.5 * float(np.linalg.slogdet(self.centre_cov)[1].sum())

    def learnt(self, rows: RowGaussians, lam: Gamma) -> Ordered:
        """C26: centres, then kinds, q(k_r) ∝ exp(½ ln|Q_k| − ½ λ̄_r tr(Q_k M_r))."""
        prior = self._with_rank(rows.rank)
        if prior.centre.shape[1]:
            prior = prior._with_centres(rows, lam)
        found = prior._with(share=prior._likely_share(rows, lam))
        found.__dict__["_known_traces"] = prior.__dict__["_known_traces"]  # which do not depend on the shares
        return found

    def _with_centres(self, rows: RowGaussians, lam: Gamma) -> Ordered:
        """q(μ_r) = N(A⁻¹WᵀQã, (λ̄A)⁻¹), A = 1 + WᵀQW, with W the groups of the rows."""
        band, order = self._mixed(), self._order
        at, n_groups = self._places, self.centre.shape[1]
        matrix = np.zeros((rows.rank, n_groups, n_groups))
        matrix[:, np.arange(n_groups), np.arange(n_groups)] = 1.0
        whole = matrix.transpose(1, 2, 0)
        np.add.at(whole, (at, at), band.own)
        for weight in (band.beside, band.far):
            first, second = at[: len(weight)], at[at.size - len(weight) :]
            np.add.at(whole, (first, second), weight)
            np.add.at(whole, (second, first), weight)
        linear = np.zeros((n_groups, rows.rank))
        np.add.at(linear, at, band.of(rows.mean[order]))
        inverse = np.linalg.inv(matrix)
        inverse = 0.5 * (inverse + inverse.transpose(0, 2, 1))
        centre = np.einsum("rgh,hr->rg", inverse, linear)
        return self._with(centre=centre, centre_cov=inverse / lam.mean[:, None, None])

    def _with_rank(self, rank: int) -> Ordered:
        """The prior with further components, of unknown kind, independent in the posterior and around zero."""
        old, n_groups = self.share.shape[0], self.centre.shape[1]
        if rank == old:
            return self
        if rank < old:
            raise ValueError(f"the rows have {rank} components, fewer than the {old} of their prior")
        cross, across = (np.zeros((len(part), rank, rank)) for part in (self.cross, self.across))
        cross[:, :old, :old], across[:, :old, :old] = self.cross, self.across
        more = rank - old
        return replace(
            self,
            share=np.concatenate([self.share, np.full((more, self.share.shape[1]), 1.0 / self.share.shape[1])]),
            cross=cross,
            across=across,
            log_det=np.zeros(0),
            centre=np.concatenate([self.centre, np.zeros((more, n_groups))]),
            centre_cov=np.concatenate([self.centre_cov, np.broadcast_to(np.eye(n_groups), (more, n_groups, n_groups))]),
            lead_mean=np.zeros((0, rank)),
            lead_var=np.zeros((0, rank)),
            lead_cov=np.zeros((0, rank)),
        )
