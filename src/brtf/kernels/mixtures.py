"""Loops over entries whose outliers have structure: shared, replacing the data, one-sided, or of a rate per slice."""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.entries import LARGEST_RHO, PIECE, gather, scatter, search_segments
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.tiles import (
    add_to_slices,
    add_transposed,
    multiply_tile,
    of_rows,
    solve_tile,
    spread,
    tile_rows,
    whole_rows,
)
from brtf.kernels.vectors import locate


@loop
def soften(odds, share, softened):
    """The logistic function of log odds and ln(1 + e^odds), by polynomials, so that the loop vectorizes.

    e^−|odds| is 2^k e^r with |r| ≤ ½ ln 2: k is in the low bits of k + 1.5·2⁵², and e^r is its series. With
    t = e^−|odds|, ln(1 + t) is twice the series of artanh at t/(2 + t) ≤ 1/3.
    """
    bits = softened.view(np.int64)
    for m in range(odds.size):
        exponent = -abs(odds[m])
        exponent = exponent if exponent > -700.0 else -700.0
        k = np.floor(exponent * 1.4426950408889634 + 0.5)
        r = (exponent - k * 0.6931471803691238) - k * 1.9082149292705877e-10
        series = 1.6059043836821613e-10
        series = 2.08767569878681e-09 + r * series
        series = 2.505210838544172e-08 + r * series
        series = 2.755731922398589e-07 + r * series
        series = 2.7557319223985893e-06 + r * series
        series = 2.48015873015873e-05 + r * series
        series = 0.0001984126984126984 + r * series
        series = 0.001388888888888889 + r * series
        series = 0.008333333333333333 + r * series
        series = 0.041666666666666664 + r * series
        series = 0.16666666666666666 + r * series
        series = 0.5 + r * series
        share[m] = 1.0 + r * (1.0 + r * series)
        softened[m] = k + 6755399441055744.0
    for m in range(odds.size):
        bits[m] = (bits[m] + 1023) << 52
    for m in range(odds.size):
        small = share[m] * softened[m]
        s = np.divide(small, 2.0 + small)  # unlike /, this does not check for zero
        q = s * s
        series = 1.0 / 31.0
        series = 1.0 / 29.0 + q * series
        series = 1.0 / 27.0 + q * series
        series = 1.0 / 25.0 + q * series
        series = 1.0 / 23.0 + q * series
        series = 1.0 / 21.0 + q * series
        series = 1.0 / 19.0 + q * series
        series = 1.0 / 17.0 + q * series
        series = 1.0 / 15.0 + q * series
        series = 1.0 / 13.0 + q * series
        series = 1.0 / 11.0 + q * series
        series = 1.0 / 9.0 + q * series
        series = 1.0 / 7.0 + q * series
        series = 0.2 + q * series
        series = 1.0 / 3.0 + q * series
        likely = np.divide(1.0, 1.0 + small)
        share[m] = likely if odds[m] > 0.0 else small * likely
        larger = odds[m] if odds[m] > 0.0 else 0.0
        softened[m] = larger + 2.0 * s * (1.0 + q * series)


@sum_loop
def _look_up_branches(rho, places, fractions, joined, spike, slab, beyond, found):
    """ln f and w of both branches, whose tables share their segments; ``joined`` has the cubics of both."""
    log_spike, spike_weight, log_slab, slab_weight = found
    cubics, slopes = joined
    n_beyond = 0
    for m in range(rho.size):
        place = places[m]
        n_beyond += place == beyond
        t, slope = np.float64(fractions[m]), slopes[place]
        c0, c1, c2, c3 = cubics[place, 0], cubics[place, 1], cubics[place, 2], cubics[place, 3]
        log_spike[m] = c0 + t * (c1 + t * (c2 + t * c3))
        spike_weight[m] = slope * (c1 + t * (2.0 * c2 + 3.0 * t * c3))
        c0, c1, c2, c3 = cubics[place, 4], cubics[place, 5], cubics[place, 6], cubics[place, 7]
        log_slab[m] = c0 + t * (c1 + t * (c2 + t * c3))
        slab_weight[m] = slope * (c1 + t * (2.0 * c2 + 3.0 * t * c3))
    if n_beyond:
        for m in range(rho.size):
            if places[m] == beyond:
                own = min(np.float64(rho[m]), LARGEST_RHO)
                log_spike[m], spike_weight[m] = search_segments(own, spike)
                log_slab[m], slab_weight[m] = search_segments(own, slab)


