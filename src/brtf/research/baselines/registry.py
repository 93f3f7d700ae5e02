"""Registry of the baselines: what a method is, what it returns, and one function to call any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import is_real, is_whole
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.research.baselines.algebra import Array
from brtf.research.baselines.matrix import Unfolding

Mask = NDArray[np.bool_]

NAMES = (
    "bcpf",
    "brmf",
    "cp-als",
    "cp-ard",
    "cpnls",
    "cpwopt",
    "decolor",
    "drmf",
    "godec",
    "horpca",
    "hosvd",
    "huber",
    "mgpcp",
    "pcp",
    "prmf",
    "regl1alm",
    "tucker-ard",
    "vbrpca",
)
"""Every method; ``a-b`` is in the module ``a_b`` of this package."""

LARGEST = 1e100
"""Largest size of the data, and inverse of the smallest, whose squares and cubes fit into float64."""


@dataclass(frozen=True, eq=False)
class Recovery:
    """The result of a method.

    Attributes
    ----------
    low_rank : ndarray
        The low-rank part, of the shape of Y, missing entries filled in.
    outliers : ndarray or None
        The sparse part, of the shape of Y and zero where an entry is missing; None if the method has none.
    rank : int, tuple of int or None
        The rank given or found: one number (CP, matrix), or one per mode (Tucker); None if the method has none.
    factors : list of ndarray or None
        One matrix (I_n, R) per mode whose columns' outer products sum to the low-rank part; None if the method has
        none. Where the low-rank part is an average, these are the factors of one of its terms.
    """

    low_rank: Array
    outliers: Array | None
    rank: int | tuple[int, ...] | None
    factors: list[Array] | None = None


@dataclass(frozen=True)
class Method:
    """What a method can do and which parameters it needs.

    Attributes
    ----------
    name : str
    recover : callable
        ``recover(Y, observed, rng, *, …)``; Y is float64 and zero where ``observed``, of its shape, is False. It is the
        tensor or, for a matrix method, its unfolding. What follows are the method's parameters, checked already as far
        as ``RANGES`` has them.
    missing : bool
        Whether entries may be missing.
    robust : bool
        Whether it is meant for data with outliers.
    works_on : {"tensor", "matrix"}
        A matrix method is given the unfolding of a tensor along its parameter ``mode``.
    source : str
        Authors of the method and origin of the code, in one sentence.
    """

    name: str
    recover: Callable[..., Recovery]
    missing: bool
    robust: bool
    works_on: Literal["tensor", "matrix"]
    source: str

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Every parameter with its default, read from the signature; None for those that have none."""
        mode = {"mode": -1} if self.works_on == "matrix" else {}
        return mode | {p.name: None if p.default is p.empty else p.default for p in self._own}

    @property
    def needs(self) -> tuple[str, ...]:
        """The parameters without a default."""
        return tuple(p.name for p in self._own if p.default is p.empty)

    @property
    def _own(self) -> list[inspect.Parameter]:
        return [p for p in inspect.signature(self.recover).parameters.values() if p.kind is p.KEYWORD_ONLY]


def names() -> tuple[str, ...]:
    """The names of all methods, sorted."""
    return tuple(sorted(NAMES))


