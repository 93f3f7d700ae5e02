"""Symmetric matrices stored as their upper halves, row by row."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array


@lru_cache(maxsize=256)
def packed_indices(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper half of a symmetric (rank, rank) matrix, the order used when packing."""
    return np.triu_indices(rank)


@lru_cache(maxsize=256)
def _flat_indices(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Flat indices of the packed elements, the packed index of every flat element, and the packed diagonal."""
    rows, cols = packed_indices(rank)
    packed = np.empty((rank, rank), np.intp)
    packed[rows, cols] = packed[cols, rows] = np.arange(rows.size)
    return rows * rank + cols, packed.reshape(-1), packed.diagonal().copy()


def packed_diagonal(rank: int) -> NDArray[np.intp]:
    """Positions of the diagonal among the packed elements, (rank,)."""
    return _flat_indices(rank)[2]


def unpack_symmetric(packed: Array, rank: int) -> Array:
    """Symmetric matrices (..., R, R) from their packed upper halves (..., R(R+1)/2)."""
    return packed.take(_flat_indices(rank)[1], axis=-1).reshape(*packed.shape[:-1], rank, rank)


def pack_symmetric(full: Array) -> Array:
    """The packed upper halves (..., R(R+1)/2) of symmetric matrices (..., R, R)."""
    rank = full.shape[-1]
    return full.reshape(*full.shape[:-2], rank * rank).take(_flat_indices(rank)[0], axis=-1)


def symmetric_multiplicity(n_packed: int) -> Array:
    """Multiplicity of each packed element in the symmetric matrix: 1 on the diagonal, 2 off it."""
    rank = (math.isqrt(8 * n_packed + 1) - 1) // 2
    rows, cols = packed_indices(rank)
    return np.where(rows == cols, 1.0, 2.0)
