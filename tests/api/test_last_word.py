"""Held-out entries have the last word on the rank of incomplete data."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf import BRTF
from brtf.api import last_word
from brtf.api.held_out import HELD_OUT_SHARE, HeldOut, held_out
from brtf.api.last_word import has_the_last_word
from brtf.data.observe import observe
from brtf.inference.learn_noise import with_noise
from brtf.inference.trace import Kind, StopReason
from brtf.model.local_models import GaussianSlab
from brtf.search.components import add_components
from brtf.search.run import Deadline

OPTIONS = {"random_state": 0, "arrangement": None, "smooth_residual": None, "link": None}
CUT_SHORT = {**OPTIONS, "max_sweeps": 200}
"""So few sweeps that the search, which finds one component after another, ends with much unexplained."""


def many_small_components(seed):
    """Slices that share nothing: six random walks of falling size each, at levels that differ, 40 % missing."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(size=20))[:, None, None]
    walks = np.cumsum(rng.normal(size=(20, 6, 18)), axis=2) / np.sqrt(18)
    x = level * (2.0 + np.stack([(rng.normal(size=(50, 6)) / np.arange(1, 7) ** 0.5) @ walk for walk in walks]))
    y = x + 0.1 * level * rng.normal(size=x.shape)
    return y, rng.random(x.shape) > 0.4


