"""The viewer: slices of the tensor as pictures of data, low-rank part, outliers and standard deviation."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array, evenly_spaced
from brtf.data.observations import Observations
from brtf.model.settings import LARGEST_TENSOR
from brtf.results.result import Result
from brtf.view.entries import EntryVector, values_of
from brtf.view.report.blocks import Picture, Scene, Side, Sides, Slider, Viewer
from brtf.view.report.layout import Layout
from brtf.view.report.pictures import DEEP, WARM, data_uri, diverging, photograph, ramp, sequential
from brtf.view.report.svg import number
from brtf.view.view_data import Axis, axis_of

MOST_FRAMES = 60
LONGEST_SIDE = 256
"""Largest number of pixels along a side of a picture: two fit side by side on a laptop, one on a phone."""
FRAMES_FOR_SHADES = 8
"""Number of frames from which the colour ranges are determined."""
MOST_BYTES = 6_000_000
"""Largest total size of the pictures of a page, or of the numbers that its script draws them from."""
BYTES_PER_ENTRY = 4 * 2 * 4 / 3
"""Size of the four numbers of an entry: sixteen bits each, as text in base 64."""
MISSING = 2**16 - 1
"""The code of a number that is missing or not finite; the others run from 0 to one less."""
OUTLYING = 4.0
"""Number of noise standard deviations shown in full colour; smaller values stay pale."""
SPARSEST = 0.01
"""Smallest share of observed entries for which slices are shown; below it pictures would be nearly empty."""
SLIGHT = 0.05
"""Share of the largest value below which negative values, and differences of standard deviations, are not coloured."""
UNKNOWN = 10.0
"""Typical standard deviations from which one is shown in full colour."""
NAMES = ("Data", "Low rank", "Outliers", "Standard deviation")
Positions = NDArray[np.intp]


class Frame(NamedTuple):
    """The numbers of some entries: (H, W), or (H, W, 3) for data and low rank in colour. Data are NaN where missing."""

    data: Array
    low_rank: Array
    outliers: Array
    std: Array


@dataclass(frozen=True)
class Shades:
    """The values at the ends of the colour scales, common to all frames.

    Attributes
    ----------
    photo : whether the values are light levels
    low, high : of data and low rank: from zero where these are non-negative apart from noise, from their smallest
        number where they are farther from zero than from each other, such as temperatures in kelvin
    reach : of the outliers, to both sides unless all of them are positive
    least, most : of the standard deviation
    """

    photo: bool
    low: float
    high: float
    reach: float
    least: float
    most: float
    one_sided: bool = False

    @classmethod
    def of(cls, frames: Sequence[Frame], photo: bool, noise_sd: float) -> Shades:
        """Colour ranges for the given frames; an outlier in full colour is several times as large as the noise."""
        data, low_rank, outliers, std = (
            np.concatenate([part.ravel() for part in k]) for k in zip(*frames, strict=True)
        )
        observed, low_rank, std = (part[np.isfinite(part)] for part in (data, low_rank, std))
        smallest, largest = (float(observed.min()), float(observed.max())) if observed.size else (0.0, 0.0)
        if photo and smallest >= 0 and largest <= 255:
            low, high = 0.0, 255.0 if largest > 1 else 1.0
        elif photo and observed.size:
            low, high = (float(end) for end in np.quantile(observed, (0.002, 0.998)))
        else:
            sizes = np.abs(low_rank)
            high = float(np.quantile(sizes, 0.998)) if sizes.size else 0.0
            high = high or float(sizes.max(initial=0.0)) or max(largest, -smallest) or 1.0
            below = -float(low_rank.min(initial=0.0))
            noise_alone = below <= OUTLYING * noise_sd < high
            slight = OUTLYING * noise_sd < high and -float(np.quantile(low_rank, 0.002)) < SLIGHT * high
            low = 0.0 if smallest >= 0 or noise_alone or slight else -high
            ends = np.quantile(low_rank, (0.002, 0.998)) if low_rank.size else np.zeros(2)
            if smallest * largest > 0 and ends[1] - ends[0] < np.abs(ends).min():  # farther from zero than they spread
                low, high = (float(end) for end in ends) if ends[0] < ends[1] else (low, high)
        sizes = np.abs(outliers[outliers != 0])
        reach = max(float(np.quantile(sizes, 0.995)) if sizes.size else high, OUTLYING * noise_sd)
        least, most = (float(end) for end in np.quantile(std, (0.0, 0.998))) if std.size else (0.0, 1.0)
        if std.size:  # positions of which nothing was seen are in full colour, and do not pale the others
            most = min(most, UNKNOWN * float(np.median(std))) or most
        if most - least < SLIGHT * most:
            least = 0.0  # nearly constant: do not show rounding errors as shades
        return cls(photo, low, high, reach, least, most, bool(sizes.size) and float(outliers.min()) >= 0)

    @property
    def colours(self) -> Literal["light", "diverging", "sequential"]:
        """The colours of data and low rank."""
        return "light" if self.photo else "diverging" if self.low < 0 < self.high else "sequential"

    def scenes(self, rows: Side, columns: Side) -> list[Scene]:
        """What the four pictures of a frame show."""
        return [
            Scene(NAMES[0], self.colours, self.low, self.high, rows, columns),
            Scene(NAMES[1], self.colours, self.low, self.high, rows, columns),
            Scene(NAMES[2], "warm", 0.0, self.reach, rows, columns)
            if self.one_sided
            else Scene(NAMES[2], "diverging", -self.reach, self.reach, rows, columns),
            Scene(NAMES[3], "deep", self.least, self.most, rows, columns),
        ]

    def draw(self, frame: Frame) -> list[str]:
        """The four pictures of a frame, as data URIs."""
        std = np.where(np.isfinite(frame.std), frame.std, np.nan)
        outliers = (
            ramp(frame.outliers, 0.0, self.reach, WARM) if self.one_sided else diverging(frame.outliers, self.reach)
        )
        return [
            self._levels(frame.data),
            self._levels(frame.low_rank),
            data_uri(outliers),
            data_uri(ramp(std, self.least, self.most, DEEP)),
        ]

    def _levels(self, values: Array) -> str:
        if self.photo:
            return data_uri(photograph(values, self.low, self.high), lossy=True)
        levels = diverging(values, self.high) if self.low < 0 < self.high else sequential(values, self.low, self.high)
        return data_uri(levels)


class Numbers:
    """Data, low-rank part, outliers and standard deviation at any entries of a fit.

    ``known`` are sources of values, tried in order: the fitted entries, and other available data.
    """

    def __init__(self, result: Result, known: Sequence[Observations]) -> None:
        self.result = result
        self.outliers = EntryVector.of(result.observations, result.outliers_at_entries())
        self.values = [values_of(entries) for entries in known]

    def at(self, coords: Positions) -> Frame:
        """Numbers at coordinates (N, K), each (K,)."""
        data = self.values[0].at(coords)
        for more in self.values[1:]:
            data = np.where(np.isnan(data), more.at(coords), data)
        outliers = np.nan_to_num(self.outliers.at(coords))
        return Frame(data, self.result.low_rank(coords), outliers, self.result.std(coords))


def make_viewer(
    result: Result,
    known: Sequence[Observations],
    layout: Layout,
    sides: Sides,
    *,
    most_frames: int = MOST_FRAMES,
    most_bytes: int = MOST_BYTES,
    longest_side: int = LONGEST_SIDE,
) -> Viewer | str:
    """The viewer of a result, or why there is none.

    Photographs are embedded frame by frame. Of other tensors the page holds the numbers, so that a reader can choose
    the modes of a picture; a large tensor is thinned to evenly spaced positions of every mode.

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
    noise_sd = float(np.median(result.noise_sds)) if result.link.name is None else 0.0
    numbers = Numbers(result, known)
    if layout.photo:
        return _frames(numbers, layout, sides, noise_sd, most_frames, most_bytes, longest_side)
    return _slices(numbers, layout, sides, noise_sd, most_bytes, longest_side)


