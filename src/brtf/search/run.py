"""Run an inference: follow its stream of states and records from moment to moment, until it ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from brtf.data.observations import Observations
from brtf.data.passes import workers
from brtf.inference import paper
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Event, Kind, Record, StopReason
from brtf.model.local_models import NoOutliers
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.search.components import add_components, empty_state
from brtf.search.loop import Search
from brtf.search.memory import affordable_rank
from brtf.search.moment import Deadline, Moment, Outcome
from brtf.search.moves.cap import reduced
from brtf.search.position import Position
from brtf.search.problems import first_problem, problem_at
from brtf.search.starts import START_COMPONENTS, START_MODEL, initial_factors, paper_start, portfolio, random_start
from brtf.search.stopping import end_of_search, is_last, stop_reason

Steps = Iterator[tuple[State | None, Record | None, Position | None]]
"""After every sweep or proposal: the best state so far, a record if there is one, and the position of the search. The
paper's inference has no position; its state is enough."""


def run(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    watch: Callable[[Moment], object] = lambda moment: None,
    since: Moment | None = None,
) -> Outcome:
    """Run the inference until the stopping rule holds or the search has ended; ``watch`` receives every moment.

    ``since`` is a moment of an earlier run with the same data and settings; this run continues from there and ends
    where that run would have ended. It stops after ``max_seconds``, as soon as there is a state. The shortcuts taken
    then are not passed to ``watch``, so resuming from the last moment it received still leads to the full result.
    """
    with workers(settings.n_jobs):
        moment = start = _beginning(rng) if since is None else since
        rng.bit_generator.state = moment.rng
        watch(moment)
        reason = stop_reason(moment.trace, settings, observations.n_observed) if moment.trace else None
        if reason is not None:
            _check_last(observations, settings, moment)
            return ended(observations, settings, moment, reason)
        deadline = Deadline(settings.max_seconds)
        for moment, reason in moments(observations, settings, rng, start, deadline):
            if reason is not StopReason.NOT_FINITE and not deadline.passed:
                watch(moment)
            if deadline.look() and reason is None and moment.state is not None and not is_last(moment.position):
                reason = StopReason.MAX_SECONDS
            if reason is not None:
                break
        if moment.n_records == 1 and reason is StopReason.NOT_FINITE:
            raise ValueError("The start has no finite bound: init is too far from the data. Rescale it or use another.")
        return ended(observations, settings, moment, reason)


def moments(
    observations: Observations, settings: Settings, rng: np.random.Generator, since: Moment, deadline: Deadline
) -> Iterator[tuple[Moment, StopReason | None]]:
    """Every moment of an inference after a given one, and the reason to stop there if there is one.

    A state without a finite bound is never taken: the moment has the last one before it.
    """
    rng.bit_generator.state = since.rng
    state, trace = since.state, list(since.trace)
    for new_state, record, position in INFERENCES[settings.inference](observations, settings, rng, since, deadline):
        reason = None
        if record is not None:
            trace.append(record)
            reason = stop_reason(trace, settings, observations.n_observed)
        if reason is not StopReason.NOT_FINITE:
            state = new_state
        yield Moment(state, position, trace, len(trace), rng.bit_generator.state), reason


def advance(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    since: Moment | None,
    until: Callable[[Moment], bool],
) -> Moment:
    """Follow an inference from a moment, or from the start, until a condition holds or it ends.

    :func:`run` may go on from the moment returned, and ends as if there had been no pause.
    """
    moment = start = _beginning(rng) if since is None else since
    with workers(settings.n_jobs):
        for moment, reason in moments(observations, settings, rng, start, Deadline(None)):
            if reason is not None or until(moment):
                break
    return moment


def _beginning(rng: np.random.Generator) -> Moment:
    """The moment before a run."""
    return Moment(None, None, (), 0, rng.bit_generator.state)


