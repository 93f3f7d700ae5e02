"""CP by weighted optimisation: a first-order method on the observed entries."""

from __future__ import annotations

from functools import partial

import numpy as np

from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, squared_norm
from brtf.research.baselines.generalized_cp import minimise
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.starts import best_start, starting_factors


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    n_starts: int = 5,
    max_sweeps: int = 1000,
    tol: float = 1e-12,
) -> Recovery:
    """Least squares over the observed entries, all R rank-one terms at once, by L-BFGS.

    Minimises Σ_Ω (y − x)² / Σ_Ω y². Of several starts, the singular vectors of the unfoldings with zeros for missing
    entries (if R ≤ min I_n) and standard normal factors, the one is kept that predicts a held-out tenth of the entries
    best, and fitted to all. With missing entries and large outliers the fit may diverge where nothing is observed.

    Parameters
    ----------
    rank : int
        R.
    n_starts : int
        Number of starts.
    max_sweeps : int
        Steps of every fit.
    tol : float
        Decrease of the objective in a step, relative to Σ_Ω y², below which a fit has converged.

    Returns
    -------
    Recovery
        Without outliers.
    """
    size = float(np.sqrt(squared_norm(Y)))
    data = Y / size
    starts = starting_factors(data, rank, n_starts, rng)
    fit = partial(minimise, loss="GAUSSIAN", max_sweeps=max_sweeps, tol=tol)
    factors = best_start(fit, starts, data, observed, rng)
    factors = [factors[0] * size, *factors[1:]]
    return Recovery(compose(factors), None, rank, factors)


METHOD = Method(
    name="cpwopt",
    recover=recover,
    missing=True,
    robust=False,
    works_on="tensor",
    source="Acar, Dunlavy, Kolda & Mørup, Chemom. Intell. Lab. Syst. 106 (2011); the fit is pyttb's gcp_opt.",
)
