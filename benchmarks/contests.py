"""The measurements of ``comparison.py``: each function fits one method to one set of real data and scores the result.

A case names the data (``of``), the method and its ``options``. If a parameter has to be chosen, each ``value`` of it is
a case of its own, fitted to all observed entries and to nine tenths of them; the other tenth is for choosing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from brtf.foreground import smooth_mask
from brtf.metrics import best_f_measure, f_measure
from brtf.research.experiments.contenders import fit, trials
from brtf.research.experiments.runs import Inputs, Measured, Picture
from brtf.research.experiments.video import OURS, Parted, part_by_baseline, part_by_ours
from brtf.video import Clip
from real_data import hide, score_correlations
from video import HALL_FRAMES, frames_of, highway_grey, standing

Array = NDArray[Any]
Settings = Mapping[str, Any]
HIGHWAY_FRAME = 60


def measure(settings: Settings, inputs: Inputs) -> Measured:
    """Run one case and return its numbers and pictures."""
    return MEASURES[settings["of"]](Path(inputs["data"]), settings)


def part(clip: Clip, settings: Settings) -> Parted:
    """Split a grey clip in two; HORPCA sees it as height × width × frames, the others as pixels × frames."""
    method, options = settings["method"], settings["options"]
    if method in OURS:
        return part_by_ours(clip, **options)
    if method not in ("median", "horpca"):
        return part_by_baseline(clip, method, **options)
    started, rank = time.perf_counter(), None
    if method == "median":
        background = np.broadcast_to(np.median(clip.tensor, axis=1, keepdims=True), clip.tensor.shape)
        outliers = clip.tensor - background
    else:
        found = fit(method, frames_of(clip).astype(np.float64) / 255.0, **options)
        background, outliers = (
            255.0 * levels.reshape(clip.tensor.shape) for levels in (found.low_rank, found.outliers)
        )
        rank = found.rank
    size, seconds = np.abs(outliers), time.perf_counter() - started
    return Parted(background, size, size, size > 0, rank, seconds)


def highway(data: Path, settings: Settings) -> Measured:
    """F-measure of the moving vehicles: for |S| at its best threshold, and for the method's own decision."""
    clip, labels = highway_grey(data)
    labels = labels.reshape(clip.tensor.shape)
    moving, ignored = labels == 255, (labels == 85) | (labels == 170)
    found = part(clip, settings)
    f_told, threshold = best_f_measure(found.foreground, moving, ignore=ignored)
    numbers = _described(found) | {"f_told": f_told, "threshold": threshold}
    if settings["method"] in (*OURS, "decolor"):
        numbers["f_own"] = f_measure(found.decided, moving, ignore=ignored)
    if settings["method"] in OURS:
        whole = smooth_mask(found.score.reshape(clip.height, clip.width, -1)).reshape(moving.shape)
        numbers["f_objects"] = f_measure(whole, moving, ignore=ignored)
    return Measured(numbers, _pictures(clip, found, HIGHWAY_FRAME))


def hall(data: Path, settings: Settings) -> Measured:
    """Whether a method recovers the floor behind a woman who stands on it; the frames after she left show it."""
    scene = standing(data)
    found = part(scene.clip, settings)
    numbers = _described(found) | {"floor": scene.floor_found(found.background)}
    return Measured(numbers, _pictures(scene.clip, found, HALL_FRAMES[0]))


def _described(found: Parted) -> dict[str, Any]:
    return {"seconds": found.seconds, "rank": found.rank}


def _pictures(clip: Clip, found: Parted, frame: int) -> dict[str, Picture]:
    """A frame, its background and the size of its outliers."""
    levels = {"frame": clip.tensor, "background": found.background, "foreground": found.foreground}
    return {
        name: np.clip(np.rint(level[:, frame].reshape(clip.height, clip.width)), 0, 255).astype(np.uint8)
        for name, level in levels.items()
    }


def claus(data: Path, settings: Settings) -> Measured:
    """Scores of three fluorophores against their known concentrations."""
    content = loadmat(data / "chemometrics" / "claus.mat")
    started = time.perf_counter()
    found = fit(settings["method"], content["X"].astype(float), **settings["options"])
    seconds = time.perf_counter() - started
    correlations = score_correlations(found.factors[0], content["y"].astype(float))
    return Measured({"seconds": seconds, "rank": found.rank, "correlations": correlations})


def traffic(data: Path, settings: Settings) -> Measured:
    """RMSE and MAPE of the hidden entries."""
    truth, seen = hide(data, settings["of"], settings["missing"])
    hidden = (truth != 0) & ~seen
    parameter = settings.get("parameter")
    values = [settings["value"]] if parameter else []
    (tried,) = trials(settings["method"], np.where(seen, truth, np.nan), parameter, values, **settings["options"])
    error = (tried.found.low_rank - truth)[hidden]
    return Measured(
        {
            "rmse": float(np.sqrt(np.mean(error**2))),
            "mape": float(np.mean(np.abs(error) / truth[hidden])),
            "hidden_error": tried.hidden_error,
            "rank": tried.found.rank,
            "seconds": tried.seconds,
        }
    )


MEASURES = {"highway": highway, "hall": hall, "claus": claus, "Birmingham": traffic, "Hangzhou": traffic}
