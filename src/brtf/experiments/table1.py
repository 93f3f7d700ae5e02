"""Table 1: a rank beyond every dimension, R = 50 in 30 × 30 × 30, under both readings of its noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brtf.experiments.runs import Case, Inputs, Measured
from brtf.experiments.synthetic import ORACLE, measure_method

NOISES = (0.01, "20dB")
"""The variance that the text states, and the signal-to-noise ratio that the printed results agree with."""
RANK = 50
OUTLIERS = 0.01
MAX_RANK = 100
N_REPEATS = 10
METHODS = ("brtf", "brtf-paper", "horpca", "cp-als", "hosvd", "cp-ard")
GRIDS = {
    "horpca": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0),
    "cp-als": (10, 20, 30, 40, 44, 46, 48, 50),
    "hosvd": (3, 7, 11, 15, 17, 19, 21, 23, 25, 27, 30),
}
QUICK_GRIDS = {"horpca": (0.5, 1.0, 2.0), "cp-als": (40, 48, 50), "hosvd": (15, 19, 23, 27)}


def plan(quick: bool, seed: int) -> list[Case]:
    """Every method under both readings, all of one repeat before the next."""
    return [
        Case(
            "table1",
            {
                "noise": noise,
                "outliers": OUTLIERS,
                "rank": RANK,
                "method": method,
                "seed": seed + repeat,
                "grid": list((QUICK_GRIDS if quick else GRIDS).get(method, ())),
                "params": {"max_rank": MAX_RANK} if method in ("brtf", "brtf-paper", "cp-ard") else {},
            },
        )
        for repeat in range(1 if quick else N_REPEATS)
        for noise in NOISES
        for method in (ORACLE, *METHODS)
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """The errors of one method on one draw."""
    return measure_method(settings)
