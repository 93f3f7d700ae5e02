"""Outliers that would be regular if they counted, and regular entries that would be outliers if they did not."""

import numpy as np
import pytest

from brtf import BRTF
from brtf.data.observe import observe
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.sweep import sweep
from brtf.model.distributions import RowGaussians
from brtf.model.local_models import GaussianSlab
from brtf.search.components import add_components, empty_state
from brtf.search.moves.reconsider import Doubtful, doubtful_entries, if_counted, if_left_out, with_entry
from brtf.search.problems import sweep_order

NOISE = 0.05
SHIFT = 2.4 * NOISE


def problem_of(observed):
    observations = observe(observed)
    return Problem(observations, sweep_order(observations), collapsed=True)


def settled_at(problem, factors, n_sweeps=30, **held):
    """The local optimum near given factors."""
    share = problem.observations.scale ** (1 / problem.observations.order)
    tau = (problem.observations.scale / NOISE) ** 2
    model = GaussianSlab(0.1, 1e4, 1e3)
    state = with_noise(empty_state(problem, model), tau, model, problem.observations.n_observed)
    point = evaluate(problem, add_components(problem, state, [factor / share for factor in factors]))
    for _ in range(n_sweeps):
        point = sweep(problem, point, **held)
    return point


def two_readings(seed):
    """A matrix of rank 1 whose last row has three entries: one of large leverage agrees with the law of the row, the
    other two lie a little too high, by chance."""
    rng = np.random.default_rng(seed)
    left, right = rng.uniform(0.5, 1.5, 12), rng.uniform(0.5, 1.5, 10)
    right[0] = 6.0
    observed = np.outer(left, right) + NOISE * rng.standard_normal((12, 10))
    observed[-1, 3:] = np.nan
    observed[-1, 1:3] = left[-1] * right[1:3] + SHIFT
    return observed, left, right


@pytest.mark.parametrize("seed", range(4))
def test_an_entry_of_large_leverage_is_found_and_wins(seed):
    observed, left, right = two_readings(seed)
    problem = problem_of(observed)
    wrong = left.copy()
    wrong[-1] += SHIFT / right[1:3].mean()  # as if the entry of large leverage were the outlier
    stuck = settled_at(problem, [wrong[:, None], right[:, None]])
    assert stuck.local(problem.observations.block_list[0]).weight[-3] < 0.5
    (entry, *_) = doubtful_entries(problem, stuck)
    assert entry.place == (11, 0)
    point = evaluate(problem, with_entry(stuck.state, entry))
    for _ in range(20):
        point = sweep(problem, point)
    assert point.bound > stuck.bound + 1.0
    assert doubtful_entries(problem, point) == []


@pytest.mark.parametrize("seed", range(4))
def test_an_outlier_of_large_leverage_is_found_and_loses(seed):
    """The row follows it, and the other entries of the row lie close enough to that not to be outliers."""
    rng = np.random.default_rng(seed)
    left, right = rng.uniform(0.5, 1.5, 12), rng.uniform(0.5, 1.5, 10)
    right[0] = 6.0
    observed = np.outer(left, right) + NOISE * rng.standard_normal((12, 10))
    observed[-1, 7:] = np.nan
    observed[-1, 0] += SHIFT * right[0]
    problem = problem_of(observed)
    wrong = left.copy()
    wrong[-1] += SHIFT
    stuck = settled_at(problem, [wrong[:, None], right[:, None]], hold_noise=True)
    assert stuck.local(problem.observations.block_list[0]).weight[-7] > 0.5
    (entry,) = (one for one in doubtful_entries(problem, stuck, if_left_out) if one.place == (11, 0))
    assert entry.precision < 0.0
    point = evaluate(problem, with_entry(stuck.state, entry))
    for _ in range(20):
        point = sweep(problem, point, hold_noise=True)
    assert point.bound > stuck.bound + 1.0


@pytest.mark.parametrize("precision", [3.0, -0.2])
def test_rows_move_as_if_the_entry_counted_or_did_not(precision):
    """By the exact posterior of one row where the other rows are certain."""
    rng = np.random.default_rng(0)
    problem = problem_of(rng.standard_normal((5, 4, 3)))
    point = settled_at(problem, [rng.standard_normal((length, 2)) for length in (5, 4, 3)], 1)
    state = point.state
    for mode in (1, 2):
        rows = state.factors[mode]
        state = state.with_factor(mode, RowGaussians(rows.mean, 1e-14 * rows.cov_packed))
    entry = Doubtful(1.0, (2, 1, 0), 0.7, precision)
    found, before = with_entry(state, entry).factors[0], state.factors[0]
    slope = state.factors[1].mean[1] * state.factors[2].mean[0]
    cov = before.cov[0 if before.shared else 2]
    precision = np.linalg.inv(cov) + entry.precision * np.outer(slope, slope)
    np.testing.assert_allclose(found.cov[2], np.linalg.inv(precision), rtol=1e-9)
    moved = np.linalg.solve(precision, entry.precision * slope * entry.residual)
    np.testing.assert_allclose(found.mean[2] - before.mean[2], moved, rtol=1e-9)
    np.testing.assert_array_equal(np.delete(found.mean, 2, axis=0), np.delete(before.mean, 2, axis=0))


def test_clean_data_have_no_doubtful_entries():
    rng = np.random.default_rng(1)
    factors = [rng.standard_normal((length, 2)) for length in (12, 11, 10)]
    observed = np.einsum("ir,jr,kr->ijk", *factors) + NOISE * rng.standard_normal((12, 11, 10))
    problem = problem_of(observed)
    for doubt in (if_counted, if_left_out):
        assert doubtful_entries(problem, settled_at(problem, factors), doubt) == []


def test_few_entries_and_many_outliers_end_as_a_start_at_the_truth():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        factors = [rng.standard_normal((length, 3)) for length in (11, 8, 7, 10)]
        observed = np.einsum("ir,jr,kr,lr->ijkl", *factors) + 0.003 * rng.standard_normal((11, 8, 7, 10))
        observed += np.where(rng.random(observed.shape) < 0.25, 0.3 * rng.standard_normal(observed.shape), 0.0)
        observed[rng.random(observed.shape) < 0.75] = np.nan
        plain = {"random_state": 0, "arrangement": None, "link": None}
        found = BRTF(**plain).fit(observed)
        assert found.bound_ > BRTF(**plain, init=factors).fit(observed).bound_ - 1.0
