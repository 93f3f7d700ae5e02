"""A fit in plain words: what was found, what looks wrong, and how far the intervals can be trusted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brtf.data.observations import Observations
from brtf.results.result import Result

MOST_CHECKED = 20_000
"""Largest number of entries whose intervals are checked: coverage is then accurate to 0.3 %, two standard errors."""
LEVEL = 0.95


def headline(result: Result, held_out: Observations | None = None) -> list[str]:
    """The most important findings as sentences; ``held_out`` are entries that the fit has not seen.

    Without them, those that the fit set aside for calibration are used.
    """
    held_out = result.held_back if held_out is None else held_out
    return [_patterns(result), _wrong(result), _intervals(result, held_out)]


def explained_share(result: Result) -> float:
    """Share of the variation of t(Y) that the low-rank part explains, R²; NaN if there is none or it is not known.

    1 − Σ (1 − p) (t(y) − x̄)² / Σ (1 − p) (t(y) − mean)² over the observed entries, with p the probability that an entry
    is an outlier.
    """
    if result.observations.in_chunks:
        return np.nan
    regular = 1.0 - result.outlier_probability_at_entries()
    values = result.values_at_entries() / result.scale
    residual = result.residuals_at_entries() / result.scale
    count = float(regular.sum())
    if not count > 0:
        return np.nan
    spread = float(regular @ (values - float(regular @ values) / count) ** 2)
    # what is far below the rounding of the values is no variation
    if not spread > count * (1e-12 * float(np.abs(values).max())) ** 2:
        return np.nan
    return 1.0 - float(regular @ residual**2) / spread


def coverage(result: Result, observations: Observations, level: float = LEVEL) -> tuple[float, int]:
    """Share of entries inside their intervals, without a conformal factor, and of how many; a sample if there are many.

    The intervals are those of a new observation.
    """
    every = -(-observations.n_observed // MOST_CHECKED)
    chosen = np.arange(0, observations.n_observed, every)
    coords = observations.coords_at(chosen)
    values = observations.values.ravel()[chosen].astype(np.float64)
    low, high = replace(result, held_back=None).interval(coords, level=level, of="observation")
    return float(np.mean((low <= values) & (values <= high))), chosen.size


def percent(share: float, digits: int = 3) -> str:
    """A share as a percentage: 6.9 %, or 99.98 % where fewer digits would round to all."""
    places = digits
    while places < 9 and share < 1 and float(f"{100 * share:.{places}g}") == 100:
        places += 1
    return f"{100 * share:.{places}g}\N{NO-BREAK SPACE}%"


def _patterns(result: Result) -> str:
    rank = result.rank
    if rank == 0:
        return "No pattern was found: the data look like noise around zero."
    words = "One pattern explains" if rank == 1 else f"{rank} patterns explain"
    share = explained_share(result)
    if np.isnan(share):
        return "One pattern was found." if rank == 1 else f"{rank} patterns were found."
    of = "the variation" if result.link.name is None else f"the variation of {result.link.name}(data)"
    aside = " that is not due to outliers" if result.state.local.has_outliers else ""
    return f"{words} {percent(max(share, 0.0))} of {of}{aside}."


def _wrong(result: Result) -> str:
    if not result.state.local.has_outliers:
        return "Wrong entries were not looked for: the model was fitted without outliers."
    rate = result.outlier_rate
    if np.isnan(rate):
        return "Which entries look wrong is not known without the data."
    return "No entry looks wrong." if rate < 1e-5 else f"{percent(rate, 2)} of the entries look wrong."


def _intervals(result: Result, held_out: Observations | None) -> str:
    if held_out is not None and held_out.n_observed:
        share, n_checked = coverage(result, held_out)
        return f"{percent(share)} of {n_checked:,} held-out entries were inside their 95\N{NO-BREAK SPACE}% intervals."
    if result.observations.in_chunks:
        return "No entry was held out, so the intervals are unchecked."
    share, _ = coverage(result, result.observations)
    return (
        f"No entry was held out, so the intervals are unchecked; {percent(share)} of the fitted entries are inside "
        "their 95\N{NO-BREAK SPACE}% intervals."
    )
