"""The contractions in plain NumPy: the definition that every faster twin must equal.

Each takes one :class:`~brtf.observations.Block` and one matrix (I_n, C) per mode, and works on the entry vector of
that block: a layout is nothing but its version of these few functions. No function forms a Khatri–Rao product of
all modes; the largest intermediate is (fibres of the block, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from brtf.observations import Block

Array = NDArray[np.float64]


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries: x_m = Σ_c Π_n M⁽ⁿ⁾[i_n, c].

    Returns the entry vector (m,).
    """
    if block.coords is not None:
        return _gathered_product(block.coords, matrices).sum(axis=1)
    *left, last = _rows_of_block(block, matrices)
    return _entries(block, khatri_rao(left) @ last.T)


def contract(block: Block, entry_values: Array, matrices: Sequence[Array], mode: int) -> Array:
    """Contraction of an entry vector with the matrices of all other modes (MTTKRP).

    H[i, c] = Σ_{m in block, i_n = i} v_m Π_{k≠n} M⁽ᵏ⁾[i_k, c], shape (I_n, C). With the data for v it gives the row
    products h_i of U1; with the observation pattern or weights for v, and packed second moments for M, the row Grams.
    """
    n_rows = matrices[mode].shape[0]
    others = [matrix for k, matrix in enumerate(matrices) if k != mode]
    if block.coords is not None:
        product = _gathered_product(np.delete(block.coords, mode, axis=0), others)
        n_entries = product.shape[0]
        scatter = coo_array((entry_values, (block.coords[mode], np.arange(n_entries))), shape=(n_rows, n_entries))
        return np.asarray(scatter @ product)
    local = _rows_of_block(block, matrices)
    dense = _dense(block, entry_values, tuple(matrix.shape[0] for matrix in local))
    if mode == len(local) - 1:
        return dense.reshape(-1, dense.shape[-1]).T @ khatri_rao(local[:-1])
    partial = dense @ local[-1]
    for k in range(len(local) - 2, -1, -1):
        if k != mode:
            shape = partial.shape
            n_before, n_after = math.prod(shape[:k]), math.prod(shape[k + 1 : -1])
            partial = np.einsum(
                "aibc,ic->abc", partial.reshape(n_before, shape[k], n_after, shape[-1]), local[k]
            ).reshape(*shape[:k], *shape[k + 1 :])
    if mode == 0 and local[0].shape[0] != n_rows:
        placed = np.zeros((n_rows, partial.shape[-1]))
        placed[block.rows] = partial
        return placed
    return partial


def variance_at(block: Block, means: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries.

    Var x_m = Σ_{rs} [Π_n (Q⁽ⁿ⁾+V⁽ⁿ⁾) − Π_n Q⁽ⁿ⁾]_{rs} with Q = ããᵀ, accumulated by the recursion
    d ← d⊛(Q+V) + q⊛V, q ← q⊛Q, in which every term is positive: nothing cancels.

    ``moments`` and ``covs`` are packed upper halves, (I_n, P) and (I_n or 1, P) with P = R(R+1)/2; returns (m,).
    """
    rank = means[0].shape[1]
    rows, cols = np.triu_indices(rank)
    multiplicity = np.where(rows == cols, 1.0, 2.0)
    outers = [mean[:, rows] * mean[:, cols] for mean in means]
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    if block.coords is not None:
        pick = [np.take(matrix, index, axis=0) for matrix, index in zip(covs, block.coords, strict=True)]
        spread, product = pick[0], np.take(outers[0], block.coords[0], axis=0)
        for k in range(1, len(means)):
            spread = spread * np.take(moments[k], block.coords[k], axis=0) + product * pick[k]
            product = product * np.take(outers[k], block.coords[k], axis=0)
        return np.asarray(spread @ multiplicity)
    outers, moments, covs = (_rows_of_block(block, matrices) for matrices in (outers, moments, covs))
    spread, product = covs[0], outers[0]
    for k in range(1, len(means) - 1):
        spread = _combine(spread, moments[k]) + _combine(product, covs[k])
        product = _combine(product, outers[k])
    dense = (spread * multiplicity) @ moments[-1].T + (product * multiplicity) @ covs[-1].T
    return _entries(block, dense)


def khatri_rao(matrices: Sequence[Array]) -> Array:
    """Column-wise Kronecker product; rows run in C order over the given modes."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = _combine(product, matrix)
    return product


def _combine(rows: Array, matrix: Array) -> Array:
    return (rows[:, None, :] * matrix[None, :, :]).reshape(len(rows) * len(matrix), matrix.shape[1])


def _rows_of_block(block: Block, matrices: Sequence[Array]) -> list[Array]:
    return [matrices[0][block.rows], *matrices[1:]]


def _gathered_product(coords: NDArray[np.intp], matrices: Sequence[Array]) -> Array:
    product = np.take(matrices[0], coords[0], axis=0)
    for matrix, index in zip(matrices[1:], coords[1:], strict=True):
        product *= np.take(matrix, index, axis=0)
    return product


def _entries(block: Block, dense: Array) -> Array:
    return dense.ravel() if block.mask is None else dense.reshape(block.mask.shape)[block.mask]


def _dense(block: Block, entry_values: Array, shape: tuple[int, ...]) -> Array:
    if block.mask is None:
        return entry_values.reshape(shape)
    dense = np.zeros(shape)
    dense[block.mask] = entry_values
    return dense
