"""The tensor methods of the comparison: how each is called, and how those with a parameter are tuned.

A method with a parameter to choose is fitted for every value of a grid and enters twice, in separate columns: with
the value that comes nearest to the truth, as in the paper, and with the value that best predicts a held-out tenth of
the observed entries, which needs no truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from brtf.api.estimator import BRTF
from brtf.research.baselines import Recovery, describe, recover
from brtf.research.baselines.algebra import Array
from brtf.research.baselines.registry import Mask

HIDDEN = 0.1
"""Share of the observed entries that are hidden to choose a parameter."""
N_FILLS = 5
"""How often a method for complete data fills the hidden entries with its own answer and starts again."""

Kind = Literal["ours", "robust", "least squares"]


@dataclass(frozen=True)
class Contender:
    """A method of the comparison.

    Attributes
    ----------
    label : what the page calls it
    kind : what it does about outliers
    tuned : the parameter that must be chosen; None if there is none
    options : its other parameters, the same for all data
    """

    label: str
    kind: Kind
    tuned: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


CONTENDERS = {
    "brtf": Contender("BRTF, calibrated", "ours"),
    "brtf-paper": Contender("BRTF, as in the paper", "ours", options={"inference": "paper"}),
    "horpca": Contender("HORPCA", "robust", "sparsity", {"tol": 1e-4}),
    "huber": Contender("Huber CP", "robust", options={"n_starts": 3}),
    "cp-als": Contender("CP-ALS", "least squares", "rank", {"n_starts": 1}),
    "hosvd": Contender("HOSVD", "least squares", "ranks"),
    "cp-ard": Contender("CP-ARD", "least squares"),
    "tucker-ard": Contender("Tucker-ARD", "least squares"),
    "cpwopt": Contender("CPWOPT", "least squares", "rank", {"n_starts": 1}),
    "cpnls": Contender("CPNLS", "least squares", "rank", {"n_starts": 2, "max_sweeps": 50}),
    "mgpcp": Contender("MGPCP", "least squares"),
    "bcpf": Contender("BCPF (BRTF without outliers)", "least squares"),
}
"""Every tensor method, ours first; all but ours are in ``brtf.baselines``."""
OURS = tuple(name for name, contender in CONTENDERS.items() if contender.kind == "ours")


@dataclass(frozen=True)
class Trial:
    """One value of a grid: what it gave, the seconds, and the median error at hidden entries (None: not measured)."""

    value: Any
    found: Recovery
    seconds: float
    hidden_error: float | None


def fit(method: str, observed: Array, *, seed: int = 0, **params: Any) -> Recovery:
    """Recover the low-rank part by one of ours or by a baseline.

    Parameters
    ----------
    method : str
        A name in ``CONTENDERS``, or any baseline.
    observed : ndarray
        NaN where missing.
    seed, **params
        As for :class:`brtf.BRTF` or :func:`brtf.baselines.recover`.
    """
    options = {**(CONTENDERS[method].options if method in CONTENDERS else {}), **params}
    if method not in OURS:
        return recover(method, observed, seed=seed, **options)
    model = BRTF(random_state=seed, **options).fit(observed)
    return Recovery(model.low_rank(), model.outliers(), model.rank_, model.factors_)


def trials(
    method: str, observed: Array, parameter: str | None, grid: Sequence[Any], *, seed: int = 0, **params: Any
) -> list[Trial]:
    """Fit a method for every value of one parameter, to all observed entries and to nine tenths of them.

    A method that chooses for itself, with None for the parameter, is fitted once.
    """
    if parameter is None:
        return [Trial(None, *_timed(method, observed, seed=seed, **params), None)]
    hidden = _hide(observed, seed)
    found = []
    for value in grid:
        told = {**params, parameter: value}
        recovery, seconds = _timed(method, observed, seed=seed, **told)
        guess = _predict_hidden(partial(fit, method, seed=seed, **told), method, observed, hidden)
        # Hidden entries may be outliers themselves: their median error does not mind.
        found.append(Trial(value, recovery, seconds, float(np.median(np.abs(guess - observed)[hidden]))))
    return found


def honest(tried: Sequence[Trial]) -> int:
    """Which trial predicts the hidden entries best."""
    return int(np.argmin([0.0 if trial.hidden_error is None else trial.hidden_error for trial in tried]))


def _timed(method: str, observed: Array, **told: Any) -> tuple[Recovery, float]:
    started = time.perf_counter()
    found = fit(method, observed, **told)
    return found, time.perf_counter() - started


def _hide(observed: Array, seed: int) -> Mask:
    """A random tenth of the observed entries."""
    rng = np.random.default_rng([seed, 1])
    return (rng.random(observed.shape) < HIDDEN) & ~np.isnan(observed)


def _predict_hidden(refit: Callable[[Array], Recovery], method: str, observed: Array, hidden: Mask) -> Array:
    """The low-rank part found without the hidden entries.

    A method that needs complete data gets the median in their place, then its own answers, several times.
    """
    if method in OURS or describe(method).missing:
        return refit(np.where(hidden, np.nan, observed)).low_rank
    filled = np.where(hidden, np.median(observed[~hidden]), observed)
    for _ in range(N_FILLS):
        low_rank = refit(filled).low_rank
        filled = np.where(hidden, low_rank, observed)
    return low_rank
