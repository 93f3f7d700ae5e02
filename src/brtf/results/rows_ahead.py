"""The rows that follow the last one: every course goes on as a mixture of all that could have made its past.

A course is a Gaussian process: a constant, a level that is forgotten, a pattern that repeats itself and changes slowly,
and what belongs to one row only, in many proportions; they are averaged with their evidence. The courses are those of
the components, or of the principal directions of the low-rank part, whichever have the higher evidence: components that
nearly cancel each other are no courses, as they would no longer cancel when continued one by one. Rows that no course
expects, such as holidays, have a variance of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp

from brtf.data.arrays import Array
from brtf.data.memory import check_memory
from brtf.inference.update_rows import gaussian_rows
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import RowPrior

FEWEST_ROWS = 256
"""Last rows that are looked at where there are more, or four periods if that is more."""
MOST_ROWS = 1024
"""Rows that are looked at, at most: the cost grows with their cube."""
LEAST_TOLD = 0.1
"""Rows of which the data tell less, relative to a typical one, are not looked at: they were filled in from others."""
ALONE = (0.001, 0.01, 0.1, 0.3, 0.6)
"""Shares of what belongs to one row only, in a course without a pattern."""
PATTERN = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Sizes of the pattern relative to the rest of the course."""
ROUNDS = (2.0, 8.0, math.inf)
"""Rounds after which a pattern is forgotten."""
KEPT_PERIODS = 2
"""Periods that are looked at closely, of those that are merely possible: the most probable ones."""


def rows_ahead(
    rows: RowGaussians,
    prior: RowPrior,
    lam: Gamma,
    places: Array,
    n_more: int,
    known: Sequence[int],
    likely: Sequence[int],
) -> RowGaussians:
    """C27: the ``n_more`` rows that follow at unit steps.

    Parameters
    ----------
    places : (I,) of the rows
    known : periods that labels tell
    likely : periods that the rows may have
    """
    n_rows = min(rows.n_rows, MOST_ROWS, max(FEWEST_ROWS, 4 * max([1, *known, *likely])))
    check_memory(8 * 6 * n_rows * (n_rows + n_more), f"a forecast of {n_more} positions", "lower horizon")
    precision = prior.likelihood(rows, lam, gaussian_rows)[0]
    values, vectors = np.linalg.eigh(precision.mean(axis=0))
    roots = np.sqrt(np.maximum(values, np.finfo(float).eps ** 0.5 * values[-1]))
    told = np.einsum("trs,rs->t", precision, (vectors / roots**2) @ vectors.T)[-n_rows:] / rows.rank
    clear = np.flatnonzero(told > LEAST_TOLD) + rows.n_rows - n_rows
    seen, centre = rows.mean[clear], rows.mean[clear].mean(axis=0)
    # in units of the noise: a difference of length one is told from none by a typical row
    turned = (seen - centre) @ (vectors * roots)
    sizes, directions = np.linalg.svd(turned, full_matrices=False)[1:]
    directions = directions[sizes > np.finfo(float).eps * len(seen) * sizes[:1]]
    ahead = places[-1] + 1.0 + np.arange(n_more)
    principal = Past(turned @ directions.T, told[clear - rows.n_rows], places[clear], ahead).with_odd_rows(
        known, likely
    )
    found, onto = principal.continued(known, likely), directions @ (vectors / roots).T
    if len(directions) == rows.rank and np.ptp(seen, axis=0).all():
        own = replace(principal, values=seen - centre).continued(known, likely)
        n_angles = rows.rank * (rows.rank - 1) // 2  # fitted to these rows, each for about a nat too much
        if own.evidence + n_angles > found.evidence + (len(seen) - 1) * np.log(roots).sum():
            found, onto = own, np.eye(rows.rank)
    last = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))[clear].mean(axis=0)
    return RowGaussians(centre + found.mean @ onto, np.einsum("dr,hd,ds->hrs", onto, found.variance, onto) + last)


