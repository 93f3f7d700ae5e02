"""Direct robust matrix factorization."""

from __future__ import annotations

import math

import numpy as np

from brtf.research.baselines.algebra import Array
from brtf.research.baselines.matrix import keep_largest, leading_singular
from brtf.research.baselines.pcp import pursue
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int | None = None,
    outlier_fraction: float = 0.1,
    init: str = "pcp",
    max_sweeps: int = 100,
    tol: float = 1e-4,
) -> Recovery:
    """The nearest sum of a matrix of rank R and one with K non-zero entries, by alternating exact minimisation.

    min ‖Y − L − S‖² subject to rank L ≤ R and card S ≤ K. Deterministic: the seed has no effect.

    Parameters
    ----------
    rank : int, optional
        R; by default as many singular values of the solution of PCP as hold 99.9 % of their energy.
    outlier_fraction : float
        K as a share of the entries.
    init : {"pcp", "svd"}
        The first L: ten sweeps of PCP, or the truncated SVD of Y, with which videos often end in a poor solution.
    max_sweeps : int
    tol : float
        Relative decrease of ‖Y − L − S‖ in a sweep below which the fit has converged; it also has at 1e-7 ‖Y‖.

    Returns
    -------
    Recovery
        With factors if Y is a matrix.
    """
    n_outliers = round(outlier_fraction * matrix.size)
    if rank is None:
        rank = _energy_rank(pursue(matrix, None, 1000, 1e-7)[2])
    if init == "pcp":
        low_rank = pursue(matrix, None, 10, 1e-5)[0]
    else:
        left, strengths, right = leading_singular(matrix, rank=rank)
        low_rank = (left * strengths) @ right
    smallest = 1e-7 * float(np.linalg.norm(matrix))
    distance = math.inf
    for _ in range(max_sweeps):
        outliers = keep_largest(matrix - low_rank, n_outliers)
        left, strengths, right = leading_singular(matrix - outliers, rank=rank)
        low_rank = (left * strengths) @ right
        previous, distance = distance, float(np.linalg.norm(matrix - outliers - low_rank))
        if distance <= smallest or distance > (1.0 - tol) * previous:
            break
    return Recovery(low_rank, outliers, strengths.size, [left * strengths, right.T])


def _energy_rank(strengths: Array) -> int:
    """How many singular values hold 99.9 % of the energy; 1 if there are none."""
    energy = np.cumsum(strengths**2)
    return 1 + int(np.searchsorted(energy, 0.999 * energy[-1])) if energy.size else 1


METHOD = Method(
    name="drmf",
    recover=recover,
    missing=False,
    robust=True,
    works_on="matrix",
    source="Xiong, Chen & Schneider, ICDM 2011; written from the equations.",
)
