"""Priors of rows: the bound with each equals Monte Carlo, nothing lowers it, and others can be added from outside."""

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import integrate, stats

import brtf
import oracle
from brtf.data.plan import Plan
from brtf.inference.bound import bound
from brtf.inference.factor_update import update_all_factors
from brtf.inference.point import evaluate
from brtf.inference.statistics import complete_gram
from brtf.inference.sweep import balance, rotate, sweep
from brtf.inference.update_rows import RowUpdate, gaussian_rows
from brtf.inference.updates import update_component_precisions
from brtf.io.checkpoint import Keeper
from brtf.io.storage import CorruptFile
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import GaussianSlab
from brtf.model.relative_precisions import best_concentration, better_concentration, log_gain
from brtf.model.row_priors import (
    ROW_PRIORS,
    Centred,
    KnownCentre,
    KnownUnequal,
    Ordered,
    Unequal,
    UnequalCentred,
    ZeroMean,
)
from brtf.model.row_priors.chain_kinds import courses, memories
from brtf.model.row_priors.row_prior import excess
from brtf.model.row_priors.unequal import SMALLEST
from brtf.model.state import Prior
from row_priors import (
    AroundOne,
    AroundTwo,
    CentredOfUnequalSize,
    Chain,
    Course,
    InOrder,
    KnownCourse,
    OfUnequalSize,
    OnARing,
    OnCarriers,
    Smooth,
    dense_covariances,
    line,
)

INDEPENDENT = (ZeroMean, Centred, Course)
ORDERED = (InOrder, AroundOne, AroundTwo, OnCarriers, Smooth, OnARing)
UNEQUAL = (OfUnequalSize, CentredOfUnequalSize)
KINDS = (*INDEPENDENT, Chain, *ORDERED, *UNEQUAL)
kinds = pytest.mark.parametrize("kind", KINDS)
ROUNDING = {"rtol": 1e-9, "atol": 1e-11}
HELD = ("course", "steps", "log_det", "groups", "carriers", "start", "n_second", "ring")
"""Numbers of a prior that are given, or follow from others."""


def with_priors(state, kind, modes=None):
    """The state with the rows of all modes, or of the given ones, under priors of a kind that suit them."""
    for mode in range(len(state.factors)) if modes is None else modes:
        rows = state.factors[mode]
        state = state.with_factor(mode, rows, kind.proposed(rows, state.lam))
    return state


def random_case(seed, layout, kind, order=3, rank=2):
    """A random case without outliers whose rows are under priors of a kind, with posteriors narrow enough to draw."""
    case = oracle.random_case(seed, order, layout, rank=rank, outliers=False)
    factors = tuple(RowGaussians(0.5 * rows.mean, 0.25 * rows.cov) for rows in case.state.factors)
    lam = Gamma(4.0 * case.state.lam.concentration, 4.0 * case.state.lam.rate)
    return replace(case, state=with_priors(replace(case.state, factors=factors, lam=lam), kind))


