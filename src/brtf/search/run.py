"""Run an inference: a stream of states and records, the stopping rule, and rows for new data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from brtf import kernels
from brtf.data.blocks import Block
from brtf.data.memory import available_bytes
from brtf.data.observations import Observations
from brtf.data.passes import Sums, workers
from brtf.inference import paper
from brtf.inference.entry_posterior import grouped
from brtf.inference.factor_update import update_all_factors
from brtf.inference.learn_noise import with_smooth_as_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Fit, Problem
from brtf.inference.rounding import largest_precision
from brtf.inference.statistics import add_up_rows, scaled_values
from brtf.inference.trace import Event, Kind, Record, StopReason
from brtf.model.distributions import RowGaussians
from brtf.model.local_models import NoOutliers
from brtf.model.row_priors import Ordered, RowPrior
from brtf.model.settings import Settings
from brtf.model.state import LARGEST_PRECISION, State
from brtf.search.components import add_components, empty_state
from brtf.search.loop import Search
from brtf.search.moves.cap import reduced
from brtf.search.moves.form import LARGEST_COLLAPSED_WORK
from brtf.search.moves.outlier_kind import undivided
from brtf.search.position import Position
from brtf.search.robust_rows import robust_rows
from brtf.search.starts import START_COMPONENTS, START_MODEL, initial_factors, paper_start, portfolio, random_start

Steps = Iterator[tuple[State | None, Record | None, Position | None]]
"""After every sweep or proposal: the best state so far, a record if there is one, and the position of the search. The
paper's inference has no position; its state is enough."""
MATRICES_PER_ROW, VECTORS_PER_ROW, ENTRY_NUMBERS = 8, 20, 8
"""Memory estimate: R×R matrices and R-vectors held per row by the states of a search and its acceleration, and numbers
held per entry by the paper's inference."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A point in a run: with the data and the settings it determines the rest.

    Attributes
    ----------
    state, position : see :data:`Steps`
    records, n_records : the trace, which may have grown since, and its length at this moment
    rng : state of the bit generator
    """

    state: State | None
    position: Position | None
    records: Sequence[Record]
    n_records: int
    rng: Mapping[str, Any]

    @property
    def trace(self) -> tuple[Record, ...]:
        """The records so far."""
        return tuple(self.records[: self.n_records])

    @property
    def latest(self) -> Record | None:
        """The last record, if there is one."""
        return self.records[self.n_records - 1] if self.n_records else None

    @property
    def n_sweeps(self) -> int:
        """All sweeps so far."""
        if self.position is not None:
            return self.position.n_sweeps
        return 0 if self.latest is None else self.latest.sweep

    @property
    def cap_gain(self) -> float | None:
        """Gain of one more component than the cap allows; None where the cap was not reached."""
        beyond, bound = (None, None) if self.position is None else (self.position.beyond, self.position.bound)
        return None if beyond is None or bound is None or beyond <= bound else beyond - bound


class Deadline:
    """Time limit: so many seconds from now, or none. The clock is read only when asked."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self.passed = False

    @property
    def left(self) -> float | None:
        """Seconds until then, at least a millisecond; None where there is no limit."""
        return None if self._end == math.inf else max(self._end - time.monotonic(), 1e-3)

    def look(self) -> bool:
        """Whether the time is up; sets ``passed`` if so."""
        self.passed = self.passed or time.monotonic() >= self._end
        return self.passed


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a run: the last state with a finite bound, the trace, and the reason for stopping.

    ``cap_gain`` is the gain in nats of one more component, where the cap limited the rank.
    """

    state: State
    trace: tuple[Record, ...]
    stop_reason: StopReason
    cap_gain: float | None = None


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
        start = Moment(None, None, (), 0, rng.bit_generator.state) if since is None else since
        return _follow(observations, settings, rng, watch, start)


