"""Starts: the search continues from the best of several.

Proposes the spectral starts at two noise levels, the steady part along a mode, given factors and, where ``max_rank``
allows many components, a start that has them all. Costs up to 35 sweeps each, and up to three for every step of
condensing. Runs once; if there are only two starts of one kind and the first left nothing to explain, the second is
skipped.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.trace import Kind
from brtf.search.move import Memory, Move, Progress, Stages, Trial, are_whole
from brtf.search.moves.birth import birth
from brtf.search.moves.form import is_expensive
from brtf.search.starts import START_PRECISIONS, expanded, least_squares

STAGES: Stages = (("hold", 0, 20), ("rough", 0, 2), ("condense", 0, 3), ("rough", 2, 15))
"""In the first free sweeps surplus components die or become similar to others; then they are condensed."""
AS_ASKED: Stages = (("as asked", 0, 1), ("rough", 0, 15))
"""What follows where modes were said to have no negative loadings: those that were found are taken away."""


class Start(Move):
    """Try every start. ``memory`` is the index of the next one and their number."""

    name = "start"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        if memory and memory[0] == memory[1]:
            return None, memory
        which, starts = memory[0] if memory else 0, progress.starts()
        if progress.best is None and is_expensive(progress, max(start.rank for start in starts)):
            progress.problem = replace(progress.problem, collapsed=False)
        n_starts = len(starts) + (progress.options.many and len(starts) > 1)
        if which > 0 and n_starts == len(START_PRECISIONS):
            progress.skips_rough = birth(progress.problem, progress.point, 1, progress.rng, clipped=True) is None
            if progress.skips_rough:
                return None, memory
        if which < len(starts):
            state = expanded(starts[which])
        else:
            state = least_squares(progress.problem, progress.options.cap, starts[0], progress.rng)
        worth = 0.0 if which else -math.inf
        stages = (*STAGES, *(AS_ASKED if progress.options.nonnegative_modes else ()))
        return progress.trial(Kind.START, "start with {rank}", state, stages, worth=worth), (which + 1, n_starts)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 2 and are_whole(memory) and memory[0] <= memory[1]
