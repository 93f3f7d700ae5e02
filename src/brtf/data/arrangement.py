"""Arrangements: how the modes of a tensor are read, several as one or one folded into two.

A tensor whose slices along two modes have no structure of their own is better read with these modes merged: as
(origin · destination) × hour, say. A mode with a period, such as hours, may be read as two: days × hours of the day.
Only the fit sees the modes so read, which have a factor each; whatever goes in or comes out has the user's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import Labels
from brtf.data.observations import Observations

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Arrangement:
    """Groups of modes of a tensor, and modes that are folded.

    The positions of a group are those of its modes in C order. A mode of length T folded by a period P is read as a
    mode of ⌈T/P⌉ rounds and one of P phases: position t is phase t mod P of round ⌊t/P⌋, and what the last round lacks
    is missing. Where a mode is folded, none are merged.

    Attributes
    ----------
    groups : every mode in one group, ascending; groups in the order of their first modes
    folds : the folded modes, ascending, each with its period
    """

    groups: Groups
    folds: tuple[tuple[int, int], ...] = ()

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

    @classmethod
    def folded(cls, folds: Mapping[int, int], shape: Sequence[int]) -> Arrangement:
        """A tensor of that shape with some modes folded by their periods; raises where that is impossible."""
        order = len(shape)
        periods = {int(mode) + order if mode < 0 else int(mode): int(period) for mode, period in folds.items()}
        for mode, period in periods.items():
            if not 0 <= mode < order:
                raise ValueError(f"arrangement folds mode {mode}, but Y has modes 0 to {order - 1}.")
            if not 2 <= period < shape[mode]:
                raise ValueError(
                    f"arrangement folds mode {mode} by a period of {period}, which must be at least 2 and below its "
                    f"length {shape[mode]}."
                )
        if len(periods) < len(folds):
            raise ValueError(f"arrangement folds a mode twice: {dict(folds)}.")
        return cls(tuple((mode,) for mode in range(order)), tuple(sorted(periods.items())))

    @property
    def is_as_given(self) -> bool:
        """Whether every mode is read as it is, on its own."""
        return not self.folds and all(len(group) == 1 for group in self.groups)

    @cached_property
    def periods(self) -> dict[int, int]:
        """The periods of the folded modes, by mode."""
        return dict(self.folds)

    @cached_property
    def read_modes(self) -> Groups:
        """Per factor the modes it is of: a group, or a folded mode, which has two factors in a row."""
        return tuple(group for group in self.groups for _ in range(2 if group[0] in self.periods else 1))

    def _read(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape with every folded mode as rounds and phases."""
        lengths: list[int] = []
        for mode, length in enumerate(shape):
            period = self.periods.get(mode)
            lengths += [length] if period is None else [-(-length // period), period]
        return tuple(lengths)

    @property
    def order(self) -> int:
        """Number of modes of the tensor."""
        return sum(map(len, self.groups))

    @cached_property
    def _axes(self) -> tuple[int, ...]:
        return tuple(mode for group in self.groups for mode in group)

    def merging(self, first: int, second: int) -> Arrangement:
        """The arrangement with two of its groups merged."""
        merged = tuple(sorted(self.groups[first] + self.groups[second]))
        rest = [group for k, group in enumerate(self.groups) if k not in (first, second)]
        return Arrangement(tuple(sorted([merged, *rest])))

    def keeps(self, modes: Sequence[int]) -> bool:
        """Whether the modes are whole groups."""
        return all(set(group) <= set(modes) or not set(group) & set(modes) for group in self.groups)

    def leaves(self, mode: int | None) -> bool:
        """Whether a mode is read as it is; true for None."""
        return mode is None or ((mode,) in self.groups and mode not in self.periods)

    def factor_numbers(self, modes: Sequence[int]) -> tuple[int, ...]:
        """The factors that the modes make up."""
        return tuple(k for k, group in enumerate(self.read_modes) if set(group) <= set(modes))

    def modes_of(self, factors: Sequence[int]) -> tuple[int, ...]:
        """The modes of the given factors, ascending."""
        return tuple(sorted({mode for k in factors for mode in self.read_modes[k]}))

    def factors_of(self, mode: int, shape: Sequence[int]) -> list[tuple[int, NDArray[np.intp]]]:
        """The factors of a mode, one or two, each with the positions of its rows: along the mode, or its half of it.

        Positions r and p in the halves of a folded mode are the position r · period + p along the mode.
        """
        first = next(k for k, group in enumerate(self.read_modes) if mode in group)
        if mode in self.periods:
            lengths = self.shape(shape)
            return [(k, np.arange(lengths[k])) for k in (first, first + 1)]
        lengths = tuple(shape[other] for other in self.read_modes[first])
        places = np.unravel_index(np.arange(math.prod(lengths)), lengths)
        return [(first, places[self.read_modes[first].index(mode)])]

    def along_mode(self, mode: int, rounds: NDArray[Any], phases: NDArray[Any], length: int) -> NDArray[Any]:
        """Products, at every position of a folded mode, of numbers of its round and its phase; (length, …)."""
        places = np.arange(length)
        return rounds[places // self.periods[mode]] * phases[places % self.periods[mode]]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The lengths of the modes as read, of a tensor of that shape."""
        if self.folds:
            return self._read(shape)
        return tuple(math.prod(shape[mode] for mode in group) for group in self.groups)

    def coords(self, coords: Any, shape: Sequence[int]) -> Any:
        """Positions along the modes as read for positions along the modes; (N, M) to (number of factors, M)."""
        if self.is_as_given:
            return coords
        if self.folds:
            columns: list[NDArray[np.intp]] = []
            for mode, column in enumerate(coords):
                period = self.periods.get(mode)
                columns += [np.asarray(column)] if period is None else np.divmod(np.asarray(column), period)
            return np.stack(columns)
        return np.stack(
            [
                np.ravel_multi_index(tuple(np.asarray(coords[mode]) for mode in group), [shape[m] for m in group])
                for group in self.groups
            ]
        )

    def read(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array that broadcasts to the tensor as given, so that it does to the tensor as read.

        It varies along all modes of a group or none. Beyond the end of a folded mode it goes on as it ended.
        """
        if not self.folds:
            lengths = [math.prod(array.shape[mode] for mode in group) for group in self.groups]
            return array.transpose(self._axes).reshape(lengths)
        lengths, beyond = [], []
        for mode, length in enumerate(array.shape):
            period = self.periods.get(mode, 0) if length > 1 else 1
            lengths += [-(-length // period), period] if mode in self.periods else [length]
            beyond.append((0, -length % period if mode in self.periods else 0))
        return np.pad(array, beyond, mode="edge").reshape(lengths)

    def tensor(self, merged: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """A tensor along the modes as read in the user's shape; further leading axes stay in front."""
        return self.along(range(len(self.read_modes)), merged, shape)

    def along(self, groups: Sequence[int], merged: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """An array along some of the modes as read as one along their modes, ascending.

        Further leading axes stay in front. What depends on one half of a folded mode is repeated along the other.
        """
        if self.folds:
            return self._unfolded(groups, merged, shape)
        axes = [mode for k in groups for mode in self.groups[k]]
        n_leading = merged.ndim - len(groups)
        apart = merged.reshape(*merged.shape[:n_leading], *(shape[mode] for mode in axes))
        return apart.transpose(*range(n_leading), *(n_leading + np.argsort(axes)))

    def _unfolded(self, factors: Sequence[int], array: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """See :meth:`along`."""
        n_leading, lengths = array.ndim - len(factors), self._read(shape)
        wanted = [k for k, modes in enumerate(self.read_modes) if modes[0] in self.modes_of(factors)]
        leading = array.shape[:n_leading]
        array = array.reshape(*leading, *(lengths[k] if k in factors else 1 for k in wanted))
        array = np.broadcast_to(array, (*leading, *(lengths[k] for k in wanted)))
        modes = self.modes_of(factors)
        whole = [math.prod(lengths[k] for k in wanted if self.read_modes[k] == (mode,)) for mode in modes]
        kept = (slice(None),) * n_leading + tuple(slice(shape[mode]) for mode in modes)
        return array.reshape(*leading, *whole)[kept]

    def _folded(self, observations: Observations) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """Values, mask and coordinates with the folded modes as rounds and phases; entries keep their order."""
        shape = self._read(observations.shape)
        values, mask, coords = observations.values, observations.mask, observations.coords
        if coords is not None:
            coords = np.ascontiguousarray(self.coords(coords, observations.shape))
        else:
            lengths = [
                -(-length // self.periods.get(m, 1)) * self.periods.get(m, 1)
                for m, length in enumerate(observations.shape)
            ]
            if mask is not None or tuple(lengths) != observations.shape:
                padded = np.zeros(lengths, dtype=bool)
                padded[tuple(map(slice, observations.shape))] = True if mask is None else mask
                mask, values = padded.reshape(shape), values.reshape(-1)
            else:
                values = values.reshape(shape)
        return values, mask, coords

    def _merged(self, observations: Observations) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """Values, mask and coordinates in the order of the groups."""
        shape, order = self.shape(observations.shape), self.entry_order(observations)
        values, mask, coords = observations.values, observations.mask, observations.coords
        if mask is not None:
            mask = np.ascontiguousarray(mask.transpose(self._axes)).reshape(shape)
        if coords is not None:
            coords = self.coords(coords, observations.shape)
            coords = np.ascontiguousarray(coords if order is None else coords[:, order])
        if order is not None:
            values = values.reshape(-1)[order]
        return values.reshape(shape) if observations.layout == "complete" else values, mask, coords

    def apply(self, observations: Observations) -> Observations:
        """The observations in the modes as read; the entry vector may be in another order, see :meth:`entries`."""
        if self.is_as_given:
            return observations
        values, mask, coords = self._folded(observations) if self.folds else self._merged(observations)
        for array in (values, mask, coords):
            if array is not None and array.flags.owndata:
                array.flags.writeable = False
        shape, labels = self.shape(observations.shape), None if self.folds else self._labels(observations)
        return replace(observations, shape=shape, values=values, mask=mask, coords=coords, labels=labels)

    def _labels(self, observations: Observations) -> Labels | None:
        """The labels of the groups; positions of several modes have none."""
        labels = observations.labels
        if labels is None:
            return None
        names = tuple(" · ".join(labels.dims[mode] for mode in group) for group in self.groups)
        coords = tuple(labels.coords[group[0]] if len(group) == 1 else None for group in self.groups)
        return Labels(names, coords, labels.name)

    def entry_order(self, observations: Observations) -> NDArray[np.intp] | None:
        """For every entry in the order of the groups its place in the entry vector, (M,); None if that is the same."""
        if self._axes == tuple(range(self.order)):  # merging is a mere change of shape
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

    def __str__(self) -> str:
        return str(self.periods) if self.folds else as_text(self.groups)


def as_text(groups: Groups) -> str:
    """The groups as Python writes them."""
    return str(tuple(tuple(group) for group in groups))
