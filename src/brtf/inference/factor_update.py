"""How a sweep updates the factors: the entries' weights and targets, and the route to U1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Remembered, visit
from brtf.inference.entry_posterior import EntryLaw, relative_precision
from brtf.inference.problem import Fit, Problem, slice_grams
from brtf.inference.statistics import Weighing, WeightsAndTargets, complete_gram, over_longest, partial_fits
from brtf.inference.update_rows import KnownGrams, OnePass, RowUpdate
from brtf.kernels.arguments import WeighedEntries
from brtf.model.state import State


@dataclass(frozen=True, eq=False)
class FactorPlan:
    """How the factors of a state are updated: what is known beforehand, and in which passes over the data.

    Attributes
    ----------
    problem, state
    update : U1 of a mode
    one_pass : the update of all modes in one pass, for large data whose layout permits it; None otherwise
    """

    problem: Problem
    state: State
    update: RowUpdate
    one_pass: OnePass | None

    @classmethod
    def of(cls, problem: Problem, state: State) -> FactorPlan:
        """The plan for a state, whatever the weights and targets of the entries will be."""
        precision = float(state.tau.mean) * (state.local_model.largest_weight if _completes(problem, state) else 1.0)
        update = RowUpdate(precision, _known_grams(problem, state))
        return cls(problem, state, update, _one_pass(problem, state, update))

    def carry_out(self, weigh: Weighing, relaxation: float = 1.0) -> State:
        """U1 for every mode with given weights and targets; small data may move ``relaxation`` times as far.

        Either in one pass; or dense data are first contracted over the longest mode, which is updated last, and the
        others follow from that without another pass; or every mode has a pass of its own.
        """
        observations, state, update = self.problem.observations, self.state, self.update
        if self.one_pass is not None:
            look = self.one_pass.look
            return self.one_pass.finish(
                *visit(observations, self.one_pass.zeros, lambda sums, block: look(sums, block, *weigh(block)))
            )
        if state.rank == 0:
            return state
        update, with_grams = replace(update, relaxation=relaxation), update.known_grams is None
        *others, longest = self.problem.modes
        if len(others) > 1 and partial_fits(observations, state.rank, longest, with_grams):
            partial = over_longest(observations, state, longest, weigh, with_grams)
            state, others = update.from_partial(state, others, longest, partial), []
        for mode in (*others, longest):
            state = update.in_own_pass(observations, state, mode, weigh)
        return state

    @property
    def solves_directly(self) -> bool:
        """Whether the one pass solves blocks of complete data as it reads them.

        That needs form 1, and no outliers shared between blocks.
        """
        structure = self.state.structure
        known = self.update.known_grams is not None and not self.state.local_model.is_gaussian
        apart = structure is None or 0 not in structure.modes
        return self.one_pass is not None and known and apart and math.isinf(self.problem.limit)


def update_all_factors(problem: Problem, state: State, fit: Fit) -> State:
    """C2: U1 for every mode, with the entries' weights (form 2) or the completed data (form 1)."""
    return FactorPlan.of(problem, state).carry_out(weighing(problem, state, fit))


def _one_pass(problem: Problem, state: State, update: RowUpdate) -> OnePass | None:
    """The update of all factors in one pass, for large data whose layout permits it; None otherwise."""
    if problem.observations.is_small:
        return None  # little to save, and without it the order of the modes does not depend on storage
    known, terms = update.known_grams is not None, state.row_priors[0].shared_terms(state.lam)
    if terms is None or not OnePass.fits(problem.observations, state.rank, not known):
        return None
    if terms.factors is not None and known:
        return None  # rows of complete data that share a Gram are solved with one covariance
    row_weights, differ = None, not known
    if known and state.slices is not None:
        row_weights = state.slices.mean if state.slices.modes == (0,) else None
        differ = 0 in state.slices.modes
    room = None
    if differ and not problem.observations.in_chunks:
        n_rows, rank = state.factors[0].n_rows, state.rank
        room = np.empty((n_rows, rank)), np.empty((n_rows, rank * (rank + 1) // 2)), np.empty(n_rows)
    return OnePass(state, problem.modes, update, terms, problem.dtype, row_weights, room)


def _completes(problem: Problem, state: State) -> bool:
    """Whether the data are completed (form 1), so that entries differ in weight only by the noise of their slices."""
    return not problem.collapsed or state.local_model.is_gaussian


def _known_grams(problem: Problem, state: State) -> KnownGrams | None:
    """Row Grams that do not depend on the data."""
    if not _completes(problem, state) or problem.observations.layout != "complete":
        return None
    return complete_gram if state.slices is None else partial(slice_grams, state.slices)


def weighing(
    problem: Problem, state: State, fit: Fit, local: Callable[[Block], WeighedEntries] | None = None
) -> Weighing:
    """Weights and targets of a block's entries, from their local posteriors if these are known."""

    law = EntryLaw(state)

    def found(block: Block) -> WeighedEntries:
        return law.posterior(block, problem.values(block), *fit.at(block))

    def weigh(block: Block) -> WeightsAndTargets:
        weight = None if state.local_model.is_gaussian else (found if local is None else local)(block).weight
        return weights_and_targets(problem, state, block, problem.values(block), fit.residual(block), weight)

    return Remembered(problem.observations, weigh)


def without_smooth(state: State, block: Block, values: Array) -> Array:
    """y − ḡ, which the factors explain, of a block's entries."""
    if state.smooth is None:
        return values
    return values - state.smooth.mean[block.entries].astype(values.dtype, copy=False)


def weights_and_targets(
    problem: Problem, state: State, block: Block, targets: Array, residual: Array, local: Array | None
) -> WeightsAndTargets:
    """Weights and targets of a block's entries, given their values and the weights of their local posteriors."""
    weights, targets = relative_precision(state, block), without_smooth(state, block, targets)
    if local is not None and not state.local_model.is_gaussian:
        if _completes(problem, state):
            targets = kernels.completed(targets, residual, local, state.local_model.largest_weight)
        else:
            weights = local if weights is None else weights * local
    return weights, targets if weights is None else weights * targets
