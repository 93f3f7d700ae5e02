"""Which steady levels of a pixel are the scene: what was there before and comes back, not what stops for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, label
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from brtf.kernels.pixels import course_of_levels, nearest_level
from brtf.video.steady import Levels, Single

Mask = NDArray[np.bool_]

APART = 36.0
"""Mean squared distance of two levels, in noise variances, from which they are two things, not one in other light."""
SMALLEST = 25
"""Pixels of a region that is decided as one: what a field of 5 × 5 pixels can tell from specks."""
OFTEN = 0.1
"""Share of the frames that a level needs that comes and goes, such as the sky behind a leaf."""
RIGHT = 0.75
"""Share of the votes along the edge of a region that are right, as measured on generated clips (0.72 to 0.99)."""
FIRST_IS_SCENE = math.log(3.0)
"""Prior log odds that the scene was there first, where something changes for good."""
SAME_TIME = 0.05
"""Share of the clip within which neighbours change if it is one thing that they see."""
NEAR = 2
"""Reach in pixels of the field of a pixel: what is around a region is decided with it."""
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
    """

    size: int
    came: bool


def scene_shares(levels: Levels, width: int) -> tuple[Levels, Single, list[Change]]:
    """The levels, the shares (pixels, levels) of those of the scene, which sum to one, and the lasting changes.

    A level that is seen in one stay, with another level before and after it, is an object that paused, if a region of
    pixels says so. Where one level follows another for good, order alone cannot tell who came from who left: the scene
    goes on smoothly beyond the edge of the region and an object does not, so the look that fits the surroundings along
    the edge is the scene; in doubt the earlier one. What changes beside it at the same time has a say; the levels of
    the scene are found again in the frames that show it. Levels that come and go need a tenth of the time.
    """
    n_pixels, n_levels = levels.mean.shape[:2]
    pixels = np.arange(n_pixels)
    found = np.empty(levels.values.shape[::2], dtype=np.int8)
    nearest_level(levels.values, levels.mean, levels.variance, levels.share, levels.broad, found)
    kind, side = np.zeros((2, n_pixels, n_levels), dtype=np.int8)
    when = np.empty((n_pixels, 2), dtype=np.int64)
    course_of_levels(found, _apart(levels), kind, side, when)
    n_seen = np.maximum(np.count_nonzero(found >= 0, axis=1), 1)
    share = np.stack([np.count_nonzero(found == k, axis=1) for k in range(n_levels)], axis=1) / n_seen[:, None]

    pauses = kind < 0
    region, _ = label(pauses.any(axis=1).reshape(-1, width))
    sizes = np.bincount(region.ravel())
    sizes[0] = 0
    used = np.where((kind != 0) & ~(pauses & (sizes[region.ravel()] >= SMALLEST)[:, None]), share, 0.0)
    used[(side == 0) & (share < OFTEN) & (used < used.max(axis=1, keepdims=True))] = 0

    changing = np.asarray((side > 0).any(axis=1))
    changes: list[Change] = []
    if changing.any():
        before, after = (levels.mean[pixels, np.where(side == one, share, -1.0).argmax(axis=1)] for one in (1, 2))
        usual = used.argmax(axis=1)
        region, group = (
            _together(changing.reshape(-1, width), when[:, 0], SAME_TIME * levels.values.shape[2], reach).ravel()
            for reach in (NEAR, 2 * NEAR)
        )
        group_of = np.zeros(region.max() + 1, dtype=np.intp)
        group_of[region] = group
        odds = _left(changing, region, before, after, levels.mean[pixels, usual], levels.variance[pixels, usual], width)
        odds_of_group = np.bincount(group_of, odds)
        decided = (np.bincount(group)[group_of] >= SMALLEST) & (group_of > 0)
        sizes_changed: dict[tuple[int, bool], int] = {}
        for number in np.flatnonzero(decided):
            own = region == number
            sure = abs(odds[number]) > FIRST_IS_SCENE  # if not, it goes with what changes at the same time beside it
            left = bool((odds[number] if sure else odds_of_group[group_of[number]]) > FIRST_IS_SCENE)
            # when nearly all of the region has not changed yet, or has changed, its scene is seen
            first, last = np.percentile(when[own], (5, 95), axis=0).astype(int)
            around = binary_dilation(own.reshape(-1, width), np.ones((2 * NEAR + 1, 2 * NEAR + 1))).ravel()
            here = np.flatnonzero(own | (around & ~decided[region]))
            levels = levels.fitted(here, slice(last[1], None) if left else slice(first[0] + 1))
            again = levels.share[here, :-1]
            used[here] = np.where((again < OFTEN) & (again < again.max(axis=1, keepdims=True)), 0.0, again)
            key = int(group_of[number]), not left
            sizes_changed[key] = sizes_changed.get(key, 0) + int(np.count_nonzero(own))
        changes = [Change(size, came) for (_, came), size in sizes_changed.items() if size >= SMALLEST]
    total = used.sum(axis=1)
    used[total == 0, levels.share[:, :-1].argmax(axis=1)[total == 0]] = 1.0
    return levels, (used / used.sum(axis=1, keepdims=True)).astype(np.float32), changes


