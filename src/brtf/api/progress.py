"""The progress bar of a fit: its phase, sweeps, bound and rank, and the time left."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from brtf.inference.trace import Record
from brtf.search.phases import NAMES
from brtf.search.position import Position


class Show(Protocol):
    """Shows sweeps so far, the last record and the position of the search, if they are known.

    ``stage`` is what goes on where that is no phase of the search.
    """

    def __call__(
        self, n_sweeps: int, record: Record | None, position: Position | None = None, *, stage: str = ""
    ) -> None: ...


@contextmanager
def progress_bar(
    begin: str | None, max_sweeps: int, max_seconds: float | None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Show]:
    """A bar in the terminal or the notebook, with a label; nothing is shown if ``begin`` is None.

    With ``max_seconds`` the bar fills as they pass, and the time left at most is shown. Otherwise it fills with the
    phases of the search, some of which may come again, or with the sweeps where there are no phases.
    """
    if begin is None:
        yield lambda n_sweeps, record, position=None, *, stage="": None
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # without widgets the bar in text works too
        from tqdm.auto import tqdm  # the notebook's, where there is one

    began = clock()
    layout = (f"{begin}  " if begin else "") + "{desc} |{bar}| {elapsed}{postfix}"
    with tqdm(total=1.0, bar_format=layout, miniters=0) as bar:

        def show(n_sweeps: int, record: Record | None, position: Position | None = None, *, stage: str = "") -> None:
            phase = None if position is None or stage else min(position.phase, len(NAMES) - 1)
            if phase is None:
                words, share = stage, 0.0 if stage else n_sweeps / max_sweeps
            else:
                words, share = f"phase {phase + 1}/{len(NAMES)}, {NAMES[phase]}", phase / len(NAMES)
            count = f"{n_sweeps} sweeps" if words else f"{n_sweeps}/{max_sweeps} sweeps"
            found = "" if record is None else f", bound={record.bound:.6g}, rank={record.rank}"
            bar.set_description_str(f"{words}: {count}{found}" if words else f"{count}{found}", refresh=False)
            if max_seconds is not None:
                passed = min(clock() - began, max_seconds)
                bar.set_postfix_str(f"at most {tqdm.format_interval(max_seconds - passed)} left", refresh=False)
                share = passed / max_seconds
            bar.update(share - bar.n)

        yield show
        bar.n = 1.0  # exactly: a notebook would call a bar that is not full a failure
        bar.refresh()
