"""The tensor baselines: the contract, and what defines each of them."""

import logging

import numpy as np
import pytest

import brtf
from baseline_contract import BaselineContract, small_problem
from brtf import baselines
from brtf.kernels.dense import compose
from brtf.metrics import rrse
from brtf.research.baselines import cp_ard, cpnls, mgpcp, tucker_ard
from brtf.research.baselines.algebra import contract, multiply, unfold


class TestCPALS(BaselineContract):
    name = "cp-als"
    params = {"rank": 2, "n_starts": 3}  # noqa: RUF012


class TestHOSVD(BaselineContract):
    name = "hosvd"
    params = {"ranks": 2}  # noqa: RUF012


class TestCPARD(BaselineContract):
    name = "cp-ard"


class TestTuckerARD(BaselineContract):
    name = "tucker-ard"
    params = {"max_ranks": 4}  # noqa: RUF012
    modes_tolerance = 1e-4  # the modes are updated in turn, and a change of 1e-8 of the squares, 1e-4, is no change


class TestCPWOPT(BaselineContract):
    name = "cpwopt"
    params = {"rank": 2, "n_starts": 2}  # noqa: RUF012
    modes_tolerance = 1e-5  # from other random starts, to a change of 1e-12 of the squares


class TestCPNLS(BaselineContract):
    name = "cpnls"
    params = {"rank": 2, "n_starts": 2}  # noqa: RUF012


class TestMGPCP(BaselineContract):
    name = "mgpcp"
    params = {"max_rank": 3, "n_sweeps": 200}  # noqa: RUF012
    modes_tolerance = 3e-3  # another chain: about the posterior's own spread, which is that of the error


class TestHORPCA(BaselineContract):
    name = "horpca"


class TestHuber(BaselineContract):
    name = "huber"
    params = {"rank": 2, "n_starts": 2}  # noqa: RUF012
    modes_tolerance = 1e-4  # from other random starts, to a change of 1e-8 of the objective


class TestBCPF(BaselineContract):
    name = "bcpf"
    params = {"max_rank": 4}  # noqa: RUF012


