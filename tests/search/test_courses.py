"""Second courses: what a sum of two chains promises, and patterns that repeat themselves and change slowly."""

from dataclasses import replace

import numpy as np
import pytest

import brtf
import oracle
from brtf.model.distributions import Gamma
from brtf.model.row_priors import Ordered
from brtf.model.row_priors.chain_kinds import carriers_of, kinds_of
from brtf.results.choice_words import course_in_words
from brtf.search.moves.courses import SECOND_SHARE, Sums, _densest, second_courses

PERIOD = 12


def dense(kinds, k):
    return np.diag(kinds.own[k]) + np.diag(kinds.beside[k], 1) + np.diag(kinds.beside[k], -1)


def test_evidence_of_two_chains_is_that_of_their_covariances():
    """ln N(h/p | 0, K₁ + K₂ + 1/p) against K₁ alone, where every row is observed."""
    rng, n = np.random.default_rng(0), 9
    kinds = kinds_of(np.ones(n - 1), 4, carriers=carriers_of([4]))
    precision, seen, scale = rng.uniform(0.5, 3.0, n), rng.standard_normal(n), 2.0
    share = rng.dirichlet(np.ones(len(kinds.own)))
    sums = Sums(precision, precision * seen, scale, kinds, share)
    first = np.linalg.inv(scale * sum(weight * dense(kinds, k) for k, weight in enumerate(share)))

    def log_density(cov):
        return -0.5 * (np.linalg.slogdet(cov)[1] + seen @ np.linalg.solve(cov, seen))

    alone = log_density(first + np.diag(1.0 / precision))
    for k in range(len(kinds.own)):
        second = np.linalg.inv(scale / SECOND_SHARE * dense(kinds, k))
        both = log_density(first + second + np.diag(1.0 / precision))
        assert sums.evidence(k) - sums.evidence_alone == pytest.approx(both - alone, rel=1e-9)
        mean = second @ np.linalg.solve(first + second + np.diag(1.0 / precision), seen)
        np.testing.assert_allclose(sums.smoothed(k)[0][:, 1], mean, rtol=1e-8, atol=1e-10)


def test_the_rows_with_most_information_are_looked_at():
    assert _densest(np.array([1.0, 5.0, 5.0, 0.0, 1.0]), 2) == 1
    assert _densest(np.ones(3), 5) == 0


def test_a_course_of_one_memory_promises_no_second_one():
    rng = np.random.default_rng(1)
    case = oracle.random_case(1, 2, "masked", rank=1, outliers=False)
    rows, lam = oracle.random_rows(40, 1, rng, shared=False), Gamma(np.array([20.0]), np.array([20.0]))
    course = np.zeros(40)
    for t in range(1, 40):
        course[t] = 0.6 * course[t - 1] + 0.8 * rng.standard_normal()
    share = np.zeros((1, 6))
    share[0, 2] = 1.0
    prior = Ordered.begun(rows, lam, np.ones(39), share)
    rows, prior = prior.posterior(np.full((40, 1, 1), 50.0), 50.0 * course[:, None], lam, None)
    state = case.state.select_components(np.array([True]))
    state = replace(state, factors=(rows, state.factors[1]), row_priors=(prior, state.row_priors[1]), lam=lam)
    assert second_courses(state, 0)[0].gain < 1.0


def drifting_patterns(seed, n_rows=480, n_series=8):
    """Series that wander, each with a pattern of a dozen rows whose strength wanders; half of it is in gaps."""
    rng = np.random.default_rng(seed)

    def wander(memory, n):
        found = rng.standard_normal((n_rows, n))
        for t in range(1, n_rows):
            found[t] = memory * found[t - 1] + np.sqrt(1 - memory**2) * found[t]
        return found

    angle = 2 * np.pi * np.arange(n_rows) / PERIOD
    strength = wander(0.99, 2)
    pattern = np.outer(strength[:, 0] * np.cos(angle), rng.standard_normal(n_series))
    pattern += np.outer(strength[:, 1] * np.sin(angle), rng.standard_normal(n_series))
    truth = wander(0.7, 3) @ (0.5 * rng.standard_normal((3, n_series))) + pattern
    data = truth + 0.1 * rng.standard_normal(truth.shape)
    for first in range(0, n_rows, 2 * PERIOD):
        for series in data.T:
            begin = first + rng.integers(PERIOD)
            series[begin : begin + PERIOD] = np.nan
    return truth, data


@pytest.mark.filterwarnings("ignore:Mode 0 has", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_patterns_that_change_slowly_carry_over_gaps(monkeypatch):
    """A chain on a carrier knows what follows a gap; the bound sees it without being told the period."""
    truth, data = drifting_patterns(0)
    options = {"modes": {0: "ordered"}, "link": None, "arrangement": None, "noise": "common", "random_state": 0}
    model = brtf.BRTF(**options).fit(data)
    prior = model.result_.state.row_priors[0]
    assert (np.argmax(prior.share, axis=1) >= prior.n_memories).any()
    assert "patterns of 12 rows that change slowly" in course_in_words(prior)
    monkeypatch.setattr("brtf.search.moves.order.carriers_along", lambda *given: carriers_of([]))
    plain = brtf.BRTF(**options).fit(data)
    hidden = np.isnan(data)
    errors = [np.sqrt(np.mean((fit.low_rank() - truth)[hidden] ** 2)) for fit in (plain, model)]
    assert model.bound_ > plain.bound_ + 50.0
    assert errors[1] < 0.8 * errors[0]
