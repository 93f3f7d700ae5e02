"""Condensing: fewer components that describe the same low-rank part.

Proposes the best approximation of the low-rank part by fewer components, where some are similar; of many components,
after a failure, half as many fewer. The approximation needs no access to the data; settling costs up to 68 sweeps, and
60 more where the proposal is far from an accurate fit. Worth trying after every change of the components.
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
from brtf.model.state import State, component_amplitudes
from brtf.search.approximation import approximate
from brtf.search.components import add_components, component_price, likeness_of_components, remove_components
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled

CONDENSING_GAIN = 0.1
"""Gain in nats per step below which the approximation has converged."""
LIKE = 0.25
"""Product of the cosines in two modes above which one component may replace another; by chance it is 0.1–0.2."""
BEARABLE = 5.0
"""Loss of one component, in costs of its parameters, beyond which others cannot make up for it as they adapt."""
FEW_COMPONENTS = 16
"""Largest rank at which the worth of every component is computed by removing it."""


def condense(problem: Problem, point: Point, most: int | None = None) -> State | None:
    """C15: fewer components: the best approximation of the low-rank part, without access to the data.

    Nearly collinear components adapt so slowly in sweeps that simply removing one rarely succeeds; here the others
    adapt first. Components are removed as long as the loss is below their cost. None where no components are similar,
    or where removing the first already loses more than a few times its cost, or where components are more than any
    tensor of that shape needs: they then differ in what they remember. Of many, at most ``most`` are removed.
    """
    state, shape = point.state, problem.observations.shape
    if not 2 <= state.rank <= math.prod(shape) // max(shape) or likeness_of_components(state).max() <= LIKE:
        return None
    if state.rank > FEW_COMPONENTS:
        return _condense_many(problem, point, state.rank - 1 if most is None else most)
    price, best, least = component_price(problem), None, math.inf
    for n_components in range(state.rank - 1, 0, -1):
        loss, columns = approximate_state(problem, point, n_components)
        if loss - (state.rank - n_components) * price < least:
            best, least = columns, loss - (state.rank - n_components) * price
        if loss > (state.rank - n_components) * price:
            break
    if best is None or least > (BEARABLE - 1.0) * price:
        return None
    return _with_components(problem, point, best)


def _condense_many(problem: Problem, point: Point, most: int) -> State | None:
    """As many components fewer, up to ``most``, as promise the largest gain; None where nothing promises any.

    Many components cost less than their parameters would: the weakest cost what the posterior without them diverges
    less from the prior. The numbers tried double as long as that pays; then follow those halfway to its neighbours.
    """
    state = point.state
    order, present = np.argsort(component_amplitudes(state)), _divergence(state)
    found: dict[int, tuple[float, list[Array]]] = {}

    def gain(n_fewer: int) -> float:
        if n_fewer not in found:
            loss, columns = approximate_state(problem, point, state.rank - n_fewer)
            found[n_fewer] = present - _divergence(remove_components(state, order[:n_fewer])) - loss, columns
        return found[n_fewer][0]

    best = 1
    while 2 * best <= most and gain(2 * best) > gain(best):
        best *= 2
    best = max((n for n in (best, best - best // 4, best + best // 2) if n <= most), key=gain)
    return _with_components(problem, point, found[best][1]) if gain(best) > WORTH else None


def _divergence(state: State) -> float:
    """What components cost in the bound: the divergence of rows and precisions from their priors."""
    prior = state.prior
    return state.row_divergences + state.lam.kl(prior.lam_concentration, prior.lam_rate)


def reduce_rank(problem: Problem, point: Point, n_components: int) -> State:
    """The best approximation of the low-rank part by ``n_components`` components, whatever the loss."""
    return _with_components(problem, point, approximate_state(problem, point, n_components)[1])


def _with_components(problem: Problem, point: Point, columns: list[Array]) -> State:
    """The state with these components in place of all others."""
    state = point.state
    replaced = add_components(problem, remove_components(state, np.arange(state.rank)), columns)
    return absorbed(problem, replaced, point, learn=True)


def approximate_state(problem: Problem, point: Point, n_components: int) -> tuple[float, list[Array]]:
    """Loss in nats of the best approximation by ``n_components`` components, and its columns in every mode."""
    state = point.state
    share = problem.observations.n_observed / problem.observations.n_entries
    per_square = 0.5 * float(state.tau.mean) * point.mean_weight * share  # nats
    given = [state.factors[mode].mean for mode in problem.modes]  # an order that does not depend on the layout
    ridge = 0.5 * float(np.min(state.lam.mean)) / per_square
    error, columns = approximate(given, n_components, CONDENSING_GAIN / per_square, ridge)
    return per_square * error, [columns[problem.modes.index(mode)] for mode in range(len(columns))]


class Condense(Move):
    """Fewer components where some are similar. ``memory`` is the largest number fewer that may still be proposed."""

    name = "condense"
    of_components = True
    back_to = "condense"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point = progress.point
        most = memory[0] if memory else point.rank - 1
        state = condense(progress.problem, point, most) if most > 0 else None
        if state is None:
            return None, (0,)
        words = f"condensed to {state.rank}"
        trial = progress.trial(Kind.CONDENSE, words, state, settled(8, 60), then=Sweeps(WORTH, 30))
        return trial, ((point.rank - state.rank) // 2 if point.rank > FEW_COMPONENTS else 0,)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory, max(rank, 1))
