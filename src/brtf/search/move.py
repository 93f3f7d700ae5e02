"""The interface of moves: the progress that they read, the trials that they propose, and their memory.

A move proposes; it never decides. :mod:`brtf.search.loop` settles the proposal, and the judge accepts or rejects it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from brtf.inference.acceleration import Anderson
from brtf.inference.judge import WORTH
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.options import SearchOptions

Memory = tuple[Any, ...]
"""Memory of a move between proposals, as plain numbers that a file can store; empty before the first proposal."""
Stages = tuple[tuple[str, int, int], ...]
"""How a trial is settled: stages of :mod:`brtf.search.settle` by name, each with its first sweep and the sweep at which
it ends at the latest."""
AT_ONCE: Stages = ()
"""Stages of a trial that is judged without sweeps."""


def settled(n_held: int, n_free: int) -> Stages:
    """The usual stages: sweeps with noise and precisions held, up to 60 that approach a good fit, then free ones."""
    return ("hold", 0, n_held), ("approach", 0, 60), ("free", 0, n_free)


@dataclass(frozen=True)
class Sweeps:
    """Sweeps of the best point: at most ``n_sweeps``, until one raises the bound by less than ``gain`` nats.

    ``k`` have been made, and the next one holds the noise fixed if ``hold_noise``.
    """

    gain: float
    n_sweeps: int
    k: int = 0
    hold_noise: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Proposal:
    """A proposal and the progress of its trial, without the point itself: plain numbers that a file can store.

    Attributes
    ----------
    kind, words : what is proposed; ``{rank}`` is replaced by the resulting rank
    stages : how it is settled
    worth : nats by which it must beat the best point; −inf if it is always accepted, ∞ if it is only measured
    price : nats of its bound that do not count, as parameters were learnt that the bound does not charge for
    then : sweeps that follow if it is accepted
    collapsed : the form of the bound in which it is judged
    beyond : see :class:`Progress`; None leaves it unchanged
    stage, k : the current stage, and the sweeps made in it
    n_before : sweeps of the search before this trial
    bounds : its last bounds
    """

    kind: Kind
    words: str
    stages: Stages = AT_ONCE
    worth: float = WORTH
    price: float = 0.0
    then: Sweeps | None = None
    collapsed: bool = True
    beyond: float | None = None
    stage: int = 0
    k: int = 0
    n_before: int = 0
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial(Proposal):
    """A proposal with its current point."""

    point: Point

    @property
    def description(self) -> str:
        """Description of the proposal, for events."""
        return self.words.format(rank=self.point.rank)


@dataclass(eq=False)
class Progress:
    """Progress of a search. Moves read it; the loop and the sweeps of :mod:`~brtf.search.settle` write it.

    A move writes only what it spends or skips: ``n_sweeps`` of its own sweeps, and ``skips_rough`` of the starts.

    Attributes
    ----------
    starts : the initial states, computed when first needed
    most : largest intermediate rank
    best : the best point so far
    n_sweeps : all sweeps so far, including those of rejected trials
    drift : estimated gain of the next sweep of the best point, in nats
    beyond : the highest bound found with one component more than the cap; None where it was not needed
    skips_rough : whether the rough rounds are skipped: nothing is left to explain, or half of the sweeps are spent
    anderson : the acceleration of the current sweeps
    """

    problem: Problem
    options: SearchOptions
    rng: np.random.Generator
    starts: Callable[[], list[State]]
    max_sweeps: int
    most: int
    best: Point | None = None
    n_sweeps: int = 0
    drift: float = 0.0
    beyond: float | None = None
    skips_rough: bool = False
    anderson: Anderson = field(default_factory=Anderson)

    @property
    def point(self) -> Point:
        """The best point so far; an error if there is none."""
        if self.best is None:
            raise RuntimeError("there is no point yet")
        return self.best

    def kind(self, move: Move) -> str:
        """What the best point is to a move, apart from its numbers: form, rank, and mostly rows, noise and outliers.

        A proposal that failed at a point can succeed at another one of the same kind only if that is much better.
        """
        state = self.point.state
        kind = state.kind_of_components if move.of_components else state.kind
        return f"{'collapsed' if self.problem.collapsed else 'completed'} {kind}"

    @property
    def roughly(self) -> float:
        """Gain in nats per sweep above which a point is far from convergence."""
        return max(WORTH, 1e-4 * self.problem.observations.n_observed)

    @property
    def budget(self) -> int:
        """Limit of sweeps so far: half of all while the rank may exceed the cap."""
        return self.max_sweeps if self.most == self.options.cap else self.max_sweeps // 2

    def take_sweep(self, k: int, n_sweeps: int) -> bool:
        """Take sweep ``k`` of ``n_sweeps`` from the budget; False where none is left."""
        if k >= n_sweeps or self.n_sweeps >= self.budget:
            return False
        self.n_sweeps += 1
        return True

    @property
    def is_complete(self) -> bool:
        """Whether the tensor has no missing entries and a complete layout."""
        return self.problem.observations.layout == "complete"

    def affords(self, rank: int, work: float) -> bool:
        """Whether weighted Grams of that rank cost at most ``work``: entries times packed products."""
        return self.problem.observations.n_observed * rank * (rank + 1) / 2 <= work

    def trial(self, kind: Kind, words: str, proposed: State | Point, stages: Stages = AT_ONCE, **options: Any) -> Trial:
        """A trial of a state, or of an evaluated point; see :class:`Proposal` for the options."""
        if isinstance(proposed, State):
            ahead = any(name == "hold" and n_held > 0 for name, _, n_held in stages[:1])
            proposed = evaluate(self.problem, proposed, ahead=ahead)
        options = {"collapsed": self.problem.collapsed, **options}
        return Trial(kind=kind, words=words, stages=stages, n_before=self.n_sweeps, point=proposed, **options)


class Move(ABC):
    """A way to change the best point. The search asks it for proposals until it has none left.

    ``back_to`` names the move at which the round continues after an accepted proposal; None for the same move.
    ``of_components`` says that it changes components: other rows, noise or outliers matter by what the bound gained.
    """

    name: str
    of_components: ClassVar[bool] = False
    back_to: ClassVar[str | None] = None

    @abstractmethod
    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        """The next proposal and the memory to keep with it; None where there is none left."""

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        """The memory after the proposal was judged."""
        return memory

    @abstractmethod
    def could_remember(self, memory: Memory, rank: int) -> bool:
        """Whether this memory, which comes from a file, is valid for a state of that rank."""


class Once(Move):
    """A move with at most one proposal."""

    @abstractmethod
    def proposal(self, progress: Progress) -> Trial | None:
        """The proposal; None where there is nothing to propose."""

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        return (None if memory else self.proposal(progress)), ("asked",)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return memory == ("asked",)


def are_whole(numbers: Any, below: int = 2**31) -> bool:
    """Whether all are non-negative integers."""
    return isinstance(numbers, tuple) and all(type(number) is int and 0 <= number < below for number in numbers)
