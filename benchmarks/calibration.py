"""Simulation-based calibration: fits with default settings of data whose truth is drawn at random.

Run ``make calibration``, or ``python benchmarks/calibration.py --seeds 0:200 [--jobs 2] [--truth-start] [--rows FILE]
[--law NAME=VALUE ...] [--write docs/calibration.md]``. Every problem is a line of JSON in the file of rows. Problems
already fitted with the present code are skipped, so an interrupted run can be continued. ``--table-only`` fits nothing.

Order, sizes of the modes, rank, share of missing entries, share, kind and size (log-uniform) of the outliers, noise
variance over that of the signal (log-uniform) and units (log-uniform) are drawn independently; shapes of too many
entries are drawn again. Factors are Gaussian. Each entry is an outlier or not by itself. Uniform outliers of size h lie
within ± h standard deviations of the noise, one-sided ones between 0 and h, Gaussian ones have the standard deviation
h. At rank 0 the data are noise and outliers alone, and the noise variance is that of a signal of the units.

The oracle knows the rank, the outliers, the noise and the law of the factors: its error is that of the Bayesian
Cramér–Rao bound, RRSE = (mean of gᵀ H⁻¹ g / mean of x²)^½ over all entries, with g the gradient of x by all factor
entries together, and H = Σ g gᵀ / σ² + prior precision, the sum over observed entries without outlier. A problem is
well-posed where there are at least three such entries per degree of freedom, R (Σ I_n − N + 1), and the oracle's RRSE
is below .3; problems of rank 0 have no RRSE and a row of their own. Nobody reaches that bound where outliers are
hardly larger than the noise, and single estimates scatter about it. So the second row has the most probable factors of
the same data for someone who knows rank, noise and law, but not which entries are outliers, and begins at the truth. A
search has failed where a fit that starts at the true factors ends more than one nat higher.

New observations are drawn from the true law at all entries, outliers included. Their PIT is their place among 99 draws
of ``model.sample``; ranks are places of the true x among 99 draws of the low-rank part, at ten entries of every
problem. Both are uniform if the posterior is right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from scipy.special import log_ndtr
from tqdm import tqdm

from brtf.metrics import coverage

Array = NDArray[np.float64]
Row = dict[str, Any]
LEVELS = (0.5, 0.8, 0.95)
INFORMED_SWEEPS, SETTLED = 1000, 1e-4
"""Sweeps of the estimate that knows the law, at most, and the largest change of x in noise sd at which they end."""
N_DRAWS, N_RANKED = 99, 10
"""Posterior draws, so that places run from 0 to 99, and entries of a problem whose x is placed among them."""
GOOD_PER_FREEDOM, ORACLE_LIMIT = 3.0, 0.3
"""What makes a problem well-posed."""
FAILURE = 1.0
"""Nats by which a start at the truth must end higher for the search to have failed."""
KINDS = ("uniform", "gaussian", "one-sided")


@dataclass(frozen=True)
class Law:
    """The distribution of the truths: ranges, both ends included, the most entries allowed and kinds of outliers."""

    orders: tuple[int, int] = (2, 4)
    sizes: tuple[int, int] = (5, 40)
    entries: int = 12_000
    ranks: tuple[int, int] = (0, 8)
    missing: tuple[float, float] = (0.0, 0.9)
    outliers: tuple[float, float] = (0.0, 0.4)
    outlier_sizes: tuple[float, float] = (2.0, 1000.0)
    outlier_kinds: tuple[str, ...] = KINDS
    noise: tuple[float, float] = (1e-6, 1.0)
    units: tuple[float, float] = (1e-3, 1e3)

    def __post_init__(self) -> None:
        limits = {
            "orders": (2, math.inf),
            "sizes": (1, math.inf),
            "ranks": (0, math.inf),
            "missing": (0.0, 1.0),
            "outliers": (0.0, 1.0),
            "outlier_sizes": (1e-300, math.inf),
            "noise": (1e-300, math.inf),
            "units": (1e-300, math.inf),
        }
        for name, (lowest, highest) in limits.items():
            low, high = getattr(self, name)
            if not lowest <= low <= high <= highest:
                raise ValueError(f"{name} must be a range within {lowest} to {highest}, got {low}:{high}.")
        if not self.outlier_kinds or not set(self.outlier_kinds) <= set(KINDS):
            raise ValueError(f"outlier_kinds must be some of {', '.join(KINDS)}, got {self.outlier_kinds}.")
        if self.sizes[0] ** self.orders[1] > self.entries:
            raise ValueError(
                f"a tensor of order {self.orders[1]} with modes of at least {self.sizes[0]} has more than "
                f"{self.entries} entries. Lower orders or sizes, or raise entries."
            )

    @classmethod
    def parse(cls, changes: Sequence[str]) -> Law:
        """The law with some of its ranges changed: ``ranks=1:3``, ``entries=2000``, ``outlier_kinds=one-sided``."""
        kinds = {field.name: field.default for field in fields(cls)}
        values: dict[str, Any] = {}
        for change in changes:
            name, _, text = change.partition("=")
            if name not in kinds or not text:
                raise ValueError(f"a law is changed by NAME=VALUE with one of {', '.join(kinds)}, got {change!r}.")
            if name == "entries":
                values[name] = int(text)
            elif name == "outlier_kinds":
                values[name] = tuple(text.split(","))
            else:
                low, _, high = text.partition(":")
                number: Callable[[str], Any] = type(kinds[name][0])
                values[name] = (number(low), number(high or low))
        return cls(**values)

    @property
    def changes(self) -> dict[str, Any]:
        """The parameters that differ from the default law, in the form that JSON returns them."""
        usual = Law()
        changed = {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}
        return {name: value if name == "entries" else list(value) for name, value in changed.items()}


@dataclass(frozen=True, eq=False)
class Problem:
    """A truth and its data.

    Attributes
    ----------
    observed : Y, NaN where missing
    low_rank : X
    outliers : S at all entries, missing or not, zero where there is none
    mask : True where observed
    factors : (I_n, R), entries N(0, ``factor_variance``)
    noise_variance : σ²
    rate, kind, size : of the outliers; the size in standard deviations of the noise
    missing : the share asked for
    """

    observed: Array
    low_rank: Array
    outliers: Array
    mask: NDArray[np.bool_]
    factors: list[Array]
    factor_variance: float
    noise_variance: float
    rate: float
    kind: str
    size: float
    missing: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low_rank.shape

    @property
    def rank(self) -> int:
        return int(self.factors[0].shape[1])

    @property
    def good(self) -> NDArray[np.bool_]:
        """Observed entries without outlier."""
        return self.mask & (self.outliers == 0)

    @property
    def freedom(self) -> int:
        return self.rank * (sum(self.shape) - len(self.shape) + 1)

    def draw_errors(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw outliers and noise for every entry from the law."""
        shape, sigma = self.shape, math.sqrt(self.noise_variance)
        noise = sigma * rng.standard_normal(shape)
        values = {
            "uniform": rng.uniform(-1.0, 1.0, shape),
            "gaussian": rng.standard_normal(shape),
            "one-sided": rng.uniform(0.0, 1.0, shape),
        }[self.kind]
        return np.where(rng.random(shape) < self.rate, self.size * sigma * values, 0.0), noise

    def log_density(self, values: Array) -> Array:
        """ln p(y | x) of other observations, one at each entry."""
        sigma = math.sqrt(self.noise_variance)
        error = (values - self.low_rank) / sigma
        regular = -0.5 * error**2 - 0.5 * math.log(2 * math.pi)
        if self.kind == "gaussian":
            spread = math.hypot(1.0, self.size)
            outlying = -0.5 * (error / spread) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(spread)
        else:
            low, high = (-self.size if self.kind == "uniform" else 0.0), self.size
            centred = np.abs(error - 0.5 * (low + high))  # symmetric, and both terms in the lower tail
            half = 0.5 * (high - low)
            near, far = log_ndtr(half - centred), log_ndtr(-half - centred)
            outlying = near + np.log1p(-np.exp(far - near)) - math.log(high - low)
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log1p(-self.rate) + regular, np.log(self.rate) + outlying)
        return np.asarray(mixed - math.log(sigma))


