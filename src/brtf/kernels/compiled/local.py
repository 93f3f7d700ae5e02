"""The local posteriors of entries in compiled loops: the twin of :mod:`brtf.kernels.reference.local`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels import (
    entries,
    mixtures,
    tiles,
)
from brtf.kernels.arguments import (
    FIRST_BIN_OCTAVE,
    LOG2_BINS,
    NOWHERE,
    CompletedRows,
    Mixture,
    PassSums,
    SlicePositions,
    SliceWeights,
    WeighedEntries,
    plain,
)
from brtf.kernels.packed import unpack_symmetric
from brtf.kernels.tables import FIRST_OCTAVE, EvidenceTable, usual_places

BINS = (52 - LOG2_BINS, (1023 + FIRST_BIN_OCTAVE) << LOG2_BINS)
"""Number of bits of D below those of its bin, and the bits of the first bin."""


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f(ρ) of the entries and their weights, each (m,)."""
    log_evidence, weight, rho = np.empty(rho.size), np.empty(rho.size), plain(rho)
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
) -> WeighedEntries:
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
        return WeighedEntries(log_evidence, weight_sum, largest / tau, rho, weight, outlier)
    slices = (nothing if noise is None else noise.relative.astype(kind)), at
    log_evidence, weight_sum, largest = entries.weigh_entries(
        residual, variance, slices, tau, _layout(local, kind), histogram, sums.squares, rho, weight
    )
    return WeighedEntries(log_evidence, weight_sum, largest / tau, rho, weight)


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
) -> CompletedRows:
    """Form 1 for rows of complete data in one pass, in tiles that stay in cache."""
    kind, mean = values.dtype.type, np.empty(left.shape)
    spike = local.spike if isinstance(local, Mixture) else local
    if noise is None:  # for a mixture, common noise is a single slice
        common = SlicePositions(np.zeros(len(values), np.int64), np.zeros(values.shape[1], np.int64))
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
    return CompletedRows(log_evidence, weight_sum, largest / tau, mean)


def count_deviations(deviation: Array, counts: Array, totals: Array) -> None:
    """Add entries to a histogram of D."""
    deviation = deviation.astype(np.float64, copy=False)
    entries.count(deviation.view(np.int64), deviation, BINS, (counts, totals), entries.NO_SHARES)


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
