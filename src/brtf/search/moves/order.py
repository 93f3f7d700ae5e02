"""Rows in order: every component's course along a mode becomes a Markov chain of a kind learnt from it.

A screen takes the components one by one: with the precision of its own rows each has an evidence for every kind of
chain, at the cost of a scalar filter. Where all kinds together promise a nat or more, the mode is tried: rows that are
smoothed together are another posterior, so the trial is swept before it is judged. Always accepted where the user says
that the mode is ordered.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp, softmax

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.memory import process_bytes
from brtf.inference.judge import WORTH
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import IndependentRows, NonNegative, NonNegativeOrder, Ordered, RowPrior, ZeroMean
from brtf.model.row_priors.chain_kinds import NO_CARRIERS, kinds_of, n_kinds
from brtf.model.row_priors.ordered import FEWEST_ROWS
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole
from brtf.search.periods_of_rows import carriers_along

ROW_MATRICES = 8
"""R × R matrices per row in a trial of a chain: precisions, covariances, and those of neighbours, of two states."""


class Order(Move):
    """Order of one mode after another, or only of those for which it was ``asked``. ``memory`` is the next one."""

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked
        self.name = "order asked for" if asked else "order"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        first, modes = memory[0] if memory else 0, progress.problem.modes
        for number, mode in enumerate(modes[first:], start=first + 1):
            if mode in (progress.wishes.ordered_modes if self.asked else progress.wishes.undecided_modes):
                trial = self._trial(progress, mode)
                if trial is not None:
                    return trial, (number,)
        return None, (len(modes),)

    def _trial(self, progress: Progress, mode: int) -> Trial | None:
        state = progress.point.state
        rows, present = state.factors[mode], state.row_priors[mode]
        positions = progress.wishes.positions[mode]
        if not isinstance(present, IndependentRows | NonNegative) or isinstance(present, NonNegativeOrder):
            return None
        if rows.n_rows < FEWEST_ROWS and not self.asked:
            return None
        if not self.asked and ROW_MATRICES * 8 * rows.n_rows * rows.rank**2 > process_bytes():
            return None
        carriers = carriers_along(rows, state.lam, positions) if present.signed else NO_CARRIERS
        independent = ZeroMean() if isinstance(present, NonNegative) else present
        promised, share = promise(rows, independent, state.lam, positions.steps, carriers)
        if not self.asked and promised < WORTH:
            return None
        prior: RowPrior
        if isinstance(present, NonNegative):
            prior = NonNegativeOrder(present.location, present.precision, positions.steps, share)
        else:
            groups = np.zeros(rows.n_rows) if present.terms(state.lam)[1].any() else None
            prior = Ordered.begun(rows, state.lam, positions.steps, share, groups, carriers)
        proposed = state.with_factor(mode, rows, prior)
        point = evaluate_at(progress.problem, proposed, progress.point.fit)
        return progress.trial(
            Kind.ORDER,
            f"rows of mode {mode} {Ordered.name}",
            point,
            (("free", 0, 20),),
            worth=-math.inf if self.asked else WORTH,
            then=Sweeps(progress.roughly, 60),
        )

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)


def promise(
    rows: RowGaussians, present: IndependentRows, lam: Gamma, steps: Array, carriers: Array = NO_CARRIERS
) -> tuple[float, Array]:
    """Nats that order promises, each component taken on its own, and the shares (R, K) of the kinds.

    A component's rows have the likelihood p_t = 1/V_t − Λ_t, h_t = ã_t/V_t − Λ_tμ, about the present centre.
    """
    matrices, linear = present.terms(lam)
    own = np.einsum("irr->ir", matrices)
    centre = linear / own
    variances = np.broadcast_to(rows.variances, rows.mean.shape)
    precision = np.maximum(1.0 / variances - own, 0.0)
    linear = (rows.mean - centre) / variances
    kinds = kinds_of(steps, n_kinds(rows.n_rows), carriers=carriers)
    found = kernels.chain_evidence(precision, linear, lam.mean, kinds.own, kinds.beside) + 0.5 * kinds.log_det[:, None]
    gains = logsumexp(found - found[0], axis=0) - math.log(len(found))
    rounding = rows.n_rows * float(np.finfo(float).eps) * float(np.abs(found).max(initial=0.0))
    return float(gains.sum()) - rounding, softmax(found, axis=0).T