def draw_problem(seed: int, law: Law | None = None) -> Problem:
    """The problem of a seed: one seed and one law give one problem."""
    law = law or Law()
    rng = np.random.default_rng(seed)
    order = int(rng.integers(law.orders[0], law.orders[1], endpoint=True))
    rank = int(rng.integers(law.ranks[0], law.ranks[1], endpoint=True))
    missing, rate = rng.uniform(*law.missing), rng.uniform(*law.outliers)
    kind = str(rng.choice(law.outlier_kinds))
    size, ratio, units = (_log_uniform(rng, *limits) for limits in (law.outlier_sizes, law.noise, law.units))
    while True:
        shape = tuple(rng.integers(law.sizes[0], law.sizes[1], size=order, endpoint=True).tolist())
        if math.prod(shape) <= law.entries:
            break
    variance = (units**2 / max(rank, 1)) ** (1 / order)
    factors = [math.sqrt(variance) * rng.standard_normal((length, rank)) for length in shape]
    low_rank = reduce(np.multiply.outer, [np.ones(length) for length in shape]) * 0.0
    for columns in zip(*(factor.T for factor in factors), strict=True):
        low_rank += reduce(np.multiply.outer, columns)
    signal = float(np.mean(low_rank**2)) if rank else units**2
    mask = np.ones(low_rank.size, dtype=bool)
    mask[rng.permutation(low_rank.size)[: round(missing * low_rank.size)]] = False
    mask = mask.reshape(shape)
    blank = np.zeros(shape)
    made = (factors, variance, ratio * signal, rate, kind, size, missing)
    outliers, noise = Problem(blank, low_rank, blank, mask, *made).draw_errors(rng)
    observed = np.where(mask, low_rank + outliers + noise, np.nan)
    return Problem(observed, low_rank, outliers, mask, *made)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high))


