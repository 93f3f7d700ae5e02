"""The search: phases of rounds of moves. Every proposal is settled, then accepted or rejected by the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.judge import WORTH, judge
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Event
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.search.move import Memory, Move, Progress, Proposal, Sweeps, Trial
from brtf.search.moves.form import begins_collapsed
from brtf.search.moves.outlier_kind import undivided
from brtf.search.options import SearchOptions
from brtf.search.phases import NAMES, PHASES
from brtf.search.position import Position
from brtf.search.settle import converge, settle
from brtf.search.starts import START_COMPONENTS, compact

SLACK = 2
"""Largest intermediate rank as a multiple of the cap: where components overlap, a small rank is reached from above."""


def no_starts() -> list[State]:
    """The starts of a search that has left its first phase: their memory is free."""
    return []


@dataclass(frozen=True)
class Refusal:
    """A move failed at a point of this kind; it is not worth asking again until the bound is higher than ``until``."""

    kind: str
    until: float


@dataclass(frozen=True, eq=False)
class Step:
    """Result of a step of the search: the best point so far and the event, each None where there is none."""

    point: Point | None
    position: Position
    event: Event | None


class Search:
    """One search, from its starts or from a saved position, to the best point found."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        rng: np.random.Generator,
        starts: Callable[[int], list[State]],
        affordable: int,
    ) -> None:
        observations = problem.observations
        options = SearchOptions.of(observations, settings, affordable)
        cap, most = options.cap, options.cap
        if settings.max_rank is not None:
            enough = replace(settings, max_rank=None).rank_limit(observations.shape, observations.n_observed)
            most = min(max(SLACK * cap, cap + 2), affordable, enough)
        problem = replace(problem, collapsed=begins_collapsed(problem, min(most, START_COMPONENTS)))
        found = cache(lambda: [compact(state) for state in starts(most)])
        self.progress = Progress(problem, options, rng, found, settings.max_sweeps, most)
        self.phase, self.move = 0, 0
        self.memory: Memory = ()
        self.refusals: dict[str, Refusal] = {}
        self.changed = False
        self.mark: tuple[float, bool, int] | None = None
        self.sweeps: Sweeps | None = None
        self.trial: Trial | None = None

    def run(self) -> Iterator[Step]:
        """Phase after phase, round after round, move after move; yields a step for every sweep and every judgement.

        A resumed search enters here too: it first continues the sweeps and the trial that were in progress, and
        nothing already done is repeated.
        """
        while self.phase < len(PHASES):
            yield from self._converge()
            while self.move < len(PHASES[self.phase].moves):
                trial = self.trial or self._ask()
                if trial is None:
                    self._next_move()
                else:
                    yield from self._settle(trial)
                    yield self._judge()
                    yield from self._converge()
            self._next_round()
            yield self._step(None)

    def _converge(self) -> Iterator[Step]:
        """Make the pending sweeps of the best point."""
        while self.sweeps is not None:
            self.sweeps, event = converge(self.progress, self.sweeps)
            yield self._step(event)

    def _ask(self) -> Trial | None:
        """The next proposal of the current move; first jump to the phase of the cap if that is due."""
        self._mind_budget()
        phase = PHASES[self.phase]
        move = phase.moves[self.move]
        if not self.memory:
            if move.name == phase.counted:
                self.mark = self.progress.point.bound, self.progress.problem.collapsed, self.progress.n_sweeps
            if self._is_refused(move):
                return None
        self.trial, self.memory = move.propose(self.progress, self.memory)
        return self.trial

    def _is_refused(self, move: Move) -> bool:
        """Whether a move failed at a point so similar to the best one that it would fail again."""
        if self.progress.best is None:
            return False
        refusal = self.refusals.get(move.name)
        if refusal is None:
            return False
        holds = refusal.kind == self.progress.kind(move) and self.progress.best.bound <= refusal.until
        if not holds:
            del self.refusals[move.name]
        return holds

    def _settle(self, trial: Trial) -> Iterator[Step]:
        """Make the sweeps of the trial, stage by stage."""
        while trial.stage < len(trial.stages):
            self.trial = trial = settle(self.progress, trial)
            if math.isfinite(trial.point.bound):
                yield self._step(None)

    def _judge(self) -> Step:
        """Accept the trial if it gains enough, and more than the same number of sweeps of the best point would."""
        progress, trial = self.progress, self.trial
        if trial is None:
            raise RuntimeError("there is no trial to judge")
        self.trial = None
        gain, accepted, lacking = 0.0, True, 0.0
        if progress.best is not None:
            gain = trial.point.bound - trial.price - progress.best.bound
            worth = trial.worth + progress.drift * (progress.n_sweeps - trial.n_before)
            accepted, lacking = judge(trial.point, progress.best, worth + trial.price), worth - gain
        move = PHASES[self.phase].moves[self.move]
        if accepted:
            self._keep(trial, gain)
            self.refusals.pop(move.name, None)
        else:
            self._refuse(move, lacking)
            if trial.worth == math.inf and progress.beyond is not None:
                progress.beyond = max(progress.beyond, float(trial.point.bound))
        self.memory = move.learn_from(self.memory, trial, accepted=accepted)
        if accepted and move.back_to is not None:
            names = [other.name for other in PHASES[self.phase].moves]
            self.move, self.memory = names.index(move.back_to), ()
        return self._step(Event(trial.kind, accepted, gain, trial.description))

    def _keep(self, trial: Trial, gain: float) -> None:
        """Continue from the trial; a change of the form shifts the bound beyond the cap by the same amount."""
        progress = self.progress
        self.sweeps, self.changed = trial.then, True
        progress.best = trial.point
        progress.problem = undivided(progress.problem, trial.point.state)
        if trial.collapsed is not progress.problem.collapsed:
            progress.problem = replace(progress.problem, collapsed=trial.collapsed)
            if progress.beyond is not None:
                progress.beyond += gain
        if trial.beyond is not None:
            progress.beyond = trial.beyond

    def _refuse(self, move: Move, lacking: float) -> None:
        """Do not ask a move again until the bound has risen by what its proposal lacked, or at least by a nat."""
        progress = self.progress
        before = self.refusals.get(move.name)
        # what only measures, or has no bound, lacks no known number of nats
        until = progress.point.bound + (max(lacking, WORTH) if math.isfinite(lacking) else WORTH)
        self.refusals[move.name] = Refusal(progress.kind(move), until if before is None else min(until, before.until))

    def _next_move(self) -> None:
        """Go on to the next move; one that had nothing to propose is not asked again at the same point either."""
        move = PHASES[self.phase].moves[self.move]
        if self.progress.best is not None and move.name not in self.refusals:
            self._refuse(move, 0.0)
        self.move, self.memory = self.move + 1, ()

    def _next_round(self) -> None:
        """Another round of the phase if the last one gained enough or changed the form, otherwise the next phase."""
        progress, phase = self.progress, PHASES[self.phase]
        if self.mark is not None:
            bound, collapsed, n_sweeps = self.mark
            enough = max(WORTH, phase.per_sweep(progress) * (progress.n_sweeps - n_sweeps))
            if progress.point.bound > bound + enough or collapsed is not progress.problem.collapsed:
                self._enter(self.phase)
                return
        following = self.phase + 1
        if self.changed and phase.follow_up is not None:
            following = NAMES.index(phase.follow_up)
        elif following < len(PHASES) and PHASES[following].skipped(progress):
            following, progress.skips_rough = following + 1, False
        self._enter(following)

    def _enter(self, phase: int) -> None:
        """Begin a round of a phase."""
        if phase < len(PHASES) and PHASES[phase].holds_cap:
            self.progress.most = self.progress.options.cap
        self.progress.starts = no_starts
        self.phase, self.move, self.memory = phase, 0, ()
        self.changed, self.mark = False, None
        self.sweeps = PHASES[phase].sweeps(self.progress) if phase < len(PHASES) else None

    def _mind_budget(self) -> None:
        """Jump to the phase of the cap when half of the sweeps are spent."""
        progress = self.progress
        if progress.best is None or progress.most == progress.options.cap or progress.n_sweeps < progress.budget:
            return
        state, options = progress.point.state, progress.options
        lacks_structure = state.structure is None and options.structured
        lacks_noise = state.slices is None and options.noise_differs
        progress.most, progress.skips_rough = options.cap, lacks_structure or lacks_noise
        self._enter(NAMES.index("asked for" if progress.skips_rough else "cap"))

    # ---- save and resume -----------------------------------------------------------------------------------------

    def _step(self, event: Event | None) -> Step:
        return Step(self.progress.best, self.position, event)

    @property
    def position(self) -> Position:
        """The current position of the search."""
        progress, trial = self.progress, self.trial
        return Position(
            phase=self.phase,
            move=self.move,
            memory=self.memory,
            changed=self.changed,
            mark=self.mark,
            sweeps=self.sweeps,
            proposal=trial,
            trial=None if trial is None else trial.point.state,
            ahead=progress.best is not None and progress.best.ahead is not None,
            trial_ahead=trial is not None and trial.point.ahead is not None,
            n_sweeps=progress.n_sweeps,
            drift=progress.drift,
            most=progress.most,
            beyond=progress.beyond,
            skips_rough=progress.skips_rough,
            collapsed=progress.problem.collapsed,
            bound=None if progress.best is None else float(progress.best.bound),
            anderson=progress.anderson.memory,
            refusals=tuple(sorted((name, refusal.kind, refusal.until) for name, refusal in self.refusals.items())),
        )

    def take_up(self, state: State | None, position: Position) -> None:
        """Resume from the position of a search of the same problem."""
        progress = self.progress
        progress.problem = replace(progress.problem, collapsed=position.collapsed)
        if state is not None:
            progress.problem = undivided(progress.problem, state)
        progress.best = None if state is None else evaluate(progress.problem, state, ahead=position.ahead)
        for name in ("n_sweeps", "drift", "most", "beyond", "skips_rough"):
            setattr(progress, name, getattr(position, name))
        progress.anderson = Anderson(position.anderson)
        for name in ("phase", "move", "memory", "changed", "mark", "sweeps"):
            setattr(self, name, getattr(position, name))
        self.refusals = {name: Refusal(kind, until) for name, kind, until in position.refusals}
        if position.proposal is not None and position.trial is not None:
            judged = undivided(replace(progress.problem, collapsed=position.proposal.collapsed), position.trial)
            proposed = {field.name: getattr(position.proposal, field.name) for field in fields(Proposal)}
            self.trial = Trial(**proposed, point=evaluate(judged, position.trial, ahead=position.trial_ahead))
