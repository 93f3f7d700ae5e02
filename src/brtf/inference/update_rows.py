"""U1: the posterior of the factors' rows, mode by mode, in ranges of rows, or for all modes in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, cast

import numpy as np
from scipy.linalg import eigh

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, of_entries
from brtf.inference.statistics import (
    Weighing,
    add_up_rows,
    add_up_runs,
    complete_gram,
    from_partial,
    partial_fits,
    row_sums,
)
from brtf.kernels.arguments import CompletedRows, Mixture, PassSums, SliceWeights
from brtf.kernels.dense import transposed_khatri_rao
from brtf.kernels.packed import packed_indices, unpack_symmetric
from brtf.kernels.tables import EvidenceTable
from brtf.model.distributions import RowGaussians
from brtf.model.row_priors import RowPrior, RowTerms
from brtf.model.state import State

Rows = tuple[Array, Array, Array]
"""Means, packed covariances and ln|cov| of some rows."""


KnownGrams = Callable[[tuple[RowGaussians, ...], int], Array]
"""Row Grams of a mode that depend on the factors alone: (I_n, R, R), or (1, R, R) where all rows share one."""


def gaussian_rows(precision: Array, linear: Array) -> RowGaussians:
    """Rows with the given precision matrices P_i and linear terms h_i: cov_i = P_i⁻¹, mean_i = cov_i h_i.

    ``precision`` is (I, R, R), or (1, R, R) where all rows share it; ``linear`` is (I, R).
    """
    return RowGaussians(*kernels.solve_rows(precision, linear))


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """U1 for the rows of one mode: what it takes besides their statistics.

    Attributes
    ----------
    precision : of an entry of weight one
    known_grams : row Grams that do not depend on the data; None where they do
    relaxation : how far means move, in units of what U1 asks. Given everything else the bound is quadratic in the means
        of a mode with Gaussian rows, so it rises for any value between 0 and 2, by ω(2 − ω) of what it gains at ω = 1
    """

    precision: float
    known_grams: KnownGrams | None = None
    relaxation: float = 1.0

    def from_statistics(self, state: State, mode: int, grams: Array, products: Array) -> State:
        """U1 (13)–(15): q(A⁽ⁿ⁾) given the other modes: V_i = (τ̄ G_i + diag λ̄)⁻¹, ã_i = τ̄ V_i h_i; then the prior."""
        grams, products = _without_vanishing(grams, products)
        likelihood = self.precision * grams, self.precision * products
        return self._with_rows(state, mode, *state.row_priors[mode].posterior(*likelihood, state.lam, gaussian_rows))

    def from_sums(self, state: State, mode: int, sums: Sums) -> State:
        """U1 from the row products and, unless they are known, the packed row Grams of a mode."""
        if self.known_grams is not None:
            return self.from_statistics(state, mode, self.known_grams(state.factors, mode), sums[0])
        return self.from_statistics(state, mode, unpack_symmetric(sums[1], state.rank), sums[0])

    def from_partial(self, state: State, modes: Iterable[int], done: int, partial: Sums) -> State:
        """U1 for the given modes in turn, from sums over one other mode."""
        for mode in modes:
            ways = zip(partial, (attrgetter("mean"), attrgetter("second_moment_packed")), strict=False)
            sums = tuple(from_partial(part, state, matrix, mode, done) for part, matrix in ways)
            state = self.from_sums(state, mode, sums)
        return state

    def in_own_pass(self, observations: Observations, state: State, mode: int, weighing: Weighing) -> State:
        """U1 for one mode in a pass over the data, weights and targets fixed.

        Independent rows are solved in ranges, which limits the number of (R, R) matrices in memory.
        """
        shapes, add = row_sums(state.factors, mode, weighing, self.known_grams is None)
        terms = state.row_priors[mode].shared_terms(state.lam)
        if self.known_grams is not None or terms is None:
            return self.from_sums(state, mode, add_up_rows(observations, mode, shapes, add))
        mean, cov, log_det = (np.empty(shape) for shape in (*shapes, shapes[0][:1]))
        solve: Callable[[Sums], Sums] = partial(_solved, self.precision, terms.at(slice(0, 0)))
        if terms.factors is not None:
            solve = _unsolved
        for run, found in add_up_runs(observations, mode, shapes, add, solve):
            found = found if terms.factors is None else _solved(self.precision, terms.at(run), found)
            mean[run], cov[run], log_det[run] = found
        return self._with_rows(state, mode, RowGaussians(mean, cov, log_det), state.row_priors[mode])

    def _with_rows(self, state: State, mode: int, rows: RowGaussians, prior: RowPrior) -> State:
        """The state with new rows of a mode and their prior learnt; signed means move as far as they are relaxed."""
        if self.relaxation != 1.0 and prior.signed:
            before = state.factors[mode].mean
            rows, prior = prior.moved(rows, before + self.relaxation * (rows.mean - before))
        return state.with_factor(mode, rows, prior.learnt(rows, state.lam))


def _without_vanishing(grams: Array, products: Array) -> tuple[Array, Array]:
    """The statistics without those of rows all of whose entries weigh nothing.

    A Gram's diagonal is a sum of weights times squares: it is negative only where the weights are zero to rounding.
    """
    vanishing = np.any(np.einsum("irr->ir", grams) < 0.0, axis=1)
    if not vanishing.any():
        return grams, products
    return np.where(vanishing[:, None, None], 0.0, grams), np.where(vanishing[:, None], 0.0, products)


def update_factor(observations: Observations, state: State, mode: int, targets: Array) -> State:
    """U1 for one mode with unit weights; ``targets`` (M,) is y − s̄."""
    chosen = of_entries(targets)
    grams = complete_gram if observations.layout == "complete" else None
    update = RowUpdate(float(state.tau.mean), grams)
    return update.in_own_pass(observations, state, mode, lambda block: (None, chosen(block)))


def _unsolved(sums: Sums) -> Sums:
    """The sums of some rows, to be solved by the caller."""
    return sums


def _solved(precision: float, terms: tuple[Array, Array], sums: Sums) -> Sums:
    """U1 for some rows, from their products and packed Grams: means, packed covariances, ln|cov|.

    ``terms`` are the precision and linear term of their prior.
    """
    (products, packed), (own_precision, own_linear) = sums, terms
    grams, products = _without_vanishing(unpack_symmetric(precision * packed, own_linear.shape[1]), products)
    grams += own_precision
    return kernels.solve_rows(grams, precision * products + own_linear)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Covariances (ω_i G + Λ)⁻¹ of rows whose Grams are multiples of a common G: W diag(1/(ω_i(1 − μ) + μ)) Wᵀ.

    Attributes
    ----------
    turn : (R, R) W, with Wᵀ(G + Λ)W = 1 and WᵀΛW = diag μ
    shares : (R,) μ, the prior's share in the precision of each direction
    """

    turn: Array
    shares: Array

    @classmethod
    def of(cls, gram: Array, own: Array) -> Spectrum:
        """The spectrum of a Gram of unit weight and the prior's own precision Λ, (R, R), scaled to unit diagonal."""
        scale = 1.0 / np.sqrt(np.diag(gram + own))
        both = np.outer(scale, scale)
        shares, turn = eigh(own * both, (gram + own) * both)
        return cls(scale[:, None] * turn, np.clip(shares, 0.0, 1.0))

    def covariances(self, weights: Array) -> tuple[Array, Array]:
        """Packed covariances (I, P) and ln|cov| (I,) of rows of the given weights ω (I,)."""
        precisions = np.outer(weights, 1.0 - self.shares) + self.shares
        rows, cols = packed_indices(self.shares.size)
        log_det = 2.0 * float(np.linalg.slogdet(self.turn)[1]) - np.log(precisions).sum(axis=1)
        return (1.0 / precisions) @ (self.turn[rows] * self.turn[cols]).T, log_det


