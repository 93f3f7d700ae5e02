"""The matrix baselines: the contract, their parts, and what defines each of them."""

import itertools

import numpy as np
import pytest

from baseline_contract import BaselineContract, small_problem
from baseline_problems import HEIGHT, N_FRAMES, RANK, WIDTH, problem_m1, problem_m2, problem_m3
from brtf import baselines
from brtf.data.scale import robust_scale
from brtf.metrics import rrse
from brtf.research.baselines import brmf, decolor, drmf, godec, prmf, regl1alm
from brtf.research.baselines.matrix import Unfolding, keep_largest, leading_singular, shrink_singular

ROUNDING = 1e-9  # of sums of some hundred numbers of size 1, with room for two sweeps


class MatrixContract(BaselineContract):
    """A matrix method unfolds along the last mode, unless told which mode it is."""

    exact_rank = True

    def params_for(self, order):
        return {"mode": order.index(2)}

    def test_is_the_method_for_matrices_on_the_unfolding(self, data, found):
        folded = self.recover(data.reshape(-1, data.shape[2]))
        np.testing.assert_array_equal(found.low_rank, folded.low_rank.reshape(data.shape))
        np.testing.assert_array_equal(found.outliers, folded.outliers.reshape(data.shape))
        assert found.rank == folded.rank
        assert found.factors is None

    def test_factors_of_a_matrix_follow_its_modes(self, data):
        matrix = data.reshape(-1, data.shape[2])
        for side, mode in ((matrix, 1), (matrix.T, 0)):
            found = self.recover(side, mode=mode)
            if found.factors is not None:
                np.testing.assert_allclose(found.factors[0] @ found.factors[1].T, found.low_rank, atol=ROUNDING)

    def test_rank_holds_the_low_rank_part(self, data, found):
        strengths = np.linalg.svd(found.low_rank.reshape(-1, data.shape[2]), compute_uv=False)
        if self.exact_rank:
            # The singular values of a product beyond the number of its components are rounding.
            assert np.count_nonzero(strengths > 1e-9 * strengths[0]) <= found.rank
        else:
            assert strengths[found.rank] < 0.1 * strengths[found.rank - 1]

    @pytest.mark.parametrize("mode", [3, -4])
    def test_refuses_a_mode_that_is_not_there(self, data, mode):
        with pytest.raises(ValueError, match=f"mode must lie between -3 and 2 .* got {mode}"):
            self.recover(data, mode=mode)

    def test_refuses_a_rank_beyond_the_matrix(self, data):
        if "rank" in baselines.describe(self.name).parameters:
            with pytest.raises(ValueError, match="rank must be at most 14"):
                self.recover(data, rank=15)


class TestPCP(MatrixContract):
    name = "pcp"


class TestGoDec(MatrixContract):
    name = "godec"
    params = {"rank": 2, "outlier_fraction": 0.05}  # noqa: RUF012


class TestDRMF(MatrixContract):
    name = "drmf"
    params = {"rank": 2}  # noqa: RUF012


class TestRegL1ALM(MatrixContract):
    name = "regl1alm"
    params = {"rank": 2}  # noqa: RUF012


class TestVBRPCA(MatrixContract):
    name = "vbrpca"


class TestPRMF(MatrixContract):
    name = "prmf"
    params = {"rank": 2}  # noqa: RUF012


class TestBRMF(MatrixContract):
    name = "brmf"
    params = {"rank": 3}  # noqa: RUF012
    exact_rank = False
    modes_tolerance = 5e-3  # rounding decides in which draw a component is lost: about the posterior's own spread


class TestDECOLOR(MatrixContract):
    name = "decolor"
    params = {"frame_shape": (12, 10)}  # noqa: RUF012


