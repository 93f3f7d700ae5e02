"""Another kind of outliers: ones that replace values, that entries share, or whose rates differ between slices.

Rates may differ along any mode, or with the distance of two whose labels compare, which may take the place of rates per
slice: scattered light follows the excitation, and a trip within a zone is unlike one between two.

One pass finds what every kind promises at the current responsibilities, a lower bound of its gain; the best is settled
at fixed factors, at about ten passes, and judged by the bound. Nothing is proposed where outliers are so few that their
places could not pay for it. Outliers replace values only where most of them repeat exact values, as those of salt and
pepper, saturated or stuck sensors do: a histogram fits any values that are merely not explained yet. Tried only where
the kind is left to the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.special import betaln, expit

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.offsets import offsets
from brtf.data.passes import Sums, add_up
from brtf.inference.entry_posterior import grouped, initial_rates, learnt_rates, log_branches, measured_channels
from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import settle_noise
from brtf.inference.noise_fit import shared_rate
from brtf.inference.point import Point, evaluate, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.model.distributions import LOG_TWO_PI
from brtf.model.evidence_table import tabulate_branches
from brtf.model.state import OutlierStructure, ReplacementLaw, SliceRates, State
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.moves.structure import law_of_values

MOST = 0.5
"""Share of the outliers that must repeat exact values where outliers replace values, and of the entries that may be
outliers of a new kind."""
RATE_STEPS = 20
"""Steps of the rate of shared outliers, which converge geometrically; fewer give a smaller promise."""


@dataclass(frozen=True, eq=False)
class Promise:
    """A kind of outliers, as a structure to settle, with the nats that it promises."""

    nats: float
    structure: OutlierStructure
    kind: Kind
    words: str


class OutlierKinds(Once):
    """The kind of outliers that promises most; only replaced values where ``coarse``, while components are missing.

    What components would explain looks like outliers that are shared, or that are more frequent in some slices.
    """

    def __init__(self, *, coarse: bool = False) -> None:
        self.coarse = coarse
        self.name = "replaced values" if coarse else "outlier kind"

    def proposal(self, progress: Progress) -> Trial | None:
        problem, point, options = progress.problem, progress.point, progress.options
        if not options.kinds_open or not point.state.local.has_outliers:
            return None
        structure = point.state.structure or OutlierStructure()
        law = law_of_values(problem) if options.may_replace and structure.law is None else None
        alone = structure.law is None and not structure.modes and not options.labelled_modes
        rated = [] if self.coarse or not alone else possible_rates(problem, point.state)
        shared = [one.modes[0] for one in rated if one.labels is None and _may_share(problem, one.modes[0])]
        n_kinds = (law is not None) + len(rated) + len(shared)
        worth = WORTH + math.log(max(n_kinds, 1))
        if n_kinds == 0 or _largest_gain(problem, point) < worth:
            return None
        promises = [one for one in promised(problem, point, law, shared, rated) if one.nats > worth]
        if not promises:
            return None
        best = max(promises, key=lambda one: one.nats)
        state = replace(point.state, structure=best.structure)
        problem = undivided(problem, state)
        settled = settle_noise(problem, evaluate(problem, state))
        if best.structure.modes:
            settled = _with_channels(problem, settled)
        if settled.state.local_model.probability > max(MOST, point.state.local_model.probability):
            return None  # most entries would be outliers: the slab has taken the place of the noise
        price, sums = 0.0, settled.structure_sums
        if best.structure.law is not None and sums is not None:
            price = max(best.structure.law.price(sums.law), 0.0)
        then = Sweeps(progress.roughly, 60)
        return progress.trial(best.kind, best.words, settled, worth=worth, price=price, then=then)


def possible_rates(problem: Problem, state: State) -> list[SliceRates]:
    """Rates that may differ: along a mode, where they do not yet, and with the distance of two modes."""
    observations, rate = problem.observations, state.local_model.probability
    present = None if state.structure is None else state.structure.rates
    shape, labels = observations.shape, observations.labels
    coords = [None] * len(shape) if labels is None else labels.coords
    found = []
    if present is None:
        found = [initial_rates((mode,), length, rate) for mode, length in enumerate(shape) if length > 1]
    for first, second in combinations(range(len(shape)), 2):
        along, across = coords[first], coords[second]
        few = shape[first] * shape[second] <= observations.n_observed
        known = present is not None and present.labels is not None and present.modes == (first, second)
        apart = None if along is None or across is None or not few or known else offsets(along, across)
        if apart is not None:
            found.append(initial_rates((first, second), int(apart.max()) + 1, rate, apart.reshape(-1)))
    return found


def undivided(problem: Problem, state: State) -> Problem:
    """The problem in blocks that do not split groups of entries that share an outlier."""
    if state.structure is None or not state.structure.modes:
        return problem
    return replace(problem, observations=grouped(problem.observations, state.structure.modes))


def _may_share(problem: Problem, mode: int) -> bool:
    """Whether the entries that differ only along the mode are two or more on average; not if chunks separate them."""
    observations = problem.observations
    shape = observations.shape
    if observations.in_chunks and (mode == 0 or observations.layout == "coordinates"):
        return False
    return len(shape) > 1 and 2 * math.prod(shape) <= observations.n_observed * shape[mode]


def _largest_gain(problem: Problem, point: Point) -> float:
    """Nats that the places of the outliers cost now: another law of places cannot gain more, M H(π).

    Replaced values could gain more from a single outlier, but not from so few.
    """
    rate = point.state.local_model.probability
    return -problem.observations.n_observed * (rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))


def promised(
    problem: Problem, point: Point, law: ReplacementLaw | None, shared: list[int], rated: list[SliceRates]
) -> list[Promise]:
    """What each kind of outliers promises, all else as in the point: lower bounds of the gain. One pass.

    At the responsibilities p: the evidence of the values of outliers under a law of their own, instead of the slab; the
    evidence of their numbers in slices, a Beta-binomial, instead of a common rate or of the present slices. For shared
    outliers the log odds are summed over the entries that share, and the rate is learnt anew.
    """
    state, shape = point.state, problem.observations.shape
    structure, spike = state.structure or OutlierStructure(), tabulate_branches(state.local_model)[0]
    log_scale = 0.5 * (float(state.tau.mean_log) - LOG_TWO_PI)
    compared = rated if structure.rates is None else [*rated, structure.rates]
    apart = {mode: tuple(other for other in range(len(shape)) if other != mode) for mode in shared}

    def zeros() -> Sums:
        bins = np.zeros(0 if law is None else law.density.size)
        groups = [np.zeros(math.prod(shape[other] for other in apart[mode])) for mode in shared]
        return np.zeros(3), bins, *groups, *(np.zeros(rates.n_positions) for rates in compared)

    def add(sums: Sums, block: Block) -> None:
        residual, _ = point.fit.at(block)
        values = problem.values(block)
        rho = np.asarray(point.local(block).rho, dtype=np.float64)
        log_rate, log_rest, log_slab = log_branches(state, block, values, rho, residual >= 0.0)
        odds = log_slab - kernels.evidence(spike, rho)[0]
        outlying = expit(odds + log_rate - log_rest)
        counted: Array | float = log_scale
        if state.slices is not None:
            counted = counted + 0.5 * state.slices.mean_log[kernels.positions(block, state.slices.modes)]
        evidence = np.logaddexp(log_rest, log_rate + odds).sum()
        sums[0][...] += outlying.sum(), outlying @ (log_slab + counted), evidence
        if law is not None:
            sums[1][...] += np.bincount(law.bins(values), outlying, law.density.size)
        for total, mode in zip(sums[2:], shared, strict=False):
            kernels.add_to_slices(block, apart[mode], odds, total)
        for total, rates in zip(sums[2 + len(shared) :], compared, strict=True):
            kernels.add_to_slices(block, rates.modes, outlying, total)

    (totals, counts, *rest) = add_up(problem.observations, zeros, add)
    n_outlying, log_slab, evidence = (float(total) for total in totals)
    rate, n_observed = state.local_model.probability, problem.observations.n_observed
    promises = []
    if law is not None and repeated(counts) > MOST:
        found = replace(structure, law=law.learnt(counts), sides=None)
        gain = law.log_evidence(counts) - log_slab
        promises.append(Promise(gain, found, Kind.REPLACED, "outliers that replace values"))
    for mode, odds in zip(shared, rest, strict=False):
        found = replace(structure, modes=(mode,), sides=None)
        gain = _evidence_of_shared(odds[odds != 0.0], rate) - evidence
        promises.append(Promise(gain, found, Kind.SHARED, f"outliers shared along mode {mode}"))
    numbers = zip(compared, rest[len(shared) :], strict=True)
    learnt = [learnt_rates(one, outlying, problem.n_entries_along(one.modes)) for one, outlying in numbers]
    known = n_outlying * math.log(rate) + (n_observed - n_outlying) * math.log1p(-rate) + state.local_model.log_prior
    if structure.rates is not None:
        known = _evidence_of_rates(learnt.pop())
    for rates in learnt:
        named = " and ".join(map(str, rates.modes))
        words = f"along mode {named}" if rates.labels is None else f"with the distance of modes {named}"
        gain = _evidence_of_rates(rates) - known
        promises.append(Promise(gain, replace(structure, rates=rates), Kind.RATES, f"outlier rates {words}"))
    return promises


def _evidence_of_rates(rates: SliceRates) -> float:
    """ln of the evidence of the numbers of outliers that the rates were learnt from, with the prior of these."""
    return float(np.sum(betaln(rates.outlying, rates.regular) - betaln(*rates.prior))) + rates.log_prior


def repeated(counts: Array) -> float:
    """The share of values that repeat exactly: those of a bin beyond the first, and beyond what a neighbour has."""
    beside = np.maximum(np.append(counts[1:], 1.0), np.insert(counts[:-1], 0, 1.0))
    beside = np.maximum(beside, 1.0)
    total = float(counts.sum())
    return float(np.maximum(counts - beside, 0.0).sum()) / total if total > 0 else 0.0


def _evidence_of_shared(odds: Array, rate: float) -> float:
    """Σ_g ln(1 − π + π e^{odds}) at the best rate π found in a few steps."""
    for _ in range(RATE_STEPS):
        outlying = expit(odds + math.log(rate) - math.log1p(-rate))
        rate = shared_rate(float(outlying.sum()), odds.size)
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + odds).sum())


def _with_channels(problem: Problem, point: Point) -> Point:
    """The point with the number of independent entries that share an outlier.

    By the inequality of power means χ ln Σ_z π_z f_z^{1/χ} ≤ ln Σ_z π_z f_z: for any χ ≥ 1 it is a bound of the same
    evidence, and comparable.
    """
    structure, sums = point.state.structure, point.structure_sums
    if structure is None or sums is None:
        raise TypeError("shared outliers have sums")
    n_shared = math.prod(problem.observations.shape[mode] for mode in structure.modes)
    measured = measured_channels(structure, sums, n_shared)
    return settle_noise(problem, evaluate_at(problem, replace(point.state, structure=measured), point.fit))
