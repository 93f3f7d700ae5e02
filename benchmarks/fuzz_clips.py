"""Fuzz cases of kind clips: arrays as clips for ``brtf.foreground``, in one piece or in blocks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import brtf
from brtf.foreground import Foreground
from fuzz_judge import DATA_NAMES, Door, check, pick
from fuzz_options import STRANGE

READING: dict[str, tuple[list[Any], list[Any]]] = {
    "frames": ([None, slice(None), slice(1, None), slice(0, 40, 2)], [slice(3, 1), slice(-1, None), 3, "1:2", "x"]),
    "scale": ([1.0, 0.5, 0.1], [0, -1, 1.5, "x", np.nan, None, 1j]),
    "gray": ([False, True], []),
    "drop": ([0.0, 0.3], [1, -0.1, "x", np.nan, None]),
    "seed": ([0, 7], [-1, "x", 1.5]),
}
"""Valid and invalid values of the options of `brtf.video.read_clip`."""


def random_clip(rng: np.random.Generator) -> np.ndarray:
    """Frames of one of seven kinds, of levels mostly within 0 and 255."""
    shape = tuple(map(int, rng.integers(1, (30, 14, 14))))
    if rng.random() < 0.4:
        shape += (int(rng.integers(1, 5)),)
    still = rng.uniform(0, 255, (1, *shape[1:]))
    noisy = still + pick(rng, 0.0, 1.0, 20.0) * rng.standard_normal(shape)
    moving = noisy.copy()
    for frame, image in enumerate(moving):
        image[:, frame % shape[2]] = pick(rng, 0.0, 255.0)
    kinds = (
        *(noisy, moving, np.round(moving), np.zeros(shape), np.full(shape, 7.0), rng.uniform(0, 255, shape)),
        noisy * np.linspace(0.2, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1)),
    )
    clip = np.clip(pick(rng, *kinds), 0, 255)
    holes = rng.random(shape) < pick(rng, 0.0, 0.0, 0.1, 0.9, 1.0)
    if rng.random() < 0.1:
        holes |= np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) == int(rng.integers(shape[0]))
    return np.where(holes, np.nan, clip)


def clips_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    clip: Any = random_clip(rng)
    door.group = "clip"
    if rng.random() < 0.3:
        clip = np.nan_to_num(clip).astype(pick(rng, "u1", "f4", "i2", "?", ">f8", "f2", "u8"))
    if rng.random() < 0.12:
        door.group = "junk"
        junk = (clip[0, 0], clip[:0], clip[:, :0], clip * 1e30, -1.0 - clip, clip.astype(complex), clip.astype("U5"))
        clip = pick(rng, *junk, clip[..., None, None], np.where(clip > 100, np.inf, clip), *STRANGE, None)
    reading = {name: pick(rng, *valid) for name, (valid, _) in READING.items() if rng.random() < 0.15}
    wrong = [name for name, (_, invalid) in READING.items() if invalid and rng.random() < 0.03]
    reading |= {name: pick(rng, *READING[name][1]) for name in wrong}
    names = (*DATA_NAMES, *READING, "clip", "array", "frame", *([clip] if isinstance(clip, str) else []))
    if rng.random() < 0.25 and isinstance(clip, np.ndarray) and len(clip) > 1:
        door.group = "stream"
        stream = brtf.foreground.ForegroundStream(memory=int(rng.integers(2, 20)))
        for block in np.array_split(clip, int(rng.integers(2, 4))):
            _sound(door.ask(lambda block=block: stream.partial_fit(block, **reading), *names))
    else:
        _sound(door.ask(lambda: brtf.foreground(clip, **reading), *names))
    check(not wrong, f"accepted {', '.join(f'{name}={reading[name]!r}' for name in wrong)}")


def _sound(found: Foreground) -> None:
    check(found.mask.dtype == bool and found.mask.ndim == 3, "mask is not one of pixels")
    check(found.probability.shape == found.mask.shape, "probability and mask differ in shape")
    seen = found.probability[~np.isnan(found.probability)]
    check((seen >= 0) & (seen <= 1), "a probability is outside [0, 1]")
    check(~np.isinf(found.background), "the background is infinite")
    check(0 <= found.several_levels <= 1 and 0 <= found.moving_scene <= 1, "a share is outside [0, 1]")
    check(not math.isnan(found.degrees), "degrees is NaN")
    check(all(found.sentences()), "a sentence is empty")
    check(not any("nan" in sentence for sentence in found.sentences()), "a sentence says nan")
