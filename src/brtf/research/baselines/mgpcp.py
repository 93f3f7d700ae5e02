"""CP with a multiplicative gamma process on the components, by Gibbs sampling."""

from __future__ import annotations

import numpy as np

from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, contract, design, row_grams, squared_norm, typical_size, unfold
from brtf.research.baselines.registry import Mask, Method, Recovery

CONCENTRATION = 1e-3
"""Of the gamma prior of the noise precision, and its rate."""
IRRELEVANT = 1e-2
"""Size relative to the largest below which a component is not counted."""


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    max_rank: int = 10,
    n_sweeps: int = 500,
    shrinkage: float = 3.0,
) -> Recovery:
    """The posterior mean of CP with increasing shrinkage of later components.

    y ~ N(Σ_r λ_r Π_n u⁽ⁿ⁾_r, 1/τ) at the observed entries, u ~ N(0, 1), λ_r ~ N(0, 1/Π_{l≤r} δ_l), δ_l ~ Ga(a, 1),
    τ ~ Ga(0.001, 0.001), for data divided by their standard deviation. Every sweep draws each λ_r, each column of each
    mode, δ and τ from its conditional distribution. The low-rank part is averaged over the second half of the sweeps.

    Parameters
    ----------
    max_rank : int
        Number of components.
    n_sweeps : int
        At least 2; the first half is burn-in.
    shrinkage : float
        a, above 1.

    Returns
    -------
    Recovery
        Without outliers. Rank and factors are those of the last sweep, λ in the first mode: averages of factors mean
        nothing. The rank counts the components above 0.01 of the largest.
    """
    if n_sweeps < 2:
        raise ValueError(f"n_sweeps must be at least 2, got {n_sweeps!r}.")
    scale = typical_size(Y[observed])
    # The weights λ are the factor of a further mode, of length 1: they are drawn as any other factor is.
    data, weights = Y[None] / scale, observed[None].astype(np.float64)
    factors = [0.1 * rng.standard_normal((1, max_rank))]
    factors += [rng.standard_normal((length, max_rank)) for length in Y.shape]
    growth = np.full(max_rank, 2.0)
    noise_precision = 1.0
    total = np.zeros(data.shape)
    n_burn_in = n_sweeps // 2
    for sweep in range(n_sweeps):
        for mode in range(data.ndim):
            precisions = np.cumprod(growth) if mode == 0 else np.ones(max_rank)
            factors[mode] = _draw_factor(rng, data, weights, factors, mode, precisions, noise_precision)
        growth = _draw_growth(rng, growth, factors[0][0], shrinkage)
        low_rank = compose(factors)
        rate = CONCENTRATION + 0.5 * squared_norm(weights * (data - low_rank))
        noise_precision = rng.gamma(CONCENTRATION + 0.5 * np.sum(weights)) / rate
        if sweep >= n_burn_in:
            total += low_rank
    strengths, *columns = factors
    sizes = np.abs(strengths[0]) * np.prod([np.sqrt(np.mean(column**2, axis=0)) for column in columns], axis=0)
    kept = sizes > IRRELEVANT * sizes.max()
    columns[0] = columns[0] * strengths * scale
    low_rank = total[0] * (scale / (n_sweeps - n_burn_in))
    return Recovery(low_rank, None, int(kept.sum()), [column[:, kept] for column in columns])


def _draw_factor(
    rng: np.random.Generator,
    data: Array,
    observed: Array,
    factors: list[Array],
    mode: int,
    precisions: Array,
    noise_precision: float,
) -> Array:
    """Draw a factor one column after the other, each given all the rest; its rows are independent.

    With b_i the product of the other modes: u_jr ~ N(v_j τ Σ_i b_i e_i, v_j), 1/v_j = p_r + τ Σ_i b_i², sums over the
    observed entries of row j, e the residual without component r. Both sums come from the Gram matrices of the rows.
    """
    grams = row_grams(unfold(observed, mode), design(factors, mode))
    products = contract(data, factors, mode)
    factor = factors[mode].copy()
    for r, precision in enumerate(precisions):
        var = 1.0 / (precision + noise_precision * grams[:, r, r])
        rest = np.einsum("is,is->i", grams[:, r], factor) - grams[:, r, r] * factor[:, r]
        mean = var * noise_precision * (products[:, r] - rest)
        factor[:, r] = mean + np.sqrt(var) * rng.standard_normal(len(factor))
    return factor


def _draw_growth(rng: np.random.Generator, growth: Array, weights: Array, shrinkage: float) -> Array:
    """Draw δ_1, δ_2, … in turn: δ_r ~ Ga(a + (R − r + 1)/2, 1 + ½ Σ_{h≥r} λ_h² Π_{l≤h, l≠r} δ_l), r from 1."""
    growth = growth.copy()
    for r in range(len(growth)):
        others = np.cumprod(np.where(np.arange(len(growth)) == r, 1.0, growth))
        rate = 1.0 + 0.5 * np.sum(weights[r:] ** 2 * others[r:])
        growth[r] = rng.gamma(shrinkage + 0.5 * (len(growth) - r)) / rate
    return growth


METHOD = Method(
    name="mgpcp",
    recover=recover,
    missing=True,
    robust=False,
    works_on="tensor",
    source="Rai et al., ICML (2014), Gibbs sampler of the fixed truncation; written from the equations.",
)
