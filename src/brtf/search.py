"""The search: try a move, settle it, judge it by the bound, keep it or drop it. The only place that decides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from brtf import proposals
from brtf.accelerate import Anderson
from brtf.calibrated import (
    Point,
    Problem,
    evaluate,
    evaluate_at,
    learn_noise,
    learn_noise_globally,
    slice_noise,
    sweep,
    with_noise,
)
from brtf.local import LOCAL_MODELS, FlatSlab, GaussianSlab, SlabModel, StudentSlab
from brtf.model import OutlierStructure, State
from brtf.posteriors import initial_law, initial_rates, measured_channels
from brtf.settings import Settings
from brtf.updates import negligible_components, update_component_precisions

WORTH = 1.0
"""Nats by which a structural change must raise the bound."""
START_MODEL = GaussianSlab(0.1, 4.0, 100.0)
"""Where local models start: some outliers, heavy tails, a slab ten times as wide as the noise."""
START_PRECISIONS = (8.0, 30.0)
"""Noise precisions of the starts, for data of unit scale."""
PULLING_MODELS: tuple[type[SlabModel], ...] = (GaussianSlab, StudentSlab)
"""Local models whose outliers still draw the fit towards them. While the structure is not yet found, a flat slab would
hold entries to be outliers that are only not yet explained."""
START_COMPONENTS = 10
"""Components of a spectral start; births add what is missing."""
LARGEST_COLLAPSED_RANK = 16
"""Complete data with more components are searched in form 1."""
COLLAPSED_WORK, LARGEST_REFRESH_WORK, LARGEST_COLLAPSED_WORK = 2**26, 2**28, 2**31
"""Entries times packed products of components up to which complete data are searched in form 2, rows are refitted with
weights, and complete data are finished in form 2."""
LEARN_NOISE_EVERY = 3
"""Sweeps per step of the noise and outlier numbers, after the first few."""
ACCELERATE_AFTER = 5
"""Sweeps after which slow convergence is accelerated; most points settle sooner."""
MANY_AFTER = 3
"""Successful births in a row after which many components are proposed at once."""
BIRTHS = ((1, False), (1, True), (2, False), (3, True))
"""Proposals of growth, varied over consecutive failures: how many components, and whether the residual is clipped."""


@dataclass(frozen=True, eq=False)
class Step:
    """Where the search stands after a sweep or a proposal: the best point, all sweeps so far, and what happened."""

    point: Point
    n_sweeps: int
    event: str = ""


class Search:
    """One search: the best point so far, and the sweeps spent, on it and on proposals that were dropped."""

    def __init__(self, problem: Problem, settings: Settings, rng: np.random.Generator) -> None:
        self.problem = problem
        self.max_rank = settings.rank_limit(problem.observations.shape)
        self.max_sweeps = settings.max_sweeps
        self.tol = settings.tol
        self.noise_modes = settings.noise_candidates(problem.observations.order)
        self.roughly = max(WORTH, 1e-4 * problem.observations.n_observed)  # nats a sweep, far from the end
        self.many_wanted = settings.max_rank is not None and settings.max_rank > 2 * START_COMPONENTS
        self.must_differ = settings.noise == "per-slice"
        self.shared_modes = settings.shared_modes(problem.observations.order)
        self.replaced = settings.outlier_kind == "replacement"
        self.rng = rng
        self.n_sweeps = 0
        self.drift = 0.0  # what the next sweep of the best point would gain, as far as is known
        self.point: Point

    def run(self, starts: list[State]) -> Iterator[Step]:
        """From the starts to the best point found: converge, grow, merge, shrink until a round gains less than a nat.

        Complete data that are large or have many components are searched in form 1, which is much cheaper there, and
        finished in form 2 where that is not out of reach.
        """
        yield from self.start(starts)
        self._suit_form(self.point.rank)
        yield from self.explore()
        if not self.problem.collapsed and self._affords(self.point.rank, LARGEST_COLLAPSED_WORK):
            self._change_form(collapsed=True)
            yield from self.explore()
        yield from self.converge(self.tol * self.problem.observations.n_observed, n_sweeps=self.max_sweeps)

    def _suit_form(self, rank: int) -> None:
        """Go on in form 1 where the data are complete and so many components make weighted Grams expensive."""
        many = rank > LARGEST_COLLAPSED_RANK or not self._affords(rank)
        if self.problem.collapsed and many and self._is_complete:
            self._change_form(collapsed=False)

    @property
    def _is_complete(self) -> bool:
        return self.problem.observations.layout == "complete"

    def _affords(self, rank: int, work: float = COLLAPSED_WORK) -> bool:
        """Whether weighted Grams of that rank are cheap enough."""
        return self.problem.observations.n_observed * rank * (rank + 1) / 2 <= work

    def _change_form(self, *, collapsed: bool) -> None:
        self.problem = replace(self.problem, collapsed=collapsed)
        self.point = evaluate(self.problem, self.point.state)

    def explore(self) -> Iterator[Step]:
        """Rounds of all moves, until one gains less than a nat: roughly converged ones first, then well converged."""
        for gain, kinds in ((self.roughly, PULLING_MODELS), (0.1 * WORTH, tuple(LOCAL_MODELS.values()))):
            before, collapsed = -np.inf, self.problem.collapsed
            while self.point.bound > before + WORTH or collapsed is not self.problem.collapsed:
                collapsed = self.problem.collapsed
                yield from self.converge(gain, n_sweeps=100)
                yield from self.choose_noise()
                yield from self.choose_rates()
                yield from self.choose_centres()
                yield from self.choose_model(kinds)
                before = self.point.bound
                yield from self.refresh()
                yield from self.grow()
                yield from self.shrink()

    def start(self, starts: list[State]) -> Iterator[Step]:
        """Settle every start for a few sweeps and go on from the best.

        Where many components are allowed for by name, one start has them all.
        """
        if not self._affords(self.max_rank, LARGEST_COLLAPSED_WORK) and self._is_complete:
            self.problem = replace(self.problem, collapsed=False)
        if self.many_wanted and len(starts) > 1:
            starts = [*starts, least_squares(self.problem, self.max_rank, starts[0], self.rng)]
        points = [self._settle(state, np.inf, n_held=20, n_free=15) for state in starts]
        self.point = max(points, key=lambda point: point.bound)
        yield Step(self.point, self.n_sweeps, f"started with {self.point.rank}")
        if self.must_differ:
            yield from self.choose_noise()
        if self.shared_modes or self.replaced:
            yield from self.structure_outliers()

    def converge(self, gain: float, n_sweeps: int) -> Iterator[Step]:
        """Sweep until a sweep raises the bound by less than ``gain`` nats."""
        anderson, hold = Anderson(), False
        for k in self._budget(n_sweeps):
            before = self.point
            swept = prune(self.problem, sweep(self.problem, before, hold_noise=hold))
            if k >= ACCELERATE_AFTER:
                swept = self._accelerated(anderson, before, swept)
            if swept.bound < before.bound:  # at the limit of rounding, or of a local model's validity
                break
            self.point = swept
            n_pruned = before.rank - self.point.rank
            self.drift = swept.bound - before.bound
            yield Step(self.point, self.n_sweeps, f"pruned {n_pruned}" if n_pruned else "")
            settled = not n_pruned and self.point.bound - before.bound < gain
            if settled and not hold:
                break
            hold = not settled and _holds_noise(k + 1)

    def _accelerated(self, anderson: Anderson, before: Point, swept: Point) -> Point:
        """The extrapolated point where the bound prefers it."""
        further = anderson.extrapolate(before.state, swept.state)
        if further is None:
            return swept
        jump = evaluate(self.problem, update_component_precisions(further))
        if jump.bound > swept.bound:
            anderson.kept()
            return jump
        anderson.refused()
        return swept

    def judge(self, state: State, event: str, *, n_held: int = 8, n_free: int = 60) -> Iterator[Step]:
        """Settle a proposed state; keep it if it raises the bound by a nat more than as many sweeps would anyway."""
        before = self.n_sweeps
        point = self._settle(state, self.point.bound, n_held=n_held, n_free=n_free)
        gain = point.bound - self.point.bound
        if gain > WORTH + self.drift * (self.n_sweeps - before):
            self.point = point
            event = f"{event} (+{gain:.1f})"
        else:
            event = f"{event} dropped"
        yield Step(self.point, self.n_sweeps, event)

    def grow(self) -> Iterator[Step]:
        """Births, until the proposals fail in a row. Where one birth follows another, many components at once."""
        failures, successes, half = 0, 0, max(1, self.max_rank // 2)
        while failures < len(BIRTHS) and self.point.rank < self.max_rank:
            before = self.point
            if successes == MANY_AFTER and self.max_rank >= 2 * before.rank:
                successes += 1
                if not self._affords(self.max_rank, LARGEST_COLLAPSED_WORK):
                    self._suit_form(self.max_rank)
                    before = self.point
                for many, n_many in ((anneal, self.max_rank), (least_squares, self.max_rank), (least_squares, half)):
                    if self.point is before:
                        state = many(self.problem, n_many, before.state, self.rng)
                        yield from self.judge(state, f"born {state.rank} anew", n_held=0)
            n_components, clipped = BIRTHS[failures]
            n_components = min(n_components, self.max_rank - before.rank)
            birth = proposals.birth(self.problem, before, n_components, self.rng, clipped=clipped)
            if birth is not None and self.point is before:
                yield from self.judge(birth, f"born {n_components}")
            if self.point.rank > before.rank:
                failures, successes = 0, successes + 1
                yield from self.converge(self.roughly, n_sweeps=100)
            else:
                failures += 1

    def shrink(self) -> Iterator[Step]:
        """Merges of collinear pairs and deaths of weak components, until none is accepted."""
        before = None
        while before is not self.point and self.point.rank > 0:
            before = self.point
            condensed = proposals.condense(self.problem, before)
            if condensed is not None:
                yield from self.judge(condensed, f"condensed to {condensed.rank}")
            for pair in proposals.collinear_pairs(before.state)[:3]:
                if self.point is before:
                    yield from self.judge(proposals.merge(self.problem, before, pair, self.rng), "merged 2")
            for component in proposals.expendable_components(self.problem, before)[:4]:
                if self.point is before:
                    state = proposals.death(self.problem, before, component)
                    yield from self.judge(state, "died 1", n_held=2)
            if self.point is not before:
                yield from self.converge(WORTH, n_sweeps=30)

    def refresh(self) -> Iterator[Step]:
        """Robust refits of rows that may be lost; weighted Grams of very many components are out of reach."""
        if not self._affords(self.point.rank, LARGEST_REFRESH_WORK):
            return
        for mode in self.problem.modes:
            state = proposals.refresh_rows(self.problem, self.point, mode)
            if state is not None:
                yield from self.judge(state, f"rows of mode {mode} refreshed", n_held=2, n_free=20)

    def choose_model(self, kinds: tuple[type[SlabModel], ...]) -> Iterator[Step]:
        """Another local model, if at the same factors it comes close to the present one."""
        present = self.point.state.outliers
        if not isinstance(present, SlabModel) or self.point.state.structure is not None:
            return
        others = [kind for kind in kinds if not isinstance(present, kind)]
        states = [learn_noise_globally(self.problem, self.point, kind) for kind in others]
        points = [evaluate_at(self.problem, state, self.point.fit) for state in states]
        best = max(points, key=lambda point: point.bound)
        if best.bound > self.point.bound - WORTH:
            name = type(best.state.outliers).__name__
            yield from self.judge(best.state, f"{name} chosen", n_held=0, n_free=20)

    def choose_noise(self) -> Iterator[Step]:
        """Noise that differs between slices, along the modes that raise the bound most; in any case where asked for."""
        if not self.noise_modes or self.point.state.slices is not None:
            return
        points = []
        for modes in self.noise_modes:
            state = slice_noise(self.problem, self.point.state, modes)
            points.append(settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit)))
        best = max(points, key=lambda point: point.bound)
        modes = best.state.slices.modes if best.state.slices is not None else ()
        if self.must_differ or best.bound > self.point.bound + WORTH:
            gain = best.bound - self.point.bound
            self.point = best
            yield Step(self.point, self.n_sweeps, f"noise per slice of {modes} ({gain:+.1f})")
            yield from self.converge(self.roughly, n_sweeps=60)

    def structure_outliers(self) -> Iterator[Step]:
        """Outliers that are shared, or replace the data, as asked for; their numbers settled at fixed factors.

        Then it is measured how far the noise of shared entries is correlated.
        """
        law = initial_law(*value_range(self.problem)) if self.replaced else None
        state = replace(self.point.state, structure=OutlierStructure(self.shared_modes, law=law))
        self.point = settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit))
        yield Step(self.point, self.n_sweeps, "outliers structured")
        yield from self.converge(self.roughly, n_sweeps=60)
        structure, sums = self.point.state.structure, self.point.structure_sums
        if self.shared_modes and structure is not None and sums is not None:
            n_shared = math.prod(self.problem.observations.shape[mode] for mode in self.shared_modes)
            structure = measured_channels(structure, sums, n_shared)
            self.point = evaluate_at(self.problem, replace(self.point.state, structure=structure), self.point.fit)
            yield Step(self.point, self.n_sweeps, f"{structure.n_channels:.2f} shared entries worth one")

    def choose_rates(self) -> Iterator[Step]:
        """Outlier rates that differ between slices as the noise does, if that raises the bound."""
        state = self.point.state
        structure = state.structure or OutlierStructure()
        if state.slices is None or not isinstance(state.outliers, SlabModel) or structure.modes or structure.rates:
            return
        rates = initial_rates(state.slices.modes, state.slices.precision.rate.size, state.outliers.probability)
        state = replace(state, structure=replace(structure, rates=rates))
        point = settle_noise(self.problem, evaluate_at(self.problem, state, self.point.fit))
        if point.bound > self.point.bound + WORTH:
            gain = point.bound - self.point.bound
            self.point = point
            yield Step(self.point, self.n_sweeps, f"outlier rates per slice (+{gain:.1f})")

    def choose_centres(self) -> Iterator[Step]:
        """Rows that are expected around a learnt centre instead of zero, for each mode that it pays for."""
        state = self.point.state
        for mode, rows in enumerate(state.factors):
            centred = rows.centred(state.lam)
            if rows.centre is None and state.rank and centred.kl(state.lam) < rows.kl(state.lam) - WORTH:
                state = state.with_factor(mode, centred)
        if state is self.point.state:
            return
        modes = tuple(mode for mode, rows in enumerate(state.factors) if rows.centre is not None)
        point = evaluate_at(self.problem, update_component_precisions(state), self.point.fit)
        gain = point.bound - self.point.bound
        self.point = point
        yield Step(self.point, self.n_sweeps, f"rows of modes {modes} centred ({gain:+.1f})")
        yield from self.converge(self.roughly, n_sweeps=60)

    def _budget(self, n_sweeps: int) -> Iterator[int]:
        """Count sweeps, as long as there are any left."""
        for k in range(min(n_sweeps, self.max_sweeps - self.n_sweeps)):
            self.n_sweeps += 1
            yield k

    def _settle(self, state: State, beat: float, *, n_held: int, n_free: int) -> Point:
        """Sweep a proposed state until it beats the bound to be beaten, or it is plain that it will not."""
        point = evaluate(self.problem, state)
        for _ in self._budget(n_held):
            point = sweep(self.problem, point, hold_precisions=True, hold_noise=True)
        if n_held:
            point = evaluate_at(self.problem, learn_noise_globally(self.problem, point), point.fit)
        if np.isfinite(beat) and self._far_off(point.state):
            point = self._approach(point)
        bounds = [point.bound]
        anderson = Anderson()
        for k in self._budget(n_free):
            before = point
            point = prune(self.problem, sweep(self.problem, before, hold_noise=_holds_noise(k)))
            if k >= ACCELERATE_AFTER:
                point = self._accelerated(anderson, before, point)
            bounds.append(point.bound)
            target = beat + WORTH + self.drift * (n_held + k + 1)
            if point.bound > target or (np.isfinite(beat) and k >= 6 and _hopeless(bounds, target, n_free - k)):
                break
        return point

    def _far_off(self, state: State) -> bool:
        """Whether a proposal starts so far from an accurate fit that a slab without pull would call it all outliers."""
        present = self.point.state
        return isinstance(present.outliers, FlatSlab) and float(state.tau.mean) < 1e-2 * float(present.tau.mean)

    def _approach(self, point: Point) -> Point:
        """Sweep with a Gaussian slab, which draws outlying entries back in, and return to the flat one."""
        point = evaluate_at(self.problem, learn_noise_globally(self.problem, point, GaussianSlab), point.fit)
        for k in self._budget(60):
            before = point
            point = prune(self.problem, sweep(self.problem, before))
            if k >= 5 and point.bound - before.bound < self.roughly:
                break
        return evaluate_at(self.problem, learn_noise_globally(self.problem, point, FlatSlab), point.fit)


def _holds_noise(k: int) -> bool:
    """Whether the k-th sweep in a row leaves noise and outlier numbers alone: they move little from one to the next."""
    return k >= 3 and k % LEARN_NOISE_EVERY != 0


def _hopeless(bounds: list[float], target: float, n_left: int) -> bool:
    """Whether the trend of the last gains, extrapolated geometrically and doubled, stays below the target."""
    gains = np.diff(bounds[-5:])
    last = max(float(gains[-1]), 0.0)
    ratio = min(max(float(gains[-1] / gains[0]), 0.0) ** (1.0 / 3.0), 0.995) if gains[0] > 0 else 0.5
    ahead = last * (1.0 - ratio**n_left) / (1.0 - ratio)
    return bounds[-1] + 2.0 * ahead < target


def value_range(problem: Problem) -> tuple[float, float]:
    """The smallest and the largest value, in units of the data's scale."""
    values = [problem.values(block) for block in problem.observations.block_list]
    return min(float(part.min(initial=np.inf)) for part in values), max(float(p.max(initial=-np.inf)) for p in values)


