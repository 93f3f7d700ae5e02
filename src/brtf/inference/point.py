"""A state with everything derived from it in one pass over the data: local posteriors, histogram, bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Remembered, Sums, visit
from brtf.inference.bound import BoundTerms, calibrated_terms
from brtf.inference.entry_posterior import EntryLaw, relative_deviation, relative_precision
from brtf.inference.factor_update import FactorPlan, weights_and_targets
from brtf.inference.noise_fit import Histogram
from brtf.inference.problem import Fit, Problem, slice_variances
from brtf.inference.statistics import variance_sum
from brtf.inference.update_rows import OnePass, Rows
from brtf.kernels.arguments import N_BINS, PassSums, StructureSums, WeighedEntries
from brtf.model.state import OutlierStructure, State


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
    structure_sums: StructureSums | None
    terms: BoundTerms
    local: Callable[[Block], WeighedEntries]
    ahead: State | None

    @property
    def bound(self) -> float:
        return self.terms.total

    @property
    def rank(self) -> int:
        return self.state.rank


def evaluate(problem: Problem, state: State, *, ahead: bool = False) -> Point:
    """The point of a state; with ``ahead``, the next factors of large data are computed in the same pass."""
    return evaluate_at(problem, state, Fit.of(problem, state), ahead=ahead)


def evaluate_at(problem: Problem, state: State, fit: Fit, *, ahead: bool = False) -> Point:
    """The point of a state whose low-rank part is already known: one pass over the data."""
    slices, structure, law = state.slices, state.structure, EntryLaw(state)
    local = local_posteriors_at(problem, state, fit)
    plan = FactorPlan.of(problem, state) if ahead else None
    update = None if plan is None else plan.one_pass
    direct = plan is not None and plan.solves_directly
    tau, n_structured = float(state.tau.mean), 0 if structure is None else len(StructureSums._fields)

    def parted(sums: Sums) -> tuple[PassSums, Array, Sums]:
        """What the entries add up to, (Σ ln f, Σ w), and what the update of the factors needs."""
        counts, totals, squares, replaced, scores, *rest = sums
        structured = StructureSums(*rest[:n_structured]) if n_structured else ()
        return PassSums(counts, totals, squares, replaced, structured), scores, tuple(rest[n_structured:])

    def zeros() -> Sums:
        counts, totals, squares, replaced, structured, _ = law.zeros()
        return counts, totals, squares, replaced, np.zeros(2), *structured, *(() if update is None else update.zeros())

    def solve(sums: Sums, block: Block, update: OnePass) -> tuple[float, Rows | None]:
        """The rows of a block are solved while it is looked at."""
        own, scores, (products,) = parted(sums)
        own = own._replace(products=products.reshape(-1, state.rank))
        arguments = problem.observations.scale, tau, state.local_model.largest_weight
        found, rows = update.solve(block, *arguments, *law.of_rows(block), own)
        scores += found.log_evidence, found.weight_sum
        return found.largest, rows

    def look(sums: Sums, block: Block) -> tuple[float, Rows | None]:
        """The local posteriors of a block first, then the update of the factors with their weights."""
        if direct and update is not None:
            return solve(sums, block, update)
        own, scores, of_update = parted(sums)
        residual, variance = fit.at(block)
        values = problem.values(block)
        found = law.posterior(block, values, residual, variance, own)
        del variance  # frees an array over the entries, like the deletions below
        local.keep(block, found)
        scores += found.log_evidence, found.weight_sum
        largest, weight = found.largest, found.weight
        if update is None:
            return largest, None
        del found
        weighed = weights_and_targets(problem, state, block, values, residual, weight)
        del values, residual, weight
        return largest, update.look(of_update, block, *weighed)

    sums, looks = visit(problem.observations, zeros, look)
    of_entries, (log_evidence, weight), of_update = parted(sums)
    structure_sums = of_entries.structured or None
    variance, extra = 0.0, np.zeros(of_entries.squares.size)
    if not problem.collapsed:
        variance, extra = variance_of_completed(problem, state)
    return Point(
        state,
        fit,
        Histogram.from_bins(
            of_entries.counts,
            of_entries.totals,
            max(largest for largest, _ in looks),
            variance,
            *log_sides_of(structure, structure_sums),
        ),
        None if slices is None else of_entries.squares / slices.mean + tau * state.local_model.largest_weight * extra,
        None if slices is None else problem.n_entries(slices) - of_entries.replaced,
        float(weight) / problem.observations.n_observed,
        structure_sums,
        calibrated_terms(
            state,
            problem.observations.n_observed,
            float(log_evidence) - 0.5 * tau * state.local_model.largest_weight * variance,
            None if slices is None else problem.n_entries(slices),
        ),
        local,
        None if update is None else update.finish(of_update, [rows for _, rows in looks]),
    )


def local_posteriors_at(problem: Problem, state: State, fit: Fit) -> Remembered[WeighedEntries]:
    """The local posteriors of the entries, for the noise and outliers of a state, at a fit that is known."""
    law = EntryLaw(state)
    return Remembered(problem.observations, lambda block: law.posterior(block, problem.values(block), *fit.at(block)))


def log_sides_of(
    structure: OutlierStructure | None, sums: StructureSums | None
) -> tuple[Array | None, tuple[float, float]]:
    """Counts of positive deviations for a histogram, and the log factors of the slab on either side."""
    if structure is None or structure.sides is None or sums is None:
        return None, (0.0, 0.0)
    return sums.positive, structure.sides.mean_logs


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


def variance_of_completed(problem: Problem, state: State) -> tuple[float, Array]:
    """Form 1: Σ ω̄ Var x over all entries, and Σ Var x over those of each slice."""
    if state.slices is None:
        return variance_sum(problem.observations, state.factors), np.zeros(0)
    variances = slice_variances(problem, state, state.slices.modes)
    return float(state.slices.mean @ variances), variances
