"""Sweeps and their parts against copies of the data and products of dense matrices; growth with size; threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.passes import of_entries, workers
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.statistics import row_grams, row_statistics
from brtf.inference.sweep import sweep
from brtf.model.distributions import RowGaussians
from brtf.model.local_models import GaussianSlab
from brtf.research.bench.measure import Array, Effort, Measurement, copying, cube_product, fastest, matrix_product
from brtf.search.moves.form import COLLAPSED_WORK
from brtf.search.settle import LEARN_NOISE_EVERY
from brtf.search.starts import random_start

LOCAL_MODEL = GaussianSlab(0.05, 10.0, 100.0)
DENSITIES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


def low_rank_data(shape: tuple[int, ...], rank: int, dtype: DTypeLike) -> Array:
    """A complete tensor of unit components with noise, and a gross error at one entry in twenty."""
    rng = np.random.default_rng(0)
    left = np.ones((1, rank), dtype)
    for length in shape[:-1]:
        rows = rng.standard_normal((length, rank)).astype(dtype)
        left = (left[:, None, :] * rows).reshape(-1, rank)
    data = left @ rng.standard_normal((rank, shape[-1])).astype(dtype)
    data += 0.1 * rng.standard_normal(data.shape, np.float32)
    wrong = rng.integers(0, data.size, data.size // 20)
    data.reshape(-1)[wrong] += rng.uniform(-10.0, 10.0, wrong.size).astype(dtype)
    return data.reshape(shape)


def sparse_data(shape: tuple[int, ...], n_observed: int) -> Observations:
    """Entries at random places of a large tensor, in the coordinate layout."""
    rng = np.random.default_rng(0)
    places = np.unique(rng.integers(0, math.prod(shape), n_observed))
    return Observations.from_coords(np.unravel_index(places, shape), rng.standard_normal(places.size), shape)


class Sweeper:
    """Consecutive sweeps from a random start; one call makes all sweeps that share one step of the noise."""

    def __init__(self, observations: Observations, rank: int, *, collapsed: bool) -> None:
        modes = tuple(int(mode) for mode in np.argsort(observations.shape, kind="stable"))
        self.problem = Problem(observations, modes, collapsed=collapsed)
        state = random_start(self.problem, rank, LOCAL_MODEL, np.random.default_rng(1))
        self.point: Point = evaluate(self.problem, with_noise(state, 10.0, LOCAL_MODEL, observations.n_observed))

    def __call__(self) -> None:
        for k in range(LEARN_NOISE_EVERY):
            self.point = sweep(self.problem, self.point, hold_noise=k > 0, ahead=True)


def complete_sweeps(effort: Effort) -> Iterator[Measurement]:
    """Target 1: a sweep of complete data in form 1 against 2.5 copies of the data and 6MR flops at gemm peak."""
    cases: list[tuple[str, tuple[int, ...], int, type, float]] = [
        ("video, float32", (25344, 3, 300), 10, np.float32, 2.0),
        ("cube", (100, 100, 100), 20, np.float64, 1.8),
        ("faces", (1024, 30, 5, 10), 300, np.float64, 2.3),
    ]
    if effort.quick:
        cases = [
            ("video, float32", (2000, 3, 30), 10, np.float32, 2.0),
            ("cube", (50, 50, 50), 20, np.float64, 1.8),
            ("faces", (128, 15, 5, 10), 60, np.float64, 2.3),
        ]
    for name, shape, rank, dtype, limit in cases:
        data = low_rank_data(shape, min(rank, 10), dtype)
        side, product = cube_product(effort, dtype)
        tasks: dict[str, Callable[[], object]] = {
            "sweep": Sweeper(observe(data), rank, collapsed=False),
            "copy": copying(data),
            "product": product,
        }
        seconds = fastest(tasks, effort.n_repeats)
        reference = 2.5 * seconds["copy"] + 6.0 * data.size * rank / (2.0 * side**3) * seconds["product"]
        yield Measurement(
            1,
            f"sweep of complete data: {name}, {times(shape)}, rank {rank}",
            seconds["sweep"] / LEARN_NOISE_EVERY / reference,
            "2.5 copies of the data + 6MR flops of gemm",
            limit,
            note=f"{1e9 * seconds['sweep'] / LEARN_NOISE_EVERY / data.size:.1f} ns an entry",
        )


def masked_sweeps(effort: Effort) -> Iterator[Measurement]:
    """A sweep of data with missing entries, and of small ones, against products alone; there is no target."""
    cases: list[tuple[tuple[int, ...], int, type, float]] = [
        *(((30, 30, 30), rank, np.float64, share) for rank in (10, 30, 100) for share in (1.0, 0.3)),
        *(((100, 100, 100), 20, np.float64, share) for share in (0.05, 0.3, 0.8)),
        ((25344, 3, 300), 10, np.float32, 0.1),
    ]
    if effort.quick:
        cases = [((30, 30, 30), 10, np.float64, 0.3), ((2000, 3, 30), 10, np.float32, 0.1)]
    for shape, rank, dtype, share in cases:
        data = low_rank_data(shape, min(rank, 10), dtype)
        seen = np.random.default_rng(1).random(shape) < share
        observations = observe(data) if share == 1.0 else observe(data, seen)
        side, product = cube_product(effort, dtype)
        collapsed = observations.n_observed * rank**2 / 2 < COLLAPSED_WORK or share < 1.0
        tasks: dict[str, Callable[[], object]] = {
            "sweep": Sweeper(observations, rank, collapsed=collapsed),
            "product": product,
        }
        seconds = fastest(tasks, effort.n_repeats)
        n_packed = rank * (rank + 1) // 2
        flops = 6.0 * observations.n_observed * (rank + (n_packed if collapsed else 0))
        yield Measurement(
            2,
            f"sweep: {times(shape)}, rank {rank}, {100 * share:g} % observed",
            seconds["sweep"] / LEARN_NOISE_EVERY / (flops / (2.0 * side**3) * seconds["product"]),
            f"6M{'(R+P)' if collapsed else 'R'} flops of gemm",
            note=f"{1e9 * seconds['sweep'] / LEARN_NOISE_EVERY / observations.n_observed:.0f} ns an observed entry",
        )


def masked_grams(effort: Effort) -> Iterator[Measurement]:
    """Target 2: row Grams and row products of masked data against dense products that ignore what is missing."""
    side, rank = (40, 8) if effort.quick else (100, 20)
    shape = (side, side, side)
    rng = np.random.default_rng(0)
    factors = random_rows(shape, rank, rng)
    data = rng.standard_normal(shape)
    product = matrix_product(side**2, side, rank * (rank + 1) // 2 + rank)
    for density in DENSITIES:
        observations = observe(data, rng.random(shape) < density)
        weights = rng.uniform(0.0, 1.0, observations.n_observed)
        for words, own in (("of ones", None), ("weighted", weights)):
            tasks = [partial(row_grams, observations, factors, mode, own) for mode in range(3)]
            seconds = fastest(dict(enumerate([*tasks, product])), effort.n_repeats)
            ratios = [seconds[mode] / seconds[3] for mode in range(3)]
            yield Measurement(
                2,
                f"row Grams and products of masked data, {words}: {times(shape)}, rank {rank}, density {density:g}",
                float(np.mean(ratios)),
                "dgemm of the same dense products",
                min(2.5 * max(density, 0.1), 1.0),
                note="by mode " + ", ".join(f"{ratio:.2f}" for ratio in ratios),
            )


def coordinates(effort: Effort) -> Iterator[Measurement]:
    """Target 3: all row Grams and row products of coordinates against one product of square matrices."""
    rank, shape = 10, (10_000, 10_000, 1_000)
    side, product = cube_product(effort)
    for n_asked in (10_000, 100_000) if effort.quick else (1_000_000, 10_000_000):
        observations = sparse_data(shape, n_asked)
        factors = random_rows(shape, rank, np.random.default_rng(1))
        weights = of_entries(np.random.default_rng(2).uniform(0.0, 1.0, observations.n_observed))

        def statistics(
            observations: Observations = observations,
            factors: tuple[RowGaussians, ...] = factors,
            weights: Callable[..., Array] = weights,
        ) -> None:
            for mode in range(3):
                row_statistics(observations, factors, mode, lambda block: (weights(block), weights(block)))

        seconds = fastest({"statistics": statistics, "product": product}, min(effort.n_repeats, 3))
        yield Measurement(
            3,
            f"all Grams and products of {n_asked:,} coordinates: {times(shape)}, rank {rank}",
            seconds["statistics"] / seconds["product"],
            f"dgemm of {side}³",
            30.0 * (n_asked / 1e7) * (1024 / side) ** 3,
            note=f"{1e9 * seconds['statistics'] / observations.n_observed:.0f} ns an entry",
        )


def growth(effort: Effort) -> Iterator[Measurement]:
    """Target 7: how the time of a sweep grows with the entries, and with the lengths of the modes."""
    decades = (10, 100, 1000) if effort.quick else (10_000, 100_000, 1_000_000)
    length = 60 if effort.quick else 1_000
    sweepers = {n: Sweeper(sparse_data((length,) * 3, n), 5, collapsed=True) for n in decades}
    yield _growth_row("entries M", f"{times((length,) * 3)}, rank 5", sweepers, effort)
    lengths = (20, 60, 200) if effort.quick else (100, 1_000, 10_000)
    n_observed = 1_000 if effort.quick else 100_000
    sweepers = {3 * n: Sweeper(sparse_data((n,) * 3, n_observed), 5, collapsed=True) for n in lengths}
    yield _growth_row("lengths Σ I_n", f"{n_observed:,} entries, rank 5", sweepers, effort)


def _growth_row(what: str, data: str, sweepers: dict[int, Sweeper], effort: Effort) -> Measurement:
    seconds = fastest(dict(sweepers), effort.n_repeats)
    exponent = np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0]
    return Measurement(
        7,
        f"time of a sweep grows with {what} to the power of: {data}",
        float(exponent),
        f"1, which is linear, from {min(seconds):,} to {max(seconds):,}",
        1.1,
        note="sweeps of " + ", ".join(f"{1e3 * run / LEARN_NOISE_EVERY:.1f}" for run in seconds.values()) + " ms",
    )


def threads(effort: Effort) -> Iterator[Measurement]:
    """Target 7: two threads against one."""
    shape = (500, 3, 100) if effort.quick else (8000, 3, 300)
    sweeper = Sweeper(observe(low_rank_data(shape, 10, np.float32)), 10, collapsed=False)

    def swept_by(n_jobs: int) -> None:
        with workers(n_jobs):
            sweeper()

    seconds = fastest({n_jobs: partial(swept_by, n_jobs) for n_jobs in (1, 2)}, effort.n_repeats, time.perf_counter)
    yield Measurement(
        7,
        f"a sweep by two threads: {times(shape)}, rank 10",
        seconds[1] / seconds[2],
        "as fast as by one",
        1.7,
        at_least=True,
        note="meaningful only if two cores are idle",
    )


def random_rows(shape: Sequence[int], rank: int, rng: np.random.Generator) -> tuple[RowGaussians, ...]:
    """Gaussian rows with a covariance each."""
    return tuple(
        RowGaussians(rng.standard_normal((length, rank)), np.repeat(0.1 * np.eye(rank)[None], length, axis=0))
        for length in shape
    )


def times(shape: Sequence[int]) -> str:
    """The shape in words."""
    return "×".join(str(length) for length in shape)
