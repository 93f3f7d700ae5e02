"""A sketch of an entry vector: in how many directions it has structure beyond chance, and its core in these directions.

Two passes over the data, whatever the number of components. Without structure the rows of an unfolding X are
uncorrelated, so X Xᵀ without its diagonal has eigenvalues within ±2σ²√M for M entries of variance σ²; the same entries
with random signs show where this edge is. A component stands out if its squares sum to more than that. The bound
accepts one only if they sum to about twice the cost of its parameters, σ² Σ I_n ln M, which is more in general: the
screen loses nothing that the bound would keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Field, Sums, add_up, visit, whole
from brtf.inference.problem import Problem
from brtf.kernels.dense import dense_block
from brtf.search.approximation import decompose
from brtf.search.components import component_price
from brtf.search.spectra import LARGEST_BLOCK_GRAM, LARGEST_GRAM, unfold

CHANCE = 2.5
"""Standard deviations by which an eigenvalue must exceed the largest one of randomly signed entries."""
EDGE_SPREAD = 0.9
"""Standard deviation of the difference of two such largest eigenvalues, in units of I^(−2/3) of their size: that of the
Tracy–Widom law."""
FEW_DIRECTIONS, FEW_PRODUCTS, TOGETHER = 8, 64, 4096
"""For coordinates: directions of a mode that are looked for first; products per entry up to which a Gram matrix is
formed; and the number of entries that are projected together."""
LARGEST_SPARSE_CORE = 24
"""Directions up to which coordinates are projected: the work per entry grows with their number to the power N."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """The leading directions of the unfoldings of an entry vector, and its projection onto them.

    Attributes
    ----------
    bases : (I_n, k_n) orthonormal columns of every mode
    core : (k_1, …, k_N) Σ_m t_m ∘_n bases⁽ⁿ⁾[i_n]
    n_components : number of directions beyond chance, the most of any mode; of the first where others are short
    """

    bases: list[Array]
    core: Array
    n_components: int

    def components(self, n_components: int, scale: float, rng: np.random.Generator) -> list[Array]:
        """Columns (I_n, R) of that many components that fit the projection, times ``scale``."""
        found = decompose(scale * self.core, n_components, rng)
        return [basis @ column for basis, column in zip(self.bases, found, strict=True)]


def is_sketched(problem: Problem) -> bool:
    """Whether to look for components in a sketch: the data are large, and it shows all that the bound would keep.

    A component shows if its squares sum to 2σ²√(all entries, missing ones included), and can raise the bound if they
    sum to twice the cost of its parameters. The Gram matrices of the unfoldings must be available in one pass.
    """
    observations = problem.observations
    if observations.n_observed < observations.plan.sketched_data:
        return False
    if math.sqrt(observations.n_entries) > component_price(problem):
        return False
    if observations.coords is not None:
        return not observations.in_chunks
    return max(observations.shape[1:]) <= LARGEST_BLOCK_GRAM


def sketch(observations: Observations, targets: Field, rng: np.random.Generator, most: int) -> Sketch:
    """Sketch an entry vector with zeros for missing entries; at most ``most`` components. See :func:`is_sketched`."""
    if observations.coords is not None:
        return _of_coordinates(observations, targets, rng, most)
    grams, powers = _hollow_grams(observations, targets, int(rng.integers(2**62)))
    bases, n_components = [], 0
    for gram, control, power in zip(grams[::2], grams[1::2], powers, strict=True):
        vectors, n_shown = _beyond(gram, _edge(np.linalg.eigvalsh(control)[-1], power))
        n_components = max(n_components, n_shown)
        bases.append(vectors)
    bases = bases[: observations.order - 1]
    n_components = min(n_components, most)
    bases = [basis[:, :n_components] for basis in bases]
    if not n_components:
        return Sketch([np.empty((length, 0)) for length in observations.shape], np.empty(0), 0)
    image = _projected(observations, targets, bases)
    first = np.linalg.svd(image.reshape(len(image), -1), full_matrices=False)[0][:, :n_components]
    return Sketch([first, *bases], np.tensordot(first, image, (0, 0)), n_components)


def _edge(chance: float, powers: Array) -> float:
    """The eigenvalue beyond which a direction is not by chance, given the largest one of randomly signed entries.

    ``powers`` p (I,) are those of the rows: the fewer rows there are in effect, (Σp)²/Σp², the more it varies.
    """
    n_effective = float(np.sum(powers)) ** 2 / max(float(np.sum(powers**2)), 1e-300)
    return float(chance) * (1.0 + CHANCE * EDGE_SPREAD * max(n_effective, 1.0) ** (-2.0 / 3.0))


def _beyond(gram: Array, edge: float) -> tuple[Array, int]:
    """Eigenvectors of X Xᵀ, largest eigenvalue first, given without its diagonal; and the number beyond an edge.

    The diagonal holds the noise, and the power of the components. That of the latter is restored from the components
    found so far, as often as this shows more of them.
    """
    n_shown = 0
    while True:
        powers, vectors = np.linalg.eigh(gram)
        powers, vectors = powers[::-1], vectors[:, ::-1]
        n_before, n_shown = n_shown, int(np.sum(powers > edge))
        if n_shown <= n_before:
            return vectors, n_shown
        np.fill_diagonal(gram, vectors[:, :n_shown] ** 2 @ powers[:n_shown])


def _hollow_grams(observations: Observations, targets: Field, seed: int) -> tuple[Sums, list[Array]]:
    """X Xᵀ without its diagonal for every mode but the first, each followed by that of randomly signed entries.

    Also returns the diagonals, one for every mode. What short modes make together comes last: the first mode may have
    more directions than any of them has rows.
    """
    lengths = list(observations.shape[1:])
    together = math.prod(lengths)
    if len(lengths) > 1 and together <= LARGEST_BLOCK_GRAM:
        lengths.append(together)

    def add(sums: Sums, block: Block) -> None:
        values = targets(block)
        signs = np.random.default_rng((seed, block.entries.start)).integers(0, 2, values.size, dtype=np.int8)
        for which, signed in enumerate((values, np.where(signs, values, -values))):
            dense = dense_block(block, signed)
            for mode, length in enumerate(lengths, start=1):
                moved = np.moveaxis(dense, mode, 0) if mode < dense.ndim else dense.reshape(len(dense), -1).T
                unfolded = moved.reshape(length, -1)
                sums[2 * mode - 2 + which][...] += unfolded @ unfolded.T

    sums = add_up(observations, lambda: tuple(np.zeros((n, n)) for n in lengths for _ in range(2)), add)
    powers = [np.diag(gram).copy() for gram in sums[::2]]
    for gram in sums:
        np.fill_diagonal(gram, 0.0)
    return sums, powers


def _projected(observations: Observations, targets: Field, bases: list[Array]) -> Array:
    """The entries contracted with the bases of all modes but the first; (I_0, k_1, …)."""

    def project(_: Sums, block: Block) -> Array:
        dense = dense_block(block, targets(block))
        for basis in bases:  # the axis after the first is contracted, and a new one is appended
            dense = np.tensordot(dense, basis, (1, 0))
        return dense

    return np.concatenate(visit(observations, tuple, project)[1])


def _of_coordinates(observations: Observations, targets: Field, rng: np.random.Generator, most: int) -> Sketch:
    """The sketch of coordinates; eigenvectors by Lanczos iteration, which needs only products with X and Xᵀ."""
    values = whole(observations, targets)
    bases, n_components = [], 0
    for mode, length in enumerate(observations.shape):
        n_most = min(most, LARGEST_SPARSE_CORE, length - 1)
        unfolded, n_vectors = unfold(observations, mode, values), min(FEW_DIRECTIONS, n_most)
        edge = _edge(_leading(_with_random_signs(unfolded, rng), 1)[0][0], _row_powers(unfolded))
        powers, vectors = _leading(unfolded, n_vectors)
        while powers[-1] > edge and n_vectors < n_most:
            n_vectors = min(2 * n_vectors, n_most)
            powers, vectors = _leading(unfolded, n_vectors)
        n_components = max(n_components, int(np.sum(powers > edge)))
        bases.append(vectors)
    bases = [basis[:, :n_components] for basis in bases]
    return Sketch(bases, _sparse_core(observations, targets, bases), n_components)


def _with_random_signs(unfolded: csr_array, rng: np.random.Generator) -> csr_array:
    signs = rng.integers(0, 2, unfolded.nnz, dtype=np.int8)
    signed = np.where(signs, unfolded.data, -unfolded.data)
    return csr_array((signed, unfolded.indices, unfolded.indptr), shape=unfolded.shape)


def _leading(unfolded: csr_array, n_vectors: int) -> tuple[Array, Array]:
    """The largest eigenvalues of X Xᵀ without its diagonal, in descending order, and their vectors.

    The matrix is formed where the columns of X hold few entries each, so that this is a small part of a sweep.
    """
    length, transposed = unfolded.shape[0], unfolded.T.tocsr()
    n_products = float(np.sum(np.square(np.diff(transposed.indptr), dtype=np.float64)))
    if length <= LARGEST_GRAM and n_products <= FEW_PRODUCTS * unfolded.nnz:
        gram = (unfolded @ transposed).toarray()
        np.fill_diagonal(gram, 0.0)
        powers, vectors = eigh(gram, subset_by_index=(length - n_vectors, length - 1), overwrite_a=True)
    else:
        diagonal = _row_powers(unfolded)
        hollow = LinearOperator((length, length), lambda v: unfolded @ (transposed @ v.ravel()) - diagonal * v.ravel())
        powers, vectors = eigsh(hollow, n_vectors, which="LA", v0=np.ones(length), tol=1e-3)
    return powers[::-1], vectors[:, ::-1]


def _row_powers(unfolded: csr_array) -> Array:
    return np.asarray(unfolded.multiply(unfolded).sum(axis=1)).ravel()


def _sparse_core(observations: Observations, targets: Field, bases: list[Array]) -> Array:
    """Σ_m t_m ∘_n bases⁽ⁿ⁾[i_n] over coordinates."""
    sizes = [basis.shape[1] for basis in bases]

    def add(sums: Sums, block: Block) -> None:
        if block.coords is None:
            raise TypeError("a block of coordinates is needed")
        values = targets(block)
        for start in range(0, block.n_entries, TOGETHER):
            part = slice(start, start + TOGETHER)
            first, *others = (basis[rows[part]] for basis, rows in zip(bases, block.coords, strict=True))
            products = others[0]
            for other in others[1:]:
                products = (products[:, :, None] * other[:, None, :]).reshape(len(other), -1)
            sums[0][...] += (values[part, None] * first).T @ products

    return add_up(observations, lambda: (np.zeros((sizes[0], math.prod(sizes[1:]))),), add)[0].reshape(sizes)
