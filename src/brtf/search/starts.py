"""Initial states: spectral, steady along a mode, random, given, and many components at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, add_up
from brtf.inference.factor_update import FactorPlan, weighing
from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import learn_noise_globally, settle_noise, slice_noise, typical_residual, with_noise
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.problem import Fit, Problem
from brtf.inference.smooth_residual import absorbed
from brtf.inference.statistics import scaled_values
from brtf.inference.sweep import prune, sweep
from brtf.inference.updates import update_component_precisions
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import GaussianSlab, LocalModel, NoOutliers
from brtf.model.settings import Settings
from brtf.model.state import MeanFieldOutliers, Prior, State
from brtf.search.components import add_components, empty_state, without_negative
from brtf.search.sketch import is_sketched, sketch
from brtf.search.spectra import densest_along, leading_left_singular, rank_one_terms

LARGEST_START = 1e50
"""Size of given factors' products, in scales of the data, above which squares overflow before a fit corrects them."""
START_MODEL = GaussianSlab(0.1, 4.0, 100.0)
"""Initial local model: some outliers, heavy tails, a slab ten times as wide as the noise."""
START_PRECISIONS = (8.0, 30.0)
"""Noise precisions of the starts, for data of unit scale."""
START_COMPONENTS = 10
"""Components of a spectral start; births add what is missing."""
FEWEST_FOR_STEADY, STEADY_TERMS = 8, 3
"""Shortest mode for a steady start, and the most components of such a start."""
ANNEALED_CLIP, ANNEALED_PRECISIONS = 5.0, (300.0, 30.0)
"""Robust standard deviations at which many components at once clip the data, and the noise precisions at which they are
first fitted and then compete. Neither is derived; the bound judges what comes of them."""
ANNEALED_MODEL = GaussianSlab(0.05, 30.0, 60.0)
"""Local model while they compete: fewer outliers and lighter tails than at a start, as the fit is close already."""
LOW_NOISE = 1e4
"""Noise precision of plain least squares: a hundredth of the data's scale, so that hardly any component is shrunk."""
CLIP = 3.0
"""Robust standard deviations at which residuals are clipped while weights are not yet reliable."""


def paper_start(observations: Observations, settings: Settings, rng: np.random.Generator) -> State:
    """The paper's initialisation: λ̄ = τ̄ = γ̄ = 1, V = I, s̄ ~ N(0, 1), and factors from ``settings.init``."""
    rank, means = initial_factors(observations, settings, rng)
    outliers: MeanFieldOutliers | LocalModel = NoOutliers()
    if settings.robust:
        n_observed = observations.n_observed
        outliers = MeanFieldOutliers(
            mean=rng.standard_normal(n_observed),
            var=np.ones(n_observed),
            gamma=Gamma(np.asarray(1e-6), np.full(n_observed, 1e-6)),
            concentration=1e-6,
            rate=1e-6,
        )
    identity = np.eye(rank)[None]
    shared = observations.layout == "complete"
    return State(
        prior=Prior(),
        factors=tuple(
            RowGaussians(mean, identity if shared else np.repeat(identity, len(mean), axis=0)) for mean in means
        ),
        lam=Gamma(np.ones(rank), np.ones(rank)),
        tau=Gamma(np.asarray(1.0), np.asarray(1.0)),
        local=outliers,
    )


def initial_factors(
    observations: Observations, settings: Settings, rng: np.random.Generator
) -> tuple[int, list[Array]]:
    """Rank and factor means to start from, in units of the data's scale."""
    if not isinstance(settings.init, str):
        means = check_factors(settings.init, observations.shape)
        if settings.max_rank is not None and means[0].shape[1] > settings.max_rank:
            raise ValueError(
                f"init has {means[0].shape[1]} columns, but max_rank is {settings.max_rank}: raise it or drop columns."
            )
        share = observations.scale ** (1.0 / observations.order)
        means = [mean / share for mean in means]
        size = math.prod(float(np.max(np.abs(mean))) for mean in means)
        if not size < min(LARGEST_START, math.sqrt(np.finfo(observations.values.dtype).max)):
            raise ValueError(
                f"init gives values of {size:.3g} scales of the data, too far from them to start: rescale it."
            )
        return means[0].shape[1], means
    rank = settings.rank_limit(observations.shape, observations.n_observed)
    if settings.init == "random":
        return rank, [rng.standard_normal((length, rank)) for length in observations.shape]
    return rank, spectral_factors(observations, rank, rng)


