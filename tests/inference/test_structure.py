"""Outliers that hang together: shared along modes, in place of the data, at rates of their slices, of one sign.

The evidence is that of every assignment tried, nothing lowers the bound, and no accident of the input matters.
"""

import itertools
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize
from scipy.special import betaln

import oracle
from brtf import kernels
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.inference.entry_posterior import (
    LAW_BINS,
    EntryLaw,
    block_outliers,
    grouped,
    initial_law,
    initial_rates,
    learnt_rates,
    measured_channels,
    shared_positions,
)
from brtf.inference.factor_update import update_all_factors
from brtf.inference.learn_noise import learn_noise, learn_noise_globally, noise_worth, with_sides
from brtf.inference.noise_fit import (
    Histogram,
    NoisePrior,
    _objective,
    branch_step,
    joint_step,
    shared_rate,
    sided_step,
    worth,
)
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.sweep import sweep
from brtf.inference.updates import update_component_precisions
from brtf.kernels.arguments import N_BINS
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import MINORITY, FlatSlab, GaussianSlab, StudentSlab
from brtf.model.state import OutlierStructure, Prior, Sides, SliceNoise, SliceRates, State

EXACT_KINDS = (StudentSlab, GaussianSlab)
SHARED = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
TABLE = 2e-6
"""What the tables of the branches cost, relative to an entry's ln f or to one: see test_tables."""

layouts = pytest.mark.parametrize("layout", oracle.LAYOUTS)
forms = pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])


def problem_of(case, *, collapsed=True):
    modes = case.state.structure.modes if case.state.structure is not None else ()
    return Problem(grouped(case.observations, modes), (0, 1, 2), collapsed)


def probabilities(problem, point):
    """p of all entries."""
    law = EntryLaw(point.state)
    parts = [
        block_outliers(law, block, problem.values(block), *point.fit.at(block))[0]
        for block in problem.observations.block_list
    ]
    return np.concatenate(parts)


def nats_of_rounding(point):
    """Each term of the bound is known to some 1e-12 of its size, which may exceed the sum's; with room."""
    return 1e-9 * sum(abs(term) for term in astuple(point.terms))


STRUCTURES = {
    "shared": {"modes": (1,)},
    "shared by two": {"modes": (0, 2)},
    "replaced": {"law": True},
    "rates": {"rates": (0,)},
    "rates of labels": {"rates": (0, 2), "n_labels": 3},
    "rates of labelled entries": {"rates": (0, 1, 2), "n_labels": 2, "slices": (0,)},
    "replaced at rates": {"law": True, "rates": (2,)},
    "replaced at rates of labels": {"law": True, "rates": (1, 2), "n_labels": 2},
    "shared and replaced": {"modes": (2,), "law": True},
    "shared, slices": {"modes": (1,), "slices": (0,)},
    "replaced, slices": {"law": True, "slices": (2,)},
    "rates, slices": {"rates": (1,), "slices": (1,)},
    "sides": {"sides": Sides(5.0, 1.5)},
    "sides, slices": {"sides": Sides(1.2, 7.0), "slices": (0,)},
    "sides at rates": {"sides": Sides(3.0, 2.0), "rates": (2,), "slices": (2,)},
}
structures = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)


# ---- the evidence ------------------------------------------------------------------------------------------


@layouts
@structures
@pytest.mark.parametrize("kind", oracle.SLABS)
def test_evidence_is_that_of_every_assignment_tried(kind, structure, layout, monkeypatch):
    monkeypatch.setitem(oracle.SHAPES, 3, (2, 3, 2))
    for seed in range(2):
        case = oracle.structured_case(seed, layout, kind, **structure)
        problem = problem_of(case)
        point = evaluate(problem, case.state)
        wanted, outlier = oracle.structured_evidence(case, case.state)
        scale = sum(max(1.0, abs(rho)) for rho in [wanted, *case.values])
        assert point.terms.likelihood == pytest.approx(wanted, abs=TABLE * scale)
        np.testing.assert_allclose(probabilities(problem, point), outlier, rtol=0, atol=1e-5)
        rates, sides = case.state.structure.rates, case.state.structure.sides
        typical = case.state.local.probability if rates is None else rates.prior[0] / sum(rates.prior)
        prior = oracle.rate_log_prior(typical)
        divergence = sum(part.kl for part in (rates, sides) if part is not None)
        assert point.terms.outliers == pytest.approx(prior - divergence, rel=1e-13)