@dataclass(frozen=True, eq=False)
class OnePass:
    """U1 for every mode in one pass over dense data, weights and targets fixed.

    A block contains all entries of its rows of the first mode: these rows are solved at once, and the block is
    contracted with them before the next one is read. The other modes follow from those sums, in turn.

    Attributes
    ----------
    state, modes
    update : U1 of a mode
    terms : of the prior of the first mode's rows; with Grams that are known they must be the same for all
    dtype : of the numbers per entry
    row_weights : (I_0,) factors, where the Grams of the first mode are multiples of a common one
    room : output array for the rows of the first mode, for blocks in memory; None where rows are returned
    """

    state: State
    modes: tuple[int, ...]
    update: RowUpdate
    terms: RowTerms
    dtype: np.dtype[np.floating[Any]]
    row_weights: Array | None = None
    room: Rows | None = None

    @staticmethod
    def fits(observations: Observations, rank: int, with_grams: bool) -> bool:
        """Whether the sums over the first mode are small enough to keep."""
        return rank > 0 and partial_fits(observations, rank, 0, with_grams)

    @cached_property
    def _means(self) -> list[Array]:
        return [rows.mean_as(self.dtype) for rows in self.state.factors]

    @cached_property
    def _others(self) -> Array:
        """The transposed Khatri–Rao product of all modes but the first, (R, Π_{k≠0} I_k)."""
        return transposed_khatri_rao(self._means[1:])

    @cached_property
    def _moments(self) -> list[Array]:
        """Packed second moments of all modes, with zeros for the first, which is being solved."""
        first, *others = self.state.factors
        n_packed = first.rank * (first.rank + 1) // 2
        return [np.broadcast_to(0.0, (first.n_rows, n_packed)), *(rows.second_moment_packed for rows in others)]

    @cached_property
    def _spectrum(self) -> Spectrum | None:
        """Spectrum of the first mode's rows, if their Grams are multiples of one that is numerically non-singular."""
        if self.row_weights is None:
            return None
        with suppress(np.linalg.LinAlgError):
            return Spectrum.of(self.update.precision * complete_gram(self.state.factors, 0)[0], self.terms.precision)
        return None

    @cached_property
    def _first_grams(self) -> Array:
        """Row Grams of the first mode, (I_0, R, R), or (1, R, R) where all rows share one."""
        if self.update.known_grams is None:
            raise TypeError("these Grams need the data")
        return self.update.known_grams(self.state.factors, 0)

    @cached_property
    def _shared(self) -> tuple[Array, Array]:
        """The covariance that all rows of the first mode share, packed, and its ln|cov|."""
        return self._solved_covariances(self._first_grams)

    def _covariances(self, rows: slice) -> tuple[Array, Array]:
        """Packed covariances (b, P) of rows of the first mode, or (1, P) of all, and ln|cov|."""
        if self.row_weights is not None and self._spectrum is not None:
            return self._spectrum.covariances(self.row_weights[rows])
        if len(self._first_grams) == 1:
            return self._shared
        return self._solved_covariances(self._first_grams[rows])

    def _solved_covariances(self, grams: Array) -> tuple[Array, Array]:
        nothing = np.zeros((len(grams), self.state.rank))
        return kernels.solve_rows(self.update.precision * grams + self.terms.precision, nothing)[1:]

    def zeros(self) -> Sums:
        """Zero sums over the first mode: of targets times its means, and of weights times its second moments."""
        rank, lengths = self.state.rank, [rows.n_rows for rows in self.state.factors[1:]]
        products = np.zeros((*lengths, rank))
        return (products,) if self.update.known_grams else (products, np.zeros((*lengths, rank * (rank + 1) // 2)))

    def look(self, sums: Sums, block: Block, weights: Array | None, targets: Array) -> Rows | None:
        """The block's rows of the first mode, unless stored in ``room``, and its share in the sums."""
        products, block = np.zeros((block.n_rows, self.state.rank)), kernels.listed(block)
        kernels.contract(block, targets, self._means, 0, products)
        own = kernels.listed(replace(block, rows=slice(0, block.n_rows)))
        if self.update.known_grams is not None:
            linear = self.update.precision * products + self.terms.linear
            packed, log_det = self._covariances(block.rows)
            cov = unpack_symmetric(packed, self.state.rank)
            mean = linear @ cov[0] if len(cov) == 1 else np.einsum("irs,is->ir", cov, linear)
        else:
            gram_sums = np.zeros((block.n_rows, self._moments[0].shape[1]))
            kernels.contract(block, weights, self._moments, 0, gram_sums)
            mean, packed, log_det = _solved(self.update.precision, self.terms.at(block.rows), (products, gram_sums))
            kernels.contract_one(own, weights, RowGaussians(mean, packed).second_moment_packed, 0, sums[1])
        kernels.contract_one(own, targets, mean.astype(self.dtype, copy=False), 0, sums[0])
        return self._put(block, (mean, packed, log_det))

    def _put(self, block: Block, rows: Rows) -> Rows | None:
        """Store rows in ``room``; return them where there is none."""
        if self.room is None:
            return rows
        for room, part in zip(self.room, rows, strict=True):
            room[block.rows] = part
        return None

    def solve(
        self,
        block: Block,
        scale: float,
        tau: float,
        largest_weight: float,
        local: EvidenceTable | Mixture,
        noise: SliceWeights | None,
        sums: PassSums,
    ) -> tuple[CompletedRows, Rows | None]:
        """The block's rows from its values, with the sums over local posteriors that the bound needs; form 1."""
        cov, log_det = self._covariances(block.rows)
        found = kernels.solve_completed(
            cast(Array, block.values.reshape(block.n_rows, -1)),
            scale,
            self._means[0][block.rows],
            self._others,
            local,
            tau,
            largest_weight,
            noise,
            self.update.precision * cov,
            self.terms.linear / self.update.precision,
            sums,
        )
        return found, self._put(block, (found.mean, cov, log_det))

    def finish(self, sums: Sums, parts: list[Rows | None]) -> State:
        """The state with the rows of all blocks, and all other modes updated."""
        if self.room is not None:
            mean, cov, log_det = self.room
        else:
            means, covs, log_dets = zip(*(rows for rows in parts if rows is not None), strict=True)
            mean, (cov, log_det) = np.concatenate(means), (covs[0], log_dets[0])
            if not self._shares_covariance:
                cov, log_det = np.concatenate(covs), np.concatenate(log_dets)
        first = RowGaussians(mean, cov, log_det)
        state = self.state.with_factor(0, first, self.state.row_priors[0].learnt(first, self.state.lam))
        return self.update.from_partial(state, [k for k in self.modes if k], 0, sums)

    @property
    def _shares_covariance(self) -> bool:
        return self.update.known_grams is not None and self.row_weights is None and len(self._first_grams) == 1
