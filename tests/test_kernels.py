"""The contractions equal plain loops over the entries, whatever the layout, the order, the rank and the blocks."""

import numpy as np
import pytest

import oracle
from brtf import kernels
from brtf.distributions import unpack_symmetric
from brtf.updates import scaled_values

# Sums of at most a few dozen products of at most five numbers near 1.
ROUNDING = {"rtol": 1e-12, "atol": 1e-13}

ORDERS = tuple(oracle.SHAPES)
# Entries per block: one, a number that divides nothing, everything.
BLOCK_SIZES = (1, 5, 1000)


@pytest.fixture(params=oracle.LAYOUTS)
def layout(request):
    return request.param


def packed_moments(factors):
    return [rows.second_moment_packed for rows in factors]


def contracted(observations, values, matrices, mode, block_size):
    out = np.zeros_like(matrices[mode])
    for block in observations.blocks(block_size):
        kernels.contract(block, values(block), matrices, mode, out)
    return out


def variances(observations, factors, block_size):
    moments, covs = packed_moments(factors), [rows.cov_packed for rows in factors]
    outers = [rows.outer_packed for rows in factors]
    pieces = [kernels.variance_at(block, outers, moments, covs) for block in observations.blocks(block_size)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("rank", [0, 1, 4])
@pytest.mark.parametrize("order", ORDERS)
class TestAgainstLoops:
    def test_low_rank_at(self, layout, order, rank, block_size):
        case = oracle.random_case(1, order, layout, rank=rank)
        means = [rows.mean for rows in case.state.factors]
        pieces = [kernels.low_rank_at(block, means) for block in case.observations.blocks(block_size)]
        np.testing.assert_allclose(np.concatenate(pieces), oracle.low_rank_at(means, case.problem.entries), **ROUNDING)

    def test_contract_of_means(self, layout, order, rank, block_size):
        case = oracle.random_case(2, order, layout, rank=rank)
        means = [rows.mean for rows in case.state.factors]
        values = np.array(case.values)
        for mode in range(order):
            found = contracted(case.observations, lambda block: values[block.entries], means, mode, block_size)
            wanted = oracle.contract(means, case.problem.entries, case.values, mode)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, **ROUNDING)

    def test_contract_of_packed_moments_is_the_weighted_gram(self, layout, order, rank, block_size):
        case = oracle.random_case(3, order, layout, rank=rank)
        weights = np.random.default_rng(0).uniform(0.0, 1.0, len(case.problem.entries))
        for mode in range(order):
            found = contracted(
                case.observations,
                lambda block: weights[block.entries],
                packed_moments(case.state.factors),
                mode,
                block_size,
            )
            wanted = oracle.row_grams(case.state.factors, case.problem.entries, weights, mode)
            np.testing.assert_allclose(unpack_symmetric(found, rank), wanted, **ROUNDING)

    def test_variance_at(self, layout, order, rank, block_size):
        case = oracle.random_case(4, order, layout, rank=rank)
        found = variances(case.observations, case.state.factors, block_size)
        wanted = oracle.variance_at(case.state.factors, case.problem.entries)
        # The loops subtract x̄² from E[x²], each up to a few hundred here.
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11)
        assert (found >= 0.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_data_of_either_precision_are_contracted_in_float64(layout, order, dtype):
    rng = np.random.default_rng(order)
    problem = oracle.random_problem(oracle.SHAPES[order], rng, complete=layout == "complete", dtype=dtype)
    observations = problem.observations(layout)
    assert observations.values.dtype == dtype
    means = [rng.standard_normal((length, 3)) for length in problem.shape]
    values = problem.values(observations)
    for mode in range(order):
        found = contracted(observations, lambda block: scaled_values(observations, block), means, mode, 5)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, oracle.contract(means, problem.entries, values, mode), **ROUNDING)


@pytest.mark.parametrize("layout", ["complete", "masked"])
def test_a_covariance_shared_by_all_rows_equals_its_copies(layout):
    case = oracle.random_case(5, 3, layout)
    shared = [
        oracle.random_rows(len(rows.mean), 2, np.random.default_rng(6), shared=True) for rows in case.state.factors
    ]
    copied = [type(rows)(rows.mean, np.repeat(rows.cov, rows.n_rows, axis=0)) for rows in shared]
    np.testing.assert_array_equal(
        variances(case.observations, shared, 1000), variances(case.observations, copied, 1000)
    )


def test_variance_is_that_of_draws():
    case = oracle.random_case(7, 3, "complete")
    n_draws = 100_000
    draws = oracle.low_rank_draws(oracle.draw(case.state, n_draws, np.random.default_rng(8)), case.problem.entries)
    squares = (draws - np.mean(draws, axis=0)) ** 2
    error = squares.std(axis=0) / np.sqrt(n_draws)
    found = variances(case.observations, case.state.factors, 1000)
    # Five standard errors: 24 entries are looked at together.
    assert np.all(np.abs(found - squares.mean(axis=0)) < 5.0 * error)


def test_tiny_variance_of_a_large_value_keeps_its_digits():
    """Var x is 2·10⁻²⁰ next to x̄² = 1; a difference of squares would leave nothing of it."""
    case = oracle.random_case(9, 2, "complete", rank=1)
    factors = [type(rows)(np.ones_like(rows.mean), np.full((1, 1, 1), 1e-20)) for rows in case.state.factors]
    np.testing.assert_allclose(variances(case.observations, factors, 1000), 2e-20, rtol=1e-12)


def test_inputs_are_left_alone(layout):
    case = oracle.random_case(10, 3, layout)
    means = [rows.mean.copy() for rows in case.state.factors]
    values = np.array(case.values)
    (block,) = case.observations.blocks()
    kernels.low_rank_at(block, means)
    variances(case.observations, case.state.factors, 1000)
    for mode in range(3):
        contracted(case.observations, lambda block: values, means, mode, 1000)
    for mean, rows in zip(means, case.state.factors, strict=True):
        np.testing.assert_array_equal(mean, rows.mean)
    np.testing.assert_array_equal(values, case.values)
