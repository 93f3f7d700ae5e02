"""Read clips into tensors of pixels × channels × frames, and write frames as videos."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.io.atomic_file import atomic_file
from brtf.video.frames import DEFAULT_RATE, Image, Live, open_reel

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

    def __repr__(self) -> str:
        size = f"{self.n_frames} frames of {self.width} × {self.height} pixels"
        return f"Clip({size}, channels={self.values.shape[1]}, rate={self.rate})"

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
    source : path, glob pattern, array or iterator
        A video (MP4, MOV, Matroska, WebM, AVI, MPEG, ASF, FLV, Ogg, GIF, Y4M); a folder or a pattern such as
        ``"in*.jpg"`` of PNG or JPEG images of one size, ordered by the numbers in their names; an array, or an ``.npy``
        or ``.npz`` file of one, (frames, height, width) or (frames, height, width, bands), in [0, 255], NaN = missing;
        or an iterator of such frames, (height, width) or (height, width, bands).
    frames : slice, optional
        Frames to read, counted from 0; all if None.
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
    footage = Footage(source, frames=frames, scale=scale, gray=gray, drop=drop, seed=seed)
    return footage.whole(footage.count())


class Footage:
    """What :func:`read_clip` reads, a block of frames at a time; its arguments are those of that function.

    Attributes
    ----------
    name : str
    chosen : slice of frames of the source, with a start and a step
    announced : int or None
        Number of frames according to the source, known once they are counted.
    lasting : bool
        Whether the frames can be read again, unlike those of a camera.
    """

    def __init__(
        self,
        source: Any,
        *,
        frames: slice | None = None,
        scale: float = 1.0,
        gray: bool = False,
        drop: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.chosen = _check_frames(frames)
        _check_reading(scale, drop, seed)
        self._scale, self._gray, self._drop, self._seed = float(scale), gray, float(drop), int(seed)
        self._reel = open_reel(source)
        self.name, self.lasting = self._reel.name, not isinstance(self._reel, Live)
        self.announced: int | None = None

    @property
    def rate(self) -> Fraction:
        """Frames per second among those chosen."""
        return Fraction(self._reel.rate) / int(self.chosen.step)

    def count(self) -> int:
        """The number of frames chosen; a warning if the source has fewer than it announced, an error if there are none.

        Those of a camera are read and held until they are asked for.
        """
        n_read, self.announced = self._reel.count(self.chosen.stop)
        n_frames = len(range(n_read)[self.chosen])
        if self.announced is not None and n_read < min(self.announced, self.chosen.stop or self.announced):
            warnings.warn(
                f"{self.name}: {n_read} frames could be read of {self.announced} announced; it may be cut short or "
                "damaged.",
                UserWarning,
                stacklevel=3,
            )
        if n_frames == 0:
            raise ValueError(
                f"{self.name}: none of its {n_read} frames is among those chosen, {_frames_text(self.chosen)}."
            )
        return n_frames

    def whole(self, n_frames: int) -> Clip:
        """All frames chosen, which have been counted."""
        clip = next(self.blocks(n_frames))
        if clip.n_frames != n_frames:
            raise ValueError(f"{self.name} changed while it was read: {clip.n_frames} frames instead of {n_frames}.")
        return clip

    def images(self) -> Iterator[NDArray[np.float32]]:
        """The frames chosen, (height, width, channels), one by one."""
        rng = np.random.default_rng(self._seed)
        weights: list[csr_array] = []
        shape: tuple[int, ...] | None = None
        chosen = islice(self._reel.images(), self.chosen.start, self.chosen.stop, self.chosen.step)
        for number, image in enumerate(chosen):
            if shape is None:
                shape = image.shape
                smaller = (max(1, round(self._scale * length)) for length in shape[:2])
                weights = [_area_weights(*lengths) for lengths in zip(shape, smaller, strict=False)]
            if image.shape != shape:
                raise ValueError(
                    f"{self.name}: frame {number} of those chosen has shape {image.shape}, but the first has {shape}. "
                    "All frames must be of one size and kind."
                )
            if self._gray and image.ndim == 3:
                image = image @ LUMA if image.shape[2] == 3 else image.mean(axis=2)
            if self._scale < 1:
                image = _shrink(image, *weights)
            levels = np.array(image.reshape(*image.shape[:2], -1), dtype=np.float32)
            if self._drop > 0:
                levels[rng.random(levels.shape[0] * levels.shape[1]).reshape(levels.shape[:2]) < self._drop] = np.nan
            yield levels

    def blocks(self, length: int) -> Iterator[Clip]:
        """The frames chosen in clips of ``length`` frames; the last may be shorter.

        A clip is filled a few frames at a time, and no clip but the one that is yielded is held.
        """
        images = self.images()
        while (first := next(images, None)) is not None:
            height, width, n_channels = first.shape
            shape = (height * width, n_channels, length)
            check_memory(
                4 * math.prod(shape), f"{self.name} as a tensor of {shape}", "choose a smaller scale or fewer frames"
            )
            values = np.empty(shape, dtype=np.float32)
            few = np.empty((*shape[:2], min(FRAMES_TOGETHER, length)), dtype=np.float32)
            n_filled = 0
            for image in chain([first], islice(images, length - 1)):
                position = n_filled % FRAMES_TOGETHER
                few[:, :, position] = image.reshape(shape[:2])
                n_filled += 1
                if position + 1 == few.shape[2]:
                    values[:, :, n_filled - position - 1 : n_filled] = few
            rest = n_filled % FRAMES_TOGETHER
            values[:, :, n_filled - rest : n_filled] = few[:, :, :rest]
            del first, image, few
            values = values if n_filled == length else np.ascontiguousarray(values[:, :, :n_filled])
            yield Clip(values, height, width, self.rate, self.announced)
            del values


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
    with atomic_file(path) as file, ClipWriter(file.name, rate) as writer:
        for image in images:
            writer.write(image)
        if not writer.begun:
            raise ValueError(f"{path}: there is no frame to write. Give at least one.")


class ClipWriter:
    """An open file into which frames are written one by one as :func:`write_clip` does, but not atomically.

    It is a context: at its end the clip is completed; without a frame there is no clip.
    """

    def __init__(self, path: str | os.PathLike[str], rate: Fraction | float = DEFAULT_RATE) -> None:
        self._av = require("av", extra="video", purpose="clips")
        self._path, self._rate = os.fspath(path), Fraction(rate).limit_denominator(1001)
        self._stream: Any = None

    def __enter__(self) -> Self:
        self._out = self._av.open(self._path, "w", "mp4", container_options={"movflags": "+faststart"})
        return self

    @property
    def begun(self) -> bool:
        """Whether there is a frame."""
        return self._stream is not None

    def write(self, image: Image) -> None:
        """Add a frame, (height, width) or (height, width, 3)."""
        levels = np.clip(np.rint(image), 0, 255).astype(np.uint8)
        if levels.ndim == 2:
            levels = np.repeat(levels[:, :, None], 3, axis=2)
        height, width = levels.shape[:2]
        levels = np.pad(levels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._stream = self._out.add_stream("libx264", rate=self._rate, options={"crf": "18"})
            self._stream.height, self._stream.width = levels.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        self._out.mux(self._stream.encode(self._av.VideoFrame.from_ndarray(levels, format="rgb24")))

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._stream is not None:
                self._out.mux(self._stream.encode(None))
        finally:
            self._out.close()


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


def _check_reading(scale: Any, drop: Any, seed: Any) -> None:
    """Raise unless the options of a reading are in range."""
    if not isinstance(scale, numbers.Real) or not 0 < float(scale) <= 1:
        raise ValueError(f"scale must be a number above 0 and at most 1, got {scale!r}.")
    if not isinstance(drop, numbers.Real) or not 0 <= float(drop) < 1:
        raise ValueError(f"drop must be a number of at least 0 and below 1, got {drop!r}.")
    if not isinstance(seed, numbers.Integral) or int(seed) < 0:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}.")


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
