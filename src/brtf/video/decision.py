"""Moving objects in a clip from a fixed camera, decided without a setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from brtf.kernels.masks import drop_fringe
from brtf.video.camera import find_shifts, shifted
from brtf.video.clips import Clip
from brtf.video.light import even_light
from brtf.video.order import Change, scene_shares
from brtf.video.shadow import ShadowLaw, shadow_odds
from brtf.video.steady import find_levels, foreground_evidence, whitened
from brtf.video.whole import RARE, against_both, whole_objects

__all__ = ["Foreground", "decide"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

DARKEST, BRIGHTEST = 0.5, 254.5
"""Levels beyond which a scene may be darker or brighter than the camera tells."""
EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Foreground:
    """What moves in a clip, and what was decided on the way.

    Attributes
    ----------
    mask : ndarray of bool, (height, width, frames)
        Whole objects.
    probability : ndarray of float32, (height, width, frames)
        Of an object, pixel by pixel and without the neighbours; NaN where a pixel is missing.
    background : ndarray of float32, (height, width, channels)
        The scene without objects, as the median frame sees it.
    shifts : ndarray, (frames, 2), or None
        Rows and columns by which the camera moved, if frames were laid on each other.
    light : list of ndarray, (frames,)
        Courses of the light that were taken out.
    changes : list of Change
        Regions where something came and stayed, or left.
    several_levels : float
        Share of the pixels whose scene has more than one level.
    moving_scene : float
        Share of the time in which a pixel shows what its neighbours usually show.
    degrees : float
        Degrees of freedom of the noise.
    shadow : ShadowLaw or None
        How shadows and objects look in this clip; None if there are no hard shadows.
    first : int
        Number of the first frame of the mask, among those that are read; for a block of a stream.
    """

    mask: Mask
    probability: Single
    background: Single
    shifts: Array | None = None
    light: list[Array] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    several_levels: float = 0.0
    moving_scene: float = 0.0
    degrees: float = math.inf
    shadow: ShadowLaw | None = None
    first: int = 0

    def __repr__(self) -> str:
        height, width, n_frames = self.mask.shape
        return f"Foreground({n_frames} frames of {width} × {height} pixels, share={self.share:.3g})"

    @property
    def share(self) -> float:
        """Share of all pixels that belong to objects."""
        return float(self.mask.mean())

    def sentences(self) -> list[str]:
        """What was decided, in plain sentences."""
        said = []
        if self.shifts is None:
            said.append("The camera stood still; frames were used as they are.")
        else:
            far = np.abs(self.shifts).max(axis=0)
            said.append(
                f"The camera shook by up to {far[0]:.1f} pixels in height and {far[1]:.1f} in width; frames were laid "
                "on the median frame."
            )
        if self.light:
            n = len(self.light)
            courses = "one course" if n == 1 else f"{n} courses"
            said.append(f"The light changed: {courses} over time that most of the scene follows, taken out.")
        else:
            said.append("The light stayed as it was.")
        said.append(
            f"{100 * self.several_levels:.0f} % of the pixels show a scene of more than one level, such as leaves in "
            "the wind."
        )
        if self.shadow is not None:
            said.append(
                f"{100 * self.shadow.shadow:.0f} % of what differs from the scene is shadow that takes away "
                f"{100 * self.shadow.mean:.0f} % of the light; shadows are not objects."
            )
        else:
            said.append("No hard shadows.")
        for change in self.changes:
            what = "came and stayed" if change.came else "was there from the beginning and left"
            said.append(f"Something of {change.size} pixels {what}: it is an object for as long as it is there.")
        said.append(f"{100 * self.share:.3g} % of all pixels belong to objects.")
        return said


def decide(
    clip: Clip,
    decided: slice = EVERY,
    learnt: NDArray[np.intp] | None = None,
    *,
    still: bool = False,
    shadows: ShadowLaw | None = None,
) -> Foreground:
    """What moves in some of the frames of a clip; a pixel that lacks a band is missing.

    Parameters
    ----------
    clip : Clip
    decided : slice of frames whose objects are found; the other frames show the scene at other times
    learnt : numbers of the frames, in order, from which light and scene are learnt; all if None
    still : whether it is known that the camera stands still
    shadows : how shadows look at other times, if it is known
    """
    missing = np.isnan(clip.values).any(axis=1, keepdims=True)
    if missing.all():
        raise ValueError("the clip has no pixel that was seen in all of its bands: all are NaN.")
    if missing.any():
        clip = replace(clip, values=np.where(missing, np.float32(np.nan), clip.values))
    shifts = None if still else find_shifts(clip)
    values, height, width, corner = _laid_on(clip, shifts)
    values, courses = even_light(values, height, width, learnt)
    levels = find_levels(values if learnt is None else np.take(values, learnt, axis=2), width)
    levels, share, changes = scene_shares(levels, width)
    if learnt is not None or decided != EVERY:
        levels = replace(levels, values=np.ascontiguousarray(whitened(values[:, :, decided], levels.whitening)))
        clip = replace(clip, values=clip.values[:, :, decided])
        shifts = None if shifts is None else shifts[decided]
        courses = [course[decided] for course in courses]
    evidence = foreground_evidence(levels, share, width)
    usual, pixels = share.argmax(axis=1), np.arange(len(share))
    scene, noise = levels.mean[pixels, usual], levels.variance[pixels, usual]
    with np.errstate(invalid="ignore"):  # NaN where missing
        moves = evidence.deviates & (evidence.values > 0)
    odds, law = shadow_odds(levels.values, scene, noise, levels.whitening, moves, evidence.objects, width, shadows)
    alone, beside = (np.ascontiguousarray(part.T).reshape(-1, height, width) for part in (evidence.values, odds))
    background = levels.images(usual)
    known = ((background > DARKEST) & (background < BRIGHTEST)).all(axis=1)
    whole = whole_objects(alone, beside)
    mask = np.empty_like(whole)
    drop_fringe(whole, levels.values, scene, noise, known, mask)
    background = background.reshape(height, width, -1)
    probability = expit(against_both(alone, beside, RARE) + RARE)
    if shifts is not None:
        back = [np.asarray(corner) - shift for shift in shifts]
        mask = np.stack([_returned(m.astype(np.float32), d, clip) > 0.5 for m, d in zip(mask, back, strict=True)])
        probability = np.stack([_returned(p, d, clip) for p, d in zip(probability, back, strict=True)])
        background = background[corner[0] : corner[0] + clip.height, corner[1] : corner[1] + clip.width]
        missing = np.isnan(clip.values[:, 0]).T.reshape(probability.shape)
        probability = np.where(missing, np.nan, np.nan_to_num(probability))
    return Foreground(
        np.moveaxis(mask, 0, 2),
        np.moveaxis(probability, 0, 2).astype(np.float32),
        background,
        shifts,
        courses,
        changes,
        float(np.mean(np.count_nonzero(share, axis=1) > 1)),
        evidence.moving,
        evidence.degrees,
        law,
    )


def _laid_on(clip: Clip, shifts: Array | None) -> tuple[Single, int, int, tuple[int, int]]:
    """The frames laid on the median frame, on a canvas that holds all of them, and the place of that frame on it."""
    if shifts is None:
        return clip.values, clip.height, clip.width, (0, 0)
    low, high = np.ceil(np.abs(shifts.min(axis=0))), np.ceil(np.abs(shifts.max(axis=0)))
    margin = np.maximum(low, high).astype(int)
    height, width = clip.height + 2 * margin[0], clip.width + 2 * margin[1]
    canvas = np.full((height, width, clip.n_channels), np.nan, dtype=np.float32)
    values = np.empty((height * width, clip.n_channels, clip.n_frames), dtype=np.float32)
    for frame, shift in enumerate(shifts):
        canvas[margin[0] : margin[0] + clip.height, margin[1] : margin[1] + clip.width] = clip.values[
            :, :, frame
        ].reshape(clip.height, clip.width, -1)
        values[:, :, frame] = shifted(canvas, shift).reshape(height * width, -1)
    return values, int(height), int(width), (int(margin[0]), int(margin[1]))


def _returned(image: Single, offset: Array, clip: Clip) -> Single:
    """A frame of the canvas as the camera saw it."""
    return np.asarray(shifted(image, offset)[: clip.height, : clip.width], dtype=np.float32)