class Course(NamedTuple):
    """A stationary Gaussian process: covariances of what goes on, past with past and future, and variance of the rest.

    Attributes
    ----------
    going_on : (I, I + H)
    alone : variance of what belongs to one row only
    """

    going_on: Array
    alone: float


class Continued(NamedTuple):
    """What comes: mean and variance (H, D), and the evidence of the past, all directions together."""

    mean: Array
    variance: Array
    evidence: float


@dataclass(frozen=True, eq=False)
class Past:
    """The courses of some directions, and how much is known of every row.

    Attributes
    ----------
    values : (I, D), with mean zero
    told : (I,) how much the data tell about a row, relative to a typical one
    places : (I,)
    ahead : (H,) places to forecast
    odd : (I,) further variance of rows that are not as expected, in units of the courses; 0 for all others
    """

    values: Array
    told: Array
    places: Array
    ahead: Array
    odd: Array | float = 0.0

    def continued(self, known: Sequence[int], likely: Sequence[int]) -> Continued:
        """The rows ahead, averaged over the courses.

        Periods that labels tell are as probable as none; those that are merely possible share that chance.
        """
        likely = [period for period in likely if period not in known]
        best = sorted(likely, key=lambda period: -max(Fit(self, course).nats for course in self._rough(period)))
        groups = [(0.0, self._levels()), *((0.0, self._patterns(period)) for period in known)]
        groups += [(-math.log(len(likely)), self._patterns(period)) for period in best[:KEPT_PERIODS]]
        chances, fits = [], []
        for chance, courses in groups:
            found = [Fit(self, course) for course in courses]
            fits += [(fit.evidence, *fit.forecast) for fit in found]
            chances += [chance - math.log(len(found))] * len(found)
        evidence, means, variances = (np.stack(part) for part in zip(*fits, strict=True))
        nats = np.array(chances)[:, None] + evidence
        total = logsumexp(nats, axis=0)
        share = np.exp(nats - total)
        mean = np.einsum("kd,khd->hd", share, means)
        variance = np.einsum("kd,khd->hd", share, variances + (means - mean) ** 2)
        return Continued(mean, variance, float(total.sum()))

    def with_odd_rows(self, known: Sequence[int], likely: Sequence[int]) -> Past:
        """The same with a variance of their own for rows where it brings more than the choice of a row costs, ln I."""
        n_rows = len(self.values)
        past = replace(self, odd=np.zeros(n_rows))
        courses = [course for period in (0, *known, *likely) for course in self._rough(period)]
        for _ in range(n_rows // 4):
            fits = [Fit(past, course) for course in courses]
            best = max(fits, key=lambda fit: fit.nats + fit.odd_gains.max(initial=0.0))
            row = int(np.argmax(best.odd_gains))
            if not best.odd_gains[row] > math.log(n_rows):
                break
            odd = past.odd + np.zeros(n_rows)
            odd[row] += best.odd_variances[row]
            past = replace(past, odd=odd)
        return past

    @cached_property
    def distances(self) -> Array:
        """(I, I + H) of the rows to each other, and to those ahead."""
        return np.abs(self.places[:, None] - np.concatenate([self.places, self.ahead]))

    @property
    def _length(self) -> float:
        return float(self.places[-1] - self.places[0])

    def _levels(self) -> Iterator[Course]:
        """Courses without a pattern: each row on its own, or levels of growing memory."""
        yield Course(np.zeros_like(self.distances), 1.0)
        memory = 2.0
        while memory < 4.0 * self._length:
            for alone in ALONE:
                yield Course((1.0 - alone) * np.exp(-self.distances / memory), alone)
            memory *= 2.0

    def _pattern(self, period: int, rounds: float) -> Array:
        """Covariance of a pattern that adds up to zero over a period."""
        alike = (np.rint(self.distances) % period == 0) - 1.0 / period
        return np.asarray(alike * period / (period - 1.0) * np.exp(-self.distances / (rounds * period)))

    def _patterns(self, period: int) -> Iterator[Course]:
        """Levels beside a pattern."""
        for rounds in ROUNDS:
            pattern = self._pattern(period, rounds)
            for size in PATTERN:
                for level in self._levels():
                    yield Course(level.going_on + size * pattern, level.alone)

    def _rough(self, period: int) -> Iterable[Course]:
        """A few courses that show how likely a period is; 0 for none."""
        slow = np.exp(-2.0 * self.distances / self._length)
        for level in (Course(0.0 * slow, 1.0), Course(0.8 * slow, 0.2)):
            for size in (1.0, 10.0) if period else (0.0,):
                pattern = self._pattern(period, ROUNDS[1]) if period else 0.0
                yield Course(level.going_on + size * pattern, level.alone)


class Fit:
    """A course about a constant of which nothing is known, given the past.

    With LLᵀ the covariance of the rows, u = L⁻¹1 and e = L⁻¹y less its part along u, the evidence of a direction, all
    sizes of the course being as probable, is |L|⁻¹ |u|⁻¹ |e|^(1 − I).
    """

    def __init__(self, past: Past, course: Course) -> None:
        self.past, self.course = past, course
        self.n_rows = len(past.values)
        own = np.diag(course.alone / past.told + past.odd)
        self.root = cholesky(course.going_on[:, : self.n_rows] + own, lower=True)
        self.unit = solve_triangular(self.root, np.ones(self.n_rows), lower=True)
        self.weight = float(self.unit @ self.unit)
        white = solve_triangular(self.root, past.values, lower=True)
        self.constant = self.unit @ white / self.weight
        self.white = white - np.outer(self.unit, self.constant)
        self.squares = np.maximum(np.sum(self.white**2, axis=0), np.finfo(float).tiny)
        self._volume = -float(np.log(np.diag(self.root)).sum()) - 0.5 * math.log(self.weight)

    @property
    def evidence(self) -> Array:
        """ln of the evidence of every direction, (D,), up to what all courses share."""
        return np.asarray(self._volume - 0.5 * (self.n_rows - 1) * np.log(self.squares))

    @property
    def nats(self) -> float:
        """ln of the evidence of all directions as if they were one, of their common size."""
        return self._volume - 0.5 * (self.n_rows - 1) * math.log(self.squares.sum())

    @property
    def forecast(self) -> tuple[Array, Array]:
        """Mean and variance (H, D) of the rows ahead: Student's with I − 1 degrees of freedom."""
        across = solve_triangular(self.root, self.course.going_on[:, self.n_rows :], lower=True)
        fresh = self.course.going_on[0, 0] + self.course.alone - np.sum(across**2, axis=0)
        variance = fresh + (1.0 - self.unit @ across) ** 2 / self.weight
        return self.constant + across.T @ self.white, np.outer(variance, self.squares / max(self.n_rows - 3, 1))

    @cached_property
    def _left_out(self) -> tuple[Array, Array]:
        """Square of every row's error when forecast from all others, relative to what is expected, and the latter."""
        back = solve_triangular(self.root, np.eye(self.n_rows), lower=True)
        own = np.sum(back**2, axis=0) - (back.T @ self.unit) ** 2 / self.weight
        size = self.squares.sum() / (self.n_rows - 1)
        return np.sum((back.T @ self.white) ** 2, axis=1) / np.maximum(own, 1e-300) / size, 1.0 / own

    @property
    def odd_gains(self) -> Array:
        """Nats that a variance of its own brings to every row, (I,)."""
        ratio = np.maximum(self._left_out[0], 1.0)
        return np.asarray(0.5 * (ratio - 1.0 - np.log(ratio)))

    @property
    def odd_variances(self) -> Array:
        """The variances that bring most, (I,)."""
        ratio, expected = self._left_out
        return np.asarray(np.maximum(ratio - 1.0, 0.0) * expected)
