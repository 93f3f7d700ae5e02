"""Table 2: seconds of one fit, and ratios to ours taken in the same run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brtf.api.synthetic import paper_synthetic
from brtf.research.experiments.contenders import CONTENDERS, OURS, fit
from brtf.research.experiments.fig3 import MAX_RANK, MISSING, OUTLIERS
from brtf.research.experiments.lines import NONE, SEARCHES, Loss, median_and_range
from brtf.research.experiments.published import TABLE2
from brtf.research.experiments.runs import Case, Inputs, Measured, Row, Rows
from brtf.view.report.document import Cell, Section, Table, Verdict
from brtf.view.report.svg import number

N_REPEATS = 3
TOLD = {
    "cpwopt": {"rank": 3},
    "cpnls": {"rank": 3},
    "huber": {"rank": 3},
    "horpca": {},
    "mgpcp": {"max_rank": MAX_RANK},
}
"""Options of the others: one fit at the true rank or with the default weight, with no search for either."""


def plan(quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """A row is one data set that all methods fit in turn."""
    levels, n_repeats = ((0.5, 0.9), 1) if quick else (MISSING, N_REPEATS)
    return [
        Case("table2", {"outliers": OUTLIERS, "missing": missing, "magnitude": "max", "seed": seed + repeat})
        for repeat in range(n_repeats)
        for missing in levels
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """Seconds of every method, after a fit to small data that triggers compilation."""
    observed = paper_synthetic(**settings).observed
    small = observed[:8, :8, :8]
    told = {name: {"max_rank": MAX_RANK} for name in OURS} | TOLD
    seconds = {}
    for method, params in told.items():
        if method in OURS:
            fit(method, np.nan_to_num(small), max_rank=2, max_sweeps=5)
        started = time.perf_counter()
        fit(method, observed, **params)
        seconds[method] = time.perf_counter() - started
    return Measured({"seconds": seconds})


def render(rows: Sequence[Row], store: Rows) -> Section:
    """Seconds and ratios, the paper's beside them."""
    measured = [row.numbers["seconds"] for row in rows if row.numbers]
    failed = [row.error for row in rows if row.error]
    body = []
    for method in (*OURS, *TOLD):
        seconds = [found[method] for found in measured]
        ratios = [found[method] / found["brtf"] for found in measured]
        printed = TABLE2.get(method)
        body.append(
            [
                Cell(CONTENDERS[method].label),
                median_and_range(seconds, failed, 2),
                median_and_range(ratios, digits=2),
                Cell(f"{printed.seconds:g} ± {printed.seconds_sd:g}") if printed else NONE,
                Cell(number(printed.seconds / TABLE2["brtf"].seconds, 2)) if printed else NONE,
            ]
        )
    return Section(
        "table2",
        "Table 2: seconds of a fit",
        [
            f"The data of Fig. 3 with H = max(X), {len(rows)} data sets; on each, all methods take turns on one "
            "thread, so that all see the same load, and ratios are taken within the set. The others get the true rank, "
            "or the default weight, and fit once: tuning would multiply their time by the number of values tried.",
        ],
        _verdicts(measured) if measured else [],
        (),
        [Table(("", "seconds", "relative to BRTF", "paper, seconds", "paper, relative"), body)],
    )


def _medians(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        method: float(np.median([found[method] / found["brtf"] for found in measured])) for method in (*OURS, *TOLD)
    }


def _verdicts(measured: Sequence[Mapping[str, float]]) -> list[Verdict]:
    relative = _medians(measured)
    slower = [CONTENDERS[method].label for method in TOLD if relative[method] > 1]
    faster = [CONTENDERS[method].label for method in TOLD if relative[method] < 1]
    return [
        Verdict(
            f"In the paper BRTF is 13 to 45 times as fast as the others. Here a single fit of "
            f"{', '.join(slower) or 'none of them'} takes longer than ours, and of {', '.join(faster) or 'none'} less. "
            "Programs and machine differ from the paper’s.",
            "bad" if faster else "good",
        ),
        Verdict(
            f"The paper’s algorithm takes {relative['brtf-paper']:.2g} times as long as calibrated inference; see "
            "Fig. 3 for what it finds.",
        ),
    ]


def losses(rows: Sequence[Row]) -> list[Loss]:
    """Methods whose single fit is quicker than ours."""
    measured = [row.numbers["seconds"] for row in rows if row.numbers]
    if not measured:
        return []
    typical = {method: float(np.median([found[method] for found in measured])) for method in ("brtf", *TOLD)}
    return [
        Loss("Table 2", "seconds", typical["brtf"], typical[method], CONTENDERS[method].label, SEARCHES)
        for method in TOLD
        if _medians(measured)[method] < 1
    ]
