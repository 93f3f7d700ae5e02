"""Compiled loops over the pixels of a clip: noise, steady levels, densities, and order in time.

Values are (pixels, channels, frames), NaN in every channel of what is missing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from brtf.kernels.jit import loop

__all__ = ["course_of_levels", "difference_noise", "displaced_density", "fit_levels", "level_density",
           "nearest_level", "repeated"]  # fmt: skip

LN_2PI = math.log(2 * math.pi)
N_CANDIDATES = 40
"""Frames of a pixel that are tried as the middle of its densest level."""
N_SHIFTS, N_EM = 3, 6
"""Rounds of mean shift, and of expectation and maximisation: both have settled by then."""
PRIOR_FRAMES = 5.0
"""Weight of the noise of neighbouring frames in the variance of a level, in frames."""
TRIM = 0.04
"""Share of a level's frames at either end that do not count as its time."""
ASTRAY = 0.1
"""Share of the frames before or after a lasting change that may show a level of the other side."""
FAR_OUT = 40.0
"""Squared distance beyond which a normal density is nought to single precision."""


@loop
def difference_noise(values: Any, lag: Any, share: Any, quantile: Any, noise: Any) -> None:
    """Noise variance (pixels, channels) from the distance of frames, ``lag`` apart among those seen; NaN without two.

    The ``share`` of these distances is taken to be below the ``quantile`` of a normal number's absolute value.
    """
    n_pixels, n_channels, n_frames = values.shape
    seen, steps = np.empty(n_frames), np.empty(n_frames)
    for p in range(n_pixels):
        for c in range(n_channels):
            n = 0
            for t in range(n_frames):
                level = values[p, c, t]
                if level == level:
                    seen[n] = level
                    if n >= lag:
                        steps[n - lag] = abs(level - seen[n - lag])
                    n += 1
            n -= lag
            noise[p, c] = np.nan if n <= 0 else 0.5 * (np.quantile(steps[:n], share) / quantile) ** 2


@loop
def repeated(values: Any, least: Any, repeats: Any) -> None:
    """Whether a pixel (pixels,) shows the same in all channels, to half a level, in ``least`` of successive frames."""
    n_pixels, n_channels, n_frames = values.shape
    for p in range(n_pixels):
        n, n_same, before = 0, 0, -1
        for t in range(n_frames):
            if math.isnan(values[p, 0, t]):
                continue
            if before >= 0:
                far = 0.0
                for c in range(n_channels):
                    far = max(far, abs(values[p, c, t] - values[p, c, before]))
                n_same += far < 0.5
                n += 1
            before = t
        repeats[p] = n > 0 and n_same > least * n


