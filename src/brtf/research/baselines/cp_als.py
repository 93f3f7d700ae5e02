"""CP by alternating least squares."""

from __future__ import annotations

import numpy as np

from brtf.data.extras import require
from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, squared_norm
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.starts import Factors, starting_factors


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    n_starts: int = 11,
    max_sweeps: int = 1000,
    tol: float = 1e-8,
) -> Recovery:
    """The best of several least-squares fits of R rank-one terms.

    Minimises ‖Y − [[A⁽¹⁾, …, A⁽ᴺ⁾]]‖² over one factor at a time. The fits start from the singular vectors of the
    unfoldings (if R ≤ min I_n) and from standard normal factors; the one nearest to Y is kept.

    Parameters
    ----------
    rank : int
        R.
    n_starts : int
        Number of fits. One start alone often ends in a local minimum.
    max_sweeps : int
        Of every fit.
    tol : float
        Change of ‖Y − X‖ / ‖Y‖ in a sweep below which a fit has converged.

    Returns
    -------
    Recovery
        Complete data only, without outliers.
    """
    starts = starting_factors(Y, rank, n_starts, rng)
    fits = [_fit(Y, start, max_sweeps, tol) for start in starts]
    factors = min(fits, key=lambda factors: squared_norm(Y - compose(factors)))
    return Recovery(compose(factors), None, rank, factors)


def _fit(Y: Array, start: Factors, max_sweeps: int, tol: float) -> Factors:
    decomposition = require("tensorly.decomposition", extra="baselines", purpose="cp-als")
    _, factors = decomposition.parafac(Y, start[0].shape[1], n_iter_max=max_sweeps, init=(None, start), tol=tol)
    return [np.asarray(factor) for factor in factors]


METHOD = Method(
    name="cp-als",
    recover=recover,
    missing=False,
    robust=False,
    works_on="tensor",
    source="Kolda & Bader, SIAM Review 51 (2009); the fit is TensorLy's parafac.",
)