class TestWhatDefinesThem:
    @pytest.fixture
    def clean(self):
        return small_problem(with_outliers=False)[0]

    @pytest.fixture
    def mask(self, clean):
        return np.random.default_rng(1).random(clean.shape) < 0.6

    @pytest.mark.parametrize("name", ["cp-als", "cpwopt", "cpnls"])
    def test_least_squares_has_no_gradient_left(self, name, clean, mask):
        observed = mask if baselines.describe(name).missing else np.ones_like(mask)
        found = baselines.recover(name, np.where(observed, clean, np.nan), rank=2, n_starts=2)
        np.testing.assert_allclose(compose(found.factors), found.low_rank)
        residual = np.where(observed, clean - found.low_rank, 0.0)
        for mode in range(3):
            gradient = contract(residual, found.factors, mode)
            size = (
                np.linalg.norm(residual)
                * np.linalg.norm(found.factors[mode - 1])
                * np.linalg.norm(found.factors[mode - 2])
            )
            assert np.abs(gradient).max() < 1e-4 * size  # first order: the square root of 1e-8, the change of squares

    def test_hosvd_is_that_of_pyttb(self, clean):
        from pyttb import hosvd, tensor

        theirs = hosvd(tensor(np.asfortranarray(clean)), 1e-9, verbosity=-1, sequential=False, ranks=[2, 3, 4])
        ours = baselines.recover("hosvd", clean, ranks=(2, 3, 4))
        np.testing.assert_allclose(ours.low_rank, theirs.full().double(), atol=1e-12)
        assert ours.rank == (2, 3, 4)

    def test_cp_ard_lowers_its_penalised_squares(self, clean):
        rng = np.random.default_rng(2)
        factors = [rng.standard_normal((length, 5)) for length in clean.shape]
        penalties = rng.gamma(1.0, 1.0, 5)

        def objective(factors):
            squares = sum(np.sum(factor**2, axis=0) for factor in factors)
            return np.sum((clean - compose(factors)) ** 2) + penalties @ squares

        values = [objective(factors)]
        for _ in range(5):
            factors = cp_ard.update_factors(clean, factors, penalties)
            values.append(objective(factors))
        assert (np.diff(values) < 0).all()
        # The last factor was updated last, so it alone sits at its minimum.
        for step in rng.standard_normal((5, *factors[2].shape)):
            assert objective([*factors[:2], factors[2] + 1e-3 * step]) > values[-1]

    def test_cp_ard_balances_without_moving_the_tensor(self):
        rng = np.random.default_rng(3)
        factors = [rng.standard_normal((length, 2)) * [[1e-3, 10.0]] for length in (4, 5, 6)]
        balanced, sizes = cp_ard.balance(factors)
        np.testing.assert_allclose(compose(balanced), compose(factors))
        for factor in balanced:
            np.testing.assert_allclose(np.linalg.norm(factor, axis=0) ** 3, sizes)

    def test_ard_with_learnt_noise(self, clean):
        truth = small_problem()[1]
        fixed, learnt = (baselines.recover("cp-ard", clean, noise=noise) for noise in ("fixed", "learn"))
        # What the fixed level is for: learnt from an overfitted start the noise collapses.
        assert fixed.rank == 2 < learnt.rank
        fixed, learnt = (baselines.recover("tucker-ard", clean, noise=noise) for noise in ("fixed", "learn"))
        assert fixed.rank == learnt.rank == (2, 2, 2)
        # From a start that does not overfit it is found, and a penalty for noise that is not there falls away.
        assert rrse(learnt.low_rank, truth) < 0.5 * rrse(fixed.low_rank, truth)

    def test_ard_finds_nothing_where_all_is_noise(self):
        noise = np.random.default_rng(4).standard_normal((6, 5, 4))
        assert baselines.recover("cp-ard", noise, snr=-20.0).rank == 0
        found = baselines.recover("tucker-ard", noise, snr=-20.0)
        assert 0 in found.rank
        assert not found.low_rank.any()

    def test_tucker_core_is_the_ridge_regression(self, clean):
        rng = np.random.default_rng(5)
        factors = [rng.standard_normal((length, rank)) for length, rank in zip(clean.shape, (2, 3, 2), strict=True)]
        design = np.kron(np.kron(factors[0], factors[1]), factors[2])
        expected = np.linalg.solve(design.T @ design + 0.7 * np.eye(12), design.T @ clean.ravel())
        np.testing.assert_allclose(tucker_ard.update_core(clean, factors, 0.7).ravel(), expected, atol=1e-10)

    def test_tucker_factor_is_the_ridge_regression(self, clean):
        rng = np.random.default_rng(5)
        factors = [rng.standard_normal((length, rank)) for length, rank in zip(clean.shape, (2, 3, 2), strict=True)]
        core = rng.standard_normal((2, 3, 2))
        design = unfold(multiply(core, [factors[0], None, factors[2]]), 1)
        penalties = 0.4 * 10 / np.sum(factors[1] ** 2, axis=0)  # σ² I_n / ‖a_d‖²
        expected = np.linalg.solve(design @ design.T + np.diag(penalties), design @ unfold(clean, 1).T).T
        updated, _ = tucker_ard.update_factor(clean, factors, core, 1, 0.4, np.sum(clean**2))
        np.testing.assert_allclose(updated[1], expected, atol=1e-10)
        # A column whose slice of the core is next to nothing goes, and the slice with it.
        core[:, 1] *= 1e-9
        updated, left = tucker_ard.update_factor(clean, factors, core, 1, 0.4, np.sum(clean**2))
        assert (updated[1].shape, left.shape) == ((10, 2), (2, 2, 2))

    def test_horpca_is_at_the_minimum(self, mask):
        data = small_problem()[0]
        for observed in (np.ones_like(mask), mask):
            found = baselines.recover("horpca", np.where(observed, data, np.nan))

            def objective(low_rank, observed=observed):
                nuclear = sum(np.linalg.norm(unfold(low_rank, mode), "nuc") for mode in range(3))
                return nuclear + np.abs(data - low_rank)[observed].sum() / np.sqrt(14)

            lowest = objective(found.low_rank)
            rng = np.random.default_rng(0)
            inside = found.low_rank / np.linalg.norm(found.low_rank)
            for step in (inside, -inside, *rng.standard_normal((6, *data.shape))):
                for size in (1e-1, 1e-3):
                    # Convex: no direction leads below, but for the last digits of the solver.
                    assert objective(found.low_rank + size * step) > lowest - 1e-6 * lowest
            # Alternating directions close the last gap slowly: after 1000 sweeps 0.01 of outliers up to 10.
            np.testing.assert_allclose((found.low_rank + found.outliers)[observed], data[observed], atol=0.02)

    def test_horpca_agrees_with_tensorly(self, mask):
        from tensorly.decomposition import robust_pca

        data, truth = small_problem()
        data = np.where(mask, data, 0.0)
        theirs, _ = robust_pca(
            data, mask=mask, reg_E=1 / np.sqrt(14), mu_init=1e-3, tol=1e-6, n_iter_max=300, verbose=0
        )
        ours = baselines.recover("horpca", data, mask)
        # Another solver of the same problem, whose growing penalty stops it a little early.
        assert rrse(ours.low_rank, theirs) < 0.2 * rrse(ours.low_rank, truth)

    def test_cpnls_linear_model(self, clean, mask):
        observed = mask.astype(float)
        rng = np.random.default_rng(6)
        factors = [rng.standard_normal((length, 2)) for length in clean.shape]
        linear = cpnls._LinearModel(factors, observed, observed * (compose(factors) - clean))

        def objective(vector):
            return 0.5 * np.sum((observed * (compose(linear.split(vector)) - clean)) ** 2)

        here = np.concatenate([factor.ravel() for factor in factors])
        for step in rng.standard_normal((4, here.size)):
            slope = (objective(here + 1e-5 * step) - objective(here - 1e-5 * step)) / 2e-5
            assert slope == pytest.approx(linear.gradient @ step, rel=1e-6)
            values = observed * rng.standard_normal(clean.shape)
            assert np.vdot(linear._change(step), values) == pytest.approx(step @ linear._transposed(values))
        blocks = linear._row_blocks(1)
        unit = np.zeros((10, 2))
        unit[3, 1] = 1.0
        bump = np.concatenate([np.zeros(factors[0].size), unit.ravel(), np.zeros(factors[2].size)])
        assert blocks[3, 1, 1] == pytest.approx(np.sum(linear._change(bump) ** 2))

    def test_cpnls_dogleg_stays_within_its_radius(self, clean):
        rng = np.random.default_rng(7)
        factors = [rng.standard_normal((length, 2)) for length in clean.shape]
        linear = cpnls._LinearModel(factors, np.ones(clean.shape), compose(factors) - clean)
        farthest, nearest = np.linalg.norm(linear.gauss_newton), np.linalg.norm(linear.cauchy)
        assert nearest < farthest
        gains = []
        for radius in (0.1 * nearest, nearest, 0.5 * (nearest + farthest), farthest, 2 * farthest):
            step = linear.dogleg(radius)
            assert np.linalg.norm(step) == pytest.approx(min(radius, farthest))
            gains.append(linear.predicted_decrease(step))
        assert (np.diff(gains) > -1e-9 * gains[-1]).all()
        assert gains[0] > 0

    def test_mgpcp_draws_a_factor_from_its_law(self, clean, mask):
        rng = np.random.default_rng(8)
        observed = mask.astype(float)
        data = observed * clean
        factors = [rng.standard_normal((length, 1)) for length in clean.shape]
        draws = np.array(
            [mgpcp._draw_factor(rng, data, observed, factors, 1, np.array([2.0]), 0.05)[:, 0] for _ in range(4000)]
        )
        row = np.einsum("i,k->ik", factors[0][:, 0], factors[2][:, 0])
        for j in range(10):
            precision = 2.0 + 0.05 * np.sum(observed[:, j] * row**2)
            mean = 0.05 * np.sum(data[:, j] * row) / precision
            # Five standard errors of 4000 draws.
            assert draws[:, j].mean() == pytest.approx(mean, abs=5 * (precision * 4000) ** -0.5)
            assert draws[:, j].var() == pytest.approx(1 / precision, rel=5 * (2 / 4000) ** 0.5)

    def test_mgpcp_draws_the_growth_from_its_law(self):
        rng = np.random.default_rng(9)
        weights = np.array([2.0, -1.0])
        draws = np.array([mgpcp._draw_growth(rng, np.array([5.0, 3.0]), weights, 3.0) for _ in range(4000)])
        # Given δ_2 = 3: δ_1 ~ Ga(3 + 2/2, 1 + ½ (λ_1² + λ_2² δ_2)); given δ_1: δ_2 ~ Ga(3 + 1/2, 1 + ½ λ_2² δ_1).
        rate = 1 + 0.5 * (4 + 1 * 3)
        assert draws[:, 0].mean() == pytest.approx(4 / rate, rel=5 * (4 * 4000) ** -0.5)
        scaled = draws[:, 1] * (1 + 0.5 * draws[:, 0])
        assert scaled.mean() == pytest.approx(3.5, rel=5 * (3.5 * 4000) ** -0.5)

    def test_mgpcp_low_rank_is_an_average(self, clean):
        found = baselines.recover("mgpcp", clean, max_rank=3, n_sweeps=60)
        assert rrse(compose(found.factors), found.low_rank) < 0.05

    def test_huber_has_no_gradient_left(self):
        data, truth = small_problem()
        found = baselines.recover("huber", data, rank=2, n_starts=2, tol=1e-12)
        residual = data - found.low_rank
        clipped = residual - found.outliers
        threshold = np.abs(clipped).max()
        assert threshold == pytest.approx(1.345 * 1.4826 * np.median(np.abs(residual)), rel=1e-9)
        for mode in range(3):
            gradient = contract(clipped, found.factors, mode)
            size = (
                np.linalg.norm(clipped)
                * np.linalg.norm(found.factors[mode - 1])
                * np.linalg.norm(found.factors[mode - 2])
            )
            # The threshold is that of the round before, which differs by up to 1 %.
            assert np.abs(gradient).max() < 1e-3 * size
        hit = np.abs(data - truth) > 0.1
        assert (found.outliers[hit] != 0).all()

    @pytest.mark.parametrize("rank", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
    def test_huber_finds_the_rank(self, rank):
        data = brtf.datasets.synthetic((15, 12, 10), rank, outliers=0.05, missing=0.2, noise=0.01, seed=rank)
        found = baselines.recover("huber", data.observed, n_starts=2)
        assert found.rank == rank
        assert rrse(found.low_rank, data.low_rank) < 0.05
        assert baselines.recover("huber", data.observed, max_rank=1, n_starts=1).rank == 1

    def test_pyttb_keeps_quiet(self, clean, caplog):
        handlers, filters = list(logging.getLogger().handlers), list(logging.getLogger().filters)
        baselines.recover("cpwopt", clean, rank=2, n_starts=1)
        assert not caplog.records
        assert (logging.getLogger().handlers, logging.getLogger().filters) == (handlers, filters)

    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")
    def test_bcpf_is_the_estimator_without_outliers(self, mask):
        data = small_problem()[0]
        found = baselines.recover("bcpf", data, mask, seed=3, max_rank=3)
        model = brtf.BRTF(3, robust=False, random_state=3).fit(data, mask=mask)
        np.testing.assert_allclose(found.low_rank, model.low_rank(), rtol=1e-9)
        assert found.rank == model.rank_
