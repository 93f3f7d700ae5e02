"""Births: new components that fit the residual.

Proposes all components that a sketch of the weighted or the clipped residual shows; from small data one or a few, by
rank-one fits, and after every success twice as many; there also, after three births in a row, and then after six,
twelve, …, many at once. A sketch costs two passes, the fits a few dozen, many at once 30 to 130 sweeps; settling costs
up to 68 sweeps, and 60 more where the proposal is far from an accurate fit. After a success it proposes again, of
complete data that grew expensive in form 1 of the bound; after a failure it tries another variant, unless the residual
shows no more structure than chance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Field, Remembered, Sums, add_up
from brtf.inference.learn_noise import typical_residual
from brtf.inference.point import Point
from brtf.inference.problem import Fit, Problem
from brtf.inference.smooth_residual import absorbed
from brtf.inference.statistics import Weighing
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.components import add_components, effective_rows
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole, settled
from brtf.search.moves.form import COLLAPSED_WORK, LARGEST_COLLAPSED_WORK, cheaper_form
from brtf.search.rank_one import best_rank_one, relative_weights
from brtf.search.sketch import is_sketched, sketch
from brtf.search.starts import CLIP, START_COMPONENTS, anneal, least_squares

BEYOND_CHANCE = 1.2
"""A birth is proposed only if its rank-one fit explains this many times what a fit to randomly signed residuals does:
without structure the ratio is 0.85–1.2; useful components reach 2 and more."""
SINGLE_ROW = 1.2
"""Effective number of rows, (Σa²)²/Σa⁴, below which a component counts as having a single row."""


def birth(
    problem: Problem, point: Point, n_components: int, rng: np.random.Generator, *, clipped: bool
) -> State | None:
    """C9: add up to ``n_components`` components that fit the residual.

    The residual is weighted by the model, or clipped where the weights are not yet reliable. None where the residual
    has no more structure than it has with random signs, or only along fibres. What a smooth residual has taken up in
    place of a component is looked at too, except where the residual is clipped.
    """
    weigh = relative_weights(problem, point, clipped=clipped)
    limit = CLIP * typical_residual(problem, point.state, point.fit.residual) if clipped else np.inf

    rest = point.fit if clipped or point.state.smooth is None else Fit.without_smooth(problem, point.state.factors)

    def left(found: list[Array]) -> Weighing:
        return _what_is_left(problem, rest, weigh, limit, found)

    if is_sketched(problem):
        columns = _sketched(problem, left([]), n_components, rng)
    else:
        columns = _one_after_another(problem, left, n_components, rng)
    state = None if columns is None else absorbed(problem, add_components(problem, point.state, columns), point)
    return None if state is None or state.rank == point.rank else state


def _sketched(problem: Problem, left: Weighing, n_components: int, rng: np.random.Generator) -> list[Array] | None:
    """Components from the sketch of what is left, as many as it shows; None where it shows none."""
    found = sketch(problem.observations, lambda block: left(block)[1], rng, n_components)
    if not found.n_components:
        return None
    columns = found.components(found.n_components, 1.0 / _mean_weight(problem, left), rng)
    kept = [k for k in range(found.n_components) if not _lives_on_a_fibre([column[:, [k]] for column in columns])]
    return [column[:, kept] for column in columns] if kept else None


def _mean_weight(problem: Problem, weighing: Weighing) -> float:
    """Mean weight over all entries, those that are missing included."""

    def add(sums: Sums, block: Block) -> None:
        weights, targets = weighing(block)
        sums[0][...] += targets.size if weights is None else weights.sum()

    return float(add_up(problem.observations, lambda: (np.zeros(()),), add)[0]) / problem.observations.n_entries


def _one_after_another(
    problem: Problem, left: Callable[[list[Array]], Weighing], n_components: int, rng: np.random.Generator
) -> list[Array] | None:
    """Components by successive rank-one fits that explain more than random signs would; None where none does."""
    columns: list[list[Array]] = []
    for k in range(n_components):
        found = [np.hstack([fitted[mode] for fitted in columns]) for mode in range(len(columns and columns[0]))]
        rest = left(found)
        fitted, gain = best_rank_one(problem, rest, rng)
        if k == 0:
            enough = gain / BEYOND_CHANCE
            _, chance = best_rank_one(problem, _with_random_signs(problem, rest, rng), rng, enough)
        if gain < BEYOND_CHANCE * chance or _lives_on_a_fibre(fitted):
            break
        columns.append(fitted)
    if not columns:
        return None
    return [np.hstack([fitted[mode] for fitted in columns]) for mode in range(problem.observations.order)]


def _what_is_left(problem: Problem, fit: Fit, weigh: Field, limit: float, found: list[Array]) -> Weighing:
    """Weights, and weight times residual, clipped at the limit, after subtracting the components found so far."""

    def left(block: Block) -> tuple[Array, Array]:
        weights, residual = weigh(block), fit.residual(block)
        if np.isfinite(limit):
            most = limit / np.sqrt(weights)
            residual = np.clip(residual, -most, most)
        if found:
            residual = residual - kernels.low_rank_at(block, found)
        return weights, residual * weights

    return Remembered(problem.observations, left)


def _with_random_signs(problem: Problem, weighing: Weighing, rng: np.random.Generator) -> Weighing:
    """The weights, and the targets with random signs: independent between blocks, reproducible for each."""
    seed = int(rng.integers(2**62))

    def flipped(block: Block) -> tuple[Array | None, Array]:
        weights, targets = weighing(block)
        signs = np.random.default_rng((seed, block.entries.start)).integers(0, 2, targets.size)
        return weights, np.where(signs, targets, -targets)

    return Remembered(problem.observations, flipped)


def _lives_on_a_fibre(columns: list[Array]) -> bool:
    """Whether a component has a single row in two or more modes: it then describes a fibre of outliers."""
    effective = [n_rows for n_rows, column in zip(effective_rows(columns), columns, strict=True) if len(column) > 1]
    return sum(n_rows < SINGLE_ROW for n_rows in effective) >= 2


BIRTHS = ((1, False), (1, True), (2, False), (3, True))
"""Variants tried over consecutive failures: number of components, and whether the residual is clipped."""
SKETCHED_BIRTHS = ((sys.maxsize, False), (sys.maxsize, True), (1, False))
"""Variants for data that are sketched: first all components that the sketch shows, at most doubling the rank of a
state that has more than a start."""
FEW_SWEEPS = 10
"""Sweeps after a birth where the sketch shows more components than the rank may grow by: most of what the components
gain they gain in the first sweeps, and the next birth gains more than further ones. A convention."""
MANY_AFTER, MANY_TIMES = 3, 4
"""Successful births in a row after which many components are proposed at once, if the rank already exceeds that of a
start; and their number as a multiple of the rank."""
WAYS_TO_GROW: tuple[tuple[Callable[..., State], int], ...] = ((anneal, 1), (least_squares, 1), (least_squares, 2))
"""Variants of many components at once: the method, and the divisor of their number."""


class Birth(Move):
    """Births until all variants have failed in a row.

    ``memory`` holds the consecutive failures, the consecutive successes, the kinds of residual (clipped or not) in
    which nothing was found, and the next variant of many components at once (−1 for none).
    """

    name = "birth"
    of_components = True

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        failures, successes, hopeless, attempt = memory or (0, 0, (), -1)
        rank, most = progress.point.rank, progress.most
        if successes and not progress.affords(rank, COLLAPSED_WORK):
            form = cheaper_form(progress, rank)
            if form is not None:
                return form, (failures, successes, hopeless, attempt)
        n_many, sketched = min(MANY_TIMES * rank, most), is_sketched(progress.problem)
        is_time = failures == 0 and _is_time_for_many(successes) and START_COMPONENTS < rank <= n_many // 2
        if attempt < 0 and is_time and not sketched:
            attempt = 0
        if attempt >= 0:
            return self._many(progress, n_many, attempt), (failures, successes, hopeless, attempt)
        variants = SKETCHED_BIRTHS if sketched else BIRTHS
        while failures < len(variants) and rank < most:
            n_components, clipped = variants[failures]
            n_components = min(n_components * 2 ** min(successes, 30), max(rank, START_COMPONENTS), most - rank)
            if clipped not in hopeless:
                state = birth(progress.problem, progress.point, n_components, progress.rng, clipped=clipped)
                if state is not None:
                    shows_more = sketched and state.rank - rank == n_components
                    words = f"born {state.rank - rank}"
                    then = Sweeps(progress.roughly, FEW_SWEEPS if shows_more else 100)
                    trial = progress.trial(Kind.BIRTH, words, state, settled(8, 60), then=then)
                    return trial, (failures, successes, hopeless, -1)
                hopeless = (*hopeless, clipped)
            failures += 1
        return None, (failures, successes, hopeless, -1)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        failures, successes, hopeless, attempt = memory
        if trial.kind is Kind.FORM:
            return memory
        if attempt >= 0:
            if accepted:
                return 0, 1, (), -1
            return (0, successes, (), attempt + 1) if attempt + 1 < len(WAYS_TO_GROW) else (0, successes + 1, (), -1)
        return (0, successes + 1, (), -1) if accepted else (failures + 1, successes, hopeless, -1)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        if len(memory) != 4 or not are_whole(memory[:2]) or type(memory[3]) is not int:
            return False
        kinds = isinstance(memory[2], tuple) and all(type(kind) is bool for kind in memory[2])
        return kinds and memory[0] <= len(BIRTHS) and -1 <= memory[3] < len(WAYS_TO_GROW)

    def _many(self, progress: Progress, n_many: int, attempt: int) -> Trial:
        """A variant of ``n_many`` components at once, or half as many, in the form of the bound that suits the rank."""
        if not progress.affords(n_many, LARGEST_COLLAPSED_WORK):
            form = cheaper_form(progress, n_many)
            if form is not None:
                return form
        many, share = WAYS_TO_GROW[attempt]
        state = many(progress.problem, n_many // share, progress.point.state, progress.rng)
        then = Sweeps(progress.roughly, 100)
        return progress.trial(Kind.BIRTH, f"born {state.rank} anew", state, settled(0, 60), then=then)


def _is_time_for_many(successes: int) -> bool:
    """Whether many components are due: after three births in a row and, where that failed, after six, twelve, …"""
    times, rest = divmod(successes, MANY_AFTER)
    return rest == 0 and times > 0 and times & (times - 1) == 0
