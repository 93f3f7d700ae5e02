"""Statistics of the data and the closed forms they feed: one pair per posterior factor.

Every statistic is a sum over blocks of entries; every update is a function of such sums. Keys U1–U6 and R1 are those
of ``docs/equations.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma

from brtf import kernels
from brtf.distributions import Array, Gamma, RowGaussians, unpack_symmetric
from brtf.local import SlabModel
from brtf.model import MeanFieldOutliers, SliceNoise, State, component_amplitudes
from brtf.observations import Block, Observations

PRUNE_NATS = 1e-2
"""A component is negligible when all its entries together move the expected log likelihood by less than this."""
SMALLEST_GAP = 1e-14
"""Rounding of ln(mean γ̄) − mean E[ln γ]: where all γ̄ agree to the last digit, a₀ ends at 5e13."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The low-rank part at the observed entries, in units of the data's scale.

    Attributes
    ----------
    residual : (M,) y_m − x̄_m
    variance : (M,) Var x_m, or ``None`` where only its sum was asked for
    variance_sum : Σ_m Var x_m
    """

    residual: Array
    variance: Array | None
    variance_sum: float

    @property
    def deviation(self) -> Array:
        """D (M,): E[(y−x)²] where the variances are known per entry (form 2), (y−x̄)² otherwise (form 1)."""
        square = self.residual**2
        return square if self.variance is None else square + self.variance


def scaled_values(observations: Observations, block: Block) -> Array:
    """The block's values divided by the data's scale, float64."""
    return np.asarray(block.values, dtype=np.float64) / observations.scale


def fit_at_entries(observations: Observations, factors: tuple[RowGaussians, ...], *, per_entry: bool = False) -> Fit:
    """Residuals y − x̄ at the observed entries, and the exact variance of x there (per entry, or only summed)."""
    residual = np.empty(observations.n_observed)
    pieces = []
    means = [rows.mean for rows in factors]
    shortcut = observations.layout == "complete" and not per_entry
    if not shortcut:
        moments = [rows.second_moment_packed for rows in factors]
        covs = [rows.cov_packed for rows in factors]
    for block in observations.blocks():
        residual[block.entries] = scaled_values(observations, block) - kernels.low_rank_at(block, means)
        if not shortcut:
            pieces.append(kernels.variance_at(block, means, moments, covs))
    if shortcut:
        return Fit(residual, None, _variance_sum_complete(factors))
    variance_sum = float(sum(np.sum(piece) for piece in pieces))
    return Fit(residual, np.concatenate(pieces) if per_entry else None, variance_sum)


def _variance_sum_complete(factors: tuple[RowGaussians, ...]) -> float:
    """Σ Var x over all entries of a complete tensor, from the R×R sums of each mode (28)–(30)."""
    spread: Array = np.zeros((factors[0].rank,) * 2)
    product: Array = np.ones_like(spread)
    for rows in factors:
        gram, cov_sum = rows.gram, rows.cov_sum
        spread = spread * (gram + cov_sum) + product * cov_sum
        product = product * gram
    return float(spread.sum())


def row_grams(
    observations: Observations, factors: tuple[RowGaussians, ...], mode: int, weights: Array | None = None
) -> Array:
    """Row Grams G_i = Σ_{m∈Ω, i_n=i} w_m ⊛_{k≠n} E[a⁽ᵏ⁾a⁽ᵏ⁾ᵀ] (14); unit weights where none are given.

    Complete data without weights share one Gram, ⊛_{k≠n}(ÃᵀÃ + Σ_i V_i) (29). Shape (I_n, R, R) or (1, R, R).
    """
    rank = factors[mode].rank
    if weights is None and observations.layout == "complete":
        gram: Array = np.ones((rank, rank))
        for k, rows in enumerate(factors):
            if k != mode:
                gram = gram * (rows.gram + rows.cov_sum)
        return gram[None]
    moments = [rows.second_moment_packed for rows in factors]
    total = np.zeros_like(moments[mode])
    for block in observations.blocks():
        pattern = np.ones(block.values.size) if weights is None else weights[block.entries]
        total += kernels.contract(block, pattern, moments, mode)
    return unpack_symmetric(total, rank)


def row_products(observations: Observations, targets: Array, factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """Row products h_i = Σ_{m∈Ω, i_n=i} t_m ⊛_{k≠n} ã⁽ᵏ⁾, shape (I_n, R)."""
    means = [rows.mean for rows in factors]
    total = np.zeros_like(means[mode])
    for block in observations.blocks():
        total += kernels.contract(block, targets[block.entries], means, mode)
    return total


def update_factor(
    observations: Observations,
    state: State,
    mode: int,
    targets: Array,
    *,
    weights: Array | None = None,
    precision: float | None = None,
) -> State:
    """U1 (13)–(15): q(A⁽ⁿ⁾) given the other modes: V_i = (τ̄ G_i + diag λ̄)⁻¹, ã_i = τ̄ V_i h_i.

    ``targets`` is the entry vector of the values to be explained (y − s̄ in the paper); ``precision`` is τ̄ unless given.
    """
    noise_precision = float(state.tau.mean) if precision is None else precision
    grams = row_grams(observations, state.factors, mode, weights)
    products = row_products(observations, targets, state.factors, mode)
    rows = RowGaussians.from_natural(noise_precision * grams + np.diag(state.lam.mean), noise_precision * products)
    return state.with_factor(mode, rows)


def update_component_precisions(state: State) -> State:
    """U2 (16): q(λ_r) = Ga(c₀ + ½Σ_n I_n, d₀ + ½ Σ_n Σ_i E[a_ir²])."""
    n_rows = sum(rows.n_rows for rows in state.factors)
    power = np.sum([rows.component_power for rows in state.factors], axis=0)
    return replace(
        state,
        lam=Gamma(
            np.full(state.rank, state.prior.lam_concentration + 0.5 * n_rows),
            state.prior.lam_rate + 0.5 * power,
        ),
    )


def expected_square_sum(fit: Fit, outliers: MeanFieldOutliers | SlabModel | None) -> float:
    """Σ_m E[(y_m − x_m − s_m)²] (24): squares of means, Var x and Var s, in positive terms."""
    if not isinstance(outliers, MeanFieldOutliers):
        return float(fit.residual @ fit.residual) + fit.variance_sum
    remainder = fit.residual - outliers.mean
    return float(remainder @ remainder) + fit.variance_sum + float(outliers.var.sum())


def update_noise(state: State, fit: Fit) -> State:
    """U5 (22)–(24): q(τ) = Ga(a₀^τ + M/2, b₀^τ + ½ Σ_m E[(y−x−s)²])."""
    square_sum = expected_square_sum(fit, state.outliers)
    return replace(
        state,
        tau=Gamma(
            np.asarray(state.prior.tau_concentration + 0.5 * fit.residual.size),
            np.asarray(state.prior.tau_rate + 0.5 * square_sum),
        ),
    )


def update_slice_noise(slices: SliceNoise, index: NDArray[np.intp], weighted: Array) -> SliceNoise:
    """C14: q(ω_g) = Ga(a_t + ½M_g, a_t + ½ Σ_{m∈g} τ̄ w_m D_m), and a_t where the bound is largest.

    ``index`` is the slice of every entry and ``weighted`` the entry vector τ̄ w D: as ln f is convex with slope −w/2,
    this raises the bound whatever the local model. a_t solves ln a − ψ(a) = mean ω̄ − mean E[ln ω] − 1.
    """
    n_slices = slices.precision.rate.size
    n_entries = np.bincount(index, minlength=n_slices).astype(np.float64)
    squares = np.bincount(index, weighted, n_slices).astype(np.float64)
    precision = Gamma(slices.concentration + 0.5 * n_entries, slices.concentration + 0.5 * squares)
    gap = float(np.mean(precision.mean) - np.mean(precision.mean_log) - 1.0)
    return SliceNoise(slices.modes, precision, solve_concentration(max(gap, SMALLEST_GAP)))


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
    if gap < 1e-4:  # the first two terms 1/(2a) + 1/(12a²) of the difference are exact here to rounding
        return float((6.0 + np.sqrt(36.0 + 48.0 * gap)) / (24.0 * gap))
    return float(brentq(lambda a: np.log(a) - digamma(a) - gap, 0.5 / gap, 1.0 / gap, xtol=1e-300, rtol=1e-14))


def negligible_components(state: State, n_observed: int) -> NDArray[np.bool_]:
    """R1: components whose whole share ½ τ̄ M · (mean square of the rank-one term) is below ``PRUNE_NATS``."""
    share = 0.5 * float(state.tau.mean) * n_observed * component_amplitudes(state) ** 2
    return share < PRUNE_NATS