def random_rows(n_rows=6, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    rows = oracle.random_rows(n_rows, rank, rng, shared=False)
    return rows, Gamma(rng.uniform(2.0, 4.0, rank), rng.uniform(0.5, 2.0, rank))


def numbers(prior):
    return {field.name: getattr(prior, field.name) for field in fields(prior)}


def same_prior(found, wanted, **tolerance):
    assert type(found) is type(wanted)
    for name, number in numbers(wanted).items():
        np.testing.assert_allclose(getattr(found, name), number, **tolerance)


# ---- the bound ---------------------------------------------------------------------------------------------


def bound_of(case):
    return bound(oracle.calibrated_problem(case, collapsed=True), case.state).total


def prior_log_ratio(prior, rows, lam, rng):
    """ln p(A, w | λ) − ln q(w) less ln p(A | λ) of the paper's prior, for draws A (K, I, R) and λ (K, R)."""
    scale = lam**-0.5
    paper = stats.norm.logpdf(rows, scale=scale[:, None]).sum(axis=(1, 2))
    if isinstance(prior, Chain):
        spread = scale * np.sqrt(1.0 - prior.phi**2)
        steps = stats.norm.logpdf(rows[:, 1:], prior.phi * rows[:, :-1], spread[:, None]).sum(axis=(1, 2))
        return stats.norm.logpdf(rows[:, 0], scale=scale).sum(axis=1) + steps - paper
    if isinstance(prior, Ordered):
        return ordered_log_density(prior, rows, scale, rng) - paper
    if isinstance(prior, ZeroMean):
        return np.zeros(len(lam))
    if isinstance(prior, Unequal):
        return unequal_log_density(prior, rows, scale, rng) - paper
    course = prior.course if isinstance(prior, Course) else np.ones(rows.shape[1])
    spread = np.sqrt(prior.var)
    own = prior.mean + spread * rng.standard_normal(lam.shape)
    total = stats.norm.logpdf(rows, course[:, None] * own[:, None], scale[:, None]).sum(axis=(1, 2))
    total += stats.norm.logpdf(own, scale=scale).sum(axis=1) - stats.norm.logpdf(own, prior.mean, spread).sum(axis=1)
    return total - paper


def ordered_log_density(prior, rows, scale, rng):
    """ln p(A, k, μ | λ) − ln q(k, μ) for draws of the kinds and centres."""
    n_draws, n = len(scale), prior.share.shape[1]
    kind = np.array([rng.choice(n, n_draws, p=share) for share in prior.share]).T
    total = -np.log(n * np.take_along_axis(prior.share, kind.T, axis=1)).sum(axis=0)
    centres = np.zeros_like(rows)
    if prior.centre.shape[1]:
        for r, (mean, cov) in enumerate(zip(prior.centre, prior.centre_cov, strict=True)):
            law = stats.multivariate_normal(mean, cov)
            own = law.rvs(n_draws, random_state=rng).reshape(n_draws, -1)
            total += stats.norm.logpdf(own, scale=scale[:, r, None]).sum(axis=1) - law.logpdf(own)
            centres[:, :, r] = own[:, prior.groups.astype(int)]
    if prior.form.wide:
        return total + wide_log_density(prior, rows - centres, scale, kind)
    along = courses(prior.carriers, np.concatenate([[0.0], np.cumsum(prior.steps)]))[kind // prior.n_memories]
    along = along.transpose(0, 2, 1)
    deviation, log_phi = (rows - centres) / along, memories(prior.n_memories)[kind % prior.n_memories]
    total -= np.log(np.abs(along)).sum(axis=(1, 2))
    rho = np.exp(log_phi[:, None] * prior.steps[:, None])
    spread = scale[:, None] * np.sqrt(1.0 - rho**2)
    steps = stats.norm.logpdf(deviation[:, 1:], rho * deviation[:, :-1], spread).sum(axis=(1, 2))
    return total + steps + stats.norm.logpdf(deviation[:, 0], scale=scale).sum(axis=1)


def wide_log_density(prior, deviation, scale, kind):
    """ln p of chains whose kinds have the given dense covariances, from the formulas of these."""
    total, covariances = np.zeros(len(scale)), dense_covariances(prior)
    for r, k in ((r, k) for r in range(kind.shape[1]) for k in range(len(covariances))):
        mine = kind[:, r] == k
        law = stats.multivariate_normal(cov=covariances[k])
        total[mine] += law.logpdf(deviation[mine, :, r] / scale[mine, r, None])
        total[mine] -= deviation.shape[1] * np.log(scale[mine, r])
    return total


def unequal_log_density(prior, rows, scale, rng):
    """ln p(A, η, μ | λ) − ln q(η, μ) for draws of the sizes and the centre."""
    posterior, c = stats.gamma(prior.shape, scale=1.0 / prior.rate), float(prior.concentration)
    sizes = posterior.rvs((len(scale), rows.shape[1]), random_state=rng)
    total = (stats.gamma.logpdf(sizes, c, scale=1.0 / c) - posterior.logpdf(sizes)).sum(axis=1)
    own = np.zeros_like(scale)
    if isinstance(prior, UnequalCentred):
        law = stats.norm(prior.mean, np.sqrt(prior.var))
        own = law.rvs(scale.shape, random_state=rng)
        total += stats.norm.logpdf(own, scale=scale).sum(axis=1) - law.logpdf(own).sum(axis=1)
    spread = scale[:, None] / np.sqrt(sizes)[:, :, None]
    return total + stats.norm.logpdf(rows, own[:, None], spread).sum(axis=(1, 2))


@kinds
@pytest.mark.parametrize("layout", ["complete", "masked"])
def test_bound_is_the_monte_carlo_mean_of_log_joint_minus_log_posterior(kind, layout):
    """Of a chain the rows are taken as independent in q, as they are where it is proposed."""
    case, n_draws, rng = random_case(1, layout, kind), 100_000, np.random.default_rng(2)
    draws = oracle.draw(case.state, n_draws, rng)
    samples = oracle.log_joint(case, draws) - oracle.log_posterior(case.state, draws)
    for prior, rows in zip(case.state.row_priors, draws.factors, strict=True):
        samples = samples + prior_log_ratio(prior, rows, draws.lam, rng)
    error = samples.std() / np.sqrt(n_draws)
    assert 4.0 * error < 0.5  # half a nat is the smallest constant that a term could have lost
    assert abs(bound_of(case) - samples.mean()) < 4.0 * error


@kinds
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_no_update_lowers_the_bound(seed, layout, kind):
    case = random_case(seed, layout, kind)
    case = replace(case, state=replace(case.state, prior=Prior()))  # balance is for λ whose prior says nothing
    updates = {**oracle.UPDATES, "balance": lambda _, state: update_component_precisions(balance(state))}
    state, before = case.state, bound_of(case)
    for name in [name for name in updates if not name.startswith("outlier")] * 5:
        state = updates[name](case.observations, state)
        after = bound_of(replace(case, state=state))
        assert after >= before - 1e-10 * abs(before), name
        before = after


@kinds
def test_rows_and_numbers_are_where_the_divergence_is_smallest(kind):
    """q(A) is the minimum of KL less the expected log likelihood, and the prior's own numbers that of KL."""
    rows, lam = random_rows()
    rng, step = np.random.default_rng(3), 1e-3
    root = rng.standard_normal((6, 3, 3))
    precision, linear = root @ root.transpose(0, 2, 1), rng.standard_normal((6, 3))
    linear[:2] *= 8.0  # rows that differ in size

    def cost(rows, prior):
        moments = rows.mean[:, :, None] * rows.mean[:, None, :] + rows.cov
        return prior.kl(rows, lam) - np.sum(linear * rows.mean) + 0.5 * np.sum(precision * moments)

    prior = kind.proposed(rows, lam)
    for _ in range(300 if kind not in ORDERED else 2000):
        rows, prior = prior.posterior(precision, linear, lam, gaussian_rows)
        prior = prior.learnt(rows, lam)
    least = cost(rows, prior)
    for sign in (-1, 1):
        noise = sign * step * rng.standard_normal(rows.mean.shape)
        assert cost(RowGaussians(rows.mean + noise, rows.cov), prior) > least
        for name, number in numbers(prior).items():
            if name == "share":
                other = number * np.exp(sign * step * rng.standard_normal(number.shape))
                assert cost(rows, replace(prior, share=other / other.sum(axis=1, keepdims=True))) > least
            elif name == "concentration" and sign < 0:
                assert number == SMALLEST  # where it may not fall
            elif name not in HELD and number.any():
                changed = {name: number + sign * step * np.abs(number)}
                if kind in ORDERED:
                    changed["log_det"] = np.zeros(0)  # which follows from the covariances
                assert cost(rows, replace(prior, **changed)) > least


def test_chain_is_solved_as_one_gaussian():
    rows, lam = random_rows()
    rng, (n_rows, rank) = np.random.default_rng(4), (6, 3)
    root = rng.standard_normal((n_rows, rank, rank))
    precision, linear = root @ root.transpose(0, 2, 1), rng.standard_normal((n_rows, rank))
    found, chain = Chain.proposed(rows, lam).posterior(precision, linear, lam, gaussian_rows)
    whole = np.kron(chain.matrix(n_rows), np.diag(lam.mean))
    for t in range(n_rows):
        own = slice(rank * t, rank * (t + 1))
        whole[own, own] += precision[t]
    cov = np.linalg.inv(whole).reshape(n_rows, rank, n_rows, rank)
    np.testing.assert_allclose(found.mean.ravel(), np.linalg.solve(whole, linear.ravel()), **ROUNDING)
    for t in range(n_rows):
        np.testing.assert_allclose(found.cov[t], cov[t, :, t], **ROUNDING)
    for t in range(n_rows - 1):
        np.testing.assert_allclose(chain.cross[t], cov[t, :, t + 1], **ROUNDING)


# ---- what else a prior promises ------------------------------------------------------------------------------


@kinds
def test_likelihood_times_the_prior_is_the_posterior(kind):
    rows, lam = random_rows()
    root = np.random.default_rng(5).standard_normal((6, 3, 3))
    prior = kind.proposed(rows, lam)
    rows, prior = prior.posterior(root @ root.transpose(0, 2, 1), rows.mean, lam, gaussian_rows)
    likelihood = prior.likelihood(rows, lam, gaussian_rows)
    np.testing.assert_allclose(likelihood[0], root @ root.transpose(0, 2, 1), rtol=1e-8, atol=1e-9)
    again, same = prior.posterior(*likelihood, lam, gaussian_rows)
    np.testing.assert_allclose(again.mean, rows.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(again.cov, rows.cov, rtol=1e-8, atol=1e-10)
    same_prior(same, prior, rtol=1e-8, atol=1e-10)


@kinds
def test_scale_of_components_does_not_matter(kind):
    """Rows multiplied by c_r, with λ_r divided by c_r²: KL(q ‖ p) stays as it is."""
    rows, lam = random_rows()
    rows, prior = kind.proposed(rows, lam).posterior(np.eye(3)[None], rows.mean, lam, gaussian_rows)
    ratio = np.array([0.2, 1.0, 7.0])
    scaled = RowGaussians(rows.mean * ratio, rows.cov * np.outer(ratio, ratio))
    other = Gamma(lam.concentration, lam.rate * ratio**2)
    assert prior.rescaled(ratio).kl(scaled, other) == pytest.approx(prior.kl(rows, lam), rel=1e-11)
    np.testing.assert_allclose(prior.rescaled(ratio).squares(scaled)[1], prior.squares(rows)[1] * ratio**2, rtol=1e-11)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNEQUAL])
def test_independent_components_add_up(kind):
    rows, lam = random_rows()
    rows, prior = kind.proposed(rows, lam).posterior(np.eye(3)[None], rows.mean, lam, gaussian_rows)
    parts = [
        prior.select(keep).kl(rows.select(keep), Gamma(lam.concentration[keep], lam.rate[keep]))
        for keep in (np.array([0, 2]), np.array([1]))
    ]
    assert sum(parts) == pytest.approx(prior.kl(rows, lam), rel=1e-11)


@pytest.mark.parametrize("kind", INDEPENDENT)
def test_new_rows_add_their_own_divergence(kind):
    """KL of all rows is that of the earlier ones, and that of the new ones with what the earlier ones teach held."""
    (earlier, lam), (new, _) = random_rows(), random_rows(n_rows=4, seed=1)
    prior = kind.proposed(earlier, lam)
    ahead = prior.for_new_rows(4)
    assert ahead.learnt(new, lam) is ahead
    both = RowGaussians(np.vstack([earlier.mean, new.mean]), np.vstack([earlier.cov, new.cov]))
    wanted = prior.kl(earlier, lam) + ahead.kl(new, lam)
    assert prior.followed_by(ahead).kl(both, lam) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", UNEQUAL)
def test_new_rows_have_sizes_of_their_own(kind):
    """KL of all rows is that of the earlier ones and that of the new ones, whose sizes are learnt with c held."""
    (earlier, lam), (new, _) = random_rows(), random_rows(n_rows=4, seed=1)
    prior = kind.proposed(earlier, lam)
    ahead = prior.for_new_rows(4)
    learnt = ahead.learnt(new, lam)
    assert learnt.concentration == prior.concentration
    assert learnt.kl(new, lam) < ahead.kl(new, lam)
    both = RowGaussians(np.vstack([earlier.mean, new.mean]), np.vstack([earlier.cov, new.cov]))
    joined = prior.followed_by(learnt)
    assert type(joined) is type(prior)
    assert joined.kl(both, lam) == pytest.approx(prior.kl(earlier, lam) + learnt.kl(new, lam), rel=1e-12)
    with pytest.raises(TypeError, match="rows of unequal size are followed by others of their kind, not about zero"):
        prior.followed_by(ZeroMean())


@pytest.mark.parametrize(("kind", "limit"), [(Unequal, ZeroMean), (UnequalCentred, Centred)])
def test_rows_of_unequal_size_become_those_of_one_size(kind, limit):
    """c → ∞: the same terms and squares, and the same divergence to 1/c."""
    rows, lam = random_rows()
    plain = limit.proposed(rows, lam)
    centre = (plain.mean, plain.var) if limit is Centred else (np.zeros(3), np.zeros(3))
    largest = np.full(6, 1e8)
    prior = kind(np.asarray(1e8), largest, largest, *centre)
    assert prior.kl(rows, lam) == pytest.approx(plain.kl(rows, lam), abs=1e-6)
    np.testing.assert_allclose(prior.squares(rows)[1], plain.squares(rows)[1], rtol=1e-12)
    for found, wanted in zip(prior.terms(lam), plain.terms(lam), strict=True):
        np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-12)
    same_prior(prior.evened(rows, lam), plain, rtol=0)