@pytest.mark.parametrize("modes", SHARED)
def test_the_channels_temper_the_evidence_of_a_group(modes):
    """χ ln[(1−π) e^{Σ ln f₀/χ} + π e^{Σ ln f₁/χ}]: with χ = group size the geometric mean of its entries decides."""
    for channels in (1.0, 1.7, 4.0):
        case = oracle.structured_case(3, "masked", modes=modes, channels=channels)
        point = evaluate(problem_of(case), case.state)
        model, tau, entries = case.state.local, float(case.state.tau.mean), case.problem.entries
        means = [rows.mean for rows in case.state.factors]
        residual = np.array(case.values) - oracle.low_rank_at(means, entries)
        rho = tau * (residual**2 + oracle.variance_at(case.state.factors, entries))
        log_spike, _, log_slab, _ = model.branches(rho)
        total = 0.5 * rho.size * (float(case.state.tau.mean_log) - np.log(2 * np.pi))
        keys = [tuple(i for k, i in enumerate(index) if k not in modes) for index in entries]
        for key in set(keys):
            members = [m for m, other in enumerate(keys) if other == key]
            spike = np.log1p(-model.probability) + log_spike[members].sum() / channels
            slab = np.log(model.probability) + log_slab[members].sum() / channels
            total += channels * np.logaddexp(spike, slab)
        assert point.terms.likelihood == pytest.approx(total, abs=1e-4)


# ---- limits ------------------------------------------------------------------------------------------------


@forms
@layouts
@pytest.mark.parametrize("kind", oracle.SLABS)
def test_a_group_of_one_entry_is_an_entry_on_its_own(kind, layout, collapsed, monkeypatch):
    monkeypatch.setitem(oracle.SHAPES, 3, (3, 1, 4))
    shared = oracle.structured_case(4, layout, kind, modes=(1,))
    alone = replace(shared, state=replace(shared.state, structure=None))
    points = [evaluate(problem_of(case, collapsed=collapsed), case.state) for case in (shared, alone)]
    n_observed = shared.observations.n_observed
    # Two tables with the tolerance of each.
    assert points[0].bound == pytest.approx(points[1].bound, abs=1e-5 * n_observed)
    swept = [sweep(problem_of(shared, collapsed=collapsed), point, hold_noise=True) for point in points]
    for ours, theirs in zip(swept[0].state.factors, swept[1].state.factors, strict=True):
        # Weights differ by 3e-5, and means follow them by as much times a condition number of some tens.
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0, atol=3e-3)


@pytest.mark.parametrize("structure", [{}, {"law": True}], ids=["added", "replaced"])
def test_rates_held_by_a_huge_prior_are_the_common_rate(structure):
    case = oracle.structured_case(5, "masked", **structure)
    rate, strength = case.state.local.probability, 1e9
    prior = (strength * rate, strength * (1.0 - rate))
    held = SliceRates((0,), np.full(3, prior[0]), np.full(3, prior[1]), prior)
    rated = replace(case.state, structure=replace(case.state.structure, rates=held))
    problem = problem_of(case)
    common, differing = evaluate(problem, case.state), evaluate(problem, rated)
    # E ln π of a Beta differs from ln π by 1/(2 · 1e9 π).
    assert differing.bound == pytest.approx(common.bound, abs=1e-6)
    np.testing.assert_allclose(probabilities(problem, differing), probabilities(problem, common), rtol=1e-6)


@forms
@layouts
def test_as_many_outliers_on_either_side_are_those_without_sides(layout, collapsed):
    """Also where the numbers are learnt, from histograms of both sides."""
    strength = 1e9
    case = oracle.structured_case(5, layout, StudentSlab, sides=Sides(strength, strength))
    plain = replace(case.state, structure=None)
    problem = problem_of(case, collapsed=collapsed)
    sided, alike = evaluate(problem, case.state), evaluate(problem, plain)
    n_observed = case.observations.n_observed
    assert sided.terms.likelihood == pytest.approx(alike.terms.likelihood, abs=1e-5 * n_observed)
    np.testing.assert_allclose(probabilities(problem, sided), probabilities(problem, alike), atol=1e-5)
    held = replace(sided, structure_sums=None)  # so that only the noise is learnt
    ours, theirs = learn_noise(problem, held, max_steps=40), learn_noise(problem, alike, max_steps=40)
    found, wanted = (noise_worth(alike, state) for state in (ours, theirs))
    assert found == pytest.approx(wanted, abs=1e-3)  # both end within 1e-6 nats a step of the same optimum
    assert found > noise_worth(alike, plain) + 0.1


@pytest.mark.parametrize("structure", [{}, {"rates": (2,), "slices": (2,)}], ids=["alone", "at rates"])
def test_mirrored_data_have_mirrored_sides(structure):
    case = oracle.structured_case(5, "masked", sides=Sides(6.0, 2.0), **structure)
    first = case.state.factors[0]
    state = replace(
        case.state,
        factors=(RowGaussians(-first.mean, first.cov), *case.state.factors[1:]),
        structure=replace(case.state.structure, sides=Sides(2.0, 6.0)),
    )
    problem = problem_of(case)
    other = replace(problem, observations=replace(case.observations, values=-case.observations.values))
    ours, theirs = evaluate(problem, case.state), evaluate(other, state)
    for _ in range(4):
        assert theirs.bound == pytest.approx(ours.bound, rel=1e-10)
        sides, mirrored = (point.state.structure.sides for point in (ours, theirs))
        assert (sides.positive, sides.negative) == pytest.approx((mirrored.negative, mirrored.positive), rel=1e-9)
        ours, theirs = sweep(problem, ours), sweep(other, theirs)


