"""Another form of rows in order: smooth courses, of second order, or a ring, whose last row is followed by the first;
or the same form with fewer centres.

What the data say of the rows of a mode is a Gaussian likelihood. A screen takes the components one by one, as for order
itself: each has an evidence for every kind of every form, its rows integrated out. With the kinds that it finds, rows
and prior are updated a few times, which costs no pass over the data, and give what the bound would gain. It must gain
so much that a line seldom seems to be more than that. Components that were born into a form of several kinds are also
given the kinds that suit them best: sweeps alone change a kind only by way of rows that suit both. Tried on converged
states: components come first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, rel_entr, softmax

from brtf.data.arrays import Array
from brtf.inference.judge import WORTH
from brtf.inference.trace import Kind
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import NonNegativeOrder, Ordered, RowPrior
from brtf.model.row_priors.chain_kinds import LINE, NO_CARRIERS, Form, smooth_form
from brtf.model.row_priors.ordered import FEWEST_ROWS
from brtf.search.move import Memory, Move, Progress, Sweeps, Trial, are_whole
from brtf.search.moves.order import evidence, n_kinds_of

Found = tuple[float, Form, tuple[RowGaussians, RowPrior]]
"""A gain of the bound, and the form, rows and prior that bring it."""
UPDATES = 5
"""Updates of rows and prior of a screen: the kinds are nearly right from the start."""
NEEDLESS = 0.01
"""Chance that a line seems to be smooth or a ring: a ratio of evidences is beyond its inverse at most so often."""


class OrderForm(Move):
    """The form of one ordered mode after another. ``memory`` is the next one."""

    name = "form of order"

    def propose(self, progress: Progress, memory: Memory) -> tuple[Trial | None, Memory]:
        first, modes = memory[0] if memory else 0, progress.problem.modes
        for number, mode in enumerate(modes[first:], start=first + 1):
            trial = self._trial(progress, mode)
            if trial is not None:
                return trial, (number,)
        return None, (len(modes),)

    def _trial(self, progress: Progress, mode: int) -> Trial | None:
        state, options, prior = progress.point.state, progress.options, progress.point.state.row_priors[mode]
        if not isinstance(prior, Ordered | NonNegativeOrder) or not state.rank:
            return None
        positions, rows = options.positions[mode], state.factors[mode]
        forms = [prior.form]
        if mode not in options.cyclic_modes and rows.n_rows >= FEWEST_ROWS:
            forms += [form for form in (LINE, smooth_form(prior.steps)) if form.wide is not prior.form.wide]
            if mode in options.undecided_modes and positions.may_go_round and not prior.form.ring:
                forms.append(Form(ring=positions.closing or 1.0))
        seen = Seen.of(rows, prior, state.lam)
        likely = {LINE, prior.form, *(form for form in forms if form.ring and positions.closing is not None)}
        found = sorted((one for form in forms for one in seen.others(form)), key=lambda one: -one[0])
        best = next((one for one in found if one[1] in likely), None)
        other = next((one for one in found if one[1] not in likely), None)
        worth, enough = WORTH, -math.log(NEEDLESS)
        if other is not None and other[0] > enough + (0.0 if best is None else max(best[0], 0.0)):
            best, worth = other, enough
        if best is None or best[0] <= worth:
            return None
        _, form, proposed = best
        told = "in a ring" if form.ring else "in order, smooth" if form.wide else "in order"
        return progress.trial(
            Kind.ORDER,
            f"rows of mode {mode} {told}",
            state.with_factor(mode, *proposed),
            (("free", 0, 20),),
            worth=worth,
            then=Sweeps(progress.roughly, 60),
        )

    def learn_from(self, memory: Memory, trial: Trial, *, accepted: bool) -> Memory:
        """A mode of another form is looked at again."""
        return (memory[0] - 1,) if accepted else memory

    def could_remember(self, memory: Memory, rank: int) -> bool:
        return len(memory) == 1 and are_whole(memory)


@dataclass(frozen=True, eq=False)
class Seen:
    """What the data say of the rows of a mode in order.

    Attributes
    ----------
    likelihood : P (I, R, R) and h (I, R)
    own, about : (I, R) precision and linear term of every loading about its centre, given the others of its row
    """

    rows: RowGaussians
    prior: Ordered | NonNegativeOrder
    lam: Gamma
    likelihood: tuple[Array, Array]
    own: Array
    about: Array

    @classmethod
    def of(cls, rows: RowGaussians, prior: Ordered | NonNegativeOrder, lam: Gamma) -> Seen:
        precision, linear = prior.likelihood(rows, lam, gaussian_rows)
        own = np.einsum("trr->tr", precision)
        others = np.einsum("trs,ts->tr", precision, rows.mean) - own * rows.mean
        centres = np.zeros_like(rows.mean)
        if isinstance(prior, Ordered) and prior.centre.size:
            centres = prior.centre.T[prior.groups.astype(int)]
        return cls(rows, prior, lam, (precision, linear), own, linear - others - own * centres)

    @property
    def _carriers(self) -> Array:
        return self.prior.carriers if isinstance(self.prior, Ordered) else NO_CARRIERS

    def evidence(self, form: Form, carriers: Array) -> Array:
        """Evidence (K, R) of every kind."""
        same = form == self.prior.form
        n = self.prior.n_memories if same else n_kinds_of(self.rows.n_rows, form)
        return evidence(self.own, self.about, self.lam.mean, self.prior.steps, n, carriers, form)

    def others(self, form: Form) -> list[Found]:
        """Rows and priors of that form that differ from the present ones, with what the bound would gain."""
        proposed, present = [], _averaged(self.evidence(self.prior.form, self._carriers))
        for carriers in [self._carriers, NO_CARRIERS][form.ring > 0.0 or not self._carriers.size :]:
            found = self.evidence(form, carriers)
            share, promised = softmax(found, axis=0).T, _averaged(found) - present
            same = form == self.prior.form and carriers.size == self._carriers.size
            if same and form.wide:
                promised = float(rel_entr(self.prior.share, share).sum())
            if promised > WORTH:
                proposed.append(self._begun(form, share, self._groups, carriers))
            if promised > WORTH or same:
                proposed += [self._begun(form, share, groups, carriers) for groups in self._fewer_centres()]
        return [(self._gain(*one), form, one) for one in map(self._settled, proposed)]

    @property
    def _groups(self) -> NDArray[Any] | None:
        return self.prior.groups.astype(int) if isinstance(self.prior, Ordered) and self.prior.centre.size else None

    def _fewer_centres(self) -> list[NDArray[Any] | None]:
        """One centre, or none, in place of several."""
        several = self._groups is not None and self._groups.any()
        return [np.zeros(self.rows.n_rows, int), None] if several else []

    def _begun(self, form: Form, share: Array, groups: NDArray[Any] | None, carriers: Array) -> RowPrior:
        """The prior of that form, for rows that are yet to be smoothed."""
        if isinstance(self.prior, NonNegativeOrder):
            return NonNegativeOrder.begun(self.prior, self.prior.steps, share, form)
        return Ordered.begun(self.rows, self.lam, self.prior.steps, share, groups, carriers, form)

    def _settled(self, prior: RowPrior) -> tuple[RowGaussians, RowPrior]:
        """The rows under that prior, both updated a few times."""
        rows, prior = prior.posterior(*self.likelihood, self.lam, gaussian_rows)
        for _ in range(UPDATES):
            rows, prior = prior.learnt(rows, self.lam).posterior(*self.likelihood, self.lam, gaussian_rows)
        return rows, prior

    def _gain(self, rows: RowGaussians, prior: RowPrior) -> float:
        """What the bound gains with these rows in place of the present ones."""
        return self._nats(rows, prior) - self._nats(self.rows, self.prior)

    def _nats(self, rows: RowGaussians, prior: RowPrior) -> float:
        """Σ_t E[h_tᵀa_t − ½ a_tᵀP_t a_t] less the divergence."""
        precision, linear = self.likelihood
        square = np.einsum("tr,trs,ts->", rows.mean, precision, rows.mean) + np.sum(precision * rows.cov)
        return float(np.sum(linear * rows.mean) - 0.5 * square) - prior.kl(rows, self.lam)


def _averaged(found: Array) -> float:
    """Nats of all components together, kinds being equally probable, from those (K, R) of every kind."""
    return float(logsumexp(found, axis=0).sum()) - found.shape[1] * math.log(len(found))
