"""Outlier rates that differ between the slices of the noise.

Proposes them, settled at fixed factors, at the cost of about twenty passes. Tried where the noise differs between
slices and outliers are not shared.
"""

from __future__ import annotations

from dataclasses import replace

from brtf.inference.entry_posterior import initial_rates
from brtf.inference.learn_noise import settle_noise
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.model.state import OutlierStructure
from brtf.search.move import Once, Progress, Trial


class Rates(Once):
    """An outlier rate for every slice."""

    name = "rates"

    def proposal(self, progress: Progress) -> Trial | None:
        state, problem = progress.point.state, progress.problem
        structure = state.structure or OutlierStructure()
        if state.slices is None or not state.local.has_outliers or structure.modes or structure.rates:
            return None
        rates = initial_rates(state.slices.modes, state.slices.precision.rate.size, state.local_model.probability)
        state = replace(state, structure=replace(structure, rates=rates))
        point = settle_noise(problem, evaluate_at(problem, state, progress.point.fit))
        return progress.trial(Kind.RATES, "outlier rates per slice", point)
