"""Run experiments: each case is measured in a separate process, and its result stored as a row in a file.

A row is a JSON file with the settings, the seed among them, the version, and the numbers or the reason why there are
none; pictures are stored next to it as PNG. A case whose row exists is not measured again, so an interrupted run
continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf import __version__
from brtf.data.extras import require
from brtf.data.passes import workers
from brtf.io.atomic_file import atomic_file

Picture = NDArray[np.uint8]
Inputs = Mapping[str, str]
"""Files that the user gave, by what they are: "clip", "faces"."""
GENERATED = "generated"
"""The source of a case where the user gave no file."""


@dataclass(frozen=True)
class Case:
    """One measurement: which experiment, and everything that decides its outcome but the user's files themselves.

    Attributes
    ----------
    experiment : str
    settings : mapping
        Texts, numbers, and lists of them; ``method`` and ``seed`` among them.
    module : str
        Whose ``measure(settings, inputs)`` is called; empty: the experiment's own in this package.
    """

    experiment: str
    settings: Mapping[str, Any]
    module: str = ""

    @property
    def name(self) -> str:
        """The name of the row's file: the settings in readable form, and a digest that is different for every case."""
        text = json.dumps(self.settings, sort_keys=True)
        simple = [str(value) for value in self.settings.values() if isinstance(value, (str, int, float))]
        words = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(simple))
        return f"{words[:80]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Measured:
    """What one measurement gave: numbers of any shape that JSON holds, and pictures by name, (H, W) or (H, W, 3)."""

    numbers: Mapping[str, Any]
    pictures: Mapping[str, Picture] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A case with its outcome.

    Attributes
    ----------
    experiment, settings
        Those of the case.
    version : str
        Of this package when it was measured.
    seconds : float
        Of the whole measurement.
    numbers : mapping or None
        None where it failed.
    error : str or None
        Why it failed.
    pictures : mapping of str to str
        Names of pictures, and of their files beside the row.
    """

    experiment: str
    settings: Mapping[str, Any]
    version: str
    seconds: float
    numbers: Mapping[str, Any] | None
    error: str | None = None
    pictures: Mapping[str, str] = field(default_factory=dict)


class Rows:
    """The rows of a directory: one JSON file each, in a folder per experiment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, case: Case) -> Path:
        return self.directory / case.experiment / f"{case.name}.json"

    def read(self, case: Case) -> Row | None:
        """The row of a case; None if there is none, or only an incomplete one or one of another version."""
        try:
            row = Row(**json.loads(self.path(case).read_text(encoding="utf-8")))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):
            return None
        return row if row.version == __version__ and row.settings == case.settings else None

    def write(self, case: Case, outcome: Measured | str, seconds: float) -> Row:
        """Store the outcome of a case or the reason for its failure; the row is written last, after its pictures."""
        path = self.path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = dict(case.settings)
        if isinstance(outcome, str):
            row = Row(case.experiment, settings, __version__, seconds, None, outcome)
        else:
            names = {name: f"{case.name}.{name}.png" for name in outcome.pictures}
            for name, picture in outcome.pictures.items():
                save_picture(path.with_name(names[name]), picture)
            row = Row(case.experiment, settings, __version__, seconds, dict(outcome.numbers), None, names)
        with atomic_file(path) as file:
            file.write(json.dumps(asdict(row), indent=1, allow_nan=False).encode())
        return row

    def picture(self, row: Row, name: str) -> Picture:
        """A picture that was kept with a row."""
        image = require("PIL.Image", extra="viz", purpose="pictures")
        with image.open(self.directory / row.experiment / row.pictures[name]) as opened:
            return np.asarray(opened)


def save_picture(path: Path, picture: Picture) -> None:
    """Write a picture as PNG; the file is complete or does not exist."""
    image = require("PIL.Image", extra="viz", purpose="pictures")
    with atomic_file(path) as file:
        image.fromarray(np.ascontiguousarray(picture)).save(file, "PNG", optimize=True)


def source_of(kind: str, inputs: Inputs) -> str:
    """How a case identifies a user's file: by its name and a digest, so that another file is another case."""
    if kind not in inputs:
        return GENERATED
    path = Path(inputs[kind])
    if path.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    else:  # a folder of images or a pattern: names and sizes tell them apart
        parts = sorted(path.iterdir()) if path.is_dir() else sorted(path.parent.glob(path.name))
        if not parts:
            raise ValueError(
                f"{kind} {path}: there is no such file, and no file in such a folder or of such a pattern."
            )
        digest = hashlib.sha256(repr([(part.name, part.stat().st_size) for part in parts]).encode()).hexdigest()
    return f"{path.name} {digest[:8]}"


class Worker:
    """A separate process that measures cases one at a time, so that a hang or a crash affects only one case.

    Parameters
    ----------
    limit : float
        Seconds that a case may take.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._process: Any = None
        self._line: Connection | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.close()  # which ends the process, if it is idle
            self._process.join(timeout=1.0)
            self._end()

    def measure(self, case: Case, inputs: Inputs) -> tuple[Measured | str, float]:
        """The outcome of a case, or its error in words; and the seconds that it took."""
        line = self._line or self._begin()
        started = time.perf_counter()
        try:
            line.send((case, dict(inputs)))
            if not line.poll(self.limit):
                self._end()
                return f"took longer than {self.limit:g} s", self.limit
            outcome: tuple[Measured | str, float] = line.recv()
            return outcome
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._end()
            return f"its process ended with code {code}", time.perf_counter() - started

    def _begin(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._line, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(far_end,), daemon=True)
        self._process.start()
        far_end.close()
        return self._line

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
            self._process.kill()
            self._process.join()
            self._line = None


def _serve(line: Connection) -> None:
    """Measure cases from the pipe until it is closed. Interrupts are left to the parent process.

    If the parent is killed, nothing else would end this process, so it watches for that itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            case, inputs = line.recv()
        except EOFError:
            return
        outcome = attempt(case, inputs)
        with suppress(BrokenPipeError):  # nobody waits any more
            line.send(outcome)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def attempt(case: Case, inputs: Inputs) -> tuple[Measured | str, float]:
    """Measure a case on one thread: the outcome or the error in words, and the seconds."""
    started = time.perf_counter()
    outcome: Measured | str
    with warnings.catch_warnings(), workers(None):
        warnings.simplefilter("ignore")  # what did not converge shows in the numbers
        try:
            module = import_module(case.module or f"brtf.research.experiments.{case.experiment}")
            outcome = module.measure(case.settings, inputs)
        except Exception as error:  # whatever a method stumbles over is what the row then says
            outcome = f"{type(error).__name__}: {error}"
    return outcome, time.perf_counter() - started


def measure(cases: Iterable[Case], rows: Rows, inputs: Inputs, limit: float) -> Iterator[Row]:
    """The rows of all cases, in their order: stored ones are read, the others measured."""
    with Worker(limit) as worker:
        for case in cases:
            yield rows.read(case) or rows.write(case, *worker.measure(case, inputs))
