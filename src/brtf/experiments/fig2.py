"""Fig. 2: recovery of a complete tensor under more and more outliers, of two magnitudes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brtf.experiments.contenders import CONTENDERS, OURS
from brtf.experiments.runs import Case, Inputs, Measured
from brtf.experiments.synthetic import ORACLE, measure_method

MAGNITUDES = ("10std", "max")
OUTLIERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
N_REPEATS = 10
MAX_RANK = 30
"""Where the search for the rank starts from, max I_n as in the paper."""
GRIDS = {
    "horpca": (0.25, 0.5, 0.75, 1.0, 2.0, 4.0),
    "huber": (2, 3, 4),
    "cp-als": (1, 2, 3, 4, 5),
    "hosvd": (1, 2, 3, 4, 5),
    "cpwopt": (2, 3, 4),
    "cpnls": (2, 3, 4),
}
QUICK_GRIDS = {name: tuple(value for value in grid if value in (0.5, 1.0, 2.0, 3)) for name, grid in GRIDS.items()}
"""The true rank only, and three weights: a quick run is kind to the others."""


def plan(quick: bool, seed: int) -> list[Case]:
    """Every method on every kind of data, all of one repeat before the next."""
    levels, n_repeats = ((0.0, 0.1, 0.4), 1) if quick else (OUTLIERS, N_REPEATS)
    return [
        Case(
            "fig2",
            {
                "outliers": outliers,
                "magnitude": magnitude,
                "method": method,
                "seed": seed + repeat,
                "grid": list((QUICK_GRIDS if quick else GRIDS).get(method, ())),
                "params": {"max_rank": MAX_RANK} if method in (*OURS, "cp-ard", "bcpf") else {},
            },
        )
        for repeat in range(n_repeats)
        for magnitude in MAGNITUDES
        for outliers in levels
        for method in (ORACLE, *CONTENDERS)
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """The errors of one method on one draw."""
    return measure_method(settings)
