"""Noise and outlier parameters of a state, learnt from the deviations of its entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from brtf import kernels
from brtf.data.blocks import Block
from brtf.data.passes import Field, Sums, add_up
from brtf.data.scale import SD_PER_MEDIAN
from brtf.inference.entry_posterior import learnt_structure
from brtf.inference.judge import WORTH
from brtf.inference.noise_fit import (
    ROUGHLY,
    Histogram,
    NoisePrior,
    branch_step,
    global_step,
    joint_step,
    shared_rate,
    sided_step,
    worth,
)
from brtf.inference.point import Point, deviation_histogram, evaluate_at, log_sides_of, variance_of_completed
from brtf.inference.problem import Fit, Problem, slice_variances
from brtf.inference.updates import gain_of_slices, update_slice_noise
from brtf.kernels.arguments import StructureSums
from brtf.model.distributions import Gamma
from brtf.model.local_models import LocalModel
from brtf.model.state import OutlierStructure, Sides, SliceNoise, State

SETTLED = 0.1 * WORTH
"""Gain of a step in nats below which the noise has settled."""


def noise_prior(state: State) -> NoisePrior:
    """The prior of τ, with the largest τ̄ for which no slice's τ̄ω̄ exceeds the limit."""
    steadiest = 1.0 if state.slices is None else float(state.slices.mean.max())
    return NoisePrior(state.prior.tau_concentration, state.prior.tau_rate, state.prior.largest_precision / steadiest)


def learn_noise(problem: Problem, point: Point, *, max_steps: int = 6) -> State:
    """Learn the noise of the slices, then τ and the local model's parameters jointly."""
    state, deviations = point.state, point.deviations
    if state.slices is not None and point.slice_squares is not None and point.slice_entries is not None:
        largest = state.prior.largest_precision / float(state.tau.mean)
        slices = update_slice_noise(state.slices, point.slice_entries, point.slice_squares, largest)
        state = _with_slices(state, slices)
        if state.structure is None:
            variance = 0.0 if problem.collapsed else variance_of_completed(problem, state)[0]
            deviations = deviation_histogram(problem, state, point.fit, variance)
        else:  # responsibilities depend on the noise of the slices
            point = evaluate_at(problem, state, point.fit)
            deviations = point.deviations
    n_observed = problem.observations.n_observed
    if state.structure is not None and point.structure_sums is not None:
        if not state.structure.one_by_one:
            return _learn_structured(problem, state, point.structure_sums, deviations, max_steps)
        state, deviations = _with_sides(state, point.structure_sums, deviations)
    tau, model, _ = joint_step(
        float(state.tau.mean), state.local_model, deviations, noise_prior(state), max_steps=max_steps
    )
    return with_noise(state, tau, model, n_observed)


def _learn_structured(
    problem: Problem, state: State, sums: StructureSums, deviations: Histogram, max_steps: int
) -> State:
    """Learn noise and outlier parameters given the responsibilities, then the structure's own parameters."""
    model, structure = state.local_model, state.structure
    if structure is None:
        raise TypeError("The state has no structure of outliers to learn.")
    largest = float(deviations.deviation[-1])
    regular = Histogram.from_shares(sums.regular_counts, sums.regular_totals, largest, deviations.penalty)
    replaced = structure.law is not None
    outlying = None if replaced else Histogram.from_shares(sums.outlying_counts, sums.outlying_totals, largest, 0.0)
    n_counted = float(sums.regular_counts.sum()) if replaced else problem.observations.n_observed
    tau, model = branch_step(
        float(state.tau.mean), model, regular, outlying, noise_prior(state), n_counted, max_steps=max_steps
    )
    channels = structure.n_channels
    n_outlying, n_groups = sums.groups[:2]
    rate = shared_rate(channels * float(n_outlying), channels * float(n_groups))
    sizes = None if structure.rates is None else problem.n_entries_along(structure.rates.modes)
    state = with_noise(state, tau, replace(model, probability=rate), n_counted)
    return replace(state, structure=learnt_structure(structure, sums, sizes))


def _with_sides(state: State, sums: StructureSums, deviations: Histogram) -> tuple[State, Histogram]:
    """The state of a point with its outliers' sides learnt, and the deviations for that state."""
    if state.structure is None or state.structure.sides is None:
        return state, deviations
    structure = learnt_structure(state.structure, sums, None)
    _, log_sides = log_sides_of(structure, sums)
    return replace(state, structure=structure), replace(deviations, log_sides=log_sides)


def _with_slices(state: State, slices: SliceNoise) -> State:
    """The state with other noise of the slices; only the product τω is identified, so the mean of ω is set to one."""
    mean = float(np.mean(slices.mean))
    relative = Gamma(slices.precision.concentration, slices.precision.rate * mean)
    common = Gamma(state.tau.concentration, state.tau.rate / mean)
    return replace(state, slices=replace(slices, precision=relative), tau=common)


