"""The bound: it agrees with Monte Carlo for every kind of state and with textbook terms, and no update lowers it."""

from dataclasses import asdict, astuple, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

import oracle
from brtf import BRTF
from brtf.api.synthetic import synthetic
from brtf.data.observe import observe
from brtf.inference import bound as bounds
from brtf.inference.entry_posterior import grouped
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.statistics import fit_at_entries
from brtf.inference.updates import negligible_components
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import FlatSlab, GaussianSlab, NoOutliers, StudentSlab
from brtf.model.row_priors import Centred
from brtf.model.state import Prior, Sides, component_amplitudes
from brtf.search.starts import random_start

ORDERS = tuple(oracle.SHAPES)
EMPTY_VAR = 1e-30
OUTLIERS = {"outliers": True, "no outliers": False}


def sharpened(case):
    """The case with narrower posteriors: products of wide ones have tails that blur a Monte Carlo mean."""

    def gamma(wide):
        return Gamma(4.0 * wide.concentration, 4.0 * wide.rate)

    state, local = case.state, case.state.local
    return replace(
        case,
        state=replace(
            state,
            factors=tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in state.factors),
            lam=gamma(state.lam),
            tau=gamma(state.tau),
            local=replace(local, gamma=gamma(local.gamma)) if local.has_outliers else local,
        ),
    )


def bound(case, state=None, *, collapsed=True):
    return bounds.bound(oracle.calibrated_problem(case, collapsed=collapsed), case.state if state is None else state)


# ---- every kind of state -----------------------------------------------------------------------------------


def mean_field(seed, layout, *, outliers):
    return sharpened(oracle.random_case(seed, 3, layout, outliers=outliers))


def calibrated(seed, layout, kind, **structure):
    """A case with a local model, priors that can be drawn from, and posteriors narrow enough for Monte Carlo means."""
    case = oracle.structured_case(seed, layout, kind, **structure)
    numbers = np.random.default_rng(9).uniform(0.5, 1.0, 4)
    state = replace(
        case.state,
        prior=Prior(*map(float, numbers)),
        factors=tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in case.state.factors),
        lam=Gamma(4 * case.state.lam.concentration, 4 * case.state.lam.rate),
        structure=None if case.state.structure.is_plain else case.state.structure,
    )
    if kind is FlatSlab:  # whose edge, where the bound is right to first order only, is far away
        state = replace(state, local=replace(state.local, width=1e6))
    return replace(case, state=state)


KINDS = {
    "paper": partial(mean_field, outliers=True),
    "paper, no outliers": partial(mean_field, outliers=False),
    "no outliers": partial(calibrated, kind=NoOutliers),
    "Student slab": partial(calibrated, kind=StudentSlab),
    "Gaussian slab": partial(calibrated, kind=GaussianSlab),
    "flat slab": partial(calibrated, kind=FlatSlab),
    "no outliers, slices": partial(calibrated, kind=NoOutliers, slices=(0,)),
    "slices": partial(calibrated, kind=GaussianSlab, slices=(1, 2)),
    "shared": partial(calibrated, kind=StudentSlab, modes=(1,)),
    "replaced": partial(calibrated, kind=StudentSlab, law=True),
    "shared, replaced": partial(calibrated, kind=GaussianSlab, modes=(2,), law=True),
    "replaced, slices": partial(calibrated, kind=GaussianSlab, law=True, slices=(2,)),
    "rates": partial(calibrated, kind=StudentSlab, rates=(0,)),
    "rates of labels": partial(calibrated, kind=GaussianSlab, rates=(0, 2), n_labels=3),
    "sides": partial(calibrated, kind=StudentSlab, sides=Sides(5.0, 1.5)),
    "sides, rates, slices": partial(calibrated, kind=GaussianSlab, sides=Sides(3.0, 2.0), rates=(2,), slices=(2,)),
}
kinds = pytest.mark.parametrize("kind", KINDS)
forms = pytest.mark.parametrize("collapsed", [False, True], ids=["form 1", "form 2"])


def is_looser(case, *, collapsed):
    """Form 1 pays for Var x at the largest weight, which Student-t noise and replaced values do not have."""
    structure, model = oracle.structure_of(case.state), case.state.local
    return not collapsed and (model.noise_inflation > 1.0 or structure.law is not None)


@forms
@kinds
def test_bound_is_the_monte_carlo_mean_over_every_latent(kind, collapsed):
    """Of ln p(Y, Θ) − ln q(Θ), nothing in Θ integrated out: factors, precisions, and z, s and scales of each entry."""
    case = KINDS[kind](1, "masked")
    n_draws = 100_000 if kind.startswith("paper") else 40_000
    samples = oracle.bound_samples(case, n_draws, np.random.default_rng(2), collapsed=collapsed)
    error = samples.std() / np.sqrt(n_draws)
    assert 4.0 * error < 0.5  # half a nat is the smallest constant that a term could have lost
    found = bound(case, collapsed=collapsed).total
    assert found < samples.mean() + 4.0 * error
    assert is_looser(case, collapsed=collapsed) or found > samples.mean() - 4.0 * error


