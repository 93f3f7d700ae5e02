"""Rows in order: every component's course along a mode becomes a Markov chain of a kind learnt from it.

A screen takes the components one by one: with the precision of its own rows each has an evidence for every kind of
chain, at the cost of a scalar filter. Where all kinds together promise a nat beyond what the same rows may promise when
shuffled, the mode is tried: rows that are all alike have a long memory in any order. Rows that are smoothed together
are another posterior, so the trial is swept before it is judged. Always accepted where the user says that the mode is
ordered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.memory import process_bytes
from brtf.data.positions import Positions
from brtf.inference.judge import WORTH
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import IndependentRows, NonNegative, NonNegativeOrder, Ordered, RowPrior, ZeroMean
from brtf.model.row_priors.chain_kinds import LINE, NO_CARRIERS, Form, kinds_of, n_kinds, order_of
from brtf.model.row_priors.ordered import FEWEST_ROWS
from brtf.model.state import State
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole
from brtf.search.periods_of_rows import carriers_along, possible_periods

SHUFFLES, STANDARD_DEVIATIONS = 9, 3.0
"""Shuffles of the rows, and the standard deviations by which order has to promise more than in these."""
ROW_MATRICES = 8
"""R × R matrices per row in a trial of a chain: precisions, covariances, and those of neighbours, of two states."""


class Order(Move):
    """Order of all modes that promise it together, then of each alone; or only of those for which it was ``asked``.

    ``memory`` holds the remaining sets of modes.
    """

    name = "order"

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked
        if asked:
            self.name = "order asked for"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        options, state = progress.options, progress.point.state
        if not memory:
            found = [mode for mode in progress.problem.modes if self._may_be_ordered(progress, mode)]
            if not self.asked:
                gains = {mode: _promised(state, mode, options.positions[mode], LINE)[0] for mode in found}
                found = sorted((mode for mode in found if gains[mode] >= WORTH), key=lambda mode: -gains[mode])
            memory = ((*([tuple(found)] if len(found) > 1 else []), *((mode,) for mode in found)),)
        (sets,) = memory
        if not sets:
            return None, memory
        for mode in sets[0]:
            positions = options.positions[mode]
            form = Form(ring=positions.closing or 1.0) if mode in options.cyclic_modes else LINE
            state = state.with_factor(mode, state.factors[mode], in_order(state, mode, positions, form))
        trial = progress.trial(
            Kind.ORDER,
            f"rows of {', '.join(f'mode {mode}' for mode in sets[0])} {Ordered.name}",
            evaluate_at(progress.problem, state, progress.point.fit),
            (("free", 0, 20),),
            worth=-math.inf if self.asked else WORTH,
            then=Sweeps(progress.roughly, 60),
        )
        return trial, (sets[1:],)

    def _may_be_ordered(self, progress: Progress, mode: int) -> bool:
        """Whether the mode is to be tried: rows of no order yet, of whose chains there is memory for two states."""
        state, options = progress.point.state, progress.options
        rows, present = state.factors[mode], state.row_priors[mode]
        if present.ordered or not isinstance(present, IndependentRows | NonNegative):
            return False
        if self.asked:
            return mode in options.ordered_modes
        fits = ROW_MATRICES * 8 * rows.n_rows * rows.rank**2 <= process_bytes()
        return mode in options.undecided_modes and rows.n_rows >= FEWEST_ROWS and fits

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        """After all modes together none is left; after one alone the others are."""
        return ((),) if accepted and trial.words.count("mode") > 1 else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        sets = memory[0] if len(memory) == 1 else None
        return isinstance(sets, tuple) and all(are_whole(modes) and len(modes) > 0 for modes in sets)


def in_order(state: State, mode: int, positions: Positions, form: Form) -> RowPrior:
    """The chains that a mode's rows would be, given what is known of every component by itself."""
    rows, present = state.factors[mode], state.row_priors[mode]
    if isinstance(present, NonNegative):
        _, share = _promised(state, mode, positions, form)
        return NonNegativeOrder.begun(present, positions.steps, share, form)
    if not isinstance(present, IndependentRows):
        raise TypeError(f"the rows of mode {mode} are in an order already")
    carriers = NO_CARRIERS if form.ring else carriers_along(rows, state.lam, positions)
    return best_centres(rows, present, state.lam, positions, carriers, form)


def _promised(state: State, mode: int, positions: Positions, form: Form) -> tuple[float, Array]:
    """The nats that order of a mode promises, and the shares of the kinds."""
    rows, present = state.factors[mode], state.row_priors[mode]
    carriers = carriers_along(rows, state.lam, positions) if present.signed and not form.ring else NO_CARRIERS
    independent = present if isinstance(present, IndependentRows) else ZeroMean()
    return promise(rows, independent, state.lam, positions.steps, carriers, form)


