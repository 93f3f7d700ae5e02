"""The forecast: what follows along modes of times whose rows are in order, or those that are said to be in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.model.settings import LARGEST_TENSOR
from brtf.results.forecast import Forecast, forecast, forecast_modes
from brtf.view.entries import values_of
from brtf.view.report import charts
from brtf.view.report.blocks import Card, Cards, Part, Words
from brtf.view.report.subject import Subject
from brtf.view.view_data import axis_with

MOST_FIBRES = 6
"""Number of fibres that are continued on the page, those that were observed most."""
SHARE_AHEAD = 0.2
"""Positions that are forecast, as a share of those that were given."""
LEVEL = 0.9
MOST_ENTRIES = 1_000_000
"""Largest number of entries of a forecast on the page."""


def forecast_part(subject: Subject) -> Part:
    """Some fibres along every such mode, continued with a band."""
    result = subject.result
    blocks: list[Any] = []
    left_out = []
    if result.state.smooth is not None and forecast_modes(result) and not result.arrangement.is_as_given:
        reason = "The forecast. Every fibre has a smooth course of its own, which merged modes do not continue."
        return Part("forecast", "Forecast", left_out=[reason])
    possible = subject.has_entries and result.rank and result.observations.n_entries < LARGEST_TENSOR
    said = result.settings.said_of_modes(result.observations.order)
    for mode in forecast_modes(result) if possible else ():
        axis = subject.axes[mode]
        if axis.kind != "date" and "ordered" not in said.get(mode, ()):  # nobody asks what follows the last wavelength
            left_out.append(f"The forecast along {axis.name}, whose labels are no times: model.forecast gives it.")
            continue
        horizon = max(1, math.ceil(SHARE_AHEAD * axis.length))
        if horizon * (result.observations.n_entries // axis.length) > MOST_ENTRIES:
            left_out.append(f"The forecast along {axis.name}. It has too many entries for a page: see model.forecast.")
            continue
        ahead = forecast(result, horizon, mode, LEVEL)
        about = (
            f"The rows of {axis.name} follow each other, so they can be continued: here {horizon} positions ahead. The "
            f"bands contain a new observation with {100 * LEVEL:g} % probability; model.forecast gives every fibre."
        )
        fibres = _most_observed(subject, mode)
        blocks += [Words(about), Cards([_card(subject, ahead, coords) for coords in fibres])]
    return Part("forecast", "Forecast", blocks, left_out)


def _most_observed(subject: Subject, mode: int) -> list[NDArray[np.intp]]:
    """Coordinates (N, I_n) of the fibres along a mode with the most observed entries."""
    observations = subject.result.observations
    others = [length for k, length in enumerate(observations.shape) if k != mode]
    coords = np.delete(observations.entry_coords(), mode, axis=0)
    number, count = np.unique(np.ravel_multi_index(tuple(coords), others), return_counts=True)
    chosen = np.sort(number[np.argsort(-count, kind="stable")[:MOST_FIBRES]])
    along = np.arange(observations.shape[mode])
    return [
        np.stack([*(np.insert(at, mode, 0)[:, None] + np.zeros_like(along))])
        + np.where(np.arange(len(others) + 1)[:, None] == mode, along, 0)
        for at in np.stack(np.unravel_index(chosen, others), axis=1)
    ]


def _card(subject: Subject, ahead: Forecast, coords: NDArray[np.intp]) -> Card:
    """One fibre: what was observed, the low-rank part, and what follows."""
    result, mode = subject.result, ahead.mode
    place = tuple(slice(None) if k == mode else int(at) for k, at in enumerate(coords[:, 0]))
    chart = charts.forecast_chart(
        axis_with(subject.axes[mode], ahead.labels),
        values_of(result.observations).at(coords),
        result.low_rank(coords),
        *(part[place] for part in (ahead.mean, ahead.low, ahead.high)),
    )
    return Card(chart, subject.fibre_name(mode, coords[:, 0].tolist()))
