"""Noise that differs between slices: its bound, its updates, and what a fit makes of it."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import oracle
from brtf import BRTF, load
from brtf.data.observations import entry_positions
from brtf.datasets import synthetic
from brtf.inference.learn_noise import SETTLED, learn_noise, promised_by_slices, settle_noise, slice_noise
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.problem import Problem, slice_grams, slice_variances
from brtf.inference.sweep import sweep
from brtf.inference.updates import update_slice_noise
from brtf.metrics import coverage, rrse
from brtf.model.distributions import Gamma
from brtf.model.local_models import FlatSlab, GaussianSlab, NoOutliers
from brtf.model.state import SliceNoise

SEED = 3
LAYOUTS = ("masked", "coordinates")


def problem_and_state(layout, *, modes=(0,), slab=True, seed=SEED):
    """A random state with noise per slice, and the problem it belongs to."""
    case = oracle.slab_case(seed, 3, layout, oracle.SLABS[0], rank=2, complete=False)
    observations, state = case.observations, case.state
    problem = Problem(observations, (0, 1, 2), collapsed=True)
    n_slices = int(np.prod([observations.shape[mode] for mode in modes]))
    rng = np.random.default_rng(seed)
    precision = Gamma(rng.uniform(2, 6, n_slices), rng.uniform(1, 5, n_slices))
    state = replace(state, slices=SliceNoise(modes, precision, 2.5))
    return problem, state if slab else replace(state, local=NoOutliers())


@pytest.mark.parametrize("modes", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_positions_are_those_of_the_coordinates(modes):
    problem, _ = problem_and_state("masked")
    coords = problem.observations.entry_coords()
    lengths = [problem.observations.shape[mode] for mode in modes]
    wanted = np.ravel_multi_index([coords[mode] for mode in modes], lengths)
    for layout in LAYOUTS:
        observations = problem_and_state(layout)[0].observations
        np.testing.assert_array_equal(entry_positions(observations, modes), wanted)


@pytest.mark.parametrize("slab", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("modes", [(0,), (0, 2)])
def test_no_sweep_lowers_the_bound(layout, modes, slab):
    for seed in range(6):
        problem, state = problem_and_state(layout, modes=modes, slab=slab, seed=seed)
        point = evaluate(problem, state)
        for _ in range(6):  # the factors, then the noise by itself: a sweep of both would take a bad step back
            swept = sweep(problem, point, hold_noise=True)
            # rounding of a sum of some hundred terms
            assert swept.bound >= point.bound - 1e-9 * abs(point.bound)
            point = evaluate_at(problem, learn_noise(problem, swept), swept.fit)
            lost = swept.bound - point.bound
            assert lost <= oracle.BIN_WIDTH**2 * problem.observations.n_observed


def test_the_update_of_a_slice_is_a_maximum():
    """At given weights the update maximises the bound's tangent, so without outliers the bound itself."""
    problem, state = problem_and_state("masked", slab=False)
    point = evaluate(problem, state)
    updated = update_slice_noise(state.slices, problem.n_entries(state.slices), point.slice_squares)
    held = replace(updated, concentration=state.slices.concentration)
    best = evaluate(problem, replace(state, slices=held)).bound
    assert best > point.bound
    for factor in (0.97, 1.03):
        for part in ("concentration", "rate"):
            nudged = replace(held.precision, **{part: getattr(held.precision, part) * factor})
            assert evaluate(problem, replace(state, slices=replace(held, precision=nudged))).bound < best
    learnt = evaluate(problem, replace(state, slices=replace(held, concentration=updated.concentration))).bound
    for factor in (0.9, 1.1):
        other = replace(held, concentration=updated.concentration * factor)
        assert evaluate(problem, replace(state, slices=other)).bound < learnt


