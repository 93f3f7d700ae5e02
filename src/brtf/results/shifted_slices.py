"""Slices that are off by the same amount everywhere, where the fit has spent a component on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2

from brtf.data.arrays import Array
from brtf.model.distributions import RowGaussians

N_ROUNDS = 50
"""Rounds of reweighted least squares, which settle long before."""


def shift_evidence(factors: Sequence[RowGaussians], mode: int, noise_variance: float, n_observed: Array) -> Array:
    """(I_n,) ln Bayes factor of a shift of a slice that its loadings express and those of other slices do not.

    W, the patterns over the other modes, may contain the constant: W p ≈ 1. If most slices do without it, their
    loadings lie in a plane that p leaves, whatever the rotation of the components: with a = α p + B β, α = uᵀβ by least
    absolute deviations, and the shift of a slice is δ = α − uᵀβ. Regular slices have δ ~ N(0, s²), known with variance
    v; a few shifted ones must not widen that population, so s² is the squared median deviation beyond what is due to v,
    at its upper 95 % limit. Where the constant is a pattern that all slices share, s is large and nothing is evident. A
    shifted one has |δ| ~ half-Cauchy in units of the noise, either sign. What W p lacks of the constant would show in
    the residuals of a shifted slice, and is charged.

    Parameters
    ----------
    factors : of every mode
    mode : whose slices are judged
    noise_variance : of an entry
    n_observed : (I_n,) entries of every slice
    """
    rows, others = factors[mode], [factor.mean for k, factor in enumerate(factors) if k != mode]
    n_rows, rank = rows.mean.shape
    none = np.full(n_rows, -np.inf)
    if rank == 0 or n_rows - rank < 3:
        return none
    gram = np.prod([factor.T @ factor for factor in others], axis=0)
    sums = np.prod([factor.sum(axis=0) for factor in others], axis=0)
    constant = np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ sums
    length = float(np.linalg.norm(constant))
    if not length > 0:
        return none
    lacking = max(1.0 - float(constant @ sums) / math.prod(len(factor) for factor in others), 0.0)
    complement = np.linalg.svd(constant[None])[2][1:]
    rest = rows.mean @ complement.T
    along = rows.mean @ constant / length**2
    slope = _least_absolute(rest, along)
    direction = constant / length**2 - slope @ complement
    shift = rows.mean @ direction
    error = np.einsum("r,irs,s->i", direction, np.broadcast_to(rows.cov, (n_rows, rank, rank)), direction)
    free = n_rows - rank
    deviation = 1.4826 * float(np.median(np.abs(shift))) * math.sqrt(n_rows / free)
    square = np.maximum(deviation**2 * free / float(chi2.ppf(0.05, free)) - np.median(error), 0.0) + error
    size = np.maximum(np.abs(shift), np.sqrt(square)) / math.sqrt(noise_variance)  # the density is smeared over as much
    log_shifted = -math.log(math.pi) - np.log1p(size**2) - 0.5 * math.log(noise_variance)
    log_regular = -0.5 * np.log(2.0 * math.pi * square) - 0.5 * shift**2 / square
    return np.asarray(log_shifted - log_regular - 0.5 * n_observed * lacking * shift**2 / noise_variance)


def _least_absolute(inputs: Array, output: Array) -> Array:
    """Coefficients with the least sum of absolute deviations."""
    if inputs.shape[1] == 0:
        return np.zeros(0)
    weight = np.ones(len(output))
    tiny = 1e-8 * float(np.abs(output).max()) or 1.0
    for _ in range(N_ROUNDS):
        root = np.sqrt(weight)[:, None]
        coefficients = np.linalg.lstsq(root * inputs, root[:, 0] * output, rcond=None)[0]
        weight = 1.0 / np.maximum(np.abs(output - inputs @ coefficients), tiny)
        weight /= weight.max()
    return np.asarray(coefficients)
