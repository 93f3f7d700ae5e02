"""The smooth residual: its smoother is dense algebra, its bound is Monte Carlo, and no sweep lowers it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm

from brtf import kernels
from brtf.api.synthetic import synthetic
from brtf.data.chains import Chains
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.inference.bound import bound
from brtf.inference.point import evaluate
from brtf.inference.problem import Fit, Problem
from brtf.inference.smooth_residual import (
    entry_precisions,
    neighbours_alike,
    proposed_smooth_residual,
    update_smooth_residual,
)
from brtf.inference.sweep import sweep
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import GaussianSlab, NoOutliers, StudentSlab
from brtf.model.smooth_residual import SmoothResidual
from brtf.search.starts import START_MODEL, random_start

SHAPE = (4, 9, 3)
TWINS = [kernels.twin("numba"), kernels.twin("numpy")]


def random_chains(seed, n_chains=5):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, n_chains)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    n = starts[-1]
    decay = rng.uniform(0.05, 0.98, n)
    precision = rng.gamma(2.0, 2.0, n) * (rng.random(n) < 0.8)
    return starts, decay, precision, rng.standard_normal(n), rng.gamma(2.0, 1.0, n_chains)


def dense_chain(decay, precision, target, variance):
    """Mean, covariance, log evidence and E[gᵀQg] of one chain, from its correlation matrix."""
    size = decay.size
    correlation = np.array([[np.prod(decay[min(i, j) + 1 : max(i, j) + 1]) for j in range(size)] for i in range(size)])
    prior = variance * correlation
    cov = np.linalg.inv(np.linalg.inv(prior) + np.diag(precision))
    mean = cov @ (precision * target)
    log_det = np.linalg.slogdet(np.eye(size) + prior * precision)[1]
    evidence = -0.5 * log_det - 0.5 * target @ (precision * target) + 0.5 * mean @ (precision * target)
    squares = np.trace(np.linalg.inv(correlation) @ (cov + np.outer(mean, mean)))
    return mean, cov, evidence, squares


@pytest.mark.parametrize("twin", TWINS, ids=["numba", "numpy"])
def test_smoother_is_dense_algebra(twin):
    for seed in range(10):
        starts, decay, precision, target, variance = random_chains(seed)
        found = twin.smooth_fibres(starts, decay, precision, target, variance)
        for f, (first, end) in enumerate(pairwise(starts)):
            own = slice(first, end)
            mean, cov, evidence, squares = dense_chain(decay[own], precision[own], target[own], variance[f])
            close = {"rtol": 1e-10, "atol": 1e-12}
            np.testing.assert_allclose(found.mean[own], mean, **close)
            np.testing.assert_allclose(found.var[own], np.diag(cov), **close)
            np.testing.assert_allclose(found.next_cov[own], [*np.diag(cov, 1), 0.0], **close)
            np.testing.assert_allclose(found.evidence[f], evidence, **close)
            np.testing.assert_allclose(found.squares[f], squares, **close)
        total = twin.fibre_evidence(starts, decay, precision, target, variance)
        assert total == pytest.approx(found.evidence.sum(), rel=1e-10)


def given(seed, layout, kind=NoOutliers):
    """A problem, a point without smooth residual, and the same with one."""
    rng = np.random.default_rng(seed)
    dense = synthetic(SHAPE, 2, noise=0.3, seed=seed).observed + rng.standard_normal(SHAPE).cumsum(axis=1)
    if layout != "complete":
        dense[rng.random(SHAPE) < 0.2] = np.nan
    coords = np.nonzero(np.isfinite(dense))
    observations = observe(dense)
    if layout == "coordinates":
        observations = Observations.from_coords(coords, dense[coords], SHAPE)
    problem = Problem(observations, tuple(range(3)), collapsed=True)
    model = NoOutliers() if kind is NoOutliers else kind.resembling(START_MODEL)
    point = evaluate(problem, random_start(problem, 2, model, np.random.default_rng(seed)))
    for _ in range(5):
        point = sweep(problem, point)
    smooth, _, _ = proposed_smooth_residual(problem, point.state, point.fit, point.local, 1)
    n_fibres = smooth.relative.mean.size
    relative = Gamma(np.full(n_fibres, 5.0), rng.uniform(3.0, 7.0, n_fibres))
    smooth = replace(smooth, relative=relative, concentration=3.0)
    precision = entry_precisions(problem, point.state, point.local)
    state, fit = update_smooth_residual(problem, replace(point.state, smooth=smooth), point.fit, precision, learn=False)
    return problem, point, state, fit


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_values_between_entries_are_those_of_the_dense_chain(layout):
    problem, _, state, _ = given(0, layout)
    smooth, observations = state.smooth, problem.observations
    chains = Chains.of(observations, 1)
    coords = np.indices(SHAPE).reshape(3, -1)
    mean, var = smooth.at(chains, coords)
    here = observations.entry_coords()
    np.testing.assert_allclose(mean.reshape(SHAPE)[tuple(here)], smooth.mean, rtol=1e-12)
    np.testing.assert_allclose(var.reshape(SHAPE)[tuple(here)], smooth.var, rtol=1e-12)
    for i in range(SHAPE[0]):
        for k in range(SHAPE[2]):
            mine = np.flatnonzero((here[0] == i) & (here[2] == k))
            if not mine.size:
                continue
            places = here[1][mine]
            own = smooth.variances[chains.fibre_numbers(np.array([[i], [0], [k]]))[0]]
            corr = smooth.memory ** np.abs(np.subtract.outer(np.arange(SHAPE[1]), np.arange(SHAPE[1])))
            cov = np.diag(smooth.var[mine])
            for a in range(mine.size - 1):
                cov[a, a + 1] = cov[a + 1, a] = smooth.next_cov[mine[a]]
            for lag in range(2, mine.size):  # a Markov chain
                for a in range(mine.size - lag):
                    b = a + lag
                    cov[a, b] = cov[b, a] = cov[a, b - 1] * cov[b - 1, b] / cov[b - 1, b - 1]
            gain = corr[:, places] @ np.linalg.inv(corr[np.ix_(places, places)])
            wanted = own * (1.0 - np.einsum("ta,at->t", gain, corr[places])) + np.einsum("ta,ab,tb->t", gain, cov, gain)
            np.testing.assert_allclose(mean.reshape(SHAPE)[i, :, k], gain @ smooth.mean[mine], rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(var.reshape(SHAPE)[i, :, k], wanted, rtol=1e-8, atol=1e-10)


def neighbours(y):
    """How far neighbours are alike, the same in all layouts, beside a low-rank part of next to nothing."""
    coords, found = np.nonzero(np.isfinite(y)), []
    for observations in (observe(y), Observations.from_coords(coords, y[coords], y.shape)):
        problem = Problem(observations, (0, 1, 2), collapsed=True)
        state = random_start(problem, 1, NoOutliers(), np.random.default_rng(0))
        state = state.with_factor(0, RowGaussians(1e-6 * state.factors[0].mean, state.factors[0].cov))
        point = evaluate(problem, state)
        found.append(neighbours_alike(problem, state, point.fit, point.local))
    np.testing.assert_allclose(*found, rtol=1e-6)
    return found[0]


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("shape", [(40, 50, 8), (8, 300, 10)])
def test_neighbours_are_alike_in_courses_but_not_in_shifts(shape, missing):
    """Whole fibres or slices off by several standard deviations of the noise; courses with steps as large as it."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = rng.standard_normal(shape) * np.where(rng.random(shape) < missing, np.nan, 1.0)
        assert np.abs(neighbours(y)).max() < 4.0
        for mode in range(3):
            slices = np.moveaxis(y.copy(), mode, 0)
            slices[3] += 5.0
            assert neighbours(np.moveaxis(slices, 0, mode)).max() < 4.0
            drift = np.cumsum(rng.standard_normal(np.moveaxis(y, mode, 0).shape), axis=0)
            alike = neighbours(y + np.moveaxis(drift, 0, mode))
            assert alike.argmax() == mode and alike[mode] > 4.0
        y[:, 2, 3] += 5.0
        assert neighbours(y).max() < 4.0


