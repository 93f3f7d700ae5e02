"""Every update equals its formula in plain loops, is a maximum of the bound, and heeds no accident of the input."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import digamma

import oracle
from brtf.data.observations import Observations
from brtf.data.plan import Plan
from brtf.inference.bound import bound
from brtf.inference.statistics import fit_at_entries, row_grams
from brtf.inference.update_rows import RowUpdate, gaussian_rows, update_factor
from brtf.inference.updates import (
    PRUNE_NATS,
    expected_square_sum,
    learn_outlier_prior,
    negligible_components,
    solve_concentration,
    update_component_precisions,
    update_outlier_precisions,
)
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.state import component_amplitudes

# Sums of a few dozen products, and inverses of matrices with condition numbers below a thousand.
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}

ORDERS = tuple(oracle.SHAPES)
PARTS = tuple(oracle.UPDATES)


def every_number(state):
    """All numbers of a state, shared covariances repeated for their rows."""
    for rows in state.factors:
        yield rows.mean
        yield np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))
    for gamma in (state.lam, state.tau):
        yield from (gamma.concentration, gamma.rate)
    if state.local.has_outliers:
        local = state.local
        yield from (local.mean, local.var, local.concentration, local.rate)
        yield np.broadcast_to(local.gamma.concentration, local.mean.shape)
        yield local.gamma.rate


def assert_same_state(found, wanted, **tolerance):
    for ours, theirs in zip(every_number(found), every_number(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, **(tolerance or ROUNDING))


def assert_same_gamma(found, wanted):
    np.testing.assert_allclose(np.broadcast_to(found.concentration, wanted.rate.shape), wanted.concentration)
    np.testing.assert_allclose(found.rate, wanted.rate, **ROUNDING)


@pytest.fixture(params=oracle.LAYOUTS)
def layout(request):
    return request.param


@pytest.mark.parametrize("outliers", [True, False], ids=["outliers", "no outliers"])
@pytest.mark.parametrize("order", ORDERS)
class TestAgainstLoops:
    def test_factor(self, layout, order, outliers):
        case = oracle.random_case(1, order, layout, rank=3, outliers=outliers)
        for mode in range(order):
            targets = np.array(case.targets)
            rows = update_factor(case.observations, case.state, mode, targets).factors[mode]
            wanted = oracle.factor_update(case, mode)
            np.testing.assert_allclose(rows.mean, wanted.mean, **ROUNDING)
            np.testing.assert_allclose(np.broadcast_to(rows.cov, wanted.cov.shape), wanted.cov, **ROUNDING)
            log_dets = np.linalg.slogdet(wanted.cov)[1]
            np.testing.assert_allclose(np.broadcast_to(rows.log_det_cov, log_dets.shape), log_dets, **ROUNDING)

    def test_component_precisions(self, layout, order, outliers):
        case = oracle.random_case(2, order, layout, rank=3, outliers=outliers)
        found = oracle.UPDATES["component precisions"](case.observations, case.state)
        assert_same_gamma(found.lam, oracle.component_precisions_update(case.state))

    def test_noise(self, layout, order, outliers):
        case = oracle.random_case(3, order, layout, rank=3, outliers=outliers)
        fit = fit_at_entries(case.observations, case.state.factors)
        np.testing.assert_allclose(
            expected_square_sum(fit, case.state.local), oracle.expected_square_sum(case), **ROUNDING
        )
        found = oracle.UPDATES["noise"](case.observations, case.state)
        assert_same_gamma(found.tau, oracle.noise_update(case))


@pytest.mark.parametrize("order", ORDERS)
class TestOutliersAgainstLoops:
    def test_outliers(self, layout, order):
        case = oracle.random_case(4, order, layout)
        found = oracle.UPDATES["outliers"](case.observations, case.state).local
        mean, var = oracle.outliers_update(case)
        np.testing.assert_allclose(found.mean, mean, **ROUNDING)
        np.testing.assert_allclose(found.var, var, **ROUNDING)

    def test_outlier_precisions(self, layout, order):
        outliers = oracle.random_case(5, order, layout).state.local
        assert_same_gamma(update_outlier_precisions(outliers).gamma, oracle.outlier_precisions_update(outliers))

    def test_outlier_prior(self, layout, order):
        outliers = oracle.random_case(6, order, layout).state.local
        found = learn_outlier_prior(outliers)
        np.testing.assert_allclose((found.concentration, found.rate), oracle.outlier_prior_update(outliers), **ROUNDING)


@pytest.mark.parametrize("order", ORDERS)
def test_weighted_grams(layout, order):
    case = oracle.random_case(7, order, layout, rank=3)
    weights = np.random.default_rng(0).uniform(0.0, 1.0, case.observations.n_observed)
    for mode in range(order):
        found = row_grams(case.observations, case.state.factors, mode, weights)
        wanted = oracle.row_grams(case.state.factors, case.problem.entries, weights, mode)
        np.testing.assert_allclose(found, wanted, **ROUNDING)


@pytest.mark.parametrize("order", ORDERS)
def test_variance_per_entry_adds_up_to_the_sum(layout, order):
    case = oracle.random_case(8, order, layout, rank=3)
    fit = fit_at_entries(case.observations, case.state.factors, per_entry=True)
    wanted = oracle.variance_at(case.state.factors, case.problem.entries)
    np.testing.assert_allclose(fit.variance, wanted, **ROUNDING)
    short = fit_at_entries(case.observations, case.state.factors)
    np.testing.assert_allclose(short.variance_sum, sum(wanted), **ROUNDING)
    np.testing.assert_array_equal(short.residual, fit.residual)


class TestAccidentsOfTheInput:
    """One problem told in two ways gives one answer."""

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("order", ORDERS)
    def test_layout(self, order, name):
        masked, listed = (oracle.random_case(9, order, layout) for layout in ("masked", "coordinates"))
        update = oracle.UPDATES[name]
        assert_same_state(update(masked.observations, masked.state), update(listed.observations, listed.state))

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("order", ORDERS)
    def test_complete_shortcut_equals_a_mask_that_is_true_everywhere(self, order, name):
        case = oracle.random_case(10, order, "complete")
        masked = case.problem.observations("masked")
        assert (case.observations.layout, masked.layout) == ("complete", "masked")
        update = oracle.UPDATES[name]
        assert_same_state(update(case.observations, case.state), update(masked, case.state))

    def test_complete_data_share_one_covariance(self):
        case = oracle.random_case(10, 3, "complete")
        state = update_factor(case.observations, case.state, 1, np.array(case.targets))
        assert state.factors[1].cov.shape == (1, 2, 2)

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("order", ORDERS)
    def test_blocks(self, layout, order, name):
        case = oracle.random_case(11, order, layout)
        whole = oracle.UPDATES[name](case.observations, case.state)
        observations = replace(case.observations, plan=Plan(block_entries=1))
        assert len(observations.block_list) > 1
        assert_same_state(oracle.UPDATES[name](observations, case.state), whole)

    def test_order_of_entries(self):
        case = oracle.random_case(12, 3, "coordinates")
        coords, values = np.array(case.problem.entries).T, case.problem.tensor[case.problem.mask]
        shuffle = np.random.default_rng(0).permutation(values.size)
        shuffled = Observations.from_coords(coords[:, shuffle], values[shuffle], case.problem.shape)
        for update in oracle.UPDATES.values():
            found, wanted = update(shuffled, case.state), update(case.observations, case.state)
            for ours, theirs in zip(every_number(found), every_number(wanted), strict=True):
                np.testing.assert_array_equal(ours, theirs)

    @pytest.mark.parametrize("order", ORDERS)
    def test_order_of_modes(self, layout, order):
        case = oracle.random_case(13, order, layout)
        modes = np.random.default_rng(0).permutation(order)
        turned = oracle.Problem(case.problem.tensor.transpose(modes), case.problem.mask.transpose(modes))
        # Where each entry of the turned tensor stands among the entries of the first.
        position = np.full(case.problem.shape, -1)
        position[case.problem.mask] = np.arange(len(case.problem.entries))
        entries = position.transpose(modes)[turned.mask]
        local = case.state.local
        state = replace(
            case.state,
            factors=tuple(case.state.factors[mode] for mode in modes),
            local=replace(
                local,
                mean=local.mean[entries],
                var=local.var[entries],
                gamma=Gamma(local.gamma.concentration[entries], local.gamma.rate[entries]),
            ),
        )
        observations = turned.observations(layout)
        for new_mode, mode in enumerate(modes):
            targets = np.array(case.targets)
            wanted = update_factor(case.observations, case.state, mode, targets).factors[mode]
            found = update_factor(observations, state, new_mode, targets[entries]).factors[new_mode]
            np.testing.assert_allclose(found.mean, wanted.mean, **ROUNDING)
            np.testing.assert_allclose(found.cov, wanted.cov, **ROUNDING)
        for name in ("component precisions", "noise"):
            update = oracle.UPDATES[name]
            found, wanted = update(observations, state), update(case.observations, case.state)
            assert_same_gamma(found.lam, wanted.lam)
            assert_same_gamma(found.tau, wanted.tau)
        found = oracle.UPDATES["outliers"](observations, state).local
        wanted = oracle.UPDATES["outliers"](case.observations, case.state).local
        np.testing.assert_allclose(found.mean, wanted.mean[entries], **ROUNDING)

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("order", ORDERS)
    def test_order_of_components(self, layout, order, name):
        case = oracle.random_case(14, order, layout, rank=3)
        shuffle = np.array([2, 0, 1])
        update = oracle.UPDATES[name]
        found = update(case.observations, case.state.select_components(shuffle))
        wanted = update(case.observations, case.state).select_components(shuffle)
        assert_same_state(found, wanted)


def nudged_gamma(gamma, step):
    for sign in (-1, 1):
        yield Gamma(gamma.concentration * (1 + sign * step), gamma.rate)
        yield Gamma(gamma.concentration, gamma.rate * (1 + sign * step))


def nudged_rows(rows, step, rng):
    for sign in (-1, 1):
        yield RowGaussians(rows.mean + sign * step * rng.standard_normal(rows.mean.shape), rows.cov)
        yield RowGaussians(rows.mean, rows.cov * (1 + sign * step))
        # A multiplicative step along one direction keeps the covariance positive definite.
        direction = rng.standard_normal((rows.rank, 1))
        turn = np.eye(rows.rank) + sign * step * direction @ direction.T
        yield RowGaussians(rows.mean, turn @ rows.cov @ turn)


def nudged(name, state, step, rng):
    """States that differ a little from the given one in the part that the update sets."""
    if name in ("factor", "last factor"):
        mode = 0 if name == "factor" else len(state.factors) - 1
        for rows in nudged_rows(state.factors[mode], step, rng):
            yield state.with_factor(mode, rows)
    elif name == "component precisions":
        for gamma in nudged_gamma(state.lam, step):
            yield replace(state, lam=gamma)
    elif name == "noise":
        for gamma in nudged_gamma(state.tau, step):
            yield replace(state, tau=gamma)
    else:
        for local in nudged_outliers(name, state.local, step, rng):
            yield replace(state, local=local)


def nudged_outliers(name, local, step, rng):
    if name == "outlier precisions":
        for gamma in nudged_gamma(local.gamma, step):
            yield replace(local, gamma=gamma)
        return
    for sign in (-1, 1):
        if name == "outliers":
            yield replace(local, mean=local.mean + sign * step * rng.standard_normal(local.mean.shape))
            yield replace(local, var=local.var * (1 + sign * step))
        else:
            yield replace(local, concentration=local.concentration * (1 + sign * step))
            yield replace(local, rate=local.rate * (1 + sign * step))


@pytest.mark.parametrize("step", [1e-3, 0.1])
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_each_update_is_a_maximum_of_the_bound(layout, order, name, step):
    """A step of 1e-3 costs some 1e-6 nats, which stands well above the bound's rounding of some 1e-13."""
    case = oracle.random_case(15, order, layout)
    best = oracle.UPDATES[name](case.observations, case.state)
    problem = oracle.calibrated_problem(case, collapsed=True)
    largest = bound(problem, best).total
    others = list(nudged(name, best, step, np.random.default_rng(0)))
    assert len(others) >= 4
    for other in others:
        assert bound(problem, other).total < largest - 1e-9


