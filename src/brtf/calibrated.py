"""Calibrated inference: sweeps in which an entry has no state of its own, judged by the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from brtf.bound import BoundTerms, calibrated_terms
from brtf.calibration import LARGEST_PRECISION, Histogram, NoisePrior, global_step, joint_step
from brtf.distributions import Array, Gamma, RowGaussians
from brtf.local import LocalPosterior, SlabModel
from brtf.model import SliceNoise, State
from brtf.observations import Observations, entry_positions
from brtf.updates import (
    Fit,
    fit_at_entries,
    update_component_precisions,
    update_factor,
    update_noise,
    update_slice_noise,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """What does not change during a fit: the data, their scaled values, the order of modes, and the form of the bound.

    ``collapsed`` is form 2, in which the outliers depend on the factors: entries are weighted and the covariances
    know what was an outlier. Form 1 completes the data instead; it is cheaper on complete data and looser.
    """

    observations: Observations
    values: Array
    modes: tuple[int, ...]
    collapsed: bool
    slice_indices: dict[tuple[int, ...], NDArray[np.intp]] = field(default_factory=dict)  # filled when asked for

    def slice_index(self, slices: SliceNoise | None) -> NDArray[np.intp] | None:
        """The slice of every entry, (M,); None where the noise is common."""
        if slices is None:
            return None
        if slices.modes not in self.slice_indices:
            self.slice_indices[slices.modes] = entry_positions(self.observations, slices.modes)
        return self.slice_indices[slices.modes]


@dataclass(frozen=True, eq=False)
class Point:
    """A state with everything that follows from it: the low-rank part at the entries, local posteriors, the bound."""

    state: State
    fit: Fit
    local: LocalPosterior | None
    terms: BoundTerms

    @property
    def bound(self) -> float:
        return self.terms.total

    @property
    def rank(self) -> int:
        return self.state.rank


def evaluate(problem: Problem, state: State) -> Point:
    """The point of a state."""
    fit = fit_at_entries(problem.observations, state.factors, per_entry=problem.collapsed)
    return evaluate_at(problem, state, fit)


def evaluate_at(problem: Problem, state: State, fit: Fit) -> Point:
    """The point of a state whose low-rank part is known already."""
    local = None
    if isinstance(state.outliers, SlabModel):
        local = state.outliers.posterior(float(state.tau.mean) * deviation(problem, state, fit))
    terms = calibrated_terms(state, fit, local, problem.slice_index(state.slices), collapsed=problem.collapsed)
    return Point(state, fit, local, terms)


def relative_precision(problem: Problem, state: State) -> Array | None:
    """ω̄ of every entry's slice, (M,); None where the noise is common."""
    index = problem.slice_index(state.slices)
    return None if state.slices is None or index is None else state.slices.precision.mean[index]


def deviation(problem: Problem, state: State, fit: Fit) -> Array:
    """ω̄ D (M,): the expected squared deviation of every entry, in units of its slice's noise."""
    relative = relative_precision(problem, state)
    return fit.deviation if relative is None else relative * fit.deviation


def sweep(problem: Problem, point: Point, *, hold_precisions: bool = False, hold_noise: bool = False) -> Point:
    """One pass: q(A⁽ⁿ⁾) for every mode, λ, then noise and outlier numbers together."""
    state = update_factors(problem, point)
    if not hold_precisions:
        state = update_component_precisions(balance(state))
    fit = fit_at_entries(problem.observations, state.factors, per_entry=problem.collapsed)
    if hold_noise:
        return evaluate_at(problem, state, fit)
    learnt = evaluate_at(problem, learn_noise(problem, state, fit), fit)
    # the histogram is right to second order in its bins: numbers that lower the exact bound are not taken
    return learnt if learnt.bound >= point.bound else evaluate_at(problem, state, fit)


def update_factors(problem: Problem, point: Point) -> State:
    """C2: U1 for every mode, with the entries' weights (form 2) or the completed data (form 1)."""
    state, local = point.state, point.local
    weights, precision = relative_precision(problem, state), float(state.tau.mean)
    if weights is not None and not problem.collapsed:
        raise ValueError("noise that differs between slices needs the collapsed form: set collapsed=True")
    targets = problem.values
    if local is not None and isinstance(state.outliers, SlabModel):
        if problem.collapsed:
            weights = local.weight if weights is None else weights * local.weight
        else:
            largest = state.outliers.largest_weight
            targets = problem.values - (1.0 - local.weight / largest) * point.fit.residual
            precision *= largest
    if weights is not None:
        targets = weights * problem.values
    for mode in problem.modes:
        state = update_factor(problem.observations, state, mode, targets, weights=weights, precision=precision)
    return state


