"""Compiled contractions: the functions of :mod:`brtf.kernels.reference`, with Numba where NumPy needs several passes.

Products of dense matrices are left to BLAS, on tiles that fit a core's cache. Numba does the rest: entries given by a
mask or by coordinates, local posteriors, histograms, and small Cholesky solves. All loops release the GIL, so that
several threads can process blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array, read_only
from brtf.data.observations import Block, row_and_column_positions
from brtf.kernels import (
    coordinates,
    entries,
    fibre_loops,
    masked,
    mixtures,
    products,
    reference,
    scoring,
    tiles,
    truncated_loops,
)
from brtf.kernels.arguments import NOWHERE, Gradient, Mixture, PassSums, Positions, SliceWeights, StudentNumbers
from brtf.kernels.compiled_chains import chain_evidence as chain_evidence
from brtf.kernels.compiled_chains import smooth_chain as smooth_chain
from brtf.kernels.fibres import SmoothedChains
from brtf.kernels.jit import loop
from brtf.kernels.packed import unpack_symmetric
from brtf.kernels.reference import (
    FIRST_BIN_OCTAVE,
    LOG2_BINS,
    as_matrix,
    khatri_rao,
    left_variance,
    reduce_mode,
    rows_of_block,
    symmetric_multiplicity,
    transposed_khatri_rao,
)
from brtf.kernels.tables import FIRST_OCTAVE, EvidenceTable, usual_places

DENSE_SHARE = 0.4
"""Share of observed entries above which a dense product with zeros is cheaper than a loop over entries."""
DENSE_SHARE_OF_SUMS = 0.75
"""That share for sums over entries, whose rows stay in L1 cache."""
NUMBERS_TOGETHER = 2**17
"""Numbers in a tile of fibres: a megabyte."""
STEP = 4
"""Columns are padded to a multiple of this: thin-matrix products take several at a time."""
LEAST_SUM = 16
"""Shortest last mode that is summed over first."""
SHORT = 64
"""Fewest rows in a sum for which the sum dominates its overhead."""
LARGEST_OWN_SOLVE = 48
"""Largest rank at which the Cholesky loops here are faster than one LAPACK call per row."""
BINS = (52 - LOG2_BINS, (1023 + FIRST_BIN_OCTAVE) << LOG2_BINS)
"""Number of bits of D below those of its bin, and the bits of the first bin."""


Listed = tuple[masked.Lists, Array, NDArray[np.bool_] | None]
"""Lists of entries and their values. For sums of ones a list never exceeds half a fibre: where most entries are
observed it holds the missing ones, with value −1, and the last element marks these fibres."""


@dataclass(frozen=True, eq=False)
class ListedBlock(Block):
    """A masked block that lists its entries once and reuses the lists in all contractions."""

    _columns: dict[tuple[int, int], tuple[masked.Lists, NDArray[np.int32]]] = field(default_factory=dict)
    _columns_of_ones: dict[tuple[int, int], Listed] = field(default_factory=dict)

    @cached_property
    def _rows(self) -> masked.Lists:
        return _list_rows(_fibres(self), self.n_entries)

    @cached_property
    def _rows_of_ones(self) -> Listed:
        shorter, amounts, full = _shorter(_fibres(self))
        return _list_rows(shorter, amounts.size), amounts, full

    def by_row(self, entry_values: Array | None) -> Listed:
        """The entries of fibres (f, k) by f, and their values."""
        return self._rows_of_ones if entry_values is None else (self._rows, _plain(entry_values), None)

    def by_column(self, entry_values: Array | None, n_slabs: int, length: int) -> Listed:
        """The entries of slabs (a, n, b) by (a, b), and their values, with a of ``n_slabs`` and n of ``length``."""
        mask, key = _fibres(self).reshape(n_slabs, length, -1), (n_slabs, length)
        if entry_values is None:
            if key not in self._columns_of_ones:
                shorter, ones, full = _shorter(mask)
                self._columns_of_ones[key] = _list_columns(shorter, ones.size)[0], ones, full
            return self._columns_of_ones[key]
        if key not in self._columns:
            self._columns[key] = _list_columns(mask, self.n_entries)
        lists, numbers = self._columns[key]
        amounts = np.empty(self.n_entries)
        masked.take(entry_values, numbers, amounts)
        return lists, amounts, None


def _list_rows(mask: NDArray[np.bool_], n_entries: int) -> masked.Lists:
    stops, places = np.empty(len(mask), np.int64), np.empty(n_entries + masked.SPARE, np.int32)
    masked.list_rows(mask, masked.PLACES_OF_BITS, stops, places)
    return stops, places


def _list_columns(mask: NDArray[np.bool_], n_entries: int) -> tuple[masked.Lists, NDArray[np.int32]]:
    stops = np.empty(len(mask) * mask.shape[2], np.int64)
    places, numbers = np.empty((2, n_entries), np.int32)
    masked.list_columns(mask, masked.PLACES_OF_BITS, stops, places, numbers)
    return (stops, places), numbers


def _shorter(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Array, NDArray[np.bool_]]:
    """The mask of every fibre along the second axis, inverted where most entries are observed: see :data:`Listed`."""
    n_observed = np.count_nonzero(mask, axis=1)
    full = 2 * n_observed > mask.shape[1]
    n_listed = np.where(full, mask.shape[1] - n_observed, n_observed)
    amounts = np.repeat(np.where(full, -1.0, 1.0).reshape(-1), n_listed.reshape(-1))
    return read_only(mask ^ np.expand_dims(full, 1)), amounts, full


def listed(block: Block) -> ListedBlock:
    """The block, with its entries listed on first use; the only block of small data keeps the lists."""
    if isinstance(block, ListedBlock):
        return block
    known: ListedBlock | None = block.__dict__.get("listed")
    if known is None:
        known = ListedBlock(**{part.name: getattr(block, part.name) for part in fields(block)})
        if block.n_rows == block.shape[0] and block.n_entries <= NUMBERS_TOGETHER:
            block.__dict__["listed"] = known
    return known


def positions(block: Block, modes: tuple[int, ...]) -> NDArray[np.int64]:
    """Position of every entry of a block along the given modes, (m,); blocks of small data keep them."""
    known: dict[tuple[int, ...], NDArray[np.int64]] = block.__dict__.setdefault("positions", {})
    if modes in known:
        return known[modes]
    found = np.empty(block.n_entries, np.int64)
    if block.coords is not None:
        strides = np.array([math.prod(block.shape[mode] for mode in modes[k + 1 :]) for k in range(len(modes))])
        coordinates.positions(block.coords, np.array(modes), strides, found)
    else:
        rows, columns = row_and_column_positions(block, modes)
        mask = np.ones((1, 0), np.bool_) if block.mask is None else block.mask.reshape(len(rows), -1)
        masked.positions(mask, rows, columns, found)
    if block.n_entries <= NUMBERS_TOGETHER and block.n_rows == block.shape[0]:
        known[modes] = found
    return found


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries, (m,)."""
    if block.coords is not None:
        out = np.zeros(block.coords.shape[1])
        coordinates.sum_of_products(block.coords, _together(matrices), out)
        return out
    if block.mask is None:
        return reference.low_rank_at(block, matrices)
    if _is_dense(block):
        rows, columns = as_matrix(rows_of_block(block, matrices))
        return _compressed(block, khatri_rao(rows) @ khatri_rao(columns).T)
    *left, last = rows_of_block(block, matrices)
    return _products_at(block, khatri_rao(left), last)


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries, (m,)."""
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        covs = [_one_per_row(cov, moment) for cov, moment in zip(covs, moments, strict=True)]
        out = np.zeros(block.coords.shape[1])
        coordinates.variances(block.coords, _together(outers), _together(moments), _together(covs), multiplicity, out)
        return out
    if block.mask is None:
        parts = _cut(block, 2 * multiplicity.size)
        return np.concatenate([reference.variance_at(rows, outers, moments, covs) for rows in parts])
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    last = np.hstack([moments[-1], covs[-1]])

    def of_rows(rows: Block) -> Array:
        spread, product = left_variance(rows, outers, moments, covs)
        left = np.hstack([spread * multiplicity, product * multiplicity])
        return _compressed(rows, left @ last.T) if _is_dense(block) else _products_at(rows, left, last)

    return np.concatenate([of_rows(rows) for rows in _cut(block, last.shape[1])])


def contract(block: Block, entry_values: Array | None, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrices of all other modes, added to ``out``."""
    if entry_values is None and not _is_mostly_observed(block):
        entry_values = np.ones(block.n_entries)
    if block.coords is not None and entry_values is not None:
        coordinates.scatter_products(block.coords, _plain(entry_values), _together(matrices), mode, out)
        return
    *left, last = _together(rows_of_block(block, matrices))
    rest = [matrix for k, matrix in enumerate(left) if k != mode]
    n_slow = _n_slow([len(matrix) for matrix in rest]) if mode == len(left) else len(rest)
    n_summed = math.prod(map(len, rest[n_slow:])) if mode == len(left) else len(last)
    if entry_values is not None and _is_dense(block, n_summed):
        dense = _dense(block, entry_values)
        if len(last) >= LEAST_SUM and last.shape[1] <= tiles.LARGEST_THIN and dense.dtype == np.float64:
            _contract_thin(dense, left, last, mode, out)
        else:
            reference.contract_dense(block, dense, matrices, mode, out)
        return
    others = khatri_rao(rest[:n_slow]) if n_slow else np.ones((1, last.shape[1]))
    if mode == len(left):
        n_after, summed = 1, khatri_rao(rest[n_slow:])
        lists, amounts, full = listed(block).by_column(entry_values, len(others), n_summed)
    else:
        n_after, summed = math.prod(len(matrix) for matrix in left[mode + 1 :]), last
        lists, amounts, full = listed(block).by_row(entry_values)
    masked.add_lists(lists, amounts, summed, others, len(out), n_after, out)
    if full is not None:
        of_row = np.moveaxis(full.reshape(-1, len(out), n_after), 1, 0).reshape(len(out), -1)
        out += (of_row @ others) * summed.sum(axis=0)


