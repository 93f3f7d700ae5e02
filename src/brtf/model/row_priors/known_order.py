"""Rows that follow each other, with the kinds of their chains and their centres learnt from other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.centred import KnownCentre
from brtf.model.row_priors.chain_kinds import SMALLEST_CARRIER, Kinds, courses, kinds_of
from brtf.model.row_priors.row_prior import RowPrior, RowSolver
from brtf.model.row_priors.zero_mean import ZeroMean


@dataclass(frozen=True, eq=False)
class KnownOrder(RowPrior):
    """Rows in order with kinds and centres learnt from other rows: a_·r ~ N(μ_{g(t) r}, (λ_r Q_{k_r})⁻¹).

    The posterior of the rows is a Markov chain, given by every row's covariance and ``cross``. ``share`` is q(k_r);
    rows of the same group g have the same centre, with q(μ_r) = N(centre_r, centre_cov_r). The rows may continue others
    that are fixed: the last of these leads.

    Attributes
    ----------
    steps : (I − 1,) distances of neighbours, in units of the typical one
    share : (R, K)
    cross : (I − 1, R, R) posterior covariances Cov(a_t, a_{t+1})
    log_det : ln|cov| of all rows together, (1,); (0,) where it has to be computed
    groups : (I,)
    centre : (R, G); no groups where the rows are around zero
    centre_cov : (R, G, G)
    lead_step, lead_group : (L,), L = 1 where the rows continue others, 0 otherwise
    lead_mean, lead_var : (L, R)
    carriers : (C, 2) frequencies and phases, see :func:`~brtf.model.row_priors.chain_kinds.carriers_of`; the kinds are
        those without a carrier, then the same on every one
    start : (1,) place of the first row
    """

    steps: Array
    share: Array
    cross: Array
    log_det: Array
    groups: Array
    centre: Array
    centre_cov: Array
    lead_step: Array
    lead_group: Array
    lead_mean: Array
    lead_var: Array
    carriers: Array
    start: Array
    name = "in a known order"
    words = "follow each other"
    ordered = True

    def __post_init__(self) -> None:
        for field in fields(self):  # as files give them back: sums over another order differ in the last digits
            object.__setattr__(self, field.name, np.ascontiguousarray(getattr(self, field.name)))
        whole = np.concatenate([self.groups, self.lead_group])
        n_groups = self.centre.shape[1]
        if not ((self.steps > 0).all() and (self.lead_step > 0).all()):
            raise ValueError("the steps of an order are not positive")
        if not ((self.share >= 0).all() and np.allclose(self.share.sum(axis=1), 1.0)):
            raise ValueError("the shares of the kinds do not add up to one")
        along = np.abs(courses(self.carriers, self.places))
        if self.share.shape[1] % len(along) or (along < SMALLEST_CARRIER).any():
            raise ValueError("the carriers of the kinds do not fit, or vanish at a row")
        if n_groups and not ((whole == whole.astype(int)) & (whole >= 0) & (whole < n_groups)).all():
            raise ValueError("the groups of the centres are out of range")

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {
            "steps": (n_rows - 1,),
            "share": (rank, -1),
            "cross": (n_rows - 1, rank, rank),
            "log_det": (-1,),
            "groups": (n_rows,),
            "centre": (rank, -1),
            "centre_cov": (rank, -1, -1),
            "lead_step": (-1,),
            "lead_group": (-1,),
            "lead_mean": (-1, rank),
            "lead_var": (-1, rank),
            "carriers": (-1, 2),
            "start": (1,),
        }

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        return None

    # ---- the chain -----------------------------------------------------------------------------------------

    @property
    def _n_lead(self) -> int:
        return self.lead_step.size

    @property
    def n_memories(self) -> int:
        """Kinds without a carrier, and on every one."""
        return self.share.shape[1] // (1 + len(self.carriers))

    @property
    def places(self) -> Array:
        """Place of every row, preceded by the one that leads, (L + I,)."""
        return np.cumsum(np.concatenate([self.start - self.lead_step.sum(), self.lead_step, self.steps]))

    @property
    def kinds(self) -> Kinds:
        """Q_k of the rows, preceded by the one that leads, whose own prior does not count."""
        steps = np.concatenate([self.lead_step, self.steps])
        return kinds_of(steps, self.n_memories, self._n_lead, self.carriers, self.places[0])

    def _mixed(self) -> tuple[Array, Array]:
        """Σ_k q(k_r) Q_k of every component: its diagonal (L + I, R) and the numbers beside it."""
        kinds = self.kinds
        return kinds.own.T @ self.share.T, kinds.beside.T @ self.share.T

    @property
    def _places(self) -> NDArray[np.intp]:
        return np.concatenate([self.lead_group, self.groups]).astype(np.intp)

    def _centres(self) -> Array:
        """Centre of every row, preceded by the one that leads, (L + I, R)."""
        if not self.centre.shape[1]:
            return np.zeros((self._n_lead + self.groups.size, len(self.centre)))
        return self.centre.T[self._places]

    def _moments(self, rows: RowGaussians) -> tuple[Array, Array]:
        """E[(a_t − μ)²] (L + I, R), and E[(a_t − μ)(a_{t+1} − μ)] of neighbours."""
        deviation = np.concatenate([self.lead_mean, rows.mean]) - self._centres()
        variances = np.broadcast_to(rows.variances, rows.mean.shape)
        square = deviation**2 + np.concatenate([self.lead_var, variances])
        product = deviation[:-1] * deviation[1:]
        product[self._n_lead :] += np.einsum("trr->tr", self.cross)
        if self.centre.shape[1]:
            at = self._places
            square += self.centre_cov[:, at, at].T
            product += self.centre_cov[:, at[:-1], at[1:]].T
        return square, product

    def _traces(self, rows: RowGaussians) -> Array:
        """tr(Q_k M_r) of every kind and component, (K, R); kept for the rows last asked about."""
        known = self.__dict__.get("_known_traces")
        if known is not None and known[0] is rows:
            return known[1]
        kinds, (square, product) = self.kinds, self._moments(rows)
        traces = kinds.own @ square + 2.0 * (kinds.beside @ product)
        self.__dict__["_known_traces"] = rows, traces
        return traces

    # ---- the protocol --------------------------------------------------------------------------------------

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """The smoothed rows, with λ̄ Σ_k q(k_r) Q_k for every component."""
        rank, lead = linear.shape[1], self._n_lead
        own, beside = (lam.mean * part for part in self._mixed())
        centres = self._centres()
        centres[:lead] -= self.lead_mean
        pull = own * centres
        pull[:-1] += beside * centres[1:]
        pull[1:] += beside * centres[:-1]
        joint = np.array(np.broadcast_to(precision, (len(linear), rank, rank)))
        joint[:, np.arange(rank), np.arange(rank)] += own[lead:]
        found = kernels.smooth_chain(joint, beside[lead:], linear + pull[lead:])
        prior = replace(self, cross=found.cross, log_det=np.array([found.log_det]))
        return RowGaussians(found.mean, found.cov), prior

    def shared_terms(self, lam: Gamma) -> None:
        return None

    def _transitions(self, rows: RowGaussians) -> tuple[Array, Array]:
        """q as a chain: a_{t+1} = F_t a_t + noise of covariance W_{t+1}; the first W is that of the first row."""
        cov = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))
        transitions = np.linalg.solve(cov[:-1], self.cross).transpose(0, 2, 1)
        return np.asarray(transitions, np.float64), np.concatenate([cov[:1], cov[1:] - transitions @ self.cross])

    def sampler(self, rows: RowGaussians, reported: RowGaussians) -> Callable[[np.random.Generator], Array]:
        """Draws of the whole chain: neighbours depend on each other as in q, each row has its reported covariance."""
        transitions, noise = self._transitions(rows)
        values, vectors = np.linalg.eigh(0.5 * (noise + noise.transpose(0, 2, 1)))
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        shape = (rows.n_rows, rows.rank, rows.rank)
        whiten = np.linalg.inv(np.linalg.cholesky(np.broadcast_to(rows.cov, shape)))
        spread = np.linalg.cholesky(reported.cov) @ whiten

        def draw(rng: np.random.Generator) -> Array:
            deviation = np.einsum("trs,ts->tr", roots, rng.standard_normal(reported.mean.shape))
            for t, transition in enumerate(transitions):
                deviation[t + 1] += transition @ deviation[t]
            return np.asarray(reported.mean + np.einsum("trs,ts->tr", spread, deviation))

        return draw

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """Diagonal blocks of q's joint precision without the prior's; P is kept non-negative."""
        own, beside = (lam.mean * part[self._n_lead :] for part in self._mixed())
        transitions, noise = self._transitions(rows)
        precision: Array = np.asarray(np.linalg.inv(noise), np.float64)
        precision[:-1] += transitions.transpose(0, 2, 1) @ precision[1:] @ transitions
        precision[:, np.arange(rows.rank), np.arange(rows.rank)] -= own
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.transpose(0, 2, 1)))
        precision = np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1), np.float64)
        # with the prior's precision Q the rows solve (P + Q)(ã − μ) = h − Pμ
        centres = self._centres()[self._n_lead :]
        deviation = rows.mean - centres
        linear = np.einsum("trs,ts->tr", precision, rows.mean) + own * deviation
        linear[:-1] += beside * deviation[1:]
        linear[1:] += beside * deviation[:-1]
        if self._n_lead:
            lead = lam.mean * self._mixed()[1][0] * (self.lead_mean[0] - self._centres()[0])
            linear[0] += lead
        return precision, linear

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """ln p of every row given its neighbours."""
        own, beside = (lam.mean * part for part in self._mixed())
        deviation = np.concatenate([self.lead_mean, mean]) - self._centres()
        pull = np.zeros_like(deviation)
        pull[:-1] += beside * deviation[1:]
        pull[1:] += beside * deviation[:-1]
        return np.asarray(-np.sum(deviation * (0.5 * own * deviation + pull), axis=1)[self._n_lead :])

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and tr(Q M_r), averaged over the kinds."""
        return rows.n_rows, np.einsum("rk,kr->r", self.share, self._traces(rows))

    def _log_det(self, rows: RowGaussians) -> float:
        """ln|cov| of all rows together."""
        if self.log_det.size:
            return float(self.log_det[0])
        return float(np.linalg.slogdet(self._transitions(rows)[1])[1].sum())

    def _own_divergence(self) -> float:
        """KL of the prior's own parameters, apart from squares; zero where they belong to other rows."""
        return 0.0

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        """½ Σ_r [λ̄_r tr(Q M_r) − I E ln λ_r − ln|Q| − I] − ½ ln|cov|, averaged over the kinds, plus the own part."""
        n_counted, power = self.squares(rows)
        of_prior = n_counted * np.sum(lam.mean_log) + np.sum(self.share @ self.kinds.log_det)
        squares = lam.mean @ power - of_prior - n_counted * rows.rank
        return float(0.5 * (squares - self._log_det(rows))) + self._own_divergence()

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return self

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        """Rows that continue the given ones at unit steps; without these, rows on their own around the mean centre."""
        rank, n_groups = len(self.centre), self.centre.shape[1]
        if after is None:
            if not n_groups:
                return ZeroMean()
            within = np.einsum("rgg->rg", self.centre_cov).mean(axis=1)
            return KnownCentre(self.centre.mean(axis=1), within)
        last = self.groups[-1:]
        groups = (last + 1 + np.arange(n_rows)) % n_groups if n_groups else np.zeros(n_rows)
        return KnownOrder(
            np.ones(n_rows - 1),
            self.share,
            np.zeros((n_rows - 1, rank, rank)),
            np.zeros(0),
            groups,
            self.centre,
            self.centre_cov,
            np.ones(1),
            last,
            after.mean[-1:],
            np.broadcast_to(after.variances, after.mean.shape)[-1:],
            self.carriers,
            self.places[-1:] + 1.0,
        )

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, KnownOrder):
            raise TypeError("rows in order are followed by rows in order")
        apart = np.zeros((1, *self.cross.shape[1:]))
        known = self.log_det.size and new.log_det.size
        return replace(
            self,
            steps=np.concatenate([self.steps, new.lead_step, new.steps]),
            cross=np.concatenate([self.cross, apart, new.cross]),
            log_det=self.log_det + new.log_det if known else np.zeros(0),
            groups=np.concatenate([self.groups, new.groups]),
        )

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return replace(
            self,
            share=self.share[keep],
            cross=self.cross[:, keep][:, :, keep],
            log_det=np.zeros(0),
            centre=self.centre[keep],
            centre_cov=self.centre_cov[keep],
            lead_mean=self.lead_mean[:, keep],
            lead_var=self.lead_var[:, keep],
        )

    def rescaled(self, ratio: Array) -> RowPrior:
        return replace(
            self,
            cross=self.cross * np.outer(ratio, ratio),
            log_det=self.log_det + 2.0 * self.groups.size * np.log(np.abs(ratio)).sum(),
            centre=self.centre * ratio[:, None],
            centre_cov=self.centre_cov * ratio[:, None, None] ** 2,
            lead_mean=self.lead_mean * ratio,
            lead_var=self.lead_var * ratio**2,
        )
