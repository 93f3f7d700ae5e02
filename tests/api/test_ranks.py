"""How many components: the curve of the bound, and core consistency against its definition."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from brtf import BRTF
from brtf.api.evaluation import draw_hidden
from brtf.data.observe import observe
from brtf.data.plan import BLOCK_ENTRIES
from brtf.datasets import synthetic
from brtf.ranks import RankCurve, bound_curve, core_consistency

CLAUS = Path(__file__).parents[3] / "shared" / "data" / "chemometrics" / "claus.mat"


def least_squares(Y, rank, *, n_sweeps=300, seed=1):
    """Factors of a complete tensor of order 3 by alternating least squares from a random start."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((length, rank)) for length in Y.shape]
    for _ in range(n_sweeps):
        for mode, name in enumerate("ijk"):
            first, second = (factors[k] for k in range(3) if k != mode)
            others = "ijk".replace(name, "")
            target = np.einsum(f"ijk,{others[0]}r,{others[1]}r->{name}r", Y, first, second, optimize=True)
            gram = (first.T @ first) * (second.T @ second)
            factors[mode] = np.linalg.lstsq(gram, target.T, rcond=None)[0].T
    return factors


def compose(factors):
    letters = "ijkl"[: len(factors)]
    return np.einsum(",".join(f"{letter}r" for letter in letters) + f"->{letters}", *factors)


def consistency_by_definition(factors, Y):
    """Fill in, balance the norms, and solve for all elements of the core at once."""
    filled = np.where(np.isnan(Y), compose(factors), Y)
    norms = np.array([np.linalg.norm(factor, axis=0) for factor in factors])
    size = np.prod(norms, axis=0) ** (1 / len(factors))
    design = np.ones((1, 1))
    for factor, norm in zip(factors, norms, strict=True):
        design = np.kron(design, factor * size / norm)
    rank = norms.shape[1]
    core = np.linalg.lstsq(design, filled.ravel(), rcond=None)[0].reshape((rank,) * len(factors))
    target = np.zeros_like(core)
    target[(np.arange(rank),) * len(factors)] = 1.0
    return 100 * (1 - np.sum((core - target) ** 2) / rank)


