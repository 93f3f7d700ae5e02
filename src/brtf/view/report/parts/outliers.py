"""The outliers: where they are, and the largest ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from brtf.results.tables import largest_outliers
from brtf.view.report import charts
from brtf.view.report.blocks import Beside, Card, Cards, Cell, Heading, Part, Table, Words
from brtf.view.report.frames import pixel_picture
from brtf.view.report.subject import NOT_IN_FILE, Subject
from brtf.view.view_data import outlier_rates

MOST_OUTLIERS = 100
"""Largest number of outliers in the table."""
TITLE = "Outliers"


def outliers_part(subject: Subject) -> Part:
    """A map, the rates along every mode, and the largest outliers."""
    if not subject.result.state.local.has_outliers:
        return Part("outliers", TITLE, left_out=["Outliers. The model was fitted without them."])
    if not subject.has_entries:
        return Part("outliers", TITLE, left_out=[f"Which entries are outliers. {NOT_IN_FILE}"])
    likely = int(np.count_nonzero(subject.probability > 0.5))
    if not likely:
        return Part("outliers", TITLE, [Words("No entry has an outlier probability above ½.")])
    table = _table(subject)
    remark = f"{len(table.rows)} of {likely:,} with an outlier probability above ½"
    return Part("outliers", TITLE, [*where_they_are(subject), Heading("The largest", remark), table])


def where_they_are(subject: Subject) -> list[Any]:
    """A map of the outliers, and their rates along every mode."""
    observations = subject.result.observations
    rates = [
        Card(charts.rates_chart(observations, subject.probability, mode))
        for mode in range(observations.order)
        if mode != _pixels(subject)
    ]
    return [Beside(_map(subject), [Cards(rates, "stack")])]


def probability_cell(value: float) -> Cell:
    """A probability that does not say 1 before it is."""
    return Cell(f"{value:.3f}" if value < 0.9995 else "> 0.999", value=value)


def _pixels(subject: Subject) -> int | None:
    """The mode that runs over the pixels of a picture, if there is one."""
    return subject.layout.rows if subject.layout.pixels else None


def _table(subject: Subject) -> Table:
    axes, layout, pixels = subject.axes, subject.layout, _pixels(subject)
    found = largest_outliers(subject.result, MOST_OUTLIERS)

    def place(mode: int, position: int) -> Cell:
        if mode == pixels:
            return Cell("{}, {}".format(*divmod(position, layout.size[1])))
        return Cell(axes[mode].text(position), value=axes[mode].number(position))

    rows = [
        [
            *(place(mode, int(position)) for mode, position in enumerate(found.coords[:, k])),
            *(Cell.of(float(part[k])) for part in (found.observed, found.low_rank, found.outlier)),
            probability_cell(float(found.probability[k])),
        ]
        for k in range(found.outlier.size)
    ]
    names = ["row, column" if mode == pixels else axis.name for mode, axis in enumerate(axes)]
    header = [*names, "observed", "low rank", "outlier", "probability"]
    return Table(header, rows, n_labels=len(axes), file="outliers")


def _map(subject: Subject) -> Card:
    observations, layout = subject.result.observations, subject.layout
    caption = "Mean outlier probability over all other modes. Grey: nothing observed."
    if layout.pixels:
        rates = 100.0 * outlier_rates(observations, subject.probability, layout.rows)
        return Card(pixel_picture(rates, layout.size, "outliers, % of the observed", subject.sides), caption)
    modes = layout.rows, layout.columns
    return Card(charts.map_chart(observations, subject.probability, modes, subject.sides), caption)
