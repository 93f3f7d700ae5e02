"""Readings that race: searches of the same entries, compared after some dozen sweeps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrangement import Arrangement
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, add_up, workers
from brtf.inference.judge import WORTH
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.inference.smooth_residual import neighbours_alike
from brtf.model.settings import Settings
from brtf.model.state import State
from brtf.search.moment import Deadline, Moment
from brtf.search.moves.birth import BEYOND_CHANCE
from brtf.search.moves.order import Order
from brtf.search.moves.smooth_residual import BEYOND_CHANCE as ALIKE_BEYOND_CHANCE
from brtf.search.phases import NAMES
from brtf.search.problems import problem_at
from brtf.search.rank_one import relative_weights
from brtf.search.reading import FAR_APART, Reading, kept_modes, smooth_mode_of
from brtf.search.run import advance
from brtf.search.sketch import is_sketched
from brtf.search.spectra import leading_left_singular
from brtf.search.split import numbers_of_one, split_components

LAP = 40
"""Sweeps after the starts at which the readings are first compared. Later laps are twice as long."""
LAPS = 3
"""Laps after which the best reading has won."""


class Race:
    """Searches of the same entries under different readings.

    They race until they have found all components with rows in no order, of which nothing is said. Chains can follow
    much of what merged or folded modes explain, with bounds hardly lower, but do not know it in a long gap.
    """

    def __init__(
        self,
        observations: Observations,
        settings: Settings,
        rng: np.random.Generator,
        deadline: Deadline,
        watch: Callable[[Moment], object] = lambda moment: None,
        in_one_run: Collection[int] = (),
        in_runs: Collection[int] = (),
    ) -> None:
        self.whole, self.settings, self.rng, self.deadline, self.watch = observations, settings, rng, deadline, watch
        self.part = part_of(observations, copy.deepcopy(rng), in_one_run, in_runs)
        self.runners: dict[Reading, Runner] = {}
        self.of_all: dict[Reading, Runner] = {}

    @property
    def n_entries(self) -> int:
        """Entries on which the readings race."""
        return self.part.n_observed

    def runner(self, reading: Reading) -> Runner:
        """The search of a reading."""
        if reading not in self.runners:
            self.runners[reading] = self._runner(self.part, reading)
        return self.runners[reading]

    def _runner(self, part: Observations, reading: Reading) -> Runner:
        rng = copy.deepcopy(self.rng)
        return Runner(part, self.whole, reading, self.settings, rng, self.deadline, self.watch)

    def begin(self, reading: Reading) -> None:
        """Run the first lap of a reading; of data that are sketched, only its starts, on all entries.

        If these leave nothing to explain, there may be no race to run, and the search goes on from there. Otherwise the
        first lap on a part follows.
        """
        if self.part is not self.whole:
            runner = self._runner(self.whole, reading)
            if runner.is_sketched:
                self.of_all[reading] = runner
                runner.go_to(0)
        self._known(reading)

    def _known(self, reading: Reading) -> Runner:
        """The search that tells what a reading leaves to explain, after its starts on all entries or a first lap."""
        runner = self.of_all.get(reading)
        if runner is None or not (runner.found_all_at_once or self.deadline.passed):
            runner = self.runner(reading)
            runner.go_to(LAP)
        return runner

    def moment(self, reading: Reading) -> Moment | None:
        """The moment that the search of a reading of all entries has reached, if there was one."""
        runners = self.runners if self.part is self.whole else self.of_all
        moment = runners[reading].moment if reading in runners else None
        if moment is None or moment.position is None:
            return moment
        return replace(moment, position=moment.position.without_refusals_of(Order.name))

    def is_possible(self, reading: Reading) -> bool:
        """Whether the reading has numbers that a search can square, and fewer parameters than entries."""
        modelled = reading.apply(self.part)
        few = numbers_of_one(modelled.shape) < modelled.n_observed
        return modelled.largest <= FAR_APART * modelled.scale and few

    def run(
        self, first: Reading, rivals: list[Reading], *, patient: bool = False
    ) -> tuple[Reading, tuple[tuple[str, float], ...]]:
        """The best reading, and what else was tried with the nats by which that is worse.

        A reading drops out where its bound would be lower even if the next lap gained as much as the last one. If
        ``patient``, the first one is given up only when its search has found all components.
        """
        rivals = [rival for rival in rivals if self.is_possible(rival)]
        if not rivals or self.deadline.look():
            return first, ()
        racing = [first, *rivals]
        for lap in range(LAPS):
            for reading in racing:
                self.runner(reading).go_to(LAP * 2**lap)
            if self.deadline.look():
                return first, ()
            leader = max(self.runner(reading).bound for reading in racing)
            racing = [reading for reading in racing if self.runner(reading).within_reach >= leader]
            if len(racing) == 1 or all(self.runner(r).is_over for r in racing):
                break
        if patient:
            self._let_catch_up(first, racing)
            racing = list(dict.fromkeys((first, *racing)))
        bounds = {reading: self.runner(reading).bound for reading in (first, *rivals)}
        best = max(racing, key=lambda reading: bounds[reading])
        price = WORTH + math.log(len(rivals))
        if patient and best is not first:
            self._begin_at(first, best)
            racing, bounds[first] = list(dict.fromkeys((first, *racing))), self.runner(first).bound
        if first in racing and bounds[best] < bounds[first] + price:
            best = first
        tried = tuple((_told(reading, best), bounds[best] - bounds[reading]) for reading in bounds if reading != best)
        return best, tried

    def _let_catch_up(self, first: Reading, racing: list[Reading]) -> None:
        """Continue the first reading until it is out of the others' reach or its search has found all components.

        Merged modes explain much with few components. The tensor as given needs more of them, and time to find them.
        """
        runner = self.runner(first)
        to_beat = max((self.runner(reading).within_reach for reading in racing if reading != first), default=-math.inf)
        n_sweeps = LAP * 2**LAPS
        while (
            not (runner.is_over or runner.bound > to_beat or self.deadline.look())
            and n_sweeps <= self.settings.max_sweeps
        ):
            runner.go_to(n_sweeps)
            n_sweeps += LAP

    def _begin_at(self, finer: Reading, merged: Reading) -> None:
        """Let the search of a finer reading begin anew at the components of a merged one, where these are its own.

        Not where readings race on a part: the search of all entries could not begin there.
        """
        apart = len(merged.arrangement.groups) + 1 == len(finer.arrangement.groups)
        if not apart or finer.link != merged.link or self.part is not self.whole or self.deadline.look():
            return
        runner, rival = self.runner(finer), self.runner(merged)
        factors = split_components(rival.state, merged.arrangement, finer.arrangement, self.part.shape)
        limit = self.settings.max_rank
        if factors is None or (limit is not None and factors[0].shape[1] > limit):
            return
        share = rival.modelled.scale ** (1.0 / len(factors))
        settings = replace(self.settings, init=[share * factor for factor in factors])
        informed = Runner(self.part, self.whole, finer, settings, copy.deepcopy(self.rng), self.deadline, self.watch)
        informed.go_to(LAP * 2**LAPS)
        if informed.bound > runner.bound:
            self.runners[finer] = informed

    def noise_follows_level(self, reading: Reading) -> bool:
        """Whether the noise depends on the level beyond chance, or differs between slices.

        With u = τ̄ w D and g = ln(1 + |x̄|) about its mean, a variance that changes as e^{bg} gains about
        ½ (½ Σ (u − ū) g)² / (½ Σ g²) nats.
        """
        problem, point = self._known(reading).point()
        if point.state.slices is not None:
            return True

        def add(sums: Sums, block: Block) -> None:
            found = point.local(block)
            level = np.log1p(np.abs(problem.values(block) - point.fit.residual(block)))
            squares = found.rho * found.weight
            sums[0][...] += np.array([level.size, level.sum(), level @ level, squares.sum(), squares @ level])

        (sums,) = add_up(problem.observations, lambda: (np.zeros(5),), add)
        n, level, level_sq, squares, product = sums
        spread = level_sq - level**2 / n
        score = product - squares * level / n
        return bool(spread > 0 and 0.25 * score**2 / spread > WORTH)

    def neighbours_are_alike(self, reading: Reading) -> bool:
        """Whether neighbouring residuals are alike along any mode, beyond chance."""
        problem, point = self._known(reading).point()
        alike = neighbours_alike(problem, point.state, point.fit, point.local)
        modes = self.settings.smooth_modes(problem.observations.shape)
        return any(alike[mode] > ALIKE_BEYOND_CHANCE for mode in modes)

    def mergers(self, reading: Reading) -> list[Reading]:
        """The readings with two groups merged that may pay.

        The residual, so unfolded, has structure beyond chance; or the components found have as many numbers as those
        that the merged reading would need for the same low-rank part.
        """
        arrangement = reading.arrangement
        if arrangement.folds:
            return []
        kept = [modes for _, modes in kept_modes(self.settings, arrangement.order)]
        n_groups = len(arrangement.groups)
        pairs = [pair for pair in combinations(range(n_groups), 2) if n_groups > 2]
        candidates = {arrangement.merging(*pair): pair for pair in pairs}
        candidates = {one: pair for one, pair in candidates.items() if all(map(one.keeps, kept))}
        smooth_mode = smooth_mode_of(self.settings, arrangement.order)
        found = {replace(reading, arrangement=one): pair for one, pair in candidates.items() if one.leaves(smooth_mode)}
        runner = self._known(reading)
        n_numbers = runner.rank * numbers_of_one(runner.modelled.shape)

        def may_pay(one: Reading, pair: tuple[int, int]) -> bool:
            n_of_one = numbers_of_one(one.arrangement.shape(self.part.shape))
            enough = n_numbers >= n_of_one and n_numbers >= runner.rank_merged(pair) * n_of_one
            return enough or (not runner.found_all_at_once and self._has_structure(runner, one.arrangement))

        return [one for one, pair in found.items() if self.is_possible(one) and may_pay(one, pair)]

    def _has_structure(self, runner: Runner, arrangement: Arrangement) -> bool:
        """Whether the residual, with these modes merged, has a singular value beyond that of random signs."""
        problem, point = runner.point()
        weigh = relative_weights(problem, point, clipped=False)
        blocks = problem.observations.block_list
        left = np.concatenate([weigh(block) * point.fit.residual(block) for block in blocks])
        left = runner.reading.arrangement.entries(left, self.part)  # in the order of the data
        left = arrangement.regrouped(left, self.part)
        merged = arrangement.apply(self.part)
        mode = max(range(merged.order), key=lambda k: len(arrangement.groups[k]))
        signs = np.where(np.random.default_rng(0).integers(0, 2, left.size), 1.0, -1.0)

        def strength(values: Array) -> float:
            return float(leading_left_singular(merged, mode, 1, lambda block: values[block.entries])[1][0])

        return strength(left) ** 2 > BEYOND_CHANCE * strength(left * signs) ** 2


class Runner:
    """The search of one reading in a race."""

    def __init__(
        self,
        part: Observations,
        whole: Observations,
        reading: Reading,
        settings: Settings,
        rng: np.random.Generator,
        deadline: Deadline,
        watch: Callable[[Moment], object],
    ) -> None:
        self.reading, self.rng, self.deadline, self.watch = reading, rng, deadline, watch
        if part.shape != whole.shape:  # these are labels of all positions
            settings = replace(settings, outlier_labels=None)
        self.modelled = reading.apply(part)
        self.settings = replace(reading.settings(settings), max_seconds=None).with_known_modes(self.modelled.order)
        self.shift = reading.link.bound_shift(replace(part, scale=self.modelled.scale))
        self.growth = whole.n_observed / part.n_observed
        self.lengths = [
            full / length
            for full, length in zip(reading.arrangement.shape(whole.shape), self.modelled.shape, strict=True)
        ]
        self.moment: Moment | None = None
        self.n_started: int | None = None

    def go_to(self, n_sweeps: int) -> None:
        """Go on until ``n_sweeps`` after the starts and what was asked for, or until it is over or the time ends.

        A proposal in progress is judged first.
        """

        def until(moment: Moment) -> bool:
            self.moment = moment
            self.watch(moment)
            if self.deadline.look():
                return True
            if moment.position is None or moment.position.phase <= NAMES.index("asked for"):
                return False
            if self.n_started is None:
                self.n_started = moment.n_sweeps
            # a proposal that is not judged yet, such as many components at once, may be what makes the difference
            converged = self.is_over and moment.position.sweeps is None
            return moment.position.proposal is None and (converged or moment.n_sweeps - self.n_started >= n_sweeps)

        if self.moment is None or not (until(self.moment) or self.moment.n_sweeps >= self.settings.max_sweeps):
            self.moment = advance(self.modelled, self.settings, self.rng, self.moment, until)

    @property
    def _reached(self) -> Moment:
        if self.moment is None:
            raise RuntimeError("the race has not begun")
        return self.moment

    @property
    def state(self) -> State:
        """The best state so far."""
        if self._reached.state is None:
            raise RuntimeError("the race has not begun")
        return self._reached.state

    @property
    def is_sketched(self) -> bool:
        """Whether the search looks for its components in a sketch."""
        return is_sketched(problem_at(self.modelled, self.settings, Moment(None, None, (), 0, {})))

    @property
    def is_over(self) -> bool:
        """Whether the search has found all components, or used all of its sweeps."""
        position = self._reached.position
        found_all = position is not None and position.phase >= NAMES.index("order")
        return found_all or self._reached.n_sweeps >= self.settings.max_sweeps

    @property
    def found_all_at_once(self) -> bool:
        """Whether the rough rounds ended within the first lap: births found no structure left to explain."""
        return self.is_over and self._reached.n_sweeps - (self.n_started or 0) < LAP

    @property
    def rank(self) -> int:
        """Components of the best state so far."""
        return 0 if self._reached.state is None else self._reached.state.rank

    def point(self) -> tuple[Problem, Point]:
        """The best point so far and its problem."""
        with workers(self.settings.n_jobs):
            problem = problem_at(self.modelled, self.settings, self._reached)
            return problem, evaluate(problem, self.state)

    def rank_merged(self, pair: tuple[int, int]) -> int:
        """Components that the low-rank part found so far has at least, with two modes read as one.

        As many as any of its unfoldings has singular values s beyond those of noise, s > σ(√p + √q) for a p × q matrix;
        σ is larger by the square root of the share of entries that are observed.
        """
        factors, needed = self.state.factors, 1
        n_all = math.prod(rows.n_rows for rows in factors)
        variance = n_all / (self.modelled.n_observed * float(self.state.tau.mean))
        for group in [pair, *((mode,) for mode in range(len(factors)) if mode not in pair)]:
            own, others = (
                np.prod([rows.gram for mode, rows in enumerate(factors) if (mode in group) == inside], axis=0)
                for inside in (True, False)
            )
            values, vectors = np.linalg.eigh(own)
            half = vectors * np.sqrt(np.maximum(values, 0.0))
            n_rows = math.prod(factors[mode].n_rows for mode in group)
            edge = variance * (math.sqrt(n_rows) + math.sqrt(n_all / n_rows)) ** 2
            needed = max(needed, int(np.count_nonzero(np.linalg.eigvalsh(half.T @ others @ half) > edge)))
        return needed

    @property
    def bound(self) -> float:
        """The bound of ln p(Y) of the whole data, estimated from the part; exact where that is everything.

        What a law of replaced values costs is subtracted: the bound does not charge for it.
        """
        record, state = self._reached.latest, self.state
        if record is None:
            raise RuntimeError("the race has not begun")
        law = None if state.structure is None else state.structure.law
        if self.growth == 1.0 and law is None:
            return record.bound + self.shift
        _, point = self.point()
        price = 0.0 if law is None or point.structure_sums is None else law.price(point.structure_sums.law)
        if self.growth == 1.0:
            return record.bound + self.shift - price
        state, terms = point.state, point.terms
        rows = [prior.kl(rows, state.lam) for prior, rows in zip(state.row_priors, state.factors, strict=True)]
        divergence = sum(length * kl for length, kl in zip(self.lengths, rows, strict=True))
        others = terms.total - terms.likelihood + sum(rows) - price
        return self.growth * (terms.likelihood + self.shift) - divergence + others

    @property
    def within_reach(self) -> float:
        """The bound if it rose again as in the last half of the sweeps after the starts; or the final one."""
        if self.is_over:
            return self.bound
        records, n_started = self._reached.trace, self.n_started or 0
        middle = (n_started + self._reached.n_sweeps) // 2
        earlier = [record.bound for record in records if record.sweep <= middle] or [records[0].bound]
        return self.bound + self.growth * (records[-1].bound - earlier[-1])


def part_of(
    observations: Observations,
    rng: np.random.Generator,
    in_one_run: Collection[int] = (),
    in_runs: Collection[int] = (),
) -> Observations:
    """The entries at random positions of every mode, about as many as the plan says; all of data up to twice as many.

    Of modes ``in_one_run``, which may have a period, neighbouring positions; of modes ``in_runs`` runs of these.
    """
    if observations.n_observed <= 2 * observations.plan.raced_data:  # or the winner would begin again for little
        return observations
    share = (observations.plan.raced_data / observations.n_observed) ** (1.0 / observations.order)
    counts = [max(min(length, 2), math.ceil(share * length)) for length in observations.shape]
    chosen = [
        _runs_of(length, count, count if mode in in_one_run else math.isqrt(count) if mode in in_runs else 1, rng)
        for mode, (length, count) in enumerate(zip(observations.shape, counts, strict=True))
    ]
    return observations.at_positions(chosen)


def _runs_of(length: int, count: int, run: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """So many of the positions 0 to length − 1, in runs of neighbours at random places, ascending."""
    run, rest = max(run, 1), max(length - count, 0)
    n_runs = math.ceil(count / run)
    before = np.sort(rng.choice(rest + n_runs, n_runs, replace=False)) - np.arange(n_runs)  # positions left out
    found: NDArray[np.intp] = np.arange(count) + np.repeat(before, run)[:count]
    return found


def _told(reading: Reading, best: Reading) -> str:
    """The part of a reading in which it differs from the best one."""
    if reading.link.name != best.link.name:
        return str(reading.link.name)
    if reading.smooth is not best.smooth:
        return str(reading.smooth)
    return str(reading.arrangement)
