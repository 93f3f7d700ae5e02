"""The trace of a fit: one record per sweep or proposal, and the reason for stopping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise


class Kind(Enum):
    """The kinds of events."""

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
    COMMON_NOISE = "common noise"
    RATES = "rates"
    ONE_RATE = "one rate"
    SIDES = "sides"
    NO_SIDES = "no sides"
    REPLACED = "replaced values"
    SHARED = "shared outliers"
    ROW_PRIOR = "row prior"
    ORDER = "order"
    NON_NEGATIVE = "non-negative"
    SIGNED = "signed"
    SMOOTH = "smooth residual"
    STRUCTURE = "structure"
    ADDITIVE = "additive"
    CHANNELS = "channels"
    FORM = "form"
    CAP = "cap"
    RANK = "rank"


IMPOSED = {
    Kind.CAP: "coming down to max_rank",
    Kind.RANK: "a rank that predicts held-out entries better",
    Kind.ORDER: "rows in order, as asked for",
    Kind.NOISE: "noise that differs between slices, as asked for",
    Kind.SMOOTH: "a smooth residual, as asked for",
    Kind.STRUCTURE: "outliers that are shared, have rates of labels or replace the data, as asked for",
    Kind.ADDITIVE: "adding outliers where the data do not support replaced values",
}
"""Descriptions of the kinds of events that may be accepted although they lower the bound."""
WITHOUT_GAIN = (Kind.SWEEP, Kind.PRUNE, Kind.START, Kind.STRUCTURE, Kind.ADDITIVE, Kind.CHANNELS, Kind.FORM)
"""Kinds of events without a meaningful gain: the bounds before and after are not comparable, or one is missing."""


@dataclass(frozen=True)
class Event:
    """An event of a fit: a sweep, or a proposal that was accepted or rejected.

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
        """The text shown in the trace; empty for a plain sweep."""
        if not self.accepted:
            return f"{self.words} dropped"
        return self.words if self.kind in WITHOUT_GAIN else f"{self.words} ({self.gain:+.1f})"


SWEPT = Event(Kind.SWEEP)
"""The event of a plain sweep."""


class StopReason(Enum):
    """Why a fit ended; the value is the sentence shown to the user."""

    CONVERGED = "Converged: the bound changed by less than tol per observed entry."
    HELD_OUT = "Converged: the density of held-out entries no longer rises, with this rank or a larger one."
    RANK_ZERO = "Converged to rank 0: the data support no low-rank component."
    BELOW_RESOLUTION = (
        "Converged: the fit reproduces the data to 1e-8 of their scale; the noise is below numerical resolution, so "
        "the bound cannot determine the rank."
    )
    MAX_SWEEPS = "Stopped after max_sweeps sweeps before the bound settled; raise max_sweeps or tol."
    MAX_SECONDS = (
        "Stopped after max_seconds before the bound settled; the best so far is kept. Raise max_seconds, or continue "
        "from a checkpoint."
    )
    NOT_FINITE = "Stopped because the bound was no longer finite; the last finite state was kept."
    INTERRUPTED = (
        "Interrupted before the bound settled; the best so far is kept. Fit again, or continue from a checkpoint."
    )
    UNFINISHED = "Not finished: this is the best so far, read from a checkpoint. Continue it with resume=."

    @property
    def converged(self) -> bool:
        return self in (
            StopReason.CONVERGED,
            StopReason.HELD_OUT,
            StopReason.RANK_ZERO,
            StopReason.BELOW_RESOLUTION,
        )


class FitWarning(UserWarning):
    """A doubt about a finished fit, see ``diagnosis_``."""


@dataclass(frozen=True)
class Doubt:
    """A concern about a fit, and what the user can do about it."""

    kind: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}"


@dataclass(frozen=True)
class Record:
    """One line of the trace. The bound and the noise are those of the data in units of their scale.

    ``sweep`` counts all sweeps so far, including those of rejected proposals; ``event`` is what the record describes.
    """

    sweep: int
    bound: float
    rank: int
    noise_variance: float
    event: Event = SWEPT


def imposed(trace: Sequence[Record]) -> list[str]:
    """Descriptions of the accepted changes that lowered the bound, without repetition."""
    return list(dict.fromkeys(_imposed(*pair) for pair in pairwise(trace) if _imposed(*pair)))


def comparable(trace: Sequence[Record]) -> list[Record]:
    """The records whose bounds are comparable with the last: those after the last redefinition or forced decrease.

    Bounds before a change of the form of the bound are shifted by the difference.
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
    """Description of an accepted event that lowered the bound; empty for all others."""
    return IMPOSED.get(after.event.kind, "") if after.event.accepted and after.bound < before.bound else ""
