"""``brtf fit``: fit a file, print what was found, write the results."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from brtf.cli.options import (
    DEFAULTS,
    chooses_model,
    json_option,
    keeps_itself,
    out_option,
    read,
    reads_input,
    seed_option,
)
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, staged, written_text
from brtf.settings import INFERENCES, INITS

if TYPE_CHECKING:
    from brtf.estimator import BRTF
    from brtf.observations import Observations

DENSE_LIMIT = 10_000_000
"""Sparse tensors with fewer entries, observed or missing, are imputed: 80 MB as an array, a few hundred as a table."""


@click.command()
@reads_input
@out_option
@click.option("--replace-outliers", is_flag=True, help="Leave the outliers out of the imputed data too.")
@click.option("--inference", type=click.Choice(INFERENCES), default=DEFAULTS.inference, show_default=True)
@chooses_model
@click.option("--init", type=click.Choice(INITS), default=DEFAULTS.init, show_default=True, help="Where to start.")
@click.option(
    "--calibrate",
    type=click.Choice(("conformal",)),
    help="Hold 5 % of the entries back and set the intervals' widths by them.",
)
@seed_option
@keeps_itself
@json_option
@click.option("--quiet", is_flag=True, help="No progress bar.")
def fit(
    source: Path,
    mask: Path | None,
    key: str | None,
    index: str | None,
    value: str | None,
    out: Path | None,
    replace_outliers: bool,
    inference: str,
    init: str,
    calibrate: str | None,
    seed: int,
    as_json: bool,
    quiet: bool,
    model_options: dict[str, Any],
    kept: dict[str, Any],
) -> int:
    """Fit the data in INPUT and print what was found.

    INPUT is .npy, .npz or .mat (an array, NaN = missing), .csv or .tsv (a long table with a header: a row per
    observed entry), or .tns (FROSTT: positions from 1, then the value).

    With --out, writes into DIR: result.brtf (everything, for `brtf show` and `brtf.load`), imputed.npy or, for a
    table, imputed.csv (the data with the missing entries filled in) and outliers.csv (the entries that are more
    likely outliers than not). Positions count from 0, or from 1 if INPUT is .tns.

    With --checkpoint, a fit that was interrupted (Ctrl-C, exit code 130) or killed goes on with --resume, everything
    else being the same, and ends where it would have ended, to the last bit.
    """
    from brtf.estimator import BRTF

    observations = read(source, mask, key, index, value)
    model = BRTF(
        inference=inference,
        init=init,
        calibrate=calibrate,
        random_state=seed,
        progress=not quiet and sys.stderr.isatty(),
        **model_options,
    )
    written: list[Path] = []
    with staged(out) as staging:
        model.fit(observations, **kept)
        if out is not None and staging is not None:
            first_position = 1 if source.suffix.lower() == ".tns" else 0
            written = [out / name for name in _write_results(staging, model, first_position, replace_outliers)]
    summary = model.summary()
    if as_json:
        print_json({**summary.numbers, "written": [str(path) for path in written]})
    else:
        click.echo(summary)
        click.echo(written_text(written))
        if written and _is_too_large(observations):
            click.echo(f"No imputed tensor: it would have {observations.n_entries:,} entries, most of them missing.")
    return DONE if model.converged_ else NOT_CONVERGED


def _write_results(staging: Path, model: BRTF, first_position: int, replace_outliers: bool) -> list[str]:
    """Write the files of a fit; returns their names. Sparse data are imputed only if the whole is small enough."""
    result = model.result_
    observations = result.observations
    labels = observations.labels
    coords = (None,) * observations.order if labels is None else labels.coords
    modes = [f"mode_{mode}" for mode in range(observations.order)] if labels is None else list(labels.dims)
    positions: list[Sequence[Any]] = [
        range(first_position, first_position + length) if names is None else names.tolist()
        for length, names in zip(observations.shape, coords, strict=True)
    ]
    model.save(staging / "result.brtf")
    written = ["result.brtf"]
    if not _is_too_large(observations):
        filled = result.impute(replace_outliers=replace_outliers)
        if labels is None:
            np.save(staging / "imputed.npy", filled)
            written.append("imputed.npy")
        else:
            rows = (
                (*entry, number) for entry, number in zip(product(*positions), map(float, filled.flat), strict=True)
            )
            _write_csv(staging / "imputed.csv", [*modes, labels.name], rows)
            written.append("imputed.csv")
    _write_csv(
        staging / "outliers.csv",
        [*modes, "observed", "low_rank", "outlier", "probability"],
        _outlier_rows(model, positions),
    )
    return [*written, "outliers.csv"]


def _outlier_rows(model: BRTF, positions: list[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Entries that are more likely outliers than not, the largest first."""
    result = model.result_
    probability = result.outlier_probability_at_entries()
    outliers = result.outliers_at_entries()
    chosen = np.flatnonzero(probability > 0.5)
    if chosen.size == 0:
        return
    chosen = chosen[np.argsort(-np.abs(outliers[chosen]), kind="stable")]
    coords = result.observations.entry_coords()[:, chosen]
    columns = (
        result.observations.values.ravel()[chosen],
        result.low_rank(coords),
        outliers[chosen],
        probability[chosen],
    )
    for entry, *numbers in zip(coords.T.tolist(), *(column.tolist() for column in columns), strict=True):
        yield *(names[position] for names, position in zip(positions, entry, strict=True)), *numbers


def _is_too_large(observations: Observations) -> bool:
    return observations.layout == "coordinates" and observations.n_entries >= DENSE_LIMIT


def _write_csv(path: Path, header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
