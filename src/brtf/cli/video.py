"""``brtf video``: separate a clip from a fixed camera into background and foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from brtf.cli.options import (
    DEFAULTS,
    json_option,
    keeps_itself,
    max_seconds_option,
    overwrite_option,
    seed_option,
)
from brtf.cli.output import DONE, NOT_CONVERGED, print_json, refuse_overwriting, staged, table, written_text

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF
    from brtf.video.clips import Clip
    from brtf.video.foreground import Mask

WRITTEN = ("background.mp4", "foreground.mp4", "mask.mp4", "result.brtf", "report.html")
FEWEST_COMPONENTS = 2
"""One component for the scene and one for changes of its light; a scene with C channels needs C components."""


@click.command()
@click.argument("source", metavar="INPUT")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="Where to write the clips.")
@overwrite_option
@click.option("--scale", type=float, default=1.0, show_default=True, help="Scale of the frames, at most 1.")
@click.option(
    "--frames", metavar="A:B", help="Frames from A up to but not including B, counted from 0  [default: all]."
)
@click.option("--gray", is_flag=True, help="Convert to grey first.")
@click.option("--drop", type=float, default=0.0, show_default=True, help="Share of the pixels to hide at random.")
@click.option("--clean", is_flag=True, help="Smooth the mask into connected objects.")
@click.option("--max-rank", type=int, help="Largest rank of the background  [default: 2, or 3 in colour].")
@click.option(
    "--max-sweeps", type=int, default=DEFAULTS.max_sweeps, show_default=True, help="Maximum number of sweeps."
)
@max_seconds_option
@click.option(
    "--tol", type=float, default=DEFAULTS.tol, show_default=True, help="Convergence, in nats per observed entry."
)
@click.option("--jobs", type=int, default=-1, show_default=True, help="Number of threads; -1 for all cores.")
@seed_option
@keeps_itself
@json_option
@click.option("--quiet", is_flag=True, help="No progress bar.")
def video(
    source: str,
    out: Path,
    overwrite: bool,
    scale: float,
    frames: str | None,
    gray: bool,
    drop: float,
    clean: bool,
    max_rank: int | None,
    max_sweeps: int,
    max_seconds: float | None,
    tol: float,
    jobs: int,
    seed: int,
    as_json: bool,
    quiet: bool,
    kept: dict[str, Any],
) -> int:
    """Separate the clip in INPUT into background and foreground.

    INPUT is a video from a fixed camera (MP4, MOV, Matroska, WebM, AVI, MPEG, GIF and others), a folder of PNG or JPEG
    images, a quoted pattern such as "in*.jpg", or an .npy or .npz array (frames, height, width[, 3]) of levels from 0
    to 255. The background is the low-rank part of pixels x channels x frames, with a noise level per pixel
    and outliers shared by the colours. A pixel is foreground when it is more likely an outlier than not.

    Writes into DIR: background.mp4, foreground.mp4 (on grey) and mask.mp4, which any browser plays, result.brtf (the
    complete result, for `brtf show` and `brtf.load`) and report.html, a page with the frames. Dropped pixels are never
    foreground, but with --clean they take the label of their nearest neighbour.

    With --checkpoint, a fit that was interrupted or killed can be continued with --resume and otherwise the same
    options. Without --checkpoint, an interrupted fit is saved in DIR.
    """
    from brtf.api.estimator import BRTF
    from brtf.video.clips import read_clip
    from brtf.video.foreground import foreground_probability, smooth_mask
    from brtf.view.report import require_page

    refuse_overwriting((out / name for name in WRITTEN), overwrite=overwrite)
    require_page()
    clip = read_clip(source, frames=_frames(frames), scale=scale, gray=gray, drop=drop, seed=seed)
    model = BRTF(
        max_rank=max(FEWEST_COMPONENTS, clip.n_channels) if max_rank is None else max_rank,
        noise="per-slice",
        link=None,
        arrangement=None,
        outlier_modes=None if clip.tensor.ndim == 2 else (1,),
        n_jobs=jobs,
        max_sweeps=max_sweeps,
        max_seconds=max_seconds,
        tol=tol,
        random_state=seed,
        progress=not quiet and sys.stderr.isatty(),
    )
    written: list[Path] = []
    with staged(out) as staging:
        model.fit(clip.tensor, **kept)
        probability = foreground_probability(model, clip)
        mask = smooth_mask(probability) if clean else probability > 0.5
        if staging is not None:
            written = [out / name for name in _write(staging, model, clip, mask)]
    n_judged = mask.size if clean else np.count_nonzero(~np.isnan(probability))
    numbers = _numbers(model, clip, np.count_nonzero(mask) / n_judged)
    if as_json:
        print_json({**numbers, "written": [str(path) for path in written]})
    else:
        click.echo(_text(numbers))
        click.echo(written_text(written))
    return DONE if model.converged_ else NOT_CONVERGED


def _frames(text: str | None) -> slice | None:
    """Parse A:B or A:B:STEP as a slice."""
    if text is None:
        return None
    try:
        start, stop, *step = (int(bound) if bound.strip() else None for bound in text.split(":"))
        return slice(start, stop, *step)
    except (TypeError, ValueError):
        raise ValueError(f"--frames must be like 10:60, :60 or 10:, or 0:600:5 for every fifth; got {text}.") from None


def _write(directory: Path, model: BRTF, clip: Clip, mask: Mask) -> list[str]:
    """Write the clips and the result; returns their names."""
    from brtf.video.clips import write_clip
    from brtf.video.foreground import background_images, foreground_images

    clips = {
        "background.mp4": background_images(model, clip),
        "foreground.mp4": foreground_images(clip, mask),
        "mask.mp4": (255 * mask[:, :, frame] for frame in range(clip.n_frames)),
    }
    for name, images in clips.items():
        write_clip(directory / name, images, clip.rate)
    model.save(directory / "result.brtf")
    pixel_modes = (0,) if clip.tensor.ndim == 2 else (0, 1)
    model.report(directory / "report.html", image_modes=pixel_modes, image_size=(clip.height, clip.width))
    return list(WRITTEN)


def _numbers(model: BRTF, clip: Clip, foreground_share: float) -> dict[str, Any]:
    """The results by name; for the noise levels of the pixels the minimum, median and maximum."""
    noise = np.quantile(np.sqrt(model.noise_variances_), (0.0, 0.5, 1.0)).tolist()
    return {
        **model.summary().numbers,
        "noise_sd": noise,
        "noise_variance": [level**2 for level in noise],
        "frames": clip.n_frames,
        "frames_announced": clip.announced,
        "width": clip.width,
        "height": clip.height,
        "channels": clip.n_channels,
        "frames_per_second": float(clip.rate),
        "foreground_share": foreground_share,
    }


def _text(numbers: dict[str, Any]) -> str:
    from brtf.results.summary import rank_in_words

    announced = "" if numbers["frames_announced"] is None else f" ({numbers['frames_announced']} announced)"
    low, middle, high = numbers["noise_sd"]
    return table(
        [
            ("clip", f"{numbers['frames']} frames{announced} of {numbers['width']} x {numbers['height']} pixels"),
            ("observed", f"{100 * numbers['observed_share']:.4g} % of the pixels"),
            ("rank", rank_in_words(numbers)),
            ("noise", f"standard deviation {low:.3g} to {high:.3g} levels of 255, typically {middle:.3g}"),
            ("foreground", f"{100 * numbers['foreground_share']:.3g} % of the pixels"),
            ("sweeps", f"{numbers['sweeps']} in {numbers['seconds']:.1f} s"),
            ("stopped", numbers["stop_reason"]),
        ]
    )
