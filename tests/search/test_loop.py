"""The loop of the search: which moves it asks again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import brtf
from brtf.data.observe import observe
from brtf.inference.learn_noise import slice_noise
from brtf.inference.point import evaluate
from brtf.inference.trace import Kind
from brtf.model.settings import Settings
from brtf.search.components import add_components
from brtf.search.loop import Search
from brtf.search.memory import affordable_rank
from brtf.search.moves import local_model
from brtf.search.moves.birth import FEW_SWEEPS
from brtf.search.moves.local_model import LocalModels
from brtf.search.phases import NAMES, PHASES
from brtf.search.problems import first_problem
from brtf.search.run import calibrated_starts
from brtf.search.starts import START_COMPONENTS


@pytest.fixture
def search():
    """A search after its start, at the first move of a round."""
    data = brtf.datasets.synthetic((8, 7, 6), 2, outliers=0.1, seed=0)
    observations, settings = observe(data.observed), Settings()
    rng, problem = np.random.default_rng(0), first_problem(observations, settings)
    starts = partial(calibrated_starts, problem, settings, rng)
    search = Search(problem, settings, rng, starts, affordable_rank(observations, settings))
    for _ in search.run():
        if PHASES[search.phase].name == "fine" and search.sweeps is None:
            break
    search.refusals.clear()
    return search


def raise_bound(search, gain):
    point = search.progress.point
    terms = replace(point.terms, likelihood=point.terms.likelihood + gain)
    search.progress.best = replace(point, terms=terms)


def move(name):
    return next(one for phase in PHASES for one in phase.moves if one.name == name)


class TestRefusals:
    def test_a_move_that_failed_is_not_asked_again_until_the_bound_has_risen_by_what_it_lacked(self, search):
        search._refuse(move("death"), 50.0)
        assert search._is_refused(move("death"))
        assert not search._is_refused(move("merge"))
        raise_bound(search, 49.0)
        assert search._is_refused(move("death"))
        raise_bound(search, 2.0)
        assert not search._is_refused(move("death"))
        assert "death" not in search.refusals

    def test_the_proposal_that_lacked_least_counts(self, search):
        for lacking in (500.0, 5.0, 50.0):
            search._refuse(move("death"), lacking)
        raise_bound(search, 6.0)
        assert not search._is_refused(move("death"))

    def test_a_move_without_a_proposal_waits_for_a_nat(self, search):
        search._refuse(move("birth"), 0.0)
        raise_bound(search, 0.5)
        assert search._is_refused(move("birth"))
        raise_bound(search, 1.0)
        assert not search._is_refused(move("birth"))

    def test_what_lacked_no_known_number_waits_for_a_nat(self, search):
        """A component beyond the cap is only measured, and a file cannot hold infinity."""
        search._refuse(move("cap"), np.inf)
        assert np.isfinite(search.refusals["cap"].until)
        assert search._is_refused(move("cap"))

    def test_a_point_of_another_kind_is_asked_about_again(self, search):
        search._refuse(move("birth"), 50.0)
        progress = search.progress
        state = progress.point.state.select_components(np.arange(progress.point.rank - 1))
        progress.best = evaluate(progress.problem, state)
        assert not search._is_refused(move("birth"))

    def test_other_noise_matters_to_components_only_by_what_it_gained(self, search):
        progress = search.progress
        for name in ("death", "local model"):
            search._refuse(move(name), 50.0)
        progress.best = evaluate(progress.problem, slice_noise(progress.problem, progress.point.state, (0,)))
        raise_bound(search, search.refusals["death"].until - progress.point.bound - 1.0)
        assert search._is_refused(move("death"))
        assert not search._is_refused(move("local model"))
        raise_bound(search, 2.0)
        assert not search._is_refused(move("death"))

    def test_no_proposal_is_repeated_at_the_same_point(self):
        data = brtf.datasets.synthetic((15, 14, 13), 3, outliers=0.1, seed=1)
        model = brtf.BRTF(random_state=0).fit(data.observed)
        dropped = [
            (record.event.words, round(record.bound, 3))
            for record in model.result_.trace
            if record.event.kind is not Kind.SWEEP and not record.event.accepted
        ]
        assert len(dropped) == len(set(dropped))

    def test_are_part_of_the_position(self, search):
        search._refuse(move("death"), 50.0)
        state, position = search.progress.point.state, search.position
        search.refusals.clear()
        search.take_up(state, position)
        assert search._is_refused(move("death"))


class TestForm:
    """Births that made weighted Grams expensive are followed by form 1; nothing else in a round is."""

    @pytest.mark.parametrize("successes, work, kind", [(1, 0, Kind.FORM), (0, 0, Kind.BIRTH), (1, 2**26, Kind.BIRTH)])
    def test_of_what_has_grown_expensive(self, search, monkeypatch, successes, work, kind):
        for module in ("brtf.search.moves.birth", "brtf.search.moves.form"):
            monkeypatch.setattr(f"{module}.COLLAPSED_WORK", work)
        monkeypatch.setattr("brtf.search.moves.birth.birth", lambda problem, point, *_, **__: point.state)
        search.progress.most = 10
        trial, memory = move("birth").propose(search.progress, (0, successes, (), -1))
        assert trial.kind is kind
        if kind is Kind.FORM:
            assert not trial.collapsed
            assert memory == move("birth").learn_from(memory, trial, accepted=True) == (0, successes, (), -1)


@pytest.mark.parametrize("fewer, n_sweeps", [(0, FEW_SWEEPS), (1, 100)])
def test_few_sweeps_follow_a_birth_where_the_sketch_shows_more(search, monkeypatch, fewer, n_sweeps):
    def born(problem, point, n_components, rng, *, clipped):
        columns = [rng.standard_normal((rows.n_rows, n_components - fewer)) for rows in point.state.factors]
        return add_components(problem, point.state, columns)

    monkeypatch.setattr("brtf.search.moves.birth.is_sketched", lambda problem: True)
    monkeypatch.setattr("brtf.search.moves.birth.birth", born)
    search.progress.most = 40
    trial, _ = move("birth").propose(search.progress, ())
    assert trial.point.rank == search.progress.point.rank + START_COMPONENTS - fewer
    assert trial.then.n_sweeps == n_sweeps


@pytest.mark.parametrize("phase, n_sweeps, again", [("rough", 2, True), ("rough", 10, False), ("fine", 10, True)])
def test_a_rough_round_follows_only_where_sweeps_gain_more_than_rough_ones(search, phase, n_sweeps, again):
    """Five nats in ten sweeps are less than those of a point that has roughly converged: what is left is for later."""
    progress = search.progress
    assert progress.roughly == 1.0
    search.phase = NAMES.index(phase)
    search.mark = progress.point.bound - 5.0, progress.problem.collapsed, progress.n_sweeps - n_sweeps
    search._next_round()
    assert (search.phase == NAMES.index(phase)) is again


def test_order_is_looked_for_before_components_are_thinned_out():
    """Merges and deaths of many components may use up the sweeps."""
    names = [move.name for move in PHASES[NAMES.index("rough")].moves]
    assert names.index("birth") < names.index("order") < min(names.index(name) for name in ("merge", "death"))


def test_local_models_do_not_take_turns(search, monkeypatch):
    """A model that was left is not proposed again in the same round, however much sweeps gain besides."""
    monkeypatch.setattr(local_model, "noise_worth", lambda point, state: 0.0)  # all are equally good
    move, progress, memory = LocalModels(pulling=False), search.progress, ()
    begun, met = type(progress.point.state.local_model), []
    trial, memory = move.propose(progress, memory)
    while trial is not None:
        assert move.could_remember(memory, progress.point.state.rank)
        progress.best = trial.point
        met.append(type(trial.point.state.local_model))
        trial, memory = move.propose(progress, move.learn_from(memory, trial, accepted=True))
    assert len(met) > 1 and len({begun, *met}) == 1 + len(met)
    assert move.propose(progress, move.learn_from((), search.trial, accepted=False))[0] is None
    assert not move.could_remember((begun.__name__, begun.__name__), 1) and not move.could_remember(("other",), 1)
