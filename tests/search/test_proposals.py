"""Moves of the search: what they must leave alone, and what they must find."""

from dataclasses import replace

import numpy as np
import pytest

from brtf import BRTF
from brtf.data.observe import observe
from brtf.data.passes import whole
from brtf.datasets import synthetic
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.statistics import variance_field
from brtf.kernels.dense import khatri_rao
from brtf.model.row_priors import Unequal, ZeroMean
from brtf.search.components import add_components, component_cosines, empty_state
from brtf.search.moves.birth import birth
from brtf.search.moves.condense import FEW_COMPONENTS, condense
from brtf.search.moves.death import death, expendable_components, not_replaced
from brtf.search.moves.refresh import refresh_rows
from brtf.search.moves.row_prior import with_best_row_priors
from brtf.search.problems import sweep_order
from brtf.search.robust_rows import robust_rows
from brtf.search.spectra import densest_along
from brtf.search.starts import START_MODEL


def problem_of(observed):
    observations = observe(observed)
    return Problem(observations, sweep_order(observations), collapsed=True)


def point_with(problem, factors):
    """The point whose components are the given factors, in the data's units, with the noise of variance 1e-4 known."""
    share = problem.observations.scale ** (1 / problem.observations.order)
    precision = problem.observations.scale**2 / 1e-4
    start = with_noise(empty_state(problem, START_MODEL), precision, START_MODEL, problem.observations.n_observed)
    return evaluate(problem, add_components(problem, start, [factor / share for factor in factors]))


def empty_like(point):
    """The state of a point with the rows of a state that never had components."""
    return replace(point.state, row_priors=tuple(ZeroMean() for _ in point.state.factors))


def low_rank(problem, state):
    means = [rows.mean for rows in state.factors]
    product = khatri_rao(means[:-1]) @ means[-1].T
    return problem.observations.scale * product.reshape(problem.observations.shape)


@pytest.fixture
def data():
    return synthetic((15, 14, 13), 2, outliers=0.1, noise=1e-4, seed=4)


def test_added_components_keep_their_low_rank_part(data):
    problem = problem_of(data.observed)
    point = point_with(problem, data.factors)
    np.testing.assert_allclose(low_rank(problem, point.state), data.low_rank, atol=1e-12)
    # Var x of what was added stays below the noise, so that entries do not look like outliers
    assert np.median(whole(problem.observations, variance_field(point.state.factors))) < 2.0 / float(
        point.state.tau.mean
    )  # a noise level per component


def test_birth_finds_the_missing_component(data):
    problem = problem_of(data.observed)
    point = point_with(problem, [factor[:, :1] for factor in data.factors])
    grown = birth(problem, point, 1, np.random.default_rng(0), clipped=True)
    assert grown is not None
    assert grown.rank == 2
    before = np.linalg.norm(low_rank(problem, point.state) - data.low_rank)
    # clipping shrinks what a rank-one fit finds; sweeps do the rest
    assert np.linalg.norm(low_rank(problem, grown) - data.low_rank) < 0.8 * before


def test_no_birth_out_of_noise(data):
    problem = problem_of(data.observed)
    point = point_with(problem, data.factors)
    for seed in range(5):
        assert birth(problem, point, 1, np.random.default_rng(seed), clipped=True) is None


def test_no_component_is_born_on_a_single_fibre():
    observed = np.random.default_rng(0).normal(0, 0.01, (12, 11, 10))
    observed[:, 3, 4] += 5.0
    problem = problem_of(observed)
    point = evaluate(problem, empty_state(problem, START_MODEL))
    assert birth(problem, point, 1, np.random.default_rng(0), clipped=False) is None