@pytest.mark.parametrize("kind", [Unequal, UnequalCentred])
def test_rows_of_unequal_size_are_found_where_there_are_any(kind):
    """Rows with Student's t distribution of 2c degrees of freedom, and Gaussian ones, 200 times."""
    rng, lam = np.random.default_rng(6), Gamma(np.full(8, 1e4), np.full(8, 1e4))
    cov = 1e-6 * np.eye(8)[None].repeat(100, axis=0)
    chosen, found = 0, []
    for _ in range(200):
        mean = rng.standard_normal((100, 8)) + (1.0 if kind is UnequalCentred else 0.0)
        plain = RowGaussians(mean, cov)
        chosen += kind.proposed(plain, lam) is not None
        sizes = rng.gamma(3.0, 1.0 / 3.0, (100, 1))
        spread = rng.standard_normal((100, 8)) / np.sqrt(sizes)
        sized = RowGaussians(spread + (mean[0] if kind is UnequalCentred else 0.0), cov)
        found.append(float(kind.proposed(sized, lam).concentration))
    assert chosen <= 6  # half a chi-squared beyond ln 100 happens in 1.6 % of the cases
    assert np.median(found) == pytest.approx(3.0, rel=0.15)  # the standard error of the median is 2 %; λ is not exact
    assert kind.proposed(RowGaussians(sized.mean, cov[:1]), lam) is None  # all rows share one covariance
    prior = kind.proposed(sized, lam)
    assert prior.kl(sized, lam) < prior.evened(sized, lam).kl(sized, lam) - 10.0


