"""The search: which moves are tried, in which order, and what follows; every one is judged by the bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from brtf.data.observations import Block
from brtf.data.passes import Sums, visit
from brtf.inference.entry_posterior import initial_law, initial_rates, measured_channels
from brtf.inference.noise_fit import PROBABILITY_RANGE
from brtf.inference.sweep import (
    Problem,
    evaluate,
    evaluate_at,
    learn_noise_globally,
    noise_worth,
    slice_noise,
    with_local_model,
    with_noise,
    with_sides,
)
from brtf.inference.trace import REFORMED, RESCALED
from brtf.inference.updates import update_component_precisions
from brtf.model.local_models import LOCAL_MODELS, GaussianSlab, SlabModel, StudentSlab
from brtf.model.settings import Settings
from brtf.model.state import OutlierStructure, State
from brtf.search import proposals
from brtf.search.agenda import Move, Position, check_agenda, move
from brtf.search.restarts import (
    START_COMPONENTS,
    START_MODEL,
    START_PRECISIONS,
    WORTH,
    anneal,
    apart,
    least_squares,
    settle_noise,
    waiting,
)
from brtf.search.settle import Trials, reduced

PULLING_MODELS: tuple[type[SlabModel], ...] = (GaussianSlab, StudentSlab)
"""Local models whose outliers still draw the fit towards them. While the structure is not yet found, a flat slab would
hold entries to be outliers that are only not yet explained."""
LARGEST_COLLAPSED_RANK = 16
"""Complete data with more components are searched in form 1."""
COLLAPSED_WORK, LARGEST_REFRESH_WORK, LARGEST_COLLAPSED_WORK = 2**26, 2**28, 2**31
"""Entries times packed products of components up to which complete data are searched in form 2, rows are refitted with
weights, and complete data are finished in form 2."""
MANY_AFTER, MANY_TIMES = 3, 4
"""Successful births in a row after which many components are proposed at once, where there are more already than a
start has, and how many times the present ones."""
SLACK = 2
"""Times the cap that the rank may have on the way: where components overlap, the way to a few leads through more."""
FEWEST_REGULAR = 10.0
"""Entries, of those that are not replaced, from which noise can be learnt."""
BIRTHS = ((1, False), (1, True), (2, False), (3, True))
"""Proposals of growth, varied over consecutive failures: how many components, and whether the residual is clipped."""


class Search(Trials):
    """One search: which moves are made, and what follows from their success or failure."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        rng: np.random.Generator,
        starts: Callable[[int], list[State]],
        affordable: int,
    ) -> None:
        super().__init__(problem, settings.max_sweeps)
        self.cap = min(settings.rank_limit(problem.observations.shape, problem.observations.n_observed), affordable)
        self.most = self.cap if settings.max_rank is None else min(max(SLACK * self.cap, self.cap + 2), affordable)
        self.noise_modes = settings.noise_candidates(problem.observations.order)
        self.many_wanted = settings.max_rank is not None and self.cap > START_COMPONENTS
        self.must_differ = settings.noise == "per-slice"
        self.shared_modes = settings.shared_modes(problem.observations.order)
        self.replaced = settings.outlier_kind == "replacement"
        self.rng = rng
        most = self.most  # a function that held the search would keep its states alive
        self.starts = cache(lambda: [waiting(state) for state in starts(most)])
        if self._is_complete and not self._affords(min(self.most, START_COMPONENTS)):
            self.problem = replace(problem, collapsed=False)
        self.converged_gain = settings.tol * problem.observations.n_observed  # nats a sweep
        self._next(partial(self.start, 0), *self._end)

    # ---- the course of a search --------------------------------------------------------------------------------

    @move
    def start(self, which: int) -> None:
        """Try one of the starts; the search goes on from the best of them.

        Where many components are allowed for by name, one more start has them all.
        """
        starts = self.starts()
        n_starts = len(starts) + (self.many_wanted and len(starts) > 1)
        last = which == len(starts)
        state = least_squares(self.problem, self.cap, starts[0], self.rng) if last else apart(starts[which])
        self._try_start(state, partial(self.started, which, n_starts))

    @move
    def started(self, which: int, n_starts: int) -> str:
        """Keep the start that was tried if it is the best; the others follow, and then what was asked for."""
        trial, self.tried = self.trial, None
        if which + 1 < n_starts:
            self._next(partial(self.start_again, which + 1, n_starts))
        else:
            self._next(partial(self.search, 0))
        if self.best is not None and not trial.bound > self.best.bound:
            return "another start dropped"
        self.best = trial
        return f"started with {trial.rank}"

    @move
    def start_again(self, which: int, n_starts: int) -> None:
        """Another start, or none where there are but two, of the same kind, and the first left nothing to explain."""
        alike = n_starts == len(START_PRECISIONS)
        enough = alike and proposals.birth(self.problem, self.point, 1, self.rng, clipped=True) is None
        self._next(partial(self.search, 1) if enough else partial(self.start, which))

    @move
    def search(self, phase: int) -> str | None:
        """What was asked for of noise and outliers, and then rounds of moves, from the given phase on.

        Complete data that are large or have many components are searched in form 1, which is much cheaper there.
        """
        self.starts.cache_clear()
        event = self._suit_form(self.point.rank)
        self._next(
            *([partial(self.choose_noise)] if self.must_differ else []),
            *([partial(self.structure_outliers)] if self.shared_modes or self.replaced else []),
            *([partial(self.come_down)] if phase == 1 else []),
            partial(self.explore, phase),
        )
        return event

    @move
    def search_collapsed(self) -> str | None:
        """What was searched in form 1 is finished in form 2 where that is not out of reach."""
        if self.problem.collapsed or not self._affords(self.point.rank, LARGEST_COLLAPSED_WORK):
            return None
        self._next(partial(self.explore, 0))
        return self._change_form(collapsed=True)

    def _suit_form(self, rank: int) -> str | None:
        """Go on in form 1 where the data are complete and so many components make weighted Grams expensive."""
        many = rank > LARGEST_COLLAPSED_RANK or not self._affords(rank)
        if self.problem.collapsed and many and self._is_complete:
            return self._change_form(collapsed=False)
        return None

    @property
    def _budget(self) -> int:
        """Half of all sweeps while the rank may be above the cap; the others are for the answer."""
        return self.max_sweeps if self.most == self.cap else self.max_sweeps // 2

    @property
    def _end(self) -> tuple[Move, ...]:
        """What comes after all other moves."""
        return (
            partial(self.search_collapsed),
            partial(self.converge, self.converged_gain, self.max_sweeps),
            *([partial(self.check_replaced, True)] if self.replaced else []),
        )

    def _mind_budget(self) -> None:
        """Come down to the cap without further ado when half of the sweeps are spent."""
        if self.n_sweeps >= self._budget and self.most > self.cap and self.best is not None and self.tried is None:
            self.starts.cache_clear()
            self.most, self.agenda = self.cap, []
            if self._lacks_what_was_asked_for:
                self._next(partial(self.search, 1), *self._end)
            else:
                self._next(partial(self.come_down), partial(self.explore, 1), *self._end)

    @property
    def _lacks_what_was_asked_for(self) -> bool:
        """Whether noise per slice, or outliers that are shared or replace the data, are still to come."""
        state = self.point.state
        unstructured = state.structure is None and bool(self.shared_modes or self.replaced)
        return unstructured or (state.slices is None and self.must_differ)

    @property
    def _is_complete(self) -> bool:
        return self.problem.observations.layout == "complete"

    def _affords(self, rank: int, work: float = COLLAPSED_WORK) -> bool:
        """Whether weighted Grams of that rank are cheap enough."""
        return self.problem.observations.n_observed * rank * (rank + 1) / 2 <= work

    def _change_form(self, *, collapsed: bool) -> str:
        before = self.point.bound
        self.problem = replace(self.problem, collapsed=collapsed)
        self.best = evaluate(self.problem, self.point.state)
        if self.beyond is not None:
            self.beyond += self.point.bound - before
        return f"{REFORMED}: {'weighted entries' if collapsed else 'completed data'}"

    @move
    def explore(self, phase: int) -> None:
        """A round of all moves: roughly converged ones in the first phase, then well converged, with all models."""
        self._next(
            partial(self.converge, (self.roughly, 0.1 * WORTH)[phase], 100),
            partial(self.choose_noise),
            partial(self.choose_rates),
            partial(self.choose_sides),
            partial(self.choose_centres),
            partial(self.choose_model, phase),
            partial(self.restructure, phase, self.problem.collapsed),
        )

    @move
    def restructure(self, phase: int, collapsed: bool) -> None:
        """The second half of a round: rows, births, merges and deaths.

        Weighted Grams of very many components are out of reach, and rows are not refreshed then.
        """
        modes = self.problem.modes if self._affords(self.point.rank, LARGEST_REFRESH_WORK) else ()
        self._next(
            *(partial(self.refresh, mode) for mode in modes),
            partial(self.grow, 0, 0),
            partial(self.shrink),
            partial(self.explore_again, phase, self.point.bound, collapsed),
        )

    @move
    def explore_again(self, phase: int, before: float, collapsed: bool) -> None:
        """Another round where the last one gained a nat or changed the form, otherwise the next phase."""
        if self.point.bound > before + WORTH or collapsed is not self.problem.collapsed:
            self._next(partial(self.explore, phase))
        elif phase == 0:
            self._next(partial(self.come_down), partial(self.explore, 1))

    # ---- rows, births, merges and deaths -----------------------------------------------------------------------

    @move
    def refresh(self, mode: int) -> None:
        """A robust refit of rows that may be lost."""
        state = proposals.refresh_rows(self.problem, self.point, mode)
        if state is not None:
            self._try(state, f"rows of mode {mode} refreshed", n_held=2, n_free=20)

    @move
    def grow(self, failures: int, successes: int, hopeless: tuple[bool, ...] = ()) -> str | None:
        """A birth, and others until the proposals fail in a row. Where one follows another, many components at once.

        ``hopeless`` are the kinds of residual, clipped or not, in which nothing was found.
        """
        rank = self.point.rank
        if failures == len(BIRTHS) or rank >= self.most:
            return None
        n_many = min(MANY_TIMES * rank, self.most)
        if _is_time_for_many(successes) and START_COMPONENTS < rank <= n_many // 2:
            self._next(partial(self.grow_many, 0, successes, n_many))
            return None if self._affords(n_many, LARGEST_COLLAPSED_WORK) else self._suit_form(n_many)
        n_components, clipped = BIRTHS[failures]
        if clipped in hopeless:
            self._next(partial(self.grow, failures + 1, successes, hopeless))
            return None
        n_components = min(n_components, self.most - rank)
        birth = proposals.birth(self.problem, self.point, n_components, self.rng, clipped=clipped)
        if birth is None:
            self._next(partial(self.grow, failures + 1, successes, (*hopeless, clipped)))
        else:
            then = partial(self.go_on_growing, rank, failures, successes, hopeless)
            self._try(birth, f"born {n_components}", then)
        return None

    @move
    def grow_many(self, attempt: int, successes: int, n_many: int) -> None:
        """One of the ways to propose so many components at once, or half of them."""
        many, share = WAYS_TO_GROW[attempt]
        state = many(self.problem, n_many // share, self.point.state, self.rng)
        then = partial(self.go_on_growing_many, attempt, successes, n_many, self.point.rank, self.point.bound)
        self._try(state, f"born {state.rank} anew", then, n_held=0)

    @move
    def go_on_growing_many(self, attempt: int, successes: int, n_many: int, before_rank: int, before: float) -> None:
        """Another way as long as they fail, and then births; after a success they are counted anew."""
        if self.point.bound > before:
            self._next(partial(self.go_on_growing, before_rank, 0, 0))
        elif attempt + 1 < len(WAYS_TO_GROW):
            self._next(partial(self.grow_many, attempt + 1, successes, n_many))
        else:
            self._next(partial(self.grow, 0, successes + 1))

    @move
    def go_on_growing(self, before_rank: int, failures: int, successes: int, hopeless: tuple[bool, ...] = ()) -> None:
        """The next birth, after some sweeps if the last one was a success."""
        if self.point.rank > before_rank:
            self._next(partial(self.converge, self.roughly, 100), partial(self.grow, 0, successes + 1))
        else:
            self._next(partial(self.grow, failures + 1, successes, hopeless))

    @move
    def come_down(self) -> str | None:
        """Where the rank is above the cap: first to one more component than that, then to the cap, whatever it costs.

        From then on the cap holds on the way too. What the last step costs is what one more component would bring.
        """
        self.most = self.cap
        if self.point.rank <= self.cap:
            return None
        if self.point.rank == self.cap + 1:
            self.beyond, target = self.point.bound, self.cap
        else:
            target = self.cap + 1
        before = self.point.bound
        self.best = reduced(self.problem, self.point, target)
        n_sweeps = min(100, (self.max_sweeps - self.n_sweeps) // 2)
        self._next(partial(self.converge, self.roughly, n_sweeps), partial(self.come_down))
        return f"reduced to {target} ({self.point.bound - before:+.1f})"

    @move
    def shrink(self) -> None:
        """One component less where they are alike, a merge of a collinear pair, or the death of a weak component.

        After each that is accepted the search for another begins anew.
        """
        if self.point.rank == 0:
            return
        self._next(partial(self.merge, tuple(proposals.collinear_pairs(self.point.state)[:3])))
        state = proposals.condense(self.problem, self.point)
        if state is not None:
            self._try(state, f"condensed to {state.rank}", partial(self.go_on_shrinking, self.point.bound))

    @move
    def merge(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """A merge of the first pair; the others follow, and then deaths, as long as they fail."""
        if not pairs:
            expendable = proposals.expendable_components(self.problem, self.point)[:4]
            self._next(partial(self.die, tuple(expendable)))
            return
        self._next(partial(self.merge, pairs[1:]))
        state = proposals.merge(self.problem, self.point, pairs[0], self.rng)
        self._try(state, "merged 2", partial(self.go_on_shrinking, self.point.bound))

    @move
    def die(self, components: tuple[int, ...]) -> None:
        """The death of the first component; the others follow as long as they fail."""
        if not components:
            return
        self._next(partial(self.die, components[1:]))
        state = proposals.death(self.problem, self.point, components[0])
        self._try(state, "died 1", partial(self.go_on_shrinking, self.point.bound), n_held=2)

    @move
    def go_on_shrinking(self, before: float) -> None:
        """Where a smaller state was accepted, what is next on the agenda, its rivals, gives way to a new beginning."""
        if self.point.bound > before:
            self.agenda.pop()
            self._next(partial(self.converge, WORTH, 30), partial(self.shrink))

    # ---- noise and outliers --------------------------------------------------------------------------------------

    @move
    def choose_model(self, phase: int) -> None:
        """Another local model, if at the same factors it comes close to the present one."""
        present, structure = self.point.state.outliers, self.point.state.structure
        if not isinstance(present, SlabModel) or (structure is not None and not structure.one_by_one):
            return
        kinds = (PULLING_MODELS, tuple(LOCAL_MODELS.values()))[phase]
        others = [with_local_model(self.problem, self.point, kind) for kind in kinds if type(present) is not kind]
        best = max(others, key=partial(noise_worth, self.point))
        if noise_worth(self.point, best) > noise_worth(self.point, self.point.state) - WORTH:
            self._try(best, f"{type(best.outliers).__name__} chosen", n_held=0, n_free=20)

    @move
    def choose_noise(self) -> str | None:
        """Noise that differs between slices, along the modes that raise the bound most; in any case where asked for."""
        if not self.noise_modes or self.point.state.slices is not None:
            return None
        points = []
        for modes in self.noise_modes:
            state = slice_noise(self.problem, self.point.state, modes)
            points.append(settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit)))
        best = max(points, key=lambda point: point.bound)
        modes = best.state.slices.modes if best.state.slices is not None else ()
        gain = best.bound - self.point.bound
        if not self.must_differ and not gain > WORTH:
            return None
        self.best = best
        self._next(partial(self.converge, self.roughly, 60))
        return f"noise per slice of {modes} ({gain:+.1f})"

    @move
    def structure_outliers(self) -> str:
        """Outliers that are shared, or replace the data, as asked for; their numbers settled at fixed factors."""
        law = initial_law(*value_range(self.problem)) if self.replaced else None
        state = replace(self.point.state, structure=OutlierStructure(self.shared_modes, law=law))
        self.best = settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit))
        self._next(
            partial(self.converge, self.roughly, 60),
            *([partial(self.check_replaced, False)] if self.replaced else []),
            partial(self.measure_channels),
        )
        return "outliers structured"

    @move
    def check_replaced(self, last: bool) -> str | None:
        """Outliers that are added instead, where replacement is not worth what its law costs, or leaves no noise.

        A histogram of 256 free numbers describes any noise better than noise does, and values without structure best
        of all, but then nothing is known of x or of the noise. The price is asked for once the search has ended, which
        then goes on without such a law.
        """
        state, sums = self.point.state, self.point.structure_sums
        if state.structure is None or state.structure.law is None or sums is None:
            return None
        n_observed = self.problem.observations.n_observed
        n_regular = float(sums[0].sum())
        enough = max((1.0 - PROBABILITY_RANGE[1]) * n_observed, min(FEWEST_REGULAR, 0.5 * n_observed))
        price = state.structure.law.price(sums[4])
        structure = OutlierStructure(self.shared_modes) if self.shared_modes else None
        state = with_noise(state, 1.0, START_MODEL, n_observed)
        point = evaluate_at(self.problem, replace(state, slices=None, structure=None), self.point.fit)
        point = evaluate_at(self.problem, learn_noise_globally(self.problem, point), point.fit)
        if state.slices is not None:
            point = evaluate_at(self.problem, slice_noise(self.problem, point.state, state.slices.modes), point.fit)
        if structure is not None:
            point = evaluate_at(self.problem, replace(point.state, structure=structure), point.fit)
        added = settle_noise(self.problem, point)
        if n_regular >= enough and (not last or self.point.bound - price >= added.bound):
            return None
        self.best = added
        if last:
            self._next(
                partial(self.converge, self.roughly, 60),
                partial(self.explore, 0),
                partial(self.converge, self.converged_gain, self.max_sweeps),
            )
        return f"outliers added, as replacement left {n_regular:.0f} entries, at a price of {price:.0f}"

    @move
    def measure_channels(self) -> str | None:
        """How far the noise of entries that share an outlier is correlated."""
        structure, sums = self.point.state.structure, self.point.structure_sums
        if not self.shared_modes or structure is None or sums is None:
            return None
        n_shared = math.prod(self.problem.observations.shape[mode] for mode in self.shared_modes)
        structure = measured_channels(structure, sums, n_shared)
        self.best = evaluate_at(self.problem, replace(self.point.state, structure=structure), self.point.fit)
        return f"{RESCALED}: {structure.n_channels:.2f} shared entries worth one"

    @move
    def choose_rates(self) -> str | None:
        """Outlier rates that differ between slices as the noise does, if that raises the bound."""
        state = self.point.state
        structure = state.structure or OutlierStructure()
        if state.slices is None or not isinstance(state.outliers, SlabModel) or structure.modes or structure.rates:
            return None
        rates = initial_rates(state.slices.modes, state.slices.precision.rate.size, state.outliers.probability)
        state = replace(state, structure=replace(structure, rates=rates))
        point = settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit))
        gain = point.bound - self.point.bound
        if not gain > WORTH:
            return None
        self.best = point
        return f"outlier rates per slice (+{gain:.1f})"

    @move
    def choose_sides(self) -> str | None:
        """Outliers that are more often of one sign, if that raises the bound, or of either sign alike if it does again.

        Shared outliers have no common sign, and values that replace the data have a law of their own.
        """
        state = self.point.state
        structure = state.structure or OutlierStructure()
        if not isinstance(state.outliers, SlabModel) or structure.modes or structure.law is not None:
            return None
        least = 0.0 if structure.sides else WORTH  # the simpler model is taken for nothing
        state, gain = with_sides(self.problem, self.point)
        if not gain > least:
            return None
        point = settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit))
        gain = point.bound - self.point.bound
        if not gain > least:
            return None
        self.best = point
        self._next(partial(self.converge, self.roughly, 60))
        kind = "outliers of either sign" if structure.sides else "one-sided outliers"
        return f"{kind} (+{gain:.1f})"

    @move
    def choose_centres(self) -> str | None:
        """Rows that are expected around a learnt centre instead of zero, for each mode that it pays for."""
        state = self.point.state
        for mode, rows in enumerate(state.factors):
            centred = rows.centred(state.lam)
            if rows.centre is None and state.rank and centred.kl(state.lam) < rows.kl(state.lam) - WORTH:
                state = state.with_factor(mode, centred)
        if state is self.point.state:
            return None
        modes = tuple(mode for mode, rows in enumerate(state.factors) if rows.centre is not None)
        point = evaluate_at(self.problem, update_component_precisions(state), self.point.fit)
        gain = point.bound - self.point.bound
        self.best = point
        self._next(partial(self.converge, self.roughly, 60))
        return f"rows of modes {modes} centred ({gain:+.1f})"


