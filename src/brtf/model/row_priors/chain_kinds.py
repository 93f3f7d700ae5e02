"""The kinds of chains that ordered rows may follow: no order, AR(1) memories of growing length, a random walk.

There may also be chains of second order, which are smooth: a row follows the two before it. Or the rows form a ring:
the last one is followed by the first. Each chain may ride on a carrier, a known periodic course by which it is
multiplied: a pattern that repeats itself and changes slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array

HARMONICS = 3
"""Harmonics of a period that a chain may ride on: a pattern with more of them has several components."""
SMALLEST_CARRIER = 1e-6
"""Size below which a carrier counts as zero: it differs from zero only by rounding."""
NO_CARRIERS = np.zeros((0, 2))
NO_CARRIERS.flags.writeable = False


LONGEST_SECOND = 256
"""Longest memory of a chain of second order, in its smallest steps. The entries of Q grow with its cube; beyond it they
cancel to less than half of their digits."""


class Form(NamedTuple):
    """What the kinds of a chain are besides first-order ones along a line.

    Attributes
    ----------
    n_second : kinds of second order, the last ones of those without a carrier
    ring : distance of the last row to the first, which follows it, in units of the typical step; 0 along a line
    """

    n_second: int = 0
    ring: float = 0.0

    @property
    def wide(self) -> bool:
        """Whether rows depend on others than their neighbours in the order of :func:`order_of`."""
        return self.ring > 0.0 or self.n_second > 0


LINE = Form()
RING = Form(ring=1.0)


class Kinds(NamedTuple):
    """The matrices Q_k of the kinds of a chain, with λ Q_k the precision of a component's course.

    Attributes
    ----------
    own : (K, I) the diagonals
    beside : (K, I − 1) the numbers beside them
    log_det : (K,) ln|Q_k|
    far : (K, I − 2) the numbers two beside the diagonals; (K, 0) where all are zero
    """

    own: Array
    beside: Array
    log_det: Array
    far: Array


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


def smooth_form(steps: Array) -> Form:
    """The form with kinds of second order of memories 2, 4, 8, … steps; with none where steps are too unequal."""
    longest = LONGEST_SECOND * min(1.0, float(steps.min(initial=1.0)))
    return Form(n_second=max(0, math.floor(math.log2(min(longest, 2.0 ** math.ceil(math.log2(steps.size + 1)))))))


def order_of(n_rows: int, form: Form) -> NDArray[np.intp]:
    """The rows in an order in which at most two lie between those that depend on each other: a ring is laid double."""
    if not form.ring:
        return np.arange(n_rows)
    places = np.arange(n_rows)
    return np.where(places % 2, n_rows - 1 - places // 2, places // 2)


def kinds_of(
    steps: Array, n: int, n_lead: int = 0, carriers: Array = NO_CARRIERS, start: float = 0.0, form: Form = LINE
) -> Kinds:
    """The matrices of n kinds of a chain, then of the same on every carrier; ``start`` is the place of the first row.

    ``n_lead`` rows may be in front whose own prior does not count. Rows are in the order of :func:`order_of`.
    """
    arrays = (np.ascontiguousarray(array, np.float64).tobytes() for array in (steps, carriers))
    return _kinds_of(*arrays, n, n_lead, float(start), form)


@lru_cache(maxsize=16)
def _kinds_of(steps_bytes: bytes, carriers_bytes: bytes, n: int, n_lead: int, start: float, form: Form) -> Kinds:
    """All kinds; on a carrier c a chain is C⁻¹QC⁻¹, C = diag c: a_t has the variance c_t²/λ, and over a period 1/λ."""
    steps = np.frombuffer(steps_bytes)
    if form.ring:
        kinds = _around(steps, n, form.ring)
    else:
        kinds = _along(steps, n - form.n_second, n_lead)
        if form.n_second:
            second = _second_order(steps, form.n_second, n_lead)
            first = kinds._replace(far=np.zeros((len(kinds.own), second.far.shape[1])))
            kinds = Kinds(*(np.concatenate(parts) for parts in zip(first, second, strict=True)))
    if carriers_bytes:
        places = start + np.concatenate([[0.0], np.cumsum(steps)])
        back = 1.0 / courses(np.frombuffer(carriers_bytes).reshape(-1, 2), places)[:, None]
        log_back = np.log(np.abs(back[:, :, n_lead:])).sum(axis=2)
        far = kinds.far * back[..., :-2] * back[..., 2:] if form.n_second else np.zeros((*log_back.shape[:1], n, 0))
        own, beside = kinds.own * back**2, kinds.beside * back[..., :-1] * back[..., 1:]
        parts = own, beside, kinds.log_det + 2.0 * log_back, far
        kinds = Kinds(*(part.reshape(len(back) * n, *part.shape[2:]) for part in parts))
    for array in kinds:
        array.flags.writeable = False  # shared by all chains with these steps
    return kinds


def _along(steps: Array, n: int, n_lead: int) -> Kinds:
    """C25: Q_k of a_t | a_{t−1} ~ N(ρ a_{t−1}, (1 − ρ²)/λ), ρ = φ_k^Δ: every a_t has the variance 1/λ.

    1 + ρ²/(1 − ρ²) for every neighbour on the diagonal, −ρ/(1 − ρ²) beside it, ln|Q| = −Σ ln(1 − ρ²).
    """
    own, beside, unexplained = _pairs(steps, n)
    for part in (own, beside):
        part[:, : max(n_lead - 1, 0)] = 0.0
    unexplained[:, : max(n_lead - 1, 0)] = 1.0
    own = np.pad(own, ((0, 0), (0, 1))) + np.pad(own, ((0, 0), (1, 0))) + 1.0
    own[:, :n_lead] -= 1.0
    return Kinds(own, beside, -np.log(unexplained).sum(axis=1), np.zeros((n, 0)))


def _pairs(steps: Array, n: int) -> tuple[Array, Array, Array]:
    """ρ²/(1 − ρ²), −ρ/(1 − ρ²) and 1 − ρ² of every kind over every step, each (n, number of steps)."""
    log_rho = memories(n)[:, None] * steps
    unexplained = -np.expm1(2.0 * log_rho)
    return np.exp(2.0 * log_rho) / unexplained, -np.exp(log_rho) / unexplained, unexplained


def _around(steps: Array, n: int, closing: float) -> Kinds:
    """C36: Q_k of a ring of length L, Cov(a_s, a_t) = (φ^h + φ^{L−h})/(1 + φ^L) at distance h: variances are 1/λ.

    It is c (1 + Σ over the two neighbours of ρ²/(1 − ρ²)) on the diagonal and −c ρ/(1 − ρ²) for neighbours, with
    c = (1 + φ^L)/(1 − φ^L), and ln|Q| = I ln c + 2 ln(1 − φ^L) − Σ ln(1 − ρ²).
    """
    if not steps.size:
        return _along(steps, n, 0)
    around = np.concatenate([steps, [closing]])
    n_rows, order = around.size, order_of(around.size, RING)
    own, edge, unexplained = _pairs(around, n)
    once_round = memories(n) * around.sum()
    ratio = ((1.0 + np.exp(once_round)) / -np.expm1(once_round))[:, None]
    own, edge = ratio * (1.0 + own + np.roll(own, 1, axis=1)), ratio * edge
    log_det = n_rows * np.log(ratio[:, 0]) + 2.0 * np.log(-np.expm1(once_round)) - np.log(unexplained).sum(axis=1)
    beside = np.zeros((n, n_rows - 1))
    beside[:, 0] = edge[:, -1]  # the first and the last row
    beside[:, -1] += edge[:, min(order[-2:])]
    return Kinds(own[:, order], beside, log_det, edge[:, np.minimum(order[:-2], order[2:])])


def _second_order(steps: Array, n: int, n_lead: int) -> Kinds:
    """C35: Q_k of rows each given the two before it, with the covariances of r(h) = e^{−κh}(1 + h tanh κ), κ = ½, ¼, ….

    At unit steps r is that of (1 − φB)² a = noise, φ = e^{−κ}; at any steps the covariances of three rows that follow
    each other are those of r, so that every a_t has the variance 1/λ. With u = 1 − r a row has the variance
    (2(u₁u₂ + u₂u₃ + u₃u₁) − u₁² − u₂² − u₃² − 2u₁u₂u₃)/(u₁(2 − u₁)) given those before, u₁ from these to each other.
    """
    kappa: Array = 0.5 ** (1.0 + np.arange(n, dtype=np.float64))[:, None]
    n_rows, near, wide = steps.size + 1, _unlike(kappa, steps), _unlike(kappa, steps[:-1] + steps[1:])
    own, beside, log_det = np.zeros((n, n_rows)), np.zeros((n, n_rows - 1)), np.zeros(n)
    if n_rows == 1:
        return Kinds(own + (1.0 - n_lead), beside, log_det, np.zeros((n, 0)))
    before, last = near[:, :-1], near[:, 1:]
    known = before * (2.0 - before)
    on_last, on_before = before + wide - last - before * wide, before + last - wide - before * last
    on_last, on_before = on_last / known, on_before / known
    pairs, squares = before * last + last * wide + wide * before, before**2 + last**2 + wide**2
    left = (2.0 * pairs - squares - 2.0 * before * last * wide) / known
    own[:, 2:] += 1.0 / left
    own[:, 1:-1] += on_last**2 / left
    own[:, :-2] += on_before**2 / left
    beside[:, 1:] -= on_last / left
    beside[:, :-1] += on_last * on_before / left
    log_det -= np.log(left).sum(axis=1)
    if n_lead < 2:
        first = near[:, 0] * (2.0 - near[:, 0])
        own[:, :2] += 1.0 / first[:, None]
        beside[:, 0] -= (1.0 - near[:, 0]) / first
        own[:, 0] -= n_lead
        log_det -= np.log(first)
    return Kinds(own, beside, log_det, -on_before / left)


def _unlike(kappa: Array, distance: Array) -> Array:
    """1 − r(h), to the precision of its own size."""
    ahead = kappa * distance
    return np.asarray(-np.expm1(-ahead) - np.exp(-ahead) * np.tanh(kappa) * distance)
