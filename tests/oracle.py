"""Every contraction, update and bound term again as plain loops over entries: slow, obvious, from the formulas.

Also the builders of tiny random problems and states on which the library and the loops are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import digamma, expit, gammaln, log_expit, log_ndtr, logit

from brtf import kernels
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.scale import robust_scale
from brtf.inference import sweep as calibrated
from brtf.inference.learn_noise import with_noise
from brtf.inference.noise_fit import Histogram, NoisePrior
from brtf.inference.statistics import entry_values, fit_at_entries
from brtf.inference.update_rows import update_factor
from brtf.inference.updates import (
    learn_outlier_prior,
    update_component_precisions,
    update_noise,
    update_outlier_precisions,
    update_outliers,
)
from brtf.kernels.arguments import FIRST_BIN_OCTAVE, LAST_BIN_OCTAVE, LOG2_BINS, N_BINS
from brtf.kernels.tables import EvidenceTable
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import (
    PROBABILITY_RANGE,
    WIDEST_SLAB,
    FlatSlab,
    GaussianSlab,
    LocalModel,
    NoOutliers,
    SlabModel,
    StudentNoise,
    StudentSlab,
)
from brtf.model.state import (
    LARGEST_PRECISION,
    MeanFieldOutliers,
    OutlierStructure,
    Prior,
    ReplacementLaw,
    Sides,
    SliceNoise,
    SliceRates,
    State,
)

Array = NDArray[np.float64]
Index = tuple[int, ...]
Factors = Sequence[RowGaussians]

LAYOUTS = ("complete", "masked", "coordinates")
SHAPES = {2: (4, 3), 3: (3, 4, 2), 4: (2, 3, 1, 3), 5: (2, 1, 3, 2, 2)}
"""A tiny shape per order; two of them with modes of size 1."""
BIN_WIDTH = float(np.log1p(1.0 / (1 << LOG2_BINS)))
"""Width of the widest bins of the histogram of D, at the lower end of an octave, in ln D."""


# Builders


@dataclass(frozen=True, eq=False)
class Problem:
    """A tiny tensor and which of its entries are observed."""

    tensor: NDArray[np.floating]
    mask: NDArray[np.bool_]

    @property
    def shape(self) -> Index:
        return self.tensor.shape

    @property
    def entries(self) -> list[Index]:
        """The observed entries, the last mode running fastest."""
        return [index for index in itertools.product(*map(range, self.shape)) if self.mask[index]]

    def observations(self, layout: str) -> Observations:
        """The same entries in any layout; a mask that is True everywhere stays a mask."""
        values = self.tensor[self.mask]
        if layout == "complete":
            return observe(self.tensor)
        if layout == "coordinates":
            return Observations.from_coords(np.nonzero(self.mask), values, self.shape)
        return Observations(self.shape, values, self.mask, None, robust_scale(values))

    def values(self, observations: Observations) -> list[float]:
        """The observed values in units of the data's scale."""
        return [float(self.tensor[index]) / observations.scale for index in self.entries]


def random_problem(shape: Index, rng: np.random.Generator, *, complete: bool, dtype: DTypeLike = np.float64) -> Problem:
    """A random tensor with about a third of its entries missing, among them the whole last slice of mode 0."""
    mask = rng.random(shape) < 0.8
    mask[-1] = False
    mask.flat[0] = True
    return Problem(rng.standard_normal(shape).astype(dtype), np.ones(shape, dtype=bool) if complete else mask)


def random_rows(n_rows: int, rank: int, rng: np.random.Generator, *, shared: bool) -> RowGaussians:
    """Random means and random positive definite covariances, one per row or one for all."""
    root = rng.standard_normal((1 if shared else n_rows, rank, rank))
    return RowGaussians(rng.standard_normal((n_rows, rank)), 0.1 * root @ root.transpose(0, 2, 1) + 0.05 * np.eye(rank))


def random_gamma(shape: Index, rng: np.random.Generator) -> Gamma:
    return Gamma(rng.uniform(1.5, 4.0, shape), rng.uniform(0.5, 3.0, shape))


