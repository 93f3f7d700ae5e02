"""The search: phases of rounds of moves. Every proposal is settled, judged by the bound, and kept or dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.acceleration import Memory as AndersonMemory
from brtf.inference.judge import WORTH, judge
from brtf.inference.sweep import Point, Problem, evaluate
from brtf.inference.trace import Event
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.search.move import Memory, Move, Progress, Proposal, Sweeps, Trial, Wishes
from brtf.search.moves.birth import Birth
from brtf.search.moves.cap import Cap
from brtf.search.moves.channels import Channels
from brtf.search.moves.condense import Condense
from brtf.search.moves.death import Death
from brtf.search.moves.form import Cheaper, Tighter, begins_collapsed
from brtf.search.moves.local_model import LocalModels
from brtf.search.moves.merge import Merge
from brtf.search.moves.noise import Noise
from brtf.search.moves.rates import Rates
from brtf.search.moves.refresh import Refresh
from brtf.search.moves.replacement import Replacement
from brtf.search.moves.row_prior import RowPriors
from brtf.search.moves.sides import Sides
from brtf.search.moves.start import Start
from brtf.search.moves.structure import Structure
from brtf.search.settle import STAGES, converge, settle
from brtf.search.starts import START_COMPONENTS, waiting

SLACK = 2
"""Times the cap that the rank may have on the way: where components overlap, the way to a few leads through more."""


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of the search: rounds of sweeps and moves.

    Attributes
    ----------
    name
    moves : of a round, in order
    sweeps : with which a round begins
    counted : the first move whose gain counts: another round follows if they gain a nat; None for a single round
    back_to : the phase that follows if any proposal was kept, instead of the next one
    """

    name: str
    moves: tuple[Move, ...] = ()
    sweeps: Callable[[Progress], Sweeps | None] = lambda progress: None
    counted: str | None = None
    back_to: str | None = None


NOISE = (Noise(), Rates(), Sides(), RowPriors())
COMPONENTS = (Refresh(), Birth(), Condense(), Merge(), Death())
PHASES = (
    Phase("start", (Start(),)),
    Phase("asked for", (Cheaper(), Noise(asked=True), Structure(), Replacement(), Channels())),
    Phase(
        "rough",
        (*NOISE, LocalModels(pulling=True), *COMPONENTS),
        lambda progress: Sweeps(progress.roughly, 100),
        counted=Refresh.name,
    ),
    Phase("cap", (Cap(),)),
    Phase(
        "fine",
        (*NOISE, LocalModels(pulling=False), *COMPONENTS),
        lambda progress: Sweeps(0.1 * WORTH, 100),
        counted=Refresh.name,
    ),
    Phase("tighter", (Tighter(),), back_to="rough"),
    Phase("end", (), lambda progress: Sweeps(progress.wishes.converged_gain, progress.max_sweeps)),
    Phase("replacement", (Replacement(last=True),), back_to="rough"),
)
"""The whole search. Roughly converged states show which components and what noise there are; fine ones decide, with all
local models, about the rest."""
NAMES = tuple(phase.name for phase in PHASES)


