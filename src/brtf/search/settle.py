"""Sweeps of the search: the best point converges, and a trial is settled stage by stage before it is judged.

A stage makes one sweep or step of a trial at a time and reports whether it is finished, so a search can be interrupted
and resumed after any of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.judge import WORTH, judge
from brtf.inference.learn_noise import learn_noise_globally
from brtf.inference.point import Point, evaluate, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.refinement import pays, refined
from brtf.inference.sweep import prune, sweep
from brtf.inference.trace import SWEPT, Event, Kind
from brtf.inference.updates import update_component_precisions
from brtf.model.local_models import GaussianSlab, LocalModel
from brtf.model.state import State
from brtf.search.components import without_negative
from brtf.search.move import Progress, Sweeps, Trial
from brtf.search.moves.condense import condense

LEARN_NOISE_EVERY = 3
"""Sweeps per update of the noise and outlier parameters, after that many in a row that all learn them."""
ACCELERATE_AFTER = 5
"""Sweeps after which slow convergence is accelerated; most points converge sooner."""
SWEEPS_PER_ROUND, MOST_ROUNDS = 5, 6
"""A sweep updates the factors once more for every so many sweeps before it, as slow convergence is seldom for want of
newer weights of the entries; more rounds than that save little."""
FEWEST_FREE, FEWEST_NEAR = 6, 5
"""Sweeps before a trial may be given up, and before an approach may end: early gains are uneven, and a sweep may gain
little before one that gains much. Both are conventions."""
FAR_OFF = 1e-2
"""Noise precision of a proposal, relative to that of the best point, below which it is far from an accurate fit: its
typical residuals are then ten standard deviations of the noise."""
HELD_LONG_ENOUGH = 10.0
"""Gain per sweep, in units of the rough gain, below which noise and precisions are released."""


def converge(progress: Progress, sweeps: Sweeps) -> tuple[Sweeps | None, Event | None]:
    """One sweep of the best point; returns the remaining sweeps, and the event unless the sweep failed."""
    if sweeps.k == 0:
        progress.anderson = Anderson()
    if not progress.take_sweep(sweeps.k, sweeps.n_sweeps):
        return None, None
    before = progress.point
    swept = _swept(progress, before, sweeps.k, hold_noise=sweeps.hold_noise)
    if not judge(swept, before):  # at the limit of rounding or of the local model's validity
        return None, None
    progress.best = swept
    progress.drift = swept.bound - before.bound
    n_pruned = before.rank - swept.rank
    slow = not n_pruned and progress.drift < _n_rounds(progress.problem, sweeps.k) * sweeps.gain
    done = slow and not sweeps.hold_noise
    left = None if done else replace(sweeps, k=sweeps.k + 1, hold_noise=not slow and _holds_noise(sweeps.k + 1))
    return left, Event(Kind.PRUNE, gain=progress.drift, words=f"pruned {n_pruned}") if n_pruned else SWEPT


def settle(progress: Progress, trial: Trial) -> Trial:
    """One sweep or step of a trial's current stage."""
    name, first, limit = trial.stages[trial.stage]
    if trial.k < first:
        trial = replace(trial, k=first)
    trial, over = STAGES[name](progress, trial, limit)
    return replace(trial, stage=trial.stage + 1, k=0) if over else trial


