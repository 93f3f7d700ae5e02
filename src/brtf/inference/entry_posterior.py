"""The local posteriors of a block's entries: responsibility, weight, and share in the bound.

For independent entries one table look-up is enough. Where outliers are shared between entries, replace the data, have
different rates or are one-sided, the two branches are looked up separately and combined here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, digamma, expit, logit

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.observations import Block, Observations, block_positions, distinct_columns, row_and_column_positions
from brtf.inference.noise_fit import Ascent, ascend
from brtf.kernels.arguments import Mixture, Positions
from brtf.kernels.reference import N_BINS
from brtf.model.evidence_table import tabulate, tabulate_branches
from brtf.model.local_models import LocalModel
from brtf.model.state import OutlierStructure, ReplacementLaw, Sides, SliceRates, State

PIECE = 2**13
"""Entries processed together where outliers have structure: a dozen temporary numbers per entry."""
NOWHERE = Positions(np.zeros(0, np.int64), np.zeros(0, np.int64))
"""Empty array of slices."""
CLIPPED = 3.0
"""Standard deviations at which residuals are clipped before their correlation is measured."""
LOG_RATE_PRIOR = (math.log(1e-6), math.log(1e8))
"""Range of ln α and ln β: from one outlier in a slice that makes all of it suspect, to rates that are equal."""
RATE_STEPS = 20
"""Most steps for α and β; from the values of the last sweep a few are enough."""
LAW_BINS = 256
"""Bins of the distribution of replaced values: the levels of an 8-bit image."""
LEAST_RANGE = 1e-3
"""Smallest range of replaced values in units of the data's scale: bins 400 times as wide as the smallest noise. Without
it constant data would all count as replaced, with unbounded density."""


@dataclass(frozen=True, eq=False)
class BlockPosterior:
    """The local posteriors of a block's entries.

    Attributes
    ----------
    log_evidence : their total share in the bound
    weight_sum : Σ w
    largest : the largest ω̄ D
    rho : (m,) ρ = τ̄ ω̄ D
    weight : (m,) w
    outlier : (m,) responsibility p; None unless requested
    """

    log_evidence: float
    weight_sum: float
    largest: float
    rho: Array
    weight: Array
    outlier: Array | None = None


def relative_precision(state: State, block: Block) -> Array | None:
    """ω̄ of every entry's slice, (m,); None where the noise is common."""
    slices = state.slices
    return None if slices is None else slices.mean[block_positions(block, slices.modes)]


def block_posterior(
    state: State,
    block: Block,
    values: Array,
    residual: Array,
    variance: Array | None,
    histogram: tuple[Array, Array] | None = None,
) -> BlockPosterior:
    """The local posteriors of entries with the given values, y − x̄, and Var x (None: zero), each (m,).

    If a histogram of ω̄ D is given, as counts and totals, the entries are added to it.
    """
    model, structure, tau = state.local_model, state.structure, float(state.tau.mean)
    if structure is not None and not model.has_outliers:
        raise TypeError("A state with a structure of outliers needs a local model with outliers.")
    counts, totals = (np.zeros(N_BINS), np.zeros(N_BINS)) if histogram is None else histogram
    relative = relative_precision(state, block)
    if structure is None and not model.is_gaussian:
        local = kernels.local_posteriors(tabulate(model), tau, residual, variance, relative, counts, totals)
        return BlockPosterior(local.log_evidence, local.weight_sum, local.largest, local.rho, local.weight)
    deviation = relative_deviation(residual, variance, relative)
    kernels.count_deviations(deviation, counts, totals)
    rho, largest = tau * deviation, float(deviation.max(initial=0.0))
    if structure is None:
        return BlockPosterior(-0.5 * float(rho.sum()), rho.size, largest, rho, np.ones(rho.size))
    log_evidence, weight, outlier = _structured(state, model, structure, block, values, rho, residual >= 0.0)
    return BlockPosterior(log_evidence, float(weight.sum()), largest, rho, weight, outlier)


