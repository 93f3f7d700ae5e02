"""Every option of a fit, its range declared in one table and checked once."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

INFERENCES = ("calibrated", "paper")
INITS = ("spectral", "random")
NOISES = ("common", "per-slice", "auto")
TRANSFORMS = ("sqrt", "log")
LARGEST_DEFAULT_RANK = 100
"""The paper starts from R = max_n I_n; for long modes that is neither useful nor affordable."""


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_rank": (lambda v: v is None or (_is_int(v) and v >= 1), "None or an integer of at least 1"),
    "inference": (lambda v: isinstance(v, str) and v in INFERENCES, f"one of {INFERENCES}"),
    "outliers": (lambda v: isinstance(v, bool), "True or False"),
    "init": (
        lambda v: v in INITS if isinstance(v, str) else isinstance(v, (list, tuple)) and len(v) > 0,
        f"one of {INITS}, or a list with one factor matrix per mode",
    ),
    "noise": (lambda v: isinstance(v, str) and v in NOISES, f"one of {NOISES}"),
    "noise_modes": (
        lambda v: v is None or (isinstance(v, (list, tuple)) and len(v) > 0 and all(_is_int(mode) for mode in v)),
        "None or a list of modes",
    ),
    "calibrate": (lambda v: v is None or (isinstance(v, str) and v == "conformal"), 'None or "conformal"'),
    "transform": (lambda v: v is None or (isinstance(v, str) and v in TRANSFORMS), f"None or one of {TRANSFORMS}"),
    "max_sweeps": (lambda v: _is_int(v) and v >= 1, "an integer of at least 1"),
    "tol": (lambda v: _is_real(v) and v >= 0, "a number of at least 0 (nats per observed entry)"),
}


@dataclass(frozen=True)
class Settings:
    """How to fit. ``init`` may also be a list of factor matrices, one per mode (warm start)."""

    max_rank: int | None = None
    inference: str = "calibrated"
    outliers: bool = True
    init: Any = "spectral"
    noise: str = "common"
    noise_modes: tuple[int, ...] | None = None
    calibrate: str | None = None
    transform: str | None = None
    max_sweeps: int = 500
    tol: float = 1e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            valid, wanted = RANGES[field.name]
            value = getattr(self, field.name)
            if not valid(value):
                raise ValueError(f"{field.name} must be {wanted}, got {value!r}.")
        if self.inference == "paper" and self.noise != "common":
            raise ValueError('noise must be "common" with inference="paper", whose noise is one number.')

    def noise_candidates(self, order: int) -> list[tuple[int, ...]]:
        """The sets of modes along which the noise may differ: the ones named, the first, or each in turn."""
        if self.noise_modes is None:
            return [] if self.noise == "common" else [(m,) for m in range(order if self.noise == "auto" else 1)]
        if self.noise == "common":
            raise ValueError('noise_modes needs noise="per-slice" or "auto".')
        modes = tuple(sorted({int(mode) % order if -order <= mode < order else order for mode in self.noise_modes}))
        if order in modes or len(modes) != len(self.noise_modes):
            raise ValueError(
                f"noise_modes must be different modes of a tensor of order {order}, got {self.noise_modes}."
            )
        return [modes]

    def rank_limit(self, shape: tuple[int, ...]) -> int:
        """The largest rank considered: ``max_rank``, or min(max_n I_n, min_n Π_{k≠n} I_k, 100) by default."""
        if self.max_rank is not None:
            return int(self.max_rank)
        n_entries = math.prod(shape)
        return min(max(shape), min(n_entries // length for length in shape), LARGEST_DEFAULT_RANK)