# ---- slices of numbers ---------------------------------------------------------------------------------------


def _slices(
    numbers: Numbers, layout: Layout, sides: Sides, noise_sd: float, most_bytes: int, longest_side: int
) -> Viewer:
    """A viewer that holds the numbers of all entries, or of evenly spaced positions."""
    observations = numbers.result.observations
    shape, axes = observations.shape, [axis_of(observations, mode) for mode in range(observations.order)]
    side = _longest(shape, most_bytes / BYTES_PER_ENTRY, longest_side)
    positions = [evenly_spaced(length, side) for length in shape]
    held = tuple(own.size for own in positions)
    coords = np.stack([grid.ravel() for grid in np.meshgrid(*positions, indexing="ij")])
    frame = Frame(*(part.reshape(held) for part in numbers.at(coords)))
    shades = Shades.of([frame], False, noise_sd)
    along = [sides(axis.name, labels_at(axis, own)) for axis, own in zip(axes, positions, strict=True)]
    rows, columns = layout.rows, layout.columns
    first = tuple(slice(None) if mode in (rows, columns) else 0 for mode in range(len(shape)))
    shown = Frame(*(part[first].T if rows > columns else part[first] for part in frame))
    codes, ranges = zip(*(_coded(part) for part in frame), strict=True)
    packed = zlib.compress(np.stack(codes).astype("<u2").tobytes(), 6)
    notes = []
    if held != shape:
        notes.append(
            f"The pictures are drawn from {' × '.join(map(str, held))} evenly spaced positions of "
            f"{' × '.join(map(str, shape))}, to keep the page small; the fit used them all."
        )
    return Viewer(
        pictures=[
            Picture(address, (held[rows], held[columns]), scene)
            for address, scene in zip(shades.draw(shown), shades.scenes(along[rows], along[columns]), strict=True)
        ],
        sliders=[
            Slider(axis.name, own.labels, hidden=mode in (rows, columns))
            for mode, (axis, own) in enumerate(zip(axes, along, strict=True))
        ],
        modes=[axis.name for axis in axes],
        rows=rows,
        columns=columns,
        source={
            "shape": held,
            "sides": [own.key for own in along],
            "rows": rows,
            "columns": columns,
            "ranges": ranges,
            "numbers": base64.b64encode(packed).decode("ascii"),
        },
        notes=notes,
        photo=False,
        complete=observations.layout == "complete",
    )