def test_entries_that_are_surely_replaced_do_not_count():
    """A sentinel far from all else: the state without those entries has the same weights elsewhere."""
    case = oracle.structured_case(6, "masked", law=True)
    tensor, mask = case.problem.tensor.copy(), case.problem.mask.copy()
    hit = tuple(np.array(case.problem.entries[::4]).T)
    tensor[hit] = 50.0
    mask[hit] = False
    whole = observe(np.where(case.problem.mask, tensor, np.nan))
    rest = replace(observe(np.where(mask, tensor, np.nan)), scale=whole.scale)
    values = whole.values / whole.scale
    law = initial_law(float(values.min()), float(values.max()))
    law = law.learnt(np.where(np.arange(LAW_BINS) == LAW_BINS - 1, float(len(hit[0])), 0.0))
    state = replace(case.state, structure=OutlierStructure(law=law))
    swept = []
    for observations in (whole, rest):
        problem = Problem(observations, (0, 1, 2), collapsed=True)
        swept.append(sweep(problem, evaluate(problem, state), hold_noise=True).state)
    for ours, theirs in zip(swept[0].factors, swept[1].factors, strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(ours.cov, theirs.cov, rtol=1e-6, atol=1e-8)


# ---- ascent ------------------------------------------------------------------------------------------------


@st.composite
def structured_cases(draw):
    modes = draw(st.sampled_from([(), *SHARED]))
    rates = None if modes else draw(st.sampled_from([None, (0,), (1,), (0, 2), (0, 1, 2)]))
    law = draw(st.booleans())
    return oracle.structured_case(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(oracle.LAYOUTS)),
        draw(st.sampled_from(EXACT_KINDS)),
        modes=modes,
        law=law,
        rates=rates,
        n_labels=draw(st.sampled_from([None, 1, 3])),
        slices=draw(st.sampled_from([None, (0,), (1, 2)])),
        channels=draw(st.sampled_from([1.0, 1.6])) if modes else 1.0,
    )