def relative_deviation(residual: Array, variance: Array | None, relative: Array | None) -> Array:
    """ω̄ D (m,), D = (y − x̄)² + Var x: the expected squared deviation in units of the slice's noise."""
    deviation = np.square(residual, dtype=np.float64)
    if variance is not None:
        deviation += variance
    return deviation if relative is None else deviation * relative


def _structured(
    state: State,
    model: LocalModel,
    structure: OutlierStructure,
    block: Block,
    values: Array,
    rho: Array,
    positive: NDArray[np.bool_],
) -> tuple[float, Array, Array]:
    """C16: Σ ln f, w and p for entries with a structure: shared outliers, or one-sided ones (C23).

    Σ ln f of a group's branches is divided by κ, and w = (1 − p) w₀ + p w₁.
    """
    log_spike, spike_weight = kernels.evidence(tabulate_branches(model)[0], rho)
    log_rate, log_rest, log_slab, slab_weight = _outlying(state, model, structure, block, values, rho, positive)
    groups = shared_positions(structure, block)
    if groups is None:
        log_evidence, outlier = kernels.mix_branches(log_rest + log_spike, log_rate + log_slab)
        total = float(log_evidence.sum())
    else:
        channels = structure.n_channels
        together = [np.bincount(groups, branch) / channels for branch in (log_spike, log_slab)]
        occupied = np.bincount(groups) > 0
        log_evidence, outlier = kernels.mix_branches(together[0] + log_rest, together[1] + log_rate)
        outlier, total = outlier[groups], channels * float(log_evidence[occupied].sum())
    return total, (1.0 - outlier) * spike_weight + outlier * slab_weight, outlier


def _outlying(
    state: State,
    model: LocalModel,
    structure: OutlierStructure | None,
    block: Block,
    values: Array,
    rho: Array,
    positive: NDArray[np.bool_],
) -> tuple[Array | float, Array | float, Array, Array]:
    """ln π, ln(1 − π), and ln f and weight with an outlier."""
    if structure is not None and structure.law is not None:
        log_slab, slab_weight = _log_replaced(state, structure.law, block, values), np.zeros(rho.size)
    else:
        log_slab, slab_weight = kernels.evidence(tabulate_branches(model)[1], rho)
    if structure is None:
        return math.log(model.probability), math.log1p(-model.probability), log_slab, slab_weight
    if structure.sides is not None:
        log_slab = log_slab + np.where(positive, *structure.sides.mean_logs)
    return *_log_rates(model, structure, block), log_slab, slab_weight


def log_branches(
    state: State, block: Block, values: Array, rho: Array, positive: NDArray[np.bool_]
) -> tuple[Array | float, Array | float, Array]:
    """ln π and ln(1 − π) of the entries of a block, and their ln f with an outlier; −∞ where there are no outliers."""
    model = state.local_model
    if not model.has_outliers:
        return -np.inf, 0.0, np.full(rho.size, -np.inf)
    return _outlying(state, model, state.structure, block, values, rho, positive)[:3]


def mixture(state: State, model: LocalModel, structure: OutlierStructure) -> Callable[[Block], Mixture]:
    """The mixture of C16 and C23 for a pass over complete data whose outliers are shared within rows at most.

    Everything that does not depend on the block is computed once.
    """
    spike, slab = tabulate_branches(model)
    law, rates, sides, slices = structure.law, structure.rates, structure.sides, state.slices
    log_rates = (math.log(model.probability), math.log1p(-model.probability)) if rates is None else rates.mean_logs
    log_counted = np.zeros(1) if slices is None else slices.mean_log
    everywhere = Mixture(
        spike=spike,
        slab=slab,
        log_rates=np.reshape(log_rates, (2, -1)),
        at=NOWHERE,
        log_sides=np.zeros(2) if sides is None else np.array(sides.mean_logs),
        log_law=np.zeros(0) if law is None else np.log(law.density),
        law_range=np.zeros(2) if law is None else np.array([law.lowest, law.bins_per_unit]),
        log_counted=0.5 * (float(state.tau.mean_log) - math.log(2.0 * math.pi) + log_counted),
        groups=NOWHERE.columns,
        n_channels=structure.n_channels,
        clipped=CLIPPED,
    )

    def of_block(block: Block) -> Mixture:
        at = Positions(*row_and_column_positions(block, () if rates is None else rates.modes))
        if not structure.modes:
            return everywhere._replace(at=at)
        alone = [mode for mode in range(1, len(block.shape)) if mode not in structure.modes]
        return everywhere._replace(at=at, groups=row_and_column_positions(block, alone)[1])

    return of_block