class TestConcentration:
    @pytest.mark.parametrize("gap", np.geomspace(1e-14, 1e3, 69))
    def test_root_solves_its_equation(self, gap):
        """Below 1e-3 the left side is known from its series; ln a − ψ(a) itself would lose its digits there."""
        root = solve_concentration(gap)
        if gap < 1e-3:
            # ln a − ψ(a) = 1/(2a) + 1/(12a²) − 1/(120a⁴) + …; the next term is below 1e-18 here.
            left = 1 / (2 * root) + 1 / (12 * root**2) - 1 / (120 * root**4)
        else:
            left = np.log(root) - digamma(root)
        # At 1e-3, ln a − ψ(a) is a difference of numbers near 6: 6·1e-16 / 1e-3 is some 1e-12.
        assert left == pytest.approx(gap, rel=3e-12)

    def test_root_falls_as_the_gap_grows(self):
        roots = [solve_concentration(gap) for gap in np.geomspace(1e-14, 1e3, 500)]
        assert np.all(np.diff(roots) < 0.0)

    def test_prior_recovers_the_gamma_that_precisions_were_drawn_from(self):
        rng = np.random.default_rng(0)
        n_entries = 100_000
        precisions = rng.gamma(3.0, 1.0 / 2.0, n_entries)
        # Posteriors so sharp that each is its own precision.
        sharp = Gamma(np.full(n_entries, 1e8), 1e8 / precisions)
        local = replace(oracle.random_case(0, 2, "complete").state.local, gamma=sharp)
        found = learn_outlier_prior(local)
        # Standard errors of the maximum likelihood fit are near 0.013 and 0.010.
        assert found.concentration == pytest.approx(3.0, abs=0.05)
        assert found.rate == pytest.approx(2.0, abs=0.04)


