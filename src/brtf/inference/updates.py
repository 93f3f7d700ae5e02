"""Closed-form updates of all posterior factors but the rows, which :mod:`~brtf.inference.update_rows` updates.

Every update is a function of sums over the entries. Keys U2–U6 and R1 are those of ``docs/equations.md``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma

from brtf.data.arrays import Array
from brtf.inference.statistics import EntryFit
from brtf.model.distributions import Gamma
from brtf.model.local_models import LocalModel
from brtf.model.relative_precisions import best_concentration
from brtf.model.state import MeanFieldOutliers, SliceNoise, State, component_amplitudes

PRUNE_NATS = 1e-2
"""A component is negligible if it changes the expected log likelihood by less than this in total."""


SMALLEST_GAP = 1e-14
"""Rounding error of ln(mean γ̄) − mean E[ln γ]: it limits a₀ to 5e13 where all γ̄ are equal."""


def update_component_precisions(state: State) -> State:
    """U2 (16): q(λ_r) = Ga(c₀ + ½Σ_n I_n, d₀ + ½ Σ_n Σ_i E[a_ir²]), with squares counted by the row priors."""
    squares = [prior.squares(rows) for prior, rows in zip(state.row_priors, state.factors, strict=True)]
    n_rows = sum(n_counted for n_counted, _ in squares)
    power = np.sum([of_mode for _, of_mode in squares], axis=0)
    return replace(
        state,
        lam=Gamma(
            np.full(state.rank, state.prior.lam_concentration + 0.5 * n_rows),
            state.prior.lam_rate + 0.5 * power,
        ),
    )


def expected_square_sum(fit: EntryFit, outliers: MeanFieldOutliers | LocalModel) -> float:
    """Σ_m E[(y_m − x_m − s_m)²] (24): a sum of squared means, Var x and Var s, all positive."""
    if not isinstance(outliers, MeanFieldOutliers):
        return float(fit.residual @ fit.residual) + fit.variance_sum
    remainder = fit.residual - outliers.mean
    return float(remainder @ remainder) + fit.variance_sum + float(outliers.var.sum())


def update_noise(state: State, fit: EntryFit) -> State:
    """U5 (22)–(24): q(τ) = Ga(a₀^τ + M/2, b₀^τ + ½ Σ_m E[(y−x−s)²])."""
    square_sum = expected_square_sum(fit, state.local)
    return replace(
        state,
        tau=Gamma(
            np.asarray(state.prior.tau_concentration + 0.5 * fit.residual.size),
            np.asarray(state.prior.tau_rate + 0.5 * square_sum),
        ),
    )


def update_slice_noise(slices: SliceNoise, n_entries: Array, squares: Array, largest: float = math.inf) -> SliceNoise:
    """C14: q(ω_g) = Ga(a_t + ½M_g, a_t + ½ Σ_{m∈g} τ̄ w_m D_m), and a_t at the maximum of the bound.

    ``n_entries`` holds M_g and ``squares`` the sums of τ̄ w D over each slice, both (G,): as ln f is convex with slope
    −w/2, this cannot lower the bound for any local model. a_t solves ln a − ψ(a) = mean ω̄ − mean E[ln ω] − 1. ω̄ is
    limited to ``largest``.
    """
    concentration = slices.concentration + 0.5 * n_entries
    precision = Gamma(concentration, np.maximum(slices.concentration + 0.5 * squares, concentration / largest))
    gap = float(np.mean(precision.mean) - np.mean(precision.mean_log) - 1.0)
    return SliceNoise(slices.modes, precision, solve_concentration(max(gap, SMALLEST_GAP)))


def gain_of_slices(n_entries: Array, squares: Array) -> float:
    """max_a Σ_g ln ∫ Ga(ω | a, a) ω^{M_g/2} exp(−½(ω − 1) S_g) dω: the gain of noise that differs between slices.

    ``n_entries`` holds M_g and ``squares`` S_g = Σ τ̄ w D of each slice, both (G,).
    """
    return max(0.0, best_concentration(0.5 * n_entries, 0.5 * squares)[1])


def update_outliers(outliers: MeanFieldOutliers, residual: Array, noise_precision: float) -> MeanFieldOutliers:
    """U3 (19): q(s_m): σ²_m = 1/(γ̄_m + τ̄), s̄_m = τ̄ σ²_m (y_m − x̄_m)."""
    var = 1.0 / (outliers.gamma.mean + noise_precision)
    return replace(outliers, mean=noise_precision * var * residual, var=var)


def update_outlier_precisions(outliers: MeanFieldOutliers) -> MeanFieldOutliers:
    """U4 (21): q(γ_m) = Ga(a₀ + ½, b₀ + ½(s̄² + σ²))."""
    return replace(
        outliers,
        gamma=Gamma(
            np.asarray(outliers.concentration + 0.5),
            outliers.rate + 0.5 * (outliers.mean**2 + outliers.var),
        ),
    )


def learn_outlier_prior(outliers: MeanFieldOutliers) -> MeanFieldOutliers:
    """U6 (26): (a₀, b₀) that maximise the bound: ln a₀ − ψ(a₀) = ln(mean γ̄) − mean E[ln γ], b₀ = a₀ / mean γ̄."""
    mean_gamma = float(np.mean(outliers.gamma.mean))
    gap = max(float(np.log(mean_gamma) - np.mean(outliers.gamma.mean_log)), SMALLEST_GAP)
    concentration = solve_concentration(gap)
    return replace(outliers, concentration=concentration, rate=concentration / mean_gamma)


def solve_concentration(gap: float) -> float:
    """The a with ln a − ψ(a) = gap > 0: one root, bracketed by 1/(2·gap) < a < 1/gap."""
    if not np.isfinite(gap):
        raise FloatingPointError("a precision is not a finite number")
    if gap < 1e-4:  # here the first two terms 1/(2a) + 1/(12a²) of the difference are exact to rounding
        return float((6.0 + np.sqrt(36.0 + 48.0 * gap)) / (24.0 * gap))
    return float(brentq(lambda a: np.log(a) - digamma(a) - gap, 0.5 / gap, 1.0 / gap, xtol=1e-300, rtol=1e-14))


def negligible_components(state: State, n_observed: int) -> NDArray[np.bool_]:
    """R1: components whose total share ½ τ̄ M · (mean square of the rank-one term) is below ``PRUNE_NATS``."""
    share = 0.5 * float(state.tau.mean) * n_observed * component_amplitudes(state) ** 2
    return share < PRUNE_NATS
