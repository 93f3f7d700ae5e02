"""Boxes around the connected objects of a mask: as a table, as a document that labelling tools read, and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import find_objects, label

from brtf.data.exports import Table
from brtf.video.clips import Clip
from brtf.video.frames import Image

__all__ = ["boxes", "boxes_document", "boxes_images", "draw_boxes"]


COLUMNS = ("frame", "x", "y", "width", "height", "area")
TOUCHING = np.ones((3, 3), dtype=np.int8)
"""Pixels that touch along a side or at a corner belong to one object."""
LINE = (222.0, 94.0, 32.0)
"""Red, green and blue of a drawn box."""
GAP = 128.0
"""Level of missing pixels where boxes are drawn."""


def boxes(mask: NDArray[np.bool_], frames: Sequence[int] | None = None) -> Table:
    """The connected objects of every frame of a mask, each with the smallest box around it.

    Pixels of one frame that touch along a side or at a corner belong to one object.

    Parameters
    ----------
    mask : ndarray of bool, (height, width, frames)
        Where objects are, such as ``brtf.foreground(clip).mask``.
    frames : sequence of int, optional
        Numbers of the frames; counted from 0 if None.

    Returns
    -------
    dict of ndarray of int
        Columns ``frame``, ``x`` and ``y`` (column and row of the top left pixel, from 0), ``width``, ``height`` and
        ``area``, the number of pixels of the object; a row per object, in the order of the frames.

    Examples
    --------
    >>> import numpy as np
    >>> from brtf.foreground import boxes
    >>> mask = np.zeros((5, 6, 2), dtype=bool)
    >>> mask[1:3, 2:5, 1] = True
    >>> {name: column.tolist() for name, column in boxes(mask).items()}
    {'frame': [1], 'x': [2], 'y': [1], 'width': [3], 'height': [2], 'area': [6]}
    """
    mask = np.asarray(mask)
    if mask.ndim != 3 or mask.dtype != np.bool_:
        raise ValueError(
            f"mask must be an array of bool, (height, width, frames), got {mask.dtype} of shape {mask.shape}. "
            "A threshold makes a mask of probabilities: probability > 0.5."
        )
    numbers = range(mask.shape[2]) if frames is None else frames
    if len(numbers) != mask.shape[2]:
        raise ValueError(f"frames must have a number for each of the {mask.shape[2]} frames, got {len(numbers)}.")
    rows = []
    for k, number in enumerate(numbers):
        objects, _ = label(mask[:, :, k], TOUCHING)
        areas = np.bincount(objects.ravel())[1:]
        for (down, right), area in zip(find_objects(objects), areas, strict=True):
            rows.append((number, right.start, down.start, right.stop - right.start, down.stop - down.start, area))
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T
    return dict(zip(COLUMNS, columns, strict=True))


def boxes_document(
    found: Table, frames: Iterable[int], height: int, width: int, file_name: str = "mask/{:06d}.png"
) -> dict[str, Any]:
    """The table of :func:`boxes` as a document of images, annotations and one category, laid out as in COCO.

    The number of an image is that of its frame; ``file_name`` is a pattern of the names of their files.
    """
    rows = zip(*(found[name].tolist() for name in COLUMNS), strict=True)
    return {
        "images": [
            {"id": int(frame), "file_name": file_name.format(frame), "height": height, "width": width}
            for frame in frames
        ],
        "annotations": [
            {"id": k, "image_id": frame, "category_id": 1, "bbox": box, "area": area, "iscrowd": 0}
            for k, (frame, *box, area) in enumerate(rows, start=1)
        ],
        "categories": [{"id": 1, "name": "object"}],
    }


def boxes_images(clip: Clip, found: Table, frames: Iterable[int]) -> Iterator[Image]:
    """The clip in colour with the boxes of the table drawn, frame by frame; missing pixels are grey."""
    for k, frame in enumerate(frames):
        image = np.nan_to_num(clip.image(clip.values[:, :, k]), nan=GAP)
        yield draw_boxes(image, box_edges(found, frame))


def box_edges(found: Table, frame: int) -> list[tuple[int, int, int, int]]:
    """The first row, last row, first column and last column of every box of a frame."""
    there = found["frame"] == frame
    x, y, wide, high = (found[name][there] for name in COLUMNS[1:5])
    return list(zip(*(edge.tolist() for edge in (y, y + high - 1, x, x + wide - 1)), strict=True))


def draw_boxes(image: Image, edges: Iterable[tuple[int, int, int, int]]) -> Image:
    """A copy of an image, in colour, with the outlines of boxes (see :func:`box_edges`) on their outermost pixels."""
    drawn = np.array(np.broadcast_to(image[..., None], (*image.shape, 3)) if image.ndim == 2 else image, np.float32)
    for top, bottom, left, right in edges:
        drawn[[top, bottom], left : right + 1] = LINE
        drawn[top : bottom + 1, [left, right]] = LINE
    return drawn
