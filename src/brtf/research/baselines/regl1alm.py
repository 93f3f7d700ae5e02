"""Low-rank approximation under the L1 norm, with a nuclear-norm regularizer, by an augmented Lagrangian."""

from __future__ import annotations

import numpy as np

from brtf.research.baselines.algebra import Array, soft_threshold
from brtf.research.baselines.matrix import leading_singular, shrink_singular
from brtf.research.baselines.registry import Mask, Method, Recovery

FIRST_PENALTY, LARGEST_PENALTY = 1e-6, 1e20
"""For data whose largest magnitude is 1."""


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    lam: float = 1e-3,
    growth: float = 1.2,
    n_starts: int = 5,
    max_sweeps: int = 5000,
    tol: float = 1e-8,
) -> Recovery:
    """The matrix of rank R nearest to the observed entries in absolute error.

    min ‖W ⊛ (Y − U V)‖₁ + λ ‖V‖_* subject to UᵀU = I, with E = U V as a constraint. A rank beyond the clearly dominant
    one makes the answer depend on the start: U starts from the identity, from the singular vectors of W ⊛ Y and from
    random orthonormal columns, and the fit with the smallest absolute error is kept. Inside, the largest magnitude of
    the data is 1.

    Parameters
    ----------
    rank : int
        R.
    lam : float
        λ.
    growth : float
        The factor by which the penalty of the constraint grows in a sweep, above 1. Nearer to 1 is slower and safer.
    n_starts : int
        Number of fits.
    max_sweeps : int
        Of every fit.
    tol : float
        ‖E − U V‖ / ‖Y‖ below which a fit has converged.

    Returns
    -------
    Recovery
        With factors if Y is a matrix. The outliers are the whole residual.
    """
    scale = float(np.abs(matrix).max())
    scaled = matrix / scale
    fits = [
        _fit(scaled, observed, start, lam, growth, max_sweeps, tol) for start in _starts(scaled, rank, n_starts, rng)
    ]
    left, right = min(fits, key=lambda fit: float(np.abs(scaled - fit[0] @ fit[1])[observed].sum()))
    low_rank = scale * (left @ right)
    return Recovery(low_rank, np.where(observed, matrix - low_rank, 0.0), rank, [left, scale * right.T])


def _starts(matrix: Array, rank: int, n_starts: int, rng: np.random.Generator) -> list[Array]:
    """Orthonormal columns (m, R): the identity, the singular vectors, random ones."""
    n_rows = len(matrix)
    strong = leading_singular(matrix, rank=rank)[0]
    random = [rng.standard_normal((n_rows, rank)) for _ in range(n_starts)]
    # A matrix of lower rank has fewer singular vectors: random columns make up for them.
    completed = np.hstack([strong, random[0][:, strong.shape[1] :]])
    return [np.eye(n_rows, rank), *(np.linalg.qr(start)[0] for start in [completed, *random[1:]])][:n_starts]


def _fit(
    matrix: Array, observed: Mask, start: Array, lam: float, growth: float, max_sweeps: int, tol: float
) -> tuple[Array, Array]:
    """U (m, R) and V (R, n) from one start, which U keeps while V is zero."""
    left, right = start, np.zeros((start.shape[1], matrix.shape[1]))
    split, multiplier = np.zeros(matrix.shape), np.zeros(matrix.shape)
    penalty = FIRST_PENALTY
    smallest = tol * float(np.linalg.norm(matrix))
    for _ in range(max_sweeps):
        target = split + multiplier / penalty
        if right.any():
            turned, _, back = np.linalg.svd(target @ right.T, full_matrices=False)
            left = turned @ back
        right = shrink_singular(left.T @ target, lam / penalty)[0]
        low_rank = left @ right
        centre = low_rank - multiplier / penalty
        split = np.where(observed, matrix - soft_threshold(matrix - centre, 1.0 / penalty), centre)
        gap = split - low_rank
        if np.linalg.norm(gap) < smallest:
            break
        multiplier += penalty * gap
        penalty = min(growth * penalty, LARGEST_PENALTY)
    return left, right


METHOD = Method(
    name="regl1alm",
    recover=recover,
    missing=True,
    robust=True,
    works_on="matrix",
    source="Zheng, Liu, Sugimoto, Yan & Okutomi, CVPR 2012; written from the equations, with several starts.",
)
