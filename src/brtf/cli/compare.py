"""``brtf compare``: several methods on the user's own data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from brtf.cli.evaluate import holds_out
from brtf.cli.input import Input, reads_input
from brtf.cli.options import chooses_model, json_option, out_option, overwrite_option, seed_option
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, refuse_overwriting, staged, written_text

if TYPE_CHECKING:
    from brtf.data.observations import Observations
    from brtf.view.report.document import Document

PAGE = "comparison.html"
A_MINUTE = 60.0


@click.command()
@reads_input
@click.option(
    "--methods",
    metavar="A,B,C",
    help="Methods to compare, or all  [default: brtf and a few fast ones that suit the data].",
)
@click.option(
    "--all", "everything", is_flag=True, help="All methods, however long they take; the same as --methods all."
)
@click.option(
    "--rank", type=click.IntRange(min=1), help="Rank for methods that need one  [default: the one brtf finds]."
)
@chooses_model
@holds_out
@click.option(
    "--truth",
    metavar="MASKS",
    help="INPUT is a clip, and these are its masks of moving objects: compare who finds them.",
)
@seed_option
@out_option
@overwrite_option
@json_option
def compare(
    given: Input,
    methods: str | None,
    everything: bool,
    rank: int | None,
    repeats: int,
    truth: str | None,
    seed: int,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
    model_options: dict[str, Any],
    **how: Any,
) -> int:
    """Compare BRTF with other methods on the data in INPUT.

    Some observed entries are held out and predicted by every method from the others. The table shows the root mean
    square, median and relative error at these entries, the time and, for brtf, the mean log predictive density and the
    share of values inside the 95 % intervals. The options of `brtf fit` apply to brtf. Methods that need a rank use the
    one that brtf finds, unless --rank is given. A method that cannot be used on the data is listed with the reason.
    Without --methods and --all, so is a method that would take more than a minute, judged by its time on a corner of
    the data.

    With --out DIR the comparison is also written as a page, comparison.html.

    With --truth MASKS, INPUT is a clip from a fixed camera as for `brtf video`, and MASKS are as many images of its
    size: 255 where something moves, 85 or 170 where it is not judged. The table shows the F-measure, precision, recall
    and seconds of brtf, of OpenCV's methods (mog2, knn, gsoc, lsbp, gmg, cnt; each sees the clip twice, and the second
    pass counts), of a median and a MAD control, and of the low-rank methods pcp and decolor, which --methods selects.
    """
    from tqdm import tqdm

    if truth is not None:
        return _compare_moving(str(given.path), truth, "all" if everything else methods, out, as_json)

    from brtf.research.comparison import METHODS, as_text, compare, default_methods, reason_against

    if out is not None:
        refuse_overwriting([out / PAGE], overwrite=overwrite)
    observations = given.observe()
    if everything and methods is not None:
        raise ValueError("--all and --methods exclude each other: give one of them.")
    chosen = _chosen("all" if everything else methods, METHODS, default_methods(observations))
    for method in chosen:
        reason_against(method, chosen, rank)  # raises for unknown names before anything is fitted
    settings: dict[str, Any] = {"rank": rank, "options": model_options, "n_repeats": repeats, "seed": seed, **how}
    patience = A_MINUTE if methods is None and not everything else None
    fits = compare(observations, chosen, patience=patience, **settings)
    total = repeats * len(chosen)
    rows = list(tqdm(fits, total=total, unit="fit", disable=not sys.stderr.isatty(), leave=False))
    written: list[Path] = []
    with staged(out) as staging:
        if staging is not None and out is not None:
            from brtf import __version__
            from brtf.view.report.document import html

            page = html(_page(rows, observations, how["hold_out"], given.path.name), __version__)
            (staging / PAGE).write_text(page, encoding="utf-8", errors="replace")
            written.append(out / PAGE)
    others = [method for method in METHODS if method not in chosen]
    if as_json:
        print_json({**how, "repeats": repeats, "seed": seed, "rows": rows, "written": [str(path) for path in written]})
    else:
        click.echo(as_text(rows))
        if others:
            click.echo(f"Not compared: {', '.join(others)}. Use --all for everything.")
        if written:
            click.echo(written_text(written))
    return NOT_CONVERGED if any(row["converged"] is False for row in rows) else DONE


def _compare_moving(source: str, truth: str, methods: str | None, out: Path | None, as_json: bool) -> int:
    """Compare who finds the moving objects of a clip."""
    from tqdm import tqdm

    from brtf.research.moving import MOVING, compare_moving, moving_table
    from brtf.video.clips import read_clip

    if out is not None:
        raise ValueError("--out does not apply to a comparison of masks (--truth): leave it out, or use --json.")
    chosen = _chosen(methods, tuple(MOVING), tuple(MOVING))
    if unknown := [name for name in chosen if name not in MOVING]:
        raise ValueError(f"with --truth, --methods must be among {', '.join(MOVING)}, got {unknown[0]!r}.")
    clip, masks = read_clip(source), read_clip(truth, gray=True)
    labels = np.rint(masks.values[:, 0]).reshape(masks.height, masks.width, -1)
    found = compare_moving(clip, labels, chosen)
    rows = list(tqdm(found, total=len(chosen), unit="method", disable=not sys.stderr.isatty(), leave=False))
    if as_json:
        print_json({"rows": rows})
    else:
        click.echo(moving_table(rows))
    return DONE


def _chosen(given: str | None, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """The requested methods, without duplicates."""
    if given is None:
        return tuple(default)
    if given.strip() == "all":
        return tuple(known)
    chosen = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not chosen:
        raise ValueError(f"--methods must name methods, such as brtf,horpca, or be all; got {given!r}.")
    return chosen


def _page(rows: Sequence[Mapping[str, Any]], observations: Observations, hold_out: float, name: str) -> Document:
    """The page: the best method, the table, and the methods that could not be used."""
    from brtf.research.comparison import absentees, comparison_table
    from brtf.view.report.document import Cell, Document, Section, Table, Verdict

    (_, *columns), *lines = comparison_table(rows)
    body = [[Cell(text) for text in line] for line in lines]
    best = {}
    for column, measure in enumerate(columns[:2] if lines else [], start=1):
        line = min(range(len(lines)), key=lambda k: float(lines[k][column]))
        body[line][column] = Cell(lines[line][column], mark="best")
        best[measure] = lines[line][0]
    shape = " × ".join(map(str, observations.shape))
    lead = (
        f"{shape}, {observations.n_observed:,} of {observations.n_entries:,} entries observed. "
        f"{100 * hold_out:g} % of these were held out and predicted from the others."
    )
    verdicts = [
        Verdict(f"{best['rmse']} has the smallest root mean square error, {best['median_error']} the smallest median.")
    ] * bool(best)
    sections = [Section("table", "Errors at held-out entries", (), verdicts, (), [Table(["", *columns], body)])]
    if absent := absentees(rows):
        reasons = [[Cell(methods), Cell(reason)] for methods, reason in absent]
        sections.append(Section("absent", "Could not be used", tables=[Table(["", "why"], reasons, n_wordy=1)]))
    notes = (
        "rmse, median_error: in the units of the data; outliers among the hidden entries, which nobody can predict, "
        "weigh on the first. relative_error: ‖y − x̄‖ / ‖y‖. log_density: mean log predictive density, nats per "
        "entry, larger is better. coverage_95: share of hidden values inside their 95 % intervals.",
    )
    return Document(f"Methods compared on {name}", lead, notes, sections)
