"""``brtf forecast``: what follows the last position of an ordered mode of a saved fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from brtf.cli.options import json_option, mode_option, overwrite_option
from brtf.cli.output import DONE, print_first, print_json, records, refuse_overwriting, staged
from brtf.data.description import label_text


@click.command()
@click.argument("result", metavar="RESULT.brtf", type=click.Path(path_type=Path))
@click.option("--horizon", type=int, required=True, help="Number of positions to forecast.")
@mode_option("Mode to continue, by number or name  [default: the only one in order, or of times].")
@click.option("--level", type=float, default=0.9, show_default=True, help="Probability of the interval.")
@click.option(
    "--of",
    type=click.Choice(("observation", "low_rank")),
    default="observation",
    show_default=True,
    help="What the interval is of: new observations, or the low-rank part.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the whole table to this file, .csv or .json.",
)
@overwrite_option
@json_option
def forecast(
    result: Path,
    horizon: int,
    mode: int | str | None,
    level: float,
    of: str,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Forecast the positions that follow the data of a saved fit along an ordered mode.

    The table has a row per entry: the labels or positions of its modes, then mean, standard deviation and the ends of
    the interval, in the units of the data. Times and numbers go on at their typical distance.
    """
    from brtf.io.checkpoint import load_result
    from brtf.results.forecast import forecast as of_result

    if out is not None:
        if out.suffix.lower() not in (".csv", ".json"):
            raise ValueError(f"--out must be a .csv or .json file, got {out}.")
        refuse_overwriting([out], overwrite=overwrite)
    found = of_result(load_result(result), horizon, mode, level, "low_rank" if of == "low_rank" else "observation")
    document = {"mode": found.mode, "level": level, "of": of, "forecast": records(found.table)}
    if out is not None:
        _write(out, found.table, document)
    if as_json:
        print_json({**document, "written": [] if out is None else [str(out)]})
        return DONE
    ends = f"{label_text(found.labels[0])} to {label_text(found.labels[-1])}"
    click.echo(f"Forecast of mode {found.mode}, {ends}; {100 * level:g} % intervals of the {of.replace('_', ' ')}.")
    print_first(found.table, "FILE")
    if out is not None:
        click.echo(f"\nWrote {out}.")
    return DONE


def _write(path: Path, columns: dict[str, Any], document: dict[str, Any]) -> None:
    """Write the table as a whole or not at all."""
    import json

    from brtf.io.writers import write_csv

    with staged(path.parent) as staging:
        if staging is not None and path.suffix.lower() == ".csv":
            write_csv(staging / path.name, columns)
        elif staging is not None:
            (staging / path.name).write_text(json.dumps(document, indent=2), encoding="utf-8")
