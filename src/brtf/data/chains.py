"""The observed entries of every fibre along a mode, in order: the chains of a smooth residual."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.observations import Observations


@dataclass(frozen=True, eq=False)
class Chains:
    """The entries sorted by fibre along a mode, then by position along it.

    Attributes
    ----------
    mode, shape : the mode, and the shape of the tensor
    order : (M,) for every place in the chains its entry
    keys : (M,) fibre times length plus position, ascending
    """

    mode: int
    shape: tuple[int, ...]
    order: NDArray[np.intp]
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, observations: Observations, mode: int) -> Chains:
        """The chains of all entries; not for data in chunks."""
        keys = keys_of(observations.entry_coords(), observations.shape, mode)
        order = np.argsort(keys, kind="stable")
        return cls(mode, observations.shape, order, keys[order])

    @property
    def length(self) -> int:
        """Positions along the mode."""
        return self.shape[self.mode]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(F + 1,) where the chain of every fibre with entries begins, and the end."""
        fibres = self.keys // self.length
        return np.concatenate([[0], np.flatnonzero(np.diff(fibres)) + 1, [fibres.size]]).astype(np.int64)

    @cached_property
    def sizes(self) -> Array:
        """(F,) entries of every fibre that has any."""
        return np.diff(self.starts).astype(np.float64)

    @cached_property
    def gaps(self) -> Array:
        """(M,) positions since the last entry of the same fibre; 0 for the first."""
        gaps = np.diff(self.keys, prepend=0).astype(np.float64)
        gaps[self.starts[:-1]] = 0.0
        return gaps

    @cached_property
    def _distinct_gaps(self) -> tuple[Array, NDArray[np.intp]]:
        values, places = np.unique(self.gaps, return_inverse=True)
        return values, places

    def decay(self, memory: float) -> Array:
        """(M,) φ^gap; 1 for the first entry of a fibre, which no other precedes."""
        values, places = self._distinct_gaps
        return (memory**values)[places]

    def sorted(self, entry_vector: Array) -> Array:
        """A vector over the entries in the order of the chains."""
        return np.asarray(entry_vector, dtype=np.float64)[self.order]

    def entries(self, chained: Array) -> Array:
        """A vector in the order of the chains over the entries in their own order."""
        found = np.empty_like(chained)
        found[self.order] = chained
        return found

    def places(self, coords: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp], Array, Array]:
        """For positions (N, m) the places in the chains at or before and after, −1 where none, and the distances."""
        keys = keys_of(coords, self.shape, self.mode)
        after = np.searchsorted(self.keys, keys, side="right")
        before = after - 1
        fibres = keys // self.length
        found_before = (before >= 0) & (self.keys[before] // self.length == fibres)
        inside = np.minimum(after, self.keys.size - 1)
        found_after = (after < self.keys.size) & (self.keys[inside] // self.length == fibres)
        since = np.where(found_before, keys - self.keys[before], 0).astype(np.float64)
        until = np.where(found_after, self.keys[inside] - keys, 0).astype(np.float64)
        return np.where(found_before, before, -1), np.where(found_after, inside, -1), since, until

    def fibre_numbers(self, coords: NDArray[np.intp]) -> NDArray[np.intp]:
        """For positions (N, m) the number of their fibre among those with entries; −1 for others."""
        fibres = self.keys[self.starts[:-1]] // self.length
        wanted = keys_of(coords, self.shape, self.mode) // self.length
        place = np.minimum(np.searchsorted(fibres, wanted), fibres.size - 1)
        return np.where(fibres[place] == wanted, place, -1)


def keys_of(coords: NDArray[np.intp], shape: tuple[int, ...], mode: int) -> NDArray[np.int64]:
    """Fibre times length plus position of entries at the given coordinates, (m,)."""
    others = [k for k in range(len(shape)) if k != mode]
    fibre = np.zeros(np.shape(coords[0]), np.int64)
    for k in others:
        fibre = fibre * shape[k] + np.asarray(coords[k], np.int64)
    return fibre * shape[mode] + np.asarray(coords[mode], np.int64)
