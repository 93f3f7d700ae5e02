"""Go decomposition."""

from __future__ import annotations

import math

import numpy as np

from brtf.research.baselines.algebra import Array
from brtf.research.baselines.matrix import keep_largest
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(
    matrix: Array,
    observed: Mask,
    rng: np.random.Generator,
    *,
    rank: int,
    outlier_fraction: float,
    power: int = 2,
    n_starts: int = 5,
    max_sweeps: int = 100,
    tol: float = 1e-7,
) -> Recovery:
    """The nearest sum of a matrix of rank R and one with K non-zero entries, by random projections.

    min ‖Y − L − S‖² subject to rank L ≤ R and card S ≤ K. The problem has poor local solutions: of several runs the
    one nearest to Y is kept.

    Parameters
    ----------
    rank : int
        R.
    outlier_fraction : float
        K as a share of the entries.
    power : int
        Power steps of a projection after the first. More steps come nearer to the singular vectors.
    n_starts : int
        Number of runs.
    max_sweeps : int
        Of every run.
    tol : float
        ‖Y − L − S‖ / ‖Y‖ below which a run has converged; it also ends when that changes by less than 1e-6 of itself in
        five consecutive sweeps.

    Returns
    -------
    Recovery
        With factors if Y is a matrix.
    """
    n_outliers = round(outlier_fraction * matrix.size)
    # The projections are drawn for the shorter side.
    lying = matrix.shape[0] < matrix.shape[1]
    standing = matrix.T if lying else matrix
    runs = [_run(standing, rank, n_outliers, power, max_sweeps, tol, rng) for _ in range(n_starts)]
    left, right, outliers, _ = min(runs, key=lambda run: run[-1])
    if lying:
        left, right, outliers = right, left, outliers.T
    return Recovery(left @ right.T, outliers, rank, [left, right])


def _run(
    matrix: Array, rank: int, n_outliers: int, power: int, max_sweeps: int, tol: float, rng: np.random.Generator
) -> tuple[Array, Array, Array, float]:
    """One run: factors (m, R) and (n, R) of L, S, and ‖Y − L − S‖."""
    cleaned, outliers = matrix, np.zeros(matrix.shape)
    smallest = tol * float(np.linalg.norm(matrix))
    distance, n_still = math.inf, 0
    for _ in range(max_sweeps):
        basis = rng.standard_normal((matrix.shape[1], rank))
        for _ in range(power + 1):
            # Orthonormal columns span the same space, and keep the weak directions beside the strong ones.
            basis = np.linalg.qr(cleaned.T @ (cleaned @ basis))[0]
        loadings = cleaned @ basis
        low_rank = loadings @ basis.T
        rest = cleaned - low_rank + outliers
        outliers = keep_largest(rest, n_outliers)
        rest -= outliers
        previous, distance = distance, float(np.linalg.norm(rest))
        n_still = n_still + 1 if abs(previous - distance) < 1e-6 * previous < math.inf else 0
        if distance <= smallest or n_still == 5:
            break
        cleaned = low_rank + rest
    return loadings, basis, outliers, distance


METHOD = Method(
    name="godec",
    recover=recover,
    missing=False,
    robust=True,
    works_on="matrix",
    source="Zhou & Tao, ICML 2011, with bilateral random projections; written from the equations.",
)