@sum_loop
def _replace_slab(values, per_scale, law, log_counted, log_slab, slab_weight):
    """Replace the slab by ln h(y) minus the constant of the noise; its weight is zero."""
    log_law, law_range = law
    for m in range(values.size):
        place = int((np.float64(values[m] * per_scale) - law_range[0]) * law_range[1])
        log_slab[m] = log_law[min(max(place, 0), log_law.size - 1)] - log_counted[m]
        slab_weight[m] = 0.0


@loop
def _weigh_branches(log_slab, log_spike, larger, odds):
    """The larger of two branches and their log odds, neither from the other: nothing cancels where both are huge."""
    for m in range(odds.size):
        slab, spike = log_slab[m], log_spike[m]
        larger[m] = max(slab, spike)
        odds[m] = slab - spike


@loop
def _evidence_of(larger, odds, softened):
    """Σ ln(e^spike + e^slab) from the larger branch, the log odds, and ln(1 + e^odds)."""
    total = 0.0
    for m in range(odds.size):
        total += larger[m] + (softened[m] - max(odds[m], 0.0))
    return total


@sum_loop
def _share_odds(log_rates, log_spike, log_slab, groups, n_rows, n_channels, odds, larger):
    """Log odds of every group in every row, and ln f of its larger branch: sums over its entries, divided by χ."""
    n_groups, n_columns = larger.size // n_rows, groups.size
    odds[:], larger[:] = 0.0, 0.0
    for i in range(n_rows):
        for c in range(n_columns):
            m, place = i * n_columns + c, i * n_groups + groups[c]
            odds[place] += log_slab[m]
            larger[place] += log_spike[m]
    for place in range(odds.size):
        odds[place] = odds[place] / n_channels + log_rates[0, 0]
        larger[place] = larger[place] / n_channels + log_rates[1, 0]
    _weigh_branches(odds, larger, larger, odds)


@sum_loop
def _add_groups(rho, left, outlier, clipped, groups, n_rows, n_groups, others):
    """Add Σ p, the number of groups, and the sums that give the correlation of clipped residuals within groups."""
    sums, n_columns = np.zeros(n_groups), groups.size
    for i in range(n_rows):
        sums[:] = 0.0
        for c in range(n_columns):
            m = i * n_columns + c
            if outlier[m] < 0.5:
                own = min(math.sqrt(rho[m]), clipped)
                sums[groups[c]] += own if left[m] >= 0.0 else -own
                others[3] += own * own
        for group in range(n_groups):
            others[2] += sums[group] * sums[group]


@sum_loop
def _find_branches(data, per_scale, left, rho, log_counted, table, branches, scratch):
    """ln f and w of both branches of a piece, whose ρ is padded to whole vectors; returns the largest ρ."""
    slab, joined, log_sides, law = branches
    (quadratics, bits), spike, _ = table
    places, fractions, _, _, log_spike, spike_weight, log_slab, slab_weight = scratch
    n, beyond = left.size, len(quadratics) - 1
    rho[n:] = 0.0
    shift = rho.dtype.type(2.0 ** spike[3])
    largest = locate(rho, rho.size, shift, bits, beyond, places, fractions)
    found = log_spike[:n], spike_weight[:n], log_slab[:n], slab_weight[:n]
    _look_up_branches(rho[:n], places, fractions, joined, spike, slab, beyond, found)
    if law[0].size:
        _replace_slab(data, per_scale, law, log_counted, log_slab, slab_weight)
    if log_sides[0] != log_sides[1]:
        for m in range(n):
            log_slab[m] += log_sides[0] if left[m] >= 0.0 else log_sides[1]
    return np.float64(largest)


@sum_loop
def _mix(log_rest, odds, log_spike, log_slab, outlier, softened):
    """Responsibilities from ln(1 − π) and ln π, which are overwritten; returns Σ ln f and Σ p."""
    for m in range(odds.size):
        log_rest[m] += log_spike[m]
        odds[m] += log_slab[m]
    _weigh_branches(odds, log_rest, log_rest, odds)
    soften(odds, outlier, softened)
    n_outliers = 0.0
    for m in range(odds.size):
        n_outliers += outlier[m]
    return _evidence_of(log_rest, odds, softened), n_outliers


