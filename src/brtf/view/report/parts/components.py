"""The components: strengths, factors with credible bands, and the factors as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brtf.data.arrays import Array, evenly_spaced
from brtf.results.summary import fitted_to
from brtf.view.report import charts
from brtf.view.report.blocks import Beside, Card, Cards, Cell, Fold, Heading, Part, Table, Words
from brtf.view.report.frames import LONGEST_SIDE, labels_at, pixel_picture
from brtf.view.report.subject import Subject
from brtf.view.report.svg import number
from brtf.view.view_data import Axis, axis_of_factor, factor_profiles, follow_each_other, leverages

AT_ONCE = 6
"""Number of components whose factors are open; those of weaker ones are shown on request."""
MOST_CELLS = 6000
"""Largest number of loadings in a table; of a longer mode evenly spaced positions are listed."""


def components_part(subject: Subject) -> Part:
    """Strengths, and every factor."""
    result = subject.result
    if result.rank == 0:
        return Part("components", "Components")
    units = fitted_to(result.link.name)
    about = Words(
        f"The strength of a component is the root mean square of its rank-one term, in the units of {units}. Its "
        "factors below are scaled to root mean square one; the bands contain the truth with 95 % probability under the "
        "fitted model."
    )
    blocks: list[Any] = [Beside(Card(charts.strengths_chart(result, subject.names)), [about])]
    for group, (mean, std) in enumerate(factor_profiles(result)):
        blocks += _factor(subject, group, mean, std)
    left_out = []
    if result.rank > subject.most_components:
        n_weaker = result.rank - subject.most_components
        left_out.append(f"The factors of {n_weaker} weaker components: the page draws {subject.most_components}.")
    return Part("components", "Components", blocks, left_out)


def _factor(subject: Subject, group: int, mean: Array, std: Array) -> list[Any]:
    """The factor of a mode, or of modes read as one: a card per component, and a table."""
    axis = axis_of_factor(subject.result, group)
    cards = [_card(subject, group, axis, mean[:, r], std[:, r], int(r)) for r in subject.shown]
    blocks: list[Any] = [Heading(axis.name, f"{axis.length:,} positions"), Cards(cards[:AT_ONCE])]
    if len(cards) > AT_ONCE:
        blocks.append(Fold(f"{len(cards) - AT_ONCE} weaker components", [Cards(cards[AT_ONCE:])]))
    names = [subject.names[r] for r in subject.shown]
    own = leverages(subject.result).get(subject.result.arrangement.read_modes[group])
    leverage = None if own is None or own.size != axis.length else own  # of the halves of a folded mode there is none
    table = loadings_table(axis, names, mean[:, subject.shown], std[:, subject.shown], leverage)
    blocks.append(Fold(f"Table of {len(table.rows):,} positions", [table]))
    return blocks


def _card(subject: Subject, group: int, axis: Axis, mean: Array, std: Array, component: int) -> Card:
    result, layout = subject.result, subject.layout
    modes, shape = result.arrangement.read_modes[group], result.observations.shape
    strength = number(float(result.strengths[component]), 3)
    caption = f"{subject.names[component]}, strength {strength}"
    if layout.pixels and modes == (layout.rows,):
        return Card(pixel_picture(mean, layout.size, caption, subject.sides), caption)
    if len(modes) == 2:  # merged modes: a map
        size = shape[modes[0]], shape[modes[1]]
        axes = [subject.axes[mode] for mode in modes]
        rows, columns = (subject.sides(a.name, labels_at(a, evenly_spaced(a.length, LONGEST_SIDE))) for a in axes)
        return Card(pixel_picture(mean, size, caption, (rows, columns)), caption)
    signed, joined = result.state.row_priors[group].signed, follow_each_other(result, group, axis)
    return Card(charts.profile_chart(axis, mean, std, subject.names[component], signed=signed, joined=joined), caption)


def loadings_table(axis: Axis, names: Sequence[str], mean: Array, std: Array, leverage: Array | None = None) -> Table:
    """The loadings of the components and their standard deviations at the positions of a mode, and its leverage."""
    listed = evenly_spaced(axis.length, max(2, MOST_CELLS // (2 * len(names))))
    thinned = listed.size < axis.length
    rows = [
        [
            Cell(axis.text(int(k)), value=axis.number(int(k))),
            *(cell for pair in zip(mean[k], std[k], strict=True) for cell in map(Cell.of, np.asarray(pair).tolist())),
            *([] if leverage is None else [Cell.of(float(leverage[k]), 3)]),
        ]
        for k in listed
    ]
    caption = f"{listed.size:,} of {axis.length:,} positions, evenly spaced; factors_ has them all." if thinned else ""
    header = [axis.name, *(words for name in names for words in (name, f"± {name}"))]
    if leverage is not None:
        header.append("leverage")
    return Table(header, rows, caption, file=f"factor of {axis.name}")
