"""A week ahead of generated days of several kinds: error beside that of the last week and four weeks, and coverage.

Run ``python benchmarks/weeks.py [--only TEXT] [--seeds N] [--days T]``. Every tensor has 20 places, T days and 20 times
of day, six components and noise of standard deviation 0.3; nothing is said but that days follow each other. Every line
is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf import BRTF

Array = NDArray[Any]
WEEK, RANK = 7, 6
KINDS = (
    "strong pattern",
    "weak pattern",
    "no pattern",
    "days on their own",
    "random walk",
    "pattern and drift",
    "pattern and two holidays",
    "levels and patterns",
    "chains about zero",
    "counts",
)


def wandering(n_days: int, memory: float, rng: np.random.Generator, rank: int = RANK) -> Array:
    """Courses of unit variance that remember."""
    course = rng.standard_normal((n_days, rank))
    for day in range(1, n_days):
        course[day] = memory * course[day - 1] + np.sqrt(1 - memory**2) * course[day]
    return course


def generated(kind: str, n_known: int, rng: np.random.Generator) -> Array:
    """Places × days × times, the last week to be forecast."""
    n_days = n_known + WEEK
    places, times = np.abs(rng.standard_normal((20, RANK))) + 0.2, rng.standard_normal((20, RANK))
    level, pattern = 2 + rng.standard_normal(RANK), rng.standard_normal((WEEK, RANK))[np.arange(n_days) % WEEK]
    walk = np.cumsum(rng.standard_normal((n_days, RANK)), axis=0)
    if kind == "strong pattern":
        days = level + pattern + 0.15 * wandering(n_days, 0.7, rng)
    elif kind == "weak pattern":
        days = level + 0.2 * pattern + 0.5 * wandering(n_days, 0.8, rng)
    elif kind == "no pattern":
        days = level + 0.6 * wandering(n_days, 0.9, rng)
    elif kind == "days on their own":
        days = level + 0.5 * rng.standard_normal((n_days, RANK))
    elif kind == "random walk":
        days = level + 0.25 * walk
    elif kind == "pattern and drift":
        days = level + 0.7 * pattern * (1 + 0.3 * wandering(n_days, 0.98, rng)) + 0.15 * walk
    elif kind == "pattern and two holidays":
        days = level + pattern + 0.15 * wandering(n_days, 0.7, rng)
        days[rng.choice(n_known, 2, replace=False)] = level - 2 * np.abs(rng.standard_normal((2, RANK)))
    elif kind == "levels and patterns":
        days = level + np.where(np.arange(RANK) < RANK // 2, 0.1 * walk, pattern)
    elif kind == "chains about zero":
        memories = (0.98, 0.95, 0.9, 0.8, 0.5, 0.0)
        days = np.hstack([wandering(n_days, memory, rng, 1) for memory in memories])
    else:
        weekend = np.where(np.arange(n_days)[:, None] % WEEK >= 5, 0.4, 1.0)
        days = weekend * np.exp(0.1 * wandering(n_days, 0.9, rng)) * np.abs(level)
        return rng.poisson(8 * np.einsum("ir,jr,kr->ijk", places, days, np.abs(times))).astype(float)
    signal = np.einsum("ir,jr,kr->ijk", places, days, times)
    return signal + 0.3 * rng.standard_normal(signal.shape)


def line(kind: str, n_known: int, n_seeds: int) -> str:
    """Mean errors and coverage over the seeds."""
    found = []
    for seed in range(n_seeds):
        data = generated(kind, n_known, np.random.default_rng(seed))
        past, future = data[:, :n_known], data[:, n_known:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = BRTF(modes={1: "ordered"}, random_state=0).fit(past)
        started = time.process_time()
        ahead = model.forecast(WEEK, mode=1, level=0.9)
        seconds = time.process_time() - started
        same = [past[:, (n_known + day) % WEEK :: WEEK][:, -4:].mean(axis=1) for day in range(WEEK)]
        guesses = (ahead.mean, past[:, -WEEK:], np.stack(same, axis=1))
        covered = np.mean((ahead.low <= future) & (future <= ahead.high))
        found.append([*(np.sqrt(np.mean((guess - future) ** 2)) for guess in guesses), covered, seconds])
    own, last, four, covered, seconds = np.mean(found, axis=0)
    return f"| {kind} | {own:.3g} | {last:.3g} | {four:.3g} | {covered:.2f} | {seconds:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only kinds whose name contains this text")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--days", type=int, default=42, help="days that are known")
    options = parser.parse_args()
    print("| days | RMSE | last week | mean of four weeks | 90 % bands hold | CPU s of a forecast |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for kind in KINDS:
        if options.only.lower() in kind:
            print(line(kind, options.days, options.seeds), flush=True)


if __name__ == "__main__":
    main()
