"""Solves for the rows of a mode in plain NumPy: the definition that compiled kernels must match."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.packed import pack_symmetric


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows with precisions P_i and linear terms h_i: mean_i = cov_i h_i, cov_i = P_i⁻¹ packed, ln|cov_i|.

    Solved by Cholesky after scaling each precision to unit diagonal, which preserves accuracy for components of very
    different strength. ``precision`` is (I, R, R) or (1, R, R); ``linear`` is (I, R).
    """
    spread = 1.0 / np.sqrt(np.einsum("irr->ir", precision))
    scaled = precision * spread[:, :, None] * spread[:, None, :]
    lower = _cholesky(scaled)
    half = np.linalg.inv(lower) * spread[:, None, :]
    cov = half.transpose(0, 2, 1) @ half
    shared = precision.shape[0] != linear.shape[0]
    mean = linear @ cov[0] if shared else np.einsum("irs,is->ir", cov, linear)
    return mean, pack_symmetric(cov), 2.0 * (np.log(spread) - np.log(np.einsum("irr->ir", lower))).sum(axis=1)


def _cholesky(scaled: Array) -> Array:
    """Cholesky factors (I, R, R) of precisions of unit diagonal, even where rounding made some indefinite."""
    little = 4 * scaled.shape[-1] * float(np.finfo(float).eps)
    for jitter in (0.0, little):  # numerically singular: components with the same values at the observed entries
        with suppress(np.linalg.LinAlgError):
            return np.asarray(np.linalg.cholesky(scaled + jitter * np.eye(scaled.shape[-1])), dtype=np.float64)
    # a component weaker than others by more than float precision is not determined
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(values, 4 * little * values[:, -1:])
    return np.linalg.cholesky((vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1))
