"""Truncated higher-order singular value decomposition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brtf.research.baselines.algebra import Array, leading_basis, multiply
from brtf.research.baselines.registry import Mask, Method, Recovery


def recover(Y: Array, observed: Mask, rng: np.random.Generator, *, ranks: int | tuple[int, ...]) -> Recovery:
    """The data projected onto the leading singular vectors of every unfolding.

    X = Y ×_n U⁽ⁿ⁾U⁽ⁿ⁾ᵀ with U⁽ⁿ⁾ the R_n leading left singular vectors of the unfolding of Y itself, not of what the
    earlier modes leave. Neither iterative nor random: the seed has no effect.

    Parameters
    ----------
    ranks : int or tuple of int
        R_n, the same for all modes or one per mode; at most I_n and Π_{k≠n} I_k.

    Returns
    -------
    Recovery
        Complete data only, without outliers or CP factors; the rank is a tuple.
    """
    ranks = ranks_per_mode("ranks", ranks, Y.shape)
    bases = leading_bases(Y, ranks)
    return Recovery(multiply(Y, [basis @ basis.T for basis in bases]), None, ranks)


def ranks_per_mode(name: str, ranks: int | Sequence[int] | None, shape: Sequence[int]) -> tuple[int, ...]:
    """One rank per mode, at most the shorter side of its unfolding; None: as large as that."""
    largest = tuple(min(length, math.prod(shape) // length) for length in shape)
    if ranks is None:
        return largest
    given = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,) * len(shape)
    if len(given) != len(shape) or any(rank > limit for rank, limit in zip(given, largest, strict=True)):
        raise ValueError(f"{name} must be one rank per mode of shape {tuple(shape)}, at most {largest}, got {ranks!r}.")
    return given


def leading_bases(Y: Array, ranks: Sequence[int]) -> list[Array]:
    """The leading left singular vectors (I_n, R_n) of every unfolding."""
    return [leading_basis(Y, mode, rank) for mode, rank in enumerate(ranks)]


METHOD = Method(
    name="hosvd",
    recover=recover,
    missing=False,
    robust=False,
    works_on="tensor",
    source="De Lathauwer, De Moor & Vandewalle, SIAM J. Matrix Anal. Appl. 21 (2000); written from the equations.",
)
