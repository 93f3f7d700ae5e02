"""``brtf fit``: fit a file, print what was found, write the results."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brtf.cli.options import (
    DEFAULTS,
    chooses_model,
    is_read_in_chunks,
    json_option,
    keeps_itself,
    observe_file,
    open_in_chunks,
    out_option,
    overwrite_option,
    read_source,
    reads_input,
    seed_option,
)
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, refuse_overwriting, staged, written_text
from brtf.model.settings import INFERENCES, INITS

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF
    from brtf.data.observations import Observations
    from brtf.data.readers import TensorFile

EXISTING = click.Path(exists=True, dir_okay=False)
DENSE_LIMIT = 10_000_000
"""Sparse tensors with fewer entries, observed or missing, are imputed: 80 MB as an array, a few hundred as a table."""


@click.command()
@reads_input
@out_option
@overwrite_option
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
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Have others read and work on the data: a Dask scheduler such as tcp://host:8786, or 'processes' of this "
    "machine.",
)
@click.option(
    "--tls-ca-file", metavar="PEM", type=EXISTING, help="Certificate of the authority that a tls:// scheduler has."
)
@click.option("--tls-cert", metavar="PEM", type=EXISTING, help="Your certificate, for a tls:// scheduler.")
@click.option("--tls-key", metavar="PEM", type=EXISTING, help="The private key of that certificate.")
@json_option
@click.option("--quiet", is_flag=True, help="No progress bar.")
def fit(
    source: Path,
    mask: Path | None,
    key: str | None,
    index: str | None,
    value: str | None,
    wide: bool,
    out: Path | None,
    overwrite: bool,
    replace_outliers: bool,
    inference: str,
    init: str,
    calibrate: str | None,
    seed: int,
    scheduler: str | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    as_json: bool,
    quiet: bool,
    model_options: dict[str, Any],
    kept: dict[str, Any],
) -> int:
    """Fit the data in INPUT and print what was found.

    INPUT is an array, NaN = missing (.npy .npz .mat .nc .zarr), a table (.csv .tsv .parquet), long with a row per
    observed entry or wide with a row per row of a matrix, or a coordinate list (.tns of FROSTT: positions from 1, then
    the value).

    With --out, writes into DIR: result.brtf (everything, for `brtf show` and `brtf.load`), imputed.* (the data with the
    missing entries filled in, in the format of INPUT), outliers.csv (the entries that are more likely outliers than
    not) and report.html (a page about it). Positions count from 0, or from 1 if INPUT is .tns. Nothing is written
    unless everything can be, and nothing is replaced without --overwrite.

    With --checkpoint, a fit that was interrupted (Ctrl-C, exit code 130; SIGTERM, 143; SIGHUP, 129) or killed goes on
    with --resume, everything else being the same, and ends where it would have ended, to the last bit. Without it, what
    was interrupted is kept in DIR, as checkpoint.brtf.

    With --scheduler, a .zarr store, an .npy file or a directory of tables of positions and values (.parquet .csv .tsv)
    is read chunk by chunk by a cluster, to the same result; so is, by this process, any such directory, and a store
    that takes more than half of the memory. In place of the tables and the page, --out then gets fitted.zarr, with the
    imputed data and the outliers.

    Whoever reaches a Dask scheduler can run anything on it, on its workers and here. Over networks that others use,
    let it listen at tls://host:port, and give --tls-ca-file, --tls-cert and --tls-key.
    """
    from brtf.api.estimator import BRTF
    from brtf.data.executors import executing
    from brtf.data.passes import count_workers

    if out is not None:
        planned = ("result.brtf", f"imputed{source.suffix.lower()}", "outliers.csv", "report.html", "fitted.zarr")
        refuse_overwriting((out / name for name in planned), overwrite=overwrite)
    has_page = out is not None and _has_page()
    model = BRTF(
        inference=inference,
        init=init,
        calibrate=calibrate,
        random_state=seed,
        progress=not quiet and sys.stderr.isatty(),
        **model_options,
    )
    written: list[Path] = []
    jobs = model_options["n_jobs"]
    security = _security(scheduler, tls_ca_file, tls_cert, tls_key)
    with executing(scheduler, count_workers(-1 if jobs is None else jobs), security) as dashboard:
        if dashboard is not None and not quiet:
            click.echo(f"Dashboard of the cluster: {dashboard}", err=True)
        file = None
        if scheduler is not None or is_read_in_chunks(source):
            observations = open_in_chunks(source, mask, key, index, value, wide)
        else:
            file = read_source(source, key, index, value, wide)
            observations = observe_file(file, mask)
        with staged(out) as staging:
            model.fit(observations, **kept)
            if out is not None and staging is not None:
                names = _write_results(staging, model, file, replace_outliers, has_page)
                written = [out / name for name in names]
    summary = model.summary()
    if as_json:
        print_json({**summary.numbers, "written": [str(path) for path in written]})
    else:
        click.echo(summary)
        click.echo(written_text(written))
        if file is not None and written and _is_too_large(observations):
            click.echo(f"No imputed tensor: it would have {observations.n_entries:,} entries, most of them missing.")
    return DONE if model.converged_ else NOT_CONVERGED


def _security(scheduler: str | None, *files: str | None) -> Any:
    """What --tls-ca-file, --tls-cert and --tls-key say; None where none of them is given."""
    from brtf.data.executors import certified

    given = [file for file in files if file is not None]
    if not given:
        return None
    if len(given) < len(files):
        raise ValueError("--tls-ca-file, --tls-cert and --tls-key belong together: give all three.")
    return certified(scheduler, *given)


def _has_page() -> bool:
    """Whether there will be a page; a warning if not, as the results are worth more than the page."""
    from brtf.view.report import require_page

    try:
        require_page()
    except ImportError as error:  # an optional extra
        warnings.warn(f"There will be no report.html: {error}", stacklevel=2)
        return False
    return True


def _write_results(
    staging: Path, model: BRTF, file: TensorFile | None, replace_outliers: bool, has_page: bool
) -> list[str]:
    """Write what `brtf fit --out` promises, one step for each; returns the names in the same order."""
    from brtf.io.writers import write_csv, write_like

    result = model.result_
    model.save(staging / "result.brtf")
    written = ["result.brtf"]
    if file is None:  # in chunks
        model.write(staging / "fitted.zarr", what=("imputed", "outliers"))
        return [*written, "fitted.zarr"]
    if not _is_too_large(result.observations):
        filled = result.impute(replace_outliers=replace_outliers)
        written.append(f"imputed{file.suffix}")
        write_like(file, staging / written[-1], filled.astype(result.observations.values.dtype, copy=False))
    written.append("outliers.csv")
    write_csv(staging / written[-1], result.outlier_table(first_position=1 if file.suffix == ".tns" else 0))
    if has_page:
        model.report(staging / "report.html")
        written.append("report.html")
    return written


def _is_too_large(observations: Observations) -> bool:
    """Whether the data are sparse and the whole tensor is too large to write."""
    return observations.layout == "coordinates" and observations.n_entries >= DENSE_LIMIT
