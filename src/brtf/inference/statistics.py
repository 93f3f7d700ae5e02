"""Sums over the entries that the updates need: the fit at the entries, row Grams and row products.

Every statistic is a sum over blocks of entries. Keys are those of ``docs/equations.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array, Cache
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Field, Sums, add_up, finished_in_runs, in_runs, of_entries, visit, whole
from brtf.kernels.dense import reduce_mode
from brtf.kernels.packed import symmetric_multiplicity, unpack_symmetric
from brtf.model.distributions import RowGaussians
from brtf.model.state import State

Value = TypeVar("Value")
HIGH_RANK = 24
"""Rank from which Var x is a difference where it can be: a convention, below which that saves little."""
MOST_CANCELLED = 1e-7
"""Var x, relative to the terms that E[x²] is a sum of, below which it is summed without differences: half of the digits
of a number are then left."""


WeightsAndTargets = tuple[Array | None, Array]
"""Weights of a block's entries (None: all one) and targets, weight times value; each (m,)."""


Weighing = Callable[[Block], WeightsAndTargets]


Packed = tuple[Array, Array, Array]
"""Packed upper halves of ããᵀ, E[aaᵀ] and V of a mode's rows."""


@dataclass(frozen=True, eq=False)
class EntryFit:
    """The low-rank part at all observed entries, in units of the data's scale.

    Attributes
    ----------
    residual : (M,) y_m − x̄_m
    variance : (M,) Var x_m, or ``None`` where only its sum was requested
    variance_sum : Σ_m Var x_m
    """

    residual: Array
    variance: Array | None
    variance_sum: float


def scaled_values(observations: Observations, block: Block) -> Array:
    """The block's values divided by the data's scale, float64."""
    return np.divide(block.values, observations.scale, dtype=np.float64)


def variance_field(factors: tuple[RowGaussians, ...], last: Cache | None = None) -> Field:
    """Var x at the entries.

    At high rank as E[x²] − x̄², which takes half the products, where nothing that matters is cancelled; otherwise by a
    recursion in which every term is positive.
    """
    kept = Cache() if last is None else last

    def variance(block: Block) -> Array:
        found = _difference_of_squares(block, factors) if factors[0].rank >= HIGH_RANK else None
        return _sum_of_variances(block, factors, kept) if found is None else found

    return variance


def _difference_of_squares(block: Block, factors: tuple[RowGaussians, ...]) -> Array | None:
    """Var x = E[x²] − x̄² at a block's entries; None where for some entry too much is cancelled.

    The terms of E[x²] add up to at most (Σ_r Π_n E[a⁽ⁿ⁾_r²]^½)², which rounding errors are relative to.
    """
    means = [rows.mean for rows in factors]
    sizes = [np.sqrt(rows.mean**2 + rows.variances) for rows in factors]
    *others, last = (rows.second_moment_packed for rows in factors)
    moments = [*others, last * symmetric_multiplicity(last.shape[1])]
    found = kernels.low_rank_at(block, moments) - kernels.low_rank_at(block, means) ** 2
    return found if np.all(found > MOST_CANCELLED * kernels.low_rank_at(block, sizes) ** 2) else None


def _sum_of_variances(block: Block, factors: tuple[RowGaussians, ...], kept: Cache) -> Array:
    """Var x at a block's entries, as a sum of positive terms.

    Packed products are larger than the rows they come from. For the first mode, which dense blocks divide, they are
    computed for the rows of one block at a time; those of the other modes are cached in ``kept``.
    """
    first, *others = factors
    packed = [_packed(rows, mode, kept) for mode, rows in enumerate(others, start=1)]
    if block.coords is None and block.n_rows < first.n_rows:
        own = _packed(first.part(block.rows), 0, Cache())
        block = replace(block, rows=slice(0, block.n_rows))
    else:
        own = _packed(first, 0, kept)
    return kernels.variance_at(block, *zip(own, *packed, strict=True))


