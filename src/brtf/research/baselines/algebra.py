"""The multilinear algebra that the baselines share: unfoldings, products, thresholds.

One convention throughout: the unfolding of a mode has its positions as rows and those of the other modes, in rising
order and the last running fastest, as columns; Khatri–Rao products run over the modes in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from brtf.kernels.dense import khatri_rao

Array = NDArray[np.float64]


def unfold(tensor: Array, mode: int) -> Array:
    """The tensor as a matrix (I_n, Π_{k≠n} I_k)."""
    rows = np.moveaxis(tensor, mode, 0)
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def fold(matrix: Array, mode: int, shape: Sequence[int]) -> Array:
    """The tensor of the given shape that unfolds to the matrix."""
    lengths = [shape[mode], *(length for k, length in enumerate(shape) if k != mode)]
    return np.moveaxis(matrix.reshape(lengths), 0, mode)


def design(factors: Sequence[Array], mode: int) -> Array:
    """Z_n, the Khatri–Rao product of the factors of all other modes: unfold([[A]], n) = A⁽ⁿ⁾ Z_nᵀ, (Π_{k≠n} I_k, R)."""
    return khatri_rao([factor for k, factor in enumerate(factors) if k != mode])


def contract(tensor: Array, factors: Sequence[Array], mode: int) -> Array:
    """The tensor contracted with the factors of all other modes, unfold(Y, n) Z_n (MTTKRP): shape (I_n, R)."""
    return unfold(tensor, mode) @ design(factors, mode)


def cross_gram(factors: Sequence[Array], mode: int) -> Array:
    """Z_nᵀ Z_n, the entrywise product of the Gram matrices of all other modes: shape (R, R)."""
    return reduce(np.multiply, (factor.T @ factor for k, factor in enumerate(factors) if k != mode))


def row_grams(weights: Array, rows: Array) -> Array:
    """Weighted Gram matrices of rows z_j (J, R), one for every row of weights (I, J): Σ_j w_ij z_j z_jᵀ, (I, R, R).

    One product of matrices over the R² products of columns, or where these would take more memory, one row at a time.
    """
    n_grams, n_rows = weights.shape
    rank = rows.shape[1]
    if n_grams < n_rows:
        return np.stack([rows.T @ (weight[:, None] * rows) for weight in weights])
    return (weights @ (rows[:, :, None] * rows[:, None, :]).reshape(n_rows, -1)).reshape(n_grams, rank, rank)


def multiply(tensor: Array, matrices: Sequence[Array | None]) -> Array:
    """Every mode of the tensor multiplied by its matrix (J_n, I_n), T ×_1 M⁽¹⁾ … ×_N M⁽ᴺ⁾; None leaves a mode alone."""
    for mode, matrix in enumerate(matrices):
        if matrix is not None:
            shape = (*tensor.shape[:mode], len(matrix), *tensor.shape[mode + 1 :])
            tensor = fold(matrix @ unfold(tensor, mode), mode, shape)
    return tensor


def leading_basis(tensor: Array, mode: int, rank: int) -> Array:
    """The leading left singular vectors of an unfolding, through its smaller Gram matrix: shape (I_n, rank).

    The rank is at most the shorter side of the unfolding. The largest entry of every vector is positive.
    """
    matrix = unfold(tensor, mode)
    n_rows, n_columns = matrix.shape
    if n_rows <= n_columns:
        vectors = np.linalg.eigh(matrix @ matrix.T)[1][:, ::-1][:, :rank]
    else:
        vectors = np.linalg.qr(matrix @ np.linalg.eigh(matrix.T @ matrix)[1][:, ::-1][:, :rank])[0]
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(rank)])
    return np.asarray(vectors * signs)


def soft_threshold(values: Array, threshold: float) -> Array:
    """Every value moved towards zero by the threshold: sign(x) max(|x| − t, 0)."""
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0)


def squared_norm(values: Array) -> float:
    """Σ x² over all entries."""
    return float(np.vdot(values, values))


def typical_size(values: Array) -> float:
    """The standard deviation of the values, or their size where they are all the same; zeros have none."""
    spread = float(np.std(values))
    # Equal values may differ from their mean by rounding, which is no spread.
    return spread if spread > 1e-12 * float(np.abs(values).max()) else float(np.abs(values).max())
