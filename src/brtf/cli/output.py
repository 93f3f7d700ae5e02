"""Output of the commands: exit codes, tables, JSON, one-line messages, and files that are written all or none."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from brtf.data.description import label_text
from brtf.data.memory import available_bytes
from brtf.data.signals import Terminated
from brtf.io.atomic_file import partial_directory

if TYPE_CHECKING:
    from brtf.data.exports import Table

DONE, NOT_CONVERGED, BAD_INPUT = 0, 1, 2
SHOWN = 15
"""Rows of a table of results in the terminal."""


def interrupted_code(error: BaseException | None) -> int:
    """The exit code of an interrupt, 128 plus the number of its signal: 130 for Ctrl-C."""
    return 128 + (error.args[0] if isinstance(error, Terminated) else signal.SIGINT)


def refuse_overwriting(paths: Iterable[Path], *, overwrite: bool) -> None:
    """Raise, before anything is computed, if results exist already and ``overwrite`` is False."""
    there = [path for path in paths if path.exists()]
    if there and not overwrite:
        raise ValueError(
            f"{', '.join(map(str, there))} {'exists' if len(there) == 1 else 'exist'} already. Pass --overwrite to "
            "replace, or choose another --out."
        )


@contextmanager
def staged(directory: Path | None) -> Iterator[Path | None]:
    """A temporary directory whose content is moved to ``directory`` at the end, or removed if something fails."""
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
            with suppress(OSError):  # not empty: keep it
                directory.rmdir()
        raise


def _move(fresh: Path, directory: Path, old: Path) -> None:
    """Move files and folders from one directory to another; folders that they replace are moved to a third."""
    for path in fresh.iterdir():
        target = directory / path.name
        if target.exists() and target.is_dir() != path.is_dir():
            raise ValueError(f"{target} is in the way of a {'folder' if path.is_dir() else 'file'}. Move it first.")
    for path in fresh.iterdir():
        target = directory / path.name
        if path.is_dir() and target.is_dir():
            os.replace(target, old / path.name)
        os.replace(path, target)


def written_text(written: Iterable[Path]) -> str:
    """A line that lists the written files."""
    listed = ", ".join(map(str, written))
    return f"\nWrote {listed}." if listed else "\nNothing was written; pass --out DIR to save the results."


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as aligned text columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def print_first(found: Table, out: str) -> None:
    """Print the first rows of a table, and how to get the others."""
    columns = [[_text(cell) for cell in column[:SHOWN]] for column in found.values()]
    n_rows = len(next(iter(found.values())))
    if n_rows:
        click.echo(table([list(found), *zip(*columns, strict=True)]))
    if n_rows > SHOWN:
        click.echo(f"  … and {n_rows - SHOWN:,} more: --out {out} writes all of them.")


def _text(cell: Any) -> str:
    if cell is None:
        return "all"
    return f"{cell:.4g}" if isinstance(cell, (float, np.floating)) else label_text(cell)


def records(found: Table) -> list[dict[str, Any]]:
    """The rows of a table for JSON; dates as text."""
    from brtf.io.writers import dates_as_text

    columns = [dates_as_text(column) if column.dtype.kind == "M" else column for column in found.values()]
    return [dict(zip(found, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(_finite(document), allow_nan=False, indent=2))


def _finite(document: Any) -> Any:
    """The document with None in place of NaN and infinities, which JSON cannot represent."""
    if isinstance(document, dict):
        return {name: _finite(entry) for name, entry in document.items()}
    if isinstance(document, list):
        return [_finite(entry) for entry in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def complain(kind: str, message: object) -> None:
    """Print an error or a warning as one line on stderr."""
    click.echo(f"brtf: {kind}: {' '.join(str(message).split())}", err=True)


def sentence(error: Exception) -> str:
    """The message of an exception."""
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, MemoryError) and not str(error):  # of the interpreter
        return f"the {available_bytes() / 1e9:,.1f} GB that this process may use are not enough: raise its limit."
    return str(error) or type(error).__name__
