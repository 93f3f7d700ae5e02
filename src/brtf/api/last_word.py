"""The last word on the rank of incomplete data, and on the order of its rows: entries that are held out.

The bound counts what components cost in a posterior that keeps no correlations between the modes. Where data have many
small components it charges them more than they cost in prediction, and stops too early. So where entries are missing,
and the search leaves structure beyond chance in the residual, larger fits compete: one entry in twenty is held out,
each fit begins anew with twice as many components and ends where the density of the held-out entries no longer rises,
or clearly will not rise enough. It wins if it keeps more components, predicts them better than the fit of the search,
and beyond chance better than one of that size which begins anew too. The winner is fitted to all entries. Its posterior
is widened if a wider one predicts the same entries better beyond chance.

Rows in order must predict them no worse than the same rows in no order: where chains follow what single fibres do by
themselves, they seem to know it in a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from brtf.api.held_out import FEWEST_HELD_OUT, HELD_OUT_SHARE, HeldOut, held_out
from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.data.passes import workers
from brtf.inference.judge import WORTH, judge
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.sweep import prune, sweep
from brtf.inference.trace import Event, Kind, Record, StopReason
from brtf.model.row_priors import ZeroMean
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.results.result import Result
from brtf.search.choices import Comparison
from brtf.search.moment import Deadline, Moment
from brtf.search.moves.few_outliers import are_mostly_outliers, settled_with_few_outliers
from brtf.search.moves.form import LARGEST_COLLAPSED_WORK
from brtf.search.moves.row_prior import with_best_row_priors
from brtf.search.problems import problem_at
from brtf.search.settle import is_hopeless
from brtf.search.starts import least_squares

GROWTH = 2
"""Ratio of the ranks of two fits in turn."""
LAP = 10
"""Sweeps between two looks at the held-out entries."""
MOST_LAPS = 20
"""Laps of a fit, at most."""
FORGETTING = 5
"""Laps after which the fit of the search, which has seen the held-out entries, has mostly forgotten them. What it still
knows speaks for it, and so against larger ranks."""
STANDARD_ERRORS = 2.0
"""Standard errors by which the density of held-out entries has to rise."""
DIMINISHED = 0.5
"""What a doubling of the rank gains at most, relative to the one before, as large components are found first. A
convention: where so much would be no more than chance, the next fit, the most expensive of all, is not made. The first
one's gain is that over the fit of the search, as its rival is given up where that has clearly lost."""
WIDEST, FINEST_WIDENING = 100.0, 0.01
"""Largest factor of the posterior variance, and the step in its logarithm."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fit to all but the held-out entries: its point, its result, and ln p of every gap of held-out entries."""

    point: Point
    result: Result
    log_density: Array

    @property
    def total(self) -> float:
        """ln p of all held-out entries."""
        return float(np.sum(self.log_density))

    def beats(self, other: Candidate, share: float = 1.0) -> bool:
        """Whether it predicts the held-out entries better beyond chance, or would by a share of what it gains."""
        gains = self.log_density - other.log_density
        return share * float(np.sum(gains)) > _chance(gains)


def has_the_last_word(result: Result) -> bool:
    """Whether held-out entries decide on the rank: entries are missing, and the search left structure unexplained.

    It did where it ended before all births were tried, or where a birth was proposed after the last one that the bound
    accepted: what is proposed has structure beyond chance.
    """
    observations, settings, state = result.observations, result.settings, result.state
    if settings.inference == "paper" or settings.rank_by == "bound" or not isinstance(settings.init, str):
        return False
    if observations.in_chunks or observations.layout == "complete":
        return False
    few = observations.n_observed < HELD_OUT_SHARE * FEWEST_HELD_OUT or settings.max_sweeps < FORGETTING * LAP
    if few or not state.rank or state.smooth is not None:
        return False
    if not all(prior.signed for prior in state.row_priors):
        return False
    births = [record.event.accepted for record in result.trace if record.event.kind is Kind.BIRTH]
    refused = result.stop_reason is StopReason.CONVERGED and bool(births) and not births[-1]
    return refused or result.stop_reason is StopReason.MAX_SWEEPS


