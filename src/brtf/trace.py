"""What a fit leaves behind: one record a sweep or proposal, and the reason for its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RESCALED = "bound re-scaled"
"""How an event begins after which the bound measures something else: earlier ones do not compare with later ones."""


class StopReason(Enum):
    """Why a fit ended; the value is the sentence shown to the user."""

    CONVERGED = "Converged: the bound changed by less than tol per observed entry."
    RANK_ZERO = "Converged to rank 0: the data support no low-rank component."
    BELOW_RESOLUTION = (
        "Converged: the data are met to 1e-8 of their scale, so their noise is below resolution and the bound is no "
        "judge of the rank."
    )
    MAX_SWEEPS = "Stopped after max_sweeps sweeps before the bound settled; raise max_sweeps or tol."
    MAX_SECONDS = (
        "Stopped after max_seconds before the bound settled; the best so far is kept. Raise max_seconds, or go on from "
        "a checkpoint."
    )
    NOT_FINITE = "Stopped because the bound was no longer finite; the last finite state was kept."
    INTERRUPTED = (
        "Interrupted before the bound settled; the best so far is kept. Fit again, or go on from a checkpoint."
    )
    UNFINISHED = "Not finished: this is the best so far, read from a checkpoint. Go on from it with resume."

    @property
    def converged(self) -> bool:
        return self in (StopReason.CONVERGED, StopReason.RANK_ZERO, StopReason.BELOW_RESOLUTION)


class FitWarning(UserWarning):
    """A doubt about a finished fit, see ``diagnosis_``."""


@dataclass(frozen=True)
class Doubt:
    """Something about a fit that its user should know, and what to do about it."""

    kind: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}"


@dataclass(frozen=True)
class Record:
    """One line of the trace. The bound and the noise are those of the data in units of their scale.

    ``sweep`` counts all sweeps so far, those of dropped proposals included; ``event`` says what happened, if anything.
    """

    sweep: int
    bound: float
    rank: int
    noise_variance: float
    event: str = ""
