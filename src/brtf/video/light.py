"""Light that changes for the whole scene: a course over the frames that every pixel follows in its own measure."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import evenly_spaced
from brtf.kernels.light import follow_light

Single = NDArray[np.float32]
Array = NDArray[np.float64]

MOST_COURSES = 3
WORTH = 0.1
"""Share of its deviations that a course must take away from the median pixel."""
BLOCK = 8
"""Side in pixels of the squares whose medians show the light, whatever moves through them."""
N_ROUNDS = 6
MOST_ASKED = 128
"""Frames from which it is found what a pixel makes of a course: two numbers need no more."""


def even_light(
    values: Single, height: int, width: int, learnt: NDArray[np.intp] | None = None
) -> tuple[Single, list[Array]]:
    """The clip in the light of its median frame, and the courses of the light that were taken out.

    The background of a clip has low rank over the frames: y = x + Σ_k b_k s_kt. A course s is found from the medians of
    squares, and what every pixel makes of it by robust regression that begins with what its square makes of it: a pixel
    that is covered by objects for much of the time would follow these. It is taken out if it takes a tenth off the
    deviations of the median pixel, which is also far more than the price of a number: ½ ln T / T nats a frame. What
    the pixels make of a course is found from the frames ``learnt``, or else from all or some, if there are many.
    """
    courses: list[Array] = []
    while len(courses) < MOST_COURSES:
        course = _common_course(values, height, width)
        if course is None:
            break
        asked = evenly_spaced(values.shape[2], MOST_ASKED) if learnt is None else learnt
        some = values if asked.size == values.shape[2] else np.take(values, asked, axis=2)
        of_some = course[asked]
        few = _every_second(height, width)
        tried = np.ascontiguousarray(some[few])
        slope, gain = np.zeros((2, *tried.shape[:2]), dtype=np.float32)
        follow_light(tried, of_some, False, slope, gain)
        square = _square_of(height, width).ravel()
        begin = _of_squares(slope, square[few])[square]
        slope = begin[few]
        follow_light(tried, of_some, True, slope, gain)
        n_frames = some.shape[2]
        if float(np.median(gain)) <= max(-math.log1p(-WORTH), 0.5 * math.log(n_frames) / n_frames):
            break
        slope, gain = begin, np.empty_like(begin)
        follow_light(some, of_some, True, slope, gain)
        values = values - slope[:, :, None] * course.astype(np.float32)
        courses.append(course)
    return values, courses


def _square_of(height: int, width: int) -> NDArray[np.intp]:
    """The number (height, width) of the square in which a pixel lies."""
    rows, columns = max(1, height // BLOCK), max(1, width // BLOCK)
    number = (np.arange(height) * rows // height)[:, None] * columns + np.arange(width) * columns // width
    return np.asarray(number)


def _every_second(height: int, width: int) -> NDArray[np.intp]:
    """The pixels of every second row and column, a quarter, which tell whether a course is worth its price."""
    return np.asarray(np.arange(height * width).reshape(height, width)[::2, ::2].ravel())


def _of_squares(values: Single, number: NDArray[np.intp]) -> Single:
    """The medians (squares, …) of pixels × …, by the ``number`` of their square; NaN where nothing is known."""
    order = np.argsort(number, kind="stable")
    edges = np.searchsorted(number[order], np.arange(1, number[-1] + 1))
    median = np.nanmedian if np.isnan(values).any() else np.median  # much faster
    return np.stack([median(part, axis=0) for part in np.split(values[order], edges)])


def _common_course(values: Single, height: int, width: int) -> Array | None:
    """The course (frames,) that most squares follow, with median 0 and unit spread; None if they stay as they are."""
    n_frames = values.shape[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pixels that are missing in all frames have no median
        grey = values.mean(axis=1)
        median = np.nanmedian if np.isnan(grey).any() else np.median
        squares = _of_squares(grey - median(grey, axis=1, keepdims=True), _square_of(height, width).ravel())
    squares = np.where(np.isnan(squares), 0.0, squares).astype(np.float64)
    weight = np.ones(len(squares))
    course = np.zeros(n_frames)
    for _ in range(N_ROUNDS):
        use = np.abs(weight) > 0.1 * np.median(np.abs(weight))
        course = np.median(squares[use] / weight[use, None], axis=0)
        course = course - np.median(course)
        size = np.abs(course).sum()
        if size == 0:
            return None
        slope, gain = np.zeros((2, len(squares), 1), dtype=np.float32)
        follow_light(squares[:, None].astype(np.float32), course, False, slope, gain)
        weight = slope[:, 0].astype(np.float64)
        if not np.abs(weight).max() > 0:
            return None
        weight = np.where(weight == 0, 1e-9, weight)
    spread = course.std()
    return course / spread if spread > 0 else None