class TestParts:
    @pytest.mark.parametrize("mode", [0, 1, 2, 3])
    def test_unfolding_has_a_column_per_position(self, mode):
        tensor = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
        matrix = Unfolding.along(tensor.shape, mode).matrix(tensor)
        for position in range(tensor.shape[mode]):
            np.testing.assert_array_equal(matrix[:, position], tensor.take(position, axis=mode).ravel())

    @pytest.mark.parametrize("mode", [0, 1, 2, -1])
    def test_what_is_unfolded_folds_back(self, mode):
        tensor = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
        unfolding = Unfolding.along(tensor.shape, mode)
        matrix = unfolding.matrix(tensor)
        np.testing.assert_array_equal(unfolding.fold(matrix), tensor)

    @pytest.mark.parametrize("shape", [(20, 20), (30, 20), (20, 30), (200, 5), (5, 200)])
    def test_singular_values_by_either_way(self, shape):
        matrix = np.random.default_rng(1).standard_normal(shape)
        expected = np.linalg.svd(matrix, compute_uv=False)
        left, values, right = leading_singular(matrix)
        np.testing.assert_allclose(values, expected, rtol=ROUNDING)
        np.testing.assert_allclose((left * values) @ right, matrix, atol=ROUNDING)
        np.testing.assert_allclose(left.T @ left, np.eye(values.size), atol=ROUNDING)
        assert leading_singular(matrix, rank=3)[0].shape == (shape[0], 3)
        above = (expected[2] + expected[3]) / 2
        np.testing.assert_allclose(leading_singular(matrix, above=above)[1], expected[:3], rtol=ROUNDING)
        shrunk, rest = shrink_singular(matrix, above)
        np.testing.assert_allclose(rest, expected[:3] - above, rtol=1e-7)
        np.testing.assert_allclose(np.linalg.svd(shrunk, compute_uv=False)[:3], rest, rtol=1e-7)

    @pytest.mark.parametrize("shape", [(9, 7), (90, 7)])
    def test_singular_values_of_a_matrix_of_lower_rank(self, shape):
        rng = np.random.default_rng(2)
        matrix = rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, shape[1]))
        left, values, right = leading_singular(matrix, above=1e-9)
        assert values.size == 2
        np.testing.assert_allclose((left * values) @ right, matrix, atol=ROUNDING)

    @pytest.mark.parametrize("count", [0, 1, 5, 12])
    def test_exactly_as_many_are_kept_whatever_the_ties(self, count):
        kept = keep_largest(np.full((3, 4), -2.0), count)
        assert np.count_nonzero(kept) == count
        values = np.random.default_rng(3).standard_normal((3, 4))
        kept = keep_largest(values, count)
        np.testing.assert_array_equal(kept[kept != 0], values[kept != 0])
        assert np.abs(values[kept == 0]).max(initial=0) <= np.abs(kept[kept != 0]).min(initial=np.inf)