@pytest.mark.parametrize("kind", [Unequal, UnequalCentred])
def test_rows_of_which_nothing_is_known_vary_as_student_s_t(kind):
    """And rows that the data determine as they did."""
    lam, c = Gamma(np.full(2, 1e6), np.full(2, 4e6)), 3.0
    prior = kind(np.asarray(c), *(np.full(2, c),) * 2, np.zeros(2), np.full(2, 0.0 if kind is Unequal else 0.1))
    precision = np.stack([np.zeros((2, 2)), 1e9 * np.eye(2)])
    rows, prior = prior.posterior(precision, np.zeros((2, 2)), lam, gaussian_rows)
    found = prior.reported(rows, lam).variances
    np.testing.assert_allclose(found[0], stats.t.var(2.0 * c, scale=2.0), rtol=1e-6)
    np.testing.assert_allclose(found[1], rows.variances[1], rtol=1e-6)


def test_reported_covariances_are_positive_wherever_the_precisions_have_moved():
    """Rows updated under small λ, reported under large ones: what the data say of them cannot be less than nothing."""
    rng = np.random.default_rng(0)
    rows = RowGaussians(rng.standard_normal((6, 2)), np.tile(np.diag([0.5, 5.0]), (6, 1, 1)))
    prior = Unequal(np.asarray(2.0), *(np.full(6, 2.0),) * 2, np.zeros(2), np.zeros(2))
    found = prior.reported(rows, Gamma(np.full(2, 50.0), np.full(2, 1.0)))
    assert (np.linalg.eigvalsh(found.cov) > 0.0).all()
    np.testing.assert_allclose(found.variances, 2.0 / 50.0, rtol=1e-12)  # as Student's t, where nothing is left


