"""Two priors of rows from outside the library: rows about a known course, and rows that follow each other.

And ways to propose the library's own rows in order, and of unequal size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors import IndependentRows, Ordered, RowPrior, RowSolver, Unequal, UnequalCentred
from brtf.model.row_priors.chain_kinds import LINE, NO_CARRIERS, RING, Form, carriers_of, memories

Array = NDArray[np.float64]


def line(first: int, n_rows: int) -> Array:
    """The course that everybody knows: a straight line."""
    return 0.5 + 0.1 * np.arange(first, first + n_rows)


@dataclass(frozen=True, eq=False)
class KnownCourse(IndependentRows):
    """a_ir ~ N(w_r t_i, 1/λ_r) with a known course t (I,), and q(w_r) = N(mean_r, var_r) held."""

    course: Array
    mean: Array
    var: Array
    name = "on a known course"

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"course": (n_rows,), "mean": (rank,), "var": (rank,)}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> RowPrior | None:
        return None

    def terms(self, lam: Gamma) -> tuple[Array, Array]:
        return np.diag(lam.mean)[None], np.outer(self.course, lam.mean * self.mean)

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        deviation = rows.mean - np.outer(self.course, self.mean)
        spread = np.broadcast_to(rows.variances, rows.mean.shape).sum(axis=0)
        return rows.n_rows, np.sum(deviation**2, axis=0) + spread + np.sum(self.course**2) * self.var

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return self

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        return KnownCourse(line(self.course.size, n_rows), self.mean, self.var)

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, KnownCourse):
            raise TypeError("a course is followed by a course")
        return type(self)(np.concatenate([self.course, new.course]), self.mean, self.var)

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return type(self)(self.course, self.mean[keep], self.var[keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return type(self)(self.course, self.mean * ratio, self.var * ratio**2)


@dataclass(frozen=True, eq=False)
class Course(KnownCourse):
    """The same course with w learnt: w_r ~ N(0, 1/λ_r)."""

    name = "on a course"

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Course:
        course = line(0, rows.n_rows)
        power = 1.0 + course @ course
        return cls(course, course @ rows.mean / power, 1.0 / (power * lam.mean))

    @property
    def own_log_det(self) -> float:
        return float(np.sum(np.log(self.var)))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        n_rows, power = super().squares(rows)
        return n_rows + 1, power + self.mean**2 + self.var

    def learnt(self, rows: RowGaussians, lam: Gamma) -> Course:
        return self.proposed(rows, lam)


@dataclass(frozen=True, eq=False)
class Chain(RowPrior):
    """Rows that follow each other: a_t | a_{t−1} ~ N(φ a_{t−1}, (1 − φ²)/λ), each of variance 1/λ; φ is known.

    Attributes
    ----------
    cross : (I − 1, R, R) posterior covariances Cov(a_t, a_{t+1})
    """

    cross: Array
    name = "in a chain"
    phi: ClassVar[float] = 0.9

    @classmethod
    def shapes(cls, n_rows: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"cross": (n_rows - 1, rank, rank)}

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Chain:
        return cls(np.zeros((rows.n_rows - 1, rows.rank, rows.rank)))

    def matrix(self, n_rows: int) -> Array:
        """Q (I, I), of which λ_r Q is the precision of a component's course."""
        matrix = np.eye(n_rows)
        step = np.array([[self.phi**2, -self.phi], [-self.phi, self.phi**2]]) / (1.0 - self.phi**2)
        for t in range(n_rows - 1):
            matrix[t : t + 2, t : t + 2] += step
        return matrix

    def posterior(self, precision: Array, linear: Array, lam: Gamma, solve: RowSolver) -> tuple[RowGaussians, RowPrior]:
        n_rows, rank = linear.shape
        matrix = self.matrix(n_rows)
        pivots = precision + matrix.diagonal()[:, None, None] * np.diag(lam.mean)
        beside = [matrix[t, t + 1] * np.diag(lam.mean) for t in range(n_rows - 1)]
        mean, gains = linear.copy(), np.zeros((n_rows - 1, rank, rank))
        for t in range(n_rows - 1):
            gains[t] = np.linalg.solve(pivots[t], beside[t])
            pivots[t + 1] -= beside[t] @ gains[t]
            mean[t + 1] -= gains[t].T @ mean[t]
        cov, cross = np.linalg.inv(pivots), np.zeros_like(gains)
        mean[-1] = cov[-1] @ mean[-1]
        for t in reversed(range(n_rows - 1)):
            mean[t] = cov[t] @ mean[t] - gains[t] @ mean[t + 1]
            cross[t] = -gains[t] @ cov[t + 1]
            cov[t] -= cross[t] @ gains[t].T
        return RowGaussians(mean, 0.5 * (cov + cov.transpose(0, 2, 1))), Chain(cross)

    def shared_terms(self, lam: Gamma) -> None:
        return None

    def _steps(self, rows: RowGaussians) -> tuple[Array, Array]:
        """q as a chain: a_{t+1} = F_t a_t + noise of covariance W_{t+1}; the first W is that of the first row."""
        cov = np.broadcast_to(rows.cov, (rows.n_rows, rows.rank, rows.rank))
        transitions = np.linalg.solve(cov[:-1], self.cross).transpose(0, 2, 1)
        return transitions, np.concatenate([cov[:1], cov[1:] - transitions @ self.cross])

    def likelihood(self, rows: RowGaussians, lam: Gamma, solve: RowSolver) -> tuple[Array, Array]:
        transitions, noise = self._steps(rows)
        precision = np.linalg.inv(noise)
        back = transitions.transpose(0, 2, 1) @ precision[1:]
        precision[:-1] += back @ transitions
        linear = np.einsum("irs,is->ir", precision, rows.mean)
        linear[:-1] -= np.einsum("irs,is->ir", back, rows.mean[1:])
        linear[1:] -= np.einsum("irs,ir->is", back, rows.mean[:-1])
        return precision - self.matrix(rows.n_rows).diagonal()[:, None, None] * np.diag(lam.mean), linear

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        return np.asarray(-0.5 * np.sum(lam.mean * mean * (self.matrix(len(mean)) @ mean), axis=1))

    def slope(self, mean: Array, lam: Gamma) -> Array:
        return np.asarray(lam.mean * (self.matrix(len(mean)) @ mean))

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        matrix, variances = self.matrix(rows.n_rows), np.broadcast_to(rows.variances, rows.mean.shape)
        power = np.einsum("ir,ij,jr->r", rows.mean, matrix, rows.mean) + matrix.diagonal() @ variances
        return rows.n_rows, power + 2.0 * matrix.diagonal(1) @ np.einsum("irr->ir", self.cross)

    def kl(self, rows: RowGaussians, lam: Gamma) -> float:
        n_rows, power = self.squares(rows)
        log_det = np.linalg.slogdet(self._steps(rows)[1])[1].sum()
        of_prior = n_rows * np.sum(lam.mean_log) - rows.rank * (n_rows - 1) * np.log1p(-(self.phi**2))
        return float(0.5 * (lam.mean @ power - of_prior - log_det - n_rows * rows.rank))

    def learnt(self, rows: RowGaussians, lam: Gamma) -> RowPrior:
        return self if self.cross.shape[1] == rows.rank else self.proposed(rows, lam)

    def for_new_rows(self, n_rows: int, after: RowGaussians | None = None) -> RowPrior:
        return Chain(np.zeros((n_rows - 1, *self.cross.shape[1:])))

    def followed_by(self, new: RowPrior) -> RowPrior:
        if not isinstance(new, Chain):
            raise TypeError("a chain is followed by a chain")
        return Chain(np.concatenate([self.cross, np.zeros((1, *self.cross.shape[1:])), new.cross]))

    def select(self, keep: NDArray[Any]) -> RowPrior:
        return Chain(self.cross[:, keep][:, :, keep])

    def rescaled(self, ratio: Array) -> RowPrior:
        return Chain(self.cross * np.outer(ratio, ratio))


