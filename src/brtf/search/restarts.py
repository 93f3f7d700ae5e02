"""Fits from nothing: the starts of a search, and proposals of many components at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brtf.inference.sweep import (
    Point,
    Problem,
    evaluate,
    evaluate_at,
    learn_noise,
    learn_noise_globally,
    slice_noise,
    sweep,
    with_noise,
)
from brtf.inference.updates import negligible_components, update_component_precisions
from brtf.model.distributions import RowGaussians
from brtf.model.local_models import GaussianSlab, SlabModel
from brtf.model.state import State
from brtf.search import proposals

WORTH = 1.0
"""Nats by which a structural change must raise the bound."""
START_MODEL = GaussianSlab(0.1, 4.0, 100.0)
"""Where local models start: some outliers, heavy tails, a slab ten times as wide as the noise."""
START_PRECISIONS = (8.0, 30.0)
"""Noise precisions of the starts, for data of unit scale."""
START_COMPONENTS = 10
"""Components of a spectral start; births add what is missing."""


def settle_noise(problem: Problem, point: Point) -> Point:
    """Settle noise that differs between slices, or outliers that hang together, at fixed factors."""
    for _ in range(10):
        point = evaluate_at(problem, learn_noise(problem, point), point.fit)
    return point


def prune(problem: Problem, point: Point) -> Point:
    """Drop components that explain nothing, if the bound agrees."""
    negligible = negligible_components(point.state, problem.observations.n_observed)
    if not negligible.any():
        return point
    pruned = evaluate(problem, point.state.select_components(~negligible))
    return pruned if pruned.bound >= point.bound else point


def portfolio(problem: Problem, max_rank: int, model: SlabModel | None) -> list[State]:
    """Starts to choose from: spectral ones at two noise levels, and what stays the same along a mode.

    At a high noise level weak components die before they are learnt; at a low one surplus components live on and have
    to be merged or removed. Neither is right everywhere.
    """
    spectral = proposals.spectral_start(problem, min(max_rank, START_COMPONENTS), model)
    starts = [with_noise(spectral, tau, model, problem.observations.n_observed) for tau in START_PRECISIONS]
    for mode in problem.modes:
        steady = proposals.steady_start(problem, mode, max_rank, model)
        if steady is not None:
            starts.append(steady)
    return starts


def waiting(start: State) -> State:
    """A start as it waits to be tried: one covariance stands for those of all rows of a mode, which are equal."""
    return replace(start, factors=tuple(RowGaussians(rows.mean, rows.cov_packed[:1].copy()) for rows in start.factors))


def apart(start: State) -> State:
    """The same as it is tried: every row has its covariance."""
    factors = (RowGaussians(rows.mean, np.repeat(rows.cov_packed, rows.n_rows, axis=0)) for rows in start.factors)
    return replace(start, factors=tuple(factors))


def anneal(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at low noise on clipped data, then a level at which surplus ones die."""
    clipped = replace(problem, limit=5.0)
    state = _fit_by_least_squares(clipped, n_components, 300.0, rng)
    completed = replace(problem, collapsed=False)
    slab = GaussianSlab(0.05, 30.0, 60.0) if isinstance(present.outliers, SlabModel) else None
    point = evaluate(completed, with_noise(state, 30.0, slab, problem.observations.n_observed), ahead=True)
    for _ in range(100):
        before = point
        point = prune(completed, sweep(completed, point, hold_noise=True, ahead=True))
        if point.bound - before.bound < WORTH and point.rank == before.rank:
            break
    return _with_noise_like(problem, point.state, present)


def least_squares(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at very low noise, for data whose slices differ much in level."""
    state = _fit_by_least_squares(problem, n_components, 1e4, rng)
    return update_component_precisions(_with_noise_like(problem, state, present))


def _with_noise_like(problem: Problem, state: State, present: State) -> State:
    """The state with noise and outliers of the present kind, their numbers learnt from its own residuals."""
    if isinstance(present.outliers, SlabModel) and state.outliers is None:
        state = replace(state, outliers=START_MODEL)
    point = evaluate(problem, state)
    state = learn_noise_globally(problem, point)
    if present.slices is None and present.structure is None:
        return state
    if present.slices is not None:
        state = slice_noise(problem, state, present.slices.modes)
    state = replace(state, structure=present.structure)
    return settle_noise(problem, evaluate_at(problem, state, point.fit)).state


def _fit_by_least_squares(problem: Problem, n_components: int, precision: float, rng: np.random.Generator) -> State:
    """Random components, then sweeps without outliers at a held noise level: regularised alternating least squares."""
    plain = replace(problem, collapsed=False)
    state = proposals.random_start(plain, n_components, None, rng)
    point = evaluate(plain, with_noise(state, precision, None, problem.observations.n_observed), ahead=True)
    for _ in range(30):
        point = sweep(plain, point, hold_precisions=True, hold_noise=True, ahead=True)
    return point.state
