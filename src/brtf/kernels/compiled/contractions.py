"""Compiled contractions: the twin of :mod:`brtf.kernels.reference.contractions`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.blocks import Block, row_and_column_positions
from brtf.kernels import (
    coordinates,
    masked,
    products,
    tiles,
)
from brtf.kernels.arguments import plain
from brtf.kernels.compiled.listed_block import fibres_of, listed, remembers
from brtf.kernels.compiled.variances import Fibres, Products, Variances
from brtf.kernels.dense import dense_block, khatri_rao, reduce_mode, transposed_khatri_rao
from brtf.kernels.packed import symmetric_multiplicity
from brtf.kernels.reference import contractions as definition
from brtf.kernels.reference.contractions import as_matrix, rows_of_block

DENSE_SHARE = 0.4
"""Share of observed entries above which a dense product with zeros is cheaper than a loop over entries."""
DENSE_SHARE_OF_SUMS = 0.75
"""That share for sums over entries, whose rows stay in L1 cache."""
WIDE = 300
"""Columns from which products are formed in tiles: a convention, below which they take little time or room."""
STEP = 4
"""Columns are padded to a multiple of this: thin-matrix products take several at a time."""
LEAST_SUM = 16
"""Shortest last mode that is summed over first."""
SHORT = 64
"""Fewest rows in a sum for which the sum dominates its overhead."""


def positions(block: Block, modes: tuple[int, ...]) -> NDArray[np.int64]:
    """Position of every entry of a block along the given modes, (m,); blocks of small data keep them."""
    known: dict[tuple[int, ...], NDArray[np.int64]] = block.cache.setdefault("positions", {})
    if modes in known:
        return known[modes]
    found = np.empty(block.n_entries, np.int64)
    if block.coords is not None:
        strides = np.array([math.prod(block.shape[mode] for mode in modes[k + 1 :]) for k in range(len(modes))])
        coordinates.positions(block.coords, np.array(modes), strides, found)
    else:
        rows, columns = row_and_column_positions(block, modes)
        mask = np.ones((1, 0), np.bool_) if block.mask is None else block.mask.reshape(len(rows), -1)
        masked.positions(mask, rows, columns, found)
    if remembers(block):
        known[modes] = found
    return found


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries, (m,)."""
    if block.coords is not None:
        out = np.zeros(block.coords.shape[1])
        coordinates.sum_of_products(block.coords, _together(matrices), out)
        return out
    if matrices[0].shape[1] >= WIDE and matrices[0].dtype == np.float64:
        return _at_entries(block, Products(_longest(block), _together(rows_of_block(block, matrices))))
    if block.mask is None:
        return definition.low_rank_at(block, matrices)
    if _is_dense(block):
        rows, columns = as_matrix(rows_of_block(block, matrices))
        return _compressed(block, khatri_rao(rows) @ khatri_rao(columns).T)
    *left, last = rows_of_block(block, matrices)
    return _products_at(block, khatri_rao(left), last)


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries, (m,)."""
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        covs = [_one_per_row(cov, moment) for cov, moment in zip(covs, moments, strict=True)]
        out = np.zeros(block.coords.shape[1])
        coordinates.variances(block.coords, _together(outers), _together(moments), _together(covs), multiplicity, out)
        return out
    outers, moments, covs = (_together(part) for part in (outers, moments, covs))
    own_cov = covs[0] if len(covs[0]) < len(outers[0]) else covs[0][block.rows]
    rows = rows_of_block(block, outers), rows_of_block(block, moments), [own_cov, *covs[1:]]
    return _at_entries(block, Variances(_longest(block), *rows, multiplicity))


def _longest(block: Block) -> int:
    lengths = (block.n_rows, *block.shape[1:])
    return max(range(len(lengths)), key=lengths.__getitem__)


def _at_entries(block: Block, fibres: Fibres) -> Array:
    """The sums of fibres along the longest mode at the block's entries, (m,)."""
    lengths, longest = (block.n_rows, *block.shape[1:]), _longest(block)
    if not _is_dense(block):
        return fibres.at(listed(block).numbered(math.prod(lengths[:longest]), lengths[longest]), block.n_entries)
    others = [length for mode, length in enumerate(lengths) if mode != longest]
    dense = np.moveaxis(fibres.everywhere().reshape(*others, -1), -1, longest)
    return dense.ravel() if block.mask is None else _compressed(block, np.ascontiguousarray(dense))