def _packed(rows: RowGaussians, mode: int, last: Cache) -> Packed:
    """The packed products of a mode's rows, from the cache or stored there."""
    known, packed = last.get(mode, (None, None))
    if packed is None or known is not rows:
        packed = rows.outer_packed, rows.second_moment_packed, rows.cov_packed
        last[mode] = rows, packed
    return packed


def fit_at_entries(
    observations: Observations, factors: tuple[RowGaussians, ...], *, per_entry: bool = False
) -> EntryFit:
    """Residuals y − x̄ at the observed entries, and the exact variance of x there (per entry, or only summed)."""
    means = [rows.mean for rows in factors]
    residual = whole(observations, lambda b: scaled_values(observations, b) - kernels.low_rank_at(b, means))
    if not per_entry:
        return EntryFit(residual, None, variance_sum(observations, factors))
    variance = whole(observations, variance_field(factors))
    return EntryFit(residual, variance, float(variance.sum()))


def variance_sum(observations: Observations, factors: tuple[RowGaussians, ...]) -> float:
    """Σ Var x over the observed entries; of a complete tensor from the R×R sums of each mode (28)–(30)."""
    if observations.layout == "complete":
        return _variance_sum_complete(factors)
    variance = variance_field(factors)

    def add(sums: Sums, block: Block) -> None:
        sums[0][...] += variance(block).sum()

    return float(add_up(observations, lambda: (np.zeros(()),), add)[0])


def _variance_sum_complete(factors: tuple[RowGaussians, ...]) -> float:
    """Σ Var x over all entries of a complete tensor, from the R×R sums of each mode (28)–(30)."""
    spread: Array = np.zeros((factors[0].rank,) * 2)
    product: Array = np.ones_like(spread)
    for rows in factors:
        gram, cov_sum = rows.gram, rows.cov_sum
        spread = spread * (gram + cov_sum) + product * cov_sum
        product = product * gram
    return float(spread.sum())


