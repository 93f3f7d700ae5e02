"""Every option of a fit, with its range in one table, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np

from brtf.data.checks import did_you_mean, is_real, is_whole
from brtf.data.scatter import resolved

INFERENCES = ("calibrated", "paper")
INITS = ("spectral", "random")
NOISES = ("common", "per-slice", "auto")
OUTLIER_KINDS = ("auto", "additive", "one-sided", "replacement")
LINKS = ("auto", "sqrt", "log", "log1p")
MODE_WORDS = ("ordered", "cyclic", "unordered", "nonnegative")
"""Words that describe a mode."""
RENAMED = {"outliers": "robust", "transform": "link"}
"""Option names that collide with methods, and the option to use instead."""
FEWEST_SMOOTH = 8
"""Shortest mode along which a smooth residual is considered."""
COURSES = 4
"""Courses of different memory that a series in order may be the sum of."""
LARGEST_PAPER_RANK = 100
"""The paper starts from R = max_n I_n; for long modes that is neither useful nor feasible."""


LARGEST_TENSOR = 2**62
"""Number of positions that 64 bits can still count."""
LARGEST_RANK = 2**31 - 1
"""Ranks are array lengths; no memory holds R×R matrices of such a rank."""


def _is_modes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(is_whole(mode) for mode in value)


def _is_groups(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 1 and all(map(_is_modes, value))


def _is_folds(value: Any) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(map(is_whole, (*value, *value.values())))


def _is_said_of_modes(value: Any) -> bool:
    """Whether this is what a dictionary {mode: word or words} becomes: pairs of a mode and a tuple of words."""
    return isinstance(value, tuple) and len(value) > 0 and all(map(_is_said_of_mode, value))


def _is_said_of_mode(pair: Any) -> bool:
    return (
        isinstance(pair, tuple)
        and len(pair) == 2
        and (is_whole(pair[0]) or (isinstance(pair[0], str) and pair[0] != ""))
        and isinstance(pair[1], tuple)
        and len(pair[1]) > 0
        and all(isinstance(word, str) and word in MODE_WORDS for word in pair[1])
    )


def _is_labels(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "iub"
        and value.size > 1
        and bool(value.min() >= 0)
        and bool(value.min() < value.max())
    )


def _is_scatter(value: Any) -> bool:
    if not isinstance(value, dict):
        return is_real(value) and value > 0
    modes = [value.get(axis) for axis in ("emission", "excitation")]
    raman = value.get("raman")
    return (
        value.keys() <= {"width", "emission", "excitation", "raman"}
        and is_real(value.get("width"))
        and value["width"] > 0
        and all(mode is None or isinstance(mode, str) or is_whole(mode) for mode in modes)
        and (raman is None or (is_real(raman) and raman > 0))
    )


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_rank": (lambda v: v is None or (is_whole(v) and v >= 1), "None or an integer of at least 1"),
    "inference": (lambda v: isinstance(v, str) and v in INFERENCES, f"one of {INFERENCES}"),
    "robust": (lambda v: isinstance(v, bool), "True or False"),
    "init": (
        lambda v: v in INITS if isinstance(v, str) else isinstance(v, (list, tuple)) and len(v) > 0,
        f"one of {INITS}, or a list with one factor matrix per mode",
    ),
    "modes": (
        lambda v: v is None or (isinstance(v, str) and v == "auto") or _is_said_of_modes(v),
        f'None, "auto" or a dictionary that says of a mode, by number or name, one or more of {MODE_WORDS}',
    ),
    "noise": (lambda v: isinstance(v, str) and v in NOISES, f"one of {NOISES}"),
    "noise_modes": (lambda v: v is None or _is_modes(v), "None or a list of modes"),
    "outlier_modes": (lambda v: v is None or _is_modes(v), "None or a list of modes"),
    "outlier_kind": (lambda v: isinstance(v, str) and v in OUTLIER_KINDS, f"one of {OUTLIER_KINDS}"),
    "outlier_labels": (
        lambda v: v is None or _is_labels(v),
        "None or an array of integers of at least 0 that are not all equal",
    ),
    "calibrate": (lambda v: v is None or (isinstance(v, str) and v == "conformal"), 'None or "conformal"'),
    "link": (lambda v: v is None or (isinstance(v, str) and v in LINKS), f"None or one of {LINKS}"),
    "arrangement": (
        lambda v: v is None or (isinstance(v, str) and v == "auto") or _is_groups(v) or _is_folds(v),
        'None, "auto", groups of modes such as ((0, 1), (2,)), or periods by which modes are folded such as {0: 24}',
    ),
    "scatter": (
        lambda v: v is None or _is_scatter(v),
        'None, a width in nm, or a dictionary with "width" and, if need be, "emission", "excitation" and "raman"',
    ),
    "rank_by": (lambda v: isinstance(v, str) and v in ("auto", "bound"), '"auto" or "bound"'),
    "smooth_residual": (
        lambda v: v is None or (isinstance(v, str) and v == "auto") or is_whole(v),
        'None, "auto" or a mode',
    ),
    "max_sweeps": (lambda v: is_whole(v) and v >= 1, "an integer of at least 1"),
    "max_seconds": (lambda v: v is None or (is_real(v) and v > 0), "None or a number above 0"),
    "n_jobs": (lambda v: v is None or (is_whole(v) and v != 0), "None or an integer other than 0 (−1: all cores)"),
    "tol": (lambda v: is_real(v) and v >= 0, "a number of at least 0 (nats per observed entry)"),
}


@dataclass(frozen=True)
class Settings:
    """How to fit.

    ``init`` may also be a list of factor matrices, one per mode (warm start). ``modes`` is "auto", None, or pairs of a
    mode and a tuple of words. ``outlier_labels`` are an array, or None.
    """

    max_rank: int | None = None
    inference: str = "calibrated"
    robust: bool = True
    init: Any = "spectral"
    modes: Any = "auto"
    noise: str = "auto"
    noise_modes: tuple[int, ...] | None = None
    outlier_modes: tuple[int, ...] | None = None
    outlier_kind: str = "auto"
    outlier_labels: Any = None
    calibrate: str | None = None
    link: str | None = "auto"
    arrangement: Any = "auto"
    smooth_residual: Any = None
    scatter: Any = None
    rank_by: str = "auto"
    max_sweeps: int = 500
    max_seconds: float | None = None
    tol: float = 1e-6
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            valid, wanted = RANGES[field.name]
            value = getattr(self, field.name)
            if field.name == "max_rank" and is_whole(value) and value > LARGEST_RANK:
                raise ValueError(f"max_rank must be at most {LARGEST_RANK}, got {value}.")
            if not valid(value):
                raise ValueError(f"{field.name} must be {wanted}, got {value!r}.")
        if self.inference == "paper" and self.noise == "per-slice":
            raise ValueError('noise must be "common" with inference="paper", whose noise is one number.')
        if self.inference == "paper" and self.modes not in (None, "auto"):
            raise ValueError('modes needs inference="calibrated": the rows of the paper are about zero, in any order.')
        for mode, words in () if self.modes in (None, "auto") else self.modes:
            if len({"ordered", "cyclic", "unordered"} & set(words)) > 1:
                raise ValueError(
                    f'modes says of mode {mode!r} {words}, but a mode is "ordered", "cyclic" or "unordered".'
                )
        if self.inference == "paper" and self.smooth_residual not in (None, "auto"):
            raise ValueError('smooth_residual needs inference="calibrated": the paper has none.')
        if self.outlier_modes is not None and self.outlier_kind == "one-sided":
            raise ValueError('outlier_kind="one-sided" needs outliers each on its own: leave out outlier_modes.')
        if self.outlier_modes is not None and self.outlier_labels is not None:
            raise ValueError("outlier_labels needs outliers each on its own: leave out outlier_modes.")
        named = self.outlier_modes is not None or self.outlier_labels is not None
        if named or self.outlier_kind in ("one-sided", "replacement"):
            if not self.robust:
                raise ValueError("outlier_modes, outlier_labels and outlier_kind need robust=True.")
            if self.inference == "paper":
                raise ValueError(
                    'outlier_modes, outlier_labels and outlier_kind need inference="calibrated": the paper\'s outliers '
                    "are additive, each on its own, at one rate."
                )

    def for_streaming(self) -> Settings:
        """The settings of the first of several blocks: "auto" means what later blocks can go on from."""
        if isinstance(self.arrangement, dict):
            raise ValueError(
                f"partial_fit cannot fold modes, got arrangement={self.arrangement}: the next block would begin in the "
                "middle of a period. Fit all data at once, or use arrangement=None."
            )
        if self.smooth_residual not in (None, "auto"):
            raise ValueError(
                f"partial_fit has no smooth residual, got smooth_residual={self.smooth_residual!r}, which keeps "
                "numbers for every entry. Fit all data at once, or use smooth_residual=None."
            )
        if self.outlier_labels is not None:
            raise ValueError(
                "partial_fit has outliers of one rate, got outlier_labels. Fit all data at once, or use "
                "outlier_labels=None."
            )
        changes: dict[str, Any] = {"smooth_residual": None}
        if self.arrangement == "auto":
            changes["arrangement"] = None
        if self.noise == "auto" and self.noise_modes is None:
            changes["noise"] = "common"
        if self.outlier_kind == "auto":
            changes["outlier_kind"] = "additive"
        return replace(self, **changes)

    def with_numbered_modes(self, names: Sequence[str], order: int) -> Settings:
        """The settings with the names of modes in ``modes`` and ``scatter`` replaced by their numbers."""
        scatter = None if self.scatter is None else resolved(self.scatter, names, order)
        return replace(self, scatter=scatter, modes=self._numbered_modes(names))

    def _numbered_modes(self, names: Sequence[str]) -> Any:
        if self.modes in (None, "auto"):
            return self.modes
        for mode, _ in self.modes:
            if isinstance(mode, str) and mode not in names:
                known = f"Y has the modes {', '.join(map(repr, names))}" if names else "the modes of Y have no names"
                remedy = did_you_mean(mode, names) or " Use its number."
                raise ValueError(f"modes names {mode!r}, but {known}.{remedy}")
        return tuple((names.index(mode) if isinstance(mode, str) else mode, words) for mode, words in self.modes)

    def said_of_modes(self, order: int) -> dict[int, tuple[str, ...]]:
        """The words that ``modes`` gives for each mode it names."""
        if self.modes in (None, "auto"):
            return {}
        given = tuple(mode for mode, _ in self.modes)
        _check_modes("modes", given, order)
        return {int(mode) % order: words for mode, words in self.modes}

    def undecided_modes(self, order: int) -> tuple[int, ...]:
        """The modes that ``modes`` leaves to the bound."""
        said = self.said_of_modes(order)
        return () if self.modes is None else tuple(mode for mode in range(order) if mode not in said)

    def with_known_modes(self, order: int) -> Settings:
        """The settings with nothing left to the bound about the modes: of those not named, rows are in no order."""
        if self.modes is None:
            return self
        said = self.said_of_modes(order)
        return replace(self, modes=tuple((mode, said.get(mode, ("unordered",))) for mode in range(order)))

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

    def smooth_modes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The modes along which there may be a smooth residual: the one named, or with "auto" those long enough."""
        if self.smooth_residual is None or self.inference == "paper":
            return ()
        too_large = math.prod(shape) >= LARGEST_TENSOR
        if self.smooth_residual != "auto":
            if too_large:
                raise ValueError(
                    f"smooth_residual={self.smooth_residual!r} numbers the positions of the tensor, but one of shape "
                    f"{shape} has 2^62 or more. Use smooth_residual=None."
                )
            return _check_modes("smooth_residual", (self.smooth_residual,), len(shape))
        return () if too_large else tuple(mode for mode, length in enumerate(shape) if length >= FEWEST_SMOOTH)

    def shared_modes(self, order: int) -> tuple[int, ...]:
        """The modes along which an outlier is shared."""
        if self.outlier_modes is None:
            return ()
        modes = _check_modes("outlier_modes", self.outlier_modes, order)
        if len(modes) == order:
            raise ValueError("outlier_modes must leave out at least one mode: otherwise all entries are one.")
        return modes

    @property
    def labelled_modes(self) -> tuple[int, ...]:
        """The modes along which the labels of outlier rates vary."""
        shape = () if self.outlier_labels is None else self.outlier_labels.shape
        return tuple(mode for mode, length in enumerate(shape) if length > 1)

    def check_outlier_labels(self, shape: tuple[int, ...]) -> None:
        """Raise unless the labels of outlier rates go with a tensor of that shape."""
        labels = self.outlier_labels
        if labels is None:
            return
        if labels.ndim != len(shape) or any(labels.shape[mode] != shape[mode] for mode in self.labelled_modes):
            raise ValueError(
                f"outlier_labels must have the shape of Y, {shape}, or 1 in place of the lengths of modes along which "
                f"they do not vary, got {labels.shape}."
            )

    def rank_limit(self, shape: tuple[int, ...], n_observed: int, *, in_order: bool = False) -> int:
        """Upper limit of the rank of the result: ``max_rank``, but no more than any tensor of that shape needs.

        It also keeps fewer parameters than observed entries, R (Σ I_n − N + 1) < M, but is at least one. Series
        ``in_order`` may each be the sum of several courses, which have fewer free numbers than rows. The paper's
        inference starts with all components: min(max_n I_n, min_n Π_{k≠n} I_k, 100) of them by default.
        """
        n_entries = math.prod(shape)
        enough = min(n_entries // length for length in shape)
        if self.inference == "paper":
            return min(max(shape), enough, LARGEST_PAPER_RANK) if self.max_rank is None else int(self.max_rank)
        most = max(1, min(enough, (n_observed - 1) // (sum(shape) - len(shape) + 1)))
        if in_order:
            most = max(most, COURSES * enough)
        return most if self.max_rank is None else min(int(self.max_rank), most)


def _check_modes(name: str, given: tuple[int, ...], order: int) -> tuple[int, ...]:
    """The modes in ascending order, negative numbers resolved."""
    modes = tuple(sorted({int(mode) % order if -order <= mode < order else order for mode in given}))
    if order in modes or len(modes) != len(given):
        raise ValueError(f"{name} must be different modes of a tensor of order {order}, got {given}.")
    return modes
