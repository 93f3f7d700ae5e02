"""Noise that differs between slices.

Proposes it along the modes that raise the bound most, with the noise of the slices settled at fixed factors. One pass
finds what every candidate set of modes promises, a lower bound of its gain; the two best of those that promise enough
are settled, at about twenty passes each. The gain must also pay for the choice between the sets. Tried while the noise
is common or differs along fewer modes; always accepted if the user requires it. Where most entries are outliers their
weights say little about the noise: then every set is settled, also with few outliers.
"""

from __future__ import annotations

import math

from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import promised_by_slices, settle_noise, slice_noise
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.moves.few_outliers import are_mostly_outliers, with_few_outliers

MOST_SETTLED = 2
"""Sets of modes that are settled: what they promise holds at the present weights, and the best may be another."""


class Noise(Once):
    """Noise per slice, if the bound approves, or only where it was ``asked`` for.

    ``coarse`` limits a free choice to single modes: while components are missing, what they would explain looks like
    noise that differs, the more so the smaller the slices.
    """

    def __init__(self, *, asked: bool = False, coarse: bool = False) -> None:
        self.asked, self.coarse = asked, coarse
        self.name = "noise asked for" if asked else "noise of one mode" if coarse else "noise"

    def proposal(self, progress: Progress) -> Trial | None:
        options, point, problem = progress.options, progress.point, progress.problem
        mostly_outliers = are_mostly_outliers(point.state)
        if not options.noise_modes or (self.asked and not options.noise_differs):
            return None
        worth = WORTH + math.log(len(options.noise_modes))  # each set is as likely a priori
        present = () if point.state.slices is None else point.state.slices.modes
        limit = 1 if self.coarse and len(options.noise_modes) > 1 else math.inf
        candidates = tuple(modes for modes in options.noise_modes if set(modes) > set(present) and len(modes) <= limit)
        if not candidates:
            return None
        if not options.noise_differs and not mostly_outliers:
            promised = promised_by_slices(problem, point, candidates)
            ranked = sorted(zip(promised, candidates, strict=True), reverse=True)
            candidates = tuple(modes for gain, modes in ranked[:MOST_SETTLED] if gain > worth)
            if not candidates:
                return None
        states = [slice_noise(problem, point.state, modes) for modes in candidates]
        if mostly_outliers:  # the slab has become the noise: begin also with few outliers
            few = with_few_outliers(problem, point)
            states += [slice_noise(problem, few, modes) for modes in candidates]
        points = [settle_noise(problem, evaluate_at(problem, state, point.fit)) for state in states]
        best = max(points, key=lambda one: one.bound)
        modes = () if best.state.slices is None else best.state.slices.modes
        return progress.trial(
            Kind.NOISE,
            f"noise per slice of {modes}",
            best,
            worth=-math.inf if options.noise_differs else worth,
            then=Sweeps(progress.roughly, 60),
        )