def _follow(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    watch: Callable[[Moment], object],
    start: Moment,
) -> Outcome:
    rng.bit_generator.state = start.rng
    watch(start)
    state, trace, position = start.state, list(start.trace), start.position
    reason = stop_reason(trace, settings, observations.n_observed) if trace else None
    if reason is not None and state is not None and position is not None and position.bound is not None:
        problem = problem_at(observations, settings, start)
        with np.errstate(over="ignore", invalid="ignore"):  # an altered state may be far out
            _check_state(evaluate(problem, state).bound, position.bound, observations.n_observed)
    deadline = Deadline(settings.max_seconds)
    steps = INFERENCES[settings.inference](observations, settings, rng, start, deadline) if reason is None else iter(())
    for new_state, record, position in steps:
        if record is not None:
            trace.append(record)
            reason = stop_reason(trace, settings, observations.n_observed)
        if state is None or reason is not StopReason.NOT_FINITE:
            state = new_state
            if not deadline.passed:
                watch(Moment(state, position, trace, len(trace), rng.bit_generator.state))
        if deadline.look() and reason is None and state is not None and not _is_last(position):
            reason = StopReason.MAX_SECONDS
        if reason is not None:
            break
    if len(trace) == 1 and reason is StopReason.NOT_FINITE:
        raise ValueError("The start has no finite bound: init is too far from the data. Rescale it or use another.")
    return ended(observations, settings, Moment(state, position, trace, len(trace), rng.bit_generator.state), reason)


def advance(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    since: Moment | None,
    until: Callable[[Moment], bool],
) -> Moment:
    """Follow calibrated inference from a moment, or from the start, until a condition holds or it ends.

    :func:`run` may go on from the moment returned, and ends as if there had been no pause.
    """
    moment = Moment(None, None, (), 0, rng.bit_generator.state) if since is None else since
    rng.bit_generator.state = moment.rng
    trace = list(moment.trace)
    with workers(settings.n_jobs):
        for state, record, position in calibrated_inference(observations, settings, rng, moment, Deadline(None)):
            if record is not None:
                trace.append(record)
            moment = Moment(state, position, trace, len(trace), rng.bit_generator.state)
            if until(moment) or (trace and stop_reason(trace, settings, observations.n_observed) is not None):
                break
    return moment


def problem_at(observations: Observations, settings: Settings, moment: Moment) -> Problem:
    """The problem of a search at a moment, in the form of the bound that it then has."""
    problem = _problem(observations, settings)
    if moment.state is not None:
        problem = undivided(problem, moment.state)
    return problem if moment.position is None else replace(problem, collapsed=moment.position.collapsed)


def ended(observations: Observations, settings: Settings, moment: Moment, reason: StopReason | None) -> Outcome:
    """The result of a run that ends at this moment; no reason means that the search is complete.

    A search that is cut short may have more components than the cap. They are removed then, and the trace records the
    loss.
    """
    state, position = moment.state, moment.position
    if state is None:
        raise RuntimeError("the inference ended without a state")
    reason = _end_of_search(state) if reason is None else reason
    in_order = any(isinstance(prior, Ordered) for prior in state.row_priors)
    cap = settings.rank_limit(observations.shape, observations.n_observed, in_order=in_order)
    if position is None or state.rank <= cap:
        return Outcome(state, moment.trace, reason, moment.cap_gain)
    with workers(settings.n_jobs):
        problem = problem_at(observations, settings, moment)
        before = evaluate(problem, state)
        point = reduced(problem, before, cap)
    event = Event(Kind.CAP, gain=point.bound - before.bound, words=f"reduced to {cap}")
    record = Record(moment.n_sweeps, point.bound, point.rank, point.state.noise_variance, event)
    return Outcome(point.state, (*moment.trace, record), reason)


def end_of(moment: Moment, settings: Settings, n_observed: int) -> StopReason | None:
    """Why a run ends at this moment; None if it continues."""
    reason = stop_reason(moment.trace, settings, n_observed) if moment.trace else None
    if reason is None and moment.state is not None and _is_last(moment.position):
        return _end_of_search(moment.state)
    return reason


def _is_last(position: Position | None) -> bool:
    """Whether the search is complete."""
    return position is not None and position.is_last


def stop_reason(trace: Sequence[Record], settings: Settings, n_observed: int) -> StopReason | None:
    """The stopping rule, a function of the trace alone. The bound may cross zero, so no ratios of bounds are used.

    The paper's inference stops when the bound has converged or no component is left; calibrated inference ends by
    itself.
    """
    last = trace[-1]
    if not np.isfinite(last.bound):
        return StopReason.NOT_FINITE
    if settings.inference == "paper":
        undisturbed = len(trace) > 1 and last.event.kind is trace[-2].event.kind is Kind.SWEEP
        # at rank 0 only S and γ are left, which keep creeping
        tol = settings.tol if last.rank else max(settings.tol, 1e-4)
        if undisturbed and abs(last.bound - trace[-2].bound) < tol * n_observed:
            return StopReason.CONVERGED if last.rank else StopReason.RANK_ZERO
    return StopReason.MAX_SWEEPS if last.sweep >= settings.max_sweeps else None


