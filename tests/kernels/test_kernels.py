"""The contractions: both twins equal plain loops, whatever the layout, the order, the rank, the mask and the blocks."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import oracle
from brtf import kernels
from brtf.data.observations import Observations
from brtf.inference.point import evaluate
from brtf.inference.statistics import scaled_values
from brtf.inference.sweep import sweep
from brtf.kernels.arguments import N_BINS, PassSums
from brtf.kernels.compiled.contractions import DENSE_SHARE, DENSE_SHARE_OF_SUMS
from brtf.kernels.compiled.rows import TOGETHER, WIDTH
from brtf.kernels.packed import pack_symmetric, unpack_symmetric
from brtf.kernels.tiles import LARGEST_THIN, LEAST_TILE, TILE_BYTES
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate, tabulate_branches

# Sums of at most a few dozen products of at most five numbers near 1.
ROUNDING = {"rtol": 1e-12, "atol": 1e-13}

ORDERS = tuple(oracle.SHAPES)
RANKS = (0, 1, 4)
# Entries per block: one, a number that divides nothing, everything.
BLOCK_SIZES = (1, 5, 1000)
LONG_SHAPES = {2: (5, 23), 3: (3, 4, 23), 4: (3, 2, 2, 23), 5: (2, 2, 1, 2, 23)}
"""Last modes long enough for fibres of which a few entries are observed, one by one and eight places at a time."""
SHARES = (0.02, 0.5 * DENSE_SHARE, 0.9 * DENSE_SHARE, 1.1 * DENSE_SHARE, 0.9 * DENSE_SHARE_OF_SUMS, 0.97)
"""Observed entries, on both sides of where the compiled twin changes its way."""


@pytest.fixture(params=oracle.LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(params=sorted(kernels.TWINS))
def twin(request):
    return kernels.twin(request.param)


orders = pytest.mark.parametrize("order", ORDERS)
ranks = pytest.mark.parametrize("rank", RANKS)


def packed_moments(factors):
    return [rows.second_moment_packed for rows in factors]


def contracted(twin, observations, values, matrices, mode, block_size):
    out = np.zeros_like(matrices[mode])
    for block in observations.blocks(block_size):
        own = out[block.rows] if mode == 0 and observations.coords is None else out
        twin.contract(block, values(block), matrices, mode, own)
    return out


def contracted_one(twin, observations, values, matrix, mode, block_size):
    lengths = [length for k, length in enumerate(observations.shape) if k != mode]
    out = np.zeros((*lengths, matrix.shape[1]))
    for block in observations.blocks(block_size):
        twin.contract_one(block, values(block), matrix, mode, out if mode == 0 else out[block.rows])
    return out


def low_rank(twin, observations, means, block_size):
    return np.concatenate([twin.low_rank_at(block, means) for block in observations.blocks(block_size)])


def variances(twin, observations, factors, block_size):
    moments, covs = packed_moments(factors), [rows.cov_packed for rows in factors]
    outers = [rows.outer_packed for rows in factors]
    return np.concatenate([twin.variance_at(block, outers, moments, covs) for block in observations.blocks(block_size)])


def assert_all_equal_loops(twin, case, rank, block_size):
    """Every contraction of a case, of means and of packed second moments."""
    observations, factors, entries = case.observations, case.state.factors, case.problem.entries
    means, moments = [rows.mean for rows in factors], packed_moments(factors)
    values = np.array(case.values)
    weights = np.random.default_rng(0).uniform(0.0, 1.0, len(entries))
    np.testing.assert_allclose(
        low_rank(twin, observations, means, block_size), oracle.low_rank_at(means, entries), **ROUNDING
    )
    found = variances(twin, observations, factors, block_size)
    # The loops subtract x̄² from E[x²], each up to a few hundred here.
    np.testing.assert_allclose(found, oracle.variance_at(factors, entries), rtol=1e-10, atol=1e-11)
    assert (found >= 0.0).all()
    for mode in range(observations.order):
        found = contracted(twin, observations, lambda block: values[block.entries], means, mode, block_size)
        np.testing.assert_allclose(found, oracle.contract(means, entries, case.values, mode), **ROUNDING)
        found = contracted(twin, observations, lambda block: weights[block.entries], moments, mode, block_size)
        wanted = oracle.row_grams(factors, entries, weights, mode)
        np.testing.assert_allclose(unpack_symmetric(found, rank), wanted, **ROUNDING)
        found = contracted(twin, observations, lambda block: None, moments, mode, block_size)
        wanted = oracle.row_grams(factors, entries, np.ones(len(entries)), mode)
        np.testing.assert_allclose(unpack_symmetric(found, rank), wanted, **ROUNDING)
        if observations.coords is None:
            found = contracted_one(twin, observations, lambda block: None, means[mode], mode, block_size)
            wanted = oracle.contract_one(means[mode], entries, np.ones(len(entries)), mode, observations.shape)
            np.testing.assert_allclose(found, wanted, **ROUNDING)
            found = contracted_one(
                twin, observations, lambda block: values[block.entries], means[mode], mode, block_size
            )
            wanted = oracle.contract_one(means[mode], entries, case.values, mode, observations.shape)
            np.testing.assert_allclose(found, wanted, **ROUNDING)


# ---- contractions ------------------------------------------------------------------------------------------


@orders
@ranks
def test_contractions_equal_loops(twin, layout, order, rank):
    case = oracle.random_case(1, order, layout, rank=rank)
    for block_size in BLOCK_SIZES:
        assert_all_equal_loops(twin, case, rank, block_size)


@orders
@pytest.mark.parametrize("layout", ["masked", "coordinates"])
def test_contractions_equal_loops_for_masks_from_almost_empty_to_almost_full(twin, layout, order, monkeypatch):
    monkeypatch.setitem(oracle.SHAPES, order, LONG_SHAPES[order])
    case = oracle.random_case(2, order, layout, rank=2, complete=True)
    rng = np.random.default_rng(order)
    for share in SHARES:
        mask = rng.random(case.problem.shape) < share
        mask.flat[rng.integers(mask.size)] = True
        problem = replace(case.problem, mask=mask)
        assert_all_equal_loops(twin, replace(case, problem=problem, observations=problem.observations(layout)), 2, 1000)


@orders
def test_sums_over_slices_equal_loops(layout, order):
    case = oracle.random_case(1, order, layout)
    observations, values = case.observations, np.array(case.values)
    for modes in ((0,), (order - 1,), (order - 1, 0)):
        wanted = oracle.slice_sums(case.problem.entries, case.values, modes, observations.shape)
        n_wanted = oracle.slice_sums(case.problem.entries, np.ones(values.size), modes, observations.shape)
        for block_size in BLOCK_SIZES:
            sums, counts = np.ones(wanted.size), np.ones(wanted.size)  # what is there already stays
            for block in observations.blocks(block_size):
                kernels.add_to_slices(block, modes, values[block.entries], sums)
                kernels.add_to_slices(block, modes, None, counts)
            np.testing.assert_allclose(sums - 1.0, wanted, **ROUNDING)
            np.testing.assert_array_equal(counts - 1.0, n_wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@orders
def test_data_of_either_precision_are_contracted_in_float64(twin, layout, order, dtype):
    rng = np.random.default_rng(order)
    problem = oracle.random_problem(oracle.SHAPES[order], rng, complete=layout == "complete", dtype=dtype)
    observations = problem.observations(layout)
    assert observations.values.dtype == dtype
    means = [rng.standard_normal((length, 3)) for length in problem.shape]
    values = problem.values(observations)
    for mode in range(order):
        found = contracted(twin, observations, lambda block: scaled_values(observations, block), means, mode, 5)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, oracle.contract(means, problem.entries, values, mode), **ROUNDING)


def test_blocks_without_entries_add_nothing(twin):
    rng = np.random.default_rng(0)
    tensor, mask = rng.standard_normal((5, 4, 3)), rng.random((5, 4, 3)) < 0.5
    mask[[0, 2, 3]] = False
    observations = Observations((5, 4, 3), tensor[mask], mask, None, 1.0)
    problem = oracle.Problem(tensor, mask)
    means = [rng.standard_normal((length, 2)) for length in tensor.shape]
    found = low_rank(twin, observations, means, 1)
    np.testing.assert_allclose(found, oracle.low_rank_at(means, problem.entries), **ROUNDING)
    for mode in range(3):
        values = tensor[mask]
        found = contracted(twin, observations, lambda block, values=values: values[block.entries], means, mode, 1)
        np.testing.assert_allclose(found, oracle.contract(means, problem.entries, list(values), mode), **ROUNDING)


def test_contractions_add_to_what_is_there(twin, layout):
    case = oracle.random_case(3, 3, layout)
    means, values = [rows.mean for rows in case.state.factors], np.array(case.values)
    (block,) = case.observations.blocks()
    out = np.ones_like(means[1])
    twin.contract(block, values, means, 1, out)
    np.testing.assert_allclose(out - 1.0, oracle.contract(means, case.problem.entries, case.values, 1), **ROUNDING)


@pytest.mark.parametrize("layout", ["complete", "masked"])
def test_a_covariance_shared_by_all_rows_equals_its_copies(twin, layout):
    case = oracle.random_case(5, 3, layout)
    shared = [
        oracle.random_rows(len(rows.mean), 2, np.random.default_rng(6), shared=True) for rows in case.state.factors
    ]
    copied = [RowGaussians(rows.mean, np.repeat(rows.cov, rows.n_rows, axis=0)) for rows in shared]
    np.testing.assert_array_equal(
        variances(twin, case.observations, shared, 1000), variances(twin, case.observations, copied, 1000)
    )


def test_variance_is_that_of_draws(twin):
    case = oracle.random_case(7, 3, "complete")
    n_draws = 100_000
    draws = oracle.low_rank_draws(oracle.draw(case.state, n_draws, np.random.default_rng(8)), case.problem.entries)
    squares = (draws - np.mean(draws, axis=0)) ** 2
    error = squares.std(axis=0) / np.sqrt(n_draws)
    found = variances(twin, case.observations, case.state.factors, 1000)
    # Five standard errors: 24 entries are looked at together.
    assert np.all(np.abs(found - squares.mean(axis=0)) < 5.0 * error)


def test_tiny_variance_of_a_large_value_keeps_its_digits(twin, layout):
    """Var x is 2·10⁻²⁰ next to x̄² = 1; a difference of squares would leave nothing of it."""
    case = oracle.random_case(9, 2, layout, rank=1)
    factors = [RowGaussians(np.ones_like(rows.mean), np.full((1, 1, 1), 1e-20)) for rows in case.state.factors]
    np.testing.assert_allclose(variances(twin, case.observations, factors, 1000), 2e-20, rtol=1e-12)


def test_inputs_are_left_alone(twin, layout):
    case = oracle.random_case(10, 3, layout)
    means = [rows.mean.copy() for rows in case.state.factors]
    values = np.array(case.values)
    low_rank(twin, case.observations, means, 1000)
    variances(twin, case.observations, case.state.factors, 1000)
    for mode in range(3):
        contracted(twin, case.observations, lambda block: values, means, mode, 1000)
        if case.observations.coords is None:
            contracted_one(twin, case.observations, lambda block: values, means[mode], mode, 1000)
    for mean, rows in zip(means, case.state.factors, strict=True):
        np.testing.assert_array_equal(mean, rows.mean)
    np.testing.assert_array_equal(values, case.values)


# ---- entries -----------------------------------------------------------------------------------------------


def hard_numbers(rng):
    """Zero, denormals, ends of octaves and of their parts from both sides, and ordinary and gigantic numbers."""
    ends = np.array([2.0**octave * (1.0 + part / 8) for octave in (-115, -12, -4, 0, 10, 65, 69) for part in range(9)])
    return np.concatenate(
        [[0.0, -0.0, 5e-324, 1e-310], ends, np.nextafter(ends, 0.0), 10.0 ** rng.uniform(-35.0, 25.0, 60), [1e300]]
    )


@pytest.mark.parametrize("kind", oracle.SLABS)
def test_evidence_is_the_cubic_of_its_segment(twin, kind):
    rng = np.random.default_rng(0)
    rho = hard_numbers(rng)
    model = oracle.random_slab(kind, rng)
    for table in (tabulate(model), *tabulate_branches(model)):
        found, wanted = twin.evidence(table, rho), oracle.look_up(table, rho)
        # Slopes are differences of values that agree to the width of a segment, 1/128 of ρ: two digits less. At an end
        # of a segment rounding decides which one is taken, and coefficients have single precision.
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-8, atol=1e-16)
        np.testing.assert_allclose(found[1], wanted[1], rtol=4e-7)
        inside = np.ones(rho.size, bool)
        inside[np.searchsorted(table.rows[:, 0], rho * (1 + 1e-9)) != np.searchsorted(table.rows[:, 0], rho)] = False
        assert inside.sum() > 60
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours[inside], np.array(theirs)[inside], rtol=1e-10, atol=1e-13)


def test_deviations_are_counted_in_their_bins(twin):
    deviation = hard_numbers(np.random.default_rng(1))
    counts, totals = np.ones(N_BINS), np.full(N_BINS, 2.0)
    twin.count_deviations(deviation, counts, totals)
    wanted = oracle.count_deviations(deviation)
    np.testing.assert_allclose(counts - 1.0, wanted[0], rtol=1e-12, atol=1e-12)
    # Sums of at most a hundred numbers, next to the 2 that was there.
    np.testing.assert_allclose(totals - 2.0, wanted[1], rtol=1e-12, atol=1e-12)


def completed_rows(twin, case, n_rows, n_columns, rank, dtype):
    """Arguments and outcome of solving for the rows of complete data in one go, with what was in the sums before."""
    rng = np.random.default_rng(7)
    left, right = rng.standard_normal((n_rows, rank)), rng.standard_normal((n_columns, rank))
    values = left @ right.T + 0.1 * rng.standard_normal((n_rows, n_columns))
    values[rng.random(values.shape) < 0.2] *= -30.0
    given = [(2.5 * values).astype(dtype), 2.5, left.astype(dtype), np.ascontiguousarray(right.T, dtype)]
    cov, offset = np.diag(rng.uniform(0.5, 1.0, rank)) / n_columns, rng.standard_normal(rank)
    counts, totals, sums = np.zeros(N_BINS), np.zeros(N_BINS), np.ones((n_columns, rank))
    model, nothing = oracle.random_slab(case, rng), np.zeros(0)
    pass_sums = PassSums(counts, totals, nothing, nothing, (), sums)
    rows = pack_symmetric(cov[None]), offset
    found = twin.solve_completed(*given, tabulate(model), 3.0, model.largest_weight, None, *rows, pass_sums)
    return given, model, cov, offset, found, (counts, totals, sums)


@pytest.mark.parametrize("kind", oracle.SLABS)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float64, 1e-11), (np.float32, 2e-5)])
def test_rows_of_completed_data_equal_loops(twin, kind, dtype, digits):
    (values, scale, left, right), model, cov, offset, found, (counts, totals, sums) = completed_rows(
        twin, kind, 5, 7, 3, dtype
    )
    table, evidence, weights, deviations = tabulate(model), 0.0, 0.0, []
    targets = np.zeros(values.shape)
    for i in range(5):
        for j in range(7):
            fitted = sum(float(left[i, r]) * float(right[r, j]) for r in range(3))
            residual = float(values[i, j]) / scale - fitted
            log_evidence, weight = (part[0] for part in oracle.look_up(table, np.array([3.0 * residual**2])))
            evidence, weights = evidence + log_evidence, weights + weight
            deviations.append(residual**2)
            targets[i, j] = fitted + weight / model.largest_weight * residual
    mean = (targets @ right.T + offset) @ cov
    wanted = oracle.count_deviations(oracle.counted_at(table, 3.0, deviations))
    np.testing.assert_allclose(found.mean, mean, rtol=digits, atol=digits)
    np.testing.assert_allclose(sums - 1.0, targets.T @ mean, rtol=digits, atol=10 * digits)
    assert found.log_evidence == pytest.approx(evidence, rel=10 * digits)
    assert found.weight_sum == pytest.approx(weights, rel=10 * digits)
    assert found.largest == pytest.approx(max(deviations), rel=10 * digits)
    if dtype is np.float64:  # single precision may put an entry into the next bin
        np.testing.assert_array_equal(counts, wanted[0])
    # An entry that single precision puts into the next segment moves by 1/128 of itself.
    assert totals.sum() == pytest.approx(wanted[1].sum(), rel=10 * digits if dtype is np.float64 else 1e-2)


@pytest.mark.parametrize("rank", [4, LARGEST_THIN, LARGEST_THIN + 1])
@pytest.mark.parametrize(
    ("n_rows", "n_columns"), [(2 * LEAST_TILE + 3, TILE_BYTES // LEAST_TILE // 8 + 5), (300, 40), (1, 9)]
)
def test_rows_of_completed_data_do_not_depend_on_tiles(n_rows, n_columns, rank):
    twins = [kernels.twin(name) for name in kernels.TWINS]
    ours, theirs = (completed_rows(twin, oracle.SLABS[0], n_rows, n_columns, rank, np.float64)[-2:] for twin in twins)
    np.testing.assert_allclose(ours[0].mean, theirs[0].mean, rtol=1e-10, atol=1e-12)
    for found, wanted in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert ours[0].log_evidence == pytest.approx(theirs[0].log_evidence, rel=1e-11)


@pytest.mark.parametrize("rank", [*RANKS, 2 * WIDTH, 2 * WIDTH + TOGETHER + 1])
@pytest.mark.parametrize("shared", [False, True])
def test_rows_are_solved(twin, rank, shared):
    """Also where components differ in strength by 1e8: scaled to unit diagonal the matrices are well conditioned."""
    rng = np.random.default_rng(rank)
    n_rows = 6
    root = rng.standard_normal((1 if shared else n_rows, rank, 2 * rank))
    precision = root @ root.transpose(0, 2, 1) + np.eye(rank)
    strength = 10.0 ** rng.uniform(-4.0, 4.0, rank)
    linear = rng.standard_normal((n_rows, rank))
    wanted = oracle.solve_rows(precision, linear)
    found = twin.solve_rows(precision * strength[:, None] * strength, linear * strength)
    # Condition numbers are below 1e3 for these random matrices.
    np.testing.assert_allclose(found[0] * strength, wanted[0], rtol=1e-11, atol=1e-12)
    covs = unpack_symmetric(found[1], rank)
    np.testing.assert_allclose(covs * strength[:, None] * strength, wanted[1], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found[2] + 2 * np.log(strength).sum(), wanted[2], rtol=1e-11, atol=1e-11)


def test_singular_rows_get_a_large_but_finite_covariance(twin):
    """Components that meet the same entries alike: P = [[1, 1], [1, 1]], whose solutions of P a = h have a sum of h."""
    mean, cov, log_det = twin.solve_rows(np.ones((2, 2, 2)), np.array([[1.0, 1.0], [3.0, 3.0]]))
    np.testing.assert_allclose(mean.sum(axis=1), [1.0, 3.0], rtol=1e-6)
    assert np.isfinite(cov).all()
    assert (log_det > 20).all()


@pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])
def test_sweeps_with_either_twin_agree(layout, collapsed, monkeypatch):
    case = oracle.slab_case(12, 3, layout, oracle.SLABS[0])
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    bounds = []
    for name in kernels.TWINS:
        monkeypatch.setenv("BRTF_KERNELS", name)
        point = evaluate(problem, case.state)
        for _ in range(4):
            point = sweep(problem, point, hold_noise=True)
        bounds.append(point.bound)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-11)


# ---- accidents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
class TestNumbersThatAreNone:
    """They come back as such where they went in, and nothing else is touched."""

    def test_in_contractions(self, twin, layout, bad):
        case = oracle.random_case(11, 3, layout)
        means = [rows.mean.copy() for rows in case.state.factors]
        values = np.array(case.values)
        clean = contracted(twin, case.observations, lambda block: values, means, 0, 1000)
        values[0] = bad
        with np.errstate(invalid="ignore"):
            found = contracted(twin, case.observations, lambda block: values, means, 0, 1000)
        np.testing.assert_array_equal(found[1:], clean[1:])
        assert not np.isfinite(found[0]).any()
        means[1][0, 0] = bad
        with np.errstate(invalid="ignore"):
            found = low_rank(twin, case.observations, means, 1000)
        hit = np.array([index[1] == 0 for index in case.problem.entries])
        assert not np.isfinite(found[hit]).any()
        assert np.isfinite(found[~hit]).all()

    def test_in_the_local_posteriors(self, twin, bad):
        table = tabulate(oracle.random_slab(oracle.SLABS[0], np.random.default_rng(0)))
        rho = np.array([1.0, bad, 2.0])
        with np.errstate(invalid="ignore", divide="ignore"):
            found = twin.evidence(table, rho)
        assert not np.isfinite(found[0][1])
        for ours, clean in zip(found, twin.evidence(table, rho[[0, 2]]), strict=True):
            np.testing.assert_array_equal(ours[[0, 2]], clean)
        counts, totals = np.zeros(N_BINS), np.zeros(N_BINS)
        with np.errstate(invalid="ignore"):
            twin.count_deviations(rho, counts, totals)
        assert counts.sum() == 3.0
        assert counts[[0, -1]].sum() == 1.0

    def test_in_the_solutions_of_rows(self, twin, bad):
        precision, linear = np.tile(3.0 * np.eye(2), (3, 1, 1)), np.ones((3, 2))
        precision[1, 0, 0] = bad
        with np.errstate(all="ignore"):
            mean, _, _ = twin.solve_rows(precision, linear)
        assert not np.isfinite(mean[1]).all()
        np.testing.assert_allclose(mean[[0, 2]], 1.0 / 3.0, rtol=1e-12)


def test_an_unknown_twin_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"BRTF_KERNELS must be one of numba, numpy, got 'fortran'\."):
        kernels.twin("fortran")
    monkeypatch.setenv("BRTF_KERNELS", "Numba")
    kernels._chosen.cache_clear()  # it is asked once, when the first kernel is used
    with pytest.raises(ValueError, match=r"BRTF_KERNELS must be one of numba, numpy, got 'Numba'\."):
        kernels.solve_rows(np.eye(1)[None], np.ones((1, 1)))


def test_the_environment_chooses_the_twin(monkeypatch):
    """The plain one does not even load the compiler."""
    code = (
        "import sys, numpy as np; from brtf import kernels; kernels.solve_rows(np.eye(1)[None], np.ones((1, 1)));"
        "print([name in sys.modules for name in ('brtf.kernels.reference', 'brtf.kernels.compiled', 'numba')])"
    )
    monkeypatch.setenv("BRTF_KERNELS", "numpy")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[True, False, False]"
    assert kernels.twin("numba").__name__ == "brtf.kernels.compiled"
