"""Add components to a state, remove them, and measure how similar they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.inference.learn_noise import retemper, with_noise
from brtf.inference.problem import Problem
from brtf.inference.updates import update_component_precisions
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import LocalModel
from brtf.model.row_priors import NonNegative
from brtf.model.state import Prior, State

SMALL_VARIANCE = 1e-3
"""Posterior variance of a new component relative to its mean square: certain enough not to be pruned at once."""


def empty_state(problem: Problem, model: LocalModel) -> State:
    """The state of rank 0: noise and outliers only."""
    observations = problem.observations
    state = State(
        prior=Prior(tau_rate=1e-18, largest_precision=problem.largest_precision),
        factors=tuple(
            RowGaussians(np.zeros((length, 0)), np.zeros((n_covariances(problem, length), 0, 0)))
            for length in observations.shape
        ),
        lam=Gamma(np.zeros(0), np.zeros(0)),
        tau=Gamma(np.asarray(1.0), np.asarray(1.0)),
        local=model,
    )
    return with_noise(state, 1.0, model, observations.n_observed)


def add_components(problem: Problem, state: State, columns: list[Array]) -> State:
    """The state with the given factor columns (I_n, K) appended as components, balanced, and the noise retempered.

    In modes without negative loadings only the positive part of a column is kept, with the signs that keep most.
    Their variance is a small share of their power, and small enough that Var x stays below the noise: otherwise every
    entry of an accurate fit would look like an outlier.
    """
    unsigned = [mode for mode, prior in enumerate(state.row_priors) if not prior.signed]
    flips = best_signs(columns, unsigned)
    columns = [column * flip for column, flip in zip(columns, flips, strict=True)]
    columns = [np.maximum(column, 0.0) if mode in unsigned else column for mode, column in enumerate(columns)]
    power = np.array([np.mean(column**2, axis=0) for column in columns])
    used = np.flatnonzero(np.all(power > 0, axis=0))
    share = np.exp(np.mean(np.log(power[:, used]), axis=0))
    scaled = [column[:, used] * np.sqrt(share / own[used]) for column, own in zip(columns, power, strict=True)]

    def joined(variance: Array) -> State:
        factors = (rows.joined(own, variance) for rows, own in zip(state.factors, scaled, strict=True))
        return replace(state, factors=tuple(factors))

    tempered = retemper(problem, joined(SMALL_VARIANCE * share))
    var_share = len(columns) * float(tempered.tau.mean) * share ** len(columns)
    noise_share = 1.0 / np.maximum(var_share, 1e-300)
    variance = share * np.minimum(SMALL_VARIANCE, noise_share)
    joint = replace(tempered, factors=joined(variance).factors, row_priors=())  # λ under the paper's prior
    joint = update_component_precisions(joint)
    for mode, prior in enumerate(state.row_priors):
        joint = joint.with_factor(mode, *prior.adapted(joint.factors[mode], joint.lam))
    return joint


def best_signs(columns: Sequence[Array], modes: Sequence[int]) -> Array:
    """Signs of the components in every mode, (N, K), with products of one, that make the given modes most positive.

    What a mode keeps is its share of squares above zero. Where all modes are given and the best signs have a product
    of −1, the mode that loses least keeps its lesser side.
    """
    order, rank = len(columns), columns[0].shape[1]
    signs = np.ones((order, rank))
    if not modes:
        return signs
    above, below = (
        np.array([np.sum(np.maximum(side * columns[mode], 0.0) ** 2, axis=0) for mode in modes]) + 1e-300
        for side in (1.0, -1.0)
    )
    signs[list(modes)] = np.where(above < below, -1.0, 1.0)
    odd = np.flatnonzero(np.prod(signs, axis=0) < 0.0)
    free = next((mode for mode in range(order) if mode not in modes), None)
    cheapest = np.asarray(modes)[np.argmin(np.abs(np.log(above / below)), axis=0)]
    signs[cheapest[odd] if free is None else free, odd] *= -1.0
    return signs


def without_negative(state: State, modes: Sequence[int]) -> State:
    """The state whose given modes, too, have no negative loadings: the nearest one, after the best change of signs."""
    new = [mode for mode in modes if state.row_priors[mode].signed]
    old = [mode for mode, prior in enumerate(state.row_priors) if not prior.signed]
    signs = best_signs([rows.mean for rows in state.factors], [*old, *new])
    for mode, sign in enumerate(signs):
        rows, prior = state.factors[mode], state.row_priors[mode]
        if mode in new:
            state = state.with_factor(mode, *NonNegative.of(rows.scaled(sign)))
        elif mode not in old and (sign < 0.0).any():
            state = state.with_factor(mode, rows.scaled(sign), prior.rescaled(sign))
    return state


def remove_components(state: State, components: NDArray[np.intp]) -> State:
    """The state without the given components."""
    return state.select_components(np.setdiff1d(np.arange(state.rank), components))


def component_cosines(columns: Array) -> Array:
    sized = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)  # squares of a vanishing component underflow
    unit = sized / np.maximum(np.linalg.norm(sized, axis=0), 1e-300)
    return unit.T @ unit


def effective_rows(columns: list[Array]) -> list[float]:
    """Effective number of rows of a component in every mode, (Σa²)²/Σa⁴."""
    return [float(np.sum(c**2) ** 2 / np.maximum(np.sum(c**4), 1e-300)) for c in columns]


def likeness_of_components(state: State) -> Array:
    """Similarity of each component to another one in two modes: the largest product of two cosines, (R,)."""
    cosines = np.sort([np.abs(component_cosines(rows.mean)) for rows in state.factors], axis=0)
    likeness = np.prod(cosines[-2:], axis=0)
    np.fill_diagonal(likeness, 0.0)
    return likeness.max(axis=1, initial=0.0)


def component_price(problem: Problem) -> float:
    """Approximate cost of a component's parameters in nats: ln M per row."""
    return float(sum(problem.observations.shape) * np.log(max(problem.observations.n_observed, 3)))


def n_covariances(problem: Problem, length: int) -> int:
    return 1 if problem.observations.layout == "complete" and not problem.collapsed else length
