"""Robust refits of rows that may be stuck in a poor local optimum.

Proposes, mode by mode, robust regressions of all rows where some have much lower weights than the others, and the best
of many regressions of single rows where few entries leave open which of them are outliers; replaces those that gain.
The check costs one pass, a refit up to 36 passes and 22 sweeps. Not tried with very many components: weighted Grams are
too expensive then.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Sums, add_up
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.point import Point
from brtf.inference.problem import Fit, Problem
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.few_entries import best_regressions, doubts
from brtf.search.move import Memory, Move, Progress, Trial, are_whole, settled
from brtf.search.robust_rows import robust_rows

CLEARLY_BETTER = 2.0
"""Gain of a row's evidence in nats from which it is replaced: a Bayes factor of seven, by convention."""
FALSE_ALARM = 0.05
"""Probability that some row of a mode is refitted although none is lost."""


def refresh_rows(problem: Problem, point: Point, mode: int, *, doubting: bool = True) -> State | None:
    """C8: robust refit of the rows of one mode, given the other modes; None if no row changed.

    A row whose entries were once treated as outliers can stay in that local optimum. This only happens to rows whose
    entries have lower weights than the others, or to rows of few entries. A row is replaced if its evidence,
    Σ ln f + ln p(a | λ), rises by more than two nats.
    """
    state = point.state
    if state.rank == 0 or state.local_model.is_gaussian:
        return None
    entries, weights, squares = _weights_of_rows(problem, point, mode)
    lost = _any_row_lost(entries, weights, squares)
    doubt = doubts(problem, point, mode) if doubting else np.zeros(entries.size)
    if not lost and not (doubt > 1.0).any():
        return None
    old = rows = state.factors[mode]
    if lost:
        rows = robust_rows(problem, state, mode)
    if (doubt > 1.0).any():
        rows = rows.with_mean(best_regressions(problem, state.with_factor(mode, rows), mode, doubt))
    tau, model = float(state.tau.mean), state.local_model
    residual = Fit.of(replace(problem, collapsed=False), state.with_factor(mode, rows)).residual

    def add(sums: Sums, block: Block) -> None:
        relative = relative_precision(state, block)
        noise = tau if relative is None else tau * relative
        for total, deviation in zip(sums, (point.fit.residual(block), residual(block)), strict=True):
            kernels.add_to_slices(block, (mode,), model.posterior(noise * deviation**2).log_evidence, total)

    sums = add_up(problem.observations, lambda: (np.zeros(old.n_rows), np.zeros(old.n_rows)), add)
    before, after = (
        total + state.row_priors[mode].row_log_density(candidate.mean, state.lam)
        for total, candidate in zip(sums, (old, rows), strict=True)
    )
    better = after > before + CLEARLY_BETTER
    if not better.any():
        return None
    means = np.where(better[:, None], rows.mean, old.mean)
    return state.with_factor(mode, *state.row_priors[mode].moved(old, means))


def _weights_of_rows(problem: Problem, point: Point, mode: int) -> tuple[Array, Array, float]:
    """The number of entries of each row and the sum of their weights, (I,), and the sum of all squared weights."""
    n_rows = problem.observations.shape[mode]

    def add(sums: Sums, block: Block) -> None:
        weight = point.local(block).weight
        kernels.add_to_slices(block, (mode,), weight, sums[0])
        sums[1][...] += np.square(weight, dtype=np.float64).sum()

    def zeros() -> Sums:
        return np.zeros(n_rows), np.zeros(())

    weights, squares = add_up(problem.observations, zeros, add)
    return problem.n_entries_along((mode,)), weights, float(squares)


def _any_row_lost(entries: Array, weights: Array, squares: float) -> bool:
    """Whether the mean weight of some row is significantly below that of all entries, by Bernstein's inequality."""
    mean = weights.sum() / entries.sum()
    variance = max(squares / entries.sum() - mean**2, 0.0)
    chance = math.log(entries.size / FALSE_ALARM)
    limit = np.sqrt(2.0 * chance * variance * entries + (chance * mean / 3.0) ** 2) + chance * mean / 3.0
    return bool(np.any(mean * entries - weights > limit))


LARGEST_REFRESH_WORK = 2**28
"""Entries times packed products of components up to which rows are refitted with weights."""


class Refresh(Move):
    """Refits of the rows of one mode after another. ``memory`` is the index of the next one.

    Single rows are doubted only if ``doubting``, once all components are found: while some are missing, rows that leave
    out what these explain would fit better, and the entries would stay outliers.
    """

    of_components = True

    def __init__(self, *, doubting: bool) -> None:
        self.doubting = doubting
        self.name = "refresh and doubt" if doubting else "refresh"  # what one refuses the other may propose

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        problem, point = progress.problem, progress.point
        first = memory[0] if memory else 0
        modes = problem.modes if progress.affords(point.rank, LARGEST_REFRESH_WORK) else ()
        for number, mode in enumerate(modes[first:], start=first + 1):
            state = refresh_rows(problem, point, mode, doubting=self.doubting)
            if state is not None:
                words = f"rows of mode {mode} refreshed"
                return progress.trial(Kind.REFRESH, words, state, settled(2, 20)), (number,)
        return None, (len(modes),)

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)
