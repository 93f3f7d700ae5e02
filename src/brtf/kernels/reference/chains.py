"""Gaussian chains: rows that follow each other, with a block-tridiagonal precision; NumPy, and the definition.

A chain of n rows of R components has the joint precision with blocks P_t on the diagonal and diag(e_t) beside it, and
the linear terms h_t.
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
    """

    mean: Array
    cov: Array
    cross: Array
    log_det: float


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
    return Smoothed(mean, cov, cross, log_det)


def chain_evidence(precision: Array, linear: Array, scale: Array, own: Array, beside: Array) -> Array:
    """ln ∫ N(a | 0, (λQ_k)⁻¹) exp(Σ_t h_t a_t − ½ p_t a_t²) da of every column for every Q_k, up to ½ ln|Q_k|, (K, R).

    Parameters
    ----------
    precision, linear : (n, R) p_t and h_t of every column
    scale : (R,) λ
    own, beside : (K, n) and (K, n − 1), the diagonal of every Q_k and the numbers beside it
    """
    n_rows, n_columns = linear.shape
    found = np.full((len(own), n_columns), 0.5 * n_rows * np.log(scale))
    pivot, term = np.ones_like(found), np.zeros_like(found)
    edge = np.zeros_like(found)
    for t in range(n_rows):
        term = linear[t] - edge / pivot * term
        pivot = precision[t] + scale * own[:, t, None] - edge**2 / pivot
        found += 0.5 * (term**2 / pivot - np.log(pivot))
        if t < n_rows - 1:
            edge = scale * beside[:, t, None]
    return found
