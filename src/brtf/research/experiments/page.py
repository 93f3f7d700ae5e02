"""All experiments together: the planned cases, and the page made from the stored rows."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from brtf import __version__
from brtf.research.experiments.lines import Loss
from brtf.research.experiments.runs import Case, Inputs, Row, Rows
from brtf.view.report.document import Cell, Document, Section, Table, Verdict
from brtf.view.report.svg import number

COMMAND = "brtf reproduce"


def plan(names: Sequence[str], *, quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """The cases of these experiments, repeat by repeat, so that an interrupted run has some of each."""
    cases = [case for name in names for case in _module(name).plan(quick, seed, inputs)]
    return sorted(cases, key=lambda case: case.settings["seed"])


def page(cases: Iterable[Case], rows: Rows, *, quick: bool) -> Document:
    """The page made from the stored rows, with a count of those still missing."""
    found: dict[str, list[Row]] = {}
    wanted: dict[str, list[Case]] = {}
    for case in cases:
        wanted.setdefault(case.experiment, []).append(case)
        row = rows.read(case)
        if row is not None:
            found.setdefault(case.experiment, []).append(row)
    sections, losses = [], []
    for name, planned in wanted.items():
        if _has_a_repeat(planned, rows):
            sections.append(_module(name).render(found[name], rows))
            losses += _module(name).losses(found[name])
        else:
            sections.append(Section(name, name, ["Not measured yet: its first repeat is not complete."]))
    left = {name: len(planned) - len(found.get(name, [])) for name, planned in wanted.items()}
    absent = {name: n for name, n in left.items() if n}
    failed = [row for some in found.values() for row in some if row.error]
    return Document(
        "The paper’s experiments, run again",
        "Every table and figure of “Bayesian robust tensor factorization for incomplete multiway data” (Zhao, Zhou, "
        "Zhang, Cichocki & Amari), measured again and compared with what the paper prints. BRTF appears "
        "twice: with calibrated inference, the default, and with the paper’s own.",
        _notes(quick, absent, failed),
        [*sections, _not_best(losses)] if any(section.verdicts for section in sections) else sections,
    )


def _module(name: str) -> Any:
    return import_module(f"brtf.research.experiments.{name}")


def _has_a_repeat(cases: Sequence[Case], rows: Rows) -> bool:
    """Whether a section can be made: every case of the first repeat has its row, failures included."""
    first = min(case.settings["seed"] for case in cases)
    return all(rows.read(case) is not None for case in cases if case.settings["seed"] == first)


def _notes(quick: bool, absent: dict[str, int], failed: Sequence[Row]) -> list[str]:
    how = (
        "This is a quick run: one draw of everything, few conditions and short lists of values to tune over; "
        f"{COMMAND} --full takes much longer."
        if quick
        else "This is a full run."
    )
    notes = [
        "A cell is the median over repeats, with the range below. Methods with a parameter appear twice, on separate "
        "lines: tuned by the truth, as in the paper, and honestly, by a held-out tenth of the observed entries. Green "
        "marks the best of a column; least squares that knows the rank and the outliers is only a reference.",
        f"{how} Written by {COMMAND}, brtf {__version__}, Python {platform.python_version()}; one thread on a machine "
        f"with {os.cpu_count()} cores and other load.",
    ]
    if absent:
        left = ", ".join(f"{n} of {name}" for name, n in absent.items())
        notes.append(f"Not all measured yet: {left} rows are missing; run the same command again to continue.")
    if failed:
        words = "; ".join(f"{row.experiment} {row.settings.get('method', '')}: {row.error}" for row in failed[:5])
        notes.append(f"{len(failed)} measurements failed, among them {words}.")
    return notes


def _not_best(losses: Sequence[Loss]) -> Section:
    """All cells where calibrated inference is not the best, with the reason."""
    body = [
        [
            Cell(entry.where),
            Cell(entry.measure),
            Cell(number(entry.ours, 3)),
            Cell(number(entry.best, 3)),
            Cell(entry.who),
            Cell(entry.why),
        ]
        for entry in losses
    ]
    words = (
        Verdict(f"Cells: {len(losses)}, counting those won by methods tuned by the truth.", "bad")
        if losses
        else Verdict("There is no such cell.", "good")
    )
    header = ("", "measure", "BRTF, calibrated", "best", "by", "why")
    tables = [Table(header, body, n_wordy=2)] if losses else []
    return Section("not-best", "Where BRTF is not the best", (), [words], (), tables)