@pytest.mark.parametrize("start", [1e-2, 1.0, 1e4])
def test_concentration_rises_to_the_best(start):
    rng = np.random.default_rng(7)
    half_s = 2.0 * rng.standard_normal(80) ** 2 / rng.gamma(2.0, 0.5, 80)
    best, gain = best_concentration(2.0, half_s)
    c, before = start, log_gain(start, 2.0, half_s)
    for _ in range(20):
        c = better_concentration(c, 2.0, half_s)
        assert log_gain(c, 2.0, half_s) >= before
        before = log_gain(c, 2.0, half_s)
    assert before == pytest.approx(gain, abs=1e-8)
    assert c == pytest.approx(best, rel=1e-3)


def test_gain_of_precisions_is_the_integral():
    law, half_n, half_s = stats.gamma(1.7, scale=1.0 / 1.7), np.array([0.5, 3.0]), np.array([0.2, 4.0])

    def density(precision, n, s):
        return law.pdf(precision) * precision**n * np.exp(-(precision - 1.0) * s)

    parts = [integrate.quad(density, 0.0, np.inf, (n, s))[0] for n, s in zip(half_n, half_s, strict=True)]
    assert log_gain(1.7, half_n, half_s) == pytest.approx(np.sum(np.log(parts)), rel=1e-8)


