"""Foreground of surveillance clips against ground truth, and a person who stands still before she leaves.

Run ``make video`` or ``python benchmarks/video.py [--data DIR] [--only TEXT]``. The clips are not part of the project;
those that are not found are skipped with a message. Only lines that say "best threshold" are tuned on the truth.

- CDnet "highway" (changedetection.net), grey, half size, 120 × 160 × 151: F-measure of the moving vehicles. Labels 255
  are foreground, 0 and 50 (hard shadow) are not, 85 and 170 (outside, unknown) are ignored.
- CDnet "highway" in colour, a quarter of the size, every second frame, and the same in grey beside it.
- Generated clips of every kind (``brtf.datasets.toy_video``) and highway: F-measure and seconds of brtf and of what
  people use instead. ``--peers`` prints these tables only; the peers of OpenCV need the extra "baselines".
- I2R "Hall", half size, 72 × 88 × 100: a woman stands at the counter until about frame 55 and then walks away. There
  are no true masks, but the last frames show the floor that she covered. The floor should be in the background, and
  she in the foreground.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

import brtf
from brtf import BRTF
from brtf.api.toy_clips import CLIP_KINDS
from brtf.foreground import foreground_probability, smooth_mask
from brtf.metrics import best_f_measure, f_measure
from brtf.research.moving import MOVING, compare_moving
from brtf.video import Clip, read_clip
from pictures import draw_rows

Array = NDArray[Any]
HALL_FRAMES = (25, 60, 90)
GONE = 86
"""Frame of Hall from which the floor where she stood is free."""
PEER_SEEDS = 3
"""Clips of every kind on which the peers are compared."""
PICTURES: Path | None = None
"""The folder for pictures; None draws none."""
SMALLEST_SPREAD = 1.0
"""Level added to the robust spread of a pixel: levels are whole numbers, and many pixels hardly vary."""


def scores(score: Array, decided: Array, labels: Array) -> str:
    """F-measure of a decision, and of the score at the threshold that is best in hindsight."""
    moving, ignored = labels == 255, (labels == 85) | (labels == 170)
    unseen = np.isnan(score)
    own = f_measure(decided, moving, ignore=ignored | unseen)
    best = best_f_measure(np.nan_to_num(score), moving, ignore=ignored | unseen)[0]
    return f"F {own:.3f}, at its best threshold {best:.3f}"


def frames_of(clip: Clip) -> Array:
    """Levels (height, width, frames) of a grey clip."""
    return clip.tensor.reshape(clip.height, clip.width, clip.n_frames)


def median_distance(clip: Clip, labels: Array) -> str:
    """Distance from the median frame."""
    frames = frames_of(clip)
    distance = np.abs(frames - np.median(frames, axis=2, keepdims=True))
    best = best_f_measure(distance, labels == 255, ignore=(labels == 85) | (labels == 170))[0]
    return f"at its best threshold {best:.3f}"


def scaled_distance(clip: Clip, labels: Array) -> str:
    """Distance from the median frame in robust standard deviations of the pixel; above three is foreground."""
    frames = frames_of(clip)
    distance = np.abs(frames - np.median(frames, axis=2, keepdims=True))
    spread = 1.4826 * np.median(distance, axis=2, keepdims=True) + SMALLEST_SPREAD
    return scores(distance / spread, distance / spread > 3, labels)


def fit(clip: Clip, **options: Any) -> tuple[BRTF, float]:
    """A fitted model and the seconds it took; reaching max_sweeps is not an error here."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BRTF(random_state=0, **options).fit(clip.tensor)
    return model, time.perf_counter() - started


def own_decision(clip: Clip, labels: Array, **options: Any) -> str:
    """Foreground pixels, whose outlier probability exceeds one half, and then whole objects."""
    model, seconds = fit(clip, **options)
    probability = foreground_probability(model, clip)
    cleaned = smooth_mask(probability)
    whole = f_measure(cleaned, labels == 255, ignore=(labels == 85) | (labels == 170))
    found = scores(probability, probability > 0.5, labels)
    return f"{found}, cleaned F {whole:.3f}; rank {model.rank_}, {seconds:.0f} s"


def highway_grey(data: Path, *, drop: float = 0.0) -> tuple[Clip, Array]:
    with np.load(data / "cdnet_highway" / "highway_gray_half.npz") as content:
        video, labels = content["video"], content["gt"]
    return read_clip(np.moveaxis(video, 2, 0), drop=drop), labels


