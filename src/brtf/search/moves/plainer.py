"""Back to one level of noise for all entries, and to one rate of outliers.

While components are missing, what they would explain looks like noise that differs between slices, and like outliers
that are more frequent in some. Proposes the plainer states, each with the local model that suits it best, settled at
fixed factors, and of these the one with the highest bound. Costs up to thirty passes. Tried where the noise or the
rates differ without having been asked for; needs no gain as the simpler model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from brtf.inference.learn_noise import learn_noise_globally, noise_worth, settle_noise, with_local_model
from brtf.inference.point import Point, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.model.local_models import rivals
from brtf.model.state import OutlierStructure, State
from brtf.search.move import Once, Progress, Sweeps, Trial


class Plainer(Once):
    """Common noise or one rate of outliers, where these differ; ``pulling`` as in `LocalModels`."""

    def __init__(self, *, pulling: bool) -> None:
        self.pulling = pulling
        self.name = "plainer noise of pulling local models" if pulling else "plainer noise"

    def proposal(self, progress: Progress) -> Trial | None:
        point, problem, options = progress.point, progress.problem, progress.options
        points = [
            settle_noise(problem, self._with_best_model(problem, evaluate_at(problem, state, point.fit)))
            for state in plainer(
                point.state, noise_differs=options.noise_differs, rates_differ=bool(options.labelled_modes)
            )
        ]
        if not points:
            return None
        best = max(points, key=lambda one: one.bound)
        common = best.state.slices is None and point.state.slices is not None
        one_rate = _rates(best.state) is None and _rates(point.state) is not None
        words = " and ".join(["one level of noise"] * common + ["one rate of outliers"] * one_rate)
        kind = Kind.COMMON_NOISE if common else Kind.ONE_RATE
        return progress.trial(kind, words, best, worth=0.0, then=Sweeps(progress.roughly, 60))

    def _with_best_model(self, problem: Problem, point: Point) -> Point:
        """The point with the noise and outliers, of any local model, that fit its entries best."""
        structure = point.state.structure or OutlierStructure()
        kinds = [kind for kind in rivals(point.state.local_model) if kind.pulls or not self.pulling]
        others = [with_local_model(problem, point, kind) for kind in kinds] if structure.one_by_one else []
        best = max([learn_noise_globally(problem, point), *others], key=partial(noise_worth, point))
        return evaluate_at(problem, best, point.fit)


def plainer(state: State, *, noise_differs: bool, rates_differ: bool = False) -> Iterator[State]:
    """The state with common noise, with one rate of outliers, and with both, as far as these differ but need not."""
    common = replace(state, slices=None)
    if state.slices is not None and not noise_differs:
        yield common
    if _rates(state) is not None and state.structure is not None and not rates_differ:
        structure = replace(state.structure, rates=None)
        one_rate = replace(state, structure=None if structure.is_plain else structure)
        yield one_rate
        if state.slices is not None and not noise_differs:
            yield replace(one_rate, slices=None)


def _rates(state: State) -> object:
    return None if state.structure is None else state.structure.rates