def settle_noise(problem: Problem, point: Point) -> Point:
    """Settle noise that differs between slices, or outliers that hang together, at fixed factors."""
    for _ in range(10):
        point = evaluate_at(problem, learn_noise(problem, point), point.fit)
    return point


def prune(problem: Problem, point: Point) -> Point:
    """Drop components that explain nothing, if the bound agrees."""
    negligible = negligible_components(point.state, problem.observations.n_observed)
    if not negligible.any():
        return point
    pruned = evaluate(problem, point.state.select_components(~negligible))
    return pruned if pruned.bound >= point.bound else point


def portfolio(problem: Problem, max_rank: int, model: SlabModel | None) -> list[State]:
    """Starts to choose from: spectral ones at two noise levels, and what stays the same along a mode.

    At a high noise level weak components die before they are learnt; at a low one surplus components live on and have
    to be merged or removed. Neither is right everywhere.
    """
    spectral = proposals.spectral_start(problem, min(max_rank, START_COMPONENTS), model)
    starts = [with_noise(spectral, tau, model, problem.observations.n_observed) for tau in START_PRECISIONS]
    for mode in problem.modes:
        steady = proposals.median_start(problem, mode, max_rank, model)
        if steady is not None:
            starts.append(steady)
    return starts


def anneal(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at low noise on clipped data, then a level at which surplus ones die."""
    clipped = replace(problem, limit=5.0)
    state = _fit_by_least_squares(clipped, n_components, 300.0, rng)
    completed = replace(problem, collapsed=False)
    slab = GaussianSlab(0.05, 30.0, 60.0) if isinstance(present.outliers, SlabModel) else None
    point = evaluate(completed, with_noise(state, 30.0, slab, problem.observations.n_observed))
    for _ in range(100):
        before = point
        point = prune(completed, sweep(completed, point, hold_noise=True))
        if point.bound - before.bound < WORTH and point.rank == before.rank:
            break
    return _with_noise_like(problem, point.state, present)


def least_squares(problem: Problem, n_components: int, present: State, rng: np.random.Generator) -> State:
    """Many components at once: least squares at very low noise, for data whose slices differ much in level."""
    state = _fit_by_least_squares(problem, n_components, 1e4, rng)
    return update_component_precisions(_with_noise_like(problem, state, present))


def _with_noise_like(problem: Problem, state: State, present: State) -> State:
    """The state with noise and outliers of the present kind, their numbers learnt from its own residuals."""
    if isinstance(present.outliers, SlabModel) and state.outliers is None:
        state = replace(state, outliers=START_MODEL)
    point = evaluate(problem, state)
    state = learn_noise_globally(problem, point)
    if present.slices is None and present.structure is None:
        return state
    if present.slices is not None:
        state = slice_noise(problem, state, present.slices.modes)
    state = replace(state, structure=present.structure)
    return settle_noise(problem, evaluate_at(problem, state, point.fit)).state


def _fit_by_least_squares(problem: Problem, n_components: int, precision: float, rng: np.random.Generator) -> State:
    """Random components, then sweeps without outliers at a held noise level: regularised alternating least squares."""
    plain = replace(problem, collapsed=False)
    state = proposals.random_start(plain, n_components, None, rng)
    point = evaluate(plain, with_noise(state, precision, None, problem.observations.n_observed))
    for _ in range(30):
        point = sweep(plain, point, hold_precisions=True, hold_noise=True)
    return point.state
