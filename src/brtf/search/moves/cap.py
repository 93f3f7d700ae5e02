"""Reduction of the rank to ``max_rank``.

Proposes the best approximation with one component more than the cap, then with as many as the cap; both are always
accepted. The loss of the second is what one more component would gain. Runs once, when the rough rounds are over or
half of the sweeps are spent. At the very end one more component is measured again, as noise and outliers have been
chosen anew since.
"""

from __future__ import annotations

import math

from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.search.move import Memory, Move, Once, Progress, Sweeps, Trial, settled
from brtf.search.moves.birth import birth
from brtf.search.moves.condense import reduce_rank
from brtf.search.settle import with_noise_learnt


def reduced(problem: Problem, point: Point, rank: int) -> Point:
    """The best state of that rank, whatever the loss; noise and outliers absorb the rest."""
    return with_noise_learnt(problem, evaluate(problem, reduce_rank(problem, point, rank)))


class Cap(Move):
    """Two steps down to the cap."""

    name = "cap"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point, cap = progress.point, progress.options.limit(progress.point.state)
        if point.rank <= cap:
            return None, memory
        target = cap if point.rank == cap + 1 else cap + 1
        trial = progress.trial(
            Kind.CAP,
            f"reduced to {target}",
            reduced(progress.problem, point, target),
            worth=-math.inf,
            then=Sweeps(progress.roughly, min(100, (progress.max_sweeps - progress.n_sweeps) // 2)),
            beyond=point.bound if target == cap else None,
        )
        return trial, memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return False


class Beyond(Once):
    """A birth beyond the cap, which is measured and never accepted; only where the search came down to the cap."""

    name = "beyond"

    def proposal(self, progress: Progress) -> Trial | None:
        if progress.beyond is None:
            return None
        for clipped in (False, True):
            state = birth(progress.problem, progress.point, 1, progress.rng, clipped=clipped)
            if state is not None:
                return progress.trial(Kind.BIRTH, "born 1 beyond the cap", state, settled(8, 60), worth=math.inf)
        return None
