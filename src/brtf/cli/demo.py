"""``brtf demo``: fit a synthetic clip with known truth and write a report."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

from brtf.cli.options import json_option, overwrite_option
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, refuse_overwriting, staged, table, written_text

SIZE = {"height": 32, "width": 48, "frames": 30}


@click.command()
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where to write the report and the result  [default: brtf-demo, replacing an earlier demo].",
)
@overwrite_option
@json_option
def demo(out: Path | None, overwrite: bool, as_json: bool) -> int:
    """Separate a synthetic surveillance clip into background and moving objects, and compare with the truth.

    The clip has 30 frames of 32 x 48 pixels in colour, with flickering light, moving objects, a noise level per pixel,
    some dead sensors and 30 % of the pixels missing. Writes result.brtf and report.html.
    """
    from brtf.api.estimator import BRTF
    from brtf.api.metrics import coverage, f_measure, rrse
    from brtf.api.toy_video import toy_video
    from brtf.view.report import require_page

    if out is None:
        out, overwrite = Path("brtf-demo"), True
    written = [out / "result.brtf", out / "report.html"]
    refuse_overwriting(written, overwrite=overwrite)
    require_page()
    clip = toy_video("lamp", **SIZE, missing=0.3, seed=0)
    if not as_json:
        click.echo(
            "A fixed camera films a scene in flickering light; a car, a walker and a ball pass by. 30 % of the pixels "
            "are\nmissing, some sensors are dead, all are noisy. The input is a tensor of 1536 pixels x 3 colours x 30 "
            "frames;\nthe only other information is that outliers are shared by the colours of a pixel.\n"
        )
    model = BRTF(max_rank=5, outlier_modes=(1,), max_sweeps=1000, random_state=0, progress=sys.stderr.isatty())
    with staged(out) as staging:
        model.fit(clip.observed)
        if staging is not None:
            model.save(staging / "result.brtf")
            model.report(
                staging / "report.html",
                image_modes=(0, 1),
                image_size=(clip.height, clip.width),
                title="A clip with moving objects, missing pixels and dead sensors",
            )
    alive = np.broadcast_to(~clip.dead[:, None, None], clip.observed.shape)
    hidden = alive & ~clip.mask
    passing = np.broadcast_to(clip.foreground_mask[:, None, :], clip.observed.shape)
    flagged = model.outlier_probability() > 0.5
    low, high = model.predict_interval()
    scenes = clip.background.reshape(clip.background.shape[0], -1)  # every pixel over colours and frames
    compared = [
        ("rank", "rank of the background", float(model.rank_), float(np.linalg.matrix_rank(scenes))),
        ("rrse", "relative error of the background", rrse(model.low_rank()[alive], clip.background[alive]), 0.0),
        ("outlier_rate", "share of foreground pixels", model.outlier_rate_, float(passing[clip.mask].mean())),
        ("outlier_f_measure", "F-measure of the foreground", f_measure(flagged[clip.mask], passing[clip.mask]), 1.0),
        (
            "coverage",
            "coverage of 95 % intervals, missing pixels",
            coverage(low[hidden], high[hidden], clip.background[hidden]),
            0.95,
        ),
    ]
    numbers = model.summary().numbers
    if as_json:
        comparison = {name: {"found": found, "true": true} for name, _, found, true in compared}
        print_json({**numbers, "comparison": comparison, "written": [str(path) for path in written]})
    else:
        rows = [(words, f"{found:.4g}", f"{true:.4g}") for _, words, found, true in compared]
        click.echo(table([("", "found", "true or ideal"), *rows]))
        click.echo(
            f"\nThe fit took {numbers['sweeps']} sweeps, {numbers['seconds']:.1f} s. {out / 'report.html'} shows every "
            "frame: data, background, moving objects and uncertainty."
        )
        click.echo(written_text(written))
    return DONE if model.converged_ else NOT_CONVERGED
