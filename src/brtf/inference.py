"""The loop: sweeps over the posterior factors, one record each, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from brtf.bound import BoundTerms, bound_terms
from brtf.distributions import RowGaussians
from brtf.model import State
from brtf.observations import Observations
from brtf.settings import Settings
from brtf.starts import entry_values, paper_start
from brtf.updates import (
    fit_at_entries,
    learn_outlier_prior,
    negligible_components,
    update_component_precisions,
    update_factor,
    update_noise,
    update_outlier_precisions,
    update_outliers,
)

OUTLIER_STEPS = 5
"""Alternations of q(s) and q(γ) per step of folding in; they settle slowly, and the rows wait for them."""


class StopReason(Enum):
    """Why a fit ended; the value is the sentence shown to the user."""

    CONVERGED = "Converged: the bound changed by less than tol per observed entry."
    RANK_ZERO = "Converged to rank 0: the data support no low-rank component."
    MAX_SWEEPS = "Stopped after max_sweeps sweeps before the bound settled; raise max_sweeps or tol."
    NOT_FINITE = "Stopped because the bound was no longer finite; the last finite state was kept."

    @property
    def converged(self) -> bool:
        return self in (StopReason.CONVERGED, StopReason.RANK_ZERO)


@dataclass(frozen=True)
class Record:
    """One line of the trace: what a sweep left behind. The bound is in nats, for the data in units of their scale."""

    sweep: int
    bound: float
    rank: int
    noise_variance: float
    event: str = ""


def sweep(observations: Observations, state: State, values: np.ndarray) -> tuple[State, BoundTerms]:
    """Algorithm 1 of the paper, one pass: A⁽¹⁾ … A⁽ᴺ⁾, λ, τ, S, γ, and the bound of the state they leave."""
    targets = values if state.outliers is None else values - state.outliers.mean
    for mode in range(observations.order):
        state = update_factor(observations, state, mode, targets)
    state = update_component_precisions(state)
    fit = fit_at_entries(observations, state.factors)
    state = update_noise(state, fit)
    if state.outliers is not None:
        outliers = update_outliers(state.outliers, fit.residual, float(state.tau.mean))
        state = replace(state, outliers=update_outlier_precisions(outliers))
    return state, bound_terms(state, fit)


def sweeps(observations: Observations, state: State) -> Iterator[tuple[State, Record]]:
    """Sweep for ever, learning (a₀, b₀) and pruning after each bound; yields every state with its record."""
    values = entry_values(observations)
    n_sweeps = 0
    while True:
        n_sweeps += 1
        state, terms = sweep(observations, state, values)
        if state.outliers is not None:
            state = replace(state, outliers=learn_outlier_prior(state.outliers))
        negligible = negligible_components(state, observations.n_observed)
        event = f"pruned {np.count_nonzero(negligible)}" if negligible.any() else ""
        if event:
            state = state.select_components(~negligible)
        yield state, Record(n_sweeps, terms.total, state.rank, 1.0 / float(state.tau.mean), event)


def stop_reason(trace: Sequence[Record], settings: Settings, n_observed: int) -> StopReason | None:
    """Whether the trace says to stop: a function of nothing else. The bound may cross zero, so never of a ratio."""
    last = trace[-1]
    if not np.isfinite(last.bound):
        return StopReason.NOT_FINITE
    if len(trace) > 1 and not last.event and not trace[-2].event:
        if abs(last.bound - trace[-2].bound) < settings.tol * n_observed:
            return StopReason.CONVERGED if last.rank else StopReason.RANK_ZERO
    return StopReason.MAX_SWEEPS if last.sweep >= settings.max_sweeps else None


def run(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    watch: Callable[[Record], object] | None = None,
) -> tuple[State, list[Record], StopReason]:
    """Start, sweep until the trace says to stop, and return the last finite state, the trace and the reason."""
    state = paper_start(observations, settings, rng)
    trace: list[Record] = []
    for new_state, record in sweeps(observations, state):
        trace.append(record)
        if watch is not None:
            watch(record)
        reason = stop_reason(trace, settings, observations.n_observed)
        if reason is not StopReason.NOT_FINITE:
            state = new_state
        if reason is not None:
            return state, trace, reason
    raise AssertionError("sweeps() never ends")  # pragma: no cover


def fold_in(observations: Observations, state: State, settings: Settings) -> RowGaussians:
    """Rows of the first mode for new data, with the other modes, λ and τ held: U1, U3 and U4 until they settle.

    ``observations`` must be in the units of the state. Entries of new rows carry their own outliers.
    """
    values = entry_values(observations)
    outliers = None
    if state.outliers is not None:
        outliers = replace(state.outliers, mean=np.zeros_like(values), var=np.zeros_like(values))
    start = RowGaussians(np.zeros((observations.shape[0], state.rank)), np.eye(state.rank)[None])
    state = replace(state, outliers=outliers).with_factor(0, start)
    previous = start.mean
    for _ in range(settings.max_sweeps):
        targets = values if state.outliers is None else values - state.outliers.mean
        state = update_factor(observations, state, 0, targets)
        mean = state.factors[0].mean
        if state.outliers is None or np.allclose(mean, previous, rtol=1e-8, atol=1e-8 * np.abs(mean).max(initial=0.0)):
            break
        previous = mean
        fit = fit_at_entries(observations, state.factors)
        updated = state.outliers
        for _ in range(OUTLIER_STEPS):
            updated = update_outlier_precisions(updated)
            updated = update_outliers(updated, fit.residual, float(state.tau.mean))
        state = replace(state, outliers=updated)
    return state.factors[0]
