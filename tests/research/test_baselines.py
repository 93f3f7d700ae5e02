"""The frame of the baselines: the registry, what it lets through, and the algebra that the methods share."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import coo_array

import brtf
from brtf import baselines
from brtf.kernels.dense import compose
from brtf.research.baselines import algebra
from brtf.research.baselines.matrix import shrink_singular
from brtf.research.baselines.starts import best_on_held_out, best_start, hold_out, starting_factors

SHAPE = (4, 5, 6)
ROUNDING = 1e-12  # of sums of some hundred products of numbers of size 1

TENSOR_METHODS = [name for name in baselines.names() if baselines.describe(name).works_on == "tensor"]


def recover_rank_one(name, data):
    """Recover by any tensor method, told what it has to be told of data of rank one."""
    params = {"rank": 1, "ranks": 1, "n_sweeps": 100, "n_starts": 2, "sparsity": 4.0}
    return baselines.recover(
        name, data, **{key: value for key, value in params.items() if key in baselines.describe(name).parameters}
    )


def random_factors(rank, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((length, rank)) for length in shape]


class TestRegistry:
    def test_names_are_sorted_and_lead_somewhere(self):
        names = baselines.names()
        assert list(names) == sorted(set(names))
        assert [baselines.describe(name).name for name in names] == list(names)

    def test_a_method_is_imported_when_asked_for(self):
        code = (
            "import sys, brtf; brtf.baselines.names(); "
            "print(*[name for name in sys.modules if name.split('.')[0] in ('tensorly', 'pyttb', 'sklearn')"
            " or name.startswith('brtf.research.baselines.h')])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == []

    def test_refuses_a_name_it_does_not_know(self):
        with pytest.raises(ValueError, match=r"name must be one of .*hosvd.*, got 'cp_als'"):
            baselines.recover("cp_als", np.ones((2, 2)))

    @pytest.mark.parametrize(
        ("name", "params", "sentence"),
        [
            ("hosvd", {"ranks": 0}, "ranks must be an integer of at least 1, or one per mode, got 0"),
            ("hosvd", {"ranks": (1, 2, 2.0)}, "ranks must be"),
            ("hosvd", {"ranks": (1, 2)}, r"ranks must be one rank per mode of shape \(3, 4, 5\), at most \(3, 4, 5\)"),
            ("hosvd", {"ranks": (4, 4, 4)}, "ranks must be one rank per mode"),
            ("cp-als", {"rank": True}, "rank must be an integer of at least 1, got True"),
            ("cp-als", {"rank": 2, "tol": np.nan}, "tol must be a number of at least 0, got nan"),
            ("cp-als", {"rank": 2, "tol": None}, "tol must be a number of at least 0, got None"),
            ("cpnls", {"rank": 2, "n_starts": 0}, "n_starts must be an integer of at least 1, got 0"),
            ("cp-ard", {"noise": "loud"}, "noise must be 'fixed' or 'learn', got 'loud'"),
            ("tucker-ard", {"snr": np.inf}, "snr must be a finite number of decibels, got inf"),
            ("horpca", {"sparsity": 0.0}, "sparsity must be positive and finite, got 0.0"),
            ("mgpcp", {"n_sweeps": 1}, "n_sweeps must be at least 2, got 1"),
            ("mgpcp", {"shrinkage": 1.0}, "shrinkage must be finite and above 1, got 1.0"),
            ("mgpcp", {"max_rank": None}, "max_rank must be"),
            ("hosvd", {"ranks": 1, "seed": -1}, "seed must be an integer of at least 0, got -1"),
        ],
    )
    def test_refuses_parameters_out_of_range(self, name, params, sentence):
        with pytest.raises(ValueError, match=sentence):
            baselines.recover(name, np.arange(60.0).reshape(3, 4, 5), **params)

    def test_says_which_library_is_wanting(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorly.decomposition", None)
        monkeypatch.setitem(sys.modules, "pyttb", None)
        for name, library in (("cp-als", "tensorly"), ("cpwopt", "pyttb"), ("huber", "pyttb")):
            with pytest.raises(
                ValueError, match=rf'{library}.* is needed for .*{name}.*: pip install "brtf\[baselines\]"'
            ):
                baselines.recover(name, np.ones((2, 3, 4)), rank=1)

    @pytest.mark.parametrize("size", [0.0, 1e200, 1e-200])
    def test_refuses_data_that_cannot_be_squared(self, size):
        with pytest.raises(ValueError, match=r"Y is zero at every observed|Y reaches 1e[-+]200 in magnitude"):
            baselines.recover("hosvd", np.full((2, 3, 4), size), ranks=1)

    @pytest.mark.parametrize("size", [0.9e100, 1.1e-100])
    @pytest.mark.parametrize("name", TENSOR_METHODS)
    def test_takes_any_other_size(self, name, size):
        Y = compose(random_factors(1))
        found = recover_rank_one(name, size * (Y / np.abs(Y).max()))
        assert np.isfinite(found.low_rank).all()
        assert found.low_rank.any()

    @pytest.mark.parametrize("shape", [(8, 7), (4, 5, 3, 6)])
    @pytest.mark.parametrize("name", TENSOR_METHODS)
    def test_takes_any_order(self, name, shape):
        Y = compose(random_factors(1, shape))
        found = recover_rank_one(name, Y)
        # No noise, but penalties and priors shrink.
        assert brtf.metrics.rrse(found.low_rank, Y) < 0.2

    def test_reads_what_the_estimator_reads(self):
        Y = compose(random_factors(1, (5, 6)))
        rows, columns = np.nonzero(np.random.default_rng(1).random(Y.shape) < 0.9)
        sparse = coo_array((Y[rows, columns], (rows, columns)), shape=Y.shape)
        dense = np.full(Y.shape, np.nan)
        dense[rows, columns] = Y[rows, columns]
        found = [baselines.recover("horpca", data).low_rank for data in (sparse, dense, dense.tolist())]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])

    def test_constant_data(self):
        for name in ("horpca", "mgpcp"):
            found = baselines.recover(name, np.full(SHAPE, 3.0))
            np.testing.assert_allclose(found.low_rank, 3.0, rtol=0.01)

    def test_is_reached_from_the_package(self):
        assert brtf.baselines is baselines
        assert "baselines" in dir(brtf)


class TestAlgebra:
    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_unfolding_and_products_share_their_order(self, mode):
        factors = random_factors(3)
        unfolded = algebra.unfold(np.einsum("ir,jr,kr->ijk", *factors), mode)
        np.testing.assert_allclose(unfolded, factors[mode] @ algebra.design(factors, mode).T, atol=ROUNDING)
        np.testing.assert_allclose(unfolded, algebra.unfold(compose(factors), mode), atol=ROUNDING)

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_fold_undoes_unfold(self, mode):
        tensor = np.arange(120.0).reshape(SHAPE)
        np.testing.assert_array_equal(algebra.fold(algebra.unfold(tensor, mode), mode, SHAPE), tensor)

    def test_contract_and_cross_gram(self):
        tensor, factors = np.random.default_rng(1).standard_normal(SHAPE), random_factors(2)
        first, second, third = factors
        expected = np.einsum("ijk,ir,kr->jr", tensor, first, third)
        np.testing.assert_allclose(algebra.contract(tensor, factors, 1), expected, atol=ROUNDING)
        rows = algebra.design(factors, 1)
        np.testing.assert_allclose(algebra.cross_gram(factors, 1), rows.T @ rows, atol=ROUNDING)
        np.testing.assert_allclose(
            algebra.contract(tensor, factors, 2), np.einsum("ijk,ir,jr->kr", tensor, first, second)
        )

    def test_multiply(self):
        rng = np.random.default_rng(2)
        tensor, first, third = rng.standard_normal(SHAPE), rng.standard_normal((2, 4)), rng.standard_normal((7, 6))
        expected = np.einsum("ijk,ai,ck->ajc", tensor, first, third)
        np.testing.assert_allclose(algebra.multiply(tensor, [first, None, third]), expected, atol=ROUNDING)

    @pytest.mark.parametrize(("n_grams", "n_rows"), [(3, 20), (20, 3)])
    def test_row_grams_by_either_way(self, n_grams, n_rows):
        rng = np.random.default_rng(3)
        weights, rows = rng.random((n_grams, n_rows)), rng.standard_normal((n_rows, 4))
        expected = np.einsum("ij,jr,js->irs", weights, rows, rows)
        np.testing.assert_allclose(algebra.row_grams(weights, rows), expected, atol=ROUNDING)

    @pytest.mark.parametrize("shape", [(3, 4, 5), (40, 3, 2)])
    def test_leading_basis_is_that_of_the_svd(self, shape):
        tensor = np.random.default_rng(4).standard_normal(shape)
        left = np.linalg.svd(algebra.unfold(tensor, 0), full_matrices=False)[0][:, :2]
        basis = algebra.leading_basis(tensor, 0, 2)
        np.testing.assert_allclose(basis @ basis.T, left @ left.T, atol=1e-9)  # through squares, which halve the digits
        assert (basis[np.abs(basis).argmax(axis=0), [0, 1]] > 0).all()

    @pytest.mark.parametrize("shape", [(8, 9), (30, 4), (4, 30)])
    def test_singular_values_shrink_by_either_way(self, shape):
        matrix = np.random.default_rng(5).standard_normal(shape)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        threshold = (values[1] + values[2]) / 2
        shrunk, left_over = shrink_singular(matrix, threshold)
        assert left_over.size == 2
        np.testing.assert_allclose(shrunk, (left * np.maximum(values - threshold, 0)) @ right, atol=ROUNDING)
        shrunk, left_over = shrink_singular(matrix, 2 * values[0])
        assert left_over.size == 0
        assert not shrunk.any()

    def test_soft_threshold(self):
        np.testing.assert_array_equal(
            algebra.soft_threshold(np.array([-3.0, -1.0, 0.0, 0.5, 2.0]), 1.0), [-2, 0, 0, 0, 1]
        )

    def test_typical_size(self):
        assert algebra.typical_size(np.array([1.0, 3.0])) == 1.0
        assert algebra.typical_size(np.full(7, 0.1)) == 0.1


class TestStarts:
    def test_singular_vectors_come_first_where_they_suffice(self):
        tensor = np.random.default_rng(6).standard_normal(SHAPE)
        rng = np.random.default_rng(0)
        starts = starting_factors(tensor, 3, 3, rng)
        assert len(starts) == 3
        np.testing.assert_allclose(starts[0][1].T @ starts[0][1], np.eye(3), atol=ROUNDING)
        assert [factor.shape for factor in starts[2]] == [(4, 3), (5, 3), (6, 3)]
        many = starting_factors(tensor, 5, 2, rng)
        assert len(many) == 2
        assert not np.allclose(many[0][1].T @ many[0][1], np.eye(5))

    @pytest.mark.parametrize("masked", [False, True])
    def test_hold_out_parts_the_observed_entries(self, masked):
        observed = np.random.default_rng(7).random((20, 30)) < (0.5 if masked else 1.0)
        fitted, held_out = hold_out(observed, np.random.default_rng(0))
        assert not (fitted & held_out).any()
        np.testing.assert_array_equal(fitted | held_out, observed)
        assert held_out.sum() == round(0.1 * (fitted | held_out).sum())

    def test_something_is_held_out_of_few_entries(self):
        assert hold_out(np.ones((2, 2), dtype=bool), np.random.default_rng(0))[1].sum() == 1

    def test_the_best_predicts_what_it_has_not_seen(self):
        good, bad = random_factors(2, seed=1), random_factors(2, seed=2)
        tensor = compose(good)
        seen = []

        def fit(tensor, observed, factors):
            seen.append(observed.sum())
            return factors

        everything = np.ones(SHAPE, dtype=bool)
        assert best_start(fit, [bad, good, bad], tensor, everything, np.random.default_rng(0)) is good
        assert seen == [108, 108, 108, 120]
        fitted, held_out = hold_out(everything, np.random.default_rng(0))
        _, losses = best_on_held_out(fit, [bad], tensor, fitted, held_out, np.abs)
        np.testing.assert_allclose(losses, np.abs(tensor - compose(bad))[held_out])
