"""``brtf reproduce``: run the paper's experiments again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from brtf.cli.options import seed_option
from brtf.cli.output import DONE, complain, interrupted_code
from brtf.research.experiments import EXPERIMENTS

LIMITS = {True: 120.0, False: 1800.0}
"""Time limit of one measurement in seconds, by whether the run is quick."""


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(EXPERIMENTS))
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reproduction"),
    show_default=True,
    help="Where to write rows, pictures and the page.",
)
@click.option(
    "--quick/--full", default=True, show_default=True, help="A few conditions once, or all conditions and repeats."
)
@click.option(
    "--clip",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Video for Fig. 4 and 5  [default: a synthetic one].",
)
@click.option(
    "--faces",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True),
    help="Faces for Table 3: pixels x persons x poses x lights  [default: synthetic ones].",
)
@click.option(
    "--limit", metavar="SECONDS", type=click.FloatRange(min=0, min_open=True), help="Time limit of one measurement."
)
@click.option("--page-only", is_flag=True, help="Measure nothing; make the page from existing rows.")
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
    """Run the paper's experiments: fig2 fig3 table1 table2 video faces, or only the given NAMEs.

    Every measurement is a row, a small JSON file in DIR/rows with its seed and version. Existing rows are not measured
    again: stop with Ctrl-C at any time, and the same command continues. If a method fails or exceeds --limit, its row
    says so. At the end DIR/reproduction.html shows tables and figures beside the paper's numbers, and where BRTF is not
    the best.

    --quick (a few minutes) and --full (hours) use separate rows where they differ.
    """
    from tqdm import tqdm

    from brtf import __version__
    from brtf.io.atomic_file import atomic_file
    from brtf.research.experiments import page, runs
    from brtf.view.report import document

    inputs = {kind: str(path) for kind, path in (("clip", clip), ("faces", faces)) if path is not None}
    cases = page.plan(names or EXPERIMENTS, quick=quick, seed=seed, inputs=inputs)
    rows = runs.Rows(out / "rows")
    left = [case for case in cases if rows.read(case) is None]
    click.echo(f"{len(cases) - len(left)} of {len(cases)} rows exist, {len(left)} are left.", err=True)
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
            click.echo(f"brtf: interrupted; {n_left} rows are left, and the same command continues.", err=True)
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
