"""Another local model: another distribution of noise and outliers at an entry.

Proposes the best one at the current factors, if it comes within a nat of the current model; on converged states any
gain above the accuracy of the search will do, as all have the same number of parameters. Costs one evaluation on the
histogram of deviations, as if outliers had one rate, and up to 20 sweeps. Up to 60 follow, as the moves after it read
the weights of the entries: these may be quite others. While components are still missing, only models whose outliers
pull are proposed: a flat slab would treat entries that are merely not yet explained as outliers.
"""

from __future__ import annotations

from functools import partial

from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import noise_worth, with_local_model
from brtf.inference.trace import Kind
from brtf.model.local_models import LOCAL_MODELS, rivals
from brtf.model.state import OutlierStructure
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, settled

REFUSED = "refused"


class LocalModels(Move):
    """The best other local model, among those that pull or among all; in a round none that was left before.

    A model that was left and its rival would otherwise take turns for as long as sweeps gain anything. The memory holds
    the names of the models left, and ``REFUSED`` once a proposal was.
    """

    def __init__(self, *, pulling: bool) -> None:
        self.pulling = pulling
        self.name = "pulling local model" if pulling else "local model"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point = progress.point
        structure = point.state.structure or OutlierStructure()
        kinds = [
            kind
            for kind in rivals(point.state.local_model)
            if (kind.pulls or not self.pulling) and kind.__name__ not in memory
        ]
        if REFUSED in memory or not kinds or structure.modes or structure.law is not None:
            return None, memory
        others = [with_local_model(progress.problem, point, kind) for kind in kinds]
        best = max(others, key=partial(noise_worth, point))
        if not noise_worth(point, best) > noise_worth(point, point.state) - WORTH:
            return None, memory
        words, worth = f"{type(best.local).__name__} chosen", WORTH if self.pulling else 0.1 * WORTH
        then = Sweeps(progress.roughly, 60)
        trial = progress.trial(Kind.LOCAL_MODEL, words, best, settled(0, 20), worth=worth, then=then)
        return trial, (*memory, type(point.state.local_model).__name__)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return memory if accepted else (*memory, REFUSED)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(set(memory)) == len(memory) and all(name in (*LOCAL_MODELS, REFUSED) for name in memory)
