"""Slices and fibres that are off by the same amount everywhere, where the fit has spent a component on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from brtf.data.arrays import Array
from brtf.data.scale import SD_PER_MEDIAN
from brtf.model.distributions import RowGaussians

N_ROUNDS = 50
"""Rounds of reweighted least squares, which settle long before."""
HELD = 0.25
"""Share of a component at one fibre from which on it is no pattern of that fibre's row and column: a convention."""


def shifts_of_slices(
    factors: Sequence[RowGaussians],
    mode: int,
    positions: NDArray[np.intp],
    noise_variance: Array,
    n_observed: NDArray[np.intp],
) -> tuple[Array, Array, Array]:
    """Shifts of slices that their loadings express and those of other slices do not.

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
    positions : (G,) of the slices
    noise_variance : (G,) of an entry of every slice, on average
    n_observed : (G,) entries of every slice

    Returns
    -------
    evidence : (G,) ln Bayes factor of a shift
    size : (G,) the shifts δ
    constant : (R,) p
    """
    rows, others = factors[mode].mean[positions], [factor.mean for k, factor in enumerate(factors) if k != mode]
    n_rows, rank = rows.shape
    none = np.full(n_rows, -np.inf), np.zeros(n_rows), np.zeros(rank)
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
    rest = rows @ complement.T
    along = rows @ constant / length**2
    slope = _least_absolute(rest, along)
    direction = constant / length**2 - slope @ complement
    size = rows @ direction
    cov = factors[mode].cov if factors[mode].shared else factors[mode].cov[positions]
    error = np.einsum("r,irs,s->i", direction, np.broadcast_to(cov, (n_rows, rank, rank)), direction)
    free = n_rows - rank
    deviation = SD_PER_MEDIAN * float(np.median(np.abs(size))) * math.sqrt(n_rows / free)
    square = np.maximum(deviation**2 * free / float(chi2.ppf(0.05, free)) - np.median(error), 0.0) + error
    smeared = np.maximum(np.abs(size), np.sqrt(square)) / np.sqrt(noise_variance)  # the density is, over as much
    log_shifted = -math.log(math.pi) - np.log1p(smeared**2) - 0.5 * np.log(noise_variance)
    log_regular = -0.5 * np.log(2.0 * math.pi * square) - 0.5 * size**2 / square
    charged = 0.5 * n_observed * lacking * size**2 / noise_variance
    return np.asarray(log_shifted - log_regular - charged), size, constant


def shifts_of_fibres(factors: Sequence[RowGaussians], fixed: Sequence[int], positions: NDArray[np.intp]) -> Array:
    """(G,) what fibres are off by through components of which they hold a good part.

    A component spent on one or two shifted fibres has small loadings elsewhere too, as it takes up what the others
    leave there. Its share at a fibre is the product of the shares of the rows there, a² / Σ a². It must be constant
    along the fibre: a course of its own is no error.
    """
    size, share = np.ones(factors[0].rank), np.ones(factors[0].rank)
    for mode, rows in enumerate(factors):
        if mode not in fixed:
            middle = rows.mean.mean(axis=0)
            errors = np.broadcast_to(np.diagonal(rows.cov, axis1=1, axis2=2), rows.mean.shape)
            pairs = zip((rows.mean - middle).T, errors.T, strict=True)
            size = size * middle * np.array([may_be_zero(left, error) for left, error in pairs])
    for mode, places in zip(fixed, positions, strict=True):
        square = np.square(factors[mode].mean)
        size = size * factors[mode].mean[places]
        share = share * (square / np.maximum(square.sum(axis=0), np.finfo(float).tiny))[places]
    return np.asarray(np.sum(np.where(share >= HELD, size, 0.0), axis=1))


def may_be_zero(estimates: Array, errors: Array) -> bool:
    """Whether all estimates a_j ~ N(0, s² + V_j) may be zero: no s raises their likelihood by more than a nat."""
    square = np.square(estimates)
    size = np.geomspace(1e-6, 1.0, 121)[:, None] * square.max()
    gain = 0.5 * np.sum(square / errors - square / (errors + size) - np.log1p(size / errors), axis=1)
    return bool(gain.max() < 1.0)


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
