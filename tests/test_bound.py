"""The bound: it agrees with Monte Carlo and with textbook terms, and no update lowers it."""

from dataclasses import asdict, astuple, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

import oracle
from brtf.inference.bound import lower_bound
from brtf.inference.updates import fit_at_entries, negligible_components
from brtf.model.distributions import Gamma, RowGaussians

ORDERS = tuple(oracle.SHAPES)
EMPTY_VAR = 1e-30
OUTLIERS = {"outliers": True, "no outliers": False}


def sharpened(case):
    """The case with narrower posteriors: products of wide ones have tails that blur a Monte Carlo mean."""

    def gamma(wide):
        return Gamma(4.0 * wide.concentration, 4.0 * wide.rate)

    state, local = case.state, case.state.outliers
    return replace(
        case,
        state=replace(
            state,
            factors=tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in state.factors),
            lam=gamma(state.lam),
            tau=gamma(state.tau),
            outliers=replace(local, gamma=gamma(local.gamma)) if local.has_outliers else local,
        ),
    )


def bound(case, state=None):
    return lower_bound(case.observations, case.state if state is None else state)


@pytest.mark.parametrize("outliers", OUTLIERS.values(), ids=OUTLIERS)
@pytest.mark.parametrize("layout", ["complete", "masked"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_bound_is_the_monte_carlo_mean_of_log_joint_minus_log_posterior(order, layout, outliers):
    case = sharpened(oracle.random_case(1, order, layout, outliers=outliers))
    n_draws = 100_000
    draws = oracle.draw(case.state, n_draws, np.random.default_rng(2))
    samples = oracle.log_joint(case, draws) - oracle.log_posterior(case.state, draws)
    error = samples.std() / np.sqrt(n_draws)
    assert 4.0 * error < 0.5  # half a nat is the smallest constant that a term could have lost
    assert abs(bound(case).total - samples.mean()) < 4.0 * error


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("outliers", OUTLIERS.values(), ids=OUTLIERS)
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_terms_are_the_textbook_ones(order, layout, outliers, rank):
    case = oracle.random_case(3, order, layout, rank=rank, outliers=outliers)
    found, wanted = asdict(bound(case)), oracle.bound_terms(case)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        # Sums of a few hundred numbers up to about 1e3.
        assert found[name] == pytest.approx(value, rel=1e-11, abs=1e-10), name
    assert bound(case).total == pytest.approx(sum(wanted.values()), rel=1e-11)


@pytest.mark.parametrize("order", ORDERS)
def test_layout_does_not_matter(order):
    masked, listed = (oracle.random_case(4, order, layout) for layout in ("masked", "coordinates"))
    assert astuple(bound(masked)) == pytest.approx(astuple(bound(listed)), rel=1e-12)
    whole = oracle.random_case(4, order, "complete")
    assert astuple(lower_bound(whole.problem.observations("masked"), whole.state)) == pytest.approx(
        astuple(bound(whole)), rel=1e-12
    )


cases = st.builds(
    oracle.random_case,
    seed=st.integers(0, 2**32 - 1),
    order=st.sampled_from(ORDERS),
    layout=st.sampled_from(oracle.LAYOUTS),
    rank=st.integers(0, 4),
    outliers=st.booleans(),
)


def nats_of_rounding(terms):
    """A term is a sum of up to some hundred parts, each known to 1e-16 of its size, which may exceed the sum's."""
    return 1e-10 * sum(abs(term) for term in astuple(terms))


@given(case=cases, names=st.permutations(list(oracle.UPDATES)))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_no_update_lowers_the_bound(case, names):
    """Whatever the state and the order of the updates; from far away first, then from near the optimum."""
    state = case.state
    before = bound(case, state)
    for name in [*names] * 6:
        if not state.outliers.has_outliers and name.startswith("outlier"):
            continue
        state = oracle.UPDATES[name](case.observations, state)
        after = bound(case, state)
        assert after.total >= before.total - nats_of_rounding(before), name
        before = after


@given(case=cases, name=st.sampled_from(list(oracle.UPDATES)))
@settings(derandomize=True, max_examples=100, deadline=None)
def test_an_update_repeated_changes_nothing(case, name):
    assume(case.state.outliers.has_outliers or not name.startswith("outlier"))
    once = oracle.UPDATES[name](case.observations, case.state)
    twice = oracle.UPDATES[name](case.observations, once)
    terms = bound(case, once)
    assert abs(bound(case, twice).total - terms.total) <= nats_of_rounding(terms)


@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_bound_is_finite_with_the_default_priors_and_far_from_one(layout):
    case = oracle.random_case(5, 3, layout)
    vague = replace(
        case.state,
        prior=type(case.state.prior)(),
        tau=Gamma(np.asarray(1e8), np.asarray(1e-8)),
        lam=Gamma(case.state.lam.concentration, np.array([1e-12, 1e12])),
    )
    assert np.isfinite(bound(case, vague).total)


class TestEmptyComponent:
    """A component whose mean is exactly zero and whose variance is tiny: dead weight that may be dropped."""

    @pytest.fixture(params=oracle.LAYOUTS)
    def case(self, request):
        case = oracle.random_case(6, 3, request.param, rank=3)
        alive = np.array([1.0, 0.0, 1.0])
        cov = np.diag([0.1, EMPTY_VAR, 0.1])
        factors = tuple(
            RowGaussians(rows.mean * alive, np.tile(cov, (len(rows.cov), 1, 1))) for rows in case.state.factors
        )
        return replace(case, state=replace(case.state, factors=factors))

    def test_bound_is_finite_and_the_component_negligible(self, case):
        assert np.isfinite(bound(case).total)
        np.testing.assert_array_equal(
            negligible_components(case.state, case.observations.n_observed), [False, True, False]
        )

    def test_dropping_it_leaves_the_fit_as_it_was(self, case):
        kept = case.state.select_components(np.array([True, False, True]))
        assert kept.rank == 2
        before = fit_at_entries(case.observations, case.state.factors)
        after = fit_at_entries(case.observations, kept.factors)
        # The order of summation over components may differ.
        np.testing.assert_allclose(after.residual, before.residual, rtol=0, atol=1e-14)
        assert after.variance_sum == pytest.approx(before.variance_sum, rel=1e-12)

    def test_the_bound_changes_by_what_the_component_held(self, case):
        """Its rows, which are independent of the others here, and its precision; the likelihood does not move."""
        lam = Gamma(case.state.lam.concentration[[1]], case.state.lam.rate[[1]])
        prior = case.state.prior
        held = oracle.gamma_term(lam, prior.lam_concentration, prior.lam_rate)
        for _ in range(sum(case.problem.shape)):
            density = 0.5 * (lam.mean_log.item() - np.log(2 * np.pi) - lam.mean.item() * EMPTY_VAR)
            held += density + stats.norm.entropy(scale=np.sqrt(EMPTY_VAR))
        kept = case.state.select_components(np.array([0, 2]))
        assert bound(case, kept).total - bound(case).total == pytest.approx(-held, rel=1e-10)
        assert bound(case, kept).likelihood == pytest.approx(bound(case).likelihood, rel=1e-12)

    def test_dropping_everything_leaves_rank_zero(self, case):
        none = case.state.select_components(np.zeros(3, dtype=bool))
        empty = replace(case, state=none)
        assert none.rank == 0
        assert bound(empty).total == pytest.approx(sum(oracle.bound_terms(empty).values()), rel=1e-12)
