"""A point in a run, from which it can go on; its time limit; and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brtf.inference.trace import Record, StopReason
from brtf.model.state import State
from brtf.search.position import Position


@dataclass(frozen=True, eq=False)
class Moment:
    """A point in a run: with the data and the settings it determines the rest.

    Attributes
    ----------
    state, position : see :data:`Steps`
    records, n_records : the trace, which may have grown since, and its length at this moment
    rng : state of the bit generator
    """

    state: State | None
    position: Position | None
    records: Sequence[Record]
    n_records: int
    rng: Mapping[str, Any]

    @property
    def trace(self) -> tuple[Record, ...]:
        """The records so far."""
        return tuple(self.records[: self.n_records])

    @property
    def latest(self) -> Record | None:
        """The last record, if there is one."""
        return self.records[self.n_records - 1] if self.n_records else None

    @property
    def n_sweeps(self) -> int:
        """All sweeps so far."""
        if self.position is not None:
            return self.position.n_sweeps
        return 0 if self.latest is None else self.latest.sweep

    @property
    def cap_gain(self) -> float | None:
        """Gain of one more component than the cap allows; None where the cap was not reached."""
        beyond, bound = (None, None) if self.position is None else (self.position.beyond, self.position.bound)
        return None if beyond is None or bound is None or beyond <= bound else beyond - bound


class Deadline:
    """Time limit: so many seconds from now, or none. The clock is read only when asked."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self.passed = False

    @property
    def left(self) -> float | None:
        """Seconds until then, at least a millisecond; None where there is no limit."""
        return None if self._end == math.inf else max(self._end - time.monotonic(), 1e-3)

    def look(self) -> bool:
        """Whether the time is up; sets ``passed`` if so."""
        self.passed = self.passed or time.monotonic() >= self._end
        return self.passed


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a run: the last state with a finite bound, the trace, and the reason for stopping.

    ``cap_gain`` is the gain in nats of one more component, where the cap limited the rank.
    """

    state: State
    trace: tuple[Record, ...]
    stop_reason: StopReason
    cap_gain: float | None = None
