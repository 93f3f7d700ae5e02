"""Measurement: tasks in turns, the fastest run of each, and the rows of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name")
Array = NDArray[Any]


@dataclass(frozen=True)
class Measurement:
    """One line of the table.

    Attributes
    ----------
    target : the number of the target it belongs to
    what : what was measured
    value : the ratio, or a number in the given unit; None where it could not be measured
    against : the reference of the ratio, or why nothing was measured
    limit : the largest value that meets the target, or the smallest if ``at_least``; None if there is no target
    unit : of a value that is not a ratio
    note : anything else worth knowing
    """

    target: int
    what: str
    value: float | None
    against: str
    limit: float | None = None
    at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is no target or no value."""
        if self.value is None or self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Effort:
    """Effort of a measurement: ``quick`` uses small data; the fastest of ``n_repeats`` runs counts."""

    quick: bool
    n_repeats: int


def fastest(
    tasks: Mapping[Name, Callable[[], object]], n_repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[Name, float]:
    """Seconds of the fastest of several runs of each task; the tasks take turns, so all see the same load.

    Each task is run once beforehand: what is compiled, loaded or cached by the first run is not counted. Seconds are
    CPU time unless another clock is given.
    """
    for task in tasks.values():
        task()
    seconds: dict[Name, list[float]] = {name: [] for name in tasks}
    for _ in range(n_repeats):
        for name, task in tasks.items():
            started = clock()
            task()
            seconds[name].append(clock() - started)
    return {name: min(runs) for name, runs in seconds.items()}


def matrix_product(n_rows: int, n_inner: int, n_columns: int, dtype: Any = np.float64) -> Callable[[], object]:
    """A product of dense matrices of the given size, as BLAS does it."""
    rng = np.random.default_rng(0)
    left = rng.standard_normal((n_rows, n_inner)).astype(dtype)
    right = rng.standard_normal((n_inner, n_columns)).astype(dtype)
    out = np.empty((n_rows, n_columns), dtype)
    return lambda: np.matmul(left, right, out=out)


def cube_product(effort: Effort, dtype: Any = np.float64) -> tuple[int, Callable[[], object]]:
    """The side n of a large square matrix, and the product of two of them: 2n³ flops at the machine's peak."""
    side = 256 if effort.quick else 1024
    return side, matrix_product(side, side, side, dtype)


def copying(array: Array) -> Callable[[], object]:
    """Copy an array into memory that is already allocated."""
    out = np.empty_like(array)
    return lambda: np.copyto(out, array)
