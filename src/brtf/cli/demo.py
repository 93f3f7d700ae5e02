"""``brtf demo``: a fit against a known truth."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

from brtf.cli.options import json_option, out_option
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, staged, table, written_text


@click.command()
@out_option
@json_option
def demo(out: Path | None, as_json: bool) -> int:
    """Recover a generated tensor whose truth is known, and compare."""
    from brtf.datasets import paper_synthetic
    from brtf.estimator import BRTF
    from brtf.metrics import coverage, f_measure, rrse
    from brtf.summary import times

    data = paper_synthetic(outliers=0.1, missing=0.5, magnitude="10std", seed=1)
    rank = data.factors[0].shape[1]
    if not as_json:
        click.echo(
            f"A tensor of {times(data.observed.shape)} entries was made of {rank} components. Noise of variance "
            f"{data.noise_variance:g} was added\nto all entries, and to one in ten a gross error of up to ten "
            "standard deviations of the tensor.\nThen half of the entries were hidden. The fit is told none of this: "
            "it sees the other half.\n"
        )
    model = BRTF(random_state=0, progress=sys.stderr.isatty())
    with staged(out) as staging:
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
    numbers = model.summary().numbers
    written = [] if out is None else [out / "result.brtf"]
    if as_json:
        comparison = {name: {"found": found, "true": true} for name, _, found, true in compared}
        print_json({**numbers, "comparison": comparison, "written": [str(path) for path in written]})
    else:
        rows = [(words, f"{found:.4g}", f"{true:.4g}") for _, words, found, true in compared]
        click.echo(table([("", "found", "true or ideal"), *rows]))
        error, covered = (100 * found for name, _, found, _ in compared if name in ("rrse", "coverage"))
        click.echo(
            "\nFrom half of its entries, a tenth of them wrong, the tensor is known to within "
            f"{error:.2g} % of its size;\n{covered:.0f} % of the hidden entries lie in intervals meant to hold 95 %. "
            f"It took {numbers['sweeps']} sweeps, {numbers['seconds']:.1f} s."
        )
        click.echo(written_text(written))
    return DONE if model.converged_ else NOT_CONVERGED