@pytest.mark.parametrize("modes", [(0,), (0, 1)])
def test_rows_of_unequal_size_are_turned_too(modes):
    case = oracle.random_case(0, 2, "masked", rank=3, outliers=False)
    case = replace(case, state=replace(with_priors(case.state, OfUnequalSize, modes), prior=Prior()))
    state = update_component_precisions(case.state)
    turned = update_component_precisions(rotate(state))
    assert turned.factors[0] is not state.factors[0]
    np.testing.assert_allclose(*(s.factors[0].mean @ s.factors[1].mean.T for s in (state, turned)), rtol=1e-9)
    assert bound_of(replace(case, state=turned)) > bound_of(replace(case, state=state)) + 0.1


def test_only_rows_about_zero_are_turned():
    case = oracle.random_case(0, 2, "masked", rank=3)
    assert rotate(case.state) is not case.state
    for kind in KINDS[1:]:
        if kind is OfUnequalSize:
            continue
        state = with_priors(case.state, kind, modes=[1])
        assert rotate(state) is state


def test_centre_that_is_not_certain_of_anything_is_refused():
    for kind in (Centred, KnownCentre):
        with pytest.raises(ValueError, match="the variance of a centre is not positive"):
            kind(np.zeros(2), np.array([1.0, 0.0]))


@pytest.mark.parametrize("kind", [KnownUnequal, Unequal, UnequalCentred])
def test_sizes_that_are_not_positive_are_refused(kind):
    good = {"concentration": np.asarray(1.0), "shape": np.ones(2), "rate": np.ones(2), "mean": np.zeros(1)}
    for name in ("concentration", "shape", "rate"):
        for bad in (0.0, np.inf):
            with pytest.raises(ValueError, match="the size of a row is not positive"):
                kind(**{**good, name: bad * good[name]}, var=np.ones(1))
    with pytest.raises(ValueError, match="the variance of a centre is negative"):
        kind(**good, var=-np.ones(1))


