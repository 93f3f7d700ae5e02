"""Positions along a mode: distances of neighbours and natural periods, from its labels, and labels that continue it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.times import as_times, times_after

DAY = 86_400.0
"""Seconds of a day."""
CYCLES = (12.0, 24.0, 360.0, 1440.0, 2.0 * np.pi)
"""Lengths of cycles in numbers that go round: months, hours, degrees, minutes of a day, radians."""
SHORTEST_YEAR_STEP = 28 * DAY
"""Shortest month: steps of at least this and at most 31 days are months, twelve of which are a year."""


@dataclass(frozen=True, eq=False)
class Positions:
    """Where the rows of a mode lie.

    Attributes
    ----------
    steps : (I − 1,) distances of neighbours in units of the typical one, all positive
    periods : numbers of typical steps in a day, a week or a year, where the labels are times
    places : (I,) whole numbers of typical steps from the first row
    closing : distance of the last row to the first in the same units, where the labels are numbers that go once round,
        such as hours of a day or degrees; None otherwise
    """

    steps: Array
    periods: tuple[int, ...]
    places: NDArray[np.int64]
    closing: float | None = None

    @property
    def may_go_round(self) -> bool:
        """Whether the last row may be followed by the first: they do not follow times, which do not come back."""
        return self.closing is not None or (not self.periods and bool(np.allclose(self.steps, 1.0)))

    @classmethod
    def of(cls, labels: NDArray[Any] | None, n_rows: int) -> Positions:
        """The positions according to the labels; evenly spaced if these are no numbers or times in order."""
        along = None if labels is None else _numbers(labels)
        if along is None:
            return cls(np.ones(max(n_rows - 1, 0)), (), np.arange(n_rows))
        distances = np.abs(np.diff(along[0]))
        typical = float(np.median(distances))
        places = np.rint(np.abs(along[0] - along[0][0]) / typical).astype(np.int64)
        periods = _periods(typical) if along[1] else ()
        return cls(distances / typical, periods, places, None if along[1] else _closing(distances, typical))


def _numbers(labels: NDArray[Any]) -> tuple[Array, bool] | None:
    """The labels as increasing or decreasing numbers, seconds where they are times or durations, and whether they are
    times."""
    times = as_times(labels)
    since = labels if times is None else times - times[:1]
    if since.dtype.kind == "m":
        numbers: Array = np.asarray(since / np.timedelta64(1, "s"))
    elif since.dtype.kind in "iuf":
        numbers = since.astype(np.float64)
    else:
        return None
    distances = np.diff(numbers)
    in_order = distances.size > 0 and np.isfinite(numbers).all() and ((distances > 0).all() or (distances < 0).all())
    return (numbers, times is not None) if in_order else None


def _closing(distances: Array, typical: float) -> float | None:
    """What is missing to a whole cycle, in typical steps, if that is between half of the smallest and twice the largest
    step."""
    around, least, most = float(distances.sum()), 0.5 * float(distances.min()), 2.0 * float(distances.max())
    found = [cycle - around for cycle in CYCLES if least <= cycle - around <= most]
    return found[0] / typical if found else None


def _periods(step: float) -> tuple[int, ...]:
    """Whole numbers of at least two steps, each of ``step`` seconds, in a day, a week and a year of months."""
    if SHORTEST_YEAR_STEP <= step <= 31 * DAY:
        return (12,)
    found = (period / step for period in (DAY, 7 * DAY))
    return tuple(round(n) for n in found if n >= 1.5 and abs(n - round(n)) < 1e-6 * n)


def continued(labels: NDArray[Any] | None, n_rows: int, n_more: int) -> NDArray[Any]:
    """Labels of ``n_more`` further positions: at the typical distance, or numbered where the labels are only names."""
    after = np.arange(1, n_more + 1)
    if labels is None:
        return n_rows - 1 + after
    along = _numbers(labels)
    if along is None:
        return np.array([f"+{step}" for step in after])
    times = as_times(labels)
    if times is not None:
        return times_after(labels, times, n_more)
    if labels.dtype.kind == "m":
        return np.asarray(labels[-1] + np.median(np.diff(labels).astype(np.int64)).astype(labels.dtype) * after)
    distance = np.median(np.diff(along[0]))
    more = labels[-1] + distance * after
    whole = labels.dtype.kind != "f" and np.allclose(more, np.rint(more))
    return np.rint(more).astype(np.int64) if whole else more


def steps_onward(labels: NDArray[Any] | None, more: NDArray[Any] | None, n_more: int) -> Array:
    """Typical steps (n_more,) from the last position to each further one; 1, 2, 3, … if the labels give none."""
    along = None if labels is None or more is None else _numbers(joined(labels, more))
    if along is None:
        return np.arange(1.0, n_more + 1.0)
    numbers, last = along[0], along[0].size - n_more - 1
    return np.asarray(np.abs(numbers[last + 1 :] - numbers[last]) / np.median(np.abs(np.diff(numbers[: last + 1]))))


def joined(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Labels followed by others; as objects where their types differ."""
    if first.dtype.kind == second.dtype.kind or {first.dtype.kind, second.dtype.kind} <= set("iuf"):
        return np.concatenate([first, second])
    return np.concatenate([first.astype(object), second.astype(object)])
