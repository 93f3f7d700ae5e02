"""Calibrated inference: sweeps with the local variables of the entries integrated out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.observations import Block, Observations
from brtf.data.passes import Field, Remembered, Sums, add_up, visit
from brtf.inference.bound import BoundTerms, calibrated_terms
from brtf.inference.entry_posterior import (
    EntryLaw,
    learnt_structure,
    relative_deviation,
    relative_precision,
    zero_sums,
)
from brtf.inference.judge import judge
from brtf.inference.noise_fit import (
    ROUGHLY,
    Histogram,
    NoisePrior,
    branch_step,
    global_step,
    joint_step,
    shared_rate,
    sided_step,
    worth,
)
from brtf.inference.updates import (
    KnownGrams,
    LastPacked,
    OnePass,
    Rows,
    Weighing,
    WeightsAndTargets,
    complete_gram,
    gain_of_slices,
    negligible_components,
    update_component_precisions,
    update_factors,
    update_slice_noise,
    variance_field,
    variance_sum,
)
from brtf.kernels.arguments import PassSums
from brtf.kernels.packed import pack_symmetric, packed_indices, unpack_symmetric
from brtf.kernels.reference import N_BINS, LocalPosteriors, khatri_rao, reduce_mode
from brtf.model.distributions import Gamma, RowGaussians, congruent
from brtf.model.local_models import LocalModel
from brtf.model.state import LARGEST_PRECISION, OutlierStructure, Sides, SliceNoise, State


@dataclass(frozen=True, eq=False)
class Problem:
    """The constants of a fit: the data, the order of the modes, and the form of the bound.

    ``collapsed`` is form 2, in which the outliers depend on the factors: entries are weighted, and the covariances
    reflect the weights. Form 1 completes the data instead; it is cheaper and looser. Values beyond ``limit`` are
    clipped, and ``largest_precision`` is the upper limit of the noise precision, both in units of the data's scale.
    """

    observations: Observations
    modes: tuple[int, ...]
    collapsed: bool
    limit: float = math.inf
    largest_precision: float = LARGEST_PRECISION
    slice_sizes: dict[tuple[int, ...], Array] = field(default_factory=dict)  # filled on demand
    packed: LastPacked = field(default_factory=LastPacked)  # of the factors last used

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """Type of per-entry numbers: complete data in single precision stay in single, and only sums are in double."""
        return self.observations.values.dtype if self.observations.layout == "complete" else np.dtype(np.float64)

    def values(self, block: Block) -> Array:
        """y of a block, in units of the data's scale, (m,)."""
        values = np.divide(block.values, self.dtype.type(self.observations.scale), dtype=self.dtype)
        return values if math.isinf(self.limit) else np.clip(values, -self.limit, self.limit)

    def n_entries(self, slices: SliceNoise) -> Array:
        """Observed entries of every slice, (G,)."""
        return self.n_entries_along(slices.modes)

    def n_entries_along(self, modes: tuple[int, ...]) -> Array:
        """Observed entries at every position along the given modes, (G,)."""
        if modes not in self.slice_sizes:
            n_slices = math.prod(self.observations.shape[mode] for mode in modes)

            def add(sums: Sums, block: Block) -> None:
                sums[0][...] += np.bincount(kernels.positions(block, modes), minlength=n_slices)

            (self.slice_sizes[modes],) = add_up(self.observations, lambda: (np.zeros(n_slices),), add)
        return self.slice_sizes[modes]


