"""Lines of tables and charts: rows gathered by method, the median and the spread of their numbers, the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from brtf.research.experiments.contenders import CONTENDERS, Kind
from brtf.research.experiments.runs import Row
from brtf.research.experiments.synthetic import ORACLE
from brtf.view.report.document import Cell
from brtf.view.report.svg import number

NONE = Cell("–")


@dataclass(frozen=True)
class Line:
    """A method, and how its parameter was chosen: "told" means by the truth, "honest" by held-out entries.

    A method without a parameter has one line, an honest one. The oracle's line is the reference.
    """

    method: str
    column: Literal["told", "honest"]
    label: str
    kind: Kind | Literal["oracle"]


@dataclass(frozen=True)
class Loss:
    """A cell where ours is not the best: where and by which measure, both numbers, whose is better, and why."""

    where: str
    measure: str
    ours: float
    best: float
    who: str
    why: str


def lines(methods: Sequence[str], labels: Mapping[str, str] | None = None) -> list[Line]:
    """The lines of the given methods: the oracle, ours, then the others tuned by the truth and by held-out entries."""
    named = {name: contender.label for name, contender in CONTENDERS.items()} | dict(labels or {})
    found = []
    if ORACLE in methods:
        found.append(Line(ORACLE, "told", "least squares that knows rank and outliers", "oracle"))
    known = [method for method in methods if method != ORACLE]
    kind = {method: CONTENDERS[method].kind if method in CONTENDERS else "ours" for method in known}
    tuned = [method for method in known if method in CONTENDERS and CONTENDERS[method].tuned]
    found += [Line(method, "honest", named[method], kind[method]) for method in known if method not in tuned]
    found += [Line(method, "told", f"{named[method]}, tuned by the truth", kind[method]) for method in tuned]
    found += [Line(method, "honest", f"{named[method]}, tuned honestly", kind[method]) for method in tuned]
    return found


def chosen(rows: Sequence[Row], **where: Any) -> list[Row]:
    """The rows whose settings are as given."""
    return [row for row in rows if all(row.settings.get(name) == value for name, value in where.items())]


def n_draws(rows: Sequence[Row]) -> str:
    """On how many draws of the data methods were measured, in words."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row.settings["method"], set()).add(row.settings["seed"])
    fewest, most = (pick(map(len, seeds.values())) for pick in (min, max))
    words = "1 draw" if most == 1 else f"{most} draws"
    return words if fewest == most else f"{words}, the slowest methods on {fewest}"


def values(rows: Sequence[Row], line: Line, measure: str) -> list[float]:
    """A number of the line's fits in these rows, where there is one."""
    found = [
        row.numbers[line.column].get(measure) for row in rows if row.numbers and row.settings["method"] == line.method
    ]
    return [float(value) for value in found if value is not None]


def medians_by_line(rows: Sequence[Row], known: Sequence[Line], measure: str) -> dict[str, float]:
    """The medians over the repeats of all lines that compete, by their labels."""
    found = {line.label: values(rows, line, measure) for line in known if line.kind != "oracle"}
    return {label: float(np.median(numbers)) for label, numbers in found.items() if numbers}


def cell(rows: Sequence[Row], line: Line, measure: str) -> Cell:
    """Median and range over the repeats of a line, with the number of failures and their reasons."""
    mine = [row for row in rows if row.settings["method"] == line.method]
    return median_and_range(values(mine, line, measure), [row.error for row in mine if row.error])


def median_and_range(numbers: Sequence[float], errors: Sequence[str] = (), digits: int = 3) -> Cell:
    """Median and range of numbers, and why others are missing."""
    failed = f"{len(errors)} failed: {errors[0]}" if errors else ""
    if not numbers:
        return Cell("failed", errors[0], "bad") if errors else NONE
    low, high = number(min(numbers), digits), number(max(numbers), digits)
    parts = [f"{low} … {high}"] * (low != high) + [failed] * bool(failed)
    return Cell(number(float(np.median(numbers)), digits), "; ".join(parts))


def ranks(rows: Sequence[Row], line: Line) -> Cell:
    """The ranks found, with their frequencies if they differ."""
    found = [
        rank_text(row.numbers[line.column]["rank"])
        for row in rows
        if row.numbers and row.settings["method"] == line.method
    ]
    counts = {rank: found.count(rank) for rank in dict.fromkeys(found)}
    common = sorted(counts, key=lambda rank: -counts[rank])
    if not common:
        return NONE
    others = ", ".join(f"{rank} ({counts[rank]}×)" for rank in common[1:4]) + (" …" if len(common) > 4 else "")
    return Cell(common[0], f"also {others}" if others else "")


def rank_text(rank: Any) -> str:
    """A rank as the page writes it: one number, or one per mode."""
    return "–" if rank is None else "×".join(map(str, rank)) if isinstance(rank, (list, tuple)) else str(rank)


def mark_best(
    table: list[list[Cell]],
    candidates: Sequence[bool],
    column: int,
    numbers: Sequence[float | None],
    *,
    largest: bool = False,
) -> None:
    """Mark the best of a column, among those rows that are candidates."""
    sign = -1.0 if largest else 1.0
    able = [(sign * value, k) for k, value in enumerate(numbers) if value is not None and candidates[k]]
    if able:
        best = min(able)[0]
        for value, k in able:
            if value == best:
                table[k][column] = replace(table[k][column], mark="best")


SEARCHES = "A single fit with its parameter given, if it has one; BRTF tries several starts and structures in a fit."
"""Why a method is faster than ours; the time for tuning is not counted."""
UNKNOWN = "Not investigated."
"""The reason given for a loss whose cause is not known."""


def loss(
    where: str,
    measure: str,
    medians: Mapping[str, float],
    ours: str,
    reason: Callable[[str, float], str],
    *,
    largest: bool = False,
) -> Loss | None:
    """The cell's entry in the list of those where ours is not the best; None where it is.

    Parameters
    ----------
    where, measure : what the cell is
    medians : by the label of the line, all that compete
    ours : the label of ours
    reason : says why, given the label of the best and by what factor ours is worse
    largest : whether larger is better
    """
    sign = -1.0 if largest else 1.0
    who = min(medians, key=lambda label: sign * medians[label])
    if sign * medians[who] >= sign * medians[ours]:
        return None
    factor = medians[ours] / medians[who] if medians[who] else np.inf
    return Loss(where, measure, medians[ours], medians[who], who, reason(who, 1 / factor if largest else factor))
