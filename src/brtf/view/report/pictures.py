"""Pictures as data URIs, in colours that work on light and dark pages."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
COOL, WARM, DEEP = (38, 116, 196), (222, 94, 32), (16, 140, 128)
MISSING = (128, 128, 128, 64)
N_SHADES = 64
"""Steps of a colour ramp: more cannot be distinguished, and take more space."""
STOPS = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
"""Viridis, by Nathaniel Smith and Stéfan van der Walt: even steps for the eye, in grey and for the colour-blind too."""
LOSSLESS_PIXELS = 16_384
"""Smaller photographs are enlarged on the page, where compression artefacts would be visible."""


def palette() -> Pixels:
    """The shades of the sequential scale, from low to high: (N_SHADES, 3)."""
    stops = np.array([tuple(bytes.fromhex(stop)) for stop in STOPS], dtype=np.float64)
    at = np.linspace(0, len(STOPS) - 1, N_SHADES)
    shades = [np.interp(at, np.arange(len(STOPS)), channel) for channel in stops.T]
    return np.round(np.stack(shades, axis=1)).astype(np.uint8)


def sequential(values: NDArray[Any], low: float, high: float) -> Pixels:
    """From dark violet at ``low`` over green to yellow at ``high``; grey where a value is missing. (…, 4)."""
    share = np.clip((np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0), 0.0, 1.0)
    pixels = np.full((*share.shape, 4), 255, dtype=np.uint8)
    pixels[..., :3] = palette()[np.round(share * (N_SHADES - 1)).astype(np.intp)]
    pixels[np.isnan(values)] = MISSING
    return pixels


def ramp(values: NDArray[Any], low: float, high: float, colour: tuple[int, int, int]) -> Pixels:
    """One colour, from transparent at ``low`` to full at ``high``; grey where a value is missing. (…, 4)."""
    share = (np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0)
    return _tinted(np.clip(share, 0.0, 1.0), np.asarray(colour), np.isnan(values))


def diverging(values: NDArray[Any], reach: float) -> Pixels:
    """Blue below zero, orange above, transparent at zero and full at ± ``reach``; grey where a value is missing."""
    share = np.clip(np.nan_to_num(values) / (reach or 1.0), -1.0, 1.0)
    colour = np.where(share[..., None] < 0, COOL, WARM)
    return _tinted(np.abs(share), colour, np.isnan(values))


def _tinted(opacity: NDArray[Any], colour: NDArray[Any], missing: NDArray[np.bool_]) -> Pixels:
    steps = np.round(opacity * (N_SHADES - 1)) / (N_SHADES - 1)
    pixels = np.empty((*opacity.shape, 4), dtype=np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.round(255 * steps)
    pixels[missing] = MISSING
    return pixels


def photograph(values: NDArray[Any], low: float, high: float) -> Pixels:
    """Grey (H, W) or colour (H, W, 3) from black at ``low`` to white at ``high``; transparent where missing."""
    colour = np.broadcast_to(values[..., None], (*values.shape, 3)) if values.ndim == 2 else values
    missing = np.isnan(colour).any(axis=-1)
    share = np.clip((np.nan_to_num(colour) - low) / ((high - low) or 1.0), 0.0, 1.0)
    pixels = np.empty((*missing.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.round(255 * share)
    pixels[..., 3] = np.where(missing, 0, 255)
    return pixels


def data_uri(pixels: Pixels, *, lossy: bool = False) -> str:
    """A picture (H, W, 4) as a data URI in WebP: lossless unless it is a large photograph."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    target = io.BytesIO()
    exact = not lossy or pixels.shape[0] * pixels.shape[1] <= LOSSLESS_PIXELS
    if exact:
        picture.save(target, "WEBP", lossless=True, quality=70, method=4)
    else:
        picture.save(target, "WEBP", quality=78, method=4)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode("ascii")
