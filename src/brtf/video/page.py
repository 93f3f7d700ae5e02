"""The page about what moves in a clip: what was decided, frames with boxes and masks, and objects over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from brtf.data.arrays import evenly_spaced
from brtf.data.exports import Table as BoxTable
from brtf.video.boxes import box_edges, draw_boxes
from brtf.video.clips import Clip, as_colours
from brtf.video.decision import Foreground
from brtf.view.report.blocks import (
    Card,
    Cards,
    Cell,
    Part,
    Picture,
    Scene,
    Side,
    Sides,
    Slider,
    Table,
    Verdict,
    Verdicts,
    Viewer,
)
from brtf.view.report.charts import MOST_POINTS, MOST_TIPS, WIDE
from brtf.view.report.frames import LONGEST_SIDE, MOST_FRAMES, photographs
from brtf.view.report.page import laid_out
from brtf.view.report.pictures import DEEP, WARM, data_uri, photograph, ramp
from brtf.view.report.svg import Chart, Scale, number

MOST_ROWS = 500
"""Largest number of frames in the table of the page."""
BRIGHTEST = 255.0


class Album:
    """What the page shows of a clip, collected a block of frames at a time: some pictures, and numbers of every frame.

    Parameters
    ----------
    frames : sequence of int
        Numbers of all frames that may come; evenly spread ones of them are shown.
    """

    def __init__(self, frames: Sequence[int]) -> None:
        self._shown = set(np.asarray(frames)[evenly_spaced(len(frames), MOST_FRAMES)].tolist())
        self._pictures: list[list[str]] = []
        self._labels: list[str] = []
        self._complete = True
        self._numbers: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self._frames: list[int] = []
        self.size, self.rate = (0, 0), 0.0

    def add(self, clip: Clip, found: Foreground, objects: BoxTable, frames: Sequence[int]) -> None:
        """Take in the next frames, what moves in them, its boxes by the numbers of the frames, and those numbers."""
        self.size, self.rate = (clip.height, clip.width), float(clip.rate)
        self._frames += frames
        self._numbers.append(object_sizes(found, objects, frames))
        self._complete &= not np.isnan(found.probability).any()
        rows, columns = self._held()
        for k, number_of_frame in enumerate(frames):
            if number_of_frame in self._shown:
                image = clip.image(clip.values[:, :, k])[np.ix_(rows, columns)]
                edges = [
                    (*_ends(rows, top, bottom), *_ends(columns, left, right))
                    for top, bottom, left, right in box_edges(objects, number_of_frame)
                ]
                mask, probability = (part[:, :, k][np.ix_(rows, columns)] for part in (found.mask, found.probability))
                self._labels.append(str(number_of_frame))
                self._pictures.append(
                    [
                        data_uri(photograph(draw_boxes(image, edges), 0.0, BRIGHTEST), lossy=True),
                        data_uri(ramp(mask.astype(np.float32), 0.0, 1.0, WARM)),
                        data_uri(ramp(probability, 0.0, 1.0, DEEP)),
                    ]
                )

    def page(self, overall: Foreground, title: str, version: str) -> str:
        """The page as text.

        Parameters
        ----------
        overall : what was decided, and the scene
        title : name of the clip
        version : of the library
        """
        sides = Sides()
        counts, largest, shares = (np.concatenate(part) for part in zip(*self._numbers, strict=True))
        parts = [
            Part("decisions", "Decisions", [Verdicts([Verdict(sentence) for sentence in overall.sentences()])]),
            Part("frames", "Frames", [self._viewer(sides)]),
            Part("background", "Background", [Cards([Card(self._background(overall, sides))])]),
            Part("objects", "Objects", _objects(self._frames, counts, largest, shares)),
        ]
        n_objects, n_frames = int(counts.sum()), len(self._frames)
        lead = (
            f"{n_frames:,} frames of {self.size[1]} × {self.size[0]} pixels. An object is a connected region of what "
            "moves in one frame; the same thing in the next frame is counted again."
        )
        tiles = [
            ("Objects", f"{n_objects:,}", "boxes in all frames"),
            ("Per frame", number(float(np.median(counts)), 3), f"typically; at most {int(counts.max())}"),
            ("Moving", f"{number(100 * float(shares.mean()), 3)} %", "of all pixels"),
            ("Frames", f"{n_frames:,}", f"{number(self.rate, 4)} per second"),
        ]
        return laid_out(title, version, lead=lead, parts=parts, sides=sides, tiles=tiles)

    def _held(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The rows and columns of the pictures."""
        rows, columns = (evenly_spaced(length, LONGEST_SIDE) for length in self.size)
        return rows, columns

    def _along(self, sides: Sides) -> tuple[Side, Side]:
        rows, columns = self._held()
        return sides("row", [str(k) for k in rows]), sides("column", [str(k) for k in columns])

    def _viewer(self, sides: Sides) -> Viewer:
        """Frames with boxes, masks and probabilities."""
        along = self._along(sides)
        scenes = [
            Scene("Frame with boxes", "light", 0.0, BRIGHTEST, *along),
            Scene("Mask", "warm", 0.0, 1.0, *along),
            Scene("Probability of single pixels", "deep", 0.0, 1.0, *along),
        ]
        return photographs(
            self._pictures,
            scenes,
            Slider("frame", self._labels),
            size=self.size,
            n_frames=len(self._frames),
            complete=self._complete,
        )

    def _background(self, overall: Foreground, sides: Sides) -> Picture:
        """The scene without objects."""
        rows, columns = self._held()
        image = as_colours(overall.background)[np.ix_(rows, columns)]
        scene = Scene("Background", "light", 0.0, BRIGHTEST, *self._along(sides))
        return Picture(data_uri(photograph(image, 0.0, BRIGHTEST), lossy=True), (rows.size, columns.size), scene)


