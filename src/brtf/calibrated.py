"""Calibrated inference: sweeps in which an entry has no state of its own, judged by the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.bound import BoundTerms, calibrated_terms
from brtf.calibration import (
    LARGEST_PRECISION,
    Histogram,
    NoisePrior,
    branch_step,
    global_step,
    joint_step,
    shared_rate,
)
from brtf.distributions import Array, Centre, Gamma, RowGaussians, packed_indices, unpack_symmetric
from brtf.kernels.reference import N_BINS, khatri_rao, reduce_mode
from brtf.local import SlabModel
from brtf.model import SliceNoise, State
from brtf.observations import Block, Observations, block_positions
from brtf.passes import Field, Sums, add_up, remembered
from brtf.posteriors import add_sums, block_posterior, learnt_structure, relative_precision, zero_sums
from brtf.updates import (
    Weighing,
    WeightsAndTargets,
    complete_gram,
    scaled_values,
    update_component_precisions,
    update_factors,
    update_slice_noise,
    variance_field,
    variance_sum,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """What does not change during a fit: the data, the order of modes, and the form of the bound.

    ``collapsed`` is form 2, in which the outliers depend on the factors: entries are weighted and the covariances
    know what was an outlier. Form 1 completes the data instead; it is cheaper and looser. Values beyond ``limit``, in
    units of the data's scale, are clipped.
    """

    observations: Observations
    modes: tuple[int, ...]
    collapsed: bool
    limit: float = math.inf
    slice_sizes: dict[tuple[int, ...], Array] = field(default_factory=dict)  # filled when asked for

    def values(self, block: Block) -> Array:
        """y of a block, in units of the data's scale, (m,)."""
        values = scaled_values(self.observations, block)
        return values if math.isinf(self.limit) else np.clip(values, -self.limit, self.limit)

    def n_entries(self, slices: SliceNoise) -> Array:
        """Observed entries of every slice, (G,)."""
        return self.n_entries_along(slices.modes)

    def n_entries_along(self, modes: tuple[int, ...]) -> Array:
        """Observed entries at every position along the given modes, (G,)."""
        if modes not in self.slice_sizes:
            n_slices = math.prod(self.observations.shape[mode] for mode in modes)

            def add(sums: Sums, block: Block) -> None:
                sums[0][...] += np.bincount(block_positions(block, modes), minlength=n_slices)

            (self.slice_sizes[modes],) = add_up(self.observations, lambda: (np.zeros(n_slices),), add)
        return self.slice_sizes[modes]


@dataclass(frozen=True, eq=False)
class Fit:
    """What a state's low-rank part leaves at the entries, block by block.

    Attributes
    ----------
    residual : y − x̄
    deviation : D, which is E[(y−x)²] in form 2 and (y−x̄)² in form 1
    """

    residual: Field
    deviation: Field

    @classmethod
    def of(cls, problem: Problem, factors: tuple[RowGaussians, ...]) -> Fit:
        """The fit of the given factors; for small data each block is computed once."""
        observations, means = problem.observations, [rows.mean for rows in factors]
        residual = remembered(observations, lambda b: problem.values(b) - kernels.low_rank_at(b, means))
        if not problem.collapsed or not means[0].shape[1]:
            return cls(residual, lambda block: residual(block) ** 2)
        variance = variance_field(factors)
        return cls(residual, remembered(observations, lambda block: residual(block) ** 2 + variance(block)))


@dataclass(frozen=True, eq=False)
class Point:
    """A state with everything that follows from it: sums over the entries' local posteriors, and the bound.

    Attributes
    ----------
    state, fit, terms
    deviations : histogram of ω̄D over the entries, D in units of the slice's noise
    slice_squares : (G,) Σ τ̄ w D over each slice; None where the noise is common
    slice_entries : (G,) entries of each slice that carry its noise, all but those replaced; None where it is common
    mean_weight : mean w
    structure_sums : what the outliers' structure is learnt from; None without one
    """

    state: State
    fit: Fit
    deviations: Histogram
    slice_squares: Array | None
    slice_entries: Array | None
    mean_weight: float
    structure_sums: Sums | None
    terms: BoundTerms

    @property
    def bound(self) -> float:
        return self.terms.total

    @property
    def rank(self) -> int:
        return self.state.rank


def evaluate(problem: Problem, state: State) -> Point:
    """The point of a state."""
    return evaluate_at(problem, state, Fit.of(problem, state.factors))


