"""The position of a search, in plain numbers and states: the content of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brtf.inference.acceleration import AndersonHistory
from brtf.model.state import State
from brtf.search.move import Memory, Proposal, Sweeps
from brtf.search.phases import PHASES
from brtf.search.settle import STAGES


@dataclass(frozen=True, eq=False)
class Position:
    """Position of a search between two steps: with the best state and the random generator it determines the rest.

    Attributes
    ----------
    phase, move : index of the phase and of the move in it; a phase index past the end means that the search is over
    memory : memory of the move
    changed : whether a proposal of this phase was accepted
    mark : bound, form and sweeps from which the gain of the round is counted, once set
    sweeps : sweeps of the best point in progress
    proposal, trial : the proposal on trial, and its current state
    ahead, trial_ahead : whether the next factors of the best state and of the trial were computed with the old noise
    n_sweeps, drift, most, beyond, skips_rough : see :class:`brtf.search.move.Progress`
    collapsed : the form of the bound
    bound : bound of the best state in that form; None where there is no state yet
    anderson : memory of the acceleration of the current sweeps
    refusals : moves that failed, each with the kind of point at which it did and the bound up to which it would again
    """

    phase: int
    move: int
    memory: Memory
    changed: bool
    mark: tuple[float, bool, int] | None
    sweeps: Sweeps | None
    proposal: Proposal | None
    trial: State | None
    ahead: bool
    trial_ahead: bool
    n_sweeps: int
    drift: float
    most: int
    beyond: float | None
    skips_rough: bool
    collapsed: bool
    bound: float | None
    anderson: AndersonHistory
    refusals: tuple[tuple[str, str, float], ...]

    @property
    def is_last(self) -> bool:
        """Whether the search is complete."""
        return self.phase >= len(PHASES)

    def without_refusals_of(self, name: str) -> Position:
        """The position with nothing refused to the moves of a name."""
        return replace(self, refusals=tuple(one for one in self.refusals if one[0] != name))

    def check(self, state: State | None) -> None:
        """Raise a ValueError if the position, which comes from a file, is impossible with that best state."""
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
