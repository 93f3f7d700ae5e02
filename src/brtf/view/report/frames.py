"""The viewer: slices of the tensor as pictures of data, low-rank part, outliers and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.observations import Observations
from brtf.results.result import Result
from brtf.view.report.entries import LARGEST_TENSOR, EntryVector, values_of
from brtf.view.report.pictures import DEEP, WARM, data_uri, diverging, photograph, ramp
from brtf.view.report.svg import number
from brtf.view.view_data import axis_of, longest_modes, spread

MOST_FRAMES = 60
LONGEST_SIDE = 256
"""Largest number of pixels along a side of a picture: two fit side by side on a laptop, one on a phone."""
FRAMES_FOR_SHADES = 8
"""Number of frames from which the colour ranges are determined."""
MOST_BYTES = 6_000_000
"""Largest total size of the pictures of a page."""
OUTLYING = 4.0
"""Number of noise standard deviations shown in full colour; smaller values stay pale."""
SPARSEST = 0.01
"""Smallest share of observed entries for which slices are shown; below it pictures would be nearly empty."""
Positions = NDArray[np.intp]


@dataclass(frozen=True)
class Layout:
    """Which modes make up a picture.

    Attributes
    ----------
    rows, columns : modes downwards and to the right; the same mode where it runs over the pixels of a picture
    colours : mode of three colours, or None
    size : (height, width), the extent of a picture
    photo : whether the values are light levels
    """

    rows: int
    columns: int
    colours: int | None
    size: tuple[int, int]
    photo: bool

    @property
    def pixels(self) -> bool:
        """Whether one mode runs over all pixels of a picture."""
        return self.rows == self.columns

    def sliders(self, order: int) -> list[int]:
        """The modes that are not part of a picture."""
        return [mode for mode in range(order) if mode not in (self.rows, self.columns, self.colours)]


@dataclass(frozen=True)
class Panel:
    """One of the pictures side by side: its name, its colour scale, and the values at the ends."""

    name: str
    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class Viewer:
    """What the page shows of the frames: names, pictures (one list per frame, a picture per panel) and notes."""

    panels: list[Panel]
    names: list[str]
    pictures: list[list[str]]
    size: tuple[int, int]
    photo: bool
    rows: str
    columns: str
    notes: list[str]

    @property
    def stretched(self) -> bool:
        """Whether cells are stretched because the picture would be a narrow strip."""
        return not self.photo and not 0.5 <= self.size[0] / self.size[1] <= 2.0


class Frame(NamedTuple):
    """The numbers of one frame: (H, W), or (H, W, 3) for data and low rank in colour. Data are NaN where missing."""

    data: Array
    low_rank: Array
    outliers: Array
    std: Array


@dataclass(frozen=True)
class Shades:
    """The values at the ends of the colour scales, common to all frames.

    Attributes
    ----------
    layout : layout of the pictures
    low, high : of data and low rank
    reach : of the outliers, to both sides
    least, most : of the standard deviation
    """

    layout: Layout
    low: float
    high: float
    reach: float
    least: float
    most: float

    @classmethod
    def of(cls, frames: Sequence[Frame], layout: Layout, noise_sd: float) -> Shades:
        """Colour ranges for the given frames; an outlier in full colour is several times as large as the noise."""
        data, low_rank, outliers, std = (
            np.concatenate([part.ravel() for part in k]) for k in zip(*frames, strict=True)
        )
        observed, low_rank, std = (part[np.isfinite(part)] for part in (data, low_rank, std))
        smallest, largest = float(observed.min(initial=0.0)), float(observed.max(initial=0.0))
        if layout.photo and smallest >= 0 and largest <= 255:
            low, high = 0.0, 255.0 if largest > 1 else 1.0
        elif layout.photo and observed.size:
            low, high = (float(end) for end in np.quantile(observed, (0.002, 0.998)))
        else:
            high = float(np.abs(low_rank).max(initial=0.0)) or max(largest, -smallest) or 1.0
            low = 0.0 if smallest >= 0 else -high
        sizes = np.abs(outliers[outliers != 0])
        reach = max(float(np.quantile(sizes, 0.995)) if sizes.size else high, OUTLYING * noise_sd)
        least, most = (float(end) for end in np.quantile(std, (0.0, 0.998))) if std.size else (0.0, 1.0)
        if most - least < 0.05 * most:
            least = 0.0  # nearly constant: do not show rounding errors as shades
        return cls(layout, low, high, reach, least, most)

    @property
    def kind(self) -> str:
        """The colours of data and low rank."""
        return "light" if self.layout.photo else "diverging" if self.low < 0 else "warm"

    def panels(self) -> list[Panel]:
        """The four pictures of a frame, with their legends."""
        return [
            Panel("Data", self.kind, self.low, self.high),
            Panel("Low rank", self.kind, self.low, self.high),
            Panel("Outliers", "diverging", -self.reach, self.reach),
            Panel("Standard deviation", "deep", self.least, self.most),
        ]

    def draw(self, frame: Frame) -> list[str]:
        """The four pictures of a frame, as data URIs."""
        std = np.where(np.isfinite(frame.std), frame.std, np.nan)
        return [
            self._levels(frame.data),
            self._levels(frame.low_rank),
            data_uri(diverging(frame.outliers, self.reach)),
            data_uri(ramp(std, self.least, self.most, DEEP)),
        ]

    def _levels(self, values: Array) -> str:
        if self.layout.photo:
            return data_uri(photograph(values, self.low, self.high), lossy=True)
        return data_uri(diverging(values, self.high) if self.low < 0 else ramp(values, self.low, self.high, WARM))


def layout_of(
    observations: Observations, image_modes: Sequence[int] | None, image_size: Sequence[int] | None
) -> Layout:
    """The given modes, or a guess: a mode of length three is colour if the values look like light levels."""
    shape = observations.shape
    if image_modes is None:
        if image_size is not None:
            raise ValueError("image_size needs image_modes, which says which mode runs over the pixels.")
        return _guess(observations)
    modes = [int(mode) for mode in image_modes]
    wanted = (1, 2) if image_size is not None else (2, 3)
    if len(modes) not in wanted or len(set(modes)) != len(modes) or not set(modes) <= set(range(len(shape))):
        parts = "(pixels,) or (pixels, colours)" if image_size is not None else "(rows, columns) or these and colours"
        raise ValueError(
            f"image_modes must be different modes of a tensor of order {len(shape)}: {parts}; got {modes}."
        )
    if image_size is None:
        rows, columns, *colours = modes
        size = (shape[rows], shape[columns])
    else:
        rows, *colours = modes
        columns = rows
        height, width = (int(length) for length in image_size)
        size = (height, width)
        if height < 1 or width < 1 or height * width != shape[rows]:
            raise ValueError(
                f"image_size must multiply to the length {shape[rows]} of mode {rows}, got {height} x {width}."
            )
    if colours and shape[colours[0]] != 3:
        raise ValueError(f"the mode of colours must have length 3, but mode {colours[0]} has {shape[colours[0]]}.")
    return Layout(rows, columns, colours[0] if colours else None, size, photo=True)


def _guess(observations: Observations) -> Layout:
    shape = observations.shape
    rows, columns = longest_modes(shape)
    others = [mode for mode in range(len(shape)) if mode not in (rows, columns)]
    colours = next((mode for mode in others if shape[mode] == 3), None)
    light = not observations.in_chunks and observations.values.min() >= 0 and observations.values.max() <= 255
    photo = colours is not None and bool(light) and min(shape[rows], shape[columns]) >= 16
    return Layout(rows, columns, colours if photo else None, (shape[rows], shape[columns]), photo)


def make_viewer(
    result: Result,
    known: Sequence[Observations],
    layout: Layout,
    *,
    most_frames: int = MOST_FRAMES,
    most_bytes: int = MOST_BYTES,
    longest_side: int = LONGEST_SIDE,
) -> Viewer | str:
    """The viewer of a result, or why there is none.

    Parameters
    ----------
    known : sources of values, tried in order: the fitted entries, and other available data
    most_frames, most_bytes, longest_side : limits of the number of pictures, their total size and their sides in pixels
    """
    observations = result.observations
    if result.rank == 0 and not np.any(result.outlier_probability_at_entries() > 0.5):
        return "The fit found neither components nor outliers: there is nothing to compare with the data."
    if observations.n_observed < SPARSEST * observations.n_entries or observations.n_entries >= LARGEST_TENSOR:
        share = 100 * observations.n_observed / observations.n_entries
        return f"Only {number(share, 2)} % of the entries were observed: a picture of a slice would be nearly empty."
    sliders = layout.sliders(observations.order)
    lengths = [observations.shape[mode] for mode in sliders]
    shown = spread(math.prod(lengths), most_frames)
    rows, columns = (spread(length, longest_side) for length in layout.size)
    outliers = EntryVector.of(observations, result.outliers_at_entries())
    values = [values_of(entries) for entries in known]

    def frame(number_: int) -> Frame:
        coords = _coords(layout, sliders, np.unravel_index(number_, lengths or [1]), rows, columns, observations.order)
        return _frame(result, values, outliers, coords, (rows.size, columns.size), layout)

    noise_sd = float(np.sqrt(result.noise_variance)) if result.link.name is None else 0.0
    shades = Shades.of([frame(k) for k in shown[spread(shown.size, FRAMES_FOR_SHADES)]], layout, noise_sd)
    pictures = [shades.draw(frame(k)) for k in shown]
    notes = []
    if rows.size < layout.size[0] or columns.size < layout.size[1]:
        notes.append(f"Each picture shows {rows.size} × {columns.size} of {layout.size[0]} × {layout.size[1]} entries.")
    kept = np.arange(shown.size)
    while sum(len(uri) for k in kept for uri in pictures[k]) > most_bytes and kept.size > 1:
        kept = kept[::2]
    if kept.size < math.prod(lengths):
        notes.append(
            f"{kept.size} of {math.prod(lengths):,} frames are embedded, evenly spread, to keep the page small; "
            "the fit used them all."
        )
    axes = [axis_of(observations, mode) for mode in sliders]
    names = [
        ", ".join(
            f"{axis.name} = {axis.text(int(at))}" for axis, at in zip(axes, np.unravel_index(f, lengths), strict=True)
        )
        for f in (shown[kept] if sliders else [])
    ]
    return Viewer(
        panels=shades.panels(),
        names=names or [""],
        pictures=[pictures[k] for k in kept],
        size=(rows.size, columns.size),
        photo=layout.photo,
        rows="" if layout.photo else axis_of(observations, layout.rows).name,
        columns="" if layout.photo else axis_of(observations, layout.columns).name,
        notes=notes,
    )


@dataclass(frozen=True)
class Still:
    """One picture with its legend: its data URI, its size in pixels and its colour scale."""

    address: str
    size: tuple[int, int]
    panel: Panel


def pixel_picture(values: Array, size: tuple[int, int], name: str, *, signed: bool) -> Still:
    """Numbers over the pixels of a picture, (height, width): on a diverging scale if signed, else from zero up."""
    rows, columns = (spread(length, LONGEST_SIDE) for length in size)
    cells = values.reshape(size)[np.ix_(rows, columns)]
    reach = float(np.max(np.abs(cells), where=np.isfinite(cells), initial=0.0)) or 1.0
    colours = diverging(cells, reach) if signed else ramp(cells, 0.0, reach, WARM)
    panel = Panel(name, "diverging" if signed else "warm", -reach if signed else 0.0, reach)
    return Still(data_uri(colours), (rows.size, columns.size), panel)


def _coords(
    layout: Layout, sliders: list[int], at: Sequence[Any], rows: Positions, columns: Positions, order: int
) -> Positions:
    """Coordinates (N, H·W·C) of the entries of one picture, colours last."""
    colours = np.arange(1 if layout.colours is None else 3)
    down, right, colour = (grid.ravel() for grid in np.meshgrid(rows, columns, colours, indexing="ij"))
    coords = np.zeros((order, down.size), dtype=np.intp)
    for mode, position in zip(sliders, at, strict=False):
        coords[mode] = position
    coords[layout.rows] = down
    coords[layout.columns] = right if not layout.pixels else down * layout.size[1] + right
    if layout.colours is not None:
        coords[layout.colours] = colour
    return coords


def _frame(
    result: Result,
    values: Sequence[EntryVector],
    outliers: EntryVector,
    coords: Positions,
    size: tuple[int, int],
    layout: Layout,
) -> Frame:
    """Data, low-rank part, outliers and standard deviation of one picture; in colour, the largest outlier."""
    data = values[0].at(coords)
    for more in values[1:]:
        data = np.where(np.isnan(data), more.at(coords), data)
    n_colours = 1 if layout.colours is None else 3
    parts = (data, result.low_rank(coords), np.nan_to_num(outliers.at(coords)), result.std(coords))
    data, low_rank, outlier, std = (part.reshape(*size, n_colours) for part in parts)
    if n_colours == 1:
        return Frame(*(part[..., 0] for part in (data, low_rank, outlier, std)))
    strongest = np.argmax(np.abs(outlier), axis=2)[..., None]
    return Frame(data, low_rank, np.take_along_axis(outlier, strongest, axis=2)[..., 0], std.mean(axis=2))
