"""Leading singular directions of unfoldings, and the steady part along a mode, from which starts are made."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations, distinct_columns
from brtf.data.passes import Field, Sums, add_up, visit, whole
from brtf.inference.statistics import add_up_rows, scaled_values
from brtf.kernels.dense import dense_block

LARGEST_GRAM, LARGEST_BLOCK_GRAM = 2048, 512
"""Largest size of a Gram matrix that is eigen-decomposed, and of one that is summed over blocks; longer modes use
randomised subspace iteration."""
OVERSAMPLING, SUBSPACE_ROUNDS = 6, 3
"""Oversampling columns and iterations of the subspace iteration."""
DENSEST_SHARE = 0.3
"""Share of the values along a mode that must lie close together to count as steady."""
POWER_ROUNDS, WEAK_TERM = 10, 0.02
"""Iterations of a rank-one fit, and the share of an array's norm below which a term is dropped."""


def leading_left_singular(observations: Observations, mode: int, rank: int, values: Field) -> tuple[Array, Array]:
    """Leading left singular vectors and values of the unfolding of an entry vector, missing entries zero.

    Small data use the smaller Gram matrix; large data use subspace iteration, a few passes over the blocks without
    storing anything of the size of the data. Coordinates, and chunks smaller than the basis, use a power iteration over
    all modes jointly. The largest entry of each vector is made positive.
    Shapes (I_n, k) and (k,), k = min(rank, I_n, number of columns).
    """
    n_rows = observations.shape[mode]
    n_vectors = min(rank, n_rows, observations.n_entries // n_rows)
    if observations.is_small:
        vectors, strengths = _by_gram(unfold(observations, mode, whole(observations, values)), n_vectors)
    elif observations.coords is None and mode > 0 and n_rows <= LARGEST_BLOCK_GRAM:
        vectors, strengths = _of_gram(_gram_of_blocks(observations, mode, values), n_vectors)
    elif observations.coords is None and _image_fits(observations, mode, n_vectors):
        vectors, strengths = _by_subspace(observations, mode, n_vectors, values)
    else:
        vectors, strengths = _by_power(observations, mode, n_vectors, values)
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])])
    return vectors * np.where(signs == 0, 1.0, signs), strengths


def densest_along(observations: Observations, mode: int) -> Array | None:
    """Location of the densest values along one mode, at all positions of the others, in units of the scale.

    The mean of the shortest interval that contains ``DENSEST_SHARE`` of the values: the steady value, even if most
    values are others. Zero where nothing is observed. None where it would need another layout of the data:
    coordinates, or the first mode of data in several blocks.
    """
    several = observations.in_chunks or len(observations.block_list) > 1
    if observations.coords is not None or (mode == 0 and several) or not _image_fits(observations, mode, 1):
        return None

    def densest(_: Sums, block: Block) -> Array:
        dense = dense_block(block, scaled_values(observations, block))
        if block.mask is not None:
            dense = np.where(block.mask, dense, np.inf)  # sorts after all observed values
        ordered = np.sort(np.moveaxis(dense, mode, -1), axis=-1)
        return _densest(ordered.reshape(-1, ordered.shape[-1])).reshape(ordered.shape[:-1])

    _, pieces = visit(observations, tuple, densest)
    return pieces[0] if mode == 0 else np.concatenate(pieces)


def _densest(ordered: Array) -> Array:
    """Mean of the shortest interval that contains the share, for rows of sorted values padded with infinity; (n,)."""
    n_observed = np.sum(np.isfinite(ordered), axis=1)
    found = np.zeros(len(ordered))
    for n in np.unique(n_observed[n_observed > 0]):
        same = np.flatnonzero(n_observed == n)
        n_inside = max(1, math.ceil(DENSEST_SHARE * n))
        values = ordered[same, :n]
        first = np.argmin(values[:, n_inside - 1 :] - values[:, : n - n_inside + 1], axis=1)
        found[same] = np.take_along_axis(values, first[:, None] + np.arange(n_inside), axis=1).mean(axis=1)
    return found