def contract(block: Block, entry_values: Array | None, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrices of all other modes, added to ``out``."""
    if entry_values is None and not _is_mostly_observed(block):
        entry_values = np.ones(block.n_entries)
    if block.coords is not None and entry_values is not None:
        coordinates.scatter_products(block.coords, plain(entry_values), _together(matrices), mode, out)
        return
    *left, last = _together(rows_of_block(block, matrices))
    rest = [matrix for k, matrix in enumerate(left) if k != mode]
    n_slow = _n_slow([len(matrix) for matrix in rest]) if mode == len(left) else len(rest)
    n_summed = math.prod(map(len, rest[n_slow:])) if mode == len(left) else len(last)
    if entry_values is not None and _is_dense(block, n_summed):
        dense = _dense(block, entry_values)
        if len(last) >= LEAST_SUM and last.shape[1] <= tiles.LARGEST_THIN and dense.dtype == np.float64:
            _contract_thin(dense, left, last, mode, out)
        else:
            definition.contract_dense(block, dense, matrices, mode, out)
        return
    others = khatri_rao(rest[:n_slow]) if n_slow else np.ones((1, last.shape[1]))
    if mode == len(left):
        n_after, summed = 1, khatri_rao(rest[n_slow:])
        lists, amounts, full = listed(block).by_column(entry_values, len(others), n_summed)
    else:
        n_after, summed = math.prod(len(matrix) for matrix in left[mode + 1 :]), last
        lists, amounts, full = listed(block).by_row(entry_values)
    masked.add_lists(lists, amounts, summed, others, len(out), n_after, out)
    if full is not None:
        of_row = np.moveaxis(full.reshape(-1, len(out), n_after), 1, 0).reshape(len(out), -1)
        out += (of_row @ others) * summed.sum(axis=0)


def _contract_thin(dense: Array, left: Sequence[Array], last: Array, mode: int, out: Array) -> None:
    """Contraction of a dense array with matrices of few columns, last mode first, added to ``out``."""
    flat = plain(dense.reshape(-1, len(last)))
    if mode == len(left):
        total = np.empty(out.shape[::-1])
        products.multiply(transposed_khatri_rao(left), flat, total)
        out += total.T
        return
    filled = np.zeros((len(last), -(-last.shape[1] // STEP) * STEP))
    filled[:, : last.shape[1]] = last
    partial = np.empty((len(flat), filled.shape[1]))
    products.multiply(flat, filled, partial)
    partial = partial[:, : last.shape[1]].reshape(*dense.shape[:-1], last.shape[1])
    for k in range(len(left) - 1, -1, -1):
        if k != mode:
            partial = reduce_mode(partial, left[k], k)
    out += partial


def contract_one(block: Block, entry_values: Array | None, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrix of one mode, added to ``out``; dense layouts only."""
    own = plain(matrix[block.rows] if mode == 0 else matrix)
    if entry_values is None and not _is_mostly_observed(block):
        entry_values = np.ones(block.n_entries)
    if entry_values is not None and _is_dense(block, len(own)):
        definition.contract_one_dense(block, _dense(block, entry_values), matrix, mode, out)
        return
    if mode == len(block.shape) - 1:
        lists, amounts, full = listed(block).by_row(entry_values)
    else:
        n_before = 1 if mode == 0 else block.n_rows * math.prod(block.shape[1:mode])
        lists, amounts, full = listed(block).by_column(entry_values, n_before, len(own))
    flat = out.reshape(lists[0].size, own.shape[1])
    masked.add_lists(lists, amounts, own, np.ones((1, own.shape[1])), len(flat), 1, flat)
    if full is not None:
        flat[full.reshape(-1)] += own.sum(axis=0)


# ---- blocks ------------------------------------------------------------------------------------------------


def _one_per_row(cov: Array, moment: Array) -> Array:
    return cov if cov.shape == moment.shape else np.broadcast_to(cov, moment.shape)


def _together(matrices: Sequence[Array]) -> tuple[Array, ...]:
    # a homogeneous tuple, so that loops are compiled once
    return tuple(map(plain, matrices))


def _is_mostly_observed(block: Block) -> bool:
    """Whether sums of ones are cheaper as sums over the missing entries."""
    return block.mask is not None and 2 * block.n_entries > block.mask.size


def _is_dense(block: Block, n_summed: int | None = None) -> bool:
    """Whether to process entries as a dense array, given the number of matrix rows in a sum."""
    if block.mask is None:
        return True
    close = n_summed is not None and n_summed * masked.WIDEST <= masked.INNERMOST
    return block.n_entries > (DENSE_SHARE_OF_SUMS if close else DENSE_SHARE) * block.mask.size


def _n_slow(lengths: list[int]) -> int:
    """Number of leading modes excluded from a sum: all but those needed to make it long enough."""
    n_slow = len(lengths) - 1
    while n_slow and math.prod(lengths[n_slow:]) < SHORT:
        n_slow -= 1
    return n_slow


def _dense(block: Block, entry_values: Array) -> Array:
    if block.mask is None:
        return dense_block(block, entry_values)
    dense = np.empty(block.mask.shape)
    masked.expand(block.mask.reshape(-1).view(np.uint8), entry_values, dense.reshape(-1))
    return dense


def _compressed(block: Block, dense: Array) -> Array:
    """The entries (m,) of a dense array."""
    n_observed = block.n_entries
    out = np.empty(n_observed + 1)
    masked.compress(fibres_of(block).reshape(-1), dense.reshape(-1), out)
    return out[:n_observed]


def _products_at(block: Block, left: Array, last: Array) -> Array:
    """Σ_c left[f, c] last[k, c] at the observed (f, k), (m,)."""
    out = np.empty(block.n_entries)
    masked.products_at(fibres_of(block), np.ascontiguousarray(left), np.ascontiguousarray(last), out)
    return out
