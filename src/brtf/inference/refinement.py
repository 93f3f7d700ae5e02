"""The means of all modes moved together, for small data whose sweeps, one mode at a time, converge slowly.

With the weights and targets of the entries and all covariances fixed, the bound is a polynomial in the means, and its
slope costs N + 1 thin products: at high rank a small part of a sweep, most of which goes into the covariances. So many
steps can be made on it between two sweeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Sums, whole
from brtf.inference.factor_update import FactorPlan, weighing
from brtf.inference.point import Point
from brtf.inference.problem import Problem
from brtf.inference.statistics import add_up_rows, row_statistics
from brtf.inference.updates import update_component_precisions
from brtf.kernels.packed import unpack_symmetric
from brtf.model.state import State

LOOKS_PER_ROUND = 5
"""Looks at the low-rank part in place of a round of updates."""
REMEMBERED = 10
"""Steps from which the curvature is estimated."""
LITTLE = 1e-3
"""Share of what all steps gained below which the last one ends them."""
ENOUGH = 1e-4
"""Share of its slope that a step must gain."""


def pays(problem: Problem, state: State) -> bool:
    """Whether the looks in place of a round cost less than half of it: 5 (N + 1) R an entry against N R (R + 1)/2.

    Only where the data are small, rows have Grams of their own, and two modes or more have means that may move freely.
    """
    observations, order = problem.observations, len(state.factors)
    n_bytes = 8 * state.rank**2 * sum(rows.n_rows for rows in state.factors)
    fits = observations.is_small and n_bytes <= observations.plan.run_bytes
    weighted = FactorPlan.of(problem, state).update.known_grams is None
    cheap = 4 * LOOKS_PER_ROUND * (order + 1) <= order * (state.rank + 1)
    return fits and weighted and cheap and len(_free_modes(state)) > 1


def refined(problem: Problem, point: Point, n_rounds: int) -> State:
    """C38: the state with the means of all signed modes after quasi-Newton steps, in place of so many rounds.

    The caller judges it by the bound: covariances and weights were held, and change with the means.
    """
    state = point.state
    landscape = Landscape.of(problem, point, _free_modes(state))
    means = descend(landscape, LOOKS_PER_ROUND * n_rounds)
    for mode, mean in zip(landscape.modes, landscape.parted(means), strict=True):
        rows, prior = state.row_priors[mode].moved(state.factors[mode], mean)
        state = state.with_factor(mode, rows, prior.learnt(rows, state.lam))
    return state


def _free_modes(state: State) -> list[int]:
    return [mode for mode, prior in enumerate(state.row_priors) if prior.signed]


@dataclass(frozen=True, eq=False)
class Landscape:
    """Minus the bound as a function of the means of some modes, near a point where it has the bound's slope.

    ½ τ̄ Σ w (x̄ − t/w)² + Σ_r c_r ln d_r + ½ τ̄ Σ w Var x, with q(λ_r) = Ga(c_r, d_r) learnt from the means, and the last
    term to second order, its curvature diagonal.

    Attributes
    ----------
    problem, state, modes : in the state, λ is learnt
    precision : τ̄, of an entry of weight one
    weights : w (M,); None where all are one
    low_rank, misfit : x̄ and w x̄ − t at the point, (M,)
    covs : covariances of the rows of each mode, (I_n, R, R), or (1, R, R) where all share one
    pull, stiffness : slope and curvature of ½ τ̄ Σ w Var x in the means, one after another
    """

    problem: Problem
    state: State
    modes: list[int]
    precision: float
    weights: Array | None
    low_rank: Array
    misfit: Array
    covs: list[Array]
    pull: Array
    stiffness: Array

    @classmethod
    def of(cls, problem: Problem, point: Point, modes: list[int]) -> Landscape:
        observations, state, factors = problem.observations, point.state, point.state.factors
        update, weigh = FactorPlan.of(problem, state).update, weighing(problem, state, point.fit, point.local)
        parts, targets = zip(*map(weigh, observations.block_list), strict=True)
        weights = None if parts[0] is None else np.concatenate(parts)
        means = [rows.mean for rows in factors]
        low_rank = _low_rank_at(problem, means)
        weighed = low_rank if weights is None else weights * low_rank
        squares = [mean**2 for mean in means]
        moments = [square + rows.variances for square, rows in zip(squares, factors, strict=True)]
        pulls, stiffness = [], []
        for mode in modes:
            known = None if update.known_grams is None else update.known_grams(factors, mode)
            grams, _ = row_statistics(observations, factors, mode, weigh, known)
            pulls.append(_times(grams, means[mode]) - _contracted(problem, weighed, means, mode))
            whole_squares, of_means = (_contracted(problem, weights, part, mode) for part in (moments, squares))
            stiffness.append(np.maximum(whole_squares - of_means, 0.0))
        return cls(
            problem,
            state,
            modes,
            update.precision,
            weights,
            low_rank,
            weighed - np.concatenate(targets),
            [unpack_symmetric(factors[mode].cov_packed, state.rank) for mode in modes],
            update.precision * _joined(pulls),
            update.precision * _joined(stiffness),
        )

    @property
    def start(self) -> Array:
        """The means at the point, one after another."""
        return _joined([self.state.factors[mode].mean for mode in self.modes])

    def parted(self, numbers: Array) -> list[Array]:
        """Numbers of all means as a matrix for every mode."""
        lengths = [self.state.factors[mode].n_rows for mode in self.modes]
        rows = numbers.reshape(-1, self.state.rank)
        return np.split(rows, np.cumsum(lengths)[:-1])

    def look(self, place: Array) -> tuple[float, Array]:
        """The rise from the point to these means, and the slope there."""
        step, present = place - self.start, self._at(place)
        means = [rows.mean for rows in present.factors]
        change = _low_rank_at(self.problem, means) - self.low_rank
        weighed = change if self.weights is None else self.weights * change
        stiff = self.stiffness * step
        rise = self.precision * float(change @ (self.misfit + 0.5 * weighed))
        rise += float(step @ (self.pull + 0.5 * stiff))
        rise += float(present.lam.concentration @ np.log(present.lam.rate / self.state.lam.rate))
        misfit = self.misfit + weighed
        slopes = _joined([_contracted(self.problem, misfit, means, mode) for mode in self.modes])
        own = _joined([present.row_priors[mode].slope(means[mode], present.lam) for mode in self.modes])
        return rise, self.precision * slopes + self.pull + stiff + own

    def _at(self, place: Array) -> State:
        """The state with these means, and λ learnt from them."""
        factors = list(self.state.factors)
        for mode, mean in zip(self.modes, self.parted(place), strict=True):
            factors[mode] = factors[mode].with_mean(mean)
        return update_component_precisions(replace(self.state, factors=tuple(factors)))

    def conditioned(self, slope: Array) -> Array:
        """The slope times the covariances of the rows: minus the step of every row, were the others fixed."""
        parts = zip(self.covs, self.parted(slope), strict=True)
        return _joined([_times(cov, part) for cov, part in parts])


def descend(landscape: Landscape, n_looks: int) -> Array:
    """The means after L-BFGS steps from the point, shortened until they gain; at most so many looks."""
    place = landscape.start
    value, slope = landscape.look(place)
    memory: list[tuple[Array, Array]] = []
    length, step = 1.0, -landscape.conditioned(slope)
    for _ in range(n_looks):
        further = place + length * step
        found, new_slope = landscape.look(further)
        if not found <= value + ENOUGH * length * float(slope @ step):
            length *= 0.5
            continue
        moved, turned = length * step, new_slope - slope
        if moved @ turned > 0.0:
            memory = [*memory[1 - REMEMBERED :], (moved, turned)]
        gain, place, value, slope = value - found, further, found, new_slope
        if gain <= LITTLE * -value:
            break
        length, step = 1.0, -_newton_step(landscape, slope, memory)
    return place


def _newton_step(landscape: Landscape, slope: Array, memory: list[tuple[Array, Array]]) -> Array:
    """The inverse of the curvature, as the last steps show it, times the slope: the two loops of L-BFGS."""
    step, shares = slope.copy(), []
    for moved, turned in reversed(memory):
        shares.append(float(moved @ step) / float(moved @ turned))
        step -= shares[-1] * turned
    step = landscape.conditioned(step)
    for (moved, turned), share in zip(memory, reversed(shares), strict=True):
        step += (share - float(turned @ step) / float(moved @ turned)) * moved
    return step


def _low_rank_at(problem: Problem, means: list[Array]) -> Array:
    """x̄ at all entries, (M,)."""
    return whole(problem.observations, lambda block: kernels.low_rank_at(block, means))


def _contracted(problem: Problem, numbers: Array | None, matrices: list[Array], mode: int) -> Array:
    """Numbers of the entries, or ones, contracted with the matrices of all other modes, (I_n, R)."""

    def add(sums: Sums, block: Block) -> None:
        own = None if numbers is None else numbers[block.entries]
        kernels.contract(kernels.listed(block), own, matrices, mode, sums[0])

    return add_up_rows(problem.observations, mode, [matrices[mode].shape], add)[0]


def _times(matrices: Array, rows: Array) -> Array:
    """Symmetric matrices (I, R, R), or one (1, R, R) for all, times the rows (I, R)."""
    return rows @ matrices[0] if len(matrices) == 1 else np.einsum("irs,is->ir", matrices, rows)


def _joined(parts: list[Array]) -> Array:
    return np.concatenate([part.ravel() for part in parts])