@pytest.mark.parametrize("collinearity", [0.0, 0.7])
def test_condensing_undoes_a_split(collinearity):
    """A component written as the sum of two is condensed to one, with next to no error; true ones are left alone."""
    data = synthetic((15, 14, 13), 2, outliers=0.05, noise=1e-4, collinearity=collinearity, seed=1)
    problem = problem_of(data.observed)
    first, second, third = data.factors
    rng = np.random.default_rng(0)
    mixed = first[:, 1] * rng.uniform(0.3, 0.7, first.shape[0])
    split = [
        np.column_stack([first[:, 0], mixed, first[:, 1] - mixed]),
        second[:, [0, 1, 1]],
        third[:, [0, 1, 1]],
    ]
    point = point_with(problem, split)
    condensed = condense(problem, point)
    assert condensed is not None
    assert condensed.rank == 2
    error = np.linalg.norm(low_rank(problem, condensed) - data.low_rank) / np.linalg.norm(data.low_rank)
    assert error < 2e-4  # a fiftieth of the noise: a round that gains less than CONDENSING_GAIN nats is the last
    assert condense(problem, point_with(problem, data.factors)) is None


def test_condensing_undoes_many_splits_in_a_few_steps():
    """Twenty components, each written as the sum of two, by many at a time; true ones are left alone."""
    data = synthetic((30, 28, 26), 20, outliers=0.05, noise=1e-4, seed=1)
    problem = problem_of(data.observed)
    first, second, third = data.factors
    part = first * np.random.default_rng(0).uniform(0.3, 0.7, first.shape)
    point = point_with(problem, [np.hstack([part, first - part]), np.tile(second, 2), np.tile(third, 2)])
    assert condense(problem, point, 3).rank >= 37
    for _ in range(3):
        state = condense(problem, point)
        if state is None:
            break
        point = evaluate(problem, state)
    assert point.rank == 20
    error = np.linalg.norm(low_rank(problem, point.state) - data.low_rank) / np.linalg.norm(data.low_rank)
    assert error < 1e-3  # a tenth of the noise
    assert condense(problem, point_with(problem, data.factors)) is None


def test_death_leaves_the_others_alone(data):
    problem = problem_of(data.observed)
    point = point_with(problem, data.factors)
    left = death(problem, point, 0)
    for before, after in zip(point.state.factors, left.factors, strict=True):
        np.testing.assert_array_equal(after.mean[:, 0], before.mean[:, 1])
    assert float(left.tau.mean) < float(point.state.tau.mean)


def test_robust_rows_do_not_depend_on_where_they_stood(data):
    """Lost rows are found again, outliers or not: within a few posterior standard deviations of the truth."""
    problem = problem_of(data.observed)
    state = BRTF(random_state=0).fit(data.observed).result_.state
    rows = robust_rows(problem, state, 0)
    lost = state.with_factor(0, type(rows)(np.zeros_like(rows.mean), state.factors[0].cov))
    np.testing.assert_allclose(robust_rows(problem, lost, 0).mean, rows.mean, atol=1e-12)
    std = np.sqrt(np.einsum("irr->ir", state.factors[0].cov))
    assert np.max(np.abs(rows.mean - state.factors[0].mean) / std) < 3.0


def test_rows_without_components_cost_nothing(data):
    problem = problem_of(data.observed)
    sizes = np.random.default_rng(0).lognormal(0.0, 2.0, (15, 1))
    state = point_with(problem, [factor * sizes[: len(factor)] for factor in data.factors]).state
    for mode, rows in enumerate(state.factors):
        state = state.with_factor(mode, rows, Unequal.proposed(rows, state.lam))
    bare = evaluate(problem, state.select_components(np.zeros(state.rank, dtype=bool)))
    plain, chosen = with_best_row_priors(bare.state, worth=1.0)
    assert chosen == dict.fromkeys(range(3), ZeroMean.name)
    assert evaluate(problem, plain).bound > bare.bound + 1.0
    assert evaluate(problem, plain).bound == pytest.approx(evaluate(problem, empty_like(bare)).bound)


def test_robust_rows_of_zeros_are_zero():
    """The smallest residual is zero then, in single precision too."""
    data = synthetic((12, 9, 8), 2, outliers=0.1, seed=0)
    model = BRTF(random_state=0).fit(data.observed.astype(np.float32))
    np.testing.assert_array_equal(model.transform(np.zeros((2, 9, 8), np.float32)), 0.0)


