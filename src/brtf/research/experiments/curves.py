"""Shared by Fig. 2 and 3, errors against a growing difficulty: charts, tables, and where ours is not the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from brtf.research.experiments.contenders import CONTENDERS
from brtf.research.experiments.figures import error_chart
from brtf.research.experiments.lines import (
    Line,
    Loss,
    cell,
    chosen,
    lines,
    loss,
    mark_best,
    medians_by_line,
    ranks,
    values,
)
from brtf.research.experiments.runs import Case, Row
from brtf.research.experiments.synthetic import ORACLE, case
from brtf.view.report.document import Cell, Figure, Table, Verdict

N_REPEATS = 10
GRIDS = {
    "horpca": (0.25, 0.5, 0.75, 1.0, 2.0, 4.0),
    "cp-als": (1, 2, 3, 4, 5),
    "hosvd": (1, 2, 3, 4, 5),
    "cpwopt": (2, 3, 4),
    "cpnls": (2, 3, 4),
}
QUICK_GRIDS = {name: tuple(value for value in grid if value in (0.5, 1.0, 2.0, 3)) for name, grid in GRIDS.items()}
"""The true rank only, and three weights: a quick run favours the others."""
MAGNITUDES = {"10std": "outliers far beyond the signal, H = 10 std(X)", "max": "outliers within its range, H = max(X)"}
MEASURES = {"rrse": "RRSE", "fme": "FME"}
SURROGATES = {"fme_direct": "its mode bases for factors", "fme_refit": "CP refitted to it"}
"""Names of the two substitutes for the FME of a method without CP factors."""
OURS = CONTENDERS["brtf"].label


def cases(
    experiment: str,
    levels: Sequence[Mapping[str, Any]],
    methods: Sequence[str],
    params: Mapping[str, Mapping[str, Any]],
    quick: bool,
    seed: int,
) -> list[Case]:
    """Every method, with its parameters, on data of every level and magnitude, all of one repeat before the next."""
    grids = QUICK_GRIDS if quick else GRIDS
    return [
        case(
            experiment,
            {
                **level,
                "magnitude": magnitude,
                "method": method,
                "seed": seed + repeat,
                "grid": list(grids.get(method, ())),
                "params": dict(params.get(method, {})),
            },
        )
        for repeat in range(1 if quick else N_REPEATS)
        for magnitude in MAGNITUDES
        for level in levels
        for method in (ORACLE, *methods)
    ]


def shown_lines(rows: Sequence[Row]) -> list[Line]:
    """The lines of the methods that these rows hold."""
    return lines(list(dict.fromkeys(row.settings["method"] for row in rows)))


def figures(name: str, rows: Sequence[Row], along: str, x_title: str) -> list[Figure]:
    """A chart for every magnitude and measure; methods with a parameter are tuned by the truth, as in the paper."""
    known = shown_lines(rows)
    drawn = [line for line in known if line.column == "told" or not CONTENDERS[line.method].tuned]
    found = []
    for magnitude, words in MAGNITUDES.items():
        some = chosen(rows, magnitude=magnitude)
        for measure, title in MEASURES.items():
            chart = error_chart(
                some, drawn, measure, along, x_title=x_title, y_title=title, description=f"{title}, {words}"
            )
            found.append(Figure(f"{name}-{magnitude}-{measure}", chart, f"{title}; {words}"))
    return found


def tables(rows: Sequence[Row], along: str, what: str) -> list[Table]:
    """A table for every magnitude and measure, and one of the ranks found."""
    known, levels = shown_lines(rows), sorted({row.settings[along] for row in rows})
    header = ["", *(f"{100 * level:g} % {what}" for level in levels)]
    found = []
    for magnitude, words in MAGNITUDES.items():
        some = [chosen(rows, magnitude=magnitude, **{along: level}) for level in levels]
        for measure, title in MEASURES.items():
            wanted = [(line, measure, line.label) for line in known]
            if measure == "fme":
                wanted += [(line, key, f"{line.label}; {how}") for line in known for key, how in SURROGATES.items()]
            body, medians, able = [], [], []
            for line, key, label in wanted:
                numbers = [values(at_level, line, key) for at_level in some]
                if any(numbers) or key == "rrse":
                    body.append([Cell(label), *(cell(at_level, line, key) for at_level in some)])
                    medians.append([float(np.median(n)) if n else None for n in numbers])
                    able.append(line.kind != "oracle" and key == measure)
            for column in range(len(levels)):
                mark_best(body, able, column + 1, [line_medians[column] for line_medians in medians])
            found.append(Table(header, body, f"{title}, {words}: median and range of the repeats"))
        own = [line for line in known if line.column == "honest" and not CONTENDERS[line.method].tuned]
        body = [[Cell(line.label), *(ranks(at_level, line) for at_level in some)] for line in own]
        found.append(Table(header, body, f"Rank found (3 is right), {words}"))
    return found


def losses(
    name: str, rows: Sequence[Row], along: str, what: str, reason: Callable[[Row, str, float], str]
) -> list[Loss]:
    """The cells where calibrated inference is not the best; methods tuned by the truth compete, the oracle does not."""
    known, found = shown_lines(rows), []
    for magnitude in MAGNITUDES:
        for level in sorted({row.settings[along] for row in rows}):
            some = chosen(rows, magnitude=magnitude, **{along: level})
            for measure, title in MEASURES.items():
                medians = medians_by_line(some, known, measure)
                if OURS in medians:
                    where = f"{name}, {100 * level:g} % {what}, H = {magnitude}"
                    entry = loss(where, title, medians, OURS, partial(reason, some[0]))
                    found += [entry] if entry else []
    return found


Condition = tuple[str, float, float]
"""Magnitude, share of outliers and share of missing entries."""


def _condition(row: Row) -> Condition:
    return row.settings["magnitude"], row.settings["outliers"], row.settings.get("missing", 0.0)


def medians_of(rows: Sequence[Row], method: str, column: str = "told") -> dict[Condition, float]:
    """A method's median RRSE under every condition; without tuning both columns are the same."""
    mine = [line for line in shown_lines(rows) if line.method == method]
    if not mine:
        return {}
    line = next((line for line in mine if line.column == column), mine[0])
    found = {}
    for condition in dict.fromkeys(map(_condition, rows)):
        numbers = values([row for row in rows if _condition(row) == condition], line, "rrse")
        if numbers:
            found[condition] = float(np.median(numbers))
    return found