# ---- every way to update the factors ---------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_data_taken_for_large_are_updated_alike(kind, layout, collapsed):
    """Rows that all have the same prior in one pass, or in runs; others when all is known of them."""
    case = oracle.slab_case(1, 3, layout, GaussianSlab, rank=3)
    state = with_priors(case.state, kind)
    problem = oracle.calibrated_problem(case, collapsed=collapsed)
    wanted = update_all_factors(problem, state, evaluate(problem, state).fit)
    large = replace(case.observations, plan=Plan(small_data=0, cached_data=0, finished_bytes=100, block_entries=4))
    problem = replace(problem, observations=large)
    point = evaluate(problem, state, ahead=True)
    alike = kind in (ZeroMean, Centred) or (kind in UNEQUAL and (collapsed or layout != "complete"))
    assert (point.ahead is not None) == (layout != "coordinates" and alike)
    swept = sweep(problem, point, hold_precisions=True, hold_noise=True).state
    for found in (swept, update_all_factors(problem, state, point.fit)):
        for mode, rows in enumerate(wanted.factors):
            np.testing.assert_allclose(found.factors[mode].mean, rows.mean, **ROUNDING)
            same_prior(found.row_priors[mode], wanted.row_priors[mode], **ROUNDING)


@kinds
def test_known_grams_are_the_data_s(kind):
    case = random_case(2, "complete", kind)
    precision, targets = float(case.state.tau.mean), np.array(case.values)

    def weighing(block):
        return np.ones(block.n_entries), targets[block.entries]

    ways = [case.state, case.state]
    for k, grams in enumerate((None, complete_gram)):
        for mode in (0, 1, 2):
            ways[k] = RowUpdate(precision, grams).in_own_pass(case.observations, ways[k], mode, weighing)
    for mode, rows in enumerate(ways[0].factors):
        np.testing.assert_allclose(ways[1].factors[mode].mean, rows.mean, **ROUNDING)
        same_prior(ways[1].row_priors[mode], ways[0].row_priors[mode], **ROUNDING)


# ---- from outside ----------------------------------------------------------------------------------------------

N_NEW = 5
PLAIN = {"link": None, "arrangement": None, "modes": None, "smooth_residual": None, "random_state": 0}


def planted(course, seed=0):
    """Rank-one data with the given rows of the first mode, 5 % outliers and a third of the entries missing."""
    rng = np.random.default_rng(seed)
    data = np.einsum("i,j,k->ijk", course, rng.normal(size=9), rng.normal(size=8)) + 0.3 * rng.normal(
        size=(len(course), 9, 8)
    )
    outlying = rng.random(data.shape) < 0.05
    data[outlying] += rng.uniform(-20.0, 20.0, outlying.sum())
    data[rng.random(data.shape) < 0.33] = np.nan
    return data


def wandering(n_rows, seed=1):
    """A draw of the chain."""
    steps = np.random.default_rng(seed).standard_normal(n_rows)
    for t in range(1, n_rows):
        steps[t] = Chain.phi * steps[t - 1] + np.sqrt(1.0 - Chain.phi**2) * steps[t]
    return steps


@pytest.fixture(params=[(Course, line(0, 40)), (Chain, wandering(60))], ids=["course", "chain"])
def planted_fit(request, monkeypatch):
    """A prior of one's own, entered into the table of priors, with data that have it and the fit to the first rows."""
    kind, course = request.param
    data = planted(course)
    plain = brtf.BRTF(**PLAIN).fit(data[:-N_NEW])
    monkeypatch.setitem(ROW_PRIORS, kind.name, kind)
    return kind, data, plain, brtf.BRTF(**PLAIN).fit(data[:-N_NEW])


def test_a_prior_from_outside_is_found_by_the_search(planted_fit):
    kind, _, plain, model = planted_fit
    state = model.result_.state
    assert state.rank == 1
    assert type(state.row_priors[0]) is kind
    assert any(f"mode 0 {kind.name}" in record.event.words for record in model.result_.trace)
    assert model.result_.trace[-1].bound > plain.result_.trace[-1].bound + 1.0


