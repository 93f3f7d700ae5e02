"""Many components at once: the state stays of the kind that was asked for or found."""

from dataclasses import replace

import numpy as np
import pytest

from brtf.api.synthetic import synthetic
from brtf.data.observe import observe
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.smooth_residual import proposed_smooth_residual
from brtf.inference.sweep import sweep
from brtf.model.local_models import NoOutliers
from brtf.model.row_priors import NonNegative, Ordered
from brtf.search.starts import LOW_NOISE, START_MODEL, _fit_by_least_squares, anneal, least_squares, random_start

RANK, MORE = 2, 6


@pytest.fixture
def present():
    """A state with a mode in order, one without negative loadings, and a smooth residual."""
    rng = np.random.default_rng(0)
    course = np.cumsum(rng.standard_normal((20, 3)), axis=0)
    values = np.einsum("ir,jr,kr->ijk", course, rng.gamma(2.0, 1.0, (9, 3)), rng.standard_normal((8, 3)))
    values += 0.1 * rng.standard_normal(values.shape)
    values[rng.random(values.shape) < 0.1] = np.nan
    problem = Problem(observe(values), (0, 1, 2), collapsed=True)
    state = random_start(problem, RANK, START_MODEL, rng)
    rows, share = state.factors[0], np.full((RANK, 6), 1.0 / 6.0)
    state = state.with_factor(0, rows, Ordered.begun(rows, state.lam, np.full(19, 1.5), share, np.arange(20) % 4))
    state = state.with_factor(1, *NonNegative.of(state.factors[1]))
    point = evaluate(problem, state)
    smooth, _, _ = proposed_smooth_residual(problem, state, point.fit, point.local, 2)
    return problem, sweep(problem, evaluate(problem, replace(state, smooth=smooth))).state


@pytest.mark.parametrize("many", [anneal, least_squares])
def test_rows_and_smooth_residual_keep_their_kind(present, many):
    problem, before = present
    state = many(problem, MORE, before, np.random.default_rng(1))
    assert RANK < state.rank <= MORE
    ordered = state.row_priors[0]
    assert isinstance(ordered, Ordered)
    np.testing.assert_array_equal(ordered.steps, before.row_priors[0].steps)
    np.testing.assert_array_equal(ordered.groups, before.row_priors[0].groups)
    assert isinstance(state.row_priors[1], NonNegative)
    assert state.smooth is not None and state.smooth.mode == 2
    point = evaluate(problem, state)
    assert sweep(problem, point).bound > point.bound


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("shape", [(8, 7, 6), (60, 40, 30)])
def test_least_squares_are_sweeps_that_hold_noise_and_precisions(shape, missing):
    """They leave out the bound, which nobody asks for; small data and large ones, complete and incomplete."""
    data = synthetic(shape, 2, missing=missing, seed=0)
    problem = Problem(observe(data.observed), (0, 1, 2), collapsed=False)
    start = random_start(problem, MORE, NoOutliers(), np.random.default_rng(1))
    point = evaluate(problem, with_noise(start, LOW_NOISE, NoOutliers(), problem.observations.n_observed))
    for _ in range(30):
        point = sweep(problem, point, hold_precisions=True, hold_noise=True)
    found = _fit_by_least_squares(problem, MORE, LOW_NOISE, np.random.default_rng(1))
    for rows, expected in zip(found.factors, point.state.factors, strict=True):
        np.testing.assert_allclose(rows.mean, expected.mean, rtol=1e-6, atol=1e-9)
    assert found.tau.mean == point.state.tau.mean