@dataclass(frozen=True, eq=False)
class Fit:
    """Residuals of a state's low-rank part and their variances, block by block.

    Attributes
    ----------
    residual : y − x̄
    variance : Var x in form 2; None in form 1, where only its sum is needed
    """

    residual: Field
    variance: Field | None

    @classmethod
    def of(cls, problem: Problem, factors: tuple[RowGaussians, ...]) -> Fit:
        """The fit of the given factors; for small data every block is computed once and cached."""
        observations = problem.observations

        def of_block(block: Block) -> Array:
            return problem.values(block) - kernels.low_rank_at(block, [rows.mean_as(problem.dtype) for rows in factors])

        residual = Remembered(observations, of_block)
        if not problem.collapsed or not factors[0].rank:
            return cls(residual, None)
        return cls(residual, Remembered(observations, variance_field(factors, problem.packed)))

    def at(self, block: Block) -> tuple[Array, Array | None]:
        """Residual and variance of a block's entries."""
        return self.residual(block), None if self.variance is None else self.variance(block)


@dataclass(frozen=True, eq=False)
class Point:
    """A state with everything derived from it: sums over the local posteriors of the entries, and the bound.

    Attributes
    ----------
    state, fit, terms
    deviations : histogram of ω̄D over the entries, D in units of the slice's noise
    slice_squares : (G,) Σ τ̄ w D over each slice; None where the noise is common
    slice_entries : (G,) entries of each slice that carry its noise, without replaced ones; None where it is common
    mean_weight : mean w
    structure_sums : sufficient statistics of the outlier structure; None without one
    local : local posteriors of a block's entries
    ahead : the state with all factors updated, if the pass was asked to compute it
    """

    state: State
    fit: Fit
    deviations: Histogram
    slice_squares: Array | None
    slice_entries: Array | None
    mean_weight: float
    structure_sums: Sums | None
    terms: BoundTerms
    local: Callable[[Block], LocalPosteriors]
    ahead: State | None

    @property
    def bound(self) -> float:
        return self.terms.total

    @property
    def rank(self) -> int:
        return self.state.rank


def evaluate(problem: Problem, state: State, *, ahead: bool = False) -> Point:
    """The point of a state; with ``ahead``, the next factors of large data are computed in the same pass."""
    return evaluate_at(problem, state, Fit.of(problem, state.factors), ahead=ahead)


def evaluate_at(problem: Problem, state: State, fit: Fit, *, ahead: bool = False) -> Point:
    """The point of a state whose low-rank part is already known: one pass over the data."""
    slices, structure, law = state.slices, state.structure, EntryLaw(state)
    local = Remembered(problem.observations, lambda block: law.posterior(block, problem.values(block), *fit.at(block)))
    update = _factor_update(problem, state) if ahead else None
    direct = update is not None and _solves_directly(problem, state, update)
    tau, n_structured = float(state.tau.mean), 0 if structure is None else len(zero_sums(structure))

    def look(sums: Sums, block: Block) -> tuple[float, Rows | None]:
        counts, totals, squares, replaced, others, *rest = sums
        own = PassSums(counts, totals, squares, replaced, tuple(rest[:n_structured]))
        if direct and update is not None:
            products = rest[n_structured].reshape(-1, state.rank)
            arguments = problem.observations.scale, tau, state.local_model.largest_weight
            solved, solved_rows = update.solve(block, *arguments, *law.of_rows(block), own._replace(products=products))
            others += solved.log_evidence, solved.weight_sum
            return solved.largest, solved_rows
        residual, variance = fit.at(block)
        values = problem.values(block)
        found = law.posterior(block, values, residual, variance, own)
        del variance  # frees an array over the entries, like the deletions below
        local.keep(block, found)
        others += found.log_evidence, found.weight_sum
        largest, weight = found.largest, found.weight
        if update is None:
            return largest, None
        del found
        weighed = _weighed(problem, state, block, values, residual, weight)
        del values, residual, weight
        return largest, update.look(tuple(rest[n_structured:]), block, *weighed)

    def zeros() -> Sums:
        counts, totals, squares, replaced, structured, _ = law.zeros()
        return counts, totals, squares, replaced, np.zeros(2), *structured, *(() if update is None else update.zeros())

    sums, looks = visit(problem.observations, zeros, look)
    counts, totals, squares, replaced, others, *rest = sums
    variance, extra = (0.0, np.zeros(squares.size)) if problem.collapsed else _variance_of_completed(problem, state)
    return Point(
        state,
        fit,
        Histogram.from_bins(counts, totals, max(largest for largest, _ in looks), variance, *_sides(structure, rest)),
        None if slices is None else squares / slices.mean + tau * state.local_model.largest_weight * extra,
        None if slices is None else problem.n_entries(slices) - replaced,
        float(others[1]) / problem.observations.n_observed,
        tuple(rest[:n_structured]) or None,
        calibrated_terms(
            state,
            problem.observations.n_observed,
            float(others[0]) - 0.5 * tau * state.local_model.largest_weight * variance,
            None if slices is None else problem.n_entries(slices),
        ),
        local,
        None if update is None else update.finish(tuple(rest[n_structured:]), [rows for _, rows in looks]),
    )


