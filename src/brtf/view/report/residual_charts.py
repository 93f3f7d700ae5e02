"""Charts that check the residuals: quantiles, probabilities, correlation with neighbours; and influence of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from brtf.data.arrays import Array
from brtf.view.diagnostics import Autocorrelation, Diagnostics
from brtf.view.report.charts import shortened
from brtf.view.report.svg import Chart, Scale, number
from brtf.view.view_data import Axis

if TYPE_CHECKING:
    from markupsafe import Markup

N_BINS = 20
TWO_SIDED = 1.96
"""Half width of a 95 % band by chance, in standard errors."""
MOST_DOTS = 300
"""Number of rows drawn on a chart of influence, those with the most of it."""
MOST_NAMED, LONGEST_NAME = 3, 14
"""Number of rows whose label stands beside them there, and the length at which it is cut."""


def quantile_chart(found: Diagnostics) -> Markup:
    """Quantiles of the normal scores against those of the standard normal distribution."""
    expected, seen = found.quantiles()
    reach = max(float(np.abs(expected).max()), 1.0)
    scale = Scale(-1.04 * reach, 1.04 * reach)
    chart = Chart(
        scale,
        Scale(-1.3 * reach, 1.3 * reach),
        "Quantiles of the residuals against the fitted distribution",
        height=260.0,
        x_title="as fitted, in normal scores",
        y_title="quantiles of the residuals",
    )
    chart.line([scale.low, scale.high], [scale.low, scale.high], "line ink dashed")
    chart.line(expected, seen, "line one")
    for x, y in zip(expected, seen, strict=True):
        chart.dot(float(x), float(y), "dot one small", f"expected {number(float(x), 3)}, found {number(float(y), 3)}")
    return chart.markup()


def probability_chart(found: Diagnostics) -> Markup:
    """Histogram of P(deviation ≤ residual), which is even if the model is right."""
    edges = np.linspace(0.0, 1.0, N_BINS + 1)
    count = np.histogram(found.probability, edges)[0]
    n_scores = found.score.size
    share, chance = count / (n_scores / N_BINS), TWO_SIDED * np.sqrt((N_BINS - 1) / n_scores)
    chart = Chart(
        Scale(0.0, 1.0),
        Scale(0.0, max(1.15 * float(share.max()), 1.0 + 1.5 * chance)),
        "Probability integral transform of the residuals",
        height=260.0,
        x_title="probability of a smaller residual",
        y_title="entries, relative to an even share",
    )
    titles = [
        f"{low:.2f} to {high:.2f}: {number(float(part), 3)} times the even share"
        for low, high, part in zip(edges[:-1], edges[1:], share, strict=True)
    ]
    chart.bars(edges, share, "bar one soft", titles)
    chart.band([0.0, 1.0], [1.0 - chance] * 2, [1.0 + chance] * 2, "band ink")
    chart.line([0.0, 1.0], [1.0, 1.0], "line ink dashed")
    return chart.markup()


def autocorrelation_chart(along: Autocorrelation, name: str) -> Markup:
    """Correlation of the scores with those of the neighbours along a mode."""
    n_lags, chance = along.lag.size, TWO_SIDED * np.where(np.isfinite(along.error), along.error, np.nan)
    drawn = Scale.around([along.value, chance, -chance], margin=0.1, zero=True)
    drawn = Scale(min(drawn.low, -0.2), max(drawn.high, 0.2))
    chart = Chart(
        Scale(0.4, n_lags + 0.6),
        drawn,
        f"Autocorrelation along {name}",
        height=260.0,
        x_title=f"distance along {name}, in positions",
        y_title="correlation",
        x_ticks=[(float(lag), str(lag)) for lag in along.lag if n_lags <= 6 or lag % 2],
    )
    chart.band(along.lag, np.nan_to_num(-chance), np.nan_to_num(chance), "band ink")
    chart.line([0.4, n_lags + 0.6], [0.0, 0.0], "zero")
    for lag, value, error in zip(along.lag, along.value, along.error, strict=True):
        chart.line([float(lag)] * 2, [0.0, float(value)], "line one stem")
        chart.dot(float(lag), float(value), "dot one", f"distance {lag}: {number(value, 2)} ± {number(error, 1)}")
    return chart.markup()


def influence_chart(axis: Axis, leverage: Array, misfit: Array) -> Markup:
    """Leverage and misfit of the rows of a mode; far right they shape the components, far up these do not fit them."""
    shown = np.argsort(-np.maximum(leverage / (leverage.max() or 1.0), np.nan_to_num(misfit) / _top(misfit)))[
        :MOST_DOTS
    ]
    chart = Chart(
        Scale(0.0, 1.05),
        Scale(0.0, 1.1 * _top(misfit)),
        f"Influence of the positions of {axis.name}",
        height=260.0,
        x_title=f"leverage of the positions of {axis.name}",
        y_title="size of the residuals, in noise",
        nearest="xy",
    )
    for k in np.sort(shown):
        if np.isfinite(misfit[k]):
            words = f"{axis.text(int(k))}: leverage {number(leverage[k], 2)}, residuals {number(misfit[k], 2)}"
            chart.dot(float(leverage[k]), float(misfit[k]), "dot one", words)
    named: list[int] = []
    for k in shown[:MOST_NAMED]:
        apart = all(
            abs(leverage[k] - leverage[j]) > 0.25 or abs(misfit[k] - misfit[j]) > 0.1 * _top(misfit) for j in named
        )
        if np.isfinite(misfit[k]) and apart:
            named.append(int(k))
            anchor = "end" if leverage[k] > 0.5 else "start"
            chart.note(
                shortened(axis.text(int(k)), LONGEST_NAME), float(leverage[k]), float(misfit[k]), dy=-7.0, anchor=anchor
            )
    return chart.markup()


def _top(misfit: Array) -> float:
    finite = misfit[np.isfinite(misfit)]
    return float(max(finite.max(initial=0.0), 1.2))
