"""Comparison of BRTF with other methods on the same held-out entries."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brtf.api.estimator import BRTF
from brtf.api.evaluation import assess, draw_hidden, text_table
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.scale import root_mean_square
from brtf.research.baselines import describe, names, recover

__all__ = ["METHODS", "absentees", "as_text", "compare", "comparison_table", "default_methods", "reason_against"]

OURS: dict[str, dict[str, Any]] = {"brtf": {}, "brtf-paper": {"inference": "paper"}, "bcpf": {"robust": False}}
"""Models of this library, which also have densities and intervals; bcpf is the one without outliers."""
METHODS = (*OURS, *(name for name in names() if name not in OURS))
"""All available methods."""
LARGE = 2_000_000
"""Number of entries, observed or missing, from which methods that need a dense tensor run only on request."""
PART, SHORTEST = 4, 4
"""The corner of the data on which methods are timed has a quarter of every mode, and at least four positions."""
SHARED = ("max_rank", "max_sweeps", "tol", "n_jobs")
"""Options that all models of this library accept."""
COLUMNS = ("rmse", "median_error", "relative_error", "log_density", "coverage_95", "rank", "seconds")


def default_methods(observations: Observations) -> tuple[str, ...]:
    """Default methods for the data: BRTF and, unless the data are too large, a few fast ones for their order."""
    if observations.n_entries > LARGE:
        return tuple(OURS)
    return (*OURS, "regl1alm", "prmf") if observations.order == 2 else (*OURS, "horpca", "cpwopt")


def reason_against(method: str, methods: Sequence[str], rank: int | None) -> str | None:
    """Why a method cannot be used, as text; None if it can.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    methods : sequence of str
        All methods compared: other methods use the rank that brtf finds.
    rank : int or None
        The rank given to methods that need one.
    """
    if method not in METHODS:
        raise ValueError(f"methods must be among {', '.join(METHODS)}, got {method!r}.")
    if method in OURS:
        return None
    needs = describe(method).needs
    if not describe(method).missing:
        return "needs complete data, but entries are held out"
    if unknown := [name for name in needs if name != "rank"]:
        return f"needs {' and '.join(unknown)}, which only the caller can know"
    if "rank" in needs and rank is None and "brtf" not in methods:
        return "needs a rank: give one, or include brtf and use the rank it finds"
    return None


def compare(
    observations: Observations,
    methods: Sequence[str],
    *,
    rank: int | None = None,
    options: Mapping[str, Any] | None = None,
    hold_out: float = 0.1,
    pattern: str = "entries",
    mode: int = 0,
    n_repeats: int = 1,
    seed: int = 0,
    patience: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Hold out some observed entries, predict them with every method from the others, and yield a row for each.

    Parameters
    ----------
    observations : Observations
    methods : sequence of str
        Of ``METHODS``; each is fitted in every repeat, brtf first.
    rank : int or None
        The rank given to methods that need one; None: the one that brtf has just found.
    options : mapping or None
        Options of :class:`brtf.BRTF` for brtf; the other models of this library use max_rank, max_sweeps, tol and
        n_jobs.
    hold_out, pattern, mode, n_repeats, seed
        As for :func:`brtf.api.evaluation.evaluate`.
    patience : float or None
        Seconds that another method may take, judged by its time on a corner of the data; it is left out if it would
        take longer. None: no limit.

    Yields
    ------
    dict
        ``method``, ``repeat``; ``rmse``, ``median_error`` (of |y − x̄|), ``relative_error`` (‖y − x̄‖ / ‖y‖ over what was
        hidden); ``log_density`` and ``coverage_95`` where the method has a density, else None; ``rank``, ``seconds``;
        ``told``, the rank it was given, or None; ``converged`` if the method reports it; ``error``, why there are no
        numbers, or None.
    """
    rng = np.random.default_rng(seed)
    for repeat in range(n_repeats):
        hidden = draw_hidden(observations, hold_out, rng, pattern=pattern, mode=mode)
        shown, held_out = observations.select(~hidden), observations.select(hidden)
        found_rank = rank
        for method in sorted(methods, key=lambda name: name != "brtf"):
            row: dict[str, Any] = {"method": method, "repeat": repeat, **dict.fromkeys(COLUMNS), "told": None}
            row |= {"converged": None, "error": reason_against(method, methods, rank)}
            if row["error"] is None and patience is not None and method != "brtf":
                expected = _expected_seconds(method, shown, found_rank, options or {}, seed)
                if expected > patience:
                    row["error"] = f"would take about {expected:.0f} seconds: --all runs it"
            if row["error"] is None:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # the row says whether it converged
                        row |= _measure(method, shown, held_out, found_rank, options or {}, seed)
                except (ValueError, MemoryError, ArithmeticError, np.linalg.LinAlgError) as error:
                    row["error"] = str(error) or type(error).__name__
            if method == "brtf" and rank is None:
                found_rank = row["rank"]
            yield row


