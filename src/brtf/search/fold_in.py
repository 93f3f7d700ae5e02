"""Rows of the first mode for new data, with everything else held fixed."""

from __future__ import annotations

import numpy as np

from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.inference import paper
from brtf.inference.entry_posterior import grouped
from brtf.inference.factor_update import update_all_factors
from brtf.inference.learn_noise import with_smooth_as_noise
from brtf.inference.problem import Fit, Problem
from brtf.model.distributions import RowGaussians
from brtf.model.row_priors import RowPrior
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.search.robust_rows import robust_rows


def typical_rows(state: State) -> State:
    """The state for new rows of the first mode, whose noise and outlier rate are typical ones."""
    state = state.without_slices_along(0)
    return state if state.smooth is None else with_smooth_as_noise(state)


def fold_in(
    observations: Observations, state: State, settings: Settings, following: Array | None = None
) -> tuple[RowGaussians, RowPrior]:
    """Rows of the first mode for new data and their prior, in the units of the state, with everything else held fixed.

    They continue the rows of the state if ``following``, at these distances (n,) from the last one and from each other.
    Their entries may be outliers like any others.
    """
    if settings.inference == "paper":
        return paper.fold_in(observations, state, settings.max_sweeps)
    state = typical_rows(state)
    if state.structure is not None:
        observations = grouped(observations, state.structure.modes)
    problem = Problem(observations, (0,), collapsed=True)
    start = RowGaussians(np.zeros((observations.shape[0], state.rank)), np.eye(state.rank)[None])
    prior = state.row_priors[0].for_new_rows(start.n_rows, None if following is None else state.factors[0])
    prior = prior if following is None else prior.at_steps(following)
    if state.rank == 0:  # nothing to fit
        return start, prior
    state = state.with_factor(0, start, prior)
    if not state.local_model.is_gaussian:
        state = state.with_factor(0, robust_rows(problem, state, 0))
    for _ in range(settings.max_sweeps):
        previous = state.factors[0].mean
        state = update_all_factors(problem, state, Fit.of(problem, state))
        mean = state.factors[0].mean
        if np.allclose(mean, previous, rtol=1e-8, atol=1e-8 * np.abs(mean).max(initial=0.0)):
            break
    return state.factors[0], state.row_priors[0]
