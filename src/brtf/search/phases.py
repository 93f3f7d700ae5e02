"""The whole search in one table: which moves are tried in which phase, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brtf.inference.judge import WORTH
from brtf.search.move import Move, Progress, Sweeps
from brtf.search.moves.birth import Birth
from brtf.search.moves.cap import Cap
from brtf.search.moves.channels import Channels
from brtf.search.moves.condense import Condense
from brtf.search.moves.death import Death
from brtf.search.moves.form import Cheaper, Tighter
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


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of the search: rounds of sweeps and moves.

    Attributes
    ----------
    name
    moves : of a round, in order
    sweeps : with which a round begins
    counted : the first move whose gain counts: another round follows if those from it on gain a nat together, for then
        the noise may have to be chosen anew; None for a single round
    follow_up : the phase that follows if any proposal was kept, instead of the next one
    holds_cap : whether the cap on the rank holds from here on, on the way too
    skipped : whether the phase is left out
    """

    name: str
    moves: tuple[Move, ...] = ()
    sweeps: Callable[[Progress], Sweeps | None] = lambda progress: None
    counted: str | None = None
    follow_up: str | None = None
    holds_cap: bool = False
    skipped: Callable[[Progress], bool] = lambda progress: False


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
        skipped=lambda progress: progress.explained,
    ),
    Phase("cap", (Cap(),), holds_cap=True),
    Phase(
        "fine",
        (*NOISE, LocalModels(pulling=False), *COMPONENTS),
        lambda progress: Sweeps(0.1 * WORTH, 100),
        counted=Refresh.name,
    ),
    Phase("tighter", (Tighter(),), follow_up="rough"),
    Phase("end", (), lambda progress: Sweeps(progress.wishes.converged_gain, progress.max_sweeps)),
    Phase("replacement", (Replacement(last=True),), follow_up="rough"),
)
"""The whole search. Roughly converged states show which components and what noise there are; fine ones decide, with all
local models, about the rest."""
NAMES = tuple(phase.name for phase in PHASES)
