"""The rows that follow the last one: every course continues as a mixture of all processes that fit its past.

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
from numpy.typing import NDArray
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
"""Rows with less information than this share of a typical row are ignored: they were filled in from the others."""
ALONE = (0.001, 0.01, 0.1, 0.3, 0.6)
"""Shares of what belongs to one row only, in a course without a pattern."""
PATTERN = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Sizes of the pattern relative to the rest of the course."""
ROUNDS = (2.0, 8.0, math.inf)
"""Rounds after which a pattern is forgotten."""
FEWEST_BEFORE, FEWEST_CHECKED = 2, 3
"""Observed rows needed beyond a period before the next are forecast as a check, and the fewest checks that count."""
MOST_ORIGINS = 8
"""Rows, at most, after which such forecasts begin, in the second half; a quarter of them in long series."""
KEPT_PERIODS = 2
"""Periods that are looked at closely, of those that are merely possible: the most probable ones."""


def rows_ahead(
    rows: RowGaussians,
    prior: RowPrior,
    lam: Gamma,
    places: Array,
    ahead: Array,
    known: Sequence[int],
    likely: Sequence[int],
    gram: Array | None = None,
) -> RowGaussians:
    """C27: the rows that follow.

    Parameters
    ----------
    places, ahead : (I,) and (H,) of the rows and of those that follow
    known : periods given by the labels
    likely : periods that the rows may have
    gram : (R, R) the squares of the entries of a row a add up to aᵀGa; in units of the noise if None
    """
    longest = max([1, *known, *likely])
    n_rows = min(rows.n_rows, MOST_ROWS, max(FEWEST_ROWS, 4 * longest))
    check_memory(8 * 6 * n_rows * (n_rows + ahead.size), f"a forecast of {ahead.size} positions", "lower horizon")
    precision = prior.likelihood(rows, lam, gaussian_rows)[0]
    precision = np.broadcast_to(precision, (rows.n_rows, *precision.shape[1:]))
    seen = Seen(
        rows.mean,
        np.broadcast_to(rows.cov, (rows.n_rows, *rows.cov.shape[1:])),
        precision,
        places,
        n_rows,
        np.ones(rows.n_rows, bool),
    )
    found = seen.continued(ahead, known, likely)
    candidates = known or seen.likeliest(likely)
    if candidates:
        seen = replace(seen, regular=seen.as_expected(candidates))
    period, share, factor = best_repetition(
        seen, ahead.size, candidates, seen.precision.mean(axis=0) if gram is None else gram
    )
    if not share:
        return found
    repeats, there = seen.repeated(ahead, period)
    mean = found.mean + share * np.where(there[:, None], repeats - found.mean, 0.0)
    return RowGaussians(mean, factor * found.cov)


