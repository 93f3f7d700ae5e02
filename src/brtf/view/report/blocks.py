"""What pages are made of: parts, and the words, findings, charts, pictures and tables inside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from brtf.view.report.svg import number

Tone = Literal["", "good", "bad"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, a small remark below it, a mark, and its value for sorting and export.

    ``mark`` is "best" for the best of its column, "bad" for a failure, and "" otherwise.
    """

    text: str
    remark: str = ""
    mark: Literal["", "best", "bad"] = ""
    value: float | None = None

    @classmethod
    def of(cls, value: float, digits: int = 4) -> Cell:
        """A number: rounded on the page, with twelve digits where it is sorted and downloaded."""
        return cls(number(value, digits) if np.isfinite(value) else "–", value=float(value))

    @property
    def exact(self) -> str | None:
        """The value as a program reads it; None if the cell is text."""
        if self.value is None:
            return None
        return f"{self.value:.12g}" if np.isfinite(self.value) else ""


@dataclass(frozen=True)
class Table:
    """A table: a header, rows that begin with names, a caption, and the number of text columns at the end.

    A reader sorts it by clicking on a column, and downloads what is shown as ``file``.csv.
    """

    kind: ClassVar[str] = "table"

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    n_wordy: int = 0
    n_labels: int = 1
    file: str = "table"


@dataclass(frozen=True)
class Verdict:
    """A sentence of the conclusions, and whether it is good news ("good"), bad news ("bad") or neither ("")."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Verdicts:
    """Conclusions, the most important first."""

    kind: ClassVar[str] = "verdicts"
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    kind: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a part, with a remark beside it."""

    kind: ClassVar[str] = "heading"
    text: str
    remark: str = ""


TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T]\d")
"""A label with a day and a time of day."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a picture: its key among the sides of a page, the name of the mode, and a label for every pixel."""

    key: str
    name: str
    labels: Sequence[str]

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last label; of times of different days only the days. The last is empty if there is one."""
        first, last = self.labels[0], self.labels[-1] if len(self.labels) > 1 else ""
        days = [found[1] for found in map(TIME.match, (first, last)) if found]
        return (days[0], days[1]) if len({*days}) == 2 else (first, last)


class Sides:
    """The sides of all pictures of a page: those that are alike are kept once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[str, ...]], Side] = {}

    def __call__(self, name: str, labels: Sequence[str]) -> Side:
        """The side with these labels, known from now on."""
        what = (name, tuple(labels))
        return self._known.setdefault(what, Side(f"side{len(self._known)}", *what))

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """Everything by key, as the script reads it."""
        return {
            side.key: {"name": side.name, "labels": side.labels, "ends": side.ends} for side in self._known.values()
        }


@dataclass(frozen=True)
class Scene:
    """What the colours of a picture mean, and what its rows and columns are.

    Attributes
    ----------
    name : what is shown
    colours : the colour scale
    low, high : values at its ends
    rows, columns : what runs downwards and to the right
    """

    name: str
    colours: Literal["light", "sequential", "warm", "deep", "diverging"]
    low: float
    high: float
    rows: Side
    columns: Side

    @property
    def attributes(self) -> dict[str, str]:
        """What the script needs to say which value lies under the pointer."""
        return {
            "data-colours": self.colours,
            "data-low": f"{self.low:.9g}",
            "data-high": f"{self.high:.9g}",
            "data-rows": self.rows.key,
            "data-columns": self.columns.key,
        }


@dataclass(frozen=True)
class Picture:
    """One picture with its axes and legend: its data URI and its size (height, width) in pixels."""

    address: str
    size: tuple[int, int]
    scene: Scene

    @property
    def stretched(self) -> bool:
        """Whether it would be a narrow strip, and is stretched."""
        return not 0.5 <= self.size[0] / self.size[1] <= 2.0


@dataclass(frozen=True)
class Slider:
    """Chooses a position of one mode, or a frame: its name, and a label for every position."""

    name: str
    labels: Sequence[str]
    hidden: bool = False


@dataclass(frozen=True)
class Viewer:
    """Pictures of the tensor side by side, with a choice of the slice, and of the modes where all numbers are here.

    Attributes
    ----------
    pictures : the first ones
    sliders : what a slice is chosen with
    modes : names of the modes that may run downwards and to the right; empty if these are fixed
    rows, columns : those that do at first
    source : what the script draws the others from
    notes : what is not shown
    photo : whether the values are light levels
    complete : whether every entry was observed
    """

    kind: ClassVar[str] = "viewer"

    pictures: Sequence[Picture]
    sliders: Sequence[Slider]
    modes: Sequence[str]
    rows: int
    columns: int
    source: dict[str, Any]
    notes: Sequence[str]
    photo: bool
    complete: bool


@dataclass(frozen=True)
class Card:
    """A chart, as safe SVG, or a picture, and a caption."""

    shown: Any
    caption: str = ""

    @property
    def is_picture(self) -> bool:
        return isinstance(self.shown, Picture)


@dataclass(frozen=True)
class Cards:
    """Charts and pictures: in a "grid" of thirds, as a "pair" of halves, or in a "stack"."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]
    form: Literal["grid", "pair", "stack"] = "grid"


@dataclass(frozen=True)
class Beside:
    """A chart, and words or charts beside it."""

    kind: ClassVar[str] = "aside"
    card: Card
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Facts:
    """Names and values, a line each."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Key:
    """A legend: pairs of a mark and what it means; the mark is a class of the style sheet or safe SVG."""

    kind: ClassVar[str] = "key"
    rows: Sequence[tuple[Any, str]]
    in_line: bool = False


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown on request."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Part:
    """A part of the page: its anchor, its title, its blocks, and what is left out, with the reasons.

    A part without blocks is not shown; only what it leaves out is listed, at the end of the page.
    """

    name: str
    title: str
    blocks: Sequence[Any] = ()
    left_out: Sequence[str] = field(default_factory=tuple)
