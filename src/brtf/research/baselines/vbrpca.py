"""Variational Bayesian robust principal component analysis."""

from __future__ import annotations

import numpy as np

from brtf.data.scale import robust_scale
from brtf.research.baselines.algebra import Array
from brtf.research.baselines.matrix import leading_singular
from brtf.research.baselines.registry import Mask, Method, Recovery

SMALLEST_SQUARE = float(np.finfo(np.float64).eps)
"""Added to the square of an outlier, so that the precision of one that vanishes stays finite."""
VAGUE = 1e-6
"""Twice the concentration and the rate of the prior of a component's precision."""
PRUNE = 1e4
"""A component whose precision is this many times the smallest is dropped."""
VANISHED = 1e-9
"""A component this much smaller than the largest is rounding; in long matrices its precision may not show that."""


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    max_rank: int | None = None,
    max_sweeps: int = 200,
    tol: float = 1e-5,
) -> Recovery:
    """Low rank and few outliers by automatic relevance: a precision for every component and every entry.

    Y = A Bᵀ + E + N, column r of A and of B ~ N(0, I / γ_r), E_ij ~ N(0, 1 / α_ij), N_ij ~ N(0, 1 / β), by variational
    Bayes with MacKay's update of α. E is small rather than zero where there is no outlier, and absorbs much of the
    noise. Inside, the data are divided by their robust scale. Deterministic: the seed has no effect.

    Parameters
    ----------
    max_rank : int, optional
        The rank to begin with, the shorter side of the matrix by default.
    max_sweeps : int
    tol : float
        Relative change of A Bᵀ in a sweep below which the fit has converged, not before the sixth.

    Returns
    -------
    Recovery
        With factors if Y is a matrix.
    """
    scale = robust_scale(matrix)
    data = matrix / scale
    n_rows, n_columns = data.shape
    start, strengths, turned = leading_singular(data, rank=max_rank)
    left, right = start * np.sqrt(strengths), turned.T * np.sqrt(strengths)
    right_cov = np.eye(strengths.size)
    component_precision = np.ones(strengths.size)
    noise_precision = 1.0
    outlier_precision = np.ones(data.shape)
    low_rank = left @ right.T
    outliers = data - low_rank
    for sweep in range(1, max_sweeps + 1):
        cleaned = noise_precision * (data - outliers)
        left_cov = np.linalg.inv(
            noise_precision * (right.T @ right + n_columns * right_cov) + np.diag(component_precision)
        )
        left = cleaned @ right @ left_cov
        left_gram = left.T @ left
        right_cov = np.linalg.inv(noise_precision * (left_gram + n_rows * left_cov) + np.diag(component_precision))
        right = cleaned.T @ left @ right_cov
        right_gram = right.T @ right
        previous, low_rank = low_rank, left @ right.T

        outlier_var = 1.0 / (outlier_precision + noise_precision)
        outliers = noise_precision * (data - low_rank) * outlier_var
        # (1 − α v) / E², where 1 − α v = β v: the difference would lose its digits.
        outlier_precision = noise_precision * outlier_var / (outliers**2 + SMALLEST_SQUARE)

        power = np.diag(left_gram + right_gram + n_rows * left_cov + n_columns * right_cov)
        component_precision = (n_rows + n_columns + VAGUE) / (power + VAGUE)
        deviation = (
            np.sum((data - low_rank - outliers) ** 2)
            + n_columns * np.sum(left_gram * right_cov)
            + n_rows * np.sum(right_gram * left_cov)
            + data.size * np.sum(left_cov * right_cov)
            + np.sum(outlier_var)
        )
        noise_precision = data.size / float(deviation)

        kept = component_precision <= PRUNE * component_precision.min()
        left, right, component_precision = left[:, kept], right[:, kept], component_precision[kept]
        right_cov = right_cov[np.ix_(kept, kept)]
        if sweep >= 6 and np.linalg.norm(low_rank - previous) < tol * np.linalg.norm(previous):
            break
    size = np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0)
    seen = size > VANISHED * size.max()
    left, right = scale * left[:, seen], right[:, seen]
    return Recovery(left @ right.T, scale * outliers, left.shape[1], [left, right])


METHOD = Method(
    name="vbrpca",
    recover=recover,
    missing=False,
    robust=True,
    works_on="matrix",
    source="Babacan, Luessi, Molina & Katsaggelos, IEEE Trans. Signal Process. 60 (2012); written from the equations.",
)