class TestNegligibleComponents:
    def test_share_is_that_of_the_rank_one_term(self):
        case = oracle.random_case(16, 3, "complete", rank=3)
        for r in range(3):
            means = [rows.mean[:, [r]] for rows in case.state.factors]
            square = np.mean(np.square(oracle.low_rank_at(means, case.problem.entries)))
            assert component_amplitudes(case.state)[r] ** 2 == pytest.approx(square, rel=1e-12)

    @pytest.mark.parametrize("share", [0.9, 1.1])
    def test_boundary_is_prune_nats(self, share):
        case = oracle.random_case(17, 3, "complete", rank=2)
        n_observed = case.observations.n_observed
        nats = 0.5 * float(case.state.tau.mean) * n_observed * component_amplitudes(case.state)[0] ** 2
        rows = case.state.factors[0]
        factor = np.array([np.sqrt(share * PRUNE_NATS / nats), 1.0])
        state = case.state.with_factor(0, RowGaussians(rows.mean * factor, rows.cov))
        np.testing.assert_array_equal(negligible_components(state, n_observed), [share < 1.0, False])


@pytest.mark.parametrize("layout", ["masked", "coordinates"])
def test_a_row_without_entries_falls_back_to_its_prior(layout):
    case = oracle.random_case(18, 3, layout)
    assert not case.problem.mask[-1].any()
    rows = update_factor(case.observations, case.state, 0, np.array(case.targets)).factors[0]
    np.testing.assert_array_equal(rows.mean[-1], 0.0)
    np.testing.assert_allclose(rows.cov[-1], np.diag(1.0 / case.state.lam.mean), rtol=1e-14)


