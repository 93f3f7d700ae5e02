"""Gaussian chains: rows that follow each other, with a block-tridiagonal precision; NumPy, and the definition.

A chain of n rows of R components has the joint precision with blocks P_t on the diagonal and diag(e_t) beside it, and
the linear terms h_t. A wide chain has blocks diag(f_t) two beside the diagonal as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brtf.data.arrays import Array
from brtf.kernels.packed import unpack_symmetric
from brtf.kernels.reference.rows import solve_rows


class Smoothed(NamedTuple):
    """The distribution of a chain's rows.

    Attributes
    ----------
    mean : (n, R)
    cov : (n, R, R) of every row
    cross : (n − 1, R, R) Cov(a_t, a_{t+1})
    log_det : ln|cov| of all rows together
    across : (n − 2, R, R) Cov(a_t, a_{t+2}) of a wide chain; (0, R, R) otherwise, where it follows from the rest
    """

    mean: Array
    cov: Array
    cross: Array
    log_det: float
    across: Array


def smooth_chain(precision: Array, beside: Array, linear: Array) -> Smoothed:
    """C24: forward S_{t+1} = P_{t+1} − E_t S_t⁻¹ E_t, u_{t+1} = h_{t+1} − E_t S_t⁻¹ u_t; then backward with J = S⁻¹E.

    V_t = S_t⁻¹ + J_t V_{t+1} J_tᵀ, ã_t = S_t⁻¹ (u_t − E_t ã_{t+1}), Cov(a_t, a_{t+1}) = −J_t V_{t+1}, with V_n = S_n⁻¹.

    Parameters
    ----------
    precision : (n, R, R) P_t
    beside : (n − 1, R) the diagonals e_t of E_t
    linear : (n, R) h_t
    """
    n_rows, rank = linear.shape
    mean, cov, cross = np.empty((n_rows, rank)), np.empty((n_rows, rank, rank)), np.empty((n_rows - 1, rank, rank))
    ahead, log_det = np.empty((n_rows, rank)), 0.0
    pivot, term = precision[0], linear[0]
    for t in range(n_rows):
        if t:
            edge = beside[t - 1]
            pivot = precision[t] - edge[:, None] * cov[t - 1] * edge
            term = linear[t] - edge * (cov[t - 1] @ ahead[t - 1])
        ahead[t] = term
        _, packed, (own,) = solve_rows(pivot[None], term[None])
        cov[t] = unpack_symmetric(packed[0], rank)
        log_det += float(own)
    mean[-1] = cov[-1] @ ahead[-1]
    for t in range(n_rows - 2, -1, -1):
        mean[t] = cov[t] @ (ahead[t] - beside[t] * mean[t + 1])
        back = cov[t] * beside[t]
        cross[t] = -back @ cov[t + 1]
        cov[t] -= cross[t] @ back.T
    return Smoothed(mean, cov, cross, log_det, np.empty((0, rank, rank)))


def smooth_wide_chain(precision: Array, beside: Array, far: Array, linear: Array) -> Smoothed:
    """C37: forward B_t = E_t − J_{t−1}ᵀF_{t−1}, S_t = P_t − B_{t−1}ᵀJ_{t−1} − F_{t−2}K_{t−2}, J = S⁻¹B, K = S⁻¹F.

    u_t = h_t − J_{t−1}ᵀu_{t−1} − K_{t−2}ᵀu_{t−2}; backward ã_t = S_t⁻¹u_t − J_t ã_{t+1} − K_t ã_{t+2},
    C_t = Cov(a_t, a_{t+1}) = −J_t V_{t+1} − K_t C_{t+1}ᵀ, D_t = Cov(a_t, a_{t+2}) = −J_t C_{t+1} − K_t V_{t+2},
    V_t = S_t⁻¹ − C_t J_tᵀ − D_t K_tᵀ.

    Parameters
    ----------
    precision : (n, R, R) P_t
    beside : (n − 1, R) the diagonals e_t of E_t
    far : (n − 2, R) the diagonals f_t of F_t
    linear : (n, R) h_t
    """
    n_rows, rank = linear.shape
    mean, cov, cross = np.array(linear), np.empty((n_rows, rank, rank)), np.empty((n_rows - 1, rank, rank))
    across, log_det = np.empty((max(n_rows - 2, 0), rank, rank)), 0.0
    for t in range(n_rows):
        pivot = np.array(precision[t])
        if t:
            edge = np.diag(beside[t - 1]) - (0.0 if t == 1 else cross[t - 2].T * far[t - 2])
            cross[t - 1] = cov[t - 1] @ edge
            pivot -= edge.T @ cross[t - 1]
            mean[t] -= cross[t - 1].T @ mean[t - 1]
        if t > 1:
            across[t - 2] = cov[t - 2] * far[t - 2]
            pivot -= far[t - 2][:, None] * across[t - 2]
            mean[t] -= across[t - 2].T @ mean[t - 2]
        _, packed, (own,) = solve_rows(pivot[None], mean[t][None])
        cov[t] = unpack_symmetric(packed[0], rank)
        log_det += float(own)
    for t in range(n_rows - 1, -1, -1):
        mean[t] = cov[t] @ mean[t]
        if t == n_rows - 1:
            continue
        back, further = cross[t].copy(), np.zeros((rank, rank))
        mean[t] -= back @ mean[t + 1]
        cross[t] = -back @ cov[t + 1]
        if t < n_rows - 2:
            further = across[t].copy()
            mean[t] -= further @ mean[t + 2]
            cross[t] -= further @ cross[t + 1].T
            across[t] = -back @ cross[t + 1] - further @ cov[t + 2]
            cov[t] -= across[t] @ further.T
        cov[t] -= cross[t] @ back.T
        cov[t] = 0.5 * (cov[t] + cov[t].T)  # rounding that is not symmetric would grow from row to row
    return Smoothed(mean, cov, cross, log_det, across)


def chain_evidence(precision: Array, linear: Array, scale: Array, own: Array, beside: Array, far: Array) -> Array:
    """ln ∫ N(a | 0, (λQ_k)⁻¹) exp(Σ_t h_t a_t − ½ p_t a_t²) da of every column for every Q_k, up to ½ ln|Q_k|, (K, R).

    Parameters
    ----------
    precision, linear : (n, R) p_t and h_t of every column
    scale : (R,) λ
    own, beside : (K, n) and (K, n − 1), the diagonal of every Q_k and the numbers beside it
    far : (K, n − 2) the numbers two beside it; (K, 0) where there are none
    """
    n_rows, n_columns = linear.shape
    found = np.full((len(own), n_columns), 0.5 * n_rows * np.log(scale))
    wide, nothing = far.shape[1] > 0, np.zeros_like(found)
    pivot, term, edge, pull = [np.ones_like(found)] * 2, [nothing] * 2, nothing, nothing
    for t in range(n_rows):
        two = scale * far[:, t - 2, None] if wide and t > 1 else nothing
        # pivots and terms of the last two rows; `edge` couples the last row to this one, `two` the one before
        now = linear[t] - edge / pivot[1] * term[1] - two / pivot[0] * term[0]
        own_now = precision[t] + scale * own[:, t, None] - edge**2 / pivot[1] - two**2 / pivot[0]
        found += 0.5 * (now**2 / own_now - np.log(own_now))
        pull = edge * (scale * far[:, t - 1, None]) / pivot[1] if wide and 0 < t < n_rows - 1 else nothing
        if t < n_rows - 1:
            edge = scale * beside[:, t, None] - pull
        pivot, term = [pivot[1], own_now], [term[1], now]
    return found
