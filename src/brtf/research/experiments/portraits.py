"""Generated faces: a stand-in for photographs that may not be passed on, with a known clean truth."""

from __future__ import annotations

import numpy as np

from brtf.research.baselines.algebra import Array

POSES = (-0.6, -0.3, 0.0, 0.3, 0.6)
"""Angles by which a head is turned, in radians."""


def portraits(side: int, n_persons: int, n_lights: int, seed: int = 0) -> Array:
    """Drawn heads under turning light: pixels × persons × poses × lights, levels in [0, 255].

    A head is an ellipsoid before a dark wall, lit by a lamp that goes round and by its surroundings: its level is
    albedo · (0.25 + 0.75 max(normal · lamp, 0)). Persons differ in the shape of the head, the tone of skin and hair,
    and in the place and size of eyes, brows, nose and mouth, which turn with the head. Like photographs, and unlike the
    other generated data, these are of no exact low rank.

    Parameters
    ----------
    side : int
        Height and width of an image; its pixels are counted down the columns, as in the paper's data.
    n_persons, n_lights : int
    seed : int
        The same seed gives the same persons.
    """
    rng = np.random.default_rng(seed)
    across, down = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side), indexing="ij")
    lamps = [np.array([np.sin(angle), -0.3, np.cos(angle)]) for angle in np.linspace(-1.2, 1.2, n_lights)]
    images = np.empty((side * side, n_persons, len(POSES), n_lights))
    for person in range(n_persons):
        width, height = rng.uniform(0.62, 0.78), rng.uniform(0.82, 0.95)
        skin, hair, lips, wall = rng.uniform((0.65, 0.1, 0.35, 0.08), (1.0, 0.45, 0.55, 0.2))
        eyes_apart, eyes_up, eye, brow = rng.uniform((0.3, -0.22, 0.09, 0.02), (0.42, -0.08, 0.14, 0.06))
        nose, mouth, mouth_down, hairline = rng.uniform((0.05, 0.18, 0.38, -0.62), (0.1, 0.3, 0.5, -0.42))
        inside = (across / width) ** 2 + (down / height) ** 2
        depth = np.sqrt(np.clip(1.0 - inside, 0.0, None))
        normal = np.stack([across / width**2, down / height**2, depth])
        normal /= np.linalg.norm(normal, axis=0) + 1e-9
        for pose, angle in enumerate(POSES):
            # Where on the face a pixel looks: the head turned back by the angle.
            turned = (across / width) * np.cos(angle) - depth * np.sin(angle)
            albedo = np.where(down < hairline + 0.15 * turned**2, hair, skin)
            for where in (-eyes_apart, eyes_apart):
                albedo *= 1 - 0.75 * _spot(turned - where, down - eyes_up, eye, 0.6 * eye)
                albedo *= 1 - 0.5 * _spot(turned - where, down - eyes_up + 0.16, 1.4 * eye, brow)
            albedo *= 1 - 0.3 * _spot(turned, down - 0.15, nose, 0.12)
            albedo += (lips - albedo) * 0.8 * _spot(turned, down - mouth_down, mouth, 0.06)
            for light, lamp in enumerate(lamps):
                shade = 0.25 + 0.75 * np.clip(np.tensordot(lamp / np.linalg.norm(lamp), normal, axes=1), 0.0, None)
                edge = np.clip((1.0 - inside) * side / 4, 0.0, 1.0)
                images[:, person, pose, light] = (edge * albedo * shade + (1 - edge) * wall).ravel()
    return 255.0 * np.clip(images, 0.0, 1.0)


def _spot(across: Array, down: Array, half_width: float, half_height: float) -> Array:
    """A soft ellipse: one in its middle, zero far away."""
    return np.exp(-((across / half_width) ** 2) - (down / half_height) ** 2)
