"""Rank-one fits of the residual of a point."""

from __future__ import annotations

import math

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Field, Sums
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.point import Point
from brtf.inference.problem import Problem
from brtf.inference.statistics import Weighing, add_up_rows
from brtf.search.spectra import leading_left_singular

RANDOM_FITS, RANK_ONE_ROUNDS, RANK_ONE_GAIN = 4, 10, 0.005
"""Random starts of a rank-one fit, besides the spectral ones; iterations of alternating least squares, and the relative
gain at which they stop."""


def best_rank_one(
    problem: Problem, weighing: Weighing, rng: np.random.Generator, enough: float = math.inf
) -> tuple[list[Array], float]:
    """The best of several alternating least-squares fits of one component, and Σ t x, twice its gain at unit noise.

    Starts are the leading directions of the unfoldings and random ones; all are fitted together, as columns.
    Minimises Σ (t²/w − 2 t x + w x²) over x = a⁽¹⁾∘…∘a⁽ᴺ⁾, until Σ t x is ``enough`` or no longer grows.
    """
    observations = problem.observations
    columns: list[Array] = [np.empty(0)] * observations.order
    for mode in problem.modes:
        leading, _ = leading_left_singular(observations, mode, 2, lambda block: weighing(block)[1])
        drawn = rng.standard_normal((observations.shape[mode], RANDOM_FITS))
        columns[mode] = np.hstack([leading, drawn / np.linalg.norm(drawn, axis=0)])
    n_starts = min(column.shape[1] for column in columns)
    columns = [column[:, -n_starts:].copy() for column in columns]
    explained, last = np.zeros(n_starts), problem.modes[-1]
    for _ in range(RANK_ONE_ROUNDS):
        before = float(explained.max())
        for mode in problem.modes:
            columns[last] /= np.maximum(np.sqrt(np.einsum("ir,ir->r", columns[last], columns[last])), 1e-150)
            products, norms = weighted_contractions(observations, weighing, columns, mode)
            columns[mode] = products / np.maximum(norms, 1e-6 * np.max(norms, axis=0) + 1e-150)
            explained, last = np.einsum("ir,ir->r", products, columns[mode]), mode
        if explained.max() > enough or explained.max() < (1.0 + RANK_ONE_GAIN) * before:
            break
    best = int(np.argmax(explained))
    return [column[:, [best]] for column in columns], float(explained[best])


def weighted_contractions(
    observations: Observations, weighing: Weighing, columns: list[Array], mode: int
) -> tuple[Array, Array]:
    """The targets contracted with the columns of all other modes, and the weights with their squares; each (I_n, C)."""
    squares = [column**2 for column in columns]

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract(own, targets, columns, mode, sums[0])
        kernels.contract(own, weights, squares, mode, sums[1])

    products, norms = add_up_rows(observations, mode, [columns[mode].shape] * 2, add)
    return products, norms


def relative_weights(problem: Problem, point: Point, *, clipped: bool = False) -> Field:
    """Weights of the entries in a rank-one fit: the slices' relative precision, times the model's weights."""

    def weigh(block: Block) -> Array:
        relative = relative_precision(point.state, block)
        local = np.ones(block.n_entries) if clipped else np.minimum(point.local(block).weight, 1.0)
        return local if relative is None else relative * local

    return weigh