def labels_at(axis: Axis, positions: Positions) -> list[str]:
    """The labels of some positions, without line breaks."""
    return [" ".join(axis.text(int(position)).split()) for position in positions]


def _longest(shape: tuple[int, ...], most_entries: float, longest_side: int) -> int:
    """The largest number of positions per mode with which the numbers of all entries stay within the limit."""
    side = longest_side
    while side > 2 and math.prod(min(length, side) for length in shape) > most_entries:
        side -= 1
    return side


def _coded(numbers: Array) -> tuple[NDArray[np.uint16], tuple[float, float]]:
    """Numbers in sixteen bits, and the values of the first and the last code."""
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    unit = (high - low) or 1.0
    codes = np.full(numbers.shape, MISSING, dtype=np.uint16)
    codes[finite] = np.round((numbers[finite] - low) / unit * (MISSING - 1)).astype(np.uint16)
    return codes.ravel(), (low, high)


# ---- photographs ---------------------------------------------------------------------------------------------


def _frames(
    numbers: Numbers,
    layout: Layout,
    sides: Sides,
    noise_sd: float,
    most_frames: int,
    most_bytes: int,
    longest_side: int,
) -> Viewer:
    """A viewer of photographs, evenly spaced ones if there are many."""
    observations = numbers.result.observations
    sliders = layout.sliders(observations.order)
    lengths = [observations.shape[mode] for mode in sliders]
    n_frames = math.prod(lengths)
    shown = evenly_spaced(n_frames, most_frames)
    rows, columns = (evenly_spaced(length, longest_side) for length in layout.size)

    def frame(number_: int) -> Frame:
        at = np.unravel_index(number_, lengths or [1])
        coords = _coords(layout, sliders, at, rows, columns, observations.order)
        return _in_colour(numbers.at(coords), (rows.size, columns.size), layout)

    shades = Shades.of([frame(k) for k in shown[evenly_spaced(shown.size, FRAMES_FOR_SHADES)]], True, noise_sd)
    axes = [axis_of(observations, mode) for mode in sliders]
    names = [
        ", ".join(axis.text(int(at)) for axis, at in zip(axes, np.unravel_index(f, lengths), strict=True))
        for f in (shown if sliders else [])
    ] or [""]
    return photographs(
        [shades.draw(frame(k)) for k in shown],
        shades.scenes(*(sides(name, [str(k) for k in own]) for name, own in (("row", rows), ("column", columns)))),
        Slider(", ".join(axis.name for axis in axes), names),
        size=layout.size,
        n_frames=n_frames,
        complete=observations.layout == "complete",
        most_bytes=most_bytes,
    )


