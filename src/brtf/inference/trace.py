"""What a fit leaves behind: one record a sweep or proposal, and the reason for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

RESCALED = "bound re-scaled"
"""How an event begins after which the bound measures something else: earlier ones do not compare with later ones."""
REFORMED = "another form of the bound"
"""How an event begins that changes nothing but how tight the bound is: earlier ones compare when shifted."""
IMPOSED = {
    "reduced to": "coming down to max_rank",
    "noise per slice": "noise that differs between slices, as asked for",
    "outliers structured": "outliers that are shared or replace the data, as asked for",
    "outliers added": "adding outliers where the data do not support replaced values",
}
"""How events begin that happen even if they lower the bound, and what they are."""


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


def imposed(trace: Sequence[Record]) -> list[str]:
    """What lowered the bound and was kept all the same, each once."""
    return list(dict.fromkeys(_imposed(*pair) for pair in pairwise(trace) if _imposed(*pair)))


def comparable(trace: Sequence[Record]) -> list[Record]:
    """The records whose bounds compare with the last one's: after it was re-scaled, or lowered as it had to be.

    Those before another form of the bound took over are shifted by what that changed.
    """
    found, shift = list(trace[-1:]), 0.0
    for before, after in zip(trace[-2::-1], trace[:0:-1], strict=True):
        if after.event.startswith(RESCALED) or _imposed(before, after):
            break
        if after.event.startswith(REFORMED):
            shift += after.bound - before.bound
        found.append(replace(before, bound=before.bound + shift))
    return found[::-1]


def _imposed(before: Record, after: Record) -> str:
    """What an event is that lowered the bound and was kept all the same; empty for all others."""
    if not after.bound < before.bound:
        return ""
    return next((words for start, words in IMPOSED.items() if after.event.startswith(start)), "")
