"""Read clips into tensors of pixels × channels × frames, and write frames as videos."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.io.atomic_file import atomic_file
from brtf.video.frames import DEFAULT_RATE, Image, Reel, open_reel

__all__ = ["Clip", "read_clip", "write_clip"]

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of red, green and blue in a grey level (ITU-R BT.601)."""
FRAMES_TOGETHER = 16
"""Number of frames written into the tensor at once: a cache line of float32 along its last mode."""


@dataclass(frozen=True, eq=False)
class Clip:
    """A clip as a tensor, with what is needed to turn it back into frames.

    Attributes
    ----------
    values : ndarray of float32, (pixels, channels, frames)
        Levels in [0, 255], NaN where missing. Pixels are numbered row by row; one channel is grey, three are red, green
        and blue, any other number are the bands of a spectral camera.
    height, width : int
        Size of a frame; ``pixels = height * width``.
    rate : Fraction
        Frames per second.
    announced : int or None
        Number of frames according to the source, if known.
    """

    values: NDArray[np.float32]
    height: int
    width: int
    rate: Fraction = DEFAULT_RATE
    announced: int | None = None

    @property
    def n_frames(self) -> int:
        return self.values.shape[2]

    @property
    def n_channels(self) -> int:
        return self.values.shape[1]

    @property
    def tensor(self) -> NDArray[np.float32]:
        """The tensor to fit, a view: pixels × channels × frames, or pixels × frames if there is one channel."""
        return self.values[:, 0] if self.n_channels == 1 else self.values

    def image(self, pixels: NDArray[Any]) -> Image:
        """One frame's levels, (pixels,) or (pixels, channels), as an image; three of the bands if there are more."""
        if self.n_channels == 1:
            return pixels.reshape(self.height, self.width)
        return as_colours(pixels.reshape(self.height, self.width, -1))


