"""Rows that follow each other, with the kinds of their chains and their centres learnt from other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.centred import KnownCentre
from brtf.model.row_priors.chain_kinds import SMALLEST_CARRIER, Kinds, courses, kinds_of
from brtf.model.row_priors.in_order import InOrder
from brtf.model.row_priors.row_prior import RowPrior, RowSolver
from brtf.model.row_priors.zero_mean import ZeroMean


@dataclass(frozen=True, eq=False)
class KnownOrder(InOrder):
    """Rows in order with kinds and centres learnt from other rows: a_·r ~ N(μ_{g(t) r}, (λ_r Q_{k_r})⁻¹).

    The posterior of the rows is a Markov chain, given by every row's covariance and ``cross``; where there are kinds of
    second order, or the rows form a ring, one of second order, given also by ``across``, in the order of
    :func:`~brtf.model.row_priors.chain_kinds.order_of`. ``share`` is q(k_r); rows of the same group g have the same
    centre, with q(μ_r) = N(centre_r, centre_cov_r). The rows may continue others that are fixed: the last of these
    lead.

    Attributes
    ----------
    steps : (I − 1,) distances of neighbours, in units of the typical one
    share : (R, K)
    cross : (I − 1, R, R) posterior covariances Cov(a_t, a_{t+1})
    across : (I − 2, R, R) posterior covariances Cov(a_t, a_{t+2}); none where the chain is of first order
    log_det : ln|cov| of all rows together, (1,); (0,) where it has to be computed
    groups : (I,)
    centre : (R, G); no groups where the rows are around zero
    centre_cov : (R, G, G)
    lead_step, lead_group : (L,), 0 where the rows do not continue others, otherwise 1, or 2 with kinds of second order
    lead_mean, lead_var : (L, R)
    lead_cov : (L − 1, R) covariances of the two that lead
    carriers : (C, 2) frequencies and phases, see :func:`~brtf.model.row_priors.chain_kinds.carriers_of`; the kinds are
        those without a carrier, then the same on every one
    start : (1,) place of the first row
    n_second : (1,) kinds of second order, the last ones of those without a carrier
    ring : (1,) distance of the last row to the first, which follows it, in units of the typical one; 0 along a line
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
    across: Array
    lead_cov: Array
    n_second: Array
    ring: Array
    name = "in a known order"
    words = "follow each other"

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:  # as files give them back: other sums differ in the last digits
            if not getattr(self, name).flags.c_contiguous:
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)))
        n_groups, n_rows = self.centre.shape[1], self.groups.size
        if not (self.lead_step > 0).all():
            raise ValueError("the steps of an order are not positive")
        self._check_kinds()
        fit = self.share.shape[1] % (1 + len(self.carriers)) == 0
        if not fit or (len(self.carriers) and (np.abs(courses(self.carriers, self.places)) < SMALLEST_CARRIER).any()):
            raise ValueError("the carriers of the kinds do not fit, or vanish at a row")
        if n_groups and not all(_are_numbers_below(groups, n_groups) for groups in (self.groups, self.lead_group)):
            raise ValueError("the groups of the centres are out of range")
        if self.ring[0] and (self.n_second[0] or self.carriers.size or self.lead_step.size):
            raise ValueError("a ring is of first order, without carriers, and continues no other rows")
        if len(self.across) != (max(n_rows - 2, 0) if self.form.wide else 0):
            raise ValueError("the covariances of a chain do not fit its kinds")

    def _with(self, **learnt: Array) -> Self:
        """The same chain with other statistics of its own, which are not checked again."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.__dict__.pop("_known_traces", None)
        found.__dict__.update({name: np.ascontiguousarray(array) for name, array in learnt.items()})
        return found

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
            "across": (-1, rank, rank),
            "lead_cov": (-1, rank),
            "n_second": (1,),
            "ring": (1,),
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

    @cached_property
    def places(self) -> Array:
        """Place of every row, preceded by those that lead, (L + I,)."""
        return np.cumsum(np.concatenate([self.start - self.lead_step.sum(), self.lead_step, self.steps]))

    @cached_property
    def kinds(self) -> Kinds:
        """Q_k of the rows in their order, preceded by those that lead, whose own prior does not count."""
        steps = np.concatenate([self.lead_step, self.steps])
        return kinds_of(steps, self.n_memories, self._n_lead, self.carriers, self.places[0], self.form)

    @property
    def _places(self) -> NDArray[np.intp]:
        """Group of every row in their order, preceded by those that lead."""
        return np.concatenate([self.lead_group, self.groups[self._order]]).astype(np.intp)

    def _centres(self) -> Array:
        """Centre of every row in their order, preceded by those that lead, (L + I, R)."""
        if not self.centre.shape[1]:
            return np.zeros((self._n_lead + self.groups.size, len(self.centre)))
        return self.centre.T[self._places]

    def _moments(self, rows: RowGaussians) -> tuple[Array, Array, Array]:
        """E[d_t²] (L + I, R) of the distances d from the centre, and E[d_t d_s] of rows one apart, and two apart."""
        order, lead = self._order, self._n_lead
        deviation = self._deviation(rows.mean)
        variances = np.broadcast_to(rows.variances, rows.mean.shape)[order]
        square = deviation**2 + np.concatenate([self.lead_var, variances])
        near, far = deviation[:-1] * deviation[1:], deviation[:-2] * deviation[2:]
        near[: len(self.lead_cov)] += self.lead_cov
        near[lead:] += np.einsum("trr->tr", self.cross)
        far = far if self.form.wide else far[:0]
        far[lead:] += np.einsum("trr->tr", self.across)
        if self.centre.shape[1]:
            at = self._places
            square += self.centre_cov[:, at, at].T
            near += self.centre_cov[:, at[:-1], at[1:]].T
            far += self.centre_cov[:, at[:-2], at[2:]].T[: len(far)]
        return square, near, far

    def _traces(self, rows: RowGaussians) -> Array:
        # kept for the rows last asked about
        known = self.__dict__.get("_known_traces")
        if known is not None and known[0] is rows:
            return known[1]
        kinds, (square, near, far) = self.kinds, self._moments(rows)
        traces = kinds.own @ square + 2.0 * (kinds.beside @ near)
        if self.form.wide:
            traces += 2.0 * (kinds.far @ far)
        self.__dict__["_known_traces"] = rows, traces
        return traces

    # ---- the protocol --------------------------------------------------------------------------------------

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        """The smoothed rows, with λ̄ Σ_k q(k_r) Q_k for every component."""
        rank, lead, order, back = linear.shape[1], self._n_lead, self._order, self._back
        band = self._mixed().times(lam.mean)
        centres = self._centres()
        centres[:lead] -= self.lead_mean
        joint = np.broadcast_to(precision, (len(linear), rank, rank))[order]
        joint[:, np.arange(rank), np.arange(rank)] += band.own[lead:]
        pulled = linear[order] + band.of(centres)[lead:]
        found = kernels.smooth_wide_chain(joint, band.beside[lead:], band.far[lead:], pulled)
        prior = self._with(cross=found.cross, across=found.across, log_det=np.array([found.log_det]))
        return RowGaussians(found.mean[back], found.cov[back]), prior

    def shared_terms(self, lam: Gamma) -> None:
        return None

    def _transitions(self, rows: RowGaussians) -> tuple[Array, Array, Array]:
        """q as a chain: a_t = F_t a_{t−1} + G_t a_{t−2} + noise of covariance W_t; F begins with t = 1, G with t = 2.

        In a chain of first order there is no G. The first W is the covariance of the first row.
        """
        cov = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))[self._order]
        near = np.asarray(np.linalg.solve(cov[:-1], self.cross).transpose(0, 2, 1), np.float64)
        noise = np.concatenate([cov[:1], cov[1:] - near @ self.cross])
        if not len(self.across):
            return near, np.zeros((0, rows.rank, rows.rank)), noise
        before = np.block([[cov[1:-1], self.cross[:-1].transpose(0, 2, 1)], [self.cross[:-1], cov[:-2]]])
        shared = np.concatenate([self.cross[1:], self.across], axis=1)
        both = np.asarray(np.linalg.solve(before, shared).transpose(0, 2, 1), np.float64)
        noise[2:] = cov[2:] - both @ shared
        near[1:], far = both[:, :, : rows.rank], both[:, :, rows.rank :]
        return near, far, noise

    def sampler(self, rows: RowGaussians, reported: RowGaussians) -> Callable[[np.random.Generator], Array]:
        """Draws of the whole chain: rows depend on each other as in q, each has its reported covariance."""
        near, far, noise = self._transitions(rows)
        values, vectors = np.linalg.eigh(0.5 * (noise + noise.transpose(0, 2, 1)))
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        shape, back = (rows.n_rows, rows.rank, rows.rank), self._back
        whiten = np.linalg.inv(np.linalg.cholesky(np.broadcast_to(rows.cov, shape)))
        spread = np.linalg.cholesky(reported.cov) @ whiten

        def draw(rng: np.random.Generator) -> Array:
            deviation = np.einsum("trs,ts->tr", roots, rng.standard_normal(reported.mean.shape))
            for t, transition in enumerate(near, start=1):
                deviation[t] += transition @ deviation[t - 1]
                if t > 1 and len(far):
                    deviation[t] += far[t - 2] @ deviation[t - 2]
            return np.asarray(reported.mean + np.einsum("trs,ts->tr", spread, deviation[back]))

        return draw

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        """Diagonal blocks of q's joint precision without the prior's; P is kept non-negative."""
        band, lead, back = self._mixed().times(lam.mean), self._n_lead, self._back
        near, far, noise = self._transitions(rows)
        left: Array = np.asarray(np.linalg.inv(noise), np.float64)
        precision = left.copy()
        precision[:-1] += near.transpose(0, 2, 1) @ left[1:] @ near
        if len(far):
            precision[:-2] += far.transpose(0, 2, 1) @ left[2:] @ far
        precision[:, np.arange(rows.rank), np.arange(rows.rank)] -= band.own[lead:]
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.transpose(0, 2, 1)))
        precision = np.asarray((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1), np.float64)
        # with the prior's precision Q the rows solve (P + Q)(ã − μ) = h − Pμ
        pull = band.of(self._deviation(rows.mean))[lead:]
        linear = np.einsum("trs,ts->tr", precision, rows.mean[self._order]) + pull
        return precision[back], linear[back]

    def _deviation(self, mean: Array) -> Array:
        return np.concatenate([self.lead_mean, mean[self._order]]) - self._centres()

    def _log_det(self, rows: RowGaussians) -> float:
        """ln|cov| of all rows together."""
        if self.log_det.size:
            return float(self.log_det[0])
        return float(np.linalg.slogdet(self._transitions(rows)[2])[1].sum())

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
        """Rows that continue the given ones at unit steps; without these, rows on their own around the mean centre.

        A ring is opened between the last row and the first: new rows continue it as a line.
        """
        rank, n_groups = len(self.centre), self.centre.shape[1]
        if after is None:
            if not n_groups:
                return ZeroMean()
            within = np.einsum("rgg->rg", self.centre_cov).mean(axis=1)
            return KnownCentre(self.centre.mean(axis=1), within)
        if self.form.ring:
            return self.opened().for_new_rows(n_rows, after)
        n_lead = min(2 if self.form.wide else 1, after.n_rows)
        last = self.groups[-n_lead:]
        groups = (last[-1] + 1 + np.arange(n_rows)) % n_groups if n_groups else np.zeros(n_rows)
        return KnownOrder(
            np.ones(n_rows - 1),
            self.share,
            np.zeros((n_rows - 1, rank, rank)),
            np.zeros(0),
            groups,
            self.centre,
            self.centre_cov,
            np.concatenate([self.steps, [1.0]])[-n_lead:],
            last,
            after.mean[-n_lead:],
            np.broadcast_to(after.variances, after.mean.shape)[-n_lead:],
            self.carriers,
            self.places[-1:] + 1.0,
            np.zeros((max(n_rows - 2, 0) if self.form.wide else 0, rank, rank)),
            np.einsum("trr->tr", self.cross)[-1:][: n_lead - 1],
            self.n_second,
            self.ring,
        )

    def at_steps(self, steps: Array) -> RowPrior:
        """The same at other distances; the groups of the centres go on by whole steps."""
        n_groups, places = self.centre.shape[1], np.cumsum(steps)
        later = self.lead_group[-1:] + np.maximum(np.rint(places), 1.0)
        return replace(
            self,
            steps=steps[1:],
            groups=later % n_groups if n_groups else self.groups,
            lead_step=np.concatenate([self.lead_step[:-1], steps[:1]]),
            start=self.start - self.lead_step[-1:] + steps[:1],
        )

    def opened(self) -> KnownOrder:
        """A ring as a line of the same memories, and any other chain as it is."""
        if not self.form.ring:
            return self
        # neighbours on a ring laid double are two apart, but for those in the middle
        n_rows, rank = self.groups.size, len(self.share)
        order, cross = self._order, np.zeros((n_rows - 1, rank, rank))
        for first, second, cov in zip(order[:-2], order[2:], self.across, strict=True):
            cross[min(first, second)] = cov if first < second else cov.T
        if n_rows > 1:
            first, second = order[-2:]
            cross[min(first, second)] = self.cross[-1] if first < second else self.cross[-1].T
        return replace(self, cross=cross, across=self.across[:0], log_det=np.zeros(0), ring=np.zeros(1))

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, KnownOrder):
            raise TypeError("rows in order are followed by rows in order")
        if self.form.ring:
            return self.opened().followed_by(new)
        apart, known = np.zeros((2, *self.cross.shape[1:])), self.log_det.size and new.log_det.size
        n_across = max(self.groups.size + new.groups.size - 2, 0) if self.form.wide else 0
        n_apart = n_across - len(self.across) - len(new.across)
        return replace(
            self,
            steps=np.concatenate([self.steps, new.lead_step[-1:], new.steps]),
            cross=np.concatenate([self.cross, apart[:1], new.cross]),
            across=np.concatenate([self.across, apart[:n_apart], new.across]),
            log_det=self.log_det + new.log_det if known else np.zeros(0),
            groups=np.concatenate([self.groups, new.groups]),
        )

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return replace(
            self,
            share=self.share[keep],
            cross=self.cross[:, keep][:, :, keep],
            across=self.across[:, keep][:, :, keep],
            log_det=np.zeros(0),
            centre=self.centre[keep],
            centre_cov=self.centre_cov[keep],
            lead_mean=self.lead_mean[:, keep],
            lead_var=self.lead_var[:, keep],
            lead_cov=self.lead_cov[:, keep],
        )

    def rescaled(self, ratio: Array) -> RowPrior:
        return self._with(
            cross=self.cross * np.outer(ratio, ratio),
            across=self.across * np.outer(ratio, ratio),
            log_det=self.log_det + 2.0 * self.groups.size * np.log(np.abs(ratio)).sum(),
            centre=self.centre * ratio[:, None],
            centre_cov=self.centre_cov * ratio[:, None, None] ** 2,
            lead_mean=self.lead_mean * ratio,
            lead_var=self.lead_var * ratio**2,
            lead_cov=self.lead_cov * ratio**2,
        )


def _are_numbers_below(groups: Array, n_groups: int) -> bool:
    """Whether all are integers from 0 to below ``n_groups``."""
    return bool(((groups >= 0) & (groups < n_groups) & (groups == np.floor(groups))).all())
