"""Arrangements: how the modes of a tensor are grouped, each group read as one mode.

A tensor whose slices along two modes have no structure of their own is better read with these modes merged: as
(origin · destination) × hour, say. Only the fit sees the merged modes; whatever goes in or comes out has the user's
shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.observations import Observations

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Arrangement:
    """Groups of modes of a tensor; the positions of a group are those of its modes in C order.

    Attributes
    ----------
    groups : every mode in one group, ascending; groups in the order of their first modes
    """

    groups: Groups

    @classmethod
    def as_given(cls, order: int) -> Arrangement:
        """Every mode on its own."""
        return cls(tuple((mode,) for mode in range(order)))

    @classmethod
    def checked(cls, groups: Sequence[Sequence[int]], order: int) -> Arrangement:
        """An arrangement from the user's groups; raises unless they hold every mode once and are at least two."""
        resolved = [tuple(sorted(int(m) + order if m < 0 else int(m) for m in group)) for group in groups]
        if len(resolved) < 2 or sorted(m for group in resolved for m in group) != list(range(order)):
            raise ValueError(
                f"arrangement must be at least two groups that together hold every mode of a tensor of order {order} "
                f"once, such as {as_text(cls.as_given(order).merging(0, 1).groups if order > 2 else ((0,), (1,)))}; "
                f"got {groups!r}."
            )
        return cls(tuple(sorted(resolved)))

    @property
    def is_as_given(self) -> bool:
        """Whether every mode is on its own."""
        return all(len(group) == 1 for group in self.groups)

    @property
    def order(self) -> int:
        """Number of modes of the tensor."""
        return sum(map(len, self.groups))

    @cached_property
    def _axes(self) -> tuple[int, ...]:
        return tuple(mode for group in self.groups for mode in group)

    @property
    def _keeps_order(self) -> bool:
        """Whether the entries keep their order, so that merging is a mere change of shape."""
        return self._axes == tuple(range(self.order))

    def merging(self, first: int, second: int) -> Arrangement:
        """The arrangement with two of its groups merged."""
        merged = tuple(sorted(self.groups[first] + self.groups[second]))
        rest = [group for k, group in enumerate(self.groups) if k not in (first, second)]
        return Arrangement(tuple(sorted([merged, *rest])))

    def keeps(self, modes: Sequence[int]) -> bool:
        """Whether the modes are whole groups."""
        return all(set(group) <= set(modes) or not set(group) & set(modes) for group in self.groups)

    def group_numbers(self, modes: Sequence[int]) -> tuple[int, ...]:
        """The groups that the modes make up."""
        return tuple(k for k, group in enumerate(self.groups) if set(group) <= set(modes))

    def modes_of(self, groups: Sequence[int]) -> tuple[int, ...]:
        """The modes of the given groups, ascending."""
        return tuple(sorted(mode for k in groups for mode in self.groups[k]))

    def place_of(self, mode: int) -> tuple[int, int]:
        """The group that holds a mode, and the place of the mode in it."""
        return next((k, group.index(mode)) for k, group in enumerate(self.groups) if mode in group)

    def positions_along(self, mode: int, shape: Sequence[int]) -> NDArray[np.intp]:
        """For every position of the group that holds a mode the position along that mode."""
        k, place = self.place_of(mode)
        lengths = [shape[other] for other in self.groups[k]]
        return np.unravel_index(np.arange(math.prod(lengths)), lengths)[place]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The lengths of the groups of a tensor of that shape."""
        return tuple(math.prod(shape[mode] for mode in group) for group in self.groups)

    def coords(self, coords: Any, shape: Sequence[int]) -> Any:
        """Positions along the groups for positions along the modes; (N, M) to (number of groups, M)."""
        if self.is_as_given:
            return coords
        return np.stack(
            [
                np.ravel_multi_index(tuple(np.asarray(coords[mode]) for mode in group), [shape[m] for m in group])
                for group in self.groups
            ]
        )

    def tensor(self, merged: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """A tensor along the groups in the user's shape; further leading axes stay in front."""
        return self.along(range(len(self.groups)), merged, shape)

    def along(self, groups: Sequence[int], merged: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """An array along some of the groups as one along their modes, ascending; further leading axes stay in front."""
        axes = [mode for k in groups for mode in self.groups[k]]
        n_leading = merged.ndim - len(groups)
        apart = merged.reshape(*merged.shape[:n_leading], *(shape[mode] for mode in axes))
        return apart.transpose(*range(n_leading), *(n_leading + np.argsort(axes)))

    def apply(self, observations: Observations) -> Observations:
        """The observations with the groups as modes; the entry vector is then in another order, see :meth:`entries`."""
        if self.is_as_given:
            return observations
        shape, order = self.shape(observations.shape), self.entry_order(observations)
        values, mask, coords = observations.values, observations.mask, observations.coords
        if mask is not None:
            mask = np.ascontiguousarray(mask.transpose(self._axes)).reshape(shape)
        if coords is not None:
            coords = self.coords(coords, observations.shape)
            coords = np.ascontiguousarray(coords if order is None else coords[:, order])
        if order is not None:
            values = values.reshape(-1)[order]
        values = values.reshape(shape) if observations.layout == "complete" else values
        for array in (values, mask, coords):
            if array is not None and array.flags.owndata:
                array.flags.writeable = False
        return replace(observations, shape=shape, values=values, mask=mask, coords=coords, labels=None)

    def entry_order(self, observations: Observations) -> NDArray[np.intp] | None:
        """For every entry in the order of the groups its place in the entry vector, (M,); None if that is the same."""
        if self._keeps_order:
            return None
        if observations.coords is not None:
            return np.lexsort(self.coords(observations.coords, observations.shape)[::-1])
        if observations.mask is None:
            return np.arange(observations.n_observed).reshape(observations.shape).transpose(self._axes).reshape(-1)
        places = np.zeros(observations.shape, dtype=np.intp)
        places[observations.mask] = np.arange(observations.n_observed)
        return places.transpose(self._axes)[observations.mask.transpose(self._axes)]

    def regrouped(self, entry_vector: NDArray[Any], observations: Observations) -> NDArray[Any]:
        """A vector over the entries in the order of the observations, in the order of the groups."""
        order = self.entry_order(observations)
        return entry_vector if order is None else entry_vector[order]

    def entries(self, merged: NDArray[Any], observations: Observations) -> NDArray[Any]:
        """A vector over the entries in the order of the groups, in the order of the observations."""
        order = self.entry_order(observations)
        if order is None:
            return merged
        found = np.empty_like(merged)
        found[order] = merged
        return found


def as_text(groups: Groups) -> str:
    """The groups as Python writes them."""
    return str(tuple(tuple(group) for group in groups))
