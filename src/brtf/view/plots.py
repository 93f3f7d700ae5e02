"""Plots of a result with matplotlib, drawn on given or new axes. Nothing is shown or saved here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.extras import require
from brtf.results.result import Result
from brtf.results.summary import fitted_to
from brtf.view.view_data import (
    MOST_DOTS,
    Axis,
    axis_of,
    axis_of_factor,
    by_strength,
    component_names,
    factor_profiles,
    follow_each_other,
    full_colour,
    half_width,
    longest_modes,
    moves,
    nats_below_best,
    outlier_map,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_components", "plot_factors", "plot_outliers", "plot_trace"]

MARKERS = {"birth": "^", "death": "v", "merge": "D", "prune": "x", "other": "o"}
MOST_TICKS = 8


def plot_components(result: Result, *, names: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw the strength of every component, the strongest first, as a bar chart.

    Parameters
    ----------
    result : Result
    names : sequence of str or None
        What to call the components, one name each, in the order of the columns of ``factors_``; their numbers if None.
    ax : matplotlib Axes or None
        Where to draw; a new figure if None.

    Returns
    -------
    matplotlib Axes
    """
    ax = _new_axes(1, 1)[0, 0] if ax is None else ax
    order, strengths = by_strength(result), result.strengths
    called = [str(component) for component in range(result.rank)] if names is None else component_names(result, names)
    ax.bar(np.arange(order.size), strengths[order])
    ax.set_xticks(np.arange(order.size), [_plain(called[component]) for component in order])
    if names is None:
        ax.set_xlabel("component")
    ax.set_ylabel(f"root mean square, in units of {fitted_to(result.link.name)}")
    return ax


def plot_factors(
    result: Result,
    *,
    modes: Sequence[int] | None = None,
    components: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    level: float = 0.95,
    axes: Any = None,
) -> NDArray[Any]:
    """Draw the factors: a row of axes per component, a column per mode, each with its credible band.

    Positions that do not follow each other, such as those with names, are points with bars.

    Every column of a factor is scaled to root mean square one, and its sign is chosen so that in every mode but the
    last the entry of largest size is positive.

    Parameters
    ----------
    result : Result
    modes : sequence of int or None
        The modes to draw; None draws all. Where modes were read as one, the groups of ``arrangement_`` instead; two
        merged modes are drawn as a map.
    components : sequence of int or None
        The components to draw; None draws all, the strongest first.
    names : sequence of str or None
        What to call the components, one name each, in the order of the columns of ``factors_``.
    level : float
        Probability that the band contains the truth at each position, between 0 and 1.
    axes : array of matplotlib Axes or None
        Where to draw: as many as components times modes, in any shape; a new figure if None.

    Returns
    -------
    ndarray of matplotlib Axes, (components, modes)
    """
    if result.rank == 0:
        raise ValueError("the fit has rank 0: there are no factors to draw.")
    chosen = by_strength(result).tolist() if components is None else list(components)
    n_factors = len(result.state.factors)
    shown = list(range(n_factors)) if modes is None else list(modes)
    _check_members("components", chosen, result.rank)
    _check_members("modes", shown, n_factors)
    reach, profiles, called = half_width(level), factor_profiles(result), component_names(result, names)
    drawn = (
        _new_axes(len(chosen), len(shown), sharex="col") if axes is None else _reshaped(axes, len(chosen), len(shown))
    )
    for row, component in enumerate(chosen):
        for column, mode in enumerate(shown):
            axis, ax, group = axis_of_factor(result, mode), drawn[row, column], result.arrangement.read_modes[mode]
            mean, std = (part[:, component] for part in profiles[mode])
            if len(group) == 2:  # merged modes: a map
                down, right = (axis_of(result.observations, m) for m in group)
                reach_of_map = float(np.abs(mean).max()) or 1.0
                ax.imshow(
                    mean.reshape(down.length, right.length),
                    aspect="auto",
                    cmap="RdBu_r",
                    vmin=-reach_of_map,
                    vmax=reach_of_map,
                )
                ax.set_ylabel(_plain(down.name))
                ax.set_xlabel(_plain(right.name))
                continue
            ax.axhline(0.0, color="0.7", linewidth=0.8)
            low, high = mean - reach * std, mean + reach * std
            if not result.state.row_priors[mode].signed:
                low = np.maximum(low, 0.0)
            if not follow_each_other(result, mode, axis):  # what lies between two of them means nothing
                ax.errorbar(axis.values, mean, yerr=[mean - low, high - mean], fmt="o", markersize=4)
            else:
                ax.fill_between(axis.values, low, high, alpha=0.25, linewidth=0)
                ax.plot(axis.values, mean, marker="." if axis.length <= MOST_DOTS else None)
            _label_positions(ax.xaxis, axis, axis.values)
            if column == 0:
                ax.set_ylabel(_plain(called[component]))
            if row == len(chosen) - 1:
                ax.set_xlabel(_plain(axis.name))
    return drawn


