"""Lookalike data without a course in time: fluorescence, faces, clips, genes, images of many bands, ratings."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import map_coordinates

from brtf.datasets import toy_video
from lookalike_parts import Array, Lookalike, hide, smooth_field


def spectra(seed: int, *, shape: tuple[int, int, int] = (24, 50, 22), share: float = 0.3) -> Lookalike:
    """Fluorescence of four chemicals, samples × emission × excitation: scatter where both are alike, quantum noise.

    The dyes absorb what others emit, a little, so that the sum is not exact. The part of the scatter that instruments
    cut out is missing. The mean is that of the dyes alone, without scatter, which is no noise.
    """
    rng = np.random.default_rng(seed)
    emission, excitation = np.linspace(300, 500, shape[1]), np.linspace(230, 340, shape[2])
    spectrum = np.zeros(shape[1:])
    dyes = []
    for centre in np.linspace(305, 400, 4) + 6 * rng.standard_normal(4):
        emitted = np.exp(-0.5 * ((emission - centre) / rng.uniform(16, 30)) ** 2)
        emitted *= 1 + 0.3 * np.tanh((emission - centre) / 25)
        peak = centre - rng.uniform(60, 90)
        excited = np.exp(-0.5 * ((excitation - peak) / 12) ** 2)
        excited += rng.uniform(0.2, 0.8) * np.exp(-0.5 * ((excitation - peak + 45) / 10) ** 2)
        dyes.append(np.outer(emitted, excited))
    amounts = rng.gamma(1.5, 1.0, (shape[0], 4))
    spectrum = np.einsum("sd,dex->sex", amounts, np.array(dyes))
    spectrum = spectrum / (1 + 0.02 * amounts.sum(axis=1)[:, None, None] * np.linspace(1, 0, shape[2]))
    distance = emission[:, None] - excitation
    scatter = np.exp(-0.5 * (distance / 7) ** 2) * rng.uniform(2, 4, (shape[0], 1, 1))
    scatter = scatter + 0.03 * np.exp(-0.5 * ((distance - 0.0035 * excitation**2 / 10) / 9) ** 2)
    light = 400 * (spectrum + scatter)
    values = rng.poisson(light) + 4 * rng.standard_normal(shape)
    values = np.where((distance < 12), np.nan, values)
    return Lookalike(hide(values, share, rng), values, light, 1, amounts=amounts)


def mixtures(seed: int, *, shape: tuple[int, int, int] = (18, 60, 24)) -> Lookalike:
    """Complete fluorescence of four chemicals with first and second order scatter left in, and inner filter effects.

    The sample weakens both the light that excites it and the light that it emits, by up to a fifth.
    """
    rng = np.random.default_rng(seed)
    emission, excitation = np.linspace(290, 480, shape[1]), np.linspace(225, 330, shape[2])

    def bump(axis: Array, centre: float, width: float) -> Array:
        return np.asarray(np.exp(-0.5 * ((axis - centre) / width) ** 2))

    centres = np.linspace(310, 410, 4) + 8 * rng.standard_normal(4)
    emitted = np.stack(
        [bump(emission, c, rng.uniform(15, 25)) * (1 + 0.3 * np.tanh((emission - c) / 25)) for c in centres]
    )
    excited = np.stack(
        [bump(excitation, c - rng.uniform(55, 85), 11) + 0.5 * bump(excitation, c - 115, 9) for c in centres]
    )
    amounts = rng.gamma(2.0, 0.5, (shape[0], 4)) * (rng.random((shape[0], 4)) > 0.15)
    absorbed = 10 ** (-0.03 * amounts @ excited)[:, None, :] * 10 ** (-0.01 * amounts @ emitted)[:, :, None]
    mean = 500 * np.einsum("sd,de,dx->sex", amounts, emitted, excited) * absorbed
    distance = emission[:, None] - excitation
    scatter = bump(distance, 0, 6) * rng.uniform(600, 900, (shape[0], 1, 1))
    scatter = scatter + bump(emission[:, None] - 2 * excitation, 0, 6) * rng.uniform(100, 200, (shape[0], 1, 1))
    values = rng.poisson(mean + scatter + 5) + 2 * rng.standard_normal(shape)
    return Lookalike(values, values, mean, 1, hits=scatter > 0.1 * (mean + 50), amounts=amounts)


def faces(seed: int, *, size: int = 20, shape: tuple[int, int, int] = (8, 4, 9), rate: float = 0.1) -> Lookalike:
    """Faces, pixel × person × pose × light, with quantum noise and salt and pepper.

    Reliefs of one kind with their own skin, turned, lit from many sides, with shadows where no light falls.
    """
    rng = np.random.default_rng(seed)
    n_persons, n_poses, n_lights = shape
    row, column = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    angles = np.linspace(-1.1, 1.1, n_lights)
    lights = np.stack([np.sin(angles), 0.3 * np.cos(3 * angles), np.cos(angles)], axis=1)
    oval = np.sqrt(np.clip(1.1 - column**2 - 0.7 * row**2, 0.02, None))
    clean = np.empty((size * size, *shape))
    for person in range(n_persons):
        relief = oval + 0.35 * np.exp(-(column**2) / 0.02 - (row - 0.1) ** 2 / 0.08) * rng.uniform(0.7, 1.3)
        relief = relief + 0.06 * smooth_field(rng, (size, size), (2, 2))
        skin = rng.uniform(0.5, 1) * np.exp(0.15 * smooth_field(rng, (size, size), (1.2, 1.2)))
        for eye in (-0.4, 0.4):
            skin = skin * (1 - 0.7 * np.exp(-((column - eye) ** 2) / 0.02 - (row + 0.3) ** 2 / 0.008))
        for pose, turn in enumerate(np.linspace(-2.5, 2.5, n_poses)):
            place = np.stack([(row + 1) / 2 * (size - 1), (column + 1) / 2 * (size - 1) + turn * oval])
            turned, colour = (map_coordinates(one, place, order=1, mode="nearest") for one in (relief, skin))
            down, right = np.gradient(turned, 2 / size)
            normal = np.stack([-right, -down, np.ones_like(down)]) / np.sqrt(1 + down**2 + right**2)
            shade = np.maximum(np.einsum("la,arc->rcl", lights, normal), 0) + 0.08
            clean[:, person, pose] = (200 * colour[:, :, None] * shade).reshape(size * size, n_lights)
    mean = np.clip(clean, 0, 255)
    values = np.clip(rng.poisson(mean), 0, 255).astype(float)
    hits = rng.random(values.shape) < rate
    values = np.where(hits, 255.0 * (rng.random(values.shape) < 0.5), values)
    return Lookalike(values, values, mean, 3, hits=hits)


def trees(seed: int, *, height: int = 40, width: int = 54, frames: int = 60) -> Lookalike:
    """A clip of swaying trees as a matrix, pixels × frames, with objects that pass."""
    clip = toy_video("trees", height=height, width=width, frames=frames, bands=1, seed=seed)
    pixels, scene, moving = (
        part.reshape(height * width, frames).astype(float)
        for part in (clip.observed, clip.background, clip.foreground_mask)
    )
    return Lookalike(pixels, pixels, scene, 1, hits=moving > 0.5)


def genes(seed: int, *, shape: tuple[int, int] = (300, 60), share: float = 0.1) -> Lookalike:
    """Logarithms of expression, genes × samples: levels, batches, pathways, heavy tails, faint ones missing."""
    rng = np.random.default_rng(seed)
    n_genes, n_samples = shape
    level = 6 + 2.5 * rng.standard_normal(n_genes)
    batch, group = rng.integers(0, 4, n_samples), rng.integers(0, 3, n_samples)
    pathways = rng.standard_normal((n_genes, 5)) * (rng.random((n_genes, 5)) < 0.15) * 1.5
    mean = level[:, None] + 0.3 * rng.standard_normal(n_samples) + pathways @ rng.standard_normal((5, n_samples))
    mean = mean + 0.35 * rng.standard_normal((n_genes, 4))[:, batch]
    mean = mean + ((rng.random((n_genes, 3)) < 0.1) * 2 * rng.standard_normal((n_genes, 3)))[:, group]
    spread = 0.25 * np.exp(0.4 * rng.standard_normal(n_genes))[:, None]
    values = mean + spread * rng.standard_t(4, shape) * np.exp(0.25 * rng.standard_normal(n_samples))
    faint = rng.random(shape) < 1 / (1 + np.exp(1.5 * (values - 2)))
    measured = np.where(faint, np.nan, values)
    return Lookalike(hide(measured, share, rng), measured, mean, 1)


def bands(seed: int, *, shape: tuple[int, int, int] = (26, 28, 40), share: float = 0.1) -> Lookalike:
    """An image of many bands, row × column × band: five materials, stripes, dead columns, pixels gone dark or white."""
    rng = np.random.default_rng(seed)
    fields = np.stack([smooth_field(rng, shape[:2], (3, 3)) for _ in range(5)])
    cover = np.exp(2.5 * fields)
    cover = cover / cover.sum(axis=0)
    spectra = np.clip(0.35 + 0.15 * np.stack([smooth_field(rng, (shape[2],), (5,)) for _ in range(5)]), 0.02, None)
    light = np.exp(0.3 * smooth_field(rng, shape[:2], (2, 2)))
    mean = 4000 * np.einsum("mrc,mb->rcb", cover * light, spectra)
    stripes = np.where(rng.random(shape[1:]) < 0.1, 150 * rng.standard_normal(shape[1:]), 0.0)
    noise = np.where(rng.random(shape[2]) < 0.1, 150, 15) * rng.standard_normal(shape)
    values = mean + stripes + noise + np.sqrt(mean) * rng.standard_normal(shape) * 0.3
    hits = rng.random(shape) < 0.005
    values = np.where(hits, np.where(rng.random(shape) < 0.5, 0.0, 8000.0), values)
    dead = rng.random((1, *shape[1:])) < share
    return Lookalike(np.where(dead, np.nan, hide(values, share, rng)), values, mean + stripes, 1, hits=hits)


def ratings(seed: int, *, shape: tuple[int, int] = (300, 200), share: float = 0.95) -> Lookalike:
    """Stars from 1 to 5, users × films, nearly all missing: popular films are rated more often, and better."""
    rng = np.random.default_rng(seed)
    taste = 0.45 * rng.standard_normal((shape[0], 3)) @ rng.standard_normal((3, shape[1]))
    quality, mildness = 0.5 * rng.standard_normal(shape[1]), 0.4 * rng.standard_normal(shape[0])
    mean = np.clip(3.5 + quality + mildness[:, None] + taste, 1, 5)
    values = np.clip(np.rint(mean + 0.6 * rng.standard_normal(shape)), 1, 5)
    weight = np.outer(rng.gamma(1.0, 1.0, shape[0]), np.exp(quality) * rng.gamma(1.5, 1.0, shape[1])) * np.exp(
        0.4 * taste
    )
    scores = np.log(rng.random(shape)) / weight
    observed = np.where(scores >= np.quantile(scores, share), values, np.nan)
    return Lookalike(observed, values, mean, 1)
