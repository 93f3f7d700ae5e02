"""The smooth residual g: its posterior by a Kalman smoother along every fibre, and its parameters.

With the weights of the entries fixed, the bound is that of Gaussian observations y − x̄ of g with precisions τ̄ω̄w. The
smoother then gives the best q(g), and the evidence of its chains is the bound of everything else: φ and σ² maximise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.chains import Chains
from brtf.data.passes import whole
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.point import Point
from brtf.inference.problem import Fit, Problem
from brtf.kernels.arguments import WeighedEntries
from brtf.model.distributions import Gamma
from brtf.model.relative_precisions import log_gain
from brtf.model.smooth_residual import LARGEST_MEMORY, SMALLEST_VARIANCE, SmoothResidual
from brtf.model.state import State

STEPS = 40
"""Most evaluations of the evidence in a search for φ and σ²; a search goes on from where the last one ended."""
CLOSE = 1e-3
"""Nats of the evidence at which such a search ends."""
SMALLEST_MEMORY = 1e-2
"""Lower limit of φ: neighbours so little alike are white noise."""
LEAST_DIFFERENT = 1e-8
"""Variance of η below which fibres are alike: ln Γ of its inverse is still exact to a nat in all."""
RELATIVE = 2.0 ** np.arange(-10, 11)
"""Precisions η of a fibre, relative to the typical one, at which a start is looked for."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the entries say about g, in the order of its chains: targets y − x̄ and their precisions, each (M,)."""

    chains: Chains
    target: Array
    precision: Array

    def evidence(self, memory: float, variances: Array, factor: float = 1.0) -> float:
        """The log evidence of the chains, with all precisions multiplied by a factor."""
        return kernels.fibre_evidence(
            self.chains.starts, self.chains.decay(memory), factor * self.precision, self.target, variances
        )


def entry_precisions(problem: Problem, state: State, local: Callable[[Block], WeighedEntries]) -> Array:
    """τ̄ω̄w of every entry, (M,)."""
    tau, gaussian = float(state.tau.mean), state.local_model.is_gaussian

    def of_block(block: Block) -> Array:
        relative = relative_precision(state, block)
        weight = np.full(block.n_entries, tau)
        if not gaussian:
            weight *= np.maximum(local(block).weight, 0.0)  # that of an outlier may be negative by rounding
        return weight if relative is None else weight * relative

    return whole(problem.observations, of_block)


def update_smooth_residual(
    problem: Problem, state: State, low_rank: Fit, precision: Array, *, learn: bool
) -> tuple[State, Fit]:
    """C28: q(g) given everything else, and if ``learn`` its parameters; ``low_rank`` is the fit without g.

    Returns the state and its fit with g. η is updated after g: q(η_f) = Ga(a + ½T_f, a + ½ E[gᵀQg]/σ²).
    """
    smooth = state.smooth
    if smooth is None:
        raise TypeError("The state has no smooth residual to update.")
    chains = problem.chains_along(smooth.mode)
    seen = Seen(chains, chains.sorted(whole(problem.observations, low_rank.residual)), chains.sorted(precision))
    if learn:
        smooth = _learnt(seen, smooth)
    smooth = _smoothed(seen, smooth)
    return replace(state, smooth=smooth), low_rank.beside(problem, smooth)


def absorbed(problem: Problem, state: State, point: Point, *, learn: bool = False) -> State:
    """The state with g adapted to its factors, with the weights of a point; unchanged if it has no smooth residual.

    After a change of the components g would follow slowly, sweep by sweep.
    """
    if state.smooth is None:
        return state
    precision = entry_precisions(problem, point.state, point.local)
    return update_smooth_residual(problem, state, Fit.without_smooth(problem, state.factors), precision, learn=learn)[0]


def _learnt(seen: Seen, smooth: SmoothResidual) -> SmoothResidual:
    """φ and σ² at the maximum of the evidence, given η̄."""
    relative = 1.0 / smooth.relative.mean

    def loss(place: Array) -> float:
        memory, variance = _parameters(place)
        return -seen.evidence(memory, variance * relative)

    start = np.array([_logit(smooth.memory), math.log(smooth.variance)])
    found = _minimum(loss, start, STEPS)
    memory, variance = _parameters(found)
    return replace(smooth, memory=memory, variance=variance)


