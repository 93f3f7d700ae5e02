"""Bayesian robust matrix factorization."""

from __future__ import annotations

import numpy as np
from scipy.stats import wishart

from brtf.data.scale import robust_scale
from brtf.research.baselines.algebra import Array, row_grams
from brtf.research.baselines.matrix import leading_singular
from brtf.research.baselines.registry import Mask, Method, Recovery

PRIOR_SCATTER = 1000.0
"""W_0⁻¹ = 1000 I of the Wishart prior of the rows' precision."""
PRIOR_ROWS = 2.0
"""β_0: how many rows the prior of their mean is worth."""
SMALLEST_VAR = 1e-6
"""Added to every noise variance, so that no entry has to be fitted exactly."""
SMALLEST_ERROR, LARGEST_MEAN, SMALLEST_DRAW = 1e-10, 1e10, 1e-300
"""Limits for vanishing errors: an inverse Gaussian has the inverse error as its mean, and its draw is inverted."""


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    rate_shape: float = 1e-4,
    rate_scale: float = 1.0,
    n_sweeps: int = 100,
    n_dropped: int = 50,
) -> Recovery:
    """The posterior mean of a factorization of rank R under Laplace noise whose width differs by entry.

    y_ij ~ N(u_iᵀ v_j, τ_ij), τ_ij ~ Exp(η_ij / 2), η_ij ~ GIG(−½, a, b); rows u_i ~ N(μ, Λ⁻¹) with a Gaussian-Wishart
    prior of μ and Λ, and likewise the v_j. Fitted by Gibbs sampling to the data divided by their robust scale.

    Parameters
    ----------
    rank : int
        R, of every sample. The authors take twice the rank they expect.
    rate_shape, rate_scale : float
        a and b.
    n_sweeps : int
        Sweeps of the sampler.
    n_dropped : int
        How many of the first sweeps are left out of the average.

    Returns
    -------
    Recovery
        Without factors: an average of samples has no exact rank, and ``rank`` is where its singular values, up to R,
        fall most steeply. The outliers are the whole residual.
    """
    if not 0 <= n_dropped < n_sweeps:
        raise ValueError(f"n_dropped must be at least 0 and below n_sweeps = {n_sweeps!r}, got {n_dropped!r}.")
    scale = robust_scale(matrix[observed])
    data = matrix / scale
    left, right = (rng.standard_normal((length, rank)) for length in data.shape)
    rate = np.ones(data.shape)
    total = np.zeros(data.shape)
    for sweep in range(n_sweeps):
        error = np.maximum(np.abs(data - left @ right.T), SMALLEST_ERROR)
        var = 1.0 / _inverse_gaussian(np.sqrt(rate) / error, rate, rng) + SMALLEST_VAR
        shape = var + rate_shape
        rate = 1.0 / _inverse_gaussian(np.sqrt(shape / rate_scale), shape, rng)
        weights = observed / var
        left = _draw_rows(weights, data, right, *_draw_prior(left, rng), rng)
        right = _draw_rows(weights.T, data.T, left, *_draw_prior(right, rng), rng)
        if sweep >= n_dropped:
            total += left @ right.T
    low_rank = scale * (total / (n_sweeps - n_dropped))
    return Recovery(low_rank, np.where(observed, matrix - low_rank, 0.0), _steepest_fall(low_rank, rank))


def _inverse_gaussian(mean: Array, shape: Array, rng: np.random.Generator) -> Array:
    return np.maximum(rng.wald(np.minimum(mean, LARGEST_MEAN), shape), SMALLEST_DRAW)


def _draw_prior(rows: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Mean (R,) and precision (R, R) of the rows (I, R), given the rows."""
    n_rows, rank = rows.shape
    centre = rows.mean(axis=0)
    centred = rows - centre
    shrinkage = n_rows / (PRIOR_ROWS + n_rows)
    scatter = PRIOR_SCATTER * np.eye(rank) + centred.T @ centred + PRIOR_ROWS * shrinkage * np.outer(centre, centre)
    precision = np.reshape(wishart.rvs(rank + n_rows, np.linalg.inv(scatter), random_state=rng), (rank, rank))
    return shrinkage * centre + _draw_normal((PRIOR_ROWS + n_rows) * precision, rng), precision


def _draw_rows(
    weights: Array, data: Array, design: Array, mean: Array, precision: Array, rng: np.random.Generator
) -> Array:
    """Rows (I, R) of one factor given those of the other (J, R), the noise and the prior."""
    precisions = row_grams(weights, design) + precision
    target = (weights * data) @ design + precision @ mean
    return np.asarray(np.linalg.solve(precisions, target[:, :, None])[:, :, 0]) + _draw_normal(precisions, rng)


def _draw_normal(precisions: Array, rng: np.random.Generator) -> Array:
    """Vectors (…, R) of mean zero and the given precisions (…, R, R); their inverses need not be positive definite."""
    turned = np.swapaxes(np.linalg.cholesky(precisions), -1, -2)
    return np.asarray(np.linalg.solve(turned, rng.standard_normal(precisions.shape[:-1])[..., None])[..., 0])


def _steepest_fall(matrix: Array, largest: int) -> int:
    """After how many singular values, at most ``largest``, the next one is relatively smallest."""
    strengths = leading_singular(matrix)[1]
    following = np.append(strengths[1:], 0.0)[:largest]
    return 1 + int(np.argmin(following / strengths[:largest]))


METHOD = Method(
    name="brmf",
    recover=recover,
    missing=True,
    robust=True,
    works_on="matrix",
    source="Wang & Yeung, ICCV 2013, without its Markov extension; written from the equations.",
)
