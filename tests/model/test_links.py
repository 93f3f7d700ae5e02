"""Links: a fit of t(Y) whose answers, densities and bounds are those of Y."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import xarray as xr
from click.testing import CliRunner
from scipy import stats
from scipy.integrate import quad

from brtf import BRTF, Observations, load
from brtf.cli import main
from brtf.data.observe import observe
from brtf.io.archive import pack
from brtf.io.storage import CorruptFile, write_archive
from brtf.metrics import coverage, rrse
from brtf.model.links import LINKS, Logarithm, SquareRoot
from brtf.model.local_models import NoOutliers
from brtf.model.predictive import ErrorLaw

NAMES = ("sqrt", "log")
FORWARD = {"sqrt": np.sqrt, "log": np.log}
INVERSE = {"sqrt": np.square, "log": np.exp}
SHAPE = (12, 10, 8)
RANK = 2
NOISE_STD = 0.1
SEED = 3
N_DRAWS = 40_000
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / np.sqrt(2 * np.pi)


class Problem:
    """Y = t⁻¹(low-rank + noise + outliers), a third of it hidden; the low-rank part is well above zero."""

    def __init__(self, name):
        rng = np.random.default_rng(SEED)
        factors = [rng.uniform(0.5, 1.5, (length, RANK)) for length in SHAPE]
        self.modelled_low_rank = np.einsum("ir,jr,kr->ijk", *factors)
        is_outlier = rng.random(SHAPE) < 0.04
        outliers = np.where(is_outlier, rng.choice([-1.2, 3.0], SHAPE), 0.0)
        modelled = self.modelled_low_rank + NOISE_STD * rng.normal(size=SHAPE)
        self.is_outlier = is_outlier
        self.low_rank = INVERSE[name](self.modelled_low_rank)
        self.clean = INVERSE[name](modelled)
        self.values = INVERSE[name](modelled + outliers)
        self.mask = rng.random(SHAPE) > 1 / 3
        self.observed = np.where(self.mask, self.values, np.nan)
        self.held_out = np.where(self.mask, np.nan, self.values)


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def problem(name):
    return Problem(name)


@pytest.fixture(scope="module")
def found(name, problem):
    return BRTF(3, link=name, random_state=0).fit(problem.observed)


@pytest.fixture(scope="module")
def plain(name, problem):
    """The same fit, of data that were transformed by hand."""
    return BRTF(3, random_state=0).fit(FORWARD[name](problem.observed))


# ---- one link ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LINKS.values(), ids=map(str, LINKS))
class TestTransform:
    def link(self, kind):
        return kind.for_data(self.values())

    def values(self):
        return np.array([1e-12, 0.3, 1.0, 7.0, 1e8])

    def test_inverse_undoes_forward(self, kind):
        t, y = self.link(kind), self.values()
        # ln y is of order 20, and exp makes a relative error of its absolute one.
        np.testing.assert_allclose(t.inverse(t.forward(y)), y, rtol=1e-14)

    def test_jacobian_is_the_slope(self, kind):
        t, y = self.link(kind), self.values()
        step = 1e-5 * y
        slope = (t.forward(y + step) - t.forward(y - step)) / (2 * step)
        # Central differences: 1e-10 of truncation, and rounding 1e-16 over the step, times ln y for the logarithm.
        np.testing.assert_allclose(t.log_jacobian(y), np.log(slope), rtol=0, atol=1e-8)

    @pytest.mark.parametrize("std", [1e-3, 0.4, 1.3])
    def test_moments_are_those_of_a_transformed_gaussian(self, kind, std):
        t, centre = self.link(kind), np.array([-1.0, 0.0, 0.2, 2.0])
        draws = t.inverse(centre + std * NODES[:, None])
        mean = WEIGHTS @ draws
        deviation = np.sqrt(WEIGHTS @ (draws - mean) ** 2)
        # 80 nodes integrate polynomials exactly and exp(2 · 1.3 ξ) to rounding.
        np.testing.assert_allclose(t.mean(centre, np.full(4, std)), mean, rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(t.std(centre, np.full(4, std)), deviation, rtol=1e-9)

    def test_interval_holds_its_probability(self, kind):
        t, centre, std = self.link(kind), np.array([-0.5, -6.0, 0.0, 0.3, 5.0]), 0.5
        half = stats.norm.ppf(0.95) * std
        low, high = t.interval(centre - half, centre + half)
        assert (low < high).all()
        z = centre + std * np.random.default_rng(SEED).normal(size=(N_DRAWS, 5))
        share = np.mean((t.inverse(z) >= low) & (t.inverse(z) <= high), axis=0)
        error = 4 * np.sqrt(0.9 * 0.1 / N_DRAWS)
        assert (share > 0.9 - error).all()
        exact = np.abs(centre) > 4 if t.mirrored else np.full(5, True)  # eight standard deviations from zero
        assert (share[exact] < 0.9 + error).all()

    def test_an_outlier_is_what_y_would_lack_without_it(self, kind):
        t, y = self.link(kind), np.array([0.3, 1.0, 7.0])
        shift = np.array([0.2, -2.0, 1.5])
        np.testing.assert_allclose(t.outliers(y, shift), y - t.inverse(t.forward(y) - shift), rtol=1e-13)
        assert not t.outliers(y, np.zeros(3)).any()


def law_of(weight, dof, scale_sq, reach):
    return ErrorLaw(*(np.array(part, dtype=float) for part in (weight, dof, scale_sq, reach)))


LAWS = {
    "student": law_of([1], [9], [0.3], [0]),
    "mixture": law_of([0.9, 0.1, 0], [40, 12, 1], [0.01, 4, 1], [0, 0, 0]),
    "flat outliers": law_of([0.8, 0.2], [30, 1e9], [0.05, 0.05], [0, 6]),
    "one-sided mixture": replace(law_of([0.9, 0.1], [40, 12], [0.01, 4], [0, 0]), positive=0.9),
    "one-sided flat outliers": replace(law_of([0.8, 0.2], [30, 1e9], [0.05, 0.05], [0, 6]), positive=0.1),
}


class TestObservationStd:
    @pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
    def test_moments_of_a_square_are_integrals(self, law):
        centre, variance, scale = np.array([0.7]), np.array([0.2]), 3.0

        def integral(power):
            def integrand(deviation):
                both = np.exp(law.log_density(np.array([deviation, -deviation]), variance))
                return both[0] * (centre[0] + deviation) ** power + both[1] * (centre[0] - deviation) ** power

            return sum(quad(integrand, *ends)[0] for ends in ((0, 2), (2, 8), (8, 50), (50, np.inf)))

        expected = scale**2 * np.sqrt(integral(4) - integral(2) ** 2)
        got = SquareRoot().observation_std(law, centre, variance, scale)
        np.testing.assert_allclose(got, expected, rtol=1e-6)  # quad promises 1e-8 of each moment

    def test_is_infinite_where_it_does_not_exist(self):
        heavy = law_of([0.9, 0.1], [40, 4], [1, 1], [0, 0])
        three = np.zeros(3)
        assert np.isinf(SquareRoot().observation_std(heavy, three, three, 1.0)).all()
        assert np.isinf(Logarithm().observation_std(LAWS["student"], three, three, 1.0)).all()


# ---- the front door ----------------------------------------------------------------------------------------


class TestDomain:
    def test_values_outside_are_refused(self, problem, name):
        data = np.array(problem.observed)
        data[data < np.nanmedian(data)] = -0.5
        n_wrong, first = np.count_nonzero(data < 0), np.argwhere(data < 0)[0].tolist()
        needs = {"sqrt": "values of at least 0", "log": "values above 0"}[name]
        sentence = (
            f"Y{first} is -0.5, but link='{name}' needs {needs} ({n_wrong} such entries in all). "
            "Mark them missing: pass mask=, or set them to NaN; or fit without a link."
        )
        rows, cols, tubes = np.nonzero(~np.isnan(data))
        sparse = Observations.from_coords((rows, cols, tubes), data[rows, cols, tubes], SHAPE)
        for given, calibrate in [(data, None), (np.ma.masked_invalid(data), None), (sparse, None), (data, "conformal")]:
            model = BRTF(link=name, calibrate=calibrate, random_state=0)
            with pytest.raises(ValueError) as caught:
                model.fit(given)
            assert str(caught.value) == sentence
            assert not hasattr(model, "result_")

    def test_later_data_are_checked_too(self, found, problem, name):
        wrong = np.array(problem.held_out)
        wrong[np.isnan(wrong)] = -1.0
        for method in (found.score, found.transform):
            with pytest.raises(ValueError, match=f"link='{name}' needs"):
                method(wrong)

    def test_zero_has_a_square_root_and_no_logarithm(self):
        zero = observe([[0.0, 1.0], [4.0, 9.0]])
        np.testing.assert_array_equal(SquareRoot().apply(zero).values, [[0, 1], [2, 3]])
        with pytest.raises(ValueError, match=r"^Y\[0, 0\] is 0.0, .*\(1 such entry in all\)"):
            Logarithm().apply(zero)

    def test_the_place_has_its_labels(self):
        table = xr.DataArray([[1.0, 2.0], [-3.0, 4.0]], dims=("site", "day"), coords={"site": ["a", "b"]})
        with pytest.raises(ValueError, match=r"^Y\[site=b, day=0\] is -3.0"):
            BRTF(link="sqrt").fit(table)

    def test_missing_values_may_be_anything(self, problem, name):
        data = np.where(problem.mask, problem.values, -1.0)
        t = LINKS[name]()
        np.testing.assert_array_equal(
            t.apply(observe(data, problem.mask)).values, t.apply(observe(problem.observed)).values
        )

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_input_is_untouched_and_its_type_kept(self, problem, name, dtype):
        data = problem.values.astype(dtype)
        before = data.copy()
        modelled = LINKS[name]().apply(observe(data))
        np.testing.assert_array_equal(data, before)
        assert modelled.values.dtype == dtype
        assert not modelled.values.flags.writeable
        assert modelled.scale == observe(FORWARD[name](data)).scale

    @pytest.mark.parametrize("value", ["square", "", 1, True])
    def test_other_links_are_refused(self, value):
        with pytest.raises(ValueError, match=r"^link must be None or one of \('auto', 'sqrt', 'log', 'log1p'\), got"):
            BRTF(link=value).fit(np.ones((3, 4)))


# ---- the fit is that of t(Y), the answers those of Y -------------------------------------------------------


class TestAnswers:
    def test_factors_and_noise_are_those_of_the_transformed_data(self, found, plain):
        assert found.rank_ == plain.rank_
        for ours, theirs in zip(found.factors_, plain.factors_, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert found.noise_variance_ == plain.noise_variance_
        np.testing.assert_array_equal(found.outlier_probability(), plain.outlier_probability())

    def test_bound_and_score_gain_the_jacobian(self, found, plain, problem, name):
        slope = {"sqrt": lambda y: 0.5 / np.sqrt(y), "log": lambda y: 1 / y}[name]
        jacobian = np.log(slope(problem.values))
        # Sums of a thousand terms, in another order.
        assert found.bound_ == pytest.approx(plain.bound_ + jacobian[problem.mask].sum(), rel=1e-12)
        np.testing.assert_allclose(
            found.trace_["bound"], plain.trace_["bound"] + jacobian[problem.mask].sum(), rtol=1e-12
        )
        roots = {"sqrt": (1, -1), "log": (1,)}[name]  # every z of which y is t⁻¹
        modelled = (observe(root * FORWARD[name](problem.held_out)) for root in roots)
        density = sum(np.exp(plain.result_.log_density(z)) for z in modelled)
        expected = np.mean(np.log(density) + jacobian[~problem.mask])
        assert found.score(problem.held_out) == pytest.approx(expected, rel=1e-12)

    def test_predictions_are_means_of_what_the_posterior_draws(self, found):
        coords = np.random.default_rng(SEED).integers(0, np.array(SHAPE)[:, None], size=(3, 6))
        draws = found.sample(4000, coords, of="low_rank", random_state=0)
        mean, std = found.predict(coords, return_std=True)
        # Four standard errors of the mean; those of a standard deviation are 1/√(2N) of it, somewhat more for exp.
        assert (np.abs(draws.mean(axis=0) - mean) < 4 * std / np.sqrt(4000)).all()
        np.testing.assert_allclose(draws.std(axis=0), std, rtol=6 / np.sqrt(2 * 4000))
        np.testing.assert_allclose(mean, found.low_rank()[tuple(coords)], rtol=1e-12)

    def test_intervals_are_those_of_the_transformed_data(self, found, plain, name):
        for of in ("low_rank", "observation"):
            ours, theirs = (model.predict_interval(level=0.8, of=of) for model in (found, plain))
            assert min(bound.min() for bound in theirs) > 0  # otherwise the square would fold
            np.testing.assert_allclose(ours, INVERSE[name](np.array(theirs)), rtol=1e-12)

    def test_draws_are_those_of_the_transformed_data(self, found, plain, name):
        drawn = [model.sample(2, random_state=0) for model in (found, plain)]
        np.testing.assert_allclose(drawn[0], INVERSE[name](drawn[1]), rtol=1e-12)

    def test_outliers_are_in_the_units_of_the_data(self, found, plain, problem, name):
        cleaned = INVERSE[name](FORWARD[name](problem.values) - plain.outliers())
        expected = np.where(problem.mask, problem.values - cleaned, 0.0)
        np.testing.assert_allclose(found.outliers(), expected, rtol=0, atol=1e-12 * np.abs(problem.values).max())

    def test_imputing_keeps_what_was_observed(self, found, problem):
        filled = found.impute()
        np.testing.assert_array_equal(filled[problem.mask], problem.observed[problem.mask])
        np.testing.assert_array_equal(filled[~problem.mask], found.low_rank()[~problem.mask])
        cleaned = found.impute(replace_outliers=True)
        hit = problem.is_outlier & problem.mask
        error, before = (np.median(np.abs(values - problem.clean)[hit]) for values in (cleaned, problem.values))
        assert error < 0.2 * before

    def test_loadings_are_those_of_the_transformed_data(self, found, plain, problem, name):
        new = problem.values[:3]
        for ours, theirs in zip(found.transform(new, True), plain.transform(FORWARD[name](new), True), strict=True):
            np.testing.assert_array_equal(ours, theirs)


class TestDensity:
    @pytest.mark.parametrize("noise_factor", [1.0, 100.0])
    def test_integrates_to_one_over_y(self, found, name, noise_factor):
        # With ten times the noise the density of √Y reaches far beyond zero, and has to come back.
        result = found.result_
        tau = replace(result.state.tau, rate=result.state.tau.rate * noise_factor)
        result = replace(result, state=replace(result.state, tau=tau))
        entry = (4, 5, 6)
        low, high = (float(end[0]) for end in result.interval(np.array(entry)[:, None], level=0.999, of="observation"))

        def density(z):  # of y, times dy/dz: integrated over z, where it is smooth
            y = INVERSE[name](z)
            log_density = result.log_density(Observations.from_coords(np.array(entry)[:, None], [y], SHAPE))
            return float(np.exp(log_density[0])) * {"sqrt": 2 * z, "log": y}[name]

        cuts = FORWARD[name](np.array([low + 1e-300, result.low_rank(np.array(entry)[:, None])[0], high]))
        lowest = {"sqrt": 0.0, "log": cuts[0] - 20 * (cuts[2] - cuts[0])}[name]
        cuts = np.clip([lowest, *cuts, cuts[-1] + 20 * (cuts[-1] - cuts[0])], -700, 700)  # where exp has a float
        total = sum(quad(density, *ends, epsabs=1e-5)[0] for ends in pairwise(cuts))
        # Beyond twenty widths of the 99.9 % interval there are 1e-4 at most of Student-t and slab tails.
        assert total == pytest.approx(1, abs=2e-4)

    def test_a_zero_counts_as_the_smallest_positive_value(self):
        t = SquareRoot.for_data(np.array([0.0, 4.0, 0.25, 9.0]))
        assert t.smallest == 0.25
        np.testing.assert_allclose(np.exp(t.log_jacobian(np.array([0.0, 0.25, 0.01, 4.0]))), [1, 1, 5, 0.25])
        assert SquareRoot.for_data(np.zeros(3)).smallest == 1.0


class TestRecovery:
    def test_the_right_link_has_the_higher_bound_and_density(self, found, problem, name):
        without = BRTF(3, tol=1e-3, random_state=0, link=None).fit(problem.observed)
        assert found.bound_ > without.bound_ + 20
        assert found.score(problem.held_out) > without.score(problem.held_out) + 0.02

    def test_truth_is_recovered(self, found, problem):
        assert found.rank_ == RANK
        assert found.noise_variance_**0.5 == pytest.approx(NOISE_STD, rel=0.1)
        assert rrse(found.low_rank(), problem.low_rank) < 0.05
        flagged = found.outlier_probability()[problem.mask] > 0.5
        # Outliers are twelve noise levels or more: all are found, and next to none besides.
        assert np.mean(flagged == problem.is_outlier[problem.mask]) > 0.99

    @pytest.mark.parametrize("level", [0.8, 0.95])
    def test_intervals_hold_what_was_hidden(self, found, problem, level):
        hidden = ~problem.mask
        low, high = (end[hidden] for end in found.predict_interval(level=level, of="observation"))
        held = coverage(low, high, problem.values[hidden])
        # Four binomial standard errors.
        assert abs(held - level) < 4 * np.sqrt(level * (1 - level) / hidden.sum())
        low, high = (end[hidden] for end in found.predict_interval(level=level))
        # The errors of x share their factors, so their number is rather that of the factors' entries.
        n_free = RANK * sum(SHAPE)
        assert abs(coverage(low, high, problem.low_rank[hidden]) - level) < 4 * np.sqrt(level * (1 - level) / n_free)


# ---- units and layouts -------------------------------------------------------------------------------------


class TestUnits:
    @pytest.fixture
    def data(self):
        return Problem("sqrt").observed[:8, :7, :6]

    @staticmethod
    def fit(data, link="sqrt", **options):
        settings = {"inference": "paper", "tol": 1e-3, "random_state": 0, **options}
        return BRTF(3, link=link, **settings).fit(data)

    @pytest.mark.parametrize("factor", [1e-6, 1e6])
    def test_square_root_is_scale_equivariant(self, data, factor):
        ours, theirs = self.fit(factor * data), self.fit(data)
        # √factor is no power of two: rounding of the data, carried through the sweeps.
        close = {"rtol": 1e-7, "atol": 1e-8 * factor}
        for of in ("low_rank", "observation"):
            (mean, std), (mean_1, std_1) = (m.predict(return_std=True, of=of) for m in (ours, theirs))
            np.testing.assert_allclose(mean, factor * mean_1, **close)
            np.testing.assert_allclose(std, factor * std_1, **close)
            np.testing.assert_allclose(
                ours.predict_interval(of=of), np.multiply(factor, theirs.predict_interval(of=of)), **close
            )
        np.testing.assert_allclose(ours.outliers(), factor * theirs.outliers(), **close)
        np.testing.assert_allclose(ours.impute(), factor * theirs.impute(), **close)
        assert ours.noise_variance_ == pytest.approx(factor * theirs.noise_variance_, rel=1e-7)
        assert ours.bound_ == pytest.approx(theirs.bound_ - ours.n_observed_ * np.log(factor), rel=1e-9)
        assert ours.score(factor * data) == pytest.approx(theirs.score(data) - np.log(factor), rel=1e-9)

    def test_zeros_fit_and_compare(self, data):
        counts = np.floor(data)
        assert (counts == 0).any()
        ours, theirs = self.fit(1e-6 * counts), self.fit(counts)
        assert np.isfinite(theirs.bound_)
        assert ours.bound_ == pytest.approx(theirs.bound_ + ours.n_observed_ * np.log(1e6), rel=1e-9)
        assert np.isfinite(theirs.score(np.zeros(counts.shape)))

    def test_fit_transform_transforms_once(self, data, name):
        ours, theirs = (BRTF(3, link=t, inference="paper", tol=1e-2, random_state=0) for t in (name, None))
        np.testing.assert_array_equal(ours.fit_transform(data), theirs.fit_transform(FORWARD[name](data)))

    @pytest.mark.parametrize("factor", [1e-100, 1e100])
    def test_data_of_any_size_fit(self, data, name, factor):
        found = self.fit(factor * data, name, tol=1e-2)
        for answer in (*found.predict(return_std=True), found.outliers(), found.impute(), found.bound_):
            assert np.isfinite(answer).all()

    @pytest.mark.parametrize(("name", "value"), [("sqrt", 0.0), ("sqrt", 5.0), ("log", 1.0), ("log", 5.0)])
    def test_constant_data_fit(self, name, value):
        found = self.fit(np.full((6, 5, 4), value), name, inference="calibrated")
        np.testing.assert_allclose(found.low_rank(), value, atol=1e-6)  # the precision is capped, not infinite
        assert np.isfinite(found.bound_)

    def test_layouts_agree(self, data, name):
        coords = np.nonzero(~np.isnan(data))
        sparse = Observations.from_coords(coords, data[coords], data.shape)
        ours, theirs = self.fit(sparse, name), self.fit(data, name)
        # Two orders of summation, carried through the sweeps.
        np.testing.assert_allclose(ours.low_rank(), theirs.low_rank(), rtol=1e-7)
        assert ours.bound_ == pytest.approx(theirs.bound_, rel=1e-9)
        assert scipy.sparse.issparse(ours.outliers())
        np.testing.assert_allclose(ours.outliers().toarray(), theirs.outliers(), rtol=1e-6, atol=1e-8)

    def test_labels_come_back(self, data, name):
        labelled = xr.DataArray(data, dims=("site", "day", "hour"), name="flow")
        filled = self.fit(labelled, name).impute()
        assert filled.dims == labelled.dims
        np.testing.assert_array_equal(filled.values[~np.isnan(data)], data[~np.isnan(data)])


# ---- together with other options ---------------------------------------------------------------------------


class TestOtherOptions:
    @pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # outliers want a component of their own
    def test_a_block_more_is_the_block_transformed(self, problem, name):
        ours, theirs = (BRTF(2, link=t, robust=False, tol=1e-3, random_state=0) for t in (name, None))
        for rows in (slice(0, 8), slice(8, 12)):
            ours.partial_fit(problem.observed[rows])
            theirs.partial_fit(FORWARD[name](problem.observed[rows]))
        assert ours.result_.scale == theirs.result_.scale
        for mine, other in zip(ours.factors_, theirs.factors_, strict=True):
            np.testing.assert_array_equal(mine, other)
        jacobian = ours.result_.link.log_jacobian(problem.values[8:][problem.mask[8:]]).sum()
        assert ours.bound_ == pytest.approx(theirs.bound_ + jacobian, rel=1e-9)

    def test_conformal_intervals_are_those_of_the_transformed_data(self, problem, name):
        options = {"inference": "paper", "tol": 1e-2, "calibrate": "conformal", "random_state": 0}
        data = np.where(problem.is_outlier, problem.clean, problem.values)
        ours = BRTF(3, link=name, **options).fit(data)
        theirs = BRTF(3, **options).fit(FORWARD[name](data))
        intervals = (model.predict_interval(level=0.9, of="observation") for model in (ours, theirs))
        low, high = next(intervals)
        expected = next(intervals)
        assert expected[0].min() > 0
        np.testing.assert_allclose((low, high), INVERSE[name](np.array(expected)), rtol=1e-12)
        np.testing.assert_array_equal(ours.impute(), data)

    def test_noise_per_slice_enters_the_spread_of_an_observation(self):
        data = Problem("sqrt").observed[:8, :7, :6]
        found = BRTF(2, link="sqrt", noise="per-slice", tol=1e-3, random_state=0).fit(data)
        result = found.result_
        assert result.state.slices is not None
        light = replace(result.state, local=NoOutliers())  # Gaussian but for the precision learnt: all moments exist
        result = replace(result, state=light)
        coords = np.array([[0, 3, 7], [1, 2, 3], [4, 5, 0]])
        n_draws = 5000
        draws = result.sample(n_draws, np.random.default_rng(SEED), coords)
        # The standard error of a standard deviation is 1/√(2N) of it for a Gaussian, not much more for its square.
        np.testing.assert_allclose(
            result.std(coords, of="observation"), draws.std(axis=0), rtol=6 / np.sqrt(2 * n_draws)
        )


# ---- files, scikit-learn, the command line -----------------------------------------------------------------


class TestFiles:
    def test_a_file_says_it_all_again(self, found, problem, tmp_path):
        found.save(tmp_path / "fit.brtf")
        again = load(tmp_path / "fit.brtf")
        assert again.get_params()["link"] == found.get_params()["link"]
        assert again.bound_ == found.bound_
        for method in ("low_rank", "outliers", "impute"):
            np.testing.assert_array_equal(getattr(again, method)(), getattr(found, method)())
        assert again.score(problem.held_out) == found.score(problem.held_out)

    def test_values_outside_the_domain_are_refused(self, found, tmp_path):
        header, arrays = pack(found.result_)
        write_archive(tmp_path / "wrong.brtf", header, {**arrays, "values": -arrays["values"]})
        with pytest.raises(CorruptFile, match="needs values"):
            load(tmp_path / "wrong.brtf")


def test_the_command_line_takes_it(problem, name, tmp_path):
    np.save(tmp_path / "y.npy", problem.observed)
    options = ["--link", name, "--inference", "paper", "--tol", "1e-2", "--max-rank", "3"]
    done = CliRunner().invoke(main, ["fit", str(tmp_path / "y.npy"), "--out", str(tmp_path), "--json", *options])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["link"] == name
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "result.brtf")])
    assert f"{name}(data)" in shown.stdout