@pytest.fixture(scope="module")
def fits():
    """The data, the mask, and the fits by the bound and by held-out entries, which want more: sweeps are few."""
    y, mask = many_small_components(2)
    given = np.where(mask, y, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return y, mask, BRTF(**CUT_SHORT, rank_by="bound").fit(given), BRTF(**CUT_SHORT).fit(given)


@pytest.fixture(scope="module")
def searched():
    """The data, the mask, and the fit by the bound with all sweeps."""
    y, mask = many_small_components(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return y, mask, BRTF(**OPTIONS, rank_by="bound").fit(np.where(mask, y, np.nan))


class TestHeldOut:
    def test_entries_at_random(self):
        rng = np.random.default_rng(0)
        y = rng.normal(size=(20, 21, 22))
        out = held_out(observe(y, rng.random(y.shape) > 0.3), rng)
        assert out.chosen.sum() == out.chosen.size // HELD_OUT_SHARE
        assert np.unique(out.gap).size == out.chosen.sum()

    def test_whole_fibres_where_whole_fibres_are_missing(self):
        rng = np.random.default_rng(0)
        y, mask = rng.normal(size=(20, 21, 22)), np.ones((20, 21, 22), dtype=bool)
        mask[rng.random((20, 21)) < 0.3] = False
        observations = observe(y, mask)
        out = np.zeros(y.shape, dtype=bool)
        out[tuple(observations.entry_coords())] = held_out(observations, rng).chosen
        per_fibre = out.sum(axis=2)
        assert set(np.unique(per_fibre)) == {0, 22}

    @pytest.mark.parametrize("layout", ["masked", "coordinates"])
    def test_gaps_where_gaps_are_missing(self, layout):
        """As long as the missing ones, up to those that the moved ones meet, and whole: one sensor for hours."""
        rng = np.random.default_rng(3)
        mask = np.ones((2000, 8), dtype=bool)
        for _ in range(100):
            first, sensor = rng.integers(1980), rng.integers(8)
            mask[first : first + 30, sensor] = False
        y = rng.normal(size=mask.shape)
        given = observe(y, mask)
        if layout == "coordinates":
            given = brtf.Observations.from_coords(np.stack(np.nonzero(mask)), y[mask], mask.shape)
        out = held_out(given, rng)
        assert out.chosen.sum() == pytest.approx(mask.sum() / HELD_OUT_SHARE, abs=30 * 8)
        lengths = np.bincount(out.gap)
        assert 15 < lengths.mean() <= 60
        where = given.entry_coords()[:, out.chosen]
        for number in range(lengths.size):
            hours, sensors = where[:, out.gap == number]
            assert np.unique(sensors).size == 1
            assert np.ptp(hours) == lengths[number] - 1

    def test_rates_that_differ_are_no_gaps(self):
        rng = np.random.default_rng(4)
        mask = rng.random((500, 20)) > np.linspace(0.05, 0.9, 20)
        out = held_out(observe(rng.normal(size=mask.shape), mask), rng)
        assert np.unique(out.gap).size == out.chosen.sum()

    def test_nothing_where_that_would_be_too_few(self):
        y = np.random.default_rng(0).normal(size=(8, 8, 8))
        assert held_out(observe(y, y > -1), np.random.default_rng(0)) is None


class TestRank:
    def test_more_components_that_predict_better(self, fits):
        y, mask, bound, auto = fits
        hidden = np.where(mask, np.nan, y)
        assert auto.rank_ > bound.rank_
        assert auto.score(hidden) > bound.score(hidden) + 0.04
        error = [np.sqrt(np.mean((model.low_rank() - y)[~mask] ** 2)) for model in (bound, auto)]
        assert error[1] < error[0]

    def test_says_so(self, fits):
        _, _, bound, auto = fits
        assert auto.result_.stop_reason is StopReason.HELD_OUT and auto.converged_
        assert auto.result_.trace[-1].event.kind is Kind.RANK
        assert "held-out entries best" in str(auto.choices_["rank_by"])
        assert f"better than {bound.rank_}" in str(auto.choices_["rank_by"])
        assert "rank_by" not in bound.choices_

    def test_the_bound_is_of_the_state_returned(self, fits):
        auto = fits[3]
        again = auto.result_
        assert np.isfinite(auto.bound_) and again.state.rank == again.trace[-1].rank

    def test_saved_and_loaded(self, fits, tmp_path):
        auto = fits[3]
        auto.save(tmp_path / "fit.brtf")
        again = brtf.load(tmp_path / "fit.brtf")
        np.testing.assert_array_equal(again.predict_interval(), auto.predict_interval())
        assert str(again.choices_["rank_by"]) == str(auto.choices_["rank_by"])

    @pytest.mark.slow
    def test_resumed_from_a_checkpoint(self, fits, tmp_path):
        y, mask, _, auto = fits
        given, path = np.where(mask, y, np.nan), tmp_path / "run.brtf"
        BRTF(**CUT_SHORT).fit(given, checkpoint=path, every=0)
        resumed = BRTF(**CUT_SHORT).fit(given, resume=path)
        assert resumed.bound_ == auto.bound_
        np.testing.assert_array_equal(resumed.low_rank(), auto.low_rank())

    def test_an_interrupt_keeps_the_fit_of_the_search(self, fits, monkeypatch):
        y, mask, bound, _ = fits

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(last_word, "least_squares", interrupted)
        model = BRTF(**CUT_SHORT)
        with pytest.raises(KeyboardInterrupt):
            model.fit(np.where(mask, y, np.nan))
        assert model.rank_ == bound.rank_

    def test_a_fit_that_ends_no_larger_is_left_to_the_bound(self, fits, monkeypatch):
        """Whatever it predicts: among fits of one size, one that begins anew may have found other noise, and less."""
        y, mask, bound, _ = fits

        def no_larger(competing, rank, rival, rng, by_chance):
            same = competing.of_search()
            return replace(same, log_density=same.log_density + (rank - bound.rank_))

        monkeypatch.setattr(last_word._Fits, "anew", no_larger)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = BRTF(**CUT_SHORT).fit(np.where(mask, y, np.nan))
        assert model.rank_ == bound.rank_ and model.bound_ == bound.bound_

    @pytest.mark.parametrize(("enough", "n_fits"), [(1.5, 2), (3.0, 3)])
    def test_the_next_doubling_is_judged_by_what_the_last_gained_over_the_fit_of_the_search(
        self, fits, monkeypatch, enough, n_fits
    ):
        """Not by its lead over the rival, which is given up as soon as that has clearly lost."""
        y, mask, bound, _ = fits
        made = []

        def fit(competing, rank, rival, rng, by_chance):
            made.append(rank)
            same = competing.of_search() if len(made) == 1 else rival
            signs = np.resize([1.0, -1.0], same.log_density.size)
            chance = last_word.STANDARD_ERRORS * np.sqrt(signs.size)
            gains = signs + enough * chance / signs.size
            if len(made) == 1:
                columns = [np.full((rows.n_rows, 1), 1e-3) for rows in same.result.state.factors]
                larger = replace(same.result, state=add_components(competing.problem, same.result.state, columns))
                return replace(same, log_density=same.log_density + gains, result=larger)
            return replace(same, log_density=same.log_density - 100.0 * gains.size)

        monkeypatch.setattr(last_word._Fits, "anew", fit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            BRTF(**CUT_SHORT).fit(np.where(mask, y, np.nan))
        assert made[:2] == [2 * bound.rank_, bound.rank_] and len(made) == n_fits


class TestNoise:
    def test_is_not_called_outliers(self, searched):
        """Noise and outliers of a larger fit may have been learnt with their names exchanged."""
        result = searched[2].result_
        state, n_observed = result.state, result.observations.n_observed
        named_wrongly = with_noise(state, 2.0 * float(state.tau.mean), GaussianSlab(0.98, 1e4, 1.0), n_observed)
        everything = HeldOut(np.ones(n_observed, dtype=bool), np.arange(n_observed))
        given = (result.observations, result.observations, everything, Deadline(None))
        competing = last_word._Fits(result, result.settings, *given, lambda record: None)
        assert competing.of_all_entries(named_wrongly).state.local.probability < 0.01


class TestLaps:
    """A fit whose density of two held-out entries rises by half as much in every lap as in the one before."""

    TOTALS = 16.0 - 16.0 * 0.5 ** np.arange(20.0)

    @pytest.fixture
    def n_laps(self, searched, monkeypatch):
        """The laps of such a fit against a rival of this total, whose gains differ by twice ``spread``."""
        result = searched[2].result_
        everything = HeldOut(np.ones(result.observations.n_observed, dtype=bool), np.arange(2))
        given = (result.observations, result.observations, everything, Deadline(None))
        fits = last_word._Fits(result, result.settings, *given, lambda record: None)
        monkeypatch.setattr(last_word, "least_squares", lambda *_: result.state)
        monkeypatch.setattr(fits, "_lap", lambda problem, point: point)

        def count(total, spread, by_chance):
            totals = iter(self.TOTALS)
            monkeypatch.setattr(fits, "log_density", lambda _: np.full(2, 0.5 * next(totals)))
            rival = last_word.Candidate(None, result, 0.5 * total + np.array([spread, -spread]))
            fits.anew(2, rival, np.random.default_rng(0), by_chance=by_chance)
            return self.TOTALS.size - len(list(totals))

        return count

    def test_go_on_where_the_rival_may_be_reached(self, n_laps):
        assert n_laps(15.9, 0.0, 0.0) == self.TOTALS.size

    def test_end_where_it_will_not(self, n_laps):
        # 0, 8, 12, 14, …, and four times the last rise may follow: to 28 after three laps, to 22 after four
        assert n_laps(30.0, 0.0, 0.0) == 3
        assert n_laps(25.0, 0.0, 0.0) == 4

    def test_count_what_chance_may_add(self, n_laps):
        """The standard deviation of a gain is 3, of two 3 √2, of which two count."""
        chance = 2.0 * 3.0 * np.sqrt(2.0)
        assert n_laps(30.0 - chance, 3.0, 1.0) == 3
        assert n_laps(15.9 + chance, 3.0, -1.0) == self.TOTALS.size


def test_a_share_of_what_is_gained_must_be_beyond_chance_too(searched):
    gains = np.array([1.0, 2.0, 3.0, 2.0])  # 8, where chance may give 2 · √½ · √4
    better, worse = (last_word.Candidate(None, searched[2].result_, density) for density in (gains, 0.0 * gains))
    assert better.beats(worse) and better.beats(worse, 0.4) and not better.beats(worse, 0.3)


class TestWhen:
    def test_complete_data_are_left_to_the_bound(self, fits):
        result = fits[2].result_
        full = observe(np.nan_to_num(np.asarray(fits[0])))
        undecided = replace(result, settings=replace(result.settings, rank_by="auto"))
        undecided = replace(undecided, stop_reason=StopReason.MAX_SWEEPS)
        assert has_the_last_word(undecided)
        assert not has_the_last_word(replace(undecided, observations=full))
        assert not has_the_last_word(result)  # rank_by="bound"

    def test_nothing_changes_where_the_search_explains_everything(self):
        data = brtf.datasets.paper_synthetic(outliers=0.1, missing=0.5, seed=3)
        bound, auto = (BRTF(random_state=0, rank_by=by).fit(data.observed, mask=data.mask) for by in ("bound", "auto"))
        assert auto.rank_ == bound.rank_ == 3 and auto.bound_ == bound.bound_
        np.testing.assert_array_equal(auto.low_rank(), bound.low_rank())

    def test_few_sweeps_leave_no_time_for_it(self, fits):
        y, mask, *_ = fits
        with pytest.warns(UserWarning):
            model = BRTF(**OPTIONS, max_sweeps=20).fit(np.where(mask, y, np.nan))
        assert model.n_sweeps_ <= 20 and "rank_by" not in model.choices_


def test_widening_is_a_factor_of_the_variance(fits):
    result = fits[2].result_
    wide = replace(result, widening=1.0 + 1e-6)
    ratio = wide.factor_variance(method="first-order") / result.factor_variance(method="first-order")
    np.testing.assert_allclose(ratio - 1.0, 1e-6, rtol=1e-4)


def test_a_posterior_that_is_too_narrow_is_widened(searched):
    y, mask, bound = searched
    hidden = observe(y, ~mask)
    hidden = replace(hidden, scale=bound.result_.scale)
    narrow = replace(bound.result_, widening=1e-2)
    widest = last_word._widening(narrow, lambda result: result.log_density(hidden))
    assert widest > 1.0
    best = replace(narrow, widening=widest).log_density(hidden).sum()
    assert all(replace(narrow, widening=c * widest).log_density(hidden).sum() < best for c in (0.8, 1.25))


def test_a_posterior_that_is_right_stays_as_it_is(fits):
    """New entries drawn from the predictive distribution ask for other widths by chance only."""
    y, mask, bound, _ = fits
    some = np.flatnonzero(~mask)[::10]
    places = np.unravel_index(some, y.shape)
    draws = bound.sample(20, coords=places, random_state=0)
    for draw in draws:
        hidden = np.full(y.shape, np.nan)
        hidden[places] = draw
        kept_out = replace(observe(hidden), scale=bound.result_.scale)
        assert last_word._widening(bound.result_, lambda result, out=kept_out: result.log_density(out)) == 1.0


@pytest.mark.slow
def test_what_is_in_order_stays_so(fits):
    y, mask, *_ = fits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = BRTF(**OPTIONS, modes={2: "ordered"}).fit(np.where(mask, y, np.nan))
    assert "rank_by" in model.choices_
    assert model.modes_[2] == ("ordered",)


def test_order_competes_with_none_unless_it_was_said(fits):
    """The rival has no rows in order, and forgets the held-out entries as the fit of the search does."""
    y, mask, *_ = fits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        said = BRTF(**CUT_SHORT, rank_by="bound", modes={2: "ordered"}).fit(np.where(mask, y, np.nan)).result_
    out = held_out(said.observations, np.random.default_rng(0))
    rest, kept_out = (
        replace(said.observations.select(part), scale=said.observations.scale) for part in (~out.chosen, out.chosen)
    )
    settings = replace(said.settings, link=None, arrangement=None)
    given = (rest, kept_out, out, Deadline(None), lambda record: None)
    assert last_word._Fits(said, settings, *given).chosen_in_order == []
    open_fits = last_word._Fits(said, replace(settings, modes="auto"), *given)
    assert open_fits.chosen_in_order == [2]
    rival = open_fits.in_no_order()
    assert not rival.result.state.is_ordered and rival.result.state.rank == said.state.rank
    assert rival.log_density.size == np.unique(out.gap).size