def plot_trace(result: Result, *, axes: Any = None) -> NDArray[Any]:
    """Draw the bound, as nats below the best one, and the rank over the sweeps, with the accepted moves.

    Parameters
    ----------
    result : Result
    axes : two matplotlib Axes or None
        Where to draw; a new figure if None.

    Returns
    -------
    ndarray of matplotlib Axes, (2,)
    """
    drawn = (_new_axes(2, 1, sharex="col") if axes is None else _reshaped(axes, 2, 1))[:, 0]
    sweeps, gap, floor = nats_below_best(result.trace)
    drawn[0].plot(sweeps, np.maximum(gap, floor))
    drawn[0].set_yscale("log")
    drawn[0].set_ylim(bottom=2.0 * max(float(gap.max(initial=0.0)), 10.0 * floor), top=0.7 * floor)  # up is better
    drawn[0].set_ylabel("nats below the best")
    drawn[1].step([record.sweep for record in result.trace], [record.rank for record in result.trace], where="post")
    drawn[1].set_ylim(bottom=0)
    _count(drawn[1].yaxis)
    drawn[1].set_ylabel("rank")
    drawn[1].set_xlabel("sweeps")
    kept = [move for move in moves(result.trace) if move.kept]
    for kind in dict.fromkeys(move.kind for move in kept):
        records = [move.record for move in kept if move.kind == kind]
        where = [record.sweep for record in records], [record.rank for record in records]
        drawn[1].plot(*where, MARKERS[kind], label=kind, color=f"C{1 + list(MARKERS).index(kind)}")
    if kept:
        drawn[1].legend(frameon=False)
    return drawn


def plot_outliers(result: Result, *, modes: tuple[int, int] | None = None, ax: Axes | None = None) -> Axes:
    """Draw a map of the mean outlier probability over all other modes, empty where nothing was observed.

    Parameters
    ----------
    result : Result
    modes : (int, int) or None
        The vertical and the horizontal mode; the two longest if None.
    ax : matplotlib Axes or None
        Where to draw; a new figure if None.

    Returns
    -------
    matplotlib Axes
    """
    observations = result.observations
    down, right = longest_modes(observations.shape) if modes is None else modes
    _check_members("modes", [down, right], observations.order)
    if down == right:
        raise ValueError(f"modes must be two different ones, got {(down, right)}.")
    ax = _new_axes(1, 1)[0, 0] if ax is None else ax
    cells = outlier_map(observations, result.outlier_probability_at_entries(), (down, right))
    rows, columns = axis_of(observations, down), axis_of(observations, right)
    extent = (-0.5, columns.length - 0.5, rows.length - 0.5, -0.5)
    drawn = ax.imshow(cells, aspect="auto", extent=extent, interpolation="nearest", cmap="Oranges")
    drawn.set_clim(0.0, full_colour(observations, cells))
    for ticks, axis in ((ax.xaxis, columns), (ax.yaxis, rows)):
        _label_positions(ticks, axis, np.arange(axis.length))
    ax.set_xlabel(_plain(columns.name))
    ax.set_ylabel(_plain(rows.name))
    ax.figure.colorbar(drawn, ax=ax, label="mean outlier probability")
    return ax


def _label_positions(ticks: Any, axis: Axis, values: NDArray[Any]) -> None:
    """Label some positions by name if the axis has names rather than numbers."""
    counted = np.array_equal(values, np.arange(axis.length))
    if axis.kind == "position" or (axis.kind == "number" and not counted):
        if axis.labels.dtype.kind in "iu":
            _count(ticks)
        return
    chosen = range(0, axis.length, -(-axis.length // MOST_TICKS))
    ticks.set_ticks([values[k] for k in chosen], [_plain(axis.text(k)) for k in chosen])
    if ticks.axis_name == "x" and axis.kind != "number":
        ticks.set_tick_params(labelrotation=45)


def _count(ticks: Any) -> None:
    """Whole numbers only along an axis."""
    ticker = require("matplotlib.ticker", extra="viz", purpose="plots")
    ticks.set_major_locator(ticker.MaxNLocator(integer=True))


def _plain(text: str) -> str:
    """Text with dollar signs escaped, so that matplotlib does not read them as formulas."""
    return text.replace("$", r"\$")


def _new_axes(n_rows: int, n_columns: int, **options: Any) -> NDArray[Any]:
    pyplot = require("matplotlib.pyplot", extra="viz", purpose="plots")
    size = (max(6.0, 3.2 * n_columns), max(4.4, 1.7 * n_rows))
    return pyplot.subplots(n_rows, n_columns, squeeze=False, figsize=size, layout="constrained", **options)[1]


def _reshaped(axes: Any, n_rows: int, n_columns: int) -> NDArray[Any]:
    given = np.asarray(axes, dtype=object)
    if given.size != n_rows * n_columns:
        raise ValueError(f"axes must hold {n_rows * n_columns} axes, {n_rows} x {n_columns}, got {given.size}.")
    return given.reshape(n_rows, n_columns)


def _check_members(name: str, given: Sequence[int], length: int) -> None:
    wrong = [member for member in given if not 0 <= member < length]
    if wrong or not given:
        got = wrong[0] if wrong else "none"
        raise ValueError(f"{name} must be one or more of 0 to {length - 1}, got {got}.")
