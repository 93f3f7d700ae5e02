"""The contractions in plain NumPy: the definition that compiled kernels must match.

Each takes one :class:`~brtf.data.observations.Block` and one matrix (I_n, C) per mode, and works on the entry vector of
that block: a layout is its implementation of these few functions. No function forms a Khatri–Rao product of
all modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from brtf.data.arrays import Array
from brtf.data.observations import Block, block_positions
from brtf.kernels import truncated
from brtf.kernels.arguments import Gradient, Mixture, PassSums, Positions, SliceWeights, StudentNumbers
from brtf.kernels.chains import chain_evidence as chain_evidence
from brtf.kernels.chains import smooth_chain as smooth_chain
from brtf.kernels.fibres import fibre_evidence as fibre_evidence
from brtf.kernels.fibres import smooth_fibres as smooth_fibres
from brtf.kernels.packed import packed_indices, unpack_symmetric
from brtf.kernels.tables import FIRST_OCTAVE, SHIFT, EvidenceTable

LOG2_BINS = 3
"""Bins of the histogram of D per octave, as a power of two: they are 9 to 12 % wide."""
FIRST_BIN_OCTAVE, LAST_BIN_OCTAVE = -110, 66
"""D from 1e-33 to 1e20, for data of unit scale; values outside are counted in the outermost bins."""
N_BINS = (LAST_BIN_OCTAVE - FIRST_BIN_OCTAVE) << LOG2_BINS


@dataclass(frozen=True, eq=False)
class LocalPosteriors:
    """Sums over the local posteriors of entries, and per-entry results.

    Attributes
    ----------
    log_evidence : Σ ln f
    weight_sum : Σ w
    largest : the largest ω̄ D
    rho : (m,) ρ
    weight : (m,) w
    outlier : (m,) responsibility p, of a mixture; None of a table
    """

    log_evidence: float
    weight_sum: float
    largest: float
    rho: Array
    weight: Array
    outlier: Array | None = None


@dataclass(frozen=True, eq=False)
class CompletedRows:
    """Result of one pass over a block of complete data.

    Attributes
    ----------
    log_evidence, weight_sum, largest : see :class:`LocalPosteriors`
    mean : (b, R) new rows of mode 0
    """

    log_evidence: float
    weight_sum: float
    largest: float
    mean: Array


def listed(block: Block) -> Block:
    """The block prepared for several contractions."""
    return block


def positions(block: Block, modes: tuple[int, ...]) -> NDArray[np.int64]:
    """Position of every entry of a block along the given modes, (m,), numbered in C order over them."""
    return block_positions(block, modes)


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries: x_m = Σ_c Π_n M⁽ⁿ⁾[i_n, c].

    Returns the entry vector (m,).
    """
    if block.coords is not None:
        return _gathered_product(block.coords, matrices).sum(axis=1)
    rows, columns = as_matrix(rows_of_block(block, matrices))
    return block_entries(block, khatri_rao(rows) @ khatri_rao(columns).T)


