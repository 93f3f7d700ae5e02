"""What the matrix methods share: a tensor laid out as a matrix, its singular values, its largest entries."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from brtf.research.baselines.algebra import Array

FAR_LONGER = 8
"""Ratio of the sides from which the Gram matrix of the short one replaces the SVD, several times as fast."""


@dataclass(frozen=True)
class Unfolding:
    """A tensor laid out as a matrix: a column for every position of one mode, the other modes along the rows.

    The rows run over the other modes in rising order, the last fastest. Unfolded along its last mode, the default of
    all methods, a matrix is itself and a video (pixels, 3, frames) has a column per frame; face images (pixels,
    subjects, …) have a row per image along mode 0.

    Attributes
    ----------
    shape : tuple of int
        (I_0, …, I_{N-1}) of the tensor.
    mode : int
        The mode of the columns, counted from 0.
    """

    shape: tuple[int, ...]
    mode: int

    @classmethod
    def along(cls, shape: tuple[int, ...], mode: int) -> Unfolding:
        """The unfolding along a mode, which may be counted from the end."""
        order = len(shape)
        try:
            position = operator.index(mode)
        except TypeError:
            raise TypeError(f"mode must be an integer, got {mode!r}.") from None
        if not -order <= position < order:
            raise ValueError(f"mode must lie between {-order} and {order - 1} for shape {shape}, got {mode}.")
        return cls(shape, position % order)

    def matrix(self, tensor: Any) -> Any:
        """The tensor as a matrix (rows, I_mode)."""
        return np.moveaxis(tensor, self.mode, -1).reshape(-1, self.shape[self.mode])

    def fold(self, matrix: Array) -> Array:
        """The tensor that unfolds to the matrix."""
        lengths = [length for mode, length in enumerate(self.shape) if mode != self.mode]
        return np.moveaxis(matrix.reshape(*lengths, self.shape[self.mode]), -1, self.mode)


def leading_singular(matrix: Array, *, rank: int | None = None, above: float = 0.0) -> tuple[Array, Array, Array]:
    """The largest singular values of a matrix and their vectors, ``left * values @ right`` its best approximation.

    If one side is far longer, they come from the eigenvectors of the smaller Gram matrix, which resolves singular
    values down to 1e-8 of the largest and drops those below.

    Parameters
    ----------
    matrix : ndarray (m, n)
    rank : int, optional
        How many, at most; all by default.
    above : float
        Only values above this one.

    Returns
    -------
    left, values, right : ndarray
        (m, k), (k,) and (k, n), the values in decreasing order.
    """
    n_rows, n_columns = matrix.shape
    if n_rows < n_columns:
        left, values, right = leading_singular(matrix.T, rank=rank, above=above)
        return right.T, values, left.T
    if n_rows < FAR_LONGER * n_columns:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        kept = slice(min(np.count_nonzero(values > above), n_columns if rank is None else rank))
        return left[:, kept], values[kept], right[kept]
    powers, vectors = np.linalg.eigh(matrix.T @ matrix)
    values = np.sqrt(np.maximum(powers[::-1], 0.0))
    known = math.sqrt(np.finfo(np.float64).eps) * values[0]
    kept = slice(min(np.count_nonzero(values > max(above, known)), n_columns if rank is None else rank))
    right = vectors[:, ::-1][:, kept]
    return (matrix @ right) / values[kept], values[kept], right.T


def shrink_singular(matrix: Array, threshold: float) -> tuple[Array, Array]:
    """The matrix with its singular values moved towards zero by the threshold, and those that remain."""
    left, values, right = leading_singular(matrix, above=threshold)
    return (left * (values - threshold)) @ right, values - threshold


def keep_largest(values: Array, count: int) -> Array:
    """The entries of largest magnitude, exactly ``count`` of them whatever the ties, and zero elsewhere."""
    kept = np.zeros(values.size)
    if count > 0:
        flat = values.ravel()
        largest = np.argpartition(np.abs(flat), -count)[-count:]
        kept[largest] = flat[largest]
    return kept.reshape(values.shape)