@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_bound_is_monte_carlo(layout):
    """Over rows, g and η; λ and τ in expectation."""
    problem, _, state, _ = given(1, layout)
    rng, n_draws, smooth = np.random.default_rng(0), 4000, state.smooth
    observations = problem.observations
    chains, here = Chains.of(observations, 1), observations.entry_coords()
    values = observations.values.ravel() / observations.scale
    x = np.ones((n_draws, here.shape[1], state.rank))
    for mode, rows in enumerate(state.factors):
        root = np.broadcast_to(np.linalg.cholesky(rows.cov), (rows.n_rows, state.rank, state.rank))
        drawn = rows.mean + np.einsum("irs,dis->dir", root, rng.standard_normal((n_draws, *rows.mean.shape)))
        x *= drawn[:, here[mode]]
    eta = rng.gamma(smooth.relative.concentration, 1.0 / smooth.relative.rate, (n_draws, chains.sizes.size))
    log_ratio, g = np.zeros(n_draws), np.zeros((n_draws, here.shape[1]))
    for f, (first, end) in enumerate(pairwise(chains.starts)):
        mine = chains.order[first:end]
        own = smooth.variance / eta[:, f]
        drawn, at, spread = np.zeros(n_draws), 0.0, own
        for a, m in enumerate(mine):
            if a:
                before = mine[a - 1]
                slope = smooth.next_cov[before] / smooth.var[before]
                centre = smooth.mean[m] + slope * (drawn - smooth.mean[before])
                width = np.sqrt(smooth.var[m] - slope * smooth.next_cov[before])
                step = smooth.memory ** chains.gaps[first + a]
                at, spread = step * drawn, own * (1.0 - step**2)
            else:
                centre, width = smooth.mean[m], np.sqrt(smooth.var[m])
            drawn = centre + width * rng.standard_normal(n_draws)
            log_ratio += norm.logpdf(drawn, at, np.sqrt(spread)) - norm.logpdf(drawn, centre, width)
            g[:, m] = drawn
    tau = state.tau
    squares = np.square(values - x.sum(axis=2) - g).sum(axis=1)
    log_likelihood = 0.5 * here.shape[1] * (float(tau.mean_log) - np.log(2 * np.pi)) - 0.5 * float(tau.mean) * squares
    samples = log_likelihood + log_ratio - smooth.relative.kl(smooth.concentration, smooth.concentration)
    terms = bound(problem, state)
    found = terms.likelihood + terms.smooth
    assert abs(samples.mean() - found) < 4.0 * samples.std() / np.sqrt(n_draws)
    assert samples.std() / np.sqrt(n_draws) < 1.0
    assert evaluate(problem, state).bound == pytest.approx(terms.total, rel=1e-10)


