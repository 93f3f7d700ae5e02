"""Outliers of one side whose mean the low-rank part has taken up.

Many one-sided outliers hardly larger than the noise look like symmetric noise about a low-rank part that is too high
or too low by a constant. Only lowering it and making them one-sided at once raises the bound. Proposes that, with the
shift that promises most, where the residuals are skewed. Costs one pass, and where they are skewed one more for every
shift that is looked at.
"""

from __future__ import annotations

import math
from dataclasses import replace

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
from brtf.model.state import OutlierStructure, Sides, State
from brtf.search.components import add_components
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, settled
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
    state, prior, tau = point.state, noise_prior(point.state), float(point.state.tau.mean)
    penalty, noise = point.deviations.penalty, tau**-0.5
    signed = deviation_histogram(problem, state, point.fit, penalty, signed=True)
    sides = None if state.structure is None else state.structure.sides
    if sides is None:
        skew, present = skewness(signed, tau), worth(tau, state.local_model, signed, prior)
    else:
        skew = math.copysign(SKEWED, sides.mean - 0.5)
        sided = replace(signed, log_sides=sides.mean_logs)
        present = worth(tau, state.local_model, sided, prior) - sides.kl
    if abs(skew) < SKEWED:
        return None
    *_, last = _one_sided(signed, prior)  # so that only what the shift itself gains counts
    best, most = None, max(present, last) + WORTH
    for size in SHIFTS:
        shift = math.copysign(size * noise, skew)

        def lifted(block: Block, shift: float = shift) -> Array:
            return point.fit.residual(block) + shift

        fit = Fit(Remembered(problem.observations, lifted), point.fit.variance)
        moved = deviation_histogram(problem, state, fit, penalty, signed=True)
        precision, model, likely, value = _one_sided(moved, prior)
        if value > most and model.probability < MAJORITY:
            best, most = (shift, precision, model, likely), value
        if value < last:  # past the best one
            break
        last = value
    if best is None:
        return None
    shift, precision, model, likely = best
    lengths, size = problem.observations.shape, abs(shift) ** (1.0 / problem.observations.order)
    columns = [np.full((length, 1), size) for length in lengths]
    columns[0] *= -math.copysign(1.0, shift)
    joined = add_components(problem, replace(state, structure=None), columns)
    if joined.rank == state.rank:
        return None
    structure = replace(state.structure or OutlierStructure(), sides=likely)
    return with_noise(replace(joined, structure=structure), precision, model, problem.observations.n_observed)


def _one_sided(signed: Histogram, prior: NoisePrior) -> tuple[float, LocalModel, Sides, float]:
    """Noise and one-sided outliers with an edge for a histogram with signs, and what they are worth."""
    tau, model, _ = global_step(FlatSlab, signed, prior, little=ROUGHLY)
    return sided_step(tau, model, signed, prior)


class Shifted(Move):
    """One-sided outliers about a shifted low-rank part, and further shifts as long as they are accepted."""

    name = "shifted"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        return (None if memory else self._proposal(progress)), ("asked",)

    def _proposal(self, progress: Progress) -> Trial | None:
        point, state = progress.point, progress.point.state
        structure = state.structure or OutlierStructure()
        plain = not structure.modes and structure.law is None and state.smooth is None
        if not (state.local.has_outliers and plain and point.rank < progress.most):
            return None
        proposed = shifted(progress.problem, point)
        if proposed is None:
            return None
        kind, words = Kind.SIDES, "one-sided outliers"
        if structure.sides is not None:
            kind, words = Kind.REFRESH, "shifted"
        return progress.trial(kind, words, proposed, settled(8, 60), then=Sweeps(progress.roughly, 60))

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return () if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return memory == ("asked",)