@forms
@kinds
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_sweeps_are_judged_by_the_bound(kind, layout, collapsed):
    """What a sweep makes of its own sums over the entries is the bound, term by term."""
    if kind == "paper":
        return
    case = KINDS[kind](2, layout)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    shared = () if case.state.structure is None else case.state.structure.modes
    whole = replace(problem, observations=grouped(problem.observations, shared))
    wanted, found = bounds.bound(problem, case.state), evaluate(whole, case.state).terms
    assert astuple(found) == pytest.approx(astuple(wanted), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [NoOutliers, GaussianSlab, FlatSlab])
def test_passes_that_look_ahead_are_judged_by_the_bound(kind, dtype):
    """Large complete data are solved in tiles, and their evidence is summed up on the way."""
    data = np.random.default_rng(0).standard_normal((80, 64, 56)).astype(dtype)
    problem = Problem(observe(data), (0, 1, 2), collapsed=False)
    model = oracle.random_slab(kind, np.random.default_rng(0))
    state = random_start(problem, 2, model, np.random.default_rng(1))
    found = evaluate(problem, state, ahead=True)
    assert found.ahead is not None
    # an entry's residual is known to some units in the last place of the data's type
    assert found.bound == pytest.approx(bounds.bound(problem, state).total, rel=20 * float(np.finfo(dtype).eps))


@pytest.mark.filterwarnings("ignore::brtf.FitWarning")
@pytest.mark.parametrize("link", ["sqrt", "log"])
def test_bound_of_a_fit_with_a_link_has_its_slopes(link):
    """ln p(y) = ln p(t(y)) + ln dt/dy; t(y) is in units of a scale."""
    observed = np.exp(0.3 * synthetic((7, 6, 5), 1, seed=0).observed)
    result = BRTF(1, link=link, random_state=0).fit(observed).result_
    modelled = result.as_modelled(result.observations)
    found = bounds.bound(Problem(modelled, (0, 1, 2), collapsed=True), result.state).total
    slope = {"sqrt": 0.5 / np.sqrt(observed), "log": 1.0 / observed}[link]
    assert result.bound == pytest.approx(found + np.log(slope / result.scale).sum(), rel=1e-9)


class TestStatesThatCannotBeJudged:
    def test_a_structure_needs_outliers(self):
        case = KINDS["shared"](1, "masked")
        with pytest.raises(TypeError, match="needs a local model with outliers"):
            bound(case, replace(case.state, local=NoOutliers()))

    def test_the_papers_outliers_have_neither_slices_nor_structure(self):
        case, other = KINDS["paper"](1, "masked"), KINDS["sides, rates, slices"](1, "masked")
        for part in ("slices", "structure"):
            with pytest.raises(TypeError, match="The paper's inference has no bound with noise per slice"):
                bound(case, replace(case.state, **{part: getattr(other.state, part)}))

    def test_the_papers_outliers_belong_to_the_entries(self):
        case, other = KINDS["paper"](1, "masked"), KINDS["paper"](1, "complete")
        with pytest.raises(ValueError, match="The state has outliers of 24 entries, got data of"):
            bound(case, replace(case.state, local=other.state.local))

    def test_factors_belong_to_the_shape(self):
        case = KINDS["no outliers"](1, "masked")
        with pytest.raises(ValueError, match=r"of data of shape \(4, 3, 2\), got data of shape \(3, 4, 2\)"):
            bound(case, replace(case.state, factors=tuple(case.state.factors[mode] for mode in (1, 0, 2))))


# ---- the paper's state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("outliers", OUTLIERS.values(), ids=OUTLIERS)
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_terms_are_the_textbook_ones(order, layout, outliers, rank):
    case = oracle.random_case(3, order, layout, rank=rank, outliers=outliers)
    found, wanted = asdict(bound(case)), oracle.bound_terms(case)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        # Sums of a few hundred numbers up to about 1e3.
        assert found[name] == pytest.approx(value, rel=1e-11, abs=1e-10), name
    assert bound(case).total == pytest.approx(sum(wanted.values()), rel=1e-11)


@pytest.mark.parametrize("order", ORDERS)
def test_layout_does_not_matter(order):
    masked, listed = (oracle.random_case(4, order, layout) for layout in ("masked", "coordinates"))
    assert astuple(bound(masked)) == pytest.approx(astuple(bound(listed)), rel=1e-12)
    whole = oracle.random_case(4, order, "complete")
    masked = replace(whole, observations=whole.problem.observations("masked"))
    assert astuple(bound(masked)) == pytest.approx(astuple(bound(whole)), rel=1e-12)


cases = st.builds(
    oracle.random_case,
    seed=st.integers(0, 2**32 - 1),
    order=st.sampled_from(ORDERS),
    layout=st.sampled_from(oracle.LAYOUTS),
    rank=st.integers(0, 4),
    outliers=st.booleans(),
)


def nats_of_rounding(terms):
    """A term is a sum of up to some hundred parts, each known to 1e-16 of its size, which may exceed the sum's."""
    return 1e-10 * sum(abs(term) for term in astuple(terms))


