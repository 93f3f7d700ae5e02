"""Another local model: another distribution of noise and outliers at an entry.

Proposes the best one at the current factors, if it comes within a nat of the current model. Costs one evaluation on the
histogram of deviations and up to 20 sweeps. While components are still missing, only models whose outliers pull are
proposed: a flat slab would treat entries that are merely not yet explained as outliers.
"""

from __future__ import annotations

from functools import partial

from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import noise_worth, with_local_model
from brtf.inference.trace import Kind
from brtf.model.local_models import rivals
from brtf.search.move import Once, Progress, Trial, settled


class LocalModels(Once):
    """The best other local model, among those that pull or among all."""

    def __init__(self, *, pulling: bool) -> None:
        self.pulling = pulling
        self.name = "pulling local model" if pulling else "local model"

    def proposal(self, progress: Progress) -> Trial | None:
        point = progress.point
        structure = point.state.structure
        kinds = [kind for kind in rivals(point.state.local_model) if kind.pulls or not self.pulling]
        if not kinds or (structure is not None and not structure.one_by_one):
            return None
        others = [with_local_model(progress.problem, point, kind) for kind in kinds]
        best = max(others, key=partial(noise_worth, point))
        if not noise_worth(point, best) > noise_worth(point, point.state) - WORTH:
            return None
        return progress.trial(Kind.LOCAL_MODEL, f"{type(best.local).__name__} chosen", best, settled(0, 20))
