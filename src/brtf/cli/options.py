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


def adding(command: Callable[..., int], *options: Callable[[Any], Any]) -> Callable[..., int]:
    """A command with further options, in the order in which help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


def _parsed(
    parse: Callable[[str], Any], expected: str, words: tuple[str, ...] = ("auto", "none")
) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A callback that parses the text of an option, except the given words; "none" is None."""

    def callback(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None or text in words:
            return None if text == "none" else text
        try:
            return parse(text)
        except ValueError:
            raise click.BadParameter(f"{parameter.opts[0]} must be {expected}; got {text}.") from None

    return callback


def _modes(text: str) -> list[int]:
    """Modes separated by commas."""
    return [int(mode) for mode in text.split(",")]


def _groups(text: str) -> Any:
    """Groups of modes separated by slashes, or modes with their periods separated by commas."""
    if ":" in text:
        return {int(mode): int(period) for mode, period in (pair.split(":") for pair in text.split(","))}
    return tuple(tuple(_modes(group)) for group in text.split("/"))


def _number_or_name(mode: str) -> int | str:
    return int(mode) if mode.lstrip("-").isdecimal() else mode


def mode_option(words: str) -> Callable[[Any], Any]:
    """The option --mode, one mode by number or name."""
    return click.option("--mode", callback=_parsed(_number_or_name, "a mode", words=()), help=words)


def _said_of_modes(text: str) -> dict[int | str, tuple[str, ...]]:
    """Words for modes: MODE=WORD, separated by commas; several words for one mode are joined by +."""
    said = [pair.strip().partition("=") for pair in text.split(",")]
    if not all(mode and words for mode, _, words in said):
        raise ValueError("a mode or a word is missing")
    return {_number_or_name(mode): tuple(words.split("+")) for mode, _, words in said}


def _scatter(text: str) -> Any:
    """A width, or NAME=VALUE separated by commas: width, emission, excitation and raman."""
    if "=" not in text:
        return float(text)
    pairs = [pair.strip().partition("=") for pair in text.split(",")]
    said: dict[str, Any] = {name: value for name, _, value in pairs}
    for name in said.keys() & {"width", "raman"}:
        said[name] = None if said[name] == "none" else float(said[name])
    for name in said.keys() & {"emission", "excitation"}:
        said[name] = _number_or_name(said[name])
    return said


def _model_option(flag: str, **how: Any) -> Callable[[Any], Any]:
    """An option of the model, whose default is that of :class:`brtf.model.settings.Settings`."""
    name = flag.partition("/")[0].removeprefix("--").replace("-", "_")
    return click.option(flag, **{"default": getattr(DEFAULTS, name), "show_default": True, **how})


_several_modes = _parsed(_modes, "modes such as 0,2, separated by commas", words=())
MODEL_OPTIONS = (
    _model_option("--max-rank", type=int, help="Largest rank of the result  [default: no limit]."),
    _model_option("--robust/--no-robust", help="Fit a model with or without outliers."),
    _model_option(
        "--modes",
        metavar="MODE=WORD",
        default=DEFAULTS.modes or "none",
        callback=_parsed(_said_of_modes, "such as 0=ordered, auto or none"),
        help="What is known of modes, by number or name, such as time=ordered,1=nonnegative; 'none' for nothing, or "
        "chosen by the bound.",
    ),
    _model_option("--noise", type=click.Choice(NOISES), help="One noise level, one per slice, or chosen by the bound."),
    _model_option(
        "--noise-modes",
        metavar="A,B",
        callback=_several_modes,
        help="Modes along which the noise differs, counted from 0.",
    ),
    _model_option(
        "--outlier-modes",
        metavar="A,B",
        callback=_several_modes,
        help="Modes along which outliers are shared, counted from 0, such as the colours of a pixel.",
    ),
    _model_option(
        "--outlier-kind",
        type=click.Choice(OUTLIER_KINDS),
        help="Whether outliers are added to the data or replace them, or chosen by the bound.",
    ),
    _model_option(
        "--link",
        type=click.Choice((*LINKS, "none")),
        callback=_parsed(str, "a link"),
        help="Fit the square root or logarithm of the data, or the data as they are, or chosen by the bound.",
    ),
    _model_option(
        "--rank-by",
        type=click.Choice(("auto", "bound")),
        help="What has the last word on the rank: the bound, or held-out entries where entries are missing and the "
        "bound leaves structure unexplained.",
    ),
    _model_option(
        "--scatter",
        metavar="NM",
        callback=_parsed(_scatter, "a width in nm, or such as width=15,emission=1,excitation=2,raman=none", words=()),
        help="Leave out scattered light of fluorescence, this many nm about its lines; or such as "
        "width=15,emission=1,excitation=2,raman=3400  [default: nothing].",
    ),
    _model_option(
        "--smooth-residual",
        metavar="MODE",
        default=DEFAULTS.smooth_residual or "none",
        callback=_parsed(int, "a mode, auto or none"),
        help="Mode along which every fibre has a smooth course of its own beside the low-rank part; 'none', or "
        "chosen by the bound.",
    ),
    _model_option(
        "--arrangement",
        metavar="GROUPS",
        callback=_parsed(_groups, "groups of modes such as 0,1/2, a mode and its period such as 0:24, auto or none"),
        help="Modes to read as one, such as 0,1/2, or a mode and the period to fold it by, such as 0:24; 'none' "
        "for every mode as it is, or chosen by the bound.",
    ),
    _model_option("--max-sweeps", type=int, help="Maximum number of sweeps."),
    max_seconds_option,
    _model_option("--tol", type=float, help="Convergence, in nats per observed entry."),
    click.option("--jobs", "n_jobs", type=int, help="Number of threads; -1 for all cores  [default: 1]."),
)
"""The options of the model, in the order in which help lists them."""


def chooses_model(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the model, passed to the command as ``model_options`` with the names of :class:`brtf.BRTF`."""

    @functools.wraps(command)
    def collected(**options: Any) -> int:
        names = options.keys() & {*Settings.__dataclass_fields__, "n_jobs"}
        return command(model_options={name: options.pop(name) for name in names}, **options)

    return adding(collected, *MODEL_OPTIONS)


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

    return adding(
        collected,
        click.option(
            "--checkpoint", metavar="FILE", type=click.Path(path_type=Path), help="Save progress to this file."
        ),
        click.option("--every", metavar="SECONDS", type=float, help="Time between checkpoints  [default: 60]."),
        click.option("--resume", metavar="FILE", type=click.Path(path_type=Path), help="Continue from a checkpoint."),
    )


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
