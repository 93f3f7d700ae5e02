"""The page about anomalies: what looks wrong in words, where it is, and the lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import is_real
from brtf.data.description import label_text
from brtf.data.exports import Table as Found
from brtf.results.anomalies import GROUP_COLUMNS, SINGULAR, count_in_words
from brtf.results.result import Result
from brtf.view.entries import values_of
from brtf.view.report import charts
from brtf.view.report.blocks import Card, Cards, Cell, Heading, Part, Table, Verdict, Verdicts, Words
from brtf.view.report.layout import layout_of
from brtf.view.report.page import laid_out
from brtf.view.report.parts.outliers import probability_cell, where_they_are
from brtf.view.report.subject import Subject
from brtf.view.report.svg import number
from brtf.view.view_data import Axis

ON_PAGE = 1000
"""Largest number of rows of a table."""
MOST_DRAWN = 6
"""Number of anomalies that are drawn among their neighbours."""
LONGEST_FIBRE = 5000
IN_HEADLINE = 3
LEVEL = 0.95


def anomalies_page(
    result: Result, tables: Mapping[str, Found], q: float, title: str, version: str, first_position: int = 0
) -> str:
    """The page as text.

    Parameters
    ----------
    result : the fit
    tables : the lists by what they list, see :func:`brtf.results.anomalies.anomaly_table`
    q : their false discovery rate
    title, version : str
    first_position : number of the first position of a mode without labels
    """
    observations = result.observations
    subject = Subject(result, layout_of(observations, None, None), names=())
    shape = " × ".join(f"{axis.length:,} {axis.name}" for axis in subject.axes)
    groups = [kind for kind, found in tables.items() if kind != "entries" and found["probability"].size]
    parts = [_part(subject, kind, found, q, first_position, kind in groups[:1]) for kind, found in tables.items()]
    lead = (
        f"{shape}; {observations.n_observed:,} of {observations.n_entries:,} entries were observed. Each list is as "
        f"long as it can be with {100 * q:g} % of false alarms."
    )
    headline = _headline(tables, q, observations.n_observed)
    return laid_out(title, version, lead=lead, parts=parts, sides=subject.sides, result=result, headline=headline)


def _headline(tables: Mapping[str, Found], q: float, n_observed: int) -> list[str]:
    """How many there are of every kind, and what is wrong with the first groups."""
    sentences = []
    for kind, found in tables.items():
        text = count_in_words(kind, found, q, n_observed)
        n = int(found["probability"].size)
        if kind != "entries" and n:
            told = [f"{_place(found, k)} {_what(found, k)}" for k in range(min(n, IN_HEADLINE))]
            more = [f"and {n - len(told):,} more"] if n > len(told) else []
            text = f"{text.partition(';')[0].rstrip('.')}: {'; '.join([*told, *more])}."
        sentences.append(text)
    return sentences


def _labels(found: Found) -> list[str]:
    """The names of the columns of labels."""
    return [name for name in found if name not in GROUP_COLUMNS]


def _place(found: Found, k: int) -> str:
    """Where a group is, in words."""
    return ", ".join(f"{name} {label_text(found[name][k])}" for name in _labels(found) if found[name][k] is not None)


def _what(found: Found, k: int) -> str:
    """What is wrong with a group."""
    kind = found["kind"][k]
    if kind == "shift":
        by = float(found["observed"][k] - found["expected"][k])
        return f"is {number(abs(by), 3)} too {'high' if by > 0 else 'low'} on average"
    if kind == "spread":
        return "scatters more than the rest"
    n_outliers = round(float(found["n_outliers"][k]))
    return f"has {n_outliers:,} outliers among {int(found['n_observed'][k]):,} entries"


def _part(subject: Subject, kind: str, found: Found, q: float, first_position: int, explained: bool) -> Part:
    """The words, pictures and table of one list; how groups are judged is explained with the first of them."""
    n = int(found["probability"].size)
    verdict = Verdict(count_in_words(kind, found, q, subject.result.observations.n_observed))
    blocks: list[Any] = [Verdicts([verdict])]
    if not n:
        return Part(kind, kind.capitalize(), blocks)
    if kind == "entries":
        blocks += [
            Words(
                f"expected is the low-rank part; a regular observation is between low and high with {100 * LEVEL:g} % "
                "probability; probability is that of being an outlier."
            ),
            *where_they_are(subject),
        ]
        table = _entries(found)
    else:
        blocks += [
            Words(
                "The entries of a group are judged together: they may all be shifted, scatter more than the rest, or "
                "have more outliers. Means leave outliers out. nats is the evidence that something is wrong: 10 nats "
                "are odds of 22,000 to 1."
            )
        ] * explained
        table = _groups(found, kind)
    cards = _drawn(subject, kind, found, first_position)
    if cards:
        blocks += [Heading("Among their neighbours", "the first of the list; dots are observed"), Cards(cards)]
    blocks += [Heading("The list"), table]
    if n > ON_PAGE:
        blocks.append(Words(f"The first {ON_PAGE:,} of {n:,}; the table in CSV has all of them."))
    return Part(kind, kind.capitalize(), blocks)


def _entries(found: Found) -> Table:
    labels = _labels(found)
    rows = [
        [
            *(_label(found[name][k]) for name in labels),
            *(Cell.of(float(found[name][k])) for name in ("observed", "expected", "low", "high")),
            probability_cell(float(found["probability"][k])),
        ]
        for k in range(min(found["probability"].size, ON_PAGE))
    ]
    return Table(list(found), rows, n_labels=len(labels), file="anomalies")


def _groups(found: Found, kind: str) -> Table:
    rows = [
        [
            Cell(_place(found, k)),
            *(Cell.of(float(found[name][k]), 3) for name in ("n_observed", "n_outliers")),
            *(Cell.of(float(found[name][k])) for name in ("observed", "expected")),
            probability_cell(float(found["probability"][k])),
            Cell.of(float(found["evidence"][k]), 3),
            Cell(_what(found, k)),
        ]
        for k in range(min(found["probability"].size, ON_PAGE))
    ]
    header = [SINGULAR[kind], "entries", "outliers", "mean", "expected", "probability", "nats", "what is wrong"]
    return Table(header, rows, n_wordy=1, file=f"anomalies-{kind}")


def _label(label: Any) -> Cell:
    """A label; numbers are sorted as numbers."""
    return Cell(label_text(label), value=float(label) if is_real(label) else None)


# ---- pictures ----------------------------------------------------------------------------------------------


def _drawn(subject: Subject, kind: str, found: Found, first_position: int) -> list[Card]:
    """The fibres through the first entries, or the first fibres, as charts of what was observed and expected."""
    if kind not in ("entries", "fibres") or not subject.has_entries:
        return []
    places = _positions(subject, found, first_position)
    through = _through(subject.axes)
    cards: dict[tuple[int, ...], Card] = {}
    for place in places:
        along = through if kind == "entries" else next(mode for mode, at in enumerate(place) if at is None)
        fibre = tuple(-1 if mode == along or at is None else at for mode, at in enumerate(place))
        if fibre not in cards and subject.axes[along].length <= LONGEST_FIBRE:
            cards[fibre] = _card(subject, along, fibre, kind, places)
        if len(cards) == MOST_DRAWN:
            break
    return list(cards.values())


def _through(axes: Sequence[Axis]) -> int:
    """The mode along which an entry is shown among its neighbours: one of dates or numbers, or the longest."""
    ranked = [(axis.kind in ("date", "number"), axis.length) for axis in axes]
    return max(range(len(axes)), key=ranked.__getitem__)


def _positions(subject: Subject, found: Found, first_position: int) -> list[tuple[int | None, ...]]:
    """The position of every anomaly in every mode, None where it extends along the mode."""
    n = min(int(found["probability"].size), ON_PAGE)
    columns: list[list[int | None]] = []
    names = iter(_labels(found))
    for axis in subject.axes:
        labels = found[next(names)][:n]
        if axis.kind == "position":
            columns.append([None if label is None else int(label) - first_position for label in labels])
        else:
            known = {axis.text(k): k for k in range(axis.length)}
            columns.append([None if label is None else known[label_text(label)] for label in labels])
    return list(zip(*columns, strict=True))


def _card(
    subject: Subject, along: int, fibre: tuple[int, ...], kind: str, places: Sequence[tuple[int | None, ...]]
) -> Card:
    result, axis = subject.result, subject.axes[along]
    coords = np.repeat(np.array(fibre, dtype=np.intp)[:, None], axis.length, axis=1)
    coords[along] = np.arange(axis.length)
    listed: NDArray[np.bool_] = np.zeros(axis.length, dtype=bool)
    if kind == "entries":
        others = [mode for mode in range(len(fibre)) if mode != along]
        for place in places:
            if all(place[mode] == fibre[mode] for mode in others):
                listed[place[along]] = True
    chart = charts.fibre_chart(
        axis,
        values_of(result.observations).at(coords),
        result.low_rank(coords),
        *result.interval(coords, level=LEVEL, of="observation", regular=True),
        listed=listed,
    )
    return Card(chart, subject.fibre_name(along, fibre))
