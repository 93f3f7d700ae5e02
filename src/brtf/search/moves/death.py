"""Deaths: the state without one of its components.

Proposes the removal of up to four components, one after another: first those whose loss is small, then those that
resemble another. Ranking costs one pass for each of a few components, a death two sweeps with the noise held and up to
60 free ones, and 60 more where it is far from an accurate fit. After a success all moves that reduce the rank are tried
again.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.data.arrays import Array
from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import retemper
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.smooth_residual import absorbed
from brtf.inference.trace import Kind
from brtf.model.state import State, component_amplitudes
from brtf.search.components import (
    component_cosines,
    component_price,
    effective_rows,
    likeness_of_components,
    remove_components,
)
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled
from brtf.search.moves.condense import BEARABLE, FEW_COMPONENTS, LIKE

ABOUT = 2.0
"""The cost of a component's parameters is known to about this factor."""
FEW_ENTRIES = 20.0
"""Effective number of entries, the product of the modes' effective rows, below which a component may describe a
cluster of outliers."""


def death(problem: Problem, point: Point, component: int) -> State:
    """C10: the state without one component."""
    without = remove_components(point.state, np.array([component]))
    return retemper(problem, absorbed(problem, without, point, learn=True))


def expendable_components(problem: Problem, point: Point) -> list[int]:
    """Components whose death could raise the bound, most likely first.

    Those whose removal loses no more than a few times the cost of their parameters, and about that cost when the others
    have adapted. Of many components, or where slices differ in noise, also those similar to another one in at least two
    modes; of few, condensing finds what they could do without.
    """
    state, price = point.state, component_price(problem)
    alike = likeness_of_components(state)
    losses = np.array([_loss_without(problem, point, r) for r in range(state.rank)])
    weak = (losses < BEARABLE * price) & (losses * not_replaced(state) < ABOUT * price)
    similar = (alike > LIKE) & (state.rank > FEW_COMPONENTS or state.slices is not None)
    order = np.lexsort((losses, -alike, ~weak))
    return [int(r) for r in order if weak[r] or similar[r]]


def not_replaced(state: State) -> Array:
    """The share of each component's power that the others do not replace as they adapt to its removal, about, (R,).

    If one mode adapts, 1/(G⁻¹)_rr is left, with G the cosines of the products of the other modes. What several modes
    replace is added up.
    """
    cosines = [component_cosines(rows.mean) for rows in state.factors]
    replaced = np.zeros(state.rank)
    for mode in range(len(cosines)):
        gram = np.prod([one for other, one in enumerate(cosines) if other != mode], axis=0)
        replaced += 1.0 - 1.0 / np.diag(np.linalg.inv(gram + 1e-9 * np.eye(state.rank)))  # copies make it singular
    return np.asarray(np.maximum(1.0 - replaced, 0.0))


def _loss_without(problem: Problem, point: Point, component: int) -> float:
    """Loss in nats when a component is removed and nothing else changes.

    With many components, where evaluation is expensive, it is approximated by the loss under Gaussian noise,
    ½ τ̄ w̄ M · amp², except for a component of few entries: these may be outliers, and then the loss is much smaller.
    """
    state = point.state
    columns = [rows.mean[:, component] for rows in state.factors]
    if state.rank <= FEW_COMPONENTS or math.prod(effective_rows(columns)) < FEW_ENTRIES:
        without = absorbed(problem, remove_components(state, np.array([component])), point)
        return point.bound - evaluate(problem, without).bound
    amplitude = float(component_amplitudes(state)[component])
    return 0.5 * float(state.tau.mean) * point.mean_weight * problem.observations.n_observed * amplitude**2


class Death(Move):
    """Deaths of weak components. ``memory`` holds the remaining candidates."""

    name = "death"
    of_components = True
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