def test_refreshing_finds_a_lost_row_and_leaves_the_others_alone(data):
    problem, lost = problem_of(data.observed), 4
    wrong = [data.factors[0].copy(), *data.factors[1:]]
    wrong[0][lost] *= -3.0
    point = point_with(problem, wrong)
    found = refresh_rows(problem, point, 0)
    assert found is not None
    assert evaluate(problem, found).bound > point.bound
    moved = np.any(found.factors[0].mean != point.state.factors[0].mean, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), lost)
    np.testing.assert_allclose(low_rank(problem, found)[lost], data.low_rank[lost], atol=0.1)
    assert refresh_rows(problem, evaluate(problem, found), 0) is None


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_what_is_steady_is_found_behind_what_passes(missing):
    """Something covers every position for 55 of 100 times, each time at another level: a median would mix the two."""
    rng = np.random.default_rng(0)
    steady = rng.uniform(1.0, 3.0, (6, 5))
    data = np.repeat(steady[:, :, None], 100, axis=2) + 0.01 * rng.standard_normal((6, 5, 100))
    data[:, :, :55] = rng.uniform(4.0, 9.0, (6, 5, 55))
    data[rng.random(data.shape) < missing] = np.nan
    observations = observe(data)
    found = densest_along(observations, 2) * observations.scale
    # Thirty of some forty-five values of noise .01, those in the middle: their mean is known to less than .01.
    np.testing.assert_allclose(found, steady, atol=0.01)
    assert np.median(np.abs(np.nanmedian(data, axis=2) - steady)) > 0.5


def test_what_is_steady_where_little_or_nothing_is_seen():
    data = np.full((2, 3, 9), np.nan)
    data[0, 0, 4], data[1, 2, [0, 8]] = 2.0, (1.0, 3.0)
    observations = observe(data)
    found = densest_along(observations, 2) * observations.scale
    assert found[0, 0] == pytest.approx(2.0)
    assert found[1, 2] in (pytest.approx(1.0), pytest.approx(3.0))
    assert np.count_nonzero(found) == 2
    assert densest_along(observations, 0).shape == (3, 9)


def test_a_component_of_outliers_on_a_fibre_is_expendable_among_many():
    """However large the outliers are that it describes: as outliers they cost little."""
    data = synthetic((14, 13, 12), FEW_COMPONENTS + 1, noise=1e-4, seed=1)
    observed = data.observed.copy()
    observed[3, 5, [2, 7, 8]] += [60.0, -80.0, 70.0]
    fibre = [np.zeros((length, 1)) for length in observed.shape]
    fibre[0][3], fibre[1][5], fibre[2][[2, 7, 8], 0] = 1.0, 1.0, [60.0, -80.0, 70.0]
    problem = problem_of(observed)
    columns = [np.hstack([factor, own]) for factor, own in zip(data.factors, fibre, strict=True)]
    assert expendable_components(problem, point_with(problem, columns))[0] == FEW_COMPONENTS + 1


def test_a_component_that_has_all_but_vanished_is_still_compared():
    """Squares of its rows underflow; the cosine of a component with itself is one all the same."""
    cosines = component_cosines(np.array([[1e-200, 1.0], [2e-200, 2.0], [0.0, 0.0]]))
    np.testing.assert_allclose(cosines, np.ones((2, 2)), rtol=1e-12)


def test_what_the_others_replace_of_a_component():
    """All of a copy of another; nothing of one that is orthogonal; of one of many that are random, a part."""
    rng, length = np.random.default_rng(0), 30
    orthogonal = np.linalg.qr(rng.standard_normal((length, 4)))[0]
    problem = Problem(observe(np.zeros((length,) * 3)), (0, 1, 2), collapsed=True)

    def left(columns):
        return not_replaced(add_components(problem, empty_state(problem, START_MODEL), [columns] * 3))

    np.testing.assert_allclose(left(orthogonal), 1.0, atol=1e-6)
    np.testing.assert_allclose(left(orthogonal[:, [0, 1, 2, 2]]), [1, 1, 0, 0], atol=1e-6)
    random = left(rng.standard_normal((length, 40)))
    assert np.all((random > 0.3) & (random < 1.0))