def ended(observations: Observations, settings: Settings, moment: Moment, reason: StopReason | None) -> Outcome:
    """The result of a run that ends at this moment; no reason means that the search is complete.

    A search that is cut short may have more components than the cap. They are removed then, and the trace records the
    loss.
    """
    state, position = moment.state, moment.position
    if state is None:
        raise RuntimeError("the inference ended without a state")
    reason = end_of_search(state) if reason is None else reason
    cap = settings.rank_limit(observations.shape, observations.n_observed, in_order=state.is_ordered)
    if position is None or state.rank <= cap:
        return Outcome(state, moment.trace, reason, moment.cap_gain)
    with workers(settings.n_jobs):
        problem = problem_at(observations, settings, moment)
        before = evaluate(problem, state)
        point = reduced(problem, before, cap)
    event = Event(Kind.CAP, gain=point.bound - before.bound, words=f"reduced to {cap}")
    record = Record(moment.n_sweeps, point.bound, point.rank, point.state.noise_variance, event)
    return Outcome(point.state, (*moment.trace, record), reason)


def paper_inference(
    observations: Observations, settings: Settings, rng: np.random.Generator, since: Moment, deadline: Deadline
) -> Steps:
    """Algorithm 1 of the paper, from its start or from a saved state."""
    state = paper_start(observations, settings, rng) if since.state is None else since.state
    for swept, record in paper.sweeps(observations, state, since.n_sweeps):
        yield swept, record, None


def calibrated_inference(
    observations: Observations, settings: Settings, rng: np.random.Generator, since: Moment, deadline: Deadline
) -> Steps:
    """The search of :mod:`brtf.search.loop`: one record per accepted sweep and per proposal.

    If the time is up before the first start is settled, that start is returned as it is.
    """
    problem = first_problem(observations, settings)
    starts = partial(calibrated_starts, problem, settings, rng)
    search = Search(problem, settings, rng, starts, affordable_rank(observations, settings))
    if since.position is not None:
        search.take_up(since.state, since.position)
        best = search.progress.best
        if best is not None and since.position.bound is not None:
            _check_bound(best.bound, since.position.bound, observations.n_observed)
    for step in search.run():
        if step.point is None or step.event is None:
            yield None if step.point is None else step.point.state, None, step.position
            if step.point is None and deadline.passed:
                search.progress.max_sweeps = search.progress.n_sweeps
        else:
            state, bound = step.point.state, step.point.bound
            record = Record(step.position.n_sweeps, bound, state.rank, state.noise_variance, step.event)
            yield state, record, step.position


class AlteredState(ValueError):
    """The state to resume from does not have the bound that it had."""


def _check_last(observations: Observations, settings: Settings, moment: Moment) -> None:
    """Refuse a finished search whose state does not have the bound that it had."""
    state, position = moment.state, moment.position
    if state is not None and position is not None and position.bound is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # an altered state may be far out
            found = evaluate(problem_at(observations, settings, moment), state).bound
        _check_state(found, position.bound, observations.n_observed)


def _check_state(found: float, wanted: float, n_observed: int) -> None:
    """Refuse a state that does not have the bound, to rounding, that it had when it was written."""
    if not abs(found - wanted) <= 1e-6 * (n_observed + abs(wanted)):
        raise AlteredState(
            f"The state to go on from should have the bound {wanted:.10g}, but has {found:.10g}: it is not of these "
            "data, or was altered. Start anew."
        )


def _check_bound(found: float, wanted: float, n_observed: int) -> None:
    """Refuse a state with another bound than it had, and warn where it differs by rounding."""
    _check_state(found, wanted, n_observed)
    if found != wanted:
        warnings.warn(
            f"Numbers are rounded otherwise here than where the fit began (the bound is {found!r} instead of "
            f"{wanted!r}): it goes on, but may not end at the same digits.",
            UserWarning,
            stacklevel=2,
        )


def calibrated_starts(
    problem: Problem, settings: Settings, rng: np.random.Generator, max_components: int
) -> list[State]:
    """A random start, or the portfolio of spectral starts, preceded by the given factors."""
    model = START_MODEL if settings.robust else NoOutliers()
    if isinstance(settings.init, str):
        if settings.init == "random":
            return [random_start(problem, min(max_components, START_COMPONENTS), model, rng)]
        return portfolio(problem, max_components, model)
    _, means = initial_factors(problem.observations, settings, rng)
    given = add_components(problem, empty_state(problem, model), means)
    return [given, *portfolio(problem, max_components, model)]


INFERENCES: dict[str, Callable[[Observations, Settings, np.random.Generator, Moment, Deadline], Steps]] = {
    "calibrated": calibrated_inference,
    "paper": paper_inference,
}