def photographs(
    pictures: Sequence[Sequence[str]],
    scenes: Sequence[Scene],
    slider: Slider,
    *,
    size: tuple[int, int],
    n_frames: int,
    complete: bool,
    most_bytes: int = MOST_BYTES,
) -> Viewer:
    """A viewer of pictures that are drawn already, every second one of them for as long as they are too large.

    Parameters
    ----------
    pictures : data URIs of every frame that may be shown, one for each scene
    scenes : what they show; their sides have a label for every pixel of a picture
    slider : with a label for every frame that may be shown
    size : height and width of the frames before pixels were left out
    n_frames : number of frames, of which those that may be shown are evenly spread ones
    complete : whether every pixel was observed
    most_bytes : limit of the total size
    """
    held = len(scenes[0].rows.labels), len(scenes[0].columns.labels)
    notes = []
    if held != tuple(size):
        notes.append(f"Each picture shows {held[0]} × {held[1]} of {size[0]} × {size[1]} entries.")
    kept = range(len(pictures))
    while sum(len(uri) for k in kept for uri in pictures[k]) > most_bytes and len(kept) > 1:
        kept = kept[::2]
    if len(kept) < n_frames:
        notes.append(
            f"{len(kept)} of {n_frames:,} frames are embedded, evenly spread, to keep the page small; "
            "all of them were used."
        )
    names = [slider.labels[k] for k in kept]
    return Viewer(
        pictures=[Picture(address, held, scene) for address, scene in zip(pictures[0], scenes, strict=True)],
        sliders=[Slider(slider.name, names)],
        modes=[],
        rows=0,
        columns=1,
        source={"names": names, "pictures": [pictures[k] for k in kept]},
        notes=notes,
        photo=True,
        complete=complete,
    )


def pixel_picture(values: Array, size: tuple[int, int], name: str, along: tuple[Side, Side] | Sides) -> Picture:
    """Numbers over a picture (height, width): on a diverging scale if some are negative, else from zero up.

    ``along`` are the two sides of the pixels that are shown, or the sides of the page, where pixels have no labels.
    """
    rows, columns = (evenly_spaced(length, LONGEST_SIDE) for length in size)
    if isinstance(along, Sides):
        along = along("row", [str(k) for k in rows]), along("column", [str(k) for k in columns])
    cells = values.reshape(size)[np.ix_(rows, columns)]
    reach = float(np.max(np.abs(cells), where=np.isfinite(cells), initial=0.0)) or 1.0
    signed = bool(np.any(cells < 0))
    colours = diverging(cells, reach) if signed else sequential(cells, 0.0, reach)
    scene = Scene(name, "diverging" if signed else "sequential", -reach if signed else 0.0, reach, *along)
    return Picture(data_uri(colours), (rows.size, columns.size), scene)


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


def _in_colour(frame: Frame, size: tuple[int, int], layout: Layout) -> Frame:
    """One picture; in colour, of the outliers the largest and of the standard deviations the mean."""
    n_colours = 1 if layout.colours is None else 3
    data, low_rank, outlier, std = (part.reshape(*size, n_colours) for part in frame)
    if n_colours == 1:
        return Frame(*(part[..., 0] for part in (data, low_rank, outlier, std)))
    strongest = np.argmax(np.abs(outlier), axis=2)[..., None]
    return Frame(data, low_rank, np.take_along_axis(outlier, strongest, axis=2)[..., 0], std.mean(axis=2))
