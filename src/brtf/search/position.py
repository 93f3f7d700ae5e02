"""Where a search stands, in plain numbers and states: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

from brtf.inference.acceleration import Memory as AndersonMemory
from brtf.model.state import State
from brtf.search.move import Memory, Proposal, Sweeps
from brtf.search.phases import PHASES
from brtf.search.settle import STAGES


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