@loop
def fit_levels(values: Any, noise: Any, floor: Any, slab: Any, n_fewest: Any, mean: Any, variance: Any,
               share: Any) -> None:  # fmt: skip
    """A few steady levels of every pixel: the densest first, then a mixture with a broad density ``slab`` (log).

    ``mean`` and ``variance`` (pixels, levels, channels) and ``share`` (pixels, levels + 1), zero at first, are filled;
    the last share is that of the broad density. A level needs ``n_fewest`` (pixels,) frames.
    """
    n_pixels, n_channels, n_frames = values.shape
    n_levels = mean.shape[1]
    gate = n_channels + 2.5 * math.sqrt(2.0 * n_channels) + 1.0  # nearly all frames of a level are within it
    used = np.empty(n_frames, np.bool_)
    weight = np.empty((n_levels + 1, n_frames))
    total = np.empty(n_channels)
    for p in range(n_pixels):
        n_seen = 0
        for t in range(n_frames):
            used[t] = math.isnan(values[p, 0, t])
            n_seen += not used[t]
        if n_seen == 0:
            continue
        k, left = 0, n_seen
        while k < n_levels and left >= n_fewest[p]:
            step = max(1, left // N_CANDIDATES)
            most, middle, i = -1, -1, 0
            for t in range(n_frames):
                if used[t]:
                    continue
                i += 1
                if i % step:
                    continue
                n_near = 0
                for s in range(n_frames):
                    if not used[s]:
                        d = 0.0
                        for c in range(n_channels):
                            d += (values[p, c, s] - values[p, c, t]) ** 2 / noise[p, c]
                        n_near += d < gate
                if n_near > most:
                    most, middle = n_near, t
            for c in range(n_channels):
                mean[p, k, c] = values[p, c, middle]
            n_near = 0
            for _ in range(N_SHIFTS):
                n_near = 0
                total[:] = 0
                for s in range(n_frames):
                    if used[s]:
                        continue
                    d = 0.0
                    for c in range(n_channels):
                        d += (values[p, c, s] - mean[p, k, c]) ** 2 / noise[p, c]
                    if d < gate:
                        n_near += 1
                        for c in range(n_channels):
                            total[c] += values[p, c, s]
                if n_near > 0:
                    for c in range(n_channels):
                        mean[p, k, c] = total[c] / n_near
            if n_near < n_fewest[p] and k > 0:
                break
            for s in range(n_frames):
                if used[s]:
                    continue
                d = 0.0
                for c in range(n_channels):
                    d += (values[p, c, s] - mean[p, k, c]) ** 2 / noise[p, c]
                if d < 1.5 * gate:
                    used[s] = True
                    left -= 1
            share[p, k] = max(n_near, 1) / n_seen
            for c in range(n_channels):
                variance[p, k, c] = noise[p, c]
            k += 1
        share[p, n_levels] = (left + 0.5) / (n_seen + 1)
        for _ in range(N_EM):
            for t in range(n_frames):
                if math.isnan(values[p, 0, t]):
                    for j in range(n_levels + 1):
                        weight[j, t] = 0.0
                    continue
                weight[n_levels, t] = math.log(share[p, n_levels] + 1e-12) + slab
                largest = weight[n_levels, t]
                for j in range(k):
                    d = 0.0
                    for c in range(n_channels):
                        d += (values[p, c, t] - mean[p, j, c]) ** 2 / variance[p, j, c]
                        d += math.log(variance[p, j, c]) + LN_2PI
                    weight[j, t] = math.log(share[p, j] + 1e-12) - 0.5 * d
                    largest = max(largest, weight[j, t])
                weight[n_levels, t] = math.exp(weight[n_levels, t] - largest)
                whole = weight[n_levels, t]
                for j in range(k):
                    weight[j, t] = math.exp(weight[j, t] - largest)
                    whole += weight[j, t]
                weight[n_levels, t] /= whole
                for j in range(k):
                    weight[j, t] /= whole
            for j in range(k):
                n = 0.0
                for t in range(n_frames):
                    n += weight[j, t]
                share[p, j] = n / n_seen
                if n < 1e-3:
                    continue
                for c in range(n_channels):
                    m = 0.0
                    for t in range(n_frames):
                        if weight[j, t] > 0:
                            m += weight[j, t] * values[p, c, t]
                    m /= n
                    q = PRIOR_FRAMES * noise[p, c]
                    for t in range(n_frames):
                        if weight[j, t] > 0:
                            q += weight[j, t] * (values[p, c, t] - m) ** 2
                    mean[p, j, c] = m
                    variance[p, j, c] = max(q / (n + PRIOR_FRAMES), floor[c])
            n = 0.5
            for t in range(n_frames):
                n += weight[n_levels, t]
            share[p, n_levels] = n / (n_seen + 1)


@loop
def nearest_level(values: Any, mean: Any, variance: Any, share: Any, slab: Any, label: Any) -> None:
    """The most probable level of every pixel and frame; the number of levels if none, −1 if missing."""
    n_pixels, n_channels, n_frames = values.shape
    n_levels = mean.shape[1]
    for p in range(n_pixels):
        for t in range(n_frames):
            if math.isnan(values[p, 0, t]):
                label[p, t] = -1
                continue
            best, which = math.log(share[p, n_levels] + 1e-12) + slab, n_levels
            for j in range(n_levels):
                if share[p, j] > 0:
                    d = 0.0
                    for c in range(n_channels):
                        d += (values[p, c, t] - mean[p, j, c]) ** 2 / variance[p, j, c]
                        d += math.log(variance[p, j, c]) + LN_2PI
                    score = math.log(share[p, j]) - 0.5 * d
                    if score > best:
                        best, which = score, j
            label[p, t] = which


@loop
def level_density(values: Any, mean: Any, variance: Any, share: Any, degrees: Any, constant: Any, spill: Any,
                  around: Any, density: Any, distance: Any, rest: Any) -> None:  # fmt: skip
    """Log density of a mixture of multivariate t around the levels, and what deviates from the nearest one.

    ``distance`` (pixels, frames) is squared and in noise units, ``rest`` its mean over the channels in their own units.
    The noise of a channel has shares ``spill`` (squares, channels) of what deviates ``around`` (squares, pixels,
    frames) added to it.
    """
    n_pixels, n_channels, n_frames = values.shape
    n_levels = mean.shape[1]
    power = 0.5 * (degrees + n_channels)
    for p in range(n_pixels):
        for t in range(n_frames):
            if math.isnan(values[p, 0, t]):
                density[p, t] = np.nan
                distance[p, t] = np.nan
                rest[p, t] = np.nan
                continue
            largest, whole, nearest = -1e30, 0.0, 1e30
            for j in range(n_levels):
                if share[p, j] <= 0:
                    continue
                d, size, away = 0.0, 1.0, 0.0
                for c in range(n_channels):
                    square = (values[p, c, t] - mean[p, j, c]) ** 2
                    spread = variance[p, j, c]
                    for s in range(len(spill)):
                        spread += spill[s, c] * around[s, p, t]
                    d += square / spread
                    size *= spread
                    away += square
                if d < nearest:
                    nearest = d
                    rest[p, t] = away / n_channels
                score = math.log(share[p, j]) - 0.5 * math.log(size) - power * math.log1p(d / degrees)
                if score > largest:
                    whole = whole * math.exp(largest - score) + 1
                    largest = score
                else:
                    whole += math.exp(score - largest)
            density[p, t] = -1e4 if whole == 0 else largest + math.log(whole) + constant
            distance[p, t] = nearest


@loop
def displaced_density(values: Any, mean: Any, variance: Any, share: Any, near: Any, width: Any, wanted: Any,
                      other: Any, strange: Any, density: Any, explained: Any) -> None:  # fmt: skip
    """Log density of a scene that moved a little: the levels of the pixels around, in weights ``near`` (rows, columns).

    Computed where ``wanted`` (pixels, frames). Neighbours move together: the density of a displacement is the geometric
    mean over all wanted pixels within 5 × 5, each of which may with a share ``strange`` show something else, which has
    the log density ``other`` (pixels, frames). ``explained`` is the probability that, if the scene moved, the pixel
    itself shows it.
    """
    n_pixels, n_channels, n_frames = values.shape
    n_levels = mean.shape[1]
    reach = near.shape[0] // 2
    height = n_pixels // width
    size = np.zeros((n_pixels, n_levels))
    for p in range(n_pixels):
        for j in range(n_levels):
            for c in range(n_channels):
                size[p, j] += 0.5 * (math.log(variance[p, j, c]) + LN_2PI)
    precision = 1 / variance
    place, n_near = np.empty(n_pixels, np.int64), np.empty(n_pixels)
    number = np.zeros(n_pixels + 1, np.int64)  # of the wanted pixels before each
    level, strangers = np.empty((n_pixels, n_channels)), np.empty(n_pixels)
    own = np.empty(n_pixels)
    run = np.zeros(n_pixels + 1)  # sums of log densities over the wanted pixels before each
    for t in range(n_frames):
        n_wanted = 0
        for p in range(n_pixels):
            if wanted[p, t]:
                place[n_wanted] = p
                level[n_wanted] = values[p, :, t]
                strangers[n_wanted] = strange * math.exp(other[p, t])
                density[p, t] = 0.0
                explained[p, t] = 0.0
                n_wanted += 1
            number[p + 1] = n_wanted
        for k in range(n_wanted):
            row, column = divmod(place[k], width)
            left, end = max(0, column - 2), min(width, column + 3)
            n_near[k] = 0.0
            for line in range(max(0, row - 2), min(height, row + 3)):
                n_near[k] += number[line * width + end] - number[line * width + left]
        for down in range(-reach, reach + 1):
            for right in range(-reach, reach + 1):
                weight = near[down + reach, right + reach]
                for k in range(n_wanted):
                    row, column = divmod(place[k], width)
                    total = 0.0
                    if 0 <= row + down < height and 0 <= column + right < width:
                        q = place[k] + down * width + right
                        for j in range(n_levels):
                            if share[q, j] <= 0:
                                continue
                            d = 0.0
                            for c in range(n_channels):
                                d += (level[k, c] - mean[q, j, c]) ** 2 * precision[q, j, c]
                            if d < FAR_OUT:
                                total += share[q, j] * math.exp(-0.5 * d - size[q, j])
                    total *= 1 - strange
                    own[k] = total / (total + strangers[k])
                    run[k + 1] = run[k] + math.log(total + strangers[k])
                for k in range(n_wanted):
                    row, column = divmod(place[k], width)
                    left, end = max(0, column - 2), min(width, column + 3)
                    s = 0.0
                    for line in range(max(0, row - 2), min(height, row + 3)):
                        s += run[number[line * width + end]] - run[number[line * width + left]]
                    s = weight * math.exp(s / n_near[k])
                    density[place[k], t] += s
                    explained[place[k], t] += s * own[k]
        for k in range(n_wanted):
            explained[place[k], t] /= density[place[k], t] + 1e-30
            density[place[k], t] = math.log(density[place[k], t] + 1e-30)


@loop
def course_of_levels(label: Any, apart: Any, kind: Any, side: Any, when: Any) -> None:
    """How the levels of every pixel follow each other in time.

    ``kind`` (pixels, levels): 1 if a level is seen at all, −1 if it is seen during one stay only, with another level
    before and after but not meanwhile. ``side``: 1 and 2 for the levels before and after a change for good, else 0;
    ``when`` (pixels, 2): the last frame before that change and the first after it, else −1. Only levels that are
    ``apart`` (pixels, levels, levels) are told from each other.
    """
    n_pixels, n_frames = label.shape
    n_levels = kind.shape[1]
    first, last, n = np.zeros(n_levels, np.int64), np.zeros(n_levels, np.int64), np.zeros(n_levels, np.int64)
    times = np.empty((n_levels, n_frames), np.int64)
    group, in_all, in_part = np.zeros(n_levels, np.int64), np.zeros(n_levels, np.int64), np.zeros(n_levels, np.int64)
    for p in range(n_pixels):
        n[:] = 0
        when[p] = -1
        for t in range(n_frames):
            k = label[p, t]
            if 0 <= k < n_levels:
                times[k, n[k]] = t
                n[k] += 1
        for k in range(n_levels):
            kind[p, k] = 0
            side[p, k] = 0
            if n[k] >= 2:
                kind[p, k] = 1
                cut = int(TRIM * n[k])
                first[k], last[k] = times[k, cut], times[k, n[k] - 1 - cut]
        for k in range(n_levels):
            if kind[p, k] == 0:
                continue
            steady, seen = n[k], 0
            for t in range(first[k], last[k] + 1):
                seen += label[p, t] >= 0
            for j in range(n_levels):
                if j == k or n[j] < 2 or not apart[p, j, k]:
                    continue
                before, meanwhile, after = 0, 0, 0
                for i in range(n[j]):
                    if times[j, i] < first[k]:
                        before += 1
                    elif times[j, i] > last[k]:
                        after += 1
                    else:
                        meanwhile += 1
                if meanwhile <= 0.1 * n[k] and before >= 2 and after >= 2 and steady >= 0.6 * seen:
                    kind[p, k] = -1
        for k in range(n_levels):
            group[k] = k
            for j in range(k):
                if not apart[p, j, k] and group[k] == k:
                    group[k] = group[j]
        in_all[:] = 0
        n_seen = 0
        for t in range(n_frames):
            n_seen += label[p, t] >= 0
            if 0 <= label[p, t] < n_levels:
                in_all[group[label[p, t]]] += 1
        in_part[:] = 0
        seen, best, change = 0, 0.0, -1
        for t in range(n_frames - 1):
            seen += label[p, t] >= 0
            if 0 <= label[p, t] < n_levels:
                in_part[group[label[p, t]]] += 1
            n_before, n_after, astray = 0, 0, 0
            for k in range(n_levels):
                n_late = in_all[k] - in_part[k]
                astray += min(in_part[k], n_late)
                if in_part[k] > n_late:
                    n_before += in_part[k]
                else:
                    n_after += n_late
            fewer = min(n_before, n_after)
            steady = 2 * n_before >= seen or 2 * n_after >= n_seen - seen
            if fewer >= 2 and astray <= ASTRAY * fewer and steady and fewer - astray > best:
                best, change = fewer - astray, t
        if change < 0:
            continue
        in_part[:] = 0
        for t in range(change + 1):
            if 0 <= label[p, t] < n_levels:
                in_part[group[label[p, t]]] += 1
        for k in range(n_levels):
            if n[k] > 0:
                kind[p, k] = 1
                side[p, k] = 1 if 2 * in_part[group[k]] > in_all[group[k]] else 2
        for t in range(n_frames):
            if 0 <= label[p, t] < n_levels:
                if t <= change and side[p, label[p, t]] == 1:
                    when[p, 0] = t
                elif t > change and side[p, label[p, t]] == 2 and when[p, 1] < 0:
                    when[p, 1] = t
