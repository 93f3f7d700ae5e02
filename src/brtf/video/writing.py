"""The files that ``brtf video`` writes about the objects of a clip, a block of frames at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np

from brtf import __version__
from brtf.data.exports import Table
from brtf.data.extras import require
from brtf.io.writers import write_csv
from brtf.video.boxes import boxes, boxes_document, boxes_images
from brtf.video.clips import Clip, ClipWriter, as_colours
from brtf.video.decision import Foreground
from brtf.video.foreground import foreground_images
from brtf.video.page import Album

__all__ = ["ObjectFiles"]


class ObjectFiles:
    """An open directory into which masks, clips and boxes are written as blocks are decided.

    It is a context, at the end of which the clips are complete; ``finish`` then adds the files about the whole clip.

    Parameters
    ----------
    directory : Path
        An empty directory.
    frames : sequence of int
        Numbers of all frames that may come.
    rate : Fraction
        Frames per second.
    """

    def __init__(self, directory: Path, frames: Sequence[int], rate: Fraction) -> None:
        self.directory, self.frames, self.n_frames = directory, frames, 0
        self.n_objects, self.n_foreground, self.size = 0, 0, (0, 0)
        self._pillow = require("PIL.Image", extra="video", purpose="images")
        self._clips = {name: ClipWriter(directory / f"{name}.mp4", rate) for name in ("mask", "foreground", "boxes")}
        self._open = ExitStack()
        self._album = Album(frames)
        self._tables: list[Table] = []

    def __enter__(self) -> Self:
        (self.directory / "mask").mkdir()
        for clip in self._clips.values():
            self._open.enter_context(clip)
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.__exit__(*raised)  # type: ignore[arg-type]

    def add(self, clip: Clip, found: Foreground) -> None:
        """Write the next frames."""
        frames = self.frames[self.n_frames : self.n_frames + clip.n_frames]
        objects = boxes(found.mask, frames)
        shown = zip(foreground_images(clip, found.mask), boxes_images(clip, objects, frames), strict=True)
        for k, (frame, (foreground, boxed)) in enumerate(zip(frames, shown, strict=True)):
            mask = 255 * found.mask[:, :, k].astype(np.uint8)
            self._pillow.fromarray(mask).save(self.directory / "mask" / f"{frame:06d}.png")
            for name, image in (("mask", mask), ("foreground", foreground), ("boxes", boxed)):
                self._clips[name].write(image)
        self._album.add(clip, found, objects, frames)
        self._tables.append(objects)
        self.size = clip.height, clip.width
        self.n_frames += clip.n_frames
        self.n_objects += int(objects["frame"].size)
        self.n_foreground += int(np.count_nonzero(found.mask))

    @property
    def foreground_share(self) -> float:
        """Share of the pixels that belong to objects."""
        return self.n_foreground / max(1, self.n_frames * self.size[0] * self.size[1])

    def finish(self, overall: Foreground, title: str) -> None:
        """Write the boxes, the scene and the page, with what was decided."""
        objects = {name: np.concatenate([one[name] for one in self._tables]) for name in self._tables[0]}
        write_csv(self.directory / "boxes.csv", objects)
        with open(self.directory / "boxes.json", "w", encoding="utf-8") as file:
            json.dump(boxes_document(objects, self.frames[: self.n_frames], *self.size), file)
        scene = np.clip(np.rint(np.nan_to_num(as_colours(overall.background))), 0, 255).astype(np.uint8)
        self._pillow.fromarray(scene).save(self.directory / "background.png")
        page = self._album.page(overall, title, __version__)
        (self.directory / "report.html").write_text(page, encoding="utf-8", errors="replace")