@dataclass(frozen=True, eq=False)
class Position:
    """Where a search stands between two steps: with its best state and the generator's, all that decides the rest.

    Attributes
    ----------
    phase, move : numbers of the phase and of the move in it; the last phase is over where there is no such phase
    memory : what the move remembers
    changed : whether a proposal of this phase was kept
    mark : bound and form from which the gain of the round counts, once that is reached
    sweeps : sweeps of the best point that are under way
    proposal, trial : what is on trial, and the state it has got to
    n_sweeps, drift, most, beyond, explained : see :class:`brtf.search.move.Progress`
    collapsed : the form of the bound
    bound : of the best state, in that form; None where there is no state yet
    anderson : what the acceleration of the present sweeps remembers
    """

    phase: int
    move: int
    memory: Memory
    changed: bool
    mark: tuple[float, bool] | None
    sweeps: Sweeps | None
    proposal: Proposal | None
    trial: State | None
    n_sweeps: int
    drift: float
    most: int
    beyond: float | None
    explained: bool
    collapsed: bool
    bound: float | None
    anderson: AndersonMemory

    @property
    def is_last(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase >= len(PHASES)

    def check(self, state: State | None) -> None:
        """Refuse a position in which no search can stand with that best state: it comes from a file."""
        if not 0 <= self.phase <= len(PHASES) or (state is None and self.phase > 0):
            raise ValueError(f"there is no phase {self.phase} here")
        moves = () if self.is_last else PHASES[self.phase].moves
        if not 0 <= self.move <= len(moves) or (self.move == len(moves) and self.memory):
            raise ValueError(f"there is no move {self.move}")
        rank = 0 if state is None else state.rank
        if self.memory and not moves[self.move].could_remember(self.memory, rank):
            raise ValueError(f"the move {moves[self.move].name!r} cannot remember {self.memory!r}")
        if (state is None) is not (self.bound is None) or (self.proposal is None) is not (self.trial is None):
            raise ValueError("the position and the states do not agree")
        if self.proposal is not None:
            stages = self.proposal.stages
            if self.move == len(moves) or not 0 <= self.proposal.stage <= len(stages):
                raise ValueError("nothing can be on trial there")
            if any(name not in STAGES for name, *_ in stages):
                raise ValueError("a stage of the trial does not exist")
        if self.sweeps is not None and state is None:
            raise ValueError("there is nothing to sweep")


@dataclass(frozen=True, eq=False)
class Step:
    """What a step of the search has led to: the best point so far, if there is one, and the event, if there was one."""

    point: Point | None
    position: Position
    event: Event | None


class Search:
    """One search, from its starts, or from where it was left, to the best point found."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        rng: np.random.Generator,
        starts: Callable[[int], list[State]],
        affordable: int,
    ) -> None:
        observations = problem.observations
        cap = min(settings.rank_limit(observations.shape, observations.n_observed), affordable)
        most = cap if settings.max_rank is None else min(max(SLACK * cap, cap + 2), affordable)
        wishes = Wishes(
            cap,
            tuple(settings.noise_candidates(observations.order)),
            settings.noise == "per-slice",
            settings.shared_modes(observations.order),
            settings.outlier_kind == "replacement",
            settings.max_rank is not None and cap > START_COMPONENTS,
            settings.tol * observations.n_observed,
        )
        problem = replace(problem, collapsed=begins_collapsed(problem, min(most, START_COMPONENTS)))
        found = cache(lambda: [waiting(state) for state in starts(most)])
        self.progress = Progress(problem, wishes, rng, found, settings.max_sweeps, most)
        self.phase, self.move = 0, 0
        self.memory: Memory = ()
        self.changed = False
        self.mark: tuple[float, bool] | None = None
        self.sweeps: Sweeps | None = None
        self.trial: Trial | None = None

    def run(self) -> Iterator[Step]:
        """Phase after phase, round after round, move after move; a step for every sweep and every verdict."""
        while self.phase < len(PHASES):
            yield from self._converge()
            while self._move_left() is not None:
                while self._has_trial():
                    yield from self._settle()
                    yield self._judge()
                    yield from self._converge()
                self._go_on()
            self._next_round()
            yield self._step(None)

    def _converge(self) -> Iterator[Step]:
        """The sweeps of the best point that are due."""
        while self.sweeps is not None:
            self.sweeps, event = converge(self.progress, self.sweeps)
            yield self._step(event)

    def _settle(self) -> Iterator[Step]:
        """The sweeps of the trial, stage by stage."""
        while self.trial is not None and self.trial.stage < len(self.trial.stages):
            self.trial = settle(self.progress, self.trial)
            if math.isfinite(self.trial.point.bound):
                yield self._step(None)

    def _judge(self) -> Step:
        """Keep the trial if it gains what it must, and more than as many sweeps of the best point would anyway."""
        progress, trial, self.trial = self.progress, self._present_trial(), None
        gain, accepted = 0.0, True
        if progress.best is not None:
            gain = trial.point.bound - progress.best.bound
            drift = progress.drift * (progress.n_sweeps - trial.n_before)
            accepted = judge(trial.point, progress.best, trial.worth + drift)
        if accepted:
            self._keep(trial, gain)
        move = PHASES[self.phase].moves[self.move]
        self.memory = move.heard(self.memory, trial, accepted=accepted)
        if accepted and move.back_to is not None:
            names = [other.name for other in PHASES[self.phase].moves]
            self.move, self.memory = names.index(move.back_to), ()
        return self._step(Event(trial.kind, accepted, gain, trial.told))

    def _keep(self, trial: Trial, gain: float) -> None:
        progress = self.progress
        self.sweeps, self.changed = trial.then, True
        progress.best = trial.point
        if trial.collapsed is not progress.problem.collapsed:
            progress.problem = replace(progress.problem, collapsed=trial.collapsed)
            if progress.beyond is not None:
                progress.beyond += gain
        if trial.beyond is not None:
            progress.beyond = trial.beyond

    def _move_left(self) -> Move | None:
        """The move whose turn it is, if the round has one left."""
        phase = PHASES[self.phase]
        return phase.moves[self.move] if self.move < len(phase.moves) else None

    def _has_trial(self) -> bool:
        """Whether there is a trial: one under way, or the next proposal of the move whose turn it is."""
        if self.trial is not None:
            return True
        self._mind_budget()
        move = self._move_left()
        if move is None:
            return False
        if move.name == PHASES[self.phase].counted and not self.memory:
            self.mark = self.progress.point.bound, self.progress.problem.collapsed
        self.trial, self.memory = move.propose(self.progress, self.memory)
        return self.trial is not None

    def _go_on(self) -> None:
        self.move, self.memory = self.move + 1, ()

    def _next_round(self) -> None:
        """Another round of the phase if the last one gained a nat or changed the form, otherwise the next phase."""
        progress, phase = self.progress, PHASES[self.phase]
        if phase.name == "start":
            progress.starts = list  # they are not needed any more
        if self.mark is not None:
            bound, collapsed = self.mark
            if progress.point.bound > bound + WORTH or collapsed is not progress.problem.collapsed:
                self._enter(self.phase)
                return
        following = self.phase + 1
        if self.changed and phase.back_to is not None:
            following = NAMES.index(phase.back_to)
        elif following < len(PHASES) and NAMES[following] == "rough" and progress.explained:
            following, progress.explained = following + 1, False
        self._enter(following)

    def _enter(self, phase: int) -> None:
        """Begin a round of a phase; from the phase of the cap on, that holds on the way too."""
        if phase < len(PHASES) and NAMES[phase] == "cap":
            self.progress.most = self.progress.wishes.cap
        self.phase, self.move, self.memory = phase, 0, ()
        self.changed, self.mark = False, None
        self.sweeps = PHASES[phase].sweeps(self.progress) if phase < len(PHASES) else None

    def _mind_budget(self) -> None:
        """Come down to the cap without further ado when half of the sweeps are spent."""
        progress = self.progress
        if progress.best is None or progress.most == progress.wishes.cap or progress.n_sweeps < progress.budget:
            return
        state, wishes = progress.point.state, progress.wishes
        lacks_structure = state.structure is None and bool(wishes.shared_modes or wishes.replaced)
        lacks_noise = state.slices is None and wishes.noise_differs
        progress.starts, progress.most, progress.explained = list, wishes.cap, lacks_structure or lacks_noise
        self._enter(NAMES.index("asked for" if progress.explained else "cap"))

    def _present_trial(self) -> Trial:
        if self.trial is None:
            raise RuntimeError("there is no trial to judge")
        return self.trial

    # ---- leaving off and taking up -------------------------------------------------------------------------------

    def _step(self, event: Event | None) -> Step:
        return Step(self.progress.best, self.position, event)

    @property
    def position(self) -> Position:
        """Where the search stands."""
        progress, trial = self.progress, self.trial
        return Position(
            self.phase,
            self.move,
            self.memory,
            self.changed,
            self.mark,
            self.sweeps,
            trial,
            None if trial is None else trial.point.state,
            progress.n_sweeps,
            progress.drift,
            progress.most,
            progress.beyond,
            progress.explained,
            progress.problem.collapsed,
            None if progress.best is None else float(progress.best.bound),
            progress.anderson.memory,
        )

    def take_up(self, state: State | None, position: Position) -> None:
        """Go back to where a search of the same problem stood."""
        progress = self.progress
        progress.problem = replace(progress.problem, collapsed=position.collapsed)
        progress.best = None if state is None else evaluate(progress.problem, state)
        for name in ("n_sweeps", "drift", "most", "beyond", "explained"):
            setattr(progress, name, getattr(position, name))
        progress.anderson = Anderson(position.anderson)
        for name in ("phase", "move", "memory", "changed", "mark", "sweeps"):
            setattr(self, name, getattr(position, name))
        if position.proposal is not None and position.trial is not None:
            judged = replace(progress.problem, collapsed=position.proposal.collapsed)
            told = {field.name: getattr(position.proposal, field.name) for field in fields(Proposal)}
            self.trial = Trial(**told, point=evaluate(judged, position.trial))
