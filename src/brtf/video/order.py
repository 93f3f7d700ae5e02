"""Which steady levels of a pixel are the scene: what was there before and comes back, not what stops for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, label

from brtf.kernels.pixels import course_of_levels, nearest_level
from brtf.video.steady import Levels, Single

Mask = NDArray[np.bool_]

APART = 36.0
"""Mean squared distance of two levels, in noise variances, from which they are two things, not one in other light."""
SMALLEST = 25
"""Pixels of a region that is decided as one: what a field of 5 × 5 pixels can tell from specks."""
OFTEN = 0.1
"""Share of the frames that a level needs that comes and goes, such as the sky behind a leaf."""
FIRST_IS_SCENE = math.log(3.0)
"""Prior log odds that the scene was there first, where something changes for good."""
STEPS = (3, 4)
"""Distances in pixels across the edge of a region at which its two looks are compared with what is around."""
DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


@dataclass(frozen=True)
class Change:
    """A region that changes for good: something came and stayed, or something left.

    Attributes
    ----------
    size : int
        Pixels.
    came : bool
        Whether what is seen after the change is the object.
    alike : float
        Share of the places along its edge where the look before the change fits the surroundings better.
    """

    size: int
    came: bool
    alike: float


def scene_shares(levels: Levels, width: int) -> tuple[Single, list[Change]]:
    """The shares (pixels, levels) of the levels that are part of the scene, which sum to one, and lasting changes.

    A level that is seen in one stay, with another level before and after it, is an object that paused, if a region of
    pixels says so. Where one level follows another for good, order alone cannot tell who came from who left: the scene
    goes on smoothly beyond the edge of the region and an object does not, so the look that fits the surroundings along
    the edge is the scene; in doubt the earlier one. Levels that come and go need a tenth of the time.
    """
    n_pixels, n_levels = levels.mean.shape[:2]
    pixels = np.arange(n_pixels)
    found = np.empty(levels.values.shape[::2], dtype=np.int8)
    nearest_level(levels.values, levels.mean, levels.variance, levels.share, levels.broad, found)
    kind, side = np.zeros((2, n_pixels, n_levels), dtype=np.int8)
    course_of_levels(found, _apart(levels), kind, side)
    n_seen = np.maximum(np.count_nonzero(found >= 0, axis=1), 1)
    share = np.stack([np.count_nonzero(found == k, axis=1) for k in range(n_levels)], axis=1) / n_seen[:, None]

    pauses = kind < 0
    region, _ = label(pauses.any(axis=1).reshape(-1, width))
    sizes = np.bincount(region.ravel())
    sizes[0] = 0
    used = np.where((kind != 0) & ~(pauses & (sizes[region.ravel()] >= SMALLEST)[:, None]), share, 0.0)
    used[(side == 0) & (share < OFTEN) & (used < used.max(axis=1, keepdims=True))] = 0

    changes: list[Change] = []
    changing = (side > 0).any(axis=1)
    if changing.any():
        before = levels.mean[pixels, np.where(side == 1, share, -1.0).argmax(axis=1)]
        after = levels.mean[pixels, np.where(side == 2, share, -1.0).argmax(axis=1)]
        usual = used.argmax(axis=1)
        region, n_regions = label(changing.reshape(-1, width))
        votes = _edge_votes(
            changing.reshape(-1, width), region, n_regions, before, after, levels.mean[pixels, usual],
            levels.variance[pixels, usual],
        )  # fmt: skip
        sizes = np.bincount(region.ravel(), minlength=n_regions + 1)
        for number in np.flatnonzero(sizes[1:] >= SMALLEST) + 1:
            n_votes = votes[number].sum()
            alike = float((votes[number, 0] + 0.5) / (n_votes + 1))
            n_places = max(n_votes / (2 * len(STEPS) * len(DIRECTIONS)), 1.0)  # neighbours on an edge agree
            left = alike < 0.5 and 2 * n_places * (0.5 - alike) ** 2 > FIRST_IS_SCENE
            here = (region.ravel() == number)[:, None]
            used[here & (side == (1 if left else 2))] = 0
            changes.append(Change(int(sizes[number]), not left, alike))
    total = used.sum(axis=1)
    used[total == 0, levels.share[:, :-1].argmax(axis=1)[total == 0]] = 1.0
    return (used / used.sum(axis=1, keepdims=True)).astype(np.float32), changes


def _apart(levels: Levels) -> Mask:
    """Which pairs of levels of a pixel are two things, (pixels, levels, levels)."""
    distance = (levels.mean[:, :, None] - levels.mean[:, None]) ** 2
    smaller = np.minimum(levels.variance[:, :, None], levels.variance[:, None])
    return np.asarray((distance / smaller).mean(axis=3) > APART)


def _edge_votes(
    changing: Mask, region: NDArray[np.int32], n_regions: int, before: Single, after: Single, usual: Single,
    variance: Single,
) -> NDArray[np.float64]:  # fmt: skip
    """For every region, how often its look before and after the change is closer to what is beyond its edge."""
    height, width = changing.shape
    pixel = np.flatnonzero(changing)
    row, column = np.divmod(pixel, width)
    taken = binary_dilation(changing, np.ones((3, 3)))
    votes = np.zeros((n_regions + 1, 2))
    for step in STEPS:
        for down, right in DIRECTIONS:
            to_row, to_column = row + step * down, column + step * right
            inside = (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
            inside[inside] &= ~taken[to_row[inside], to_column[inside]]
            here, there = pixel[inside], (to_row * width + to_column)[inside]
            first, second = (((look[here] - usual[there]) ** 2 / variance[there]).sum(1) for look in (before, after))
            for which, wins in enumerate((first < second, first >= second)):
                votes[:, which] += np.bincount(region.ravel()[here], wins, minlength=n_regions + 1)
    return votes
