"""Residuals of a right model are called good, and each of the usual faults is found and named."""

import itertools

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import kstest

from brtf import BRTF
from brtf.datasets import synthetic
from brtf.view.diagnostics import Diagnostics
from brtf.view.view_data import Axis, leverages, slice_misfit

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
from brtf.view.report.layout import layout_of  # noqa: E402
from brtf.view.report.page import build_page  # noqa: E402
from brtf.view.report.parts.residuals import findings  # noqa: E402
from brtf.view.report.parts.support import _influential  # noqa: E402
from brtf.view.report.subject import Subject  # noqa: E402
from pages import Page  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::brtf.FitWarning")  # most models here are wrong on purpose
DATA = synthetic((30, 25, 20), 2, seed=1)


def fitted(errors, **options):
    """A fit that leaves order in the errors to be told: by default it would describe it."""
    known = {"modes": None, "smooth_residual": None, **options}
    return BRTF(random_state=0, **known).fit(DATA.low_rank + 0.3 * errors).result_


def told(result):
    names = [f"component {component}" for component in range(result.rank)]
    subject = Subject(result, layout_of(result.observations, None, None), names)
    return [verdict.text for verdict in findings(Diagnostics(result), subject)]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((12, 10, 8), {"outliers": 0.05, "missing": 0.2}),
        ((40, 30, 20), {"outliers": 0.1, "missing": 0.4}),
        ((60, 50), {"outliers": 0.05}),
        ((25, 20, 6, 5), {"missing": 0.3}),
    ],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_a_right_model_has_normal_scores_and_nothing_to_tell(shape, options, seed):
    data = synthetic(shape, 2, seed=seed, **options)
    result = BRTF(random_state=0).fit(data.observed).result_
    assert told(result) == []
    score = Diagnostics(result).score
    assert kstest(score, "norm").statistic < 0.02 + 1.6 / np.sqrt(score.size)


@pytest.mark.parametrize("mode", [0, 2])
def test_neighbours_that_are_alike_are_found_along_their_mode(mode):
    rng = np.random.default_rng(mode)
    rho = 0.4
    noise = lfilter([np.sqrt(1 - rho**2)], [1, -rho], rng.standard_normal(DATA.low_rank.shape), axis=mode)
    result = fitted(noise, max_rank=2)
    found = {along.mode: along for along in Diagnostics(result).autocorrelations}
    np.testing.assert_allclose(found[mode].value[:2], [rho, rho**2], atol=0.08)
    assert all(abs(found[other].value[0]) < 0.08 for other in {0, 1, 2} - {mode})
    (words,) = [text for text in told(result) if "are alike" in text]
    assert f"along mode {mode} are alike" in words
    assert "The rank was capped" in words


def test_fibres_that_are_off_as_a_whole_are_told():
    rng = np.random.default_rng(3)
    errors = rng.standard_normal(DATA.low_rank.shape)
    errors += rng.choice([-2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], (30, 25, 1))
    (words,) = [text for text in told(fitted(errors, max_rank=2)) if "mode 2" in text]
    assert "Residuals along mode 2 stay on one side for long" in words
    assert "some fibres along mode 2 are too high or too low as a whole" in words


def test_neighbours_of_opposite_signs_are_told():
    errors = np.diff(np.random.default_rng(2).standard_normal((30, 26, 20)), axis=1)
    (words,) = [text for text in told(fitted(errors, max_rank=2)) if "opposite signs" in text]
    assert "along mode 1 tend to have opposite signs (correlation −0.5" in words


def test_autocorrelation_is_that_of_plain_loops():
    small = synthetic((9, 8, 7), 1, missing=0.2, seed=2)
    result = BRTF(random_state=0).fit(small.observed).result_
    found = Diagnostics(result)
    score = np.full(small.mask.shape, np.nan)
    score[small.mask] = found.scores(np.arange(result.observations.n_observed))
    for along in found.autocorrelations:
        for lag, value, error in zip(along.lag, along.value, along.error, strict=True):
            pairs = []
            for place in itertools.product(*map(range, score.shape)):
                other = list(place)
                other[along.mode] += lag
                if other[along.mode] < score.shape[along.mode]:
                    pairs.append((score[place], score[tuple(other)]))
            a, b = np.array([pair for pair in pairs if np.isfinite(pair).all()]).T
            assert value == pytest.approx(np.sum(a * b) / np.sqrt(np.sum(a**2) * np.sum(b**2)))
            assert error == pytest.approx(1 / np.sqrt(a.size))


