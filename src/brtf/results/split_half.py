"""Components of a fit compared with those of fits to halves of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from brtf.data.arrays import Array
from brtf.results.result import Result


@dataclass(frozen=True, eq=False)
class SplitHalf:
    """Results of :func:`brtf.ranks.split_half`.

    A congruence is the cosine between two columns of a factor, multiplied over all modes but the one that was split;
    0 where a half has no such component.

    Attributes
    ----------
    mode : the mode that was split
    positions : the positions of the two halves
    ranks : numbers of components found in them
    congruence : (R,) of the component of the one half with that of the other, for each component of the whole fit
    first, second : (R,) of each component of the whole fit with that of either half
    """

    SAME: ClassVar[float] = 0.95
    """Congruence from which components count as the same (Lorenzo-Seva & ten Berge, Methodology 2, 2006)."""

    mode: int
    positions: tuple[NDArray[np.intp], NDArray[np.intp]]
    ranks: tuple[int, int]
    congruence: Array
    first: Array
    second: Array

    def __repr__(self) -> str:
        same = np.count_nonzero(self.stable)
        return (
            f"SplitHalf(mode={self.mode}, ranks={self.ranks}, {same} of {self.stable.size} components in both halves)"
        )

    @property
    def stable(self) -> NDArray[np.bool_]:
        """(R,) whether a component is the same in both halves."""
        return self.congruence >= self.SAME


def compared(
    whole: Result, halves: tuple[Result, Result], mode: int, positions: tuple[NDArray[np.intp], ...]
) -> SplitHalf:
    """Match the components of two halves with those of the whole fit, and compare them."""
    factors = [
        [factor for modes, factor in result.mode_factors().items() if mode not in modes] for result in (whole, *halves)
    ]
    with_first, with_second, between = (congruences(factors[a], factors[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    first, second = (_matched(congruence) for congruence in (with_first, with_second))
    everything = np.arange(whole.rank)

    def found(congruence: Array, partner: NDArray[np.intp]) -> Array:
        return np.where(partner >= 0, congruence[everything, partner], 0.0) if congruence.size else np.zeros(whole.rank)

    both = (first >= 0) & (second >= 0)
    across = np.where(both, between[first, second], 0.0) if between.size else np.zeros(whole.rank)
    return SplitHalf(
        mode,
        (positions[0], positions[1]),
        (halves[0].rank, halves[1].rank),
        across,
        found(with_first, first),
        found(with_second, second),
    )


def congruences(one: list[Array], other: list[Array]) -> Array:
    """|Π_n cos| between the columns of two lists of factors, (R, S)."""
    product = np.ones((one[0].shape[1], other[0].shape[1]))
    for a, b in zip(one, other, strict=True):
        sizes = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
        product *= np.where(sizes > 0, (a.T @ b) / np.where(sizes > 0, sizes, 1.0), 0.0)
    return np.abs(product)


def _matched(congruence: Array) -> NDArray[np.intp]:
    """For every component of the whole fit its partner in a half, each used once; −1 if there is none."""
    partner = np.full(congruence.shape[0], -1, dtype=np.intp)
    rows, columns = linear_sum_assignment(-congruence)
    partner[rows] = columns
    return partner