def _sides(structure: OutlierStructure | None, sums: Sequence[Array]) -> tuple[Array | None, tuple[float, float]]:
    """Counts of positive deviations for a histogram, and the log factors of the slab on either side."""
    if structure is None or structure.sides is None:
        return None, (0.0, 0.0)
    return sums[7], structure.sides.mean_logs


def deviation_histogram(
    problem: Problem, state: State, fit: Fit, penalty: float = 0.0, *, signed: bool = False
) -> Histogram:
    """The histogram of ω̄ D over all entries; if ``signed``, it also counts those above x̄."""

    def look(sums: Sums, block: Block) -> float:
        residual, variance = fit.at(block)
        deviation = relative_deviation(residual, variance, relative_precision(state, block))
        kernels.count_deviations(deviation, *sums[:2])
        if signed:
            kernels.count_deviations(deviation[residual >= 0.0], *sums[2:])
        return float(deviation.max(initial=0.0))

    n_sums = 4 if signed else 2
    sums, largest = visit(problem.observations, lambda: tuple(np.zeros(N_BINS) for _ in range(n_sums)), look)
    return Histogram.from_bins(sums[0], sums[1], max(largest), penalty, sums[2] if signed else None)


def _variance_of_completed(problem: Problem, state: State) -> tuple[float, Array]:
    """Form 1: Σ ω̄ Var x over all entries, and Σ Var x over those of each slice."""
    if state.slices is None:
        return variance_sum(problem.observations, state.factors), np.zeros(0)
    variances = slice_variances(problem, state, state.slices.modes)
    return float(state.slices.mean @ variances), variances


