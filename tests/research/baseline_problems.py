"""Matrices with a known truth on which the matrix baselines have known figures."""

import numpy as np

SIDE, RANK = 200, 5
HEIGHT, WIDTH, N_FRAMES = 32, 40, 60


def matrix_problem(seed, outlier_fraction, noise):
    """200 × 200 of rank 5 with uniform outliers up to ten times its standard deviation: data, low-rank part."""
    rng = np.random.default_rng(seed)
    low_rank = rng.standard_normal((SIDE, RANK)) @ rng.standard_normal((RANK, SIDE))
    size = low_rank.std()
    data = low_rank + noise * size * rng.standard_normal(low_rank.shape)
    hit = rng.choice(data.size, round(outlier_fraction * data.size), replace=False)
    data.flat[hit] += rng.uniform(-10, 10, hit.size) * size
    return data, low_rank


def problem_m1(seed):
    return matrix_problem(seed, 0.05, 0.0)


def problem_m2(seed):
    return matrix_problem(seed, 0.10, 0.05)


def problem_m3(seed=0):
    """A toy video (pixels, frames): a block before a background of rank 2. Data, background, foreground."""
    down, along, frame = np.ogrid[:HEIGHT, :WIDTH, :N_FRAMES]
    scene = 0.5 + 0.3 * np.sin(along / 6) * np.cos(down / 5)
    background = scene * (1 + 0.05 * np.sin(2 * np.pi * frame / 20)) + 0.1 * (along / 40) * np.cos(
        2 * np.pi * frame / 30
    )
    top = 8 + np.trunc(4 * np.sin(frame / 8))
    left = np.floor(32 * frame / 59)
    foreground = (top <= down) & (down < top + 10) & (left <= along) & (along < left + 7)
    data = np.where(foreground, 0.95, background)
    data = data + 0.02 * np.random.default_rng(seed).standard_normal(data.shape)
    return tuple(tensor.reshape(-1, N_FRAMES) for tensor in (data, background, foreground))