@dataclass(frozen=True, eq=False)
class Seen:
    """Observed rows: their means (I, R), covariances and information, both (I, R, R), and places (I,).

    ``most`` is the number of last rows that are looked at, ``regular`` whether a row is as expected, (I,).
    """

    mean: Array
    cov: Array
    precision: Array
    places: Array
    most: int
    regular: NDArray[np.bool_]

    def first(self, n_rows: int) -> Seen:
        """The first rows alone."""
        return replace(
            self, **{name: getattr(self, name)[:n_rows] for name in ("mean", "cov", "precision", "places", "regular")}
        )

    @cached_property
    def turned(self) -> tuple[Array, Array]:
        """Directions, and their units: a difference of one unit is what a typical row can just resolve."""
        values, vectors = np.linalg.eigh(self.precision.mean(axis=0))
        return vectors, np.sqrt(np.maximum(values, np.finfo(float).eps ** 0.5 * values[-1]))

    @cached_property
    def told(self) -> Array:
        """Information in every row, relative to a typical one, (I,)."""
        vectors, roots = self.turned
        return np.asarray(np.einsum("trs,rs->t", self.precision, (vectors / roots**2) @ vectors.T) / len(roots))

    def repeated(self, ahead: Array, period: int) -> tuple[Array, NDArray[np.bool_]]:
        """The last regular rows that lie whole periods before the places ahead, (H, R), and whether there are such."""
        last = ahead - period * np.ceil((ahead - self.places[-1]) / period)
        clear = self.regular & (self.told > LEAST_TOLD)
        found, there = np.zeros(len(ahead), dtype=np.intp), np.zeros(len(ahead), dtype=bool)
        for place in (last - period * k for k in range(int((self.places[-1] - self.places[0]) // period) + 1)):
            at = np.clip(np.searchsorted(self.places, place - 0.5), 0, len(self.places) - 1)
            new = ~there & (np.abs(self.places[at] - place) < 0.5) & clear[at]
            found, there = np.where(new, at, found), there | new
        return self.mean[found], there

    def likeliest(self, periods: Sequence[int]) -> list[int]:
        """The most probable of several periods, by a few courses of each."""
        return sorted(periods, key=self._past.nats_of)[-1:]

    def as_expected(self, periods: Sequence[int]) -> NDArray[np.bool_]:
        """Which rows are as courses with these periods expect, (I,); those long ago too."""
        expected = np.ones(len(self.mean), dtype=bool)
        expected[-min(len(expected), self.most) :] = self._past.with_odd_rows(periods, ()).odd == 0.0
        return expected

    @cached_property
    def _past(self) -> Past:
        vectors, roots = self.turned
        recent = slice(len(self.mean) - min(len(self.mean), self.most), None)
        turned = (self.mean[recent] - self.mean[recent].mean(axis=0)) @ (vectors * roots)
        return Past(turned, np.maximum(self.told[recent], LEAST_TOLD), self.places[recent], np.zeros(0))

    def continued(self, ahead: Array, known: Sequence[int], likely: Sequence[int]) -> RowGaussians:
        """The rows at the places ahead, as courses go on."""
        vectors, roots = self.turned
        n_rows, rank = self.mean.shape
        recent = n_rows - min(n_rows, self.most)
        clear = np.flatnonzero(self.told[recent:] > LEAST_TOLD) + recent
        seen, centre = self.mean[clear], self.mean[clear].mean(axis=0)
        turned = (seen - centre) @ (vectors * roots)
        sizes, directions = np.linalg.svd(turned, full_matrices=False)[1:]
        directions = directions[sizes > np.finfo(float).eps * len(seen) * sizes[:1]]
        past = Past(turned @ directions.T, self.told[clear], self.places[clear], ahead)
        principal = past.with_odd_rows(known, likely)
        found, onto = principal.continued(known, likely), directions @ (vectors / roots).T
        if len(directions) == rank and np.ptp(seen, axis=0).all():
            own = replace(principal, values=seen - centre).continued(known, likely)
            n_angles = rank * (rank - 1) // 2  # fitted to these rows, each for about a nat too much
            if own.evidence + n_angles > found.evidence + (len(seen) - 1) * np.log(roots).sum():
                found, onto = own, np.eye(rank)
        last = self.cov[clear].mean(axis=0)
        return RowGaussians(centre + found.mean @ onto, np.einsum("dr,hd,ds->hrs", onto, found.variance, onto) + last)


def best_repetition(seen: Seen, n_more: int, periods: Sequence[int], gram: Array) -> tuple[int, float, float]:
    """C41: the period whose last round tells more about the next than the courses do, its share, and the variance.

    Forecasts of rows that were seen, from those before them, decide: with the share b fitted to all other rows, every
    row is forecast as (1 − b) x̂ + b times the row a period before it. The sum of the squared errors of the entries has
    to be lower than with b = 0. The variance is the mean square of the errors relative to that of the courses, at least
    one. Share zero where no period does.
    """
    n_rows = len(seen.mean)
    values, vectors = np.linalg.eigh(gram)
    turn = vectors * np.sqrt(np.maximum(values, 0.0))
    best, least = (1, 0.0, 1.0), 1.0
    for period in periods:
        first = period + FEWEST_BEFORE
        if n_rows - first < FEWEST_CHECKED:
            continue
        n_origins = MOST_ORIGINS if n_rows <= FEWEST_ROWS // 2 else MOST_ORIGINS // 4
        origins = np.unique(np.linspace(max(first, n_rows // 2), n_rows - 1, n_origins).astype(int))
        products, rows_at = list[Array](), list[Array]()
        for origin in origins:
            targets = np.arange(origin, min(origin + n_more, n_rows))
            before, ahead = seen.first(origin), seen.places[targets]
            found = before.continued(ahead, [other for other in periods if other < origin], ())
            repeats, there = before.repeated(ahead, period)
            there &= seen.regular[targets] & (seen.told[targets] > LEAST_TOLD)
            error, other = ((one - found.mean)[there] @ turn for one in (seen.mean[targets], repeats))
            spread = np.einsum("rd,hrs,sd->hd", turn, found.cov[there], turn)
            products.append(np.stack([_sums(error, error), _sums(error, other), _sums(other, other), spread.sum(1)]))
            rows_at.append(targets[there])
        errors, both, others, spreads = np.concatenate(products, axis=1)
        at = np.concatenate(rows_at)
        if len(np.unique(at)) < FEWEST_CHECKED or not others.sum() > 0:
            continue
        own = np.array([[part[at == row].sum() for part in (both, others)] for row in range(n_rows)])[at]
        share = np.clip((both.sum() - own[:, 0]) / np.maximum(others.sum() - own[:, 1], np.finfo(float).tiny), 0.0, 1.0)
        left_out = float(np.sum(errors - 2 * share * both + share**2 * others))
        if left_out < least * float(errors.sum()):
            final = min(max(float(both.sum() / others.sum()), 0.0), 1.0)
            left = float(np.sum(errors - 2 * final * both + final**2 * others))
            best = (period, final, max(left / float(spreads.sum()), 1.0))
            least = left_out / float(errors.sum())
    return best


def _sums(first: Array, second: Array) -> Array:
    """Σ over directions of the products, (H,)."""
    return np.asarray(np.sum(first * second, axis=1))


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
    told : (I,) information in every row, relative to a typical one
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

        Each period given by the labels is as probable as no period; the merely possible ones share that probability.
        """
        likely = [period for period in likely if period not in known]
        best = sorted(likely, key=self.nats_of, reverse=True)
        groups = [(0.0, self._levels()), *((0.0, self._patterns(period)) for period in known)]
        groups += [(-math.log(len(likely)), self._patterns(period)) for period in best[:KEPT_PERIODS]]
        chances, fits = [], []
        for chance, courses in groups:
            found = [FittedCourse(self, course) for course in courses]
            fits += [(fit.evidence, *fit.forecast) for fit in found]
            chances += [chance - math.log(len(found))] * len(found)
        evidence, means, variances = (np.stack(part) for part in zip(*fits, strict=True))
        nats = np.array(chances)[:, None] + evidence
        total = logsumexp(nats, axis=0)
        share = np.exp(nats - total)
        mean = np.einsum("kd,khd->hd", share, means)
        variance = np.einsum("kd,khd->hd", share, variances + (means - mean) ** 2)
        return Continued(mean, variance, float(total.sum()))

    def nats_of(self, period: int) -> float:
        """How likely a period is, by a few courses."""
        return max(FittedCourse(self, course).nats for course in self._rough(period))

    def with_odd_rows(self, known: Sequence[int], likely: Sequence[int]) -> Past:
        """The same with a variance of their own for rows where it brings more than the choice of a row costs, ln I."""
        n_rows = len(self.values)
        past = replace(self, odd=np.zeros(n_rows))
        courses = [course for period in (0, *known, *likely) for course in self._rough(period)]
        for _ in range(n_rows // 4):
            fits = [FittedCourse(past, course) for course in courses]
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


class FittedCourse:
    """A course about an unknown constant, given the past.

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