def _smoothed(seen: Seen, smooth: SmoothResidual) -> SmoothResidual:
    """q(g) for the given parameters, then q(η) and its prior, with their divergence."""
    chains, sizes, eta = seen.chains, seen.chains.sizes, smooth.relative.mean
    found = kernels.smooth_fibres(
        chains.starts, chains.decay(smooth.memory), seen.precision, seen.target, smooth.variance / eta
    )
    loss = 0.5 * float(seen.precision @ (np.square(found.mean - seen.target) + found.var))
    divergence = -float(found.evidence.sum()) - loss
    power = found.squares / smooth.variance
    prior = _best_concentration(sizes, power, smooth.concentration)
    relative = Gamma(prior + 0.5 * sizes, prior + 0.5 * power)
    divergence += 0.5 * float((relative.mean - eta) @ power + sizes @ (np.log(eta) - relative.mean_log))
    mean, var, next_cov = (chains.entries(vector) for vector in (found.mean, found.var, found.next_cov))
    return replace(
        smooth,
        relative=relative,
        concentration=prior,
        mean=mean,
        var=var,
        next_cov=next_cov,
        divergence=divergence + relative.kl(prior, prior),
    )


def _best_concentration(sizes: Array, power: Array, present: float) -> float:
    """a at the maximum of Σ_f ln ∫ Ga(η | a, a) η^{T_f/2} e^{−η power_f/2} dη, where q(η) is updated with it."""

    def loss(log_a: float) -> float:
        return -log_gain(math.exp(log_a), 0.5 * sizes, 0.5 * power)

    bounds = math.log(RELATIVE[0]), -math.log(LEAST_DIFFERENT)
    found = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)
    return math.exp(min((found, math.log(present), bounds[1]), key=loss))


def proposed_smooth_residual(
    problem: Problem, state: State, low_rank: Fit, local: Callable[[Block], WeighedEntries], mode: int
) -> tuple[SmoothResidual, float, float]:
    """A smooth residual along a mode for a state without one, and the τ̄ beside it as a multiple of the present one.

    φ, σ² and the multiple c maximise the evidence Σ ln Z + ½M ln c − ½c Σ τ̄w Var x together, M counting regular
    entries. Also returns the nats by which that is above the same without g.
    """
    chains = problem.chains_along(mode)
    precision = entry_precisions(problem, state, local)
    seen = Seen(chains, chains.sorted(whole(problem.observations, low_rank.residual)), chains.sorted(precision))
    spread = 0.0 if low_rank.variance is None else float(precision @ whole(problem.observations, low_rank.variance))
    n_regular = float(np.minimum(precision / float(state.tau.mean), 1.0).sum())
    noise = max(n_regular, 1.0) / float(precision.sum())

    def gain(memory: float, variance: float, factor: float) -> float:
        own = np.full(chains.sizes.size, variance)
        return seen.evidence(memory, own, factor) + 0.5 * n_regular * math.log(factor) - 0.5 * factor * spread

    squares = float(seen.precision @ np.square(seen.target))
    alone = min(max(n_regular / max(squares, 1e-300), math.exp(-3.0)), math.exp(20.0))
    before = max(0.5 * n_regular * math.log(f) - 0.5 * f * (squares + spread) for f in (1.0, alone))

    def loss(place: Array) -> float:
        return -gain(*_parameters(place[:2]), math.exp(min(max(place[2], -3.0), 20.0)))

    starts = [np.array([_logit(memory), math.log(noise), math.log(2.0)]) for memory in (0.5, 0.95)]
    best = min((_minimum(loss, start, 3 * STEPS) for start in starts), key=loss)
    memory, variance = _parameters(best[:2])
    factor = math.exp(min(max(best[2], -3.0), 20.0))
    relative, concentration, more = _relative(seen, memory, variance, factor)
    nothing = np.zeros(chains.keys.size)
    smooth = SmoothResidual(mode, memory, variance, relative, concentration, nothing, nothing, nothing, divergence=0.0)
    return smooth, factor, more - loss(best) - before


