"""Charts as inline SVG: scales, axes and a few marks. Colours are CSS classes, so the theme of the page applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from markupsafe import Markup

Array = NDArray[np.float64]
Ticks = Sequence[tuple[float, str]]
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
GLYPHS = {
    "birth": "M0,-5 5,4 -5,4Z",
    "death": "M0,5 5,-4 -5,-4Z",
    "merge": "M0,-5 5,0 0,5 -5,0Z",
    "prune": "M-4,-4 4,4M-4,4 4,-4",
    "other": "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0Z",
    "dropped": "M0,-3 0,3",
}
"""Outlines of the marks for moves, centred at the origin."""


def number(value: float, digits: int = 4) -> str:
    """A number as readable text: 12,300 or −0.05 or 3.2×10⁻⁷."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("−∞" if value < 0 else "∞")
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
        text = power if mantissa == "1" else f"{mantissa}×{power}"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(size))) if size else 0
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """The range of an axis and its type: linear, logarithmic, or asinh (logarithmic on both sides of zero)."""

    low: float
    high: float
    kind: Literal["linear", "log", "asinh"] = "linear"

    @classmethod
    def around(cls, values: ArrayLike, *, margin: float = 0.0, zero: bool = False) -> Scale:
        """A linear scale that contains all finite values, with a margin as a share of their range."""
        finite = np.asarray(values, dtype=np.float64)
        finite = finite[np.isfinite(finite)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if not high - low > 1e-290:  # practically equal: no step between ticks
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        reach = margin * (high - low)
        return cls(low - reach, high + reach)

    def place(self, values: ArrayLike) -> Array:
        """Relative positions of values on the scale, 0 to 1; values beyond an end are placed at the end."""
        bent, low, high = (self._bend(np.asarray(v, dtype=np.float64)) for v in (values, self.low, self.high))
        return np.clip((bent - low) / (high - low), 0.0, 1.0)

    def _bend(self, values: Array) -> Array:
        if self.kind == "linear":
            return values
        return np.arcsinh(values) if self.kind == "asinh" else np.log(np.maximum(values, 1e-300))

    def ticks(self, n_wanted: int = 5) -> list[tuple[float, str]]:
        """Round numbers in the interval, and their text."""
        if self.kind == "linear":
            raw = (self.high - self.low) / n_wanted
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            largest = max(abs(self.low), abs(self.high))
            digits = 2 + math.floor(math.log10(largest)) - math.floor(math.log10(step))  # neighbours read differently
            return [(k * step, number(k * step, digits)) for k in range(first, last + 1)]
        positive = self.high if self.kind == "log" else max(self.high, -self.low)
        smallest = math.ceil(math.log10(max(self.low, 1e-300)) - 1e-9) if self.kind == "log" else 0
        largest = math.floor(math.log10(positive) + 1e-9)
        every = max(1, math.ceil((largest - smallest + 1) / n_wanted))
        powers = [10.0**k for k in range(smallest, largest + 1, every)]
        if self.kind == "asinh":
            powers = [*(-p for p in reversed(powers)), 0.0, *powers]
        return [(p, number(p, 1)) for p in powers if self.low <= p <= self.high]


class Chart:
    """One chart: axes, and marks in the order in which they are added.

    Parameters
    ----------
    x, y : the scales
    description : text for screen readers
    width, height : size of the drawing, which is scaled to the column of the page
    left, bottom : room for the ticks of y and of x
    x_title, y_title : what the axes show
    x_ticks, y_ticks : pairs of a value and its text; round numbers if None
    grid : whether the ticks of y are drawn across
    nearest : how the pointer finds the value to show: the nearest along "x", along "y", or in the plane, "xy"
    """

    def __init__(
        self,
        x: Scale,
        y: Scale,
        description: str,
        *,
        width: float = 400.0,
        height: float = 220.0,
        left: float = 46.0,
        bottom: float = 36.0,
        x_title: str = "",
        y_title: str = "",
        x_ticks: Ticks | None = None,
        y_ticks: Ticks | None = None,
        grid: bool = True,
        nearest: Literal["x", "y", "xy"] = "x",
    ) -> None:
        self.x, self.y, self.nearest = x, y, nearest
        self.tips: list[str] = []
        self.left, self.right, self.top, self.bottom = left, width - 12.0, 22.0 if y_title else 10.0, height - bottom
        self.root = ElementTree.Element(
            "svg", {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "class": "chart", "aria-label": description}
        )
        for value, text in y.ticks(4) if y_ticks is None else y_ticks:
            across = float(self.at_y(value))
            if grid:
                self._add("line", "guide", x1=self.left, x2=self.right, y1=across, y2=across)
            self._text(text, self.left - 6, across + 3.5, "end")
        self._add("line", "axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        for value, text in x.ticks() if x_ticks is None else x_ticks:
            along = float(self.at_x(value))
            self._add("line", "axis", x1=along, x2=along, y1=self.bottom, y2=self.bottom + 4)
            share = float(x.place(value))
            anchor = (
                "start" if share < 0.04 and len(text) > 4 else "end" if share > 0.96 and len(text) > 4 else "middle"
            )
            self._text(text, along, self.bottom + 16, anchor)
        if x_title:
            self._text(x_title, self.right, self.bottom + 31, "end", "title")
        if y_title:
            self._text(y_title, 2.0, 11.0, "start", "title")

    def at_x(self, values: ArrayLike) -> Array:
        return self.left + (self.right - self.left) * self.x.place(values)

    def at_y(self, values: ArrayLike) -> Array:
        return self.bottom - (self.bottom - self.top) * self.y.place(values)

    def line(self, x: ArrayLike, y: ArrayLike, style: str) -> None:
        """A line through points; it is broken where a value is not finite."""
        path, pen = [], "M"
        for along, up, drawn in zip(self.at_x(x), self.at_y(y), np.isfinite(np.asarray(y, dtype=float)), strict=True):
            if drawn:
                path.append(f"{pen}{along:.1f},{up:.1f}")
            pen = "L" if drawn else "M"
        if path:
            self._add("path", style, d="".join(path))

    def steps(self, x: ArrayLike, y: ArrayLike, style: str) -> None:
        """A step line that keeps its value until the next point."""
        along, up = np.repeat(np.asarray(x, dtype=float), 2)[1:], np.repeat(np.asarray(y, dtype=float), 2)[:-1]
        self.line(along, up, style)

    def band(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, style: str) -> None:
        """The area between two lines."""
        along = self.at_x(x)
        edge = [*zip(along, self.at_y(high), strict=True), *zip(along[::-1], self.at_y(low)[::-1], strict=True)]
        self._add("path", style, d="M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in edge) + "Z")

    def bars(self, edges: ArrayLike, heights: ArrayLike, style: str, titles: Sequence[str] | None = None) -> None:
        """Bars from the bottom of the chart, between neighbouring edges; none where a height is not finite."""
        along = self.at_x(edges)
        up = self.at_y(heights)
        for k, finite in enumerate(np.isfinite(np.asarray(heights, dtype=float))):
            if finite and up[k] < self.bottom:
                wide = along[k + 1] - along[k]
                gap = min(1.0, 0.15 * wide)
                size = {"width": max(wide - gap, 0.3), "height": self.bottom - up[k]}
                self._add("rect", style, x=along[k] + 0.5 * gap, y=up[k], **size)
                if titles is not None:
                    self._tip(0.5 * (along[k] + along[k + 1]), up[k], titles[k])

    def interval(self, low: float, high: float, y: float, style: str) -> None:
        """A horizontal line from low to high."""
        start, stop = self.at_x([low, high])
        self._add("line", style, x1=start, x2=stop, y1=float(self.at_y(y)), y2=float(self.at_y(y)))

    def rule(self, x: float, style: str) -> None:
        """A vertical line across the chart."""
        along = float(self.at_x(x))
        self._add("line", style, x1=along, x2=along, y1=self.top, y2=self.bottom)

    def mark(self, x: float, y: float, glyph: str, style: str, title: str) -> None:
        """A glyph with words for the pointer."""
        where = f"translate({float(self.at_x(x)):.1f},{float(self.at_y(y)):.1f})"
        self._add("path", style, d=GLYPHS[glyph], transform=where)
        self.tip(x, y, title)

    def dot(self, x: float, y: float, style: str, title: str) -> None:
        """A dot with words for the pointer."""
        self._add("circle", style, cx=float(self.at_x(x)), cy=float(self.at_y(y)), r=3.2)
        self.tip(x, y, title)

    def tip(self, x: float, y: float, words: str) -> None:
        """Words that the page shows when the pointer comes near a point of the chart."""
        self._tip(float(self.at_x(x)), float(self.at_y(y)), words)

    def _tip(self, along: float, up: float, words: str) -> None:
        self.tips.append(f"{along:.1f} {up:.1f} {' '.join(words.split())}")

    def image(self, address: str, attributes: dict[str, str]) -> None:
        """A picture that fills the axes; the attributes say what its colours mean."""
        size = {"width": self.right - self.left, "height": self.bottom - self.top}
        picture = self._add("image", "cells", href=address, x=self.left, y=self.top, preserveAspectRatio="none", **size)
        for name, value in attributes.items():
            picture.set(name, value)
        self._add("rect", "frame", x=self.left, y=self.top, **size)

    def note(
        self, text: str, x: float, y: float, *, dy: float = 0.0, style: str = "note", anchor: str = "start"
    ) -> None:
        """Text that begins at a point of the chart, or ends there, moved down by ``dy``."""
        self._text(text, float(self.at_x(x)), float(self.at_y(y)) + dy, anchor, style)

    def markup(self) -> Markup:
        """The chart as safe HTML: all text is escaped."""
        if self.tips:
            self.root.set("data-nearest", self.nearest)
            ElementTree.SubElement(self.root, "metadata").text = "\n".join(self.tips)
            self.tips = []
        return _safe(self.root)

    def _add(self, tag: str, style: str, **attributes: Any) -> ElementTree.Element:
        written = {
            name: f"{value:.2f}" if isinstance(value, float) else str(value) for name, value in attributes.items()
        }
        return ElementTree.SubElement(self.root, tag, {"class": style, **written})

    def _text(self, text: str, x: float, y: float, anchor: str, style: str = "tick") -> None:
        element = self._add("text", style, x=x, y=y)
        element.set("text-anchor", anchor)
        element.text = text


def glyph(kind: str, style: str) -> Markup:
    """A single mark, for a legend."""
    root = ElementTree.Element("svg", {"viewBox": "-7 -7 14 14", "class": "glyph", "aria-hidden": "true"})
    ElementTree.SubElement(root, "path", {"class": style, "d": GLYPHS[kind]})
    return _safe(root)


def _safe(root: ElementTree.Element) -> Markup:
    """An element as HTML whose text is escaped."""
    from markupsafe import Markup

    return Markup(ElementTree.tostring(root, encoding="unicode"))
