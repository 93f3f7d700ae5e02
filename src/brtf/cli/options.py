"""Options that several commands share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brtf.cli.output import interrupted_code
from brtf.model.settings import LINKS, NOISES, OUTLIER_KINDS, Settings

if TYPE_CHECKING:
    from brtf.data.observations import Observations
    from brtf.data.readers import TensorFile

DEFAULTS = Settings()

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
out_option = click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to write the results.")
max_seconds_option = click.option(
    "--max-seconds", type=float, help="Stop after so many seconds with the best so far  [default: never]."
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace results that are there already.")
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."
)


def describes_table(command: Callable[..., int]) -> Callable[..., int]:
    """The options that say how to read a table."""
    for option in (
        click.option(
            "--wide", is_flag=True, help="The table is a matrix; --index is the column that labels its rows, if any."
        ),
        click.option("--value", metavar="NAME", help="Column of a table that holds the values  [default: the last]."),
        click.option(
            "--index", metavar="A,B,C", help="Columns of a table that index the modes  [default: all but the value]."
        ),
    ):
        command = option(command)
    return command


def reads_input(command: Callable[..., int]) -> Callable[..., int]:
    """The argument INPUT and the options that say how to read it."""
    command = describes_table(command)
    for option in (
        click.option("--key", metavar="NAME", help="Which array of an .npz, .mat, .nc or .zarr file."),
        click.option(
            "--mask",
            type=click.Path(path_type=Path),
            help="What is observed: .npy .npz .mat .nc .zarr of True/False or 1/0.",
        ),
        click.argument("source", metavar="INPUT", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def _modes(_: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Modes, separated by commas."""
    try:
        return None if text is None else [int(mode) for mode in text.split(",")]
    except ValueError:
        name = parameter.opts[0]
        raise click.BadParameter(f"{name} must be modes such as 0,2, separated by commas; got {text}.") from None


def chooses_model(command: Callable[..., int]) -> Callable[..., int]:
    """The options that say what to fit; they arrive as ``model_options`` by the names of :class:`brtf.BRTF`."""

    @functools.wraps(command)
    def collected(
        max_rank: int | None,
        robust: bool,
        noise: str,
        noise_modes: list[int] | None,
        outlier_modes: list[int] | None,
        outlier_kind: str,
        link: str | None,
        max_sweeps: int,
        max_seconds: float | None,
        tol: float,
        jobs: int | None,
        **rest: Any,
    ) -> int:
        model_options = {
            "max_rank": max_rank,
            "robust": robust,
            "noise": noise,
            "noise_modes": noise_modes,
            "outlier_modes": outlier_modes,
            "outlier_kind": outlier_kind,
            "link": link,
            "max_sweeps": max_sweeps,
            "max_seconds": max_seconds,
            "tol": tol,
            "n_jobs": jobs,
        }
        return command(model_options=model_options, **rest)

    decorated: Callable[..., int] = collected
    for option in (
        click.option("--jobs", type=int, help="Threads to work with; -1 for all cores  [default: 1]."),
        click.option("--tol", type=float, default=DEFAULTS.tol, show_default=True, help="Nats per observed entry."),
        max_seconds_option,
        click.option("--max-sweeps", type=int, default=DEFAULTS.max_sweeps, show_default=True, help="When to give up."),
        click.option("--link", type=click.Choice(LINKS), help="Fit the square root or logarithm of the data."),
        click.option(
            "--outlier-kind",
            type=click.Choice(OUTLIER_KINDS),
            default=DEFAULTS.outlier_kind,
            show_default=True,
            help="Whether outliers are added to the data or stand in their place.",
        ),
        click.option(
            "--outlier-modes",
            metavar="A,B",
            callback=_modes,
            help="Modes along which an outlier is shared, counted from 0, as by the colours of a pixel.",
        ),
        click.option(
            "--noise-modes", metavar="A,B", callback=_modes, help="Modes along which the noise differs, counted from 0."
        ),
        click.option(
            "--noise",
            type=click.Choice(NOISES),
            default=DEFAULTS.noise,
            show_default=True,
            help="One noise level, one per slice, or as the bound decides.",
        ),
        click.option(
            "--robust/--no-robust",
            default=DEFAULTS.robust,
            show_default=True,
            help="Fit a model with or without outliers.",
        ),
        click.option("--max-rank", type=int, help="The largest rank that the answer may have  [default: no cap]."),
    ):
        decorated = option(decorated)
    return decorated


