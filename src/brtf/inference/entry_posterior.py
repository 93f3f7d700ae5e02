"""The local posteriors of a block's entries: responsibility, weight, and share in the bound.

For independent entries one table look-up is enough. Where outliers are shared between entries, replace the data, have
different rates or are one-sided, the two branches are looked up separately and mixed. Kernels do both in one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, digamma, expit, logit

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block, row_and_column_positions
from brtf.data.observations import Observations, distinct_columns
from brtf.inference.ascent import Ascent, ascend
from brtf.kernels.arguments import (
    N_BINS,
    NOWHERE,
    Mixture,
    PassSums,
    SlicePositions,
    SliceWeights,
    StructureSums,
    WeighedEntries,
)
from brtf.kernels.tables import EvidenceTable
from brtf.model.distributions import LOG_TWO_PI
from brtf.model.evidence_table import tabulate, tabulate_branches
from brtf.model.local_models import MINORITY, rate_log_prior
from brtf.model.state import OutlierStructure, ReplacementLaw, Sides, SliceRates, State

ENTRIES_AT_ONCE = 2**13
"""Entries whose responsibilities are computed together: a dozen temporary numbers per entry."""
CLIPPED = 3.0
"""Standard deviations at which residuals are clipped before their correlation is measured."""
LOGIT_RATE = (-15.0, 15.0)
"""Range of the logit of the mean outlier rate of slices."""
WEAKEST_PRIOR, STRONGEST_PRIOR = 1e-2, 1e4
"""Range of α + β, of the prior of the rates of slices. With the weakest, slices are all outliers or all regular; with
the strongest, per entry of the largest slice, rates differ by less than a hundredth of what the entries can show."""
RATE_STEPS, RATE_GAIN = 20, 1e-9
"""Most steps for α and β, of which a few are needed from the values of the last sweep, and the gain in nats at which
these end."""
LAW_BINS = 256
"""Bins of the distribution of replaced values: the levels of an 8-bit image."""
LEAST_RANGE = 1e-3
"""Smallest range of replaced values in units of the data's scale: bins 400 times as wide as the smallest noise. Without
it constant data would all count as replaced, with unbounded density."""


@dataclass(frozen=True, eq=False)
class EntryLaw:
    """The distribution of a state's entries, as kernels take it; what does not depend on a block is computed once."""

    state: State

    def __post_init__(self) -> None:
        if self.state.structure is not None and not self.state.local_model.has_outliers:
            raise TypeError("A state with a structure of outliers needs a local model with outliers.")

    @cached_property
    def _everywhere(self) -> EvidenceTable | Mixture:
        """The table of ln f or, for C16 and C23, the mixture, without the positions of entries."""
        state, model, structure = self.state, self.state.local_model, self.state.structure
        if structure is None:
            return tabulate(model)
        spike, slab = tabulate_branches(model)
        law, rates, sides = structure.law, structure.rates, structure.sides
        log_rates = np.array([[math.log(model.probability)], [math.log1p(-model.probability)]])
        if rates is not None:
            log_rates = np.stack([rates.at_positions(mean_log) for mean_log in rates.mean_logs])
        log_counted = np.zeros(1) if state.slices is None else state.slices.mean_log
        return Mixture(
            spike=spike,
            slab=slab,
            log_rates=log_rates,
            at=NOWHERE,
            log_sides=np.zeros(2) if sides is None else np.array(sides.mean_logs),
            log_law=np.zeros(0) if law is None else np.log(law.density),
            law_range=np.zeros(2) if law is None else np.array([law.lowest, law.bins_per_unit]),
            log_counted=0.5 * (float(state.tau.mean_log) - LOG_TWO_PI + log_counted),
            groups=NOWHERE,
            n_channels=structure.n_channels,
            clipped=CLIPPED,
        )

    def of_rows(self, block: Block) -> tuple[EvidenceTable | Mixture, SliceWeights | None]:
        """The law and the noise of a block of complete data, whose outliers are shared within rows at most."""
        slices, structure, law = self.state.slices, self.state.structure, self._everywhere
        noise = None
        if slices is not None:
            noise = SliceWeights(slices.mean, SlicePositions(*row_and_column_positions(block, slices.modes)))
        if structure is None or not isinstance(law, Mixture):
            return law, noise
        at = SlicePositions(*row_and_column_positions(block, () if structure.rates is None else structure.rates.modes))
        if not structure.modes:
            return law._replace(at=at), noise
        alone = [mode for mode in range(1, len(block.shape)) if mode not in structure.modes]
        columns = row_and_column_positions(block, alone)[1]
        rows = (int(columns.max(initial=0)) + 1) * np.arange(block.n_rows)
        return law._replace(at=at, groups=SlicePositions(rows, columns)), noise

    def of_entries(self, block: Block) -> tuple[EvidenceTable | Mixture, SliceWeights | None]:
        """The law and the noise of a block's entries one by one, in any layout."""
        slices, structure, law = self.state.slices, self.state.structure, self._everywhere
        noise = None
        if slices is not None:
            noise = SliceWeights(slices.mean, SlicePositions.of_entries(kernels.positions(block, slices.modes)))
        if structure is None or not isinstance(law, Mixture):
            return law, noise
        groups = shared_positions(structure, block)
        if groups is not None:
            return law._replace(groups=SlicePositions.of_entries(groups)), noise
        modes = () if structure.rates is None else structure.rates.modes
        at = kernels.positions(block, modes) if modes else np.zeros(block.n_entries, np.int64)
        return law._replace(at=SlicePositions.of_entries(at)), noise

    def zeros(self) -> PassSums:
        """Zero sums for :meth:`posterior`."""
        n_slices = 0 if self.state.slices is None else self.state.slices.mean.size
        structured = () if self.state.structure is None else zero_sums(self.state.structure)
        return PassSums(np.zeros(N_BINS), np.zeros(N_BINS), np.zeros(n_slices), np.zeros(n_slices), structured)

    def posterior(
        self, block: Block, values: Array, residual: Array, variance: Array | None, sums: PassSums | None = None
    ) -> WeighedEntries:
        """The local posteriors of entries with the given values, y − x̄, and Var x (None: zero), each (m,).

        The entries are added to the sums, if any are given.
        """
        sums, tau = self.zeros() if sums is None else sums, float(self.state.tau.mean)
        if not self.state.local_model.is_gaussian:
            law, noise = self.of_entries(block)
            return kernels.local_posteriors(law, tau, values, residual, variance, noise, sums)
        deviation = relative_deviation(residual, variance, relative_precision(self.state, block))
        kernels.count_deviations(deviation, sums.counts, sums.totals)
        rho, slices = tau * deviation, self.state.slices
        if slices is not None:
            kernels.add_to_slices(block, slices.modes, rho, sums.squares)
        largest = float(deviation.max(initial=0.0))
        return WeighedEntries(-0.5 * float(rho.sum()), rho.size, largest, rho, np.ones(rho.size))


