"""How to read the data: which link, which modes are read as one, and which one is folded. The bound chooses.

Every reading of the data, a link with an arrangement, has a bound of the same ln p(Y). Readings race: each is a search
of its own, a few dozen sweeps at a time, and one that cannot catch up any more drops out. The reading that the search
would have without a choice is the first runner, so that on data where nothing is to be chosen the search goes on from
there, and nothing is lost. Three screens save most races: a link is tried only where the noise depends on the level,
modes are merged only where the residual has structure beyond chance that merging would explain, and a mode is folded
only by periods that time stamps or lines in its spectrum suggest.

Large data race on a part, random positions along every mode (along one that may be folded, neighbouring ones), and the
bounds are scaled to the whole: the likelihood by the number of entries, the divergence of the rows of a mode by their
number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from brtf.data.arrangement import Arrangement, as_text
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums, add_up, workers
from brtf.data.periods import FEWEST_CYCLES, suggested_periods
from brtf.inference.judge import WORTH
from brtf.inference.point import Point, evaluate
from brtf.inference.problem import Problem
from brtf.model.links import Link, link_named, possible_links
from brtf.model.settings import Settings
from brtf.search.moves.birth import BEYOND_CHANCE
from brtf.search.phases import NAMES
from brtf.search.rank_one import relative_weights
from brtf.search.run import Deadline, Moment, advance, problem_at
from brtf.search.spectra import leading_left_singular

LAP = 40
"""Sweeps after the starts at which the readings are first compared. Later laps are twice as long."""
LAPS = 3
"""Laps after which the best reading has won."""
TRIAL_ENTRIES = 2**16
"""Entries on which readings race; larger data send a part."""
FAR_APART = 1e8
"""Ratio of the largest to the typical size from which squares of the largest entries swamp the others in float64."""


@dataclass(frozen=True)
class Reading:
    """A way to read the data: a link t of the values, and an arrangement of the modes."""

    link: Link
    arrangement: Arrangement

    def apply(self, observations: Observations) -> Observations:
        """The data as the search sees them: t(Y), with merged or folded modes."""
        return self.arrangement.apply(self.link.apply(observations))

    def settings(self, settings: Settings) -> Settings:
        """The settings of a search that sees them, with the modes as read.

        Outliers of folded modes are added, each on its own: shared along half of a mode they would have no name.
        """
        noise, outliers = (
            None if modes is None else self.arrangement.factor_numbers(modes)
            for modes in _named_modes(settings, self.arrangement.order)
        )
        smooth = settings.smooth_residual
        if smooth not in (None, "auto"):
            (smooth,) = self.arrangement.factor_numbers((int(smooth) % self.arrangement.order,))
        kind = "additive" if self.arrangement.periods and settings.outlier_kind == "auto" else settings.outlier_kind
        modes = settings.modes
        if modes not in (None, "auto"):
            said = settings.said_of_modes(self.arrangement.order)
            factors = ((self.arrangement.factor_numbers((mode,)), words) for mode, words in said.items())
            modes = tuple((factor, words) for numbers, words in factors for factor in numbers)
        changed = {
            "outlier_kind": kind,
            "modes": modes,
            "noise_modes": noise,
            "outlier_modes": outliers,
        }
        return replace(settings, link=self.link.name, arrangement=None, smooth_residual=smooth, **changed)


@dataclass(frozen=True)
class Comparison:
    """One choice: what was chosen for an option, and by how much the bound prefers it to what else was tried.

    Attributes
    ----------
    option : "link" or "arrangement"
    chosen : the value, as text
    tried : what it was compared with, as text, and the nats by which the chosen value is better; empty if the screen
        showed that nothing else pays
    n_entries : entries on which they were compared
    """

    option: str
    chosen: str
    tried: tuple[tuple[str, float], ...]
    n_entries: int


@dataclass(frozen=True, eq=False)
class Chosen:
    """The result of the choice: the reading, the comparisons, and a moment of its search to go on from, if any."""

    reading: Reading
    comparisons: tuple[Comparison, ...] = ()
    since: Moment | None = None


def given_reading(observations: Observations, settings: Settings) -> Reading:
    """The reading that the settings ask for; "auto" as if nothing were to be chosen. Raises where it is impossible."""
    order = observations.order
    settings.noise_candidates(observations.shape, observations.n_observed)
    settings.shared_modes(order)
    settings.said_of_modes(order)
    settings.smooth_modes(observations.shape)
    link = link_named(None if settings.link == "auto" else settings.link, observations)
    if settings.arrangement in (None, "auto"):
        return Reading(link, Arrangement.as_given(order))
    if isinstance(settings.arrangement, dict):
        arrangement = Arrangement.folded(settings.arrangement, observations.shape)
    else:
        arrangement = Arrangement.checked(settings.arrangement, order)
    for name, modes in _kept_modes(settings, order):
        if not arrangement.keeps(modes):
            raise ValueError(
                f"{name}={getattr(settings, name)} does not go with arrangement={as_text(arrangement.groups)}, which "
                "merges one of these modes with another. Name all modes of a group, or none."
            )
    if not arrangement.leaves(_smooth_mode(settings, order)):
        raise ValueError(
            f"smooth_residual={settings.smooth_residual} needs its mode as it is, but arrangement={arrangement} "
            "merges or folds it."
        )
    if not arrangement.is_as_given and settings.inference == "paper":
        raise ValueError('arrangement needs inference="calibrated": the paper factorizes the tensor as it is.')
    if not arrangement.is_as_given and not isinstance(settings.init, str):
        raise ValueError("arrangement cannot merge or fold modes where init gives their factors.")
    return Reading(link, arrangement)


def choose(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    seconds: float | None = None,
    watch: Callable[[Moment], object] = lambda moment: None,
) -> Chosen:
    """The reading of the data that the bound prefers among those that the settings leave open.

    After so many seconds it is the best one so far. ``watch`` receives every moment of the searches that race.
    """
    plain = given_reading(observations, settings)
    automatic = settings.inference == "calibrated" and isinstance(settings.init, str) and not observations.in_chunks
    # values that replace others repeat exactly, and the density of those depends on the link without meaning anything
    comparable = settings.link == "auto" and automatic and settings.outlier_kind != "replacement"
    links = possible_links(observations) if comparable else [plain.link]
    arranging = settings.arrangement == "auto" and automatic
    folds = possible_folds(observations) if arranging else []
    folds = [one for one in folds if one.leaves(_smooth_mode(settings, observations.order))]
    arranging = arranging and (observations.order > 2 or bool(folds))
    if len(links) == 1 and not arranging:
        return Chosen(plain)
    race = Race(observations, settings, rng, Deadline(seconds), watch, {mode for one in folds for mode, _ in one.folds})
    if not race.is_possible(plain):
        return Chosen(plain)
    race.runner(plain).go_to(LAP)
    if race.deadline.passed:
        return Chosen(plain, since=race.moment(plain))
    best, comparisons = plain, []
    if len(links) > 1:
        rivals = [replace(plain, link=link) for link in links[1:]] if race.noise_follows_level(plain) else []
        best, tried = race.run(best, rivals)
        comparisons.append(Comparison("link", str(best.link.name), tried, race.n_entries))
    if arranging:
        tried_before: tuple[tuple[str, float], ...] = ()
        rivals = [replace(best, arrangement=one) for one in folds]
        while not race.deadline.look():
            found, tried = race.run(best, [*rivals, *race.mergers(best)], patient=True)
            tried_before += tried
            if found is best:
                break
            best = found
            rivals = [replace(best, arrangement=one) for one in doubled(best.arrangement, observations.shape)]
            rivals = [one for one in rivals if one not in race.runners]
        comparisons.append(Comparison("arrangement", str(best.arrangement), tried_before, race.n_entries))
    return Chosen(best, tuple(comparisons), race.moment(best))


class Race:
    """Searches of the same entries under different readings."""

    def __init__(
        self,
        observations: Observations,
        settings: Settings,
        rng: np.random.Generator,
        deadline: Deadline,
        watch: Callable[[Moment], object] = lambda moment: None,
        in_runs: Collection[int] = (),
    ) -> None:
        self.whole, self.settings, self.rng, self.deadline, self.watch = observations, settings, rng, deadline, watch
        self.part = part_of(observations, copy.deepcopy(rng), in_runs)
        self.runners: dict[Reading, Runner] = {}

    @property
    def n_entries(self) -> int:
        """Entries on which the readings race."""
        return self.part.n_observed

    def runner(self, reading: Reading) -> Runner:
        """The search of a reading."""
        if reading not in self.runners:
            rng = copy.deepcopy(self.rng)
            self.runners[reading] = Runner(
                self.part, self.whole, reading, self.settings, rng, self.deadline, self.watch
            )
        return self.runners[reading]

    def moment(self, reading: Reading) -> Moment | None:
        """The moment that the search of a reading has reached, if it raced on all entries."""
        return self.runners[reading].moment if self.part is self.whole and reading in self.runners else None

    def is_possible(self, reading: Reading) -> bool:
        """Whether the reading has numbers that a search can square, and fewer parameters than entries."""
        modelled = reading.apply(self.part)
        few = _numbers_of_one(modelled.shape) < modelled.n_observed
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
        if first in racing and bounds[best] < bounds[first] + WORTH + math.log(len(rivals)):
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

    def noise_follows_level(self, reading: Reading) -> bool:
        """Whether the noise of a first lap depends on the level beyond chance, or differs between slices.

        With u = τ̄ w D and g = ln(1 + |x̄|) about its mean, a variance that changes as e^{κg} gains about
        ½ (½ Σ (u − ū) g)² / (½ Σ g²) nats.
        """
        problem, point = self.runner(reading).point()
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

    def mergers(self, reading: Reading) -> list[Reading]:
        """The readings with two groups merged that may pay.

        The residual, so unfolded, has structure beyond chance; or the components found have as many numbers as one
        component of the merged reading.
        """
        arrangement = reading.arrangement
        if arrangement.folds:
            return []
        kept = [modes for _, modes in _kept_modes(self.settings, arrangement.order)]
        n_groups = len(arrangement.groups)
        candidates = [arrangement.merging(*pair) for pair in combinations(range(n_groups), 2) if n_groups > 2]
        candidates = [one for one in candidates if all(map(one.keeps, kept))]
        candidates = [one for one in candidates if one.leaves(_smooth_mode(self.settings, arrangement.order))]
        runner = self.runner(reading)
        runner.go_to(LAP)
        if runner.explained:
            return []
        found = [replace(reading, arrangement=one) for one in candidates]
        found = [one for one in found if self.is_possible(one)]
        n_numbers = runner.rank * _numbers_of_one(runner.modelled.shape)
        return [
            one
            for one in found
            if n_numbers >= _numbers_of_one(one.arrangement.shape(self.part.shape))
            or self._has_structure(runner, one.arrangement)
        ]

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
        self.settings = replace(reading.settings(settings), max_seconds=None)
        self.modelled = reading.apply(part)
        self.shift = reading.link.bound_shift(replace(part, scale=self.modelled.scale))
        self.growth = whole.n_observed / part.n_observed
        self.lengths = [
            full / length
            for full, length in zip(reading.arrangement.shape(whole.shape), self.modelled.shape, strict=True)
        ]
        self.moment: Moment | None = None
        self.n_started: int | None = None

    def go_to(self, n_sweeps: int) -> None:
        """Go on until so many sweeps after the starts, or the end of the search or of the time."""

        def until(moment: Moment) -> bool:
            self.watch(moment)
            if self.deadline.look():
                return True
            if moment.position is None or moment.position.phase == NAMES.index("start"):
                return False
            if self.n_started is None:
                self.n_started = moment.n_sweeps
            return moment.n_sweeps - self.n_started >= n_sweeps

        if self.moment is None or not (until(self.moment) or self.is_over):
            self.moment = advance(self.modelled, self.settings, self.rng, self.moment, until)

    @property
    def _reached(self) -> Moment:
        if self.moment is None:
            raise RuntimeError("the race has not begun")
        return self.moment

    @property
    def is_over(self) -> bool:
        """Whether the search has found all components, or used all of its sweeps."""
        position = self._reached.position
        found_all = position is not None and position.phase >= NAMES.index("cap")
        return found_all or self._reached.n_sweeps >= self.settings.max_sweeps

    @property
    def explained(self) -> bool:
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
            state = self._reached.state
            if state is None:
                raise RuntimeError("the race has not begun")
            return problem, evaluate(problem, state)

    @property
    def bound(self) -> float:
        """The bound of ln p(Y) of the whole data, estimated from the part; exact where that is everything.

        What a law of replaced values costs is subtracted: the bound does not charge for it.
        """
        record, state = self._reached.latest, self._reached.state
        if record is None or state is None:
            raise RuntimeError("the race has not begun")
        law = None if state.structure is None else state.structure.law
        if self.growth == 1.0 and law is None:
            return record.bound + self.shift
        _, point = self.point()
        price = 0.0 if law is None or point.structure_sums is None else law.price(point.structure_sums[4])
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


def possible_folds(observations: Observations) -> list[Arrangement]:
    """The data with one mode folded by a period that time stamps or the spectrum suggest."""
    return [
        Arrangement.folded({mode: period}, observations.shape)
        for mode in range(observations.order)
        for period in suggested_periods(observations, mode)
    ]


def doubled(arrangement: Arrangement, shape: tuple[int, ...]) -> list[Arrangement]:
    """The arrangement with its one folded mode folded by twice the period: weak first harmonics leave no line."""
    return [
        Arrangement.folded({mode: 2 * period}, shape)
        for mode, period in arrangement.folds
        if 2 * period * FEWEST_CYCLES <= shape[mode]
    ]


def part_of(observations: Observations, rng: np.random.Generator, in_runs: Collection[int] = ()) -> Observations:
    """The entries at random positions of every mode, so that about ``TRIAL_ENTRIES`` are left; all of small data.

    Of modes ``in_runs``, which may have a period, neighbouring positions.
    """
    share = (TRIAL_ENTRIES / observations.n_observed) ** (1.0 / observations.order)
    if share >= 1.0:
        return observations
    counts = [max(min(length, 2), math.ceil(share * length)) for length in observations.shape]
    chosen = [
        int(rng.integers(length - count + 1)) + np.arange(count)
        if mode in in_runs
        else np.sort(rng.choice(length, count, replace=False))
        for mode, (length, count) in enumerate(zip(observations.shape, counts, strict=True))
    ]
    return observations.at_positions(chosen)


def _numbers_of_one(shape: tuple[int, ...]) -> int:
    """Free numbers of one component: Σ I_n − N + 1."""
    return sum(shape) - len(shape) + 1


def _named_modes(settings: Settings, order: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The modes that the settings name for the noise and for the outliers, counted from the front."""
    noise_modes = (0,) if settings.noise == "per-slice" and settings.noise_modes is None else settings.noise_modes
    noise, outliers = (
        None if modes is None else tuple(int(mode) % order for mode in modes)
        for modes in (noise_modes, settings.outlier_modes)
    )
    return noise, outliers


def _kept_modes(settings: Settings, order: int) -> list[tuple[str, tuple[int, ...]]]:
    """Sets of modes that must stay whole groups, each with the option that names them."""
    named = zip(("noise_modes", "outlier_modes"), _named_modes(settings, order), strict=True)
    kept = [(name, modes) for name, modes in named if modes is not None]
    return kept + [("modes", (mode,)) for mode in settings.said_of_modes(order)]


def _smooth_mode(settings: Settings, order: int) -> int | None:
    """The mode that the settings name for a smooth residual, counted from the front."""
    return None if settings.smooth_residual in (None, "auto") else int(settings.smooth_residual) % order


def _told(reading: Reading, best: Reading) -> str:
    """The part of a reading in which it differs from the best one."""
    if reading.link.name != best.link.name:
        return str(reading.link.name)
    return str(reading.arrangement)
