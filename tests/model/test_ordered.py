"""Rows in order: the kinds of chains, the smoother, the bound, streaming, and what the search finds."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import brtf
import oracle
from brtf.data.positions import Positions
from brtf.inference.bound import bound
from brtf.inference.learn_noise import learn_noise
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.sweep import sweep
from brtf.inference.trace import Kind
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import Centred, KnownCentre, KnownOrder, Ordered, ZeroMean
from brtf.model.row_priors.chain_kinds import (
    LINE,
    RING,
    Form,
    carriers_of,
    courses,
    kinds_of,
    memories,
    n_kinds,
    order_of,
)
from brtf.model.state import Prior
from brtf.results.choice_words import course_in_words
from brtf.search.moves import order_form
from brtf.search.moves.order import Evidence
from row_priors import (
    AroundOne,
    AroundTwo,
    AroundTwoOnCarriers,
    InOrder,
    OnALongRing,
    OnARing,
    OnARingAroundOne,
    OnCarriers,
    Smooth,
    SmoothAroundTwoOnCarriers,
    dense_covariances,
)

ROUNDING = {"rtol": 1e-9, "atol": 1e-11}
LINES = [InOrder, AroundOne, AroundTwo, OnCarriers, AroundTwoOnCarriers, Smooth, SmoothAroundTwoOnCarriers]
every_way = pytest.mark.parametrize("way", [*LINES, OnARing, OnARingAroundOne])
every_line = pytest.mark.parametrize("way", LINES)


def matrix(kinds, k, form=LINE):
    """Q_k, (I, I)."""
    found = np.diag(kinds.own[k]) + np.diag(kinds.beside[k], 1) + np.diag(kinds.beside[k], -1)
    if kinds.far.shape[1]:
        found += np.diag(kinds.far[k], 2) + np.diag(kinds.far[k], -2)
    back = np.argsort(order_of(len(found), form))
    return found[np.ix_(back, back)]


def random_rows(n_rows=7, rank=2, seed=0):
    rng = np.random.default_rng(seed)
    rows = oracle.random_rows(n_rows, rank, rng, shared=False)
    return rows, Gamma(rng.uniform(2.0, 4.0, rank), rng.uniform(0.5, 2.0, rank))


def random_likelihood(n_rows=7, rank=2, seed=1):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((n_rows, rank, rank))
    return root @ root.transpose(0, 2, 1), rng.standard_normal((n_rows, rank))


def joint(prior, rows):
    """q(A) as one Gaussian over the rows one after another: the covariance of a Markov chain."""
    n_rows, rank = rows.mean.shape
    cov = np.zeros((n_rows, rank, n_rows, rank))
    if prior.form.wide:
        return joint_of_second_order(prior, rows)
    for t in range(n_rows):
        ahead = cov[t, :, t] = rows.cov[t]
        for s in range(t + 1, n_rows):
            ahead = ahead @ np.linalg.solve(rows.cov[s - 1], prior.cross[s - 1])
            cov[t, :, s], cov[s, :, t] = ahead, ahead.T
    return cov.reshape(n_rows * rank, n_rows * rank)


def joint_of_second_order(prior, rows):
    """The same of a chain in which a row depends on the two before it, in the order in which they are laid."""
    n_rows, rank = rows.mean.shape
    order = order_of(n_rows, prior.form)
    cov = np.zeros((n_rows, rank, n_rows, rank))
    for t in range(n_rows):
        cov[t, :, t] = rows.cov[order[t]]
        for apart, blocks in ((1, prior.cross), (2, prior.across)):
            if t >= apart:
                cov[t - apart, :, t] = blocks[t - apart]
                cov[t, :, t - apart] = blocks[t - apart].T
        if t > 2:
            past = cov[t - 2 : t, :, : t - 2].reshape(2 * rank, -1)
            known = cov[t - 2 : t, :, t - 2 : t].reshape(2 * rank, 2 * rank)
            ahead = cov[t, :, t - 2 : t].reshape(rank, -1) @ np.linalg.solve(known, past)
            cov[t, :, : t - 2] = ahead.reshape(rank, t - 2, rank)
            cov[: t - 2, :, t] = cov[t, :, : t - 2].transpose(1, 2, 0)
    back = np.argsort(order)
    return cov[back][:, :, back].reshape(n_rows * rank, n_rows * rank)


# ---- the kinds -----------------------------------------------------------------------------------------------


def test_kinds_have_unit_variance_and_correlations_that_fade():
    steps = np.array([1.0, 0.5, 3.0, 1.0, 2.0])
    kinds, place = kinds_of(steps, 6), np.concatenate([[0.0], np.cumsum(steps)])
    apart = np.abs(np.subtract.outer(place, place))
    for k, log_phi in enumerate(memories(6)):
        wanted = np.eye(6) if k == 0 else np.exp(log_phi * apart)
        np.testing.assert_allclose(np.linalg.inv(matrix(kinds, k)), wanted, **ROUNDING)
        assert kinds.log_det[k] == pytest.approx(-np.linalg.slogdet(wanted)[1], abs=1e-10)


def test_on_a_carrier_a_chain_is_multiplied_by_it():
    """Covariances are c_s c_t φ^|s−t|, and the limit of no forgetting is the carrier itself with one amplitude."""
    steps, carriers, n = np.ones(9), carriers_of([5, 4]), 6
    kinds, course = kinds_of(steps, n, carriers=carriers, start=2.0), courses(carriers, 2.0 + np.arange(10.0))
    plain = kinds_of(steps, n)
    for c, along in enumerate(course):
        for k in range(n):
            wanted = np.linalg.inv(matrix(plain, k)) * np.outer(along, along)
            np.testing.assert_allclose(np.linalg.inv(matrix(kinds, c * n + k)), wanted, **ROUNDING)
            assert kinds.log_det[c * n + k] == pytest.approx(-np.linalg.slogdet(wanted)[1], abs=1e-9)


@pytest.mark.parametrize("period", [3, 4, 7, 12, 24, 30, 168])
def test_carriers_never_vanish_and_have_unit_power(period):
    """At whole numbers; two phases of a harmonic together have the same power everywhere."""
    course = courses(carriers_of([period]), np.arange(float(period)))[1:]
    assert len(course) == 2 * min(3, (period - 1) // 2)
    assert (np.abs(course) > 1.0 / (2 * period)).all()
    np.testing.assert_allclose(np.mean(course**2, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(course[::2] ** 2 + course[1::2] ** 2, 2.0, rtol=1e-12)


@pytest.mark.parametrize("way", [Smooth, OnARing, OnALongRing])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 7, 8, 40])
def test_smooth_kinds_and_rings_have_the_covariances_of_their_formulas(way, n_rows):
    rows, lam = random_rows(n_rows)
    prior = way.proposed(rows, lam)
    for k, wanted in enumerate(dense_covariances(prior)):
        np.testing.assert_allclose(np.linalg.inv(matrix(prior.kinds, k, prior.form)), wanted, rtol=1e-8, atol=1e-9)
        assert prior.kinds.log_det[k] == pytest.approx(-np.linalg.slogdet(wanted)[1], abs=1e-8)
        np.testing.assert_allclose(np.diag(wanted), 1.0, rtol=1e-12)


def test_at_unit_steps_a_smooth_chain_has_one_covariance_and_smooth_increments():
    """Those of (1 − φB)² a = noise: e^{−κh}(1 + h tanh κ) at any distance; differences fall as the square of κ."""
    kinds, apart = kinds_of(np.ones(29), 9, form=Form(n_second=8)), np.arange(30.0)
    for k in range(8):
        found, kappa = np.linalg.inv(matrix(kinds, k + 1)), 0.5 ** (k + 1.0)
        wanted = np.exp(-kappa * apart) * (1.0 + apart * np.tanh(kappa))
        np.testing.assert_allclose(found[0], wanted, rtol=1e-6, atol=1e-6)
        assert found[14, 14] - found[14, 15] == pytest.approx(0.5 * kappa**2, rel=kappa)


def test_a_ring_turned_is_the_same_ring():
    """The first row may be any: kinds, the posterior and its divergence turn with the rows."""
    (rows, lam), (precision, linear) = random_rows(9), random_likelihood(9)
    found = []
    for turn in (0, 1, 4):
        turned = [np.roll(part, turn, axis=0) for part in (rows.mean, rows.cov, precision, linear)]
        prior = Ordered.begun(RowGaussians(*turned[:2]), lam, np.ones(8), np.full((2, 5), 0.2), None, form=RING)
        for _ in range(3):
            smoothed, prior = prior.posterior(*turned[2:], lam, gaussian_rows)
            prior = prior.learnt(smoothed, lam)
        parts = (np.roll(part, -turn, axis=0) for part in (smoothed.mean, smoothed.cov))
        found.append((*parts, prior.share, prior.kl(smoothed, lam)))
    for parts in zip(*found, strict=True):
        for other in parts[1:]:
            np.testing.assert_allclose(other, parts[0], rtol=1e-9)


def test_an_opened_ring_is_a_line_of_the_same_rows():
    (rows, lam), (precision, linear) = random_rows(9), random_likelihood(9)
    found, ring = OnARing.proposed(rows, lam).posterior(precision, linear, lam, gaussian_rows)
    line, whole = ring.opened(), joint(ring, found).reshape(9, 2, 9, 2)
    assert not line.form.ring and line.opened() is line
    for t in range(8):
        np.testing.assert_allclose(line.cross[t], whole[t, :, t + 1], rtol=1e-12)
    ahead = ring.for_new_rows(3, found)
    assert isinstance(ahead, KnownOrder) and not ahead.form.ring
    new, ahead = ahead.posterior(*random_likelihood(3), lam, gaussian_rows)
    both = RowGaussians(np.vstack([found.mean, new.mean]), np.vstack([found.cov, new.cov]))
    joined = ring.followed_by(ahead)
    assert joined.kl(both, lam) == pytest.approx(line.kl(found, lam) + ahead.kl(new, lam), rel=1e-11)


def test_the_longest_memory_is_a_random_walk():
    """Over all rows its course hardly returns to the mean: it differs from a random walk by less than a nat."""
    for n_rows in (8, 100, 5000):
        remembered = np.exp(memories(n_kinds(n_rows))[-1] * n_rows)
        assert 0.7 < remembered < 1.0


def test_rows_without_order_are_as_before():
    """With no order for certain KL exceeds that of independent rows by ln K for every component."""
    rows, lam = random_rows()
    share = np.zeros((2, 5))
    share[:, 0] = 1.0
    for plain, groups in ((ZeroMean(), None), (Centred.proposed(rows, lam), np.zeros(7))):
        chain = Ordered.begun(rows, lam, np.ones(6), share, groups)
        assert chain.kl(rows, lam) == pytest.approx(plain.kl(rows, lam) + 2 * np.log(5), rel=1e-12)
        np.testing.assert_allclose(chain.squares(rows)[1], plain.squares(rows)[1], rtol=1e-12)
        found, _ = chain.posterior(*random_likelihood(), lam, gaussian_rows)
        wanted, _ = plain.posterior(*random_likelihood(), lam, gaussian_rows)
        np.testing.assert_allclose(found.mean, wanted.mean, **ROUNDING)
        np.testing.assert_allclose(found.cov, wanted.cov, **ROUNDING)


# ---- the posterior -------------------------------------------------------------------------------------------


@every_way
def test_rows_are_smoothed_as_one_gaussian(way):
    (rows, lam), (precision, linear) = random_rows(), random_likelihood()
    prior = way.proposed(rows, lam)
    found, chain = prior.posterior(precision, linear, lam, gaussian_rows)
    kinds = kinds_of(prior.steps, prior.n_memories, carriers=prior.carriers, form=prior.form)
    whole, pull = np.zeros((7, 2, 7, 2)), linear.copy()
    for r in range(2):
        own = lam.mean[r] * sum(prior.share[r, k] * matrix(kinds, k, prior.form) for k in range(prior.share.shape[1]))
        whole[:, r, :, r] += own
        if way.n_groups:
            pull[:, r] += own @ prior.centre[r][np.arange(7) % way.n_groups]
    for t in range(7):
        whole[t, :, t] += precision[t]
    cov = np.linalg.inv(whole.reshape(14, 14))
    np.testing.assert_allclose(found.mean.ravel(), cov @ pull.ravel(), **ROUNDING)
    np.testing.assert_allclose(joint(chain, found), cov, rtol=1e-8, atol=1e-10)
    assert chain.log_det[0] == pytest.approx(np.linalg.slogdet(cov)[1], rel=1e-11)
    unknown = replace(chain, log_det=np.zeros(0))
    assert unknown.kl(found, lam) == pytest.approx(chain.kl(found, lam), rel=1e-11)


@every_way
def test_draws_follow_each_other_as_the_posterior_says(way):
    (rows, lam), likelihood = random_rows(), random_likelihood()
    found, chain = way.proposed(rows, lam).posterior(*likelihood, lam, gaussian_rows)
    rng, n_draws = np.random.default_rng(2), 40_000
    draw = chain.sampler(found, found)
    draws = np.stack([draw(rng).ravel() for _ in range(n_draws)])
    cov = joint(chain, found)
    scale = np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    np.testing.assert_allclose((draws.mean(axis=0) - found.mean.ravel()) / np.sqrt(np.diag(cov)), 0.0, atol=0.03)
    # Covariances of so many draws are known to about 1/200 of their scale.
    np.testing.assert_allclose(np.cov(draws.T) / scale, cov / scale, atol=0.03)
    wider = chain.sampler(found, RowGaussians(found.mean, 4.0 * found.cov_packed))
    ours, theirs = (sample(np.random.default_rng(3)) - found.mean for sample in (draw, wider))
    np.testing.assert_allclose(theirs, 2.0 * ours, rtol=1e-9, atol=1e-12)


@every_way
def test_divergence_is_the_monte_carlo_mean(way):
    """KL of rows that are correlated in the posterior, of their kinds and of their centres."""
    (rows, lam), rng, n_draws = random_rows(), np.random.default_rng(5), 200_000
    prior = way.proposed(rows, lam)
    rows, prior = prior.posterior(*random_likelihood(), lam, gaussian_rows)
    drawn = stats.multivariate_normal(rows.mean.ravel(), joint(prior, rows))
    draws = drawn.rvs(n_draws, random_state=rng)
    precisions = rng.gamma(lam.concentration, 1.0 / lam.rate, (n_draws, 2))
    samples, n = drawn.logpdf(draws), prior.share.shape[1]
    course = draws.reshape(n_draws, 7, 2)
    for r in range(2):
        kind = rng.choice(n, n_draws, p=prior.share[r])
        samples += np.log(n * prior.share[r, kind])
        scale = precisions[:, r] ** -0.5
        deviation = course[:, :, r]
        if way.n_groups:
            law = stats.multivariate_normal(prior.centre[r], prior.centre_cov[r])
            centre = law.rvs(n_draws, random_state=rng).reshape(n_draws, -1)
            samples += law.logpdf(centre) - stats.norm.logpdf(centre, scale=scale[:, None]).sum(axis=1)
            deviation = deviation - centre[:, prior.groups.astype(int)]
        along = courses(prior.carriers, np.concatenate([[0.0], np.cumsum(prior.steps)]))[kind // prior.n_memories]
        deviation = deviation / along
        samples += np.log(np.abs(along)).sum(axis=1)
        if prior.form.wide:
            for k, cov in enumerate(dense_covariances(prior)):
                mine = kind % prior.n_memories == k
                samples[mine] -= stats.multivariate_normal(cov=cov).logpdf(deviation[mine] / scale[mine, None])
                samples[mine] += 7 * np.log(scale[mine])
            continue
        rho = np.exp(memories(prior.n_memories)[kind % prior.n_memories][:, None] * prior.steps)
        spread = scale[:, None] * np.sqrt(1.0 - rho**2)
        samples -= stats.norm.logpdf(deviation[:, 1:], rho * deviation[:, :-1], spread).sum(axis=1)
        samples -= stats.norm.logpdf(deviation[:, 0], scale=scale)
    error = samples.std() / np.sqrt(n_draws)
    assert error < 0.05
    assert abs(prior.kl(rows, lam) - samples.mean()) < 4.0 * error


@pytest.mark.parametrize("form", [LINE, RING, Form(n_second=2)], ids=["line", "ring", "second order"])
def test_reversed_rows_have_the_same_answer(form):
    (rows, lam), (precision, linear) = random_rows(), random_likelihood()
    steps, share = np.array([1.0, 2.0, 0.5, 1.0, 1.0, 3.0]), np.full((2, 4), 0.25)
    found = []
    for way in (slice(None), slice(None, None, -1)):
        prior = Ordered.begun(
            RowGaussians(rows.mean[way], rows.cov[way]), lam, steps[way], share, np.zeros(7), form=form
        )
        for _ in range(3):
            smoothed, prior = prior.posterior(precision[way], linear[way], lam, gaussian_rows)
            prior = prior.learnt(smoothed, lam)
        found.append((smoothed.mean[way], smoothed.cov[way], prior.share, prior.kl(smoothed, lam)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_rows_without_data_are_interpolated_and_less_certain():
    rows, lam = random_rows(9, 1)
    share = np.array([[0.0, 0.0, 0.0, 0.0, 1.0]])
    precision, linear = np.full((9, 1, 1), 100.0), np.full((9, 1), 100.0)
    precision[3:6] = linear[3:6] = 0.0
    found, _ = Ordered.begun(rows, lam, np.ones(8), share).posterior(precision, linear, lam, gaussian_rows)
    variances = found.variances[:, 0]
    assert (found.mean[3:6] > 0.8).all()
    assert variances[4] > variances[3] > 3.0 * variances[2]
    assert variances[4] < 1.0 / lam.mean[0]


# ---- components and new rows -----------------------------------------------------------------------------------


@every_line
def test_new_rows_add_their_own_divergence(way):
    """KL of all rows is that of the earlier ones, and that of the new ones given the last of these."""
    (earlier, lam), (new, _) = random_rows(), random_rows(4, seed=3)
    prior = way.proposed(earlier, lam)
    ahead = prior.for_new_rows(4, earlier)
    new, ahead = ahead.posterior(*random_likelihood(4), lam, gaussian_rows)
    assert ahead.learnt(new, lam) is ahead
    both = RowGaussians(np.vstack([earlier.mean, new.mean]), np.vstack([earlier.cov, new.cov]))
    joined = prior.followed_by(ahead)
    assert isinstance(joined, Ordered)
    assert joined.kl(both, lam) == pytest.approx(prior.kl(earlier, lam) + ahead.kl(new, lam), rel=1e-11)
    assert {name: getattr(joined, name).ndim for name in joined.shapes(11, 2)} == {
        name: len(shape) for name, shape in joined.shapes(11, 2).items()
    }


@every_line
def test_new_rows_are_at_the_minimum_given_the_last_one(way):
    (earlier, lam), (precision, linear) = random_rows(), random_likelihood(4)
    ahead = way.proposed(earlier, lam).for_new_rows(4, earlier)
    assert type(ahead) is KnownOrder
    rows, ahead = ahead.posterior(precision, linear, lam, gaussian_rows)

    def cost(mean):
        own = np.sum(linear * mean) - 0.5 * np.einsum("tr,trs,ts->", mean, precision, mean)
        return ahead.kl(RowGaussians(mean, rows.cov), lam) - own

    rng = np.random.default_rng(0)
    for _ in range(5):
        assert cost(rows.mean + 1e-3 * rng.standard_normal(rows.mean.shape)) > cost(rows.mean)
    likelihood = ahead.likelihood(rows, lam, gaussian_rows)
    np.testing.assert_allclose(likelihood[0], precision, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(likelihood[1], linear, rtol=1e-8, atol=1e-9)


def test_rows_that_follow_none_are_on_their_own():
    rows, lam = random_rows()
    assert isinstance(InOrder.proposed(rows, lam).for_new_rows(3), ZeroMean)
    alone = AroundTwo.proposed(rows, lam).for_new_rows(3)
    assert isinstance(alone, KnownCentre)
    np.testing.assert_allclose(alone.mean, AroundTwo.proposed(rows, lam).centre.mean(axis=1))


@every_way
def test_further_components_are_independent_of_those_before(way):
    rows, lam = random_rows(rank=3)
    old = _only(lam, 2)
    first, prior = way.proposed(rows.select([0, 1]), old).posterior(*random_likelihood(), old, gaussian_rows)
    cov = np.zeros((7, 3, 3))
    cov[:, :2, :2], cov[:, 2, 2] = first.cov, rows.cov[:, 2, 2]
    more = RowGaussians(np.hstack([first.mean, rows.mean[:, 2:]]), cov)
    wider = prior.learnt(more, lam)
    np.testing.assert_array_equal(wider.cross[:, :2, :2], prior.cross)
    assert not wider.cross[:, 2].any() and not wider.cross[:, :, 2].any()
    parts = [wider.select(keep).kl(more.select(keep), _only(lam, keep)) for keep in (np.array([0, 1]), np.array([2]))]
    assert sum(parts) == pytest.approx(wider.kl(more, lam), rel=1e-10)
    with pytest.raises(ValueError, match="fewer than the 3 of their prior"):
        wider.learnt(first, lam)


def _only(lam, keep):
    chosen = slice(keep) if isinstance(keep, int) else keep
    return Gamma(lam.concentration[chosen], lam.rate[chosen])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])}, "steps"),
        ({"share": np.full((2, 4), 0.3)}, "shares"),
        ({"groups": np.full(7, 2.0)}, "groups"),
        ({"ring": np.ones(1)}, "do not fit its kinds"),
        ({"ring": np.full(1, -1.0)}, "out of range"),
        ({"n_second": np.full(1, 4.0)}, "out of range"),
        ({"n_second": np.ones(1), "ring": np.ones(1)}, "a ring is of first order"),
        ({"carriers": np.array([[0.25, 0.1], [0.2, 0.1]])}, "carriers"),
        ({"carriers": np.array([[0.25, 0.1], [0.2, 0.0], [0.5, 0.25]])}, "vanish"),
    ],
)
def test_numbers_that_are_no_order_are_refused(changed, message):
    rows, lam = random_rows()
    with pytest.raises(ValueError, match=message):
        replace(AroundTwo.proposed(rows, lam), **changed)


# ---- sweeps --------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_no_sweep_lowers_the_bound(way, layout):
    case = oracle.random_case(3, 3, layout, rank=2, outliers=False)
    state = replace(case.state, prior=Prior())  # balance is for λ whose prior says nothing
    for mode in (0, 2):
        state = state.with_factor(mode, state.factors[mode], way.proposed(state.factors[mode], state.lam))
    problem = oracle.calibrated_problem(replace(case, state=state), collapsed=True)
    point = evaluate(problem, state)
    for _ in range(8):  # the rows, then the noise by itself: a sweep of both would take a bad step back
        swept = sweep(problem, point, hold_noise=True)
        assert swept.bound >= point.bound - 1e-9 * abs(point.bound)
        assert swept.bound == pytest.approx(bound(problem, swept.state).total, rel=1e-10)
        point = evaluate_at(problem, learn_noise(problem, swept), swept.fit)
        assert point.bound >= swept.bound - 1e-9 * abs(swept.bound)  # without outliers no histogram is rounded


# ---- what the search finds -------------------------------------------------------------------------------------


def course(n_rows, rank, phi, rng):
    rows = rng.standard_normal((n_rows, rank))
    for t in range(1, n_rows):
        rows[t] = phi * rows[t - 1] + np.sqrt(1.0 - phi**2) * rows[t]
    return rows


def planted(n_rows=80, phi=0.95, season=0, missing=0.7, seed=0):
    """Rank-two data whose first mode is a chain, with a season if asked for, and the truth."""
    rng = np.random.default_rng(seed)
    first = course(n_rows, 2, phi, rng)
    if season:
        first = 0.5 * first + rng.standard_normal((season, 2))[np.arange(n_rows) % season]
    truth = np.einsum("ir,jr,kr->ijk", first, rng.standard_normal((8, 2)), rng.standard_normal((6, 2)))
    data = truth + 0.5 * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < missing] = np.nan
    return truth, data


def fitted(data, **options):
    plain = {"random_state": 0, "link": None, "arrangement": None, "noise": "common", "modes": "auto"}
    return brtf.BRTF(**{**plain, **options}).fit(data)


def error(model, truth):
    return np.sqrt(np.mean((model.low_rank() - truth) ** 2))


@pytest.mark.parametrize("seed", [0, 1])
def test_order_is_found_and_pays(seed):
    truth, data = planted(seed=seed)
    plain, model = fitted(data, modes=None), fitted(data)
    priors = model.result_.state.row_priors
    assert isinstance(priors[0], Ordered)
    assert priors[0].centre.shape[1] <= 1  # many centres would be uncertain
    assert not any(isinstance(prior, Ordered) for prior in priors[1:])
    assert model.bound_ > plain.bound_ + 20.0
    assert error(model, truth) < 0.95 * error(plain, truth)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_that_are_all_alike_are_in_no_order(seed):
    """A level that all samples share is as long a memory in any order."""
    rng = np.random.default_rng(seed)
    level, others = 6.0 + 2.5 * rng.standard_normal(120), rng.standard_normal((120, 3))
    data = np.outer(level, 1.0 + 0.01 * rng.standard_normal(40)) + others @ rng.standard_normal((3, 40))
    model = fitted(data + 0.3 * rng.standard_normal(data.shape))
    assert not model.result_.state.is_ordered


def test_modes_are_put_in_order_together():
    rng = np.random.default_rng(0)
    rows = course(60, 2, 0.95, rng), course(40, 2, 0.9, rng), rng.standard_normal((6, 2))
    data = np.einsum("ir,jr,kr->ijk", *rows)
    data += 0.5 * rng.standard_normal(data.shape)
    events = [record.event for record in fitted(data).result_.trace]
    first = next(event for event in events if event.kind is Kind.ORDER)
    assert first.accepted and "mode 0" in first.words and "mode 1" in first.words and "mode 2" not in first.words


def test_centres_are_weighed_as_one_by_one():
    """The evidence about several centres at once is that about each of them."""
    case = oracle.random_case(3, 3, "complete", rank=2, outliers=False)
    rows, lam = case.state.factors[0], case.state.lam
    steps = np.ones(rows.n_rows - 1)
    evidence = Evidence.of(rows, ZeroMean(), lam, steps, carriers_of([]))
    centres = np.random.default_rng(0).standard_normal((3, *rows.mean.shape))
    found, levels = evidence.of_kinds(centres), evidence.of_centres(centres)
    for k, centre in enumerate(centres):
        alone = replace(evidence, linear=evidence.linear - evidence.precision * centre)
        assert found[k] == pytest.approx(alone.of_kinds(np.zeros((1, *rows.mean.shape)))[0], rel=1e-12)
        log_likelihood = centre * evidence.linear - 0.5 * evidence.precision * centre**2
        assert levels[k] == pytest.approx(log_likelihood.sum(), rel=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_in_no_order_are_left_alone(seed):
    _, data = planted(seed=seed)
    shuffled = data[np.random.default_rng(seed).permutation(len(data))]
    plain, model = fitted(shuffled, modes=None), fitted(shuffled)
    assert not any(isinstance(prior, Ordered) for prior in model.result_.state.row_priors)
    assert model.bound_ == pytest.approx(plain.bound_, abs=0.01)


def test_a_season_is_found_without_labels():
    truth, data = planted(season=7)
    plain, model = fitted(data, modes=None), fitted(data)
    prior = model.result_.state.row_priors[0]
    assert isinstance(prior, Ordered) and prior.centre.shape[1] == 7
    assert error(model, truth) < 0.95 * error(plain, truth)


# ---- smooth courses and rings ------------------------------------------------------------------------------------


def spectra(seed):
    """Mixtures of three smooth spectra, four readings in five missing, and the truth."""
    rng = np.random.default_rng(seed)
    centre, width = rng.uniform(20.0, 130.0, 3), rng.uniform(6.0, 14.0, 3)
    pure = np.exp(-0.5 * ((np.arange(150)[:, None] - centre) / width) ** 2)
    truth = rng.uniform(0.2, 1.0, (40, 3)) @ pure.T
    data = truth + 0.05 * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < 0.8] = np.nan
    return truth, data


@pytest.mark.filterwarnings("ignore:Mode 1 has")
@pytest.mark.parametrize("seed", [0, 1])
def test_spectra_are_found_to_be_smooth_and_that_pays(seed, monkeypatch, tmp_path):
    truth, data = spectra(seed)
    model = fitted(data)
    prior = model.result_.state.row_priors[1]
    assert isinstance(prior, Ordered) and prior.form.n_second and model.modes_[1] == ("ordered",)
    assert "smooth over" in course_in_words(prior)
    monkeypatch.setattr(order_form, "smooth_form", lambda steps: LINE)
    line = fitted(data)
    assert line.result_.state.row_priors[1].form == LINE
    assert model.bound_ > line.bound_ + 10.0
    assert error(model, truth) < 0.97 * error(line, truth)
    model.save(tmp_path / "m.brtf")
    loaded = brtf.load(tmp_path / "m.brtf")
    np.testing.assert_array_equal(loaded.low_rank(), model.low_rank())
    assert loaded.result_.state.row_priors[1].form == prior.form
    ahead = model.forecast(5, mode=1)
    assert np.isfinite(ahead.mean).all() and (ahead.std > 0).all()


def around(seed, n_rows=48, gap=0):
    """Courses on a ring with a memory of a quarter of it, and the truth."""
    rng, apart = np.random.default_rng(seed), np.abs(np.subtract.outer(np.arange(n_rows), np.arange(n_rows)))
    phi = np.exp(-4.0 / n_rows)
    root = np.linalg.cholesky((phi**apart + phi ** (n_rows - apart)) / (1.0 + phi**n_rows))
    first = root @ rng.standard_normal((n_rows, 3))
    truth = np.einsum("ir,jr,kr->ijk", first, rng.standard_normal((10, 3)), rng.standard_normal((6, 3)))
    data = truth + 0.5 * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < 0.6] = np.nan
    data[n_rows - gap :], data[:gap] = np.nan, np.nan
    return truth, data


@pytest.mark.filterwarnings("ignore:Mode 0 has")
def test_said_to_be_cyclic_a_mode_turned_has_the_same_answer(tmp_path):
    truth, data = around(0, gap=3)
    fits = [fitted(np.roll(data, turn, axis=0), modes={0: "cyclic"}) for turn in (0, 17)]
    assert fits[0].modes_[0] == ("cyclic",)
    assert fits[0].bound_ == pytest.approx(fits[1].bound_, abs=0.1)  # both stop within the tolerance of the sweeps
    np.testing.assert_allclose(np.roll(fits[1].low_rank(), -17, axis=0), fits[0].low_rank(), atol=0.05)
    line = fitted(data, modes={0: "ordered", 1: "unordered", 2: "unordered"})
    gap = np.r_[-3:3]
    known = np.abs(truth[gap]).max()
    assert np.abs(fits[0].low_rank()[gap]).max() < 2.0 * known
    assert line.modes_[0] == ("ordered",)
    fits[0].save(tmp_path / "m.brtf")
    np.testing.assert_array_equal(brtf.load(tmp_path / "m.brtf").low_rank(), fits[0].low_rank())
    with pytest.raises(ValueError, match="Mode 0 is cyclic: its last row is followed by the first"):
        fits[0].forecast(3, mode=0)
    assert np.isfinite(fits[0].transform(data[:4])).all()
    assert "in a ring" in course_in_words(fits[0].result_.state.row_priors[0])


@pytest.mark.filterwarnings("ignore:Mode 0 has")
def test_gap_across_the_end_of_a_ring_is_bridged():
    """Over several seeds: a ring knows both sides of the gap, a line only one."""
    errors = []
    for seed in range(4):
        truth, data = around(seed, gap=3)
        for form in ("cyclic", "ordered"):
            model = fitted(data, modes={0: form, 1: "unordered", 2: "unordered"}, max_rank=3)
            errors.append(np.mean((model.low_rank() - truth)[np.r_[-3:3]] ** 2))
    ring, line = np.reshape(errors, (4, 2)).mean(axis=0)
    assert ring < 0.9 * line


def test_a_cyclic_mode_takes_no_further_rows():
    _, data = around(0)
    model = fitted(data[:40], modes={0: "cyclic"}, max_rank=3)
    with pytest.raises(ValueError, match="partial_fit adds rows to mode 0, but a cyclic mode has no end"):
        model.partial_fit(data[40:])


@pytest.mark.parametrize(
    ("labels", "closing"),
    [
        (np.arange(24), 1.0),
        (np.arange(1, 13), 1.0),
        (np.array([0.0, 20.0, 30.0, 60.0, 90.0, 180.0, 270.0, 300.0]), 2.0),
        (np.arange(25), None),
        (np.arange(90), None),
        (np.arange("2020-01-01T00", "2020-01-02T00", dtype="M8[h]"), None),
    ],
)
def test_labels_that_go_once_round_close_a_ring(labels, closing):
    found = Positions.of(labels, labels.size).closing
    assert found == (None if closing is None else pytest.approx(closing))


def test_further_rows_continue_smooth_courses_and_open_rings():
    """A block at a time is about as good as all at once, and what follows is near the last rows."""
    rng = np.random.default_rng(5)
    course = np.cumsum(np.cumsum(rng.standard_normal((120, 2)), axis=0), axis=0) / 200.0
    truth = np.einsum("ir,jr,kr->ijk", course, rng.standard_normal((6, 2)), rng.standard_normal((5, 2)))
    data = truth + 0.3 * rng.standard_normal(truth.shape)
    model = fitted(data[:100])
    assert model.result_.state.row_priors[0].form.n_second
    model.partial_fit(data[100:])
    prior = model.result_.state.row_priors[0]
    assert prior.groups.size == 120 and len(prior.across) == 118 and prior.form.n_second
    assert np.sqrt(np.mean((model.low_rank()[100:] - truth[100:]) ** 2)) < 0.3
    _, data = around(2)
    hours = xr.DataArray(data, dims=("hour", "place", "kind"), coords={"hour": np.arange(48) / 2})
    ring = fitted(hours)
    form = ring.result_.state.row_priors[0].form
    ring.partial_fit(hours[:8].assign_coords(hour=24 + np.arange(8) / 2))
    assert form.ring and not ring.result_.state.row_priors[0].form.ring
    assert ring.result_.state.factors[0].n_rows == 56
