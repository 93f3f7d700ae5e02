"""The compiled loop over the pixels of a clip that finds how they follow the light."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from brtf.kernels.jit import loop

__all__ = ["follow_light"]

NORMAL_QUARTILE = 0.6745
"""Median of the absolute value of a standard normal number."""

SETTLED = 0.01
"""Change of the slope, in spreads of the residuals, and of that spread, by which a regression has settled."""


@loop
def follow_light(values: Any, course: Any, near: Any, slope: Any, gain: Any) -> None:
    """How every pixel and channel follows a common ``course`` (frames,), by Tukey's robust regression.

    It begins with ``slope`` (pixels, channels), which is filled, and with everything that a pixel shows, unless that
    slope is ``near``: then with what lies as close to the line as most frames do. ``gain`` is the log of the ratio of
    the median absolute residuals without and with the course.
    """
    n_pixels, n_channels, n_frames = values.shape
    level, time, rest = np.empty(n_frames), np.empty(n_frames), np.empty(n_frames)
    for p in range(n_pixels):
        for c in range(n_channels):
            n = 0
            for t in range(n_frames):
                if values[p, c, t] == values[p, c, t]:
                    level[n], time[n] = values[p, c, t], course[t]
                    n += 1
            gain[p, c] = 0.0
            if n < 4:
                slope[p, c] = 0.0
                continue
            without = np.median(np.abs(level[:n] - np.median(level[:n])))
            b = float(slope[p, c])
            rest[:n] = level[:n] - b * time[:n]
            a = np.median(rest[:n])
            spread = np.median(np.abs(rest[:n] - a))
            scale = max(spread / NORMAL_QUARTILE if near else float(np.std(rest[:n])), 0.3)
            for _ in range(12):
                s0, s1, s2, sy, sxy = 1e-9, 0.0, 1e-9, 0.0, 0.0
                reach = 4.7 * scale
                for i in range(n):
                    r = (level[i] - a - b * time[i]) / reach
                    if abs(r) < 1:
                        w = (1 - r * r) ** 2
                        s0 += w
                        s1 += w * time[i]
                        s2 += w * time[i] ** 2
                        sy += w * level[i]
                        sxy += w * time[i] * level[i]
                det = s0 * s2 - s1 * s1
                if det <= 1e-9 * s0 * s2:
                    break
                before = b
                a, b = (s2 * sy - s1 * sxy) / det, (s0 * sxy - s1 * sy) / det
                spread = np.median(np.abs(level[:n] - a - b * time[:n]))
                wide, scale = scale, max(spread / NORMAL_QUARTILE, 0.5 * scale, 0.3)
                if abs(b - before) < SETTLED * scale and scale > (1 - SETTLED) * wide:
                    break
            slope[p, c] = b
            gain[p, c] = math.log((without + 0.2) / (spread + 0.2))