def _expected_seconds(
    method: str, shown: Observations, rank: int | None, options: Mapping[str, Any], seed: int
) -> float:
    """The time of a method on a corner of the data, in proportion to the entries; 0 if it cannot be used there."""
    lengths = [min(length, max(SHORTEST, -(-length // PART))) for length in shown.shape]
    coords = shown.entry_coords()
    inside = np.all(coords < np.reshape(lengths, (-1, 1)), axis=0)
    if not inside.any():
        return 0.0
    corner = np.full(lengths, np.nan)
    corner[tuple(coords[:, inside])] = shown.values.reshape(-1)[inside]
    small = observe(corner)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _measure(method, small, small, rank, options, seed)
    except (ValueError, MemoryError, ArithmeticError, np.linalg.LinAlgError):
        return 0.0
    return (time.perf_counter() - started) * shown.n_entries / math.prod(lengths)


def _measure(
    method: str, shown: Observations, held_out: Observations, rank: int | None, options: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """The numbers of one fit."""
    values = held_out.values.astype(np.float64)
    size = root_mean_square(values)
    if method in OURS:
        mine = options if method == "brtf" else {name: options[name] for name in SHARED if name in options}
        model = BRTF(**{**mine, **OURS[method], "random_state": seed}).fit(shown)
        found = assess(model, held_out)
        numbers = {name: found[name] for name in (*COLUMNS, "converged") if name in found}
        return numbers | {"relative_error": found["rmse"] / size if size else None}
    told = {}
    if "rank" in describe(method).parameters:
        if not rank:
            raise ValueError(f"needs a rank of at least 1, and brtf found {rank}")
        told["rank"] = _possible(method, shown.shape, rank)
    started = time.perf_counter()
    recovery = recover(method, shown, seed=seed, **told)
    seconds = time.perf_counter() - started
    error = np.abs(values - recovery.low_rank[tuple(held_out.entry_coords())])
    rmse = root_mean_square(error)
    return {
        "rmse": rmse,
        "median_error": float(np.median(error)),
        "relative_error": rmse / size if size else None,
        "rank": recovery.rank,
        "seconds": seconds,
        "told": told.get("rank"),
    }


def _possible(method: str, shape: tuple[int, ...], rank: int) -> int:
    """The rank, or for a matrix method the largest that its unfolding can have."""
    if describe(method).works_on == "tensor":
        return rank
    return min(rank, shape[-1], math.prod(shape[:-1]))


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a line per successful method, the smallest rmse first: means over the repeats."""
    means = {}
    for method in dict.fromkeys(row["method"] for row in rows if row["error"] is None):
        able = [row for row in rows if row["method"] == method and row["error"] is None]
        means[method] = {column: _mean([row[column] for row in able]) for column in COLUMNS}
    ordered = sorted(means, key=lambda name: means[name]["rmse"])
    return [["method", *COLUMNS], *([name, *(_text(means[name][column]) for column in COLUMNS)] for name in ordered)]


def absentees(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Methods that could not be used, or not in all repeats, grouped by reason: names, and the reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["error"] is not None and row["method"] not in reasons.setdefault(row["error"], []):
            reasons[row["error"]].append(row["method"])
    return [(", ".join(methods), reason) for reason, methods in reasons.items()]


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers; for ranks per mode, the first."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return known[0] if isinstance(known[0], tuple) else float(np.mean(known))


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return "×".join(map(str, value)) if isinstance(value, tuple) else f"{value:.4g}"


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for a terminal, and the methods that could not be used."""
    reasons = [f"{methods}: {reason.rstrip('.')}." for methods, reason in absentees(rows)]
    return "\n".join([text_table(comparison_table(rows)), *reasons])