def _image_fits(observations: Observations, mode: int, n_columns: int) -> bool:
    """Whether a few numbers per position of the other modes fit in the memory that is used anyway."""
    n_bytes = 8 * n_columns * (observations.n_entries // observations.shape[mode])
    return not observations.in_chunks or n_bytes <= max(observations.plan.partial_bytes, observations.bytes_at_once)


def rank_one_terms(array: Array, n_terms: int) -> list[Array]:
    """Columns of every mode for the leading rank-one terms of a small dense array, found one after another."""
    if array.ndim == 2:
        rows, strengths, cols = np.linalg.svd(array, full_matrices=False)
        roots = np.sqrt(strengths[:n_terms][strengths[:n_terms] > WEAK_TERM * np.linalg.norm(array)])
        return [rows[:, : roots.size] * roots, cols[: roots.size].T * roots] if roots.size else []
    left, columns = array.copy(), []
    for _ in range(n_terms):
        vectors = [np.ones(length) for length in array.shape]
        for _ in range(POWER_ROUNDS):
            for mode in range(array.ndim):
                found = left
                for k in reversed(range(array.ndim)):
                    if k != mode:
                        found = np.tensordot(found, vectors[k] / max(float(np.linalg.norm(vectors[k])), 1e-150), (k, 0))
                vectors[mode] = found
        units = [vector / max(float(np.linalg.norm(vector)), 1e-150) for vector in vectors]
        strength = float(np.linalg.norm(vectors[-1]))
        if strength <= WEAK_TERM * float(np.linalg.norm(array)):
            break
        share = strength ** (1.0 / array.ndim)
        columns.append([unit * share for unit in units])
        left = left - strength * reduce(np.multiply.outer, units)
    return [np.stack(parts, axis=1) for parts in zip(*columns, strict=True)] if columns else []


def _by_gram(matrix: Any, n_vectors: int) -> tuple[Array, Array]:
    n_rows, n_cols = matrix.shape
    n_vectors = min(n_vectors, n_cols)
    if min(n_rows, n_cols) > LARGEST_GRAM:
        from sklearn.utils.extmath import randomized_svd

        vectors, strengths, _ = randomized_svd(matrix, n_vectors, random_state=0)
        return vectors, strengths
    gram = matrix @ matrix.T if n_rows <= n_cols else matrix.T @ matrix
    vectors, strengths = _of_gram(gram if isinstance(gram, np.ndarray) else gram.toarray(), n_vectors)
    if n_rows > n_cols:
        # below the square root of rounding a Gram matrix does not resolve a direction
        known = strengths > 1e-8 * strengths[0]
        vectors = np.where(known, (matrix @ vectors) / np.where(known, strengths, 1.0), 0.0)
    return vectors, strengths


def _of_gram(gram: Array, n_vectors: int) -> tuple[Array, Array]:
    """Leading singular vectors and values of a matrix X from X Xᵀ."""
    powers, vectors = np.linalg.eigh(gram)
    return vectors[:, ::-1][:, :n_vectors], np.sqrt(np.maximum(powers[::-1][:n_vectors], 0.0))


def _gram_of_blocks(observations: Observations, mode: int, values: Field) -> Array:
    """X Xᵀ for the unfolding X of dense data along a mode that blocks do not cut."""

    def add(sums: Sums, block: Block) -> None:
        unfolded = np.moveaxis(dense_block(block, values(block)), mode, 0).reshape(observations.shape[mode], -1)
        sums[0][...] += unfolded @ unfolded.T

    return add_up(observations, lambda: (np.zeros((observations.shape[mode],) * 2),), add)[0]


def _by_subspace(observations: Observations, mode: int, n_vectors: int, values: Field) -> tuple[Array, Array]:
    """Subspace iteration Q ← orth(X Xᵀ Q) for the unfolding X of dense data: two passes per iteration."""
    n_rows = observations.shape[mode]
    basis = np.random.default_rng(0).standard_normal((n_rows, min(n_rows, n_vectors + OVERSAMPLING)))
    lengths = [length for k, length in enumerate(observations.shape) if k != mode]
    for _ in range(SUBSPACE_ROUNDS):
        basis = np.linalg.qr(basis)[0]

        def add(sums: Sums, block: Block, basis: Array = basis) -> None:
            kernels.contract_one(block, values(block), basis, mode, sums[0])

        (image,) = add_up_rows(observations, 0 if mode else 1, [(*lengths, basis.shape[1])], add)
        flat = image.reshape(-1, basis.shape[1])
        turn, powers, _ = np.linalg.svd(flat.T @ flat)
        basis = _times_image(observations, mode, image, values) @ turn
    return np.linalg.qr(basis)[0][:, :n_vectors], np.sqrt(powers[:n_vectors])


def _times_image(observations: Observations, mode: int, image: Array, values: Field) -> Array:
    """X Z for the unfolding X of dense data and Z (the other modes…, C)."""

    def add(sums: Sums, block: Block) -> None:
        dense = np.moveaxis(dense_block(block, values(block)), mode, 0)
        own = image if mode == 0 else image[block.rows]
        sums[0][...] += dense.reshape(dense.shape[0], -1) @ own.reshape(-1, image.shape[-1])

    return add_up_rows(observations, mode, [(observations.shape[mode], image.shape[-1])], add)[0]


def _by_power(observations: Observations, mode: int, n_vectors: int, values: Field) -> tuple[Array, Array]:
    """Orthogonal power iteration for sparse data: each mode's directions from those of the other modes."""
    rng = np.random.default_rng(0)
    n_vectors = min(n_vectors, *observations.shape)
    columns = [np.linalg.qr(rng.standard_normal((length, n_vectors)))[0] for length in observations.shape]
    others = [k for k in range(observations.order) if k != mode]
    strengths = np.zeros(n_vectors)
    for k in (*(others * SUBSPACE_ROUNDS), mode):

        def add(sums: Sums, block: Block, k: int = k) -> None:
            kernels.contract(block, values(block), columns, k, sums[0])

        (found,) = add_up_rows(observations, k, [columns[k].shape], add)
        strengths = np.linalg.norm(found, axis=0)
        columns[k] = np.linalg.qr(found)[0]
    return columns[mode], strengths


def unfold(observations: Observations, mode: int, values: Array) -> Any:
    """The mode's unfolding with zeros for missing entries: an array, or CSR with only the columns that occur."""
    shape = observations.shape
    if observations.coords is None:
        dense = values.reshape(shape) if observations.mask is None else np.zeros(shape)
        if observations.mask is not None:
            dense[observations.mask] = values
        return np.moveaxis(dense, mode, 0).reshape(shape[mode], -1)
    others = np.delete(observations.coords, mode, axis=0)
    columns = distinct_columns(others, tuple(length for k, length in enumerate(shape) if k != mode))
    return csr_array((values, (observations.coords[mode], columns)), shape=(shape[mode], int(columns.max()) + 1))
