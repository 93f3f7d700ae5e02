"""The command line: results to stdout, everything else to stderr. The only module that writes to the terminal."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import numpy as np

from brtf import __version__
from brtf.bench.command import bench
from brtf.evaluation import PATTERNS
from brtf.settings import INFERENCES, INITS, NOISES, TRANSFORMS, Settings

if TYPE_CHECKING:
    from brtf.estimator import BRTF
    from brtf.observations import Observations

DONE, NOT_CONVERGED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
DENSE_LIMIT = 10_000_000
"""Sparse tensors with fewer entries, observed or missing, are imputed: 80 MB as an array, a few hundred as a table."""
TRACE_LINES = 5
DEFAULTS = Settings()


class _Commands(click.Group):
    """Commands whose return value is the exit code, and whose errors and warnings are one line each."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: _complain("warning", message)
            try:
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
            except click.ClickException as error:
                _complain("error", error.format_message())
                code = BAD_INPUT
            except click.Abort:
                click.echo("brtf: interrupted, nothing was written.", err=True)
                code = INTERRUPTED
            except (ValueError, TypeError, MemoryError, OSError) as error:
                _complain("error", _sentence(error))
                code = BAD_INPUT
        sys.exit(code)


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="brtf")
@click.pass_context
def main(context: click.Context) -> int:
    """Robust tensor factorization from incomplete data.

    Finds the low-rank structure, the outliers, the rank and the noise level of a matrix or tensor with missing
    entries. `brtf demo` shows it at work.

    Exit codes: 0 done, 1 not converged (results are still written), 2 bad input, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return DONE


main.add_command(bench)


def _reads_input(command: Callable[..., int]) -> Callable[..., int]:
    """The argument INPUT and the options that say how to read it."""
    for option in (
        click.option("--value", metavar="NAME", help="Column of a table that holds the values  [default: the last]."),
        click.option(
            "--index", metavar="A,B,C", help="Columns of a table that index the modes  [default: all but the value]."
        ),
        click.option("--key", metavar="NAME", help="Which array of an .npz or .mat file."),
        click.option(
            "--mask", type=click.Path(path_type=Path), help="What is observed: .npy .npz .mat of True/False or 1/0."
        ),
        click.argument("source", metavar="INPUT", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def _chooses_model(command: Callable[..., int]) -> Callable[..., int]:
    """The options that say what to fit; they arrive as ``model_options`` by the names of :class:`brtf.BRTF`."""

    @functools.wraps(command)
    def collected(
        max_rank: int | None,
        no_outliers: bool,
        noise: str,
        noise_modes: str | None,
        transform: str | None,
        max_sweeps: int,
        tol: float,
        **rest: Any,
    ) -> int:
        try:
            modes = None if noise_modes is None else [int(mode) for mode in noise_modes.split(",")]
        except ValueError:
            raise ValueError(
                f"--noise-modes must be modes such as 0,2, separated by commas; got {noise_modes}."
            ) from None
        model_options = {
            "max_rank": max_rank,
            "outliers": not no_outliers,
            "noise": noise,
            "noise_modes": modes,
            "transform": transform,
            "max_sweeps": max_sweeps,
            "tol": tol,
        }
        return command(model_options=model_options, **rest)

    decorated: Callable[..., int] = collected
    for option in (
        click.option("--tol", type=float, default=DEFAULTS.tol, show_default=True, help="Nats per observed entry."),
        click.option("--max-sweeps", type=int, default=DEFAULTS.max_sweeps, show_default=True, help="When to give up."),
        click.option(
            "--transform", type=click.Choice(TRANSFORMS), help="Fit the square root or logarithm of the data."
        ),
        click.option("--noise-modes", metavar="A,B", help="Modes along which the noise differs, counted from 0."),
        click.option(
            "--noise",
            type=click.Choice(NOISES),
            default=DEFAULTS.noise,
            show_default=True,
            help="One noise level, one per slice, or as the bound decides.",
        ),
        click.option("--no-outliers", is_flag=True, help="Fit a model without outliers."),
        click.option("--max-rank", type=int, help="The largest rank considered  [default: by the shape, at most 100]."),
    ):
        decorated = option(decorated)
    return decorated


def _read(source: Path, mask: Path | None, key: str | None, index: str | None, value: str | None) -> Observations:
    from brtf.observations import observe
    from brtf.readers import read_mask, read_tensor

    columns = None if index is None else [name.strip() for name in index.split(",")]
    tensor = read_tensor(source, key=key, index=columns, value=value)
    return observe(tensor, None if mask is None else read_mask(mask))


@main.command()
@_reads_input
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to write the results.")
@click.option("--replace-outliers", is_flag=True, help="Leave the outliers out of the imputed data too.")
@click.option("--inference", type=click.Choice(INFERENCES), default=DEFAULTS.inference, show_default=True)
@_chooses_model
@click.option("--init", type=click.Choice(INITS), default=DEFAULTS.init, show_default=True, help="Where to start.")
@click.option(
    "--calibrate",
    type=click.Choice(("conformal",)),
    help="Hold 5 % of the entries back and set the intervals' widths by them.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
) -> int:
    """Fit the data in INPUT and print what was found.

    INPUT is .npy, .npz or .mat (an array, NaN = missing), .csv or .tsv (a long table with a header: a row per
    observed entry), or .tns (FROSTT: positions from 1, then the value).

    With --out, writes into DIR: result.brtf (everything, for `brtf show` and `brtf.load`), imputed.npy or, for a
    table, imputed.csv (the data with the missing entries filled in) and outliers.csv (the entries that are more
    likely outliers than not). Positions count from 0, or from 1 if INPUT is .tns.
    """
    from brtf.estimator import BRTF

    observations = _read(source, mask, key, index, value)
    model = BRTF(
        inference=inference,
        init=init,
        calibrate=calibrate,
        random_state=seed,
        progress=not quiet and sys.stderr.isatty(),
        **model_options,
    )
    written: list[Path] = []
    with _staged(out) as staging:
        model.fit(observations)
        if out is not None and staging is not None:
            first_position = 1 if source.suffix.lower() == ".tns" else 0
            written = [out / name for name in _write_results(staging, model, first_position, replace_outliers)]
    numbers = _summary(model)
    if as_json:
        _print_json({**numbers, "written": [str(path) for path in written]})
    else:
        click.echo(_summary_text(numbers))
        click.echo(_written_text(written))
        if written and _is_too_large(observations):
            click.echo(f"No imputed tensor: it would have {observations.n_entries:,} entries, most of them missing.")
    return DONE if model.converged_ else NOT_CONVERGED


@main.command()
@click.argument("result", metavar="RESULT.brtf", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(result: Path, as_json: bool) -> int:
    """Print what a saved fit found: the summary, the strength of every component, the end of the trace.

    The strength of a component is the root mean square of its rank-one term, in the units of the data, or of the
    transformed data if a transform was fitted.
    """
    from brtf.estimator import load

    model = load(result)
    numbers = _summary(model)
    strengths = np.prod([np.sqrt(np.mean(factor**2, axis=0)) for factor in model.factors_], axis=0).tolist()
    trace = model.trace_[-TRACE_LINES:]
    names = trace.dtype.names or ()
    if as_json:
        records = [dict(zip(names, record, strict=True)) for record in trace.tolist()]
        _print_json({**numbers, "component_strengths": strengths, "trace": records})
        return DONE
    click.echo(_summary_text(numbers))
    units = _fitted_to(numbers["transform"])
    click.echo(f"\nStrength of the components (root mean square, in the units of {units})")
    click.echo(_table([(str(component), f"{strength:.4g}") for component, strength in enumerate(strengths)]))
    click.echo(f"\nLast sweeps of {len(model.trace_)}")
    click.echo(_table([names, *([_cell(entry) for entry in record] for record in trace.tolist())]))
    return DONE


@main.command()
@_reads_input
@click.option(
    "--inference",
    "inferences",
    type=click.Choice(INFERENCES),
    multiple=True,
    default=INFERENCES,
    show_default=True,
    help="What to compare; may be given several times.",
)
@_chooses_model
@click.option("--hold-out", type=float, default=0.1, show_default=True, help="Share of the observed entries to hide.")
@click.option("--pattern", type=click.Choice(PATTERNS), default=PATTERNS[0], show_default=True, help="What to hide.")
@click.option("--mode", type=int, default=0, show_default=True, help="Mode of the fibres or slices.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="How often to draw what is hidden."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of draws and fits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    source: Path,
    mask: Path | None,
    key: str | None,
    index: str | None,
    value: str | None,
    inferences: tuple[str, ...],
    repeats: int,
    as_json: bool,
    model_options: dict[str, Any],
    **options: Any,
) -> int:
    """Hide some observed entries of INPUT, predict them from the others, and compare.

    Prints for every inference the errors at the hidden entries (root mean square, mean, median), the mean log
    predictive density, the share of hidden values inside their 50, 80 and 95 % intervals, the mean width of the last,
    the rank and the seconds; means over the repeats. INPUT is read as by `brtf fit`.
    """
    from brtf.estimator import BRTF
    from brtf.evaluation import evaluate

    models = {inference: BRTF(inference=inference, **model_options) for inference in inferences}
    found = evaluate(_read(source, mask, key, index, value), model=models, n_repeats=repeats, **options)
    if as_json:
        _print_json({**options, "repeats": repeats, "rows": found.rows})
    else:
        click.echo(found.table())
    return DONE if all(row["converged"] for row in found.rows) else NOT_CONVERGED


@main.command()
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to write result.brtf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(out: Path | None, as_json: bool) -> int:
    """Recover a generated tensor whose truth is known, and compare."""
    from brtf.datasets import paper_synthetic
    from brtf.estimator import BRTF
    from brtf.metrics import coverage, f_measure, rrse

    data = paper_synthetic(outliers=0.1, missing=0.5, magnitude="10std", seed=1)
    rank = data.factors[0].shape[1]
    if not as_json:
        click.echo(
            f"A tensor of {_times(data.observed.shape)} entries was made of {rank} components. Noise of variance "
            f"{data.noise_variance:g} was added\nto all entries, and to one in ten a gross error of up to ten "
            "standard deviations of the tensor.\nThen half of the entries were hidden. The fit is told none of this: "
            "it sees the other half.\n"
        )
    model = BRTF(random_state=0, progress=sys.stderr.isatty())
    with _staged(out) as staging:
        model.fit(data.observed)
        if staging is not None:
            model.save(staging / "result.brtf")
    is_outlier = data.outliers[data.mask] != 0
    flagged = model.result_.outlier_probability_at_entries() > 0.5
    low, high = model.predict_interval(np.nonzero(~data.mask))
    compared = [
        ("rank", "rank", model.rank_, rank),
        ("rrse", "relative error of the low-rank part", rrse(model.low_rank(), data.low_rank), 0.0),
        ("noise_variance", "noise variance", model.noise_variance_, data.noise_variance),
        ("outlier_rate", "share of outliers", model.outlier_rate_, float(is_outlier.mean())),
        ("outlier_f_measure", "F-measure of the outliers flagged", f_measure(flagged, is_outlier), 1.0),
        ("coverage", "95 % intervals that hold the hidden truth", coverage(low, high, data.low_rank[~data.mask]), 0.95),
    ]
    numbers = _summary(model)
    written = [] if out is None else [out / "result.brtf"]
    if as_json:
        comparison = {name: {"found": found, "true": true} for name, _, found, true in compared}
        _print_json({**numbers, "comparison": comparison, "written": [str(path) for path in written]})
    else:
        rows = [(words, f"{found:.4g}", f"{true:.4g}") for _, words, found, true in compared]
        click.echo(_table([("", "found", "true or ideal"), *rows]))
        error, covered = (100 * found for name, _, found, _ in compared if name in ("rrse", "coverage"))
        click.echo(
            "\nFrom half of its entries, a tenth of them wrong, the tensor is known to within "
            f"{error:.2g} % of its size;\n{covered:.0f} % of the hidden entries lie in intervals meant to hold 95 %. "
            f"It took {numbers['sweeps']} sweeps, {numbers['seconds']:.1f} s."
        )
        click.echo(_written_text(written))
    return DONE if model.converged_ else NOT_CONVERGED


def _summary(model: BRTF) -> dict[str, Any]:
    """The numbers every command tells of a fit."""
    result = model.result_
    observations = result.observations
    return {
        "shape": list(observations.shape),
        "n_observed": observations.n_observed,
        "observed_share": observations.n_observed / observations.n_entries,
        "inference": result.settings.inference,
        "transform": result.settings.transform,
        "rank": model.rank_,
        "rank_limit": result.settings.rank_limit(observations.shape),
        "noise_sd": np.sqrt(model.noise_variance_).tolist(),
        "noise_variance": np.asarray(model.noise_variance_).tolist(),
        "noise_modes": None if result.state.slices is None else list(result.state.slices.modes),
        "outlier_rate": model.outlier_rate_,
        "bound": model.bound_,
        "sweeps": model.n_sweeps_,
        "seconds": result.seconds,
        "converged": model.converged_,
        "stop_reason": model.stop_reason_,
    }


def _summary_text(numbers: dict[str, Any]) -> str:
    return _table(
        [
            ("shape", _times(numbers["shape"])),
            ("observed", f"{numbers['n_observed']:,} entries, {100 * numbers['observed_share']:.4g} % of all"),
            ("inference", numbers["inference"]),
            ("fitted to", _fitted_to(numbers["transform"])),
            ("rank", f"{numbers['rank']} (at most {numbers['rank_limit']} considered)"),
            ("noise", _noise_text(numbers)),
            ("outliers", _rate_text(numbers["outlier_rate"])),
            ("bound", f"{numbers['bound']:.8g} nats"),
            ("sweeps", f"{numbers['sweeps']} in {numbers['seconds']:.2f} s"),
            ("stopped", numbers["stop_reason"]),
        ]
    )


def _noise_text(numbers: dict[str, Any]) -> str:
    if numbers["noise_modes"] is None:
        return f"standard deviation {numbers['noise_sd']:.4g}, variance {numbers['noise_variance']:.4g}"
    low, middle, high = np.quantile(numbers["noise_sd"], (0.0, 0.5, 1.0))
    modes = ", ".join(str(mode) for mode in numbers["noise_modes"])
    return f"differs along mode {modes}: standard deviation {low:.4g} to {high:.4g}, typically {middle:.4g}"


def _rate_text(rate: float) -> str:
    return "none" if rate < 1e-5 else f"{100 * rate:.3g} % of the observed entries"


def _fitted_to(transform: str | None) -> str:
    """What the components add up to, and whose units the noise is in."""
    return "the data" if transform is None else f"{transform}(data)"


@contextmanager
def _staged(directory: Path | None) -> Iterator[Path | None]:
    """A place to write: its files move to the directory together in the end, and vanish if something fails."""
    if directory is None:
        yield None
        return
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".brtf-", dir=directory) as staging:
            yield Path(staging)
            for file in Path(staging).iterdir():
                os.replace(file, directory / file.name)
    except BaseException:
        if is_new:
            with suppress(OSError):  # not empty: then something in it is worth keeping
                directory.rmdir()
        raise


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


def _written_text(written: list[Path]) -> str:
    if not written:
        return "\nNothing was written; pass --out DIR to keep the results."
    return "\nWrote " + ", ".join(map(str, written)) + "."


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells, in columns as wide as they need to be."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def _cell(entry: Any) -> str:
    return f"{entry:.8g}" if isinstance(entry, float) else str(entry)


def _times(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(_finite(document), allow_nan=False, indent=2))


def _finite(document: Any) -> Any:
    """The document with null for NaN and infinities, which JSON does not have."""
    if isinstance(document, dict):
        return {name: _finite(entry) for name, entry in document.items()}
    if isinstance(document, list):
        return [_finite(entry) for entry in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def _complain(kind: str, message: object) -> None:
    click.echo(f"brtf: {kind}: {' '.join(str(message).split())}", err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error) or type(error).__name__
