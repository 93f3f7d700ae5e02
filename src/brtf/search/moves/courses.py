"""Second courses along the ordered mode of a matrix: components with the loadings of others and another memory.

The residual does not show them: a course of short memory follows whatever was observed, and knows nothing at the next
gap. So the course of a component is compared with the sum of two, its own and one of any kind, by a smoother of two
chains. All that promise a nat or more are proposed at once, with the low-rank part as it is; sweeps prune those that do
not pay. Costs up to 40 sweeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp, softmax

from brtf import kernels
from brtf.data.arrays import Array
from brtf.inference.judge import WORTH
from brtf.inference.trace import Kind
from brtf.inference.update_rows import gaussian_rows
from brtf.model.row_priors import Ordered
from brtf.model.row_priors.chain_kinds import Kinds, kinds_of
from brtf.model.state import State
from brtf.search.components import add_components
from brtf.search.move import Once, Progress, Sweeps, Trial

SCREENED_ROWS = 2048
"""Rows that are compared: the consecutive ones with the most data."""
SCREENED_COMPONENTS = 10
"""Components that are compared, the strongest ones."""
SECOND_SHARE = 0.25
"""Share of a course's power that the second one is tried with; sweeps learn it."""


class SecondCourses(Once):
    """Second courses for the strongest components of a matrix in order."""

    name = "second courses"

    def proposal(self, progress: Progress) -> Trial | None:
        state, shape = progress.point.state, progress.problem.observations.shape
        priors = enumerate(state.row_priors)
        ordered = [mode for mode, prior in priors if isinstance(prior, Ordered) and not prior.form.ring]
        room = progress.options.limit(state) - state.rank
        if len(shape) != 2 or not ordered or state.smooth is not None or room < 1:
            return None
        mode = max(ordered, key=lambda one: shape[one])
        found = sorted(second_courses(state, mode), key=lambda one: -one.gain)
        found = [one for one in found[:room] if one.gain > WORTH]
        if not found:
            return None
        proposed = _with_courses(progress, mode, found)
        words, then = f"born {len(found)} as second courses", Sweeps(progress.roughly, 100)
        return progress.trial(Kind.BIRTH, words, proposed, (("free", 0, 40),), then=then)


@dataclass(frozen=True, eq=False)
class Course:
    """A second course of a component: nats that it promises, the shares (K,) of its kinds, and its means (I,)."""

    component: int
    gain: float
    share: Array
    mean: Array


def second_courses(state: State, mode: int) -> list[Course]:
    """The best second courses of the strongest components along an ordered mode, others at their means."""
    rows, prior = state.factors[mode], state.row_priors[mode]
    if not isinstance(prior, Ordered):
        raise TypeError(f"the rows of mode {mode} are in no order")
    precision, linear = prior.likelihood(rows, state.lam, gaussian_rows)
    own = np.einsum("trr->tr", precision)
    linear = linear - np.einsum("trs,ts->tr", precision, rows.mean) + own * rows.mean
    centres = prior.centre.T[prior.groups.astype(int)] if prior.centre.size else 0.0
    linear = linear - own * centres
    begin = _densest(own.sum(axis=1), SCREENED_ROWS)
    end = min(begin + SCREENED_ROWS, rows.n_rows)
    start = float(prior.places[begin])
    steps = prior.steps[begin : end - 1]
    looked = kinds_of(steps, prior.n_memories, carriers=prior.carriers, start=start, form=prior.form)
    found = []
    for r in np.argsort(state.lam.mean, kind="stable")[:SCREENED_COMPONENTS]:
        scale = state.lam.mean[r]
        sums = Sums(own[begin:end, r], linear[begin:end, r], float(scale), looked, prior.share[r])
        nats = np.array([sums.evidence(k) for k in range(len(looked.own))])
        gain = float(logsumexp(nats)) - math.log(nats.size) - sums.evidence_alone
        whole = Sums(own[:, r], linear[:, r], float(scale), prior.kinds, prior.share[r])
        mean = whole.smoothed(int(np.argmax(nats)))[0][:, 1] if gain > WORTH else np.zeros(rows.n_rows)
        found.append(Course(int(r), gain, softmax(nats), mean))
    return found


@dataclass(frozen=True, eq=False)
class Sums:
    """A course about zero that is observed, with likelihood exp(Σ h a − ½ p a²), as a chain or the sum of two.

    Attributes
    ----------
    precision, linear : (n,) p and h
    scale : λ of the first chain
    kinds : of the chains
    share : (K,) of the first one
    """

    precision: Array
    linear: Array
    scale: float
    kinds: Kinds
    share: Array

    @property
    def _parts(self) -> tuple[Array, Array, Array]:
        return self.kinds.own, self.kinds.beside, self.kinds.far

    @property
    def evidence_alone(self) -> float:
        """ln of the evidence of the first chain on its own, up to what both have."""
        own, beside, far = (self.scale * (self.share @ part) for part in self._parts)
        found = kernels.smooth_wide_chain(
            (self.precision + own)[:, None, None], beside[:, None], far[:, None], self.linear[:, None]
        )
        return 0.5 * (found.log_det + float(self.linear @ found.mean[:, 0]))

    def smoothed(self, k: int) -> tuple[Array, float]:
        """Means (n, 2) of both chains, the second of kind k, and ln|cov|."""
        second = self.scale / SECOND_SHARE
        own, beside, far = (
            np.stack([self.scale * (self.share @ part), second * part[k]], axis=1) for part in self._parts
        )
        precision = np.broadcast_to(self.precision[:, None, None], (self.precision.size, 2, 2)).copy()
        precision[:, [0, 1], [0, 1]] += own
        found = kernels.smooth_wide_chain(precision, beside, far, np.repeat(self.linear[:, None], 2, axis=1))
        return found.mean, found.log_det

    def evidence(self, k: int) -> float:
        """ln of the evidence of both chains, up to what the first one alone has too."""
        mean, log_det = self.smoothed(k)
        of_prior = self.linear.size * math.log(self.scale / SECOND_SHARE) + float(self.kinds.log_det[k])
        return 0.5 * (log_det + of_prior + float(self.linear @ mean.sum(axis=1)))


def _densest(information: Array, n_rows: int) -> int:
    """The first of ``n_rows`` consecutive rows that have the most information."""
    if information.size <= n_rows:
        return 0
    total = np.concatenate([[0.0], np.cumsum(information)])
    return int(np.argmax(total[n_rows:] - total[:-n_rows]))


def _with_courses(progress: Progress, mode: int, found: list[Course]) -> State:
    """The state with second courses: the low-rank part is unchanged."""
    state, chosen = progress.point.state, [one.component for one in found]
    rows, prior = state.factors[mode], state.row_priors[mode]
    second, first = np.stack([one.mean for one in found], axis=1), rows.mean.copy()
    first[:, chosen] -= second
    columns = [second if n == mode else rows.mean[:, chosen] for n, rows in enumerate(state.factors)]
    state = add_components(progress.problem, state.with_factor(mode, *prior.moved(rows, first)), columns)
    prior = state.row_priors[mode]
    if not isinstance(prior, Ordered):
        raise TypeError(f"the rows of mode {mode} are in no order")
    share = np.concatenate([prior.share[: len(prior.share) - len(found)], [one.share for one in found]])
    return state.with_factor(mode, state.factors[mode], replace(prior, share=share))
