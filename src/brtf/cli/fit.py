"""``brtf fit``: fit a file, print a summary, write the results."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brtf.cli.input import Input, reads_input
from brtf.cli.options import (
    DEFAULTS,
    chooses_model,
    json_option,
    keeps_itself,
    out_option,
    overwrite_option,
    seed_option,
)
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, refuse_overwriting, staged, written_text
from brtf.model.settings import INFERENCES, INITS

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF
    from brtf.data.observations import Observations
    from brtf.data.readers import TensorFile
    from brtf.data.readers.tables import Dialect

EXISTING = click.Path(exists=True, dir_okay=False)
DENSE_LIMIT = 10_000_000
"""Sparse tensors with fewer entries, observed or missing, are imputed: 80 MB as an array, a few 100 MB as a table."""


@click.command()
@reads_input
@out_option
@overwrite_option
@click.option("--replace-outliers", is_flag=True, help="Also remove the outliers from the imputed data.")
@click.option("--inference", type=click.Choice(INFERENCES), default=DEFAULTS.inference, show_default=True)
@chooses_model
@click.option(
    "--init", type=click.Choice(INITS), default=DEFAULTS.init, show_default=True, help="Initialisation of the factors."
)
@click.option(
    "--calibrate",
    type=click.Choice(("conformal",)),
    help="Set aside 5 % of the entries and calibrate the interval widths on them.",
)
@seed_option
@keeps_itself
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="What reads and processes the data: a Dask scheduler such as tcp://host:8786, or 'processes' on this machine.",
)
@click.option("--tls-ca-file", metavar="PEM", type=EXISTING, help="CA certificate of a tls:// scheduler.")
@click.option("--tls-cert", metavar="PEM", type=EXISTING, help="Your certificate, for a tls:// scheduler.")
@click.option("--tls-key", metavar="PEM", type=EXISTING, help="The private key of that certificate.")
@json_option
@click.option("--quiet", is_flag=True, help="No progress bar.")
def fit(
    given: Input,
    out: Path | None,
    overwrite: bool,
    replace_outliers: bool,
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
    """Fit the data in INPUT and print a summary.

    INPUT is an array with NaN for missing entries (.npy .npz .mat .nc .zarr), a table (.csv .tsv .csv.gz .parquet
    .feather .xlsx), either long with a row per observed entry or wide with a row per row of a matrix, or a coordinate
    list (FROSTT .tns: positions from 1, then the value). What was understood is said in one line.

    With --out, writes into DIR: result.brtf (the complete result, for `brtf show` and `brtf.load`), imputed.* (the data
    with missing entries filled in, in the format of INPUT), outliers.csv (the entries with an outlier probability above
    1/2) and report.html (a report page). Positions count from 0, or from 1 if INPUT is .tns. Either all files are
    written or none, and existing files are replaced only with --overwrite.

    With --checkpoint, a fit that was interrupted (Ctrl-C, exit code 130; SIGTERM, 143; SIGHUP, 129) or killed can be
    continued with --resume and otherwise the same options, and gives the result of the uninterrupted fit, to the last
    bit. Without --checkpoint, an interrupted fit is saved in DIR as checkpoint.brtf.

    With --scheduler, a .zarr store, an .npy file or a directory of tables of positions and values (.parquet .csv .tsv)
    is read chunk by chunk by a cluster, with the same result. Without it, this process reads any such directory, and a
    store larger than half of the memory, chunk by chunk. In place of the tables and the report, --out then writes
    fitted.zarr, with the imputed data and the outliers.

    Anyone who can connect to a Dask scheduler can run code on it, on its workers and in this process. On shared
    networks use a scheduler at tls://host:port with --tls-ca-file, --tls-cert and --tls-key.
    """
    from brtf.api.estimator import BRTF
    from brtf.data.executors import executing
    from brtf.data.passes import count_workers
    from brtf.data.readers import suffix_of

    if out is not None:
        planned = ("result.brtf", f"imputed{suffix_of(given.path)}", "outliers.csv", "report.html", "fitted.zarr")
        refuse_overwriting((out / name for name in planned), overwrite=overwrite)
    with_page = out is not None and has_page("report.html")
    model = BRTF(random_state=seed, progress=not quiet and sys.stderr.isatty(), **model_options)
    written: list[Path] = []
    jobs = model_options["n_jobs"]
    security = _security(scheduler, tls_ca_file, tls_cert, tls_key)
    with executing(scheduler, count_workers(-1 if jobs is None else jobs), security) as dashboard:
        if dashboard is not None and not quiet:
            click.echo(f"Dashboard of the cluster: {dashboard}", err=True)
        file = None
        if scheduler is not None or given.is_read_in_chunks:
            observations = given.open_in_chunks()
        else:
            file = given.read()
            observations = given.observe(file)
        read = understood(given.path, observations, None if file is None else file.dialect)
        if not as_json:
            say_before_the_fit(read, model, observations)
        with staged(out) as staging:
            model.fit(observations, **kept)
            if out is not None and staging is not None:
                title = page_title(given.path, observations) if with_page else None
                names = _write_results(staging, model, file, replace_outliers, title)
                written = [out / name for name in names]
    summary = model.summary()
    if as_json:
        print_json({**summary.numbers, "read": read, "written": [str(path) for path in written]})
    else:
        click.echo(summary)
        click.echo(written_text(written))
        if file is not None and written and _is_too_large(observations):
            click.echo(f"No imputed tensor: it would have {observations.n_entries:,} entries, most of them missing.")
    return DONE if model.converged_ else NOT_CONVERGED


def understood(source: Path, observations: Observations, dialect: Dialect | None) -> str:
    """One line about what was read: modes, labels, missing entries, units."""
    from brtf.data.description import described

    told = f"Read {source.name}: {described(observations)}{f'; {dialect}' if dialect else ''}"
    return told if told.endswith(".") else f"{told}."  # units may be abbreviated


def say_before_the_fit(read: str, model: BRTF, observations: Observations) -> None:
    """Print what was read while there is time to stop, unless the options are wrong: then raise for these."""
    model._settings().with_numbered_modes(observations.dim_names, observations.order)
    click.echo(f"{read}\n")


def page_title(source: Path, observations: Observations) -> str:
    """What was measured, and the file that it is in."""
    return source.name if observations.name is None else f"{observations.name} in {source.name}"


def _security(scheduler: str | None, *files: str | None) -> Any:
    """The security settings of --tls-ca-file, --tls-cert and --tls-key; None if none of them is given."""
    from brtf.data.executors import certified

    given = [file for file in files if file is not None]
    if not given:
        return None
    if len(given) < len(files):
        raise ValueError("--tls-ca-file, --tls-cert and --tls-key belong together: give all three.")
    return certified(scheduler, *given)


def has_page(name: str) -> bool:
    """Whether a page can be written; if not, warn, since the other results are still worth having."""
    from brtf.view.report import require_page

    try:
        require_page()
    except ImportError as error:  # an optional extra
        warnings.warn(f"There will be no {name}: {error}", stacklevel=2)
        return False
    return True


def _write_results(
    staging: Path, model: BRTF, file: TensorFile | None, replace_outliers: bool, title: str | None
) -> list[str]:
    """Write the files of `brtf fit --out`; returns their names in the same order."""
    from brtf.io.writers import write_csv, write_like
    from brtf.results.tables import outlier_table

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
    outliers = outlier_table(result, first_position=1 if file.suffix == ".tns" else 0)
    write_csv(staging / written[-1], outliers, file.dialect)
    if title is not None:
        model.report(staging / "report.html", title=title)
        written.append("report.html")
    return written


def _is_too_large(observations: Observations) -> bool:
    """Whether the data are sparse and the whole tensor is too large to write."""
    return observations.layout == "coordinates" and observations.n_entries >= DENSE_LIMIT