def slice_noise(problem: Problem, state: State, modes: tuple[int, ...]) -> State:
    """The state with noise that may differ along the given modes; initially all slices are equal."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    alike = Gamma(np.full(n_slices, 10.0), np.full(n_slices, 10.0))
    return replace(state, slices=SliceNoise(modes, alike, 10.0))


def promised_by_slices(problem: Problem, point: Point, candidates: Sequence[tuple[int, ...]]) -> list[float]:
    """A lower bound of the gain of noise that differs along each set of modes, all else as in the point.

    As ln f is convex with slope −w/2, the bound rises by at least max_a Σ_g [ln Γ(a + ½M_g) − ln Γ(a) + a ln a −
    (a + ½M_g) ln(a + ½S_g) + ½S_g] with S_g = Σ_{m∈g} τ̄ w D. It is zero as a → ∞, where all slices are alike, and
    exact without outliers. One pass.
    """
    sizes = [math.prod(problem.observations.shape[mode] for mode in modes) for modes in candidates]

    def add(sums: Sums, block: Block) -> None:
        found = point.local(block)
        squares = found.rho * found.weight
        for total, modes in zip(sums, candidates, strict=True):
            kernels.add_to_slices(block, modes, squares, total)

    squares = add_up(problem.observations, lambda: tuple(np.zeros(size) for size in sizes), add)
    if not problem.collapsed:
        weight = float(point.state.tau.mean) * point.state.local_model.largest_weight
        squares = tuple(
            total + weight * slice_variances(problem, point.state, modes)
            for total, modes in zip(squares, candidates, strict=True)
        )
    return [gain_of_slices(problem.n_entries_along(m), s) for m, s in zip(candidates, squares, strict=True)]


def learn_noise_globally(problem: Problem, point: Point, kind: type[LocalModel] | None = None) -> State:
    """The global step C12 for the entries of a point; its current parameters are among the starts."""
    state, deviations = point.state, point.deviations
    present, structure = state.local_model, state.structure
    if present.is_gaussian or (structure is not None and not structure.one_by_one):
        return learn_noise(problem, point, max_steps=40)
    if point.structure_sums is not None:
        state, deviations = _with_sides(state, point.structure_sums, deviations)
    kind = type(present) if kind is None else kind
    here = [(float(state.tau.mean), present)] if type(present) is kind else []
    tau, model, _ = global_step(kind, deviations, noise_prior(state), here)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_local_model(problem: Problem, point: Point, kind: type[LocalModel]) -> State:
    """The state of a point with another local model, fitted from the current noise level."""
    state, tau = point.state, float(point.state.tau.mean)
    start = tau, kind.resembling(state.local_model)
    tau, model, _ = global_step(kind, point.deviations, noise_prior(state), [start], [tau], little=ROUGHLY)
    return with_noise(state, tau, model, problem.observations.n_observed)


def with_sides(problem: Problem, point: Point) -> tuple[State, float]:
    """The state of a point with one-sided outliers, or with symmetric ones if they are one-sided already.

    Also returns the gain of the bound, ignoring outlier rates that differ between slices.
    """
    state, prior, tau = point.state, noise_prior(point.state), float(point.state.tau.mean)
    structure, model = state.structure or OutlierStructure(), state.local_model
    if not model.has_outliers:
        raise TypeError("The outliers' sides need a local model with outliers.")
    sides: Sides | None = None
    if structure.sides is None:
        signed = deviation_histogram(problem, state, point.fit, point.deviations.penalty, signed=True)
        before = worth(tau, model, signed, prior)
        tau, model, sides, value = sided_step(tau, model, signed, prior)
    else:
        before = worth(tau, model, point.deviations, prior) - structure.sides.kl
        tau, model, value = joint_step(tau, model, replace(point.deviations, positive=None), prior)
    changed = replace(structure, sides=sides)
    state = with_noise(state, tau, model, problem.observations.n_observed)
    return replace(state, structure=None if changed.is_plain else changed), value - before


def noise_worth(point: Point, state: State) -> float:
    """The part of the bound due to noise and outlier parameters of a state, at the entries of a point."""
    return worth(float(state.tau.mean), state.local_model, point.deviations, noise_prior(state))


def with_noise(state: State, tau: float, model: LocalModel, n_observed: float) -> State:
    """The state with q(τ) of mean ``tau``, limited to the largest precision, and the given local model."""
    concentration = state.prior.tau_concentration + 0.5 * n_observed
    tau = min(tau, noise_prior(state).largest)
    return replace(state, tau=Gamma(np.asarray(concentration), np.asarray(concentration / tau)), local=model)


def with_smooth_as_noise(state: State) -> State:
    """The state without its smooth residual, whose variance is added to that of the noise."""
    if state.smooth is None:
        return state
    tau = float(state.tau.mean)
    ratio = 1.0 / (1.0 + tau * state.smooth.variance)
    common = Gamma(state.tau.concentration, state.tau.rate / ratio)
    return replace(state, smooth=None, tau=common, local=state.local_model.rescaled(ratio))


def typical_residual(problem: Problem, state: State, residual: Field) -> float:
    """1.4826 median|r|, the robust standard deviation of the residuals in units of their slices' noise."""
    return SD_PER_MEDIAN * math.sqrt(deviation_histogram(problem, state, Fit(residual, None)).quantile(0.5))


def retemper(problem: Problem, state: State) -> State:
    """C13: lower τ̄ to the level of the residuals after a structural change, keeping the scale of the outliers.

    Otherwise every entry of an accurate fit would become an outlier when a component is added or removed.
    """
    typical = typical_residual(problem, state, Fit.of(replace(problem, collapsed=False), state).residual)
    tau = float(state.tau.mean)
    lower = min(tau, 1.0 / typical**2) if typical > 0 else tau
    return with_noise(state, lower, state.local_model.rescaled(lower / tau), problem.observations.n_observed)


def settle_noise(problem: Problem, point: Point) -> Point:
    """Settle the noise of slices or the outlier structure at fixed factors: up to ten steps that raise the bound."""
    for _ in range(10):
        settled = evaluate_at(problem, learn_noise(problem, point), point.fit)
        gain = settled.bound - point.bound
        if gain > 0:
            point = settled
        if not gain > SETTLED:
            break
    return point