def jacobian(factors: Sequence[Array]) -> csr_array:
    """Gradients of x by all factor entries, mode after mode and row after row; a sparse row per entry of the tensor."""
    shape, rank = tuple(len(factor) for factor in factors), factors[0].shape[1]
    index = np.indices(shape).reshape(len(shape), -1)
    picked = np.array([factor[i] for factor, i in zip(factors, index, strict=True)])
    offsets = np.cumsum([0, *(length * rank for length in shape)])
    columns = [offset + i[:, None] * rank + np.arange(rank) for offset, i in zip(offsets[:-1], index, strict=True)]
    values = [np.prod(np.delete(picked, mode, axis=0), axis=0) for mode in range(len(shape))]
    starts = np.arange(0, (index.shape[1] + 1) * len(shape) * rank, len(shape) * rank)
    matrix = (np.hstack(values).ravel(), np.hstack(columns).ravel(), starts)
    return csr_array(matrix, shape=(index.shape[1], int(offsets[-1])))


def oracle_error(problem: Problem) -> float | None:
    """RRSE at the Bayesian Cramér–Rao bound that knows rank, noise and outliers; None at rank 0."""
    if problem.rank == 0:
        return None
    gradients = math.sqrt(problem.factor_variance) * jacobian(problem.factors)
    some = gradients[np.flatnonzero(problem.good)]
    information = (some.T @ some).toarray() / problem.noise_variance
    information[np.diag_indices_from(information)] += 1.0
    variance = np.trace(cho_solve(cho_factor(information), (gradients.T @ gradients).toarray()))
    return math.sqrt(variance / float(np.sum(problem.low_rank**2)))


def informed_error(problem: Problem) -> float | None:
    """RRSE of :func:`informed_factors`; None at rank 0."""
    if problem.rank == 0:
        return None
    error = composed(informed_factors(problem)) - problem.low_rank
    return math.sqrt(float(np.sum(error**2)) / float(np.sum(problem.low_rank**2)))


