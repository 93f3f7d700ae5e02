"""Options shared by several commands."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from brtf.cli.output import interrupted_code
from brtf.model.settings import LINKS, NOISES, OUTLIER_KINDS, Settings

DEFAULTS = Settings()

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
out_option = click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to write the results.")
max_seconds_option = click.option(
    "--max-seconds", type=float, help="Stop after this time with the best fit so far  [default: no limit]."
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing results.")
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")


def _modes(_: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Parse modes separated by commas."""
    try:
        return None if text is None else [int(mode) for mode in text.split(",")]
    except ValueError:
        name = parameter.opts[0]
        raise click.BadParameter(f"{name} must be modes such as 0,2, separated by commas; got {text}.") from None


def _groups(_: click.Context, parameter: click.Parameter, text: str) -> Any:
    """Parse groups of modes separated by slashes, or modes with their periods separated by commas."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        if ":" in text:
            return {int(mode): int(period) for mode, period in (pair.split(":") for pair in text.split(","))}
        return tuple(tuple(int(mode) for mode in group.split(",")) for group in text.split("/"))
    except ValueError:
        name = parameter.opts[0]
        raise click.BadParameter(
            f"{name} must be groups of modes such as 0,1/2, a mode and its period such as 0:24, auto or "
            f"none; got {text}."
        ) from None


def _said_of_modes(_: click.Context, parameter: click.Parameter, text: str) -> Any:
    """Parse what is said of modes: MODE=WORD, separated by commas; several words of a mode are joined by +."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    said = [pair.strip().partition("=") for pair in text.split(",")]
    if not all(mode and words for mode, _, words in said):
        name = parameter.opts[0]
        raise click.BadParameter(f"{name} must be such as 0=ordered, auto or none; got {text}.")
    return {int(mode) if mode.lstrip("-").isdecimal() else mode: tuple(words.split("+")) for mode, _, words in said}