def contract(block: Block, entry_values: Array | None, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrices of all other modes (MTTKRP), added to ``out``.

    Dense blocks are runs of rows of mode 0: for that mode ``out`` has the block's rows alone.

    H[i, c] = Σ_{m in block, i_n = i} v_m Π_{k≠n} M⁽ᵏ⁾[i_k, c], shape (I_n, C). With the data for v it gives the row
    products h_i of U1; with the observation pattern or weights for v, and packed second moments for M, the row Grams.
    """
    entry_values = np.ones(block.n_entries) if entry_values is None else entry_values
    if block.coords is not None:
        others = [matrix for k, matrix in enumerate(matrices) if k != mode]
        product = _gathered_product(np.delete(block.coords, mode, axis=0), others)
        shape = (out.shape[0], product.shape[0])
        out += coo_array((entry_values, (block.coords[mode], np.arange(product.shape[0]))), shape=shape) @ product
        return
    contract_dense(block, dense_block(block, entry_values), matrices, mode, out)


def contract_dense(block: Block, dense: Array, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """:func:`contract` for a dense array that is zero at missing entries."""
    rows, columns = as_matrix(rows_of_block(block, matrices))
    flat = dense.reshape(math.prod(dense.shape[: len(rows)]), -1)
    if mode < len(rows):
        kept, own, lengths, partial = rows, mode, dense.shape[: len(rows)], flat @ khatri_rao(columns)
    else:
        kept, own, lengths, partial = columns, mode - len(rows), dense.shape[len(rows) :], flat.T @ khatri_rao(rows)
    partial = partial.reshape(*lengths, partial.shape[1])
    for k in range(len(kept) - 1, -1, -1):
        if k != own:
            partial = reduce_mode(partial, kept[k], k)
    out += partial


def contract_one(block: Block, entry_values: Array | None, matrix: Array, mode: int, out: Array) -> None:
    """Contraction of an entry vector, or of ones, with the matrix of one mode, added to ``out``; dense layouts only.

    T[…, c] = Σ_{i_n} v_{…i_n…} M⁽ⁿ⁾[i_n, c]: the other modes in their order, of mode 0 the block's rows, then C. The
    contractions for all other modes follow from it without another pass.
    """
    entry_values = np.ones(block.n_entries) if entry_values is None else entry_values
    contract_one_dense(block, dense_block(block, entry_values), matrix, mode, out)


def contract_one_dense(block: Block, dense: Array, matrix: Array, mode: int, out: Array) -> None:
    """:func:`contract` for a dense array that is zero at missing entries."""
    if mode == 0:
        flat = dense.reshape(dense.shape[0], -1)
        out += (flat.T @ matrix[block.rows]).reshape(out.shape)
        return
    moved = dense.reshape(math.prod(dense.shape[:mode]), dense.shape[mode], -1).transpose(0, 2, 1)
    out += (moved @ matrix).reshape(*dense.shape[:mode], *dense.shape[mode + 1 :], matrix.shape[1])


def reduce_mode(partial: Array, matrix: Array, axis: int) -> Array:
    """Sum an array (…, C) over one axis, weighted by the matrix (I, C) of that axis."""
    shape = partial.shape
    n_before, n_after = math.prod(shape[:axis]), math.prod(shape[axis + 1 : -1])
    split = partial.reshape(n_before, shape[axis], n_after, shape[-1])
    return np.einsum("aibc,ic->abc", split, matrix).reshape(*shape[:axis], *shape[axis + 1 :])


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries.

    Var x_m = Σ_{rs} [Π_n (Q⁽ⁿ⁾+V⁽ⁿ⁾) − Π_n Q⁽ⁿ⁾]_{rs} with Q = ããᵀ, accumulated by the recursion
    d ← d⊛(Q+V) + q⊛V, q ← q⊛Q, in which every term is positive: nothing cancels.

    All are packed upper halves: ``outers`` Q (I_n, P), ``moments`` Q+V (I_n, P), ``covs`` V (I_n or 1, P), with
    P = R(R+1)/2; returns (m,).
    """
    covs = [np.broadcast_to(cov, moment.shape) for cov, moment in zip(covs, moments, strict=True)]
    multiplicity = symmetric_multiplicity(outers[0].shape[1])
    if block.coords is not None:
        pick = [np.take(matrix, index, axis=0) for matrix, index in zip(covs, block.coords, strict=True)]
        spread, product = pick[0], np.take(outers[0], block.coords[0], axis=0)
        for k in range(1, len(outers)):
            spread = spread * np.take(moments[k], block.coords[k], axis=0) + product * pick[k]
            product = product * np.take(outers[k], block.coords[k], axis=0)
        return np.asarray(spread @ multiplicity)
    spread, product = left_variance(block, outers, moments, covs)
    return block_entries(block, (spread * multiplicity) @ moments[-1].T + (product * multiplicity) @ covs[-1].T)


def left_variance(
    block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]
) -> tuple[Array, Array]:
    """The recursion (d, q) of a dense block over all modes but the last; each (fibres, P)."""
    outers, moments, covs = (rows_of_block(block, matrices) for matrices in (outers, moments, covs))
    spread, product = covs[0], outers[0]
    for k in range(1, len(outers) - 1):
        spread = _combine(spread, moments[k]) + _combine(product, covs[k])
        product = _combine(product, outers[k])
    return spread, product


