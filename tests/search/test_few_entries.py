"""Rows of few entries, some of them outliers: which ones is found by trying, not by where the sweeps began."""

import itertools

import numpy as np
import pytest

from brtf import BRTF
from brtf.data.observe import observe
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.sweep import sweep
from brtf.model.local_models import StudentSlab
from brtf.search.components import add_components, empty_state
from brtf.search.few_entries import RowEntries, best_regression, doubts

MODEL = StudentSlab(0.1, 1.5, 1e4)


def evidence(rho):
    posterior = MODEL.posterior(rho)
    return posterior.log_evidence, posterior.weight


@pytest.mark.parametrize(("n", "rank"), [(5, 2), (6, 3), (30, 4)])
def test_the_regression_of_the_highest_evidence(n, rank):
    """Close to the truth where no other row makes as many entries regular, though outliers have the leverage."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        B, truth = rng.standard_normal((n, rank)), rng.standard_normal(rank)
        y = B @ truth + 0.01 * rng.standard_normal(n)
        B[0] *= 3.0
        y[0] += 5.0
        entries = RowEntries(B, y, np.ones(n))
        row = best_regression(entries, 1e4, np.eye(rank), np.zeros(rank), evidence, rng)

        def value(a, B=B, y=y):
            return evidence(1e4 * (y - B @ a) ** 2)[0].sum() - 0.5 * a @ a

        exact = (np.linalg.lstsq(B[list(some)], y[list(some)])[0] for some in itertools.combinations(range(n), rank))
        if n < 10:
            assert value(row) >= max(map(value, exact))
        assert value(row) >= value(truth)


def test_the_prior_counts():
    """Without entries that agree, the row stays where its prior is."""
    entries = RowEntries(np.ones((3, 1)), np.array([1.0, -40.0, 90.0]), np.ones(3))
    row = best_regression(entries, 1e4, np.eye(1), np.array([1.0]), evidence, np.random.default_rng(0))
    assert row == pytest.approx([1.0], abs=0.01)


def test_entries_that_are_alike():
    """Their Gram matrices are singular but for the prior, which rounding loses."""
    B = np.repeat([[1.0, 2.0], [0.3, 0.6]], 3, axis=0)
    entries = RowEntries(B, np.array([5.0, 5.0, -60.0, 1.5, 1.5, 80.0]), np.ones(6))
    row = best_regression(entries, 1e12, 1e-8 * np.eye(2), np.zeros(2), evidence, np.random.default_rng(0))
    np.testing.assert_allclose(B @ row, [5.0, 5.0, 5.0, 1.5, 1.5, 1.5], rtol=1e-6)


def settled_fit(heavy):
    """A fit to 12 × 40 data of rank 2: row 0 has six entries, and row 1 an outlier of large leverage."""
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((12, 2)), rng.standard_normal((40, 2))
    B[0] *= heavy
    observed = A @ B.T + 0.01 * rng.standard_normal((12, 40))
    observed[0, 6:] = np.nan
    observed[0, 1:4] += 5.0
    observed[1, 0] += 50.0
    problem = Problem(observe(observed), (0, 1), collapsed=True)
    scale = problem.observations.scale
    state = with_noise(empty_state(problem, MODEL), (scale / 0.01) ** 2, MODEL, problem.observations.n_observed)
    point = evaluate(problem, add_components(problem, state, [A / scale, B]))
    for _ in range(30):
        point = sweep(problem, point)
    return problem, point


def test_what_is_in_doubt():
    """Few entries with many outliers, and one outlier that alone says more of a direction than all regular entries."""
    for heavy, doubtful in ((1.0, [0]), (20.0, [0, 1])):
        doubt = doubts(*settled_fit(heavy), 0)
        np.testing.assert_array_equal(np.flatnonzero(doubt > 1.0), doubtful)


def test_a_row_whose_outlier_was_taken_for_regular():
    """One outlier among five entries: the sweeps had taken three others for outliers, 20 nats below."""
    rng = np.random.default_rng(23)
    low_rank = rng.standard_normal((30, 2)) @ rng.standard_normal((14, 2)).T
    observed = low_rank + 0.01 * rng.standard_normal(low_rank.shape)
    hit = rng.random(low_rank.shape) < 0.1
    observed[hit] += rng.uniform(0, 3, low_rank.shape)[hit]
    observed[0] = np.nan
    seen = rng.choice(14, 5, replace=False)
    observed[0, seen] = low_rank[0, seen] + 0.01 * rng.standard_normal(5)
    observed[0, seen[0]] += 3.0 * rng.choice([-1, 1])
    model = BRTF(random_state=0).fit(observed)
    assert model.rank_ == 2
    # Four entries determine two loadings: some noise standard deviations at the entries that were not seen.
    assert np.abs(model.low_rank() - low_rank).max() < 0.1
    assert model.outlier_probability()[0, seen[0]] > 0.9