def check_factors(factors: Sequence[Any], shape: tuple[int, ...]) -> list[Array]:
    """The given factor matrices as float arrays; a ValueError names the one that does not fit."""
    if len(factors) != len(shape):
        raise ValueError(f"init must have one factor matrix per mode ({len(shape)}), got {len(factors)}.")
    for mode, factor in enumerate(factors):
        try:
            dtype = np.asarray(factor).dtype
        except ValueError as error:
            raise ValueError(f"init[{mode}] must be a matrix, but its rows differ in length.") from error
        if dtype.kind not in "biuf":
            raise TypeError(f"init[{mode}] must hold real numbers, got dtype {dtype}.")
    means = [np.array(factor, dtype=np.float64) for factor in factors]
    for mode, (mean, length) in enumerate(zip(means, shape, strict=True)):
        wanted = (length, means[0].shape[-1] if means[0].ndim else 0)
        if mean.shape != wanted or wanted[1] == 0:
            raise ValueError(f"init[{mode}] must have shape {wanted} with at least one column, got {mean.shape}.")
        if not np.isfinite(mean).all():
            raise ValueError(f"init[{mode}] holds values that are not finite.")
    return means


def spectral_factors(observations: Observations, rank: int, rng: np.random.Generator) -> list[Array]:
    """U Σ^{1/2} of every unfolding, missing entries zero; columns beyond a mode's length are drawn from N(0, 1)."""
    factors = []
    for mode, length in enumerate(observations.shape):
        values = partial(scaled_values, observations)
        vectors, strengths = leading_left_singular(observations, mode, rank, values)
        columns = vectors * np.sqrt(strengths)
        extra = rng.standard_normal((length, rank - columns.shape[1]))
        factors.append(np.hstack([columns, extra]))
    return factors


def spectral_start(problem: Problem, max_rank: int, model: LocalModel) -> State:
    """C7: components of the clipped data, rescaled for missing entries.

    Large data: as many as their sketch shows. Otherwise a few, along leading directions of the unfoldings.
    """
    observations = problem.observations
    clipped = replace(problem, limit=CLIP)
    density = observations.n_observed / observations.n_entries
    if is_sketched(problem):
        rng = np.random.default_rng(0)
        found = sketch(observations, clipped.values, rng, max_rank)
        if found.n_components:
            columns = found.components(found.n_components, 1.0 / density, rng)
            return add_components(problem, empty_state(problem, model), columns)
    n_components = min(max_rank, START_COMPONENTS)
    columns = []
    for mode in range(observations.order):
        vectors, strengths = leading_left_singular(observations, mode, n_components, clipped.values)
        columns.append(vectors * (strengths / density) ** (1.0 / observations.order))
    n_columns = min(column.shape[1] for column in columns)
    return add_components(problem, empty_state(problem, model), [column[:, :n_columns] for column in columns])


def steady_start(problem: Problem, mode: int, n_components: int, model: LocalModel) -> State | None:
    """C19: the steady part along a mode as first components; None where it is negligible.

    In a video this is the background behind moving objects: a start that outliers do not affect.
    """
    observations = problem.observations
    steady = densest_along(observations, mode) if observations.shape[mode] >= FEWEST_FOR_STEADY else None
    if steady is None:
        return None
    columns = rank_one_terms(steady, min(STEADY_TERMS, n_components))
    if not columns:
        return None
    columns.insert(mode, np.ones((observations.shape[mode], columns[0].shape[1])))
    state = add_components(problem, empty_state(problem, model), columns)
    rest = Fit.of(replace(problem, collapsed=False), state).residual
    typical, before = (typical_residual(problem, state, field) for field in (rest, problem.values))
    if not 0 < typical < 0.5 * before:
        return None
    return with_noise(state, 1.0 / typical**2, model, observations.n_observed)


def random_start(problem: Problem, n_components: int, model: LocalModel, rng: np.random.Generator) -> State:
    """Random components with the total power of the clipped data."""
    observations, clipped = problem.observations, replace(problem, limit=CLIP)

    def add(sums: Sums, block: Block) -> None:
        sums[0][...] += np.sum(clipped.values(block) ** 2)

    (power,) = add_up(observations, lambda: (np.zeros(()),), add)
    amplitude = (float(power) / observations.n_observed / n_components) ** (0.5 / observations.order)
    drawn = {mode: rng.standard_normal((observations.shape[mode], n_components)) for mode in problem.modes}
    columns = [amplitude * drawn[mode] for mode in range(observations.order)]
    return add_components(problem, empty_state(problem, model), columns)