def _hold(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Sweep with noise and precisions held fixed; once that gains little, learn the noise."""
    if progress.take_sweep(trial.k, limit):
        held = {"hold_precisions": True, "hold_noise": True, "ahead": trial.k + 1 < limit}
        swept = sweep(progress.problem, trial.point, **held)
        enough = swept.bound - trial.point.bound < HELD_LONG_ENOUGH * progress.roughly
        return replace(trial, point=swept, k=limit if enough else trial.k + 1), False
    point = with_noise_learnt(progress.problem, trial.point) if limit else trial.point
    return replace(trial, point=point), True


def _approach(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Sweep with a Gaussian slab, which pulls the fit towards outlying entries, then restore the local model.

    Only where the trial is so far from an accurate fit that a slab without pull would treat all entries as outliers.
    """
    point, present = trial.point, type(progress.point.state.local_model)
    if trial.k == 0:
        if not _is_far_off(point.state, progress.point.state):
            return trial, True
        point = with_noise_learnt(progress.problem, point, GaussianSlab)
    if progress.take_sweep(trial.k, limit):
        before, point = point, prune(progress.problem, sweep(progress.problem, point))
        if trial.k < FEWEST_NEAR or point.bound - before.bound >= progress.roughly:
            return replace(trial, point=point, k=trial.k + 1), False
    return replace(trial, point=with_noise_learnt(progress.problem, point, present)), True


def _condense(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Condense as long as the bound is higher after a few sweeps."""
    state = condense(progress.problem, trial.point)
    if state is None:
        return trial, True
    condensed = evaluate(progress.problem, state)
    for k in range(limit):
        if not progress.take_sweep(k, limit):
            break
        condensed = sweep(progress.problem, condensed)
        if judge(condensed, trial.point):
            return replace(trial, point=condensed), False
    return trial, True


def _as_asked(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Take away the negative loadings of modes that may have none: the starts find components without this limit."""
    modes = progress.options.nonnegative_modes
    if all(not trial.point.state.row_priors[mode].signed for mode in modes):
        return trial, True
    return replace(trial, point=evaluate(progress.problem, without_negative(trial.point.state, modes))), True


def _free(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Sweep freely until the trial beats the best point, or clearly will not."""
    return _sweep_freely(progress, trial, limit, roughly=False)


def _rough(progress: Progress, trial: Trial, limit: int) -> tuple[Trial, bool]:
    """Sweep freely until the trial has roughly converged, beats the best point, or clearly will not."""
    return _sweep_freely(progress, trial, limit, roughly=True)


def _sweep_freely(progress: Progress, trial: Trial, limit: int, *, roughly: bool) -> tuple[Trial, bool]:
    if trial.k == 0:
        progress.anderson = Anderson()
        trial = replace(trial, bounds=(trial.point.bound,))
    k = trial.k
    if not progress.take_sweep(k, limit):
        return trial, True
    point = _swept(progress, trial.point, k, hold_noise=_holds_noise(k))
    bounds = (*trial.bounds[-4:], point.bound)
    trial = replace(trial, point=point, bounds=bounds, k=k + 1)
    if roughly and not _holds_noise(k) and bounds[-1] - bounds[-2] < _n_rounds(progress.problem, k) * progress.roughly:
        return trial, True
    if progress.best is None:
        return trial, False
    n_held = next((n_held for name, _, n_held in trial.stages if name == "hold"), 0)
    if trial.worth == math.inf:
        return trial, k >= FEWEST_FREE and bounds[-1] - bounds[-2] < progress.roughly
    target = progress.best.bound + WORTH + progress.drift * (n_held + k + 1)
    return trial, point.bound > target or (k >= FEWEST_FREE and is_hopeless(bounds, target, limit - k))


STAGES: dict[str, Callable[[Progress, Trial, int], tuple[Trial, bool]]] = {
    "hold": _hold,
    "approach": _approach,
    "condense": _condense,
    "as asked": _as_asked,
    "free": _free,
    "rough": _rough,
}
"""The stages of a trial by name."""


def _swept(progress: Progress, before: Point, k: int, *, hold_noise: bool) -> Point:
    """One sweep; after the first several, also try a point further on and keep it if its bound is higher.

    Further on are the sweeps extrapolated. At high rank it is the means of all modes moved together, but after sweeps
    that learn the noise: covariances and means that are slow together need the rounds of these.
    """
    problem, anderson, n_rounds = progress.problem, progress.anderson, _n_rounds(progress.problem, k)
    together = hold_noise and k >= ACCELERATE_AFTER and pays(problem, before.state)
    own_rounds = 1 if together else n_rounds
    swept = prune(problem, sweep(problem, before, hold_noise=hold_noise, ahead=True, n_rounds=own_rounds))
    if k < ACCELERATE_AFTER or not swept.rank:
        return swept
    if together:
        further: State | None = refined(problem, swept, n_rounds)
    else:
        further = anderson.extrapolate(before.state, swept.state)
    if further is None:
        return swept
    jump = evaluate(problem, update_component_precisions(further), ahead=True)
    better = judge(jump, swept)
    if not together:
        anderson.kept() if better else anderson.refused()
    return jump if better else swept


def with_noise_learnt(problem: Problem, point: Point, kind: type[LocalModel] | None = None) -> Point:
    """The point after a global update of its noise and outlier parameters, with another local model if one is given."""
    return evaluate_at(problem, learn_noise_globally(problem, point, kind), point.fit)


def _holds_noise(k: int) -> bool:
    """Whether the k-th sweep in a row holds noise and outlier parameters, which change little between sweeps."""
    return k >= LEARN_NOISE_EVERY and k % LEARN_NOISE_EVERY != 0


def _n_rounds(problem: Problem, k: int) -> int:
    """Rounds of updates in the k-th sweep in a row; one for large data, which look at the entries in the same pass."""
    return min(max(k // SWEEPS_PER_ROUND, 1), MOST_ROUNDS) if problem.observations.is_small else 1


def _is_far_off(proposed: State, present: State) -> bool:
    """Whether a proposal starts so far from an accurate fit that a slab without pull would see only outliers."""
    return not present.local_model.pulls and float(proposed.tau.mean) < FAR_OFF * float(present.tau.mean)


def is_hopeless(bounds: Sequence[float], target: float, n_left: int) -> bool:
    """Whether the last two gains or more, extrapolated geometrically and doubled, stay below the target."""
    gains = np.diff(bounds)
    last = max(float(gains[-1]), 0.0)
    ratio = min(max(float(gains[-1] / gains[0]), 0.0) ** (1.0 / (gains.size - 1)), 0.995) if gains[0] > 0 else 0.5
    ahead = last * (1.0 - ratio**n_left) / (1.0 - ratio)
    return bounds[-1] + 2.0 * ahead < target
