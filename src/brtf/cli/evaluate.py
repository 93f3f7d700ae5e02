"""``brtf evaluate``: accuracy on held-out entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from brtf.api.evaluation import PATTERNS
from brtf.cli.input import Input, reads_input
from brtf.cli.options import adding, chooses_model, json_option, seed_option
from brtf.cli.output import DONE, NOT_CONVERGED, print_json
from brtf.model.settings import INFERENCES


def holds_out(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say what to hold out, and how often."""
    return adding(
        command,
        click.option(
            "--hold-out", type=float, default=0.1, show_default=True, help="Share of the observed entries to hold out."
        ),
        click.option(
            "--pattern", type=click.Choice(PATTERNS), default=PATTERNS[0], show_default=True, help="What to hold out."
        ),
        click.option("--mode", type=int, default=0, show_default=True, help="Mode of the fibres or slices."),
        click.option(
            "--repeats",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Number of draws of held-out entries.",
        ),
    )


@click.command()
@reads_input
@click.option(
    "--inference",
    "inferences",
    type=click.Choice(INFERENCES),
    multiple=True,
    default=INFERENCES,
    show_default=True,
    help="Inference to evaluate; can be repeated.",
)
@chooses_model
@holds_out
@seed_option
@json_option
def evaluate(
    given: Input,
    inferences: tuple[str, ...],
    repeats: int,
    as_json: bool,
    model_options: dict[str, Any],
    **options: Any,
) -> int:
    """Hold out some observed entries of INPUT, predict them from the others, and compare.

    With options of the model, plain BRTF() is evaluated too, so that they compare. Prints for every model, averaged
    over the repeats: the errors at the held-out entries (root mean square, mean, median), the mean log predictive
    density, the share of held-out values inside their 50, 80 and 95 % intervals, the mean width of the 95 % intervals,
    the rank and the time. INPUT is read as by `brtf fit`.
    """
    from brtf.api.estimator import BRTF
    from brtf.api.evaluation import evaluate

    budget = {name: model_options[name] for name in ("max_sweeps", "max_seconds", "tol", "n_jobs")}
    models = {inference: BRTF(inference=inference, **model_options) for inference in inferences}
    if BRTF(**model_options).get_params() != BRTF(**budget).get_params():
        models = {"BRTF()": BRTF(**budget), **models}
    found = evaluate(given.observe(), model=models, n_repeats=repeats, **options)
    if as_json:
        print_json({**options, "repeats": repeats, "rows": found.rows})
    else:
        click.echo(found.table())
    return DONE if all(row["converged"] for row in found.rows) else NOT_CONVERGED
