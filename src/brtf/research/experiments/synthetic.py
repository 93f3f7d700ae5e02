"""Shared by the experiments on the paper's synthetic tensor: a method's errors, and those of the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brtf.api.metrics import fme, rrse
from brtf.api.synthetic import Synthetic, paper_synthetic
from brtf.kernels.dense import compose
from brtf.research.baselines import Recovery
from brtf.research.baselines.algebra import Array, design, leading_basis, row_grams, unfold
from brtf.research.experiments.contenders import CONTENDERS, Trial, fit, honest, trials
from brtf.research.experiments.runs import Case, Inputs, Measured

ORACLE = "oracle"
"""The name of least squares that knows the rank and the outliers: a reference, not a competitor."""
DATA = ("outliers", "magnitude", "missing", "rank", "noise")
"""Settings of a case that make the data; the others are the method's."""


def case(experiment: str, settings: Mapping[str, Any]) -> Case:
    """A measurement by :func:`measure`."""
    return Case(experiment, settings, __name__)


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """The errors of one method on one draw of the paper's tensor.

    Parameters
    ----------
    settings : mapping
        Arguments of :func:`brtf.datasets.paper_synthetic`, ``method``, ``seed``, ``grid`` (values to tune over, empty
        for a method that needs no tuning) and ``params`` (the method's other parameters).

    Returns
    -------
    Measured
        ``told`` and ``honest``: value, rank, rrse, fme, seconds of the fit whose value was chosen by the truth and by
        hidden entries, the same one where there is no choice; ``grid``: value, rrse and seconds of every fit;
        ``sensitivity``: the standard deviation of rrse over the grid.
    """
    data = paper_synthetic(seed=settings["seed"], **{name: settings[name] for name in DATA if name in settings})
    if settings["method"] == ORACLE:
        factors = least_squares(data)
        tried = [Trial(None, Recovery(compose(factors), None, factors[0].shape[1], factors), 0.0, None)]
    else:
        method, seed = settings["method"], settings["seed"]
        parameter = CONTENDERS[method].tuned
        tried = trials(method, data.observed, parameter, settings["grid"], seed=seed, **settings["params"])
    errors = [rrse(trial.found.low_rank, data.low_rank) for trial in tried]
    by_truth, by_hidden = int(np.argmin(errors)), honest(tried)
    return Measured(
        {
            "told": _numbers(tried[by_truth], errors[by_truth], data),
            "honest": _numbers(tried[by_hidden], errors[by_hidden], data),
            "grid": [[trial.value, error, trial.seconds] for trial, error in zip(tried, errors, strict=True)],
            "sensitivity": float(np.std(errors)) if len(errors) > 1 else None,
        }
    )


def _numbers(trial: Trial, error: float, data: Synthetic) -> dict[str, Any]:
    """What the page shows of a fit.

    ``fme`` is that of CP factors. A method without them has two substitutes: ``fme_direct`` takes the leading
    singular vectors of the recovered tensor for factors, ``fme_refit`` those of CP-ALS at the true rank fitted to it.
    """
    found, rank = trial.found, data.factors[0].shape[1]
    numbers = {"value": trial.value, "rank": found.rank, "rrse": error, "seconds": trial.seconds}
    if found.factors is not None:
        return numbers | {"fme": fme(found.factors, data.factors)}
    shape = data.low_rank.shape
    bases = [leading_basis(found.low_rank, mode, min(rank, *shape)) for mode in range(len(shape))]
    numbers |= {"fme_direct": fme(bases, data.factors), "fme_refit": None}
    if found.low_rank.any():
        refit = fit("cp-als", found.low_rank, rank=rank).factors
        numbers["fme_refit"] = None if refit is None else fme(refit, data.factors)
    return numbers


def least_squares(data: Synthetic, max_sweeps: int = 200, tol: float = 1e-7) -> list[Array]:
    """The factors of the least-squares fit that knows the rank and which entries are outliers.

    Alternating least squares over the observed entries without outliers, from the true factors on, until X moves by
    less than ``tol`` of itself in a sweep.
    """
    good = (data.mask & (data.outliers == 0)).astype(np.float64)
    values = np.where(good, data.observed, 0.0)
    factors = [np.array(factor) for factor in data.factors]
    low_rank = data.low_rank
    for _ in range(max_sweeps):
        for mode in range(len(factors)):
            rows = design(factors, mode)
            grams = row_grams(unfold(good, mode), rows)
            products = unfold(values, mode) @ rows
            factors[mode] = np.asarray(np.linalg.solve(grams, products[:, :, None])[:, :, 0], dtype=np.float64)
        before, low_rank = low_rank, compose(factors)
        if np.linalg.norm(low_rank - before) < tol * np.linalg.norm(low_rank):
            break
    return factors
