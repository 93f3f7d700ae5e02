"""What a fit leaves behind: one record a sweep or proposal, and the reason for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise


class Kind(Enum):
    """What an event of a fit is about."""

    SWEEP = "sweep"
    PRUNE = "prune"
    START = "start"
    BIRTH = "birth"
    DEATH = "death"
    MERGE = "merge"
    CONDENSE = "condense"
    REFRESH = "refresh"
    LOCAL_MODEL = "local model"
    NOISE = "noise"
    RATES = "rates"
    SIDES = "sides"
    ROW_PRIOR = "row prior"
    STRUCTURE = "structure"
    ADDITIVE = "additive"
    CHANNELS = "channels"
    FORM = "form"
    CAP = "cap"


IMPOSED = {
    Kind.CAP: "coming down to max_rank",
    Kind.NOISE: "noise that differs between slices, as asked for",
    Kind.STRUCTURE: "outliers that are shared or replace the data, as asked for",
    Kind.ADDITIVE: "adding outliers where the data do not support replaced values",
}
"""Kinds of events that may be kept although they lower the bound, in words."""
UNTOLD = (Kind.SWEEP, Kind.PRUNE, Kind.START, Kind.STRUCTURE, Kind.ADDITIVE, Kind.CHANNELS, Kind.FORM)
"""Kinds of events whose gain says nothing, because the bounds before and after do not compare or there is none."""


@dataclass(frozen=True)
class Event:
    """What happened in a fit: a sweep, or a proposal that was kept or dropped.

    Attributes
    ----------
    kind, accepted
    gain : nats by which the proposal's bound differs from the best one
    words : what was proposed
    """

    kind: Kind
    accepted: bool = True
    gain: float = 0.0
    words: str = ""

    def __str__(self) -> str:
        """As the trace shows it; empty for a plain sweep."""
        if not self.accepted:
            return f"{self.words} dropped"
        return self.words if self.kind in UNTOLD else f"{self.words} ({self.gain:+.1f})"


SWEPT = Event(Kind.SWEEP)
"""The event of a plain sweep."""


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

    ``sweep`` counts all sweeps so far, those of dropped proposals included; ``event`` is what the record is of.
    """

    sweep: int
    bound: float
    rank: int
    noise_variance: float
    event: Event = SWEPT


def imposed(trace: Sequence[Record]) -> list[str]:
    """What lowered the bound and was kept all the same, each once."""
    return list(dict.fromkeys(_imposed(*pair) for pair in pairwise(trace) if _imposed(*pair)))


def comparable(trace: Sequence[Record]) -> list[Record]:
    """The records whose bounds compare with the last one's: after it was re-scaled, or lowered as it had to be.

    Those before another form of the bound took over are shifted by what that changed.
    """
    found, shift = list(trace[-1:]), 0.0
    for before, after in zip(trace[-2::-1], trace[:0:-1], strict=True):
        if after.event.kind is Kind.CHANNELS or _imposed(before, after):
            break
        if after.event.kind is Kind.FORM:
            shift += after.bound - before.bound
        found.append(replace(before, bound=before.bound + shift))
    return found[::-1]


def _imposed(before: Record, after: Record) -> str:
    """What an event is that lowered the bound and was kept all the same; empty for all others."""
    return IMPOSED.get(after.event.kind, "") if after.event.accepted and after.bound < before.bound else ""
