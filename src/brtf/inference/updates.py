"""Statistics of the data and the closed-form updates that use them: one pair per posterior factor.

Every statistic is a sum over blocks of entries; every update is a function of such sums. Keys U1–U6 and R1 are those
of ``docs/equations.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import brentq, minimize_scalar
from scipy.special import digamma, gammaln

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.observations import Block, Observations
from brtf.data.passes import Field, Sums, add_up, in_runs, of_entries, runs_of, visit, whole
from brtf.kernels.arguments import Mixture, PassSums, SliceWeights
from brtf.kernels.packed import pack_symmetric, packed_indices, unpack_symmetric
from brtf.kernels.reference import CompletedRows, reduce_mode, transposed_khatri_rao
from brtf.kernels.tables import EvidenceTable
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import LocalModel
from brtf.model.state import MeanFieldOutliers, SliceNoise, State, component_amplitudes

Value = TypeVar("Value")

PRUNE_NATS = 1e-2
"""A component is negligible if it changes the expected log likelihood by less than this in total."""
SMALLEST_GAP = 1e-14
"""Rounding error of ln(mean γ̄) − mean E[ln γ]: it limits a₀ to 5e13 where all γ̄ are equal."""
WeightsAndTargets = tuple[Array | None, Array]
"""Weights of a block's entries (None: all one) and targets, weight times value; each (m,)."""
Weighing = Callable[[Block], WeightsAndTargets]
Rows = tuple[Array, Array, Array]
"""Means, packed covariances and ln|cov| of some rows."""
Packed = tuple[Array, Array, Array]
"""Packed upper halves of ããᵀ, E[aaᵀ] and V of a mode's rows."""
KnownGrams = Callable[[tuple[RowGaussians, ...], int], Array]
"""Row Grams of a mode that depend on the factors alone: (I_n, R, R), or (1, R, R) where all rows share one."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The low-rank part at all observed entries, in units of the data's scale.

    Attributes
    ----------
    residual : (M,) y_m − x̄_m
    variance : (M,) Var x_m, or ``None`` where only its sum was requested
    variance_sum : Σ_m Var x_m
    """

    residual: Array
    variance: Array | None
    variance_sum: float

    @property
    def deviation(self) -> Array:
        """D (M,): E[(y−x)²] where the variances are known per entry, (y−x̄)² otherwise."""
        square = self.residual**2
        return square if self.variance is None else square + self.variance


def scaled_values(observations: Observations, block: Block) -> Array:
    """The block's values divided by the data's scale, float64."""
    return np.divide(block.values, observations.scale, dtype=np.float64)


class LastPacked(dict[int, tuple[RowGaussians, Packed]]):
    """Cache of the packed products of the last rows of every mode; empty when pickled."""

    def __reduce__(self) -> tuple[type[LastPacked], tuple[()]]:
        return LastPacked, ()


def variance_field(factors: tuple[RowGaussians, ...], last: LastPacked | None = None) -> Field:
    """Var x at the entries.

    Packed products are larger than the rows they come from. For the first mode, which dense blocks divide, they are
    computed for the rows of one block at a time; those of the other modes are cached in ``last``.
    """
    kept = LastPacked() if last is None else last
    first, *others = factors

    def variance(block: Block) -> Array:
        packed = [_packed(rows, mode, kept) for mode, rows in enumerate(others, start=1)]
        if block.coords is None and block.n_rows < first.n_rows:
            own = _packed(first.part(block.rows), 0, LastPacked())
            block = replace(block, rows=slice(0, block.n_rows))
        else:
            own = _packed(first, 0, kept)
        return kernels.variance_at(block, *zip(own, *packed, strict=True))

    return variance


def _packed(rows: RowGaussians, mode: int, last: LastPacked) -> Packed:
    """The packed products of a mode's rows, from the cache or stored there."""
    known, packed = last.get(mode, (None, None))
    if packed is None or known is not rows:
        packed = rows.outer_packed, rows.second_moment_packed, rows.cov_packed
        last[mode] = rows, packed
    return packed