def _together(changing: Mask, when: NDArray[np.int64], apart: float, reach: int) -> NDArray[np.int32]:
    """The number of its region for each pixel that changes: close to each other, and at nearly the same time."""
    height, width = changing.shape
    number = np.cumsum(changing).reshape(changing.shape) - 1
    time = when.reshape(changing.shape)
    pairs = []
    for down, right in product(range(reach + 1), range(-reach, reach + 1)):
        if (down, right) <= (0, 0):  # each pair once
            continue
        one = np.s_[: height - down, max(0, -right) : width - max(0, right)]
        other = np.s_[down:, max(0, right) : width - max(0, -right)]
        linked = changing[one] & changing[other] & (np.abs(time[one] - time[other]) <= apart)
        pairs.append(np.stack([number[one][linked], number[other][linked]]))
    first, second = np.concatenate(pairs, axis=1)
    n = int(changing.sum())
    region = np.zeros(changing.shape, dtype=np.int32)
    region[changing] = connected_components(coo_array((np.ones(first.size), (first, second)), shape=(n, n)))[1] + 1
    return region


def _apart(levels: Levels) -> Mask:
    """Which pairs of levels of a pixel are two things, (pixels, levels, levels)."""
    distance = (levels.mean[:, :, None] - levels.mean[:, None]) ** 2
    smaller = np.minimum(levels.variance[:, :, None], levels.variance[:, None])
    return np.asarray((distance / smaller).mean(axis=3) > APART)


def _left(
    changing: Mask, region: NDArray[np.int32], before: Single, after: Single, usual: Single, variance: Single,
    width: int,
) -> NDArray[np.float64]:  # fmt: skip
    """For every region the log odds that something left: its look after the change is closer to what is around.

    Neighbours on an edge agree, so the votes of all steps and directions are one vote of a pixel.
    """
    height = len(changing) // width
    pixel = np.flatnonzero(changing)
    row, column = np.divmod(pixel, width)
    taken = binary_dilation(changing.reshape(height, width), np.ones((3, 3)))
    votes = np.zeros(region.max() + 1)
    for step, (down, right) in product(STEPS, DIRECTIONS):
        to_row, to_column = row + step * down, column + step * right
        inside = (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
        inside[inside] &= ~taken[to_row[inside], to_column[inside]]
        here, there = pixel[inside], (to_row * width + to_column)[inside]
        first, second = (((look[here] - usual[there]) ** 2 / variance[there]).sum(1) for look in (before, after))
        votes += np.bincount(region[here], np.where(second < first, 1.0, -1.0), minlength=len(votes))
    return votes / (2 * len(STEPS) * len(DIRECTIONS)) * math.log(RIGHT / (1 - RIGHT))
