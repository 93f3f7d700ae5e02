"""Fig. 2: recovery of a complete tensor under more and more outliers, of two magnitudes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brtf.research.experiments import curves
from brtf.research.experiments.contenders import CONTENDERS, OURS
from brtf.research.experiments.lines import UNKNOWN, Loss, chosen, n_draws
from brtf.research.experiments.runs import Case, Inputs, Row, Rows
from brtf.research.experiments.synthetic import ORACLE
from brtf.view.report.document import Section, Verdict

OUTLIERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
MAX_RANK = 30
"""Where the search for the rank starts from, max I_n as in the paper."""


def plan(quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """Every method on every kind of data, all of one repeat before the next."""
    levels = [{"outliers": outliers} for outliers in ((0.0, 0.1, 0.4) if quick else OUTLIERS)]
    params = {name: {"max_rank": MAX_RANK} for name in (*OURS, "cp-ard", "bcpf", "huber")}
    return curves.cases("fig2", levels, tuple(CONTENDERS), params, quick, seed)


def render(rows: Sequence[Row], store: Rows) -> Section:
    """Charts, tables, and what they say about the paper's claims."""
    lost = [entry for entry in losses(rows) if entry.measure == "RRSE"]
    return Section(
        "fig2",
        "Fig. 2: outliers in a complete tensor",
        [
            "A 30 × 30 × 30 tensor of rank 3, noise of variance 0.01, and outliers uniform on (−H, H) added to a "
            f"share of the entries. Each condition is measured on {n_draws(rows)}. In the charts, methods with a "
            "parameter are tuned by the truth, as in the paper; the tables also show them tuned by held-out entries. "
            "The paper prints no numbers for its curves.",
        ],
        [curves.best_cells(rows, len(lost)), *(curves.against_oracle(rows, method) for method in OURS), *_claims(rows)],
        curves.figures("fig2", rows, "outliers", "outliers"),
        curves.tables(rows, "outliers", "outliers"),
    )


def losses(rows: Sequence[Row]) -> list[Loss]:
    """The cells where ours is not the best."""
    return curves.losses("Fig. 2", rows, "outliers", "outliers", _reason)


def _reason(row: Row, who: str, factor: float) -> str:
    if row.settings["outliers"] == 0:
        return (
            "Without outliers, least squares at the true rank is the maximum-likelihood fit, the oracle itself; ours "
            f"has to find both, which costs {100 * (factor - 1):.2g} %."
        )
    return UNKNOWN


def _claims(rows: Sequence[Row]) -> list[Verdict]:
    """Check the paper's other statements about the figure against the rows."""
    most = max(row.settings["outliers"] for row in rows)
    growth = {method: _growth(rows, method, most) for method in ("brtf", "brtf-paper", ORACLE)}
    steady = Verdict(
        f"The paper says that BRTF is unaffected by the percentage of outliers. From none to {100 * most:g} %, RRSE "
        f"grows by a factor of {growth['brtf']:.2f} with calibrated inference, {growth['brtf-paper']:.2g} with the "
        f"paper’s, and {growth[ORACLE]:.2f} for the oracle, which then has fewer good entries.",
        "good" if growth["brtf"] < 1.25 * growth[ORACLE] else "bad",
    )
    ratios = {}
    for magnitude in curves.MAGNITUDES:
        some = [row for row in chosen(rows, magnitude=magnitude) if row.settings["outliers"] > 0]
        ratios[magnitude] = float(np.median(curves.ratios(some, "horpca", "cp-als") or [math.nan]))
    horpca = Verdict(
        "The paper says that HORPCA is robust to outliers far beyond the signal and poor within its range. Tuned by "
        f"the truth, its error is {ratios['10std']:.2f} times that of CP-ALS for the first and {ratios['max']:.2f} "
        "times for the second.",
        "good" if ratios["10std"] < 1 < ratios["max"] else "",
    )
    return [steady, horpca]


def _growth(rows: Sequence[Row], method: str, most: float) -> float:
    """By what factor the median RRSE grows from no outliers to the most, for the magnitude where it grows more."""
    medians = curves.medians_of(rows, method)
    grown = [
        medians[magnitude, most, 0.0] / medians[magnitude, 0.0, 0.0]
        for magnitude in curves.MAGNITUDES
        if {(magnitude, most, 0.0), (magnitude, 0.0, 0.0)} <= medians.keys()
    ]
    return max(grown, default=math.nan)
