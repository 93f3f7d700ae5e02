"""Slices of the tensor, or frames of a video."""

from __future__ import annotations

import numpy as np

from brtf.data.checks import count_of
from brtf.data.observations import entry_positions
from brtf.view.report.blocks import Part
from brtf.view.report.frames import make_viewer
from brtf.view.report.subject import NOT_IN_FILE, Subject


def slices_part(subject: Subject) -> Part:
    """Data, low-rank part, outliers and standard deviation side by side."""
    result, held_out = subject.result, subject.held_out
    title = "Frames" if subject.layout.photo else "Slices"
    if not subject.has_entries:
        return Part("slices", title, left_out=[f"Pictures of slices. {NOT_IN_FILE}"])
    known = [part for part in (result.observations, result.held_back, held_out) if part is not None]
    viewer = make_viewer(result, known, subject.layout, subject.sides)
    left_out = _earlier_blocks(subject)
    if isinstance(viewer, str):
        return Part("slices", title, left_out=[f"Pictures of slices. {viewer}", *left_out])
    return Part("slices", title, [viewer], left_out)


def _earlier_blocks(subject: Subject) -> list[str]:
    observations = subject.result.observations
    seen = np.zeros(observations.shape[0], dtype=bool)
    seen[entry_positions(observations, [0])] = True
    if seen.all():
        return []
    unheld = count_of(np.count_nonzero(~seen), "position", "positions")
    return [
        f"Data, residuals and outliers at {unheld} of {subject.axes[0].name}. The result has no entry there: nothing "
        "was observed, or it was fitted in an earlier block, whose entries are not kept."
    ]
