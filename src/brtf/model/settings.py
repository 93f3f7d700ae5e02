"""Every option of a fit, with its range in one table, checked once."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

INFERENCES = ("calibrated", "paper")
INITS = ("spectral", "random")
NOISES = ("common", "per-slice", "auto")
OUTLIER_KINDS = ("additive", "replacement")
LINKS = ("auto", "sqrt", "log", "log1p")
RENAMED = {"outliers": "robust", "transform": "link"}
"""Option names that collide with methods, and the option to use instead."""
LARGEST_PAPER_RANK = 100
"""The paper starts from R = max_n I_n; for long modes that is neither useful nor feasible."""


LARGEST_RANK = 2**31 - 1
"""Ranks are array lengths; no memory holds R×R matrices of such a rank."""


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:  # an integer beyond the range of floats
        return False


def _is_modes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(_is_int(mode) for mode in value)


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_rank": (lambda v: v is None or (_is_int(v) and v >= 1), "None or an integer of at least 1"),
    "inference": (lambda v: isinstance(v, str) and v in INFERENCES, f"one of {INFERENCES}"),
    "robust": (lambda v: isinstance(v, bool), "True or False"),
    "init": (
        lambda v: v in INITS if isinstance(v, str) else isinstance(v, (list, tuple)) and len(v) > 0,
        f"one of {INITS}, or a list with one factor matrix per mode",
    ),
    "noise": (lambda v: isinstance(v, str) and v in NOISES, f"one of {NOISES}"),
    "noise_modes": (lambda v: v is None or _is_modes(v), "None or a list of modes"),
    "outlier_modes": (lambda v: v is None or _is_modes(v), "None or a list of modes"),
    "outlier_kind": (lambda v: isinstance(v, str) and v in OUTLIER_KINDS, f"one of {OUTLIER_KINDS}"),
    "calibrate": (lambda v: v is None or (isinstance(v, str) and v == "conformal"), 'None or "conformal"'),
    "link": (lambda v: v is None or (isinstance(v, str) and v in LINKS), f"None or one of {LINKS}"),
    "arrangement": (
        lambda v: v is None or v == "auto" or (isinstance(v, (list, tuple)) and all(map(_is_modes, v)) and len(v) > 1),
        'None, "auto" or groups of modes such as ((0, 1), (2,))',
    ),
    "max_sweeps": (lambda v: _is_int(v) and v >= 1, "an integer of at least 1"),
    "max_seconds": (lambda v: v is None or (_is_real(v) and v > 0), "None or a number above 0"),
    "n_jobs": (lambda v: v is None or (_is_int(v) and v != 0), "None or an integer other than 0 (−1: all cores)"),
    "tol": (lambda v: _is_real(v) and v >= 0, "a number of at least 0 (nats per observed entry)"),
}


@dataclass(frozen=True)
class Settings:
    """How to fit. ``init`` may also be a list of factor matrices, one per mode (warm start)."""

    max_rank: int | None = None
    inference: str = "calibrated"
    robust: bool = True
    init: Any = "spectral"
    noise: str = "auto"
    noise_modes: tuple[int, ...] | None = None
    outlier_modes: tuple[int, ...] | None = None
    outlier_kind: str = "additive"
    calibrate: str | None = None
    link: str | None = "auto"
    arrangement: Any = "auto"
    max_sweeps: int = 500
    max_seconds: float | None = None
    tol: float = 1e-6
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            valid, wanted = RANGES[field.name]
            value = getattr(self, field.name)
            if field.name == "max_rank" and _is_int(value) and value > LARGEST_RANK:
                raise ValueError(f"max_rank must be at most {LARGEST_RANK}, got {value}.")
            if not valid(value):
                raise ValueError(f"{field.name} must be {wanted}, got {value!r}.")
        if self.inference == "paper" and self.noise == "per-slice":
            raise ValueError('noise must be "common" with inference="paper", whose noise is one number.')
        if self.outlier_modes is not None or self.outlier_kind != "additive":
            if not self.robust:
                raise ValueError("outlier_modes and outlier_kind need robust=True.")
            if self.inference == "paper":
                raise ValueError(
                    'outlier_modes and outlier_kind need inference="calibrated": the paper\'s outliers are additive, '
                    "each on its own."
                )

    def for_streaming(self) -> Settings:
        """The settings of the first of several blocks: "auto" means what later blocks can go on from."""
        return replace(self, noise="common") if self.noise == "auto" and self.noise_modes is None else self

    def noise_candidates(self, shape: tuple[int, ...], n_observed: int) -> list[tuple[int, ...]]:
        """Candidate sets of modes along which the noise may differ: those named, the first mode, or with "auto" all.

        These are one or two modes, but not all of them, with at least two observed entries per slice on average: the
        noise of a single entry is a matter of the tails.
        """
        order = len(shape)
        if self.noise_modes is not None:
            if self.noise == "common":
                raise ValueError('noise_modes needs noise="per-slice" or "auto".')
            return [_check_modes("noise_modes", self.noise_modes, order)]
        if self.noise != "auto" or self.inference == "paper":
            return [(0,)] if self.noise == "per-slice" else []
        sets = [modes for n_modes in (1, 2) if n_modes < order for modes in combinations(range(order), n_modes)]
        return [modes for modes in sets if 2 * math.prod(shape[mode] for mode in modes) <= n_observed]

    def shared_modes(self, order: int) -> tuple[int, ...]:
        """The modes along which an outlier is shared."""
        if self.outlier_modes is None:
            return ()
        modes = _check_modes("outlier_modes", self.outlier_modes, order)
        if len(modes) == order:
            raise ValueError("outlier_modes must leave out at least one mode: otherwise all entries are one.")
        return modes

    def rank_limit(self, shape: tuple[int, ...], n_observed: int) -> int:
        """Upper limit of the rank of the result: ``max_rank``, but no more than any tensor of that shape needs.

        It also keeps fewer parameters than observed entries, R (Σ I_n − N + 1) < M, but is at least one. The paper's
        inference starts with all components: min(max_n I_n, min_n Π_{k≠n} I_k, 100) of them by default.
        """
        n_entries = math.prod(shape)
        enough = min(n_entries // length for length in shape)
        if self.inference == "paper":
            return min(max(shape), enough, LARGEST_PAPER_RANK) if self.max_rank is None else int(self.max_rank)
        most = max(1, min(enough, (n_observed - 1) // (sum(shape) - len(shape) + 1)))
        return most if self.max_rank is None else min(int(self.max_rank), most)


def _check_modes(name: str, given: tuple[int, ...], order: int) -> tuple[int, ...]:
    """The modes in ascending order, negative numbers resolved."""
    modes = tuple(sorted({int(mode) % order if -order <= mode < order else order for mode in given}))
    if order in modes or len(modes) != len(given):
        raise ValueError(f"{name} must be different modes of a tensor of order {order}, got {given}.")
    return modes
