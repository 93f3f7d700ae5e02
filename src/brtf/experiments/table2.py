"""Table 2: seconds of one fit, and ratios to ours taken in the same run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from brtf.datasets import paper_synthetic
from brtf.experiments.contenders import OURS, fit
from brtf.experiments.fig3 import MAX_RANK, MISSING, OUTLIERS
from brtf.experiments.runs import Case, Inputs, Measured

N_REPEATS = 3
TOLD = {"cpwopt": {"rank": 3}, "cpnls": {"rank": 3}, "huber": {"rank": 3}, "horpca": {}, "mgpcp": {"max_rank": MAX_RANK}}
"""What the others are told: one fit at the true rank or with the default weight, no search for either."""


def plan(quick: bool, seed: int) -> list[Case]:
    """A row is one data set that all methods fit in turn."""
    levels, n_repeats = ((0.5, 0.9), 1) if quick else (MISSING, N_REPEATS)
    return [
        Case("table2", {"outliers": OUTLIERS, "missing": missing, "magnitude": "max", "seed": seed + repeat})
        for repeat in range(n_repeats)
        for missing in levels
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """Seconds of every method, after one fit to small data that compiles what is to be compiled."""
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