def relative_precision(state: State, block: Block) -> Array | None:
    """ω̄ of every entry's slice, (m,); None where the noise is common."""
    slices = state.slices
    return None if slices is None else slices.mean[kernels.positions(block, slices.modes)]


def relative_deviation(residual: Array, variance: Array | None, relative: Array | None) -> Array:
    """ω̄ D (m,), D = (y − x̄)² + Var x: the expected squared deviation in units of the slice's noise."""
    deviation = np.square(residual, dtype=np.float64)
    if variance is not None:
        deviation += variance
    return deviation if relative is None else deviation * relative


def log_branches(
    state: State, block: Block, values: Array, rho: Array, positive: NDArray[np.bool_]
) -> tuple[Array | float, Array | float, Array]:
    """ln π and ln(1 − π) of the entries of a block, and their ln f with an outlier; −∞ where there are no outliers.

    For entries with the given values and ρ; ``positive`` marks y ≥ x̄.
    """
    model, structure = state.local_model, state.structure
    if not model.has_outliers:
        return -np.inf, 0.0, np.full(rho.size, -np.inf)
    log_slab = kernels.evidence(tabulate_branches(model)[1], rho)[0]
    if structure is None:
        return math.log(model.probability), math.log1p(-model.probability), log_slab
    mixture, noise = EntryLaw(state).of_entries(block)
    if not isinstance(mixture, Mixture):
        raise TypeError("the outliers of a structure are a mixture")
    if structure.law is not None:
        log_counted = mixture.log_counted[0] if noise is None else mixture.log_counted[noise.at.rows]
        log_slab = mixture.log_law[structure.law.bins(values)] - log_counted
    log_rate, log_rest = mixture.log_rates if structure.rates is None else mixture.log_rates[:, mixture.at.rows]
    return log_rate, log_rest, log_slab + np.where(positive, *mixture.log_sides)