class InOrder:
    """Rows in order at uneven steps, around zero or around a centre for every one of several groups."""

    n_groups = 0
    carriers: Array = NO_CARRIERS
    form = LINE

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Ordered:
        steps = 0.5 + np.arange(1, rows.n_rows) % 3
        n_kinds = (4 + cls.form.n_second) * (1 + len(cls.carriers))
        share = 1.0 + np.arange(float(n_kinds)) + np.arange(rows.rank)[:, None]
        groups = np.arange(rows.n_rows) % cls.n_groups if cls.n_groups else None
        share /= share.sum(axis=1, keepdims=True)
        return Ordered.begun(rows, lam, steps, share, groups, cls.carriers, cls.form)


class AroundOne(InOrder):
    n_groups = 1


class AroundTwo(InOrder):
    n_groups = 2


class OfUnequalSize:
    """Rows of unequal size about zero, with any sizes."""

    kind = Unequal

    @classmethod
    def proposed(cls, rows: RowGaussians, lam: Gamma) -> Unequal:
        shape = 3.0 + np.arange(rows.n_rows) % 2
        rate, centred = shape / (0.5 + np.arange(rows.n_rows) % 3), cls.kind is UnequalCentred
        mean = rows.mean.mean(axis=0) if centred else np.zeros(rows.rank)
        var = 0.1 / lam.mean if centred else np.zeros(rows.rank)
        return cls.kind(np.asarray(2.0), shape, rate, mean, var)


class CentredOfUnequalSize(OfUnequalSize):
    """Rows of unequal size around a centre."""

    kind = UnequalCentred


class OnCarriers(InOrder):
    """Around zero, on carriers of a period of five rows, or on none."""

    carriers = carriers_of([5])[:2]


class AroundTwoOnCarriers(OnCarriers):
    n_groups = 2


class Smooth(InOrder):
    """With kinds of second order."""

    form = Form(n_second=2)


class SmoothAroundTwoOnCarriers(AroundTwoOnCarriers):
    form = Form(n_second=2)


class OnARing(InOrder):
    """The last row is followed by the first."""

    form = RING


class OnALongRing(InOrder):
    """The same with the first row further from the last."""

    form = Form(ring=2.5)


class OnARingAroundOne(OnARing):
    n_groups = 1


def dense_covariances(prior: Ordered) -> list[Array]:
    """The covariances (I, I) of every kind without a carrier at λ = 1, from their formulas."""
    place = np.concatenate([[0.0], np.cumsum(prior.steps)])
    apart, length = np.abs(np.subtract.outer(place, place)), place[-1] + prior.form.ring
    found = []
    for log_phi in memories(prior.n_memories - prior.form.n_second):
        alike = np.eye(place.size) if np.isinf(log_phi) else np.exp(log_phi * apart)
        if prior.form.ring and not np.isinf(log_phi):
            alike = (alike + np.exp(log_phi * (length - apart))) / (1.0 + np.exp(log_phi * length))
        found.append(alike)
    for kappa in 0.5 ** (1.0 + np.arange(prior.form.n_second)):
        alike = np.exp(-kappa * apart) * (1.0 + apart * np.tanh(kappa))
        for t in range(3, place.size):  # given the two before it, a row does not depend on others
            weights = np.linalg.solve(alike[t - 2 : t, t - 2 : t], alike[t - 2 : t, t])
            alike[t, : t - 2] = alike[: t - 2, t] = weights @ alike[t - 2 : t, : t - 2]
        found.append(alike)
    return found