def as_colours(image: Image) -> Image:
    """An image (height, width, bands) as red, green and blue: the first, middle and last of its bands; grey if one."""
    n_bands = image.shape[2]
    return image[:, :, 0] if n_bands == 1 else image[:, :, [0, n_bands // 2, n_bands - 1]]


def read_clip(
    source: Any,
    *,
    frames: slice | None = None,
    scale: float = 1.0,
    gray: bool = False,
    drop: float = 0.0,
    seed: int = 0,
) -> Clip:
    """Read a clip from a video file, from images, or from an array.

    Videos are decoded twice, once to count their frames, so that only the tensor is held in memory. Files are
    recognised by content; playlists and scripts, which refer to other files, are not opened. Packets that cannot be
    decoded are skipped. A file with fewer frames than announced gives a warning.

    Parameters
    ----------
    source : path, glob pattern or array
        A video (MP4, MOV, Matroska, WebM, AVI, MPEG, ASF, FLV, Ogg, GIF, Y4M); a folder or a pattern such as
        ``"in*.jpg"`` of PNG or JPEG images of one size, ordered by the numbers in their names; an array, or an ``.npy``
        or ``.npz`` file of one, (frames, height, width) or (frames, height, width, bands), in [0, 255], NaN = missing.
    frames : slice, optional Frames to read, counted from 0; all if None.
    scale : float
        Size of the frames relative to the source, above 0 and at most 1; frames are shrunk by averaging over areas.
    gray : bool
        Convert colours to grey, 0.299 R + 0.587 G + 0.114 B; other numbers of bands to their mean.
    drop : float
        Probability with which each pixel of each frame is dropped, in all its channels together.
    seed : int
        Seed of the dropped pixels.

    Returns
    -------
    Clip

    Raises
    ------
    ValueError
        The source cannot be read, or an argument is out of range; the message names it.
    OSError
        A file is missing or cannot be opened.
    """
    chosen = _check_frames(frames)
    if not (isinstance(scale, numbers.Real) and 0 < scale <= 1):
        raise ValueError(f"scale must be a number above 0 and at most 1, got {scale!r}.")
    if not (isinstance(drop, numbers.Real) and 0 <= drop < 1):
        raise ValueError(f"drop must be a number of at least 0 and below 1, got {drop!r}.")
    if not (isinstance(seed, numbers.Integral) and seed >= 0):
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")
    reel = open_reel(source)
    n_read, announced = reel.count(chosen.stop)
    n_frames = len(range(n_read)[chosen])
    if announced is not None and n_read < min(announced, chosen.stop or announced):
        warnings.warn(
            f"{reel.name}: {n_read} frames could be read of {announced} announced; it may be cut short or damaged.",
            UserWarning,
            stacklevel=2,
        )
    if n_frames == 0:
        raise ValueError(f"{reel.name}: none of its {n_read} frames is among those chosen, {_frames_text(chosen)}.")
    images = islice(islice(reel.images(), chosen.start, None, chosen.step), n_frames)
    clip = _assemble(reel, images, n_frames, scale, gray, drop, seed)
    return replace(clip, rate=clip.rate / chosen.step, announced=announced)


def write_clip(path: str | os.PathLike[str], images: Iterable[Image], rate: Fraction | float = DEFAULT_RATE) -> None:
    """Write frames atomically to an MP4 file that browsers play.

    H.264 with 4:2:0 colour and the index at the front. That format needs even sizes: an odd last row or column is
    repeated.

    Parameters
    ----------
    path : path-like
        Where to write; an existing file is replaced once all frames are written.
    images : iterable of arrays
        Frames of one size, (height, width) or (height, width, 3); levels are rounded and clipped to [0, 255].
    rate : float or Fraction
        Frames per second.
    """
    av = require("av", extra="video", purpose="clips")
    with atomic_file(path) as file, av.open(file.name, "w", "mp4", container_options={"movflags": "+faststart"}) as out:
        stream = None
        for image in images:
            levels = np.clip(np.rint(image), 0, 255).astype(np.uint8)
            if levels.ndim == 2:
                levels = np.repeat(levels[:, :, None], 3, axis=2)
            height, width = levels.shape[:2]
            levels = np.pad(levels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
            if stream is None:
                stream = out.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001), options={"crf": "18"})
                stream.height, stream.width = levels.shape[:2]
                stream.pix_fmt = "yuv420p"
            out.mux(stream.encode(av.VideoFrame.from_ndarray(levels, format="rgb24")))
        if stream is None:
            raise ValueError(f"{path}: there is no frame to write. Give at least one.")
        out.mux(stream.encode(None))


def _assemble(
    reel: Reel, images: Iterator[Image], n_frames: int, scale: float, gray: bool, drop: float, seed: int
) -> Clip:
    """The tensor of the frames, filled a few of them at a time."""
    first = next(images)
    height, width = (max(1, round(scale * length)) for length in first.shape[:2])
    shape = (height * width, 1 if gray or first.ndim == 2 else first.shape[2], n_frames)
    check_memory(4 * math.prod(shape), f"{reel.name} as a tensor of {shape}", "choose a smaller scale or fewer frames")
    values = np.empty(shape, dtype=np.float32)
    few = np.empty((*shape[:2], min(FRAMES_TOGETHER, n_frames)), dtype=np.float32)
    weights = [_area_weights(*lengths) for lengths in zip(first.shape, (height, width), strict=False)]
    rng = np.random.default_rng(seed)
    n_filled = 0
    for image in chain([first], images):
        if image.shape != first.shape:
            raise ValueError(
                f"{reel.name}: frame {n_filled} of those chosen has shape {image.shape}, but the first has "
                f"{first.shape}. All frames must be of one size and kind."
            )
        if gray and image.ndim == 3:
            image = image @ LUMA if image.shape[2] == 3 else image.mean(axis=2)
        if scale < 1:
            image = _shrink(image, *weights)
        position = n_filled % FRAMES_TOGETHER
        few[:, :, position] = image.reshape(shape[:2])
        if drop > 0:
            few[rng.random(shape[0]) < drop, :, position] = np.nan
        n_filled += 1
        if position + 1 == FRAMES_TOGETHER or n_filled == n_frames:
            values[:, :, n_filled - position - 1 : n_filled] = few[:, :, : position + 1]
    if n_filled != n_frames:
        raise ValueError(f"{reel.name} changed while it was read: {n_filled} frames instead of {n_frames}.")
    return Clip(values, height, width, Fraction(reel.rate))


def _area_weights(length: int, shorter: int) -> csr_array:
    """(shorter, length) weights of the old pixels of a line in the new, wider ones."""
    edges = np.linspace(0.0, length, shorter + 1)
    cuts = np.union1d(edges, np.arange(length + 1))  # between two of them lies a piece of one old and one new pixel
    middle = 0.5 * (cuts[:-1] + cuts[1:])
    share = np.round(np.diff(cuts) * (shorter / length), 9).astype(np.float32)
    place = np.searchsorted(edges, middle) - 1, middle.astype(np.intp)
    weights = csr_array((share, place), shape=(shorter, length))
    weights.eliminate_zeros()  # a neighbour that only touches has weight zero, so its NaN does not count
    return weights


def _shrink(image: Image, rows: csr_array, columns: csr_array) -> Image:
    """Averages over areas, first along the columns, then along the rows."""
    height, width = rows.shape[0], columns.shape[0]
    lower = (rows @ image.reshape(len(image), -1)).reshape(height, columns.shape[1], -1)
    across = np.moveaxis(lower, 1, 0)
    return np.moveaxis((columns @ across.reshape(len(across), -1)).reshape(width, height, -1), 0, 1)


def _check_frames(frames: slice | None) -> slice:
    """The frames chosen, with a start and a step."""
    if frames is None:
        return slice(0, None, 1)
    if not isinstance(frames, slice):
        raise TypeError(f"frames must be a slice such as slice(0, 100), got {frames!r}.")
    start, stop = frames.start or 0, frames.stop
    step = 1 if frames.step is None else frames.step
    whole = all(isinstance(bound, int | np.integer) for bound in (start, stop or 0, step))
    if not whole or start < 0 or step < 1 or (stop is not None and stop <= start):
        raise ValueError(f"frames must go upwards from a start of at least 0, got {_frames_text(frames)}.")
    return slice(start, stop, step)


def _frames_text(frames: slice) -> str:
    bounds = (frames.start, frames.stop, *([] if frames.step in (None, 1) else [frames.step]))
    return ":".join("" if bound is None else str(bound) for bound in bounds)