def _relative(seen: Seen, memory: float, variance: float, factor: float) -> tuple[Gamma, float, float]:
    """q(η) and a at the maximum of the evidence with η summed over a grid, and its gain over η = 1.

    From a start with equal fibres the updates would not find out that they differ: q(η) and a follow each other.
    """
    chains = seen.chains
    decay, precision = chains.decay(memory), factor * seen.precision
    log_evidence = np.array(
        [
            kernels.smooth_fibres(
                chains.starts, decay, precision, seen.target, np.full(chains.sizes.size, own)
            ).evidence
            for own in variance / RELATIVE
        ]
    )
    equal = log_evidence[RELATIVE == 1.0][0]
    best = (0.0, 1.0 / LEAST_DIFFERENT, np.ones(chains.sizes.size))
    for concentration in RELATIVE:
        log_prior = concentration * (np.log(RELATIVE) - RELATIVE)
        joint = log_evidence + (log_prior - logsumexp(log_prior))[:, None]
        total = logsumexp(joint, axis=0)
        gain = float(np.sum(total - equal))
        if gain > best[0]:
            best = gain, float(concentration), RELATIVE @ np.exp(joint - total)
    gain, concentration, mean = best
    shape = concentration + 0.5 * chains.sizes
    return Gamma(shape, shape / mean), concentration, gain


def neighbours_alike(problem: Problem, state: State, fit: Fit, local: Callable[[Block], WeighedEntries]) -> Array:
    """Per mode how far the correlation of neighbouring residuals is beyond chance, in standard deviations; (N,).

    Σ (u u' − e) / √(Σ u² u'²) over pairs of neighbours, u being residuals in units of the noise, weighted by √w, about
    the mean of their fibre: a shift of whole fibres or slices is no course. Of T independent entries a pair has
    e = −Σ u² / (T (T − 1)). About normal with variance one where all are independent.
    """
    observations = problem.observations
    weighted = np.sqrt(entry_precisions(problem, state, local)) * whole(observations, fit.residual)
    found = []
    for mode in range(observations.order):
        products, by_chance = _of_neighbours(problem, weighted, mode)
        size = float(np.sqrt(np.square(products).sum()))
        found.append((float(products.sum()) - by_chance) / size if size > 0 else 0.0)
    return np.array(found)


def _of_neighbours(problem: Problem, values: Array, mode: int) -> tuple[Array, float]:
    """The products of the values (M,) of neighbours along a mode about the means of their fibres, zeros where one is
    missing, and their sum by chance."""
    observations = problem.observations
    if observations.coords is None:
        seen = np.ones(observations.shape, dtype=bool) if observations.mask is None else observations.mask
        everywhere = np.zeros(observations.shape)
        everywhere[seen] = values
        seen, along = np.moveaxis(seen, mode, 0), np.moveaxis(everywhere, mode, 0)
        n_seen, n_pairs = seen.sum(axis=0), (seen[1:] & seen[:-1]).sum(axis=0)
        along = np.where(seen, along - along.sum(axis=0) / np.maximum(n_seen, 1), 0.0)
        products, squares = along[1:] * along[:-1], np.square(along).sum(axis=0)
    else:
        chains = problem.chains_along(mode)
        first, together, n_seen = chains.starts[:-1], chains.gaps == 1.0, chains.sizes
        along = chains.sorted(values)
        along = along - np.repeat(np.add.reduceat(along, first) / n_seen, np.diff(chains.starts))
        n_pairs = np.add.reduceat(together.astype(np.float64), first)
        products, squares = (along[1:] * along[:-1])[together[1:]], np.add.reduceat(np.square(along), first)
    return products, -float(np.sum(n_pairs * squares / np.maximum(n_seen * (n_seen - 1.0), 1.0)))


def _parameters(place: Array) -> tuple[float, float]:
    """φ and σ² from unbounded numbers, within their limits."""
    memory = 1.0 / (1.0 + math.exp(-min(max(float(place[0]), -30.0), 30.0)))
    variance = math.exp(min(max(float(place[1]), math.log(SMALLEST_VARIANCE)), 50.0))
    return min(max(memory, SMALLEST_MEMORY), LARGEST_MEMORY), variance


def _logit(memory: float) -> float:
    return math.log(memory / (1.0 - memory))


def _minimum(loss: Callable[[Array], float], start: Array, n_steps: int) -> Array:
    """The best place found by a simplex search that begins at ``start``, which is among the candidates."""
    simplex = np.vstack([start, start + 0.5 * np.eye(start.size)])
    options = {"maxfev": n_steps, "fatol": CLOSE, "xatol": 1e-4, "initial_simplex": simplex}
    return np.asarray(minimize(loss, start, method="Nelder-Mead", options=options).x)
