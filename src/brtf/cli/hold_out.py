"""Options of commands that hold out entries and predict them."""

from __future__ import annotations

from collections.abc import Callable

import click

from brtf.api.evaluation import PATTERNS


def holds_out(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say what to hold out, and how often."""
    for option in (
        click.option(
            "--repeats",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Number of draws of held-out entries.",
        ),
        click.option("--mode", type=int, default=0, show_default=True, help="Mode of the fibres or slices."),
        click.option(
            "--pattern", type=click.Choice(PATTERNS), default=PATTERNS[0], show_default=True, help="What to hold out."
        ),
        click.option(
            "--hold-out", type=float, default=0.1, show_default=True, help="Share of the observed entries to hold out."
        ),
    ):
        command = option(command)
    return command
