"""``brtf report``: write the report page of a saved fit."""

from __future__ import annotations

from pathlib import Path

import click

from brtf.cli.input import Input, describes_table
from brtf.cli.options import overwrite_option
from brtf.cli.output import refuse_overwriting


def _numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Parse integers separated by commas, or by an x in a size."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.replace("x", ",").split(",")]
    except ValueError:
        raise click.BadParameter(f"must be integers such as {parameter.metavar}, got {text}.") from None


@click.command()
@click.argument("result", metavar="RESULT.brtf", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="F.html", type=click.Path(path_type=Path), help="Where to write  [default: RESULT.html]."
)
@overwrite_option
@click.option(
    "--data",
    metavar="F",
    type=click.Path(path_type=Path),
    help="Data with held-out entries, on which the intervals are evaluated.",
)
@click.option("--key", metavar="NAME", help="Which array of an .npz or .mat file.")
@describes_table
@click.option(
    "--image-modes", metavar="0,1", callback=_numbers, help="Modes that make up a picture: rows, columns[, colours]."
)
@click.option(
    "--image-size", metavar="48x64", callback=_numbers, help="Height and width, if --image-modes is pixels[, colours]."
)
@click.option("--title", help="Title of the page.")
@click.option("--names", metavar="A,B", help="Names of the components, strongest first, separated by commas.")
@click.option("--split-half", is_flag=True, help="Also fit two halves of the data and compare their components.")
def report(
    result: Path,
    out: Path | None,
    overwrite: bool,
    data: Path | None,
    key: str | None,
    index: str | None,
    value: str | None,
    wide: bool,
    image_modes: list[int] | None,
    image_size: list[int] | None,
    title: str | None,
    names: str | None,
    split_half: bool,
) -> int:
    """Write a report on a saved fit or a checkpoint, as one self-contained HTML file.

    It shows the rank and the strengths of the components, their factors with credible bands, the outliers, the
    residuals against the fitted distribution, the course of the fit, and slices of the data beside the low-rank part.
    A checkpoint does not contain the data: parts that need them are left out, and the page says so.
    """
    from brtf.api.ranks import split_half as fit_halves
    from brtf.io.checkpoint import load_result
    from brtf.view.report import require_page, write_report

    require_page()
    target = result.with_suffix(".html") if out is None else out
    refuse_overwriting([target], overwrite=overwrite)
    given = None if data is None else Input(data, None, key, index, value, wide).read().tensor
    finished = load_result(result)
    write_report(
        finished,
        target,
        data=given,
        image_modes=image_modes,
        image_size=image_size,
        title=title,
        names=None if names is None else [name.strip() for name in names.split(",")],
        split_half=fit_halves(finished) if split_half else None,
    )
    click.echo(f"Wrote {target}.")
    return 0
