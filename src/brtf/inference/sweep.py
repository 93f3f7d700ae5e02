"""Calibrated inference: sweeps with the local variables of the entries integrated out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brtf.inference.factor_update import FactorPlan, weighing
from brtf.inference.judge import judge
from brtf.inference.learn_noise import learn_noise
from brtf.inference.point import Point, evaluate, evaluate_at, local_posteriors_at
from brtf.inference.problem import Fit, Problem
from brtf.inference.smooth_residual import entry_precisions, update_smooth_residual
from brtf.inference.updates import negligible_components, update_component_precisions
from brtf.model.state import State

RELAXATION = 1.7
"""How far means move in all rounds of a sweep but the last, in units of what U1 asks: Young's optimum 2/(1 + √(1 − ρ))
for successive over-relaxation where the slowest error shrinks by ρ = .97 a round. Others gain too, as it is below 2."""
SINGULAR = 1e-12
"""Smallest relative eigenvalue of second moments that are rotated: below it the gain is lost in rounding."""


def sweep(
    problem: Problem,
    point: Point,
    *,
    hold_precisions: bool = False,
    hold_noise: bool = False,
    ahead: bool = False,
    n_rounds: int = 1,
) -> Point:
    """One sweep: noise and outlier parameters jointly, then q(A⁽ⁿ⁾) for every mode, then λ.

    The factors and λ may be updated in several rounds before the entries are looked at again, over-relaxed in all but
    the last, unless ``point`` has its next factors ahead. With the entries' weights and targets fixed, each round
    raises a lower limit of the bound that touches it at ``point``.
    """
    state = point.state if hold_noise else _with_noise_learnt(problem, point)
    options = {"hold_precisions": hold_precisions, "ahead": ahead}
    swept = _sweep_factors(problem, point, state, learn=not hold_noise, n_rounds=n_rounds, **options)
    if (hold_noise and n_rounds == 1) or judge(swept, point):
        return swept
    # the histogram is accurate to second order in its bins, and weights are no lower limit where ln f is not convex:
    # reject what lowers the exact bound
    return _sweep_factors(problem, point, point.state, learn=False, n_rounds=1, **options)


def _with_noise_learnt(problem: Problem, point: Point) -> State:
    """The state with its noise learnt; beside the sharp edge of a slab only if the exact bound does not fall.

    There the histogram is least accurate; and in form 2 of the bound a look at the entries costs little of a sweep.
    """
    state = learn_noise(problem, point)
    if state.local_model.pulls or not problem.collapsed:
        return state
    return state if judge(evaluate_at(problem, state, point.fit), point) else point.state


def _sweep_factors(
    problem: Problem, point: Point, state: State, *, learn: bool, hold_precisions: bool, ahead: bool, n_rounds: int
) -> Point:
    known = point.local if state is point.state else None
    precision = None
    if state.smooth is not None:  # with the weights of the same point as the factors'
        precision = entry_precisions(problem, state, known or local_posteriors_at(problem, state, point.fit))
    if point.ahead is not None:  # noise and factors were each updated given the other's old value
        state = _with_precisions(
            replace(state, factors=point.ahead.factors, row_priors=point.ahead.row_priors), hold_precisions
        )
    else:
        weigh = weighing(problem, state, point.fit, known)
        for relaxation in (*(RELAXATION,) * (n_rounds - 1), 1.0):
            state = _with_precisions(FactorPlan.of(problem, state).carry_out(weigh, relaxation), hold_precisions)
    if precision is not None:
        low_rank = Fit.without_smooth(problem, state.factors)
        state, fit = update_smooth_residual(problem, state, low_rank, precision, learn=learn)
        return evaluate_at(problem, state, fit, ahead=ahead)
    return evaluate(problem, state, ahead=ahead)


def _with_precisions(state: State, hold: bool) -> State:
    """The state with λ updated, unless it is held, along directions in which x does not change too."""
    return state if hold else update_component_precisions(balance(rotate(state)))


def balance(state: State) -> State:
    """C6: rescale every component to equal mean squares in all modes; the low-rank part is unchanged."""
    if state.rank == 0:
        return state
    squares = (prior.squares(rows) for prior, rows in zip(state.row_priors, state.factors, strict=True))
    mean_squares = np.array([power / n_counted for n_counted, power in squares])
    geometric = np.exp(np.mean(np.log(mean_squares), axis=0))
    ratios = np.sqrt(geometric / mean_squares)
    factors = tuple(rows.scaled(ratio) for rows, ratio in zip(state.factors, ratios, strict=True))
    row_priors = tuple(prior.rescaled(ratio) for prior, ratio in zip(state.row_priors, ratios, strict=True))
    return replace(state, factors=factors, row_priors=row_priors)


def rotate(state: State) -> State:
    """C22: rotate the components of a matrix so that both modes' second moments are diagonal, if the bound rises.

    For any T the rows Tᵀa and T⁻¹b have the same products: the low-rank part and its distribution are unchanged, and
    the bound changes by −½(I + J) Σ_r Δ ln(power of component r) + (I − J) ln|T|, with λ updated. Sweeps converge there
    too, but slowly, as the bound is flat along the rotation.
    """
    if len(state.factors) != 2 or state.rank < 2 or not all(prior.rotates for prior in state.row_priors):
        return state
    first, second = state.factors
    moments = [prior.second_moments(rows) for prior, rows in zip(state.row_priors, state.factors, strict=True)]
    values, vectors = np.linalg.eigh(moments[0])
    if not values[0] > SINGULAR * values[-1]:
        return state
    root = vectors * np.sqrt(values)
    strengths, turned = np.linalg.eigh(root.T @ moments[1] @ root)
    if not strengths[0] > SINGULAR**2 * strengths[-1]:
        return state
    turn = (vectors / np.sqrt(values)) @ turned * strengths**0.25 * (first.n_rows / second.n_rows) ** 0.25
    back = np.linalg.inv(turn)
    before = np.diag(moments[0]) + np.diag(moments[1])
    after = np.einsum("sr,st,tr->r", turn, moments[0], turn) + np.einsum("rs,st,rt->r", back, moments[1], back)
    log_det = float(np.linalg.slogdet(turn)[1])
    gain = (first.n_rows - second.n_rows) * log_det
    gain -= 0.5 * (first.n_rows + second.n_rows) * float(np.sum(np.log(after)) - np.sum(np.log(before)))
    if not gain > 0:
        return state
    return replace(state, factors=(first.transformed(turn, log_det), second.transformed(back.T, -log_det)))


def prune(problem: Problem, point: Point) -> Point:
    """The point without negligible components, if the bound does not fall."""
    negligible = negligible_components(point.state, problem.observations.n_observed)
    if not negligible.any():
        return point
    pruned = evaluate(problem, point.state.select_components(~negligible))
    return pruned if judge(pruned, point) else point
