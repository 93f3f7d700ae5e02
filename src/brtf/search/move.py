"""What moves are made of: the progress that they look at, the trial that they propose, and what they remember.

A move proposes; it never decides. :mod:`brtf.search.loop` settles what was proposed, and the judge keeps or drops it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.judge import WORTH
from brtf.inference.sweep import Point, Problem, evaluate
from brtf.inference.trace import Kind
from brtf.model.state import State

Memory = tuple[Any, ...]
"""What a move remembers from one proposal to the next, in plain numbers, so that a file can hold it. It is empty when
the move is asked for its first proposal."""
Stages = tuple[tuple[str, int, int], ...]
"""How a trial is settled: stages of :mod:`brtf.search.settle` by name, each with its first sweep, and the
sweep at which it ends at the latest."""
AT_ONCE: Stages = ()
"""Stages of a trial that is judged as it is."""


def settled(n_held: int, n_free: int) -> Stages:
    """The usual stages: sweeps with noise and precisions held, up to 60 that approach a good fit, and free ones."""
    return ("hold", 0, n_held), ("approach", 0, 60), ("free", 0, n_free)


@dataclass(frozen=True)
class Sweeps:
    """Sweeps of the best point: at most ``n_sweeps``, until one raises the bound by less than ``gain`` nats.

    ``k`` were made, and the next one leaves the noise alone if ``hold_noise``.
    """

    gain: float
    n_sweeps: int
    k: int = 0
    hold_noise: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Proposal:
    """What is proposed and how far its trial has come, all but the point itself: plain numbers that a file can hold.

    Attributes
    ----------
    kind, words : what is proposed; ``{rank}`` stands for the rank that it leads to
    stages : how it is settled
    worth : nats by which it must beat the best point; −inf if it is kept whatever it costs
    then : sweeps that follow if it is kept
    collapsed : the form of the bound in which it is judged
    beyond : see :class:`Progress`; None leaves it as it is
    stage, k : the stage in which it is, and the sweeps made in that
    n_before : sweeps of the search before this trial
    bounds : its last bounds
    """

    kind: Kind
    words: str
    stages: Stages = AT_ONCE
    worth: float = WORTH
    then: Sweeps | None = None
    collapsed: bool = True
    beyond: float | None = None
    stage: int = 0
    k: int = 0
    n_before: int = 0
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial(Proposal):
    """A proposal with the point to which its sweeps have led."""

    point: Point

    @property
    def told(self) -> str:
        """What is proposed, in words."""
        return self.words.format(rank=self.point.rank)


@dataclass(frozen=True)
class Wishes:
    """What the settings ask of a search.

    Attributes
    ----------
    cap : components that the answer may have
    noise_modes : choices of modes along which noise may differ
    noise_differs : whether it must
    shared_modes : modes along which outliers are shared
    replaced : whether outliers replace the data
    many : whether so many components are allowed by ``max_rank`` that a start should have them all
    converged_gain : nats a sweep below which a fit has converged
    """

    cap: int
    noise_modes: tuple[tuple[int, ...], ...]
    noise_differs: bool
    shared_modes: tuple[int, ...]
    replaced: bool
    many: bool
    converged_gain: float


@dataclass(eq=False)
class Progress:
    """How far a search has come. Moves read it; the loop writes it, but for ``explained``, which the starts say.

    Attributes
    ----------
    starts : the states to start from, found when they are first asked for
    most : components that a state may have on the way
    best : the best point so far
    n_sweeps : all sweeps so far, those of dropped trials included
    drift : nats that the next sweep of the best point would gain, as far as is known
    beyond : the bound with one component more than the cap allows; None where it was not needed
    explained : whether the first start left nothing to explain, so that rough rounds are left out
    anderson : the acceleration of the present sweeps
    """

    problem: Problem
    wishes: Wishes
    rng: np.random.Generator
    starts: Callable[[], list[State]]
    max_sweeps: int
    most: int
    best: Point | None = None
    n_sweeps: int = 0
    drift: float = 0.0
    beyond: float | None = None
    explained: bool = False
    anderson: Anderson = field(default_factory=Anderson)

    @property
    def point(self) -> Point:
        """The best point so far, where there must be one."""
        if self.best is None:
            raise RuntimeError("there is no point yet")
        return self.best

    @property
    def roughly(self) -> float:
        """Nats a sweep that show that a point is far from its end."""
        return max(WORTH, 1e-4 * self.problem.observations.n_observed)

    @property
    def budget(self) -> int:
        """Sweeps that may have been made by now: half of all while the rank may be above the cap."""
        return self.max_sweeps if self.most == self.wishes.cap else self.max_sweeps // 2

    def may_sweep(self, k: int, n_sweeps: int) -> bool:
        """Whether sweep ``k`` of so many is still to be made; it is counted then."""
        if k >= n_sweeps or self.n_sweeps >= self.budget:
            return False
        self.n_sweeps += 1
        return True

    @property
    def is_complete(self) -> bool:
        """Whether the tensor has no missing entries and is stored as such."""
        return self.problem.observations.layout == "complete"

    def affords(self, rank: int, work: float) -> bool:
        """Whether weighted Grams of that rank cost no more than that work: entries times packed products."""
        return self.problem.observations.n_observed * rank * (rank + 1) / 2 <= work

    def trial(self, kind: Kind, words: str, proposed: State | Point, stages: Stages = AT_ONCE, **options: Any) -> Trial:
        """A trial of a state, or of a point that is known already; see :class:`Proposal` for the options."""
        if isinstance(proposed, State):
            ahead = any(name == "hold" and n_held > 0 for name, _, n_held in stages[:1])
            proposed = evaluate(self.problem, proposed, ahead=ahead)
        options = {"collapsed": self.problem.collapsed, **options}
        return Trial(kind=kind, words=words, stages=stages, n_before=self.n_sweeps, point=proposed, **options)


class Move(ABC):
    """A way to change the best point. A search asks it for proposals until it has none.

    ``back_to`` is the name of the move with which a round goes on after a proposal was kept; None for the same move.
    """

    name: ClassVar[str]
    back_to: ClassVar[str | None] = None

    @abstractmethod
    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        """The next proposal, and what to remember with it; None where there is no more."""

    def heard(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        """What to remember after the verdict."""
        return memory

    @abstractmethod
    def could_remember(self, memory: Memory, rank: int) -> bool:
        """Whether the move can remember this, once asked, of a state of that rank: it comes from a file."""


class Once(Move):
    """A move with at most one proposal."""

    @abstractmethod
    def proposal(self, progress: Progress) -> Trial | None:
        """The proposal, if there is anything to propose."""

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        return (None if memory else self.proposal(progress)), ("asked",)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return memory == ("asked",)


def are_whole(numbers: Any, below: int = 2**31) -> bool:
    """Whether these are whole numbers from zero on."""
    return isinstance(numbers, tuple) and all(type(number) is int and 0 <= number < below for number in numbers)
