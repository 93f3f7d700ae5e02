"""Compiled loops over pairs of neighbouring pixels that tell shadows from objects."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from brtf.kernels.jit import loop

__all__ = ["REACH", "pair_odds", "strongest_contrast"]

REACH = 2
"""Distance in pixels, along rows and columns, of the neighbours that a pixel is compared with."""


@loop
def strongest_contrast(pixel: Any, frame: Any, scene: Any, variance: Any, wanted: Any, width: Any, other: Any) -> None:
    """For every listed pixel and frame, the ``wanted`` neighbour where the scene differs most; −1 if there is none."""
    n_pixels, n_channels = scene.shape
    height = n_pixels // width
    for i in range(pixel.size):
        p, t = pixel[i], frame[i]
        row, column, most = p // width, p % width, -1.0
        other[i] = -1
        for down in range(max(-REACH, -row), min(REACH, height - 1 - row) + 1):
            for right in range(max(-REACH, -column), min(REACH, width - 1 - column) + 1):
                q = p + down * width + right
                if q == p or not wanted[q, t]:
                    continue
                d = 0.0
                for c in range(n_channels):
                    d += (scene[p, c] - scene[q, c]) ** 2 / (variance[p, c] + variance[q, c])
                if d > most:
                    most, other[i] = d, q


@loop
def pair_odds(
    values: Any, deviates: Any, width: Any, size: Any, spread: Any, across: Any, square: Any, constant: Any,
    degrees: Any, step: Any, shadow: Any, any_shadow: Any, light: Any, dark: Any, whole: Any, broken: Any, roots: Any,
    constants: Any, object_degrees: Any, odds: Any,
) -> None:  # fmt: skip
    """Log odds (pixels, frames) of an object against a shadow: the mean over the pairs with every deviating neighbour.

    Parameters
    ----------
    values : (pixels, channels, frames)
    deviates : (pixels, frames)
        Where odds are wanted, and of which neighbours; infinite odds elsewhere.
    size, spread : (pixels,)
        Squared length of the scene in noise units, and what its noise adds to the log density: −½ ln |Σ|.
    across, square : (pixels, frames)
        Product with the scene, and squared length, of what is missing from the scene, in noise units.
    constant, degrees : of the noise's t
    step : float
        Variance by which the attenuations of two neighbours in shadow differ.
    shadow, any_shadow, light, dark, whole : (3 or 1, pixels, frames)
        ``shadow`` holds the log density of an entry in full shadow, with its share, and the mean and variance of its
        attenuation; the others are log densities with shares, of an entry in shadow or at its edge, of an object, of an
        object that is as dark as a shadow, and of any of these.
    broken : float
        Rate at which neighbours belong to different things.
    roots, constants, object_degrees : (2, channels, channels), (2,), (2,)
        How two neighbours on one object differ, for objects and for dark objects: the inverse of a Cholesky factor,
        and the constant and degrees of freedom of the t.
    """
    n_pixels, n_channels, n_frames = values.shape
    height = n_pixels // width
    power = 0.5 * (degrees + n_channels)
    whole_pair, same_pair = math.log(broken), math.log1p(-broken)
    total, count = np.empty(n_frames), np.empty(n_frames)
    same = np.empty(2)
    for p in range(n_pixels):
        row, column = p // width, p % width
        total[:] = 0
        count[:] = 0
        for down in range(max(-REACH, -row), min(REACH, height - 1 - row) + 1):
            for right in range(max(-REACH, -column), min(REACH, width - 1 - column) + 1):
                q = p + down * width + right
                if q == p:
                    continue
                for t in range(n_frames):
                    if not (deviates[p, t] and deviates[q, t]):
                        continue
                    m, v = shadow[1, q, t], shadow[2, q, t] + step
                    b = across[p, t] - m * size[p]
                    d = square[p, t] - 2 * m * across[p, t] + m * m * size[p]
                    d = max(d - v * b * b / (1 + v * size[p]), 0.0)
                    together = shadow[0, q, t] + constant + spread[p] - 0.5 * math.log1p(v * size[p])
                    together += same_pair - power * math.log1p(d / degrees)
                    for k in range(2):
                        d = 0.0
                        for c in range(n_channels):
                            e = 0.0
                            for i in range(c + 1):
                                e += roots[k, c, i] * (values[p, i, t] - values[q, i, t])
                            d += e * e
                        same[k] = constants[k] - 0.5 * (object_degrees[k] + n_channels) * math.log1p(
                            d / object_degrees[k]
                        )
                    apart = whole_pair + whole[q, t] + any_shadow[p, t]
                    as_shadow = max(together, apart) + math.log1p(math.exp(-abs(together - apart)))
                    one, two = same_pair + light[q, t] + same[0], same_pair + dark[q, t] + same[1]
                    three = max(light[p, t], dark[p, t]) + math.log1p(math.exp(-abs(light[p, t] - dark[p, t])))
                    three += whole_pair + whole[q, t]
                    top = max(one, two, three)
                    as_object = top + math.log(math.exp(one - top) + math.exp(two - top) + math.exp(three - top))
                    total[t] += as_object - as_shadow
                    count[t] += 1
        for t in range(n_frames):
            odds[p, t] = total[t] / count[t] if count[t] > 0 else np.inf