@sum_loop
def _tally(data, per_scale, left, rho, outlier, tau, bins, law, scratch, structured):
    """Add the entries of a piece to the bins, to the law of replaced values, and to the sides."""
    deviation, binned, sided = scratch[2], scratch[3], structured.positive.size > 0
    for m in range(left.size):
        deviation[m] = min(np.float64(rho[m]), LARGEST_RHO) / tau
    pattern, last = deviation.view(np.int64), len(binned) - 1
    for m in range(left.size):
        own, regular = binned[min(max((pattern[m] >> bins[0]) - bins[1], 0), last)], 1.0 - outlier[m]
        own[0] += 1.0
        own[1] += deviation[m]
        own[2] += regular
        own[3] += regular * deviation[m]
        own[4] += outlier[m]
        own[5] += outlier[m] * deviation[m]
        own[6] += left[m] >= 0.0
    if law[0].size:
        for m in range(left.size):
            place = int((np.float64(data[m] * per_scale) - law[1][0]) * law[1][1])
            structured.law[min(max(place, 0), law[0].size - 1)] += outlier[m]
    if sided:
        positive, negative = 0.0, 0.0
        for m in range(left.size):
            positive += outlier[m] if left[m] >= 0.0 else 0.0
            negative += 0.0 if left[m] >= 0.0 else outlier[m]
        structured.sides[0] += positive
        structured.sides[1] += negative


@loop
def _mixture_scratch(usual, dtype_of, size, n_bins):
    """Scratch arrays of a mixture for pieces of ``size`` entries, padded, and bins of D for all, regular, outliers."""
    places, fractions = np.empty(size, usual[1].dtype), np.empty(size, dtype_of.dtype)
    reals = np.empty((4, size))
    return places, fractions, np.empty(size), np.zeros((n_bins, 8)), reals[0], reals[1], reals[2], reals[3]


@loop
def _settle_mixture(binned, histogram, structured):
    """Add the bins to the histograms: all entries, regular ones, outliers, and the number of positive residuals."""
    for place in range(len(binned)):
        own = binned[place]
        histogram[0][place] += own[0]
        histogram[1][place] += own[1]
        for k in range(4):
            structured[k][place] += own[2 + k]
        if structured.positive.size:
            structured.positive[place] += own[6]


