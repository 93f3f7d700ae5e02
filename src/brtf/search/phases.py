"""The phases of the search in one table: the moves of each phase, and what follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brtf.inference.judge import WORTH
from brtf.search.move import Move, Progress, Sweeps
from brtf.search.moves.birth import Birth
from brtf.search.moves.cap import Beyond, Cap
from brtf.search.moves.channels import Channels
from brtf.search.moves.condense import Condense
from brtf.search.moves.courses import SecondCourses
from brtf.search.moves.death import Death
from brtf.search.moves.few_outliers import FewOutliers
from brtf.search.moves.form import Cheaper, Tighter
from brtf.search.moves.local_model import LocalModels
from brtf.search.moves.merge import Merge
from brtf.search.moves.noise import Noise
from brtf.search.moves.non_negative import WithoutNegative
from brtf.search.moves.order import Order
from brtf.search.moves.order_form import OrderForm
from brtf.search.moves.outlier_kind import OutlierKinds
from brtf.search.moves.plainer import Plainer
from brtf.search.moves.rates import Rates
from brtf.search.moves.reconsider import Reconsider
from brtf.search.moves.refresh import Refresh
from brtf.search.moves.replacement import Replacement
from brtf.search.moves.row_prior import RowPriors
from brtf.search.moves.shifted import Shifted
from brtf.search.moves.sides import OneSided
from brtf.search.moves.smooth_residual import Smoothness
from brtf.search.moves.start import Start
from brtf.search.moves.structure import Structure
from brtf.search.moves.temper import Temper


@dataclass(frozen=True, eq=False)
class Phase:
    """A phase of the search: rounds of sweeps and moves.

    Attributes
    ----------
    name
    moves : the moves of a round, in order
    sweeps : the sweeps at the start of a round
    counted : the move from which gains count: another round follows if they total a nat, as the noise may have to be
        chosen again; None for a single round
    per_sweep : nats that they must total besides, for every sweep of the round
    follow_up : the next phase if any proposal was accepted; None for the one that follows
    holds_cap : whether intermediate ranks obey the cap from here on
    skipped : whether the phase is skipped
    """

    name: str
    moves: tuple[Move, ...] = ()
    sweeps: Callable[[Progress], Sweeps | None] = lambda progress: None
    counted: str | None = None
    per_sweep: Callable[[Progress], float] = lambda progress: 0.0
    follow_up: str | None = None
    holds_cap: bool = False
    skipped: Callable[[Progress], bool] = lambda progress: False


NOISE, ROWS = (FewOutliers(), Rates(), OneSided()), RowPriors()
ORDER = (ROWS, Order(), SecondCourses())
REFRESH, DOUBT = Refresh(doubting=False), Refresh(doubting=True)
BIRTH, THINNING = Birth(), (Condense(), Merge(), Death())
ASKED_FOR = (
    Cheaper(),
    Order(asked=True),
    Noise(asked=True),
    Structure(),
    Replacement(),
    Channels(),
    Smoothness(),
)
ROUGH = (
    Noise(coarse=True),
    *NOISE,
    ROWS,
    Plainer(pulling=True),
    LocalModels(pulling=True),
    OutlierKinds(coarse=True),
    REFRESH,
    BIRTH,
    *ORDER,
    *THINNING,
)
FINE = (
    Noise(),
    *NOISE,
    *ORDER,
    OrderForm(),
    Shifted(),
    Plainer(pulling=False),
    LocalModels(pulling=False),
    OutlierKinds(),
    DOUBT,
    BIRTH,
    *THINNING,
    Temper(),
    Reconsider(),
    WithoutNegative(),
)


def to_convergence(progress: Progress) -> Sweeps:
    """Sweeps after which the best point has converged."""
    return Sweeps(0.1 * WORTH, 100)


PHASES = (
    Phase("start", (Start(),)),
    Phase("asked for", ASKED_FOR),
    Phase(
        "rough",
        ROUGH,
        lambda progress: Sweeps(progress.roughly, 100),
        counted=REFRESH.name,
        per_sweep=lambda progress: progress.roughly,
        skipped=lambda progress: progress.skips_rough,
    ),
    Phase("order", ORDER, to_convergence, follow_up="rough"),
    Phase("cap", (Cap(),), holds_cap=True),
    Phase("fine", FINE, to_convergence, counted=DOUBT.name),
    Phase("tighter", (Tighter(),), follow_up="fine"),
    Phase("end", (), lambda progress: Sweeps(progress.options.converged_gain, progress.max_sweeps)),
    Phase("replacement", (Replacement(last=True),), follow_up="rough"),
    Phase("beyond the cap", (Beyond(),)),
)
"""The phases in order. Components and noise are found on roughly converged states, at first with rows in no order:
chains can follow much of what components or a common centre explain. Order is looked for once births have ended, as
thinning out many components may use up the sweeps. The other choices, with all local models, are made on converged
states."""
NAMES = tuple(phase.name for phase in PHASES)