def fit_at_entries(observations: Observations, factors: tuple[RowGaussians, ...], *, per_entry: bool = False) -> Fit:
    """Residuals y − x̄ at the observed entries, and the exact variance of x there (per entry, or only summed)."""
    means = [rows.mean for rows in factors]
    residual = whole(observations, lambda b: scaled_values(observations, b) - kernels.low_rank_at(b, means))
    if not per_entry:
        return Fit(residual, None, variance_sum(observations, factors))
    variance = whole(observations, variance_field(factors))
    return Fit(residual, variance, float(variance.sum()))


def variance_sum(observations: Observations, factors: tuple[RowGaussians, ...]) -> float:
    """Σ Var x over the observed entries; of a complete tensor from the R×R sums of each mode (28)–(30)."""
    if observations.layout == "complete":
        return _variance_sum_complete(factors)
    variance = variance_field(factors)

    def add(sums: Sums, block: Block) -> None:
        sums[0][...] += variance(block).sum()

    return float(add_up(observations, lambda: (np.zeros(()),), add)[0])


def _variance_sum_complete(factors: tuple[RowGaussians, ...]) -> float:
    """Σ Var x over all entries of a complete tensor, from the R×R sums of each mode (28)–(30)."""
    spread: Array = np.zeros((factors[0].rank,) * 2)
    product: Array = np.ones_like(spread)
    for rows in factors:
        gram, cov_sum = rows.gram, rows.cov_sum
        spread = spread * (gram + cov_sum) + product * cov_sum
        product = product * gram
    return float(spread.sum())