def _one_mode(_: click.Context, parameter: click.Parameter, text: str) -> Any:
    """Parse a mode."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{parameter.opts[0]} must be a mode, auto or none; got {text}.") from None


def _scatter(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Parse a width, or NAME=VALUE separated by commas: width, emission, excitation and raman."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = [pair.strip().partition("=") for pair in text.split(",")]
        said: dict[str, Any] = {name: value for name, _, value in pairs}
        for name in said.keys() & {"width", "raman"}:
            said[name] = None if said[name] == "none" else float(said[name])
        for name in said.keys() & {"emission", "excitation"}:
            said[name] = int(said[name]) if said[name].lstrip("-").isdecimal() else said[name]
        return said
    except ValueError:
        raise click.BadParameter(
            f"{parameter.opts[0]} must be a width in nm, or such as width=15,emission=1,excitation=2,raman=none; got "
            f"{text}."
        ) from None


def chooses_model(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the model, passed to the command as ``model_options`` with the names of :class:`brtf.BRTF`."""

    @functools.wraps(command)
    def collected(
        max_rank: int | None,
        robust: bool,
        modes: Any,
        noise: str,
        noise_modes: list[int] | None,
        outlier_modes: list[int] | None,
        outlier_kind: str,
        link: str | None,
        arrangement: Any,
        smooth_residual: Any,
        scatter: Any,
        rank_by: str,
        max_sweeps: int,
        max_seconds: float | None,
        tol: float,
        jobs: int | None,
        **rest: Any,
    ) -> int:
        model_options = {
            "max_rank": max_rank,
            "robust": robust,
            "modes": modes,
            "noise": noise,
            "noise_modes": noise_modes,
            "outlier_modes": outlier_modes,
            "outlier_kind": outlier_kind,
            "link": None if link == "none" else link,
            "arrangement": arrangement,
            "smooth_residual": smooth_residual,
            "scatter": scatter,
            "rank_by": rank_by,
            "max_sweeps": max_sweeps,
            "max_seconds": max_seconds,
            "tol": tol,
            "n_jobs": jobs,
        }
        return command(model_options=model_options, **rest)

    decorated: Callable[..., int] = collected
    for option in (
        click.option("--jobs", type=int, help="Number of threads; -1 for all cores  [default: 1]."),
        click.option(
            "--tol",
            type=float,
            default=DEFAULTS.tol,
            show_default=True,
            help="Convergence, in nats per observed entry.",
        ),
        max_seconds_option,
        click.option(
            "--max-sweeps", type=int, default=DEFAULTS.max_sweeps, show_default=True, help="Maximum number of sweeps."
        ),
        click.option(
            "--arrangement",
            metavar="GROUPS",
            default=DEFAULTS.arrangement,
            show_default=True,
            callback=_groups,
            help="Modes to read as one, such as 0,1/2, or a mode and the period to fold it by, such as 0:24; 'none' "
            "for every mode as it is, or chosen by the bound.",
        ),
        click.option(
            "--smooth-residual",
            metavar="MODE",
            default=DEFAULTS.smooth_residual or "none",
            show_default=True,
            callback=_one_mode,
            help="Mode along which every fibre has a smooth course of its own beside the low-rank part; 'none', or "
            "chosen by the bound.",
        ),
        click.option(
            "--scatter",
            metavar="NM",
            callback=_scatter,
            help="Leave out scattered light of fluorescence, this many nm about its lines; or such as "
            "width=15,emission=1,excitation=2,raman=3400  [default: nothing].",
        ),
        click.option(
            "--rank-by",
            type=click.Choice(("auto", "bound")),
            default=DEFAULTS.rank_by,
            show_default=True,
            help="What has the last word on the rank: the bound, or held-out entries where entries are missing and the "
            "bound leaves structure unexplained.",
        ),
        click.option(
            "--link",
            type=click.Choice((*LINKS, "none")),
            default=DEFAULTS.link,
            show_default=True,
            help="Fit the square root or logarithm of the data, or the data as they are, or chosen by the bound.",
        ),
        click.option(
            "--outlier-kind",
            type=click.Choice(OUTLIER_KINDS),
            default=DEFAULTS.outlier_kind,
            show_default=True,
            help="Whether outliers are added to the data or replace them, or chosen by the bound.",
        ),
        click.option(
            "--outlier-modes",
            metavar="A,B",
            callback=_modes,
            help="Modes along which outliers are shared, counted from 0, such as the colours of a pixel.",
        ),
        click.option(
            "--noise-modes", metavar="A,B", callback=_modes, help="Modes along which the noise differs, counted from 0."
        ),
        click.option(
            "--noise",
            type=click.Choice(NOISES),
            default=DEFAULTS.noise,
            show_default=True,
            help="One noise level, one per slice, or chosen by the bound.",
        ),
        click.option(
            "--modes",
            metavar="MODE=WORD",
            default=DEFAULTS.modes or "none",
            show_default=True,
            callback=_said_of_modes,
            help="What is known of modes, by number or name, such as time=ordered,1=nonnegative; 'none' for "
            "nothing, or chosen by the bound.",
        ),
        click.option(
            "--robust/--no-robust",
            default=DEFAULTS.robust,
            show_default=True,
            help="Fit a model with or without outliers.",
        ),
        click.option("--max-rank", type=int, help="Largest rank of the result  [default: no limit]."),
    ):
        decorated = option(decorated)
    return decorated


def keeps_itself(command: Callable[..., int]) -> Callable[..., int]:
    """Add the checkpoint options, passed to the command as ``kept`` under the names of :meth:`brtf.BRTF.fit`.

    Without them a command with --out writes its checkpoints there until the results are written. When interrupted, the
    command says how to continue.
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
                click.echo(f"brtf: the fit so far is saved; {_how_to_go_on(path)}", err=True)
            raise
        if path is not None and not named:
            path.unlink(missing_ok=True)
        return code

    decorated: Callable[..., int] = collected
    for option in (
        click.option("--resume", metavar="FILE", type=click.Path(path_type=Path), help="Continue from a checkpoint."),
        click.option("--every", metavar="SECONDS", type=float, help="Time between checkpoints  [default: 60]."),
        click.option(
            "--checkpoint", metavar="FILE", type=click.Path(path_type=Path), help="Save progress to this file."
        ),
    ):
        decorated = option(decorated)
    return decorated


def _free_name(directory: Path) -> Path:
    """A name for a checkpoint that no file in the directory has yet."""
    names = (f"checkpoint{'' if number == 1 else f'-{number}'}.brtf" for number in itertools.count(1))
    return next(directory / name for name in names if not (directory / name).exists())


def _keeps_anything(path: Path) -> bool:
    """Whether the checkpoint holds a state; one that does not is removed."""
    from brtf.io.storage import read_archive

    if path.exists() and not {"state", "position"} & read_archive(path)[0].keys():
        path.unlink()
    return path.exists()


def _how_to_go_on(path: Path) -> str:
    return f"the same command with --resume {path} continues, and brtf show {path} shows the results so far."
