"""The noise raised, then lowered, for a few sweeps, where entries are in doubt.

Several entries that meet in the same rows can hold each other: one after another they stay outliers, or regular. With
more noise all of them count, with less none does, and the rows that follow may lead to another reading. Proposes the
rows after up to eight sweeps at a quarter and at four times the noise precision, with the outliers of the same size,
and the noise learnt again; up to 20 sweeps follow. Needs only a gain above the accuracy of the search, as the model
stays the same. Tried where :mod:`~brtf.search.moves.reconsider` finds entries in doubt.
"""

from __future__ import annotations

from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import with_noise
from brtf.inference.trace import Kind
from brtf.search.move import Memory, Move, Progress, Trial, are_whole, settled
from brtf.search.moves.reconsider import CHEAP, doubtful_entries, if_counted, if_left_out, may_doubt

RATIOS = (0.25, 4.0)
"""Noise precisions that are tried, over the present one: twice and half the standard deviation, a convention."""


class Temper(Move):
    """The noise raised and lowered. ``memory`` is the number of ratios tried."""

    name = "temper"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point, problem = progress.point, progress.problem
        n_tried = memory[0] if memory else 0
        if n_tried == 0 and not (
            may_doubt(progress)
            and progress.affords(point.rank, CHEAP)
            and any(doubtful_entries(problem, point, doubt) for doubt in (if_counted, if_left_out))
        ):
            n_tried = len(RATIOS)
        if n_tried >= len(RATIOS):
            return None, (n_tried,)
        ratio, state = RATIOS[n_tried], point.state
        outliers, n_observed = state.local_model.rescaled(ratio), problem.observations.n_observed
        tempered = with_noise(state, ratio * float(state.tau.mean), outliers, n_observed)
        words = "noise raised for a while" if ratio < 1.0 else "noise lowered for a while"
        trial = progress.trial(Kind.REFRESH, words, tempered, settled(8, 20), worth=0.1 * WORTH)
        return trial, (n_tried + 1,)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)
