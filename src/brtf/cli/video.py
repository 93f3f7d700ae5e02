"""``brtf video``: find what moves in a clip from a fixed camera."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
from brtf.cli.output import (
    DONE,
    NOT_CONVERGED,
    interrupted_code,
    print_json,
    refuse_overwriting,
    staged,
    table,
    written_text,
)
from brtf.data.signals import signals_later

if TYPE_CHECKING:
    from brtf.api.estimator import BRTF
    from brtf.video.clips import Clip, Footage
    from brtf.video.foreground import Mask
    from brtf.video.stream import StreamPlan

WRITTEN = (
    "mask.mp4",
    "mask",
    "background.png",
    "foreground.mp4",
    "boxes.mp4",
    "boxes.csv",
    "boxes.json",
    "report.html",
)
WRITTEN_LOW_RANK = ("background.mp4", "foreground.mp4", "mask.mp4", "result.brtf", "report.html")
OF_LOW_RANK = ("clean", "max_rank", "max_sweeps", "max_seconds", "tol", "jobs", "checkpoint", "every", "resume")
"""Options of the low-rank fit."""
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
@click.option("--low-rank", is_flag=True, help="Fit a low-rank background instead; the options below are its own.")
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
    low_rank: bool,
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
    """Find what moves in the clip in INPUT.

    INPUT is a video from a fixed camera (MP4, MOV, Matroska, WebM, AVI, MPEG, GIF and others), a folder of PNG or JPEG
    images, a quoted pattern such as "in*.jpg", or an .npy or .npz array (frames, height, width[, bands]) of levels from
    0 to 255. Everything is decided from the clip: whether the camera shook and the light changed, what the scene is,
    and which pixels belong to objects. The decisions are printed.

    Writes into DIR: mask.mp4, and the same without loss as mask/*.png; background.png; foreground.mp4 (on grey);
    boxes.mp4, the clip with a box around every object; boxes.csv and boxes.json (as in COCO); and report.html, a page
    with the decisions, the frames, and the number and sizes of the objects. Frames are numbered as in INPUT, boxes are
    in pixels of the frames after --scale. A clip that would take more than 2 GB of memory is decided and written block
    by block; an interrupt keeps the blocks that are finished.

    With --low-rank, the background is the low-rank part of pixels x channels x frames, with a noise level per pixel and
    outliers shared by the colours; a pixel is foreground when it is more likely an outlier than not. This writes
    background.mp4, foreground.mp4, mask.mp4, result.brtf (the complete result, for `brtf show` and `brtf.load`) and
    report.html. Dropped pixels are never foreground, but with --clean they take the label of their nearest neighbour.
    With --checkpoint, a fit that was interrupted or killed can be continued with --resume and otherwise the same
    options. Without --checkpoint, an interrupted fit is saved in DIR.
    """
    from brtf.video.clips import Footage, read_clip
    from brtf.view.report import require_page

    if not low_rank:
        _refuse_options_of_the_low_rank_fit()
    names = WRITTEN_LOW_RANK if low_rank else WRITTEN
    refuse_overwriting((out / name for name in names), overwrite=overwrite)
    require_page()
    chosen = _frames(frames)
    reading: dict[str, Any] = {"frames": chosen, "scale": scale, "gray": gray, "drop": drop, "seed": seed}
    shown = not quiet and sys.stderr.isatty()
    if not low_rank:
        code, numbers = find_objects(out, Footage(source, **reading), Path(source).name, shown=shown)
        text = _objects_text(numbers)
    else:
        settings = {"n_jobs": jobs, "max_sweeps": max_sweeps, "max_seconds": max_seconds, "tol": tol}
        clip = read_clip(source, **reading)
        model = _low_rank_model(clip, max_rank, random_state=seed, progress=shown, **settings)
        numbers = _fit_low_rank(out, model, clip, clean, kept)
        text = _text(numbers)
        code = DONE if model.converged_ else NOT_CONVERGED
    written = [out / name for name in names]
    if as_json:
        print_json({**numbers, "written": [str(path) for path in written]})
    else:
        click.echo(text)
        click.echo(written_text(written))
    return code


def _refuse_options_of_the_low_rank_fit() -> None:
    """Raise if an option was given that only the low-rank fit has."""
    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in OF_LOW_RANK
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        what = "is an option" if len(given) == 1 else "are options"
        raise ValueError(f"{', '.join(given)} {what} of the low-rank fit. Add --low-rank, or leave out {given[0]}.")


def _frames(text: str | None) -> slice | None:
    """Parse A:B or A:B:STEP as a slice."""
    if text is None:
        return None
    try:
        start, stop, *step = (int(bound) if bound.strip() else None for bound in text.split(":"))
        return slice(start, stop, *step)
    except (TypeError, ValueError):
        raise ValueError(f"--frames must be like 10:60, :60 or 10:, or 0:600:5 for every fifth; got {text}.") from None


# ---- moving objects ------------------------------------------------------------------------------------------


def find_objects(
    out: Path, footage: Footage, title: str, *, shown: bool = False, plan: StreamPlan | None = None
) -> tuple[int, dict[str, Any]]:
    """Decide what moves and write it, a block of frames at a time if the clip is long: exit code and results by name.

    An interrupt keeps the blocks that are finished; an error keeps nothing.
    """
    from brtf.video.decision import decide
    from brtf.video.stream import DEFAULT_PLAN, decided_blocks, fits, look_over, summed_up
    from brtf.video.writing import ObjectFiles

    plan = plan or DEFAULT_PLAN
    n_frames, chosen = footage.count(), footage.chosen
    frames = range(chosen.start, chosen.start + chosen.step * n_frames, chosen.step)
    code, start, shifts = DONE, time.perf_counter(), []
    with staged(out) as staging:
        directory = cast(Path, staging)  # it is None only where there is no directory
        overview = None if fits(footage, n_frames, plan) else look_over(footage, n_frames, plan)
        blocks = (
            ((clip, decide(clip)) for clip in [footage.whole(n_frames)])
            if overview is None
            else decided_blocks(footage, overview, plan)
        )
        with ObjectFiles(directory, frames, footage.rate) as files, _bar(n_frames, shown=shown) as advance:
            try:
                for clip, found in blocks:
                    with signals_later():
                        files.add(clip, found)
                        shifts.append(found.shifts)
                    advance(clip.n_frames)
            except KeyboardInterrupt as interrupt:
                if not shifts:
                    raise
                code = interrupted_code(interrupt)
        overall = found if overview is None else summed_up(overview, shifts, files.foreground_share)
        files.finish(overall, title)
    if code != DONE:
        click.echo(
            f"brtf: interrupted after {files.n_frames:,} of {n_frames:,} frames; what moves in these was written.",
            err=True,
        )
    return code, {
        "frames": files.n_frames,
        "frames_announced": footage.announced,
        "width": clip.width,
        "height": clip.height,
        "channels": clip.n_channels,
        "frames_per_second": float(footage.rate),
        "blocks": len(shifts),
        "foreground_share": files.foreground_share,
        "objects": files.n_objects,
        "camera_shift": None if overall.shifts is None else np.abs(overall.shifts).max(axis=0).tolist(),
        "light_courses": len(overall.light),
        "decisions": overall.sentences(),
        "seconds": time.perf_counter() - start,
    }


@contextmanager
def _bar(n_frames: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if shown, and the function that advances it by a number of frames."""
    if not shown:
        yield lambda _: None
        return
    with click.progressbar(length=n_frames, label="frames", show_pos=True, file=sys.stderr) as bar:
        yield bar.update


def _clip_numbers(clip: Clip) -> dict[str, Any]:
    return {
        "frames": clip.n_frames,
        "frames_announced": clip.announced,
        "width": clip.width,
        "height": clip.height,
        "channels": clip.n_channels,
        "frames_per_second": float(clip.rate),
    }


def _clip_text(numbers: dict[str, Any]) -> str:
    announced = "" if numbers["frames_announced"] is None else f" ({numbers['frames_announced']} announced)"
    return f"{numbers['frames']} frames{announced} of {numbers['width']} x {numbers['height']} pixels"


def _objects_text(numbers: dict[str, Any]) -> str:
    rows = [
        ("clip", _clip_text(numbers)),
        ("objects", f"{numbers['objects']} boxes in all frames"),
        ("foreground", f"{100 * numbers['foreground_share']:.3g} % of the pixels"),
        ("decided", f"in {numbers['seconds']:.1f} s"),
    ]
    return "\n".join([table(rows), "", *numbers["decisions"]])


# ---- low-rank fit --------------------------------------------------------------------------------------------


def _low_rank_model(clip: Clip, max_rank: int | None, **settings: Any) -> BRTF:
    from brtf.api.estimator import BRTF

    return BRTF(
        max_rank=max(FEWEST_COMPONENTS, clip.n_channels) if max_rank is None else max_rank,
        noise="per-slice",
        link=None,
        arrangement=None,
        modes=None,
        smooth_residual=None,
        outlier_modes=None if clip.tensor.ndim == 2 else (1,),
        **settings,
    )


def _fit_low_rank(out: Path, model: BRTF, clip: Clip, clean: bool, kept: dict[str, Any]) -> dict[str, Any]:
    """Fit, write what was found, and return the results by name."""
    from brtf.video.foreground import foreground_probability, smooth_mask

    with staged(out) as staging:
        model.fit(clip.tensor, **kept)
        probability = foreground_probability(model, clip)
        mask = smooth_mask(probability) if clean else probability > 0.5
        if staging is not None:
            _write(staging, model, clip, mask)
    n_judged = mask.size if clean else np.count_nonzero(~np.isnan(probability))
    return _numbers(model, clip, np.count_nonzero(mask) / n_judged)


def _write(directory: Path, model: BRTF, clip: Clip, mask: Mask) -> None:
    """Write the clips and the result."""
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


def _numbers(model: BRTF, clip: Clip, foreground_share: float) -> dict[str, Any]:
    """The results by name; for the noise levels of the pixels the minimum, median and maximum."""
    noise = np.quantile(np.sqrt(model.noise_variances_), (0.0, 0.5, 1.0)).tolist()
    return {
        **model.summary().numbers,
        "noise_sd": noise,
        "noise_variance": [level**2 for level in noise],
        **_clip_numbers(clip),
        "foreground_share": foreground_share,
    }


def _text(numbers: dict[str, Any]) -> str:
    from brtf.results.summary import rank_in_words

    low, middle, high = numbers["noise_sd"]
    return table(
        [
            ("clip", _clip_text(numbers)),
            ("observed", f"{100 * numbers['observed_share']:.4g} % of the pixels"),
            ("rank", rank_in_words(numbers)),
            ("noise", f"standard deviation {low:.3g} to {high:.3g} levels of 255, typically {middle:.3g}"),
            ("foreground", f"{100 * numbers['foreground_share']:.3g} % of the pixels"),
            ("sweeps", f"{numbers['sweeps']} in {numbers['seconds']:.1f} s"),
            ("stopped", numbers["stop_reason"]),
        ]
    )
