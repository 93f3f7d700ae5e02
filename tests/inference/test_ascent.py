"""Newton scoring: steps solve a quadratic at once, respect limits, and the ascent ends at the maximum."""

import numpy as np
import pytest
from scipy.optimize import minimize

from brtf.inference.ascent import LONGEST_STEP, Ascent, ascend, corrected, scoring_step


def quadratic(seed):
    """A curvature, positive definite, and the maximum of the parabola that has it."""
    rng = np.random.default_rng(seed)
    n = 1 + seed % 4
    root = rng.standard_normal((n, n + 2))
    return rng, root @ root.T, rng.uniform(-1.0, 1.0, n)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_reaches_the_maximum_of_a_quadratic(seed):
    rng, curvature, best = quadratic(seed)
    place = best + rng.uniform(-1.0, 1.0, best.size)
    limits = np.full(best.size, -9.0), np.full(best.size, 9.0)
    found = scoring_step(place, curvature @ (best - place), curvature, *limits, 0.0)
    # The ridge of 1e-10 of the largest curvature, against the smallest, which is above 1e-3 of it here.
    np.testing.assert_allclose(found, best, atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_keeps_to_its_limits_and_its_length(seed):
    _, curvature, best = quadratic(seed)
    low, high = np.full(best.size, -1.5), np.full(best.size, 40.0)
    for pull in (1.0, -1.0):
        found = scoring_step(best, pull * 1e6 * curvature @ np.ones(best.size), curvature, low, high, 0.3)
        assert ((found >= low) & (found <= high)).all()
        assert np.abs(found - best).max() <= LONGEST_STEP


def test_nothing_moves_where_nothing_is_free():
    place, limits = np.array([0.0, 1.0]), (np.zeros(2), np.ones(2))
    np.testing.assert_array_equal(scoring_step(place, np.array([-1.0, 1.0]), np.eye(2), *limits, 0.0), place)


@pytest.mark.parametrize("seed", range(12))
def test_the_correction_meets_the_observed_drop_and_stays_definite(seed):
    rng, curvature, best = quadratic(seed)
    step = rng.standard_normal(best.size)
    drop = quadratic(seed + 4)[1] @ step
    found = corrected(curvature, step, drop)
    np.testing.assert_allclose(found @ step, drop, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > 0.0
    np.testing.assert_array_equal(corrected(curvature, step, -drop), curvature)


@pytest.mark.parametrize("seed", range(6))
def test_the_ascent_ends_at_the_maximum_even_with_a_wrong_curvature(seed):
    """Of a concave function whose information is off by a factor, within limits some of which bind."""
    _, curvature, best = quadratic(seed)

    def value(place):
        return -np.sum(np.cosh(place - best)) - 0.5 * (place - best) @ curvature @ (place - best)

    def objective(place):
        gradient = -np.sinh(place - best) - curvature @ (place - best)
        return Ascent(value(place), gradient, 3.0 * curvature + np.eye(best.size))

    limits = [(-0.5, 0.5)] * best.size
    found, height = ascend(objective, np.zeros(best.size), limits, max_steps=200)
    wanted = minimize(lambda place: -value(place), np.zeros(best.size), bounds=limits, options={"gtol": 1e-9})
    assert height == value(found)
    assert height == pytest.approx(-wanted.fun, abs=1e-5)
