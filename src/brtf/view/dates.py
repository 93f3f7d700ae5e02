"""A time axis: round dates between two times, and their text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
"""Lengths in microseconds, in which times are counted from 1970."""
CLOCK_STEPS = tuple(
    count * unit
    for unit, counts in (
        (SECOND, (1, 5, 15, 30)),
        (MINUTE, (1, 5, 15, 30)),
        (HOUR, (1, 3, 6, 12)),
        (DAY, (1, 2, 7, 14)),
    )
    for count in counts
)
MONTH_STEPS = (1, 2, 3, 6, *(12 * count * power for power in (1, 10, 100, 1000, 10_000) for count in (1, 2, 5)))
MONTH_DAYS, YEARS_BEFORE = 30.44, 1970
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def date_ticks(low: float, high: float, n_wanted: int = 5) -> list[tuple[float, str]]:
    """At most ``n_wanted`` + 1 round times between two, in microseconds since 1970, and their text.

    Steps are seconds, minutes, hours, days, weeks, months or years. The text is as short as the step allows; the first
    tick and those at which a larger unit begins also say that one.
    """
    extent = max(high - low, 1.0)
    step = next((step for step in CLOCK_STEPS if extent / step <= n_wanted + 0.99), None)
    if step is not None:
        phase = 4 * DAY if step >= 7 * DAY else 0  # weeks begin on Monday
        first = int(np.ceil((low - phase) / step)) * step + phase
        times = np.arange(first, int(high) + 1, step, dtype=np.int64).astype("M8[us]")
    else:
        n_months = extent / (MONTH_DAYS * DAY)
        months = next((step for step in MONTH_STEPS if n_months / step <= n_wanted + 0.5), MONTH_STEPS[-1])
        begin = int(np.int64(low).astype("M8[us]").astype("M8[M]").astype(np.int64)) + YEARS_BEFORE * 12
        begin = -(-begin // months) * months - YEARS_BEFORE * 12
        end = int(np.int64(high).astype("M8[us]").astype("M8[M]").astype(np.int64))
        times = np.arange(begin, end + 1, months).astype("M8[M]").astype("M8[us]")
        step = months * DAY * 28
    values = times.astype(np.int64).astype(np.float64)
    kept = (values >= low) & (values <= high)
    return list(zip(values[kept].tolist(), _texts(times[kept], step), strict=True))


def _texts(times: NDArray[np.datetime64], step: int) -> list[str]:
    texts, day_before, year_before = [], None, None
    for time in times:
        day, clock = str(time.astype("M8[D]")), str(time.astype("M8[s]"))[11:]
        year, month, number = day.split("-")
        date = f"{int(number)} {MONTHS[int(month) - 1]}"
        if step >= 12 * 28 * DAY:
            text = year
        elif step >= 28 * DAY:
            text = MONTHS[int(month) - 1] if year == year_before else f"{MONTHS[int(month) - 1]} {year}"
        elif step >= DAY:
            text = date if year == year_before else f"{date} {year}"
        else:
            short = clock if step < MINUTE else clock[:5]
            text = short if day == day_before else f"{date} {short}"
        texts.append(text)
        day_before, year_before = day, year
    return texts