def informed_factors(problem: Problem) -> list[Array]:
    """The most probable factors, near the truth, for someone who knows rank, noise and law.

    Alternating least squares of the data less the expected outliers, E[s | e] = e + σ² d ln p(e)/de at the deviations
    e. No sweep lowers the posterior density: −σ² d² ln p/de² = 1 − Var(s | e)/σ² is at most one.
    """
    factors, sigma = [factor.copy() for factor in problem.factors], math.sqrt(problem.noise_variance)
    ridge = np.eye(problem.rank) * (problem.noise_variance / problem.factor_variance)
    seen = np.flatnonzero(problem.mask)
    law = replace(problem, low_rank=np.zeros(seen.size), noise_variance=1.0)
    x = composed(factors)
    for _ in range(INFORMED_SWEEPS):
        deviation = (problem.observed.ravel()[seen] - x.ravel()[seen]) / sigma
        score = (law.log_density(deviation + 1e-4) - law.log_density(deviation - 1e-4)) / 2e-4
        target = x.copy()
        target.ravel()[seen] -= sigma * score
        for mode in range(len(factors)):
            others = composed_columns([factor for other, factor in enumerate(factors) if other != mode])
            own = np.moveaxis(problem.mask, mode, 0).reshape(len(factors[mode]), -1)
            values = np.moveaxis(np.where(problem.mask, target, 0.0), mode, 0).reshape(own.shape)
            pairs = (others[:, :, None] * others[:, None, :]).reshape(len(others), -1)
            grams = (own @ pairs).reshape(-1, problem.rank, problem.rank) + ridge
            factors[mode] = np.linalg.solve(grams, (values @ others)[..., None])[..., 0]
        before, x = x, composed(factors)
        if np.max(np.abs(x - before)) < SETTLED * sigma:
            break
    return factors


def composed(factors: Sequence[Array]) -> Array:
    """X of the factors."""
    return composed_columns(factors).sum(axis=1).reshape([len(factor) for factor in factors])


def composed_columns(factors: Sequence[Array]) -> Array:
    """The outer products of the columns of each component, (Π I_n, R)."""
    return reduce(lambda left, right: (left[:, None] * right).reshape(-1, left.shape[1]), factors)


