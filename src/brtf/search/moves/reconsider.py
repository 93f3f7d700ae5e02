"""Outliers that would be regular if they counted.

Whether an entry is an outlier depends on the rows that meet there, and these depend on whether it counts: where rows
have few entries either may hold, and sweeps stay with the one they began with. One pass finds the outliers that would
be regular if they counted, and are so rather than outliers given all other entries. Proposes the rows as if one of
them counted, the most promising first; a trial takes up to 20 sweeps, and needs only a gain above the accuracy of the
search, as the model stays the same. Not tried in form 1, which does not know the variance of single entries, nor where
entries share outliers.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Doubtful:
    """An outlier that may be a regular entry.

    Attributes
    ----------
    odds : nats by which the predictive density given all other entries prefers a regular one
    place : its position along every mode
    residual : y − x̄
    precision : by which it would count
    """

    odds: float
    place: tuple[int, ...]
    residual: float
    precision: float


def doubtful_entries(problem: Problem, point: Point) -> list[Doubtful]:
    """The most doubtful outliers, in the order of their odds.

    With h = τω Var x, an outlier that is made to count has the deviation r/(1+h) and the variance Var x/(1+h). It is
    doubtful if it is regular then, and if N(r; 0, (1+h)/τω), the predictive density of a regular entry, is likelier
    than the slab by a nat.
    """
    state, spike = point.state, tabulate_branches(point.state.local_model)[0]

    def look(_: Sums, block: Block) -> list[Doubtful]:
        residual, variance = point.fit.at(block)
        if variance is None:
            return []
        relative, values = relative_precision(state, block), problem.values(block)
        noise = float(state.tau.mean) * (np.ones(residual.size) if relative is None else relative)
        square, leverage = noise * np.square(residual, dtype=np.float64), noise * variance

        def log_outlier(rho: Array) -> Array:
            """ln of the density of an outlier, in units of the probability of a regular entry."""
            log_rate, log_rest, log_slab = log_branches(state, block, values, rho, residual >= 0.0)
            return log_slab + log_rate - log_rest

        def is_outlier(rho: Array) -> NDArray[np.bool_]:
            return np.asarray(log_outlier(rho) > kernels.evidence(spike, rho)[0])

        now, counted = square + leverage, square / (1.0 + leverage) ** 2 + leverage / (1.0 + leverage)
        odds = -0.5 * square / (1.0 + leverage) - 0.5 * np.log1p(leverage) - log_outlier(now)
        picked = np.flatnonzero((odds > WORTH) & is_outlier(now) & ~is_outlier(counted))
        picked = picked[np.argsort(-odds[picked])][:MOST]
        places = np.stack([kernels.positions(block, (mode,))[picked] for mode in range(len(block.shape))], axis=1)
        return [
            Doubtful(float(odds[k]), tuple(place), float(residual[k]), float(noise[k]))
            for k, place in zip(picked, places.tolist(), strict=True)
        ]

    _, looks = visit(problem.observations, lambda: (), look)
    return sorted((one for few in looks for one in few), key=lambda one: -one.odds)[:MOST]


def with_entry(state: State, entry: Doubtful) -> State:
    """The state with the rows that meet at an entry as if it counted: one step of a Kalman filter, modes jointly."""
    means = np.stack([rows.mean[i] for rows, i in zip(state.factors, entry.place, strict=True)])
    slopes = [np.prod(np.delete(means, mode, axis=0), axis=0) for mode in range(len(means))]
    covs = [
        unpack_symmetric(rows.cov_packed[0 if rows.shared else i], rows.rank)
        for rows, i in zip(state.factors, entry.place, strict=True)
    ]
    variances = [float(slope @ cov @ slope) for slope, cov in zip(slopes, covs, strict=True)]
    step = entry.residual / (1.0 / entry.precision + sum(variances))
    for mode, (slope, cov, variance, i) in enumerate(zip(slopes, covs, variances, entry.place, strict=True)):
        rows, along = state.factors[mode], cov @ slope
        mean = rows.mean.copy()
        mean[i] += step * along
        packed = np.repeat(rows.cov_packed, rows.n_rows, axis=0) if rows.shared else rows.cov_packed.copy()
        packed[i] = pack_symmetric(cov - np.outer(along, along) / (1.0 / entry.precision + variance))
        state = state.with_factor(mode, *state.row_priors[mode].moved(RowGaussians(rows.mean, packed), mean))
    return state


class Reconsider(Move):
    """One doubtful outlier after another made to count. ``memory`` is the number of those tried without success."""

    name = "reconsider"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        point, problem = progress.point, progress.problem
        n_tried, structure = memory[0] if memory else 0, point.state.structure
        shared = structure is not None and structure.modes
        if not problem.collapsed or not point.rank or shared or not point.state.local_model.has_outliers:
            return None, (n_tried,)
        entries = doubtful_entries(problem, point)[n_tried:]
        if not entries:
            return None, (n_tried,)
        words = f"outlier at {entries[0].place} taken for regular"
        state = with_entry(point.state, entries[0])
        return progress.trial(Kind.REFRESH, words, state, settled(0, 20), worth=0.1 * WORTH), (n_tried + 1,)

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        return (0,) if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)