def keeps_itself(command: Callable[..., int]) -> Callable[..., int]:
    """The options that keep a fit in a file; they arrive as ``kept`` by the names of :meth:`brtf.BRTF.fit`.

    Without them a command with --out keeps the fit there until its results are written. An interrupt ends the command,
    which says how to go on.
    """

    @functools.wraps(command)
    def collected(
        checkpoint: Path | None, every: float | None, resume: Path | None, out: Path | None, **rest: Any
    ) -> int:
        path, named = checkpoint or resume, True
        if path is None and out is not None:
            path, named = _free_name(out), False
            checkpoint = path
        try:
            code = command(kept={"checkpoint": checkpoint, "every": every, "resume": resume}, out=out, **rest)
        except KeyboardInterrupt as interrupt:
            if path is None or not (path.exists() if named else _keeps_anything(path)):
                raise
            with suppress(OSError):  # the terminal may be gone
                click.echo(f"brtf: interrupted; {_how_to_go_on(path)}", err=True)
            return interrupted_code(interrupt)
        except Exception:
            if path is not None and not named and _keeps_anything(path):
                click.echo(f"brtf: the fit so far is kept; {_how_to_go_on(path)}", err=True)
            raise
        if path is not None and not named:
            path.unlink(missing_ok=True)
        return code

    decorated: Callable[..., int] = collected
    for option in (
        click.option("--resume", metavar="FILE", type=click.Path(path_type=Path), help="Go on from a checkpoint."),
        click.option("--every", metavar="SECONDS", type=float, help="How often to write it  [default: 60]."),
        click.option(
            "--checkpoint", metavar="FILE", type=click.Path(path_type=Path), help="Keep the fit there while it runs."
        ),
    ):
        decorated = option(decorated)
    return decorated


def _free_name(directory: Path) -> Path:
    """Where a checkpoint takes no other file's place."""
    names = (f"checkpoint{'' if number == 1 else f'-{number}'}.brtf" for number in itertools.count(1))
    return next(directory / name for name in names if not (directory / name).exists())


def _keeps_anything(path: Path) -> bool:
    """Whether there is a checkpoint of more than the beginning; one of nothing else is removed."""
    from brtf.io.storage import read_archive

    if path.exists() and not {"state", "position"} & read_archive(path)[0].keys():
        path.unlink()
    return path.exists()


def _how_to_go_on(path: Path) -> str:
    return (
        f"the same command with --resume {path} goes on from there, and brtf show {path} tells what was found so far."
    )


def read(
    source: Path, mask: Path | None, key: str | None, index: str | None, value: str | None, wide: bool
) -> Observations:
    """The data that the options of `reads_input` name."""
    return observe_file(read_source(source, key, index, value, wide), mask)


def read_source(source: Path, key: str | None, index: str | None, value: str | None, wide: bool) -> TensorFile:
    """The tensor of INPUT, and what it takes to write another one like it."""
    from brtf.data.readers import read_file

    columns = None if index is None else [name.strip() for name in index.split(",")]
    return read_file(source, key=key, index=columns, value=value, wide=wide)


def open_in_chunks(
    source: Path, mask: Path | None, key: str | None, index: str | None, value: str | None, wide: bool
) -> Observations:
    """The data that the options of `reads_input` name, to be read chunk by chunk: a store, or a directory of tables."""
    from brtf.data.observations import Observations
    from brtf.data.readers import open_file

    if wide:
        raise ValueError(f"--wide applies to a table, and {source} is read in chunks: leave it out.")
    if source.is_dir() and source.suffix != ".zarr":
        if mask is not None or key is not None:
            raise ValueError("--mask and --key do not apply to a directory of tables.")
        columns = None if index is None else [name.strip() for name in index.split(",")]
        return Observations.from_parts(source, index=columns, value=value)
    if index is not None or value is not None:
        raise ValueError(f"--index and --value apply to tables, and {source} is none.")
    for path in (source, mask):
        if path is not None and path.suffix.lower() not in (".zarr", ".npy"):
            raise ValueError(
                f"{path} cannot be read in chunks: a .zarr store, an .npy file or a directory of .parquet, .csv or "
                ".tsv tables can. Leave out --scheduler, or convert it first."
            )
    return Observations.from_chunks(open_file(source, key=key).tensor, None if mask is None else open_file(mask).tensor)


def is_read_in_chunks(source: Path) -> bool:
    """Whether the data are a directory of tables, or a store that takes more than half of the memory."""
    from brtf.data.memory import available_bytes

    if not source.is_dir():
        return False
    stored = source.suffix == ".zarr"
    return not stored or sum(f.stat().st_size for f in source.rglob("*") if f.is_file()) > available_bytes() // 2


def observe_file(file: TensorFile, mask: Path | None) -> Observations:
    """The entries of a tensor that was read which --mask calls observed."""
    from brtf.data.observations import observe
    from brtf.data.readers import read_mask

    return observe(file.tensor, None if mask is None else read_mask(mask))