def evaluate_at(problem: Problem, state: State, fit: Fit) -> Point:
    """The point of a state whose low-rank part is known already: one pass over the data."""
    tau, slices, structure = float(state.tau.mean), state.slices, state.structure
    n_slices = 0 if slices is None else slices.precision.rate.size
    largest: list[float] = []

    def add(sums: Sums, block: Block) -> None:
        counts, totals, squares, replaced, others, *structured = sums
        positions = None if slices is None else block_positions(block, slices.modes)
        deviation = _relative(fit.deviation(block), slices, positions)
        kernels.count_deviations(deviation, counts, totals)
        largest.append(float(deviation.max(initial=0.0)))
        values = problem.values(block)
        local = block_posterior(state, block, values, tau * deviation)
        others += local.log_evidence, local.weight.sum()
        if positions is not None:
            squares += np.bincount(positions, tau * deviation * local.weight, n_slices)
            if structure is not None and structure.law is not None:
                replaced += np.bincount(positions, local.outlier, n_slices)
        if structure is not None and local.outlier is not None:
            relative = relative_precision(state, block)
            standardised = np.sqrt(tau if relative is None else tau * relative) * fit.residual(block)
            add_sums(tuple(structured), structure, block, values, deviation, local.outlier, standardised)

    def zeros() -> Sums:
        plain = np.zeros(N_BINS), np.zeros(N_BINS), np.zeros(n_slices), np.zeros(n_slices), np.zeros(2)
        return plain if structure is None else (*plain, *zero_sums(structure))

    counts, totals, squares, replaced, others, *structured = add_up(problem.observations, zeros, add)
    variance, extra = 0.0, np.zeros(n_slices)
    if not problem.collapsed:
        variance, extra = _variance_of_completed(problem, state)
    return Point(
        state,
        fit,
        Histogram.from_bins(counts, totals, max(largest), variance),
        None if slices is None else squares / slices.precision.mean + tau * largest_weight(state) * extra,
        None if slices is None else problem.n_entries(slices) - replaced,
        float(others[1]) / problem.observations.n_observed,
        tuple(structured) or None,
        calibrated_terms(
            state,
            problem.observations.n_observed,
            float(others[0]) - 0.5 * tau * largest_weight(state) * variance,
            None if slices is None else problem.n_entries(slices),
        ),
    )


def largest_weight(state: State) -> float:
    """w_max of the state's local model."""
    return state.outliers.largest_weight if isinstance(state.outliers, SlabModel) else 1.0


def _relative(deviation: Array, slices: SliceNoise | None, positions: NDArray[np.intp] | None) -> Array:
    """ω̄ D (m,): the expected squared deviation of every entry, in units of its slice's noise."""
    return deviation if slices is None or positions is None else slices.precision.mean[positions] * deviation


def deviation_histogram(problem: Problem, state: State, deviation: Field, penalty: float = 0.0) -> Histogram:
    """The histogram of ω̄ D over all entries."""
    largest: list[float] = []

    def add(sums: Sums, block: Block) -> None:
        relative = relative_precision(state, block)
        values = deviation(block) if relative is None else relative * deviation(block)
        kernels.count_deviations(values, *sums)
        largest.append(float(values.max(initial=0.0)))

    counts, totals = add_up(problem.observations, lambda: (np.zeros(N_BINS), np.zeros(N_BINS)), add)
    return Histogram.from_bins(counts, totals, max(largest), penalty)


def _variance_of_completed(problem: Problem, state: State) -> tuple[float, Array]:
    """Form 1: Σ ω̄ Var x over all entries, and Σ Var x over those of each slice."""
    if state.slices is None:
        return variance_sum(problem.observations, state.factors), np.zeros(0)
    variances = slice_variances(problem, state, state.slices)
    return float(state.slices.precision.mean @ variances), variances


def slice_variances(problem: Problem, state: State, slices: SliceNoise) -> Array:
    """Σ Var x over the observed entries of each slice, (G,); of a complete tensor from sums over the other modes."""
    n_slices = slices.precision.rate.size
    if problem.observations.layout != "complete":
        variance = variance_field(state.factors)

        def add(sums: Sums, block: Block) -> None:
            sums[0][...] += np.bincount(block_positions(block, slices.modes), variance(block), n_slices)

        return add_up(problem.observations, lambda: (np.zeros(n_slices),), add)[0]
    upper = packed_indices(state.rank)
    spread, product = np.zeros((1, upper[0].size)), np.ones((1, upper[0].size))
    for rows in (rows for mode, rows in enumerate(state.factors) if mode not in slices.modes):
        outer, cov = rows.gram[upper], rows.cov_sum[upper]
        spread, product = spread * (outer + cov) + product * cov, product * outer
    for rows in (state.factors[mode] for mode in slices.modes):
        cov = np.broadcast_to(rows.cov_packed, rows.outer_packed.shape)
        spread = khatri_rao([spread, rows.second_moment_packed]) + khatri_rao([product, cov])
        product = khatri_rao([product, rows.outer_packed])
    return spread @ np.where(upper[0] == upper[1], 1.0, 2.0)


