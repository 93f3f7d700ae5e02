"""CP approximations without access to the data: of a dense core, and of a low-rank tensor by fewer components."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eig

from brtf.data.arrays import Array

Contract = Callable[[Sequence[Array], int], Array]
"""Contraction of a tensor with the columns of all modes but one, (I_n, R)."""
RANDOM_STARTS = 8
"""Random starts of the decomposition of a core, besides an algebraic one."""
LARGEST_STEPS = 200
"""Levenberg–Marquardt steps: about 20 for distinct components, up to 200 for nearly collinear ones."""
LARGEST_SYSTEM, LARGEST_ROUNDS = 1000, 100
"""Largest number of unknowns for the normal equations, and iterations of alternating least squares above it."""
SETTLED, DECOMPOSED = 1e-9, 1e-6
"""Relative decrease of the error at which an approximation stops; and that of the squared norm at which the
decomposition of a core does, whose entries are noisy anyway."""


def approximate(factors: Sequence[Array], n_components: int, little: float, ridge: float) -> tuple[float, list[Array]]:
    """The best rank-``n_components`` approximation of Σ_r a⁽¹⁾_r ∘ … ∘ a⁽ᴺ⁾_r: its squared error, and its factors.

    In orthonormal bases of the factors the tensor is a small core. Levenberg–Marquardt steps on it are cheap and,
    unlike alternating least squares, not slowed down by collinear components. Starts are the components
    that the others explain least, and the eigenvectors of a pencil of slices.

    Parameters
    ----------
    factors : (I_n, R) of every mode
    little : tolerance: stop when a step lowers the squared error by less
    ridge : weight of the penalty Σ ‖factor‖² of balanced components, which keeps them finite
    """
    bases, small = zip(*(np.linalg.qr(factor) for factor in factors), strict=True)
    if n_components * sum(len(factor) for factor in small) > LARGEST_SYSTEM and len(small) > 2:
        size = float(np.prod([factor.T @ factor for factor in small], axis=0).sum())
        start = _most_distinct(small, n_components)
        found, error = _alternate(partial(_contract_low_rank, small), size, start, little, ridge)
        return error, [basis @ factor for basis, factor in zip(bases, found, strict=True)]
    core = _compose(small)
    if core.ndim == 2:  # components may rotate freely: singular vectors are optimal
        left, strengths, right = np.linalg.svd(core, full_matrices=False)
        root = np.sqrt(strengths[:n_components])
        found = [left[:, :n_components] * root, right[:n_components].T * root]
        return float(np.sum(strengths[n_components:] ** 2)), [b @ f for b, f in zip(bases, found, strict=True)]
    starts = [_most_distinct(small, n_components)]
    pencil = _by_pencil(core, n_components)
    if pencil is not None:
        starts.append(pencil)
    best, error = starts[0], math.inf
    for start in starts:
        found, left_over = _descend(core, start, little, ridge)
        if left_over < error:
            best, error = found, left_over
    return error, [basis @ factor for basis, factor in zip(bases, best, strict=True)]


def decompose(core: Array, n_components: int, rng: np.random.Generator) -> list[Array]:
    """Components of a dense array by alternating least squares, (I_n, R) of every mode.

    The best of several starts: the eigenvectors of a pencil of slices, which are exact for an exact tensor with enough
    rows in two modes, and random ones, of which about every third ends in the best minimum.
    """
    if core.ndim == 2:
        left, strengths, right = np.linalg.svd(core, full_matrices=False)
        root = np.sqrt(strengths[:n_components])
        return [left[:, :n_components] * root, right[:n_components].T * root]
    size = float(np.sum(core**2))
    starts = [[rng.standard_normal((n, n_components)) for n in core.shape] for _ in range(RANDOM_STARTS)]
    pencil = _by_pencil(core, n_components)
    if pencil is not None:
        starts.append(_balanced(pencil))
    contract = partial(_contract_dense, core)
    ridge = SETTLED * (size / n_components) ** (1.0 - 1.0 / core.ndim)  # as small as rounding, for a singular Gram
    found = [_alternate(contract, size, start, DECOMPOSED * size, ridge) for start in starts]
    return min(found, key=lambda columns_and_error: columns_and_error[1])[0]


def _compose(factors: Sequence[Array]) -> Array:
    """Σ_r a⁽¹⁾_r ∘ … ∘ a⁽ᴺ⁾_r as a dense array."""
    rows = factors[0]
    for factor in factors[1:]:
        rows = (rows[:, None, :] * factor[None]).reshape(-1, factor.shape[1])
    return rows.sum(axis=1).reshape([len(factor) for factor in factors])


def _most_distinct(factors: Sequence[Array], n_components: int) -> list[Array]:
    """The components that the others explain least: greedily, the one with the largest residual given those chosen."""
    left = np.prod([factor.T @ factor for factor in factors], axis=0)
    taken: list[int] = []
    for _ in range(n_components):
        sizes = np.diag(left).copy()
        sizes[taken] = -np.inf
        pivot = int(np.argmax(sizes))
        taken.append(pivot)
        if left[pivot, pivot] > 0:
            left = left - np.outer(left[pivot], left[pivot]) / left[pivot, pivot]
    return [factor[:, sorted(taken)].copy() for factor in factors]


def _by_pencil(core: Array, n_components: int) -> list[Array] | None:
    """Components from the generalised eigenvectors of two combinations of slices; exact for an exact tensor.

    None where no two modes are long enough to separate ``n_components`` components.
    """
    long_enough = [mode for mode in range(core.ndim) if core.shape[mode] >= n_components]
    if len(long_enough) < 2:
        return None
    first, second = long_enough[0], long_enough[-1]
    bases = [_leading(core, mode, n_components) for mode in (first, second)]
    slices = np.moveaxis(core, (first, second), (0, 1)).reshape(core.shape[first], core.shape[second], -1)
    slices = np.einsum("ia,jb,ijk->abk", *bases, slices)
    _, strengths, directions = np.linalg.svd(slices.reshape(-1, slices.shape[2]), full_matrices=False)
    if len(strengths) < 2:
        return None
    one, other = (slices @ directions[k] for k in (0, 1))
    # homogeneous form: a ratio of eigenvalues may overflow, and only the vectors are used
    vectors = eig(other, one, right=False, left=True, homogeneous_eigvals=True)[1] if n_components else np.zeros((0, 0))
    separate = np.linalg.pinv(np.real(vectors) + np.imag(vectors)).T
    columns: list[Array] = [np.empty(0)] * core.ndim
    columns[first] = bases[0] @ separate
    # given one mode, the others follow from rank-one fits, one component at a time
    parts = np.tensordot(np.linalg.pinv(columns[first]), core, axes=(1, first))
    others = [mode for mode in range(core.ndim) if mode != first]
    fitted = [_rank_one(part) for part in parts]
    for place, mode in enumerate(others):
        columns[mode] = np.stack([vectors[place] for vectors in fitted], axis=1)
    return columns


def _leading(core: Array, mode: int, n_vectors: int) -> Array:
    unfolded = np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1)
    return np.linalg.svd(unfolded, full_matrices=False)[0][:, :n_vectors]


def _rank_one(array: Array) -> list[Array]:
    """Vectors of a rank-one approximation: leading singular vectors, the last one scaled by the amplitude."""
    vectors = [_leading(array, mode, 1)[:, 0] for mode in range(array.ndim)]
    for vector in vectors[:-1]:
        array = np.tensordot(vector, array, axes=(0, 0))
    return [*vectors[:-1], array]


def _descend(core: Array, columns: list[Array], little: float, ridge: float) -> tuple[list[Array], float]:
    """Levenberg–Marquardt steps from a start to a minimum of the squared error, and the error there."""
    columns = _balanced(columns)
    error = _error(core, columns)
    cost, damping = error + ridge * _power(columns), 1e-3
    for _ in range(LARGEST_STEPS):
        normal, gradient = _normal_equations(core, columns, ridge)
        scale = float(np.max(np.diag(normal), initial=1e-300))
        improved = False
        for _ in range(10):
            step = cho_solve(cho_factor(normal + damping * scale * np.eye(len(normal))), gradient)
            moved = _balanced(_moved(columns, step))
            new_error = _error(core, moved)
            new_cost = new_error + ridge * _power(moved)
            if new_cost < cost:
                improved = True
                break
            damping *= 10.0
        if not improved:
            break
        fall, columns, error, cost = cost - new_cost, moved, new_error, new_cost
        damping = max(0.1 * damping, 1e-14)
        if fall < max(little, SETTLED * cost):
            break
    return columns, error


def _alternate(
    contract: Contract, size: float, columns: list[Array], little: float, ridge: float
) -> tuple[list[Array], float]:
    """Alternating least squares for a tensor of squared norm ``size``; returns the factors and the squared error."""
    error, modes = math.inf, range(len(columns))
    for _ in range(LARGEST_ROUNDS):
        before = error
        for mode in modes:
            product = contract(columns, mode)
            gram = np.prod([columns[k].T @ columns[k] for k in modes if k != mode], axis=0)
            gram = gram + ridge * np.eye(len(gram))
            columns[mode] = np.linalg.lstsq(gram, product.T, rcond=1e-12)[0].T
        last = columns[-1]
        error = size - 2.0 * float(np.sum(product * last)) + float(np.sum(gram * (last.T @ last)))
        if before - error < max(little, SETTLED * abs(error)):
            break
    return columns, max(error, 0.0)


def _contract_low_rank(factors: Sequence[Array], columns: Sequence[Array], mode: int) -> Array:
    others = [k for k in range(len(factors)) if k != mode]
    return factors[mode] @ np.prod([factors[k].T @ columns[k] for k in others], axis=0)


def _contract_dense(core: Array, columns: Sequence[Array], mode: int) -> Array:
    return _contracted(np.moveaxis(core, mode, -1), [column for k, column in enumerate(columns) if k != mode])


def _error(core: Array, columns: list[Array]) -> float:
    return float(np.sum((core - _compose(columns)) ** 2))


def _power(columns: list[Array]) -> float:
    return float(sum(np.sum(column**2) for column in columns))


def _balanced(columns: list[Array]) -> list[Array]:
    """The components rescaled to equal norms in all modes."""
    norms = np.maximum([np.linalg.norm(column, axis=0) for column in columns], 1e-150)
    share = np.exp(np.mean(np.log(norms), axis=0))
    return [column * (share / own) for column, own in zip(columns, norms, strict=True)]


def _moved(columns: list[Array], step: Array) -> list[Array]:
    ends = np.cumsum([column.size for column in columns])[:-1]
    return [column + part.reshape(column.shape) for column, part in zip(columns, np.split(step, ends), strict=True)]


def _normal_equations(core: Array, columns: list[Array], ridge: float) -> tuple[Array, Array]:
    """JᵀJ + ridge and −½ the gradient of the cost, for all columns of all modes, rows of a mode outermost."""
    order, n_components = len(columns), columns[0].shape[1]
    grams = [column.T @ column for column in columns]
    starts = np.cumsum([0, *(column.size for column in columns)])
    normal, gradient = np.empty((starts[-1], starts[-1])), np.empty(starts[-1])

    def gram_without(*modes: int) -> Array:
        others = [grams[k] for k in range(order) if k not in modes]
        return np.prod(others, axis=0) if others else np.ones((n_components, n_components))

    for n in range(order):
        own, length = slice(starts[n], starts[n + 1]), len(columns[n])
        alone = gram_without(n)
        normal[own, own] = np.kron(np.eye(length), alone + ridge * np.eye(n_components))
        product = _contract_dense(core, columns, n)
        gradient[own] = (product - columns[n] @ (alone + ridge * np.eye(n_components))).ravel()
        for m in range(n + 1, order):
            other = slice(starts[m], starts[m + 1])
            block = np.einsum("rs,is,jr->irjs", gram_without(n, m), columns[n], columns[m])
            normal[own, other] = block.reshape(columns[n].size, columns[m].size)
            normal[other, own] = normal[own, other].T
    return normal, gradient


def _contracted(array: Array, columns: list[Array]) -> Array:
    """Contract an array with the columns of all modes but the last; (I, R)."""
    array = np.tensordot(columns[0], array, axes=(0, 0))  # (R, …, I)
    for column in columns[1:]:
        array = np.einsum("ra...,ar->r...", array, column)
    return array.T
