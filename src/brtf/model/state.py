"""The state of the posterior and its parts: the prior, the paper's outliers, slice noise and outlier structure.

y_m = x_m + s_m + ε_m at the observed entries m, with x_m = Σ_r Π_n a⁽ⁿ⁾[i_n, r] (5)–(6), rows a ~ N(0, diag(λ)⁻¹) and
λ_r ~ Ga(c₀, d₀) (7), s_m ~ N(0, γ_m⁻¹) and γ_m ~ Ga(a₀, b₀) (8), ε_m ~ N(0, τ⁻¹) and τ ~ Ga(a₀^τ, b₀^τ) (9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import betaln, digamma, gammaln

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import LocalModel, rate_log_prior
from brtf.model.row_priors import RowPrior, ZeroMean
from brtf.model.smooth_residual import SmoothResidual

LARGEST_PRECISION = 1e16
"""Upper limit of τ̄ for data of unit scale: noise below 1e-8 of the data is beyond their resolution."""


@dataclass(frozen=True)
class Prior:
    """Hyperparameters: Gamma priors of the component precisions λ and of the noise precision τ.

    ``largest_precision`` is the upper limit of the noise precision, also per slice, in calibrated inference.
    """

    lam_concentration: float = 1e-6
    lam_rate: float = 1e-6
    tau_concentration: float = 1e-6
    tau_rate: float = 1e-6
    largest_precision: float = LARGEST_PRECISION


@dataclass(frozen=True, eq=False)
class MeanFieldOutliers:
    """The paper's factors q(s_m) = N(mean_m, var_m) and q(γ_m), with the learnt parameters (a₀, b₀) of their prior.

    Attributes
    ----------
    mean, var : (M,)
    gamma : Gamma with rate (M,)
    concentration, rate : a₀ and b₀.
    """

    description: ClassVar[str] = "the paper’s: a precision for every entry’s outlier"
    has_outliers: ClassVar[bool] = True
    noise_inflation: ClassVar[float] = 1.0

    mean: Array
    var: Array
    gamma: Gamma
    concentration: float
    rate: float


@dataclass(frozen=True, eq=False)
class SliceNoise:
    """Noise that differs between slices: entry m has precision τ ω_g, g being its position along the given modes.

    ω_g ~ Ga(a_t, a_t) has mean one; the learnt a_t controls how much the slices differ.

    Attributes
    ----------
    modes : the modes along which the noise differs
    precision : q(ω), Gamma over (G,), G the number of positions, in C order over the modes
    concentration : a_t
    """

    modes: tuple[int, ...]
    precision: Gamma
    concentration: float

    @cached_property
    def mean(self) -> Array:
        """ω̄, (G,)."""
        return self.precision.mean

    @cached_property
    def mean_log(self) -> Array:
        """E[ln ω], (G,)."""
        return self.precision.mean_log

    @cached_property
    def kl(self) -> float:
        """Σ_g KL(q(ω_g) ‖ Ga(a_t, a_t))."""
        return self.precision.kl(self.concentration, self.concentration)


@dataclass(frozen=True, eq=False)
class ReplacementLaw:
    """Distribution of values that replace the data: a histogram over the range of the data, in units of their scale.

    Attributes
    ----------
    lowest, highest : the range
    density : (B,) over bins of equal width
    """

    lowest: float
    highest: float
    density: Array

    @property
    def bins_per_unit(self) -> float:
        """Bins per unit of the data's scale."""
        return self.density.size / (self.highest - self.lowest)

    def bins(self, values: Array) -> NDArray[np.intp]:
        """Bin index of each value."""
        place = (values - self.lowest) * self.bins_per_unit
        return np.clip(place.astype(np.intp), 0, self.density.size - 1)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Values of the given shape."""
        width = (self.highest - self.lowest) / self.density.size
        place = rng.choice(self.density.size, size=shape, p=self.density / self.density.sum())
        return self.lowest + width * (place + rng.random(shape))

    def learnt(self, counts: Array) -> ReplacementLaw:
        """Estimate the distribution from the replaced values per bin, with one pseudo-count spread over all bins."""
        share = (counts + 1.0 / counts.size) / (counts.sum() + 1.0)
        width = (self.highest - self.lowest) / counts.size
        return replace(self, density=share / width)

    def log_evidence(self, counts: Array) -> float:
        """Log evidence of the replaced values in each bin, the distribution integrated out.

        Its prior is Dirichlet(a, …, a) with the a that maximizes the evidence.
        """
        n_bins, n_values = counts.size, float(counts.sum())

        def cost(log_prior: float) -> float:
            prior = math.exp(log_prior)
            likelihood = np.sum(gammaln(prior + counts) - gammaln(prior))
            return float(gammaln(n_bins * prior + n_values) - gammaln(n_bins * prior) - likelihood)

        found = minimize_scalar(cost, bounds=(math.log(1e-3), math.log(1e4)), method="bounded")
        return n_values * math.log(self.bins_per_unit) - float(found.fun)

    def price(self, counts: Array) -> float:
        """Complexity penalty, in nats, for estimating the distribution from the replaced values in each bin.

        Their log likelihood under the estimated distribution, minus their log evidence.
        """
        return float(counts @ np.log(self.learnt(counts).density)) - self.log_evidence(counts)


@dataclass(frozen=True, eq=False)
class SliceRates:
    """Outlier rates that differ between slices: π_g ~ Beta(prior), q(π_g) = Beta(outlying_g, regular_g).

    With labels, slices of the same label have one rate, and g numbers the labels.

    Attributes
    ----------
    modes : the modes along which the rates differ
    outlying, regular : (G,), G the number of positions, in C order over the modes, or of labels
    prior : learnt
    labels : the label, 0 to G − 1, of every position, in C order over the modes; None if each has a rate of its own
    """

    modes: tuple[int, ...]
    outlying: Array
    regular: Array
    prior: tuple[float, float]
    labels: NDArray[np.int64] | None = None

    @property
    def mean(self) -> Array:
        """E[π_g], (G,)."""
        return self.outlying / (self.outlying + self.regular)

    @property
    def typical(self) -> float:
        """The mean of E[π] over all positions."""
        return float(self.at_positions(self.mean).mean())

    @cached_property
    def mean_logs(self) -> tuple[Array, Array]:
        """E[ln π_g] and E[ln(1 − π_g)], each (G,)."""
        together = digamma(self.outlying + self.regular)
        return digamma(self.outlying) - together, digamma(self.regular) - together

    @property
    def n_positions(self) -> int:
        """Number of positions along the modes."""
        return self.outlying.size if self.labels is None else self.labels.size

    def at_positions(self, rates: Array) -> Array:
        """Numbers of every rate, (G,), at every position along the modes."""
        return rates if self.labels is None else rates[self.labels]

    def added_up(self, slices: Array) -> Array:
        """Sums over every position along the modes, as sums for every rate, (G,)."""
        if self.labels is None:
            return slices
        return np.bincount(self.labels, slices, self.outlying.size).astype(np.float64, copy=False)

    @property
    def log_prior(self) -> float:
        """ln of the prior density of the typical rate, the mean of Beta(prior), over that of none."""
        return rate_log_prior(self.prior[0] / (self.prior[0] + self.prior[1]))

    @cached_property
    def kl(self) -> float:
        """Σ_g KL(q(π_g) ‖ Beta(prior))."""
        first, second = self.prior
        log_rate, log_rest = self.mean_logs
        terms = betaln(first, second) - betaln(self.outlying, self.regular)
        return float(np.sum(terms + (self.outlying - first) * log_rate + (self.regular - second) * log_rest))


@dataclass(frozen=True, eq=False)
class Sides:
    """Outliers with an unequal share of signs: positive with probability a ~ Beta(1, 1).

    q(a) = Beta(positive, negative). The slab's density is 2a times the symmetric one where y > x, and 2(1 − a) times
    where y < x. It jumps at y = x, where noise dominates a slab wider than the noise: for the few outliers there the
    bound is accurate to first order in τ̄ Var x, as at the edge of a flat slab.

    Attributes
    ----------
    positive, negative : expected number of outliers on each side, plus one
    """

    positive: float
    negative: float

    @property
    def mean(self) -> float:
        """E[a]."""
        return self.positive / (self.positive + self.negative)

    @property
    def mean_logs(self) -> tuple[float, float]:
        """E[ln 2a] and E[ln 2(1 − a)]."""
        together = float(digamma(self.positive + self.negative)) - math.log(2.0)
        return float(digamma(self.positive)) - together, float(digamma(self.negative)) - together

    @property
    def kl(self) -> float:
        """KL(q(a) ‖ Beta(1, 1))."""
        above, below = self.mean_logs
        counted = (self.positive - 1.0) * (above - math.log(2.0)) + (self.negative - 1.0) * (below - math.log(2.0))
        return counted - float(betaln(self.positive, self.negative))


@dataclass(frozen=True, eq=False)
class OutlierStructure:
    """Structure of the outliers, where they are not independent, additive, symmetric and of one rate.

    Attributes
    ----------
    modes : entries that differ only along these modes share one outlier indicator
    n_channels : χ, the number of entries in such a group per independent one, as their noise is correlated
    law : distribution of the values that replace the data; None where outliers are additive
    rates : outlier rates of slices or labels; None where the rate is common
    sides : share of positive outliers; None where signs are symmetric, or outliers are shared or replace the data
    """

    modes: tuple[int, ...] = ()
    n_channels: float = 1.0
    law: ReplacementLaw | None = None
    rates: SliceRates | None = None
    sides: Sides | None = None

    @property
    def is_plain(self) -> bool:
        """Whether outliers are independent, additive, symmetric and of one rate."""
        return self.one_by_one and self.sides is None

    @property
    def one_by_one(self) -> bool:
        """Whether outliers are independent, additive and of one rate; they may be one-sided."""
        return not self.modes and self.law is None and self.rates is None


@dataclass(frozen=True, eq=False)
class State:
    """The posterior: q(A⁽ⁿ⁾), q(λ), q(τ), the outliers, and the noise of slices (None where it is common).

    ``local`` is the local model in calibrated inference and the per-entry posteriors in the paper's inference; in
    both it is :class:`~brtf.model.local_models.NoOutliers` where there are none. ``structure`` describes dependence
    between outliers; None where there is none. ``smooth`` is what every fibre along a mode does by itself; None where
    there is nothing of the kind. ``row_priors`` are the priors of the rows, one per mode; by default the
    paper's.
    """

    prior: Prior
    factors: tuple[RowGaussians, ...]
    lam: Gamma
    tau: Gamma
    local: MeanFieldOutliers | LocalModel
    slices: SliceNoise | None = None
    structure: OutlierStructure | None = None
    row_priors: tuple[RowPrior, ...] = ()
    smooth: SmoothResidual | None = None

    def __post_init__(self) -> None:
        if not self.row_priors:
            object.__setattr__(self, "row_priors", (ZeroMean(),) * len(self.factors))

    @property
    def rank(self) -> int:
        return self.factors[0].rank

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in units of the data's squared scale; for a typical slice where slices differ."""
        return self.local.noise_inflation / float(self.tau.mean)

    @property
    def local_model(self) -> LocalModel:
        """Distribution of an entry's deviation from the low-rank part, in units of the noise."""
        if isinstance(self.local, MeanFieldOutliers):
            raise TypeError("A state of the paper's inference has no local model: every entry has its own outlier.")
        return self.local

    @property
    def kind(self) -> str:
        """What the state is, apart from its numbers: rank, local model, slices, outlier structure, row priors."""
        structure = OutlierStructure() if self.structure is None else self.structure
        parts = {
            "local": type(self.local).__name__,
            "slices": None if self.slices is None else self.slices.modes,
            "shared": structure.modes,
            "rates": None if structure.rates is None else (structure.rates.modes, structure.rates.labels is not None),
            "sides": structure.sides is not None,
            "law": structure.law is not None,
            "rows": tuple(prior.name for prior in self.row_priors),
        }
        return ", ".join([self.kind_of_components, *(f"{name} {part}" for name, part in parts.items())])

    @property
    def kind_of_components(self) -> str:
        """What the low-rank part is, apart from its numbers: rank, and the mode of smooth courses."""
        return f"rank {self.rank}, smooth {None if self.smooth is None else self.smooth.mode}"

    def with_factor(self, mode: int, rows: RowGaussians, row_prior: RowPrior | None = None) -> State:
        """The state with another posterior for one mode's rows, and another prior if one is given."""
        factors = (*self.factors[:mode], rows, *self.factors[mode + 1 :])
        if row_prior is None:
            return replace(self, factors=factors)
        row_priors = (*self.row_priors[:mode], row_prior, *self.row_priors[mode + 1 :])
        return replace(self, factors=factors, row_priors=row_priors)

    def without_slices_along(self, mode: int) -> State:
        """The state with typical noise and outlier rates along a mode, whose new slices have none of their own."""
        slices, structure = self.slices, self.structure
        if slices is not None and mode in slices.modes:
            axis, kept = slices.modes.index(mode), tuple(other for other in slices.modes if other != mode)
            lengths = [self.factors[other].n_rows for other in slices.modes]
            lengths[axis] = -1
            typical = None
            if kept:
                rate = slices.precision.rate
                concentration = np.broadcast_to(slices.precision.concentration, rate.shape)
                means = (part.reshape(lengths).mean(axis=axis).reshape(-1) for part in (concentration, rate))
                typical = SliceNoise(kept, Gamma(*means), slices.concentration)
            slices = typical
        if structure is not None and structure.rates is not None and mode in structure.rates.modes:
            structure = replace(structure, rates=None)
        return replace(self, slices=slices, structure=structure)

    @property
    def row_divergences(self) -> float:
        """Σ_n KL(q(A⁽ⁿ⁾) ‖ p(A⁽ⁿ⁾ | λ)), averaged over q(λ)."""
        return sum(prior.kl(rows, self.lam) for prior, rows in zip(self.row_priors, self.factors, strict=True))

    def select_components(self, keep: NDArray[Any]) -> State:
        """The state with only the kept components."""
        return replace(
            self,
            factors=tuple(rows.select(keep) for rows in self.factors),
            row_priors=tuple(prior.select(keep) for prior in self.row_priors),
            lam=Gamma(self.lam.concentration[keep], self.lam.rate[keep]),
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the rows of a mode follow each other."""
        return any(prior.ordered for prior in self.row_priors)

    def strongest_first(self) -> State:
        """The same posterior with the strongest component first, and signs chosen.

        In every mode but the last that has negative loadings the one of largest size is positive, in every component.
        """
        state = self.select_components(np.argsort(-component_amplitudes(self), kind="stable"))
        factors, row_priors, left = list(state.factors), list(state.row_priors), np.ones(state.rank)
        signed = [mode for mode, prior in enumerate(row_priors) if prior.signed]
        for mode in signed:
            rows, sign = factors[mode], left
            if mode != signed[-1]:
                largest = rows.mean[np.argmax(np.abs(rows.mean), axis=0), np.arange(state.rank)]
                sign = np.where(largest < 0.0, -1.0, 1.0)
                left = left * sign
            if (sign < 0.0).any():
                factors[mode], row_priors[mode] = rows.scaled(sign), row_priors[mode].rescaled(sign)
        return replace(state, factors=tuple(factors), row_priors=tuple(row_priors))


def component_amplitudes(state: State) -> Array:
    """Root mean square of each component's rank-one term over all entries: Π_n rms_i(ã_ir), shape (R,)."""
    return np.prod([np.sqrt(np.mean(rows.mean**2, axis=0)) for rows in state.factors], axis=0)
