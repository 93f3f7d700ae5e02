"""The local posteriors of entries and their sums in plain NumPy: the definition that compiled kernels must match."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.arguments import (
    FIRST_BIN_OCTAVE,
    LOG2_BINS,
    N_BINS,
    CompletedRows,
    Mixture,
    PassSums,
    SlicePositions,
    SliceWeights,
    StructureSums,
    WeighedEntries,
)
from brtf.kernels.packed import unpack_symmetric
from brtf.kernels.tables import FIRST_OCTAVE, SHIFT, EvidenceTable


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f(ρ) of the entries and their weights w = −2 d ln f/dρ, each (m,).

    The exponent of ρ + 2⁻¹² is its octave, the leading bits of its mantissa the segment. Beyond the last octave ln f is
    extrapolated as a power of ρ that matches the last value and slope.
    """
    row = _row_of(table, rho)
    lower, per_width, *cubic = table.rows[row].T
    step = (rho - lower) * per_width
    log_evidence = cubic[0] + step * (cubic[1] + step * (cubic[2] + step * cubic[3]))
    weight = -2.0 * per_width * (cubic[1] + step * (2.0 * cubic[2] + 3.0 * step * cubic[3]))
    beyond = row == len(table.rows) - 1
    if beyond.any():
        end, _, value, slope, *_ = table.rows[-1]
        log_evidence[beyond] = value + slope * end * np.log(rho[beyond] / end)
        weight[beyond] = -2.0 * slope * end / rho[beyond]
    return log_evidence, weight


def _row_of(table: EvidenceTable, rho: Array) -> NDArray[np.int64]:
    """The row of the table for every ρ, (m,)."""
    mantissa, exponent = _mantissa_and_exponent(rho + SHIFT)
    octave = exponent.astype(np.int64) - 1 - FIRST_OCTAVE
    inside = np.clip(octave, 0, table.first.size - 1)
    segment = ((2.0 * mantissa - 1.0) * (1 << table.log2_segments[inside])).astype(np.int64)
    return np.where(octave > inside, len(table.rows) - 1, table.first[inside] + segment)


def local_posteriors(
    local: EvidenceTable | Mixture,
    tau: float,
    values: Array,
    residual: Array,
    variance: Array | None,
    noise: SliceWeights | None,
    sums: PassSums,
) -> WeighedEntries:
    """Local posteriors of entries with residuals y − x̄, in one pass: D = residual² + Var x, ρ = τ̄ ω̄ D, ln f and w.

    ``values`` y, ``residual`` and ``variance`` Var x (None: zero) are (m,); ω̄ is one where ``noise`` is None. Added to
    the sums: the histogram of ω̄ D, in which a table counts entries of usual segments at the middle of their segment, a
    bin spanning a dozen; and the statistics of slices and of a mixture.
    """
    deviation = np.square(residual, dtype=np.float64)
    if variance is not None:
        deviation += variance
    if noise is not None:
        deviation *= noise.relative[_places(noise.at)]
    if isinstance(local, Mixture):
        found = _mixture_posteriors(local, tau, values, residual, deviation, noise, sums)
    else:
        count_deviations(_counted_at(local, tau, deviation), sums.counts, sums.totals)
        log_evidence, weight = evidence(local, tau * deviation)
        found = WeighedEntries(
            float(log_evidence.sum()),
            float(weight.sum()),
            float(deviation.max(initial=0.0)),
            (tau * deviation).astype(residual.dtype, copy=False),
            weight.astype(residual.dtype, copy=False),
        )
    if noise is not None:
        np.add.at(sums.squares, _places(noise.at), tau * deviation * found.weight)
    return found


def completed(values: Array, residual: Array, weight: Array, largest_weight: float) -> Array:
    """The completed data, y − (1 − w/w_max)(y − x̄), (m,)."""
    return np.asarray(values - (1.0 - weight / values.dtype.type(largest_weight)) * residual)


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
    """Form 1 for b rows of complete data in one pass: complete the data, and solve for the rows that fit them.

    With ỹ (b, C) the completed data of ``values`` (b, C), whose low-rank part is left right, and ω̄ their relative
    precision (one where ``noise`` is None), new rows of the first mode are cov (ω̄ỹ rightᵀ + offset). Added to the sums:
    (ω̄ỹ)ᵀ times these, the histogram of ω̄ D, and the statistics of slices and of a mixture.

    In the type of the data are ``left`` (b, R) and ``right`` (R, C), the transposed Khatri–Rao product of the other
    modes. ``covs`` (b, P) are packed, (1, P) where rows share one. ``local`` gives ln f: a table for independent
    entries, or a mixture.
    """
    scaled = values * values.dtype.type(1.0 / scale)
    residual = scaled - left @ right
    found = local_posteriors(local, tau, scaled.ravel(), residual.ravel(), None, noise, sums)
    targets = completed(scaled, residual, found.weight.reshape(values.shape), largest_weight)
    if noise is not None:
        targets = targets * noise.relative.astype(values.dtype)[_places(noise.at)].reshape(values.shape)
    linear, cov = targets @ right.T + offset, unpack_symmetric(covs, left.shape[1])
    mean = linear @ cov[0] if len(cov) == 1 else np.einsum("irs,is->ir", cov, linear)
    sums.products[...] += targets.T @ mean.astype(values.dtype)
    return CompletedRows(found.log_evidence, found.weight_sum, found.largest, mean)


