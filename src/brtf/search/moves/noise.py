"""Noise that differs between slices.

Proposes it along the modes that raise the bound most, with the noise of the slices settled at fixed factors. Costs
about twenty passes per candidate set of modes. Tried while the noise is common; always accepted if the user requires
it.
"""

from __future__ import annotations

import math

from brtf.inference.judge import WORTH
from brtf.inference.sweep import evaluate_at, settle_noise, slice_noise
from brtf.inference.trace import Kind
from brtf.search.move import Once, Progress, Sweeps, Trial


class Noise(Once):
    """Noise per slice, if the bound approves, or only where it was ``asked`` for."""

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked
        self.name = "noise asked for" if asked else "noise"

    def proposal(self, progress: Progress) -> Trial | None:
        wishes, point, problem = progress.wishes, progress.point, progress.problem
        if not wishes.noise_modes or point.state.slices is not None or (self.asked and not wishes.noise_differs):
            return None
        states = [slice_noise(problem, point.state, modes) for modes in wishes.noise_modes]
        points = [settle_noise(problem, evaluate_at(problem, state, point.fit)) for state in states]
        best = max(points, key=lambda one: one.bound)
        modes = () if best.state.slices is None else best.state.slices.modes
        return progress.trial(
            Kind.NOISE,
            f"noise per slice of {modes}",
            best,
            worth=-math.inf if wishes.noise_differs else WORTH,
            then=Sweeps(progress.roughly, 60),
        )
