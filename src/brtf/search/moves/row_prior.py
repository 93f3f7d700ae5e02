"""Another prior for a mode's rows, such as one around a learnt centre instead of zero.

Proposes for every mode the prior that lowers the divergence of its rows most, if by a nat or more. Costs one pass.
Worth trying after every change of the rows.
"""

from __future__ import annotations

from brtf.inference.judge import WORTH
from brtf.inference.sweep import evaluate_at
from brtf.inference.trace import Kind
from brtf.inference.updates import update_component_precisions
from brtf.model.row_prior import ROW_PRIORS
from brtf.model.state import State
from brtf.search.move import Once, Progress, Sweeps, Trial


class RowPriors(Once):
    """The best row prior of every mode."""

    name = "row prior"

    def proposal(self, progress: Progress) -> Trial | None:
        state, chosen = with_best_row_priors(progress.point.state, WORTH)
        if not chosen:
            return None
        point = evaluate_at(progress.problem, update_component_precisions(state), progress.point.fit)
        rows = ", ".join(f"mode {mode} {name}" for mode, name in chosen.items())
        return progress.trial(Kind.ROW_PRIOR, f"rows of {rows}", point, then=Sweeps(progress.roughly, 60))


def with_best_row_priors(state: State, worth: float) -> tuple[State, dict[int, str]]:
    """The state with the best row prior of every mode, changed only for a gain of at least so many nats.

    Also returns the names of the priors that changed, by mode.
    """
    chosen: dict[int, str] = {}
    for mode, (rows, present) in enumerate(zip(state.factors, state.row_priors, strict=True)):
        best, least = present, present.kl(rows, state.lam) - worth
        for kind in ROW_PRIORS.values():
            other = kind.proposed(rows, state.lam) if type(present) is not kind and state.rank else None
            if other is not None and other.kl(rows, state.lam) < least:
                best, least = other, other.kl(rows, state.lam)
        if best is not present:
            state, chosen[mode] = state.with_factor(mode, rows, best), best.name
    return state, chosen