def last_word(
    result: Result, settings: Settings, rng: np.random.Generator, deadline: Deadline, watch: Callable[[Record], object]
) -> Result:
    """The result with the rank that predicts held-out entries best, and a posterior wide enough for them.

    ``settings`` are those of the search, with the modes as it reads them. As many sweeps as the search may make are
    made here at most.
    """
    observations = result.observations
    out = held_out(observations, rng)
    if out is None:
        return result
    rest, kept_out = (
        replace(observations.select(part), scale=observations.scale) for part in (~out.chosen, out.chosen)
    )
    fits = _Fits(result, settings, rest, kept_out, out, deadline, watch)
    limit = settings.rank_limit(fits.problem.observations.shape, rest.n_observed)
    rank = min(GROWTH * result.rank, limit)
    with workers(settings.n_jobs):
        searched = present = fits.of_search()
        if fits.chosen_in_order:
            present = fits.in_no_order()
            present = present if present.beats(searched) else searched
            fits.result = present.result
        best, tried = present, list[Candidate]()
        while rank > best.result.rank and fits.affords(rank):
            larger = fits.anew(rank, best, rng, by_chance=0.0 if best is present else 1.0)
            tried.append(larger)
            # of two fits of one size the search has found the one of the higher bound
            if larger.result.rank <= best.result.rank or not larger.total > best.total:
                break
            # the fit of the search has seen the held-out entries: one of its size that has not is the fair rival
            rival = fits.anew(result.rank, larger, rng, by_chance=-1.0) if best is present else best
            if not larger.beats(rival):
                break
            smaller, best, rank = best, larger, min(GROWTH * rank, limit)
            if not larger.beats(smaller, DIMINISHED):
                break
        found = None if best is searched else fits.of_all_entries(best.result.state)
        if found is not None and best is not present and found.rank <= present.result.rank:
            best, found = searched, None  # all entries together have no use for its components
        widening = _widening(best.result, fits.log_density)
        rivals = tuple((str(one.result.rank), best.total - one.total) for one in (present, *tried) if one is not best)
    chosen = result.rank if found is None else found.rank
    told = Comparison("rank_by", str(chosen), rivals, kept_out.n_observed)
    result = replace(result, widening=widening, comparisons=(*result.comparisons, told))
    if found is None:
        return result
    if present is not searched:
        gain = present.total - searched.total
        unordered = Comparison("modes", "in no order", (("in order", gain),), kept_out.n_observed)
        result = replace(result, comparisons=(*result.comparisons, unordered))
    words = f"rank {found.rank} by held-out entries"
    event = Event(Kind.RANK, gain=best.total - searched.total, words=words)
    record = Record(fits.n_sweeps, found.bound, found.rank, found.state.noise_variance, event)
    return replace(
        result,
        state=found.state.strongest_first(),
        trace=(*result.trace, record),
        stop_reason=StopReason.HELD_OUT,
        cap_gain=None,
    )