def shared_positions(structure: OutlierStructure, block: Block) -> NDArray[np.int64] | None:
    """Group index of every entry of a block, (m,): entries of a group share one outlier indicator.

    Coordinates are sorted for it, once per block.
    """
    if not structure.modes:
        return None
    alone = tuple(mode for mode in range(len(block.shape)) if mode not in structure.modes)
    if block.coords is None:
        positions = kernels.positions(block, alone)
        return positions - positions.min() if positions.size else positions
    known: dict[tuple[int, ...], NDArray[np.int64]] = block.cache.setdefault("groups", {})
    if alone not in known:
        known[alone] = distinct_columns(block.coords[list(alone)], tuple(block.shape[mode] for mode in alone))
    return known[alone]


def grouped(observations: Observations, structure_modes: tuple[int, ...]) -> Observations:
    """The observations in blocks that do not split groups of entries that share an outlier indicator."""
    parted = structure_modes and (0 in structure_modes or observations.coords is not None)
    whole = not observations.in_chunks and len(observations.block_list) == 1
    return observations.in_one_block() if parted and not whole else observations


def block_outliers(
    law: EntryLaw, block: Block, values: Array, residual: Array, variance: Array | None
) -> tuple[Array, Array]:
    """Responsibilities p of a block's entries, and the share of the deviation that belongs to the outlier if any.

    Each (m,), for entries with the given values, y − x̄ and Var x (None: zero).
    """
    state = law.state
    model, structure = state.local_model, state.structure
    rho = float(state.tau.mean) * relative_deviation(residual, variance, relative_precision(state, block))
    if structure is None:
        probability, share = np.empty(rho.size), np.empty(rho.size)
        for piece in (slice(start, start + ENTRIES_AT_ONCE) for start in range(0, rho.size, ENTRIES_AT_ONCE)):
            local = model.posterior(rho[piece])
            probability[piece], share[piece] = local.outlier_probability, 1.0 - local.slab_shrinkage
        return probability, share
    outlier = law.posterior(block, values, residual, variance).outlier
    if outlier is None:
        raise TypeError("entries with a structure of outliers have responsibilities")
    return outlier, 1.0 - model.branches(rho)[3] if structure.law is None else np.ones(rho.size)


# ---- learning ----------------------------------------------------------------------------------------------


def zero_sums(structure: OutlierStructure) -> StructureSums:
    """Zero sums over entries with a structure."""
    n_law = 0 if structure.law is None else structure.law.density.size
    n_rates = 0 if structure.rates is None else structure.rates.n_positions
    n_sides = 0 if structure.sides is None else N_BINS
    sizes = N_BINS, N_BINS, N_BINS, N_BINS, n_law, n_rates, 4, n_sides, 2
    return StructureSums(*map(np.zeros, sizes))


def learnt_structure(structure: OutlierStructure, sums: StructureSums, slice_sizes: Array | None) -> OutlierStructure:
    """The structure with its parameters learnt from the sums, except χ, which is measured separately."""
    law = None if structure.law is None else structure.law.learnt(sums.law)
    rates = structure.rates
    if rates is not None and slice_sizes is not None:
        rates = learnt_rates(rates, sums.rates, slice_sizes)
    sides = None if structure.sides is None else Sides(*(1.0 + sums.sides).tolist())
    return replace(structure, law=law, rates=rates, sides=sides)