def describe(name: str) -> Method:
    """Describe the method of this name: what it can do and which parameters it needs.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(names())}, got {name!r}.")
    method: Method = import_module(f"brtf.research.baselines.{name.replace('-', '_')}").METHOD
    return method


def recover(name: str, Y: Any, mask: Any = None, *, seed: int = 0, **params: Any) -> Recovery:
    """Recover the low-rank part of the data by the method of this name.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    Y, mask
        The data, as for :meth:`brtf.BRTF.fit`: NaN, masked or absent entries are missing. Never modified. Every method
        holds the whole tensor in memory, sparse data too.
    seed : int
        The same seed gives the same answer.
    **params
        Of the method: see ``describe(name).parameters`` and the docstring of its ``recover``. Every matrix method has
        ``mode``, the mode of a tensor that becomes the columns of its matrix: by default the last, so that a video
        (height, width, frames) has a column per frame.

    Returns
    -------
    Recovery

    Examples
    --------
    >>> import brtf
    >>> data = brtf.datasets.paper_synthetic(outliers=0.0, missing=0.5, seed=0)
    >>> found = brtf.baselines.recover("cpnls", data.observed, rank=3)
    >>> bool(brtf.metrics.rrse(found.low_rank, data.low_rank) < 0.02)
    True
    """
    method = describe(name)
    _check_parameters(method, seed, params)
    observations = observe(Y, mask, dtype=np.float64)
    if not method.missing and observations.n_observed < observations.n_entries:
        raise ValueError(
            f"{name} needs complete data, but {observations.n_entries - observations.n_observed} of "
            f"{observations.n_entries} entries of Y are missing. Fill them in first, or choose one of "
            f"{', '.join(other for other in names() if describe(other).missing)}."
        )
    tensor, observed = _dense(observations)
    rng = np.random.default_rng(seed)
    if method.works_on == "tensor":
        return method.recover(tensor, observed, rng, **params)
    return _recover_unfolded(method, tensor, observed, rng, **params)


def _recover_unfolded(
    method: Method, tensor: Array, observed: Mask, rng: np.random.Generator, *, mode: int = -1, **params: Any
) -> Recovery:
    """Run a matrix method on the unfolding of a tensor and fold the result back.

    Its factors (rows, R) and (I_mode, R) are kept, in the order of the modes, if the tensor is a matrix; those of an
    unfolding say nothing about the modes along its rows.
    """
    unfolding = Unfolding.along(tensor.shape, mode)
    matrix = unfolding.matrix(tensor)
    if params.get("rank") is not None and params["rank"] > min(matrix.shape):
        raise ValueError(
            f"rank must be at most {min(matrix.shape)}, the shorter side of the matrix, got {params['rank']}."
        )
    found = method.recover(matrix, unfolding.matrix(observed), rng, **params)
    factors = found.factors if tensor.ndim == 2 else None
    return Recovery(
        unfolding.fold(found.low_rank),
        None if found.outliers is None else unfolding.fold(found.outliers),
        found.rank,
        factors[::-1] if factors is not None and unfolding.mode == 0 else factors,
    )


def _dense(observations: Observations) -> tuple[Array, Mask]:
    """The tensor with zeros for missing entries, and what is observed."""
    largest = float(np.abs(observations.values).max())
    if largest == 0:
        raise ValueError("Y is zero at every observed entry: there is nothing to recover.")
    if not 1 / LARGEST <= largest <= LARGEST:
        raise ValueError(
            f"Y reaches {largest:.3g} in magnitude, outside {1 / LARGEST:g} to {LARGEST:g}, where the squares that the "
            "baselines take are still numbers. Rescale it."
        )
    if observations.layout == "complete":
        return np.asarray(observations.values, dtype=np.float64), np.ones(observations.shape, dtype=bool)
    check_memory(10 * observations.n_entries, f"a dense tensor of shape {observations.shape}", "leave some of it out")
    tensor = np.zeros(observations.shape)
    observed = np.zeros(observations.shape, dtype=bool)
    place = tuple(observations.entry_coords())
    tensor[place] = observations.values
    observed[place] = True
    return tensor, observed


def _is_positive(value: Any) -> bool:
    return is_real(value) and value > 0


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


def _is_counts(value: Any) -> bool:
    return _is_count(value) or (isinstance(value, (list, tuple)) and len(value) > 0 and all(map(_is_count, value)))


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "rank": (_is_count, "an integer of at least 1"),
    "max_rank": (_is_count, "an integer of at least 1"),
    "ranks": (_is_counts, "an integer of at least 1, or one per mode"),
    "max_ranks": (_is_counts, "an integer of at least 1, or one per mode"),
    "n_starts": (_is_count, "an integer of at least 1"),
    "max_sweeps": (_is_count, "an integer of at least 1"),
    "tol": (lambda v: is_real(v) and v >= 0, "a number of at least 0"),
    "lam": (_is_positive, "positive and finite"),
    "sparsity": (_is_positive, "positive and finite"),
    "rate_shape": (_is_positive, "positive and finite"),
    "rate_scale": (_is_positive, "positive and finite"),
    "smoothness": (lambda v: is_real(v) and v >= 0, "finite and at least 0"),
    "growth": (lambda v: is_real(v) and v > 1, "finite and above 1"),
    "shrinkage": (lambda v: is_real(v) and v > 1, "finite and above 1"),
    "outlier_fraction": (lambda v: is_real(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "power": (lambda v: is_whole(v) and v >= 0, "an integer of at least 0"),
    "snr": (is_real, "a finite number of decibels"),
    "noise": (lambda v: isinstance(v, str) and v in ("fixed", "learn"), "'fixed' or 'learn'"),
    "init": (lambda v: isinstance(v, str) and v in ("pcp", "svd"), "'pcp' or 'svd'"),
}
"""What a parameter may be, in every method that has it; None is also allowed where it is the default.

A method itself checks only what depends on its other parameters or on the data's shape.
"""


def _check_parameters(method: Method, seed: Any, params: Mapping[str, Any]) -> None:
    """Raise for unknown, missing or out-of-range parameters, in a sentence that lists the known ones."""
    known = method.parameters
    listed = ", ".join(key if key in method.needs else f"{key}={default!r}" for key, default in known.items())
    for key in params:
        if key not in known:
            raise ValueError(f"{method.name} has no parameter {key!r}. It has: {listed or 'none'}.")
    for key in method.needs:
        if params.get(key) is None:
            raise ValueError(f"{method.name} needs {key}=. Its parameters: {listed}.")
    if not (is_whole(seed) and seed >= 0):
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
    for key, value in params.items():
        optional = known[key] is None and key not in method.needs
        if key in RANGES and not (value is None and optional):
            valid, wanted = RANGES[key]
            if not valid(value):
                raise ValueError(f"{key} must be {'None or ' if optional else ''}{wanted}, got {value!r}.")
