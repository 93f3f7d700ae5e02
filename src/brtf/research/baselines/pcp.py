"""Principal component pursuit."""

from __future__ import annotations

import math

import numpy as np

from brtf.research.baselines.algebra import Array, soft_threshold
from brtf.research.baselines.matrix import leading_singular, shrink_singular
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    lam: float | None = None,
    max_sweeps: int = 1000,
    tol: float = 1e-7,
) -> Recovery:
    """The convex compromise between low rank and few outliers.

    min ‖L‖_* + λ ‖S‖₁ subject to L + S = Y, by the inexact augmented Lagrangian. Deterministic: the seed has no effect.

    Parameters
    ----------
    lam : float, optional
        λ, 1 / √(longer side of the matrix) by default. Larger values give fewer outliers.
    max_sweeps : int
    tol : float
        ‖Y − L − S‖ / ‖Y‖ below which the fit has converged.

    Returns
    -------
    Recovery
        Without factors.
    """
    low_rank, outliers, strengths = pursue(matrix, lam, max_sweeps, tol)
    return Recovery(low_rank, outliers, strengths.size)


def pursue(matrix: Array, lam: float | None, max_sweeps: int, tol: float) -> tuple[Array, Array, Array]:
    """The low-rank part and the outliers of a matrix, and the singular values of the former."""
    weight = 1.0 / math.sqrt(max(matrix.shape)) if lam is None else lam
    size = float(np.linalg.norm(matrix))
    strongest = float(leading_singular(matrix, rank=1)[1][0])
    low_rank = np.zeros(matrix.shape)
    multiplier = matrix / max(strongest, float(np.abs(matrix).max()) / weight)
    penalty = 1.25 / strongest
    largest_penalty = 1e7 * penalty
    for _ in range(max_sweeps):
        outliers = soft_threshold(matrix - low_rank + multiplier / penalty, weight / penalty)
        low_rank, strengths = shrink_singular(matrix - outliers + multiplier / penalty, 1.0 / penalty)
        gap = matrix - low_rank - outliers
        if np.linalg.norm(gap) < tol * size:
            break
        multiplier += penalty * gap
        penalty = min(1.5 * penalty, largest_penalty)
    return low_rank, outliers, strengths


METHOD = Method(
    name="pcp",
    recover=recover,
    missing=False,
    robust=True,
    works_on="matrix",
    source="Candès, Li, Ma & Wright, J. ACM 58 (2011), solved as by Lin, Chen & Ma (2010); written from the equations.",
)