def slice_variances(problem: Problem, state: State, modes: tuple[int, ...]) -> Array:
    """Σ Var x over the observed entries of each slice, (G,); for a complete tensor from sums over the other modes."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    if problem.observations.layout != "complete":
        variance = variance_field(state.factors, problem.packed)

        def add(sums: Sums, block: Block) -> None:
            sums[0][...] += np.bincount(kernels.positions(block, modes), variance(block), n_slices)

        return add_up(problem.observations, lambda: (np.zeros(n_slices),), add)[0]
    upper = packed_indices(state.rank)
    spread, product = np.zeros((1, upper[0].size)), np.ones((1, upper[0].size))
    for rows in (rows for mode, rows in enumerate(state.factors) if mode not in modes):
        outer, cov = rows.gram[upper], rows.cov_sum[upper]
        spread, product = spread * (outer + cov) + product * cov, product * outer
    *others, last = (state.factors[mode] for mode in modes)
    for rows in others:
        cov = np.broadcast_to(rows.cov_packed, rows.outer_packed.shape)
        spread = khatri_rao([spread, rows.second_moment_packed]) + khatri_rao([product, cov])
        product = khatri_rao([product, rows.outer_packed])
    multiplicity = np.where(upper[0] == upper[1], 1.0, 2.0)
    of_cov = (multiplicity * (spread + product)) @ np.broadcast_to(last.cov_packed.T, (upper[0].size, last.n_rows))
    if len(spread) == 1:  # ãᵀ S ã avoids packed products of the means
        matrix = unpack_symmetric(spread[0], state.rank)
        return np.einsum("ir,ir->i", last.mean @ matrix, last.mean) + of_cov[0]
    return ((multiplicity * spread) @ last.outer_packed.T + of_cov).reshape(-1)


def slice_grams(slices: SliceNoise, factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """Row Grams of complete data weighted by ω̄, without access to the data; (I_n, R, R), or (1, R, R) if shared."""
    rank = factors[mode].rank
    upper = packed_indices(rank)
    sums = [(rows.gram + rows.cov_sum)[upper] for k, rows in enumerate(factors) if k not in (*slices.modes, mode)]
    shared = np.prod(sums, axis=0) if sums else np.ones(upper[0].size)
    relative = slices.mean
    if mode not in slices.modes and len(slices.modes) == 1:  # Σ ω̄ E[aaᵀ] avoids packed products of the means
        (rows,) = (factors[k] for k in slices.modes)
        of_cov = relative.sum() * rows.cov_packed[0] if rows.shared else relative @ rows.cov_packed
        outer = (relative[:, None] * rows.mean).T @ rows.mean
        return unpack_symmetric(shared * (outer[upper] + of_cov), rank)[None]
    weighted = relative.reshape(*(factors[k].n_rows for k in slices.modes), 1) * shared
    kept = list(slices.modes)
    for k in slices.modes:
        if k != mode:
            weighted = reduce_mode(weighted, factors[k].second_moment_packed, kept.index(k))
            kept.remove(k)
    return unpack_symmetric(weighted.reshape(-1, upper[0].size), rank)


def sweep(
    problem: Problem, point: Point, *, hold_precisions: bool = False, hold_noise: bool = False, ahead: bool = False
) -> Point:
    """One sweep: noise and outlier parameters jointly, then q(A⁽ⁿ⁾) for every mode, then λ."""
    state = point.state if hold_noise else learn_noise(problem, point)
    swept = _sweep_factors(problem, point, state, hold_precisions=hold_precisions, ahead=ahead)
    if hold_noise or judge(swept, point):
        return swept
    # the histogram is accurate to second order in its bins: reject parameters that lower the exact bound
    return _sweep_factors(problem, point, point.state, hold_precisions=hold_precisions, ahead=ahead)


def _sweep_factors(problem: Problem, point: Point, state: State, *, hold_precisions: bool, ahead: bool) -> Point:
    if point.ahead is not None:  # noise and factors were each updated given the other's old value
        state = replace(state, factors=point.ahead.factors, row_priors=point.ahead.row_priors)
    else:
        known = point.local if state is point.state else None
        state = update_all_factors(problem, state, point.fit, known)
    if not hold_precisions:
        state = update_component_precisions(balance(rotate(state)))
    return evaluate(problem, state, ahead=ahead)


def update_all_factors(
    problem: Problem, state: State, fit: Fit, local: Callable[[Block], LocalPosteriors] | None = None
) -> State:
    """C2: U1 for every mode, with the entries' weights (form 2) or the completed data (form 1)."""
    weigh, update = weighing(problem, state, fit, local), _factor_update(problem, state)
    if update is not None:
        sums, rows = visit(
            problem.observations, update.zeros, lambda sums, block: update.look(sums, block, *weigh(block))
        )
        return update.finish(sums, rows)
    return update_factors(
        problem.observations, state, problem.modes, weigh, _precision(problem, state), _known_grams(problem, state)
    )