def object_sizes(
    found: Foreground, objects: BoxTable, frames: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Of every frame the number of objects, the pixels of the largest, and the share of pixels in objects."""
    place = np.searchsorted(np.asarray(frames), objects["frame"])
    largest = np.zeros(len(frames), dtype=np.int64)
    np.maximum.at(largest, place, objects["area"])
    return np.bincount(place, minlength=len(frames)), largest, found.mask.mean(axis=(0, 1))


def _ends(held: NDArray[np.intp], first: int, last: int) -> tuple[int, int]:
    """The positions among those held that a stretch covers, or the one next to it."""
    start = min(int(np.searchsorted(held, first)), held.size - 1)
    return start, max(start, int(np.searchsorted(held, last, side="right")) - 1)


def _objects(
    frames: Sequence[int], counts: NDArray[np.int64], largest: NDArray[np.int64], shares: NDArray[np.float64]
) -> list[Cards | Table]:
    """Charts and a table of the objects of every frame."""
    numbers = np.asarray(frames, dtype=np.float64)
    charts = [
        _course(numbers, counts.astype(np.float64), "objects"),
        _course(numbers, largest.astype(np.float64), "pixels of the largest object"),
    ]
    rows = evenly_spaced(len(frames), MOST_ROWS)
    some = "" if rows.size == len(frames) else f"{rows.size} of {len(frames):,} frames, evenly spread. "
    table = Table(
        ["frame", "objects", "pixels of the largest", "% of the pixels"],
        [
            [Cell(str(frames[k]), value=frames[k]), *map(Cell.of, (counts[k], largest[k], 100 * shares[k]))]
            for k in rows
        ],
        caption=f"{some}Every object is in boxes.csv and boxes.json.",
        file="objects-per-frame",
    )
    return [Cards([Card(chart) for chart in charts], "pair"), table]


def _course(frames: NDArray[np.float64], values: NDArray[np.float64], what: str) -> Markup:
    """A chart of one number over the frames."""
    chart = Chart(
        Scale.around(frames),
        Scale(0.0, 1.05 * max(1.0, float(values.max()))),
        f"{what} of every frame",
        width=WIDE,
        x_title="frame",
        y_title=what,
    )
    drawn = evenly_spaced(frames.size, MOST_POINTS)
    chart.line(frames[drawn], values[drawn], "line one")
    for k in evenly_spaced(frames.size, MOST_TIPS):
        chart.tip(frames[k], values[k], f"frame {frames[k]:.0f}: {number(values[k])} {what}")
    return chart.markup()