def _contract_thin(dense: Array, left: Sequence[Array], last: Array, mode: int, out: Array) -> None:
    """Contraction of a dense array with matrices of few columns, last mode first, added to ``out``."""
    flat = _plain(dense.reshape(-1, len(last)))
    if mode == len(left):
        total = np.empty(out.shape[::-1])
        products.multiply(transposed_khatri_rao(left), flat, total)
        out += total.T
        return
    filled = np.zeros((len(last), -(-last.shape[1] // STEP) * STEP))
    filled[:, : last.shape[1]] = last
    partial = np.empty((len(flat), filled.shape[1]))
    products.multiply(flat, filled, partial)
    partial = partial[:, : last.shape[1]].reshape(*dense.shape[:-1], last.shape[1])
    for k in range(len(left) - 1, -1, -1):
        if k != mode:
            partial = reduce_mode(partial, left[k], k)
    out += partial


def contract_one(block: Block, entry_values: Array | None, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrix of one mode, added to ``out``; dense layouts only."""
    own = _plain(matrix[block.rows] if mode == 0 else matrix)
    if entry_values is None and not _is_mostly_observed(block):
        entry_values = np.ones(block.n_entries)
    if entry_values is not None and _is_dense(block, len(own)):
        reference.contract_one_dense(block, _dense(block, entry_values), matrix, mode, out)
        return
    if mode == len(block.shape) - 1:
        lists, amounts, full = listed(block).by_row(entry_values)
    else:
        n_before = 1 if mode == 0 else block.n_rows * math.prod(block.shape[1:mode])
        lists, amounts, full = listed(block).by_column(entry_values, n_before, len(own))
    flat = out.reshape(lists[0].size, own.shape[1])
    masked.add_lists(lists, amounts, own, np.ones((1, own.shape[1])), len(flat), 1, flat)
    if full is not None:
        flat[full.reshape(-1)] += own.sum(axis=0)


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f(ρ) of the entries and their weights, each (m,)."""
    log_evidence, weight, rho = np.empty(rho.size), np.empty(rho.size), _plain(rho)
    entries.look_up(rho, _layout(table, rho.dtype), log_evidence, weight)
    return log_evidence, weight


def local_posteriors(
    local: EvidenceTable | Mixture,
    tau: float,
    values: Array,
    residual: Array,
    variance: Array | None,
    noise: SliceWeights | None,
    sums: PassSums,
) -> reference.LocalPosteriors:
    """Local posteriors of entries one by one, in pieces that stay in cache; adds to the sums over them."""
    kind, nothing, rho, weight = residual.dtype, residual[:0], np.empty_like(residual), np.empty_like(residual)
    variance = nothing if variance is None else variance.astype(kind, copy=False)
    histogram = sums.counts, sums.totals
    at = NOWHERE.rows if noise is None else noise.at.rows
    if isinstance(local, Mixture):
        relative = np.ones(1, kind) if noise is None else noise.relative.astype(kind)
        outlier, outer = np.empty(residual.size), (sums.squares, sums.replaced, sums.structured)
        laws = _branches(local), local.log_rates, local.at.rows, local.log_counted, local.groups.rows
        numbers = local.n_channels, local.clipped
        log_evidence, weight_sum, largest = mixtures.judge_mixture(
            values.astype(kind, copy=False),
            residual,
            variance,
            tau,
            _layout(local.spike, kind),
            (relative, at),
            (*laws, *numbers),
            histogram,
            outer,
            rho,
            weight,
            outlier,
        )
        return reference.LocalPosteriors(log_evidence, weight_sum, largest / tau, rho, weight, outlier)
    slices = (nothing if noise is None else noise.relative.astype(kind)), at
    log_evidence, weight_sum, largest = entries.judge(
        residual, variance, slices, tau, _layout(local, kind), histogram, sums.squares, rho, weight
    )
    return reference.LocalPosteriors(log_evidence, weight_sum, largest / tau, rho, weight)


def completed(values: Array, residual: Array, weight: Array, largest_weight: float) -> Array:
    """The completed data, y − (1 − w/w_max)(y − x̄), (m,)."""
    out = np.empty_like(values)
    entries.complete(values, residual, weight, values.dtype.type(1.0 / largest_weight), out)
    return out


def solve_completed(
    values: Array,
    scale: float,
    left: Array,
    right: Array,
    local: EvidenceTable | Mixture,
    tau: float,
    largest_weight: float,
    noise: SliceWeights | None,
    covs: Array,
    offset: Array,
    sums: PassSums,
) -> reference.CompletedRows:
    """Form 1 for rows of complete data in one pass, in tiles that stay in cache."""
    kind, mean = values.dtype.type, np.empty(left.shape)
    spike = local.spike if isinstance(local, Mixture) else local
    if noise is None:  # for a mixture, common noise is a single slice
        common = Positions(np.zeros(len(values), np.int64), np.zeros(values.shape[1], np.int64))
        noise = SliceWeights(np.ones(1 if isinstance(local, Mixture) else 0), common)
    data = (
        values,
        np.ascontiguousarray(left),
        np.ascontiguousarray(right),
        kind(1.0 / scale),
        kind(1.0 / largest_weight),
        tau,
        _layout(spike, values.dtype),
        (noise.relative.astype(kind), *noise.at, noise.at.by_row),
    )
    rank = left.shape[1]
    solve = unpack_symmetric(covs, rank).reshape(1, -1).astype(kind) if len(covs) == 1 else covs.astype(kind)
    rows, histogram = (solve, offset.astype(kind)), (sums.counts, sums.totals)
    if isinstance(local, Mixture):
        outer = sums.squares, sums.replaced, sums.structured
        at = *local.at, local.at.by_row
        laws = _branches(local), local.log_rates, *at, local.log_counted, local.groups.columns
        mixture = *laws, local.n_channels, local.clipped
        found = mixtures.solve_mixture(*data, mixture, *rows, histogram, outer, mean, sums.products)
    else:
        found = tiles.solve_completed(*data, *rows, histogram, sums.squares, mean, sums.products)
    log_evidence, weight_sum, largest = found
    return reference.CompletedRows(log_evidence, weight_sum, largest / tau, mean)


def mix_branches(log_spike: Array, log_slab: Array) -> tuple[Array, Array]:
    """ln(e^spike + e^slab) and the responsibility of the slab; each (m,)."""
    log_evidence, share = np.empty(log_spike.size), np.empty(log_spike.size)
    entries.mix(log_spike, log_slab, log_evidence, share)
    return log_evidence, share


def count_deviations(deviation: Array, counts: Array, totals: Array, share: Array | None = None) -> None:
    """Add entries, or a fraction of each, to a histogram of D."""
    deviation = deviation.astype(np.float64, copy=False)
    entries.count(
        deviation.view(np.int64), deviation, BINS, (counts, totals), entries.NO_SHARES if share is None else share
    )


def scores(
    gradient: Gradient, numbers: StudentNumbers | None, tau: float, deviation: Array, count: Array
) -> tuple[float, Array, Array]:
    """Σ ln f over bins of D; derivatives (1 + K,) of Σ (½ ln τ + ln f) by ln τ and the K parameters; information."""
    if numbers is None:
        return reference.scores(gradient, numbers, tau, deviation, count)
    by_parameter, information = np.zeros(4), np.zeros((4, 4))
    flat, *others = numbers
    value = scoring.student_scores(flat, tau, *others, _plain(deviation), _plain(count), by_parameter, information)
    return value, by_parameter, information


def scoring_step(
    place: Array, gradient: Array, curvature: Array, low: Array, high: Array, damping: float, longest: float
) -> Array:
    """The parameters (K,) after one step of Newton scoring within limits."""
    return scoring.scoring_step(place, gradient, curvature, low, high, damping, longest)


def corrected(curvature: Array, step: Array, drop: Array) -> Array:
    """The curvature (K, K) after a BFGS update with the drop of the gradient along a step."""
    return scoring.corrected(curvature, step, drop)


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows from precision matrices and linear terms: means, covariances, ln|cov|."""
    n_rows, rank = len(precision), linear.shape[1]
    if not 0 < rank <= LARGEST_OWN_SOLVE:
        return reference.solve_rows(precision, linear)
    mean, cov, log_det = np.empty((n_rows, rank)), np.empty((n_rows, rank, rank)), np.empty(n_rows)
    if not _solve(_plain(precision), _plain(linear[:n_rows]), mean, cov, log_det):
        return reference.solve_rows(precision, linear)  # singular to rounding, or not finite
    return mean if n_rows == len(linear) else linear @ cov[0], cov, log_det


def solve_truncated(precision: Array, linear: Array, location: Array) -> Array:
    """Locations of rows of truncated normals."""
    found = np.array(location, dtype=np.float64, order="C")
    truncated_loops.solve(_plain(precision), _plain(linear), found)
    return found


# ---- blocks ------------------------------------------------------------------------------------------------


def _one_per_row(cov: Array, moment: Array) -> Array:
    return cov if cov.shape == moment.shape else np.broadcast_to(cov, moment.shape)


def _together(matrices: Sequence[Array]) -> tuple[Array, ...]:
    # a homogeneous tuple, so that loops are compiled once
    return tuple(map(_plain, matrices))


def _plain(array: Array) -> Array:
    """The array in C order and float64, of the type that the loops are compiled for."""
    if array.dtype == np.float64 and array.flags.carray:
        return array
    return np.require(array, np.float64, ["C", "W"])


def _fibres(block: Block) -> NDArray[np.bool_]:
    """The mask as (fibres, I_{N-1})."""
    if block.mask is None:
        raise TypeError("a block of complete data has no mask")
    return block.mask.reshape(-1, block.shape[-1])


def _cut(block: Block, n_columns: int) -> Iterator[Block]:
    """Tiles of a dense block, a few rows each, whose fibres fit in cache."""
    n_fibres = math.prod(block.shape[1:-1])
    n_rows = max(1, NUMBERS_TOGETHER // max(1, n_fibres * n_columns))
    stop = 0
    for row in range(0, block.n_rows, n_rows):
        rows = slice(block.rows.start + row, block.rows.start + min(row + n_rows, block.n_rows))
        mask = None if block.mask is None else block.mask[row : row + n_rows]
        n_entries = (rows.stop - rows.start) * n_fibres * block.shape[-1] if mask is None else np.count_nonzero(mask)
        start, stop = stop, stop + int(n_entries)
        entries = slice(block.entries.start + start, block.entries.start + stop)
        yield Block(entries, block.values[start:stop], rows, mask, None, block.shape)


def _is_mostly_observed(block: Block) -> bool:
    """Whether sums of ones are cheaper as sums over the missing entries."""
    return block.mask is not None and 2 * block.n_entries > block.mask.size


def _is_dense(block: Block, n_summed: int | None = None) -> bool:
    """Whether to process entries as a dense array, given the number of matrix rows in a sum."""
    if block.mask is None:
        return True
    close = n_summed is not None and n_summed * masked.WIDEST <= masked.INNERMOST
    return block.n_entries > (DENSE_SHARE_OF_SUMS if close else DENSE_SHARE) * block.mask.size


def _n_slow(lengths: list[int]) -> int:
    """Number of leading modes excluded from a sum: all but those needed to make it long enough."""
    n_slow = len(lengths) - 1
    while n_slow and math.prod(lengths[n_slow:]) < SHORT:
        n_slow -= 1
    return n_slow


def _dense(block: Block, entry_values: Array) -> Array:
    if block.mask is None:
        return reference.dense_block(block, entry_values)
    dense = np.empty(block.mask.shape)
    masked.expand(block.mask.reshape(-1).view(np.uint8), entry_values, dense.reshape(-1))
    return dense


def _compressed(block: Block, dense: Array) -> Array:
    """The entries (m,) of a dense array."""
    n_observed = block.n_entries
    out = np.empty(n_observed + 1)
    masked.compress(_fibres(block).reshape(-1), dense.reshape(-1), out)
    return out[:n_observed]


def _products_at(block: Block, left: Array, last: Array) -> Array:
    """Σ_c left[f, c] last[k, c] at the observed (f, k), (m,)."""
    out = np.empty(block.n_entries)
    masked.products_at(_fibres(block), np.ascontiguousarray(left), np.ascontiguousarray(last), out)
    return out


# ---- entries -----------------------------------------------------------------------------------------------


def _layout(table: EvidenceTable, dtype: np.dtype[np.floating[Any]]) -> tuple[Any, ...]:
    """The table as loops take it: usual segments for entries of the given type, all segments, and histogram bins."""
    return (table.quadratics, usual_places(dtype)), _segments(table), BINS


def _segments(table: EvidenceTable) -> tuple[Array, NDArray[np.int64], NDArray[np.int64], int]:
    return table.rows, table.first, table.log2_segments, FIRST_OCTAVE


def _branches(mixture: Mixture) -> tuple[Any, ...]:
    """Slab, cubics of both branches, sides and law of replaced values, as loops take them."""
    joined = _joined(mixture.spike, mixture.slab)
    return _segments(mixture.slab), joined, mixture.log_sides, (mixture.log_law, mixture.law_range)


@lru_cache(maxsize=8)
def _joined(spike: EvidenceTable, slab: EvidenceTable) -> tuple[Array, Array]:
    """Cubics of the usual segments of two tables side by side, (n_usual + 1, 8), and −2/width; zero beyond them."""
    cubics, slopes = np.zeros((spike.n_usual + 1, 8)), np.zeros(spike.n_usual + 1)
    for place, table in enumerate((spike, slab)):
        cubics[:-1, 4 * place : 4 * place + 4] = table.rows[: spike.n_usual, 2:]
    slopes[:-1] = -2.0 * spike.rows[: spike.n_usual, 1]
    return cubics, slopes


# ---- rows --------------------------------------------------------------------------------------------------


@loop
def _solve(precision, linear, mean, cov, log_det):
    """Cholesky of every scaled precision, its inverse, means and ln|cov|; False if one is not positive definite."""
    n_rows, rank = linear.shape
    lower, inverse, spread = np.zeros((rank, rank)), np.zeros((rank, rank)), np.empty(rank)
    for i in range(n_rows):
        matrix = precision[i]
        for r in range(rank):
            if not matrix[r, r] > 0.0:
                return False
            spread[r] = 1.0 / np.sqrt(matrix[r, r])
        log_sum = 0.0
        for r in range(rank):
            for s in range(r + 1):
                total = matrix[r, s] * spread[r] * spread[s]
                for t in range(s):
                    total -= lower[r, t] * lower[s, t]
                if r == s:
                    if not total > 0.0:
                        return False
                    lower[r, r] = np.sqrt(total)
                else:
                    lower[r, s] = total / lower[s, s]
            log_sum += np.log(spread[r]) - np.log(lower[r, r])
        log_det[i] = 2.0 * log_sum
        for s in range(rank):
            inverse[s, s] = spread[s] / lower[s, s]
            for r in range(s + 1, rank):
                total = 0.0
                for t in range(s, r):
                    total -= lower[r, t] * inverse[t, s]
                inverse[r, s] = total / lower[r, r]
        out = cov[i]
        for r in range(rank):
            for s in range(r + 1):
                total = 0.0
                for t in range(r, rank):
                    total += inverse[t, r] * inverse[t, s]
                out[r, s] = total
                out[s, r] = total
        for r in range(rank):
            total = 0.0
            for s in range(rank):
                total += out[r, s] * linear[i, s]
            mean[i, r] = total
    return True


def smooth_fibres(
    starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array
) -> SmoothedChains:
    """See :func:`brtf.kernels.fibres.smooth_fibres`."""
    n_chains = starts.size - 1
    found = SmoothedChains(*(np.empty(size) for size in (decay.size,) * 3 + (n_chains,) * 2))
    fibre_loops.smooth(starts, decay, precision, target, variance, *found)
    return found


def fibre_evidence(starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array) -> float:
    """See :func:`brtf.kernels.fibres.fibre_evidence`."""
    return float(fibre_loops.fibre_evidence(starts, decay, precision, target, variance))
