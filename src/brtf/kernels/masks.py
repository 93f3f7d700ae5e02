"""Compiled loops over the pixels of a mask: the field that makes objects whole, and the light at their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from brtf.kernels.jit import loop

__all__ = ["drop_fringe", "settle_field"]


@loop
def settle_field(evidence: Any, near: Any, coupling: Any, temperatures: Any, odds: Any) -> None:
    """Log odds (frames, height, width) of a mean field: own evidence, and ``coupling`` times what neighbours expect.

    A round for each of the ``temperatures``, by which the log odds of neighbours are divided: in hot rounds their
    evidence adds up, at one each has decided.
    """
    n_frames, height, width = evidence.shape
    reach = near.shape[0] // 2
    wide = width + 2 * reach
    # a margin of zeros expects nothing, and the lines are long enough for vectors
    expected = np.zeros((height + 2 * reach, wide), np.float32)
    inside, weights = np.zeros_like(expected), np.zeros((height, width), np.float32)
    inside[reach : reach + height, reach : reach + width] = 1
    total = np.empty(width, np.float32)
    for i in range(height):
        _add_near(inside, near, i, total)
        weights[i] = np.maximum(total, np.float32(1e-30))
    for t in range(n_frames):
        odds[t] = evidence[t]
        for temperature in temperatures:
            half = np.float32(0.5 / temperature)
            for i in range(height):
                for j in range(width):
                    expected[i + reach, j + reach] = math.tanh(half * odds[t, i, j])
            for i in range(height):
                _add_near(expected, near, i, total)
                for j in range(width):
                    odds[t, i, j] = evidence[t, i, j] + np.float32(coupling) * total[j] / weights[i, j]


@loop
def _add_near(values: Any, near: Any, row: Any, total: Any) -> None:
    """For every pixel of a row the sum of what is around it, in weights ``near``, of ``values`` with a margin."""
    total[:] = 0
    for down in range(near.shape[0]):
        for right in range(near.shape[1]):
            weight = near[down, right]
            line = values[row + down]
            for j in range(total.size):
                total[j] += weight * line[j + right]


@loop
def drop_fringe(mask: Any, values: Any, scene: Any, variance: Any, known: Any, kept: Any) -> None:
    """The mask (frames, height, width) without pixels at its edge that have most of their light from the scene.

    Such a pixel shows α o + (1 − α) x, where x is the ``scene`` (pixels, channels) with its noise ``variance``, and o
    the mean of what the pixels beside it show that belong to the mask and are not at its edge. It is dropped if α, by
    least squares, is below ½. Without such a neighbour, or where the scene is not ``known`` (pixels,), it is kept.
    """
    n_frames, height, width = mask.shape
    n_channels = values.shape[1]
    inner = np.empty((height, width), np.bool_)
    object_ = np.empty(n_channels)
    for t in range(n_frames):
        for i in range(height):
            for j in range(width):
                inner[i, j] = mask[t, i, j] and mask[t, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].all()
        for i in range(height):
            for j in range(width):
                p = i * width + j
                kept[t, i, j] = mask[t, i, j]
                if not mask[t, i, j] or inner[i, j] or not known[p] or math.isnan(values[p, 0, t]):
                    continue
                n = 0
                object_[:] = 0
                for row in range(max(i - 1, 0), min(i + 2, height)):
                    for column in range(max(j - 1, 0), min(j + 2, width)):
                        q = row * width + column
                        if inner[row, column] and not math.isnan(values[q, 0, t]):
                            n += 1
                            for c in range(n_channels):
                                object_[c] += values[q, c, t]
                if n == 0:
                    continue
                across, length = 0.0, 0.0
                for c in range(n_channels):
                    contrast = object_[c] / n - scene[p, c]
                    across += contrast * (values[p, c, t] - scene[p, c]) / variance[p, c]
                    length += contrast * contrast / variance[p, c]
                kept[t, i, j] = across >= 0.5 * length
