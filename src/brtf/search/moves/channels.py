"""How many independent entries those are worth that share an outlier.

Proposes the number that the correlation of their noise shows. Costs a pass, once, after outliers were made to be
shared; from then on the bound measures something else, and is not compared with earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.entry_posterior import measured_channels
from brtf.inference.sweep import evaluate_at
from brtf.inference.trace import Kind
from brtf.search.move import Once, Progress, Trial


class Channels(Once):
    """The effective number of entries that share an outlier."""

    name = "channels"

    def proposal(self, progress: Progress) -> Trial | None:
        point, shared_modes = progress.point, progress.wishes.shared_modes
        structure, sums = point.state.structure, point.structure_sums
        if not shared_modes or structure is None or sums is None:
            return None
        n_shared = math.prod(progress.problem.observations.shape[mode] for mode in shared_modes)
        structure = measured_channels(structure, sums, n_shared)
        measured = evaluate_at(progress.problem, replace(point.state, structure=structure), point.fit)
        words = f"bound re-scaled: {structure.n_channels:.2f} shared entries worth one"
        return progress.trial(Kind.CHANNELS, words, measured, worth=-math.inf)
