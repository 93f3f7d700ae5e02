"""Tucker with automatic relevance determination."""

from __future__ import annotations

from functools import reduce

import numpy as np
from scipy.linalg import solve

from brtf.research.baselines.algebra import Array, multiply, squared_norm, unfold
from brtf.research.baselines.hosvd import leading_bases, ranks_per_mode
from brtf.research.baselines.registry import Mask, Method, Recovery
from brtf.research.baselines.relevance import MIN_SWEEPS, STILL, assumed_noise, learnt_noise, relevant


def recover(
    Y: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    max_ranks: int | tuple[int, ...] | None = None,
    snr: float = 0.0,
    noise: str = "fixed",
    max_sweeps: int = 500,
) -> Recovery:
    """Ridge regressions of factors and core whose penalties grow for columns that explain little, until these vanish.

    X = G ×_n A⁽ⁿ⁾ with Gaussian noise of variance σ², a Gaussian prior of precision α_d⁽ⁿ⁾ on column d of A⁽ⁿ⁾ and one
    of precision α_G on the core. A column goes when its norm times that of its slice of the core falls below 0.001 of
    the largest in its mode. Starts from the truncated HOSVD; deterministic: the seed has no effect.

    Parameters
    ----------
    max_ranks : int, tuple of int or None
        Columns to start from, the same for all modes or one per mode; None: min(I_n, Π_{k≠n} I_k).
    snr, noise
        As for CP with automatic relevance determination (``"cp-ard"``).
    max_sweeps : int

    Returns
    -------
    Recovery
        Complete data only, without outliers or CP factors; the rank is a tuple.
    """
    ranks = ranks_per_mode("max_ranks", max_ranks, Y.shape)
    variance = assumed_noise(Y, snr)
    size = squared_norm(Y)
    factors = leading_bases(Y, ranks)
    core = multiply(Y, [factor.T for factor in factors])
    error = np.inf
    for sweep in range(1, max_sweeps + 1):
        ranks = core.shape
        for mode in range(Y.ndim):
            factors, core = update_factor(Y, factors, core, mode, variance, size)
        if core.size == 0:
            break
        core = update_core(Y, factors, variance * core.size / squared_norm(core))
        norms = [np.linalg.norm(factor, axis=0) for factor in factors]
        factors = [factor / norm for factor, norm in zip(factors, norms, strict=True)]
        core = core * reduce(np.multiply.outer, norms)
        previous, error = error, squared_norm(Y - multiply(core, factors))
        if noise == "learn":
            variance = learnt_noise(Y, error)
        if sweep >= MIN_SWEEPS and core.shape == ranks and abs(previous - error) < STILL * size:
            break
    return Recovery(multiply(core, factors), None, core.shape)


def update_factor(
    Y: Array, factors: list[Array], core: Array, mode: int, variance: float, size: float
) -> tuple[list[Array], Array]:
    """One mode's ridge regression, A⁽ⁿ⁾ = unfold(Y, n) Zᵀ (ZZᵀ + σ² diag α⁽ⁿ⁾)⁻¹ with Z = unfold(G ×_{k≠n} A⁽ᵏ⁾, n).

    α_d⁽ⁿ⁾ = I_n / ‖a_d⁽ⁿ⁾‖². Irrelevant columns are removed from the factor and the core.
    """
    others = [None if k == mode else factor for k, factor in enumerate(factors)]
    grams = [None if factor is None else factor.T @ factor for factor in others]
    slices = unfold(core, mode)
    products = unfold(multiply(Y, [None if factor is None else factor.T for factor in others]), mode) @ slices.T
    precision = unfold(multiply(core, grams), mode) @ slices.T
    penalties = variance * len(factors[mode]) / np.sum(factors[mode] ** 2, axis=0)
    factor = solve(precision + np.diag(penalties), products.T, assume_a="pos").T
    kept = relevant(np.linalg.norm(factor, axis=0) * np.linalg.norm(slices, axis=1), size)
    return [*factors[:mode], factor[:, kept], *factors[mode + 1 :]], np.compress(kept, core, axis=mode)


def update_core(Y: Array, factors: list[Array], penalty: float) -> Array:
    """The core's ridge regression: minimises ‖Y − G ×_n A⁽ⁿ⁾‖² + p ‖G‖² over G.

    With A⁽ⁿ⁾ᵀA⁽ⁿ⁾ = Q_n diag(δ⁽ⁿ⁾) Q_nᵀ: G = [(Y ×_n Q_nᵀA⁽ⁿ⁾ᵀ) / (⊗_n δ⁽ⁿ⁾ + p)] ×_n Q_n. ``penalty`` is σ² α_G.
    """
    spectra = [np.linalg.eigh(factor.T @ factor) for factor in factors]
    powers = reduce(np.multiply.outer, [values for values, _ in spectra])
    rotations = [vectors for _, vectors in spectra]
    rotated = multiply(Y, [(factor @ vectors).T for factor, vectors in zip(factors, rotations, strict=True)])
    return multiply(rotated / (powers + penalty), rotations)


METHOD = Method(
    name="tucker-ard",
    recover=recover,
    missing=False,
    robust=False,
    works_on="tensor",
    source="Mørup & Hansen, Journal of Chemometrics 23 (2009), Gaussian prior; written from the equations.",
)