def measured_channels(structure: OutlierStructure, sums: StructureSums, n_shared: int) -> OutlierStructure:
    """χ = Σ_{cc'} R_{cc'} / C from the regular entries: 1 for independent noise, C at most."""
    square_of_sum, sum_of_squares = sums.groups[2:]
    ratio = square_of_sum / sum_of_squares if sum_of_squares > 0 else 1.0
    return replace(structure, n_channels=float(np.clip(ratio, 1.0, n_shared)))


def learnt_rates(rates: SliceRates, outlying: Array, slice_sizes: Array) -> SliceRates:
    """q(π_g) = Beta(α + Σ p, β + Σ (1 − p)), and (α, β) at the maximum of their evidence given the responsibilities.

    The evidence Π_g B(α + Σ p, β + Σ (1 − p)) / B(α, β), a Beta-binomial, has q(π) integrated out: q(π) and its prior
    are learnt together, by Newton scoring in the logit of the mean α/(α + β), which has the prior of a common rate, and
    the logarithm of the strength α + β. Σ p and Σ 1 are given for every position along the modes.
    """
    outlying, sizes = rates.added_up(outlying), rates.added_up(slice_sizes)
    regular = sizes - outlying

    def prior_of(place: Array) -> tuple[float, float]:
        mean, strength = expit(place[0]), math.exp(place[1])
        return float(strength * mean), float(strength * (1.0 - mean))

    def evidence(place: Array) -> Ascent:
        first, second = prior_of(place)
        log_ratio = betaln(first + outlying, second + regular) - betaln(first, second)
        together = digamma(first + second) - digamma(first + second + sizes)
        by_first = first * (digamma(first + outlying) - digamma(first) + together)
        by_second = second * (digamma(second + regular) - digamma(second) + together)
        mean = first / (first + second)
        scores = np.stack([(1.0 - mean) * by_first - mean * by_second, by_first + by_second])
        value, gradient, information = float(log_ratio.sum()), scores.sum(axis=1), scores @ scores.T
        value += rate_log_prior(mean)
        gradient[0] -= MINORITY * mean
        information[0, 0] += MINORITY * mean * (1.0 - mean)
        return Ascent(value, gradient, information)

    first, second = rates.prior
    start = np.array([math.log(first / second), math.log(first + second)])
    limits = [LOGIT_RATE, (math.log(WEAKEST_PRIOR), math.log(STRONGEST_PRIOR * float(sizes.max())))]
    first, second = prior_of(ascend(evidence, start, limits, max_steps=RATE_STEPS, little=RATE_GAIN)[0])
    return replace(rates, outlying=first + outlying, regular=second + regular, prior=(first, second))


def initial_rates(
    modes: tuple[int, ...], n_rates: int, probability: float, labels: NDArray[np.int64] | None = None
) -> SliceRates:
    """Initial rates, all equal."""
    rate = float(expit(np.clip(logit(probability), -6.0, 3.0)))
    prior = (5.0 * rate, 5.0 * (1.0 - rate))
    return SliceRates(modes, np.full(n_rates, prior[0]), np.full(n_rates, prior[1]), prior, labels)


def initial_law(lowest: float, highest: float, step: float = 0.0) -> ReplacementLaw:
    """Initial distribution of replaced values: uniform between two limits.

    Values that were rounded to a coarse ``step`` have a bin for each level.
    """
    width = max(highest - lowest, LEAST_RANGE)
    n_bins = LAW_BINS
    if width < (LAW_BINS - 0.5) * step:
        n_bins = round(width / step) + 1
        lowest, width = lowest - 0.5 * step, n_bins * step
    return ReplacementLaw(lowest, lowest + width, np.full(n_bins, 1.0 / width))
