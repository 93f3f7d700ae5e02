"""CP under any loss, by pyttb's generalized CP with L-BFGS: what the least-squares and the Huber fit share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from brtf.data.extras import require
from brtf.research.baselines.algebra import Array
from brtf.research.baselines.registry import Mask
from brtf.research.baselines.starts import Factors


def minimise(
    tensor: Array,
    observed: Mask,
    start: Factors,
    loss: str,
    *,
    threshold: float | None = None,
    max_sweeps: int,
    tol: float,
) -> Factors:
    """Lower Σ_Ω loss(y, x) from the given factors, all of them at once.

    Parameters
    ----------
    tensor, observed
        Data of typical size 1, zero where missing.
    start : list of ndarray
    loss : str
        Of pyttb's ``Objectives``: ``"GAUSSIAN"``, (x − y)², or ``"HUBER"``.
    threshold : float or None
        Where the Huber loss turns from squares to absolute values.
    max_sweeps : int
        Steps of L-BFGS; at most ten evaluations each.
    tol : float
        Relative decrease of the sum in a step below which it has converged.
    """
    require("pyttb", extra="baselines", purpose="cpwopt and huber")
    from pyttb.gcp.fg_setup import setup
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB
    from pyttb.gcp_opt import gcp_opt
    from pyttb.tensor import tensor as as_tensor

    data = as_tensor(np.asfortranarray(tensor))
    objective: Any = setup(Objectives[loss], data, threshold)
    optimizer = LBFGSB(maxiter=max_sweeps, maxfun=10 * max_sweeps, factr=tol / np.finfo(np.float64).eps, pgtol=1e-8)
    weights = None if observed.all() else np.asfortranarray(observed, dtype=np.float64)
    initial = [np.asfortranarray(factor) for factor in start]
    with _quiet_pyttb():
        model, _, _ = gcp_opt(data, start[0].shape[1], objective, optimizer, init=initial, mask=weights, printitn=0)
    factors = [np.ascontiguousarray(factor) for factor in model.factor_matrices]
    factors[0] = factors[0] * model.weights
    return factors


@contextmanager
def _quiet_pyttb() -> Iterator[None]:
    """Suppress pyttb's log: at every evaluation it warns that its own gradients are not in Fortran order.

    It uses the root logger, and its first message would install a handler there for the whole process.
    """
    root = logging.getLogger()
    silent = logging.NullHandler()

    def is_other(record: logging.LogRecord) -> bool:
        return "pyttb" not in record.pathname

    root.addHandler(silent)
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)
        root.removeHandler(silent)
