"""The effective number of independent entries among those that share an outlier.

Proposes the number estimated from the correlation of their noise. Costs one pass, once, after shared outliers were
introduced. It redefines the bound, so that earlier bounds are not comparable.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.entry_posterior import measured_channels
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.search.move import Once, Progress, Trial


class Channels(Once):
    """The effective number of entries that share an outlier."""

    name = "channels"

    def proposal(self, progress: Progress) -> Trial | None:
        point, shared_modes = progress.point, progress.options.shared_modes
        structure, sums = point.state.structure, point.structure_sums
        if not shared_modes or structure is None or sums is None:
            return None
        n_shared = math.prod(progress.problem.observations.shape[mode] for mode in shared_modes)
        structure = measured_channels(structure, sums, n_shared)
        measured = evaluate_at(progress.problem, replace(point.state, structure=structure), point.fit)
        words = f"bound re-scaled: {structure.n_channels:.2f} shared entries worth one"
        return progress.trial(Kind.CHANNELS, words, measured, worth=-math.inf)