def _end_of_search(state: State) -> StopReason:
    if float(state.tau.mean) > 0.99 * LARGEST_PRECISION:
        return StopReason.BELOW_RESOLUTION
    return StopReason.CONVERGED if state.rank else StopReason.RANK_ZERO


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
    problem = _problem(observations, settings)
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


def _problem(observations: Observations, settings: Settings) -> Problem:
    """The problem with which the search begins."""
    observations = grouped(observations, settings.shared_modes(observations.order))
    finest = largest_precision(observations, linked=settings.link is not None)
    return Problem(observations, sweep_order(observations), collapsed=True, largest_precision=finest)


class AlteredState(ValueError):
    """The state to resume from does not have the bound that it had."""


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


def fit_bytes(observations: Observations, settings: Settings, rank: int) -> int:
    """Memory of a fit besides the data: a few states with R×R matrices per row, and per-entry posteriors.

    Only the paper's inference has per-entry posteriors. For complete data, rows share one matrix in the paper's
    inference, and also where weighted Grams are too expensive.
    """
    paper, n_observed = settings.inference == "paper", observations.n_observed
    alike = paper or (settings.noise != "per-slice" and n_observed * rank**2 / 2 > LARGEST_COLLAPSED_WORK)
    n_matrices = 0 if alike and observations.layout == "complete" else MATRICES_PER_ROW
    per_row = n_matrices * rank**2 + (0 if paper else VECTORS_PER_ROW * rank)
    return 8 * (sum(observations.shape) * per_row + (ENTRY_NUMBERS * n_observed if paper else 0))


def affordable_rank(observations: Observations, settings: Settings) -> int:
    """The largest rank for which a fit fits in memory, but at least the given cap, and at least one."""
    given = 1 if settings.max_rank is None else int(settings.max_rank)
    free, in_order = replace(settings, max_rank=None), settings.modes is not None
    most = free.rank_limit(observations.shape, observations.n_observed, in_order=in_order)
    available = available_bytes()
    low, high = min(given, most), most + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit_bytes(observations, settings, middle) <= available else (low, middle)
    return low


INFERENCES: dict[str, Callable[[Observations, Settings, np.random.Generator, Moment, Deadline], Steps]] = {
    "calibrated": calibrated_inference,
    "paper": paper_inference,
}


def sweep_order(observations: Observations) -> tuple[int, ...]:
    """The modes in an order independent of how the tensor is stored: by length, then by energy."""
    ones = [np.ones((length, 1)) for length in observations.shape]
    keys = []
    for mode, length in enumerate(observations.shape):

        def add(sums: Sums, block: Block, mode: int = mode) -> None:
            kernels.contract(block, scaled_values(observations, block) ** 2, ones, mode, sums[0])

        (energies,) = add_up_rows(observations, mode, [(length, 1)], add)
        total = float(energies.sum()) or 1.0
        keys.append((length, float(np.sum((energies / total) ** 2)), mode))
    return tuple(mode for _, _, mode in sorted(keys))


def typical_rows(state: State) -> State:
    """The state for new rows of the first mode, whose noise and outlier rate are typical ones."""
    state = state.without_slices_along(0)
    return state if state.smooth is None else with_smooth_as_noise(state)


def fold_in(
    observations: Observations, state: State, settings: Settings, *, following: bool = False
) -> tuple[RowGaussians, RowPrior]:
    """Rows of the first mode for new data and their prior, in the units of the state, with everything else held fixed.

    They continue the rows of the state if ``following``. Their entries may be outliers like any others.
    """
    if settings.inference == "paper":
        return paper.fold_in(observations, state, settings.max_sweeps)
    state = typical_rows(state)
    if state.structure is not None:
        observations = grouped(observations, state.structure.modes)
    problem = Problem(observations, (0,), collapsed=True)
    start = RowGaussians(np.zeros((observations.shape[0], state.rank)), np.eye(state.rank)[None])
    prior = state.row_priors[0].for_new_rows(start.n_rows, state.factors[0] if following else None)
    if state.rank == 0:  # nothing to fit
        return start, prior
    state = state.with_factor(0, start, prior)
    if not state.local_model.is_gaussian:
        state = state.with_factor(0, robust_rows(problem, state, 0))
    for _ in range(settings.max_sweeps):
        previous = state.factors[0].mean
        state = update_all_factors(problem, state, Fit.of(problem, state))
        mean = state.factors[0].mean
        if np.allclose(mean, previous, rtol=1e-8, atol=1e-8 * np.abs(mean).max(initial=0.0)):
            break
    return state.factors[0], state.row_priors[0]
