"""Outliers that are shared between entries, have rates of labels or replace the data, as the user requires.

Proposes them with their parameters settled at fixed factors; always accepted. Costs about ten passes, once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from brtf.data.blocks import Block
from brtf.data.passes import Sums, visit
from brtf.inference.entry_posterior import initial_law
from brtf.inference.learn_noise import settle_noise
from brtf.inference.point import evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.model.state import OutlierStructure, ReplacementLaw
from brtf.search.move import Once, Progress, Sweeps, Trial


class Structure(Once):
    """The outlier structure that the settings require."""

    name = "structure"

    def proposal(self, progress: Progress) -> Trial | None:
        options, problem, point = progress.options, progress.problem, progress.point
        if not options.structured:
            return None
        law = law_of_values(problem) if options.replaced else None
        asked = options.structure(point.state.local_model.probability) or OutlierStructure()
        state = replace(point.state, structure=replace(asked, law=law))
        settled = settle_noise(problem, evaluate_at(problem, state, point.fit))
        return progress.trial(
            Kind.STRUCTURE, "outliers structured", settled, worth=-math.inf, then=Sweeps(progress.roughly, 60)
        )


def law_of_values(problem: Problem) -> ReplacementLaw:
    """A uniform law of replaced values, over the values that occur.

    Bins of rounded data are levels, or wider: a narrower bin would have a density that no noise can have.
    """
    return initial_law(*value_range(problem), step=math.sqrt(12.0 / problem.largest_precision))


def value_range(problem: Problem) -> tuple[float, float]:
    """The smallest and the largest value, in units of the data's scale."""

    def look(_: Sums, block: Block) -> tuple[float, float]:
        values = problem.values(block)
        return float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))

    _, ranges = visit(problem.observations, tuple, look)
    return min(low for low, _ in ranges), max(high for _, high in ranges)
