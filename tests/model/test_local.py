"""Local models: they equal quadrature, their slopes are their weights, their limits are laws known by name."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad, trapezoid

import oracle
from brtf.model.local_models import FlatSlab, GaussianSlab, StudentSlab

KINDS = (StudentSlab, GaussianSlab, FlatSlab)
RHO = np.concatenate([np.geomspace(1e-12, 1e-2, 6), np.geomspace(0.1, 1e4, 26), np.geomspace(1e5, 1e12, 8)])
TABLE = {"rtol": 4e-7, "atol": 6e-7}
"""Interpolation in the table of ln J costs 3e-7 of it; below the first knot ln J is constant, which costs 4e-7 more."""
HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)

student_slabs = pytest.mark.parametrize(
    ("shape", "width"), list(itertools.product([0.1, 0.7, 3.0, 50.0], [4.0, 100.0, 1e6, 1e12]))
)
kinds = pytest.mark.parametrize("kind", KINDS)


def random_models(kind, n_models=20, seed=0):
    rng = np.random.default_rng(seed)
    return [oracle.random_slab(kind, rng) for _ in range(n_models)]


def extreme_models(kind):
    """The corners of where the numbers may go in a fit."""
    for probability, shape, width in itertools.product((1e-8, 0.5, 0.98), kind.shape_range, (1.0, 100.0, 1e20)):
        yield kind(probability, shape, width * kind.narrowest)


class TestStudentSlabIsQuadrature:
    @student_slabs
    def test_slab(self, shape, width):
        log_slab, kept = oracle.student_slab(shape, width, RHO)
        for probability in (1e-6, 0.1, 0.6, 1 - 1e-6):
            model = StudentSlab(probability, shape, width)
            spike = np.log1p(-probability) - 0.5 * RHO
            evidence = np.logaddexp(spike, np.log(probability) + log_slab)
            outlier = np.exp(np.log(probability) + log_slab - evidence)
            found = model.posterior(RHO)
            np.testing.assert_allclose(found.log_evidence, evidence, **TABLE)
            np.testing.assert_allclose(found.slab_shrinkage, kept, rtol=3e-6)
            # An error of ln J moves p by p(1 − p) of it.
            np.testing.assert_allclose(found.outlier_probability, outlier, rtol=0, atol=1e-6)
            np.testing.assert_allclose(found.weight, 1 - outlier * (1 - kept), rtol=0, atol=1e-6)
            # Without the table only the quadrature's own 1e-11 remains.
            np.testing.assert_allclose(model.gradient(RHO)[0], evidence, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("shape", [0.1, 1.0, 50.0])
    def test_full_slab_is_the_marginal_of_the_paper(self, shape):
        """s ~ Student-t with 2a₀ degrees of freedom and scale (b₀/a₀)^½, plus noise of precision τ, ζ = b₀τ/a₀."""
        tau, rate = 3.0, 20.0 * shape
        model = StudentSlab(1 - 1e-13, shape, rate * tau / shape)
        slab = stats.t(2 * shape, scale=np.sqrt(rate / shape))
        for deviation in (0.0, 0.3, 2.0, 15.0, 200.0):
            near = deviation + np.linspace(-10, 10, 9) / np.sqrt(tau)
            noise = stats.norm(deviation, tau**-0.5)
            density = quad(lambda s, noise=noise: slab.pdf(s) * noise.pdf(s), near[0], near[-1], points=near[1:-1])[0]
            found = model.posterior(np.array([tau * deviation**2])).log_evidence[0]
            assert found + 0.5 * np.log(tau) - HALF_LOG_TWO_PI == pytest.approx(np.log(density), rel=4e-7, abs=1e-6)


class TestLimits:
    RHO = np.geomspace(1e-6, 30.0, 50)

    def test_without_outliers_student_slab_leaves_gaussian_noise(self):
        found = StudentSlab(1e-200, 1.0, 100.0).posterior(self.RHO)
        np.testing.assert_allclose(found.log_evidence, -0.5 * self.RHO, rtol=1e-14)
        np.testing.assert_allclose(found.weight, 1.0, rtol=1e-14)
        np.testing.assert_allclose(found.outlier_probability, 0.0, atol=1e-100)

    @pytest.mark.parametrize("kind", [GaussianSlab, FlatSlab])
    @pytest.mark.parametrize("nu", [2.1, 5.0, 300.0])
    def test_without_outliers_the_others_leave_student_noise(self, kind, nu):
        found = kind(1e-200, nu, 1e4).posterior(self.RHO)
        wanted = stats.t.logpdf(np.sqrt(self.RHO), nu) + HALF_LOG_TWO_PI
        np.testing.assert_allclose(found.log_evidence, wanted, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.weight, (nu + 1) / (nu + self.RHO), rtol=1e-12)

    def test_gaussian_slab_with_many_degrees_of_freedom_is_two_gaussians(self):
        """ln t differs from the Gaussian by (ρ² − 2ρ − 1)/4ν: 2.1e-4 at ρ = 30, ν = 1e6."""
        found = GaussianSlab(0.2, 1e6, 50.0).posterior(self.RHO)
        size = np.sqrt(self.RHO)
        density = 0.8 * stats.norm.pdf(size) + 0.2 * stats.norm.pdf(size, scale=np.sqrt(51.0))
        np.testing.assert_allclose(found.log_evidence, np.log(density) + HALF_LOG_TWO_PI, rtol=0, atol=3e-4)

    def test_student_slab_of_one_scale_is_gaussian_slab(self):
        """Precisions scatter by a₀^−½ around their mean, and what they add goes with its square."""
        found = StudentSlab(0.2, 1e5, 50.0).posterior(self.RHO)
        wanted = GaussianSlab(0.2, 1e6, 50.0).posterior(self.RHO)
        np.testing.assert_allclose(found.log_evidence, wanted.log_evidence, rtol=0, atol=3e-4)
        np.testing.assert_allclose(found.weight, wanted.weight, rtol=0, atol=3e-4)

    @pytest.mark.parametrize("width", [3.0, 12.0, 400.0, 1e6])
    def test_flat_slab_is_a_uniform_law_blurred_by_gaussian_noise(self, width):
        """Also at its edge and beyond, and where both edges are felt everywhere."""
        model, reach = FlatSlab(1 - 1e-13, 5.0, width), np.sqrt(width)
        for size in (0.0, 0.5 * reach, max(reach - 2, 0.1), reach, reach + 3):
            low, high = max(-reach, size - 12), min(reach, size + 12)
            density = quad(lambda s, size=size: stats.norm.pdf(size - s) / (2 * reach), low, high, epsabs=0)[0]
            found = model.posterior(np.array([size**2])).log_evidence[0]
            assert found == pytest.approx(np.log(density) + HALF_LOG_TWO_PI, abs=1e-8)


@kinds
class TestEveryModel:
    def test_probabilities_and_weights_are_in_range(self, kind):
        rho = np.concatenate([[0.0], np.geomspace(1e-300, 1e-13, 5), RHO])
        for model in [*random_models(kind), *extreme_models(kind)]:
            found = model.posterior(rho)
            assert np.isfinite(found.log_evidence).all()
            assert np.all((found.outlier_probability >= 0) & (found.outlier_probability <= 1 + 1e-12))
            # The table of E[κ] may overshoot one by its own error.
            assert np.all((found.weight >= 0) & (found.weight <= model.largest_weight * (1 + 1e-6)))
            assert np.all((found.slab_shrinkage >= 0) & (found.slab_shrinkage <= 1 + 1e-6))

    def test_weight_is_minus_twice_the_slope(self, kind):
        """A central difference over 1e-5 of ρ; the tables of ln J and of its slope agree to 1e-5."""
        rho, step = np.geomspace(0.01, 3e3, 60), 1e-5
        for model in random_models(kind):
            ahead, behind = (model.posterior(rho * (1 + sign * step)).log_evidence for sign in (1, -1))
            slope = (ahead - behind) / (2 * step)
            weight = model.posterior(rho).weight
            np.testing.assert_allclose(0.5 * rho * weight, -slope, rtol=3e-5, atol=1e-6)

    def test_direct_value_and_slope_are_those_of_the_posterior(self, kind):
        for model in [*random_models(kind), *extreme_models(kind)]:
            log_evidence, by_log_rho, *_ = model.gradient(RHO)
            found = model.posterior(RHO)
            np.testing.assert_allclose(log_evidence, found.log_evidence, **TABLE)
            np.testing.assert_allclose(by_log_rho, -0.5 * RHO * found.weight, rtol=1e-5, atol=1e-5)

    def test_gradient_is_that_of_finite_differences(self, kind):
        """Steps of 1e-4 in a logarithm: 1e-8 of third derivatives of order ten, and rounding of 1e-12 / 1e-4."""
        rho, step = np.geomspace(1e-3, 1e3, 30), 1e-4
        for model in random_models(kind):
            value, by_log_rho, *by_parameters = model.gradient(rho)
            ahead, behind = (model.gradient(rho * np.exp(sign * step))[0] for sign in (1, -1))
            tolerance = {"rtol": 1e-5, "atol": 1e-6}
            np.testing.assert_allclose(by_log_rho, (ahead - behind) / (2 * step), **tolerance)
            for k, found in enumerate(by_parameters):
                size = abs(model.parameters[1]) if k == 1 else 1.0  # 1/ν may be small: nudge it in proportion
                nudge = step * size * np.eye(3)[k]
                ahead, behind = (
                    kind.from_parameters(model.parameters + sign * nudge).gradient(rho)[0] for sign in (1, -1)
                )
                np.testing.assert_allclose(
                    np.broadcast_to(found * size, value.shape), (ahead - behind) / (2 * step), **tolerance
                )

    def test_parameters_are_where_they_came_from(self, kind):
        for model in random_models(kind):
            again = kind.from_parameters(model.parameters)
            numbers = (again.probability, again.shape, again.width)
            assert numbers == pytest.approx((model.probability, model.shape, model.width), rel=1e-12)

    def test_rescaled_outliers_keep_their_scale(self, kind):
        """Their squared scale is width / τ̄; a slab is never narrower than the narrowest."""
        model = kind(0.2, 5.0, 1e4)
        assert model.rescaled(0.1).width / 0.1 == pytest.approx(1e4, rel=1e-14)
        assert model.rescaled(1e-9).width == kind.narrowest
        assert (model.rescaled(7.0).probability, model.rescaled(7.0).shape) == (0.2, 5.0)

    def test_mixture_is_the_law_of_a_deviation(self, kind):
        """Its density integrates to one, and is f(ρ) (τ̄/2π)^½ with τ̄ = 1."""
        for model in random_models(kind, n_models=6):
            weight, dof, squared_scale, reach = model.mixture()
            assert weight.sum() == pytest.approx(1.0, rel=1e-12)
            size = np.geomspace(1e-3, 8 * np.sqrt(model.width), 60)
            wanted = model.posterior(size**2).log_evidence - HALF_LOG_TWO_PI
            found = np.log(oracle.mixture_density(weight, dof, squared_scale, reach, size))
            # Every second node of the rule for f, without those of weights below 1e-9: less exact in the far tail.
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)

    def test_density_integrates_to_one(self, kind):
        for model in random_models(kind, n_models=6):
            # Over the logarithm of the size, from where the density is flat to where nothing is left.
            size = np.exp(np.linspace(-12, 60, 20_001))
            log_density = model.posterior(size**2).log_evidence - HALF_LOG_TWO_PI
            mass = 2 * trapezoid(np.exp(log_density) * size, np.log(size))
            assert mass == pytest.approx(1.0, abs=5e-5)  # 2 e⁻¹² is missing below, and a t-slab's far tail above

    def test_noise_inflation_is_the_variance_of_the_noise(self, kind):
        model = kind(1e-200, 5.0, 1e4)
        weight, dof, squared_scale, _ = model.mixture()
        assert weight[0] == pytest.approx(1.0)
        assert model.noise_inflation == pytest.approx(stats.t.var(dof[0], scale=np.sqrt(squared_scale[0])), rel=1e-12)


@pytest.mark.parametrize("kind", [StudentSlab, GaussianSlab])
def test_log_evidence_is_convex(kind):
    """A chord lies above the curve: of the direct value to rounding, and weights of the posterior never rise."""
    rng = np.random.default_rng(1)
    for model in [*random_models(kind), *extreme_models(kind)]:
        low, high = np.sort(10.0 ** rng.uniform(-3, 5, (2, 200)), axis=0)
        share = rng.uniform(0, 1, 200)
        middle = share * low + (1 - share) * high
        at_low, at_high, at_middle = (model.gradient(rho)[0] for rho in (low, high, middle))
        chord = share * at_low + (1 - share) * at_high
        assert np.all(at_middle <= chord + 1e-9 * (1 + np.abs(chord)))
        assert np.all(np.diff(model.posterior(np.geomspace(1e-3, 1e5, 500)).weight) <= 1e-6)