@given(case=structured_cases(), collapsed=st.booleans(), hold=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_sweep_lowers_the_bound(case, collapsed, hold):
    problem = problem_of(case, collapsed=collapsed)
    point = evaluate(problem, case.state)
    for _ in range(5):
        after = sweep(problem, point, hold_noise=hold)
        assert after.bound >= point.bound - nats_of_rounding(point)
        point = after


@given(case=structured_cases(), collapsed=st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_part_of_a_sweep_lowers_the_bound(case, collapsed):
    problem = problem_of(case, collapsed=collapsed)
    point = evaluate(problem, case.state)
    for _ in range(3):
        for mode in problem.modes:
            after = evaluate(problem, update_all_factors(replace(problem, modes=(mode,)), point.state, point.fit))
            assert after.bound >= point.bound - nats_of_rounding(point), mode
            point = after
        point = evaluate(problem, update_component_precisions(point.state))
        noisy = evaluate_at(problem, learn_noise(problem, point), point.fit)
        # A bin's spread is right to second order in its width, times the curvature of ln f, of order one.
        lost = point.bound - noisy.bound
        assert lost <= oracle.BIN_WIDTH**2 * case.observations.n_observed
        point = noisy if noisy.bound > point.bound else point


@given(case=structured_cases())
@settings(max_examples=60, deadline=None)
def test_form_two_is_above_form_one(case):
    loose, tight = (evaluate(problem_of(case, collapsed=collapsed), case.state) for collapsed in (False, True))
    assert tight.bound >= loose.bound - nats_of_rounding(loose)


# ---- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("kind", oracle.SLABS)
def test_branch_step_is_a_maximum(kind, replaced):
    """Of ½M ln τ − b₀τ + Σ (1−p) ln f₀(τD) + Σ p ln f₁(τD) over τ, shape and width."""
    rng = np.random.default_rng(0)
    outlier = rng.random(400) ** 2
    noise = rng.standard_t(6.0, 400) * 0.3
    deviation = (noise + (rng.random(400) < outlier) * rng.uniform(-6.0, 6.0, 400)) ** 2
    regular = Histogram(deviation, 1.0 - outlier, 0.0)
    outlying = None if replaced else Histogram(deviation, outlier, 0.0)
    prior, n_counted = NoisePrior(1e-6, 1e-18), float((1.0 - outlier).sum()) if replaced else 400.0
    start = kind(0.2, 3.0, 40.0 * kind.narrowest)
    tau, model = branch_step(5.0, start, regular, outlying, prior, n_counted, max_steps=300)
    assert model.probability == start.probability

    def objective(log_tau, shape, log_width):
        tau = np.exp(log_tau)
        candidate = kind.from_parameters(np.array([0.0, shape, log_width]))
        log_spike, _, log_slab, _ = candidate.branches(tau * deviation)
        total = (0.5 * n_counted + prior.concentration) * log_tau - prior.rate * tau + (1.0 - outlier) @ log_spike
        return total if replaced else total + outlier @ log_slab

    best = np.array([np.log(tau), *model.parameters[1:]])
    at_best = objective(*best)
    assert at_best > objective(np.log(5.0), *start.parameters[1:]) + 1.0
    low, high = oracle.noise_limits(kind)
    for place, step in itertools.product(range(3), (-0.03, 0.03)):
        nudged = best.copy()
        nudged[place] += step
        limit = (0, 2, 3)[place]
        if low[limit] <= nudged[place] <= high[limit]:
            # The search stops at 1e-11 of the objective, and a table of ln J is right to 1e-6 of it.
            assert objective(*nudged) <= at_best + 1e-3


@pytest.mark.parametrize("kind", oracle.SLABS)
def test_branch_step_without_any_outlier(kind):
    """Nothing is counted as one: the slab stays, and the noise is learnt from all entries."""
    deviation = np.random.default_rng(1).standard_normal(500) ** 2 / 4.0
    nothing = Histogram.from_shares(np.zeros(3), np.zeros(3), 1.0, 0.0)
    regular = Histogram(deviation, np.ones(500), 0.0)
    prior, start = NoisePrior(1e-6, 1e-18), kind(0.1, 30.0, 100.0)
    tau, model = branch_step(1.0, start, regular, nothing, prior, 500.0, max_steps=100)
    # Where the noise is a Student-t, its learnt tails may add some.
    assert model.noise_inflation / tau == pytest.approx(deviation.mean(), rel=0.05)
    assert np.isfinite(model.width)


def test_the_shared_rate_is_a_maximum():
    for n_outlying, n_groups in ((0.0, 50.0), (3.7, 50.0), (49.0, 50.0)):
        rate = shared_rate(n_outlying, n_groups)

        def objective(rate, n_outlying=n_outlying, n_groups=n_groups):
            return n_outlying * np.log(rate) + (n_groups - n_outlying + MINORITY) * np.log1p(-rate)

        for nudged in (0.9 * rate, 1.1 * rate):
            assert objective(min(nudged, 0.98)) <= objective(rate) + 1e-6


def test_the_law_is_a_histogram_of_what_was_replaced():
    law = initial_law(-2.0, 6.0)
    width = 8.0 / LAW_BINS
    np.testing.assert_array_equal(
        law.bins(np.array([-2.0, -2.0 + 1.5 * width, 6.0, -100.0, 100.0])), [0, 1, 255, 0, 255]
    )
    counts = np.zeros(LAW_BINS)
    counts[10], counts[20] = 3.0, 1.0
    learnt = law.learnt(counts)
    assert learnt.density.sum() * width == pytest.approx(1.0, rel=1e-12)
    assert learnt.density[10] * width == pytest.approx((3.0 + 1.0 / LAW_BINS) / 5.0, rel=1e-12)
    assert np.all(learnt.density > 0)  # what was not seen yet is possible


def test_rates_are_their_posteriors_and_their_prior_a_maximum():
    rng = np.random.default_rng(2)
    sizes = rng.integers(5, 60, 40).astype(float)
    outlying = sizes * rng.beta(0.5, 4.0, 40)
    rates = learnt_rates(initial_rates((0,), 40, 0.1), outlying, sizes)
    np.testing.assert_array_equal(rates.outlying, rates.prior[0] + outlying)
    np.testing.assert_allclose(rates.regular, rates.prior[1] + sizes - outlying, rtol=1e-15)
    for first, second in itertools.product((0.9, 1.0, 1.1), repeat=2):
        other = replace(rates, prior=(rates.prior[0] * first, rates.prior[1] * second))
        # the search ends at a gain of 1e-6 nats
        assert other.kl - other.log_prior >= rates.kl - rates.log_prior - 1e-5
    # 40 slices know the spread of a Beta(.5, 4) to a third or so.
    assert 0.2 < rates.prior[0] < 1.2
    assert rates.mean.mean() == pytest.approx(outlying.sum() / sizes.sum(), abs=0.03)


@pytest.mark.parametrize("spread", [(0.5, 4.0), (30.0, 300.0), (1e5, 1e6), (0.05, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_the_prior_of_rates_is_no_worse_than_a_search_without_derivatives_finds(spread, seed):
    """Also where all rates are equal, and the evidence rises towards an infinitely narrow prior."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 200, 300).astype(float)
    outlying = rng.binomial(sizes.astype(int), rng.beta(*spread, 300)) + 1e-6

    def evidence(first, second):
        prior = oracle.rate_log_prior(first / (first + second))
        return float(np.sum(betaln(first + outlying, second + sizes - outlying)) - 300 * betaln(first, second)) + prior

    start = initial_rates((0,), 300, 0.1)
    limits = [(np.log(1e-3), np.log(1e6))] * 2  # beyond them the evidence is rounding error
    found = minimize(lambda logs: -evidence(*np.exp(logs)), np.log(start.prior), method="Nelder-Mead", bounds=limits)
    learnt = learnt_rates(start, outlying, sizes)
    assert evidence(*learnt.prior) >= -found.fun - 0.1  # where rates are equal it rises ever more slowly
    assert evidence(*learnt.prior) >= evidence(*start.prior)


def after_sweeps(problem, state, n_sweeps=4):
    """The state after some sweeps, and the bounds on the way."""
    point, bounds = evaluate(problem, state), []
    for _ in range(n_sweeps):
        point = sweep(problem, point)
        bounds.append(point.bound)
    return point.state, bounds


@layouts
def test_labels_that_number_the_slices_are_rates_per_slice(layout):
    """The same digits. Other numbers for the same labels have rates in another order, and no other effect."""
    case = oracle.structured_case(4, layout, rates=(0, 2), slices=(1,))
    problem, rates = problem_of(case), case.state.structure.rates

    def labelled(labels, order):
        given = SliceRates(rates.modes, rates.outlying[order], rates.regular[order], rates.prior, labels)
        return replace(case.state, structure=replace(case.state.structure, rates=given))

    numbers = np.arange(rates.outlying.size)
    wanted, bounds = after_sweeps(problem, case.state)
    found, same = after_sweeps(problem, labelled(numbers, numbers))
    assert same == bounds
    np.testing.assert_array_equal(found.structure.rates.outlying, wanted.structure.rates.outlying)
    order = np.random.default_rng(0).permutation(numbers.size)
    renamed, other = after_sweeps(problem, labelled(np.argsort(order), order))
    # the prior of the rates comes from an optimiser that ends at a gain of 1e-9 nats
    assert other == pytest.approx(bounds, abs=1e-4)
    np.testing.assert_allclose(renamed.structure.rates.outlying, wanted.structure.rates.outlying[order], rtol=1e-3)


def test_slices_with_one_label_have_the_sums_of_all():
    """As if the entries of these slices were one slice."""
    rng = np.random.default_rng(3)
    labels, sizes = rng.integers(0, 3, 12), rng.integers(5, 40, 12).astype(float)
    outlying = sizes * rng.random(12)
    labelled = learnt_rates(initial_rates((0,), 3, 0.1, labels), outlying, sizes)
    sums = [np.array([part[labels == label].sum() for label in range(3)]) for part in (outlying, sizes)]
    whole = learnt_rates(initial_rates((0,), 3, 0.1), *sums)
    np.testing.assert_allclose(labelled.outlying, whole.outlying, rtol=1e-12)
    np.testing.assert_allclose(labelled.regular, whole.regular, rtol=1e-12)
    assert labelled.typical == pytest.approx(np.mean([labelled.mean[label] for label in labels]))


def test_the_divergence_of_rates_is_that_of_draws():
    rates = SliceRates((0,), np.array([2.0, 5.0]), np.array([3.0, 1.5]), (0.7, 2.0))
    rng, draws = np.random.default_rng(3), 200_000
    total, error = 0.0, 0.0
    for outlying, regular in zip(rates.outlying, rates.regular, strict=True):
        drawn = rng.beta(outlying, regular, draws)
        ratio = stats.beta.logpdf(drawn, outlying, regular) - stats.beta.logpdf(drawn, *rates.prior)
        total, error = total + ratio.mean(), error + ratio.std() / np.sqrt(draws)
    assert rates.kl == pytest.approx(total, abs=4 * error)


def test_the_divergence_of_sides_is_that_of_draws():
    sides, draws = Sides(4.0, 1.5), 200_000
    drawn = np.random.default_rng(3).beta(4.0, 1.5, draws)
    ratio = stats.beta.logpdf(drawn, 4.0, 1.5)  # the prior is uniform
    assert sides.kl == pytest.approx(ratio.mean(), abs=4 * ratio.std() / np.sqrt(draws))
    assert Sides(1.0, 1.0).kl == 0.0
    assert sides.mean == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(draws))


def test_sides_count_the_outliers_on_each_side():
    """Given which entries are outliers, q(a) is where the bound is largest."""
    case = oracle.structured_case(12, "masked", sides=Sides(2.0, 2.0))
    problem = problem_of(case)
    point = evaluate(problem, case.state)
    outlier, above = probabilities(problem, point), point.fit.residual(problem.observations.block_list[0]) > 0
    sides = learn_noise(problem, point).structure.sides
    assert sides.positive == pytest.approx(1.0 + outlier[above].sum(), rel=1e-9)
    assert sides.negative == pytest.approx(1.0 + outlier[~above].sum(), rel=1e-9)


def one_sided_deviations(rate=0.3, reach=8.0, n_entries=4000, sign=1.0):
    """Noise of variance one, and outliers of one sign among them: the histogram that counts signs."""
    rng = np.random.default_rng(7)
    deviation = rng.standard_normal(n_entries)
    deviation += sign * (rng.random(n_entries) < rate) * rng.uniform(0.0, reach, n_entries)
    counts, totals, above = np.zeros(N_BINS), np.zeros(N_BINS), np.zeros(N_BINS)
    kernels.count_deviations(deviation**2, counts, totals)
    kernels.count_deviations(deviation[deviation >= 0] ** 2, above, np.zeros(N_BINS))
    return Histogram.from_bins(counts, totals, float((deviation**2).max()), 0.0, above)


@pytest.mark.parametrize("kind", oracle.SLABS)
def test_scores_of_two_sides_are_derivatives(kind):
    histogram = replace(one_sided_deviations(), log_sides=Sides(9.0, 2.0).mean_logs)
    place, step = np.array([0.2, -1.1, kind.shape_parameter(6.0), np.log(80.0)]), 1e-5
    found = _objective(place, kind, histogram, NoisePrior(1e-6, 1e-6))
    for k in range(4):
        nudge = step * np.eye(4)[k]
        ends = [_objective(place + sign * nudge, kind, histogram, NoisePrior(1e-6, 1e-6)) for sign in (-1.0, 1.0)]
        slope = (ends[1].value - ends[0].value) / (2.0 * step)
        # Tables of ln J are right to 1e-7 of a few thousand nats, divided by the step.
        assert found.gradient[k] == pytest.approx(slope, rel=1e-4, abs=20.0 if kind is StudentSlab else 0.1)
    assert np.all(np.linalg.eigvalsh(found.information) > 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("reach", [3.0, 8.0, 50.0])
def test_outliers_of_one_sign_are_found(reach, sign):
    """From a model that takes them for noise too: the largest deviations are of one sign."""
    histogram, prior = one_sided_deviations(reach=reach, sign=sign), NoisePrior(1e-6, 1e-6)
    tau, model, _ = joint_step(1.0, GaussianSlab(0.1, 30.0, 30.0), replace(histogram, positive=None), prior)
    before = worth(tau, model, histogram, prior)
    _, found, sides, value = sided_step(tau, model, histogram, prior)
    assert value > before + 20.0
    assert (sides.mean if sign > 0 else 1.0 - sides.mean) > 0.93
    if reach > 3.0:  # where outliers are not larger than noise, few of them are told from it
        assert found.probability == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_channels_are_measured_by_their_correlation(correlation):
    """χ = Σ R / C = 1 + (C − 1) correlation."""
    rng, n_shared = np.random.default_rng(4), 4
    common, own = rng.standard_normal((2, 3000, n_shared))
    residual = np.sqrt(correlation) * common[:, :1] + np.sqrt(1.0 - correlation) * own
    observations = observe(residual)
    structure, alone = OutlierStructure((1,)), RowGaussians(np.zeros((1, 0)), np.zeros((1, 0, 0)))
    rows = tuple(replace(alone, mean=np.zeros((length, 0))) for length in residual.shape)
    nothing, unit = Gamma(np.zeros(0), np.zeros(0)), Gamma(np.ones(()), np.ones(()))
    law = EntryLaw(State(Prior(), rows, nothing, unit, GaussianSlab(1e-9, 1e4, 100.0), structure=structure))
    pass_sums = law.zeros()
    for block in observations.block_list:
        law.posterior(block, block.values, block.values, None, pass_sums)
    sums = pass_sums.structured
    found = measured_channels(structure, sums, n_shared).n_channels
    # 3000 groups know a correlation to 2 %; clipping at three standard deviations takes a percent.
    assert found == pytest.approx(1.0 + (n_shared - 1) * correlation, rel=0.06)
    assert 1.0 <= found <= n_shared


def ones_with_noise(data, structure_of):
    """A problem whose low-rank part is known to be one, with noise that may differ along the first mode."""
    observations = observe(data)
    rows = [np.ones((length, 1)) for length in data.shape]
    rows[0] = rows[0] / observations.scale
    values = observations.values / observations.scale
    n_slices = data.shape[0]
    state = replace(
        oracle.structured_case(0, "complete", GaussianSlab).state,
        factors=tuple(RowGaussians(row, np.full((1, 1, 1), 1e-9)) for row in rows),
        lam=Gamma(np.ones(1), np.ones(1)),
        local=GaussianSlab(0.1, 1e4, 100.0),
        slices=SliceNoise((0,), Gamma(np.full(n_slices, 10.0), np.full(n_slices, 10.0)), 10.0),
        structure=structure_of(initial_law(float(values.min()), float(values.max()))),
    )
    return Problem(observations, (0, 1, 2), collapsed=True), state


def test_noise_of_slices_counts_the_entries_that_were_not_replaced():
    """Half of a slice is a sentinel: its noise is that of the other half, not half of it."""
    rng = np.random.default_rng(5)
    data = 1.0 + 0.1 * rng.standard_normal((2, 60, 40))
    data[1][rng.random((60, 40)) < 0.5] = 7.0
    problem, state = ones_with_noise(data, lambda law: OutlierStructure(law=law))
    point, bounds = evaluate(problem, state), []
    for _ in range(12):
        point = evaluate_at(problem, learn_noise(problem, point), point.fit)
        bounds.append(point.bound)
    assert np.all(np.diff(bounds) > -1e-6)
    variance = point.state.noise_variance / point.state.slices.precision.mean * problem.observations.scale**2
    # 2400 and 1200 entries know a variance to 3 and 4 %.
    np.testing.assert_allclose(variance, 0.01, rtol=0.12)


@pytest.mark.parametrize("modes", [(), (2,)])
def test_the_common_noise_is_learnt_given_that_of_the_slices(modes):
    """Slices thirty times apart, alike at first: after one step τ is where the bound is largest."""
    noise = np.array([0.03, 1.0])[:, None, None] * np.random.default_rng(6).standard_normal((2, 60, 40))
    problem, state = ones_with_noise(1.0 + noise, lambda law: OutlierStructure(modes, law=None if modes else law))
    point = evaluate(problem, state)
    learnt = evaluate_at(problem, learn_noise(problem, point, max_steps=40), point.fit)
    assert learnt.bound > point.bound + 1000.0
    for factor in (0.9, 1.1):
        tau = replace(learnt.state.tau, rate=learnt.state.tau.rate * factor)
        assert evaluate_at(problem, replace(learnt.state, tau=tau), point.fit).bound < learnt.bound


# ---- accidents of the input --------------------------------------------------------------------------------


def same_point(found, wanted, problem, other):
    assert found.bound == pytest.approx(wanted.bound, rel=1e-10)
    ours, theirs = sweep(other, found, hold_noise=True), sweep(problem, wanted, hold_noise=True)
    for rows, wanted_rows in zip(ours.state.factors, theirs.state.factors, strict=True):
        np.testing.assert_allclose(rows.mean, wanted_rows.mean, rtol=1e-9, atol=1e-10)
    # Noise numbers come from an optimiser that stops at 1e-11 of the objective, the prior of rates from one at 1e-9.
    assert sweep(other, found).bound == pytest.approx(sweep(problem, wanted).bound, rel=1e-5, abs=1e-3)


@forms
@structures
def test_layouts_agree(structure, collapsed):
    for complete in (False, True):
        case = oracle.structured_case(7, "masked", complete=complete, **structure)
        problem = problem_of(case, collapsed=collapsed)
        first = evaluate(problem, case.state)
        for layout in ("coordinates", "complete") if complete else ("coordinates",):
            other = problem_of(replace(case, observations=case.problem.observations(layout)), collapsed=collapsed)
            same_point(evaluate(other, case.state), first, problem, other)


def turned_rates(rates, place, shape):
    """The same rates where mode n has become mode place[n]."""
    if rates is None:
        return None
    modes = [place[mode] for mode in rates.modes]
    positions = np.arange(rates.n_positions).reshape([shape[mode] for mode in rates.modes])
    positions = positions.transpose(np.argsort(modes)).reshape(-1)
    if rates.labels is not None:
        return replace(rates, modes=tuple(sorted(modes)), labels=rates.labels[positions])
    parts = {name: getattr(rates, name)[positions] for name in ("outlying", "regular")}
    return replace(rates, modes=tuple(sorted(modes)), **parts)


@layouts
@structures
def test_the_order_of_modes_does_not_matter(structure, layout):
    case = oracle.structured_case(8, layout, **structure)
    for order in ((1, 2, 0), (2, 1, 0)):
        turned = oracle.Problem(
            np.ascontiguousarray(case.problem.tensor.transpose(order)),
            np.ascontiguousarray(case.problem.mask.transpose(order)),
        )
        place = tuple(int(k) for k in np.argsort(order))
        old, state = case.state, case.state
        modes = tuple(sorted(place[mode] for mode in old.structure.modes))
        rates = turned_rates(old.structure.rates, place, case.problem.shape)
        state = replace(
            state,
            factors=tuple(old.factors[mode] for mode in order),
            structure=replace(old.structure, modes=modes, rates=rates),
            slices=old.slices and replace(old.slices, modes=(place[old.slices.modes[0]],)),
        )
        other = replace(
            problem_of(replace(case, problem=turned, observations=turned.observations(layout), state=state)),
            modes=place,
        )
        problem = problem_of(case)
        found, wanted = evaluate(other, state), evaluate(problem, old)
        assert found.bound == pytest.approx(wanted.bound, rel=1e-10)
        swept, wanted = (sweep(p, point, hold_noise=True) for p, point in ((other, found), (problem, wanted)))
        assert swept.bound == pytest.approx(wanted.bound, rel=1e-10)
        for mode in range(3):
            np.testing.assert_allclose(
                swept.state.factors[place[mode]].mean, wanted.state.factors[mode].mean, rtol=1e-9, atol=1e-10
            )


@pytest.mark.parametrize("modes", SHARED)
def test_groups_are_those_of_the_coordinates(modes):
    """Also where the first entry of a group, or of the block, is missing."""
    rng = np.random.default_rng(9)
    for share in (0.2, 0.5, 0.9):
        mask = rng.random((4, 3, 5)) < share
        mask[0, 0, :4] = False
        tensor = np.where(mask, rng.standard_normal((4, 3, 5)), np.nan)
        observations = observe(tensor)
        entries = observations.entry_coords()
        keys = [tuple(column) for column in np.delete(entries, modes, axis=0).T]
        together = np.equal.outer([hash(key) for key in keys], [hash(key) for key in keys])
        sparse = Observations.from_coords(entries, observations.values, observations.shape)
        for data in (observations, sparse):
            (block,) = data.in_one_block().block_list
            groups = shared_positions(OutlierStructure(modes), block)
            assert groups.min() >= 0
            np.testing.assert_array_equal(np.equal.outer(groups, groups), together)
        state = oracle.structured_case(9, "masked", modes=modes).state
        residual = rng.uniform(0.1, 5.0, observations.n_observed) / np.sqrt(float(state.tau.mean))
        found = [
            EntryLaw(state).posterior(data.in_one_block().block_list[0], np.zeros(residual.size), residual, None)
            for data in (observations, sparse)
        ]
        assert found[0].log_evidence == pytest.approx(found[1].log_evidence, rel=1e-12)
        np.testing.assert_allclose(found[0].weight, found[1].weight, rtol=1e-12)


def test_groups_of_a_tensor_of_any_size():
    """Their number does not fit into 64 bits, and nothing is as large as it."""
    coords = np.array([[1, 2, 1], [7, 7, 7], [9, 9, 9], [5, 5, 5], [3, 3, 4]])
    observations = Observations.from_coords(coords, np.ones(3), (2**16,) * 5)
    (block,) = observations.block_list
    groups = shared_positions(OutlierStructure((0,)), block)
    np.testing.assert_array_equal(np.equal.outer(groups, groups), np.equal.outer(block.coords[4], block.coords[4]))


def test_where_no_structure_is_there_are_no_groups():
    (block,) = observe(np.ones((2, 3))).block_list
    assert shared_positions(OutlierStructure(), block) is None


def test_a_flat_slab_may_be_shared():
    case = oracle.structured_case(10, "masked", FlatSlab, modes=(1,))
    problem = problem_of(case)
    point = evaluate(problem, case.state)
    for _ in range(5):
        point = sweep(problem, point)
        assert np.isfinite(point.bound)


def test_sides_that_do_not_pay_are_taken_back():
    """Symmetric outliers with sides learnt from them: without those the bound is higher, and the search is told so."""
    rng = np.random.default_rng(11)
    data = 1.0 + 0.1 * rng.standard_normal((4, 30, 20))
    data += (rng.random(data.shape) < 0.1) * rng.uniform(-3.0, 3.0, data.shape)
    problem, state = ones_with_noise(data, lambda _: OutlierStructure(sides=Sides(100.0, 100.0)))
    point = evaluate(problem, replace(state, slices=None))
    for _ in range(20):
        point = evaluate_at(problem, learn_noise_globally(problem, point), point.fit)
    assert point.state.local.probability == pytest.approx(0.1, abs=0.02)
    assert 0.35 < point.state.structure.sides.mean < 0.65
    changed, gain = with_sides(problem, point)
    assert changed.structure is None
    alike = evaluate_at(problem, changed, point.fit)
    assert alike.bound - point.bound == pytest.approx(gain, abs=0.1)
    assert gain > 1.0
    assert with_sides(problem, alike)[1] < 0.0
