"""Rounded data whose rounding counts: every value stands for all that round to it, exactly in the bound."""

import pickle
from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy import stats

import oracle
from brtf import BRTF
from brtf.data.observe import observe
from brtf.inference.bound import bound
from brtf.inference.point import evaluate
from brtf.inference.rounding import coarse_step
from brtf.inference.sweep import sweep
from brtf.model.links import LINKS, Link
from brtf.model.local_models import GaussianSlab, NoOutliers, StudentSlab

RNG = np.random.default_rng(0)
SPARSE = RNG.poisson(0.7 * RNG.gamma(1, 1, (12, 11, 10)))


@pytest.mark.parametrize("unit", [1, 0.01, 5])
def test_sparse_counts_are_coarse(unit):
    assert coarse_step(observe(unit * SPARSE)) == pytest.approx(unit)


@pytest.mark.parametrize(
    "values",
    [
        RNG.poisson(100, (12, 11, 10)),
        RNG.normal(size=(12, 11, 10)),
        SPARSE + 0.4,
        SPARSE * (RNG.random() + SPARSE**0.5),
    ],
    ids=["no value is common", "not rounded", "off the multiples", "not a step apart"],
)
def test_other_data_are_not(values):
    assert coarse_step(observe(values)) == 0.0


@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("name", LINKS)
def test_a_value_is_the_interval_that_rounds_to_it(name, step):
    values = step * np.array([1.0, 2.0, 3.0, 40.0])
    link = LINKS[name].for_data(values, step)
    middle, half = link.modelled(values), 0.5 * link.widths(link.modelled(values))
    np.testing.assert_allclose(link.inverse(middle - half), values - 0.5 * step, rtol=1e-12)
    np.testing.assert_allclose(link.inverse(middle + half), values + 0.5 * step, rtol=1e-12)
    np.testing.assert_allclose(link.log_jacobian(values), np.log(2 * half / step), rtol=1e-12, atol=1e-12)


def test_roots_of_what_rounds_to_zero_have_either_sign():
    link = LINKS["sqrt"].for_data(np.array([0.0, 2.0]), 2.0)
    assert link.modelled(np.zeros(1)) == 0.0
    assert link.inverse(0.5 * link.widths(np.zeros(1))) == pytest.approx(1.0)  # all values below half a step


@pytest.mark.parametrize("name", [None, "sqrt", "log1p"])
def test_bound_is_below_the_probability_of_the_counts(name):
    """One entry, z ~ N(m, s²): ln P(y) ≥ E ln N(z) + ln(b − a), z uniform; by little near the mean."""
    link, m, s = LINKS[name].for_data(np.array([1.0]), 1.0), 0.8, 0.9
    for y in np.arange(0.0, 4.0):
        middle, width = link.modelled(np.array([y])), link.widths(link.modelled(np.array([y])))
        below = stats.norm.logpdf(middle, m, s) - width**2 / (24 * s**2) + np.log(width)
        exact = np.log(np.diff(stats.norm.cdf([middle[0] - width[0] / 2, middle[0] + width[0] / 2], m, s)))
        assert below <= exact and (y > 1 or exact - below < 0.2)


def rounded(case, *, collapsed, step=0.8):
    """The problem of a case whose values were rounded, and the same without a word of it."""
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    link = Link(step=step * case.observations.scale)
    return replace(problem, observations=replace(case.observations, rounding=link)), problem


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
class TestBound:
    def test_an_interval_costs_its_variance(self, layout, collapsed):
        """Without outliers E ln p(z) of z uniform is ln p of the middle less ½ τ̄ (b − a)²/12."""
        case = oracle.slab_case(0, 3, layout, NoOutliers, rank=2)
        coarse, plain = rounded(case, collapsed=collapsed)
        price = 0.5 * float(case.state.tau.mean) * case.observations.n_observed * 0.8**2 / 12
        assert bound(coarse, case.state).total == pytest.approx(bound(plain, case.state).total - price, rel=1e-12)

    @pytest.mark.parametrize("kind", [*oracle.SLABS, NoOutliers])
    @pytest.mark.parametrize("rank", [0, 2])
    def test_points_have_it_too(self, layout, collapsed, kind, rank):
        case = oracle.slab_case(1, 3, layout, kind, rank=rank)
        coarse, plain = rounded(case, collapsed=collapsed)
        assert evaluate(coarse, case.state).bound == pytest.approx(bound(coarse, case.state).total, rel=1e-9)
        assert evaluate(coarse, case.state).bound < evaluate(plain, case.state).bound

    @pytest.mark.parametrize("kind", [StudentSlab, GaussianSlab, NoOutliers])
    @pytest.mark.parametrize("seed", range(3))
    def test_no_sweep_lowers_it(self, layout, collapsed, kind, seed):
        case = oracle.slab_case(seed, 3, layout, kind, rank=2)
        coarse, _ = rounded(case, collapsed=collapsed)
        point = evaluate(coarse, case.state)
        for k in range(8):
            after = sweep(coarse, point, hold_noise=k < 4, n_rounds=1)
            assert after.bound >= point.bound - 1e-9 * sum(abs(term) for term in astuple(point.terms))
            point = after


def sparse_sales(seed):
    """Counts of a mean below one at most places, a few products far above: expected and drawn."""
    rng = np.random.default_rng(seed)
    size, popular = rng.gamma(3, 1 / 3, (14, 1, 1)), 2.5 / (1 + np.arange(30)) ** 0.7
    season = 1 + rng.uniform(0, 0.8, (30, 1)) * np.cos(2 * np.pi * (np.arange(26) / 26 - rng.random((30, 1))))
    mean = size * popular[:, None] * season
    return mean, rng.poisson(mean).astype(float)


@pytest.mark.filterwarnings("ignore::brtf.FitWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(2))
def test_sales_are_not_outliers_among_zeros(seed):
    """Nothing is said, and the mean is predicted about as well as by somebody who knows that there are no outliers."""
    mean, drawn = sparse_sales(seed)
    assert 0.3 < np.mean(drawn == 0) < 0.8
    hidden = np.random.default_rng(seed).random(mean.shape) < 0.3
    model, told = (BRTF(random_state=0, robust=robust).fit(np.where(hidden, np.nan, drawn)) for robust in (True, False))
    assert model.outlier_rate_ < 0.05 and model.link_ in ("sqrt", "log1p")
    error, least = (np.sqrt(np.mean((one.predict() - mean)[hidden] ** 2)) for one in (model, told))
    assert error < 1.1 * least
    low, high = model.predict_interval(of="observation")
    assert np.mean((low <= drawn)[hidden] & (drawn <= high)[hidden]) > 0.93
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.score(drawn) == model.score(drawn)
