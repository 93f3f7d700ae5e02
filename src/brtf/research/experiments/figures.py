"""Drawings of the page: line charts of errors, and pictures side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from brtf.data.extras import require
from brtf.research.experiments.lines import Line, chosen, values
from brtf.research.experiments.runs import Picture, Row

STYLES = {"ours": "ours", "robust": "robust", "least squares": "least", "oracle": "oracle"}
LARGEST = 2.0
"""Largest error on the charts: above 1 the result is worse than zero."""
LABEL_HEIGHT = 13.0
"""Room that the name of a line needs, in units of the drawing."""


def error_chart(
    rows: Sequence[Row],
    shown: Sequence[Line],
    measure: str,
    along: str,
    *,
    x_title: str,
    y_title: str,
    description: str,
) -> str:
    """Medians of a measure along one setting, a line per method, named at its end; ours with the range of repeats.

    The scale is logarithmic; lines that leave the chart say so in their name.
    """
    from brtf.view.report.svg import Chart, Scale

    levels = sorted({row.settings[along] for row in rows})
    medians: dict[Line, list[float]] = {}
    ranges: dict[Line, list[tuple[float, float]]] = {}
    for line in shown:
        cells = [values(chosen(rows, **{along: level}), line, measure) for level in levels]
        if any(cells):
            medians[line] = [float(np.median(cell)) if cell else np.nan for cell in cells]
            ranges[line] = [(min(cell), max(cell)) if cell else (np.nan, np.nan) for cell in cells]
    lowest = min((low for cell in ranges.values() for low, _ in cell if np.isfinite(low)), default=0.01)
    room = 0.55 * (levels[-1] - levels[0])
    x = Scale(levels[0] - 0.02 * room, levels[-1] + room)
    y = Scale(0.85 * lowest, LARGEST, "log")
    ticks = [tick for tick in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if tick >= y.low]
    chart = Chart(
        x,
        y,
        description,
        width=600,
        height=360,
        x_title=x_title,
        y_title=y_title,
        x_ticks=[(level, f"{100 * level:g}\N{NO-BREAK SPACE}%") for level in levels],
        y_ticks=[(tick, f"{tick:g}") for tick in ticks],
    )
    for line, course in medians.items():
        style = "paper" if line.method == "brtf-paper" else STYLES[line.kind]
        if line.kind == "ours":
            low, high = zip(*ranges[line], strict=True)
            chart.band(levels, np.nan_to_num(low, nan=LARGEST), np.nan_to_num(high, nan=LARGEST), "band ours")
        chart.line(levels, course, f"line {style}")
    last = {line: next(value for value in reversed(course) if np.isfinite(value)) for line, course in medians.items()}
    ends = sorted(last, key=lambda line: -last[line])
    places = _spread_out([float(chart.at_y(last[line])) for line in ends], chart.top, chart.bottom)
    for line, place in zip(ends, places, strict=True):
        words = "oracle" if line.kind == "oracle" else line.label.removesuffix(", tuned by the truth")
        words += " (beyond)" if last[line] > y.high else ""
        down = float(place - chart.at_y(last[line])) + 4
        chart.note(words, levels[-1] + 0.03 * room, last[line], dy=down, style=f"note {STYLES[line.kind]}")
    return str(chart.markup())


def _spread_out(places: Sequence[float], top: float, bottom: float) -> NDArray[np.float64]:
    """Heights from the top down, moved apart just enough for the names not to overlap."""
    from scipy.optimize import isotonic_regression

    steps = LABEL_HEIGHT * np.arange(len(places))
    moved = isotonic_regression(np.asarray(places) - steps).x
    return np.asarray(np.clip(moved, top, max(top, bottom - LABEL_HEIGHT * (len(places) - 1))) + steps)


def collage(columns: Mapping[str, Sequence[Picture | None]], row_names: Sequence[str], *, columns_wide: int) -> bytes:
    """Pictures side by side, a column per name, as PNG; columns that do not fit continue below."""
    pyplot = require("matplotlib.figure", extra="viz", purpose="pictures side by side")
    n_bands = -(-len(columns) // columns_wide)
    n_rows = len(row_names)
    first = next(picture for pictures in columns.values() for picture in pictures if picture is not None)
    ratio = first.shape[0] / first.shape[1]
    size = 11.0 / columns_wide
    figure = pyplot.Figure(figsize=(11.0, n_bands * (n_rows * size * ratio + 0.32)), layout="constrained")
    grid = figure.subplots(n_bands * n_rows, columns_wide, squeeze=False)
    for axis in grid.ravel():
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    for k, (name, pictures) in enumerate(columns.items()):
        band, column = divmod(k, columns_wide)
        for row, picture in enumerate(pictures):
            axis = grid[band * n_rows + row, column]
            if picture is not None:
                axis.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            if row == 0:
                axis.set_title(name, fontsize=8.5)
            if column == 0:
                axis.set_ylabel(row_names[row], fontsize=7.5)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0.01, wspace=0.01)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=130, facecolor="white")
    return target.getvalue()
