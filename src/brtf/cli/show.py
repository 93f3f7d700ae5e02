"""``brtf show``: print a summary of a saved fit."""

from __future__ import annotations

from pathlib import Path

import click

from brtf.cli.options import json_option
from brtf.cli.output import DONE, print_json, table

TRACE_LINES = 5


@click.command()
@click.argument("result", metavar="RESULT.brtf", type=click.Path(path_type=Path))
@json_option
def show(result: Path, as_json: bool) -> int:
    """Print the results of a saved fit: the summary, the strength of every component, the end of the trace.

    For a checkpoint, these are the results of the unfinished fit so far.

    The strength of a component is the root mean square of its rank-one term, in the units of the data, or of the
    transformed data if the fit used a link.
    """
    from brtf.api.estimator import load
    from brtf.results.summary import fitted_to

    model = load(result)
    summary = model.summary()
    strengths = model.result_.strengths.tolist()
    trace = model.trace_[-TRACE_LINES:]
    names = trace.dtype.names or ()
    if as_json:
        records = [dict(zip(names, record, strict=True)) for record in trace.tolist()]
        print_json({**summary.numbers, "component_strengths": strengths, "trace": records})
        return DONE
    click.echo(summary)
    units = fitted_to(summary.numbers["link"])
    click.echo(f"\nStrength of the components (root mean square, in the units of {units})")
    click.echo(table([(str(component), f"{strength:.4g}") for component, strength in enumerate(strengths)]))
    click.echo(f"\nLast sweeps of {len(model.trace_)}")
    shown = (
        [f"{entry:.8g}" if isinstance(entry, float) else str(entry) for entry in record] for record in trace.tolist()
    )
    click.echo(table([names, *shown]))
    return DONE
