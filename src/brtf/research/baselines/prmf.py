"""Probabilistic robust matrix factorization."""

from __future__ import annotations

import numpy as np

from brtf.data.scale import robust_scale
from brtf.research.baselines.algebra import Array, row_grams
from brtf.research.baselines.registry import Mask, Method, Recovery

SMALLEST_ERROR = 1e-3
"""Floor of an absolute error under its weight, in units of the robust scale."""


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    lam: float = 1.0,
    max_sweeps: int = 40,
    tol: float = 1e-2,
) -> Recovery:
    """The likeliest factorization of rank R under Laplace noise and Gaussian factors.

    min Σ |y_ij − u_iᵀ v_j| + λ/2 (‖U‖² + ‖V‖²) over the observed entries, by expectation maximization: ridge
    regressions of columns and rows in turn, with the weights w_ij = 1 / |y_ij − u_iᵀ v_j|. Inside, the data are divided
    by their robust scale.

    Parameters
    ----------
    rank : int
        R.
    lam : float
        λ, above 0.
    max_sweeps : int
    tol : float
        Relative change of the weights in a sweep below which the fit has converged, not before the second.

    Returns
    -------
    Recovery
        With factors if Y is a matrix. The outliers are the whole residual.
    """
    scale = robust_scale(matrix[observed])
    data = matrix / scale
    left, right = (rng.standard_normal((length, rank)) for length in data.shape)
    weights = _weights(data, observed, left, right)
    for sweep in range(1, max_sweeps + 1):
        right = _ridge(weights.T, data.T, left, lam)
        left = _ridge(_weights(data, observed, left, right), data, right, lam)
        previous, weights = weights, _weights(data, observed, left, right)
        if sweep >= 2 and np.abs(weights - previous).sum() < tol * previous.sum():
            break
    left = scale * left
    low_rank = left @ right.T
    return Recovery(low_rank, np.where(observed, matrix - low_rank, 0.0), rank, [left, right])


def _weights(data: Array, observed: Mask, left: Array, right: Array) -> Array:
    """One over the absolute error, zero where missing."""
    return observed / np.maximum(np.abs(data - left @ right.T), SMALLEST_ERROR)


def _ridge(weights: Array, data: Array, design: Array, lam: float) -> Array:
    """The weighted ridge regression of every row of the data (I, J) on the design (J, R): shape (I, R)."""
    precisions = row_grams(weights, design) + lam * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(precisions, ((weights * data) @ design)[:, :, None])[:, :, 0])


METHOD = Method(
    name="prmf",
    recover=recover,
    missing=True,
    robust=True,
    works_on="matrix",
    source="Wang, Yao, Wang & Yeung, ECCV 2012; written from the equations.",
)