@given(case=cases, names=st.permutations(list(oracle.UPDATES)))
@settings(max_examples=60, deadline=None)
def test_no_update_lowers_the_bound(case, names):
    """Whatever the state and the order of the updates; from far away first, then from near the optimum."""
    state = case.state
    before = bound(case, state)
    for name in [*names] * 6:
        if not state.local.has_outliers and name.startswith("outlier"):
            continue
        state = oracle.UPDATES[name](case.observations, state)
        after = bound(case, state)
        assert after.total >= before.total - nats_of_rounding(before), name
        before = after


@given(case=cases, name=st.sampled_from(list(oracle.UPDATES)))
@settings(max_examples=100, deadline=None)
def test_an_update_repeated_changes_nothing(case, name):
    assume(case.state.local.has_outliers or not name.startswith("outlier"))
    once = oracle.UPDATES[name](case.observations, case.state)
    twice = oracle.UPDATES[name](case.observations, once)
    terms = bound(case, once)
    assert abs(bound(case, twice).total - terms.total) <= nats_of_rounding(terms)


@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_bound_is_finite_with_the_default_priors_and_far_from_one(layout):
    case = oracle.random_case(5, 3, layout)
    vague = replace(
        case.state,
        prior=type(case.state.prior)(),
        tau=Gamma(np.asarray(1e8), np.asarray(1e-8)),
        lam=Gamma(case.state.lam.concentration, np.array([1e-12, 1e12])),
    )
    assert np.isfinite(bound(case, vague).total)


class TestEmptyComponent:
    """A component whose mean is exactly zero and whose variance is tiny: dead weight that may be dropped."""

    @pytest.fixture(params=oracle.LAYOUTS)
    def case(self, request):
        case = oracle.random_case(6, 3, request.param, rank=3)
        alive = np.array([1.0, 0.0, 1.0])
        cov = np.diag([0.1, EMPTY_VAR, 0.1])
        factors = tuple(
            RowGaussians(rows.mean * alive, np.tile(cov, (len(rows.cov), 1, 1))) for rows in case.state.factors
        )
        return replace(case, state=replace(case.state, factors=factors))

    def test_bound_is_finite_and_the_component_negligible(self, case):
        assert np.isfinite(bound(case).total)
        np.testing.assert_array_equal(
            negligible_components(case.state, case.observations.n_observed), [False, True, False]
        )

    def test_dropping_it_leaves_the_fit_as_it_was(self, case):
        kept = case.state.select_components(np.array([True, False, True]))
        assert kept.rank == 2
        before = fit_at_entries(case.observations, case.state.factors)
        after = fit_at_entries(case.observations, kept.factors)
        # The order of summation over components may differ.
        np.testing.assert_allclose(after.residual, before.residual, rtol=0, atol=1e-14)
        assert after.variance_sum == pytest.approx(before.variance_sum, rel=1e-12)

    def test_the_bound_changes_by_what_the_component_held(self, case):
        """Its rows, which are independent of the others here, and its precision; the likelihood does not move."""
        lam = Gamma(case.state.lam.concentration[[1]], case.state.lam.rate[[1]])
        prior = case.state.prior
        held = oracle.gamma_term(lam, prior.lam_concentration, prior.lam_rate)
        for _ in range(sum(case.problem.shape)):
            density = 0.5 * (lam.mean_log.item() - np.log(2 * np.pi) - lam.mean.item() * EMPTY_VAR)
            held += density + stats.norm.entropy(scale=np.sqrt(EMPTY_VAR))
        kept = case.state.select_components(np.array([0, 2]))
        assert bound(case, kept).total - bound(case).total == pytest.approx(-held, rel=1e-10)
        assert bound(case, kept).likelihood == pytest.approx(bound(case).likelihood, rel=1e-12)

    def test_dropping_everything_leaves_rank_zero(self, case):
        none = case.state.select_components(np.zeros(3, dtype=bool))
        empty = replace(case, state=none)
        assert none.rank == 0
        assert bound(empty).total == pytest.approx(sum(oracle.bound_terms(empty).values()), rel=1e-12)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("order", [2, 3])
def test_order_and_signs_of_components_do_not_matter(order, centred):
    """In order a state has the same bound and deviations, the strongest component first and the signs as promised."""
    case = oracle.random_case(8, order, "masked", rank=4)
    state = case.state
    if centred:
        row_priors = (Centred.proposed(state.factors[0], state.lam), *state.row_priors[1:])
        state = replace(state, row_priors=row_priors)
    found = state.strongest_first()
    assert bound(case, found).total == pytest.approx(bound(case, state).total, rel=1e-12)
    before, after = (fit_at_entries(case.observations, each.factors, per_entry=True) for each in (state, found))
    np.testing.assert_allclose(after.residual, before.residual, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after.variance, before.variance, rtol=1e-9)
    assert (np.diff(component_amplitudes(found)) <= 0).all()
    for rows in found.factors[:-1]:
        assert (rows.mean.max(axis=0) >= -rows.mean.min(axis=0)).all()
