"""Deaths: the state without one of its components.

Proposes them for the four components whose absence could cost least, one after another. To rank them costs a pass for
each of a few components, a death two held and up to 60 free sweeps. After a success all ways to have fewer components
are asked again.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.inference.judge import WORTH
from brtf.inference.sweep import Point, Problem, evaluate, retemper
from brtf.inference.trace import Kind
from brtf.model.state import State, component_amplitudes
from brtf.search.components import component_price, effective_rows, likeness_of_components, remove_components
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled
from brtf.search.moves.condense import FEW_COMPONENTS, LIKE

FEW_ENTRIES = 20.0
"""Effective number of entries, the product of the modes' effective rows, below which a component may describe outliers
that happen to lie in one place."""


def death(problem: Problem, point: Point, component: int) -> State:
    """C10: the state without one component."""
    return retemper(problem, remove_components(point.state, np.array([component])))


def expendable_components(problem: Problem, point: Point) -> list[int]:
    """Components whose death could raise the bound, likeliest first.

    Those that others may take over, having a like component in at least two modes, and those whose entries, left to
    noise and outliers, cost no more than a few times the price of their parameters.
    """
    state = point.state
    alike = likeness_of_components(state)
    losses = np.array([_loss_without(problem, point, r) for r in range(state.rank)])
    weak = losses < 5.0 * component_price(problem)
    order = np.lexsort((losses, -alike, ~weak))
    return [int(r) for r in order if weak[r] or alike[r] > LIKE]


def _loss_without(problem: Problem, point: Point, component: int) -> float:
    """Nats that are lost when a component is taken away and nothing else changes.

    Among many components, where looking is expensive, the loss of Gaussian noise ½ τ̄ w̄ M · amp² stands for it; but not
    where a component describes few entries: these may be outliers, which cost much less as such.
    """
    state = point.state
    columns = [rows.mean[:, component] for rows in state.factors]
    if state.rank <= FEW_COMPONENTS or math.prod(effective_rows(columns)) < FEW_ENTRIES:
        return point.bound - evaluate(problem, remove_components(state, np.array([component]))).bound
    amplitude = float(component_amplitudes(state)[component])
    return 0.5 * float(state.tau.mean) * point.mean_weight * problem.observations.n_observed * amplitude**2


class Death(Move):
    """Deaths of weak components. ``memory`` holds those that are left, once they were looked for."""

    name = "death"
    back_to = "condense"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        (components,) = memory or (tuple(expendable_components(progress.problem, progress.point)[:4]),)
        if not components:
            return None, (components,)
        state = death(progress.problem, progress.point, components[0])
        trial = progress.trial(Kind.DEATH, "died 1", state, settled(2, 60), then=Sweeps(WORTH, 30))
        return trial, (components[1:],)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory[0], rank)
