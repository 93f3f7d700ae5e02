"""Where inference starts: spectral, random, or given factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from brtf.distributions import Array, Gamma, RowGaussians
from brtf.model import MeanFieldOutliers, Prior, State
from brtf.observations import Observations, distinct_columns
from brtf.settings import Settings
from brtf.updates import scaled_values

LARGEST_START = 1e50
"""Size of given factors' products, in scales of the data, beyond which squares overflow before a fit can correct it."""
LARGEST_GRAM = 2048
"""Side of the largest Gram matrix that is eigen-decomposed; longer modes use a randomised range finder."""


def paper_start(observations: Observations, settings: Settings, rng: np.random.Generator) -> State:
    """The paper's initialisation: λ̄ = τ̄ = γ̄ = 1, V = I, s̄ ~ N(0, 1), and factors as ``settings.init`` says."""
    rank, means = initial_factors(observations, settings, rng)
    outliers = None
    if settings.outliers:
        n_observed = observations.n_observed
        outliers = MeanFieldOutliers(
            mean=rng.standard_normal(n_observed),
            var=np.ones(n_observed),
            gamma=Gamma(np.asarray(1e-6), np.full(n_observed, 1e-6)),
            concentration=1e-6,
            rate=1e-6,
        )
    identity = np.eye(rank)[None]
    shared = observations.layout == "complete"
    return State(
        prior=Prior(),
        factors=tuple(
            RowGaussians(mean, identity if shared else np.repeat(identity, len(mean), axis=0)) for mean in means
        ),
        lam=Gamma(np.ones(rank), np.ones(rank)),
        tau=Gamma(np.asarray(1.0), np.asarray(1.0)),
        outliers=outliers,
    )


def initial_factors(
    observations: Observations, settings: Settings, rng: np.random.Generator
) -> tuple[int, list[Array]]:
    """Rank and factor means to start from, in units of the data's scale."""
    if not isinstance(settings.init, str):
        means = check_factors(settings.init, observations.shape)
        if settings.max_rank is not None and means[0].shape[1] > settings.max_rank:
            raise ValueError(
                f"init has {means[0].shape[1]} columns, but max_rank is {settings.max_rank}: raise it or drop columns."
            )
        share = observations.scale ** (1.0 / observations.order)
        means = [mean / share for mean in means]
        size = math.prod(float(np.max(np.abs(mean))) for mean in means)
        if not size < LARGEST_START:
            raise ValueError(
                f"init gives values of {size:.3g} scales of the data, too far from them to start: rescale it."
            )
        return means[0].shape[1], means
    rank = settings.rank_limit(observations.shape)
    if settings.init == "random":
        return rank, [rng.standard_normal((length, rank)) for length in observations.shape]
    return rank, spectral_factors(observations, rank, rng)


def check_factors(factors: Sequence[Any], shape: tuple[int, ...]) -> list[Array]:
    """The given factor matrices as float arrays, or an error that says which one does not fit."""
    if len(factors) != len(shape):
        raise ValueError(f"init must have one factor matrix per mode ({len(shape)}), got {len(factors)}.")
    means = [np.array(factor, dtype=np.float64) for factor in factors]
    for mode, (mean, length) in enumerate(zip(means, shape, strict=True)):
        wanted = (length, means[0].shape[-1] if means[0].ndim else 0)
        if mean.shape != wanted or wanted[1] == 0:
            raise ValueError(f"init[{mode}] must have shape {wanted} with at least one column, got {mean.shape}.")
        if not np.isfinite(mean).all():
            raise ValueError(f"init[{mode}] holds values that are not finite.")
    return means


def spectral_factors(observations: Observations, rank: int, rng: np.random.Generator) -> list[Array]:
    """U Σ^{1/2} of every unfolding, missing entries zero; columns beyond a mode's size are drawn from N(0, 1)."""
    values = entry_values(observations)
    factors = []
    for mode, length in enumerate(observations.shape):
        vectors, strengths = leading_left_singular(observations, mode, rank, values)
        columns = vectors * np.sqrt(strengths)
        extra = rng.standard_normal((length, rank - columns.shape[1]))
        factors.append(np.hstack([columns, extra]))
    return factors


def leading_left_singular(observations: Observations, mode: int, rank: int, values: Array) -> tuple[Array, Array]:
    """Leading left singular vectors and values of the unfolding of an entry vector, zero where nothing is observed.

    Found through the smaller Gram matrix, or by a randomised range finder where both sides are long. A sparse
    input stays sparse. The sign of each vector is fixed by making its largest entry positive.
    Shapes (I_n, k) and (k,), k = min(rank, I_n, number of columns).
    """
    matrix = _unfold(observations, mode, values)
    n_rows, n_cols = matrix.shape
    n_vectors = min(rank, n_rows, n_cols)
    if min(n_rows, n_cols) > LARGEST_GRAM:
        from sklearn.utils.extmath import randomized_svd

        vectors, strengths, _ = randomized_svd(matrix, n_vectors, random_state=0)
    else:
        gram = matrix @ matrix.T if n_rows <= n_cols else matrix.T @ matrix
        powers, vectors = np.linalg.eigh(gram if isinstance(gram, np.ndarray) else gram.toarray())
        strengths = np.sqrt(np.maximum(powers[::-1][:n_vectors], 0.0))
        vectors = vectors[:, ::-1][:, :n_vectors]
        if n_rows > n_cols:
            # below the square root of rounding a Gram matrix knows nothing of a direction
            known = strengths > 1e-8 * strengths[0]
            vectors = np.where(known, (matrix @ vectors) / np.where(known, strengths, 1.0), 0.0)
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(n_vectors)])
    return vectors * np.where(signs == 0, 1.0, signs), strengths


def _unfold(observations: Observations, mode: int, values: Array) -> Any:
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


def entry_values(observations: Observations) -> Array:
    """The entry vector (M,) of the observed values in units of the data's scale."""
    return np.concatenate([scaled_values(observations, block) for block in observations.blocks()])
