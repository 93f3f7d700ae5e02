"""How close a fit with default settings comes to least squares that knows the outliers and the rank.

Run ``make oracle``, or ``python benchmarks/accuracy.py --seeds 10 [--only TEXT] [--write docs/accuracy.md]``. For every
case it prints how often the rank was right, RRSE relative to the oracle (median and worst), the noise variance found
over the true one, the outlier rate found, the share of entries of X inside their 95 % interval, and seconds per fit.

The oracle's error is the expected one, σ (dof · entries / good entries)^½ / ‖X‖, with dof = R (Σ I_n − N + 1), or
R (I_1 + I_2 − R) for matrices, and good entries the observed ones without outlier. Where the missing entries leave
directions poorly determined (more than 95 % missing, or not at random) that is out of reach even in principle, and the
Cramér–Rao bound takes its place, marked CRB.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from brtf.datasets import Synthetic, paper_synthetic, synthetic
from brtf.metrics import coverage


@dataclass(frozen=True, eq=False)
class Case:
    """One row of the table: how the data are made, their true rank, and the options of the fit (hardly any)."""

    group: str
    name: str
    make: Callable[..., Synthetic]
    rank: int
    options: dict[str, Any] = field(default_factory=dict)
    bound: bool = False


@dataclass(frozen=True)
class Row:
    """What one fit gave."""

    rank: int
    ratio: float
    noise: float
    rate: float
    coverage: float
    seconds: float


def cases() -> Iterator[Case]:
    """The table: the paper's generator first, then harder data."""
    for outliers in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4):
        for magnitude in ("10std", "max"):
            group = "complete, 0–20 % outliers" if outliers <= 0.2 else "complete, 30–40 % outliers"
            name = f"{outliers:.0%} outliers, H = {magnitude}"
            yield Case(group, name, partial(paper_synthetic, outliers=outliers, magnitude=magnitude), 3)
    for missing in (0.5, 0.7, 0.8, 0.9):
        for magnitude in ("10std", "max"):
            group = "50–80 % missing, 10 % outliers" if missing < 0.9 else "90 % missing, 10 % outliers"
            make = partial(paper_synthetic, outliers=0.1, magnitude=magnitude, missing=missing)
            yield Case(group, f"{missing:.0%} missing, H = {magnitude}", make, 3)
    for magnitude in ("10std", "max"):
        make = partial(paper_synthetic, outliers=0.3, magnitude=magnitude, missing=0.7)
        yield Case("70 % missing, 30 % outliers", f"H = {magnitude}", make, 3)
    for noise in (0.01, "20dB"):
        make = partial(paper_synthetic, rank=50, outliers=0.01, noise=noise)
        yield Case("rank 50 in 30³, 1 % outliers", f"noise {noise}", make, 50, {"max_rank": 100})
    cube, usual = (20, 20, 20), {"outliers": 0.1, "noise": 0.01}
    hard: list[tuple[str, tuple[int, ...], int, dict[str, Any]]] = [
        ("collinear, cos .9 in 3 modes", cube, 3, usual | {"collinearity": 0.9}),
        ("swamp, cos .97 in 2 modes", cube, 3, usual | {"collinearity": 0.97, "collinear_modes": (0, 1)}),
        ("strengths 1000:30:1", cube, 3, {"outliers": 0.1, "noise": 1e-8, "strengths": [1000, 30, 1]}),
        ("matrix 60×50", (60, 50), 3, usual),
        ("4-way 12×11×10×9", (12, 11, 10, 9), 3, usual),
        ("5-way 8×7×6×7×6", (8, 7, 6, 7, 6), 3, usual),
        ("1000×5×7", (1000, 5, 7), 3, usual),
        ("positive factors", cube, 3, usual | {"factor_law": "uniform"}),
        ("no outliers", cube, 3, {"noise": 0.01}),
        ("no noise", cube, 3, {"outliers": 0.1, "noise": 0.0}),
        ("noise sd 1e-6", cube, 3, {"outliers": 0.1, "noise": 1e-12}),
        ("rank 0", cube, 0, usual),
        ("60 % outliers", cube, 3, {"outliers": 0.6, "noise": 0.01}),
        ("one-sided outliers", cube, 3, usual | {"outlier_law": "one-sided"}),
        ("whole fibres outlying", cube, 3, usual | {"outlier_pattern": "fibres"}),
        (
            "outlier sizes .3–300, 20 %",
            (30, 30, 30),
            3,
            {"outliers": 0.2, "outlier_law": "log-uniform", "magnitude": 300},
        ),
        (
            "outlier sizes .3–300, 40 %",
            (30, 30, 30),
            3,
            {"outliers": 0.4, "outlier_law": "log-uniform", "magnitude": 300},
        ),
        ("t₃ noise", cube, 3, usual | {"noise_law": "student-t"}),
        ("half of the fibres missing (CRB)", cube, 3, usual | {"missing": 0.5, "missing_pattern": "fibres"}),
        ("large values missing (CRB)", cube, 3, usual | {"missing": 0.5, "missing_pattern": "level"}),
        ("97 % of 50³ missing (CRB)", (50, 50, 50), 3, usual | {"missing": 0.97}),
        ("99 % of 60³ missing (CRB)", (60, 60, 60), 3, usual | {"missing": 0.99}),
        ("5×4×3, rank 1", (5, 4, 3), 1, usual),
        ("rank 12 in 20³", cube, 12, usual),
    ]
    for name, shape, rank, options in hard:
        yield Case("harder data", name, partial(synthetic, shape, rank, **options), rank, bound="CRB" in name)


