"""The command line: results to stdout, everything else to stderr. The only package that writes to the terminal.

A command is a function with the name of its module, decorated with ``click.command()``, that returns an exit code. To
add one, add a module here and its name to ``COMMANDS``. The module is imported when the command is called or listed, so
heavy imports belong inside its function. Shared code is in ``options`` and ``output``.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from brtf import __version__
from brtf.cli.output import BAD_INPUT, DONE, complain, interrupted_code, sentence
from brtf.data.signals import ended_by_signals
from brtf.kernels.log import log_shown
from brtf.model.settings import RENAMED

COMMANDS = (
    "demo",
    "fit",
    "show",
    "report",
    "anomalies",
    "forecast",
    "evaluate",
    "compare",
    "bench",
    "video",
    "reproduce",
)


class _Commands(click.Group):
    """Commands whose return value is the exit code, and whose errors and warnings are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return getattr(import_module(f"brtf.cli.{cmd_name}"), cmd_name) if cmd_name in COMMANDS else None

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        with warnings.catch_warnings(), ended_by_signals(), log_shown(shown=sys.stderr.isatty()):
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: complain("warning", message)
            try:
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
            except click.ClickException as error:
                complain("error", _new_name(error) or error.format_message())
                code = BAD_INPUT
            except click.Abort as abort:
                click.echo("brtf: interrupted, nothing was written.", err=True)
                code = interrupted_code(abort.__cause__)
            except (ValueError, TypeError, MemoryError, OSError) as error:
                complain("error", sentence(error))
                code = BAD_INPUT
        sys.exit(code)


def _new_name(error: click.ClickException) -> str | None:
    """What an option is called today, where the command has it under a new name."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    given = error.option_name
    old = given.removeprefix("--").removeprefix("no-")
    new = given.replace(old, RENAMED.get(old, old))
    known = (name for option in error.ctx.command.params for name in (*option.opts, *option.secondary_opts))
    return f"{given} is now {new}." if new in known else None


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="brtf")
@click.pass_context
def main(context: click.Context) -> int:
    """Robust tensor factorization from incomplete data.

    Finds the low-rank structure, the outliers, the rank and the noise level of a matrix or tensor with missing entries.
    Try `brtf demo` first.

    Exit codes: 0 done, 1 not converged (results are still written), 2 bad input, 130 interrupted (143 by SIGTERM, 129
    by SIGHUP).
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return DONE
