"""Entries that may be outliers or not, taken for the other.

Whether an entry is an outlier depends on the rows that meet there, and these depend on whether it counts: where rows
have few entries either may hold, and sweeps stay with the one they began with. One pass finds the outliers that would
be regular if they counted, and the regular entries that would be outliers if they did not, by the odds given all other
entries. Proposes the rows as if one of them were the other, the most promising first; a trial takes up to 20 sweeps,
and needs only a gain above the accuracy of the search, as the model stays the same. Not tried in form 1, which does not
know the variance of single entries, nor where entries share outliers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Sums, visit
from brtf.inference.entry_posterior import log_branches, relative_precision
from brtf.inference.judge import WORTH
from brtf.inference.point import Point
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.kernels.packed import pack_symmetric, unpack_symmetric
from brtf.model.distributions import RowGaussians
from brtf.model.evidence_table import tabulate_branches
from brtf.model.state import State
from brtf.search.move import Memory, Move, Progress, Trial, are_whole, settled

MOST = 8
"""Entries that are tried in a row without success."""


LARGEST_LEVERAGE = 0.99
"""Limit of the leverage of an entry: its sum over the modes, each given the others, may exceed one."""
CHEAP = 2**24
"""Entries times packed products of components up to which regular entries are doubted too, a convention: where rows
have few entries there are many of them, and their odds, which know no covariance between modes, are exaggerated."""


@dataclass(frozen=True)
class Doubtful:
    """An entry that may be an outlier or regular.

    Attributes
    ----------
    odds : nats by which the predictive density given all other entries prefers the other
    place : its position along every mode
    residual : y − x̄
    precision : by which it would count, or minus that by which it counts
    """

    odds: float
    place: tuple[int, ...]
    residual: float
    precision: float


@dataclass(frozen=True, eq=False)
class Sides:
    """What speaks for either side at the entries of a block.

    Attributes
    ----------
    weight : of the noise precision, now
    square, leverage : τω r² and τω Var x
    log_outlier : ln of the density of an outlier for given ρ, in units of the probability of a regular entry
    is_outlier : whether an entry of given ρ would more likely be an outlier
    """

    weight: Array
    square: Array
    leverage: Array
    log_outlier: Callable[[Array], Array]
    is_outlier: Callable[[Array], NDArray[np.bool_]]

    @property
    def rho(self) -> Array:
        """τω E[(y − x)²]."""
        return self.square + self.leverage

    def odds_of_regular(self, square: Array, leverage: Array) -> Array:
        """ln of N(r; 0, (1+h)/τω), the predictive density of a regular entry, less that of an outlier now."""
        return -0.5 * square / (1.0 + leverage) - 0.5 * np.log1p(leverage) - self.log_outlier(square + leverage)


def if_counted(sides: Sides) -> tuple[Array, Array]:
    """Odds of outliers that would be regular if they counted, and the precision by which they would; (M,) each.

    With h = τω Var x, an outlier that is made to count has the deviation r/(1+h) and the variance Var x/(1+h).
    """
    square, leverage = sides.square, sides.leverage
    counted = square / (1.0 + leverage) ** 2 + leverage / (1.0 + leverage)
    turns = sides.is_outlier(sides.rho) & ~sides.is_outlier(counted)
    return np.where(turns, sides.odds_of_regular(square, leverage), -np.inf), np.ones_like(square)


def if_left_out(sides: Sides) -> tuple[Array, Array]:
    """Odds of regular entries that would be outliers if they did not count, and minus the precision by which they do.

    With h = wτω Var x, an entry of weight w that does not count any more has the deviation r/(1−h) and the variance
    Var x/(1−h).
    """
    rest = 1.0 - np.minimum(sides.weight * sides.leverage, LARGEST_LEVERAGE)
    square, leverage = sides.square / rest**2, sides.leverage / rest
    turns = ~sides.is_outlier(sides.rho) & sides.is_outlier(square + leverage)
    return np.where(turns, -sides.odds_of_regular(square, leverage), -np.inf), -sides.weight


def doubtful_entries(
    problem: Problem, point: Point, doubt: Callable[[Sides], tuple[Array, Array]] = if_counted
) -> list[Doubtful]:
    """The entries in most doubt, by a nat or more, in the order of their odds. One pass."""
    state, spike = point.state, tabulate_branches(point.state.local_model)[0]

    def look(_: Sums, block: Block) -> list[Doubtful]:
        residual, variance = point.fit.at(block)
        if variance is None:
            return []
        relative, values = relative_precision(state, block), problem.values(block)
        noise = float(state.tau.mean) * (np.ones(residual.size) if relative is None else relative)

        def log_outlier(rho: Array) -> Array:
            log_rate, log_rest, log_slab = log_branches(state, block, values, rho, residual >= 0.0)
            return log_slab + log_rate - log_rest

        def is_outlier(rho: Array) -> NDArray[np.bool_]:
            return np.asarray(log_outlier(rho) > kernels.evidence(spike, rho)[0])

        square = noise * np.square(residual, dtype=np.float64)
        odds, share = doubt(Sides(point.local(block).weight, square, noise * variance, log_outlier, is_outlier))
        picked = np.flatnonzero(odds > WORTH)
        picked = picked[np.argsort(-odds[picked])][:MOST]
        places = np.stack([kernels.positions(block, (mode,))[picked] for mode in range(len(block.shape))], axis=1)
        return [
            Doubtful(float(odds[k]), tuple(place), float(residual[k]), float(share[k] * noise[k]))
            for k, place in zip(picked, places.tolist(), strict=True)
        ]

    _, looks = visit(problem.observations, lambda: (), look)
    return sorted((one for few in looks for one in few), key=lambda one: -one.odds)[:MOST]


def with_entry(state: State, entry: Doubtful) -> State:
    """The state with the rows that meet at an entry as if it were the other: one step of a Kalman filter for all."""
    means = np.stack([rows.mean[i] for rows, i in zip(state.factors, entry.place, strict=True)])
    slopes = [np.prod(np.delete(means, mode, axis=0), axis=0) for mode in range(len(means))]
    covs = [
        unpack_symmetric(rows.cov_packed[0 if rows.shared else i], rows.rank)
        for rows, i in zip(state.factors, entry.place, strict=True)
    ]
    variances = [float(slope @ cov @ slope) for slope, cov in zip(slopes, covs, strict=True)]
    total = sum(variances)
    if entry.precision < 0.0:
        total = min(total, LARGEST_LEVERAGE / -entry.precision)
    step = entry.residual / (1.0 / entry.precision + total)
    for mode, (slope, cov, variance, i) in enumerate(zip(slopes, covs, variances, entry.place, strict=True)):
        rows, along = state.factors[mode], cov @ slope
        mean = rows.mean.copy()
        mean[i] += step * along
        packed = np.repeat(rows.cov_packed, rows.n_rows, axis=0) if rows.shared else rows.cov_packed.copy()
        packed[i] = pack_symmetric(cov - np.outer(along, along) / (1.0 / entry.precision + variance))
        state = state.with_factor(mode, *state.row_priors[mode].moved(RowGaussians(rows.mean, packed), mean))
    return state


def may_doubt(progress: Progress) -> bool:
    """Whether entries of the best point may be doubted."""
    state, structure = progress.point.state, progress.point.state.structure
    shared = structure is not None and structure.modes
    return progress.problem.collapsed and state.rank > 0 and not shared and state.local_model.has_outliers


class Reconsider(Move):
    """One doubtful entry after another taken for the other. ``memory`` is the number of those tried without success."""

    name = "reconsider"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point, problem = progress.point, progress.problem
        n_tried = memory[0] if memory else 0
        if not may_doubt(progress):
            return None, (n_tried,)
        entries = doubtful_entries(problem, point)
        if progress.affords(point.rank, CHEAP):
            entries += doubtful_entries(problem, point, if_left_out)
        if n_tried >= len(entries):
            return None, (n_tried,)
        entry = entries[n_tried]
        words = f"outlier at {entry.place} taken for regular"
        if entry.precision < 0.0:
            words = f"regular entry at {entry.place} taken for an outlier"
        trial = progress.trial(Kind.REFRESH, words, with_entry(point.state, entry), settled(0, 20), worth=0.1 * WORTH)
        return trial, (n_tried + 1,)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return (0,) if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)