def _log_replaced(state: State, law: ReplacementLaw, block: Block, values: Array) -> Array:
    """ln h(y) minus the constant that every entry contributes as noise: ½(E ln τ + E ln ω − ln 2π)."""
    counted = float(state.tau.mean_log) - math.log(2.0 * math.pi)
    log_density = np.log(law.density)[law.bins(values)] - 0.5 * counted
    if state.slices is None:
        return log_density
    return log_density - 0.5 * state.slices.mean_log[block_positions(block, state.slices.modes)]


def _log_rates(model: LocalModel, structure: OutlierStructure, block: Block) -> tuple[Array | float, Array | float]:
    """ln π and ln(1 − π), common or per entry, from its slice."""
    if structure.rates is None:
        return math.log(model.probability), math.log1p(-model.probability)
    positions = block_positions(block, structure.rates.modes)
    log_rate, log_rest = structure.rates.mean_logs
    return log_rate[positions], log_rest[positions]


def shared_positions(structure: OutlierStructure, block: Block) -> NDArray[np.intp] | None:
    """Group index of every entry of a block, (m,): entries of a group share one outlier indicator."""
    if not structure.modes:
        return None
    alone = [mode for mode in range(len(block.shape)) if mode not in structure.modes]
    if block.coords is not None:
        return distinct_columns(block.coords[alone], tuple(block.shape[mode] for mode in alone))
    positions = block_positions(block, alone)
    return positions - positions.min() if positions.size else positions


def grouped(observations: Observations, structure_modes: tuple[int, ...]) -> Observations:
    """The observations in blocks that do not split groups of entries that share an outlier indicator."""
    parted = structure_modes and (0 in structure_modes or observations.coords is not None)
    return observations.in_one_block() if parted else observations