@pytest.mark.parametrize("kind", [NoOutliers, GaussianSlab, StudentSlab])
@pytest.mark.parametrize("layout", ["complete", "masked", "coordinates"])
def test_no_sweep_lowers_the_bound(layout, kind):
    problem, _, state, _ = given(2, layout, kind)
    point = evaluate(problem, state)
    for k in range(25):
        swept = sweep(problem, point, hold_noise=k % 3 == 1)
        assert swept.bound > point.bound - 1e-7 * abs(point.bound)
        assert swept.bound == pytest.approx(bound(problem, swept.state).total, rel=1e-9)
        point = swept


def test_update_is_the_best_gaussian():
    """Any other mean, any other parameters at the same weights: lower."""
    problem, point, state, _ = given(3, "masked")
    precision = entry_precisions(problem, state, point.local)
    low_rank = Fit.without_smooth(problem, state.factors)
    state, _ = update_smooth_residual(problem, state, low_rank, precision, learn=True)
    best, rng = bound(problem, state).total, np.random.default_rng(0)
    for _ in range(10):
        moved = replace(state.smooth, mean=state.smooth.mean + 0.05 * rng.standard_normal(state.smooth.mean.size))
        gap = moved.mean - state.smooth.mean  # the divergence is quadratic in the mean
        assert bound(problem, replace(state, smooth=_with_divergence(problem, moved, gap, state.smooth))).total < best


def _with_divergence(problem, moved, gap, old):
    """The divergence of q(g) with another mean, from the precision matrix of the chains."""
    chains = problem.chains_along(old.mode)
    before, after = (_prior_square(chains, old, mean) for mean in (old.mean, moved.mean))
    return replace(
        moved, divergence=old.divergence + 0.5 * float((old.relative.mean / old.variance) @ (after - before))
    )


def _prior_square(chains: Chains, smooth: SmoothResidual, mean):
    chained, decay = chains.sorted(mean), chains.decay(smooth.memory)
    found = []
    for first, end in pairwise(chains.starts):
        own, step = chained[first:end], decay[first + 1 : end]
        found.append(own[0] ** 2 + np.sum((own[1:] - step * own[:-1]) ** 2 / (1.0 - step**2)))
    return np.array(found)