def places(truth: Array, draws: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """How many of the draws lie below the truth; ties are broken at random."""
    below, equal = np.sum(draws < truth, axis=0), np.sum(draws == truth, axis=0)
    return np.asarray(below + rng.integers(0, equal, endpoint=True))


def assess(model: Any, problem: Problem, rng: np.random.Generator) -> Row:
    """Compare a fitted model with the truth and with new observations, through its public methods only."""
    truth, sigma = problem.low_rank, math.sqrt(problem.noise_variance)
    intervals = {level: model.predict_interval(level=level) for level in LEVELS}
    covered = {f"coverage_{100 * level:.0f}": coverage(*ends, truth) for level, ends in intervals.items()}
    low, high = intervals[LEVELS[-1]]
    outliers, noise = problem.draw_errors(rng)
    fresh = truth + outliers + noise
    below = places(fresh, model.sample(N_DRAWS, random_state=rng), rng)
    chosen = np.stack(np.unravel_index(rng.choice(truth.size, min(N_RANKED, truth.size), replace=False), truth.shape))
    drawn = model.sample(N_DRAWS, coords=chosen, of="low_rank", random_state=rng)
    error = math.sqrt(float(np.mean((model.low_rank() - truth) ** 2)))
    return {
        "rank_found": model.rank_,
        "rate_found": model.outlier_rate_,
        "noise_found": float(model.noise_variance_),
        "rmse": error / sigma,
        "rrse": error / math.sqrt(float(np.mean(truth**2))) if problem.rank else None,
        **covered,
        "width_min": float(np.min(high - low)) / sigma,
        "pit": np.bincount(below.ravel() * 10 // (N_DRAWS + 1), minlength=10).tolist(),
        "ranks": places(truth[tuple(chosen)], drawn, rng).tolist(),
        "log_density": model.score(fresh) - float(np.mean(problem.log_density(fresh))),
        "bound": model.bound_,
        "converged": model.converged_,
    }


def measure(seed: int, law: Law, truth_start: bool) -> Row:
    """The row of one problem; if the fit raises, its message is stored under ``error``."""
    from brtf import BRTF

    problem = draw_problem(seed, law)
    oracle, n_good = oracle_error(problem), int(np.count_nonzero(problem.good))
    n_observed = int(np.count_nonzero(problem.mask))
    row: Row = {
        "seed": seed,
        "law": law.changes,
        "code": code_digest(),
        "truth_start": truth_start,
        "shape": problem.shape,
        "rank": problem.rank,
        "missing": problem.missing,
        "rate": 1.0 - n_good / n_observed if n_observed else 0.0,
        "rate_law": problem.rate,
        "kind": problem.kind,
        "size": problem.size,
        "noise": problem.noise_variance,
        "signal": float(np.mean(problem.low_rank**2)),
        "good_per_freedom": n_good / problem.freedom if problem.rank else None,
        "oracle": oracle,
        "informed": informed_error(problem),
        "well_posed": oracle is not None and n_good >= GOOD_PER_FREEDOM * problem.freedom and oracle < ORACLE_LIMIT,
        "truth_bound": None,
        "truth_rank": None,
        "error": None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            started = time.perf_counter()
            model = BRTF(random_state=seed).fit(problem.observed)
            row["seconds"] = time.perf_counter() - started
            row |= assess(model, problem, np.random.default_rng([seed, 1]))
            if truth_start and problem.rank:
                told = BRTF(random_state=seed, init=problem.factors).fit(problem.observed)
                row |= {"truth_bound": told.bound_, "truth_rank": told.rank_}
        except Exception as error:  # whatever it is, the other problems go on, and the table counts it
            row["error"] = f"{type(error).__name__}: {error}"
    return row


@cache
def code_digest() -> str:
    """A digest of the package's source, so that rows measured with other code are not reused."""
    import brtf

    digest = hashlib.sha256()
    root = Path(brtf.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def read_rows(path: Path | None, law: Law, seeds: Sequence[int]) -> list[Row]:
    """The last stored row of every seed under this law; a line that was cut short is skipped."""
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    of_law = {row["seed"]: row for row in rows if row["law"] == law.changes}
    return [of_law[seed] for seed in seeds if seed in of_law]


def append_row(row: Row, path: Path) -> None:
    """Add a line to the file, in place of one that was cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(row).encode() + b"\n")


def measure_all(seeds: Sequence[int], law: Law, *, truth_start: bool, jobs: int, path: Path | None) -> list[Row]:
    """Yield a row for every seed, and append new ones to the file as they finish."""
    stored = [row for row in read_rows(path, law, seeds) if row["code"] == code_digest()]
    rows = {row["seed"]: row for row in stored if row["truth_start"] or not truth_start}
    left = [(seed, law, truth_start) for seed in seeds if seed not in rows]
    for row in tqdm(_measured(left, jobs), total=len(left), disable=not left):
        rows[row["seed"]] = row
        if path is not None:
            append_row(row, path)
    return [rows[seed] for seed in seeds]


def _measured(left: Sequence[tuple[int, Law, bool]], jobs: int) -> Iterator[Row]:
    if jobs == 1:
        yield from (measure(*one) for one in left)
        return
    pool = ProcessPoolExecutor(jobs)
    try:
        yield from (future.result() for future in as_completed([pool.submit(measure, *one) for one in left]))
    finally:
        pool.shutdown(cancel_futures=True)  # what has not begun, if this was interrupted


# ---- the table ---------------------------------------------------------------------------------------------


def mean_of(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def right(rows: Sequence[Row]) -> str:
    return f"{100 * np.mean([row['rank_found'] == row['rank'] for row in rows]):.1f} %"


def ratios(rows: Sequence[Row]) -> Array:
    return np.array([row["rrse"] / row["oracle"] for row in rows])


def pit_shares(rows: Sequence[Row]) -> Array:
    """Shares of the tenths of the PIT, every problem with the same weight; 1 is what each should be."""
    return np.mean([10.0 * np.array(row["pit"]) / np.sum(row["pit"]) for row in rows], axis=0)


def covered(rows: Sequence[Row]) -> str:
    return " ".join(f"{mean_of(rows, f'coverage_{100 * level:.0f}'):.3f}" for level in LEVELS)


def off(rows: Sequence[Row]) -> str:
    return f"{np.mean([abs(row['rate_found'] - row['rate']) for row in rows]):.3f}"


def failed(row: Row) -> bool:
    return row["truth_bound"] is not None and row["truth_bound"] > row["bound"] + FAILURE


def _well_posed(rows: Sequence[Row]) -> str:
    median, most = np.quantile(ratios(rows), [0.5, 0.9])
    return f"{right(rows)} / {median:.3f}, {most:.3f} / {covered(rows)}"


def _informed(rows: Sequence[Row]) -> str:
    informed, found = (np.array([row[name] for row in rows]) for name in ("informed", "rrse"))
    median, most = np.quantile(informed / [row["oracle"] for row in rows], [0.5, 0.9])
    relative = np.quantile(found / informed, [0.5, 0.9])
    return f"{median:.3f}, {most:.3f} / {relative[0]:.3f}, {relative[1]:.3f}"


def _one_sided(rows: Sequence[Row]) -> str:
    shares = pit_shares(rows)
    density, furthest = mean_of(rows, "log_density"), shares[np.argmax(np.abs(shares - 1))]
    return (
        f"{right(rows)} / {density:.3f} / {shares[0]:.2f}, {shares[-1]:.2f}; tenth furthest from 1 {furthest:.2f} / "
        f"{mean_of(rows, 'coverage_95'):.3f}"
    )


def _failures(rows: Sequence[Row]) -> str:
    lost = [row for row in rows if failed(row)]
    seeds = f" (seeds {', '.join(str(row['seed']) for row in lost)})" if lost else ""
    return f"{len(lost)} of {len(rows)}{seeds}"


@dataclass(frozen=True, eq=False)
class Line:
    """A line of the table: which problems, what is measured, and the target."""

    name: str
    picks: Callable[[Row], bool]
    text: Callable[[Sequence[Row]], str]
    goal: str


LINES = [
    Line(
        "well-posed: rank right / RRSE ÷ oracle, median, 90 % / coverage of X at 50, 80, 95 %",
        lambda row: row["well_posed"],
        _well_posed,
        "98 % / 1.03, 1.15 / .50 .80 .95 ± .01",
    ),
    Line(
        "the same data, estimates that know rank, noise and law, but not which entries are outliers, and begin at the "
        "truth: RRSE ÷ oracle, median, 90 % / RRSE of the fit ÷ theirs, median, 90 %",
        lambda row: row["well_posed"],
        _informed,
        "–",
    ),
    Line(
        "outliers of 2–5 noise sd: coverage of X at 95 % / outlier rate off by",
        lambda row: row["well_posed"] and 2 <= row["size"] <= 5,
        lambda rows: f"{mean_of(rows, 'coverage_95'):.3f} / {off(rows)}",
        "≥ .93 / .05",
    ),
    Line(
        "25–40 % outliers: coverage of X at 95 %",
        lambda row: row["well_posed"] and row["rate"] >= 0.25,
        lambda rows: f"{mean_of(rows, 'coverage_95'):.3f}",
        "≥ .93",
    ),
    Line(
        "one-sided outliers: rank right / log density of new y less the true one / PIT of new y, lowest and highest "
        "tenth over their share / coverage of X at 95 %",
        lambda row: row["well_posed"] and row["kind"] == "one-sided",
        _one_sided,
        "≥ 96 % / – / within .9–1.1 / –",
    ),
    Line(
        "rank found too small: coverage of X at 95 % / narrowest interval in noise sd",
        lambda row: row["rank_found"] < row["rank"],
        lambda rows: f"{mean_of(rows, 'coverage_95'):.3f} / {min(row['width_min'] for row in rows):.2g}",
        "≥ .80 / never zero",
    ),
    Line(
        "search failures: a start at the truth ends more than 1 nat higher, well-posed",
        lambda row: row["well_posed"] and row["truth_bound"] is not None,
        _failures,
        "0",
    ),
    Line(
        "matrices, well-posed: RRSE ÷ oracle, 90 %",
        lambda row: row["well_posed"] and len(row["shape"]) == 2,
        lambda rows: f"{np.quantile(ratios(rows), 0.9):.3f}",
        "1.3",
    ),
    Line(
        "rank 0: rank right / narrowest interval in noise sd",
        lambda row: row["rank"] == 0,
        lambda rows: f"{right(rows)} / {min(row['width_min'] for row in rows):.2g}",
        "– / never zero",
    ),
]


def table(rows: Sequence[Row]) -> str:
    """The whole table in Markdown, and what went wrong."""
    fitted = [row for row in rows if row["error"] is None]
    lines = ["| | fits | measured | to reach |", "| --- | --- | --- | --- |"]
    for line in LINES:
        picked = [row for row in fitted if line.picks(row)]
        lines.append(f"| {line.name} | {len(picked)} | {line.text(picked) if picked else '–'} | {line.goal} |")
    broken = [row for row in rows if row["error"] is not None]
    slow = sum(not row["converged"] for row in fitted)
    seconds = np.median([row["seconds"] for row in fitted]) if fitted else np.nan
    told = [row for row in fitted if row["truth_bound"] is not None]
    lower = sum(row["truth_bound"] < row["bound"] - FAILURE for row in told)
    lines.append(f"\n{len(fitted)} fits of {len(rows)}, {slow} not converged; median time {seconds:.2f} s.")
    if told:
        lines[-1] += (
            f" Well-posed or not, {len(told)} started at the truth as well: {sum(map(failed, told))} of these ended "
            f"more than {FAILURE:g} nat higher, {lower} lower."
        )
    if len({row["code"] for row in rows}) > 1:
        lines.append("The rows were not all measured with the same code.")
    lines += [f"Failed: seed {row['seed']}, shape {tuple(row['shape'])}: {row['error']}" for row in broken]
    return "\n".join(lines)


def draw_pictures(rows: Sequence[Row], directory: Path) -> None:
    """Histograms of PIT and ranks: ``calibration-pit.png`` and ``calibration-ranks.png``."""
    from matplotlib.figure import Figure

    fitted = [row for row in rows if row["error"] is None]
    good = [row for row in fitted if row["well_posed"]]
    figure = Figure(figsize=(8.6, 2.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(KINDS), sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        some = [row for row in good if row["kind"] == kind]
        _bars(axis, pit_shares(some) if some else np.zeros(10), 1.0, f"{kind} outliers, {len(some)} fits")
        axis.set_xlabel("PIT of new observations")
    axes[0].set_ylabel("over its share")
    figure.savefig(directory / "calibration-pit.png")
    figure = Figure(figsize=(8.6, 2.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, 2)
    groups = {"well-posed": good, "rank 1 and more": [row for row in fitted if row["rank"]]}
    for axis, (name, some) in zip(axes, groups.items(), strict=True):
        ranks = np.array([rank for row in some for rank in row["ranks"]], dtype=int)
        counts = np.bincount(ranks * 20 // (N_DRAWS + 1), minlength=20)
        _bars(axis, counts, ranks.size / 20, f"{name}: {ranks.size} entries of {len(some)} fits")
        axis.set_xlabel(f"rank of the true x among {N_DRAWS} draws, over {N_DRAWS + 1}")
    axes[0].set_ylabel("entries")
    figure.savefig(directory / "calibration-ranks.png")


def _bars(axis: Any, heights: NDArray[Any], expected: float, title: str) -> None:
    """A histogram over 0 to 1, and the height that all bars should have."""
    middles = (np.arange(heights.size) + 0.5) / heights.size
    axis.bar(middles, heights, 0.94 / heights.size, color="#4477aa")
    axis.axhline(expected, color="black", linewidth=0.8, linestyle=":")
    axis.set_title(title, loc="left", fontsize=9)


PAGE = """# Calibration

Are the uncertainties of a fit with default settings, `BRTF().fit(Y)`, calibrated? Problems are drawn at random, and the
posterior is compared with the truth. `make calibration` prints the table and writes this page. It covers
{drawn}.

{table}

The problems are drawn from this distribution; `make calibration SEEDS=1000:1200` draws others, and
`python benchmarks/calibration.py --seeds 0:200 --truth-start --law ranks=1:3 noise=1e-4:1e-2` changes its
parameters by name.

{law}

![PIT of new observations](pictures/calibration-pit.png)

The quantiles of new observations in their posterior predictive distribution, in tenths, for well-posed problems:
flat if the distribution is correct.

![Ranks of the true x](pictures/calibration-ranks.png)

The rank of the true x among draws from its posterior: flat if the posterior is correct, raised at both ends if it is
too narrow. The right panel includes problems whose data do not determine all components.

## Method

{method}
"""


MEANINGS = {
    "orders": "order",
    "sizes": "size of a mode",
    "entries": "entries, of all shapes that are drawn",
    "ranks": "rank",
    "missing": "share of entries that are missing",
    "outliers": "share of entries with an outlier",
    "outlier_sizes": "their size in standard deviations of the noise, log-uniform",
    "outlier_kinds": "their kind",
    "noise": "noise variance over mean x², log-uniform",
    "units": "expected root mean square of X, log-uniform",
}


def described(law: Law) -> str:
    """The law as a table."""
    lines = ["| name | | drawn from |", "| --- | --- | --- |"]
    for name, value in asdict(law).items():
        if name == "entries":
            shown = f"at most {value:,}"
        elif name == "outlier_kinds":
            shown = ", ".join(value)
        else:
            shown = f"{value[0]:g} to {value[1]:g}"
        lines.append(f"| `{name}` | {MEANINGS[name]} | {shown} |")
    return "\n".join(lines)


def write_page(rows: Sequence[Row], law: Law, text: str, path: Path) -> None:
    """The page about these rows, and its pictures in ``pictures`` beside it."""
    pictures = path.parent / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    draw_pictures(rows, pictures)
    seeds = [row["seed"] for row in rows]
    drawn = f"{len(rows)} problems, seeds {min(seeds)} to {max(seeds)}"
    method = "\n\n".join((__doc__ or "").strip().split("\n\n")[2:])
    path.write_text(PAGE.format(drawn=drawn, law=described(law), table=text, method=method), encoding="utf-8")


def parse_seeds(text: str) -> range:
    """``A:B`` is A to B − 1; ``N`` is 0 to N − 1."""
    first, _, last = text.rpartition(":")
    try:
        seeds = range(int(first or 0), int(last))
    except ValueError:
        seeds = range(0)
    if not seeds or seeds.start < 0:
        raise argparse.ArgumentTypeError(f"expected A:B with 0 <= A < B, or N, got {text!r}")
    return seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=parse_seeds, default=range(200), help="A:B, both problems and fits")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--truth-start", action="store_true", help="fit a second time from the true factors")
    parser.add_argument("--rows", type=Path, help="the file of rows, one line of JSON each")
    parser.add_argument("--law", nargs="*", default=[], metavar="NAME=VALUE", help="ranges LOW:HIGH that differ")
    parser.add_argument("--table-only", action="store_true", help="fit nothing: the table of the rows that are there")
    parser.add_argument("--write", type=Path, help="write the page here, and its pictures into pictures beside it")
    options = parser.parse_args()
    try:
        law = Law.parse(options.law)
    except ValueError as error:
        parser.error(str(error))
    if options.table_only:
        rows = read_rows(options.rows, law, options.seeds)
        if not rows:
            parser.error(f"--table-only needs rows of this law and these seeds, and --rows {options.rows} holds none")
    else:
        rows = measure_all(options.seeds, law, truth_start=options.truth_start, jobs=options.jobs, path=options.rows)
    text = table(rows)
    print(text)
    if options.write:
        write_page(rows, law, text, options.write)


if __name__ == "__main__":
    main()