def symmetric_multiplicity(n_packed: int) -> Array:
    """Multiplicity of each packed element in the symmetric matrix: 1 on the diagonal, 2 off it."""
    rank = (math.isqrt(8 * n_packed + 1) - 1) // 2
    rows, cols = packed_indices(rank)
    return np.where(rows == cols, 1.0, 2.0)


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
) -> LocalPosteriors:
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
        found = LocalPosteriors(
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


def _places(at: Positions) -> NDArray[np.int64]:
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
) -> LocalPosteriors:
    """C16: local posteriors under a mixture of entries with the given ω̄ D; adds to the sums of the mixture.

    Σ ln f of a group's branches is divided by κ, and w = (1 − p) w₀ + p w₁.
    """
    rho, positive = tau * deviation, residual >= 0.0
    (log_spike, spike_weight), (log_slab, slab_weight) = evidence(mixture.spike, rho), evidence(mixture.slab, rho)
    bins = ((values - mixture.law_range[0]) * mixture.law_range[1]).astype(np.intp)
    bins = np.clip(bins, 0, max(mixture.log_law.size - 1, 0))
    if mixture.log_law.size:
        places = 0 if noise is None or mixture.log_counted.size == 1 else _places(noise.at)
        log_slab, slab_weight = mixture.log_law[bins] - mixture.log_counted[places], np.zeros(rho.size)
    log_slab = log_slab + np.where(positive, *mixture.log_sides)
    regular, outlying, law, rate_sums, others, above, sides = (
        sums.structured[:2],
        sums.structured[2:4],
        *sums.structured[4:],
    )
    if mixture.groups.rows.size:
        groups = _places(mixture.groups)
        occupied = np.bincount(groups) > 0
        spikes, slabs = (np.bincount(groups, branch) / mixture.n_channels for branch in (log_spike, log_slab))
        log_evidence, share = mix_branches(spikes + mixture.log_rates[1, 0], slabs + mixture.log_rates[0, 0])
        outlier, log_evidence = share[groups], mixture.n_channels * log_evidence[occupied]
        others[:2] += share[occupied].sum(), np.count_nonzero(occupied)
        relative = 1.0 if noise is None else noise.relative[_places(noise.at)]
        standardised = np.sqrt(tau * relative) * residual
        clipped = np.clip(standardised, -mixture.clipped, mixture.clipped) * (outlier < 0.5)
        others[2:] += np.sum(np.bincount(groups, clipped) ** 2), clipped @ clipped
    else:
        (log_rates, log_rests), rates = mixture.log_rates, _places(mixture.at)
        log_evidence, outlier = mix_branches(log_rests[rates] + log_spike, log_rates[rates] + log_slab)
        others[:2] += outlier.sum(), outlier.size
        if rate_sums.size:
            np.add.at(rate_sums, rates, outlier)
    bin_of = _bins(deviation)
    shares = np.ones(outlier.size), 1.0 - outlier, outlier
    for (counts, totals), share in zip(((sums.counts, sums.totals), regular, outlying), shares, strict=True):
        counts += np.bincount(bin_of, share, N_BINS)
        totals += np.bincount(bin_of, share * deviation, N_BINS)
    if mixture.log_law.size:
        np.add.at(law, bins, outlier)
        if sums.replaced.size and noise is not None:
            np.add.at(sums.replaced, _places(noise.at), outlier)
    if above.size:
        above += np.bincount(bin_of[positive], minlength=N_BINS)
        sides += outlier[positive].sum(), outlier[~positive].sum()
    weight = (1.0 - outlier) * spike_weight + outlier * slab_weight
    return LocalPosteriors(
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


def mix_branches(log_spike: Array, log_slab: Array) -> tuple[Array, Array]:
    """ln(e^spike + e^slab) and the responsibility of the slab; each (m,)."""
    log_evidence = np.logaddexp(log_spike, log_slab)
    return log_evidence, np.exp(log_slab - log_evidence)


def count_deviations(deviation: Array, counts: Array, totals: Array, share: Array | None = None) -> None:
    """Add entries, or a fraction of each (m,), to a histogram of D: count and sum in each of the ``N_BINS`` bins."""
    place = _bins(deviation)
    counts += np.bincount(place, share, N_BINS)
    totals += np.bincount(place, deviation if share is None else share * deviation, N_BINS)


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


def scores(
    gradient: Gradient, numbers: StudentNumbers | None, tau: float, deviation: Array, count: Array
) -> tuple[float, Array, Array]:
    """Σ ln f over bins of D, derivatives of Σ (½ ln τ + ln f) by ln τ and the model's K parameters, and information.

    The gradient is (1 + K,). The information (1 + K, 1 + K) is the sum of the outer products of the scores: the
    expected curvature if the model is correct.
    """
    log_evidence, by_rho, *by_model = gradient(tau * deviation)
    by_parameter = np.stack([0.5 + by_rho, *by_model])
    counted = by_parameter * count
    return float(count @ log_evidence), counted.sum(axis=1), counted @ by_parameter.T


def scoring_step(
    place: Array, gradient: Array, curvature: Array, low: Array, high: Array, damping: float, longest: float
) -> Array:
    """The parameters (K,) after one step of Newton scoring within limits: solve with the curvature plus a ridge.

    Parameters at a limit are fixed if the gradient points beyond it; no step is longer than ``longest``.
    """
    free = ~((place <= low) & (gradient < 0) | (place >= high) & (gradient > 0))
    if not free.any():
        return place
    matrix, own = curvature[np.ix_(free, free)], np.diag(curvature)[free]
    step = np.zeros(place.size)
    ridge = damping * own + 1e-10 * own.max() + 1e-300
    step[free] = np.linalg.solve(matrix + np.diag(ridge), gradient[free])
    return np.clip(place + np.clip(step, -longest, longest), low, high)


def corrected(curvature: Array, step: Array, drop: Array) -> Array:
    """The curvature (K, K) after a BFGS update with the ``drop`` of the gradient along a step."""
    along = curvature @ step
    if not (drop @ step > 0.0 and along @ step > 0.0):
        return curvature
    return curvature - np.outer(along, along) / (along @ step) + np.outer(drop, drop) / (drop @ step)


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Gaussian rows with precision matrices P_i and linear terms h_i: cov_i = P_i⁻¹, mean_i = cov_i h_i, ln|cov_i|.

    Solved by Cholesky after scaling each precision to unit diagonal, which preserves accuracy for components of very
    different strength. ``precision`` is (I, R, R) or (1, R, R); ``linear`` is (I, R).
    """
    spread = 1.0 / np.sqrt(np.einsum("irr->ir", precision))
    scaled = precision * spread[:, :, None] * spread[:, None, :]
    lower = _cholesky(scaled)
    half = np.linalg.inv(lower) * spread[:, None, :]
    cov = half.transpose(0, 2, 1) @ half
    shared = precision.shape[0] != linear.shape[0]
    mean = linear @ cov[0] if shared else np.einsum("irs,is->ir", cov, linear)
    return mean, cov, 2.0 * (np.log(spread) - np.log(np.einsum("irr->ir", lower))).sum(axis=1)


def _cholesky(scaled: Array) -> Array:
    """Cholesky factors (I, R, R) of precisions of unit diagonal, even where rounding made some indefinite."""
    little = 4 * scaled.shape[-1] * float(np.finfo(float).eps)
    for jitter in (0.0, little):  # numerically singular: components with the same values at the observed entries
        with suppress(np.linalg.LinAlgError):
            return np.asarray(np.linalg.cholesky(scaled + jitter * np.eye(scaled.shape[-1])), dtype=np.float64)
    # a component weaker than others by more than float precision is not determined
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(values, 4 * little * values[:, -1:])
    return np.linalg.cholesky((vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1))


def solve_truncated(precision: Array, linear: Array, location: Array) -> Array:
    """Locations of rows of truncated normals, by their definition."""
    return truncated.solve_truncated(precision, linear, location)


def khatri_rao(matrices: Sequence[Array]) -> Array:
    """Column-wise Kronecker product; rows run in C order over the given modes."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = _combine(product, matrix)
    return product


def transposed_khatri_rao(matrices: Sequence[Array]) -> Array:
    """The transposed Khatri–Rao product (C, Π I) of matrices (I, C)."""
    product, *others = (np.ascontiguousarray(matrix.T) for matrix in matrices)
    for other in others:
        product = (product[:, :, None] * other[:, None, :]).reshape(len(product), -1)
    return product


def _combine(rows: Array, matrix: Array) -> Array:
    return (rows[:, None, :] * matrix[None, :, :]).reshape(len(rows) * len(matrix), matrix.shape[1])


def as_matrix(matrices: list[Array]) -> tuple[list[Array], list[Array]]:
    """A dense block as a matrix, leading modes as rows and the others as columns, as square as possible.

    Khatri–Rao products are then cheap compared with the product with the block, even where modes are short.
    """
    n_leading = _n_leading(tuple(map(len, matrices)))
    return matrices[:n_leading], matrices[n_leading:]


@lru_cache(maxsize=256)
def _n_leading(lengths: tuple[int, ...]) -> int:
    return min(range(1, len(lengths)), key=lambda k: math.prod(lengths[:k]) + math.prod(lengths[k:]))


def rows_of_block(block: Block, matrices: Sequence[Array]) -> list[Array]:
    return [matrices[0][block.rows], *matrices[1:]]


def _gathered_product(coords: NDArray[np.intp], matrices: Sequence[Array]) -> Array:
    product = np.take(matrices[0], coords[0], axis=0)
    for matrix, index in zip(matrices[1:], coords[1:], strict=True):
        product *= np.take(matrix, index, axis=0)
    return product


def block_entries(block: Block, dense: Array) -> Array:
    return dense.ravel() if block.mask is None else dense.reshape(block.mask.shape)[block.mask]


def dense_block(block: Block, entry_values: Array) -> Array:
    """The block as a dense array (rows of mode 0, I_1, …), zero at missing entries."""
    shape = (block.n_rows, *block.shape[1:])
    if block.mask is None:
        return entry_values.reshape(shape)
    dense = np.zeros(shape)
    dense[block.mask] = entry_values
    return dense
