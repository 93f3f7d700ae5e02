"""Mixtures of spectra, as chemists measure them."""

import numpy as np


def overlapping_spectra(shape=(12, 30, 50), rank=3, noise=1e-3, seed=0):
    """Mixtures of smooth spectra that overlap: nearly collinear components, and little noise."""
    rng = np.random.default_rng(seed)

    def spectra(length):
        return np.exp(-0.5 * ((np.linspace(0, 1, length)[:, None] - rng.uniform(0.2, 0.8, rank)) / 0.15) ** 2)

    concentrations = rng.uniform(0.1, 1.0, (shape[0], rank))
    mixtures = np.einsum("ir,jr,kr->ijk", concentrations, spectra(shape[1]), spectra(shape[2]))
    return mixtures + noise * rng.standard_normal(shape)