def best_centres(
    rows: RowGaussians, present: IndependentRows, lam: Gamma, positions: Positions, carriers: Array, form: Form = LINE
) -> Ordered:
    """Chains around zero, one centre, or one for every phase of a period: where the evidence is highest.

    With centres μ, of divergence KL from their prior, rows of the likelihood exp(Σ h a − ½ p a²) have that of μ times
    that of a chain about zero whose linear terms are h − pμ. Centres are those of rows in no order: of n rows, the
    mean is n/(1 + n) of theirs, and the variance 1/(1 + n)λ, which costs ½ pλ/(p + λ) times itself a row. Periods
    share the chance of one.
    """
    seen = Evidence.of(rows, present, lam, positions.steps, carriers, form)
    periods = [period for period in possible_periods(rows, lam, positions) if 2 * period <= rows.n_rows]
    periods = [] if form.ring else periods
    groups = positions.places.astype(np.intp) % np.array([1, *periods])[:, None]
    n_groups = groups.max(axis=1) + 1
    places = groups + (np.cumsum(n_groups) - n_groups)[:, None]
    n_in = np.bincount(places.ravel(), minlength=int(n_groups.sum())).astype(float)
    sums = np.zeros((n_in.size, rows.rank))
    np.add.at(sums, places, rows.mean)
    centres = sums / (1.0 + n_in[:, None])
    squares = lam.mean @ (centres**2 + 1.0 / ((1.0 + n_in[:, None]) * lam.mean)).T
    divergence = 0.5 * np.add.reduceat(squares - rows.rank * (1.0 - np.log1p(n_in)), np.cumsum(n_groups) - n_groups)
    divergence[1:] += math.log(max(len(periods), 1))
    certain = np.sum(seen.precision / (seen.precision + seen.scale), axis=1)

    about = np.concatenate([np.zeros((1, *rows.mean.shape)), centres[places]])
    found = seen.of_kinds(about)
    nats = np.logaddexp.reduce(found, axis=1).sum(axis=1) + seen.of_centres(about)
    nats[1:] -= divergence + 0.5 * (1.0 / (1.0 + n_in))[places] @ certain + WORTH
    best = int(np.argmax(nats))
    chosen = None if best == 0 else groups[best - 1]
    no_order = np.zeros((rows.rank, found.shape[1]))
    no_order[:, 0] = 1.0
    chain = Ordered.begun(rows, lam, positions.steps, no_order, chosen, carriers, form)
    return replace(chain, share=softmax(found[best], axis=0).T)


def promise(
    rows: RowGaussians,
    present: IndependentRows,
    lam: Gamma,
    steps: Array,
    carriers: Array = NO_CARRIERS,
    form: Form = LINE,
) -> tuple[float, Array]:
    """Nats that order promises about the present centre, component by component, and the shares (R, K) of the kinds.

    What the same rows may promise in random orders is subtracted.
    """
    matrices, linear = present.terms(lam)
    centres = np.broadcast_to(linear / np.einsum("irr->ir", matrices), rows.mean.shape)
    seen = Evidence.of(rows, present, lam, steps, carriers, form)

    def gain_of(found: Array) -> float:
        return float(np.logaddexp.reduce(found - found[0], axis=0).sum()) - rows.rank * math.log(len(found))

    found, rng = seen.of_kinds(centres[None])[0], np.random.default_rng(0)
    gain = gain_of(found)
    if gain >= WORTH:
        places = [rng.permutation(rows.n_rows) for _ in range(SHUFFLES)]
        others = [gain_of(seen.in_order_of(one).of_kinds(centres[None, one])[0]) for one in places]
        gain -= max(0.0, float(np.mean(others) + STANDARD_DEVIATIONS * np.std(others)))
    rounding = rows.n_rows * float(np.finfo(float).eps) * float(np.abs(found).max(initial=0.0))
    return gain - rounding, softmax(found, axis=0).T


@dataclass(frozen=True, eq=False)
class Evidence:
    """Evidence of chains of every kind, component by component.

    A component's rows have the likelihood p_t = 1/V_t − Λ_t, h_t = ã_t/V_t − l_t, Λ and l being the present prior's.

    Attributes
    ----------
    precision, linear : (I, R) p and h
    scale : (R,) λ̄
    steps, carriers, form : of the chains
    """

    precision: Array
    linear: Array
    scale: Array
    steps: Array
    carriers: Array
    form: Form

    @classmethod
    def of(
        cls,
        rows: RowGaussians,
        present: IndependentRows,
        lam: Gamma,
        steps: Array,
        carriers: Array,
        form: Form = LINE,
    ) -> Evidence:
        """That of rows with a posterior of their own."""
        matrices, own_linear = present.terms(lam)
        variances = np.broadcast_to(rows.variances, rows.mean.shape)
        precision = np.maximum(1.0 / variances - np.einsum("irr->ir", matrices), 0.0)
        return cls(precision, rows.mean / variances - own_linear, lam.mean, steps, carriers, form)

    def in_order_of(self, places: NDArray[np.int64]) -> Evidence:
        """That of the rows in another order."""
        return replace(self, precision=self.precision[places], linear=self.linear[places])

    def of_kinds(self, centres: Array) -> Array:
        """Evidence (C, K, R) of every kind of chain about the given centres (C, I, R), without that of these."""
        n, n_rows, rank = centres.shape
        about = (self.linear - self.precision * centres).transpose(1, 0, 2).reshape(n_rows, n * rank)
        precision, scale = np.tile(self.precision, (1, n)), np.tile(self.scale, n)
        n_without = n_kinds_of(n_rows, self.form)
        found = evidence(precision, about, scale, self.steps, n_without, self.carriers, self.form)
        return np.asarray(found.reshape(len(found), n, rank).transpose(1, 0, 2))

    def of_centres(self, centres: Array) -> Array:
        """Log likelihood (C,) of rows at the given centres (C, I, R)."""
        return np.asarray(np.sum(centres * (self.linear - 0.5 * self.precision * centres), axis=(1, 2)))


def evidence(precision: Array, linear: Array, scale: Array, steps: Array, n: int, carriers: Array, form: Form) -> Array:
    """Evidence (K, R) of every kind of chain about zero for components with the likelihoods exp(Σ h a − ½ p a²)."""
    kinds, order = kinds_of(steps, n, carriers=carriers, form=form), order_of(len(linear), form)
    parts = kinds.own, kinds.beside, kinds.far
    return kernels.chain_evidence(precision[order], linear[order], scale, *parts) + 0.5 * kinds.log_det[:, None]


def n_kinds_of(n_rows: int, form: Form) -> int:
    """Kinds of a chain of that form without a carrier."""
    return n_kinds(n_rows) + form.n_second
