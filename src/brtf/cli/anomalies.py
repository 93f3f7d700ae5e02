"""``brtf anomalies``: what is wrong with the data, as tables and a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brtf.cli.fit import has_page, say_before_the_fit, understood
from brtf.cli.input import Input, reads_input
from brtf.cli.options import chooses_model, json_option, mode_option, out_option, overwrite_option, seed_option
from brtf.cli.output import (
    DONE,
    NOT_CONVERGED,
    print_first,
    print_json,
    records,
    refuse_overwriting,
    staged,
    written_text,
)

if TYPE_CHECKING:
    from brtf.data.readers.tables import Dialect
    from brtf.results.result import Result

KINDS = ("entries", "fibres", "slices", "rows")
PAGE = "anomalies.html"


@click.command()
@reads_input
@click.option(
    "--q", type=float, default=0.1, show_default=True, help="False discovery rate: the share of the list that is wrong."
)
@click.option(
    "--of",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=("entries", "slices"),
    show_default=True,
    help="What to list; may be given several times. Rows are the slices of the first mode.",
)
@mode_option("Mode of the slices, or the one along which the fibres run, by number or name  [default: all].")
@chooses_model
@seed_option
@out_option
@overwrite_option
@json_option
def anomalies(
    given: Input,
    q: float,
    kinds: Sequence[str],
    mode: int | str | None,
    seed: int,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
    model_options: dict[str, Any],
) -> int:
    """List the anomalies of the data in INPUT: entries, and slices whose entries are off together.

    INPUT is a file as for `brtf fit`, which is fitted first, or a saved fit, RESULT.brtf. Every list is as long as
    possible with an expected share --q of wrong ones. An entry is listed with its observed value, the expected one, the
    95 % interval of a regular value and the probability that it is an outlier. Slices, fibres and rows are judged as a
    whole: all entries shifted, noisier than others, or more often outliers; the evidence is in nats.

    With --out DIR the whole lists are written as anomalies.csv (entries), anomalies-slices.csv and so on, and as a
    page, anomalies.html. Positions count from 0, or from 1 if INPUT is .tns.
    """
    from brtf.results.anomalies import anomaly_table, count_in_words

    chosen = list(dict.fromkeys(kinds))
    if mode is not None and not {"fibres", "slices"} & {*chosen}:
        raise ValueError("--mode applies to fibres and slices: add --of slices, or leave it out.")
    names = {kind: "anomalies.csv" if kind == "entries" else f"anomalies-{kind}.csv" for kind in chosen}
    with_page = out is not None and has_page(PAGE)
    if out is not None:
        refuse_overwriting((out / name for name in (*names.values(), PAGE)), overwrite=overwrite)
    result, dialect = _fitted(given, seed, model_options, quiet=as_json)
    tables = {
        kind: anomaly_table(
            result, q, of=kind, mode=mode if kind in ("fibres", "slices") else None, first_position=given.counts_from
        )
        for kind in chosen
    }
    written = []
    with staged(out) as staging:
        if staging is not None and out is not None:
            from brtf.io.writers import write_csv

            for kind, name in names.items():
                write_csv(staging / name, tables[kind], dialect)
            if with_page:
                from brtf import __version__
                from brtf.view.report.anomalies import anomalies_page

                title = f"Anomalies in {given.path.name}"
                page = anomalies_page(result, tables, q, title, __version__, given.counts_from)
                (staging / PAGE).write_text(page, encoding="utf-8", errors="replace")
            written = [out / name for name in (*names.values(), *([PAGE] if with_page else []))]
    if as_json:
        lists = {kind: records(found) for kind, found in tables.items()}
        print_json({"q": q, "converged": result.stop_reason.converged, **lists, "written": list(map(str, written))})
    else:
        for kind, found in tables.items():
            click.echo(count_in_words(kind, found, q, result.observations.n_observed))
            print_first(found, "DIR")
            click.echo()
        click.echo(written_text(written).strip())
    return DONE if result.stop_reason.converged else NOT_CONVERGED


def _fitted(given: Input, seed: int, model_options: dict[str, Any], *, quiet: bool) -> tuple[Result, Dialect | None]:
    """The saved fit, or that of the data, and how the data are written if they are a table in text."""
    if given.path.suffix.lower() == ".brtf":
        from brtf.io.checkpoint import load_result

        if given.is_described:
            raise ValueError(
                f"{given.path} is a saved fit: --mask, --key, --index, --value and --wide do not apply to it."
            )
        return load_result(given.path), None
    from brtf.api.estimator import BRTF

    model, file = BRTF(random_state=seed, progress=sys.stderr.isatty(), **model_options), given.read()
    observations = given.observe(file)
    if not quiet:
        say_before_the_fit(understood(given.path, observations, file.dialect), model, observations)
    return model.fit(observations).result_, file.dialect
