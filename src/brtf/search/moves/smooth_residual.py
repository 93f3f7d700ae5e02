"""A smooth residual beside the low-rank part, along the mode where neighbours resemble each other most.

φ, σ² and the noise are fitted to the residual of every mode, at some hundred passes along the fibres each; of several
modes, only those count whose neighbouring residuals are alike beyond chance. Components that describe what the smooth
residual describes better would stay, as each alone is needed beside the others: so it is tried beside half of them, a
quarter, and so on, and the best is settled. Births follow.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.learn_noise import with_noise
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.smooth_residual import (
    entry_precisions,
    neighbours_alike,
    proposed_smooth_residual,
    update_smooth_residual,
)
from brtf.inference.sweep import prune, sweep
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.moves.cap import reduced

BEYOND_CHANCE = 4.0
"""Standard deviations of the correlation of neighbours from which a mode is considered: chance exceeds it once in
30,000 modes."""
FREE_SWEEPS = 60
"""Sweeps of a trial."""
EVERY_RANK_UP_TO = 5
"""Components up to which every number is tried."""
FEW_SWEEPS = 8
"""Sweeps after which ranks are compared."""


class Smoothness(Once):
    """A smooth residual where the settings have one, whatever it costs; "auto" has one only where it races."""

    name = "smooth residual"

    def proposal(self, progress: Progress) -> Trial | None:
        options, point = progress.options, progress.point
        if point.state.smooth is not None or not options.smooth_modes:
            return None
        problem = replace(progress.problem, collapsed=True)
        modes = options.smooth_modes
        if not options.smooth_asked:
            alike = neighbours_alike(problem, point.state, point.fit, point.local)
            modes = tuple(mode for mode in modes if alike[mode] > BEYOND_CHANCE)
        if not modes:
            return None
        tight = point if progress.problem.collapsed else evaluate(problem, point.state)
        mode, state = best_smooth_residual(problem, tight, modes)
        best = self._tried(progress, problem, state)
        for rank in fewer(point.rank):
            _, state = best_smooth_residual(problem, reduced(problem, tight, rank), (mode,))
            best = max(best, self._tried(progress, problem, state), key=lambda one: one.bound)
        return progress.trial(
            Kind.SMOOTH,
            f"smooth residual along mode {mode} beside {{rank}}",
            best,
            (("free", 0, FREE_SWEEPS),),
            worth=-math.inf,
            then=Sweeps(progress.roughly, 60),
            collapsed=True,
        )

    @staticmethod
    def _tried(progress: Progress, problem: Problem, state: State) -> Point:
        """The state after a few sweeps."""
        point = evaluate(problem, state)
        for k in range(FEW_SWEEPS):
            if not progress.take_sweep(k, FEW_SWEEPS):
                break
            point = prune(problem, sweep(problem, point))
        return point


def fewer(rank: int) -> list[int]:
    """Half as many components, a quarter, and so on, and every number below a few."""
    halves = [rank // 2**k for k in range(1, rank.bit_length())]
    return sorted({*halves, *range(1, min(rank, EVERY_RANK_UP_TO + 1))}, reverse=True)


def best_smooth_residual(problem: Problem, point: Point, modes: tuple[int, ...]) -> tuple[int, State]:
    """The mode whose smooth residual promises most, and the state with it."""
    state, fit, local = point.state, point.fit, point.local
    found = [proposed_smooth_residual(problem, state, fit, local, mode) for mode in modes]
    smooth, factor, _ = max(found, key=lambda one: one[2])
    tau = float(state.tau.mean)
    changed = with_noise(state, factor * tau, state.local_model.rescaled(factor), problem.observations.n_observed)
    changed = replace(changed, smooth=smooth)
    precision = factor * entry_precisions(problem, state, local)
    return smooth.mode, update_smooth_residual(problem, changed, fit, precision, learn=False)[0]
