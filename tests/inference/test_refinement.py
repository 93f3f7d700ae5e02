"""Means of all modes moved together: along the slope of the bound, uphill, and further than sweeps."""

from dataclasses import replace

import numpy as np
import pytest

import oracle
from brtf.data.observe import observe
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.refinement import Landscape, descend, pays, refined
from brtf.inference.sweep import sweep
from brtf.inference.updates import update_component_precisions
from brtf.model.local_models import GaussianSlab, NoOutliers
from brtf.model.row_priors import Centred, NonNegative, NonNegativeOrder, Ordered, UnequalCentred, ZeroMean
from brtf.model.row_priors.row_prior import ROW_PRIORS
from brtf.search.starts import least_squares, random_start

forms = pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])
layouts = pytest.mark.parametrize("layout", oracle.LAYOUTS)
kinds = pytest.mark.parametrize("kind", [GaussianSlab, NoOutliers])


def landscape_of(problem, point):
    return Landscape.of(problem, point, list(range(len(point.state.factors))))


def moved(state, landscape, place):
    """The state with other means, and nothing else changed."""
    factors = tuple(rows.with_mean(mean) for rows, mean in zip(state.factors, landscape.parted(place), strict=True))
    return replace(state, factors=factors)


def with_row_prior(state, name):
    """The state with the rows of every mode under another prior, where that applies."""
    for mode, rows in enumerate(state.factors):
        prior = ROW_PRIORS[name].proposed(rows, state.lam)
        if prior is not None:
            state = state.with_factor(mode, rows, prior)
    return state


@layouts
@forms
@kinds
@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_landscape_has_the_slope_of_the_bound(order, layout, collapsed, kind):
    """At the point itself, whatever weighs the entries: by differences of the exact bound along random directions."""
    case = oracle.slab_case(order, 3, layout, kind)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    point = evaluate(problem, update_component_precisions(with_row_prior(case.state, Centred.name)))
    landscape = landscape_of(problem, point)
    rise, slope = landscape.look(landscape.start)
    assert rise == 0.0
    rng = np.random.default_rng(0)
    for _ in range(3):
        step = 1e-5 * rng.standard_normal(slope.size)
        up, down = (evaluate(problem, moved(point.state, landscape, landscape.start + sign * step)) for sign in (1, -1))
        # differences of second order, of numbers that are known to 1e-12 of their size
        np.testing.assert_allclose(0.5 * (up.bound - down.bound), -slope @ step, rtol=1e-5, atol=1e-8)


@layouts
@forms
def test_the_slope_is_that_of_the_rise_everywhere(layout, collapsed):
    case = oracle.slab_case(3, 3, layout, GaussianSlab)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    landscape = landscape_of(problem, evaluate(problem, case.state))
    rng = np.random.default_rng(1)
    place = landscape.start + 0.3 * rng.standard_normal(landscape.start.size)
    slope, step = landscape.look(place)[1], 1e-5 * rng.standard_normal(place.size)
    rise = landscape.look(place + step)[0] - landscape.look(place - step)[0]
    np.testing.assert_allclose(0.5 * rise, slope @ step, rtol=1e-6)
    assert landscape.look(descend(landscape, 20))[0] < 0.0


def row_priors_of(rows, lam, rng):
    """A prior of every kind, in steps that differ and around centres of two groups where it has any."""
    steps, groups = rng.uniform(0.5, 2.0, rows.n_rows - 1), np.arange(rows.n_rows) % 2
    share = rng.dirichlet(np.ones(4), rows.rank)
    ordered = Ordered.begun(rows, lam, steps, share, groups)
    positive, without_negative = NonNegative.of(rows)
    chain = NonNegativeOrder(
        without_negative.location, without_negative.precision, steps, share, np.zeros(1), np.zeros(1)
    )
    eta = rng.uniform(0.5, 2.0, rows.n_rows)
    unequal = UnequalCentred(np.asarray(3.0), eta, eta[::-1].copy(), rng.standard_normal(rows.rank), np.ones(rows.rank))
    return [ZeroMean(), Centred.proposed(rows, lam), unequal, ordered, without_negative, chain], positive


@pytest.mark.parametrize(
    "place", range(6), ids=lambda k: ("zero", "centred", "unequal", "order", "positive", "both")[k]
)
def test_the_slope_of_a_prior_is_that_of_its_density(place):
    """Row by row, the others given: by differences, which are exact for densities of second order."""
    rng = np.random.default_rng(2)
    state = oracle.slab_case(3, 3, "masked", GaussianSlab).state
    priors, positive = row_priors_of(state.factors[0], state.lam, rng)
    prior, mean = priors[place], positive.mean
    slope, step = prior.slope(mean, state.lam), rng.standard_normal(mean.shape)
    for row in range(len(mean)):
        own = np.where(np.arange(len(mean))[:, None] == row, step, 0.0)
        up, down = (prior.row_log_density(mean + sign * own, state.lam)[row] for sign in (1.0, -1.0))
        np.testing.assert_allclose(0.5 * (down - up), slope[row] @ step[row], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_many_weak_components_are_fitted_in_fewer_sweeps(seed):
    """Rows whose levels differ a hundredfold, half missing: ten sweeps and as many refinements end higher than thirty
    sweeps."""
    rng = np.random.default_rng(seed)
    levels = np.exp(rng.uniform(0.0, np.log(100.0), (15, 1)))
    factors = [rng.standard_normal((length, 30)) for length in (15, 24, 18)]
    truth = np.einsum("ir,jr,kr,r->ijk", levels * factors[0], *factors[1:], 1.0 / np.arange(1, 31))
    values = truth + np.sqrt(np.abs(truth)) * rng.standard_normal(truth.shape)
    problem = Problem(observe(values, rng.random(truth.shape) < 0.5), (0, 2, 1), collapsed=True)
    begun = random_start(problem, 3, GaussianSlab(0.05, 10.0, 100.0), rng)
    start = sweep(problem, evaluate(problem, least_squares(problem, 28, begun, rng)))
    assert pays(problem, start.state)
    plain = together = start
    for _ in range(30):
        plain = sweep(problem, plain)
    for _ in range(10):
        together = sweep(problem, together)
        further = evaluate(problem, update_component_precisions(refined(problem, together, 6)))
        together = max((together, further), key=lambda point: point.bound)
    assert together.bound > plain.bound


@forms
def test_rows_without_negative_loadings_stay_where_they_are(collapsed):
    """Their posterior is not normal: the means of the other modes move, and the bound rises."""
    case = oracle.slab_case(3, 3, "complete", GaussianSlab)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    point = sweep(problem, evaluate(problem, case.state.with_factor(1, *NonNegative.of(case.state.factors[1]))))
    after = refined(problem, point, 2)
    assert after.factors[1] is point.state.factors[1]
    assert evaluate(problem, after).bound > point.bound
