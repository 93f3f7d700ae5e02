"""The kinds of chains that ordered rows may follow: no order, AR(1) memories of growing length, a random walk."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from brtf.data.arrays import Array


class Kinds(NamedTuple):
    """The matrices Q_k of the kinds of a chain, with λ Q_k the precision of a component's course.

    Attributes
    ----------
    own : (K, I) the diagonals
    beside : (K, I − 1) the numbers beside them
    log_det : (K,) ln|Q_k|
    """

    own: Array
    beside: Array
    log_det: Array


def n_kinds(n_rows: int) -> int:
    """Kinds of a chain of so many rows: no order, and memories of 1, 2, 4, … rows up to a random walk's."""
    return 4 + int(np.ceil(np.log2(max(n_rows, 2))))


def memories(n: int) -> Array:
    """ln φ per unit step of n kinds: −∞ where there is no order, then −1, −½, −¼, …"""
    return -np.concatenate([[np.inf], 0.5 ** np.arange(n - 1)])


def kinds_of(steps: Array, n: int, n_lead: int = 0) -> Kinds:
    """The matrices of n kinds of a chain with so many rows in front whose own prior does not count."""
    return _kinds_of(np.ascontiguousarray(steps, np.float64).tobytes(), n, n_lead)


@lru_cache(maxsize=16)
def _kinds_of(steps_bytes: bytes, n: int, n_lead: int) -> Kinds:
    """C25: Q_k of a_t | a_{t−1} ~ N(ρ a_{t−1}, (1 − ρ²)/λ), ρ = φ_k^Δ: every a_t has the variance 1/λ.

    1 + ρ²/(1 − ρ²) for every neighbour on the diagonal, −ρ/(1 − ρ²) beside it, ln|Q| = −Σ ln(1 − ρ²).
    """
    steps = np.frombuffer(steps_bytes)
    log_rho = memories(n)[:, None] * steps
    unexplained = -np.expm1(2.0 * log_rho)
    to_neighbour = np.exp(2.0 * log_rho) / unexplained
    own = np.ones((n, steps.size + 1))
    own[:, 1:] += to_neighbour
    own[:, :-1] += to_neighbour
    own[:, :n_lead] -= 1.0
    kinds = Kinds(own, -np.exp(log_rho) / unexplained, -np.log(unexplained).sum(axis=1))
    for array in kinds:
        array.flags.writeable = False  # shared by all chains with these steps
    return kinds
