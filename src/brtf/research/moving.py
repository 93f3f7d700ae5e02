"""Moving objects in a clip by brtf and by the methods that people use instead, against known masks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from brtf.api.evaluation import text_table
from brtf.api.metrics import f_measure
from brtf.data.extras import require
from brtf.data.scale import SD_PER_MEDIAN
from brtf.research.baselines import recover
from brtf.video.clips import LUMA, Clip
from brtf.video.stream import foreground

__all__ = ["MOVING", "compare_moving", "find_moving", "moving_table"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]

SPREADS = 3.0
"""Robust standard deviations from the scene beyond which the controls call a pixel moving."""
FILTER = 5
"""Side in pixels of the median filter that cleans a mask."""
MOVING_LABEL, IGNORED_LABELS = 255, (85, 170)
"""Levels of a mask: what moves, and what is not judged; all others are the scene, hard shadows too."""


def _images(clip: Clip) -> Array:
    """Frames (frames, height, width, channels)."""
    return np.moveaxis(clip.values.reshape(clip.height, clip.width, clip.n_channels, -1), 3, 0)


def _opencv(name: str) -> Callable[[Clip], Mask]:
    """A method of OpenCV with its defaults: it sees the clip twice, the second pass counts, shadows are scene."""

    def find(clip: Clip) -> Mask:
        library = require("cv2", extra="baselines", purpose="the methods of OpenCV")
        library.setNumThreads(1)
        place = library if hasattr(library, f"createBackgroundSubtractor{name}") else library.bgsegm
        method = getattr(place, f"createBackgroundSubtractor{name}")()
        images = np.clip(np.rint(np.nan_to_num(_images(clip), nan=0.0)), 0, 255).astype(np.uint8)
        bands = [0, images.shape[3] // 2, -1]  # red, green, blue; the same thrice if grey
        images = np.ascontiguousarray(images[..., bands[::-1]])
        for image in images:
            method.apply(image)
        return np.stack([method.apply(image) == MOVING_LABEL for image in images], axis=2)

    return find


def _median(clip: Clip) -> Mask:
    """Distance from the median frame, in robust standard deviations of all pixels."""
    images = _images(clip)
    distance = np.abs(images - np.nanmedian(images, axis=0))
    return _beyond(distance, SD_PER_MEDIAN * np.nanmedian(distance) + 1)


def _mad(clip: Clip) -> Mask:
    """Distance from the median frame, in robust standard deviations of the pixel."""
    images = _images(clip)
    distance = np.abs(images - np.nanmedian(images, axis=0))
    return _beyond(distance, SD_PER_MEDIAN * np.nanmedian(distance, axis=0) + 1)


def _beyond(distance: Array, spread: Any) -> Mask:
    """Where the root mean square over the channels is far out."""
    return np.asarray(np.moveaxis(np.sqrt(np.mean((distance / spread) ** 2, axis=3)) > SPREADS, 0, 2))


def _low_rank(name: str) -> Callable[[Clip], Mask]:
    """A low-rank method on grey frames; what it calls outliers moves, if it is far out for its pixel."""

    def find(clip: Clip) -> Mask:
        grey = clip.values.transpose(0, 2, 1).astype(np.float64)
        grey = grey @ LUMA if clip.n_channels == len(LUMA) else grey.mean(axis=2)
        size = clip.height, clip.width
        options: dict[str, Any] = {"frame_shape": size} if name == "decolor" else {}
        off = np.abs(np.asarray(recover(name, grey, **options).outliers)).reshape(*size, -1)
        if name == "decolor":
            return np.asarray(off > 0)
        return np.asarray(off > SPREADS * (SD_PER_MEDIAN * np.median(off, axis=2, keepdims=True) + 1))

    return find


MOVING: dict[str, Callable[[Clip], Mask]] = {
    "brtf": lambda clip: foreground(clip).mask,
    **{name.lower(): _opencv(name) for name in ("MOG2", "KNN", "GSOC", "LSBP", "GMG", "CNT")},
    "median": _median,
    "mad": _mad,
    "mad-filtered": lambda clip: median_filter(_mad(clip).astype(np.uint8), (FILTER, FILTER, 1)) > 0,
    "pcp": _low_rank("pcp"),
    "decolor": _low_rank("decolor"),
}
"""All methods: brtf, those of OpenCV, two controls (one also with a median filter), two of low rank."""


def find_moving(method: str, clip: Clip) -> Mask:
    """The mask (height, width, frames) of what moves according to a method."""
    if method not in MOVING:
        raise ValueError(f"methods must be among {', '.join(MOVING)}, got {method!r}.")
    return MOVING[method](clip)


def compare_moving(clip: Clip, labels: Array, methods: Sequence[str] = tuple(MOVING)) -> Iterator[dict[str, Any]]:
    """Masks of every method against known ones.

    Parameters
    ----------
    clip : Clip
    labels : ndarray, (height, width, frames)
        255 where something moves, 85 or 170 where it is not known; everything else is the scene.
    methods : sequence of str
        Of ``MOVING``.

    Yields
    ------
    dict
        ``method``; ``f``, ``precision`` and ``recall`` of the pixels; ``seconds`` of CPU time; ``error``, why there
        are no numbers, or None.
    """
    expected = clip.height, clip.width, clip.n_frames
    if labels.shape != expected:
        raise ValueError(f"the masks have height, width and frames {labels.shape}, but the clip has {expected}.")
    true, judged = labels == MOVING_LABEL, ~np.isin(labels, IGNORED_LABELS)
    for method in methods:
        row: dict[str, Any] = {"method": method, "f": None, "precision": None, "recall": None, "seconds": None}
        row["error"] = None
        started = time.process_time()
        try:
            found = find_moving(method, clip)
        except (ImportError, ValueError, MemoryError, np.linalg.LinAlgError) as error:
            if method not in MOVING:
                raise
            row["error"] = str(error)
        else:
            row["seconds"] = time.process_time() - started
            hits = int(np.count_nonzero(found & true & judged))
            row["f"] = f_measure(found, true, ignore=~judged)
            row["precision"] = hits / max(int(np.count_nonzero(found & judged)), 1)
            row["recall"] = hits / max(int(np.count_nonzero(true & judged)), 1)
        yield row


def moving_table(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison for a terminal, the best first, and the methods that could not be used."""
    able = sorted((row for row in rows if row["error"] is None), key=lambda row: -row["f"])
    columns = ("f", "precision", "recall", "seconds")
    lines = [[row["method"], *(f"{row[column]:.3f}" for column in columns)] for row in able]
    reasons = [f"{row['method']}: {row['error']}" for row in rows if row["error"] is not None]
    return "\n".join([text_table([["method", *columns], *lines]), *reasons])
