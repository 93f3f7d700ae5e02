"""The paper's inference: Algorithm 1 of Zhao et al., mean field over every factor, S and γ kept per entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.inference.bound import BoundTerms, bound_terms
from brtf.inference.statistics import entry_values, fit_at_entries
from brtf.inference.trace import SWEPT, Event, Kind, Record
from brtf.inference.update_rows import update_factor
from brtf.inference.updates import (
    learn_outlier_prior,
    negligible_components,
    update_component_precisions,
    update_noise,
    update_outlier_precisions,
    update_outliers,
)
from brtf.model.distributions import RowGaussians
from brtf.model.row_priors import RowPrior
from brtf.model.state import MeanFieldOutliers, State

OUTLIER_STEPS = 5
"""Alternations of q(s) and q(γ) per update of the rows in fold-in; they converge more slowly than the rows."""


def sweep(observations: Observations, state: State, values: Array) -> tuple[State, BoundTerms]:
    """One sweep of Algorithm 1: A⁽¹⁾ … A⁽ᴺ⁾, λ, τ, S, γ, and the bound of the resulting state."""
    for mode in range(observations.order):
        state = update_factor(observations, state, mode, _explained(state, values))
    state = update_component_precisions(state)
    fit = fit_at_entries(observations, state.factors)
    state = update_noise(state, fit)
    if isinstance(state.local, MeanFieldOutliers):
        outliers = update_outliers(state.local, fit.residual, float(state.tau.mean))
        state = replace(state, local=update_outlier_precisions(outliers))
    return state, bound_terms(state, fit)


def sweeps(observations: Observations, state: State, n_sweeps: int = 0) -> Iterator[tuple[State, Record]]:
    """Sweep indefinitely, learning (a₀, b₀) and pruning after each bound; yields every state with its record.

    ``n_sweeps`` is the number of earlier sweeps.
    """
    values = entry_values(observations)
    while True:
        n_sweeps += 1
        state, terms = sweep(observations, state, values)
        if isinstance(state.local, MeanFieldOutliers):
            state = replace(state, local=learn_outlier_prior(state.local))
        negligible = negligible_components(state, observations.n_observed)
        event = SWEPT
        if negligible.any():
            event = Event(Kind.PRUNE, words=f"pruned {np.count_nonzero(negligible)}")
            state = state.select_components(~negligible)
        yield state, Record(n_sweeps, terms.total, state.rank, state.noise_variance, event)


def fold_in(observations: Observations, state: State, max_sweeps: int) -> tuple[RowGaussians, RowPrior]:
    """Rows of the first mode for new data and their prior, all else fixed: U1, U3 and U4 until convergence."""
    values = entry_values(observations)
    if isinstance(state.local, MeanFieldOutliers):
        nothing = replace(state.local, mean=np.zeros_like(values), var=np.zeros_like(values))
        state = replace(state, local=nothing)
    start = RowGaussians(np.zeros((observations.shape[0], state.rank)), np.eye(state.rank)[None])
    state = state.with_factor(0, start, state.row_priors[0].for_new_rows(start.n_rows))
    for _ in range(max_sweeps):
        previous = state.factors[0].mean
        state = update_factor(observations, state, 0, _explained(state, values))
        outliers, mean = state.local, state.factors[0].mean
        settled = np.allclose(mean, previous, rtol=1e-8, atol=1e-8 * np.abs(mean).max(initial=0.0))
        if settled or not isinstance(outliers, MeanFieldOutliers):
            break
        fit = fit_at_entries(observations, state.factors)
        for _ in range(OUTLIER_STEPS):
            outliers = update_outlier_precisions(outliers)
            outliers = update_outliers(outliers, fit.residual, float(state.tau.mean))
        state = replace(state, local=outliers)
    return state.factors[0], state.row_priors[0]


def _explained(state: State, values: Array) -> Array:
    """y − s̄, the target of the low-rank part."""
    return values - state.local.mean if isinstance(state.local, MeanFieldOutliers) else values
