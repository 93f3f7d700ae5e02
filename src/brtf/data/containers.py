"""What the data came in, so that answers of their shape come back in the same: same type in, same type out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import Labels
from brtf.data.dataframes import row_label
from brtf.data.extras import require

if TYPE_CHECKING:
    from brtf.data.observations import Observations

Modes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Container:
    """Plain arrays, and the interface of the others."""

    def dense(self, values: NDArray[Any], observations: Observations, name: str | None = None) -> Any:
        """A tensor of the shape of the data; ``name`` says what it holds if not values like the data."""
        return values

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        """Numbers at the observed entries: as a tensor, dense or sparse, and as a vector."""
        return placed

    def draws(self, values: NDArray[Any], observations: Observations) -> Any:
        """Several tensors of the shape of the data, (n, …)."""
        return values

    def loadings(self, values: NDArray[Any], modes: Modes, names: Sequence[str], observations: Observations) -> Any:
        """Numbers per slice of the first mode, (n, R), or per position of it and of others read as one with it."""
        return values

    def slices(self, values: NDArray[Any], fitted: Observations) -> Any:
        """Slices of the first mode that were computed from loadings which came in this container."""
        return values

    def followed_by(self, new: Container | None, labels: Labels | None, mode: int = 0) -> Container:
        """The container of other positions of a mode, with their labels; if there is a new one, it holds the last."""
        return self


@dataclass(frozen=True, eq=False)
class MaskedArrays(Container):
    """numpy.ma: numbers at the observed entries are masked elsewhere."""

    def dense(self, values: NDArray[Any], observations: Observations, name: str | None = None) -> Any:
        return np.ma.MaskedArray(values, mask=False)

    def draws(self, values: NDArray[Any], observations: Observations) -> Any:
        return self.dense(values, observations)

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        return np.ma.MaskedArray(placed, mask=False if observations.mask is None else ~observations.mask)


@dataclass(frozen=True, eq=False)
class SparseArrays(Container):
    """scipy.sparse, in the class of the input. A tensor without gaps is a plain array."""

    kind: type

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        return self.kind(placed)


@dataclass(frozen=True, eq=False)
class WideFrame(Container):
    """A pandas or polars table that is a matrix.

    Attributes
    ----------
    index, columns : of the pandas table; of a polars table the column that labels its rows, or None, and the others
    is_polars : whether tables are returned as polars.DataFrame
    """

    index: Any
    columns: Any
    is_polars: bool

    def dense(self, values: NDArray[Any], observations: Observations, name: str | None = None) -> Any:
        return self._frame(like(values, observations), self.columns)

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        return self.dense(_filled(placed), observations)

    def draws(self, values: NDArray[Any], observations: Observations) -> Any:
        """Tables one below the other: "draw" is the first level of a pandas index, or the first column in polars."""
        tables = [self.dense(draw, observations) for draw in values]
        if not self.is_polars:
            names = ["draw", *tables[0].index.names]
            pandas = require("pandas", extra="label", purpose="tables")
            return pandas.concat(tables, keys=range(len(tables)), names=names)
        from brtf.data.exports import distinct_names

        polars = require("polars", extra="polars", purpose="polars tables")
        stacked = polars.concat(tables)
        *_, name = distinct_names([*stacked.columns, "draw"])
        return stacked.insert_column(0, polars.Series(name, np.repeat(np.arange(len(tables)), len(tables[0]))))

    def loadings(self, values: NDArray[Any], modes: Modes, names: Sequence[str], observations: Observations) -> Any:
        """With the index of a pandas table; polars tables hold nothing but the loadings, which are features."""
        return (replace(self, index=None) if self.is_polars else self)._frame(values, list(names))

    def slices(self, values: NDArray[Any], fitted: Observations) -> Any:
        """A matrix with the rows of the loadings and the columns of the fitted data; tensors are arrays."""
        if values.ndim != 2:
            return values
        own = fitted.container
        columns = own.columns if isinstance(own, WideFrame) else range(values.shape[1])
        return self._frame(like(values, fitted), [str(name) for name in columns] if self.is_polars else columns)

    def followed_by(self, new: Container | None, labels: Labels | None, mode: int = 0) -> Container:
        """Tables of one library: one index after the other; else rows are numbered."""
        if not isinstance(new, WideFrame) or new.is_polars != self.is_polars or self.index is None or new.index is None:
            return replace(self, index=None)
        first = self.index.clone() if self.is_polars else self.index  # polars appends in place
        return replace(self, index=first.append(new.index))

    def _frame(self, values: NDArray[Any], columns: Any) -> Any:
        if not self.is_polars:
            return require("pandas", extra="label", purpose="tables").DataFrame(values, self.index, columns)
        table = require("polars", extra="polars", purpose="polars tables").DataFrame(values, schema=list(columns))
        return table if self.index is None else table.insert_column(0, self.index)


@dataclass(frozen=True, eq=False)
class LongFrame(Container):
    """A pandas or polars table with a row per observed entry: tensors have a row per entry."""

    is_polars: bool

    def dense(self, values: NDArray[Any], observations: Observations, name: str | None = None) -> Any:
        coords = np.indices(observations.shape).reshape(observations.order, -1)
        return self._table(like(values, observations).ravel(), coords, observations, name)

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        return self._table(vector, observations.entry_coords(), observations, name)

    def draws(self, values: NDArray[Any], observations: Observations) -> Any:
        """A row per entry and draw, with the number of the draw beside the value."""
        draw, *coords = np.indices(values.shape).reshape(values.ndim, -1)
        return self._table(like(values, observations).ravel(), np.array(coords), observations, None, ("draw", draw))

    def loadings(self, values: NDArray[Any], modes: Modes, names: Sequence[str], observations: Observations) -> Any:
        """A row per slice, with its label as index; polars tables have no index."""
        flat = values.reshape(-1, values.shape[-1])
        if self.is_polars:
            return require("polars", extra="polars", purpose="polars tables").DataFrame(flat, schema=list(names))
        from brtf.data.exports import mode_names

        pandas = require("pandas", extra="label", purpose="tables")
        own = observations.mode_labels
        positions = [np.arange(observations.shape[mode]) if own[mode] is None else own[mode] for mode in modes]
        dims = [mode_names(observations)[mode] for mode in modes]
        if len(modes) == 1:
            index = pandas.Index(positions[0], name=dims[0])
        else:
            index = pandas.MultiIndex.from_product(positions, names=dims)
        return pandas.DataFrame(flat, index, list(names))

    def _table(
        self,
        values: NDArray[Any],
        coords: NDArray[np.intp],
        observations: Observations,
        name: str | None,
        *before: tuple[str, NDArray[Any]],
    ) -> Any:
        """A row per entry: its labels, the columns that come before the values, and these."""
        from brtf.data.exports import long_table, to_frame

        columns = long_table(observations, coords, [*before, (name or observations.name or "value", values)])
        if self.is_polars:
            return require("polars", extra="polars", purpose="polars tables").DataFrame(columns)
        return to_frame(columns)


class Coordinate(NamedTuple):
    """A coordinate of an xarray.DataArray, as its constructor takes it."""

    dims: tuple[Any, ...]
    values: Any
    attrs: Mapping[Any, Any] = {}


@dataclass(frozen=True, eq=False)
class LabelledArrays(Container):
    """xarray.DataArray with all coordinates and attributes; probabilities have no units."""

    dims: tuple[Any, ...]
    coords: Mapping[Any, Coordinate]
    attrs: Mapping[Any, Any]
    name: Any

    def dense(self, values: NDArray[Any], observations: Observations, name: str | None = None) -> Any:
        return self._array(like(values, observations), self.dims, self.coords, self.attrs, name or self.name)

    def entries(self, placed: Any, vector: NDArray[Any], observations: Observations, name: str) -> Any:
        if name != "outliers":
            return self._array(_filled(placed), self.dims, self.coords, {}, name)
        return self.dense(_filled(placed), observations, name)

    def draws(self, values: NDArray[Any], observations: Observations) -> Any:
        """A DataArray whose first dimension is "draw"."""
        taken = {*self.dims, *self.coords}
        draw = next(name for name in itertools.accumulate(itertools.repeat("_"), initial="draw") if name not in taken)
        return self._array(like(values, observations), (draw, *self.dims), self.coords, self.attrs, self.name)

    def loadings(self, values: NDArray[Any], modes: Modes, names: Sequence[str], observations: Observations) -> Any:
        dims = tuple(self.dims[mode] for mode in modes)
        own = {name: coord for name, coord in self.coords.items() if {*coord.dims} <= {*dims}}
        return self._array(values, (*dims, "component"), own, {}, None)

    def slices(self, values: NDArray[Any], fitted: Observations) -> Any:
        """A tensor with the coordinates of the loadings along the first mode and those of the fitted data elsewhere."""
        own = fitted.container
        if not isinstance(own, LabelledArrays):
            return values
        first = {name: coord for name, coord in self.coords.items() if "component" not in coord.dims}
        rest = {name: coord for name, coord in own.coords.items() if own.dims[0] not in coord.dims}
        return self._array(like(values, fitted), own.dims, rest | first, own.attrs, own.name)

    def followed_by(self, new: Container | None, labels: Labels | None, mode: int = 0) -> Container:
        """Labels, attributes and the coordinates that do not run along the mode."""
        if labels is None:
            return self
        kept = {name: coord for name, coord in self.coords.items() if self.dims[mode] not in coord.dims}
        return replace(self, coords={**labelled(labels).coords, **kept})

    @staticmethod
    def _array(values: NDArray[Any], dims: tuple[Any, ...], coords: Any, attrs: Any, name: Any) -> Any:
        xarray = require("xarray", extra="label", purpose="labelled arrays")
        return xarray.DataArray(values, dims=dims, coords=coords, attrs=attrs, name=name)


def labelled(labels: Labels, attrs: Mapping[Any, Any] = MappingProxyType({})) -> LabelledArrays:
    """Labelled arrays with no other coordinates than the labels of the data."""
    named = zip(labels.dims, labels.coords, strict=True)
    coords = {dim: Coordinate((dim,), names) for dim, names in named if names is not None}
    return LabelledArrays(labels.dims, coords, attrs, labels.name)


def container_of(Y: Any) -> Container:
    """What a tensor came in."""
    package = type(Y).__module__.partition(".")[0]
    if package == "xarray" and hasattr(Y, "dims"):
        coords = {name: Coordinate(coord.dims, coord.variable.data, coord.attrs) for name, coord in Y.coords.items()}
        return LabelledArrays(tuple(Y.dims), coords, dict(Y.attrs), Y.name)
    if package == "pandas" and hasattr(Y, "columns"):
        return WideFrame(Y.index, Y.columns, is_polars=False)
    if package == "polars" and hasattr(Y, "columns"):
        label = row_label(Y)
        return WideFrame(None if label is None else Y[label], [c for c in Y.columns if c != label], is_polars=True)
    if isinstance(Y, np.ma.MaskedArray):
        return MaskedArrays()
    if package == "scipy" and hasattr(Y, "tocoo"):
        return SparseArrays(type(Y))
    return Container()


def _filled(placed: Any) -> NDArray[Any]:
    """A tensor with zeros where nothing is stored."""
    return placed.toarray() if hasattr(placed, "toarray") else placed


def like(values: NDArray[Any], observations: Observations) -> NDArray[Any]:
    """Numbers in the floating point type of the data."""
    return values.astype(observations.values.dtype, copy=False)
