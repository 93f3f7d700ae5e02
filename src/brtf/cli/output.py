"""What leaves a command: exit codes, tables, JSON, one-line complaints, and files that arrive all together or never."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from brtf.io.storage import partial_directory

DONE, NOT_CONVERGED, BAD_INPUT = 0, 1, 2


class Terminated(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does; its number is the argument."""


def interrupted_code(error: BaseException | None) -> int:
    """The exit code of an interrupt, 128 and the number of its signal: 130 for Ctrl-C."""
    return 128 + (error.args[0] if isinstance(error, Terminated) else signal.SIGINT)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end what is done as Ctrl-C does, unless they are ignored, as nohup has it.

    Only the main thread may ask for signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise Terminated(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    changed = {number: handler for number, handler in before.items() if handler is signal.SIG_DFL}
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


def refuse_overwriting(paths: Iterable[Path], *, overwrite: bool) -> None:
    """Raise, before anything is done, if there are results already and nobody has allowed to replace them."""
    there = [path for path in paths if path.exists()]
    if there and not overwrite:
        raise ValueError(
            f"{', '.join(map(str, there))} {'is' if len(there) == 1 else 'are'} there already. Pass --overwrite to "
            "replace what is there, or another --out."
        )


@contextmanager
def staged(directory: Path | None) -> Iterator[Path | None]:
    """A place to write: its content moves to the directory together in the end, and vanishes if something fails."""
    if directory is None:
        yield None
        return
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with partial_directory(directory) as staging:
            fresh, old = Path(staging, "fresh"), Path(staging, "old")
            fresh.mkdir()
            old.mkdir()
            try:
                yield fresh
            except OSError as error:
                if error.filename is not None and fresh in Path(str(error.filename)).parents:
                    error.filename = str(directory / Path(error.filename).relative_to(fresh))
                raise
            _move(fresh, directory, old)
    except BaseException:
        if is_new:
            with suppress(OSError):  # not empty: then something in it is worth keeping
                directory.rmdir()
        raise


def _move(fresh: Path, directory: Path, old: Path) -> None:
    """Move files and folders from one directory to another; folders that they replace go to a third one."""
    for path in fresh.iterdir():
        target = directory / path.name
        if target.exists() and target.is_dir() != path.is_dir():
            raise ValueError(f"{target} should be replaced by a {'folder' if path.is_dir() else 'file'}: move it away.")
    for path in fresh.iterdir():
        target = directory / path.name
        if path.is_dir() and target.is_dir():
            os.replace(target, old / path.name)
        os.replace(path, target)


def written_text(written: Iterable[Path]) -> str:
    """The sentence that says which files were written."""
    listed = ", ".join(map(str, written))
    return f"\nWrote {listed}." if listed else "\nNothing was written; pass --out DIR to keep the results."


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells, in columns as wide as they need to be."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(_finite(document), allow_nan=False, indent=2))


def _finite(document: Any) -> Any:
    """The document with null for NaN and infinities, which JSON does not have."""
    if isinstance(document, dict):
        return {name: _finite(entry) for name, entry in document.items()}
    if isinstance(document, list):
        return [_finite(entry) for entry in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def complain(kind: str, message: object) -> None:
    """One line on stderr, an error or a warning."""
    click.echo(f"brtf: {kind}: {' '.join(str(message).split())}", err=True)


def sentence(error: Exception) -> str:
    """What an exception has to say."""
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error) or type(error).__name__