def random_problem(shape, rank, *, missing=0.3, seed=0):
    """Factors and data that have nothing to do with them but their size."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((length, rank)) for length in shape]
    Y = compose(factors) + rng.standard_normal(shape)
    return factors, np.where(rng.random(shape) < missing, np.nan, Y)


class TestCoreConsistency:
    @pytest.mark.parametrize(
        ("shape", "rank"), [((5, 4, 6), 1), ((5, 4, 6), 3), ((4, 3, 5, 4), 2), ((6, 7), 2)], ids=str
    )
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_is_its_definition(self, shape, rank, missing):
        factors, Y = random_problem(shape, rank, missing=missing)
        expected = consistency_by_definition(factors, Y)
        assert expected < 99.9
        assert core_consistency(factors, Y) == pytest.approx(expected, rel=1e-9)  # two solvers, well conditioned

    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_does_not_depend_on_blocks(self, missing):
        """The first mode leads the blocks, of which there are several here: it may be any."""
        factors, Y = random_problem((45, 40, 41), 2, missing=missing)
        assert Y.size > BLOCK_ENTRIES
        turned = core_consistency(factors[::-1], Y.T)
        assert core_consistency(factors, Y) == pytest.approx(turned, rel=1e-9)

    @pytest.mark.parametrize("rank", [1, 2, 4])
    def test_is_100_for_the_components_of_exact_data(self, rank):
        factors, _ = random_problem((6, 7, 5), rank)
        # The residual is rounding, 1e-16 of the data, and enters squared.
        assert core_consistency(factors, compose(factors)) == pytest.approx(100.0, abs=1e-10)

    def test_is_100_for_two_components_of_order_three_at_their_optimum(self):
        """Two of three indices are equal, so every element of the core is one that least squares has made optimal."""
        _, Y = random_problem((6, 5, 4), 3, missing=0.0)
        assert core_consistency(least_squares(Y, 2, n_sweeps=2000), Y) == pytest.approx(100.0, abs=1e-6)

    def test_falls_with_one_component_too_many(self):
        """A single draw of noise of a hundredth of the data decides what the fourth component is."""
        for seed in range(3):
            data = synthetic((12, 11, 10), 3, noise=1e-4, seed=seed)
            assert core_consistency(least_squares(data.observed, 3), data.observed) > 99.0
            assert core_consistency(least_squares(data.observed, 4), data.observed) < 0.0

    def test_is_100_for_the_rank_that_a_fit_finds(self):
        data = synthetic((12, 11, 10), 3, noise=1e-4, missing=0.3, outliers=0.05, seed=0)
        model = BRTF(max_rank=5, random_state=0).fit(data.observed)
        assert model.rank_ == 3
        without_outliers = np.where(data.outliers == 0, data.observed, np.nan)
        assert core_consistency(model.factors_, without_outliers) > 99.0

    @pytest.mark.skipif(not CLAUS.exists(), reason="the amino acid fluorescence data are not here")
    def test_three_amino_acids(self):
        Y = scipy.io.loadmat(CLAUS)["X"]
        found = [core_consistency(least_squares(Y, rank), Y) for rank in (2, 3, 4)]
        assert found[0] > 95
        assert found[1] > 95
        assert found[2] < -50

    def test_size_order_and_modes_do_not_matter(self):
        factors, Y = random_problem((5, 4, 6), 3)
        expected = pytest.approx(core_consistency(factors, Y), rel=1e-9)  # rounding
        size = np.array([1e-3, 1.0, 50.0])
        assert core_consistency([factors[0] * size, factors[1] / size, factors[2]], Y) == expected
        assert core_consistency([-factors[0], factors[1], -factors[2]], Y) == expected
        assert core_consistency([factor[:, [2, 0, 1]] for factor in factors], Y) == expected
        for modes in permutations(range(3)):
            assert core_consistency([factors[mode] for mode in modes], Y.transpose(modes)) == expected
        assert core_consistency([1e100 * factors[0], *factors[1:]], 1e100 * Y) == expected

    def test_layout_does_not_matter(self):
        factors, Y = random_problem((5, 4, 6), 2)
        mask = ~np.isnan(Y)
        expected = pytest.approx(core_consistency(factors, Y), rel=1e-9)  # sums in another order
        assert core_consistency(factors, np.nan_to_num(Y), mask) == expected
        assert core_consistency(factors, scipy.sparse.coo_array((Y[mask], np.nonzero(mask)), shape=Y.shape)) == expected

    def test_sparse_data_are_never_made_dense(self):
        """A dense tensor of this shape would have 10¹⁵ entries."""
        rng = np.random.default_rng(0)
        coords = rng.integers(0, 100_000, size=(3, 200))
        factors = [rng.standard_normal((100_000, 2)) for _ in range(3)]
        Y = scipy.sparse.coo_array((1e6 * rng.standard_normal(200), tuple(coords)), shape=(100_000,) * 3)
        assert core_consistency(factors, Y) < 100

    def test_more_components_than_positions(self):
        """The core that is nearest to the target among all that fit best: here the target itself."""
        factors, _ = random_problem((2, 5, 6), 3)
        assert core_consistency(factors, compose(factors)) == pytest.approx(100.0, abs=1e-10)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda factors: factors[:2], r"factors have shapes \[\(5, 2\), \(4, 2\)\], but Y has shape \(5, 4, 6\)"),
            (lambda factors: [*factors[:2], factors[2][:, :1]], "the same number of columns"),
            (lambda factors: [factor[:, :0] for factor in factors], "at least one"),
            (lambda factors: [*factors[:2], factors[0]], "a row for every position"),
            (lambda factors: [*factors[:2], factors[2] * [1, 0]], "column that is zero or not finite"),
            (lambda factors: [*factors[:2], factors[2] * [1, np.nan]], "column that is zero or not finite"),
            (lambda factors: [], "Pass one matrix per mode"),
        ],
    )
    def test_bad_factors(self, change, sentence):
        factors, Y = random_problem((5, 4, 6), 2)
        with pytest.raises(ValueError, match=sentence):
            core_consistency(change(factors), Y)


DATA = synthetic((9, 8, 7), 2, strengths=(1, 1), outliers=0.05, missing=0.2, noise=0.01, seed=0)


def curve_of(bounds, share=0.01):
    rows = [
        {"max_rank": rank, "rank": rank, "bound": bound, "log_density": np.nan, "converged": True, "seconds": 0.0}
        for rank, bound in enumerate(bounds, start=1)
    ]
    return RankCurve(rows, share)


class TestElbow:
    @pytest.mark.parametrize(
        ("bounds", "share", "elbow"),
        [
            ([-900, -300, 100, 100, 99.9], 0.01, 3),
            ([-900, -300, 100, 105, 109], 0.01, 3),  # creeps on, by less than a hundredth of the rise
            ([-900, -300, 100, 105, 109], 0.004, 4),
            ([-900, -300, 100, 105, 109], 0.5, 2),
            ([5.0, 5.2, 5.9], 0.01, 1),  # a rise of less than a nat is none
            ([-7.0], 0.01, 1),
            ([3.0, 50.0, 1.0], 0.01, 2),  # a worse optimum at a higher limit
        ],
    )
    def test_is_the_smallest_rank_near_the_best_bound(self, bounds, share, elbow):
        assert curve_of(bounds, share).elbow == elbow

    def test_units_do_not_matter(self):
        """Other units shift all bounds by the same number, across zero."""
        bounds = np.array([-900.0, -300, 100, 105, 109])
        assert {curve_of(bounds + shift).elbow for shift in (-1e4, 0, 795, 1e4)} == {3}

    def test_is_marked_in_the_table(self):
        header, *lines = curve_of([-900, -300, 100, 100]).table().splitlines()
        assert header.split() == ["max_rank", "rank", "bound", "log_density", "seconds"]
        assert [line.endswith("elbow") for line in lines] == [False, False, True, False]
        assert lines[0].split() == ["1", "1", "-900", "nan", "0"]


@pytest.fixture(scope="module")
def curve():
    return bound_curve(DATA.observed, [3, 1, 2, 4, 2], hold_out=0.1, seed=1, tol=1e-4)


class TestBoundCurve:
    def test_rises_to_the_true_rank_and_stays(self, curve):
        assert [row["max_rank"] for row in curve.rows] == [1, 2, 3, 4]
        assert [row["rank"] for row in curve.rows] == [1, 2, 2, 2]
        bounds = [row["bound"] for row in curve.rows]
        assert bounds[1] > bounds[0] + 100
        # Each search ends where a round of proposals gains less than a nat.
        np.testing.assert_allclose(bounds[1:], bounds[1], atol=1.0)
        assert curve.elbow == 2

    def test_held_out_entries_agree(self, curve):
        densities = [row["log_density"] for row in curve.rows]
        assert densities[1] > densities[0] + 0.2

    def test_a_row_is_a_fit(self, curve):
        hidden = np.zeros(DATA.observed.shape, dtype=bool)
        hidden[DATA.mask] = draw_hidden(observe(DATA.observed), 0.1, np.random.default_rng(1))
        model = BRTF(max_rank=2, tol=1e-4, random_state=1).fit(np.where(hidden, np.nan, DATA.observed))
        row = curve.rows[1]
        assert (row["rank"], row["bound"], row["converged"]) == (model.rank_, model.bound_, model.converged_)
        assert row["log_density"] == model.score(np.where(hidden, DATA.observed, np.nan))

    def test_everything_is_fitted_unless_told_otherwise(self):
        options = {"tol": 1e-4, "robust": False, "init": "random", "random_state": 3}
        curve = bound_curve(np.nan_to_num(DATA.observed), [2], DATA.mask, **options)
        model = BRTF(max_rank=2, **options).fit(DATA.observed)
        assert curve.rows[0]["bound"] == model.bound_
        assert np.isnan(curve.rows[0]["log_density"])

    @pytest.mark.parametrize(
        ("ranks", "options", "sentence"),
        [
            ([], {}, "ranks is empty"),
            ([0, 1], {}, "max_rank must be None or an integer of at least 1, got 0"),
            ([1], {"share": 1.0}, "share must be at least 0 and below 1, got 1.0"),
            ([1], {"hold_out": -0.1}, "hold_out must be between 0 and 1"),
        ],
    )
    def test_bad_arguments(self, ranks, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            bound_curve(DATA.observed, ranks, **options)