def slice_grams(slices: SliceNoise, factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """Row Grams of complete data weighted by ω̄, without a look at the data; (I_n, R, R), or (1, R, R) if shared."""
    rank = factors[mode].rank
    upper = packed_indices(rank)
    sums = [(rows.gram + rows.cov_sum)[upper] for k, rows in enumerate(factors) if k not in (*slices.modes, mode)]
    shared = np.prod(sums, axis=0) if sums else np.ones(upper[0].size)
    lengths = [factors[k].n_rows for k in slices.modes]
    weighted = slices.precision.mean.reshape(*lengths, 1) * shared
    kept = list(slices.modes)
    for k in slices.modes:
        if k != mode:
            weighted = reduce_mode(weighted, factors[k].second_moment_packed, kept.index(k))
            kept.remove(k)
    return unpack_symmetric(weighted.reshape(-1, upper[0].size), rank)


def sweep(problem: Problem, point: Point, *, hold_precisions: bool = False, hold_noise: bool = False) -> Point:
    """One pass: noise and outlier numbers together, then q(A⁽ⁿ⁾) for every mode, and λ."""
    state = point.state if hold_noise else learn_noise(problem, point)
    swept = _sweep_factors(problem, point, state, hold_precisions=hold_precisions)
    if hold_noise or swept.bound >= point.bound:
        return swept
    # the histogram is right to second order in its bins: numbers that lower the exact bound are not taken
    return _sweep_factors(problem, point, point.state, hold_precisions=hold_precisions)


def _sweep_factors(problem: Problem, point: Point, state: State, *, hold_precisions: bool) -> Point:
    state = update_all_factors(problem, state, point.fit)
    return evaluate(problem, state if hold_precisions else update_component_precisions(balance(state)))


def update_all_factors(problem: Problem, state: State, fit: Fit) -> State:
    """C2: U1 for every mode, with the entries' weights (form 2) or the completed data (form 1)."""
    observations, slices = problem.observations, state.slices
    completed = not problem.collapsed or not isinstance(state.outliers, SlabModel)
    known_grams = None
    if completed and observations.layout == "complete":
        known_grams = complete_gram if slices is None else partial(slice_grams, slices)
    precision = float(state.tau.mean) * (largest_weight(state) if completed else 1.0)
    weigh = weighing(problem, state, fit, completed=completed)
    return update_factors(observations, state, problem.modes, weigh, precision, known_grams)


def weighing(problem: Problem, state: State, fit: Fit, *, completed: bool = False) -> Weighing:
    """Weights and targets of a block's entries."""
    tau, most = float(state.tau.mean), largest_weight(state)

    def weigh(block: Block) -> WeightsAndTargets:
        weights, targets = relative_precision(state, block), problem.values(block)
        if state.outliers is not None:
            deviation = fit.deviation(block) if weights is None else weights * fit.deviation(block)
            local = block_posterior(state, block, targets, tau * deviation).weight
            if completed:
                targets = targets - (1.0 - local / most) * fit.residual(block)
            else:
                weights = local if weights is None else weights * local
        return weights, targets if weights is None else weights * targets

    return remembered(problem.observations, weigh)


def balance(state: State) -> State:
    """C6: rescale every component over the modes to equal mean squares; the low-rank part stays as it is."""
    if state.rank == 0:
        return state
    mean_squares = np.array([rows.component_power / rows.n_counted for rows in state.factors])
    geometric = np.exp(np.mean(np.log(mean_squares), axis=0))
    ratios = np.sqrt(geometric / mean_squares)
    factors = []
    for rows, ratio in zip(state.factors, ratios, strict=True):
        centre = None if rows.centre is None else Centre(rows.centre.mean * ratio, rows.centre.var * ratio**2)
        scaled = RowGaussians(rows.mean * ratio, rows.cov * (ratio[:, None] * ratio[None, :]), centre)
        scaled.__dict__["log_det_cov"] = rows.log_det_cov + 2.0 * np.log(ratio).sum()
        factors.append(scaled)
    return replace(state, factors=tuple(factors))


def noise_prior(state: State) -> NoisePrior:
    return NoisePrior(state.prior.tau_concentration, state.prior.tau_rate)


def learn_noise(problem: Problem, point: Point, *, max_steps: int = 6) -> State:
    """The slices' noise, then the joint step for (τ, π, shape, ζ), or the closed form for τ without outliers."""
    state, deviations = point.state, point.deviations
    if state.slices is not None and point.slice_squares is not None and point.slice_entries is not None:
        state = _with_slices(state, update_slice_noise(state.slices, point.slice_entries, point.slice_squares))
        if state.structure is None:
            variance = 0.0 if problem.collapsed else _variance_of_completed(problem, state)[0]
            deviations = deviation_histogram(problem, state, point.fit.deviation, variance)
        else:  # which entries are outliers depends on the noise of their slices
            point = evaluate_at(problem, state, point.fit)
            deviations = point.deviations
    n_observed = problem.observations.n_observed
    if state.structure is not None and point.structure_sums is not None:
        return _learn_structured(problem, state, point.structure_sums, deviations, max_steps)
    if isinstance(state.outliers, SlabModel):
        tau, model, _ = joint_step(
            float(state.tau.mean), state.outliers, deviations, noise_prior(state), max_steps=max_steps
        )
        return with_noise(state, tau, model, n_observed)
    concentration = state.prior.tau_concentration + 0.5 * n_observed
    rate = state.prior.tau_rate + 0.5 * (float(deviations.count @ deviations.deviation) + deviations.penalty)
    return cap_precision(replace(state, tau=Gamma(np.asarray(concentration), np.asarray(rate))))


def _learn_structured(problem: Problem, state: State, sums: Sums, deviations: Histogram, max_steps: int) -> State:
    """Noise and outlier numbers given which entries are outliers, then the structure's own numbers."""
    model, structure = state.outliers, state.structure
    if not isinstance(model, SlabModel) or structure is None:
        raise TypeError("a structure of outliers needs a local model with outliers")
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


def _with_slices(state: State, slices: SliceNoise) -> State:
    """The state with other noise of the slices; only the product τω is in the data, so the mean of ω is put at one."""
    mean = float(np.mean(slices.precision.mean))
    relative = Gamma(slices.precision.concentration, slices.precision.rate * mean)
    common = Gamma(state.tau.concentration, state.tau.rate / mean)
    return replace(state, slices=replace(slices, precision=relative), tau=common)


def slice_noise(problem: Problem, state: State, modes: tuple[int, ...]) -> State:
    """The state with noise that may differ along the given modes, all slices alike to begin with."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    alike = Gamma(np.full(n_slices, 10.0), np.full(n_slices, 10.0))
    return replace(state, slices=SliceNoise(modes, alike, 10.0))


def learn_noise_globally(problem: Problem, point: Point, kind: type[SlabModel] | None = None) -> State:
    """The global step C12 for the entries of a point, its present numbers among the starts."""
    state = point.state
    if not isinstance(state.outliers, SlabModel) or state.structure is not None:
        return learn_noise(problem, point, max_steps=40)
    kind = type(state.outliers) if kind is None else kind
    here = [(float(state.tau.mean), state.outliers)] if type(state.outliers) is kind else []
    tau, model, _ = global_step(kind, point.deviations, noise_prior(state), here)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_noise(state: State, tau: float, model: SlabModel | None, n_observed: float) -> State:
    """The state with q(τ) of mean ``tau`` and the given outlier model."""
    concentration = state.prior.tau_concentration + 0.5 * n_observed
    return replace(state, tau=Gamma(np.asarray(concentration), np.asarray(concentration / tau)), outliers=model)


def cap_precision(state: State) -> State:
    """Hold τ̄ at the resolution of the data."""
    if float(state.tau.mean) <= LARGEST_PRECISION:
        return state
    return replace(state, tau=Gamma(state.tau.concentration, state.tau.concentration / LARGEST_PRECISION))


def typical_residual(problem: Problem, state: State, residual: Field) -> float:
    """1.4826 median|r|, the robust standard deviation of the residuals in units of their slices' noise."""
    return 1.4826 * math.sqrt(deviation_histogram(problem, state, lambda block: residual(block) ** 2).quantile(0.5))


def retemper(problem: Problem, state: State) -> State:
    """C13: lower τ̄ to what the residuals show after a structural change, the outliers' scale kept.

    Otherwise every entry of an accurate fit becomes an outlier the moment a component is added or removed.
    """
    typical = typical_residual(problem, state, Fit.of(replace(problem, collapsed=False), state.factors).residual)
    tau = float(state.tau.mean)
    lower = min(tau, 1.0 / typical**2) if typical > 0 else tau
    model = state.outliers.rescaled(lower / tau) if isinstance(state.outliers, SlabModel) else None
    return with_noise(state, lower, model, problem.observations.n_observed)