def test_equal_slices_are_common_noise():
    """All ω at one with certainty: the bound is that of common noise."""
    problem, state = problem_and_state("masked")
    common = evaluate(problem, replace(state, slices=None))
    certain = Gamma(np.full(state.slices.precision.rate.size, 1e12), np.full(state.slices.precision.rate.size, 1e12))
    alike = evaluate(problem, replace(state, slices=SliceNoise((0,), certain, 1e12)))
    assert alike.bound == pytest.approx(common.bound, rel=1e-9)


def test_layouts_agree():
    swept = []
    for layout in LAYOUTS:
        problem, state = problem_and_state(layout)
        swept.append(sweep(problem, evaluate(problem, state)))
    assert swept[0].bound == pytest.approx(swept[1].bound, rel=1e-10)


@pytest.mark.parametrize("collapsed", [True, False])
@pytest.mark.parametrize("slab", [True, False])
def test_what_slices_promise_is_a_lower_bound_of_their_gain(slab, collapsed):
    """Settled at fixed factors and τ, noise per slice gains what was promised without outliers, and more with them."""
    for seed in range(4):
        problem, state = problem_and_state("masked", slab=slab, seed=seed)
        problem = replace(problem, collapsed=collapsed)
        point = evaluate(problem, replace(state, slices=None))
        for modes, promised in zip([(0,), (1, 2)], promised_by_slices(problem, point, [(0,), (1, 2)]), strict=True):
            trial = evaluate_at(problem, slice_noise(problem, point.state, modes), point.fit)
            for _ in range(300):  # the concentration a converges linearly, slowly where slices are alike
                slices = update_slice_noise(trial.state.slices, trial.slice_entries, trial.slice_squares)
                trial = evaluate_at(problem, replace(trial.state, slices=slices), point.fit)
            gain = trial.bound - point.bound
            if slab:
                assert gain >= promised - 0.05
            else:
                assert gain == pytest.approx(promised, abs=0.05)


# ---- form 1 ------------------------------------------------------------------------------------------------


def case_with_slices(seed, order, layout, modes, kind=NoOutliers, *, complete=None):
    case = oracle.slab_case(seed, order, layout, kind, complete=complete)
    n_slices = int(np.prod([case.problem.shape[mode] for mode in modes]))
    rng = np.random.default_rng([seed, 3])
    precision = Gamma(rng.uniform(2, 6, n_slices), rng.uniform(1, 5, n_slices))
    return replace(case, state=replace(case.state, slices=SliceNoise(modes, precision, 2.5)))


def precision_of_entries(case):
    """ω̄ of every entry's slice, one by one."""
    slices, shape = case.state.slices, case.problem.shape
    places = [oracle.position_along(index, slices.modes, shape) for index in case.problem.entries]
    return places, [float(slices.precision.mean[place]) for place in places]


MODES = {2: [(0,), (1,), (0, 1)], 3: [(0,), (1,), (0, 2), (1, 2), (0, 1, 2)], 4: [(2,), (1, 3), (0, 1, 3)]}


@pytest.mark.parametrize(("order", "modes"), [(order, modes) for order, sets in MODES.items() for modes in sets])
class TestSumsOverCompleteSlices:
    """Without a look at the entries, and yet sums over them."""

    def test_grams_are_weighted_sums_over_entries(self, order, modes):
        case = case_with_slices(1, order, "complete", modes)
        _, weights = precision_of_entries(case)
        for mode in range(order):
            found = slice_grams(case.state.slices, case.state.factors, mode)
            wanted = oracle.row_grams(case.state.factors, case.problem.entries, weights, mode)
            assert found.shape[0] == (wanted.shape[0] if mode in modes else 1)
            # Sums of a few dozen products of moments of a few hundred.
            np.testing.assert_allclose(np.broadcast_to(found, wanted.shape), wanted, rtol=1e-11, atol=1e-10)

    @pytest.mark.parametrize("layout", oracle.LAYOUTS)
    def test_variances_are_sums_over_entries(self, order, modes, layout):
        case = case_with_slices(2, order, layout, modes)
        places, _ = precision_of_entries(case)
        wanted = np.zeros(case.state.slices.precision.rate.size)
        for place, variance in zip(places, oracle.variance_at(case.state.factors, case.problem.entries), strict=True):
            wanted[place] += variance
        problem = oracle.calibrated_problem(case, collapsed=False)
        found = slice_variances(problem, case.state, case.state.slices.modes)
        # The loops subtract squares of a few hundred.
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)

    def test_a_sweep_of_complete_data_is_that_of_a_mask_that_hides_nothing(self, order, modes):
        for kind in (*oracle.SLABS, NoOutliers):
            case = case_with_slices(3, order, "complete", modes, kind)
            swept = []
            for layout in oracle.LAYOUTS:
                observations = case.problem.observations(layout)
                problem = oracle.calibrated_problem(replace(case, observations=observations), collapsed=False)
                swept.append(sweep(problem, evaluate(problem, case.state), hold_noise=True))
            for other in swept[1:]:
                assert other.bound == pytest.approx(swept[0].bound, rel=1e-10)
                for ours, theirs in zip(other.state.factors, swept[0].state.factors, strict=True):
                    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-8, atol=1e-10)


