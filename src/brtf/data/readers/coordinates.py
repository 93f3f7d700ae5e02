"""Coordinate lists: FROSTT's ``.tns``."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import count_of
from brtf.data.memory import check_memory
from brtf.data.observations import Observations, distinct_columns


def read_tns(path: Path) -> tuple[Observations, None]:
    """The observed entries of a ``.tns`` file: per line the position in every mode, from 1, and the value."""
    check_memory(path.stat().st_size, "its text", "cut it into smaller files")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
        lines = _read_lines(path)
    if lines.size == 0:
        raise ValueError("it has no entry.")
    positions, values = lines[:, :-1], lines[:, -1]
    # Beyond 2**53 float64 cannot distinguish neighbouring positions.
    wrong = ~((positions >= 1) & (positions <= 2**53) & (positions == np.floor(positions)))
    if wrong.any():
        entry, mode = np.argwhere(wrong)[0]
        raise ValueError(
            f"the position of entry {entry + 1} in mode {mode} is {positions[entry, mode]:g}, "
            "but positions are whole numbers from 1."
        )
    coords = positions.T.astype(np.intp) - 1
    shape = tuple(int(length) for length in coords.max(axis=1) + 1)
    _, entries = np.unique(distinct_columns(coords, shape), return_index=True)
    if entries.size < values.size:
        repeated = np.setdiff1d(np.arange(values.size), entries)
        place = [int(position) for position in positions[repeated[0]]]
        raise ValueError(
            f"entry {repeated[0] + 1} is at {place}, where another one is already "
            f"({count_of(repeated.size, 'duplicate', 'duplicates')} in all). Keep one of them, or average them."
        )
    return Observations.from_coords(coords, values, shape), None


def _read_lines(path: Path) -> NDArray[np.float64]:
    """The numbers of all lines except empty ones and comments, in rows."""
    try:
        return np.loadtxt(path, comments="#", ndmin=2, encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not text: it is damaged, or not a coordinate list.") from None
    except ValueError as error:
        raise ValueError(_first_wrong_line(path) or str(error)) from None


def _first_wrong_line(path: Path) -> str | None:
    """Describe the first line that does not hold as many numbers as those before, if any."""
    n_before = None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].split()
            for word in words:
                try:
                    float(word)
                except ValueError:
                    return f"line {number} holds {word[:40]!r}, which is no number."
            if words and n_before not in (None, len(words)):
                return f"line {number} holds {len(words)} numbers, but those before it {n_before}."
            n_before = len(words) or n_before
    return None
