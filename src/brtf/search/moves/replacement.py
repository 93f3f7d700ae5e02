"""Return from replacement to additive outliers where the data do not support replacement.

A histogram with 256 free parameters can fit any noise better than a noise model, but then carries no information about
x or the noise. Proposes additive outliers where replacement leaves too few entries to learn the noise and, at the end
of the search, where the gain in the bound is below the complexity penalty of the histogram. Costs about a dozen passes;
always accepted.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.learn_noise import learn_noise_globally, settle_noise, slice_noise, with_noise
from brtf.inference.point import Point, evaluate_at
from brtf.inference.trace import Kind
from brtf.model.local_models import PROBABILITY_RANGE
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.starts import START_MODEL

FEWEST_REGULAR = 10.0
"""Entries not replaced that are needed to learn the noise."""


class Replacement(Once):
    """Additive outliers instead of replacement; only the ``last`` such move applies the complexity penalty."""

    def __init__(self, *, last: bool = False) -> None:
        self.last = last
        self.name = "replacement at the end" if last else "replacement"

    def proposal(self, progress: Progress) -> Trial | None:
        point = progress.point
        state, sums = point.state, point.structure_sums
        if state.structure is None or state.structure.law is None or sums is None:
            return None
        n_observed = progress.problem.observations.n_observed
        n_regular = float(sums.regular_counts.sum())
        enough = max((1.0 - PROBABILITY_RANGE[1]) * n_observed, min(FEWEST_REGULAR, 0.5 * n_observed))
        price = state.structure.law.price(sums.law)
        added = with_added_outliers(progress)
        if n_regular >= enough and (not self.last or point.bound - price >= added.bound):
            return None
        words = f"outliers added, as replacement left {n_regular:.0f} entries, at a price of {price:.0f}"
        then = Sweeps(progress.roughly, 60) if self.last else None
        return progress.trial(Kind.ADDITIVE, words, added, worth=-math.inf, then=then)


def with_added_outliers(progress: Progress) -> Point:
    """The best point with additive outliers, noise and outlier parameters re-estimated at its factors."""
    problem, point = progress.problem, progress.point
    slices = point.state.slices
    state = with_noise(point.state, 1.0, START_MODEL, problem.observations.n_observed)
    point = evaluate_at(problem, replace(state, slices=None, structure=None), point.fit)
    point = evaluate_at(problem, learn_noise_globally(problem, point), point.fit)
    if slices is not None:
        point = evaluate_at(problem, slice_noise(problem, point.state, slices.modes), point.fit)
    structure = progress.options.structure(point.state.local_model.probability)
    if structure is not None:
        point = evaluate_at(problem, replace(point.state, structure=structure), point.fit)
    return settle_noise(problem, point)
