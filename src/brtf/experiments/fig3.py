"""Fig. 3: recovery of an incomplete tensor with a tenth of outliers, as more and more entries go missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brtf.baselines import describe
from brtf.experiments.contenders import CONTENDERS, OURS
from brtf.experiments.fig2 import GRIDS, MAGNITUDES, N_REPEATS, QUICK_GRIDS
from brtf.experiments.runs import Case, Inputs, Measured
from brtf.experiments.synthetic import ORACLE, measure_method

MISSING = (0.5, 0.7, 0.8, 0.9, 0.95)
OUTLIERS = 0.1
MAX_RANK = 10
"""Where the search for the rank starts from, as in the paper."""
METHODS = tuple(name for name in CONTENDERS if name in OURS or describe(name).missing)


def plan(quick: bool, seed: int) -> list[Case]:
    """Every method that knows missing entries on every kind of data, all of one repeat before the next."""
    levels, n_repeats = ((0.5, 0.9), 1) if quick else (MISSING, N_REPEATS)
    return [
        Case(
            "fig3",
            {
                "outliers": OUTLIERS,
                "missing": missing,
                "magnitude": magnitude,
                "method": method,
                "seed": seed + repeat,
                "grid": list((QUICK_GRIDS if quick else GRIDS).get(method, ())),
                "params": {"max_rank": MAX_RANK} if method in (*OURS, "mgpcp", "bcpf") else {},
            },
        )
        for repeat in range(n_repeats)
        for magnitude in MAGNITUDES
        for missing in levels
        for method in (ORACLE, *METHODS)
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """The errors of one method on one draw."""
    return measure_method(settings)
