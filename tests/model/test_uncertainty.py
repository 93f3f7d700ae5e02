"""How sure one can be: information of an entry, and components too weak to be seen."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtri

import brtf
from brtf.datasets import synthetic
from brtf.metrics import coverage
from brtf.model.local_models import FlatSlab, GaussianSlab, StudentSlab
from brtf.model.state import component_amplitudes
from brtf.model.uncertainty import hidden_law, hidden_variance, honest_rows, information

MODELS = [
    GaussianSlab(0.1, 1e4, 100.0),
    GaussianSlab(0.3, 5.0, 9.0),
    FlatSlab(0.3, 1e4, 64.0),
    StudentSlab(0.2, 2.0, 50.0),
]


@pytest.mark.parametrize("nu", [3.0, 8.0, 1e4])
def test_information_of_student_noise_is_known(nu):
    """E[w²ρ] = (ν + 1)/(ν + 3), and the mean weight is one."""
    per_entry, ratio = information(GaussianSlab(1e-12, nu, 100.0))
    assert per_entry == pytest.approx((nu + 1) / (nu + 3), rel=1e-4)
    assert ratio == pytest.approx((nu + 1) / (nu + 3), rel=1e-4)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_information_is_the_mean_square_of_the_score(model):
    """By adaptive quadrature over the deviation, with the score from differences of ln f."""

    def log_f(e):
        return float(model.posterior(np.array([e**2])).log_evidence[0])

    def score_square(e, step=1e-4):
        score = (log_f(e + step) - log_f(e - step)) / (2 * step)
        return score**2 * math.exp(log_f(e))

    ends = [0.0, 3.0, 10.0, 40.0, 400.0, 4000.0]
    pairs = list(pairwise(ends))
    wanted = sum(quad(score_square, *pair, limit=200)[0] for pair in pairs)
    mass = sum(quad(lambda e: math.exp(log_f(e)), *pair, limit=200)[0] for pair in pairs)
    assert information(model)[0] == pytest.approx(wanted / mass, rel=2e-3)


def test_gross_outliers_leave_covariances_as_they_are():
    """Where it is plain which entries are outliers, an entry tells as much as it counts."""
    assert information(FlatSlab(0.2, 1e4, 1e8))[1] > 0.99


@pytest.fixture(scope="module")
def weak():
    return brtf.BRTF(random_state=0).fit(synthetic((12, 10, 8), 2, outliers=0.1, seed=0).observed)


def test_covariances_are_wider_by_the_information_that_is_missing(weak):
    state = weak.result_.state
    ratio = information(state.local)[1]
    for honest, rows in zip(honest_rows(state), state.factors, strict=True):
        np.testing.assert_allclose(honest.cov * ratio, rows.cov)
        np.testing.assert_array_equal(honest.mean, rows.mean)


def test_what_is_hidden_shrinks_with_the_noise_and_with_strong_components(weak):
    state = weak.result_.state
    hidden = hidden_variance(state)
    assert hidden > 0
    quieter = replace(state, tau=replace(state.tau, rate=state.tau.rate / 10))
    assert hidden_variance(quieter) < hidden / 10  # fewer are below a lower edge
    louder = replace(state, tau=replace(state.tau, rate=state.tau.rate * 1e6))
    assert hidden_variance(louder) <= (1 + 1e-12) * 1e6 / float(state.tau.mean)  # to rounding


def test_what_is_hidden_is_a_negative_binomial_number_of_weak_components(weak):
    """Components of exponential power, drawn until one more than was found can be seen: the others are hidden."""
    state, rng = weak.result_.state, np.random.default_rng(0)
    state = replace(state, tau=replace(state.tau, rate=100.0 * state.tau.rate))  # so much noise hides some
    tau, power = float(state.tau.mean), float(np.mean(component_amplitudes(state) ** 2))
    n_counted = 2.0 * (float(state.tau.concentration) - state.prior.tau_concentration)
    per_entry = information(state.local)[0]
    edge = sum(math.sqrt(rows.n_rows) for rows in state.factors) / math.sqrt(tau * n_counted * per_entry)
    totals = np.zeros(40_000)
    for place in range(totals.size):
        n_seen = 0
        while n_seen <= state.rank:
            drawn = rng.exponential(power)
            n_seen += drawn > edge**2
            totals[place] += drawn if drawn <= edge**2 else 0.0
    law = hidden_law(state)
    assert law.weight[1] == pytest.approx(np.mean(totals > 0), abs=0.01)
    if_any = float(np.mean(totals[totals > 0]))
    assert law.scale_sq[1] == pytest.approx(if_any / (1.0 + tau * if_any), rel=0.03)


def test_draws_lie_inside_intervals_as_often_as_the_level_says(weak):
    """What may be hidden gives long tails, not wider middles."""
    result = weak.result_
    state = replace(result.state, tau=replace(result.state.tau, rate=100.0 * result.state.tau.rate))
    result = replace(result, state=state)
    draws = result.sample(400, np.random.default_rng(0), of="low_rank")
    for level in (0.5, 0.8, 0.95):
        low, high = result.interval(level=level)
        assert np.mean((low <= draws) & (draws <= high)) == pytest.approx(level, abs=0.015)
    low, high = result.interval(level=0.5)
    assert np.mean(high - low) < 0.9 * np.mean(2.0 * ndtri(0.75) * result.std())


def test_an_observation_does_not_count_what_is_hidden_twice(weak):
    """The noise that was found is the true one and what is hidden."""
    result = weak.result_
    of_observation = result.std(of="observation") ** 2
    inflation = result.error_law.std(np.zeros(1))[0] ** 2
    np.testing.assert_allclose(of_observation, (inflation + result.factor_variance()) * result.scale**2, rtol=0.05)


def test_draws_are_as_wide_as_the_intervals(weak):
    draws = weak.sample(400, of="low_rank", random_state=0)
    _, std = weak.predict(return_std=True)
    assert np.sqrt(np.mean(draws.var(axis=0) / std**2)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_intervals_at_rank_zero_cover_a_signal_that_is_too_weak_to_be_seen(seed, robust):
    """Eight components under noise of their power, from few entries: nothing can be found, and that is said."""
    rng = np.random.default_rng(seed)
    low_rank = np.einsum("ir,jr->ij", *(rng.standard_normal((length, 8)) for length in (20, 16)))
    low_rank /= low_rank.std()
    observed = low_rank + rng.standard_normal(low_rank.shape)
    observed[rng.random(low_rank.shape) < 0.6] = np.nan
    model = brtf.BRTF(robust=robust, random_state=0).fit(observed)
    low, high = model.predict_interval()
    assert (high > low).all()
    if model.rank_ == 0:
        assert coverage(low, high, low_rank) > 0.7
