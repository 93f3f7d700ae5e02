"""Rows that are expected around a learnt centre instead of zero.

Proposes a centre for every mode whose rows' divergence from their prior it lowers by a nat. Costs a pass. Worth asking
while some mode has none.
"""

from __future__ import annotations

from brtf.inference.judge import WORTH
from brtf.inference.sweep import evaluate_at
from brtf.inference.trace import Kind
from brtf.inference.updates import update_component_precisions
from brtf.search.move import Once, Progress, Sweeps, Trial


class Centres(Once):
    """Centres of the rows, for each mode that they pay for."""

    name = "centres"

    def proposal(self, progress: Progress) -> Trial | None:
        point = progress.point
        state = point.state
        for mode, rows in enumerate(state.factors):
            centred = rows.centred(state.lam)
            if rows.centre is None and state.rank and centred.kl(state.lam) < rows.kl(state.lam) - WORTH:
                state = state.with_factor(mode, centred)
        if state is point.state:
            return None
        modes = tuple(mode for mode, rows in enumerate(state.factors) if rows.centre is not None)
        point = evaluate_at(progress.problem, update_component_precisions(state), point.fit)
        return progress.trial(Kind.CENTRES, f"rows of modes {modes} centred", point, then=Sweeps(progress.roughly, 60))