def highway_frames(data: Path, *, gray: bool, scale: float = 0.25) -> tuple[Clip, Array]:
    """The original frames; the label of a block of pixels is that of its middle."""
    from PIL import Image

    with (
        zipfile.ZipFile(data / "cdnet_highway" / "highway_frames.zip") as archive,
        tempfile.TemporaryDirectory() as place,
    ):
        archive.extractall(place, [name for name in archive.namelist() if name.startswith(("input/", "groundtruth/"))])
        clip = read_clip(Path(place) / "input", frames=slice(0, None, 2), scale=scale, gray=gray)
        step = round(1 / scale)
        truth = sorted(Path(place, "groundtruth").glob("*.png"))[::2]
        labels = np.stack(
            [np.asarray(Image.open(path).convert("L"))[step // 2 :: step, step // 2 :: step] for path in truth], axis=2
        )
    return clip, labels


@dataclass(frozen=True, eq=False)
class Standing:
    """The part of Hall where the woman stands, half size, and what is known about it without true masks.

    Attributes
    ----------
    clip : Clip
    place : the part of a frame that holds her
    floor : levels there when she has gone, (height, width)
    covered : where a frame shows something other than the floor, (height, width, frames)
    hers : pixels that she covers for most of the time in which she stands, (height, width)
    """

    clip: Clip
    place: tuple[slice, slice]
    floor: Array
    covered: Array
    hers: Array

    def by_share(self) -> Iterator[tuple[str, Array]]:
        """Her pixels grouped by how much of the time they are covered; no method can see behind what stays."""
        share = self.covered.mean(axis=2)
        for low, high in ((0.0, 0.5), (0.5, 0.6), (0.6, 1.0)):
            yield f"{low:.0%}–{high:.0%}", self.hers & (share > low) & (share <= high)

    def floor_found(self, background: Array) -> dict[str, float]:
        """The share of her pixels where the background (pixels, frames) shows the floor while she stands there."""
        levels = background.reshape(self.clip.height, self.clip.width, -1)[self.place][:, :, HALL_FRAMES[0]]
        return {name: float(np.mean(np.abs(levels - self.floor)[few] < 20)) for name, few in self.by_share()}


def standing(data: Path) -> Standing:
    """The clip, and the floor where she stood, known from the last frames."""
    frames = np.moveaxis(loadmat(str(data / "i2r_video" / "Hall.mat"))["x"], 2, 0)
    clip = read_clip(frames, scale=0.5)
    place = np.s_[13:32, 44:52]
    seen = frames_of(clip)[place]
    floor = np.median(seen[:, :, GONE:], axis=2)
    covered = np.abs(seen - floor[:, :, None]) > 25
    hers = (covered[:, :, :50].mean(axis=2) > 0.5) & (seen[:, :, GONE:].std(axis=2) < 8)
    return Standing(clip, place, floor, covered, hers)


def hall(data: Path, **options: Any) -> str:
    """Where she stood: is the floor in the background, is she in the foreground, is there a ghost after she left?"""
    scene = standing(data)
    model, seconds = fit(scene.clip, **options)
    right = scene.floor_found(model.low_rank())
    found = foreground_probability(model, scene.clip)[scene.place] > 0.5
    answers = []
    for name, few in scene.by_share():
        hit = np.mean(found[few][:, :50][scene.covered[few][:, :50]])
        answers.append(f"covered {name} ({few.sum()} pixels): floor {right[name]:.2f}, found {hit:.2f}")
    ghost = found[scene.hers][:, GONE:].mean()
    if PICTURES is not None and options["max_rank"] == 1:
        draw_hall(model, scene.clip, PICTURES / "real-hall.png")
    return f"{'; '.join(answers)}; ghost {ghost:.2f}; rank {model.rank_}, {seconds:.0f} s"


def draw_hall(model: BRTF, clip: Clip, path: Path) -> None:
    """Frames while she stands, when she leaves and after: data, background, mask, and the median frame beside them."""
    frames, mask = frames_of(clip), foreground_probability(model, clip) > 0.5
    background, median = model.low_rank().reshape(frames.shape), np.median(frames, axis=2)
    rows = [(frames[:, :, k], background[:, :, k], mask[:, :, k], median) for k in HALL_FRAMES]
    titles = ("data", "background", "mask", "median of all frames")
    draw_rows(rows, titles, path, [f"frame {frame}" for frame in HALL_FRAMES])


def generated(kind: str, bands: int, seed: int) -> tuple[Clip, Array]:
    """A generated clip of 90 frames of 72 × 96 pixels, and its labels."""
    clip = brtf.datasets.toy_video(kind, height=72, width=96, frames=90, bands=bands, seed=seed)
    labels = np.where(clip.edge, 170, np.where(clip.foreground_mask, 255, 0))
    return Clip(clip.observed.astype(np.float32), 72, 96), labels.reshape(72, 96, 90)


def peers(data: Path, only: str) -> None:
    """Print a line for every kind of clip, with the F-measure of every method, and a line of seconds."""
    print(f"| clip | {' | '.join(MOVING)} |\n| --- |{' --- |' * len(MOVING)}", flush=True)
    clips: dict[str, list[Callable[[], tuple[Clip, Array]]]] = {
        f"{kind}, {name}": [partial(generated, kind, bands, seed) for seed in range(PEER_SEEDS)]
        for kind in CLIP_KINDS
        for name, bands in (("grey", 1), ("colour", 3))
    }
    clips["highway, grey"] = [partial(highway_grey, data)]
    clips["highway, colour"] = [partial(highway_frames, data, gray=False, scale=0.5)]
    for name, loads in clips.items():
        if only.lower() not in name:
            continue
        found: dict[str, list[dict[str, Any]]] = {method: [] for method in MOVING}
        try:
            for load in loads:
                for row in compare_moving(*load()):
                    found[row["method"]].append(row)
        except FileNotFoundError as error:
            print(f"| {name} | skipped, {error.filename} is not there |", flush=True)
            continue
        means = {
            column: [
                np.mean([np.nan if row[column] is None else row[column] for row in rows]) for rows in found.values()
            ]
            for column in ("f", "seconds")
        }
        best = np.nanmax(means["f"])
        cells = [f"**{f:.3f}**" if f == best else "–" if np.isnan(f) else f"{f:.3f}" for f in means["f"]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if name.startswith(("street", "highway")):
            print(f"| {name}, seconds | {' | '.join(f'{s:.2g}' for s in means['seconds'])} |", flush=True)


def jobs(data: Path) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """The lines of the table: name, method and the function that measures."""

    def job(name: str, measure: Callable[..., str], **options: Any) -> tuple[str, str, Callable[[], str]]:
        settings = ", ".join(f"{key}={value!r}" for key, value in options.items())
        return name, f"`BRTF({settings})`", lambda: measure(modes=None, smooth_residual=None, **options)

    def decides(load: Callable[..., tuple[Clip, Array]], **how: Any) -> Callable[..., str]:
        return lambda **options: own_decision(*load(data, **how), **options)

    grey = "highway, grey"
    yield grey, "median background", lambda: median_distance(*highway_grey(data))
    yield grey, "per-pixel MAD-scaled median, z > 3", lambda: scaled_distance(*highway_grey(data))
    yield job(grey, decides(highway_grey), max_rank=1, noise="per-slice")
    yield job(grey, decides(highway_grey), max_rank=2, noise="per-slice")
    yield job(grey, decides(highway_grey), max_rank=10, inference="paper")
    yield job(f"{grey}, 90 % dropped", decides(highway_grey, drop=0.9), max_rank=1, noise="per-slice")
    yield job(f"{grey}, quarter size", decides(highway_frames, gray=True), max_rank=1, noise="per-slice")
    yield job("highway, colour, quarter size", decides(highway_frames, gray=False), max_rank=3, noise="per-slice")
    for max_rank in (1, 2):
        yield job("Hall", lambda **options: hall(data, **options), max_rank=max_rank, noise="per-slice")


def main() -> None:
    global PICTURES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--only", default="", help="only lines whose name or method contains this text")
    parser.add_argument("--pictures", type=Path, help="also draw the frames of Hall into this folder")
    parser.add_argument("--peers", action="store_true", help="only the tables of brtf and its peers")
    options = parser.parse_args()
    if options.peers:
        peers(options.data, options.only)
        return
    PICTURES = options.pictures
    print("| clip | method | found |\n| --- | --- | --- |", flush=True)
    for name, method, measure in jobs(options.data):
        if options.only.lower() in f"{name} {method}".lower():
            try:
                print(f"| {name} | {method} | {measure()} |", flush=True)
            except FileNotFoundError as error:
                print(f"| {name} | {method} | skipped, {error.filename} is not there |", flush=True)


if __name__ == "__main__":
    main()