class TestWhatDefinesThem:
    def test_pcp_is_at_the_minimum(self):
        data = problem_m2(0)[0][:60, :50]
        found = baselines.recover("pcp", data, tol=1e-10)
        weight = 1 / np.sqrt(60)

        def objective(low_rank):
            return np.linalg.norm(low_rank, "nuc") + weight * np.abs(data - low_rank).sum()

        lowest = objective(found.low_rank)
        rng = np.random.default_rng(0)
        inside = found.low_rank / np.linalg.norm(found.low_rank)
        for step in (inside, -inside, *rng.standard_normal((10, *data.shape))):
            for size in (1e-1, 1e-3):
                # Convex: no direction leads below, but for the last digits of the solver.
                assert objective(found.low_rank + size * step) > lowest - 1e-6 * lowest

    def test_pcp_counts_fewer_outliers_with_a_larger_weight(self):
        data = small_problem()[0]
        counts = [np.count_nonzero(baselines.recover("pcp", data, lam=lam).outliers) for lam in (0.05, 0.1, 0.3)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > counts[-1]

    @pytest.mark.parametrize("name", ["godec", "drmf"])
    def test_rank_and_number_of_outliers_are_kept_to(self, name):
        data, _ = problem_m2(1)
        found = baselines.recover(name, data, rank=3, outlier_fraction=0.07)
        assert np.count_nonzero(found.outliers) == round(0.07 * data.size)
        assert np.linalg.matrix_rank(found.low_rank) == found.rank == 3

    @pytest.mark.parametrize("name", ["godec", "drmf"])
    @pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
    def test_without_outliers_it_is_the_truncated_svd(self, name, shape):
        rng = np.random.default_rng(5)
        data = rng.standard_normal((shape[0], 3)) @ rng.standard_normal((3, shape[1]))
        data += 0.01 * rng.standard_normal(shape)
        left, values, right = leading_singular(data, rank=3)
        found = baselines.recover(name, data, rank=3, outlier_fraction=0.0)
        # GoDec's three power steps leave (σ_4 / σ_3)⁶ of the other directions.
        np.testing.assert_allclose(found.low_rank, (left * values) @ right, atol=1e-6)

    def test_godec_keeps_the_run_nearest_to_the_data(self):
        data, background, _ = problem_m3()
        n_outliers = round(0.06 * data.size)
        rng = np.random.default_rng(0)
        distances = [godec._run(data, 2, n_outliers, 2, 100, 1e-7, rng)[-1] for _ in range(5)]
        assert max(distances) > 1.01 * min(distances)
        found = baselines.recover("godec", data, rank=2, outlier_fraction=0.06)
        assert np.linalg.norm(data - found.low_rank - found.outliers) == pytest.approx(min(distances), rel=ROUNDING)
        assert rrse(found.low_rank, background) < 0.01

    def test_drmf_ends_where_another_turn_changes_nothing(self):
        data, _ = problem_m2(2)
        found = baselines.recover("drmf", data, rank=5, tol=0.0)
        np.testing.assert_array_equal(
            keep_largest(data - found.low_rank, round(0.1 * data.size)) != 0, found.outliers != 0
        )
        left, values, right = leading_singular(data - found.outliers, rank=5)
        np.testing.assert_allclose((left * values) @ right, found.low_rank, atol=ROUNDING)

    def test_drmf_finds_its_rank(self):
        assert baselines.recover("drmf", problem_m1(0)[0]).rank == RANK
        assert drmf._energy_rank(np.array([10.0, 5.0, 0.01])) == 2
        assert drmf._energy_rank(np.array([])) == 1

    def test_regl1alm_is_nearer_than_the_truth(self):
        data, low_rank = problem_m2(0)
        found = baselines.recover("regl1alm", data, rank=RANK)
        assert np.abs(data - found.low_rank).sum() < np.abs(data - low_rank).sum()

    def test_regl1alm_keeps_the_best_of_its_starts(self):
        data = small_problem()[0].reshape(-1, 14)
        scaled, observed = data / np.abs(data).max(), np.ones(data.shape, dtype=bool)
        fits = [
            regl1alm._fit(scaled, observed, start, 1e-3, 1.2, 5000, 1e-8)
            for start in regl1alm._starts(scaled, 4, 5, np.random.default_rng(0))
        ]
        sums = [np.abs(scaled - left @ right).sum() for left, right in fits]
        assert max(sums) > 1.001 * min(sums)
        found = baselines.recover("regl1alm", data, rank=4)
        assert np.abs(found.outliers).sum() == pytest.approx(min(sums) * np.abs(data).max(), rel=ROUNDING)

    def test_regl1alm_starts_are_orthonormal(self):
        flat = np.outer(np.arange(1.0, 9.0), np.ones(6))
        for matrix in (flat, small_problem()[0][:, :, 0]):
            starts = regl1alm._starts(matrix, 3, 5, np.random.default_rng(0))
            assert len(starts) == 5
            for start in starts:
                np.testing.assert_allclose(start.T @ start, np.eye(3), atol=ROUNDING)

    def test_vbrpca_drops_components_without_use(self):
        data, _ = problem_m2(0)
        assert baselines.recover("vbrpca", data).rank == RANK
        assert baselines.recover("vbrpca", data, max_rank=3).rank <= 3

    def test_vbrpca_does_not_count_what_vanished_in_a_long_matrix(self):
        rng = np.random.default_rng(6)
        data = np.outer(rng.uniform(0.2, 0.8, 6000), 1 + 0.05 * np.sin(np.arange(20) / 5))
        data += 0.02 * rng.standard_normal(data.shape)
        found = baselines.recover("vbrpca", data)
        assert found.rank == np.linalg.matrix_rank(found.low_rank) == 1

    def test_prmf_descends(self):
        """Expectation maximization lowers its objective, in which errors below the floor count as squares."""
        data, _ = problem_m2(0)
        scale, floor = robust_scale(data), prmf.SMALLEST_ERROR
        heights = []
        for max_sweeps in range(1, 9):
            left, right = baselines.recover("prmf", data, rank=RANK, max_sweeps=max_sweeps, tol=0.0).factors
            error = np.abs(data - left @ right.T) / scale
            size = np.where(error > floor, error, error**2 / (2 * floor) + floor / 2)
            heights.append(size.sum() + 0.5 * (np.sum((left / scale) ** 2) + np.sum(right**2)))
        assert all(after < before for before, after in itertools.pairwise(heights))

    def test_prmf_sweeps_as_plain_loops_do(self):
        data = small_problem()[0][:, :, 0]
        mask = np.random.default_rng(4).random(data.shape) < 0.8
        scale, lam = robust_scale(data[mask]), 0.3
        scaled = data / scale
        rng = np.random.default_rng(0)
        left, right = rng.standard_normal((12, 2)), rng.standard_normal((10, 2))

        def regress(values, seen, predicted, design):
            weight = seen / np.maximum(np.abs(values - predicted), prmf.SMALLEST_ERROR)
            precision, target = lam * np.eye(2), np.zeros(2)
            for j in range(len(values)):
                precision += weight[j] * np.outer(design[j], design[j])
                target += weight[j] * values[j] * design[j]
            return np.linalg.solve(precision, target)

        right = np.array([regress(scaled[:, j], mask[:, j], left @ right[j], left) for j in range(10)])
        left = np.array([regress(scaled[i], mask[i], right @ left[i], right) for i in range(12)])
        found = baselines.recover("prmf", data, mask, rank=2, lam=lam, max_sweeps=1)
        np.testing.assert_allclose(found.factors[0], scale * left, rtol=ROUNDING)
        np.testing.assert_allclose(found.factors[1], right, rtol=ROUNDING)

    def test_brmf_draws_rows_from_their_posterior(self):
        rng = np.random.default_rng(7)
        design, mean = rng.standard_normal((6, 2)), np.array([1.0, -2.0])
        precision = np.array([[2.0, 0.5], [0.5, 1.0]])
        weights, data = rng.uniform(0.5, 2.0, 6), rng.standard_normal(6)
        cov = np.linalg.inv(precision + (design.T * weights) @ design)
        expected = cov @ (precision @ mean + design.T @ (weights * data))
        n_draws = 20_000
        draws = brmf._draw_rows(
            np.tile(weights, (n_draws, 1)), np.tile(data, (n_draws, 1)), design, mean, precision, rng
        )
        # Six standard errors of a mean and of a covariance of so many draws.
        tolerance = 6 * np.sqrt(np.diag(cov).max() / n_draws)
        np.testing.assert_allclose(draws.mean(axis=0), expected, atol=tolerance)
        np.testing.assert_allclose(np.cov(draws.T), cov, atol=6 * np.sqrt(2 / n_draws) * np.diag(cov).max())

    def test_brmf_draws_the_prior_of_the_rows(self):
        rng = np.random.default_rng(8)
        truth = np.array([[4.0, 1.0], [1.0, 2.0]])
        centre = np.array([0.3, -0.2])
        rows = centre + np.linalg.solve(np.linalg.cholesky(truth).T, rng.standard_normal((2, 200_000))).T
        mean, precision = brmf._draw_prior(rows, rng)
        # So many rows outweigh the prior, whose scatter counts as 1000 in 50 000: a few hundredths.
        np.testing.assert_allclose(precision, truth, atol=0.1)
        np.testing.assert_allclose(mean, centre, atol=0.01)

    def test_brmf_refuses_to_drop_everything(self):
        with pytest.raises(ValueError, match="n_dropped must be at least 0 and below n_sweeps = 10, got 10"):
            baselines.recover("brmf", small_problem()[0], rank=2, n_sweeps=10, n_dropped=10)

    @pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
    def test_decolor_cuts_at_the_minimum(self, gamma):
        """All masks of a frame of 3 × 4 pixels; costs are whole thousandths, so that rounding changes nothing."""
        masks = np.array(list(itertools.product([False, True], repeat=12)))
        pairs = decolor._neighbours((3, 4), 12)
        assert pairs.shape == (2, 17)
        n_unequal = np.count_nonzero(masks[:, pairs[0]] != masks[:, pairs[1]], axis=1)
        for seed in range(10):
            excess = np.round(np.random.default_rng(seed).standard_normal(12), 3) * (gamma or 1.0)
            costs = gamma * n_unequal - masks @ excess
            found = decolor._cut(excess, gamma, pairs)
            cost = gamma * np.count_nonzero(found[pairs[0]] != found[pairs[1]]) - found @ excess
            assert cost == pytest.approx(costs.min(), abs=ROUNDING)

    def test_decolor_without_smoothness_decides_by_pixel(self):
        data, _, _ = problem_m3()
        found = baselines.recover("decolor", data, frame_shape=(HEIGHT, WIDTH), smoothness=0.0)
        error = np.abs(data - found.low_rank)
        marked = found.outliers != 0
        assert error[marked].min() > error[~marked].max()

    def test_decolor_accepts_frames_counted_along_columns(self):
        data, _, _ = problem_m3()
        turned = data.reshape(HEIGHT, WIDTH, N_FRAMES).transpose(1, 0, 2).reshape(-1, N_FRAMES)
        along_rows = baselines.recover("decolor", data, frame_shape=(HEIGHT, WIDTH)).outliers
        along_columns = baselines.recover("decolor", turned, frame_shape=(WIDTH, HEIGHT)).outliers
        folded = along_columns.reshape(WIDTH, HEIGHT, N_FRAMES).transpose(1, 0, 2).reshape(-1, N_FRAMES)
        np.testing.assert_allclose(folded, along_rows, atol=1e-6)

    @pytest.mark.parametrize("frame_shape", [(12, 11), (120,), 12, (12.0, 10.0)])
    def test_decolor_refuses_frames_of_another_size(self, frame_shape):
        with pytest.raises(ValueError, match=r"frame_shape must be \(height, width\) of frames with 120 pixels"):
            baselines.recover("decolor", small_problem()[0], frame_shape=frame_shape)

    @pytest.mark.parametrize(
        ("name", "params", "sentence"),
        [
            ("pcp", {"lam": 0.0}, "lam must be None or positive and finite"),
            ("godec", {"rank": 2, "outlier_fraction": 1.1}, "outlier_fraction must be a number between 0 and 1"),
            ("godec", {"rank": 2, "outlier_fraction": 0.1, "power": -1}, "power must be an integer of at least 0"),
            ("drmf", {"init": "zero"}, "init must be 'pcp' or 'svd'"),
            ("drmf", {"outlier_fraction": -0.1}, "outlier_fraction must be a number between 0 and 1"),
            ("regl1alm", {"rank": 2, "growth": 1.0}, "growth must be finite and above 1"),
            ("prmf", {"rank": 2, "lam": -1.0}, "lam must be positive and finite"),
            ("brmf", {"rank": 2, "rate_scale": 0.0}, "rate_scale must be positive and finite"),
            ("decolor", {"frame_shape": (12, 10), "smoothness": -1.0}, "smoothness must be finite and at least 0"),
        ],
    )
    def test_parameters_out_of_range(self, name, params, sentence):
        with pytest.raises(ValueError, match=sentence):
            baselines.recover(name, small_problem()[0], **params)
