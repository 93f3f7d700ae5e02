"""The model read forwards: its density is that of plain loops over textbook laws, and it draws what it says."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import oracle
from brtf.inference.bound import bound
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.generative import GenerativeModel, Truth, log_joint, sample
from brtf.model.local_models import FlatSlab, GaussianSlab, NoOutliers, StudentSlab
from brtf.model.row_priors.chain_kinds import memories, n_kinds
from brtf.model.state import Prior, ReplacementLaw

SHAPE = (3, 4, 2)
LAW = ReplacementLaw(-2.0, 3.0, np.array([0.1, 0.3, 0.05, 0.35, 0.2]))
SLABS = {
    "Gaussian slab": GaussianSlab(0.3, 6.0, 50.0),
    "Student slab": StudentSlab(0.3, 1.5, 50.0),
    "flat slab": FlatSlab(0.3, 6.0, 100.0),
}
PLAIN = GenerativeModel(2, Prior(3.0, 2.0, 4.0, 0.5))
MODELS = {
    "no outliers": PLAIN,
    "rank 0": replace(PLAIN, rank=0),
    "centres": replace(PLAIN, centred_modes=(0, 2)),
    "order": replace(PLAIN, ordered_modes=(1,)),
    "order, centres": replace(PLAIN, ordered_modes=(0, 1), centred_modes=(1,)),
    "smooth, ring": replace(PLAIN, ordered_modes=(0, 1), smooth_modes=(0,), cyclic_modes=(1,), centred_modes=(1,)),
    "sizes": replace(PLAIN, unequal_modes=(0, 1), row_concentration=3.0),
    "sizes, centres": replace(PLAIN, unequal_modes=(2,), row_concentration=1.5, centred_modes=(0, 2)),
    "slices": replace(PLAIN, noise_modes=(0, 2), noise_concentration=2.5),
    **{name: replace(PLAIN, local=local) for name, local in SLABS.items()},
    "slices, Student slab": replace(PLAIN, local=SLABS["Student slab"], noise_modes=(1,), noise_concentration=4.0),
    "shared": replace(PLAIN, local=SLABS["Gaussian slab"], shared_modes=(1,)),
    "replaced": replace(PLAIN, local=SLABS["Gaussian slab"], law=LAW),
    "shared, replaced, slices": replace(
        PLAIN, local=SLABS["Student slab"], law=LAW, shared_modes=(0, 2), noise_modes=(2,)
    ),
    "rates": replace(PLAIN, local=SLABS["flat slab"], rate_modes=(1, 2), rate_prior=(2.0, 5.0)),
    "sides": replace(PLAIN, local=SLABS["Gaussian slab"], one_sided=True),
    "sides, rates, slices, centres": replace(
        PLAIN,
        local=SLABS["Gaussian slab"],
        one_sided=True,
        rate_modes=(0,),
        rate_prior=(1.5, 3.0),
        noise_modes=(0,),
        centred_modes=(1,),
    ),
}
models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def outlier_density(local, deviation, precision):
    """ln p(y − x) of an outlier: noise and slab added up."""
    scale = precision**-0.5
    if isinstance(local, GaussianSlab):
        return stats.norm.logpdf(deviation, scale=scale * np.sqrt(1.0 + local.width))
    if isinstance(local, StudentSlab):
        log_slab = oracle.student_slab(local.shape, local.width, np.array([precision * deviation**2]))[0][0]
        return log_slab + stats.norm.logpdf(0.0, scale=scale)
    reach = scale * np.sqrt(local.width)
    ends = stats.norm.cdf((np.array([1.0, -1.0]) * reach - deviation) / scale)
    return np.log((ends[0] - ends[1]) / (2.0 * reach))


def wide_log_density(rows, kind, precision, ring):
    """ln N of a course of that kind, smooth or on a ring, from its covariances, and of the kind."""
    n_rows, n_first = len(rows), n_kinds(len(rows))
    n_second = 0 if ring else int(np.ceil(np.log2(n_rows)))
    apart = np.abs(np.subtract.outer(np.arange(n_rows), np.arange(n_rows))).astype(float)
    if kind >= n_first:
        kappa = 0.5 ** (1.0 + kind - n_first)
        cov = np.exp(-kappa * apart) * (1.0 + apart * np.tanh(kappa))
    else:
        phi = np.exp(memories(n_first))[kind]
        cov = (phi**apart + phi ** (n_rows - apart)) / (1.0 + phi**n_rows) if ring else phi**apart
    found = stats.multivariate_normal(cov=cov / precision).logpdf(rows)
    return found - np.log(n_first + n_second)


def log_density_of_loops(model, data, truth):
    """ln p(Y, truth), an entry and a number at a time."""
    prior, lam, tau, local = model.prior, truth.component_precisions, truth.noise_precision, model.local
    total = stats.gamma.logpdf(tau, prior.tau_concentration, scale=1.0 / prior.tau_rate)
    for r in range(model.rank):
        total += stats.gamma.logpdf(lam[r], prior.lam_concentration, scale=1.0 / prior.lam_rate)
        for mode in model.centred_modes:
            total += stats.norm.logpdf(truth.centres[mode][r], scale=lam[r] ** -0.5)
        for mode, factor in enumerate(truth.factors):
            centre = truth.centres[mode][r] if mode in model.centred_modes else 0.0
            if mode not in model.ordered_modes:
                for i, a in enumerate(factor[:, r]):
                    size = truth.sizes[mode][i] if mode in model.unequal_modes else 1.0
                    total += stats.norm.logpdf(a, centre, (size * lam[r]) ** -0.5)
                continue
            ring = mode in model.cyclic_modes
            if ring or mode in model.smooth_modes:
                total += wide_log_density(factor[:, r] - centre, truth.kinds[mode][r], lam[r], ring)
                continue
            phi = np.exp(memories(n_kinds(len(factor))))[truth.kinds[mode][r]]
            total += stats.norm.logpdf(factor[0, r], centre, lam[r] ** -0.5) - np.log(n_kinds(len(factor)))
            for before, a in itertools.pairwise(factor[:, r]):
                scale = np.sqrt((1.0 - phi**2) / lam[r])
                total += stats.norm.logpdf(a, centre + phi * (before - centre), scale)
    sizes = stats.gamma(model.row_concentration, scale=1.0 / model.row_concentration)
    total += sum(sizes.logpdf(size) for mode in model.unequal_modes for size in truth.sizes[mode])
    if model.noise_modes:
        slices = stats.gamma(model.noise_concentration, scale=1.0 / model.noise_concentration)
        total += sum(slices.logpdf(omega) for omega in truth.slice_precisions.ravel())
    if model.rate_modes:
        total += sum(stats.beta.logpdf(rate, *model.rate_prior) for rate in truth.rates.ravel())
    seen = set()
    for index in itertools.product(*map(range, SHAPE)):
        group = tuple(i for mode, i in enumerate(index) if mode not in model.shared_modes)
        rate = truth.rates[tuple(index[mode] for mode in model.rate_modes)]
        z = bool(truth.outlying[index])
        if group not in seen:
            total += stats.bernoulli.logpmf(int(z), rate)
            seen.add(group)
        if np.isnan(data[index]):
            continue
        precision = tau * truth.slice_precisions[tuple(index[mode] for mode in model.noise_modes)]
        x = sum(
            np.prod([factor[i, r] for factor, i in zip(truth.factors, index, strict=True)]) for r in range(model.rank)
        )
        if not z:
            total += stats.t.logpdf(data[index], local.noise_dof, x, precision**-0.5)
        elif model.law is not None:
            total += np.log(oracle.replacement_density(model.law, data[index]))
        else:
            total += outlier_density(local, data[index] - x, precision)
            if model.one_sided:
                total += np.log(2.0 * (truth.positive if data[index] > x else 1.0 - truth.positive))
    return total


@models
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_density_is_that_of_loops(model, missing):
    rng = np.random.default_rng(3)
    for _ in range(3):
        truth, data = sample(model, SHAPE, rng)
        assert np.isfinite(data).all()
        if missing:
            data[rng.random(SHAPE) < 0.4] = np.nan
        # Student slabs are tabulated to 1e-6 of ln f; all else is rounding.
        assert log_joint(model, data, truth) == pytest.approx(log_density_of_loops(model, data, truth), rel=1e-6)


def nudged(model):
    """The model with all of its numbers a little larger."""
    prior = Prior(*(1.06 * number for number in (3.0, 2.0, 4.0, 0.5)))
    local = model.local
    if local.has_outliers:
        local = type(local)(*(1.06 * number for number in (local.probability, local.shape, local.width)))
    rates = (1.06 * model.rate_prior[0], 1.06 * model.rate_prior[1])
    law = model.law
    if law is not None:
        law = replace(law, density=np.array([0.12, 0.28, 0.06, 0.34, 0.2]))
    concentration = 1.06 * model.noise_concentration
    sizes = 1.06 * model.row_concentration
    changed = {"rate_prior": rates, "noise_concentration": concentration, "row_concentration": sizes}
    return replace(model, prior=prior, local=local, law=law, **changed)


@models
def test_draws_have_that_density(model):
    """E[p'(Y, truth) / p(Y, truth)] = 1 over draws from p, whatever other law p' of the same parts."""
    rng, other = np.random.default_rng(4), nudged(model)
    ratios = []
    for _ in range(1500):
        truth, data = sample(model, SHAPE, rng)
        # the rate that all entries share is a number of the model, which stands in the truth too
        known = truth if model.rate_modes else replace(truth, rates=np.asarray(other.local.probability))
        ratios.append(np.exp(log_joint(other, data, known) - log_joint(model, data, truth)))
    error = np.std(ratios) / np.sqrt(len(ratios))
    assert error < 0.03
    assert abs(np.mean(ratios) - 1.0) < 4.0 * error


@pytest.mark.parametrize("slices", [None, (0,)], ids=["common noise", "slices"])
def test_bound_is_the_mean_of_the_density_over_that_of_the_posterior(slices):
    """E_q[ln p(Y, truth) − ln q(truth)] with truths drawn from the posterior of a state without outliers."""
    case = oracle.structured_case(1, "masked", NoOutliers, slices=slices)
    state = replace(
        case.state,
        prior=Prior(0.6, 0.9, 0.7, 0.8),
        factors=tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in case.state.factors),
        lam=Gamma(4 * case.state.lam.concentration, 4 * case.state.lam.rate),
        structure=None,
    )
    model = GenerativeModel(state.rank, state.prior, noise_modes=slices or (), noise_concentration=2.5)
    data = np.full(SHAPE, np.nan)
    for index, value in zip(case.problem.entries, case.values, strict=True):
        data[index] = value
    n_draws, nothing = 10_000, np.zeros(SHAPE, dtype=bool)
    draws = oracle.draw(state, n_draws, np.random.default_rng(2))
    samples = -oracle.log_posterior(state, draws)
    for k in range(n_draws):
        omega = np.ones(()) if draws.omega is None else draws.omega[k]
        factors = tuple(factor[k] for factor in draws.factors)
        truth = Truth(factors, {}, {}, draws.lam[k], draws.tau[k], omega, np.zeros(()), 0.5, nothing)
        samples[k] += log_joint(model, data, truth)
    error = samples.std() / np.sqrt(n_draws)
    assert 4.0 * error < 0.5  # half a nat is the smallest constant that a term could have lost
    found = bound(oracle.calibrated_problem(case, collapsed=True), state).total
    assert abs(found - samples.mean()) < 4.0 * error


class TestMoments:
    """Of data of a hundred thousand entries, where only the rank, τ and λ are few."""

    LARGE = (60, 50, 40)

    def deviations(self, seed=0, **parts):
        model = replace(PLAIN, rank=1, **parts)
        truth, data = sample(model, self.LARGE, np.random.default_rng(seed))
        return model, truth, (data - truth.low_rank) * np.sqrt(truth.noise_precision), data

    @pytest.mark.parametrize("local", SLABS.values(), ids=SLABS)
    def test_noise_and_share_of_outliers(self, local):
        _, truth, deviation, _ = self.deviations(local=local)
        n_entries = deviation.size
        assert truth.outlying.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / n_entries))
        # the variance of the square of a Student-t of six degrees of freedom is 31.5
        assert np.mean(deviation[~truth.outlying] ** 2) == pytest.approx(
            local.noise_inflation, abs=4 * np.sqrt(31.5 / (0.7 * n_entries))
        )

    def test_size_of_outliers(self):
        for name, square in (("Gaussian slab", 51.0), ("flat slab", 1.0 + 100.0 / 3.0)):
            _, truth, deviation, _ = self.deviations(local=SLABS[name])
            outlying = deviation[truth.outlying]
            assert np.mean(outlying**2) == pytest.approx(square, rel=4 * np.sqrt(2.0 / outlying.size))

    def test_slices_differ(self):
        _, truth, deviation, _ = self.deviations(noise_modes=(1,), noise_concentration=2.0)
        found = 1.0 / np.mean(deviation**2, axis=(0, 2))
        np.testing.assert_allclose(found, truth.slice_precisions, rtol=5 * np.sqrt(2.0 / 2400))
        assert stats.kstest(truth.slice_precisions, stats.gamma(2.0, scale=0.5).cdf).pvalue > 1e-4

    def test_rates_differ(self):
        _, truth, _, _ = self.deviations(local=SLABS["flat slab"], rate_modes=(0,), rate_prior=(2.0, 4.0))
        np.testing.assert_allclose(truth.outlying.mean(axis=(1, 2)), truth.rates, atol=4.5 * np.sqrt(0.25 / 2000))

    def test_sides(self):
        _, truth, deviation, _ = self.deviations(local=SLABS["flat slab"], one_sided=True)
        share = np.mean(deviation[truth.outlying] > 0)
        assert share == pytest.approx(truth.positive, abs=4 * np.sqrt(0.25 / truth.outlying.sum()))

    def test_shared_outliers_are_together(self):
        _, truth, _, _ = self.deviations(local=SLABS["flat slab"], shared_modes=(2,))
        assert np.array_equal(truth.outlying.all(axis=2), truth.outlying.any(axis=2))

    def test_replaced_values_are_those_of_the_law(self):
        _, truth, _, data = self.deviations(local=SLABS["flat slab"], law=LAW)
        counts = np.bincount(LAW.bins(data[truth.outlying]), minlength=5)
        assert stats.chisquare(counts, counts.sum() * LAW.density).pvalue > 1e-4
        assert data[truth.outlying].min() >= -2.0 and data[truth.outlying].max() <= 3.0

    def test_rows_scatter_around_their_centre(self):
        model = replace(PLAIN, rank=3, centred_modes=(1,))
        truth, _ = sample(model, (5, 4000, 5), np.random.default_rng(1))
        spread = (truth.factors[1] - truth.centres[1]) * np.sqrt(truth.component_precisions)
        np.testing.assert_allclose(spread.mean(axis=0), 0.0, atol=4.5 / np.sqrt(4000))
        np.testing.assert_allclose(np.mean(spread**2, axis=0), 1.0, atol=4.5 * np.sqrt(2.0 / 4000))

    def test_rows_in_order_remember_as_their_kind_says(self):
        model, length = replace(PLAIN, rank=12, ordered_modes=(1,)), 4000
        truth, _ = sample(model, (3, length, 3), np.random.default_rng(2))
        rows = truth.factors[1] * np.sqrt(truth.component_precisions)
        phi = np.exp(memories(n_kinds(length)))[truth.kinds[1]]
        steps = (rows[1:] - phi * rows[:-1]) / np.sqrt(1.0 - phi**2)
        np.testing.assert_allclose(np.mean(steps**2, axis=0), 1.0, atol=4.5 * np.sqrt(2.0 / length))
        np.testing.assert_allclose(np.mean(steps[1:] * steps[:-1], axis=0), 0.0, atol=4.5 / np.sqrt(length))
        assert len(set(truth.kinds[1])) > 4

    def test_smooth_rows_and_rings_vary_as_their_kinds_say(self):
        model = replace(PLAIN, rank=4000, ordered_modes=(0, 1), smooth_modes=(0,), cyclic_modes=(1,))
        truth, _ = sample(replace(model, prior=Prior(3.0, 2.0, 4.0, 0.5)), (6, 6), np.random.default_rng(3))
        for mode, ring in ((0, False), (1, True)):
            rows = truth.factors[mode] * np.sqrt(truth.component_precisions)
            for kind in np.unique(truth.kinds[mode]):
                mine = rows[:, truth.kinds[mode] == kind]
                (own, beside, _, far), order = model.kinds(mode, 6)
                matrix = np.diag(own[kind]) + np.diag(beside[kind], 1) + np.diag(beside[kind], -1)
                matrix += np.diag(far[kind], 2) + np.diag(far[kind], -2)
                found = np.einsum("ir,ij,jr->r", mine[order], matrix, mine[order])  # chi-squared
                assert abs(found.mean() - 6.0) < 4.5 * np.sqrt(12.0 / found.size), (mode, ring, kind)
                np.testing.assert_allclose(np.mean(mine**2, axis=1), 1.0, atol=5.0 * np.sqrt(2.0 / found.size))


def test_outliers_that_should_be_together_and_are_not_are_impossible():
    model = MODELS["shared"]
    truth, data = sample(model, SHAPE, np.random.default_rng(0))
    apart = truth.outlying.copy()
    apart[0, 0, 0] = not apart[0, 0, 0]
    assert log_joint(model, data, replace(truth, outlying=apart)) == -np.inf


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"local": NoOutliers(), "one_sided": True}, "NoOutliers has no outliers"),
        ({"local": NoOutliers(), "law": LAW}, "NoOutliers has no outliers"),
        ({"local": SLABS["flat slab"], "one_sided": True, "law": LAW}, "have no side"),
        ({"local": SLABS["flat slab"], "one_sided": True, "shared_modes": (1,)}, "have no side"),
        ({"local": SLABS["flat slab"], "rate_modes": (0,), "shared_modes": (1,)}, "have one rate"),
        ({"ordered_modes": (0,), "nonnegative_modes": (0,)}, "is in no order"),
        ({"ordered_modes": (0,), "unequal_modes": (0,)}, "are of one size"),
        ({"smooth_modes": (0,)}, "name them in ordered_modes too"),
        ({"ordered_modes": (0,), "smooth_modes": (0,), "cyclic_modes": (0,)}, "leave them out of smooth_modes"),
        ({"nonnegative_modes": (1,), "unequal_modes": (1,)}, "are of one size"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts, said):
    with pytest.raises(ValueError, match=said):
        replace(PLAIN, **parts)
