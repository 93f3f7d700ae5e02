"""Condensing: fewer components that describe the same low-rank part.

Proposes the best approximation of the low-rank part by fewer components, where some are similar. The approximation
needs no access to the data; settling costs up to 68 sweeps, and 60 more where the proposal is far from an accurate fit.
Worth trying after every change of the components.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.data.arrays import Array
from brtf.inference.judge import WORTH
from brtf.inference.point import Point
from brtf.inference.problem import Problem
from brtf.inference.smooth_residual import absorbed
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.approximation import approximate
from brtf.search.components import add_components, component_price, likeness_of_components, remove_components
from brtf.search.move import Once, Progress, Sweeps, Trial, settled

CONDENSING_GAIN = 0.1
"""Gain in nats per step below which the approximation has converged."""
LIKE = 0.25
"""Product of the cosines in two modes above which one component may replace another; by chance it is 0.1–0.2."""
BEARABLE = 5.0
"""Loss of one component, in costs of its parameters, beyond which others cannot make up for it as they adapt."""
FEW_COMPONENTS = 16
"""Largest rank at which the worth of every component is computed by removing it."""


def condense(problem: Problem, point: Point) -> State | None:
    """C15: fewer components: the best approximation of the low-rank part, without access to the data.

    Nearly collinear components adapt so slowly in sweeps that simply removing one rarely succeeds; here the others
    adapt first. Components are removed as long as the loss is below their cost. None where no components are similar,
    or where removing the first already loses more than a few times its cost, or where components are more than any
    tensor of that shape needs: they then differ in what they remember.
    """
    state, shape = point.state, problem.observations.shape
    if state.rank > math.prod(shape) // max(shape):
        return None
    if not 2 <= state.rank <= FEW_COMPONENTS or likeness_of_components(state).max() <= LIKE:
        return None
    price, best, least = component_price(problem), None, math.inf
    for n_components in range(state.rank - 1, 0, -1):
        loss, columns = approximate_state(problem, point, n_components)
        if loss - (state.rank - n_components) * price < least:
            best, least = columns, loss - (state.rank - n_components) * price
        if loss > (state.rank - n_components) * price:
            break
    if best is None or least > (BEARABLE - 1.0) * price:
        return None
    condensed = add_components(problem, remove_components(state, np.arange(state.rank)), best)
    return absorbed(problem, condensed, point, learn=True)


def reduce_rank(problem: Problem, point: Point, n_components: int) -> State:
    """The best approximation of the low-rank part by ``n_components`` components, whatever the loss."""
    state = point.state
    _, columns = approximate_state(problem, point, n_components)
    reduced = add_components(problem, remove_components(state, np.arange(state.rank)), columns)
    return absorbed(problem, reduced, point, learn=True)


def approximate_state(problem: Problem, point: Point, n_components: int) -> tuple[float, list[Array]]:
    """Loss in nats of the best approximation by ``n_components`` components, and its columns in every mode."""
    state = point.state
    share = problem.observations.n_observed / problem.observations.n_entries
    per_square = 0.5 * float(state.tau.mean) * point.mean_weight * share  # nats
    given = [state.factors[mode].mean for mode in problem.modes]  # an order that does not depend on the layout
    ridge = 0.5 * float(np.min(state.lam.mean)) / per_square
    error, columns = approximate(given, n_components, CONDENSING_GAIN / per_square, ridge)
    return per_square * error, [columns[problem.modes.index(mode)] for mode in range(len(columns))]


class Condense(Once):
    """Fewer components where some are similar."""

    name = "condense"
    of_components = True
    back_to = "condense"

    def proposal(self, progress: Progress) -> Trial | None:
        state = condense(progress.problem, progress.point)
        if state is None:
            return None
        words = f"condensed to {state.rank}"
        return progress.trial(Kind.CONDENSE, words, state, settled(8, 60), then=Sweeps(WORTH, 30))
