"""Rows without negative loadings in order: the limit of no order, the bound, what it brings to spectra, files."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import brtf
import oracle
from brtf.inference.bound import bound
from brtf.inference.learn_noise import learn_noise
from brtf.inference.point import evaluate, evaluate_at
from brtf.inference.sweep import sweep
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import Gamma
from brtf.model.row_priors import NonNegative, NonNegativeOrder
from brtf.model.row_priors.chain_kinds import LINE, RING, Form, kinds_of, memories, order_of
from brtf.model.state import Prior
from brtf.results.choice_words import course_in_words
from brtf.search.components import without_negative

N_KINDS = 5
every_form = pytest.mark.parametrize("form", [LINE, RING, Form(n_second=2)], ids=["line", "ring", "second order"])


def random_rows(n_rows=7, rank=2, seed=0, share=None, form=LINE):
    """Rows of truncated normals in order after an update, with their prior, λ and likelihood."""
    rng = np.random.default_rng(seed)
    lam = Gamma(rng.uniform(2.0, 4.0, rank), rng.uniform(0.5, 2.0, rank))
    plain = NonNegative.of(oracle.random_rows(n_rows, rank, rng, shared=False))[1]
    steps = 0.5 + np.arange(1, n_rows) % 3
    share = rng.dirichlet(np.ones(N_KINDS), rank) if share is None else share
    root = rng.standard_normal((n_rows, rank, rank))
    likelihood = root @ root.transpose(0, 2, 1), rng.standard_normal((n_rows, rank))
    prior = NonNegativeOrder.begun(plain, steps, share, form)
    return *prior.posterior(*likelihood, lam, gaussian_rows), lam, likelihood


def test_without_order_rows_are_as_before():
    share = np.tile(np.eye(N_KINDS)[0], (2, 1))
    rows, prior, lam, likelihood = random_rows(share=share)
    wanted, plain = NonNegative(prior.location, prior.precision).posterior(*likelihood, lam, gaussian_rows)
    np.testing.assert_allclose(rows.mean, wanted.mean, rtol=1e-4, atol=1e-5)
    same = NonNegative(prior.location, prior.precision)
    assert prior.kl(rows, lam) == pytest.approx(same.kl(rows, lam) + 2 * np.log(N_KINDS), rel=1e-12)
    np.testing.assert_allclose(prior.squares(rows)[1], same.squares(rows)[1], rtol=1e-12)
    np.testing.assert_allclose(prior.row_log_density(rows.mean, lam), same.row_log_density(rows.mean, lam))
    assert isinstance(plain, NonNegative)


def test_divergence_is_the_monte_carlo_mean_but_for_the_cut():
    """ln p has −ln Φ for every row that follows another > 0: KL is that mean without it, and above it."""
    rows, prior, lam, _ = random_rows()
    rng, n_draws = np.random.default_rng(1), 100_000
    scale = 1.0 / np.sqrt(prior._diagonal)
    low = -prior.location / scale
    draws = stats.truncnorm(low, np.inf, prior.location, scale).rvs((n_draws, *low.shape), random_state=rng)
    precisions = rng.gamma(lam.concentration, 1.0 / lam.rate, (n_draws, 2))
    samples = stats.truncnorm(low, np.inf, prior.location, scale).logpdf(draws).sum(axis=(1, 2))
    cut = np.zeros(n_draws)
    for r in range(2):
        kind = rng.choice(N_KINDS, n_draws, p=prior.share[r])
        samples += np.log(N_KINDS * prior.share[r, kind])
        sd, course = precisions[:, r] ** -0.5, draws[:, :, r]
        rho = np.exp(memories(N_KINDS)[kind][:, None] * prior.steps)
        spread = sd[:, None] * np.sqrt(1.0 - rho**2)
        samples -= np.log(2.0) + stats.norm.logpdf(course[:, 0], scale=sd)
        samples -= stats.norm.logpdf(course[:, 1:], rho * course[:, :-1], spread).sum(axis=1)
        log_inside = stats.norm.logcdf(rho * course[:, :-1] / spread).sum(axis=1)
        samples += np.where(kind == 0, log_inside, 0.0)
        cut += np.where(kind == 0, 0.0, log_inside)
    error = samples.std() / np.sqrt(n_draws)
    assert error < 0.05
    assert abs(prior.kl(rows, lam) - samples.mean()) < 4.0 * error
    assert prior.kl(rows, lam) > np.mean(samples + cut)


@every_form
def test_divergence_is_that_of_the_gaussian_chain(form):
    """KL + Σ entropies of independent loadings is minus the mean of ln p of the chain, and ln 2 for one or all rows."""
    rows, prior, lam, _ = random_rows(form=form)
    order, n_rows = order_of(7, form), 7
    mean, cov = rows.mean[order], np.broadcast_to(rows.variances, (7, 2))[order]
    kinds, wanted = kinds_of(prior.steps, N_KINDS, form=form), -prior._moments[2].sum()
    for r in range(2):
        wanted += np.sum(prior.share[r] * np.log(N_KINDS * prior.share[r]))
        for k in range(N_KINDS):
            matrix = np.diag(kinds.own[k]) + np.diag(kinds.beside[k], 1) + np.diag(kinds.beside[k], -1)
            if form.wide:
                matrix += np.diag(kinds.far[k], 2) + np.diag(kinds.far[k], -2)
            power = mean[:, r] @ matrix @ mean[:, r] + np.diag(matrix) @ cov[:, r]
            log_p = np.linalg.slogdet(matrix)[1] + n_rows * (lam.mean_log[r] - np.log(2 * np.pi)) - lam.mean[r] * power
            log_p += 2 * np.log(2) * (n_rows if k == 0 else 1)
            wanted -= prior.share[r, k] * 0.5 * log_p
    assert prior.kl(rows, lam) == pytest.approx(wanted, rel=1e-10)


@every_form
def test_likelihood_and_kinds_come_back(form):
    rows, prior, lam, (precision, _) = random_rows(form=form)
    found = prior.likelihood(rows, lam, gaussian_rows)
    np.testing.assert_allclose(found[0], precision, rtol=1e-9, atol=1e-10)
    learnt = prior.learnt(rows, lam)
    rng = np.random.default_rng(0)
    for _ in range(5):
        other = replace(learnt, share=0.9 * learnt.share + 0.1 * rng.dirichlet(np.ones(N_KINDS), 2))
        assert other.kl(rows, lam) > learnt.kl(rows, lam)


def test_components_and_rows_come_and_go():
    rows, prior, lam, _ = random_rows(rank=3)
    keep = np.array([0, 2])
    parts = [
        prior.select(k).kl(rows.select(k), Gamma(lam.concentration[k], lam.rate[k])) for k in (keep, np.array([1]))
    ]
    assert sum(parts) == pytest.approx(prior.kl(rows, lam), rel=1e-11)
    doubled = prior.rescaled(np.full(3, 2.0))
    np.testing.assert_allclose(doubled.rows.mean, 2.0 * rows.mean)
    np.testing.assert_allclose(doubled.squares(doubled.rows)[1], 4.0 * prior.squares(rows)[1])
    longer = prior.followed_by(prior.for_new_rows(2, rows))
    assert isinstance(longer, NonNegativeOrder)
    assert longer.steps.size == 8
    with pytest.raises(ValueError, match="shares"):
        replace(prior, share=prior.share * 2.0)
    with pytest.raises(ValueError, match="steps"):
        replace(prior, steps=-prior.steps)


@every_form
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_no_sweep_lowers_the_bound(layout, form):
    case = oracle.random_case(3, 3, layout, rank=2, outliers=False)
    state = without_negative(replace(case.state, prior=Prior()), (0, 2))
    plain, n_rows = state.row_priors[2], state.factors[2].n_rows
    share = np.full((2, N_KINDS), 1.0 / N_KINDS)
    prior = NonNegativeOrder.begun(plain, np.ones(n_rows - 1), share, form)
    state = state.with_factor(2, state.factors[2], prior)
    problem = oracle.calibrated_problem(replace(case, state=state), collapsed=True)
    point = evaluate(problem, state)
    for _ in range(8):
        swept = sweep(problem, point, hold_noise=True)
        assert swept.bound >= point.bound - 1e-8 * abs(point.bound)
        assert swept.bound == pytest.approx(bound(problem, swept.state).total, rel=1e-10)
        point = evaluate_at(problem, learn_noise(problem, swept), swept.fit)
        assert point.bound >= swept.bound - 1e-9 * abs(swept.bound)


def spectra(seed=0):
    """Ten mixtures of two smooth spectra with noise, most readings missing, and the truth."""
    rng = np.random.default_rng(seed)
    pure = np.exp(-0.5 * ((np.arange(60)[:, None] - [20, 34]) / 7.0) ** 2)
    truth = rng.uniform(0.2, 1.0, (10, 2)) @ pure.T
    data = truth + 0.1 * rng.standard_normal(truth.shape)
    data[rng.random(data.shape) < 0.7] = np.nan
    return truth, data


@pytest.mark.filterwarnings("ignore:Mode 1 has")
def test_spectra_are_smooth_and_never_negative(tmp_path):
    truth, data = spectra()
    options = {"link": None, "arrangement": None, "noise": "common", "random_state": 0, "max_rank": 2}
    fits = {}
    for words in ("nonnegative", ("ordered", "nonnegative")):
        fits[words] = brtf.BRTF(modes={0: "nonnegative", 1: words}, **options).fit(data)
    plain, model = fits.values()
    assert model.modes_[1] == ("ordered", "nonnegative")
    assert isinstance(model.result_.state.row_priors[1], NonNegativeOrder)
    assert all((factor >= 0).all() for factor in model.factors_)
    errors = [np.sqrt(np.mean((fit.low_rank() - truth) ** 2)) for fit in (plain, model)]
    assert errors[1] < 0.9 * errors[0]
    assert model.bound_ > plain.bound_
    assert course_in_words(model.result_.state.row_priors[1]).startswith("memory of ")
    model.save(tmp_path / "spectra.brtf")
    np.testing.assert_array_equal(brtf.load(tmp_path / "spectra.brtf").low_rank(), model.low_rank())
    with pytest.raises(ValueError, match="not continued"):
        model.forecast(3, mode=1)


def test_a_mode_is_ordered_or_not():
    with pytest.raises(ValueError, match='is "ordered", "cyclic" or "unordered"'):
        brtf.BRTF(modes={0: ("ordered", "unordered")}).fit(np.ones((9, 9)))
    with pytest.raises(ValueError, match='is "ordered", "cyclic" or "unordered"'):
        brtf.BRTF(modes={0: ("ordered", "cyclic")}).fit(np.ones((9, 9)))
