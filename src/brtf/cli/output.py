"""What leaves a command: exit codes, tables, JSON, one-line complaints, and files that arrive all together or never."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from brtf.storage import partial_directory

DONE, NOT_CONVERGED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


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
