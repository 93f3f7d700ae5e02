"""Rows of normal distributions cut off below zero under a joint quadratic: the definition, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.truncated import truncated_moments

LEAST_GAIN = 1e-10
"""Gain in nats per row that a Newton step promises, below which the row has converged."""
JITTER = 4.0 * float(np.finfo(float).eps)
"""Added per component to curvatures of unit diagonal, which rounding can make singular."""
MOST_STEPS, MOST_HALVINGS = 50, 30
"""Newton steps of a row, and halvings of one step."""


def solve_truncated(precision: Array, linear: Array, location: Array) -> Array:
    """Locations of the best product of truncated normals for every row with density ∝ exp(hᵀa − ½ aᵀPa), a ≥ 0.

    The product has scales P_rr^{−½}. Its means ⟨a⟩ minimise the convex function ½ Σ_{r≠k} P_rk ⟨a_r⟩⟨a_k⟩ − hᵀ⟨a⟩ +
    Σ_r f_r(⟨a_r⟩), with f_r = ½ P_rr E[a_r²] − entropy, f′ = location · P_rr and f″ = 1/variance: a Newton step, halved
    until the function falls. Never worse than the start.

    Parameters
    ----------
    precision : (I, R, R) or (1, R, R), the matrices P_i
    linear : (I, R), the vectors h_i
    location : (I, R), where to start

    Returns
    -------
    (I, R)
    """
    rank = linear.shape[1]
    diagonal = np.einsum("irr->ir", precision)
    coupling = precision * (1.0 - np.eye(rank))
    scale = np.broadcast_to(1.0 / np.sqrt(diagonal), linear.shape)
    natural = location / scale**2
    active = np.arange(len(linear))
    coupling = np.broadcast_to(coupling, (len(linear), rank, rank))
    mean, variance, entropy = truncated_moments(location, scale)
    cost = _cost(coupling, linear, scale, mean, variance, entropy)
    for _ in range(MOST_STEPS):
        own = coupling[active]
        slope = natural[active] + np.einsum("irs,is->ir", own, mean[active]) - linear[active]
        hessian = own.copy()
        hessian[:, range(rank), range(rank)] = 1.0 / variance[active]
        step = -_solved(hessian, slope)
        gain = -np.einsum("ir,ir->i", slope, step)
        natural[active[np.isnan(gain)]] = np.nan
        moving = gain > LEAST_GAIN
        active, step = active[moving], (step / variance[active])[moving]
        if active.size == 0:
            break
        active = _searched(active, step, coupling, linear, scale, natural, mean, variance, cost)
    return np.asarray(natural * scale**2)


def _searched(
    active: NDArray[np.intp],
    step: Array,
    coupling: Array,
    linear: Array,
    scale: Array,
    natural: Array,
    mean: Array,
    variance: Array,
    cost: Array,
) -> NDArray[np.intp]:
    """Take the steps of the active rows, each halved until its cost falls; returns the rows that moved."""
    moved, waiting, length = [], active, 1.0
    for _ in range(MOST_HALVINGS):
        tried = natural[waiting] + length * step
        found = truncated_moments(tried * scale[waiting] ** 2, scale[waiting])
        new = _cost(coupling[waiting], linear[waiting], scale[waiting], *found)
        better = new < cost[waiting]
        done = waiting[better]
        natural[done], mean[done], variance[done], cost[done] = (
            tried[better],
            *(a[better] for a in found[:2]),
            new[better],
        )
        moved.append(done)
        waiting, step, length = waiting[~better], step[~better], 0.5 * length
        if waiting.size == 0:
            break
    return np.sort(np.concatenate(moved))


def _cost(coupling: Array, linear: Array, scale: Array, mean: Array, variance: Array, entropy: Array) -> Array:
    """The function to minimise, (I,)."""
    own = 0.5 * (mean**2 + variance) / scale**2 - entropy
    together = 0.5 * np.einsum("ir,irs,is->i", mean, coupling, mean)
    return np.asarray(together + (own - linear * mean).sum(axis=1))


def _solved(matrices: Array, vectors: Array) -> Array:
    """Solutions of M_i x_i = v_i, scaled to unit diagonal."""
    rank = vectors.shape[1]
    spread = 1.0 / np.sqrt(np.einsum("irr->ir", matrices))
    scaled = matrices * spread[:, :, None] * spread[:, None, :] + rank * JITTER * np.eye(rank)
    return np.asarray(spread * np.linalg.solve(scaled, (spread * vectors)[:, :, None])[:, :, 0])