def _places(at: SlicePositions) -> NDArray[np.int64]:
    """The slice or group of every entry, (m,)."""
    return np.add.outer(at.rows, at.columns).ravel()


def _mixture_posteriors(
    mixture: Mixture,
    tau: float,
    values: Array,
    residual: Array,
    deviation: Array,
    noise: SliceWeights | None,
    sums: PassSums,
) -> WeighedEntries:
    """C16: local posteriors under a mixture of entries with the given ω̄ D; adds to the sums of the mixture.

    Σ ln f of a group's branches is divided by χ, and w = (1 − p) w₀ + p w₁.
    """
    rho, positive = tau * deviation, residual >= 0.0
    (log_spike, spike_weight), (log_slab, slab_weight) = evidence(mixture.spike, rho), evidence(mixture.slab, rho)
    bins = ((values - mixture.law_range[0]) * mixture.law_range[1]).astype(np.intp)
    bins = np.clip(bins, 0, max(mixture.log_law.size - 1, 0))
    if mixture.log_law.size:
        places = 0 if noise is None or mixture.log_counted.size == 1 else _places(noise.at)
        log_slab, slab_weight = mixture.log_law[bins] - mixture.log_counted[places], np.zeros(rho.size)
    log_slab = log_slab + np.where(positive, *mixture.log_sides)
    own = StructureSums(*sums.structured)
    if mixture.groups.rows.size:
        groups = _places(mixture.groups)
        occupied = np.bincount(groups) > 0
        spikes, slabs = (np.bincount(groups, branch) / mixture.n_channels for branch in (log_spike, log_slab))
        log_evidence, share = _mix_branches(spikes + mixture.log_rates[1, 0], slabs + mixture.log_rates[0, 0])
        outlier, log_evidence = share[groups], mixture.n_channels * log_evidence[occupied]
        own.groups[:2] += share[occupied].sum(), np.count_nonzero(occupied)
        relative = 1.0 if noise is None else noise.relative[_places(noise.at)]
        standardised = np.sqrt(tau * relative) * residual
        clipped = np.clip(standardised, -mixture.clipped, mixture.clipped) * (outlier < 0.5)
        own.groups[2:] += np.sum(np.bincount(groups, clipped) ** 2), clipped @ clipped
    else:
        (log_rates, log_rests), rates = mixture.log_rates, _places(mixture.at)
        log_evidence, outlier = _mix_branches(log_rests[rates] + log_spike, log_rates[rates] + log_slab)
        own.groups[:2] += outlier.sum(), outlier.size
        if own.rates.size:
            np.add.at(own.rates, rates, outlier)
    bin_of = _bins(deviation)
    for counts, totals, share in (
        (sums.counts, sums.totals, np.ones(outlier.size)),
        (own.regular_counts, own.regular_totals, 1.0 - outlier),
        (own.outlying_counts, own.outlying_totals, outlier),
    ):
        counts += np.bincount(bin_of, share, N_BINS)
        totals += np.bincount(bin_of, share * deviation, N_BINS)
    if mixture.log_law.size:
        np.add.at(own.law, bins, outlier)
        if sums.replaced.size and noise is not None:
            np.add.at(sums.replaced, _places(noise.at), outlier)
    if own.positive.size:
        own.positive[...] += np.bincount(bin_of[positive], minlength=N_BINS)
        own.sides[...] += outlier[positive].sum(), outlier[~positive].sum()
    weight = (1.0 - outlier) * spike_weight + outlier * slab_weight
    return WeighedEntries(
        float(log_evidence.sum()),
        float(weight.sum()),
        float(deviation.max(initial=0.0)),
        rho.astype(residual.dtype, copy=False),
        weight.astype(residual.dtype, copy=False),
        outlier,
    )


def _counted_at(table: EvidenceTable, tau: float, deviation: Array) -> Array:
    """D as counted in histograms: entries in usual segments of the table at the middle of their segment."""
    row = _row_of(table, tau * deviation)
    return np.where(row < table.n_usual, table.middles[row] / tau, deviation)


def _mix_branches(log_spike: Array, log_slab: Array) -> tuple[Array, Array]:
    """ln(e^spike + e^slab) and the responsibility of the slab; each (m,)."""
    log_evidence = np.logaddexp(log_spike, log_slab)
    return log_evidence, np.exp(log_slab - log_evidence)


def count_deviations(deviation: Array, counts: Array, totals: Array) -> None:
    """Add entries to a histogram of D: count and sum in each of the ``N_BINS`` bins."""
    place = _bins(deviation)
    counts += np.bincount(place, minlength=N_BINS)
    totals += np.bincount(place, deviation, N_BINS)


def _bins(deviation: Array) -> NDArray[np.int64]:
    """The bin of every D, (m,)."""
    mantissa, exponent = _mantissa_and_exponent(deviation)
    within = ((2.0 * mantissa - 1.0) * (1 << LOG2_BINS)).astype(np.int64)
    place = ((exponent.astype(np.int64) - 1 - FIRST_BIN_OCTAVE) << LOG2_BINS) + within
    return np.clip(place, 0, N_BINS - 1)


def _mantissa_and_exponent(numbers: Array) -> tuple[Array, NDArray[np.int32]]:
    """Numbers as mantissa · 2^exponent, mantissas in [½, 1); zero becomes the smallest, infinity the largest."""
    limits = np.finfo(np.float64)
    return np.frexp(np.clip(np.where(np.isnan(numbers), limits.max, numbers), limits.tiny, limits.max))