WAYS_TO_GROW: tuple[tuple[Callable[..., State], int], ...] = ((anneal, 1), (least_squares, 1), (least_squares, 2))
"""Proposals of many components at once: how, and by how much their number is divided."""


def _is_time_for_many(successes: int) -> bool:
    """After three births in a row, and where that failed after six, after twelve, …"""
    times, rest = divmod(successes, MANY_AFTER)
    return rest == 0 and times > 0 and times & (times - 1) == 0


def check_position(position: Position, state: State | None, order: int) -> None:
    """Refuse a position in which no search of data of that order can stand: it comes from a file."""
    limits = {"phase": 2, "mode": order, "attempt": 3, "failures": len(BIRTHS) + 1}
    counts = (
        "k",
        "n_sweeps",
        "n_held",
        "n_free",
        "n_before",
        "successes",
        "n_many",
        "before_rank",
        "pairs",
        "components",
    )
    check_agenda(position.agenda, limits | dict.fromkeys((*counts, "which", "n_starts"), 2**31))
    on_trial = any(name in ("hold", "approach", "settle", "judge", "started") for name, _ in position.agenda)
    at_first_start = any(name == "started" and arguments[0] == 0 for name, arguments in position.agenda)
    if (
        (position.trial is not None) != on_trial
        or (state is None) != at_first_start
        or (state is None) != (position.bound is None)
    ):
        raise ValueError("the agenda and the states do not agree")


def value_range(problem: Problem) -> tuple[float, float]:
    """The smallest and the largest value, in units of the data's scale."""

    def look(_: Sums, block: Block) -> tuple[float, float]:
        values = problem.values(block)
        return float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))

    _, ranges = visit(problem.observations, tuple, look)
    return min(low for low, _ in ranges), max(high for _, high in ranges)
