"""``brtf bench``: speed and memory as ratios."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from brtf.cli.options import json_option
from brtf.cli.output import print_json

N_TARGETS = 11


@click.command()
@click.option("--quick", is_flag=True, help="Small problems and few repeats: takes seconds, rough results.")
@click.option(
    "--target",
    "targets",
    type=click.IntRange(1, N_TARGETS),
    multiple=True,
    help="Measure only this target; can be repeated.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="Number of runs, of which the fastest counts  [default: 10, or 1 with --quick].",
)
@click.option(
    "--write", metavar="FILE", type=click.Path(path_type=Path), help="Also write the results as a Markdown page."
)
@json_option
def bench(quick: bool, targets: tuple[int, ...], repeats: int | None, write: Path | None, as_json: bool) -> int:
    """Measure speed and memory on this machine, as ratios to references measured in the same run.

    Sweeps are compared with copies of the data and dense matrix products, whole fits with other libraries if they are
    installed, memory with the size of the data. Target 10 is the time to answer: fits that are told nothing, with rank
    and error. Takes some ten minutes, or less than one with --quick, on an otherwise idle machine.
    """
    from tqdm import tqdm

    from brtf.research.bench.measure import Effort
    from brtf.research.bench.page import machine, measure, page, text

    effort = Effort(quick, repeats or (1 if quick else 10))
    words = machine(effort)
    chosen = targets or tuple(range(1, N_TARGETS + 1))
    rows = list(tqdm(measure(effort, chosen), desc="rows", unit="", disable=not sys.stderr.isatty(), leave=False))
    if as_json:
        print_json({**words, "rows": [{**asdict(row), "met": row.met} for row in rows]})
    else:
        click.echo("\n".join(f"{name}: {value}" for name, value in words.items()) + "\n")
        click.echo(text(rows))
    if write is not None:
        write.write_text(page(rows, words, effort), encoding="utf-8")
    return 0