def expected_error(data: Synthetic, rank: int) -> float:
    """Expected RRSE of least squares that knows the rank and the outliers."""
    shape = data.low_rank.shape
    dof = rank * (sum(shape) - len(shape) + 1) if len(shape) > 2 else rank * (sum(shape) - rank)
    good = np.count_nonzero(data.mask & (data.outliers == 0))
    return float(np.sqrt(data.noise_variance * dof * data.low_rank.size / good) / np.linalg.norm(data.low_rank))


def cramer_rao(data: Synthetic) -> float:
    """RRSE at the Cramér–Rao bound: σ (tr (JᵀJ) (JᵀWJ)⁺)^½ / ‖X‖, J the Jacobian of X with respect to the factors."""
    shape, rank = data.low_rank.shape, data.factors[0].shape[1]
    offsets = np.cumsum([0, *(length * rank for length in shape)])
    everywhere, seen = (np.zeros((offsets[-1], offsets[-1])) for _ in range(2))
    good = data.mask & (data.outliers == 0)
    for first in range(shape[0]):  # a slice of the first mode at a time
        rows = [np.array([first]), *(np.arange(length) for length in shape[1:])]
        index = np.stack(np.meshgrid(*rows, indexing="ij")).reshape(len(shape), -1)
        picked = np.array([factor[i] for factor, i in zip(data.factors, index, strict=True)])
        jacobian = np.zeros((index.shape[1], offsets[-1]))
        entries = np.arange(index.shape[1])
        for mode in range(len(shape)):
            others = np.prod(np.delete(picked, mode, axis=0), axis=0)
            for r in range(rank):
                jacobian[entries, offsets[mode] + index[mode] * rank + r] = others[:, r]
        everywhere += jacobian.T @ jacobian
        known = jacobian[good[first].ravel()]
        seen += known.T @ known
    error = data.noise_variance * np.trace(np.linalg.pinv(seen, rcond=1e-10, hermitian=True) @ everywhere)
    return float(np.sqrt(error) / np.linalg.norm(data.low_rank))