def complete_gram(factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """The Gram shared by all rows of a mode of complete data: ⊛_{k≠n}(ÃᵀÃ + Σ_i V_i) (29), (1, R, R)."""
    gram: Array = np.ones((factors[mode].rank,) * 2)
    for k, rows in enumerate(factors):
        if k != mode:
            gram = gram * (rows.gram + rows.cov_sum)
    return gram[None]


def row_statistics(
    observations: Observations,
    factors: tuple[RowGaussians, ...],
    mode: int,
    weighing: Weighing,
    grams: Array | None = None,
) -> tuple[Array, Array]:
    """Row Grams G_i = Σ_{m∈Ω, i_n=i} w_m ⊛_{k≠n} E[a⁽ᵏ⁾a⁽ᵏ⁾ᵀ] (14) and products h_i = Σ t_m ⊛_{k≠n} ã⁽ᵏ⁾, in one pass.

    Shapes (I_n, R, R) and (I_n, R). Known Grams are passed through.
    """
    products, *packed = add_up_rows(observations, mode, *row_sums(factors, mode, weighing, grams is None))
    return unpack_symmetric(packed[0], factors[mode].rank) if grams is None else grams, products


def row_sums(
    factors: tuple[RowGaussians, ...], mode: int, weighing: Weighing, with_grams: bool
) -> tuple[list[tuple[int, ...]], Callable[[Sums, Block], None]]:
    """Shapes of a mode's row products and packed row Grams, and the function that adds a block's share."""

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract(own, targets, [rows.mean for rows in factors], mode, sums[0])
        if with_grams:
            moments = [rows.second_moment_packed for rows in factors]
            kernels.contract(own, weights, moments, mode, sums[1])

    n_rows, rank = factors[mode].n_rows, factors[mode].rank
    shapes: list[tuple[int, ...]] = [(n_rows, rank), (n_rows, rank * (rank + 1) // 2)]
    return shapes[: 1 + with_grams], add


def row_grams(
    observations: Observations, factors: tuple[RowGaussians, ...], mode: int, weights: Array | None = None
) -> Array:
    """Row Grams (14); unit weights where none are given. Shape (I_n, R, R), or (1, R, R) of complete data (29)."""
    if weights is None and observations.layout == "complete":
        return complete_gram(factors, mode)
    if weights is None:
        return row_statistics(observations, factors, mode, lambda block: (None, np.ones(block.n_entries)))[0]
    chosen = of_entries(weights)
    return row_statistics(observations, factors, mode, lambda block: (chosen(block), chosen(block)))[0]


def add_up_rows(
    observations: Observations, mode: int, shapes: list[tuple[int, ...]], add: Callable[[Sums, Block], None]
) -> Sums:
    """Sum arrays over blocks; their first axis is a mode's rows, or for the first mode the block's own rows.

    Dense blocks are ranges of rows of the first mode, so each row of that mode belongs to a single block.
    """
    if mode != 0 or observations.coords is not None:
        return add_up(observations, lambda: tuple(np.zeros(shape) for shape in shapes), add)

    def of_rows(_: Sums, block: Block) -> Sums:
        sums = tuple(np.zeros((block.n_rows, *shape[1:])) for shape in shapes)
        add(sums, block)
        return sums

    _, parts = visit(observations, tuple, of_rows)
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def add_up_runs(
    observations: Observations,
    mode: int,
    shapes: list[tuple[int, ...]],
    add: Callable[[Sums, Block], None],
    finish: Callable[[Sums], Value],
) -> Iterator[tuple[slice, Value]]:
    """Sum over blocks in ranges of rows of a long mode; yields each range with ``finish`` of its sums."""
    if mode != 0 or observations.coords is not None:
        yield from in_runs(observations, shapes, add, finish)
        return
    yield from finished_in_runs(add_up_rows(observations, mode, shapes, add), finish, observations.plan)


def partial_fits(observations: Observations, rank: int, longest: int, with_grams: bool) -> bool:
    """Whether sums over the longest mode are small enough to keep."""
    if observations.coords is not None:
        return False
    n_columns = rank + (rank * (rank + 1) // 2 if with_grams else 0)
    n_bytes = 8 * n_columns * (observations.n_entries // observations.shape[longest])
    plan = observations.plan
    return n_bytes <= max(plan.partial_bytes, plan.partial_share * observations.bytes_at_once)


def over_longest(observations: Observations, state: State, longest: int, weighing: Weighing, with_grams: bool) -> Sums:
    """Targets contracted with the longest mode's means, and weights with its second moments."""
    rows = state.factors[longest]

    def add(sums: Sums, block: Block) -> None:
        (weights, targets), own = weighing(block), kernels.listed(block)
        kernels.contract_one(own, targets, rows.mean, longest, sums[0])
        if with_grams:
            kernels.contract_one(own, weights, rows.second_moment_packed, longest, sums[1])

    lengths = [length for k, length in enumerate(observations.shape) if k != longest]
    shapes = [(*lengths, rows.rank), (*lengths, rows.cov_packed.shape[1])][: 1 + with_grams]
    return add_up_rows(observations, 0 if longest else 1, shapes, add)


def from_partial(
    partial: Array, state: State, matrix: Callable[[RowGaussians], Array], mode: int, longest: int
) -> Array:
    """The contraction for one mode from the sums over the longest mode, with one matrix per remaining mode."""
    kept = [k for k in range(len(state.factors)) if k != longest]
    for k in reversed(kept):
        if k != mode:
            partial = reduce_mode(partial, matrix(state.factors[k]), kept.index(k))
            kept.remove(k)
    return partial


def entry_values(observations: Observations) -> Array:
    """The entry vector (M,) of the observed values in units of the data's scale."""
    return whole(observations, partial(scaled_values, observations))