def block_outliers(
    state: State, block: Block, values: Array, rho: Array, positive: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Responsibilities p of a block's entries, and the share of the deviation that belongs to the outlier if any.

    Each (m,). ``positive`` marks y ≥ x̄.
    """
    model, structure = state.local_model, state.structure
    if structure is None:
        probability, share = np.empty(rho.size), np.empty(rho.size)
        for piece in (slice(start, start + PIECE) for start in range(0, rho.size, PIECE)):
            local = model.posterior(rho[piece])
            probability[piece], share[piece] = local.outlier_probability, 1.0 - local.slab_shrinkage
        return probability, share
    _, _, outlier = _structured(state, model, structure, block, values, rho, positive)
    share = 1.0 - model.branches(rho)[3] if structure.law is None else np.ones(rho.size)
    return outlier, share


# ---- learning ----------------------------------------------------------------------------------------------


def zero_sums(structure: OutlierStructure) -> tuple[Array, ...]:
    """Zero sums for :func:`add_sums`."""
    n_law = 0 if structure.law is None else structure.law.density.size
    n_rates = 0 if structure.rates is None else structure.rates.outlying.size
    n_sides = 0 if structure.sides is None else N_BINS
    bins = [np.zeros(N_BINS) for _ in range(4)]
    return (*bins, np.zeros(n_law), np.zeros(n_rates), np.zeros(4), np.zeros(n_sides), np.zeros(2))


def add_sums(
    sums: tuple[Array, ...],
    structure: OutlierStructure,
    block: Block,
    values: Array,
    deviation: Array,
    outlier: Array,
    standardised: Array,
) -> None:
    """Add a block's statistics: D of regular entries and of outliers, replaced values, rates, channels, sides."""
    regular_counts, regular_totals, outlying_counts, outlying_totals, law_counts, rate_sums, others, above, sides = sums
    kernels.count_deviations(deviation, regular_counts, regular_totals, 1.0 - outlier)
    kernels.count_deviations(deviation, outlying_counts, outlying_totals, outlier)
    if structure.law is not None:
        law_counts += np.bincount(structure.law.bins(values), outlier, law_counts.size)
    if structure.rates is not None:
        rate_sums += np.bincount(block_positions(block, structure.rates.modes), outlier, rate_sums.size)
    if structure.sides is not None:
        positive = standardised >= 0.0
        kernels.count_deviations(deviation[positive], above, np.zeros(N_BINS))
        n_positive = outlier[positive].sum()
        sides += n_positive, outlier.sum() - n_positive
    groups = shared_positions(structure, block)
    if groups is None:
        others[:2] += outlier.sum(), outlier.size
        return
    size = np.bincount(groups)
    occupied = size > 0
    mean_outlier = np.bincount(groups, outlier)[occupied] / size[occupied]
    others[:2] += mean_outlier.sum(), mean_outlier.size
    clipped = np.clip(standardised, -CLIPPED, CLIPPED) * (outlier < 0.5)
    others[2:] += np.sum(np.bincount(groups, clipped) ** 2), clipped @ clipped


def learnt_structure(
    structure: OutlierStructure, sums: tuple[Array, ...], slice_sizes: Array | None
) -> OutlierStructure:
    """The structure with its parameters learnt from the sums, except κ, which is measured separately."""
    law = None if structure.law is None else structure.law.learnt(sums[4])
    rates = structure.rates
    if rates is not None and slice_sizes is not None:
        rates = learnt_rates(rates, sums[5], slice_sizes)
    sides = None if structure.sides is None else Sides(1.0 + float(sums[8][0]), 1.0 + float(sums[8][1]))
    return replace(structure, law=law, rates=rates, sides=sides)


def measured_channels(structure: OutlierStructure, sums: tuple[Array, ...], n_shared: int) -> OutlierStructure:
    """κ = Σ_{cc'} R_{cc'} / C from the regular entries: 1 for independent noise, C at most."""
    square_of_sum, sum_of_squares = sums[6][2:]
    ratio = square_of_sum / sum_of_squares if sum_of_squares > 0 else 1.0
    return replace(structure, n_channels=float(np.clip(ratio, 1.0, n_shared)))


def learnt_rates(rates: SliceRates, outlying: Array, slice_sizes: Array) -> SliceRates:
    """q(π_g) = Beta(α + Σ p, β + Σ (1 − p)), and (α, β) at the maximum of their evidence given the responsibilities.

    The evidence Π_g B(α + Σ p, β + Σ (1 − p)) / B(α, β), a Beta-binomial, has q(π) integrated out: q(π) and its prior
    are learnt together, by Newton scoring.
    """
    regular = slice_sizes - outlying

    def evidence(logs: Array) -> Ascent:
        first, second = np.exp(logs)
        log_ratio = betaln(first + outlying, second + regular) - betaln(first, second)
        together = digamma(first + second) - digamma(first + second + slice_sizes)
        scores = np.stack(
            [
                first * (digamma(first + outlying) - digamma(first) + together),
                second * (digamma(second + regular) - digamma(second) + together),
            ]
        )
        return Ascent(float(log_ratio.sum()), scores.sum(axis=1), scores @ scores.T)

    found, _ = ascend(evidence, np.log(rates.prior), [LOG_RATE_PRIOR] * 2, max_steps=RATE_STEPS)
    first, second = (float(number) for number in np.exp(found))
    return replace(rates, outlying=first + outlying, regular=second + regular, prior=(first, second))


def initial_rates(modes: tuple[int, ...], n_slices: int, probability: float) -> SliceRates:
    """Initial rates, all equal."""
    rate = float(expit(np.clip(logit(probability), -6.0, 3.0)))
    prior = (5.0 * rate, 5.0 * (1.0 - rate))
    return SliceRates(modes, np.full(n_slices, prior[0]), np.full(n_slices, prior[1]), prior)


def initial_law(lowest: float, highest: float) -> ReplacementLaw:
    """Initial distribution of replaced values: uniform between two limits."""
    width = max(highest - lowest, LEAST_RANGE)
    return ReplacementLaw(lowest, lowest + width, np.full(LAW_BINS, 1.0 / width))
