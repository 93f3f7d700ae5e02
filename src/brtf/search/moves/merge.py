"""Merges: one component in place of two nearly collinear ones.

Proposes them for the three most likely pairs, one after another. Each costs a rank-one fit; settling costs up to 68
sweeps, and 60 more where the proposal is far from an accurate fit. After a success all moves that reduce the rank are
tried again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Remembered
from brtf.inference.judge import WORTH
from brtf.inference.point import Point
from brtf.inference.problem import Fit, Problem
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.components import add_components, component_cosines, remove_components
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled
from brtf.search.rank_one import best_rank_one, relative_weights

LIKELY, ALL_BUT_ONE = 0.5, 0.8
"""Cosine of two rank-one terms, and of all their modes but one, beyond which one component may replace both. They only
choose what is tried: conventions."""


def collinear_pairs(state: State) -> list[tuple[int, int]]:
    """Pairs of components that a single one might replace, most likely first.

    Those whose rank-one terms have a cosine beyond ½, and those that agree in all modes but one: their sum has
    rank one.
    """
    cosines = np.array([np.abs(component_cosines(rows.mean)) for rows in state.factors])
    together = np.prod(cosines, axis=0)
    but_one = together / np.maximum(np.min(cosines, axis=0), 1e-300)
    likeness = np.maximum(together, np.where(but_one > ALL_BUT_ONE, but_one, 0.0))
    pairs = [(r, s) for r in range(state.rank) for s in range(r + 1, state.rank) if likeness[r, s] > LIKELY]
    return sorted(pairs, key=lambda pair: -likeness[pair])


def merge(problem: Problem, point: Point, pair: tuple[int, int], rng: np.random.Generator) -> State:
    """C11: one component in place of two: the rank-one fit of their sum plus the residual."""
    rest = remove_components(point.state, np.array(pair))
    residual, weigh = (
        Fit.of(replace(problem, collapsed=False), rest).residual,
        relative_weights(problem, point),
    )

    def weighing(block: Block) -> tuple[Array, Array]:
        weights = weigh(block)
        return weights, residual(block) * weights

    fitted, _ = best_rank_one(problem, Remembered(problem.observations, weighing), rng)
    return add_components(problem, rest, fitted)


class Merge(Move):
    """Merges of collinear pairs. ``memory`` holds the remaining pairs."""

    name = "merge"
    of_components = True
    back_to = "condense"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        (pairs,) = memory or (tuple(collinear_pairs(progress.point.state)[:3]),)
        if not pairs:
            return None, (pairs,)
        state = merge(progress.problem, progress.point, pairs[0], progress.rng)
        trial = progress.trial(Kind.MERGE, "merged 2", state, settled(8, 60), then=Sweeps(WORTH, 30))
        return trial, (pairs[1:],)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        pairs = memory[0] if len(memory) == 1 else None
        return isinstance(pairs, tuple) and all(are_whole(pair, rank) and len(pair) == 2 for pair in pairs)
