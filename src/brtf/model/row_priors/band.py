"""Symmetric matrices with few numbers beside the diagonal, one for every component: priors of rows in order."""

from __future__ import annotations

from typing import NamedTuple

from brtf.data.arrays import Array


class Band(NamedTuple):
    """A matrix for every component.

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
