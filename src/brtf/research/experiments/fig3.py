"""Fig. 3: recovery of an incomplete tensor with a tenth of outliers, as more and more entries go missing."""

from __future__ import annotations

from collections.abc import Sequence

from brtf.research.baselines import describe
from brtf.research.experiments import curves
from brtf.research.experiments.contenders import CONTENDERS, OURS
from brtf.research.experiments.lines import UNKNOWN, Loss, n_draws
from brtf.research.experiments.runs import Case, Inputs, Row, Rows
from brtf.view.report.document import Section, Verdict

MISSING = (0.5, 0.7, 0.8, 0.9, 0.95)
OUTLIERS = 0.1
MAX_RANK = 10
"""Where the search for the rank starts from, as in the paper."""
METHODS = tuple(name for name in CONTENDERS if name in OURS or describe(name).missing)


def plan(quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """Every method that allows missing entries on every kind of data, all of one repeat before the next."""
    levels = [{"outliers": OUTLIERS, "missing": missing} for missing in ((0.5, 0.9) if quick else MISSING)]
    params = {name: {"max_rank": MAX_RANK} for name in (*OURS, "mgpcp", "bcpf", "huber")}
    return curves.cases("fig3", levels, METHODS, params, quick, seed)


def render(rows: Sequence[Row], store: Rows) -> Section:
    """Charts, tables, and what they say about the paper's claims."""
    lost = [entry for entry in losses(rows) if entry.measure == "RRSE"]
    diverged = {
        CONTENDERS[method].label: sum(value > 1 for value in curves.medians_of(rows, method, "honest").values())
        for method in METHODS
    }
    n_conditions = len(curves.medians_of(rows, "brtf"))
    words = ", ".join(f"{name} in {n} of {n_conditions} conditions" for name, n in diverged.items() if n)
    worse = Verdict(f"Tuned without the truth, these end with an error above 1, worse than predicting zero: {words}.")
    return Section(
        "fig3",
        "Fig. 3: missing entries and a tenth of outliers",
        [
            "The same tensor with 10 % outliers and fewer and fewer entries observed; only methods that allow "
            f"missing entries. Each condition is measured on {n_draws(rows)}. Ours and MGPCP start from rank 10, as "
            "in the paper.",
        ],
        [
            curves.best_cells(rows, len(lost)),
            *(curves.against_oracle(rows, method) for method in OURS),
            *([worse] if words else []),
        ],
        curves.figures("fig3", rows, "missing", "missing"),
        curves.tables(rows, "missing", "missing"),
    )


def losses(rows: Sequence[Row]) -> list[Loss]:
    """The cells where ours is not the best."""
    return curves.losses("Fig. 3", rows, "missing", "missing", lambda row, who, factor: UNKNOWN)
