"""A camera that shakes: how far every frame is shifted against the median frame, and frames laid on each other."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from brtf.video.clips import Clip

Array = NDArray[np.float64]
Single = NDArray[np.float32]

NOTICEABLE = 0.1
"""Median shift in pixels below which frames are left alone: moving them would change less than rounding does."""
WORTH = 0.1
"""Share of the error that shifts must take away in the median square of the frame."""
SQUARE = 16
FARTHEST = 0.25
"""Largest shift, as a share of the shorter side of a frame."""
N_REFERENCE = 60
"""Frames of which the median is taken."""
N_STEPS, N_ROUNDS = 8, 2
"""Gauss-Newton steps of a frame, and rounds in which the median frame gets sharper."""


def find_shifts(clip: Clip) -> Array | None:
    """The shift (frames, 2) of every frame in rows and columns against the median frame; None if it does not pay.

    A robust fit of a translation between pixels: the whole pixels from a correlation, the rest by Gauss-Newton steps.
    It pays if shifts found in every second row lower the error in the other rows by a tenth in most squares of the
    frame, those with leaves in the wind and those without, and if most frames move noticeably.
    """
    frames = clip.values.mean(axis=1).T.reshape(clip.n_frames, clip.height, clip.width)
    if min(clip.height, clip.width) < 16 or clip.n_frames < 3 or np.isnan(frames).mean() > 0.2:
        return None
    frames = np.where(np.isnan(frames), np.nanmedian(frames), frames)
    some = frames[:: max(1, len(frames) // N_REFERENCE)]
    reference = np.median(some, axis=0)
    shifts = np.stack([_shift(frame, reference, np.s_[::2]) for frame in frames])
    still, moved = (sum(_errors(*pair) for pair in zip(frames, [reference] * len(frames), by, strict=True))
                    for by in (np.zeros_like(shifts), shifts))  # fmt: skip
    if np.median(moved / still) > 1 - WORTH or np.median(np.abs(shifts).max(axis=1)) < NOTICEABLE:
        return None
    for _ in range(N_ROUNDS):
        aligned = [shifted(frame, found) for frame, found in zip(frames, shifts, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a border that no frame shows has no median
            reference = np.nanmedian(aligned[:: max(1, len(frames) // N_REFERENCE)], axis=0)
        reference = np.where(np.isnan(reference), np.nanmedian(reference), reference)
        shifts = np.stack([_shift(frame, reference, np.s_[:]) for frame in frames])
    return np.asarray(shifts - np.round(np.median(shifts, axis=0)))


def shifted(image: NDArray[np.floating], shift: Array) -> NDArray[np.floating]:
    """What an image (rows, columns, …) shows at its places plus a shift, by linear interpolation; NaN outside."""
    whole = np.floor(shift).astype(int)
    part = (shift - whole).astype(image.dtype)
    moved = image
    for axis in (0, 1):
        length = image.shape[axis]
        here, next_ = (_rolled(moved, int(whole[axis]) + k, axis, length) for k in (0, 1))
        moved = here if part[axis] == 0 else (1 - part[axis]) * here + part[axis] * next_
    return moved


def _rolled(image: NDArray[np.floating], by: int, axis: int, length: int) -> NDArray[np.floating]:
    """The image moved by whole pixels, NaN where nothing is known."""
    moved = np.full_like(image, np.nan)
    low, high = max(0, -by), min(length, length - by)
    if low < high:
        to: list[slice] = [slice(None)] * image.ndim
        source = list(to)
        to[axis], source[axis] = slice(low, high), slice(low + by, high + by)
        moved[tuple(to)] = image[tuple(source)]
    return moved


def _shift(frame: Single, reference: Array, rows: slice) -> Array:
    """The d for which frame(x + d) is the reference(x), from some of the rows."""
    far = int(FARTHEST * min(frame.shape))
    sharp = [image - _blurred(image) for image in (frame, reference)]
    product = np.fft.irfft2(np.fft.rfft2(sharp[0]) * np.conj(np.fft.rfft2(sharp[1])), s=frame.shape)
    height, width = frame.shape
    reach = np.r_[0 : far + 1, -far:0]
    window = product[np.ix_(reach % height, reach % width)]
    best = np.unravel_index(np.argmax(window), window.shape)
    d = np.array([reach[best[0]], reach[best[1]]], dtype=np.float64)
    if _error(frame, reference, d, rows) > _error(frame, reference, np.zeros(2), rows):
        d[:] = 0
    for _ in range(N_STEPS):
        moved = shifted(frame, d)
        slope = np.gradient(moved)
        rest = (reference - moved)[rows]
        known = np.isfinite(rest) & np.isfinite(slope[0][rows]) & np.isfinite(slope[1][rows])
        if np.count_nonzero(known) < 16:
            break
        error = rest[known]
        reach_of_error = 4.7 * (np.median(np.abs(error)) / 0.6745 + 0.3)
        weight = np.clip(1 - (error / reach_of_error) ** 2, 0, None) ** 2
        design = np.stack([part[rows][known] for part in slope])
        step = np.linalg.lstsq((design * weight) @ design.T + 1e-9 * np.eye(2), (design * weight) @ error, rcond=None)[
            0
        ]
        d = np.clip(d + np.clip(step, -1, 1), -far, far)
        if np.abs(step).max() < 1e-3:
            break
    return d


def _blurred(image: NDArray[np.floating]) -> NDArray[np.floating]:
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(image, 3.0))


def _errors(frame: Single, reference: Array, d: Array) -> Array:
    """Mean absolute difference over the odd rows of every square at a shift; a level more, so that it is not zero."""
    error = np.abs(shifted(frame, d) - reference)[1::2]
    error = np.where(np.isnan(error), np.abs(frame - reference)[1::2], error)
    rows, columns = error.shape[0] // (SQUARE // 2), error.shape[1] // SQUARE
    cut = error[: rows * (SQUARE // 2), : columns * SQUARE].reshape(rows, SQUARE // 2, columns, SQUARE)
    return np.asarray(np.median(cut, axis=(1, 3)).ravel() + 0.1)


def _error(frame: Single, reference: Array, d: Array, rows: slice) -> float:
    """Mean absolute difference over the rows at a shift, without the tenth that differs most."""
    error = np.abs(shifted(frame, d) - reference)[rows]
    error = error[np.isfinite(error)]
    return float(np.mean(np.partition(error, int(0.9 * error.size))[: int(0.9 * error.size)])) if error.size else np.inf