@sum_loop
def _complete_mixture(values, first, per_scale, per_weight, tau, table, noise, mixture, outer, scratch, room, fitted):
    """Σ ln f, Σ w and the largest ρ of a tile of rows from ``first`` on, under a mixture of two branches.

    Overwrites the low-rank part by ω̄ times the completed data. ``outer`` are the sums of slices and of the mixture.
    """
    relative, rows, columns, by_row = noise
    branches, log_rates, rate_rows, rate_columns, by_rate_row, log_counted, groups, n_channels, clipped = mixture
    squares, replaced, structured = outer
    log_spike, spike_weight, log_slab, slab_weight = scratch[4], scratch[5], scratch[6], scratch[7]
    (rho, factor, left_room), (outlier, odds, softened, log_rest, amounts) = room
    law, kind, n_columns = branches[3], values.dtype.type, columns.size
    n_groups = groups.max() + 1 if groups.size else 0
    precision, together = kind(tau), max(1, PIECE // n_columns)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), together):
        stop = min(start + together, len(values))
        n = (stop - start) * n_columns
        data, fit, left = values[start:stop].reshape(n), fitted[start:stop].reshape(n), left_room[:n]
        own_rows, own_rate_rows = rows[first + start : first + stop], rate_rows[first + start : first + stop]
        spread(relative, own_rows, columns, by_row, factor)
        for m in range(n):
            left[m] = data[m] * per_scale - fit[m]
            rho[m] = precision * factor[m] * (left[m] * left[m])
        if law[0].size:
            if log_counted.size == 1:
                amounts[:n] = log_counted[0]
            else:
                spread(log_counted, own_rows, columns, by_row, amounts)
        padded = rho[: -(-n // 8) * 8]
        largest = max(largest, _find_branches(data, per_scale, left, padded, amounts, table, branches, scratch))
        if n_groups:
            n_shared = (stop - start) * n_groups
            rest, own_odds, soft, share = log_rest[:n_shared], odds[:n_shared], softened[:n_shared], amounts[:n_shared]
            _share_odds(log_rates, log_spike, log_slab, groups, stop - start, n_channels, own_odds, rest)
            soften(own_odds, share, soft)
            total += n_channels * _evidence_of(rest, own_odds, soft)
            for k in range(n_shared):
                structured.groups[0] += share[k]
            structured.groups[1] += n_shared
            for i in range(stop - start):
                for c in range(n_columns):
                    outlier[i * n_columns + c] = share[i * n_groups + groups[c]]
            _add_groups(rho, left, outlier, clipped, groups, stop - start, n_groups, structured.groups)
        else:
            spread(log_rates[1], own_rate_rows, rate_columns, by_rate_row, log_rest)
            spread(log_rates[0], own_rate_rows, rate_columns, by_rate_row, odds)
            own_total, n_outliers = _mix(log_rest[:n], odds[:n], log_spike, log_slab, outlier[:n], softened[:n])
            total += own_total
            structured.groups[0] += n_outliers
            structured.groups[1] += n
        for m in range(n):
            weight = spike_weight[m] + outlier[m] * (slab_weight[m] - spike_weight[m])
            fit[m] = factor[m] * (fit[m] + kind(weight) * per_weight * left[m])
            weight_sum += weight
            amounts[m] = rho[m] * weight
        _tally(data, per_scale, left, rho, outlier, tau, table[2], law, scratch, structured)
        if squares.size:
            add_to_slices(amounts, own_rows, columns, by_row, squares)
        if replaced.size and law[0].size:
            add_to_slices(outlier, own_rows, columns, by_row, replaced)
        if structured.rates.size:
            add_to_slices(outlier, own_rate_rows, rate_columns, by_rate_row, structured.rates)
    return total, weight_sum, largest


@sum_loop
def solve_mixture(
    values, left, right, per_scale, per_weight, tau, table, noise, mixture, covs, offset, histogram, outer, mean, sums
):
    """Form 1 tile by tile, as in :func:`solve_completed`, for entries with a mixture of two branches."""
    n_columns, tile = values.shape[1], tile_rows(values)
    n_room = whole_rows(n_columns)[1]
    scratch = _mixture_scratch(table[0], values, n_room, histogram[0].size)
    reals, more = np.empty((3, n_room), values.dtype), np.empty((5, n_room))
    room = (reals[0], reals[1], reals[2]), (more[0], more[1], more[2], more[3], more[4])
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((len(right), n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), tile):
        stop = min(start + tile, len(values))
        own, fitted = values[start:stop], low_rank[: stop - start]
        multiply_tile(left[start:stop], right, fitted)
        found = _complete_mixture(
            own, start, per_scale, per_weight, tau, table, noise, mixture, outer, scratch, room, fitted
        )
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        solve_tile(start == 0, fitted, right, of_rows(covs, start, stop), offset, mean[start:stop], own_sums)
    add_transposed(own_sums, sums)
    _settle_mixture(scratch[3], histogram, outer[2])
    return total, weight_sum, largest


@sum_loop
def _deviate(residual, variance, factor, precision, rho):
    """ρ of the entries of a piece: precision times ω̄ times the squared residual plus the variance, if there is one."""
    if variance.size:
        for m in range(residual.size):
            rho[m] = precision * factor[m] * (residual[m] * residual[m] + variance[m])
    else:
        for m in range(residual.size):
            rho[m] = precision * factor[m] * (residual[m] * residual[m])


@loop
def _judge_groups(entries, tau, table, noise, mixture, scratch, room, share, others):
    """Σ ln f of all groups of entries that share an outlier indicator, and the responsibility of each."""
    values, residual, variance = entries
    relative, positions = noise
    branches, log_rates, _, log_counted, groups, n_channels, _ = mixture
    (rho, factor), (_, counted, _, _) = room
    log_spike, log_slab = scratch[4], scratch[6]
    odds, larger, sizes = np.zeros(share.size), np.zeros(share.size), np.zeros(share.size)
    for start in range(0, residual.size, PIECE):
        stop = min(start + PIECE, residual.size)
        n, left = stop - start, residual[start:stop]
        gather(relative, positions[start:stop], factor[:n])
        gather(log_counted, positions[start:stop], counted[:n])
        _deviate(left, variance[start:stop], factor, residual.dtype.type(tau), rho)
        padded = rho[: -(-n // 8) * 8]
        _find_branches(values[start:stop], values.dtype.type(1.0), left, padded, counted, table, branches, scratch)
        for m in range(n):
            group = groups[start + m]
            odds[group] += log_slab[m]
            larger[group] += log_spike[m]
            sizes[group] += 1.0
    for group in range(share.size):
        odds[group] = odds[group] / n_channels + log_rates[0, 0]
        larger[group] = larger[group] / n_channels + log_rates[1, 0]
    _weigh_branches(odds, larger, larger, odds)
    softened, total = np.empty(share.size), 0.0
    soften(odds, share, softened)
    for group in range(share.size):
        if sizes[group] > 0.0:
            total += larger[group] + (softened[group] - max(odds[group], 0.0))
            others[0] += share[group]
            others[1] += 1.0
    return n_channels * total


@sum_loop
def judge_mixture(values, residual, variance, tau, table, noise, mixture, histogram, outer, scaled, weight, outlier):
    """Σ ln f, Σ w and the largest ρ of any entries under a mixture of two branches; stores weights and shares.

    ``noise`` are ω̄ of the slices and the slice of every entry; ``mixture`` has the slice and the group of every entry.
    """
    relative, positions = noise
    branches, log_rates, rate_positions, log_counted, groups, _, clipped = mixture
    squares, replaced, structured = outer
    law, kind = branches[3], residual.dtype.type
    scratch = _mixture_scratch(table[0], residual, PIECE, histogram[0].size)
    reals, more = np.empty((2, PIECE), residual.dtype), np.empty((4, PIECE))
    (rho, factor), room = (reals[0], reals[1]), (more[0], more[1], more[2], more[3])
    amounts, counted, log_rest, softened = room
    log_spike, spike_weight, log_slab, slab_weight = scratch[4], scratch[5], scratch[6], scratch[7]
    share = np.zeros(groups.max() + 1 if groups.size else 0)
    clipped_sums = np.zeros(share.size)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    if share.size:
        entries = values, residual, variance
        total = _judge_groups(
            entries, tau, table, noise, mixture, scratch, ((rho, factor), room), share, structured.groups
        )
    for start in range(0, residual.size, PIECE):
        stop = min(start + PIECE, residual.size)
        n, left, data, own = stop - start, residual[start:stop], values[start:stop], outlier[start:stop]
        gather(relative, positions[start:stop], factor[:n])
        gather(log_counted, positions[start:stop], counted[:n])
        _deviate(left, variance[start:stop], factor, kind(tau), rho)
        padded = rho[: -(-n // 8) * 8]
        found = _find_branches(data, values.dtype.type(1.0), left, padded, counted, table, branches, scratch)
        largest = max(largest, found)
        if share.size:
            for m in range(n):
                group = groups[start + m]
                own[m] = share[group]
                if own[m] < 0.5:
                    size = math.sqrt(tau * factor[m]) * left[m]
                    size = min(max(size, -clipped), clipped)
                    clipped_sums[group] += size
                    structured.groups[3] += size * size
        else:
            gather(log_rates[1], rate_positions[start:stop], log_rest[:n])
            gather(log_rates[0], rate_positions[start:stop], amounts[:n])
            own_total, n_outliers = _mix(log_rest[:n], amounts[:n], log_spike, log_slab, own, softened[:n])
            total += own_total
            structured.groups[0] += n_outliers
            structured.groups[1] += n
        for m in range(n):
            found_weight = spike_weight[m] + own[m] * (slab_weight[m] - spike_weight[m])
            scaled[start + m] = rho[m]
            weight[start + m] = found_weight
            weight_sum += found_weight
            amounts[m] = rho[m] * found_weight
        _tally(data, values.dtype.type(1.0), left, rho, own, tau, table[2], law, scratch, structured)
        if squares.size:
            scatter(amounts, positions[start:stop], squares)
        if replaced.size and law[0].size:
            scatter(own, positions[start:stop], replaced)
        if structured.rates.size:
            scatter(own, rate_positions[start:stop], structured.rates)
    for group in range(share.size):
        structured.groups[2] += clipped_sums[group] * clipped_sums[group]
    _settle_mixture(scratch[3], histogram, structured)
    return total, weight_sum, largest
