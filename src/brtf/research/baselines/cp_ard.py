"""CP with automatic relevance determination."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve

from brtf.kernels.dense import compose
from brtf.research.baselines.algebra import Array, contract, cross_gram, squared_norm
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.relevance import MIN_SWEEPS, STILL, assumed_noise, learnt_noise, relevant


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    max_rank: int | None = None,
    snr: float = 0.0,
    noise: str = "fixed",
    max_sweeps: int = 500,
) -> Recovery:
    """Ridge regressions whose penalties grow for components that explain little, until these vanish.

    The joint mode of Gaussian noise of variance σ² and a Gaussian prior of precision α_r on component r in all modes:
    A⁽ⁿ⁾ = unfold(Y, n) Z_n (Z_nᵀZ_n + σ² diag α)⁻¹ and α_r = Σ_n I_n / Σ_n ‖a_r⁽ⁿ⁾‖², a component's norms made equal
    over the modes in every sweep. A component goes when its size falls below 0.001 of the largest.

    Parameters
    ----------
    max_rank : int or None
        Components to start from, standard normal; None: max_n I_n.
    snr : float
        Assumed ratio of signal to noise in decibels: σ² = mean(Y²) / (1 + 10^(snr/10)).
    noise : {"fixed", "learn"}
        Keep σ², or learn it; learnt from an overfitted start it collapses and excess components survive.
    max_sweeps : int

    Returns
    -------
    Recovery
        Complete data only, without outliers; the rank is the number of components left.
    """
    rank = max(Y.shape) if max_rank is None else max_rank
    variance = assumed_noise(Y, snr)
    size = squared_norm(Y)
    factors = [rng.standard_normal((length, rank)) for length in Y.shape]
    scale = (size / squared_norm(compose(factors))) ** (0.5 / Y.ndim)
    factors = [scale * factor for factor in factors]
    error = np.inf
    for sweep in range(1, max_sweeps + 1):
        precisions = sum(Y.shape) / sum(np.sum(factor**2, axis=0) for factor in factors)
        factors = update_factors(Y, factors, variance * precisions)
        previous, error = error, squared_norm(Y - compose(factors))
        factors, strengths = balance(factors)
        kept = relevant(strengths, size)
        factors = [factor[:, kept] for factor in factors]
        if not kept.any():
            break
        if noise == "learn":
            variance = learnt_noise(Y, error)
        if sweep >= MIN_SWEEPS and kept.all() and abs(previous - error) < STILL * size:
            break
    return Recovery(compose(factors), None, factors[0].shape[1], factors)


def update_factors(Y: Array, factors: list[Array], penalties: Array) -> list[Array]:
    """One ridge regression per mode: each minimises ‖Y − [[A]]‖² + Σ_r p_r ‖a_r⁽ⁿ⁾‖² over its factor.

    ``penalties`` (R,) are σ² α.
    """
    factors = list(factors)
    for mode in range(Y.ndim):
        precision = cross_gram(factors, mode) + np.diag(penalties)
        factors[mode] = solve(precision, contract(Y, factors, mode).T, assume_a="pos").T
    return factors


def balance(factors: list[Array]) -> tuple[list[Array], Array]:
    """The same components with equal norms in all modes, and their sizes Π_n ‖a_r⁽ⁿ⁾‖."""
    norms = np.stack([np.linalg.norm(factor, axis=0) for factor in factors])
    strengths = norms.prod(axis=0)
    common = strengths ** (1 / len(factors))
    scales = common / np.where(norms > 0, norms, 1.0)
    return [factor * scale for factor, scale in zip(factors, scales, strict=True)], strengths


METHOD = Method(
    name="cp-ard",
    recover=recover,
    missing=False,
    robust=False,
    works_on="tensor",
    source="Mørup & Hansen, Journal of Chemometrics 23 (2009), Gaussian prior; written from the equations.",
)
