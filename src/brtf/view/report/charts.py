"""The charts of the page: each takes a result, or data from ``view_data``, and returns safe SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from brtf.data.arrays import Array, evenly_spaced
from brtf.data.observations import Observations
from brtf.results.result import Result
from brtf.view.dates import date_ticks
from brtf.view.report.blocks import Scene, Sides
from brtf.view.report.pictures import WARM, data_uri, ramp
from brtf.view.report.svg import Chart, Scale, Ticks, number
from brtf.view.view_data import (
    MOST_DOTS,
    Axis,
    Calibration,
    ResidualHistogram,
    axis_of,
    by_strength,
    full_colour,
    half_width,
    moves,
    nats_below_best,
    outlier_map,
    outlier_rates,
)

MOST_BARS = 16
MOST_NAMED = 40
"""Largest number of named positions drawn as rows; more are drawn as a line."""
MOST_POINTS = 700
"""Largest number of points of a line, more than a chart has pixels across."""
MOST_TIPS = 240
"""Largest number of points of a line that answer to the pointer."""
MOST_BARS_ALONG = 360
LONGEST_LABEL, ROOM = 14, 350.0
"""Length at which the labels of an axis are cut, and the room for them in a chart of a third of the page."""
LETTER = 7.5
"""Approximate width of a character of a label."""
WIDE = 440.0
"""Width of charts wider than a third of the page."""
LEVEL = 0.95
"""Level of the credible bands."""


def shortened(text: str, longest: int) -> str:
    """The text, cut with an ellipsis where it is too long for its place."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def label_ticks(axis: Axis, values: Array, room: float) -> Ticks:
    """Every k-th label, as many as fit side by side, at the given values."""
    widest = max(len(shortened(axis.text(k), LONGEST_LABEL)) for k in evenly_spaced(axis.length, 50))
    # The first and the last label stand inside the chart, so one of their neighbours comes half a label closer.
    n_labels = int(np.clip(1.0 + room / (1.5 * LETTER * widest + 12.0), 2, 6))
    chosen = range(0, axis.length, max(1, -(-(axis.length - 1) // (n_labels - 1))))
    return [(float(values[k]), shortened(axis.text(k), LONGEST_LABEL)) for k in chosen]


def axis_ticks(axis: Axis) -> Ticks | None:
    """Ticks at the labels, at round dates, or at whole numbers; None for any round numbers."""
    if axis.kind == "date":
        return _dates(axis, ROOM)
    if axis.kind == "name" or (axis.kind == "position" and axis.length <= 4):
        return label_ticks(axis, axis.values, ROOM)
    if axis.labels.dtype.kind == "f":
        return None
    return [tick for tick in Scale.around(axis.values).ticks() if tick[0] == round(tick[0])]


def position_ticks(axis: Axis, room: float) -> Ticks:
    """Ticks by position, even if labels are unevenly spaced; round numbers if there are no labels."""
    if axis.kind == "date":
        places = np.arange(axis.length, dtype=np.float64)
        return [(float(np.interp(value, axis.values, places)), text) for value, text in _dates(axis, room)]
    if axis.kind == "position":
        return [(value, text) for value, text in Scale(0.0, axis.length - 0.5).ticks(4) if value == round(value)]
    return label_ticks(axis, np.arange(axis.length, dtype=np.float64), room)


def _dates(axis: Axis, room: float) -> Ticks:
    """Round dates, as many as fit side by side; the labels of the ends where there is no round date between them."""
    ticks = date_ticks(float(axis.values[0]), float(axis.values[-1]), max(2, int(room / 80.0)))
    return ticks if len(ticks) > 1 else label_ticks(axis, axis.values, room)


def strengths_chart(result: Result, names: Sequence[str]) -> Markup:
    """A bar for every component, the strongest first."""
    strengths = result.strengths
    order = by_strength(result)[:MOST_BARS]
    n_bars = order.size
    shown = [shortened(names[component], 22) for component in order]
    chart = Chart(
        Scale(0.0, 1.25 * float(strengths.max()) or 1.0),
        Scale(0.3, 0.7 + n_bars),
        f"Strength of {n_bars} components",
        width=WIDE,
        height=26.0 * n_bars + 50.0,
        left=14.0 + LETTER * max(map(len, shown)),
        x_title="root mean square",
        y_ticks=[(float(n_bars - k), name) for k, name in enumerate(shown)],
        grid=False,
    )
    for k, component in enumerate(order):
        chart.interval(0.0, float(strengths[component]), float(n_bars - k), "thick one")
        text = number(float(strengths[component]), 3)
        chart.note(text, float(strengths[component]) + 0.015 * chart.x.high, float(n_bars - k), dy=4.0)
    return chart.markup()


def profile_chart(
    axis: Axis, mean: Array, std: Array, name: str, *, signed: bool = True, joined: bool = True
) -> Markup:
    """One column of a factor, with its credible band: rows with names if there are few, otherwise a line.

    Positions that do not follow each other have bars. The band of loadings that are never negative ends at zero.
    """
    reach = half_width(LEVEL) * std
    low, high = mean - reach if signed else np.maximum(mean - reach, 0.0), mean + reach
    title = f"{name} along {axis.name}"
    if axis.kind == "name" and axis.length <= MOST_NAMED:
        return _named_profile(axis, mean, low, high, title)
    chart = Chart(
        Scale.around(axis.values, margin=0.0 if axis.length > MOST_DOTS else 0.02),
        Scale.around([low, high], margin=0.04, zero=True),
        title,
        height=170.0,
        left=38.0,
        x_title=axis.name,
        x_ticks=axis_ticks(axis),
    )
    drawn = mean
    if axis.length > MOST_POINTS:
        x, drawn = (_thinned(values, MOST_POINTS, np.mean) for values in (axis.values, mean))
        low, high = _thinned(low, MOST_POINTS, np.min), _thinned(high, MOST_POINTS, np.max)
    else:
        x = axis.values
    chart.line([chart.x.low, chart.x.high], [0.0, 0.0], "zero")
    if joined:
        chart.band(x, low, high, "band one")
        chart.line(x, drawn, "line one")
    else:
        for k in range(axis.length):
            chart.line([x[k], x[k]], [low[k], high[k]], "whisker one")
    for k in evenly_spaced(axis.length, MOST_TIPS):
        words = _with_reach(axis, int(k), mean, reach)
        if axis.length <= MOST_DOTS:
            chart.dot(axis.values[k], mean[k], "dot one small", words)
        else:
            chart.tip(axis.values[k], mean[k], words)
    return chart.markup()


def _with_reach(axis: Axis, position: int, mean: Array, reach: Array) -> str:
    return f"{axis.text(position)}: {number(float(mean[position]), 3)} ± {number(float(reach[position]), 2)}"


def forecast_chart(axis: Axis, observed: Array, fitted: Array, mean: Array, low: Array, high: Array) -> Markup:
    """A fibre: what was observed as dots, the low-rank part as a line, and what follows with its band."""
    n_given = observed.size
    chart = Chart(
        Scale.around(axis.values),
        Scale.around(np.concatenate([observed, fitted, low, high]), margin=0.05),
        f"Forecast along {axis.name}",
        height=200.0,
        x_title=axis.name,
        x_ticks=axis_ticks(axis),
    )
    before, after = axis.values[:n_given], axis.values[n_given:]
    chart.band(after, low, high, "band two")
    chart.rule(float(after[0]), "zero")
    chart.line(before, fitted, "line one")
    chart.line(after, mean, "line two")
    for k in evenly_spaced(n_given, MOST_TIPS):
        if np.isfinite(observed[k]):
            words = f"{axis.text(int(k))}: observed {number(observed[k], 3)}, low rank {number(fitted[k], 3)}"
            chart.dot(before[k], observed[k], "dot one small", words)
    for k in evenly_spaced(mean.size, MOST_TIPS):
        between = f"{number(low[k], 3)} to {number(high[k], 3)}"
        chart.tip(after[k], mean[k], f"{axis.text(n_given + int(k))}: {number(mean[k], 3)}, {between}")
    return chart.markup()


def fibre_chart(
    axis: Axis, observed: Array, expected: Array, low: Array, high: Array, *, listed: NDArray[np.bool_]
) -> Markup:
    """A fibre: what was observed as dots, those listed in another colour, and what is expected with its band."""
    chart = Chart(
        Scale.around(axis.values, margin=0.02),
        Scale.around(np.concatenate([observed, low, high]), margin=0.05),
        f"Observed and expected along {axis.name}",
        height=200.0,
        x_title=axis.name,
        x_ticks=axis_ticks(axis),
    )
    chart.band(axis.values, low, high, "band one")
    chart.line(axis.values, expected, "line one")
    told = {*evenly_spaced(axis.length, MOST_TIPS).tolist(), *np.flatnonzero(listed).tolist()}
    for k in sorted(told, key=lambda k: bool(listed[k])):
        if np.isfinite(observed[k]):
            words = f"{axis.text(k)}: observed {number(observed[k], 3)}, expected {number(expected[k], 3)}"
            chart.dot(axis.values[k], observed[k], "dot two" if listed[k] else "dot ink small", words)
    return chart.markup()


def _named_profile(axis: Axis, mean: Array, low: Array, high: Array, title: str) -> Markup:
    n_rows = axis.length
    chart = Chart(
        Scale.around([low, high], margin=0.04, zero=True),
        Scale(0.0, 1.0 + n_rows),
        title,
        height=16.0 * n_rows + 50.0,
        left=118.0,
        y_ticks=[(float(n_rows - k), shortened(axis.text(k), 18)) for k in range(n_rows)],
        nearest="y",
    )
    chart.rule(0.0, "zero")
    for k in range(n_rows):
        chart.interval(low[k], high[k], n_rows - k, "whisker one")
        chart.dot(mean[k], n_rows - k, "dot one", _with_reach(axis, k, mean, high - mean))
    return chart.markup()


def _thinned(values: Array, n_points: int, reduce: Callable[[Array], Any]) -> Array:
    """Reduce an array to at most ``n_points`` values, each representing a run of neighbours."""
    return np.array([reduce(run) for run in np.array_split(values, n_points)], dtype=np.float64)


def bound_chart(result: Result) -> Markup:
    """The bound over the sweeps, as nats below the best one, with the accepted moves."""
    sweeps, gap, floor = nats_below_best(result.trace)
    ceiling = 2.0 * max(float(gap.max(initial=0.0)), 10.0 * floor)
    # Larger is better: the axis runs from far below the best bound up to it.
    climbed = Scale(1.0 / ceiling, 1.2 / floor, "log")
    ticks = [(1.0 / value, text) for value, text in Scale(5.0 * floor, ceiling, "log").ticks(4)]
    ticks.append((1.0 / floor, "best"))
    chart = Chart(
        Scale.around(sweeps, margin=0.02),
        climbed,
        "Lower bound over the sweeps",
        width=WIDE,
        height=250.0,
        x_title="sweeps",
        y_title="nats below the best bound (up is better)",
        y_ticks=ticks,
        nearest="xy",
    )
    height = 1.0 / np.maximum(gap, floor)
    chart.line(sweeps, height, "line one")
    for k in evenly_spaced(sweeps.size, MOST_TIPS) if sweeps.size else []:
        chart.tip(sweeps[k], height[k], f"sweep {sweeps[k]:.0f}: {number(float(gap[k]), 3)} nats below the best")
    found = dict(zip(sweeps.tolist(), height.tolist(), strict=True))
    for move in moves(result.trace):
        up = found.get(float(move.record.sweep))
        if move.kept and up is not None:
            chart.mark(
                move.record.sweep, up, move.kind, f"move {move.kind}", _told(move.record.sweep, str(move.record.event))
            )
    return chart.markup()


def rank_chart(result: Result) -> Markup:
    """The rank over the sweeps, with accepted moves as marks and rejected ones as ticks at the bottom."""
    sweeps = np.array([record.sweep for record in result.trace], dtype=np.float64)
    ranks = np.array([record.rank for record in result.trace], dtype=np.float64)
    highest = max(float(ranks.max()), 1.0)
    every = max(1, int(np.ceil((highest + 1) / 6)))
    chart = Chart(
        Scale.around(sweeps, margin=0.02),
        Scale(0.0, highest * 1.15),
        "Rank over the sweeps",
        width=WIDE,
        height=250.0,
        x_title="sweeps",
        y_title="rank",
        y_ticks=[(float(k), str(k)) for k in range(0, int(highest) + 1, every)],
        nearest="xy",
    )
    chart.steps(sweeps, ranks, "line two")
    for move in moves(result.trace):
        told = _told(move.record.sweep, str(move.record.event))
        if move.kept:
            chart.mark(move.record.sweep, move.record.rank, move.kind, f"move {move.kind}", told)
        else:
            chart.mark(move.record.sweep, 0.03 * highest, "dropped", "move dropped", told)
    return chart.markup()


def _told(sweep: int, event: str) -> str:
    return f"sweep {sweep}: {event}"


def residual_chart(histogram: ResidualHistogram) -> Markup:
    """Histogram of the residuals, logarithmic, with the counts expected from noise and from noise with outliers."""
    drawn = np.concatenate([histogram.count, histogram.expected])
    chart = Chart(
        Scale(histogram.edges[0], histogram.edges[-1], "asinh"),
        Scale(0.5, 2.0 * float(drawn.max()), "log"),
        "Residuals against the fitted distribution",
        width=WIDE,
        height=250.0,
        x_title="residual, in standard deviations of the noise",
        y_title="entries per bin",
    )
    titles = [
        f"{number(low, 3)} to {number(high, 3)}: {count:,.0f} entries, {number(expected, 3)} expected"
        for low, high, count, expected in zip(
            histogram.edges[:-1], histogram.edges[1:], histogram.count, histogram.expected, strict=True
        )
    ]
    chart.bars(histogram.edges, histogram.count, "bar one soft", titles)
    middle = np.sinh(0.5 * (np.arcsinh(histogram.edges[:-1]) + np.arcsinh(histogram.edges[1:])))
    chart.line(middle, _visible(histogram.noise), "line ink dashed")
    if not np.array_equal(histogram.noise, histogram.expected):
        chart.line(middle, _visible(histogram.expected), "line two")
    return chart.markup()


def _visible(expected: Array) -> Array:
    """Expected counts, with NaN where far less than one entry is expected."""
    return np.where(expected > 0.4, expected, np.nan)


def rates_chart(observations: Observations, probability: Array, mode: int) -> Markup:
    """The mean outlier probability at every position of a mode."""
    rates = 100.0 * outlier_rates(observations, probability, mode)
    return _bars_along(axis_of(observations, mode), rates, "outliers, % of the observed", "bar two", least_top=1.2)


def noise_chart(axis: Axis, noise_sd: Array) -> Markup:
    """The noise of every slice of a mode."""
    return _bars_along(axis, noise_sd, "standard deviation of the noise", "bar one")


def _bars_along(axis: Axis, heights: Array, y_title: str, style: str, least_top: float = 0.0) -> Markup:
    """A bar for every position of a mode; if there are very many, the highest of each run of neighbours."""
    titles: list[str] | None = None
    x_title = axis.name
    if axis.length > MOST_BARS_ALONG:
        heights = _thinned(heights, MOST_BARS_ALONG, np.fmax.reduce)
        x_title += ", the highest of neighbours"
    else:
        titles = [f"{axis.text(k)}: {number(float(height), 3)}" for k, height in enumerate(heights)]
    top = max(1.1 * float(np.nanmax(heights)), least_top) or 1.0
    chart = Chart(
        Scale(-0.5, axis.length - 0.5),
        Scale(0.0, top),
        f"{y_title} along {axis.name}",
        height=150.0,
        x_title=x_title,
        y_title=y_title,
        x_ticks=position_ticks(axis, ROOM),
        y_ticks=Scale(0.0, top).ticks(3),
    )
    chart.bars(np.linspace(-0.5, axis.length - 0.5, heights.size + 1), heights, style, titles)
    return chart.markup()


def map_chart(observations: Observations, probability: Array, modes: tuple[int, int], sides: Sides) -> Markup:
    """Map of outliers over two modes; stronger colours mean a larger mean probability."""
    down, right = (axis_of(observations, mode) for mode in modes)
    cells = outlier_map(observations, probability, modes)
    top = float(np.nanmax(cells))
    upright = position_ticks(down, 400.0)
    left = 14.0 + LETTER * max(len(text) for _, text in upright)
    chart = Chart(
        Scale(-0.5, right.length - 0.5),
        Scale(-(down.length - 0.5), 0.5),
        f"Outlier rate over {down.name} and {right.name}",
        width=WIDE,
        height=370.0,
        left=left,
        x_title=right.name,
        y_title=f"{shortened(down.name, 24)} (up to {number(100 * top, 3)} % outliers in a cell)",
        x_ticks=position_ticks(right, WIDE - left),
        y_ticks=[(-value, text) for value, text in upright],
        grid=False,
    )
    full = full_colour(observations, cells)
    along = (
        sides(axis.name, _cell_labels(axis, n_cells)) for axis, n_cells in zip((down, right), cells.shape, strict=True)
    )
    scene = Scene("outliers, %", "warm", 0.0, 100.0 * full, *along)
    chart.image(data_uri(ramp(cells, 0.0, full, WARM)), scene.attributes)
    return chart.markup()


def _cell_labels(axis: Axis, n_cells: int) -> list[str]:
    """The labels of the positions of every cell: of one, or of the first and the last."""
    of_cell = np.arange(axis.length) * n_cells // axis.length
    first = np.searchsorted(of_cell, np.arange(n_cells))
    last = np.searchsorted(of_cell, np.arange(n_cells), "right") - 1
    return [
        axis.text(int(low)) if low == high else f"{axis.text(int(low))} to {axis.text(int(high))}"
        for low, high in zip(first, last, strict=True)
    ]


def calibration_chart(found: Calibration) -> Markup:
    """Share of held-out values inside their intervals against the level; the grey band is the variation by chance."""
    percents = [(float(value), str(value)) for value in (0, 25, 50, 75, 100)]
    chart = Chart(
        Scale(0.0, 100.0),
        Scale(0.0, 100.0),
        "Coverage of held-out entries",
        width=WIDE,
        height=300.0,
        x_title="level of the interval, %",
        y_title="held-out values inside, %",
        x_ticks=percents,
        y_ticks=percents,
    )
    level = np.linspace(0.0, 1.0, 101)
    chance = half_width(LEVEL) * np.sqrt(level * (1 - level) / found.n_entries)
    chart.band(100 * level, 100 * (level - chance), 100 * (level + chance), "band ink")
    chart.line([0.0, 100.0], [0.0, 100.0], "line ink dashed")
    chart.line(100 * found.level, 100 * found.covered, "line one")
    for level_, covered in zip(found.level, found.covered, strict=True):
        told = f"{100 * covered:.1f} % inside the {100 * level_:g} % intervals"
        chart.dot(100 * level_, 100 * covered, "dot one", told)
    return chart.markup()
