"""Clips from a fixed camera with a known truth: one kind per phenomenon that makes moving objects hard to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, shift

Array = NDArray[np.float64]

MARGIN = 8
"""Pixels of the scene around the frame, into which a shaking camera looks."""
CLIP_KINDS: dict[str, str] = {
    "street": "walkers and cars pass",
    "trees": "leaves sway before a bright sky, and objects pass in front of them",
    "jitter": "the camera shakes by a few pixels, and not by whole ones",
    "stays": "somebody walks in, stops and stays to the end",
    "goes": "somebody stands there from the first frame on and walks away after half of the time",
    "shadow": "every object casts a hard shadow, which is not an object",
    "light": "a lamp is switched on in the middle, and lights the scene unevenly",
    "faint": "objects hardly differ from the scene",
}


@dataclass(frozen=True, eq=False)
class _Thing:
    """An object: its silhouette and colours in its own frame, and the place of its centre in every frame of the clip.

    Attributes
    ----------
    alpha : ndarray, (rows, columns)
        Share of a pixel that it covers.
    levels : ndarray, (rows, columns, bands)
    centre : ndarray, (frames, 2)
        Row and column in the clip's frame; NaN where it is absent.
    begin : int
        The frame of the clip that comes first in ``centre``; in others the object is absent.
    """

    alpha: Array
    levels: Array
    centre: Array
    begin: int = 0

    def at(self, frame: int) -> Array | None:
        """Where it is in a frame, if it is there."""
        there = 0 <= frame - self.begin < len(self.centre) and np.isfinite(self.centre[frame - self.begin, 0])
        return self.centre[frame - self.begin] if there else None


@dataclass(frozen=True, eq=False)
class _Stage:
    """What a kind of clip changes about a street: its objects, and what happens to scene, light and camera."""

    things: list[_Thing]
    shadow: tuple[float, float, float] | None = None
    """Gain of the shadow, and where it falls, in object heights."""
    light: Callable[[int], Array] | None = None
    """Factor of every pixel of the canvas in a frame, (rows, columns, 1)."""
    camera: Array | None = None
    """Where the camera looks in every frame, (frames, 2), in pixels."""
    sway: Callable[[Array, int], Array] = field(default=lambda canvas, frame: canvas)


def clip_of_kind(
    kind: str, height: int, width: int, frames: int, bands: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """What the camera records, the scene without objects, both (frames, height, width, bands), and what objects cover.

    The cover (frames, height, width) is the share of a pixel's light that comes from objects.

    The scene has materials with spectra and texture of every scale, and a shaking or still camera with a lens of finite
    sharpness. Noise grows with the level, differs between pixels, is a little alike at neighbours, and its levels are
    whole numbers from 0 to 255.
    """
    recorded = np.empty((frames, height, width, bands))
    background = np.empty_like(recorded)
    cover = np.empty((frames, height, width))
    for frame, parts in enumerate(frames_of_kind(kind, height, width, frames, bands, rng)):
        recorded[frame], background[frame], cover[frame] = parts
    return recorded, background, cover


def frames_of_kind(
    kind: str, height: int, width: int, frames: int, bands: int, rng: np.random.Generator, act: int | None = None
) -> Iterator[tuple[Array, Array, Array]]:
    """The frames of :func:`clip_of_kind` one by one, so that a clip may be of any length.

    There objects are so fast that a few pass in the length of a clip. With ``act``, that is the number of frames in
    which they pass, and more follow, in daylight that changes slowly by a tenth or so; who stays or leaves, and the
    lamp, still happen once.
    """
    canvas_shape = (height + 2 * MARGIN, width + 2 * MARGIN)
    canvas = _materials(rng, canvas_shape, bands)
    stage = _STAGES[kind](rng, canvas, frames, act)
    factor = np.exp(0.15 * rng.standard_normal(canvas_shape))[MARGIN : MARGIN + height, MARGIN : MARGIN + width, None]
    gain = 1 + 0.005 * _drift(rng, frames, 10)
    if act is not None:
        gain *= np.exp(0.1 * _drift(rng, frames, frames / 8))
    for frame in range(frames):
        empty = stage.sway(canvas, frame)
        full, cover = empty.copy(), np.zeros(canvas_shape)
        present = [(thing, centre) for thing in stage.things if (centre := thing.at(frame)) is not None]
        for thing, centre in present:
            if stage.shadow is not None:
                darkness, down, right = stage.shadow
                length = thing.alpha.shape[0] - 2 * PAD
                away = length * np.array([down, right])
                fallen = gaussian_filter(_placed(thing.alpha, centre + away, canvas_shape), 0.7)
                full *= 1 - (1 - darkness) * (fallen * (1 - cover))[:, :, None]
        for thing, centre in present:
            alpha = _placed(thing.alpha, centre, canvas_shape)
            levels = _placed(thing.levels, centre, canvas_shape)
            full = full * (1 - alpha[:, :, None]) + levels * alpha[:, :, None]
            cover = np.maximum(cover, alpha)
        seen = np.concatenate([empty, full], axis=2) * gain[frame]
        if stage.light is not None:
            seen *= stage.light(frame)
        view = np.zeros(2) if stage.camera is None else stage.camera[frame]
        seen = gaussian_filter(np.concatenate([seen, cover[:, :, None]], axis=2), (0.6, 0.6, 0))
        if view.any():
            seen = shift(seen, (*-view, 0), order=1, mode="nearest")
        seen = seen[MARGIN : MARGIN + height, MARGIN : MARGIN + width]
        background, clean = seen[..., :bands], seen[..., bands:-1]
        noise = rng.standard_normal(clean.shape)
        noise = 0.85 * noise + 0.5 * gaussian_filter(noise, (0.8, 0.8, 0)) / 0.35
        recorded = clean + factor * np.sqrt(1.0 + 0.02 * np.clip(clean, 0, 255)) * noise / 1.35
        yield np.clip(np.rint(recorded), 0, 255), background, seen[..., -1]


# ---- the scene ---------------------------------------------------------------------------------------------

PAD = 2
"""Empty pixels around a silhouette, so that it can be moved by parts of a pixel."""


def _cloud(rng: np.random.Generator, shape: tuple[int, ...], widths: tuple[float, ...]) -> Array:
    """Smooth noise of zero mean and unit variance, in equal parts of several widths in pixels.

    The mean is taken away: noise as wide as a small canvas is nearly constant, and its mean many times its spread.
    """
    parts = [gaussian_filter(rng.standard_normal(shape), width, mode="wrap") for width in widths]
    total = np.sum([(part - part.mean()) / part.std() for part in parts], axis=0)
    return np.asarray(total / total.std())


def _drift(rng: np.random.Generator, frames: int, width: float) -> Array:
    """A smooth random course of unit spread over the frames."""
    long = gaussian_filter(rng.standard_normal(frames + int(8 * width)), width)
    return np.asarray((long / long.std())[int(4 * width) : int(4 * width) + frames])


def _spectrum(rng: np.random.Generator, bands: int, low: float, high: float) -> Array:
    """A level between low and high with a smooth colour cast over the bands."""
    place = np.linspace(-1, 1, bands) if bands > 1 else np.zeros(1)
    cast = 1 + rng.normal(0, 0.15) * place + rng.normal(0, 0.1) * (1 - 2 * place**2)
    return np.asarray(rng.uniform(low, high) * cast)


def _materials(rng: np.random.Generator, shape: tuple[int, int], bands: int) -> Array:
    """A scene (rows, columns, bands): patches of a few materials, a wall with an edge, texture and uneven light."""
    kinds = np.stack([_cloud(rng, shape, (14.0,)) for _ in range(4)])
    patch = kinds.argmax(axis=0)
    row = np.linspace(0, 1, shape[0])[:, None]
    patch[np.broadcast_to(row < 0.35 + 0.05 * rng.standard_normal(), shape)] += 4
    spectra = np.stack([_spectrum(rng, bands, 70, 170) for _ in range(8)])
    texture = 7 * _cloud(rng, shape, (0.7, 2.0, 6.0)) * rng.uniform(0.3, 1.3, 8)[patch]
    uneven = 1 + 0.12 * _cloud(rng, shape, (30.0,))
    return (spectra[patch] + texture[:, :, None]) * uneven[:, :, None]


def _placed(part: Array, centre: Array, shape: tuple[int, int]) -> Array:
    """A part (rows, columns, …) on an empty canvas with its middle at a place in the frame, between pixels too."""
    canvas = np.zeros((*shape, *part.shape[2:]))
    corner = centre + MARGIN - (np.array(part.shape[:2]) - 1) / 2
    whole = np.floor(corner).astype(int)
    moved = shift(part, (*(corner - whole), *(0,) * (part.ndim - 2)), order=1, mode="nearest")
    low = np.clip(whole, 0, shape)
    high = np.clip(whole + part.shape[:2], 0, shape)
    canvas[low[0] : high[0], low[1] : high[1]] = moved[
        low[0] - whole[0] : high[0] - whole[0], low[1] - whole[1] : high[1] - whole[1]
    ]
    return canvas


# ---- objects -----------------------------------------------------------------------------------------------


def _outline(size: tuple[int, int], blobs: list[tuple[float, float, float, float]]) -> Array:
    """The share of every pixel within one of the blobs (centre and half-axes in shares of the size)."""
    fine = 4
    row = (np.arange(fine * size[0]) + 0.5)[:, None] / (fine * size[0])
    column = (np.arange(fine * size[1]) + 0.5)[None, :] / (fine * size[1])
    inside = np.zeros((fine * size[0], fine * size[1]), dtype=bool)
    for middle_row, middle_column, half_height, half_width in blobs:
        inside |= ((row - middle_row) / half_height) ** 4 + ((column - middle_column) / half_width) ** 4 <= 1
    return inside.reshape(size[0], fine, size[1], fine).mean(axis=(1, 3))


PERSON = [(0.13, 0.5, 0.13, 0.28), (0.42, 0.5, 0.2, 0.48), (0.8, 0.33, 0.22, 0.2), (0.8, 0.67, 0.22, 0.2)]
CAR = [(0.68, 0.5, 0.32, 0.5), (0.32, 0.48, 0.32, 0.33)]


def _thing(rng: np.random.Generator, bands: int, blobs: list[tuple[float, float, float, float]], height: int,
           width: int, centre: Array) -> _Thing:  # fmt: skip
    """A person or a car: every part has its own colour, and all are textured."""
    alpha = np.pad(_outline((height, width), blobs), PAD)
    levels = np.empty((*alpha.shape, bands))
    low, high = ((25, 60), (180, 235))[rng.integers(2)] if rng.random() < 0.7 else (60, 190)
    levels[:] = _spectrum(rng, bands, low, high)
    for blob in blobs[1:]:
        if rng.random() < 0.6:
            here = np.pad(_outline((height, width), [blob]), PAD) > 0.5
            levels[here] = _spectrum(rng, bands, 30, 220)
    return _Thing(alpha, levels + 6 * _cloud(rng, alpha.shape, (0.8, 2.0))[:, :, None], centre)


def _passing(rng: np.random.Generator, canvas: Array, frames: int, act: int | None, n_things: int = 4) -> list[_Thing]:
    """Persons and cars that cross the frame at various times and speeds."""
    if act is not None:
        acts = [(start, _passing(rng, canvas, act, None, n_things)) for start in range(0, frames, act)]
        return [replace(thing, begin=start + thing.begin) for start, things in acts for thing in things]
    height, width = canvas.shape[0] - 2 * MARGIN, canvas.shape[1] - 2 * MARGIN
    things = []
    for number in range(n_things):
        is_car = number % 2 == 1
        tall = round(height * (rng.uniform(0.12, 0.2) if is_car else rng.uniform(0.22, 0.38)))
        wide = round(tall * (rng.uniform(1.8, 2.3) if is_car else rng.uniform(0.4, 0.5)))
        needed = (width + 2 * wide) / (rng.uniform(0.25, 0.6) * frames)
        start = rng.uniform(-0.2, 0.7) * frames
        time = np.arange(int(-0.2 * frames), int(1.3 * frames) + 1)
        column = (time - start) * needed - wide
        row = rng.uniform(0.45, 0.95) * height - tall / 2 + 0.6 * np.sin(time)
        if rng.random() < 0.5:
            column = width - column
        centre = np.stack([row, column], axis=1)
        centre[(column < -wide) | (column > width + wide)] = np.nan
        thing = _thing(rng, canvas.shape[2], CAR if is_car else PERSON, tall, wide, centre)
        things.append(replace(thing, begin=int(time[0])))
    return things


def _resting(rng: np.random.Generator, canvas: Array, frames: int, act: int | None, *, arrives: bool) -> _Thing:
    """A person who walks in early and stays with small movements, or who stands there and leaves half-way."""
    height, width = canvas.shape[0] - 2 * MARGIN, canvas.shape[1] - 2 * MARGIN
    tall = round(height * rng.uniform(0.4, 0.5))
    wide = round(tall * 0.45)
    row, spot = rng.uniform(0.5, 0.7) * height, rng.uniform(0.35, 0.65) * width
    walk = 0.12 * frames if act is None else 0.5 * act
    time = np.arange(frames)
    if arrives:
        stop = rng.uniform(0.22, 0.32) * frames
        gone = np.clip((stop - time) / walk, 0, None)
    else:
        gone = np.clip((time - rng.uniform(0.45, 0.6) * frames) / walk, 0, None)
    side = -wide if rng.random() < 0.5 else width + wide
    column = spot + gone * (side - spot) + 0.5 * _drift(rng, frames, 3)
    centre = np.stack([row + 0.3 * _drift(rng, frames, 3), column], axis=1)
    centre[gone > 1] = np.nan
    return _thing(rng, canvas.shape[2], PERSON, tall, wide, centre)


# ---- one stage for every kind ------------------------------------------------------------------------------


def _street(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    return _Stage(_passing(rng, canvas, frames, act))


def _trees(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    shape = canvas.shape[:2]
    row = np.linspace(0, 1, shape[0])[:, None]
    crown = 1 / (1 + np.exp(-6 * (_cloud(rng, shape, (12.0,)) + 2.2 * (0.5 - row))))
    leaf = _cloud(rng, shape, (1.2, 3.0)) > 0.2
    sky, green = _spectrum(rng, canvas.shape[2], 190, 220), _spectrum(rng, canvas.shape[2], 40, 80)
    leaves = np.where(leaf[:, :, None], green * (1 + 0.1 * _cloud(rng, shape, (1.0,)))[:, :, None], sky)
    phase = 2 * np.pi * _cloud(rng, shape, (10.0,))
    gusts = 1.6 + 0.9 * _drift(rng, frames, 8)
    swing = np.stack([_drift(rng, frames, 2), _drift(rng, frames, 2)])
    grid = np.indices(shape).astype(float)
    canvas[:] = canvas * (1 - crown[:, :, None]) + leaves * crown[:, :, None]

    def sway(still: Array, frame: int) -> Array:
        bend = gusts[frame] * crown
        across = bend * (np.sin(0.9 * frame + phase) + swing[0, frame])
        along = 0.5 * bend * (np.sin(0.7 * frame + 1.3 * phase) + swing[1, frame])
        place = grid + np.stack([along, across])
        return np.stack([map_coordinates(band, place, order=1, mode="nearest") for band in np.moveaxis(still, 2, 0)], 2)

    return _Stage(_passing(rng, canvas, frames, act), sway=sway)


def _jitter(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    camera = np.stack([_drift(rng, frames, 0.8), _drift(rng, frames, 0.8)], axis=1) * 1.5
    return _Stage(_passing(rng, canvas, frames, act), camera=np.clip(camera, -MARGIN + 1, MARGIN - 1))


def _stays(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    return _Stage([_resting(rng, canvas, frames, act, arrives=True), *_passing(rng, canvas, frames, act, 1)])


def _goes(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    return _Stage([_resting(rng, canvas, frames, act, arrives=False), *_passing(rng, canvas, frames, act, 1)])


def _shadow(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    falls = (rng.uniform(0.45, 0.7), rng.uniform(0.35, 0.6), rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 0.5))
    return _Stage(_passing(rng, canvas, frames, act), shadow=falls)


def _light(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    shape = canvas.shape[:2]
    row, column = np.indices(shape) / np.max(shape)
    lamp = np.exp(-4 * ((row - rng.uniform(0, 0.5)) ** 2 + (column - rng.uniform(0.2, 0.8)) ** 2))
    begin = rng.uniform(0.4, 0.6) * frames

    def light(frame: int) -> Array:
        return np.asarray(0.75 * (1 + np.clip((frame - begin) / 3, 0, 1) * (0.15 + 0.5 * lamp)))[:, :, None]

    return _Stage(_passing(rng, canvas, frames, act), light=light)


def _faint(rng: np.random.Generator, canvas: Array, frames: int, act: int | None) -> _Stage:
    things = _passing(rng, canvas, frames, act)
    middle = np.median(canvas, axis=(0, 1))
    offset = [rng.choice([-1.0, 1.0]) * rng.uniform(9, 14) for _ in things]
    pale = [
        replace(one, levels=middle + by + 0.08 * (one.levels - one.levels.mean()))
        for one, by in zip(things, offset, strict=True)
    ]
    canvas[:] = middle + 0.1 * (canvas - middle)
    return _Stage(pale)


_STAGES: dict[str, Callable[[np.random.Generator, Array, int, int | None], _Stage]] = {
    "street": _street,
    "trees": _trees,
    "jitter": _jitter,
    "stays": _stays,
    "goes": _goes,
    "shadow": _shadow,
    "light": _light,
    "faint": _faint,
}