def portfolio(problem: Problem, max_rank: int, model: LocalModel) -> list[State]:
    """The candidate starts: spectral ones at two noise levels, and the steady part along a mode.

    At a high noise level weak components die before they are learnt; at a low one surplus components survive and have
    to be merged or removed. Neither level is right for all data.
    """
    spectral = spectral_start(problem, max_rank, model)
    starts = [with_noise(spectral, tau, model, problem.observations.n_observed) for tau in START_PRECISIONS]
    for mode in problem.modes:
        steady = steady_start(problem, mode, max_rank, model)
        if steady is not None:
            starts.append(steady)
    return starts


def compact(start: State) -> State:
    """A start in compact form: the rows of a mode, whose covariances are equal, share one."""
    return replace(start, factors=tuple(RowGaussians(rows.mean, rows.cov_packed[:1].copy()) for rows in start.factors))


def expanded(start: State) -> State:
    """A start in full form: every row has its own covariance."""
    factors = (RowGaussians(rows.mean, np.repeat(rows.cov_packed, rows.n_rows, axis=0)) for rows in start.factors)
    return replace(start, factors=tuple(factors))


def anneal(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at low noise on clipped data, then noise at which surplus ones die."""
    clipped = replace(problem, limit=ANNEALED_CLIP)
    state = _fit_by_least_squares(clipped, n_components, ANNEALED_PRECISIONS[0], rng)
    completed = replace(problem, collapsed=False)
    model = ANNEALED_MODEL if present.local.has_outliers else NoOutliers()
    noisy = with_noise(state, ANNEALED_PRECISIONS[1], model, problem.observations.n_observed)
    point = evaluate(completed, noisy, ahead=True)
    for _ in range(100):
        before = point
        point = prune(completed, sweep(completed, point, hold_noise=True, ahead=True))
        if point.bound - before.bound < WORTH and point.rank == before.rank:
            break
    return _of_the_kind_of(problem, point.state, present)


def least_squares(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at very low noise, for data whose slices differ widely in level."""
    state = _fit_by_least_squares(problem, n_components, LOW_NOISE, rng)
    return update_component_precisions(_of_the_kind_of(problem, state, present))


def _of_the_kind_of(problem: Problem, state: State, present: State) -> State:
    """The state with the same kind of noise and outliers, their parameters learnt from its own residuals.

    Modes without negative loadings have none either, those in order stay so, and a smooth residual goes on. Other rows
    begin about zero: the search finds their prior again, and from there a higher bound than from the present one.
    """
    unsigned = [mode for mode, prior in enumerate(present.row_priors) if not prior.signed]
    state = without_negative(state, unsigned)
    for mode, prior in enumerate(present.row_priors):
        if prior.ordered:
            state = state.with_factor(mode, *prior.begun_again(state.factors[mode], state.lam))
    if present.local.has_outliers and not state.local.has_outliers:
        state = replace(state, local=START_MODEL)
    point = evaluate(problem, state)
    state = learn_noise_globally(problem, point)
    if present.slices is not None or present.structure is not None:
        if present.slices is not None:
            state = slice_noise(problem, state, present.slices.modes)
        state = replace(state, structure=present.structure)
        state = settle_noise(problem, evaluate_at(problem, state, point.fit)).state
    if present.smooth is None:
        return state
    return absorbed(problem, replace(state, smooth=present.smooth), evaluate(problem, state), learn=True)


def _fit_by_least_squares(problem: Problem, n_components: int, precision: float, rng: np.random.Generator) -> State:
    """Random components, then sweeps without outliers at a fixed noise level: regularised alternating least squares.

    Without outliers the weights of the entries stay as they are, and nothing asks for the bound.
    """
    plain = replace(problem, collapsed=False)
    state = random_start(plain, n_components, NoOutliers(), rng)
    state = with_noise(state, precision, NoOutliers(), problem.observations.n_observed)
    weigh = weighing(plain, state, Fit.of(plain, state))
    for _ in range(30):
        state = FactorPlan.of(plain, state).carry_out(weigh)
    return state
