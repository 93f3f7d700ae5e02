"""Labels that are times: dates, times with or without a zone, periods, and text that reads as one of these."""

from __future__ import annotations

import datetime
import re
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2}(:\d{2}(\.\d+)?)?)?)?)?")
"""A date, or a date and a time, as ISO 8601 writes them, without a zone."""
ZONED = re.compile(rf"(?P<clock>{ISO.pattern})(?P<zone> ?Z| ?[+-]\d{{2}}:?\d{{2}})")
BY_NUMBERS = re.compile(r"\d{1,2}([./-])\d{1,2}\1(\d{2}|\d{4})")
"""A date as day, month and year, or month, day and year: as text it has another order than as a date."""
FINER = ("ns", "ps", "fs", "as")
DAY = np.timedelta64(1, "D")
FEWEST_WEEKS = 3
"""Weeks after which a day of the week that never came is no working day."""

Times = NDArray[np.datetime64]


def as_times(labels: NDArray[Any]) -> Times | None:
    """The labels as times; None if they are not.

    Times with a zone are those of its clock where they are whole days apart, and of UTC otherwise: a day of 23 hours is
    a day, and an hour that the clock repeats comes once. Periods are where they begin.
    """
    if labels.dtype.kind == "M":
        return labels if np.datetime_data(labels.dtype)[0] in FINER else labels.astype("M8[us]")
    if labels.dtype.kind not in "UO" or not labels.size:
        return None
    given = labels.tolist()
    if all(isinstance(label, str) for label in given):
        read = next((read for form, read in READ if all(form.fullmatch(label) for label in given)), None)
        try:
            given = [] if read is None else [read(label) for label in given]
        except ValueError:  # the 31st of February
            return None
    given = [label.to_timestamp() if hasattr(label, "to_timestamp") else label for label in given]
    if not given or not all(isinstance(label, datetime.date) for label in given):
        return None
    clock = _by_clock(given)
    if all(_zone_of(label) is None for label in given) or (np.diff(clock) % DAY == np.timedelta64(0)).all():
        return clock
    return np.array([_plain(label if label != label else label.astimezone(datetime.UTC)) for label in given], "M8[us]")


def warn_dates_as_text(column: Any, labels: NDArray[Any]) -> None:
    """Warn about the labels of a column if they are dates in a form whose order as text is not that of the days."""
    given = labels.tolist()
    if len(given) > 2 and all(isinstance(label, str) and BY_NUMBERS.fullmatch(label) for label in given):
        warnings.warn(
            f"Column {column!r} holds dates as text, {given[0]}, {given[1]}, …, which are sorted as text and not known "
            "to be dates. Write them as 2024-12-31, or convert them with pandas.to_datetime (dayfirst=True if the day "
            "comes first).",
            UserWarning,
            stacklevel=4,
        )


READ = ((ISO, lambda text: np.datetime64(text).astype("M8[us]").item()), (ZONED, datetime.datetime.fromisoformat))
"""Forms of text that are times, and what reads them."""


def check_times(labels: NDArray[Any] | None, mode: int | str, *, backwards: bool = True) -> None:
    """Raise if labels of a mode whose rows follow each other are times that do not; they may all go ``backwards``."""
    times = None if labels is None else as_times(labels)
    if labels is None or times is None or times.size < 2:
        return
    after = times[1:] > times[:-1]
    before = times[1:] < times[:-1]  # NaT is neither
    if after.all() or (backwards and before.all()):
        return
    at = 1 + int(np.argmin(before if backwards and before.sum() > after.sum() else after))
    raise ValueError(
        f"Mode {mode} is in order, but its times are not: {labels[at]} at position {at} does not follow "
        f"{labels[at - 1]}. Sort Y by them, drop positions without a time, and tell apart those with the same (an hour "
        "that a clock repeats comes once with a time zone)."
    )


def times_after(labels: NDArray[Any], times: Times, n_more: int) -> NDArray[Any]:
    """``n_more`` labels that follow labels whose times are in order, of the same type.

    They go on by months, by days without weekends where no weekend has data, or else at the typical distance.
    """
    later, last = _later(times, n_more), labels[-1]
    if labels.dtype.kind == "M":
        return later
    if hasattr(last, "to_timestamp"):
        step = round(float(np.median(np.diff([label.ordinal for label in labels]))))
        return _objects([last + step * k for k in range(1, n_more + 1)])
    if isinstance(last, str):
        zoned = ZONED.fullmatch(last)
        shown = later
        if zoned is not None:  # text tells the distance from UTC, not the zone
            shown = later + (_by_clock([datetime.datetime.fromisoformat(last)])[0] - times[-1])
        digits, zone = (last, "") if zoned is None else (zoned["clock"], zoned["zone"])
        written = [str(time).replace("T", " " if " " in digits else "T")[: len(digits)] for time in shown]
        return np.array([text + zone for text in written])
    on_clock = bool(_by_clock([last])[0] == times[-1])
    return _objects([_like(last, time.astype("M8[us]").item(), on_clock) for time in later])


def _later(times: Times, n_more: int) -> Times:
    """Times that follow those in order."""
    after = np.arange(1, n_more + 1)
    months, days = times.astype("M8[M]"), times.astype("M8[D]")
    apart = np.diff(months).astype(np.int64)
    if apart[0] and (apart == apart[0]).all():
        for end in (0, 1):
            since = times - (months + end)  # the begin of the month, or of the next one
            if (since == since[0]).all():
                return np.asarray((months[-1] + end + apart[0] * after) + since[0])
    step = np.median(np.diff(times).astype(np.int64)).astype(np.int64).astype(times[1:].dtype.str.replace("M8", "m8"))
    if step == DAY and days[-1] - days[0] >= 7 * FEWEST_WEEKS * DAY and (times - days == times[0] - days[0]).all():
        works = np.bincount(days.astype(np.int64) % 7, minlength=7) > 0
        coming = days[-1] + np.arange(1, 7 * (n_more + 1))
        return np.asarray(coming[works[coming.astype(np.int64) % 7]][:n_more] + (times[0] - days[0]))
    return np.asarray(times[-1] + step * after)


def _by_clock(given: list[Any]) -> Times:
    """Dates and times as the clock shows them."""
    return np.array([_plain(label) for label in given], "M8[us]")


def _plain(label: Any) -> Any:
    """A date or a time without its zone, as NumPy takes it."""
    if label != label:
        return np.datetime64("NaT")
    return label.replace(tzinfo=None) if _zone_of(label) is not None else label


def _zone_of(label: Any) -> Any:
    return getattr(label, "tzinfo", None)


def _like(given: Any, time: datetime.datetime, on_clock: bool) -> Any:
    """A time of the type and the zone of a given label."""
    if not isinstance(given, datetime.datetime):
        return time.date()
    own, zone = type(given).fromisoformat(time.isoformat()), given.tzinfo
    if zone is None or on_clock:
        return own.replace(tzinfo=zone)
    return own.replace(tzinfo=datetime.UTC).astimezone(zone)


def _objects(found: list[Any]) -> NDArray[Any]:
    """An array of things that NumPy might take apart."""
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array