slice_cases = st.builds(
    case_with_slices,
    seed=st.integers(0, 2**32 - 1),
    order=st.just(3),
    layout=st.sampled_from(oracle.LAYOUTS),
    modes=st.sampled_from(MODES[3]),
    kind=st.sampled_from((oracle.SLABS[0], oracle.SLABS[1], NoOutliers)),
)


@given(case=slice_cases, collapsed=st.booleans())
@settings(max_examples=50, deadline=None)
def test_no_sweep_of_either_form_lowers_the_bound(case, collapsed):
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    point = evaluate(problem, case.state)
    for _ in range(5):
        swept = sweep(problem, point, hold_noise=True)
        assert swept.bound >= point.bound - 1e-9 * sum(abs(term) for term in astuple(point.terms))
        point = evaluate_at(problem, learn_noise(problem, swept), swept.fit)
        lost = swept.bound - point.bound
        assert lost <= oracle.BIN_WIDTH**2 * problem.observations.n_observed


@given(case=slice_cases)
@settings(max_examples=50, deadline=None)
def test_form_two_is_above_form_one(case):
    loose, tight = (
        evaluate(oracle.calibrated_problem(case, collapsed=collapsed), case.state) for collapsed in (False, True)
    )
    assert tight.bound >= loose.bound - 1e-9 * sum(abs(term) for term in astuple(loose.terms))


def test_learning_the_noise_finds_the_levels():
    problem, state = problem_and_state("masked", slab=False)
    state = slice_noise(problem, state, (0,))
    point = evaluate(problem, state)
    bounds = []
    for _ in range(5):
        state = learn_noise(problem, point)
        point = evaluate_at(problem, state, point.fit)
        bounds.append(point.bound)
    assert np.all(np.diff(bounds) >= -1e-9 * abs(bounds[-1]))
    assert np.mean(state.slices.precision.mean) == pytest.approx(1.0)


@pytest.mark.parametrize("slab", [FlatSlab(0.1, 4.0, 30.0), GaussianSlab(0.1, 4.0, 100.0)])
def test_settling_the_noise_never_lowers_the_bound(slab):
    """Also where the steps promise more than they keep, beside the sharp edge of a flat slab."""
    problem, state = problem_and_state("masked")
    point = evaluate(problem, replace(state, local=slab))
    settled = settle_noise(problem, point)
    assert settled.bound >= point.bound
    assert settle_noise(problem, settled).bound - settled.bound < 10 * SETTLED


def uneven(seed, spread=1.0):
    """Data whose noise differs from row to row of the first mode, with outliers and missing entries."""
    data = synthetic((30, 15, 12), 2, outliers=0.08, missing=0.2, seed=seed)
    std = np.exp(np.random.default_rng(seed).normal(0, spread, 30))
    noise = data.noise * std[:, None, None]
    return data, std, np.where(data.mask, data.low_rank + data.outliers + noise, np.nan)


