"""One-sided outliers.

Proposes one-sided outliers or, where they are one-sided already, symmetric ones, which need no gain as the simpler
model. Costs one pass, and ten more where the histogram of deviations promises a gain. Not tried for shared outliers,
which have no common sign, nor for replacement, which has its own distribution. Where the user requires one-sided
outliers they are always accepted, and there is no way back.
"""

from __future__ import annotations

import math

from brtf.inference.judge import WORTH, judge
from brtf.inference.learn_noise import settle_noise, with_sides
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.model.state import OutlierStructure
from brtf.search.move import Once, Progress, Sweeps, Trial


class OneSided(Once):
    """One-sided outliers, or back to symmetric ones."""

    name = "sides"

    def proposal(self, progress: Progress) -> Trial | None:
        point, problem = progress.point, progress.problem
        structure = point.state.structure or OutlierStructure()
        if not point.state.local.has_outliers or structure.modes or structure.law is not None:
            return None
        asked = progress.options.one_sided
        if asked and structure.sides:
            return None
        worth = -math.inf if asked else 0.0 if structure.sides else WORTH
        state, promised = with_sides(problem, point)
        if not promised > worth:
            return None
        evaluated = evaluate_at(problem, state, point.fit)
        if not asked and not judge(evaluated, point):  # the histogram promised what the entries do not hold
            return None
        settled = settle_noise(problem, evaluated)
        kind, words = Kind.SIDES, "one-sided outliers"
        if structure.sides:
            kind, words = Kind.NO_SIDES, "outliers of either sign"
        return progress.trial(kind, words, settled, worth=worth, then=Sweeps(progress.roughly, 60))