def random_state(
    shape: Index,
    rank: int,
    n_observed: int,
    rng: np.random.Generator,
    *,
    shared: bool = False,
    outliers: bool = True,
) -> State:
    """A valid state without any special relation between its parts."""
    local = MeanFieldOutliers(
        mean=rng.standard_normal(n_observed),
        var=rng.uniform(0.1, 1.0, n_observed),
        gamma=random_gamma((n_observed,), rng),
        concentration=float(rng.uniform(0.5, 2.0)),
        rate=float(rng.uniform(0.5, 2.0)),
    )
    return State(
        prior=Prior(*(float(number) for number in rng.uniform(0.1, 1.0, 4))),
        factors=tuple(random_rows(length, rank, rng, shared=shared) for length in shape),
        lam=random_gamma((rank,), rng),
        tau=random_gamma((), rng),
        local=local if outliers else NoOutliers(),
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A problem in one layout with a state to go with it."""

    problem: Problem
    observations: Observations
    state: State

    @property
    def values(self) -> list[float]:
        return self.problem.values(self.observations)

    @property
    def targets(self) -> list[float]:
        """y − s̄ at the entries."""
        if not isinstance(self.state.local, MeanFieldOutliers):
            return self.values
        return [y - s for y, s in zip(self.values, self.state.local.mean, strict=True)]


def random_case(
    seed: int, order: int, layout: str, *, rank: int = 2, outliers: bool = True, complete: bool | None = None
) -> Case:
    """The same seed and order give the same problem in the two incomplete layouts.

    ``complete`` says whether every entry is observed: as the layout says, unless given. Covariances are shared
    only where the layout is complete.
    """
    rng = np.random.default_rng([seed, order])
    problem = random_problem(SHAPES[order], rng, complete=layout == "complete" if complete is None else complete)
    state = random_state(
        problem.shape,
        rank,
        len(problem.entries),
        rng,
        shared=layout == "complete",
        outliers=outliers,
    )
    return Case(problem, problem.observations(layout), state)


# Contractions


def low_rank_at(means: Sequence[Array], entries: Sequence[Index]) -> list[float]:
    """x_m = Σ_r Π_n a⁽ⁿ⁾[i_n, r]."""
    found = []
    for index in entries:
        total = 0.0
        for r in range(means[0].shape[1]):
            product = 1.0
            for mean, i in zip(means, index, strict=True):
                product *= float(mean[i, r])
            total += product
        found.append(total)
    return found


def covariance(rows: RowGaussians, i: int) -> Array:
    return rows.cov[i] if len(rows.cov) == len(rows.mean) else rows.cov[0]


def second_moment(rows: RowGaussians, i: int) -> Array:
    """E[a_i a_iᵀ] = ããᵀ + V."""
    return np.outer(rows.mean[i], rows.mean[i]) + covariance(rows, i)


def product_of_moments(factors: Factors, index: Index, modes: Sequence[int]) -> Array:
    """⊛ of E[a a ᵀ] over the given modes, at one entry."""
    product = np.ones((factors[0].rank, factors[0].rank))
    for k in modes:
        product = product * second_moment(factors[k], index[k])
    return product


def variance_at(factors: Factors, entries: Sequence[Index]) -> list[float]:
    """Var x_m = E[x_m²] − x̄_m², with E[x_m²] = Σ_rs Π_n (ããᵀ + V)_rs."""
    means = low_rank_at([rows.mean for rows in factors], entries)
    squares = [float(product_of_moments(factors, index, range(len(factors))).sum()) for index in entries]
    return [square - mean**2 for square, mean in zip(squares, means, strict=True)]


def others(factors: Sequence[object], mode: int) -> list[int]:
    return [k for k in range(len(factors)) if k != mode]


def row_grams(factors: Factors, entries: Sequence[Index], weights: Sequence[float], mode: int) -> Array:
    """G_i = Σ_{m: i_n = i} w_m ⊛_{k≠n} E[a⁽ᵏ⁾a⁽ᵏ⁾ᵀ]."""
    grams = np.zeros((factors[mode].n_rows, factors[0].rank, factors[0].rank))
    for index, weight in zip(entries, weights, strict=True):
        grams[index[mode]] += weight * product_of_moments(factors, index, others(factors, mode))
    return grams


def contract(matrices: Sequence[Array], entries: Sequence[Index], entry_values: Sequence[float], mode: int) -> Array:
    """H[i, c] = Σ_{m: i_n = i} v_m Π_{k≠n} M⁽ᵏ⁾[i_k, c]."""
    found = np.zeros_like(matrices[mode])
    for index, value in zip(entries, entry_values, strict=True):
        product = np.full(matrices[0].shape[1], value)
        for k in others(matrices, mode):
            product = product * matrices[k][index[k]]
        found[index[mode]] += product
    return found


def contract_one(
    matrix: Array, entries: Sequence[Index], entry_values: Sequence[float], mode: int, shape: Index
) -> Array:
    """T[…, c] = Σ_{i_n} v_{…i_n…} M⁽ⁿ⁾[i_n, c], the other modes in their order."""
    found = np.zeros((*shape[:mode], *shape[mode + 1 :], matrix.shape[1]))
    for index, value in zip(entries, entry_values, strict=True):
        found[index[:mode] + index[mode + 1 :]] += value * matrix[index[mode]]
    return found


def slice_sums(entries: Sequence[Index], entry_values: Sequence[float], modes: Sequence[int], shape: Index) -> Array:
    """Sums over the entries at every position along the given modes, in C order of these."""
    sums = np.zeros([shape[mode] for mode in modes])
    for index, value in zip(entries, entry_values, strict=True):
        sums[tuple(index[mode] for mode in modes)] += value
    return sums.ravel()


def look_up(table: EvidenceTable, rho: Sequence[float]) -> tuple[list[float], list[float]]:
    """ln f and −2 d ln f/dρ from the segment that holds ρ, found by going through all of them."""
    log_evidence, weight = [], []
    *segments, (end, _, value, slope, *_) = table.rows.tolist()
    for one in rho:
        if one >= end:  # ln f ∝ ln ρ from there on
            log_evidence.append(value + slope * end * np.log(one / end))
            weight.append(-2.0 * slope * end / one)
            continue
        for row in segments:
            if row[0] <= one:
                lower, per_width, c0, c1, c2, c3 = row
        t = (one - lower) * per_width
        log_evidence.append(c0 + c1 * t + c2 * t**2 + c3 * t**3)
        weight.append(-2.0 * (c1 + 2 * c2 * t + 3 * c3 * t**2) * per_width)
    return log_evidence, weight


def counted_at(table: EvidenceTable, tau: float, deviation: Sequence[float]) -> list[float]:
    """D at which entries are counted: the middle of their segment, if that is an even one."""
    found = []
    for one in deviation:
        places = [k for k, row in enumerate(table.rows[:-1]) if row[0] <= tau * one]
        found.append(float(table.middles[places[-1]]) / tau if places[-1] < table.n_usual else one)
    return found


def count_deviations(deviation: Sequence[float]) -> tuple[Array, Array]:
    """Number and sum of D in bins that cut every octave into 2^LOG2_BINS equal parts."""
    counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
    for one in deviation:
        place = 0
        for octave in range(FIRST_BIN_OCTAVE, LAST_BIN_OCTAVE):
            for part in range(1 << LOG2_BINS):
                if one >= 2.0**octave * (1.0 + part / (1 << LOG2_BINS)):
                    place = ((octave - FIRST_BIN_OCTAVE) << LOG2_BINS) + part
        counts[place] += 1.0
        totals[place] += one
    return counts, totals


def histogram(deviation: Array, penalty: float) -> Histogram:
    """Deviations D (M,) in the bins that a pass over entries fills."""
    counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
    kernels.count_deviations(deviation, counts, totals)
    return Histogram.from_bins(counts, totals, float(deviation.max()), penalty)


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """P_i⁻¹ h_i, P_i⁻¹ and −ln|P_i|; one P for all rows or one each."""
    covs = np.array([np.linalg.inv(matrix) for matrix in precision])
    means = [covs[i if len(covs) == len(linear) else 0] @ row for i, row in enumerate(linear)]
    return np.array(means).reshape(linear.shape), covs, np.array([-np.linalg.slogdet(p)[1] for p in precision])


def truncated_moments(location: float, scale: float) -> tuple[float, float, float]:
    """Mean, variance and entropy of a normal cut off below zero, by the trapezoidal rule over ln a."""
    nodes = np.linspace(math.log(scale) - 45.0, math.log(scale) + 5.0, 400_001)
    a = np.exp(nodes)
    log_density = -0.5 * ((a - location) / scale) ** 2
    mass = np.exp(log_density - log_density.max() + nodes - nodes.max())
    total = mass.sum()
    mean = (mass * a).sum() / total
    log_total = math.log(total * (nodes[1] - nodes[0])) + log_density.max() + nodes.max()
    return mean, (mass * (a - mean) ** 2).sum() / total, log_total - (mass * log_density).sum() / total


def solve_truncated(precision: Array, linear: Array, n_cycles: int = 300) -> tuple[Array, Array]:
    """Locations and means of truncated normals by coordinate ascent, a loading at a time."""
    location, mean = np.zeros_like(linear), np.zeros_like(linear)
    for i, own in enumerate(linear):
        matrix = precision[i if len(precision) > 1 else 0]
        for _ in range(n_cycles):
            for r in range(own.size):
                others = sum(matrix[r, k] * mean[i, k] for k in range(own.size) if k != r)
                location[i, r] = (own[r] - others) / matrix[r, r]
                alpha = location[i, r] * math.sqrt(matrix[r, r])
                hazard = math.exp(-0.5 * alpha**2 - 0.5 * math.log(2.0 * math.pi) - float(log_ndtr(alpha)))
                mean[i, r] = (alpha + hazard) / math.sqrt(matrix[r, r])
    return location, mean


# Updates


def factor_update(case: Case, mode: int) -> RowGaussians:
    """U1: V_i = (τ̄ G_i + diag λ̄)⁻¹, ã_i = τ̄ V_i h_i; one covariance per row, also where all are equal."""
    factors, entries = case.state.factors, case.problem.entries
    tau, lam = float(mean_of(case.state.tau)), mean_of(case.state.lam)
    grams = row_grams(factors, entries, [1.0] * len(entries), mode)
    products = contract([rows.mean for rows in factors], entries, case.targets, mode)
    covs = [np.linalg.inv(tau * gram + np.diag(lam)) for gram in grams]
    return RowGaussians(
        np.array([tau * cov @ product for cov, product in zip(covs, products, strict=True)]), np.array(covs)
    )


def mean_of(gamma: Gamma) -> Array:
    return np.asarray(gamma.concentration / gamma.rate)


def mean_log_of(gamma: Gamma) -> Array:
    return np.asarray(digamma(gamma.concentration) - np.log(gamma.rate))


def component_precisions_update(state: State) -> Gamma:
    """U2: λ_r ~ Ga(c₀ + ½Σ_n I_n, d₀ + ½ Σ_n Σ_i E[a_ir²])."""
    concentration = np.full(state.rank, state.prior.lam_concentration)
    rate = np.full(state.rank, state.prior.lam_rate)
    for rows in state.factors:
        for i in range(rows.n_rows):
            concentration += 0.5
            rate += 0.5 * np.diag(second_moment(rows, i))
    return Gamma(concentration, rate)


def expected_square_sum(case: Case) -> float:
    """Σ_m E[(y − x − s)²], multiplied out: y² + E[x²] + E[s²] − 2y x̄ − 2y s̄ + 2 x̄ s̄."""
    factors, entries, outliers = case.state.factors, case.problem.entries, case.state.local
    means = low_rank_at([rows.mean for rows in factors], entries)
    total = 0.0
    for m, (index, y, x) in enumerate(zip(entries, case.values, means, strict=True)):
        s, s_square = 0.0, 0.0
        if isinstance(outliers, MeanFieldOutliers):
            s, s_square = outliers.mean[m], outliers.mean[m] ** 2 + outliers.var[m]
        x_square = product_of_moments(factors, index, range(len(factors))).sum()
        total += float(y**2 + x_square + s_square - 2 * y * x - 2 * y * s + 2 * x * s)
    return total


def noise_update(case: Case) -> Gamma:
    """U5: τ ~ Ga(a₀^τ + M/2, b₀^τ + ½ Σ_m E[(y − x − s)²])."""
    prior = case.state.prior
    return Gamma(
        np.asarray(prior.tau_concentration + 0.5 * len(case.problem.entries)),
        np.asarray(prior.tau_rate + 0.5 * expected_square_sum(case)),
    )


def outliers_update(case: Case) -> tuple[Array, Array]:
    """U3: σ²_m = 1/(γ̄_m + τ̄), s̄_m = τ̄ σ²_m (y_m − x̄_m); the means and variances."""
    tau = float(mean_of(case.state.tau))
    x = low_rank_at([rows.mean for rows in case.state.factors], case.problem.entries)
    variances = [1.0 / (gamma + tau) for gamma in mean_of(outliers_of(case.state).gamma)]
    means = [tau * var * (y - xm) for var, y, xm in zip(variances, case.values, x, strict=True)]
    return np.array(means), np.array(variances)


def outliers_of(state: State) -> MeanFieldOutliers:
    if not isinstance(state.local, MeanFieldOutliers):
        raise ValueError("The state has no outliers.")
    return state.local


def outlier_precisions_update(outliers: MeanFieldOutliers) -> Gamma:
    """U4: γ_m ~ Ga(a₀ + ½, b₀ + ½(s̄² + σ²))."""
    rates = [outliers.rate + 0.5 * (mean**2 + var) for mean, var in zip(outliers.mean, outliers.var, strict=True)]
    return Gamma(np.full(len(rates), outliers.concentration + 0.5), np.array(rates))


def outlier_prior_update(outliers: MeanFieldOutliers) -> tuple[float, float]:
    """U6: ln a₀ − ψ(a₀) = ln(mean γ̄) − mean E[ln γ] by bisection over a wide range, b₀ = a₀ / mean γ̄."""
    mean_gamma = np.mean(mean_of(outliers.gamma))
    mean_log = np.mean(digamma(outliers.gamma.concentration) - np.log(outliers.gamma.rate))
    gap = np.log(mean_gamma) - mean_log
    concentration = brentq(lambda a: np.log(a) - digamma(a) - gap, 1e-3, 1e3, xtol=1e-14)
    return float(concentration), float(concentration / mean_gamma)


UPDATES: dict[str, Callable[[Observations, State], State]] = {
    "factor": lambda observations, state: update_factor(observations, state, 0, _targets(observations, state)),
    "last factor": lambda observations, state: update_factor(
        observations, state, observations.order - 1, _targets(observations, state)
    ),
    "component precisions": lambda _, state: update_component_precisions(state),
    "noise": lambda observations, state: update_noise(state, fit_at_entries(observations, state.factors)),
    "outliers": lambda observations, state: replace(
        state,
        local=update_outliers(
            outliers_of(state), fit_at_entries(observations, state.factors).residual, float(state.tau.mean)
        ),
    ),
    "outlier precisions": lambda _, state: replace(state, local=update_outlier_precisions(outliers_of(state))),
    "outlier prior": lambda _, state: replace(state, local=learn_outlier_prior(outliers_of(state))),
}
"""The library's updates, each as a function of the data and one state."""


def _targets(observations: Observations, state: State) -> Array:
    values = entry_values(observations)
    return values - state.local.mean if isinstance(state.local, MeanFieldOutliers) else values


# The bound


def expected_log_gamma(posterior: Gamma, concentration: float, rate: float) -> Array:
    """E ln Ga(x | concentration, rate) for x from the posterior."""
    mean_log = digamma(posterior.concentration) - np.log(posterior.rate)
    return np.asarray(
        concentration * np.log(rate)
        - gammaln(concentration)
        + (concentration - 1.0) * mean_log
        - rate * mean_of(posterior)
    )


def gamma_term(posterior: Gamma, concentration: float, rate: float) -> float:
    """E ln p + H(q), summed."""
    entropy = stats.gamma.entropy(posterior.concentration, scale=1.0 / posterior.rate)
    return float(np.sum(expected_log_gamma(posterior, concentration, rate) + entropy))


def bound_terms(case: Case) -> dict[str, float]:
    """The terms of L = E ln p(Y, Θ) + H(q), each from the textbook moments and entropies."""
    state, n_observed = case.state, len(case.problem.entries)
    tau_log = float(digamma(state.tau.concentration) - np.log(state.tau.rate))
    lam_log = digamma(state.lam.concentration) - np.log(state.lam.rate)
    factors = 0.0
    for rows in state.factors:
        for i in range(rows.n_rows):
            squares = np.diag(second_moment(rows, i))
            for r in range(rows.rank):
                factors += 0.5 * (lam_log[r] - np.log(2 * np.pi) - mean_of(state.lam)[r] * squares[r])
            if rows.rank:
                factors += stats.multivariate_normal(rows.mean[i], covariance(rows, i)).entropy()
    terms = {
        "likelihood": 0.5 * n_observed * (tau_log - np.log(2 * np.pi))
        - 0.5 * float(mean_of(state.tau)) * expected_square_sum(case),
        "factors": float(factors),
        "component_precisions": gamma_term(state.lam, state.prior.lam_concentration, state.prior.lam_rate),
        "noise": gamma_term(state.tau, state.prior.tau_concentration, state.prior.tau_rate),
        "outliers": 0.0,
        "outlier_precisions": 0.0,
        "smooth": 0.0,
    }
    if isinstance(state.local, MeanFieldOutliers):
        gamma = state.local.gamma
        gamma_log = digamma(gamma.concentration) - np.log(gamma.rate)
        for m in range(n_observed):
            square = state.local.mean[m] ** 2 + state.local.var[m]
            terms["outliers"] += float(
                0.5 * (gamma_log[m] - np.log(2 * np.pi) - mean_of(gamma)[m] * square)
                + stats.norm.entropy(scale=np.sqrt(state.local.var[m]))
            )
        terms["outlier_precisions"] = gamma_term(gamma, state.local.concentration, state.local.rate)
    return terms


# Densities, for Monte Carlo


@dataclass(frozen=True, eq=False)
class Draws:
    """K independent draws from q: A⁽ⁿ⁾ (K, I_n, R), λ (K, R), τ (K,), S and γ (K, M); what a state lacks is None.

    Also the relative precisions ω and the outlier rates of slices (K, G), and the share of outliers that are positive
    (K,). Rows are under the paper's prior.
    """

    factors: list[Array]
    lam: Array
    tau: Array
    outliers: Array | None = None
    gamma: Array | None = None
    omega: Array | None = None
    rates: Array | None = None
    positive: Array | None = None


def draw(state: State, n_draws: int, rng: np.random.Generator) -> Draws:
    """Draws from every factor of q."""
    factors = [
        np.stack(
            [rng.multivariate_normal(rows.mean[i], covariance(rows, i), n_draws) for i in range(rows.n_rows)],
            axis=1,
        )
        for rows in state.factors
    ]
    draws = Draws(factors, _draw_gamma(state.lam, n_draws, rng), _draw_gamma(state.tau, n_draws, rng))
    if state.slices is not None:
        draws = replace(draws, omega=_draw_gamma(state.slices.precision, n_draws, rng))
    structure = structure_of(state)
    if structure.rates is not None:
        size = (n_draws, structure.rates.outlying.size)
        draws = replace(draws, rates=rng.beta(structure.rates.outlying, structure.rates.regular, size))
    if structure.sides is not None:
        draws = replace(draws, positive=rng.beta(structure.sides.positive, structure.sides.negative, n_draws))
    if not isinstance(state.local, MeanFieldOutliers):
        return draws
    noise = rng.standard_normal((n_draws, state.local.mean.size))
    sparse = state.local.mean + np.sqrt(state.local.var) * noise
    return replace(draws, outliers=sparse, gamma=_draw_gamma(state.local.gamma, n_draws, rng))


def _draw_gamma(gamma: Gamma, n_draws: int, rng: np.random.Generator) -> Array:
    shape = (n_draws, *np.shape(gamma.rate))
    return rng.gamma(np.broadcast_to(gamma.concentration, shape)) / gamma.rate


def low_rank_draws(draws: Draws, entries: Sequence[Index]) -> Array:
    """x at the entries for every draw, (K, M)."""
    columns = []
    for index in entries:
        product = np.ones_like(draws.factors[0][:, 0, :])
        for factor, i in zip(draws.factors, index, strict=True):
            product = product * factor[:, i, :]
        columns.append(product.sum(axis=1))
    return np.stack(columns, axis=1)


def log_prior(case: Case, draws: Draws) -> Array:
    """ln p(A, λ, τ), and of slices, rates and sides where there are any; one number per draw."""
    state, prior = case.state, case.state.prior
    total = log_gamma_density(draws.lam, prior.lam_concentration, prior.lam_rate).sum(axis=1)
    total = total + log_gamma_density(draws.tau, prior.tau_concentration, prior.tau_rate)
    for factor in draws.factors:
        total = total + stats.norm.logpdf(factor, scale=draws.lam[:, None, :] ** -0.5).sum(axis=(1, 2))
    if draws.omega is not None and state.slices is not None:
        total = total + log_gamma_density(draws.omega, *[state.slices.concentration] * 2).sum(axis=1)
    if draws.rates is not None:
        total = total + stats.beta.logpdf(draws.rates, *structure_of(state).rates.prior).sum(axis=1)
    return np.asarray(total)  # of the share of positive outliers the prior is one


def log_joint(case: Case, draws: Draws) -> Array:
    """ln p(Y, A, λ, τ, S, γ), one number per draw."""
    outliers = case.state.local
    location = low_rank_draws(draws, case.problem.entries)
    total = log_prior(case, draws)
    if isinstance(outliers, MeanFieldOutliers) and draws.outliers is not None and draws.gamma is not None:
        location = location + draws.outliers
        total = total + stats.norm.logpdf(draws.outliers, scale=draws.gamma**-0.5).sum(axis=1)
        total = total + log_gamma_density(draws.gamma, outliers.concentration, outliers.rate).sum(axis=1)
    scale = draws.tau[:, None] ** -0.5
    return np.asarray(total + stats.norm.logpdf(case.values, location, scale).sum(axis=1))


def log_posterior(state: State, draws: Draws) -> Array:
    """ln q(A, λ, τ, S, γ), and of slices, rates and sides where there are any; one number per draw."""
    total = log_gamma_density(draws.lam, state.lam.concentration, state.lam.rate).sum(axis=1)
    total = total + log_gamma_density(draws.tau, state.tau.concentration, state.tau.rate)
    for factor, rows in zip(draws.factors, state.factors, strict=True):
        for i in range(rows.n_rows):
            density = stats.multivariate_normal(rows.mean[i], covariance(rows, i))
            total = total + density.logpdf(factor[:, i, :])
    if draws.omega is not None and state.slices is not None:
        precision = state.slices.precision
        total = total + log_gamma_density(draws.omega, precision.concentration, precision.rate).sum(axis=1)
    rates, sides = structure_of(state).rates, structure_of(state).sides
    if draws.rates is not None:
        total = total + stats.beta.logpdf(draws.rates, rates.outlying, rates.regular).sum(axis=1)
    if draws.positive is not None:
        total = total + stats.beta.logpdf(draws.positive, sides.positive, sides.negative)
    if isinstance(state.local, MeanFieldOutliers) and draws.outliers is not None and draws.gamma is not None:
        gamma, scale = state.local.gamma, np.sqrt(state.local.var)
        total = total + stats.norm.logpdf(draws.outliers, state.local.mean, scale).sum(axis=1)
        total = total + log_gamma_density(draws.gamma, gamma.concentration, gamma.rate).sum(axis=1)
    return np.asarray(total)


def structure_of(state: State) -> OutlierStructure:
    """How the outliers of a state hang together; not at all where nothing is said of it."""
    return state.structure or OutlierStructure()


def log_gamma_density(x: Array, concentration: Array | float, rate: Array | float) -> Array:
    return np.asarray(stats.gamma.logpdf(x, concentration, scale=1.0 / np.asarray(rate)))


# Calibrated inference


SLABS: tuple[type[SlabModel], ...] = (StudentSlab, GaussianSlab, FlatSlab)


def random_slab(kind: type[LocalModel], rng: np.random.Generator) -> LocalModel:
    """A local model with numbers as they occur."""
    if not issubclass(kind, SlabModel):
        return kind()
    shape = rng.uniform(0.3, 4.0) if kind is StudentSlab else rng.uniform(2.5, 40.0)
    width = kind.narrowest * 10.0 ** rng.uniform(0.0, 3.0)
    return kind(float(rng.uniform(0.02, 0.7)), float(shape), float(width))


def student_slab(shape: float, width: float, rho: Array) -> tuple[Array, Array]:
    """ln J and E[κ] of the outliers' Student-t by adaptive quadrature over t = ln u, u ~ Ga(a₀, a₀ζ), κ = u/(1+u)."""

    def log_integrand(t: Array, one_rho: float) -> Array:
        u = np.exp(t)
        kappa = u / (1.0 + u)
        density = shape * np.log(shape * width) - gammaln(shape) + shape * t - shape * width * u
        return np.asarray(density + 0.5 * np.log(kappa) - 0.5 * one_rho * kappa)

    grid = np.arange(-600.0, 12.0, 0.01)
    log_total, kept = [], []
    for one_rho in rho:
        height = log_integrand(grid, one_rho)
        peak = float(height.max())
        used = grid[height > peak - 60.0]
        pieces = np.linspace(used[0], used[-1], 9)

        def integral(power: float, one_rho: float = one_rho, peak: float = peak, pieces: Array = pieces) -> float:
            def integrand(t: float) -> float:
                return float(np.exp(log_integrand(t, one_rho) - peak) * (1.0 + np.exp(-t)) ** -power)

            return float(
                quad(integrand, pieces[0], pieces[-1], points=pieces[1:-1], epsabs=0, epsrel=1e-11, limit=400)[0]
            )

        log_total.append(np.log(integral(0.0)) + peak)
        kept.append(integral(1.0) / integral(0.0))
    return np.array(log_total), np.array(kept)


def mixture_density(weight: Array, dof: Array, squared_scale: Array, reach: Array, size: Array) -> Array:
    """Density at ±size of a mixture of Student-t laws and of uniform laws blurred by a Gaussian."""
    total = np.zeros_like(size)
    for share, degrees, square, limit in zip(weight, dof, squared_scale, reach, strict=True):
        scale = np.sqrt(square)
        if limit > 0:
            law = (stats.norm.cdf((limit - size) / scale) - stats.norm.cdf((-limit - size) / scale)) / (2 * limit)
        else:
            law = stats.t.pdf(size, degrees, scale=scale)
        total = total + share * law
    return total


def noise_objective(tau: float, model: LocalModel, histogram: Histogram, prior: NoisePrior) -> float:
    """(M/2 + a₀^τ) ln τ − b₀^τ τ − ½ τ w_max Σ Var x + Σ ln f(τ D) + 9 ln(1 − π), a bin standing for its entries."""
    log_evidence = model.posterior(tau * histogram.deviation).log_evidence
    total = (0.5 * histogram.count.sum() + prior.concentration) * np.log(tau) - prior.rate * tau
    total += rate_log_prior(model.probability)
    return float(total - 0.5 * tau * model.largest_weight * histogram.penalty + histogram.count @ log_evidence)


def noise_limits(kind: type[SlabModel]) -> tuple[Array, Array]:
    """Least and largest (ln τ, logit π, shape parameter, ln ζ)."""
    limits = [(1e-304, LARGEST_PRECISION), PROBABILITY_RANGE, (1.0, 1.0), (kind.narrowest, WIDEST_SLAB)]
    low, high = np.log(limits).T
    low[1], high[1] = logit(PROBABILITY_RANGE)
    low[2], high[2] = sorted(kind.shape_parameter(shape) for shape in kind.shape_range)
    return low, high


def slab_case(
    seed: int,
    order: int,
    layout: str,
    kind: type[LocalModel],
    *,
    rank: int = 2,
    complete: bool | None = None,
) -> Case:
    """A random case with a random local model, the prior of calibrated inference and q(τ) of its family."""
    case = random_case(seed, order, layout, rank=rank, outliers=False, complete=complete)
    rng = np.random.default_rng([seed, order, 1])
    model = random_slab(kind, rng)
    state = replace(case.state, prior=Prior(tau_rate=1e-18))
    tau = float(10.0 ** rng.uniform(-1.0, 1.5))
    return replace(case, state=with_noise(state, tau, model, case.observations.n_observed))


def calibrated_problem(case: Case, *, collapsed: bool) -> calibrated.Problem:
    """What a calibrated fit of the case would hold fixed."""
    observations = case.observations
    return calibrated.Problem(observations, tuple(range(observations.order)), collapsed)


def tilted_draws(shape: float, width: float, rho: float, n_draws: int, rng: np.random.Generator) -> Array:
    """Draws of u from q(u) ∝ Ga(u | a₀, a₀ζ) κ^{1/2} exp(−½ρκ), κ = u/(1+u), by rejection from the prior."""
    best = min(1.0, 1.0 / rho)
    kept: list[Array] = []
    while sum(map(len, kept)) < n_draws:
        u = rng.gamma(shape, 1.0 / (shape * width), 4 * n_draws)
        kappa = u / (1.0 + u)
        log_acceptance = 0.5 * np.log(kappa / best) - 0.5 * rho * (kappa - best)
        kept.append(u[np.log(rng.random(u.size)) < log_acceptance])
    return np.concatenate(kept)[:n_draws]


def bound_samples(case: Case, n_draws: int, rng: np.random.Generator, *, collapsed: bool) -> Array:
    """ln p(Y, Θ) − ln q(Θ) for draws of every latent: their mean is the bound of the case's state, up to looseness."""
    draws = draw(case.state, n_draws, rng)
    if isinstance(case.state.local, MeanFieldOutliers):
        return log_joint(case, draws) - log_posterior(case.state, draws)
    local = local_log_ratios(case, draws, collapsed=collapsed, rng=rng)
    rates = None if case.state.structure is None else case.state.structure.rates
    local += rate_log_prior(case.state.local_model.probability if rates is None else rates.prior[0] / sum(rates.prior))
    return log_prior(case, draws) - log_posterior(case.state, draws) + local


def rate_log_prior(rate: float) -> float:
    """ln of the prior density Beta(1, 10) of a share of outliers, over that of none."""
    return float(stats.beta.logpdf(rate, 1, 10) - stats.beta.logpdf(0.0, 1, 10))


def local_log_ratios(case: Case, draws: Draws, *, collapsed: bool, rng: np.random.Generator) -> Array:
    """ln p(y, z, …| x, τ, …) − ln q(z, …), summed over the entries, one number per draw of everything else.

    z is one for all entries of a group. Student slab: z = 1 has γ and s. Gaussian and flat slabs: z = 0 has w, the
    noise N(0, 1/(τωw)); z = 1 has Gaussian noise and s; a flat slab must reach far beyond all entries. An outlier that
    replaces the data has nothing else. q(s | z = 1) = N(v (y−x), v/(τ̄ω̄)), v = 1 − κ, in form 2; x̄ in place of x in
    form 1. χ of :class:`OutlierStructure` must be one: only then is there a model.
    """
    state, entries, shape = case.state, case.problem.entries, case.problem.shape
    model, structure, slices = state.local_model, structure_of(state), state.slices
    if structure.n_channels != 1.0:
        raise TypeError("Tempered groups have no model to draw from.")
    x, n_draws = low_rank_draws(draws, entries), draws.tau.size
    centre = np.array(case.values) - low_rank_at([rows.mean for rows in state.factors], entries)
    deviation = centre**2 + (np.array(variance_at(state.factors, entries)) if collapsed else 0.0)
    groups: dict[Index, list[int]] = {}
    for m, index in enumerate(entries):
        groups.setdefault(tuple(i for k, i in enumerate(index) if k not in structure.modes), []).append(m)
    total = np.zeros(n_draws)
    for members in groups.values():
        log_rate, log_rest, odds = _drawn_rates(state, draws, entries[members[0]], shape)
        spike, slab = np.zeros((2, n_draws))
        for m in members:
            y, precision = case.values[m], draws.tau
            precision_mean, log_mean = float(mean_of(state.tau)), float(mean_log_of(state.tau))
            if slices is not None and draws.omega is not None:
                place = position_along(entries[m], slices.modes, shape)
                precision = precision * draws.omega[:, place]
                precision_mean *= float(mean_of(slices.precision)[place])
                log_mean += float(mean_log_of(slices.precision)[place])
            rho, noise_scale = precision_mean * deviation[m], precision**-0.5
            counted = 0.5 * (log_mean - np.log(2 * np.pi))
            log_spike, ratio = _spike(model, y, x[:, m], noise_scale, rho, rng)
            spike = spike + ratio
            odds = odds - (log_spike + counted)
            if not model.has_outliers:
                continue
            if structure.law is not None:
                log_slab = np.log(replacement_density(structure.law, y)) - counted
                slab = slab + log_slab + counted
            else:
                location = x[:, m] if collapsed else np.full(n_draws, y - centre[m])
                log_slab, ratio = _slab(model, y, x[:, m], location, noise_scale, precision_mean, rho, rng)
                slab = slab + ratio
            odds = odds + log_slab + counted
            if structure.sides is not None and draws.positive is not None:
                above = bool(centre[m] >= 0.0)
                slab = slab + np.log(2.0 * (draws.positive if above else 1.0 - draws.positive))
                odds = odds + np.log(2.0) + _mean_log_of_share(structure.sides, above=above)
        if not model.has_outliers:
            total = total + spike
            continue
        z = rng.random(n_draws) < expit(odds)
        total = total + np.where(z, log_rate + slab - log_expit(odds), log_rest + spike - log_expit(-odds))
    return total


def _drawn_rates(state: State, draws: Draws, index: Index, shape: Index) -> tuple[Array | float, Array | float, float]:
    """ln π and ln(1 − π) of an entry, drawn where slices have rates of their own, and the odds E ln π − E ln(1 − π)."""
    rates, probability = structure_of(state).rates, state.local_model.probability
    if not probability:
        return -np.inf, 0.0, -np.inf
    if rates is None or draws.rates is None:
        return np.log(probability), np.log1p(-probability), float(logit(probability))
    place = rate_of(index, rates, shape)
    drawn = draws.rates[:, place]
    return np.log(drawn), np.log1p(-drawn), float(digamma(rates.outlying[place]) - digamma(rates.regular[place]))


def _spike(
    model: LocalModel, y: float, x: Array, noise_scale: Array, rho: float, rng: np.random.Generator
) -> tuple[float, Array]:
    """ln f₀(ρ), and ln p(y, w | x) − ln q(w) of noise alone: w is the hidden precision of Student-t noise."""
    if not isinstance(model, StudentNoise):
        return -0.5 * rho, stats.norm.logpdf(y, x, noise_scale)
    nu = model.shape
    weight = rng.gamma(0.5 * (nu + 1.0), 2.0 / (nu + rho), x.size)
    ratio = stats.norm.logpdf(y, x, noise_scale * weight**-0.5) + log_gamma_density(weight, 0.5 * nu, 0.5 * nu)
    log_spike = float(stats.t.logpdf(np.sqrt(rho), nu)) + 0.5 * np.log(2 * np.pi)
    return log_spike, ratio - log_gamma_density(weight, 0.5 * (nu + 1.0), 0.5 * (nu + rho))


def _slab(
    model: LocalModel,
    y: float,
    x: Array,
    location: Array,
    noise_scale: Array,
    precision: float,
    rho: float,
    rng: np.random.Generator,
) -> tuple[float, Array]:
    """ln f₁(ρ), and ln p(y, s, u | x) − ln q(s, u) of an outlier s; u is the hidden precision of a Student-t slab."""
    n_draws, hidden = x.size, np.zeros(x.size)
    if not isinstance(model, SlabModel):
        raise TypeError("The model has no slab to draw from.")
    if isinstance(model, StudentSlab):
        u = tilted_draws(model.shape, model.width, rho, n_draws, rng)
        kappa = u / (1.0 + u)
        log_slab = float(student_slab(model.shape, model.width, np.array([rho]))[0][0])
        hidden = 0.5 * np.log(kappa) - 0.5 * rho * kappa - log_slab  # the prior density of u is in both
    elif isinstance(model, GaussianSlab):
        u, kappa = np.full(n_draws, 1.0 / model.width), np.full(n_draws, 1.0 / (1.0 + model.width))
        log_slab = float(stats.norm.logpdf(np.sqrt(rho), scale=kappa[0] ** -0.5)) + 0.5 * np.log(2 * np.pi)
    else:
        u, kappa = np.zeros(n_draws), np.zeros(n_draws)
        log_slab = 0.5 * float(np.log(0.5 * np.pi / model.width))
    mean, scale = (1.0 - kappa) * (y - location), np.sqrt((1.0 - kappa) / precision)
    s = mean + scale * rng.standard_normal(n_draws)
    if isinstance(model, FlatSlab):
        reach = np.sqrt(model.width / precision)
        density = stats.uniform.logpdf(s, -reach, 2.0 * reach)
    else:
        density = stats.norm.logpdf(s, scale=(u * precision) ** -0.5)
    return log_slab, density + stats.norm.logpdf(y, x + s, noise_scale) - stats.norm.logpdf(s, mean, scale) - hidden


def _mean_log_of_share(sides: Sides, *, above: bool) -> float:
    """E ln a, or E ln(1 − a)."""
    share = sides.positive if above else sides.negative
    return float(digamma(share) - digamma(sides.positive + sides.negative))


def structured_case(
    seed: int,
    layout: str,
    kind: type[LocalModel] = GaussianSlab,
    *,
    modes: tuple[int, ...] = (),
    law: bool = False,
    rates: tuple[int, ...] | None = None,
    n_labels: int | None = None,
    slices: tuple[int, ...] | None = None,
    channels: float = 1.0,
    complete: bool | None = None,
    sides: Sides | None = None,
) -> Case:
    """A random case whose state has a structure; ``rates`` and ``slices`` name the modes along which they differ.

    With ``n_labels``, so many rates belong to labels.
    """
    case = slab_case(seed, 3, layout, kind, complete=complete)
    rng = np.random.default_rng([seed, 2])
    shape, values = case.problem.shape, np.array(case.values)
    replacing = None
    if law:
        density = rng.dirichlet(np.full(7, 0.7)) * 7.0 / np.ptp(values)
        replacing = ReplacementLaw(float(values.min()), float(values.max()), density + 1e-6)
    differing = None
    if rates is not None:
        n_slices = int(np.prod([shape[mode] for mode in rates]))
        labels = None
        if n_labels is not None:
            labels, n_slices = rng.integers(0, n_labels, n_slices), n_labels
        outlying, regular = rng.uniform(0.3, 3.0, n_slices), rng.uniform(1.0, 6.0, n_slices)
        differing = SliceRates(rates, outlying, regular, (0.7, 2.0), labels)
    state = replace(case.state, structure=OutlierStructure(modes, channels, replacing, differing, sides))
    if slices is not None:
        n_slices = int(np.prod([shape[mode] for mode in slices]))
        precision = Gamma(rng.uniform(2.0, 6.0, n_slices), rng.uniform(1.0, 5.0, n_slices))
        state = replace(state, slices=SliceNoise(slices, precision, 2.5))
    return replace(case, state=state)


def log_evidence(case: Case, n_draws: int, rng: np.random.Generator) -> tuple[float, float]:
    """ln p(Y) by plain Monte Carlo over the prior of λ, τ, A and γ, with z, s and ω integrated out; and its error."""
    model, prior = case.state.local, case.state.prior
    if not isinstance(model, SlabModel):
        raise TypeError("The case has no slab.")
    lam = rng.gamma(prior.lam_concentration, 1.0 / prior.lam_rate, (n_draws, case.state.rank))
    tau = rng.gamma(prior.tau_concentration, 1.0 / prior.tau_rate, (n_draws, 1))
    factors = [
        rng.standard_normal((n_draws, length, case.state.rank)) * lam[:, None, :] ** -0.5
        for length in case.problem.shape
    ]
    x = low_rank_draws(Draws(factors, lam, tau[:, 0]), case.problem.entries)
    deviation, slab_var = np.array(case.values) - x, model.width / float(mean_of(case.state.tau))
    if isinstance(model, StudentSlab):
        spike = stats.norm.logpdf(deviation, scale=tau**-0.5)
        slab_var = slab_var * model.shape / rng.gamma(model.shape, 1.0, x.shape)
    else:
        spike = stats.t.logpdf(deviation, model.shape, scale=tau**-0.5)
    slab = stats.norm.logpdf(deviation, scale=np.sqrt(1.0 / tau + slab_var))
    likelihood = np.logaddexp(np.log1p(-model.probability) + spike, np.log(model.probability) + slab).sum(axis=1)
    peak = likelihood.max()
    shares = np.exp(likelihood - peak)
    return float(np.log(shares.mean()) + peak), float(shares.std() / shares.mean() / np.sqrt(n_draws))


# Outliers that hang together


def structured_evidence(case: Case, state: State) -> tuple[float, list[float]]:
    """Σ ln p(y | q) with every z tried: all 2^G assignments of G groups; and how probable each entry is an outlier.

    Noise alone: ½(E ln τ + E ln ω − ln 2π) + ln f₀(τ̄ ω̄ D). An outlier: the same with f₁, or ln h(y) where it replaces.
    χ must be 1: only then is it the evidence of a model.
    """
    model, structure, slices = state.local, state.structure, state.slices
    if not isinstance(model, SlabModel) or structure is None or structure.n_channels != 1.0:
        raise TypeError("The state has no structure to enumerate.")
    shape, entries, tau = case.problem.shape, case.problem.entries, float(mean_of(state.tau))
    values, x = case.values, low_rank_at([rows.mean for rows in state.factors], entries)
    variances = variance_at(state.factors, entries)
    groups: dict[Index, list[int]] = {}
    logs = np.zeros((2, len(entries)))
    rates = np.zeros((2, len(entries)))
    for m, index in enumerate(entries):
        groups.setdefault(tuple(i for k, i in enumerate(index) if k not in structure.modes), []).append(m)
        rho = tau * ((values[m] - x[m]) ** 2 + variances[m])
        counted = float(digamma(state.tau.concentration) - np.log(state.tau.rate)) - np.log(2 * np.pi)
        if slices is not None:
            place = position_along(index, slices.modes, shape)
            rho *= float(mean_of(slices.precision)[place])
            counted += float(digamma(slices.precision.concentration[place]) - np.log(slices.precision.rate[place]))
        log_spike, _, log_slab, _ = model.branches(np.array([rho]))
        logs[:, m] = log_spike[0] + 0.5 * counted, log_slab[0] + 0.5 * counted
        if structure.law is not None:
            logs[1, m] = np.log(replacement_density(structure.law, values[m]))
        rates[:, m] = np.log1p(-model.probability), np.log(model.probability)
        if structure.rates is not None:
            place = rate_of(index, structure.rates, shape)
            outlying, regular = structure.rates.outlying[place], structure.rates.regular[place]
            together = digamma(outlying + regular)
            rates[:, m] = digamma(regular) - together, digamma(outlying) - together
        if structure.sides is not None:
            beta = stats.beta(structure.sides.positive, structure.sides.negative)
            above = values[m] > x[m]
            logs[1, m] += np.log(2.0) + beta.expect(lambda a, above=above: np.log(a if above else 1.0 - a))
    of_groups = np.array([[rates[z, group[0]] + logs[z, group].sum() for group in groups.values()] for z in (0, 1)])
    assigned = np.array(list(itertools.product((0, 1), repeat=len(groups))))
    terms = of_groups[assigned, np.arange(len(groups))].sum(axis=1)
    evidence = float(np.logaddexp.reduce(terms))
    probability = np.zeros(len(entries))
    for g, members in enumerate(groups.values()):
        probability[members] = np.exp(terms - evidence) @ assigned[:, g]
    return evidence, list(probability)


def position_along(index: Index, modes: Sequence[int], shape: Index) -> int:
    """Where an entry stands along the given modes, numbered in C order over them."""
    place = 0
    for mode in modes:
        place = place * shape[mode] + index[mode]
    return place


def rate_of(index: Index, rates: SliceRates, shape: Index) -> int:
    """Which of the rates an entry has: that of its label, or of its slice."""
    place = position_along(index, rates.modes, shape)
    return place if rates.labels is None else int(rates.labels[place])


def replacement_density(law: ReplacementLaw, value: float) -> float:
    """The density of the bin that holds a value; the last bin holds its upper end too."""
    edges = np.linspace(law.lowest, law.highest, law.density.size + 1)
    for k in range(law.density.size):
        if value < edges[k + 1]:
            return float(law.density[k])
    return float(law.density[-1])
