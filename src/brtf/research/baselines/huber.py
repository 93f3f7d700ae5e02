"""CP under the Huber loss: squares for small residuals, absolute values for large ones."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from brtf.data.scale import robust_scale
from brtf.kernels.dense import compose
from brtf.model.settings import Settings
from brtf.research.baselines.algebra import Array, soft_threshold
from brtf.research.baselines.generalized_cp import minimise
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.starts import Factors, Fit, best_on_held_out, best_start, hold_out, starting_factors

THRESHOLD = 1.345
"""Where the loss turns, in standard deviations of the noise: 95 % efficient if the noise is Gaussian."""
MAX_ROUNDS = 20
"""Rounds of fitting and measuring the noise anew."""
SAME_NOISE = 0.01
"""Relative change of the noise between rounds below which it has converged."""
SMALLEST_NOISE = 1e-6
"""Smallest noise level relative to the data's size: with less, the loss is too sharp for a gradient method."""
PATIENCE = 2
"""Ranks in a row that predict no better, after which no larger one is tried."""


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int | None = None,
    max_rank: int | None = None,
    n_starts: int = 5,
    max_sweeps: int = 1000,
    tol: float = 1e-8,
) -> Recovery:
    """Robust regression of R rank-one terms on the observed entries; the rank is given or found.

    Minimises Σ_Ω h(y − x), h(r) = r² for |r| < t and 2t|r| − t² beyond, with t = 1.345 σ and σ = 1.4826 median |y − x|
    of the fit itself: fit and noise level are found in turns. Of several starts, the singular vectors of the unfoldings
    with zeros for missing entries (if R ≤ min I_n) and standard normal factors, the one is kept whose absolute error on
    a held-out tenth of the entries is least, and fitted to all.

    Without a rank the ranks 1, 2, … are tried in the same way until two in a row predict no better. The smallest is
    taken whose error on the held-out entries is within a standard error of the least.

    Parameters
    ----------
    rank : int or None
        R, or None to choose it by held-out entries.
    max_rank : int or None
        The largest rank tried if none is given; None: min(max_n I_n, min_n Π_{k≠n} I_k, 100).
    n_starts : int
        Number of starts, for every rank.
    max_sweeps : int
        Steps of every minimisation.
    tol : float
        Relative decrease of the objective in a step below which a minimisation has converged.

    Returns
    -------
    Recovery
        The outliers are the parts of the residuals beyond t.
    """
    scale = robust_scale(Y[observed])
    data = Y / scale
    fit = partial(_fit, max_sweeps=max_sweeps, tol=tol)
    if rank is None:
        limit = Settings(max_rank=max_rank, inference="paper").rank_limit(Y.shape, Y.size)
        factors = fit(data, observed, _best_rank(fit, data, observed, limit, n_starts, rng))
    else:
        factors = best_start(fit, starting_factors(data, rank, n_starts, rng), data, observed, rng, loss=np.abs)
    threshold = THRESHOLD * _noise(data, observed, factors) * scale
    factors = [factors[0] * scale, *factors[1:]]
    low_rank = compose(factors)
    outliers = np.where(observed, soft_threshold(Y - low_rank, threshold), 0.0)
    return Recovery(low_rank, outliers, factors[0].shape[1], factors)


def _fit(tensor: Array, observed: Mask, start: Factors, max_sweeps: int, tol: float) -> Factors:
    """Alternate between fit and noise level until it converges; it starts from the residual or, if less, the data."""
    factors = start
    noise = min(1.0, _noise(tensor, observed, factors))
    for _ in range(MAX_ROUNDS):
        factors = minimise(
            tensor, observed, factors, "HUBER", threshold=THRESHOLD * noise, max_sweeps=max_sweeps, tol=tol
        )
        previous, noise = noise, _noise(tensor, observed, factors)
        if abs(noise - previous) < SAME_NOISE * previous:
            break
    return factors


def _noise(tensor: Array, observed: Mask, factors: Factors) -> float:
    """The standard deviation of the noise, 1.4826 median |y − x|, if most residuals are just noise."""
    residual = tensor - compose(factors)
    return max(robust_scale(residual[observed]), SMALLEST_NOISE)


def _best_rank(
    fit: Fit, tensor: Array, observed: Mask, max_rank: int, n_starts: int, rng: np.random.Generator
) -> Factors:
    """The factors, fitted to nine tenths of the entries, of the smallest rank that predicts the others about best."""
    fitted, held_out = hold_out(observed, rng)
    tried: list[tuple[Factors, Array]] = []
    best = 0
    while len(tried) < min(max_rank, best + 1 + PATIENCE):
        starts = starting_factors(tensor, len(tried) + 1, n_starts, rng)
        tried.append(best_on_held_out(fit, starts, tensor, fitted, held_out, np.abs))
        best = int(np.argmin([np.mean(losses) for _, losses in tried]))
    for factors, losses in tried:
        excess = losses - tried[best][1]
        if np.mean(excess) <= np.std(excess) / math.sqrt(excess.size):
            return factors
    return tried[best][0]


METHOD = Method(
    name="huber",
    recover=recover,
    missing=True,
    robust=True,
    works_on="tensor",
    source="Hong, Kolda & Duersch, SIAM Review 62 (2020), generalized CP with Huber loss; the fit is pyttb's gcp_opt.",
)
