"""The kinds of chains that ordered rows may follow: no order, AR(1) memories of growing length, a random walk.

Each of them may ride on a carrier, a known periodic course by which it is multiplied: a pattern that repeats itself and
changes slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from brtf.data.arrays import Array

HARMONICS = 3
"""Harmonics of a period that a chain may ride on: a pattern with more of them has several components."""
SMALLEST_CARRIER = 1e-6
"""Carriers below it vanish: they are told from zero by rounding only."""
NO_CARRIERS = np.zeros((0, 2))
NO_CARRIERS.flags.writeable = False


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
    """Kinds of a chain of ``n_rows`` rows: no order, and memories of 1, 2, 4, … rows up to a random walk's."""
    return 4 + int(np.ceil(np.log2(max(n_rows, 2))))


def memories(n: int) -> Array:
    """ln φ per unit step of n kinds: −∞ where there is no order, then −1, −½, −¼, …"""
    return -np.concatenate([[np.inf], 0.5 ** np.arange(n - 1)])


def carriers_of(periods: Iterable[int]) -> Array:
    """The carriers of some periods, frequency and phase in cycles, (C, 2): the first harmonics, in two phases each.

    The phases are a quarter of a cycle apart, and such that no carrier vanishes at a whole number t: f t is then a
    multiple of 1/P, and a cosine vanishes at odd quarters of a cycle.
    """
    found: dict[tuple[float, float], None] = {}
    for period in periods:
        for harmonic in range(1, min(HARMONICS, (period - 1) // 2) + 1):
            cycles, length = (number // math.gcd(harmonic, period) for number in (harmonic, period))
            phase = 0.5 / math.lcm(length, 4)
            for quarter in (0.0, 0.25):
                found[cycles / length, phase + quarter] = None
    return np.array(list(found)).reshape(-1, 2)


def courses(carriers: Array, places: Array) -> Array:
    """1 and √2 cos 2π(f t + phase) of every carrier at the given places, (1 + C, I)."""
    cycles = np.outer(carriers[:, 0], places) + carriers[:, 1:]
    return np.concatenate([np.ones((1, places.size)), math.sqrt(2.0) * np.cos(2.0 * np.pi * (cycles % 1.0))])


def kinds_of(steps: Array, n: int, n_lead: int = 0, carriers: Array = NO_CARRIERS, start: float = 0.0) -> Kinds:
    """The matrices of n kinds of a chain, then of the same on every carrier; ``start`` is the place of the first row.

    ``n_lead`` rows may be in front whose own prior does not count.
    """
    arrays = (np.ascontiguousarray(array, np.float64).tobytes() for array in (steps, carriers))
    return _kinds_of(*arrays, n, n_lead, float(start))


@lru_cache(maxsize=16)
def _kinds_of(steps_bytes: bytes, carriers_bytes: bytes, n: int, n_lead: int, start: float) -> Kinds:
    """C25: Q_k of a_t | a_{t−1} ~ N(ρ a_{t−1}, (1 − ρ²)/λ), ρ = φ_k^Δ: every a_t has the variance 1/λ.

    1 + ρ²/(1 − ρ²) for every neighbour on the diagonal, −ρ/(1 − ρ²) beside it, ln|Q| = −Σ ln(1 − ρ²). On a carrier c
    it is C⁻¹QC⁻¹, C = diag c: a_t has the variance c_t²/λ, and over a period 1/λ.
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
    if carriers_bytes:
        places = start + np.concatenate([[0.0], np.cumsum(steps)])
        back = 1.0 / courses(np.frombuffer(carriers_bytes).reshape(-1, 2), places)[:, None]
        log_back = np.log(np.abs(back[:, :, n_lead:])).sum(axis=2)
        own, beside = kinds.own * back**2, kinds.beside * back[..., :-1] * back[..., 1:]
        parts = own, beside, kinds.log_det + 2.0 * log_back
        kinds = Kinds(*(part.reshape(-1, *part.shape[2:]) for part in parts))
    for array in kinds:
        array.flags.writeable = False  # shared by all chains with these steps
    return kinds
