"""Rows without negative loadings: the bound with them equals Monte Carlo, nothing lowers it, loadings stay positive."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import oracle
from brtf.inference.acceleration import Anderson
from brtf.inference.bound import bound
from brtf.inference.point import evaluate
from brtf.inference.sweep import balance, rotate, sweep
from brtf.inference.update_rows import gaussian_rows
from brtf.inference.updates import update_component_precisions
from brtf.kernels import compiled, reference
from brtf.kernels.truncated import FAR, truncated_moments
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.generative import GenerativeModel, Truth, log_joint
from brtf.model.local_models import GaussianSlab
from brtf.model.row_priors import Centred, NonNegative, ZeroMean
from brtf.model.state import Prior
from brtf.model.uncertainty import honest_rows
from brtf.search.components import best_signs, without_negative

TWINS = (compiled, reference)


def random_rows(n_rows=6, rank=3, seed=0):
    """Rows of truncated normals with the prior that goes with them, and λ."""
    rng = np.random.default_rng(seed)
    lam = Gamma(rng.uniform(2.0, 4.0, rank), rng.uniform(0.5, 2.0, rank))
    start = NonNegative.of(oracle.random_rows(n_rows, rank, rng, shared=False))[1]
    root = rng.standard_normal((n_rows, rank, rank))
    likelihood = root @ root.transpose(0, 2, 1), rng.standard_normal((n_rows, rank))
    return *start.posterior(*likelihood, lam, gaussian_rows), lam, likelihood


def random_case(seed, layout, modes=(0, 1, 2), rank=2):
    """A random case without outliers, some of its modes without negative loadings, narrow enough to draw."""
    case = oracle.random_case(seed, 3, layout, rank=rank, outliers=False)
    factors = tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in case.state.factors)
    lam = Gamma(4.0 * case.state.lam.concentration, 4.0 * case.state.lam.rate)
    state = without_negative(replace(case.state, factors=factors, lam=lam), modes)
    return replace(case, state=state)


# ---- one loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", [-40.0, -FAR - 1e-9, -FAR, -1.0, 0.0, 0.7, 6.0, 50.0])
def test_moments_are_those_of_the_density(location):
    found = truncated_moments(np.array([1.5 * location]), np.array([1.5]))
    np.testing.assert_allclose(np.ravel(found), oracle.truncated_moments(1.5 * location, 1.5), rtol=1e-9, atol=1e-9)


def test_moments_far_below_zero_are_those_of_an_exponential_law():
    """N(m, s²) cut off at zero has the rate −m/s² for m ≪ 0."""
    location = -(10.0 ** np.arange(2.0, 9.0))
    mean, variance, entropy = truncated_moments(location, np.ones(7))
    exponential = stats.expon(scale=-1.0 / location)
    np.testing.assert_allclose(mean[2:], exponential.mean()[2:], rtol=1e-7)
    np.testing.assert_allclose(variance[2:], exponential.var()[2:], rtol=1e-6)
    np.testing.assert_allclose(entropy[2:], exponential.entropy()[2:], rtol=1e-6)
    assert (np.diff(mean) < 0).all()


def test_moments_are_matched_where_a_truncated_normal_can_have_them():
    mean, variance = np.array([[1.0, 2.0, 1e-3]]), np.array([[0.9, 1e-6, 0.5e-6]])
    rows, _ = NonNegative.of(RowGaussians(mean, variance[:, :, None] * np.eye(3)))
    np.testing.assert_allclose(rows.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(rows.variances, variance, rtol=1e-7)
    cut, prior = NonNegative.of(RowGaussians(np.array([[-2.0, 0.0, 0.5]]), np.eye(3)[None]))
    np.testing.assert_allclose(prior.location, [[-2.0, 0.0, 0.5]])
    assert (cut.mean > 0).all()


# ---- one row ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_rows_are_those_of_coordinate_ascent(twin, rank, shared):
    rng = np.random.default_rng(rank)
    root = rng.standard_normal((1 if shared else 4, rank, 2 * rank))
    precision, linear = root @ root.transpose(0, 2, 1) + 0.5 * np.eye(rank), 3.0 * rng.standard_normal((4, rank))
    wanted, mean = oracle.solve_truncated(precision, linear)
    found = twin.solve_truncated(precision, linear, rng.standard_normal((4, rank)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)  # 1e-10 nats are 1e-5 standard deviations
    scale = np.broadcast_to(np.einsum("irr->ir", precision) ** -0.5, linear.shape)
    np.testing.assert_allclose(truncated_moments(found, scale)[0], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("twin", TWINS)
def test_components_that_are_the_same_do_not_stop_it(twin):
    """P is singular but for the prior; only the sum of the two loadings is known."""
    precision = 1e8 * np.ones((1, 2, 2)) + 1e-8 * np.eye(2)
    location = twin.solve_truncated(precision, np.array([[3e8, 3e8]]), np.zeros((1, 2)))
    mean = truncated_moments(location, np.full((1, 2), 1e-4))[0]
    assert mean.sum() == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_come_back_as_such(twin, bad):
    linear = np.ones((3, 2))
    linear[1, 0] = bad
    with np.errstate(all="ignore"):
        found = twin.solve_truncated(np.tile(3.0 * np.eye(2), (3, 1, 1)), linear, np.zeros((3, 2)))
    assert not np.isfinite(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], 1.0 / 3.0, rtol=1e-5)


def test_twins_agree():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((50, 6, 6))
    arguments = root @ root.transpose(0, 2, 1) + 0.01, 4.0 * rng.standard_normal((50, 6)), np.zeros((50, 6))
    found, wanted = (twin.solve_truncated(*arguments) for twin in TWINS)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# ---- the bound -------------------------------------------------------------------------------------------------


def bound_of(case):
    return bound(oracle.calibrated_problem(case, collapsed=True), case.state).total


def drawn(state, n_draws, rng):
    """Draws of the factors, λ and τ from the posterior, and its log density."""
    log_q, factors = np.zeros(n_draws), []
    for prior, rows in zip(state.row_priors, state.factors, strict=True):
        if prior.signed:
            draws = np.empty((n_draws, *rows.mean.shape))
            for i, (mean, cov) in enumerate(
                zip(rows.mean, np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank)), strict=True)
            ):
                law = stats.multivariate_normal(mean, cov)
                draws[:, i] = law.rvs(n_draws, random_state=rng).reshape(n_draws, -1)
                log_q += law.logpdf(draws[:, i])
        else:
            scale = prior.precision[:, [0, 2]] ** -0.5  # the packed diagonal of rank 2
            law = stats.truncnorm(-prior.location / scale, np.inf, loc=prior.location, scale=scale)
            draws = law.rvs((n_draws, *rows.mean.shape), random_state=rng)
            log_q += law.logpdf(draws).sum(axis=(1, 2))
        factors.append(draws)
    lam = stats.gamma(state.lam.concentration, scale=1.0 / state.lam.rate)
    tau = stats.gamma(state.tau.concentration, scale=1.0 / state.tau.rate)
    lams, taus = lam.rvs((n_draws, state.rank), random_state=rng), tau.rvs(n_draws, random_state=rng)
    return factors, lams, taus, log_q + lam.logpdf(lams).sum(axis=1) + tau.logpdf(taus)


@pytest.mark.parametrize("layout", ["complete", "masked"])
@pytest.mark.parametrize("modes", [(0, 1, 2), (1,)])
def test_bound_is_the_monte_carlo_mean_of_log_joint_minus_log_posterior(modes, layout):
    case = random_case(1, layout, modes)
    case = replace(case, state=replace(case.state, prior=Prior(0.6, 0.9, 0.7, 0.8)))
    state, n_draws = case.state, 25_000
    data = np.full(case.problem.shape, np.nan)
    for index, value in zip(case.problem.entries, case.values, strict=True):
        data[index] = value
    model = GenerativeModel(2, state.prior, nonnegative_modes=modes)
    factors, lam, tau, log_q = drawn(state, n_draws, np.random.default_rng(2))
    nothing = np.zeros(data.shape, dtype=bool)
    samples = np.empty(n_draws)
    for k in range(n_draws):
        truth = Truth(tuple(f[k] for f in factors), {}, {}, lam[k], tau[k], np.ones(()), np.zeros(()), 0.5, nothing)
        samples[k] = log_joint(model, data, truth) - log_q[k]
    error = samples.std() / np.sqrt(n_draws)
    assert 4.0 * error < 0.5  # half a nat is less than any constant that a term could have lost
    assert abs(bound_of(case) - samples.mean()) < 4.0 * error


@pytest.mark.parametrize("layout", oracle.LAYOUTS)
@pytest.mark.parametrize(("seed", "modes"), [(0, (0, 1, 2)), (1, (0,)), (2, (2, 1))])
def test_no_update_lowers_the_bound(seed, modes, layout):
    case = random_case(seed, layout, modes)
    case = replace(case, state=replace(case.state, prior=Prior()))  # balance is for λ whose prior says nothing
    updates = {**oracle.UPDATES, "balance": lambda _, state: update_component_precisions(balance(state))}
    state, before = case.state, bound_of(case)
    for name in [name for name in updates if not name.startswith("outlier")] * 5:
        state = updates[name](case.observations, state)
        after = bound_of(replace(case, state=state))
        assert after >= before - 1e-10 * abs(before), name
        before = after
    for mode in modes:
        assert (state.factors[mode].mean > 0).all()
        np.testing.assert_allclose(state.row_priors[mode].rows.mean, state.factors[mode].mean, rtol=1e-9)


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_no_sweep_lowers_the_bound(layout, collapsed):
    case = oracle.slab_case(1, 3, layout, GaussianSlab, rank=3)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    point = evaluate(problem, without_negative(case.state, (0, 2)))
    for k in range(8):
        swept = sweep(problem, point, hold_noise=True)
        assert swept.bound >= point.bound - 1e-9 * abs(point.bound) or k == 0  # the first completes another form
        point = swept


def test_divergence_of_rows_without_data_is_zero():
    """Then q is the prior where λ is certain."""
    lam = Gamma(np.full(3, 1e9), np.array([1e9, 2e9, 5e8]))
    start = NonNegative(np.ones((4, 3)), np.tile([1.0, 0.2, 0.1, 1.0, 0.3, 1.0], (4, 1)))
    rows, prior = start.posterior(np.zeros((1, 3, 3)), np.zeros((4, 3)), lam, gaussian_rows)
    assert prior.kl(rows, lam) == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(rows.mean, np.tile(np.sqrt(2.0 / np.pi / lam.mean), (4, 1)), rtol=1e-6)


def test_far_from_zero_it_is_the_divergence_of_gaussians_less_ln_2_per_loading():
    rng = np.random.default_rng(0)
    lam = Gamma(np.full(2, 3.0), np.full(2, 40.0))
    precision, linear = rng.uniform(50.0, 60.0, (5, 2))[:, :, None] * np.eye(2), rng.uniform(300.0, 900.0, (5, 2))
    start = NonNegative(np.ones((5, 2)), np.tile([1.0, 0.0, 1.0], (5, 1)))
    rows, prior = start.posterior(precision, linear, lam, gaussian_rows)
    wanted, plain = ZeroMean().posterior(precision, linear, lam, gaussian_rows)
    np.testing.assert_allclose(rows.mean, wanted.mean, rtol=1e-6)
    np.testing.assert_allclose(rows.variances, wanted.variances, rtol=1e-6)
    assert prior.kl(rows, lam) == pytest.approx(plain.kl(wanted, lam) - 10 * math.log(2.0), rel=1e-9)


# ---- what else a prior promises --------------------------------------------------------------------------------


def test_likelihood_times_the_prior_is_the_posterior():
    rows, prior, lam, (precision, linear) = random_rows()
    found = prior.likelihood(rows, lam, gaussian_rows)
    np.testing.assert_allclose(found[0], precision, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found[1], linear, rtol=1e-3, atol=1e-4)  # locations are known to 1e-5 of their scale
    again, _ = prior.posterior(*found, lam, gaussian_rows)
    np.testing.assert_allclose(again.mean, rows.mean, rtol=1e-4)


def test_scale_of_components_does_not_matter():
    rows, prior, lam, _ = random_rows()
    ratio = np.array([0.2, 1.0, 7.0])
    scaled, other = prior.rescaled(ratio), Gamma(lam.concentration, lam.rate * ratio**2)
    np.testing.assert_allclose(scaled.rows.mean, rows.mean * ratio, rtol=1e-10)
    assert scaled.kl(scaled.rows, other) == pytest.approx(prior.kl(rows, lam), rel=1e-10)
    with pytest.raises(ValueError, match="keep their sign"):
        prior.rescaled(np.array([1.0, -1.0, 1.0]))


def test_components_add_up():
    rows, prior, lam, _ = random_rows()
    parts = [
        prior.select(keep).kl(rows.select(keep), Gamma(lam.concentration[keep], lam.rate[keep]))
        for keep in (np.array([0, 2]), np.array([1]))
    ]
    assert sum(parts) == pytest.approx(prior.kl(rows, lam), rel=1e-11)


def test_new_rows_add_their_own_divergence():
    rows, prior, lam, likelihood = random_rows()
    new, ahead = prior.for_new_rows(4).posterior(likelihood[0][:4], likelihood[1][:4], lam, gaussian_rows)
    both = RowGaussians(np.vstack([rows.mean, new.mean]), np.vstack([rows.cov, new.cov]))
    joined = prior.followed_by(ahead)
    assert joined.kl(both, lam) == pytest.approx(prior.kl(rows, lam) + ahead.kl(new, lam), rel=1e-12)
    np.testing.assert_allclose(joined.rows.mean, both.mean, rtol=1e-12)
    with pytest.raises(TypeError, match="not about zero"):
        prior.followed_by(ZeroMean())


def test_reported_covariances_are_the_response_of_the_means():
    """V_i is how much the means move per unit of linear term."""
    rows, prior, lam, (precision, linear) = random_rows(n_rows=1)
    found, step = prior.reported(rows, lam), 1e-2
    for s in range(3):
        ends = [
            prior.posterior(precision, linear + sign * step * np.eye(3)[s], lam, gaussian_rows)[0].mean
            for sign in (1.0, -1.0)
        ]
        np.testing.assert_allclose((ends[0] - ends[1])[0] / (2 * step), found.cov[0, s], rtol=1e-2, atol=2e-3)
    state = random_case(0, "masked").state
    assert all(
        (honest.variances >= (1 - 1e-9) * rows.variances).all()
        for honest, rows in zip(honest_rows(state), state.factors, strict=True)
    )


def test_draws_are_not_negative_and_have_the_reported_moments():
    rows, prior, lam, _ = random_rows(n_rows=4)
    reported = prior.reported(rows, lam)
    rng, n_draws = np.random.default_rng(0), 20_000
    draw = prior.sampler(rows, reported)
    draws = np.stack([draw(rng) for _ in range(n_draws)])
    assert (draws >= 0.0).all()
    possible = reported.variances < 0.9 * reported.mean**2  # others are no truncated normals
    assert possible.any()
    deviation = (draws.mean(axis=0) - reported.mean) / np.sqrt(reported.variances)
    np.testing.assert_allclose(deviation[possible], 0.0, atol=0.03)
    np.testing.assert_allclose(draws.var(axis=0)[possible], reported.variances[possible], rtol=0.05)
    signs = np.sign([np.corrcoef(draws[:, i].T)[0, 1] for i in range(4)])
    np.testing.assert_array_equal(signs, np.sign(reported.cov[:, 0, 1]))


def test_numbers_that_cannot_be_are_refused():
    for location, precision in ((np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)):
        with pytest.raises(ValueError, match="not finite or a scale not positive"):
            NonNegative(np.array([[location]]), np.array([[precision]]))


def test_extrapolated_means_stay_positive():
    case = random_case(3, "masked")
    anderson, problem = Anderson(), oracle.calibrated_problem(case, collapsed=True)
    point, extrapolated = evaluate(problem, case.state), []
    for _ in range(6):
        swept = sweep(problem, point, hold_noise=True)
        extrapolated.append(anderson.extrapolate(point.state, swept.state))
        point = swept
    found = [state for state in extrapolated if state is not None]
    assert found
    for state in found:
        for rows, prior in zip(state.factors, state.row_priors, strict=True):
            assert (rows.mean > 0).all()
            np.testing.assert_allclose(prior.rows.mean, rows.mean)


# ---- signs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(0,), (2,), (0, 2), (0, 1, 2)])
def test_best_signs_keep_most_and_leave_products_alone(modes):
    rng = np.random.default_rng(0)
    columns = [rng.standard_normal((length, 40)) for length in (4, 3, 5)]
    signs = best_signs(columns, modes)
    np.testing.assert_array_equal(np.prod(signs, axis=0), np.ones(40))
    for r in range(40):
        kept = []
        for flips in np.ndindex(2, 2, 2):
            chosen = 1.0 - 2.0 * np.array(flips)
            if chosen.prod() > 0:
                kept.append(np.prod([np.sum(np.maximum(chosen[m] * columns[m][:, r], 0) ** 2) for m in modes]))
        own = np.prod([np.sum(np.maximum(signs[m, r] * columns[m][:, r], 0) ** 2) for m in modes])
        assert own == pytest.approx(max(kept))


def test_order_and_signs_leave_modes_without_negative_loadings_alone():
    state = random_case(0, "masked", (0, 2), rank=3).state.strongest_first()
    assert (state.factors[0].mean > 0).all() and (state.factors[2].mean > 0).all()
    state = random_case(0, "masked", (2,), rank=3).state.strongest_first()
    largest = state.factors[0].mean[np.argmax(np.abs(state.factors[0].mean), axis=0), np.arange(3)]
    assert (largest > 0).all() and (state.factors[2].mean > 0).all()


def test_they_are_neither_turned_nor_centred():
    case = oracle.random_case(0, 2, "masked", rank=3)
    state = without_negative(case.state, (1,))
    assert rotate(state) is state
    assert NonNegative.proposed(state.factors[1], state.lam) is None
    with pytest.raises(ValueError, match="has no centre"):
        GenerativeModel(2, Prior(), centred_modes=(0,), nonnegative_modes=(0, 1))
    assert Centred.signed and not NonNegative.signed