def measure(case: Case, seed: int) -> Row:
    """Fit one case with defaults and compare with the truth."""
    from brtf import BRTF

    data = case.make(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        model = BRTF(random_state=0, **case.options).fit(data.observed)
        seconds = time.perf_counter() - started
    error = float(np.linalg.norm(model.low_rank() - data.low_rank))
    size = float(np.linalg.norm(data.low_rank))
    exact = data.noise_variance == 0 or case.rank == 0
    best = 1.0 if exact else (cramer_rao(data) if case.bound else expected_error(data, case.rank))
    return Row(
        rank=model.rank_,
        ratio=error / (size or 1.0) / best,
        noise=model.noise_variance_ / data.noise_variance if data.noise_variance else np.nan,
        rate=model.outlier_rate_,
        coverage=coverage(*model.predict_interval(), data.low_rank),
        seconds=seconds,
    )


def line(name: str, cells: list[tuple[Case, Row]]) -> str:
    """One row of the table, over all its fits."""
    rows = [row for _, row in cells]
    right = np.mean([row.rank == case.rank for case, row in cells])
    near = np.mean([abs(row.rank - case.rank) <= 1 for case, row in cells])
    ratio = np.array([row.ratio for row in rows])
    noise = np.array([row.noise for row in rows])
    shown = f"{right:.0%}" if right == 1 else f"{right:.0%} ({near:.0%} within 1)"
    error = "exact" if ratio.max() < 1e-6 else f"{np.median(ratio):.3f}, {ratio.max():.3f}"
    level = "–" if np.isnan(noise).any() else f"{np.median(noise):.3f} ({noise.min():.2f}–{noise.max():.2f})"
    rates = [row.rate for row in rows]
    covered = [row.coverage for row in rows]
    seconds = float(np.median([row.seconds for row in rows]))
    return (
        f"| {name} | {shown} | {error} | {level} | {np.median(rates):.3f} ({min(rates):.3f}–{max(rates):.3f}) "
        f"| {np.mean(covered):.3f} ({min(covered):.2f}–{max(covered):.2f}) | {seconds:.2f} |"
    )


def table(measured: dict[Case, list[Row]]) -> str:
    """The whole table in Markdown: a line per case and one per group."""
    head = "| case | rank right | RRSE / oracle: median, worst | noise / true | outlier rate | 95 % coverage of X | s |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for group in dict.fromkeys(case.group for case in measured):
        cells = [(case, row) for case, rows in measured.items() if case.group == group for row in rows]
        if group != "harder data":
            lines.append(line(f"**{group}**", cells))
        for case, rows in measured.items():
            if case.group == group:
                lines.append(line(case.name, [(case, row) for row in rows]))
    hard = [(case, row) for case, rows in measured.items() if case.group == "harder data" for row in rows]
    if hard:
        right = [(case, row) for case, row in hard if row.rank == case.rank]
        ratios = [row.ratio for case, row in right if case.rank and row.ratio > 1e-6]
        lines.append(
            f"\nHarder data: rank right in {len(right)} of {len(hard)} fits; "
            f"median RRSE / oracle of those {np.median(ratios):.3f}."
        )
    return "\n".join(lines)


INTRODUCTION = """# Accuracy

A fit with default settings, `BRTF().fit(Y)`, compared with least squares that knows the rank and the outliers.
The table is printed by `make oracle` ({seeds} seeds per case, one thread per fit, on a machine with two cores).

{method}

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="only cases whose group or name contains this text")
    parser.add_argument("--write", type=Path, help="write the table into this Markdown file")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [case for case in cases() if options.only in case.group or options.only in case.name]
    jobs = [(case, seed) for case in chosen for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(tqdm(pool.map(measure, *zip(*jobs, strict=True)), total=len(jobs)))
    measured: dict[Case, list[Row]] = {case: [] for case in chosen}
    for (case, _), row in zip(jobs, rows, strict=True):
        measured[case].append(row)
    text = table(measured)
    print(text)
    for (case, seed), row in zip(jobs, rows, strict=True):
        if row.rank != case.rank:
            print(
                f"rank {row.rank} for {case.rank}: {case.group}, {case.name}, seed {seed}, RRSE/oracle {row.ratio:.2f}"
            )
    if options.write:
        method = (__doc__ or "").split("\n\n")[2]
        options.write.write_text(INTRODUCTION.format(seeds=options.seeds, method=method) + text + "\n")


if __name__ == "__main__":
    main()
