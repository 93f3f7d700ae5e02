"""Another prior for a mode's rows, such as one around a learnt centre instead of zero.

Proposes for every mode the prior that lowers the divergence of its rows most, if by a nat or more. Costs one pass.
Worth trying after every change of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.positions import Positions
from brtf.inference.judge import WORTH
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.inference.updates import update_component_precisions
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import ROW_PRIORS, Ordered, RowPrior, ZeroMean
from brtf.model.row_priors.ordered import FEWEST_ROWS
from brtf.model.state import State
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.options import SearchOptions
from brtf.search.periods_of_rows import likeliest_periods


class RowPriors(Once):
    """The best row prior of every mode."""

    name = "row prior"

    def proposal(self, progress: Progress) -> Trial | None:
        state, chosen = with_best_row_priors(progress.point.state, WORTH, progress.options)
        if not chosen:
            return None
        point = evaluate_at(progress.problem, update_component_precisions(state), progress.point.fit)
        rows = ", ".join(f"mode {mode} {name}" for mode, name in chosen.items())
        kind = Kind.ORDER if Ordered.name in chosen.values() else Kind.ROW_PRIOR
        return progress.trial(kind, f"rows of {rows}", point, then=Sweeps(progress.roughly, 60))


def with_best_row_priors(
    state: State, worth: float, options: SearchOptions | None = None
) -> tuple[State, dict[int, str]]:
    """The state with the best row prior of every signed mode, changed only for a gain of at least ``worth`` nats.

    Modes that are to be in order stay so. Also returns the names of the priors that changed, by mode.
    """
    chosen: dict[int, str] = {}
    for mode, (rows, present) in enumerate(zip(state.factors, state.row_priors, strict=True)):
        if not present.signed:
            continue
        kinds = ROW_PRIORS.values() if state.rank else (ZeroMean,)  # what is learnt of rows costs nats without them too
        others: list[RowPrior | None] = []
        if options is None or mode not in options.ordered_modes:
            others = [kind.proposed(rows, state.lam) for kind in kinds if type(present) is not kind]
        if state.rank and options is not None and mode in (*options.ordered_modes, *options.undecided_modes):
            others += _other_centres(present, rows, state.lam, options.positions[mode])
        best, least = present, present.kl(rows, state.lam) - worth
        for other in others:
            if other is not None and other.kl(rows, state.lam) < least:
                best, least = other, other.kl(rows, state.lam)
        if best is not present:
            state, chosen[mode] = state.with_factor(mode, rows, best), best.name
    return state, chosen


def _other_centres(present: RowPrior, rows: RowGaussians, lam: Gamma, positions: Positions) -> list[RowPrior | None]:
    """Chains around other centres: zero, one, or one for every phase of a period."""
    if rows.n_rows < FEWEST_ROWS or not isinstance(present, Ordered):
        return []
    periods = likeliest_periods(rows, lam, positions)
    phases = [positions.places % period for period in periods]
    groups: list[NDArray[Any] | None] = [None, np.zeros(rows.n_rows)]
    groups += [one for one in phases if 2 * (int(one.max()) + 1) <= rows.n_rows]
    others = (present.regrouped(rows, lam, one) for one in groups)
    return [
        other.learnt(rows, lam)
        for other in others
        if not np.array_equal(other.groups, present.groups) or other.centre.shape != present.centre.shape
    ]