def test_a_prior_from_outside_is_saved_and_loaded(planted_fit, tmp_path, monkeypatch):
    kind, data, _, model = planted_fit
    model.save(tmp_path / "m.brtf")
    loaded = brtf.load(tmp_path / "m.brtf")
    for found, wanted in zip(loaded.result_.state.row_priors, model.result_.state.row_priors, strict=True):
        same_prior(found, wanted, rtol=0)
    np.testing.assert_array_equal(loaded.transform(data[-N_NEW:]), model.transform(data[-N_NEW:]))
    monkeypatch.delitem(ROW_PRIORS, kind.name)
    with pytest.raises(CorruptFile, match=f"the row prior '{kind.name}' is unknown"):
        brtf.load(tmp_path / "m.brtf")


def test_a_fit_with_a_prior_from_outside_is_resumed(planted_fit, tmp_path, monkeypatch):
    kind, data, _, model = planted_fit
    keep, path = Keeper.keep, tmp_path / "c.brtf"

    def interrupted(keeper, moment):
        keep(keeper, moment)
        if moment.latest is not None and kind.name in moment.latest.event.words:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            brtf.BRTF(**PLAIN).fit(data[:-N_NEW], checkpoint=path, every=1e9)
    resumed = brtf.BRTF(**PLAIN).fit(data[:-N_NEW], resume=path)
    assert [record.bound for record in resumed.result_.trace] == [record.bound for record in model.result_.trace]
    for found, wanted in zip(resumed.result_.state.row_priors, model.result_.state.row_priors, strict=True):
        same_prior(found, wanted, rtol=0)


def test_new_rows_have_a_prior_from_outside_too(planted_fit):
    """Nothing is seen of the last row: it is where the prior expects it."""
    kind, data, _, model = planted_fit
    new = data[-N_NEW:].copy()
    rows = model.transform(new)
    assert np.isfinite(rows).all()
    state = model.result_.state
    if kind is Course:
        new[-1] = np.nan
        unseen = model.transform(new)[-1]
        wanted = line(len(data) - 1, 1) * state.row_priors[0].mean * model.result_.scale ** (1 / 3)
        np.testing.assert_allclose(unseen, wanted, rtol=1e-6)
        assert isinstance(state.row_priors[0].for_new_rows(3), KnownCourse)
    model.partial_fit(data[-N_NEW:])
    grown = model.result_.state
    assert grown.factors[0].n_rows == len(data)
    assert type(grown.row_priors[0]) is kind
    assert grown.row_priors[0].shapes(len(data), 1) == {
        name: number.shape for name, number in numbers(grown.row_priors[0]).items()
    }


def test_what_is_left_of_a_precision_is_never_negative():
    """Exactly the difference where the prior asks for less; elsewhere its part in the directions that have more."""
    rng = np.random.default_rng(0)
    own = rng.uniform(0.5, 2.0, (300, 4))
    seen = rng.standard_normal((300, 4, 3))
    data = seen @ seen.transpose(0, 2, 1)  # nothing is known of one direction
    before = np.where(np.arange(300) % 3 == 0, 0.9, 1.1)[:, None] * own  # the prior of some rows has moved up
    diagonal = np.eye(4) * own[:, :, None]
    left = excess(data + np.eye(4) * before[:, :, None], diagonal)
    assert (np.linalg.eigvalsh(left) > -1e-12).all()
    growing = np.arange(300) % 3 != 0
    np.testing.assert_allclose(left[growing], (data + 0.1 * diagonal)[growing], atol=1e-12)
    scale = np.sqrt(own)[:, :, None]
    ratios, directions = np.linalg.eigh(data / (scale * scale.transpose(0, 2, 1)) - 0.1 * np.eye(4))
    nearest = (directions * np.maximum(ratios, 0.0)[:, None, :]) @ directions.transpose(0, 2, 1)
    wanted = scale * nearest * scale.transpose(0, 2, 1)
    np.testing.assert_allclose(left[~growing], wanted[~growing], atol=1e-12)
