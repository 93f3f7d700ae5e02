"""The law of an observation: densities integrate, widths solve their equation, draws follow it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.model.predictive import ErrorLaw, error_law


def mixture_of(weight, dof, scale_sq, reach=None):
    """A law from lists, Student-t throughout unless a reach is given."""
    numbers = (np.array(part, dtype=float) for part in (weight, dof, scale_sq))
    return ErrorLaw(*numbers, np.zeros(len(weight)) if reach is None else np.array(reach, dtype=float))


LAWS = {
    "one": mixture_of([1], [7], [0.3]),
    "two": mixture_of([0.9, 0.1], [40, 5], [0.01, 4]),
    "four": mixture_of([0.4, 0.3, 0.2, 0.1], [9, 200, 20, 5], [1, 0.1, 3, 50]),
    "unused component": mixture_of([1, 0], [30, 1], [0.5, 1e6]),
    "flat outliers": mixture_of([0.8, 0.2], [30, 1e9], [0.05, 0.05], [0, 6]),
    "only flat": mixture_of([1], [1e9], [0.4], [3]),
}
VARIANCES = {
    "zero": np.zeros(3),
    "equal": np.full(4, 0.7),
    "eleven decades": np.concatenate([[0.0], np.logspace(-8, 3, 40)]),
}
N_DRAWS = 40_000
SEED = 11


def inside(law, half_width, variance):
    """P(|y − x̄| ≤ half_width) at each entry, summed over the components' distribution functions."""
    total = np.zeros_like(variance)
    for weight, dof, scale_sq, reach in zip(law.weight, law.dof, law.scale_sq, law.reach, strict=True):
        scale = np.sqrt(scale_sq + variance)
        if reach > 0:  # average the Gaussian's probability over the uniform part, by a rule that resolves the edges
            nodes, weights = np.polynomial.legendre.leggauss(400)
            centres = reach * nodes[:, None]
            spread = stats.norm.cdf((half_width - centres) / scale) - stats.norm.cdf((-half_width - centres) / scale)
            total = total + weight * 0.5 * weights @ spread
        else:
            total = total + weight * (2 * stats.t.cdf(half_width, dof, scale=scale) - 1)
    return total


@pytest.fixture(params=LAWS.values(), ids=LAWS.keys())
def law(request):
    return request.param