def complete_gram(factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """The Gram shared by all rows of a mode of complete data: ⊛_{k≠n}(ÃᵀÃ + Σ_i V_i) (29), (1, R, R)."""
    gram: Array = np.ones((factors[mode].rank,) * 2)
    for k, rows in enumerate(factors):
        if k != mode:
            gram = gram * (rows.gram + rows.cov_sum)
    return gram[None]


def row_statistics(
    observations: Observations,
    factors: tuple[RowGaussians, ...],
    mode: int,
    weighing: Weighing,
    grams: Array | None = None,
) -> tuple[Array, Array]:
    """Row Grams G_i = Σ_{m∈Ω, i_n=i} w_m ⊛_{k≠n} E[a⁽ᵏ⁾a⁽ᵏ⁾ᵀ] (14) and products h_i = Σ t_m ⊛_{k≠n} ã⁽ᵏ⁾, in one pass.

    Shapes (I_n, R, R) and (I_n, R). Known Grams are passed through.
    """
    products, *packed = add_up_rows(observations, mode, *_row_sums(factors, mode, weighing, grams is None))
    return unpack_symmetric(packed[0], factors[mode].rank) if grams is None else grams, products


def _row_sums(
    factors: tuple[RowGaussians, ...], mode: int, weighing: Weighing, with_grams: bool
) -> tuple[list[tuple[int, ...]], Callable[[Sums, Block], None]]:
    """Shapes of a mode's row products and packed row Grams, and the function that adds a block's share."""

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract(own, targets, [rows.mean for rows in factors], mode, sums[0])
        if with_grams:
            moments = [rows.second_moment_packed for rows in factors]
            kernels.contract(own, weights, moments, mode, sums[1])

    n_rows, rank = factors[mode].n_rows, factors[mode].rank
    shapes: list[tuple[int, ...]] = [(n_rows, rank), (n_rows, rank * (rank + 1) // 2)]
    return shapes[: 1 + with_grams], add


def row_grams(
    observations: Observations, factors: tuple[RowGaussians, ...], mode: int, weights: Array | None = None
) -> Array:
    """Row Grams (14); unit weights where none are given. Shape (I_n, R, R), or (1, R, R) of complete data (29)."""
    if weights is None and observations.layout == "complete":
        return complete_gram(factors, mode)
    if weights is None:
        return row_statistics(observations, factors, mode, lambda block: (None, np.ones(block.n_entries)))[0]
    chosen = of_entries(weights)
    return row_statistics(observations, factors, mode, lambda block: (chosen(block), chosen(block)))[0]


def row_products(observations: Observations, targets: Array, factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """Row products h_i = Σ_{m∈Ω, i_n=i} t_m ⊛_{k≠n} ã⁽ᵏ⁾, shape (I_n, R)."""
    chosen = of_entries(targets)
    nothing = np.empty((0, 0, 0))
    return row_statistics(observations, factors, mode, lambda block: (None, chosen(block)), nothing)[1]


def add_up_rows(
    observations: Observations, mode: int, shapes: list[tuple[int, ...]], add: Callable[[Sums, Block], None]
) -> Sums:
    """Sum arrays over blocks; their first axis is a mode's rows, or for the first mode the block's own rows.

    Dense blocks are ranges of rows of the first mode, so each row of that mode belongs to a single block.
    """
    if mode != 0 or observations.coords is not None:
        return add_up(observations, lambda: tuple(np.zeros(shape) for shape in shapes), add)

    def of_rows(_: Sums, block: Block) -> Sums:
        sums = tuple(np.zeros((block.n_rows, *shape[1:])) for shape in shapes)
        add(sums, block)
        return sums

    _, parts = visit(observations, tuple, of_rows)
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def add_up_runs(
    observations: Observations,
    mode: int,
    shapes: list[tuple[int, ...]],
    add: Callable[[Sums, Block], None],
    finish: Callable[[Sums], Value],
) -> Iterator[tuple[slice, Value]]:
    """Sum over blocks in ranges of rows of a long mode; yields each range with ``finish`` of its sums."""
    if mode != 0 or observations.coords is not None:
        yield from in_runs(observations, shapes, add, finish)
        return
    sums = add_up_rows(observations, mode, shapes, add)
    for run in runs_of(shapes, observations.plan.run_bytes):
        yield run, finish(tuple(array[run] for array in sums))


def gaussian_rows(precision: Array, linear: Array) -> RowGaussians:
    """Rows with the given precision matrices P_i and linear terms h_i: cov_i = P_i⁻¹, mean_i = cov_i h_i.

    ``precision`` is (I, R, R), or (1, R, R) where all rows share it; ``linear`` is (I, R).
    """
    return _with_log_det(*kernels.solve_rows(precision, linear))


def _with_log_det(mean: Array, cov: Array, log_det: Array) -> RowGaussians:
    rows = RowGaussians(mean, cov)
    rows.__dict__["log_det_cov"] = log_det  # the factorization gives it for free: seed the cached property
    return rows


def updated_factor(state: State, mode: int, grams: Array, products: Array, precision: float) -> State:
    """U1 (13)–(15): q(A⁽ⁿ⁾) given the other modes: V_i = (τ̄ G_i + diag λ̄)⁻¹, ã_i = τ̄ V_i h_i; then the prior."""
    likelihood = precision * grams, precision * products
    rows, prior = state.row_priors[mode].posterior(*likelihood, state.lam, gaussian_rows)
    return state.with_factor(mode, rows, prior.learnt(rows, state.lam))


def update_factor(observations: Observations, state: State, mode: int, targets: Array) -> State:
    """U1 for one mode with unit weights; ``targets`` (M,) is y − s̄."""
    chosen = of_entries(targets)
    grams = complete_gram(state.factors, mode) if observations.layout == "complete" else None
    grams, products = row_statistics(observations, state.factors, mode, lambda b: (None, chosen(b)), grams)
    return updated_factor(state, mode, grams, products, float(state.tau.mean))


def update_factors(
    observations: Observations,
    state: State,
    modes: tuple[int, ...],
    weighing: Weighing,
    precision: float,
    known_grams: KnownGrams | None = None,
) -> State:
    """U1 for every mode in turn, weights and targets fixed; ``known_grams`` are Grams that do not depend on the data.

    Dense data are first contracted over the longest mode, which is updated last; the statistics of all other modes
    follow from that without another pass.
    """
    if state.rank == 0:
        return state
    *others, longest = modes
    if len(others) > 1 and _partial_fits(observations, state.rank, longest, known_grams is None):
        partial = _over_longest(observations, state, longest, weighing, known_grams is None)
        state = _update_from_partial(state, others, longest, partial, precision, known_grams)
        others = []
    for mode in (*others, longest):
        terms = state.row_priors[mode].shared_terms(state.lam)
        if known_grams is None and terms is not None:
            state = _updated_in_runs(observations, state, mode, weighing, precision, terms)
        else:
            known = None if known_grams is None else known_grams(state.factors, mode)
            state = updated_factor(
                state, mode, *row_statistics(observations, state.factors, mode, weighing, known), precision
            )
    return state


def _updated_in_runs(
    observations: Observations,
    state: State,
    mode: int,
    weighing: Weighing,
    precision: float,
    terms: tuple[Array, Array],
) -> State:
    """U1 for one mode, in ranges of rows, which limits the number of (R, R) matrices in memory."""
    shapes, add = _row_sums(state.factors, mode, weighing, True)
    solve = partial(_solved, precision, terms)
    mean, cov, log_det = (np.empty(shape) for shape in (*shapes, shapes[0][:1]))
    for run, found in add_up_runs(observations, mode, shapes, add, solve):
        mean[run], cov[run], log_det[run] = found
    rows = _with_log_det(mean, cov, log_det)
    return state.with_factor(mode, rows, state.row_priors[mode].learnt(rows, state.lam))


def _solved(precision: float, terms: tuple[Array, Array], sums: Sums) -> Sums:
    """U1 for some rows, from their products and packed Grams: means, packed covariances, ln|cov|.

    ``terms`` are the precision and linear term of their prior.
    """
    (products, packed), (own_precision, own_linear) = sums, terms
    matrices = unpack_symmetric(precision * packed, own_linear.size) + own_precision
    mean, cov, log_det = kernels.solve_rows(matrices, precision * products + own_linear)
    return mean, pack_symmetric(cov), log_det


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
    precision : of an entry of weight one
    terms : precision and linear term of the prior of the first mode's rows, which must be the same for all
    known_grams : row Grams that do not depend on the data; None where they do
    dtype : of the numbers per entry
    row_weights : (I_0,) factors, where the Grams of the first mode are multiples of a common one
    room : output array for the rows of the first mode, for blocks in memory; None where rows are returned
    """

    state: State
    modes: tuple[int, ...]
    precision: float
    terms: tuple[Array, Array]
    known_grams: KnownGrams | None
    dtype: np.dtype[np.floating[Any]]
    row_weights: Array | None = None
    room: Rows | None = None

    @staticmethod
    def fits(observations: Observations, rank: int, with_grams: bool) -> bool:
        """Whether the sums over the first mode are small enough to keep."""
        return rank > 0 and _partial_fits(observations, rank, 0, with_grams)

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
            return Spectrum.of(self.precision * complete_gram(self.state.factors, 0)[0], self.terms[0])
        return None

    @cached_property
    def _first_grams(self) -> Array:
        """Row Grams of the first mode, (I_0, R, R), or (1, R, R) where all rows share one."""
        if self.known_grams is None:
            raise TypeError("these Grams need the data")
        return self.known_grams(self.state.factors, 0)

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
        _, cov, log_det = kernels.solve_rows(self.precision * grams + self.terms[0], nothing)
        return pack_symmetric(cov), log_det

    def zeros(self) -> Sums:
        """Zero sums over the first mode: of targets times its means, and of weights times its second moments."""
        rank, lengths = self.state.rank, [rows.n_rows for rows in self.state.factors[1:]]
        products = np.zeros((*lengths, rank))
        return (products,) if self.known_grams else (products, np.zeros((*lengths, rank * (rank + 1) // 2)))

    def look(self, sums: Sums, block: Block, weights: Array | None, targets: Array) -> Rows | None:
        """The block's rows of the first mode, unless stored in ``room``, and its share in the sums."""
        products, block = np.zeros((block.n_rows, self.state.rank)), kernels.listed(block)
        kernels.contract(block, targets, self._means, 0, products)
        own = kernels.listed(replace(block, rows=slice(0, block.n_rows)))
        linear = self.precision * products + self.terms[1]
        if self.known_grams is not None:
            packed, log_det = self._covariances(block.rows)
            cov = unpack_symmetric(packed, self.state.rank)
            mean = linear @ cov[0] if len(cov) == 1 else np.einsum("irs,is->ir", cov, linear)
        else:
            gram_sums = np.zeros((block.n_rows, self._moments[0].shape[1]))
            kernels.contract(block, weights, self._moments, 0, gram_sums)
            precision = self.precision * unpack_symmetric(gram_sums, self.state.rank) + self.terms[0]
            mean, cov, log_det = kernels.solve_rows(precision, linear)
            rows = RowGaussians(mean, cov)
            packed = rows.cov_packed
            kernels.contract_one(own, weights, rows.second_moment_packed, 0, sums[1])
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
            self.precision * cov,
            self.terms[1] / self.precision,
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
        first = _with_log_det(mean, cov, log_det)
        state = self.state.with_factor(0, first, self.state.row_priors[0].learnt(first, self.state.lam))
        return _update_from_partial(state, [k for k in self.modes if k], 0, sums, self.precision, self.known_grams)

    @property
    def _shares_covariance(self) -> bool:
        return self.known_grams is not None and self.row_weights is None and len(self._first_grams) == 1


def _partial_fits(observations: Observations, rank: int, longest: int, with_grams: bool) -> bool:
    """Whether sums over the longest mode are small enough to keep."""
    if observations.coords is not None:
        return False
    n_columns = rank + (rank * (rank + 1) // 2 if with_grams else 0)
    n_bytes = 8 * n_columns * (observations.n_entries // observations.shape[longest])
    plan = observations.plan
    return n_bytes <= max(plan.partial_bytes, plan.partial_share * observations.bytes_at_once)


def _over_longest(observations: Observations, state: State, longest: int, weighing: Weighing, with_grams: bool) -> Sums:
    """Targets contracted with the longest mode's means, and weights with its second moments."""
    rows = state.factors[longest]

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract_one(own, targets, rows.mean, longest, sums[0])
        if with_grams:
            kernels.contract_one(own, weights, rows.second_moment_packed, longest, sums[1])

    lengths = [length for k, length in enumerate(observations.shape) if k != longest]
    shapes = [(*lengths, rows.rank), (*lengths, rows.cov_packed.shape[1])][: 1 + with_grams]
    return add_up_rows(observations, 0 if longest else 1, shapes, add)


def _update_from_partial(
    state: State, modes: list[int], done: int, partial: Sums, precision: float, known_grams: KnownGrams | None
) -> State:
    """U1 for the given modes from sums over one other mode."""
    for mode in modes:
        products = _from_partial(partial[0], state, attrgetter("mean"), mode, done)
        if known_grams is None:
            packed = _from_partial(partial[1], state, attrgetter("second_moment_packed"), mode, done)
            grams = unpack_symmetric(packed, state.rank)
        else:
            grams = known_grams(state.factors, mode)
        state = updated_factor(state, mode, grams, products, precision)
    return state


def _from_partial(
    partial: Array, state: State, matrix: Callable[[RowGaussians], Array], mode: int, longest: int
) -> Array:
    """The contraction for one mode from the sums over the longest mode, with one matrix per remaining mode."""
    kept = [k for k in range(len(state.factors)) if k != longest]
    for k in reversed(kept):
        if k != mode:
            partial = reduce_mode(partial, matrix(state.factors[k]), kept.index(k))
            kept.remove(k)
    return partial


def update_component_precisions(state: State) -> State:
    """U2 (16): q(λ_r) = Ga(c₀ + ½Σ_n I_n, d₀ + ½ Σ_n Σ_i E[a_ir²]), with squares counted by the row priors."""
    squares = [prior.squares(rows) for prior, rows in zip(state.row_priors, state.factors, strict=True)]
    n_rows = sum(n_counted for n_counted, _ in squares)
    power = np.sum([of_mode for _, of_mode in squares], axis=0)
    return replace(
        state,
        lam=Gamma(
            np.full(state.rank, state.prior.lam_concentration + 0.5 * n_rows),
            state.prior.lam_rate + 0.5 * power,
        ),
    )


def expected_square_sum(fit: Fit, outliers: MeanFieldOutliers | LocalModel) -> float:
    """Σ_m E[(y_m − x_m − s_m)²] (24): a sum of squared means, Var x and Var s, all positive."""
    if not isinstance(outliers, MeanFieldOutliers):
        return float(fit.residual @ fit.residual) + fit.variance_sum
    remainder = fit.residual - outliers.mean
    return float(remainder @ remainder) + fit.variance_sum + float(outliers.var.sum())


def update_noise(state: State, fit: Fit) -> State:
    """U5 (22)–(24): q(τ) = Ga(a₀^τ + M/2, b₀^τ + ½ Σ_m E[(y−x−s)²])."""
    square_sum = expected_square_sum(fit, state.outliers)
    return replace(
        state,
        tau=Gamma(
            np.asarray(state.prior.tau_concentration + 0.5 * fit.residual.size),
            np.asarray(state.prior.tau_rate + 0.5 * square_sum),
        ),
    )


def update_slice_noise(slices: SliceNoise, n_entries: Array, squares: Array, largest: float = math.inf) -> SliceNoise:
    """C14: q(ω_g) = Ga(a_t + ½M_g, a_t + ½ Σ_{m∈g} τ̄ w_m D_m), and a_t at the maximum of the bound.

    ``n_entries`` holds M_g and ``squares`` the sums of τ̄ w D over each slice, both (G,): as ln f is convex with slope
    −w/2, this cannot lower the bound for any local model. a_t solves ln a − ψ(a) = mean ω̄ − mean E[ln ω] − 1. ω̄ is
    limited to ``largest``.
    """
    concentration = slices.concentration + 0.5 * n_entries
    precision = Gamma(concentration, np.maximum(slices.concentration + 0.5 * squares, concentration / largest))
    gap = float(np.mean(precision.mean) - np.mean(precision.mean_log) - 1.0)
    return SliceNoise(slices.modes, precision, solve_concentration(max(gap, SMALLEST_GAP)))


def gain_of_slices(n_entries: Array, squares: Array) -> float:
    """max_a Σ_g ln ∫ Ga(ω | a, a) ω^{M_g/2} exp(−½(ω − 1) S_g) dω: the gain of noise that differs between slices.

    ``n_entries`` holds M_g and ``squares`` S_g = Σ τ̄ w D of each slice, both (G,).
    """
    half_n, half_s = 0.5 * n_entries, 0.5 * squares

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        shape = gammaln(a + half_n) - gammaln(a) - half_n * log_a
        return -float(np.sum(shape - (a + half_n) * np.log1p(half_s / a) + half_s))

    found = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(1e8)), method="bounded")
    return max(0.0, -float(found.fun))


def update_outliers(outliers: MeanFieldOutliers, residual: Array, noise_precision: float) -> MeanFieldOutliers:
    """U3 (19): q(s_m): σ²_m = 1/(γ̄_m + τ̄), s̄_m = τ̄ σ²_m (y_m − x̄_m)."""
    var = 1.0 / (outliers.gamma.mean + noise_precision)
    return replace(outliers, mean=noise_precision * var * residual, var=var)


def update_outlier_precisions(outliers: MeanFieldOutliers) -> MeanFieldOutliers:
    """U4 (21): q(γ_m) = Ga(a₀ + ½, b₀ + ½(s̄² + σ²))."""
    return replace(
        outliers,
        gamma=Gamma(
            np.asarray(outliers.concentration + 0.5),
            outliers.rate + 0.5 * (outliers.mean**2 + outliers.var),
        ),
    )


def learn_outlier_prior(outliers: MeanFieldOutliers) -> MeanFieldOutliers:
    """U6 (26): (a₀, b₀) that maximise the bound: ln a₀ − ψ(a₀) = ln(mean γ̄) − mean E[ln γ], b₀ = a₀ / mean γ̄."""
    mean_gamma = float(np.mean(outliers.gamma.mean))
    gap = max(float(np.log(mean_gamma) - np.mean(outliers.gamma.mean_log)), SMALLEST_GAP)
    concentration = solve_concentration(gap)
    return replace(outliers, concentration=concentration, rate=concentration / mean_gamma)


def solve_concentration(gap: float) -> float:
    """The a with ln a − ψ(a) = gap > 0: one root, bracketed by 1/(2·gap) < a < 1/gap."""
    if not np.isfinite(gap):
        raise FloatingPointError("a precision is not a finite number")
    if gap < 1e-4:  # here the first two terms 1/(2a) + 1/(12a²) of the difference are exact to rounding
        return float((6.0 + np.sqrt(36.0 + 48.0 * gap)) / (24.0 * gap))
    return float(brentq(lambda a: np.log(a) - digamma(a) - gap, 0.5 / gap, 1.0 / gap, xtol=1e-300, rtol=1e-14))


def negligible_components(state: State, n_observed: int) -> NDArray[np.bool_]:
    """R1: components whose total share ½ τ̄ M · (mean square of the rank-one term) is below ``PRUNE_NATS``."""
    share = 0.5 * float(state.tau.mean) * n_observed * component_amplitudes(state) ** 2
    return share < PRUNE_NATS


def entry_values(observations: Observations) -> Array:
    """The entry vector (M,) of the observed values in units of the data's scale."""
    return whole(observations, partial(scaled_values, observations))