class _Fits:
    """Fits to all but the held-out entries, and at last to all of them."""

    def __init__(
        self,
        result: Result,
        settings: Settings,
        rest: Observations,
        kept_out: Observations,
        out: HeldOut,
        deadline: Deadline,
        watch: Callable[[Record], object],
    ) -> None:
        self.result, self.settings, self.kept_out, self.out = result, settings, kept_out, out
        self.deadline, self.watch, self.n_sweeps = deadline, watch, result.trace[-1].sweep
        self.most_sweeps = self.n_sweeps + settings.max_sweeps
        self.problem = self._problem(rest)

    def _problem(self, observations: Observations) -> Problem:
        moment = Moment(self.result.state, None, (), 0, {})
        return problem_at(self.result.as_modelled(observations), self.settings, moment)

    def affords(self, rank: int) -> bool:
        """Whether there is time for a fit of so many components."""
        if self.deadline.look() or self.n_sweeps >= self.most_sweeps:
            return False
        return self.problem.observations.n_observed * rank * (rank + 1) / 2 <= LARGEST_COLLAPSED_WORK

    def of_search(self) -> Candidate:
        """The fit of the search after sweeps without the held-out entries, to forget them."""
        return self._having_forgotten(self.result.state)

    @property
    def chosen_in_order(self) -> list[int]:
        """The modes whose rows are in order by the search's choice."""
        undecided = self.settings.undecided_modes(self.problem.observations.order)
        return [mode for mode in undecided if self.result.state.row_priors[mode].ordered]

    def in_no_order(self) -> Candidate:
        """The same with rows in no order, where nobody said that they are in order."""
        state = self.result.state
        for mode in self.chosen_in_order:
            state = state.with_factor(mode, state.factors[mode], ZeroMean())
        state, _ = with_best_row_priors(state, 0.0)
        return self._having_forgotten(state)

    def _having_forgotten(self, state: State) -> Candidate:
        point = evaluate(self.problem, state)
        for _ in range(FORGETTING):
            if not self.deadline.look():
                point = self._lap(self.problem, point)
        return self._judged(point)

    def anew(self, rank: int, rival: Candidate, rng: np.random.Generator, *, by_chance: float) -> Candidate:
        """A fit of so many components, swept until its density no longer rises or will not rise enough to matter.

        That is up to the rival's and ``by_chance`` times what chance may add: 1 if it must be better beyond chance, −1
        if it must not be worse beyond chance.
        """
        state = least_squares(self.problem, rank, self.result.state, rng)
        if not state.is_ordered:  # what is in order stays so
            state, _ = with_best_row_priors(state, 0.0)
        best = self._judged(self._lap(self.problem, evaluate(self.problem, state)))
        totals = [best.total]
        for n_left in reversed(range(MOST_LAPS - 1)):
            if self.deadline.look() or self.n_sweeps >= self.most_sweeps:
                break
            found = self._judged(self._lap(self.problem, best.point))
            if not found.total > best.total:
                break
            best, totals = found, [*totals[-4:], found.total]
            target = rival.total + by_chance * _chance(best.log_density - rival.log_density)
            if len(totals) > 2 and is_hopeless(totals, target, n_left):
                break
        return best

    def of_all_entries(self, state: State) -> Point:
        """The point of a state after a lap with all entries."""
        problem = self._problem(self.result.observations)
        return self._lap(problem, evaluate(problem, state))

    def _judged(self, point: Point) -> Candidate:
        found = replace(self.result, state=point.state)
        return Candidate(point, found, self.log_density(found))

    def log_density(self, result: Result) -> Array:
        """ln p of the gaps of held-out entries."""
        return self.out.by_gap(result.log_density(self.kept_out))

    def _lap(self, problem: Problem, point: Point) -> Point:
        for _ in range(LAP):
            point = prune(problem, sweep(problem, point))
            self.n_sweeps += 1
            self.watch(Record(self.n_sweeps, point.bound, point.rank, point.state.noise_variance))
        return _with_outliers_as_exceptions(problem, point)


def _with_outliers_as_exceptions(problem: Problem, point: Point) -> Point:
    """The point with few outliers where most entries count as such, unless the bound falls by more than a nat.

    Many components leave small residuals, from which noise and outliers may be learnt with their names exchanged.
    """
    if not are_mostly_outliers(point.state) or point.state.structure is not None:
        return point
    few = settled_with_few_outliers(problem, point)
    return few if judge(few, point, -WORTH) else point


def _chance(gains: Array) -> float:
    """What chance may add to the sum of the gains at the held-out entries."""
    return STANDARD_ERRORS * float(np.std(gains)) * math.sqrt(gains.size)


def _widening(result: Result, log_density_of: Callable[[Result], Array]) -> float:
    """The factor of the posterior variance, at least one, at which the held-out entries are most probable.

    One unless they ask beyond chance for any more at all: where the variance is small beside the noise, a little more
    noise among the held-out entries than among the others would ask for any factor.
    """

    def log_density(log_factor: float) -> Array:
        return log_density_of(replace(result, widening=math.exp(log_factor)))

    gains = log_density(FINEST_WIDENING) - log_density(0.0)
    if not float(np.sum(gains)) > _chance(gains):
        return 1.0
    found = minimize_scalar(
        lambda log_factor: -float(np.sum(log_density(log_factor))),
        bounds=(0.0, math.log(WIDEST)),
        method="bounded",
        options={"xatol": FINEST_WIDENING},
    )
    return math.exp(float(found.x))
