"""A toy surveillance clip with a known truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brtf.api.synthetic import check_count, check_fraction, largest, pick

EDGE = 0.02
"""Share of a pixel that an object covers, or leaves free, below which it has no edge there."""


@dataclass(frozen=True, eq=False)
class ToyVideo:
    """A synthetic surveillance clip and its ground truth.

    Pixels are numbered row by row: ``background[:, :, t].reshape(height, width, 3)`` is an image.

    Attributes
    ----------
    observed : ndarray of shape (pixels, bands, frames)
        What the camera recorded, in [0, 255], NaN where missing.
    mask : ndarray of bool, of shape (pixels, bands, frames)
        True where observed.
    background : ndarray of shape (pixels, bands, frames)
        The scene without objects, noise and defects; for kind "lamp" of rank 2 over the frames, 3 as a tensor.
    foreground_mask : ndarray of bool, of shape (pixels, frames)
        True where an object covers the pixel.
    dead : ndarray of bool, of shape (pixels,)
        True where the sensor is stuck at 0 or 255 throughout.
    height, width : int
        Size of a frame; ``pixels = height * width``.
    edge : ndarray of bool, of shape (pixels, frames), or None
        True where an object covers part of a pixel: neither answer is wrong there. None for kind "lamp", whose objects
        have sharp edges.
    """

    observed: NDArray[np.float64]
    mask: NDArray[np.bool_]
    background: NDArray[np.float64]
    foreground_mask: NDArray[np.bool_]
    dead: NDArray[np.bool_]
    height: int
    width: int
    edge: NDArray[np.bool_] | None = None


def toy_video(
    kind: str = "lamp",
    *,
    height: int = 48,
    width: int = 64,
    frames: int = 60,
    missing: float | None = None,
    bands: int = 3,
    seed: int = 0,
) -> ToyVideo:
    """A small clip from a fixed camera with a known truth: flickering light by default, or another phenomenon.

    "lamp": a textured scene, flickering light, three moving objects. The background of frame t is
    ``texture + flicker_t * lamp``, where the lamp lights one side of the scene more than the other. A car, a slow
    walker who pauses, and a ball move across it. Every pixel has Gaussian noise with its own
    standard deviation, about 3; one sensor in 500 is stuck at 0 or 255; values are clipped to [0, 255].

    The other kinds have a scene of several materials with texture, persons and cars that cross it, noise that grows
    with the level and differs between pixels, and whole numbers as levels: "street", nothing else; "trees", leaves in
    the wind; "jitter", a camera that shakes by parts of a pixel and more; "stays", somebody walks in and stays; "goes",
    somebody stands there and leaves; "shadow", hard shadows; "light", a lamp is switched on; "faint", objects of low
    contrast. Their objects are textured, and their edges cover parts of pixels.

    Parameters
    ----------
    kind : {"lamp", "street", "trees", "jitter", "stays", "goes", "shadow", "light", "faint"}
        The phenomenon.
    height, width : int
        Size of a frame, at least 16 each; at least 32 for kinds other than "lamp".
    frames : int
        Length of the clip, at least 2; at least 10 for kinds other than "lamp".
    missing : float, optional
        Fraction of the pixels of all frames that are missing, all colours together, below 1; their number is
        ``round(missing * height * width * frames)``. By default 0.3 for "lamp", else 0.
    bands : int
        Number of bands: 1 is grey, 3 are red, green and blue. "lamp" has three.
    seed : int
        The same seed gives the same clip.

    Returns
    -------
    ToyVideo
    """
    from brtf.api.toy_clips import CLIP_KINDS  # needs scipy.ndimage

    pick("kind", kind, {"lamp": "", **CLIP_KINDS})
    is_lamp = kind == "lamp"
    height = check_count("height", height, smallest=16 if is_lamp else 32)
    width = check_count("width", width, smallest=16 if is_lamp else 32)
    frames = check_count("frames", frames, smallest=2 if is_lamp else 10)
    bands = check_count("bands", bands, smallest=1)
    missing = (0.3 if is_lamp else 0.0) if missing is None else missing
    check_fraction("missing", missing, below_one=True)
    rng = np.random.default_rng(seed)
    if not is_lamp:
        return _phenomenon(kind, height, width, frames, missing, bands, rng)
    if bands != 3:
        raise ValueError(f"bands must be 3 for kind 'lamp', got {bands}. Choose another kind for other bands.")
    pixels = height * width

    # Positions in the frame and times in the clip, all from 0 to 1.
    row = np.linspace(0, 1, height)[:, None, None]
    column = np.linspace(0, 1, width)[None, :, None]
    time = np.linspace(0, 1, frames)

    phases = rng.uniform(0, 2 * np.pi, 3)
    ground = 95 + 35 * row + 12 * np.sin(9 * column + 5 * row + phases[0]) * np.sin(13 * row + phases[1])
    walls = 30.0 * ((row < 0.3) & (np.sin(25 * column + phases[2]) > 0)) + 20.0 * (np.abs(row - 0.65) < 0.05)
    texture = (ground * [1.0, 0.95, 0.85] + walls * [0.6, 0.8, 1.0]).reshape(pixels, 3, 1)
    lamp = ((0.3 + 0.7 * column + 0 * row) * [1.0, 0.95, 0.8]).reshape(pixels, 3, 1)
    flicker = 20 * np.sin(2 * np.pi * 4 * time) + rng.normal(0, 3, frames).clip(-6, 6)
    background = texture + lamp * flicker

    # Half-height and half-width, then centre row and column over time, then colour.
    stroll = np.interp(time, [0, 0.35, 0.65, 1], [0.85, 0.5, 0.5, 0.15])
    objects = [
        (0.10, 0.14, np.full(frames, 0.72), 1.4 * time - 0.2, [180, 60, 50]),
        (0.14, 0.05, np.full(frames, 0.42), stroll, [75, 72, 85]),
        (0.06, 0.05, 0.25 + 0.1 * np.cos(6 * np.pi * time), 1 - time, [245, 235, 70]),
    ]
    scene = background.copy()
    foreground = np.zeros((pixels, frames), dtype=bool)
    for half_height, half_width, centre_row, centre_column, colour in objects:
        covered = ((row - centre_row) / half_height) ** 4 + ((column - centre_column) / half_width) ** 4 <= 1
        covered = covered.reshape(pixels, frames)
        scene = np.where(covered[:, None, :], np.reshape(colour, (3, 1)), scene)
        foreground |= covered

    noise_std = 3 * np.exp(0.2 * rng.standard_normal((pixels, 1, 1)))
    recorded = np.clip(scene + noise_std * rng.standard_normal(scene.shape), 0, 255)
    dead = largest(rng.random(pixels), 1 / 500)
    recorded[dead] = rng.choice([0.0, 255.0], (np.count_nonzero(dead), 1, 1))

    return _seen_in_part(recorded, background, foreground, dead, (height, width), missing, rng)


def _phenomenon(
    kind: str, height: int, width: int, frames: int, missing: float, bands: int, rng: np.random.Generator
) -> ToyVideo:
    """A clip of one of the kinds of :mod:`brtf.api.toy_clips`."""
    from brtf.api.toy_clips import clip_of_kind

    recorded, background, cover = clip_of_kind(kind, height, width, frames, bands, rng)
    pixels = height * width
    recorded, background = (
        np.moveaxis(part.reshape(frames, pixels, bands), 0, 2).copy() for part in (recorded, background)
    )
    cover = np.ascontiguousarray(cover.reshape(frames, pixels).T)
    dead = np.zeros(pixels, dtype=bool)
    clip = _seen_in_part(recorded, background, cover > 0.5, dead, (height, width), missing, rng)
    return replace(clip, edge=(cover > EDGE) & (cover < 1 - EDGE))


def _seen_in_part(
    recorded: NDArray[np.float64],
    background: NDArray[np.float64],
    foreground: NDArray[np.bool_],
    dead: NDArray[np.bool_],
    size: tuple[int, int],
    missing: float,
    rng: np.random.Generator,
) -> ToyVideo:
    """The clip with a share of its pixels missing, in all bands at once."""
    pixels, _, frames = recorded.shape
    seen = ~largest(rng.random((pixels, 1, frames)), missing)
    mask = np.broadcast_to(seen, recorded.shape).copy()
    height, width = size
    return ToyVideo(
        observed=np.where(mask, recorded, np.nan),
        mask=mask,
        background=background,
        foreground_mask=foreground,
        dead=dead,
        height=height,
        width=width,
    )
