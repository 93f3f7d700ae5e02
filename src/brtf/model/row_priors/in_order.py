"""What priors of rows in order share: the kinds of their chains, and matrices with few numbers beside the diagonal."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax, xlogy

from brtf.data.arrays import Array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.row_priors.chain_kinds import Form, Kinds, order_of
from brtf.model.row_priors.row_prior import RowPrior

SHARES_ADD_UP = 1e-6
"""Error of a sum of shares that may be rounding, also of a file."""


class Band(NamedTuple):
    """A symmetric matrix for every component.

    Attributes
    ----------
    own : (I, R) the diagonals
    beside : (I − 1, R) the numbers beside them
    far : (I − 2, R) those two beside them; (0, R) where all are zero
    """

    own: Array
    beside: Array
    far: Array

    def times(self, scale: Array) -> Band:
        """The matrices multiplied by a number for every component, (R,)."""
        return Band(self.own * scale, self.beside * scale, self.far * scale)

    @property
    def off_diagonal(self) -> Band:
        """The matrices with zeros on the diagonal."""
        return self._replace(own=0.0 * self.own)

    def of(self, rows: Array) -> Array:
        """The products with the columns of the rows, (I, R)."""
        found: Array = self.own * rows
        found[:-1] += self.beside * rows[1:]
        found[1:] += self.beside * rows[:-1]
        if len(self.far):
            found[:-2] += self.far * rows[2:]
            found[2:] += self.far * rows[:-2]
        return found


class InOrder(RowPrior):
    """Rows that follow each other: the course of component r is a chain of an unknown kind k_r.

    Inside, rows are in the order of :func:`~brtf.model.row_priors.chain_kinds.order_of`, with other rows in front of
    them if they continue these.

    Attributes
    ----------
    steps : (I − 1,) distances of neighbours, in units of the typical one
    share : (R, K) q(k_r)
    n_second : (1,) kinds of second order
    ring : (1,) distance of the last row to the first, which follows it, in units of the typical one; 0 along a line
    """

    steps: Array
    share: Array
    n_second: Array
    ring: Array
    ordered = True

    def _check_kinds(self) -> None:
        """Raise for values that no chain can have."""
        if not (self.steps > 0).all():
            raise ValueError("the steps of an order are not positive")
        if not ((self.share >= 0).all() and (np.abs(self.share.sum(axis=1) - 1.0) < SHARES_ADD_UP).all()):
            raise ValueError("the shares of the kinds do not add up to one")
        if not (0 <= self.n_second[0] < self.n_memories and 0.0 <= self.ring[0] < np.inf):
            raise ValueError("the kinds of second order, or of a ring, are out of range")

    @property
    def n_memories(self) -> int:
        """Kinds without a carrier."""
        return self.share.shape[1]

    @property
    def form(self) -> Form:
        """What the kinds are besides first-order ones along a line."""
        return Form(int(self.n_second[0]), float(self.ring[0]))

    @property
    @abstractmethod
    def kinds(self) -> Kinds:
        """Q_k of the rows in order, and of those in front."""

    @property
    def _n_lead(self) -> int:
        """Rows in front."""
        return 0

    @property
    def _order(self) -> NDArray[np.intp]:
        return order_of(self.steps.size + 1, self.form)

    @property
    def _back(self) -> NDArray[np.intp]:
        return np.argsort(self._order)

    def _deviation(self, mean: Array) -> Array:
        """Distances of the rows from their centres, in order, those in front too, (L + I, R)."""
        return mean[self._order]

    def _mixed(self) -> Band:
        """Σ_k q(k_r) Q_k of every component."""
        kinds = self.kinds
        return Band(*(part.T @ self.share.T for part in (kinds.own, kinds.beside, kinds.far)))

    @abstractmethod
    def _traces(self, rows: RowGaussians) -> Array:
        """tr(Q_k M_r) of every kind and component, (K, R), with M_r the second moments of the distances."""

    def squares(self, rows: RowGaussians) -> tuple[int, Array]:
        """I and tr(Q M_r), averaged over the kinds."""
        return rows.n_rows, np.einsum("rk,kr->r", self.share, self._traces(rows))

    def row_log_density(self, mean: Array, lam: Gamma) -> Array:
        """ln p of every row given its neighbours."""
        deviation, band = self._deviation(mean), self._mixed().times(lam.mean)
        pull = band.of(deviation) - 0.5 * band.own * deviation
        return np.asarray(-np.sum(deviation * pull, axis=1)[self._n_lead :][self._back])

    def slope(self, mean: Array, lam: Gamma) -> Array:
        """λ̄ Q (a − μ̄)."""
        return np.asarray(self._mixed().times(lam.mean).of(self._deviation(mean))[self._n_lead :][self._back])

    def _likely_share(self, rows: RowGaussians, lam: Gamma) -> Array:
        """q(k_r) ∝ exp(½ ln|Q_k| − ½ λ̄_r tr(Q_k M_r)), (R, K)."""
        return np.asarray(softmax(0.5 * (self.kinds.log_det[:, None] - lam.mean * self._traces(rows)).T, axis=1))

    @property
    def _divergence_of_kinds(self) -> float:
        """Σ_r KL(q(k_r) ‖ uniform)."""
        return float(np.sum(xlogy(self.share, self.share * self.share.shape[1])))
