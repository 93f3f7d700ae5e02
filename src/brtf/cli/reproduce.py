"""``brtf reproduce``: the tables and figures of the paper, measured anew."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from brtf.cli.options import seed_option
from brtf.cli.output import DONE, complain, interrupted_code
from brtf.research.experiments import EXPERIMENTS

LIMITS = {True: 120.0, False: 1800.0}
"""Seconds that a method may take, in quick and in full runs."""


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(EXPERIMENTS))
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reproduction"),
    show_default=True,
    help="Where rows, pictures and the page go.",
)
@click.option("--quick/--full", default=True, show_default=True, help="One draw of few conditions, or all repeats.")
@click.option(
    "--clip",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Video for Fig. 4 and 5  [default: a generated one].",
)
@click.option(
    "--faces",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True),
    help="Faces for Table 3: pixels x persons x poses x lights  [default: drawn ones].",
)
@click.option("--limit", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), help="Of one measurement.")
@click.option("--page-only", is_flag=True, help="Measure nothing: make the page of what is there.")
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path), help="Also write the page as Markdown.")
@seed_option
def reproduce(
    names: tuple[str, ...],
    out: Path,
    quick: bool,
    clip: Path | None,
    faces: Path | None,
    limit: float | None,
    page_only: bool,
    markdown: Path | None,
    seed: int,
) -> int:
    """Measure the paper's experiments: fig2 fig3 table1 table2 video faces, or those that are NAMEd.

    Every measurement is a row, a small JSON file in DIR/rows with its seed and version. Rows that are there are not
    measured again: stop with Ctrl-C whenever you like, and the same command goes on. A method that fails or takes
    longer than --limit is a row that says so. In the end DIR/reproduction.html shows tables and figures beside the
    paper's numbers, and where BRTF is not the best.

    --quick (a few minutes) and --full (hours) keep their rows apart where they differ.
    """
    from tqdm import tqdm

    from brtf import __version__
    from brtf.io.storage import atomic_file
    from brtf.research.experiments import page, runs
    from brtf.view.report import document

    inputs = {kind: str(path) for kind, path in (("clip", clip), ("faces", faces)) if path is not None}
    cases = page.plan(names or EXPERIMENTS, quick=quick, seed=seed, inputs=inputs)
    rows = runs.Rows(out / "rows")
    left = [case for case in cases if rows.read(case) is None]
    click.echo(f"{len(cases) - len(left)} of {len(cases)} rows are there, {len(left)} are left.", err=True)
    if left and not page_only:
        out.mkdir(parents=True, exist_ok=True)
        n_measured = 0
        try:
            measuring = runs.measure(left, rows, inputs, limit or LIMITS[quick])
            with tqdm(measuring, total=len(left), unit="row", disable=not sys.stderr.isatty(), leave=False) as bar:
                for row in bar:
                    n_measured += 1
                    if row.error:
                        complain("warning", f"{row.experiment} {row.settings.get('method', '')}: {row.error}")
        except KeyboardInterrupt as interrupt:
            n_left = len(left) - n_measured
            click.echo(f"brtf: interrupted; {n_left} rows are left, and the same command goes on from there.", err=True)
            return interrupted_code(interrupt)
    found = page.page(cases, rows, quick=quick)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "reproduction.html"]
    with atomic_file(written[0]) as file:
        file.write(document.html(found, __version__).encode())
    if markdown is not None:
        text = document.markdown(found, markdown.parent, markdown.stem)
        with atomic_file(markdown) as file:
            file.write(text.encode())
        written.append(markdown)
    for section in found.sections:
        click.echo(section.title)
        for verdict in section.verdicts:
            click.echo(f"  - {verdict.text}")
    click.echo(f"\nWrote {', '.join(map(str, written))}.")
    return DONE
