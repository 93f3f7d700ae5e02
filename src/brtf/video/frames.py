"""Sources of frames: video files, images, arrays. Files are recognised by content before they are opened."""

from __future__ import annotations

import glob
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brtf.data.extras import require
from brtf.data.readers import read_tensor

Image = NDArray[Any]
"""A frame: (height, width) grey or (height, width, 3) colour, in [0, 255]."""

DEFAULT_RATE = Fraction(25)
"""Default frames per second."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
ARRAY_SUFFIXES = (".npy", ".npz")
CONTAINERS = (
    (4, b"ftyp", "mov"),
    (4, b"moov", "mov"),
    (4, b"mdat", "mov"),
    (4, b"wide", "mov"),
    (4, b"free", "mov"),
    (4, b"skip", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "asf"),
    (0, b"FLV\x01", "flv"),
    (0, b"OggS", "ogg"),
    (0, b"\x00\x00\x01\xba", "mpeg"),
    (0, b"GIF8", "gif"),
    (0, b"YUV4MPEG2 ", "yuv4mpegpipe"),
)
"""Signature bytes of containers, their offset, and FFmpeg's name; only these are opened, each as what it is.

Unlike playlists, none of them can refer to other files or addresses."""
MOST_PIXELS = 2**26
"""Largest number of pixels of a frame, 8192 × 8192; a file of a few bytes may claim any number."""
TOO_LARGE = f"it claims more than {MOST_PIXELS:,} pixels a frame; make it smaller first."
LARGEST_LEVEL = 1e9
"""Largest level of an array: far beyond any camera's, and its squares are exact enough in single precision."""
TOO_DARK = "{} holds levels of at most 1, but levels run from 0 to 255: multiply it by 255."
TS_PACKET, TS_SYNC = 188, b"G"
"""An MPEG transport stream has no header; every packet begins with the same byte."""


class Reel(Protocol):
    """A source of frames: its name, the number of frames, and the frames themselves, which can be read repeatedly."""

    name: str
    rate: Fraction

    def count(self, limit: int | None) -> tuple[int, int | None]:
        """Number of frames that can be read, counted up to ``limit``, and the announced number, if known."""

    def images(self) -> Iterator[Image]:
        """The frames, in order."""


def open_reel(source: Any) -> Reel:
    """The reel of a path, a pattern, an array or an iterator of frames."""
    if isinstance(source, Iterator):
        return Live(source)
    if not isinstance(source, str | os.PathLike):
        return _Array("the array", source)
    name = os.fspath(source)
    if os.path.isdir(name):
        found = [os.path.join(name, entry) for entry in os.listdir(name)]
        return _Images(name, [path for path in found if path.lower().endswith(IMAGE_SUFFIXES)])
    if not os.path.exists(name) and glob.has_magic(name):
        return _Images(name, glob.glob(name))
    if not os.path.exists(name):
        raise FileNotFoundError(f"{name} does not exist.")
    if not os.path.isfile(name):
        raise ValueError(f"{name} is a device or a pipe; give a video file, a folder of images or a pattern.")
    if Path(name).suffix.lower() in ARRAY_SUFFIXES:
        return _Array(name, read_tensor(name))
    return _Video(name, _container(name))


class _Array:
    """Frames of an array (frames, height, width) or (frames, height, width, bands)."""

    rate = DEFAULT_RATE

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, np.asarray(array)
        if self.array.ndim not in (3, 4):
            raise ValueError(
                f"{name} must be (frames, height, width) or (frames, height, width, bands), got shape "
                f"{self.array.shape}. "
                "Move its axes first, for example with numpy.moveaxis."
            )
        _check_levels(name, self.array)
        if self.array.dtype.kind in "bf" and np.fmax.reduce(self.array, axis=None) <= 1:
            raise ValueError(TOO_DARK.format(name))

    def count(self, limit: int | None) -> tuple[int, int | None]:
        return len(self.array), None

    def images(self) -> Iterator[Image]:
        return iter(self.array.reshape(self.array.shape[:3]) if self.array.shape[-1] == 1 else self.array)


class Live:
    """Frames that come one by one and only once, such as those of a camera."""

    rate = DEFAULT_RATE
    name = "the iterator"

    def __init__(self, frames: Iterator[Any]) -> None:
        self._coming = frames

    def count(self, limit: int | None) -> tuple[int, int | None]:
        """Reads the frames, which are held until they are asked for."""
        held = list(islice(self._coming, limit))
        self._coming = iter(held)
        return len(held), None

    def images(self) -> Iterator[Image]:
        for number, frame in enumerate(self._coming):
            image = np.asarray(frame)
            if image.ndim not in (2, 3):
                raise ValueError(
                    f"{self.name} must yield frames (height, width) or (height, width, bands), got shape {image.shape} "
                    f"for frame {number}."
                )
            _check_levels(f"frame {number} of {self.name}", image)
            if image.dtype.kind == "b" or (number == 0 and np.fmax.reduce(image, axis=None) <= 1 and (image % 1).any()):
                raise ValueError(TOO_DARK.format(f"frame {number} of {self.name}"))
            yield image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image


