"""Products and sums of dense arrays over modes, in NumPy, which are fast enough as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brtf.data.arrays import Array
from brtf.data.blocks import Block


def khatri_rao(matrices: Sequence[Array]) -> Array:
    """Column-wise Kronecker product; rows run in C order over the given modes."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = combine(product, matrix)
    return product


def compose(factors: Sequence[Array]) -> Array:
    """The tensor of CP factors: x_i = Σ_r Π_n a⁽ⁿ⁾[i_n, r]."""
    return np.asarray((khatri_rao(factors[:-1]) @ factors[-1].T).reshape([len(factor) for factor in factors]))


def transposed_khatri_rao(matrices: Sequence[Array]) -> Array:
    """The transposed Khatri–Rao product (C, Π I) of matrices (I, C)."""
    product, *others = (np.ascontiguousarray(matrix.T) for matrix in matrices)
    for other in others:
        product = (product[:, :, None] * other[:, None, :]).reshape(len(product), -1)
    return product


def combine(rows: Array, matrix: Array) -> Array:
    """The Khatri–Rao product of two matrices; their rows run in C order."""
    return (rows[:, None, :] * matrix[None, :, :]).reshape(len(rows) * len(matrix), matrix.shape[1])


def reduce_mode(partial: Array, matrix: Array, axis: int) -> Array:
    """Sum an array (…, C) over one axis, weighted by the matrix (I, C) of that axis."""
    shape = partial.shape
    n_before, n_after = math.prod(shape[:axis]), math.prod(shape[axis + 1 : -1])
    split = partial.reshape(n_before, shape[axis], n_after, shape[-1])
    return np.einsum("aibc,ic->abc", split, matrix).reshape(*shape[:axis], *shape[axis + 1 :])


def dense_block(block: Block, entry_values: Array) -> Array:
    """The block as a dense array (rows of mode 0, I_1, …), zero at missing entries."""
    shape = (block.n_rows, *block.shape[1:])
    if block.mask is None:
        return entry_values.reshape(shape)
    dense = np.zeros(shape)
    dense[block.mask] = entry_values
    return dense