class TestErrorLaw:
    @pytest.mark.parametrize("variance", [0.0, 2.0])
    def test_density_integrates_to_one(self, law, variance):
        def density(deviation):
            return float(np.exp(law.log_density(np.array([deviation]), np.array([variance])))[0])

        # Symmetric: twice one side, cut where the widest scale passes into its tail. quad itself promises 1e-8.
        widest = float(np.sqrt((law.scale_sq + law.reach**2)[law.weight > 0].max() + variance))
        total = 2 * (quad(density, 0, widest)[0] + quad(density, widest, np.inf)[0])
        assert total == pytest.approx(1, abs=1e-7)
        assert density(-0.4) == density(0.4)

    @pytest.mark.parametrize("level", [0.05, 0.5, 0.95, 0.999])
    @pytest.mark.parametrize("variance", VARIANCES.values(), ids=VARIANCES.keys())
    def test_half_width_solves_its_equation(self, law, level, variance):
        half_width = law.half_width(level, variance)
        assert half_width.shape == variance.shape
        # The table is interpolated to 1e-8 of a width, and a probability moves less than a width does.
        np.testing.assert_allclose(inside(law, half_width, variance), level, rtol=0, atol=1e-7)

    def test_half_width_widens_with_level_and_variance(self, law):
        variance = VARIANCES["eleven decades"]
        narrow, wide = law.half_width(0.5, variance), law.half_width(0.9, variance)
        assert (narrow < wide).all()
        assert (np.diff(wide) >= -1e-12 * wide[1:]).all()  # inside a flat part a small variance moves nothing
        assert wide[-1] > wide[0]

    def test_a_mixture_of_equals_is_the_component(self):
        single = LAWS["one"]
        mixture = mixture_of([0.3, 0.7], np.repeat(single.dof, 2), np.repeat(single.scale_sq, 2))
        variance = VARIANCES["eleven decades"]
        deviation = np.linspace(-5, 5, variance.size)
        # Rounding alone for the density and the standard deviation; the table's 1e-8 for widths.
        np.testing.assert_allclose(mixture.log_density(deviation, variance), single.log_density(deviation, variance))
        np.testing.assert_allclose(mixture.std(variance), single.std(variance))
        np.testing.assert_allclose(mixture.half_width(0.9, variance), single.half_width(0.9, variance), rtol=1e-7)

    def test_draws_have_the_law_s_spread(self, law):
        draws = law.draw(np.random.default_rng(SEED), (N_DRAWS // 4, 4))
        assert draws.shape == (N_DRAWS // 4, 4)
        known = np.zeros(1)
        for level in (0.5, 0.95):
            # A share of N draws has the standard error √(p(1−p)/N); four of them.
            share = np.mean(np.abs(draws) <= law.half_width(level, known))
            assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / N_DRAWS)
        # The fourth moment is finite beyond four degrees of freedom: its root over √N is the standard error.
        squares = draws**2
        assert abs(squares.mean() - law.std(known)[0] ** 2) < 4 * squares.std() / np.sqrt(N_DRAWS)

    @pytest.mark.parametrize("positive", [0.02, 0.3, 0.97])
    @pytest.mark.parametrize("name", ["two", "four", "flat outliers"])
    class TestOneSided:
        def test_density_integrates_to_the_share_on_each_side(self, name, positive):
            law = replace(LAWS[name], positive=positive)
            variance = np.array([0.5])

            def density(deviation):
                return float(np.exp(law.log_density(np.array([deviation]), variance))[0])

            outlying = law.weight[1:].sum()
            for sign, share in ((1.0, positive), (-1.0, 1.0 - positive)):
                ends = ((0, 3), (3, 30), (30, np.inf))
                total = sum(quad(lambda size, sign=sign: density(sign * size), *pair)[0] for pair in ends)
                assert total == pytest.approx(0.5 * law.weight[0] + outlying * share, abs=1e-6)

        @pytest.mark.parametrize("variance", VARIANCES.values(), ids=VARIANCES.keys())
        def test_intervals_have_equal_tails(self, name, positive, variance):
            law = replace(LAWS[name], positive=positive)
            first = replace(law, weight=np.where(np.arange(law.weight.size) == 0, law.weight, 0.0))
            rest = replace(law, weight=law.weight - first.weight)

            def below(limit):
                """From probabilities of |y − x̄|, of which a share is on each side."""
                noise, outlying = inside(first, np.abs(limit), variance), inside(rest, np.abs(limit), variance)
                above = 0.5 * noise + positive * outlying
                under = 0.5 * noise + (1.0 - positive) * outlying
                return 0.5 * law.weight[0] + (1.0 - positive) * rest.weight.sum() + np.where(limit > 0, above, -under)

            for level in (0.05, 0.5, 0.95):
                low, high = law.interval(level, variance)
                # Where a quantile passes zero, as the variance grows, it has a corner that the table rounds.
                np.testing.assert_allclose(below(low), 0.5 * (1.0 - level), rtol=0, atol=2e-4)
                np.testing.assert_allclose(below(high), 0.5 * (1.0 + level), rtol=0, atol=2e-4)

        def test_draws_have_its_moments_and_quantiles(self, name, positive):
            law, known = replace(LAWS[name], positive=positive), np.zeros(1)
            draws = law.draw(np.random.default_rng(SEED), (N_DRAWS,))
            error = draws.std() / np.sqrt(N_DRAWS)
            assert draws.mean() == pytest.approx(law.odd_moment(1, known)[0], abs=4 * error)
            squares = (draws - draws.mean()) ** 2
            assert abs(squares.mean() - law.std(known)[0] ** 2) < 4 * squares.std() / np.sqrt(N_DRAWS)
            low, high = law.interval(0.8, known)
            for share in (np.mean(draws < low), np.mean(draws > high)):
                assert abs(share - 0.1) < 4 * np.sqrt(0.09 / N_DRAWS)

    def test_noise_alone_has_no_sides(self):
        law = replace(LAWS["one"], positive=0.9)
        np.testing.assert_array_equal(law.interval(0.9, np.ones(2)), LAWS["one"].interval(0.9, np.ones(2)))
        np.testing.assert_array_equal(law.std(np.ones(2)), LAWS["one"].std(np.ones(2)))

    def test_std_adds_the_variance_of_x(self):
        law = LAWS["two"]
        # Of a Student-t: dof / (dof − 2) times the squared scale.
        expected = 0.9 * 40 / 38 * (0.01 + 0.5) + 0.1 * 5 / 3 * (4.0 + 0.5)
        np.testing.assert_allclose(law.std(np.array([0.5])) ** 2, expected, rtol=1e-14)

    def test_std_is_infinite_without_a_second_moment(self):
        heavy = mixture_of([0.9, 0.1], [40, 2], [1, 1])
        assert np.isinf(heavy.std(np.zeros(2))).all()


@pytest.fixture(scope="module")
def found():
    data = synthetic((9, 8, 7), 2, outliers=0.05, missing=0.2, strengths=(1, 1), seed=0)
    return BRTF(4, inference="paper", tol=1e-3, random_state=0).fit(data.observed)


@pytest.fixture(scope="module")
def student_t(found):
    """The predictive distribution of every entry in the units of the data, from public numbers alone."""
    mean, std = found.predict(return_std=True)
    # 2a^τ = 2(a₀^τ + M/2), and the prior's a₀^τ is 1e-6.
    return stats.t(found.n_observed_ + 2e-6, loc=mean, scale=np.sqrt(found.noise_variance_ + std**2))


class TestPaper:
    """P1 (27): a Student-t with 2a^τ degrees of freedom and squared scale 1/τ̄ + Var x."""

    def test_the_law_of_a_state(self, found):
        state = found.result_.state
        law = error_law(replace(state, tau=replace(state.tau, concentration=np.array(1.5), rate=np.array(3.0))))
        assert (law.weight, law.dof, law.scale_sq) == (1, 3, 2)

    def test_std(self, found, student_t):
        mean, std = found.predict(return_std=True, of="observation")
        np.testing.assert_array_equal(mean, found.low_rank())
        np.testing.assert_allclose(std, student_t.std(), rtol=1e-9)

    @pytest.mark.parametrize("level", [0.5, 0.95])
    def test_interval(self, found, student_t, level):
        low, high = student_t.interval(level)
        np.testing.assert_allclose(found.predict_interval(level=level, of="observation"), (low, high), atol=1e-9)

    def test_score_is_the_mean_log_density(self, found, student_t):
        truth = synthetic((9, 8, 7), 2, strengths=(1, 1), seed=0)
        held_out = np.random.default_rng(SEED).random(truth.observed.shape) < 0.3
        expected = student_t.logpdf(truth.observed)[held_out].mean()
        assert found.score(truth.observed, mask=held_out) == pytest.approx(expected, rel=1e-9)
        assert found.score(np.where(held_out, truth.observed, np.nan)) == pytest.approx(expected, rel=1e-9)