def test_a_row_whose_entries_weigh_nothing_falls_back_to_its_prior():
    """Weights that are zero to rounding may add up to less than nothing, which a high precision would amplify."""
    state = oracle.random_case(18, 3, "masked").state
    rows, rank = state.factors[0], state.rank
    grams = np.repeat(np.eye(rank)[None], rows.n_rows, axis=0)
    grams[1] *= -1e-9
    found = RowUpdate(1e15).from_statistics(state, 0, grams, np.ones((rows.n_rows, rank))).factors[0]
    np.testing.assert_array_equal(found.mean[1], 0.0)
    np.testing.assert_allclose(found.cov[1], np.diag(1.0 / state.lam.mean), rtol=1e-14)
    np.testing.assert_allclose(found.mean[0], 1.0, rtol=1e-9)


def test_components_of_very_different_strength_keep_their_digits():
    """Precisions of components 1e16 apart: an unscaled inverse would have a condition number of 1e16."""
    rng = np.random.default_rng(19)
    root = rng.standard_normal((5, 3, 3))
    well = root @ root.transpose(0, 2, 1) + np.eye(3)
    spread = np.array([1e-8, 1.0, 1e8])
    linear = rng.standard_normal((5, 3))
    plain = gaussian_rows(well, linear)
    wide = gaussian_rows(well * np.outer(spread, spread), linear * spread)
    np.testing.assert_allclose(wide.mean * spread, plain.mean, rtol=1e-12)
    np.testing.assert_allclose(wide.cov * np.outer(spread, spread), plain.cov, rtol=1e-12)


def test_rank_zero_states_are_updated(layout):
    case = oracle.random_case(20, 3, layout, rank=0)
    for update in oracle.UPDATES.values():
        state = update(case.observations, case.state)
        assert state.rank == 0
        assert np.isfinite(bound(oracle.calibrated_problem(case, collapsed=True), state).total)
    assert_same_gamma(oracle.UPDATES["noise"](case.observations, case.state).tau, oracle.noise_update(case))


def test_inputs_are_left_alone(layout):
    case, untouched = (oracle.random_case(21, 3, layout) for _ in range(2))
    for update in oracle.UPDATES.values():
        update(case.observations, case.state)
    update_component_precisions(case.state)
    for ours, theirs in zip(every_number(case.state), every_number(untouched.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(case.observations.values, untouched.observations.values)