def _check_levels(name: str, array: NDArray[Any]) -> None:
    """Raise unless an array holds numbers that may be levels."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}.")
    if array.size == 0:
        raise ValueError(f"{name} has no pixel, in shape {array.shape}.")
    if array.dtype.kind != "f":
        return
    if float(max(np.fmax.reduce(array, axis=None), -np.fmin.reduce(array, axis=None))) > LARGEST_LEVEL:
        raise ValueError(f"{name} holds levels beyond {LARGEST_LEVEL:g}, but levels run from 0 to 255: rescale it.")


class _Images:
    """Frames in PNG or JPEG files."""

    rate = DEFAULT_RATE

    def __init__(self, name: str, paths: list[str]) -> None:
        self.name, self.paths = name, sorted(paths, key=_by_number)
        if not paths:
            raise ValueError(f"{name} has no image ({', '.join(IMAGE_SUFFIXES)}).")

    def count(self, limit: int | None) -> tuple[int, int | None]:
        return len(self.paths), None

    def images(self) -> Iterator[Image]:
        pillow = require("PIL.Image", extra="video", purpose="clips")
        for path in self.paths:
            try:
                with _opened_picture(pillow, path) as picture:
                    if picture.mode.startswith(("I", "F")):
                        raise ValueError("it has more than 8 bits per channel; convert it to 8.")
                    yield np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))
            except Exception as error:  # Pillow raises almost any exception on invalid files
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise ValueError(f"{path} cannot be read: {error}") from error


def _opened_picture(pillow: Any, path: str) -> Any:
    """An opened picture whose size has been checked; its pixels are not decoded yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        try:
            picture = pillow.open(path, formats=("PNG", "JPEG"))
        except pillow.DecompressionBombError:
            raise ValueError(TOO_LARGE) from None
    if math.prod(picture.size) > MOST_PIXELS:
        picture.close()
        raise ValueError(TOO_LARGE)
    return picture


class _Video:
    """Frames of a video file, opened only as the container that it is."""

    def __init__(self, name: str, container: str) -> None:
        self.name, self.container = name, container
        with self._opened() as (_, stream):
            self.rate = stream.average_rate or stream.base_rate or DEFAULT_RATE

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """Open the file in FFmpeg through a Python file object, so that it cannot access other files or addresses."""
        av = require("av", extra="video", purpose="clips")
        locked = {"format_whitelist": self.container, "protocol_whitelist": ""}
        try:
            with (
                open(self.name, "rb") as file,
                av.open(file, format=self.container, container_options=locked) as container,
            ):
                if not container.streams.video:
                    raise ValueError("it has no video stream; is it sound only, or cut short?")
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    raise ValueError("its codec is not known; is it damaged?")
                if stream.codec_context.width * stream.codec_context.height > MOST_PIXELS:
                    raise ValueError(TOO_LARGE)
                yield container, stream
        except av.FFmpegError as error:
            raise ValueError(
                f"{self.name} cannot be read: {error.strerror}. It may be cut short or damaged."
            ) from error
        except ValueError as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from error

    def count(self, limit: int | None) -> tuple[int, int | None]:
        with self._opened() as (container, stream):
            n_frames = sum(1 for _ in islice(decode_frames(container, stream), limit))
            announced = stream.frames or None
            if announced is None and container.duration is not None:  # in microseconds; accurate to a frame
                announced = round(Fraction(container.duration, 1_000_000) * self.rate)
                announced = n_frames if announced == n_frames + 1 else announced
        if n_frames == 0:
            raise ValueError(f"{self.name} cannot be read: none of its frames can be decoded. Is it cut short?")
        return n_frames, announced

    def images(self) -> Iterator[Image]:
        with self._opened() as (container, stream):
            for frame in decode_frames(container, stream):
                yield frame.to_ndarray(format="gray" if frame.format.name.startswith("gray") else "rgb24")


def decode_frames(container: Any, stream: Any) -> Iterator[Any]:
    """The frames that can be decoded, up to the end of the possibly truncated file."""
    av = require("av", extra="video", purpose="clips")
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except av.FFmpegError:  # the end is missing: frames buffered in the decoder are still good
            yield from stream.decode(None)
            return
        try:
            yield from packet.decode()
        except av.FFmpegError:
            continue


def _container(name: str) -> str:
    """FFmpeg's name of the container indicated by the first bytes; raises unless it is known and safe."""
    with open(name, "rb") as file:
        head = file.read(2 * TS_PACKET + 1)
    for start, signature, container in CONTAINERS:
        if head[start : start + len(signature)] == signature:
            return container
    if head[::TS_PACKET] == 3 * TS_SYNC:
        return "mpegts"
    if not head:
        raise ValueError(f"{name} is empty.")
    if not re.search(rb"[^\t\n\r -~\x80-\xff]", head):
        raise ValueError(
            f"{name} is text: a playlist or a script (such as m3u8 or concat), which names other files and is not "
            "opened. Give the video itself."
        )
    raise ValueError(f"{name} is not a video of a known kind: MP4, MOV, Matroska, WebM, AVI, MPEG, ASF, FLV, Ogg, GIF.")


def _by_number(path: str) -> list[Any]:
    """Sort key that puts frame10 after frame9."""
    parts = re.split(r"(\d+)", path)
    return [int(part) if position % 2 else part for position, part in enumerate(parts)]
