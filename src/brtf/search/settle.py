"""Sweeps and trials: settle a proposed state, judge it by the bound, keep it or drop it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.sweep import Point, Problem, evaluate, evaluate_at, learn_noise_globally, sweep
from brtf.inference.updates import update_component_precisions
from brtf.model.local_models import FlatSlab, GaussianSlab, SlabModel
from brtf.model.state import State
from brtf.search import proposals
from brtf.search.agenda import Move, Position, move
from brtf.search.restarts import WORTH, prune

LEARN_NOISE_EVERY = 3
"""Sweeps per step of the noise and outlier numbers, after the first few."""
ACCELERATE_AFTER = 5
"""Sweeps after which slow convergence is accelerated; most points settle sooner."""
FREE_BEFORE_CONDENSING, CONDENSED_SWEEPS = 2, 3
"""Sweeps of a start after its noise is learnt, in which surplus components die or come to resemble one another; and
those after which one component less must have raised the bound."""


@dataclass(frozen=True, eq=False)
class Step:
    """Where the search stands after a move: the best point so far, if there is one, and what happened, if anything."""

    point: Point | None
    position: Position
    event: str | None


class Trials:
    """An agenda of moves, the best point so far, and the sweeps spent, on dropped proposals too.

    A move does little and leaves nothing half done: whatever comes after it is on the agenda. So one can leave off
    after any move, and take it up again from the best state, the position and the state of the random generator.
    """

    def __init__(self, problem: Problem, max_sweeps: int) -> None:
        self.problem = problem
        self.max_sweeps = max_sweeps
        self.roughly = max(WORTH, 1e-4 * problem.observations.n_observed)  # nats a sweep, far from the end
        self.held_long_enough = 10.0 * self.roughly  # nats a sweep, below which noise and precisions need not be held
        self.n_sweeps = 0
        self.most = 0  # components on the way
        self.beyond: float | None = None  # the bound with one component more than the cap allows
        self.drift = 0.0  # what the next sweep of the best point would gain, as far as is known
        self.bounds: tuple[float, ...] = ()  # of the trial after its last sweeps
        self.anderson = Anderson()
        self.best: Point | None = None
        self.tried: Point | None = None
        self.agenda: list[Move] = []

    @property
    def point(self) -> Point:
        """The best point so far."""
        return _present(self.best)

    @property
    def trial(self) -> Point:
        """Where the proposal that is being tried has got to."""
        return _present(self.tried)

    def run(self) -> Iterator[Step]:
        """From the starts, or from where the search was left, to the best point found."""
        while self.agenda:
            self._mind_budget()
            event: str | None = self.agenda.pop()()
            if self.tried is None or np.isfinite(self.tried.bound):
                yield Step(self.best, self.position, event)

    @property
    def position(self) -> Position:
        """Where the search stands."""
        agenda = tuple((move.func.__name__, move.args) for move in self.agenda)
        return Position(
            agenda,
            self.n_sweeps,
            self.drift,
            self.bounds,
            self.problem.collapsed,
            bound=None if self.best is None else float(self.best.bound),
            most=self.most,
            beyond=self.beyond,
            trial=None if self.tried is None else self.tried.state,
            anderson=self.anderson.memory,
        )

    def take_up(self, state: State | None, position: Position) -> None:
        """Go back to where a search of the same problem stood."""
        self.agenda = [partial(getattr(self, name), *arguments) for name, arguments in position.agenda]
        self.n_sweeps, self.drift, self.bounds = position.n_sweeps, position.drift, position.bounds
        self.most, self.beyond = position.most, position.beyond
        self.anderson = Anderson(position.anderson)
        self.problem = replace(self.problem, collapsed=position.collapsed)
        self.best = None if state is None else evaluate(self.problem, state)
        self.tried = None if position.trial is None else evaluate(self.problem, position.trial)

    def _next(self, *moves: Move) -> None:
        """Put moves on the agenda, before all that is there."""
        self.agenda.extend(reversed(moves))

    @property
    def _budget(self) -> int:
        """All sweeps that may have been made by now."""
        return self.max_sweeps

    def _mind_budget(self) -> None:
        """Leave out what there are no sweeps for."""

    # ---- sweeps ------------------------------------------------------------------------------------------------

    def _may_sweep(self, k: int, n_sweeps: int) -> bool:
        """Whether sweep ``k`` of so many is still to be made; it is counted then."""
        if k >= n_sweeps or self.n_sweeps >= self._budget:
            return False
        self.n_sweeps += 1
        return True

    def _swept(self, before: Point, k: int, *, hold_noise: bool) -> Point:
        """A sweep, and after some of them the extrapolated point where the bound prefers it."""
        swept = sweep(self.problem, before, hold_noise=hold_noise, ahead=True)
        swept = prune(self.problem, swept)
        further = self.anderson.extrapolate(before.state, swept.state) if k >= ACCELERATE_AFTER else None
        if further is None:
            return swept
        jump = evaluate(self.problem, update_component_precisions(further), ahead=True)
        if jump.bound > swept.bound:
            self.anderson.kept()
            return jump
        self.anderson.refused()
        return swept

    @move
    def converge(self, gain: float, n_sweeps: int, k: int = 0, hold_noise: bool = False) -> str | None:
        """Sweep ``k`` of at most ``n_sweeps``; others follow until one raises the bound by less than ``gain`` nats."""
        if k == 0:
            self.anderson = Anderson()
        if not self._may_sweep(k, n_sweeps):
            return None
        before, swept = self.point, self._swept(self.point, k, hold_noise=hold_noise)
        if swept.bound < before.bound:  # at the limit of rounding, or of a local model's validity
            return None
        self.best = swept
        self.drift = swept.bound - before.bound
        n_pruned = before.rank - swept.rank
        settled = not n_pruned and self.drift < gain
        if hold_noise or not settled:
            self._next(partial(self.converge, gain, n_sweeps, k + 1, not settled and _holds_noise(k + 1)))
        return f"pruned {n_pruned}" if n_pruned else ""

    # ---- trials ------------------------------------------------------------------------------------------------

    def _try(self, state: State, event: str, *then: Move, n_held: int = 8, n_free: int = 60) -> None:
        """Settle a proposed state and judge it; then go on with the given moves."""
        self._put_on_trial(
            state,
            n_held,
            partial(self.approach, 0),
            partial(self.settle, n_held, n_free, 0),
            partial(self.judge, event, self.n_sweeps),
            *then,
        )

    def _try_start(self, state: State, *then: Move, n_held: int = 20, n_free: int = 15) -> None:
        """Settle a start roughly; surplus components are condensed on the way."""
        self._put_on_trial(
            state,
            n_held,
            partial(self.settle, n_held, FREE_BEFORE_CONDENSING, 0, True),
            partial(self.condense),
            partial(self.settle, n_held, n_free, FREE_BEFORE_CONDENSING, True),
            *then,
        )

    def _put_on_trial(self, state: State, n_held: int, *then: Move) -> None:
        self.tried = evaluate(self.problem, state, ahead=n_held > 0)
        self._next(partial(self.hold, n_held, 0), *then)

    @move
    def hold(self, n_held: int, k: int) -> None:
        """Sweep ``k`` of the trial, noise and precisions held; once that brings little the noise is learnt."""
        if self._may_sweep(k, n_held):
            before, held = self.trial, {"hold_precisions": True, "hold_noise": True, "ahead": k + 1 < n_held}
            self.tried = sweep(self.problem, before, **held)
            enough = self.trial.bound - before.bound < self.held_long_enough
            self._next(partial(self.hold, n_held, n_held if enough else k + 1))
        elif n_held:
            self.tried = _with_noise_learnt(self.problem, self.trial)

    @move
    def approach(self, k: int) -> None:
        """Sweep ``k`` of the trial with a Gaussian slab, which draws outlying entries back in, then back to a flat one.

        Only where it is so far from an accurate fit that a slab without pull would call it all outliers.
        """
        if k == 0:
            if not _is_far_off(self.trial.state, self.point.state):
                return
            self.tried = _with_noise_learnt(self.problem, self.trial, GaussianSlab)
        before = self.trial
        if self._may_sweep(k, 60):
            self.tried = prune(self.problem, sweep(self.problem, before))
            if k < 5 or self.trial.bound - before.bound >= self.roughly:
                self._next(partial(self.approach, k + 1))
                return
        self.tried = _with_noise_learnt(self.problem, self.trial, FlatSlab)

    @move
    def condense(self) -> None:
        """One component less in the trial, and another as long as the bound approves, after a few sweeps."""
        state = proposals.condense(self.problem, self.trial)
        if state is None:
            return
        condensed = evaluate(self.problem, state)
        for k in range(CONDENSED_SWEEPS):
            if not self._may_sweep(k, CONDENSED_SWEEPS):
                return
            condensed = sweep(self.problem, condensed)
            if condensed.bound > self.trial.bound:
                self.tried = condensed
                self._next(partial(self.condense))
                return

    @move
    def settle(self, n_held: int, n_free: int, k: int, roughly: bool = False) -> None:
        """Sweep ``k`` of the trial; others follow until it beats the best point, or it is plain that it will not.

        Or until it is ``roughly`` settled, where that is enough.
        """
        if k == 0:
            self.anderson, self.bounds = Anderson(), (self.trial.bound,)
        if not self._may_sweep(k, n_free):
            return
        self.tried = self._swept(self.trial, k, hold_noise=_holds_noise(k))
        self.bounds = (*self.bounds[-4:], self.trial.bound)
        if roughly and not _holds_noise(k) and self.bounds[-1] - self.bounds[-2] < self.roughly:
            return
        if self.best is not None:
            target = self.best.bound + WORTH + self.drift * (n_held + k + 1)
            if self.trial.bound > target or (k >= 6 and _is_hopeless(self.bounds, target, n_free - k)):
                return
        self._next(partial(self.settle, n_held, n_free, k + 1, roughly))

    @move
    def judge(self, event: str, n_before: int) -> str:
        """Keep the trial if it raises the bound by a nat more than as many sweeps of the best point would anyway."""
        trial, self.tried = self.trial, None
        gain = trial.bound - self.point.bound
        if gain > WORTH + self.drift * (self.n_sweeps - n_before):
            self.best = trial
            return f"{event} (+{gain:.1f})"
        return f"{event} dropped"


def reduced(problem: Problem, point: Point, rank: int) -> Point:
    """As good as can be with so few components, whatever it costs; noise and outliers take what is left over."""
    return _with_noise_learnt(problem, evaluate(problem, proposals.reduce_rank(problem, point, rank)))


def _with_noise_learnt(problem: Problem, point: Point, kind: type[SlabModel] | None = None) -> Point:
    return evaluate_at(problem, learn_noise_globally(problem, point, kind), point.fit)


def _present(point: Point | None) -> Point:
    if point is None:
        raise RuntimeError("a move was made before there was anything to move")
    return point


def _holds_noise(k: int) -> bool:
    """Whether the k-th sweep in a row leaves noise and outlier numbers alone: they move little from one to the next."""
    return k >= 3 and k % LEARN_NOISE_EVERY != 0


def _is_far_off(proposed: State, present: State) -> bool:
    """Whether a proposal starts so far from an accurate fit that a slab without pull would call it all outliers."""
    return isinstance(present.outliers, FlatSlab) and float(proposed.tau.mean) < 1e-2 * float(present.tau.mean)


def _is_hopeless(bounds: Sequence[float], target: float, n_left: int) -> bool:
    """Whether the trend of the last gains, extrapolated geometrically and doubled, stays below the target."""
    gains = np.diff(bounds)
    last = max(float(gains[-1]), 0.0)
    ratio = min(max(float(gains[-1] / gains[0]), 0.0) ** (1.0 / 3.0), 0.995) if gains[0] > 0 else 0.5
    ahead = last * (1.0 - ratio**n_left) / (1.0 - ratio)
    return bounds[-1] + 2.0 * ahead < target