def ratios(rows: Sequence[Row], method: str, other: str) -> list[float]:
    """RRSE of one method over that of another, both tuned by the truth, under the conditions measured for both."""
    mine, theirs = medians_of(rows, method), medians_of(rows, other)
    return [mine[condition] / theirs[condition] for condition in mine if condition in theirs]


def share_of_right_ranks(rows: Sequence[Row], method: str) -> tuple[int, int]:
    """How many fits of a method found three components, and how many there were."""
    found = [row.numbers["honest"]["rank"] for row in rows if row.numbers and row.settings["method"] == method]
    return sum(rank == 3 for rank in found), len(found)


def against_oracle(rows: Sequence[Row], method: str) -> Verdict:
    """How far a method's medians are from the oracle's, and how often it found the rank."""
    found = ratios(rows, method, ORACLE)
    if not found:
        return Verdict(f"{CONTENDERS[method].label}: nothing to compare, every fit failed.", "bad")
    right, n_fits = share_of_right_ranks(rows, method)
    near = max(found) < 1.25 and right == n_fits
    return Verdict(
        f"{CONTENDERS[method].label}: RRSE is {np.median(found):.2f} times that of least squares that knows rank and "
        f"outliers (worst condition {max(found):.2f} times); the rank is right in {right} of {n_fits} fits.",
        "good" if near else "bad",
    )


def best_cells(rows: Sequence[Row], n_lost: int) -> Verdict:
    """In how many conditions ours has the smallest RRSE of all, methods tuned by the truth included."""
    n_cells = len(medians_of(rows, "brtf"))
    tone: Literal["good", "bad"] = "good" if n_lost == 0 else "bad"
    said = "The paper says that BRTF is best under all conditions."
    rest = "" if n_lost == 0 else " The others are listed under “Where BRTF is not the best”."
    return Verdict(
        f"{said} Calibrated inference has the smallest median RRSE in {n_cells - n_lost} of {n_cells} conditions, "
        f"even against methods tuned by the truth.{rest}",
        tone,
    )
