"""Moving objects in a clip of any length, a block of frames at a time and in memory for a fixed number of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import evenly_spaced
from brtf.data.memory import available_bytes
from brtf.video.clips import Clip, Footage, read_clip
from brtf.video.decision import Foreground, decide
from brtf.video.shadow import ShadowLaw

__all__ = [
    "DEFAULT_PLAN",
    "ForegroundStream",
    "Overview",
    "StreamPlan",
    "decided_blocks",
    "fits",
    "look_over",
    "stream",
]

Array = NDArray[np.float64]
Single = NDArray[np.float32]

BYTES_PER_PIXEL, BYTES_PER_LEVEL = 73, 17
"""Memory that a decision takes for a pixel of a frame, and for each of its channels: 90 and 123 together were measured
in grey and in colour (``python benchmarks/long_clips.py --whole``)."""


@dataclass(frozen=True)
class StreamPlan:
    """How the frames of a long clip are divided.

    Attributes
    ----------
    block : int
        Frames that are decided together. More take more memory, and less time for each.
    memory : int
        Frames of other times, evenly spread, that show the scene to every block.
    local : int
        Frames of a block, evenly spread, from which its scene is learnt besides those of other times, at least. If it
        were learnt from all, what stands still in the block would be most of what is seen.
    whole_bytes, block_bytes : int
        Largest memory in which a clip is decided as a whole, and in which a block is; at most half of what there is.
    """

    block: int = 128
    memory: int = 128
    local: int = 16
    whole_bytes: int = 2**31
    block_bytes: int = 2**31

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("memory", 2), ("local", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    def of_frames(self, n_pixels: int, n_channels: int) -> StreamPlan:
        """The same for frames of n_pixels and n_channels so large that blocks must be shorter.

        Half of the memory is for the block, a quarter for other times.
        """
        n_frames = _allowed(self.block_bytes) // bytes_of_frame(n_pixels, n_channels)
        return replace(
            self, block=min(self.block, max(4, n_frames // 2)), memory=min(self.memory, max(2, n_frames // 2))
        )


DEFAULT_PLAN = StreamPlan()


def bytes_of_frame(n_pixels: int, n_channels: int) -> int:
    """Memory that a decision takes for every frame."""
    return n_pixels * (BYTES_PER_PIXEL + BYTES_PER_LEVEL * n_channels)


def fits(footage: Footage, n_frames: int, plan: StreamPlan = DEFAULT_PLAN) -> bool:
    """Whether a clip is decided as a whole."""
    first = next(footage.images())
    return n_frames * bytes_of_frame(first.shape[0] * first.shape[1], first.shape[2]) <= _allowed(plan.whole_bytes)


def _allowed(n_bytes: int) -> int:
    """So many bytes, or half of the memory there is if that is less."""
    return min(n_bytes, available_bytes() // 2)


class _Past:
    """Frames (pixels, channels) of the past, at most so many, evenly spread from the first on."""

    def __init__(self, most: int) -> None:
        self.most, self.n_seen = most, 0
        self.numbers: list[int] = []
        self.frames: list[Single] = []
        self._stride = 1

    def add(self, clip: Clip) -> None:
        for frame in range(clip.n_frames):
            if self.n_seen % self._stride == 0:
                self.frames.append(clip.values[:, :, frame].copy())
                self.numbers.append(self.n_seen)
                if len(self.frames) > self.most:
                    self.frames, self.numbers = self.frames[::2], self.numbers[::2]
                    self._stride *= 2
            self.n_seen += 1


class ForegroundStream:
    """Moving objects in a clip that comes block by block, with memory for a fixed number of frames.

    Every block is decided together with frames of the past, evenly spread from the first frame on, so that what was
    there before counts, however long ago. :func:`stream` is simpler, and for a file also better: it knows what comes.

    Parameters
    ----------
    memory : int
        Largest number of frames of the past that are kept, at least 2.

    Examples
    --------
    >>> import brtf
    >>> import numpy as np
    >>> clip = brtf.datasets.toy_video("street", height=32, width=48, frames=30, seed=0)
    >>> frames = np.moveaxis(clip.observed.reshape(32, 48, 3, 30), 3, 0)
    >>> stream = brtf.foreground.ForegroundStream()
    >>> [stream.partial_fit(block).mask.shape[2] for block in np.split(frames, [20])]
    [20, 10]
    """

    def __init__(self, memory: int = DEFAULT_PLAN.memory) -> None:
        if memory < 2:
            raise ValueError(f"memory must be at least 2 frames, got {memory}.")
        self.memory = memory
        self.n_frames_seen_ = 0
        self._past = _Past(memory)
        self._kind: tuple[int, int, int] | None = None
        self._law: ShadowLaw | None = None

    def partial_fit(self, source: Any, **reading: Any) -> Foreground:
        """What moves in the next frames: ``source`` and options of ``reading`` as for :func:`foreground`.

        Mask and probability of the :class:`Foreground` that is returned are those of these frames.
        """
        clip = source if isinstance(source, Clip) else read_clip(source, **reading)
        kind = clip.height, clip.width, clip.n_channels
        if self._kind not in (None, kind):
            raise ValueError(
                f"this block has frames of height, width and channels {kind}, but those before had {self._kind}. All "
                "blocks must be of one clip."
            )
        self._kind = kind
        found = _decided_among(self._past.frames, clip, [], self.memory, shadows=self._law)
        self._law = found.shadow or self._law
        self._past.add(clip)
        first, self.n_frames_seen_ = self.n_frames_seen_, self._past.n_seen
        return replace(found, first=first)


@dataclass(frozen=True, eq=False)
class Overview:
    """Frames of a clip that are evenly spread over all of it, and what moves in them.

    Attributes
    ----------
    n_frames : int
        Of the clip.
    numbers : sequence of int
        Of the frames that are held.
    clip : Clip
        These frames.
    found : Foreground
        What moves in them, and what was decided.
    """

    n_frames: int
    numbers: Sequence[int]
    clip: Clip
    found: Foreground


def look_over(footage: Footage, n_frames: int, plan: StreamPlan = DEFAULT_PLAN) -> Overview:
    """Read a clip once and decide frames that are evenly spread over all of it."""
    images = footage.images()
    first = next(images)
    height, width, n_channels = first.shape
    numbers = evenly_spaced(n_frames, plan.of_frames(height * width, n_channels).memory)
    values = np.empty((height * width, n_channels, numbers.size), dtype=np.float32)
    values[:, :, 0] = first.reshape(height * width, n_channels)
    place = dict(zip(numbers.tolist(), range(numbers.size), strict=True))
    for number, image in enumerate(images, start=1):
        if number in place:
            values[:, :, place[number]] = image.reshape(height * width, n_channels)
    clip = Clip(values, height, width, footage.rate, footage.announced)
    return Overview(n_frames, numbers.tolist(), clip, decide(clip))


def decided_blocks(
    footage: Footage, overview: Overview, plan: StreamPlan = DEFAULT_PLAN
) -> Iterator[tuple[Clip, Foreground]]:
    """The blocks of a clip, and what moves in each, decided together with frames before and after it."""
    held = overview.clip.values
    plan = plan.of_frames(*held.shape[:2])
    numbers = np.asarray(overview.numbers)
    frames = [held[:, :, k] for k in range(numbers.size)]
    first, n_blocks = 0, -(-overview.n_frames // plan.block)
    for clip in footage.blocks(-(-overview.n_frames // n_blocks)):  # all of nearly the same length
        before, after = np.searchsorted(numbers, [first, first + clip.n_frames])
        found = _decided_among(
            frames[:before],
            clip,
            frames[after:],
            plan.memory,
            plan.local,
            still=overview.found.shifts is None,
            shadows=overview.found.shadow,
        )
        yield clip, replace(found, first=first)
        first += clip.n_frames


@dataclass(frozen=True, eq=False)
class Summary(Foreground):
    """What was decided about a clip in blocks: the mask is that of the frames that were looked over.

    Attributes
    ----------
    n_blocks, n_held : int
        Number of blocks, and of the frames of other times that each was decided with.
    of_all : float
        Share of the pixels of all frames that belong to objects.
    """

    n_blocks: int = 0
    n_held: int = 0
    of_all: float = 0.0

    @property
    def share(self) -> float:
        return self.of_all

    def sentences(self) -> list[str]:
        return [
            f"The clip is long: it was decided in {self.n_blocks} blocks, each together with {self.n_held} frames that "
            "are evenly spread over all of it.",
            *super().sentences(),
        ]


def summed_up(overview: Overview, shifts: Sequence[Array | None], share: float) -> Summary:
    """What was decided about a clip, from what was looked over, the shifts of every block, and the share of objects."""
    shook = [one for one in shifts if one is not None]
    parts = {one.name: getattr(overview.found, one.name) for one in fields(Foreground)}
    parts["shifts"] = np.concatenate(shook) if shook else None
    return Summary(**parts, n_blocks=len(shifts), n_held=overview.clip.n_frames, of_all=share)


def foreground(source: Any, **reading: Any) -> Foreground:
    """Find what moves in a clip from a fixed camera; every choice is made from the clip.

    Frames are laid on each other if the camera shook, changes of light that the whole scene follows are taken out,
    every pixel is given up to three steady levels with their noise, of which those that were there before or come back
    are the scene, shadows are told from objects, and pixels are decided together with their neighbours; at the edge of
    an object those belong to it that have at least half of their light from it. All bands are used jointly. A clip that
    would take more than 2 GB is decided in blocks, as :func:`stream` does, which also holds only a block at a time.

    Parameters
    ----------
    source : Clip, path, glob pattern, array or iterator
        A clip, or what :func:`brtf.video.read_clip` reads: a video, a folder of images, an array (frames, height,
        width) or (frames, height, width, bands) of levels from 0 to 255, NaN where missing, or an iterator of frames.
    **reading
        Options of :func:`brtf.video.read_clip`, such as ``frames``, ``scale`` and ``gray``.

    Returns
    -------
    Foreground

    Examples
    --------
    >>> import brtf
    >>> import numpy as np
    >>> clip = brtf.datasets.toy_video("street", height=32, width=48, frames=30, seed=0)
    >>> found = brtf.foreground(np.moveaxis(clip.observed.reshape(32, 48, 3, 30), 3, 0))
    >>> found.mask.shape
    (32, 48, 30)
    """
    if isinstance(source, Clip):
        return decide(source)
    footage = Footage(source, **reading)
    return foreground_of(footage, footage.count(), DEFAULT_PLAN)


def foreground_of(footage: Footage, n_frames: int, plan: StreamPlan) -> Foreground:
    """What moves in a clip, decided as a whole or, if that would take too much memory, in blocks."""
    if not footage.lasting or fits(footage, n_frames, plan):
        return decide(footage.whole(n_frames))
    overview = look_over(footage, n_frames, plan)
    blocks = [found for _, found in decided_blocks(footage, overview, plan)]
    mask, probability = (
        np.concatenate([getattr(found, part) for found in blocks], axis=2) for part in ("mask", "probability")
    )
    overall = summed_up(overview, [found.shifts for found in blocks], float(mask.mean()))
    return replace(overall, mask=mask, probability=probability)


def stream(source: Any, *, plan: StreamPlan = DEFAULT_PLAN, **reading: Any) -> Iterator[Foreground]:
    """Find what moves in a clip of any length, as :func:`foreground`, a block of frames at a time.

    A file, a folder or an array is read twice: every block is decided together with frames that are evenly spread over
    the whole clip, and so knows what was there before and what comes later. An iterator of frames, such as a camera's,
    is read once, and a block is decided together with frames of the past as soon as it is complete.

    Parameters
    ----------
    source : path, glob pattern, array or iterator
        What :func:`brtf.video.read_clip` reads.
    plan : StreamPlan, optional
        How many frames are decided together, and how many of other times are held.
    **reading
        Options of :func:`brtf.video.read_clip`, such as ``frames``, ``scale`` and ``gray``.

    Yields
    ------
    Foreground
        Of the frames ``first``, ``first + 1``, … of those that are read, as many as its mask has.

    Examples
    --------
    >>> import brtf
    >>> import numpy as np
    >>> clip = brtf.datasets.toy_video("street", height=32, width=48, frames=30, seed=0)
    >>> frames = np.moveaxis(clip.observed.reshape(32, 48, 3, 30), 3, 0)
    >>> plan = brtf.foreground.StreamPlan(block=20)
    >>> [(found.first, found.mask.shape[2]) for found in brtf.foreground.stream(iter(frames), plan=plan)]
    [(0, 20), (20, 10)]
    """
    footage = Footage(source, **reading)
    if footage.lasting:
        overview = look_over(footage, footage.count(), plan)
        for _, found in decided_blocks(footage, overview, plan):
            yield found
        return
    seen = ForegroundStream(plan.memory)
    for clip in footage.blocks(plan.block):
        yield seen.partial_fit(clip)


def _decided_among(
    before: Sequence[Single],
    clip: Clip,
    after: Sequence[Single],
    n_learnt: int,
    n_local: int = DEFAULT_PLAN.local,
    **known: Any,
) -> Foreground:
    """What moves in a clip, whose scene is learnt from frames before and after it and from some of its own.

    ``known`` are the last arguments of :func:`decide`.
    """
    n_before, n_outside, n_frames = len(before), len(before) + len(after), clip.n_frames
    own = n_before + evenly_spaced(n_frames, max(n_local, n_learnt - n_outside))
    learnt = np.concatenate([np.arange(n_before), own, n_before + n_frames + np.arange(len(after))])
    if n_outside > 0:
        parts = [np.stack(part, axis=2) for part in (before, after) if part]
        parts.insert(int(n_before > 0), clip.values)
        clip = replace(clip, values=np.concatenate(parts, axis=2))
    some = None if learnt.size == clip.n_frames else learnt
    return decide(clip, slice(n_before, n_before + n_frames), some, **known)