def test_noise_that_grows_with_the_level_is_told():
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(DATA.low_rank.shape) * (0.3 + np.abs(DATA.low_rank))
    assert any("larger where the level is higher" in text for text in told(fitted(noise, noise="common", link=None)))


def test_long_tails_are_told():
    noise = np.random.default_rng(4).standard_t(3, DATA.low_rank.shape)
    words = " ".join(told(fitted(noise, robust=False)))
    assert "tails of noise and outliers are longer than fitted" in words
    assert "so such intervals are too wide" in words


def test_skewed_errors_are_told():
    noise = np.random.default_rng(5).gamma(0.25, 2.0, DATA.low_rank.shape) - 0.5
    assert any("the errors are skewed" in text for text in told(fitted(noise, robust=False)))


def test_many_entries_are_sampled_and_it_is_said(monkeypatch):
    result = fitted(np.random.default_rng(6).standard_normal(DATA.low_rank.shape))
    everything, some = Diagnostics(result), Diagnostics(result, most_scored=2000, most_anchors=1500)
    assert not everything.is_sample and some.is_sample
    assert some.sample.size == 2000 == np.unique(some.sample).size
    np.testing.assert_array_equal(some.score, everything.scores(some.sample))
    assert [along.mode for along in some.autocorrelations] == [0, 1, 2]
    assert "The checks look at all observed entries" in Page(build_page(result)).text
    monkeypatch.setattr("brtf.view.report.parts.residuals.Diagnostics", lambda _: some)
    assert "a random sample of 2,000 of the 15,000 observed entries" in Page(build_page(result)).text


@pytest.mark.parametrize(
    "options",
    [
        {"inference": "paper", "tol": 1e-2, "max_rank": 3},
        {"outlier_kind": "replacement"},
        {"noise": "per-slice"},
        {"outlier_modes": (2,)},
        {"robust": False},
    ],
    ids=str,
)
def test_every_model_can_be_checked(options):
    data = synthetic((14, 12, 10), 2, outliers=0.05, missing=0.1, seed=0)
    result = BRTF(random_state=0, **options).fit(data.observed).result_
    found = Diagnostics(result)
    assert found.enough and np.isfinite(found.score).all()
    assert "Correlation with neighbours along mode 0" in Page(build_page(result)).text


def test_leverage_adds_up_to_the_rank_and_does_not_depend_on_scale():
    result = fitted(np.random.default_rng(8).standard_normal(DATA.low_rank.shape))
    for factor, leverage in zip(result.factor_means(), leverages(result).values(), strict=True):
        assert leverage.sum() == pytest.approx(result.rank)
        hat = factor @ np.linalg.solve(factor.T @ factor, factor.T)
        np.testing.assert_allclose(leverage, np.diag(hat), atol=1e-9)
    misfit = slice_misfit(result, 1)
    assert misfit.shape == (25,) and np.allclose(misfit, 1.0, atol=0.15)


def test_rows_of_a_short_mode_are_not_blamed_for_leverage_that_chance_gives():
    rng, axis, named, large = np.random.default_rng(0), Axis("item", "position", np.arange(8.0), np.arange(8)), 0, 0
    for _ in range(200):
        factor = rng.normal(size=(8, 3))
        leverage = np.diag(factor @ np.linalg.solve(factor.T @ factor, factor.T))
        large += bool(leverage.max() > 0.5)
        named += bool(_influential(axis, leverage, 3))
    assert large > 180 and named <= 20  # 5 % by chance


def test_a_row_that_shapes_a_component_is_named():
    level = DATA.low_rank.copy()
    level[4] += 30 * np.outer(np.sin(np.arange(25)), np.cos(np.arange(20)))
    result = BRTF(random_state=0).fit(level + 0.1 * np.random.default_rng(9).standard_normal(level.shape)).result_
    words = Page(build_page(result)).text
    assert "Single positions of mode 0 shape a component by themselves: 4 (1" in words
