"""When a run ends, and why: functions of the trace and of the last state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brtf.inference.trace import Kind, Record, StopReason
from brtf.model.settings import Settings
from brtf.model.state import LARGEST_PRECISION, State
from brtf.search.moment import Moment
from brtf.search.position import Position


def end_of(moment: Moment, settings: Settings, n_observed: int) -> StopReason | None:
    """Why a run ends at this moment; None if it continues."""
    reason = stop_reason(moment.trace, settings, n_observed) if moment.trace else None
    if reason is None and moment.state is not None and is_last(moment.position):
        return end_of_search(moment.state)
    return reason


def is_last(position: Position | None) -> bool:
    """Whether the search is complete."""
    return position is not None and position.is_last


def stop_reason(trace: Sequence[Record], settings: Settings, n_observed: int) -> StopReason | None:
    """The stopping rule, a function of the trace alone. The bound may cross zero, so no ratios of bounds are used.

    The paper's inference stops when the bound has converged or no component is left; calibrated inference ends by
    itself.
    """
    last = trace[-1]
    if not np.isfinite(last.bound):
        return StopReason.NOT_FINITE
    if settings.inference == "paper":
        undisturbed = len(trace) > 1 and last.event.kind is trace[-2].event.kind is Kind.SWEEP
        # at rank 0 only S and γ are left, which keep creeping
        tol = settings.tol if last.rank else max(settings.tol, 1e-4)
        if undisturbed and abs(last.bound - trace[-2].bound) < tol * n_observed:
            return StopReason.CONVERGED if last.rank else StopReason.RANK_ZERO
    return StopReason.MAX_SWEEPS if last.sweep >= settings.max_sweeps else None


def end_of_search(state: State) -> StopReason:
    if float(state.tau.mean) > 0.99 * LARGEST_PRECISION:
        return StopReason.BELOW_RESOLUTION
    return StopReason.CONVERGED if state.rank else StopReason.RANK_ZERO