def _factor_update(problem: Problem, state: State) -> OnePass | None:
    """The update of all factors in one pass, for large data whose layout permits it; None otherwise."""
    if problem.observations.is_small:
        return None  # little to save, and without it the order of the modes does not depend on storage
    known_grams, terms = _known_grams(problem, state), state.row_priors[0].shared_terms(state.lam)
    if terms is None or not OnePass.fits(problem.observations, state.rank, known_grams is None):
        return None
    row_weights, differ = None, known_grams is None
    if known_grams is not None and state.slices is not None:
        row_weights = state.slices.mean if state.slices.modes == (0,) else None
        differ = 0 in state.slices.modes
    room = None
    if differ and not problem.observations.in_chunks:
        n_rows, rank = state.factors[0].n_rows, state.rank
        room = np.empty((n_rows, rank)), np.empty((n_rows, rank * (rank + 1) // 2)), np.empty(n_rows)
    return OnePass(
        state, problem.modes, _precision(problem, state), terms, known_grams, problem.dtype, row_weights, room
    )


def _solves_directly(problem: Problem, state: State, update: OnePass) -> bool:
    """Whether blocks of complete data are solved in one pass: needs form 1 and no outliers shared between blocks."""
    apart = state.structure is None or 0 not in state.structure.modes
    known = update.known_grams is not None and not state.local_model.is_gaussian
    return known and apart and math.isinf(problem.limit)


def _completes(problem: Problem, state: State) -> bool:
    """Whether the data are completed (form 1), so that entries differ in weight only by the noise of their slices."""
    return not problem.collapsed or state.local_model.is_gaussian


def _precision(problem: Problem, state: State) -> float:
    return float(state.tau.mean) * (state.local_model.largest_weight if _completes(problem, state) else 1.0)


def _known_grams(problem: Problem, state: State) -> KnownGrams | None:
    """Row Grams that do not depend on the data."""
    if not _completes(problem, state) or problem.observations.layout != "complete":
        return None
    return complete_gram if state.slices is None else partial(slice_grams, state.slices)


def weighing(
    problem: Problem, state: State, fit: Fit, local: Callable[[Block], LocalPosteriors] | None = None
) -> Weighing:
    """Weights and targets of a block's entries, from their local posteriors if these are known."""

    law = EntryLaw(state)

    def found(block: Block) -> LocalPosteriors:
        return law.posterior(block, problem.values(block), *fit.at(block))

    def weigh(block: Block) -> WeightsAndTargets:
        weight = None if state.local_model.is_gaussian else (found if local is None else local)(block).weight
        return _weighed(problem, state, block, problem.values(block), fit.residual(block), weight)

    return Remembered(problem.observations, weigh)


def _weighed(
    problem: Problem, state: State, block: Block, targets: Array, residual: Array, local: Array | None
) -> WeightsAndTargets:
    """Weights and targets of a block's entries, given their values and the weights of their local posteriors."""
    weights = relative_precision(state, block)
    if local is not None and not state.local_model.is_gaussian:
        if _completes(problem, state):
            targets = kernels.completed(targets, residual, local, state.local_model.largest_weight)
        else:
            weights = local if weights is None else weights * local
    return weights, targets if weights is None else weights * targets


def balance(state: State) -> State:
    """C6: rescale every component to equal mean squares in all modes; the low-rank part is unchanged."""
    if state.rank == 0:
        return state
    squares = (prior.squares(rows) for prior, rows in zip(state.row_priors, state.factors, strict=True))
    mean_squares = np.array([power / n_counted for n_counted, power in squares])
    geometric = np.exp(np.mean(np.log(mean_squares), axis=0))
    ratios = np.sqrt(geometric / mean_squares)
    factors = []
    for rows, ratio in zip(state.factors, ratios, strict=True):
        scaled = RowGaussians(rows.mean * ratio, rows.cov_packed * pack_symmetric(np.outer(ratio, ratio)))
        scaled.__dict__["log_det_cov"] = rows.log_det_cov + 2.0 * np.log(ratio).sum()
        factors.append(scaled)
    row_priors = tuple(prior.rescaled(ratio) for prior, ratio in zip(state.row_priors, ratios, strict=True))
    return replace(state, factors=tuple(factors), row_priors=row_priors)


def rotate(state: State) -> State:
    """C22: rotate the components of a matrix so that both modes' second moments are diagonal, if the bound rises.

    For any T the rows Tᵀa and T⁻¹b have the same products: the low-rank part and its distribution are unchanged, and
    the bound changes by −½(I + J) Σ_r Δ ln(power of component r) + (I − J) ln|T|, with λ updated. Sweeps converge there
    too, but slowly, as the bound is flat along the rotation.
    """
    if len(state.factors) != 2 or state.rank < 2 or not all(prior.rotates for prior in state.row_priors):
        return state
    first, second = state.factors
    moments = [rows.gram + rows.cov_sum for rows in (first, second)]
    values, vectors = np.linalg.eigh(moments[0])
    if not values[0] > 1e-12 * values[-1]:
        return state
    root = vectors * np.sqrt(values)
    strengths, turned = np.linalg.eigh(root.T @ moments[1] @ root)
    if not strengths[0] > 1e-24 * strengths[-1]:
        return state
    turn = (vectors / np.sqrt(values)) @ turned * strengths**0.25 * (first.n_rows / second.n_rows) ** 0.25
    back = np.linalg.inv(turn)
    before = np.diag(moments[0]) + np.diag(moments[1])
    after = np.einsum("sr,st,tr->r", turn, moments[0], turn) + np.einsum("rs,st,rt->r", back, moments[1], back)
    log_det = float(np.linalg.slogdet(turn)[1])
    gain = (first.n_rows - second.n_rows) * log_det
    gain -= 0.5 * (first.n_rows + second.n_rows) * float(np.sum(np.log(after)) - np.sum(np.log(before)))
    if not gain > 0:
        return state
    factors = []
    for rows, matrix, sign in ((first, turn, 1.0), (second, back.T, -1.0)):
        rotated = RowGaussians(rows.mean @ matrix, congruent(rows.cov_packed, matrix))
        rotated.__dict__["log_det_cov"] = rows.log_det_cov + 2.0 * sign * log_det
        factors.append(rotated)
    return replace(state, factors=tuple(factors))


def noise_prior(state: State) -> NoisePrior:
    """The prior of τ, with the largest τ̄ for which no slice's τ̄ω̄ exceeds the limit."""
    steadiest = 1.0 if state.slices is None else float(state.slices.mean.max())
    return NoisePrior(state.prior.tau_concentration, state.prior.tau_rate, state.prior.largest_precision / steadiest)


def learn_noise(problem: Problem, point: Point, *, max_steps: int = 6) -> State:
    """Learn the noise of the slices, then τ and the local model's parameters jointly."""
    state, deviations = point.state, point.deviations
    if state.slices is not None and point.slice_squares is not None and point.slice_entries is not None:
        largest = state.prior.largest_precision / float(state.tau.mean)
        slices = update_slice_noise(state.slices, point.slice_entries, point.slice_squares, largest)
        state = _with_slices(state, slices)
        if state.structure is None:
            variance = 0.0 if problem.collapsed else _variance_of_completed(problem, state)[0]
            deviations = deviation_histogram(problem, state, point.fit, variance)
        else:  # responsibilities depend on the noise of the slices
            point = evaluate_at(problem, state, point.fit)
            deviations = point.deviations
    n_observed = problem.observations.n_observed
    if state.structure is not None and point.structure_sums is not None:
        if not state.structure.one_by_one:
            return _learn_structured(problem, state, point.structure_sums, deviations, max_steps)
        state, deviations = _with_sides(state, point.structure_sums, deviations)
    tau, model, _ = joint_step(
        float(state.tau.mean), state.local_model, deviations, noise_prior(state), max_steps=max_steps
    )
    return with_noise(state, tau, model, n_observed)


def _learn_structured(problem: Problem, state: State, sums: Sums, deviations: Histogram, max_steps: int) -> State:
    """Learn noise and outlier parameters given the responsibilities, then the structure's own parameters."""
    model, structure = state.local_model, state.structure
    if structure is None:
        raise TypeError("The state has no structure of outliers to learn.")
    counts, totals, outlying_counts, outlying_totals = sums[:4]
    largest = float(deviations.deviation[-1])
    regular = Histogram.from_shares(counts, totals, largest, deviations.penalty)
    replaced = structure.law is not None
    outlying = None if replaced else Histogram.from_shares(outlying_counts, outlying_totals, largest, 0.0)
    n_counted = float(counts.sum()) if replaced else problem.observations.n_observed
    tau, model = branch_step(
        float(state.tau.mean), model, regular, outlying, noise_prior(state), n_counted, max_steps=max_steps
    )
    channels = structure.n_channels
    rate = shared_rate(channels * float(sums[6][0]), channels * float(sums[6][1]))
    sizes = None if structure.rates is None else problem.n_entries_along(structure.rates.modes)
    state = with_noise(state, tau, replace(model, probability=rate), n_counted)
    return replace(state, structure=learnt_structure(structure, sums, sizes))


def _with_sides(state: State, sums: Sums, deviations: Histogram) -> tuple[State, Histogram]:
    """The state of a point with its outliers' sides learnt, and the deviations for that state."""
    if state.structure is None or state.structure.sides is None:
        return state, deviations
    structure = learnt_structure(state.structure, sums, None)
    _, log_sides = _sides(structure, sums)
    return replace(state, structure=structure), replace(deviations, log_sides=log_sides)


def _with_slices(state: State, slices: SliceNoise) -> State:
    """The state with other noise of the slices; only the product τω is identified, so the mean of ω is set to one."""
    mean = float(np.mean(slices.mean))
    relative = Gamma(slices.precision.concentration, slices.precision.rate * mean)
    common = Gamma(state.tau.concentration, state.tau.rate / mean)
    return replace(state, slices=replace(slices, precision=relative), tau=common)


def slice_noise(problem: Problem, state: State, modes: tuple[int, ...]) -> State:
    """The state with noise that may differ along the given modes; initially all slices are equal."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    alike = Gamma(np.full(n_slices, 10.0), np.full(n_slices, 10.0))
    return replace(state, slices=SliceNoise(modes, alike, 10.0))


def promised_by_slices(problem: Problem, point: Point, candidates: Sequence[tuple[int, ...]]) -> list[float]:
    """A lower bound of the gain of noise that differs along each set of modes, all else as in the point.

    As ln f is convex with slope −w/2, the bound rises by at least max_a Σ_g [ln Γ(a + ½M_g) − ln Γ(a) + a ln a −
    (a + ½M_g) ln(a + ½S_g) + ½S_g] with S_g = Σ_{m∈g} τ̄ w D. It is zero as a → ∞, where all slices are alike, and
    exact without outliers. One pass.
    """
    sizes = [math.prod(problem.observations.shape[mode] for mode in modes) for modes in candidates]

    def add(sums: Sums, block: Block) -> None:
        found = point.local(block)
        squares = found.rho * found.weight
        for total, modes in zip(sums, candidates, strict=True):
            total += np.bincount(kernels.positions(block, modes), squares, total.size)

    squares = add_up(problem.observations, lambda: tuple(np.zeros(size) for size in sizes), add)
    if not problem.collapsed:
        weight = float(point.state.tau.mean) * point.state.local_model.largest_weight
        squares = tuple(
            total + weight * slice_variances(problem, point.state, modes)
            for total, modes in zip(squares, candidates, strict=True)
        )
    return [gain_of_slices(problem.n_entries_along(m), s) for m, s in zip(candidates, squares, strict=True)]


def learn_noise_globally(problem: Problem, point: Point, kind: type[LocalModel] | None = None) -> State:
    """The global step C12 for the entries of a point; its current parameters are among the starts."""
    state, deviations = point.state, point.deviations
    present, structure = state.local_model, state.structure
    if present.is_gaussian or (structure is not None and not structure.one_by_one):
        return learn_noise(problem, point, max_steps=40)
    if point.structure_sums is not None:
        state, deviations = _with_sides(state, point.structure_sums, deviations)
    kind = type(present) if kind is None else kind
    here = [(float(state.tau.mean), present)] if type(present) is kind else []
    tau, model, _ = global_step(kind, deviations, noise_prior(state), here)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_local_model(problem: Problem, point: Point, kind: type[LocalModel]) -> State:
    """The state of a point with another local model, fitted from the current noise level."""
    state, tau = point.state, float(point.state.tau.mean)
    start = tau, kind.resembling(state.local_model)
    tau, model, _ = global_step(kind, point.deviations, noise_prior(state), [start], [tau], little=ROUGHLY)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_sides(problem: Problem, point: Point) -> tuple[State, float]:
    """The state of a point with one-sided outliers, or with symmetric ones if they are one-sided already.

    Also returns the gain of the bound, ignoring outlier rates that differ between slices.
    """
    state, prior, tau = point.state, noise_prior(point.state), float(point.state.tau.mean)
    structure, model = state.structure or OutlierStructure(), state.local_model
    if not model.has_outliers:
        raise TypeError("The outliers' sides need a local model with outliers.")
    sides: Sides | None = None
    if structure.sides is None:
        signed = deviation_histogram(problem, state, point.fit, point.deviations.penalty, signed=True)
        before = worth(tau, model, signed, prior)
        tau, model, sides, value = sided_step(tau, model, signed, prior)
    else:
        before = worth(tau, model, point.deviations, prior) - structure.sides.kl
        tau, model, value = joint_step(tau, model, replace(point.deviations, positive=None), prior)
    changed = replace(structure, sides=sides)
    state = with_noise(state, tau, model, problem.observations.n_observed)
    return replace(state, structure=None if changed.is_plain else changed), value - before


def noise_worth(point: Point, state: State) -> float:
    """The part of the bound due to noise and outlier parameters of a state, at the entries of a point."""
    return worth(float(state.tau.mean), state.local_model, point.deviations, noise_prior(state))


def with_noise(state: State, tau: float, model: LocalModel, n_observed: float) -> State:
    """The state with q(τ) of mean ``tau``, limited to the largest precision, and the given local model."""
    concentration = state.prior.tau_concentration + 0.5 * n_observed
    tau = min(tau, noise_prior(state).largest)
    return replace(state, tau=Gamma(np.asarray(concentration), np.asarray(concentration / tau)), outliers=model)


def typical_residual(problem: Problem, state: State, residual: Field) -> float:
    """1.4826 median|r|, the robust standard deviation of the residuals in units of their slices' noise."""
    return 1.4826 * math.sqrt(deviation_histogram(problem, state, Fit(residual, None)).quantile(0.5))


def retemper(problem: Problem, state: State) -> State:
    """C13: lower τ̄ to the level of the residuals after a structural change, keeping the scale of the outliers.

    Otherwise every entry of an accurate fit would become an outlier when a component is added or removed.
    """
    typical = typical_residual(problem, state, Fit.of(replace(problem, collapsed=False), state.factors).residual)
    tau = float(state.tau.mean)
    lower = min(tau, 1.0 / typical**2) if typical > 0 else tau
    return with_noise(state, lower, state.local_model.rescaled(lower / tau), problem.observations.n_observed)


def settle_noise(problem: Problem, point: Point) -> Point:
    """Settle the noise of slices or the outlier structure at fixed factors."""
    for _ in range(10):
        point = evaluate_at(problem, learn_noise(problem, point), point.fit)
    return point


def prune(problem: Problem, point: Point) -> Point:
    """The point without negligible components, if the bound does not fall."""
    negligible = negligible_components(point.state, problem.observations.n_observed)
    if not negligible.any():
        return point
    pruned = evaluate(problem, point.state.select_components(~negligible))
    return pruned if judge(pruned, point) else point
