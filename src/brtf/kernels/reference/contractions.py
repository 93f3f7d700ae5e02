"""The contractions in plain NumPy: the definition that compiled kernels must match.

Each takes one :class:`~brtf.data.blocks.Block` and one matrix (I_n, C) per mode, and works on the entry vector of
that block: a layout is its implementation of these few functions. No function forms a Khatri–Rao product of
all modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from brtf.data.arrays import Array
from brtf.data.blocks import Block, block_positions
from brtf.kernels.dense import combine, dense_block, khatri_rao, reduce_mode
from brtf.kernels.packed import symmetric_multiplicity


def listed(block: Block) -> Block:
    """The block prepared for several contractions."""
    return block


def positions(block: Block, modes: tuple[int, ...]) -> NDArray[np.int64]:
    """Position of every entry of a block along the given modes, (m,), numbered in C order over them."""
    return block_positions(block, modes)


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries: x_m = Σ_c Π_n M⁽ⁿ⁾[i_n, c].

    Returns the entry vector (m,).
    """
    if block.coords is not None:
        return _gathered_product(block.coords, matrices).sum(axis=1)
    rows, columns = as_matrix(rows_of_block(block, matrices))
    return block_entries(block, khatri_rao(rows) @ khatri_rao(columns).T)


def contract(block: Block, entry_values: Array | None, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrices of all other modes (MTTKRP), added to ``out``.

    Dense blocks are runs of rows of mode 0: for that mode ``out`` has the block's rows alone.

    H[i, c] = Σ_{m in block, i_n = i} v_m Π_{k≠n} M⁽ᵏ⁾[i_k, c], shape (I_n, C). With the data for v it gives the row
    products h_i of U1; with the observation pattern or weights for v, and packed second moments for M, the row Grams.
    """
    entry_values = np.ones(block.n_entries) if entry_values is None else entry_values
    if block.coords is not None:
        others = [matrix for k, matrix in enumerate(matrices) if k != mode]
        product = _gathered_product(np.delete(block.coords, mode, axis=0), others)
        shape = (out.shape[0], product.shape[0])
        out += coo_array((entry_values, (block.coords[mode], np.arange(product.shape[0]))), shape=shape) @ product
        return
    contract_dense(block, dense_block(block, entry_values), matrices, mode, out)


def contract_dense(block: Block, dense: Array, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """:func:`contract` for a dense array that is zero at missing entries."""
    rows, columns = as_matrix(rows_of_block(block, matrices))
    flat = dense.reshape(math.prod(dense.shape[: len(rows)]), -1)
    if mode < len(rows):
        kept, own, lengths, partial = rows, mode, dense.shape[: len(rows)], flat @ khatri_rao(columns)
    else:
        kept, own, lengths, partial = columns, mode - len(rows), dense.shape[len(rows) :], flat.T @ khatri_rao(rows)
    partial = partial.reshape(*lengths, partial.shape[1])
    for k in range(len(kept) - 1, -1, -1):
        if k != own:
            partial = reduce_mode(partial, kept[k], k)
    out += partial


def contract_one(block: Block, entry_values: Array | None, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrix of one mode, added to ``out``; dense layouts only.

    T[…, c] = Σ_{i_n} v_{…i_n…} M⁽ⁿ⁾[i_n, c]: the other modes in their order, of mode 0 the block's rows, then C. The
    contractions for all other modes follow from it without another pass.
    """
    entry_values = np.ones(block.n_entries) if entry_values is None else entry_values
    contract_one_dense(block, dense_block(block, entry_values), matrix, mode, out)


def contract_one_dense(block: Block, dense: Array, matrix: Array, mode: int, out: Array) -> None:
    """:func:`contract_one` for a dense array that is zero at missing entries."""
    if mode == 0:
        flat = dense.reshape(dense.shape[0], -1)
        out += (flat.T @ matrix[block.rows]).reshape(out.shape)
        return
    moved = dense.reshape(math.prod(dense.shape[:mode]), dense.shape[mode], -1).transpose(0, 2, 1)
    out += (moved @ matrix).reshape(*dense.shape[:mode], *dense.shape[mode + 1 :], matrix.shape[1])


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries.

    Var x_m = Σ_{rs} [Π_n (Q⁽ⁿ⁾+V⁽ⁿ⁾) − Π_n Q⁽ⁿ⁾]_{rs} with Q = ããᵀ, accumulated by the recursion
    d ← d⊛(Q+V) + q⊛V, q ← q⊛Q, in which every term is positive: nothing cancels.

    All are packed upper halves: ``outers`` Q (I_n, P), ``moments`` Q+V (I_n, P), ``covs`` V (I_n or 1, P), with
    P = R(R+1)/2; returns (m,).
    """
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        pick = [np.take(matrix, index, axis=0) for matrix, index in zip(covs, block.coords, strict=True)]
        spread, product = pick[0], np.take(outers[0], block.coords[0], axis=0)
        for k in range(1, len(outers)):
            spread = spread * np.take(moments[k], block.coords[k], axis=0) + product * pick[k]
            product = product * np.take(outers[k], block.coords[k], axis=0)
        return np.asarray(spread @ multiplicity)
    spread, product = left_variance(block, outers, moments, covs)
    return block_entries(block, (spread * multiplicity) @ moments[-1].T + (product * multiplicity) @ covs[-1].T)


def left_variance(
    block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]
) -> tuple[Array, Array]:
    """The recursion (d, q) of a dense block over all modes but the last; each (fibres, P)."""
    outers, moments, covs = (rows_of_block(block, matrices) for matrices in (outers, moments, covs))
    spread, product = covs[0], outers[0]
    for k in range(1, len(outers) - 1):
        spread = combine(spread, moments[k]) + combine(product, covs[k])
        product = combine(product, outers[k])
    return spread, product


def as_matrix(matrices: list[Array]) -> tuple[list[Array], list[Array]]:
    """A dense block as a matrix, leading modes as rows and the others as columns, as square as possible.

    Khatri–Rao products are then cheap compared with the product with the block, even where modes are short.
    """
    n_leading = _n_leading(tuple(map(len, matrices)))
    return matrices[:n_leading], matrices[n_leading:]


@lru_cache(maxsize=256)
def _n_leading(lengths: tuple[int, ...]) -> int:
    return min(range(1, len(lengths)), key=lambda k: math.prod(lengths[:k]) + math.prod(lengths[k:]))


def rows_of_block(block: Block, matrices: Sequence[Array]) -> list[Array]:
    return [matrices[0][block.rows], *matrices[1:]]


def _gathered_product(coords: NDArray[np.intp], matrices: Sequence[Array]) -> Array:
    product = np.take(matrices[0], coords[0], axis=0)
    for matrix, index in zip(matrices[1:], coords[1:], strict=True):
        product *= np.take(matrix, index, axis=0)
    return product


def block_entries(block: Block, dense: Array) -> Array:
    return dense.ravel() if block.mask is None else dense.reshape(block.mask.shape)[block.mask]
