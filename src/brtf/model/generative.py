"""The generative model: draw all unknowns and the data, and evaluate the joint density of such a draw.

:func:`sample` and :func:`log_joint` describe the same distribution. Inference uses neither: simulation-based tests
compare the posterior of a fit with the values that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky_banded, solve_banded
from scipy.special import betaln, gammaln, xlog1py, xlogy

from brtf.data.arrays import Array
from brtf.model.distributions import LOG_TWO_PI
from brtf.model.local_models import LocalModel, NoOutliers
from brtf.model.predictive import ErrorLaw
from brtf.model.row_priors.chain_kinds import LINE, RING, Kinds, kinds_of, n_kinds, order_of, smooth_form
from brtf.model.state import Prior, ReplacementLaw


@dataclass(frozen=True, eq=False)
class GenerativeModel:
    """The hyperparameters of the generative model, and which parts it has.

    Attributes
    ----------
    rank : R
    prior : of λ and τ; must be proper enough to draw from, unlike the vague prior of a fit
    local : distribution of an entry's deviation in units of its noise
    centred_modes : modes whose rows have a centre μ ~ N(0, diag(λ)⁻¹)
    ordered_modes : modes whose rows are chains of unit steps about the centre or zero, of one of the kinds of
        :mod:`brtf.model.row_priors.chain_kinds`, all equally likely
    smooth_modes, cyclic_modes : those of them with kinds of second order too, and those that are rings
    unequal_modes : modes whose rows differ in size: their distance from the centre or zero is divided by √η_i
    row_concentration : c of η_i ~ Ga(c, c), the relative precision of a row
    nonnegative_modes : modes whose loadings are half-normal: 2 N(a | 0, 1/λ), a ≥ 0
    noise_modes : modes along which the noise precision differs; empty where it is common
    noise_concentration : a_t of ω_g ~ Ga(a_t, a_t), the relative precision of a slice
    shared_modes : entries that differ only along these modes share one outlier indicator
    law : distribution of the values that replace the data; None where outliers are additive
    rate_modes : modes along which the outlier rates differ; empty where all entries have the local model's π
    rate_prior : of π_g ~ Beta(first, second)
    one_sided : whether an outlier is positive with a probability a ~ Beta(1, 1), instead of one half
    """

    rank: int
    prior: Prior
    local: LocalModel = field(default_factory=NoOutliers)
    centred_modes: tuple[int, ...] = ()
    ordered_modes: tuple[int, ...] = ()
    smooth_modes: tuple[int, ...] = ()
    cyclic_modes: tuple[int, ...] = ()
    unequal_modes: tuple[int, ...] = ()
    row_concentration: float = 1.0
    nonnegative_modes: tuple[int, ...] = ()
    noise_modes: tuple[int, ...] = ()
    noise_concentration: float = 1.0
    shared_modes: tuple[int, ...] = ()
    law: ReplacementLaw | None = None
    rate_modes: tuple[int, ...] = ()
    rate_prior: tuple[float, float] = (1.0, 1.0)
    one_sided: bool = False

    def __post_init__(self) -> None:
        if set(self.centred_modes) & set(self.nonnegative_modes):
            raise ValueError("A mode without negative loadings has no centre: leave it out of centred_modes.")
        if set(self.ordered_modes) & set(self.nonnegative_modes):
            raise ValueError("A mode without negative loadings is in no order: leave it out of ordered_modes.")
        if not {*self.smooth_modes, *self.cyclic_modes} <= set(self.ordered_modes):
            raise ValueError("Modes with smooth rows or rings are in order: name them in ordered_modes too.")
        if set(self.smooth_modes) & set(self.cyclic_modes):
            raise ValueError("Rings are of first order: leave them out of smooth_modes.")
        if set(self.unequal_modes) & {*self.ordered_modes, *self.nonnegative_modes}:
            raise ValueError("Rows in order or without negative loadings are of one size: shorten unequal_modes.")
        structured = bool(self.shared_modes or self.rate_modes or self.one_sided or self.law is not None)
        if structured and not self.local.has_outliers:
            raise ValueError(f"{type(self.local).__name__} has no outliers to be shared, replaced or one-sided.")
        if self.one_sided and (self.shared_modes or self.law is not None):
            raise ValueError("Outliers that are shared or replace the data have no side: leave one_sided out.")
        if self.shared_modes and self.rate_modes:
            raise ValueError("Outliers that are shared have one rate: leave rate_modes out.")

    def kinds(self, mode: int, n_rows: int) -> tuple[Kinds, NDArray[np.intp]]:
        """The kinds of the chains of a mode in order, and the order in which their matrices have the rows."""
        steps = np.ones(n_rows - 1)
        form = LINE if mode not in self.smooth_modes else smooth_form(steps)
        form = RING if mode in self.cyclic_modes else form
        return kinds_of(steps, n_kinds(n_rows) + form.n_second, form=form), order_of(n_rows, form)


@dataclass(frozen=True, eq=False)
class Truth:
    """One draw of all unknowns.

    Attributes
    ----------
    factors : (I_n, R) of every mode
    centres : (R,) by mode, of those modes that have one
    kinds : (R,) by mode, of those modes that are in order: the number of the kind of every component's chain
    component_precisions : λ (R,)
    noise_precision : τ
    slice_precisions : ω, over the noise modes; () where the noise is common
    rates : π over the rate modes; () where the rate is common
    positive : a; one half where both signs are equally likely
    outlying : outlier indicator z of every entry, equal for entries that share it
    sizes : η (I_n,) by mode, of those modes whose rows differ in size
    """

    factors: tuple[Array, ...]
    centres: Mapping[int, Array]
    kinds: Mapping[int, NDArray[np.intp]]
    component_precisions: Array
    noise_precision: float
    slice_precisions: Array
    rates: Array
    positive: float
    outlying: NDArray[np.bool_]
    sizes: Mapping[int, Array] = field(default_factory=dict)

    @property
    def low_rank(self) -> Array:
        """x at every entry."""
        shape = tuple(len(factor) for factor in self.factors)
        columns = zip(*(factor.T for factor in self.factors), strict=True)
        return sum((reduce(np.multiply.outer, column) for column in columns), np.zeros(shape))


def sample(model: GenerativeModel, shape: Sequence[int], rng: np.random.Generator) -> tuple[Truth, Array]:
    """Draw the unknowns, then data of the given shape: one observation of every entry.

    Returns
    -------
    truth : Truth
    data : ndarray
        Of the given shape, complete. Put NaN where entries are to be missing.
    """
    shape, prior, local = tuple(shape), model.prior, model.local
    lam = rng.gamma(prior.lam_concentration, 1.0 / prior.lam_rate, model.rank)
    centres = {mode: rng.standard_normal(model.rank) / np.sqrt(lam) for mode in model.centred_modes}
    chains = {mode: model.kinds(mode, shape[mode]) for mode in model.ordered_modes}
    kinds = {mode: rng.integers(0, len(chain.own), model.rank) for mode, (chain, _) in chains.items()}
    sizes = {
        mode: rng.gamma(model.row_concentration, 1.0 / model.row_concentration, shape[mode])
        for mode in model.unequal_modes
    }
    factors = tuple(
        centres.get(mode, 0.0)
        + _courses(chains.get(mode), kinds.get(mode), rng.standard_normal((length, model.rank)))
        / np.sqrt(np.outer(sizes.get(mode, np.ones(length)), lam))
        for mode, length in enumerate(shape)
    )
    factors = tuple(np.abs(rows) if mode in model.nonnegative_modes else rows for mode, rows in enumerate(factors))
    tau = float(rng.gamma(prior.tau_concentration, 1.0 / prior.tau_rate))
    omega, rates = np.ones(()), np.asarray(local.probability)
    if model.noise_modes:
        lengths = [shape[mode] for mode in model.noise_modes]
        omega = rng.gamma(model.noise_concentration, 1.0 / model.noise_concentration, lengths)
    if model.rate_modes:
        rates = rng.beta(*model.rate_prior, [shape[mode] for mode in model.rate_modes])
    positive = float(rng.beta(1.0, 1.0)) if model.one_sided else 0.5
    groups = tuple(1 if mode in model.shared_modes else length for mode, length in enumerate(shape))
    drawn = rng.random(groups) < _along(rates, model.rate_modes, len(shape))
    outlying = np.broadcast_to(drawn, shape).copy()
    truth = Truth(factors, centres, kinds, lam, tau, omega, rates, positive, outlying, sizes)
    return truth, _observe(model, truth, rng)


def _courses(chain: tuple[Kinds, NDArray[np.intp]] | None, kinds: NDArray[np.intp] | None, noise: Array) -> Array:
    """Chains of unit variance from independent numbers (I, R), every column of its kind; these if there are none.

    With Q = LLᵀ the column L⁻ᵀ of independent numbers has the covariance Q⁻¹.
    """
    if chain is None or kinds is None:
        return noise
    (own, beside, _, far), order = chain
    found = np.empty_like(noise)
    for r, k in enumerate(kinds):
        band = np.zeros((3, len(noise)))
        for row, part in zip(band, (own, beside, far), strict=True):
            row[: part.shape[1]] = part[k]
        root = cholesky_banded(band[: len(noise)], lower=True)
        found[order, r] = solve_banded((0, len(root) - 1), _upper(root), noise[:, r])
    return found


def _upper(root: Array) -> Array:
    """The transpose of a lower triangular band matrix, as a band."""
    return np.stack([np.concatenate([np.zeros(k), row[: row.size - k]]) for k, row in reversed(list(enumerate(root)))])


def _observe(model: GenerativeModel, truth: Truth, rng: np.random.Generator) -> Array:
    """Observe every entry: low-rank part plus noise, plus an outlier if additive, or a replacement value."""
    outlying = truth.outlying
    weight, dof, scale_sq, reach = model.local.mixture()
    noise, slab = (ErrorLaw(weight[k], dof[k], scale_sq[k], reach[k]) for k in (slice(0, 1), slice(1, None)))
    deviation = noise.draw(rng, outlying.shape)
    if outlying.any() and model.law is None:
        drawn = slab.draw(rng, outlying.shape)
        if model.one_sided:
            drawn = np.where(rng.random(drawn.shape) < truth.positive, 1.0, -1.0) * np.abs(drawn)
        deviation = np.where(outlying, drawn, deviation)
    data = truth.low_rank + deviation / np.sqrt(_precisions(model, truth))
    return data if model.law is None else np.where(outlying, model.law.draw(rng, data.shape), data)


def log_joint(model: GenerativeModel, data: Array, truth: Truth) -> float:
    """ln p(Y, truth), with every constant: the density of what :func:`sample` draws.

    NaN entries are missing and integrated out. So are the size of an outlier and the latent scale of the noise:
    ln p(y | z, x, τ, ω) = ½ ln(τω/2π) + ln f_z(τω (y − x)²), with f₀ and f₁ from the local model.
    """
    prior, lam, tau = model.prior, truth.component_precisions, truth.noise_precision
    total = _log_gamma(lam, prior.lam_concentration, prior.lam_rate)
    total += _log_gamma(np.asarray(tau), prior.tau_concentration, prior.tau_rate)
    if model.noise_modes:
        total += _log_gamma(truth.slice_precisions, model.noise_concentration, model.noise_concentration)
    for mode, factor in enumerate(truth.factors):
        deviation = factor - truth.centres.get(mode, 0.0)
        if mode in model.ordered_modes:
            chain, order = model.kinds(mode, len(factor))
            total += _log_chain(deviation[order], lam, chain, truth.kinds[mode])
        else:
            total += _log_normal(deviation, np.outer(truth.sizes.get(mode, np.ones(len(factor))), lam))
        if mode in model.nonnegative_modes:
            total += factor.size * math.log(2.0) if (factor >= 0.0).all() else -math.inf
    for sizes in truth.sizes.values():
        total += _log_gamma(sizes, model.row_concentration, model.row_concentration)
    for centre in truth.centres.values():
        total += _log_normal(centre, lam)
    if model.rate_modes:
        first, second = model.rate_prior
        rates = truth.rates
        total += float(np.sum(xlogy(first - 1.0, rates) + xlog1py(second - 1.0, -rates) - betaln(first, second)))
    total += _log_outlying(model, truth)
    observed = ~np.isnan(data)
    precision = _precisions(model, truth)[observed]
    deviation = (data - truth.low_rank)[observed]
    log_spike, _, log_slab, _ = model.local.branches(precision * deviation**2)
    counted = 0.5 * (np.log(precision) - LOG_TWO_PI)
    if model.law is not None:
        log_slab = np.log(model.law.density)[model.law.bins(data[observed])] - counted
    elif model.one_sided:
        log_slab = log_slab + np.log(2.0 * np.where(deviation >= 0.0, truth.positive, 1.0 - truth.positive))
    return total + float(np.sum(counted + np.where(truth.outlying[observed], log_slab, log_spike)))


def _log_outlying(model: GenerativeModel, truth: Truth) -> float:
    """ln p(z | π), counted once for entries that share an indicator."""
    groups = tuple(slice(0, 1) if mode in model.shared_modes else slice(None) for mode in range(len(truth.factors)))
    outlying = truth.outlying[groups]
    if not np.array_equal(np.broadcast_to(outlying, truth.outlying.shape), truth.outlying):
        return -math.inf
    rates = _along(truth.rates, model.rate_modes, outlying.ndim)
    return float(np.sum(np.where(outlying, xlogy(1.0, rates), xlog1py(1.0, -rates))))


def _precisions(model: GenerativeModel, truth: Truth) -> Array:
    """τω of every entry."""
    omega = _along(truth.slice_precisions, model.noise_modes, len(truth.factors))
    return np.broadcast_to(truth.noise_precision * omega, truth.outlying.shape)


def _along(numbers: Array, modes: Sequence[int], n_modes: int) -> Array:
    """Reshape an array over some modes so that it broadcasts over all modes."""
    lengths = dict(zip(modes, numbers.shape, strict=True))
    return numbers.reshape([lengths.get(mode, 1) for mode in range(n_modes)])


def _log_gamma(x: Array, concentration: float, rate: float) -> float:
    """Σ ln Ga(x | concentration, rate)."""
    constant = concentration * math.log(rate) - float(gammaln(concentration))
    return float(np.sum(constant + (concentration - 1.0) * np.log(x) - rate * x))


def _log_chain(x: Array, precision: Array, known: Kinds, kinds: NDArray[np.intp]) -> float:
    """Σ_r ln N(x_r | 0, (λ_r Q_k)⁻¹) of columns x (I, R) of the given kinds, and of the kinds themselves."""
    own, beside, far = (part[kinds].T for part in (known.own, known.beside, known.far))
    power = np.sum(own * x**2, axis=0) + 2.0 * np.sum(beside * x[:-1] * x[1:], axis=0)
    if len(far):
        power += 2.0 * np.sum(far * x[:-2] * x[2:], axis=0)
    log_det = len(x) * (np.log(precision) - LOG_TWO_PI) + known.log_det[kinds]
    return float(np.sum(0.5 * (log_det - precision * power) - math.log(len(known.own))))


def _log_normal(x: Array, precision: Array) -> float:
    """Σ ln N(x | 0, 1/precision)."""
    return float(np.sum(0.5 * (np.log(precision) - LOG_TWO_PI - precision * x**2)))