class TestFits:
    def test_uneven_noise_is_found(self):
        data, std, observed = uneven(0)
        common = BRTF(noise="common", random_state=0).fit(observed)
        model = BRTF(noise="auto", random_state=0).fit(observed)
        assert model.noise_variances_.shape == (30,)
        assert any("noise per slice of (0,)" in str(event) for event in model.trace_["event"])
        # 150 entries a slice know their variance to 12 %; the outliers blur it further
        ratio = np.log(model.noise_variances_ / (0.01 * std**2))
        assert np.std(ratio) < 0.3
        assert abs(np.mean(ratio)) < 0.15
        assert model.rank_ == 2
        assert model.bound_ > common.bound_ + 100
        assert rrse(model.low_rank(), data.low_rank) < rrse(common.low_rank(), data.low_rank)
        held_out = np.where(data.mask, np.nan, data.low_rank + data.noise * std[:, None, None])
        assert model.score(held_out) > common.score(held_out) + 0.2
        low, high = model.predict_interval(level=0.9, of="observation")
        clean = data.low_rank + data.noise * std[:, None, None]
        # intervals allow for 8 % outliers too, so inliers are covered a little more often than 90 %
        assert 0.88 < coverage(low, high, clean) < 0.99
        widths = (high - low).mean(axis=(1, 2))
        assert stats.spearmanr(widths, std).statistic > 0.95

    def test_even_noise_loses_nothing(self):
        data = synthetic((30, 15, 12), 2, outliers=0.08, missing=0.2, seed=1)
        common = BRTF(random_state=0).fit(data.observed)
        automatic = BRTF(noise="auto", random_state=0).fit(data.observed)
        forced = BRTF(noise="per-slice", noise_modes=(1,), random_state=0).fit(data.observed)
        assert automatic.noise_variances_.ndim == 0
        assert automatic.bound_ == pytest.approx(common.bound_, abs=1.0)
        errors = [rrse(model.low_rank(), data.low_rank) for model in (common, automatic, forced)]
        np.testing.assert_allclose(errors, errors[0], rtol=0.03)  # the same to two digits

    def test_everything_works_and_is_kept(self, tmp_path):
        _, _, observed = uneven(2)
        model = BRTF(noise="per-slice", noise_modes=(0, 2), random_state=0).fit(observed)
        assert model.noise_variances_.shape == (30, 12)
        model.save(tmp_path / "fit.brtf")
        again = load(tmp_path / "fit.brtf")
        np.testing.assert_array_equal(again.noise_variances_, model.noise_variances_)
        coords = np.array([[0, 3], [1, 2], [5, 7]])
        for of in ("low_rank", "observation"):
            np.testing.assert_array_equal(again.predict_interval(of=of), model.predict_interval(of=of))
            at_entries = np.array(model.predict_interval(coords, of=of))
            everywhere = np.array(model.predict_interval(of=of))[(slice(None), *coords)]
            np.testing.assert_allclose(at_entries, everywhere, rtol=1e-6)
        np.testing.assert_array_equal(again.outlier_probability(), model.outlier_probability())
        draws = model.sample(200, coords, random_state=0)
        spread = model.predict(coords, return_std=True, of="observation")[1]
        assert draws.shape == (200, 2)
        assert np.all(draws.std(axis=0) < 5 * spread)
        assert model.transform(observed[:4]).shape == (4, model.rank_)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"noise": "loud"}, "noise must be one of"),
            ({"noise": "per-slice", "noise_modes": (3,)}, "noise_modes must be different modes"),
            ({"noise": "per-slice", "noise_modes": (1, 1)}, "noise_modes must be different modes"),
            ({"noise": "per-slice", "noise_modes": ()}, "noise_modes must be None or a list of modes"),
            ({"noise": "common", "noise_modes": (0,)}, "noise_modes needs noise"),
            ({"noise": "per-slice", "inference": "paper"}, 'noise must be "common" with inference="paper"'),
        ],
    )
    def test_bad_options_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            BRTF(**options).fit(np.arange(60.0).reshape(3, 4, 5))
