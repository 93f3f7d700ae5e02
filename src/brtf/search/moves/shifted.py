"""Outliers of one side whose mean the low-rank part has taken up.

Many one-sided outliers hardly larger than the noise look like symmetric noise about a low-rank part that is too high
or too low by a constant. Only lowering it and making them one-sided at once raises the bound. Where the residuals are
skewed, proposes that with the shift that promises most, and then with a component taken away that may hold their mean.
Costs one pass, and where they are skewed one more for every shift and every component that is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Remembered
from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import noise_prior, with_noise
from brtf.inference.noise_fit import ROUGHLY, Histogram, NoisePrior, global_step, sided_step, worth
from brtf.inference.point import Point, deviation_histogram
from brtf.inference.problem import Fit, Problem
from brtf.inference.trace import Kind
from brtf.model.local_models import FlatSlab, LocalModel
from brtf.model.state import OutlierStructure, Sides, State, component_amplitudes
from brtf.search.components import add_components, component_price, remove_components
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled
from brtf.search.moves.few_outliers import MAJORITY

SKEWED, FARTHEST = 4.0, 4.0
"""Standard errors of the skewness beyond which shifts are tried, and the deviation in noise standard deviations at
which single entries stop adding to it."""
SHIFTS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Shifts that are looked at, in noise standard deviations; sweeps find those between."""


def skewness(histogram: Histogram, tau: float) -> float:
    """Σ (t³ − 3t) over the entries in standard errors, t the deviations in units of the noise; the mean is left out."""
    above, below = (count for count, _ in histogram.sides)
    size = np.minimum(np.sqrt(tau * histogram.deviation), FARTHEST)
    return float((above - below) @ (size**3 - 3.0 * size)) / math.sqrt(6.0 * float(histogram.count.sum()))


def shifted(problem: Problem, point: Point) -> State | None:
    """The state of a point with its low-rank part shifted and one-sided outliers; None where that promises no gain."""
    state, noise = point.state, float(point.state.tau.mean) ** -0.5
    skewed = _skewed(problem, point)
    if skewed is None:
        return None
    skew, present, signed = skewed
    last = _one_sided(signed, noise_prior(state)).value  # so that only what the shift itself gains counts
    best, most = None, max(present, last) + WORTH
    for size in SHIFTS:
        shift = math.copysign(size * noise, skew)

        def lifted(block: Block, shift: float = shift) -> Array:
            return point.fit.residual(block) + shift

        fit = Fit(Remembered(problem.observations, lifted), point.fit.variance)
        found = _one_sided(_signed_histogram(problem, point, fit), noise_prior(state))
        if found.value > most and found.model.probability < MAJORITY:
            best, most = (shift, found), found.value
        if found.value < last:  # past the best one
            break
        last = found.value
    if best is None:
        return None
    shift, found = best
    lengths, size = problem.observations.shape, abs(shift) ** (1.0 / problem.observations.order)
    columns = [np.full((length, 1), size) for length in lengths]
    columns[0] *= -math.copysign(1.0, shift)
    joined = add_components(problem, replace(state, structure=None), columns)
    if joined.rank == state.rank:
        return None
    return found.given_to(joined, state.structure, problem)


def without_their_mean(problem: Problem, point: Point) -> State | None:
    """The state without the component in whose place one-sided outliers promise most; None where none may hold them.

    It is one that is hardly larger than the noise. The noise, learnt with sides when it is gone, must explain more than
    the old noise would, and lose no more than its parameters cost: what they free, the judge counts.
    """
    state, tau = point.state, float(point.state.tau.mean)
    small = np.flatnonzero(math.sqrt(tau) * component_amplitudes(state) < SHIFTS[-1])
    skewed = _skewed(problem, point) if small.size else None
    if skewed is None:
        return None
    _, present, _ = skewed
    best, most = None, present - component_price(problem)
    for component in small:
        without = remove_components(state, np.array([component]))
        signed = _signed_histogram(problem, point, Fit.of(problem, without))
        found = _one_sided(signed, noise_prior(state))
        as_it_is = _worth(state, signed)
        if found.value > max(most, as_it_is + WORTH) and found.model.probability < MAJORITY:
            best, most = (without, found), found.value
    if best is None:
        return None
    without, found = best
    return found.given_to(without, state.structure, problem)


def _skewed(problem: Problem, point: Point) -> tuple[float, float, Histogram] | None:
    """How skewed the residuals are, what noise and outliers are worth, and the histogram; None where they are not."""
    state = point.state
    signed = _signed_histogram(problem, point, point.fit)
    sides = None if state.structure is None else state.structure.sides
    skew = skewness(signed, float(state.tau.mean)) if sides is None else math.copysign(SKEWED, sides.mean - 0.5)
    return None if abs(skew) < SKEWED else (skew, _worth(state, signed), signed)


def _worth(state: State, signed: Histogram) -> float:
    """What the noise and the outliers of a state are worth for a histogram."""
    sides = None if state.structure is None else state.structure.sides
    if sides is None:
        return worth(float(state.tau.mean), state.local_model, signed, noise_prior(state))
    sided = replace(signed, log_sides=sides.mean_logs)
    return worth(float(state.tau.mean), state.local_model, sided, noise_prior(state)) - sides.kl


def _signed_histogram(problem: Problem, point: Point, fit: Fit) -> Histogram:
    return deviation_histogram(problem, point.state, fit, point.deviations.penalty, signed=True)


@dataclass(frozen=True)
class Lopsided:
    """Noise and one-sided outliers with an edge, and what they are worth."""

    precision: float
    model: LocalModel
    sides: Sides
    value: float

    def given_to(self, state: State, structure: OutlierStructure | None, problem: Problem) -> State:
        """A state with this noise and these outliers, whose rates may differ as they did."""
        structure = replace(structure or OutlierStructure(), sides=self.sides)
        state = replace(state, structure=structure)
        return with_noise(state, self.precision, self.model, problem.observations.n_observed)


def _one_sided(signed: Histogram, prior: NoisePrior) -> Lopsided:
    """The noise and one-sided outliers for a histogram with signs."""
    tau, model, _ = global_step(FlatSlab, signed, prior, little=ROUGHLY)
    return Lopsided(*sided_step(tau, model, signed, prior))


class Shifted(Move):
    """One-sided outliers about a shifted low-rank part, then without a component that holds their mean.

    Both again as long as they are accepted. ``memory`` is the number of those tried.
    """

    name = "shifted"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        ways = ((shifted, Kind.REFRESH, "shifted"), (without_their_mean, Kind.DEATH, "died 1"))
        point, state = progress.point, progress.point.state
        structure = state.structure or OutlierStructure()
        plain = not structure.modes and structure.law is None and state.smooth is None
        first = memory[0] if memory else 0
        if not (state.local.has_outliers and plain):
            return None, (len(ways),)
        for number, (propose, kind, words) in enumerate(ways[first:], start=first + 1):
            proposed = propose(progress.problem, point)
            if proposed is not None and proposed.rank <= progress.most:
                if structure.sides is None:
                    kind, words = Kind.SIDES, "one-sided outliers"
                trial = progress.trial(kind, words, proposed, settled(8, 60), then=Sweeps(progress.roughly, 60))
                return trial, (number,)
        return None, (len(ways),)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return () if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)