def balance(state: State) -> State:
    """C6: rescale every component over the modes to equal mean squares; the low-rank part stays as it is."""
    if state.rank == 0:
        return state
    mean_squares = np.array([rows.component_power / rows.n_rows for rows in state.factors])
    geometric = np.exp(np.mean(np.log(mean_squares), axis=0))
    ratios = np.sqrt(geometric / mean_squares)
    factors = []
    for rows, ratio in zip(state.factors, ratios, strict=True):
        scaled = RowGaussians(rows.mean * ratio, rows.cov * (ratio[:, None] * ratio[None, :]))
        scaled.__dict__["log_det_cov"] = rows.log_det_cov + 2.0 * np.log(ratio).sum()
        factors.append(scaled)
    return replace(state, factors=tuple(factors))


def noise_prior(state: State) -> NoisePrior:
    return NoisePrior(state.prior.tau_concentration, state.prior.tau_rate)


def histogram_of(problem: Problem, state: State, fit: Fit) -> Histogram:
    return Histogram.of(deviation(problem, state, fit), 0.0 if problem.collapsed else fit.variance_sum)


def learn_noise(problem: Problem, state: State, fit: Fit, *, max_steps: int = 6) -> State:
    """The joint step for (τ, π, shape, ζ), or the closed form for τ without outliers; then the slices' noise."""
    n_observed = problem.observations.n_observed
    if isinstance(state.outliers, SlabModel):
        histogram = histogram_of(problem, state, fit)
        tau, model, _ = joint_step(
            float(state.tau.mean), state.outliers, histogram, noise_prior(state), max_steps=max_steps
        )
        state = with_noise(state, tau, model, n_observed)
    elif state.slices is None:
        state = cap_precision(update_noise(state, fit))
    else:
        concentration = state.prior.tau_concentration + 0.5 * n_observed
        rate = state.prior.tau_rate + 0.5 * float(deviation(problem, state, fit).sum())
        state = cap_precision(replace(state, tau=Gamma(np.asarray(concentration), np.asarray(rate))))
    return learn_slice_noise(problem, state, fit)


def learn_slice_noise(problem: Problem, state: State, fit: Fit) -> State:
    """The slices' noise given everything else; the weights are those of the numbers just learnt."""
    index = problem.slice_index(state.slices)
    if state.slices is None or index is None:
        return state
    tau = float(state.tau.mean)
    weighted = tau * fit.deviation
    if isinstance(state.outliers, SlabModel):
        weighted = weighted * state.outliers.posterior(tau * deviation(problem, state, fit)).weight
    slices = update_slice_noise(state.slices, index, weighted)
    # only the product τω is in the data: put the mean of ω at one, where the bound is largest
    mean = float(np.mean(slices.precision.mean))
    relative = Gamma(slices.precision.concentration, slices.precision.rate * mean)
    common = Gamma(state.tau.concentration, state.tau.rate / mean)
    return replace(state, slices=replace(slices, precision=relative), tau=common)


def slice_noise(problem: Problem, state: State, modes: tuple[int, ...]) -> State:
    """The state with noise that may differ along the given modes, all slices alike to begin with."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    alike = Gamma(np.full(n_slices, 10.0), np.full(n_slices, 10.0))
    return replace(state, slices=SliceNoise(modes, alike, 10.0))


def learn_noise_globally(problem: Problem, state: State, fit: Fit, kind: type[SlabModel] | None = None) -> State:
    """The global step C12 for the entries of a state, its present numbers among the starts."""
    if not isinstance(state.outliers, SlabModel):
        return learn_noise(problem, state, fit)
    kind = type(state.outliers) if kind is None else kind
    here = [(float(state.tau.mean), state.outliers)] if type(state.outliers) is kind else []
    tau, model, _ = global_step(kind, histogram_of(problem, state, fit), noise_prior(state), here)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_noise(state: State, tau: float, model: SlabModel | None, n_observed: int) -> State:
    """The state with q(τ) of mean ``tau`` and the given outlier model."""
    concentration = state.prior.tau_concentration + 0.5 * n_observed
    return replace(state, tau=Gamma(np.asarray(concentration), np.asarray(concentration / tau)), outliers=model)


def cap_precision(state: State) -> State:
    """Hold τ̄ at the resolution of the data."""
    if float(state.tau.mean) <= LARGEST_PRECISION:
        return state
    return replace(state, tau=Gamma(state.tau.concentration, state.tau.concentration / LARGEST_PRECISION))


def retemper(problem: Problem, state: State) -> State:
    """C13: lower τ̄ to what the residuals show after a structural change, the outliers' scale kept.

    Otherwise every entry of an accurate fit becomes an outlier the moment a component is added or removed.
    """
    residual = fit_at_entries(problem.observations, state.factors).residual
    relative = relative_precision(problem, state)
    if relative is not None:
        residual = residual * np.sqrt(relative)
    typical = 1.4826 * float(np.median(np.abs(residual)))
    tau = float(state.tau.mean)
    lower = min(tau, 1.0 / typical**2) if typical > 0 else tau
    model = state.outliers.rescaled(lower / tau) if isinstance(state.outliers, SlabModel) else None
    return with_noise(state, lower, model, problem.observations.n_observed)
