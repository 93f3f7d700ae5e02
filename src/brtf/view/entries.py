"""The data available to a page: fitted entries, calibration entries, and further data given by the user."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.checks import count_of, place_of
from brtf.data.observations import Observations, entry_positions
from brtf.model.settings import LARGEST_TENSOR
from brtf.results.result import Result


@dataclass(frozen=True, eq=False)
class EntryVector:
    """Numbers at some entries of a tensor, looked up by coordinates.

    Attributes
    ----------
    shape : of the tensor
    numbers : (M,) in the order of the entry vector
    positions : (M,) increasing positions of the entries in C order, or tuples of coordinates where these have too many
        digits; None if there is a number for every entry
    """

    shape: tuple[int, ...]
    numbers: Array
    positions: NDArray[Any] | None

    @classmethod
    def of(cls, observations: Observations, numbers: Array) -> EntryVector:
        """A vector over the observed entries."""
        positions = None
        if observations.mask is not None:
            positions = np.flatnonzero(observations.mask)
        elif observations.coords is not None:
            positions = _positions(observations.coords, observations.shape)
        return cls(observations.shape, numbers, positions)

    def at(self, coords: NDArray[np.intp]) -> Array:
        """The numbers at coordinates (N, K), NaN where there is none."""
        wanted = _positions(coords, self.shape)
        if self.positions is None:
            return self.numbers[wanted]
        if self.positions.size == 0:
            return np.full(wanted.shape, np.nan)
        found = np.minimum(np.searchsorted(self.positions, wanted), self.positions.size - 1)
        return np.where(self.positions[found] == wanted, self.numbers[found], np.nan)


def _positions(coords: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[Any]:
    """The positions of coordinates (N, K) in C order, which sort like the tuples of coordinates, or these, (K,)."""
    if math.prod(shape) < LARGEST_TENSOR:
        return np.ravel_multi_index(tuple(coords), shape)
    tuples = np.ascontiguousarray(np.transpose(coords), dtype=np.int64)
    return tuples.view([(f"mode_{mode}", np.int64) for mode in range(len(shape))]).ravel()


def values_of(observations: Observations) -> EntryVector:
    """The observed values themselves."""
    return EntryVector.of(observations, observations.values.ravel().astype(np.float64))


def unseen(result: Result, given: Observations) -> Observations | None:
    """The entries of other data that the fit has not seen; None if it has seen them all.

    Where nothing of a slice of the first mode is among the fitted entries, that slice may have come in an earlier
    block of ``partial_fit``: its entries do not count as unseen.

    Raises
    ------
    ValueError
        The data have another shape or other labels, or other values where entries were fitted: they are not the data
        of this fit.
    """
    given = _aligned(result, given)
    fitted = values_of(result.observations)
    coords, values = given.entry_coords(), given.values.ravel().astype(np.float64)
    before = fitted.at(coords)
    seen = ~np.isnan(before)
    precision = 1e-5 if np.float32 in (given.values.dtype, result.observations.values.dtype) else 1e-12
    other = seen & ~np.isclose(values, before, rtol=precision, atol=precision * result.observations.scale)
    if other.any():
        first = int(other.argmax())
        raise ValueError(
            f"data differ from what was fitted at {count_of(np.count_nonzero(other), 'entry', 'entries')}, first at "
            f"{place_of(coords[:, first], result.observations.labels)}: {values[first]:g} instead of "
            f"{before[first]:g}. Give the data of this fit, or none."
        )
    rows_fitted = np.zeros(given.shape[0], dtype=bool)
    rows_fitted[entry_positions(result.observations, [0])] = True
    new = ~seen & rows_fitted[coords[0]]
    return given.select(new) if new.any() else None


def _aligned(result: Result, given: Observations) -> Observations:
    """Move the given entries to their positions in the fitted tensor: by labels if both have them, else by position."""
    observations = result.observations
    shape, labels = observations.shape, observations.labels
    if math.prod(shape) >= LARGEST_TENSOR:
        raise ValueError(
            f"data cannot be compared in a tensor of shape {shape}: it has too many entries. Leave them out."
        )
    if given.order != len(shape):
        raise ValueError(f"data have shape {given.shape}, but the fit was of shape {shape}: give data of that order.")
    coords = given.entry_coords().copy()
    for mode, length in enumerate(shape):
        ours, theirs = observations.mode_labels[mode], given.mode_labels[mode]
        if ours is not None and theirs is not None:
            place = {label: position for position, label in enumerate(_keys(ours, theirs))}
            found = np.array([place.get(label, -1) for label in _keys(theirs, ours)], dtype=np.intp)
            lost = found[coords[mode]] < 0
            if lost.any():
                label = theirs[coords[mode][lost.argmax()]]
                raise ValueError(f"data have {label} in mode {mode}, which is none of the labels that were fitted.")
            coords[mode] = found[coords[mode]]
        elif given.shape[mode] != length and not (given.layout == "coordinates" and given.shape[mode] < length):
            raise ValueError(
                f"data have shape {given.shape}, but the fit was of shape {shape}: give data of that shape."
            )
    return Observations.from_coords(coords, given.values.ravel(), shape, labels=labels)


def _keys(labels: NDArray[Any], like: NDArray[Any]) -> list[Any]:
    """Labels as keys comparable with those of other data: dates of any unit, also where tables hold them as text."""
    return (labels.astype("M8[us]") if "M" in (labels.dtype.kind, like.dtype.kind) else labels).tolist()
