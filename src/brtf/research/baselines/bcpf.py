"""Bayesian CP factorization without outliers: this library's own model with its outliers left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from brtf.research.baselines.algebra import Array
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    max_rank: int | None = None,
    max_sweeps: int = 500,
    tol: float = 1e-6,
) -> Recovery:
    """Variational Bayesian CP that learns rank and noise from the observed entries and has no outliers.

    This is ``BRTF`` with ``robust=False``, and rows and residuals in no order: compare it with that to see what
    modelling outliers gains.

    Parameters
    ----------
    max_rank, max_sweeps, tol
        As for :class:`brtf.BRTF`.

    Returns
    -------
    Recovery
        Without outliers; the rank is the one found.
    """
    from brtf.api.estimator import BRTF

    limits: dict[str, Any] = {"max_rank": max_rank, "max_sweeps": max_sweeps, "tol": tol}
    model = BRTF(robust=False, modes=None, smooth_residual=None, random_state=rng, **limits).fit(Y, mask=observed)
    return Recovery(model.result_.low_rank(), None, model.rank_, model.factors_)


METHOD = Method(
    name="bcpf",
    recover=recover,
    missing=True,
    robust=False,
    works_on="tensor",
    source="Zhao, Zhang & Cichocki, IEEE Trans. PAMI 37 (2015); the fit is BRTF(robust=False, modes=None).",
)
