"""Rows in order: every component's course along a mode becomes a Markov chain of a kind learnt from it.

A screen takes the components one by one: with the precision of its own rows each has an evidence for every kind of
chain, at the cost of a scalar filter. Where all kinds together promise a nat or more, the mode is tried: rows that are
smoothed together are another posterior, so the trial is swept before it is judged. Always accepted where the user says
that the mode is ordered.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp, softmax

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.memory import process_bytes
from brtf.data.positions import Positions
from brtf.inference.judge import WORTH
from brtf.inference.point import evaluate_at
from brtf.inference.trace import Kind
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import IndependentRows, NonNegative, NonNegativeOrder, Ordered, RowPrior, ZeroMean
from brtf.model.row_priors.chain_kinds import (
    LINE,
    NO_CARRIERS,
    Form,
    kinds_of,
    n_kinds,
    order_of,
)
from brtf.model.row_priors.ordered import FEWEST_ROWS
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole
from brtf.search.periods_of_rows import carriers_along, possible_periods

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
            if mode in (progress.options.ordered_modes if self.asked else progress.options.undecided_modes):
                trial = self._trial(progress, mode)
                if trial is not None:
                    return trial, (number,)
        return None, (len(modes),)

    def _trial(self, progress: Progress, mode: int) -> Trial | None:
        state = progress.point.state
        rows, present = state.factors[mode], state.row_priors[mode]
        positions = progress.options.positions[mode]
        if present.ordered or not isinstance(present, IndependentRows | NonNegative):
            return None
        if rows.n_rows < FEWEST_ROWS and not self.asked:
            return None
        if not self.asked and ROW_MATRICES * 8 * rows.n_rows * rows.rank**2 > process_bytes():
            return None
        form = Form(ring=positions.closing or 1.0) if mode in progress.options.cyclic_modes else LINE
        signed = present.signed and not form.ring
        carriers = carriers_along(rows, state.lam, positions) if signed else NO_CARRIERS
        independent = ZeroMean() if isinstance(present, NonNegative) else present
        promised, share = promise(rows, independent, state.lam, positions.steps, carriers, form)
        if not self.asked and promised < WORTH:
            return None
        prior: RowPrior
        if isinstance(present, NonNegative):
            prior = NonNegativeOrder.begun(present, positions.steps, share, form)
        else:
            prior = best_centres(rows, present, state.lam, positions, carriers, form)
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


def best_centres(
    rows: RowGaussians, present: IndependentRows, lam: Gamma, positions: Positions, carriers: Array, form: Form = LINE
) -> Ordered:
    """Chains around zero, one centre, or one for every phase of a period: where the evidence is highest.

    With centres μ, of divergence KL from their prior, rows of the likelihood exp(Σ h a − ½ p a²) have that of μ times
    that of a chain about zero whose linear terms are h − pμ. Periods share the chance of one.
    """
    no_order = np.zeros((rows.rank, n_kinds_of(rows.n_rows, form) * (1 + len(carriers))))
    no_order[:, 0] = 1.0
    periods = [period for period in possible_periods(rows, lam, positions) if 2 * period <= rows.n_rows]
    periods = [] if form.ring else periods
    chain = Ordered.begun(rows, lam, positions.steps, no_order, None, carriers, form)
    found = _evidence(rows, present, lam, positions.steps, carriers, np.zeros_like(rows.mean), form)[0]
    best, most = replace(chain, share=softmax(found, axis=0).T), float(logsumexp(found, axis=0).sum()) + WORTH
    for groups in (np.zeros(rows.n_rows, int), *(positions.places % period for period in periods)):
        prior = chain.regrouped(rows, lam, groups)
        found, nats = _evidence(rows, present, lam, positions.steps, carriers, prior.centre.T[groups], form)
        square = prior.centre**2 + np.einsum("rgg->rg", prior.centre_cov)
        of_prior = float(lam.mean @ square.sum(axis=1)) - square.shape[1] * float(np.log(lam.mean).sum())
        nats += float(logsumexp(found, axis=0).sum()) - math.log(len(periods) if groups.any() else 1)
        nats += 0.5 * (float(np.linalg.slogdet(prior.centre_cov)[1].sum()) + square.size - of_prior)
        if nats > most:
            best, most = replace(prior, share=softmax(found, axis=0).T), nats
    return best


def promise(
    rows: RowGaussians,
    present: IndependentRows,
    lam: Gamma,
    steps: Array,
    carriers: Array = NO_CARRIERS,
    form: Form = LINE,
) -> tuple[float, Array]:
    """Nats that order promises about the present centre, component by component, and the shares (R, K) of the kinds."""
    matrices, linear = present.terms(lam)
    centres = np.broadcast_to(linear / np.einsum("irr->ir", matrices), rows.mean.shape)
    found, _ = _evidence(rows, present, lam, steps, carriers, centres, form)
    gains = logsumexp(found - found[0], axis=0) - math.log(len(found))
    rounding = rows.n_rows * float(np.finfo(float).eps) * float(np.abs(found).max(initial=0.0))
    return float(gains.sum()) - rounding, softmax(found, axis=0).T


def _evidence(
    rows: RowGaussians,
    present: IndependentRows,
    lam: Gamma,
    steps: Array,
    carriers: Array,
    centres: Array,
    form: Form = LINE,
) -> tuple[Array, float]:
    """Evidence (K, R) of every kind of chain about the given centres (I, R), and that of the centres.

    A component's rows have the likelihood p_t = 1/V_t − Λ_t, h_t = ã_t/V_t − l_t, Λ and l being the present prior's.
    """
    matrices, own_linear = present.terms(lam)
    variances = np.broadcast_to(rows.variances, rows.mean.shape)
    precision = np.maximum(1.0 / variances - np.einsum("irr->ir", matrices), 0.0)
    linear = rows.mean / variances - own_linear
    about = linear - precision * centres
    found = evidence(precision, about, lam, steps, n_kinds_of(rows.n_rows, form), carriers, form)
    return found, float(np.sum(centres * (linear - 0.5 * precision * centres)))


def evidence(precision: Array, linear: Array, lam: Gamma, steps: Array, n: int, carriers: Array, form: Form) -> Array:
    """Evidence (K, R) of every kind of chain about zero for components with the likelihoods exp(Σ h a − ½ p a²)."""
    kinds, order = kinds_of(steps, n, carriers=carriers, form=form), order_of(len(linear), form)
    parts = kinds.own, kinds.beside, kinds.far
    return kernels.chain_evidence(precision[order], linear[order], lam.mean, *parts) + 0.5 * kinds.log_det[:, None]


def n_kinds_of(n_rows: int, form: Form) -> int:
    """Kinds of a chain of that form without a carrier."""
    return n_kinds(n_rows) + form.n_second
