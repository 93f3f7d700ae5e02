"""Loops over entries: residual, weight, and histogram bin.

Tables and bins are passed as arguments, since compiled code is cached on disk as long as the files of loops are
unchanged, whatever constants other files define. ``table`` is (usual segments, all segments, bins), each a tuple of
arrays and numbers; ``histogram`` is (counts, totals).
"""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.jit import inlined, loop, sum_loop
from brtf.kernels.products import add_product, add_projections, multiply
from brtf.kernels.vectors import locate, locate_left, n_at_once, weigh, weigh_left

PIECE = 2048
"""Entries per piece in L1 cache: a few kilobytes per array."""
TILE_BYTES, LEAST_TILE = 2**19, 64
"""Bytes of a tile that is fitted, completed and contracted at once, and its fewest rows."""
LARGEST_THIN = 32
"""Largest rank at which the thin-matrix products here are faster than BLAS."""
NO_SHARES = np.empty(0)
"""Every entry counts in full."""
LARGEST_RHO = 1e38
"""Larger numbers overflow in single precision, and are counted as this."""


@inlined
def _cubic(rows, place, t):
    """ln f and w by the cubic of a segment, at a fraction t of it."""
    c1, c2, c3 = rows[place, 3], rows[place, 4], rows[place, 5]
    log_evidence = rows[place, 2] + t * (c1 + t * (c2 + t * c3))
    return log_evidence, -2.0 * rows[place, 1] * (c1 + t * (2.0 * c2 + 3.0 * t * c3))


@sum_loop
def _search(rho, uneven):
    """ln f and w by a search over all segments; beyond the last, ln f is a power of ρ."""
    rows, first, log2_segments, first_octave = uneven
    mantissa, exponent = math.frexp(rho + 2.0**first_octave)
    octave = exponent - 1 - first_octave
    if octave < first.size and np.isfinite(rho):
        place = first[octave] + int((2.0 * mantissa - 1.0) * (1 << log2_segments[octave]))
        return _cubic(rows, place, (rho - rows[place, 0]) * rows[place, 1])
    end, fall = rows[-1, 0], rows[-1, 0] * rows[-1, 3]
    return rows[-1, 2] + fall * np.log(rho / end), -2.0 * fall / rho


@sum_loop
def look_up(rho, table, log_evidence, weight):
    """ln f and w of entries in double precision."""
    (quadratics, bits), uneven, _ = table
    rows, shift, beyond = uneven[0], 2.0 ** uneven[3], len(quadratics) - 1
    places, fractions = np.empty(PIECE, bits.dtype), np.empty(PIECE)
    n_whole = rho.size - rho.size % n_at_once(rho)
    for start in range(0, n_whole, PIECE):
        stop = min(start + PIECE, n_whole)
        part, found, slopes = rho[start:stop], log_evidence[start:stop], weight[start:stop]
        locate(part, part.size, shift, bits, beyond, places, fractions)
        for m in range(part.size):
            if places[m] < beyond:
                found[m], slopes[m] = _cubic(rows, places[m], fractions[m])
            else:
                found[m], slopes[m] = _search(part[m], uneven)
    for m in range(n_whole, rho.size):
        log_evidence[m], weight[m] = _search(rho[m], uneven)


@inlined
def _scratch(rho, usual, size):
    """Scratch arrays for a piece of ``size`` entries, and zero counts of the usual segments."""
    quadratics, bits = usual
    places, fractions, step = np.empty(size, bits.dtype), np.empty(size, rho.dtype), np.empty((2, 8), rho.dtype)
    others, seen = np.empty(size + 1, np.int64), np.zeros(len(quadratics), np.int64)
    return places, fractions, step, np.empty((2, size)), others, seen


@sum_loop
def _weigh(rho, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of a piece; stores the weights.

    Entries in usual segments are counted per segment, and c₀ is left out of their ln f. There are no branches per
    entry; entries beyond the usual segments are processed again afterwards.
    """
    n_rest = rho.size % n_at_once(rho)
    n_whole = rho.size - n_rest
    total, weight_sum, largest = _weigh_steps(rho[:n_whole], n_whole, tau, table, histogram, scratch, weight)
    if n_rest:
        rest, found = _filled(rho[n_whole:], scratch[2][0]), scratch[2][1]
        sums = _weigh_steps(rest, n_rest, tau, table, histogram, scratch, found)
        _put(found, n_rest, weight[n_whole:])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total, weight_sum, largest


@sum_loop
def _weigh_steps(rho, n, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of whole vectors; the entries after the first ``n`` are padding."""
    (quadratics, bits), uneven, _ = table
    places, fractions, _, room, others, seen = scratch
    own, found = room[0], room[1]
    beyond = len(quadratics) - 1
    n_before = seen[beyond]
    largest = locate(rho, rho.size, rho.dtype.type(2.0 ** uneven[3]), bits, beyond, places, fractions)
    total, weight_sum = weigh(places, rho.size, fractions, quadratics, seen, weight)
    if seen[beyond] > n_before:
        n_others = _list(places[:n], beyond, others)
        for k in range(n_others):
            own[k] = rho[others[k]]
        total += _weigh_others(own[:n_others], tau, table, histogram, found)
        for k in range(n_others):
            weight[others[k]] = found[k]
            weight_sum += found[k]
    return total, weight_sum, np.float64(largest)


@inlined
def _filled(entries, step):
    """Fewer entries than a vector has, padded to a whole vector."""
    step[:] = np.nan
    _put(entries, entries.size, step)
    return step[: n_at_once(entries)]


@inlined
def _put(numbers, n, out):
    """Copy the first ``n`` numbers; an assignment of slices takes seconds to compile, with its error messages."""
    for m in range(n):
        out[m] = numbers[m]


@inlined
def _list(places, wanted, found):
    """List the positions of the wanted place in ``found``, which has one element of padding; returns their number."""
    n_found = 0
    for m in range(places.size):
        found[n_found] = m
        n_found += places[m] == wanted
    return n_found


@inlined
def _weigh_others(rho, tau, table, histogram, weight):
    """Σ ln f of entries beyond the usual segments; stores their weights and counts them one by one."""
    _, uneven, bins = table
    total = 0.0
    for k in range(rho.size):
        log_evidence, weight[k] = _search(min(rho[k], LARGEST_RHO), uneven)
        total += log_evidence
        rho[k] = min(rho[k], LARGEST_RHO) / tau
    count(rho.view(np.int64), rho, bins, histogram, weight[:0])
    return total


@inlined
def _settle(seen, tau, uneven, bins, histogram):
    """Σ c₀ of the entries in usual segments; adds them to the histogram at the middle of their segments."""
    rows = uneven[0]
    deviation, share = np.empty(seen.size), np.empty(seen.size)
    n_used, total = 0, 0.0
    for place in range(seen.size - 1):
        row = rows[place]
        deviation[n_used] = (row[0] + 0.5 / row[1]) / tau
        share[n_used] = seen[place]
        total += seen[place] * row[2]
        n_used += seen[place] > 0
    own = deviation[:n_used]
    count(own.view(np.int64), own, bins, histogram, share[:n_used])
    return total


@sum_loop
def judge(residual, variance, relative, tau, table, histogram, rho, weight):
    """Σ ln f, Σ w and the largest ρ, in pieces that stay in L1 cache."""
    usual, uneven, bins = table
    scratch = _scratch(rho, usual, PIECE)
    precision = rho.dtype.type(tau)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, residual.size, PIECE):
        n = min(PIECE, residual.size - start)
        part, own = residual[start : start + n], rho[start : start + n]
        if variance.size:
            spread = variance[start : start + n]
            for m in range(n):
                own[m] = precision * (part[m] * part[m] + spread[m])
        else:
            for m in range(n):
                own[m] = precision * (part[m] * part[m])
        if relative.size:
            factor = relative[start : start + n]
            for m in range(n):
                own[m] *= factor[m]
        sums = _weigh(own, tau, table, histogram, scratch, weight[start : start + n])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@sum_loop
def _complete_steps(values, fitted, n, per_scale, per_weight, tau, table, histogram, scratch):
    """Σ ln f, Σ w and the largest ρ of whole vectors of complete data; overwrites the low-rank part by the completed
    data. The entries after the first ``n`` are padding."""
    (quadratics, bits), uneven, _ = table
    places, fractions, _, room, others, seen = scratch
    own, found = room[0], room[1]
    kind, beyond = values.dtype.type, len(quadratics) - 1
    n_before, size = seen[beyond], values.size
    shift = kind(2.0 ** uneven[3])
    largest = locate_left(values, size, fitted, per_scale, kind(tau), shift, bits, beyond, places, fractions)
    total, weight_sum = weigh_left(places, size, fractions, quadratics, seen, values, fitted, per_scale, per_weight)
    if seen[beyond] > n_before:  # their weights are still zero
        n_others = _list(places[:n], beyond, others)
        for k in range(n_others):
            own[k] = tau * np.float64(values[others[k]] * per_scale - fitted[others[k]]) ** 2
        total += _weigh_others(own[:n_others], tau, table, histogram, found)
        for k in range(n_others):
            left = values[others[k]] * per_scale - fitted[others[k]]
            fitted[others[k]] += kind(found[k]) * per_weight * left
            weight_sum += found[k]
    return total, weight_sum, np.float64(largest)


@sum_loop
def _complete(values, per_scale, per_weight, tau, table, histogram, scratch, fitted):
    """Σ ln f, Σ w and the largest ρ of any number of entries, completed in place, in pieces that stay in L1 cache."""
    total, weight_sum, largest = 0.0, 0.0, 0.0
    n_rest = values.size % n_at_once(values)
    n_whole = values.size - n_rest
    for start in range(0, n_whole, PIECE):
        stop = min(start + PIECE, n_whole)
        own = values[start:stop], fitted[start:stop]
        sums = _complete_steps(*own, stop - start, per_scale, per_weight, tau, table, histogram, scratch)
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    if n_rest:
        rest = _filled(values[n_whole:], scratch[2][0]), _filled(fitted[n_whole:], scratch[2][1])
        sums = _complete_steps(*rest, n_rest, per_scale, per_weight, tau, table, histogram, scratch)
        _put(rest[1], n_rest, fitted[n_whole:])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total, weight_sum, largest


@loop
def _spread(per_slice, rows, columns, by_row, out):
    """Values of the slices spread over the entries of whole rows, flat."""
    n_columns = columns.size
    for i in range(rows.size):
        own = out[i * n_columns : (i + 1) * n_columns]
        if by_row:
            own[:] = per_slice[rows[i]]
        else:
            for c in range(n_columns):
                own[c] = per_slice[rows[i] + columns[c]]


@sum_loop
def _add_to_slices(amounts, rows, columns, by_row, out):
    """Add flat amounts of whole rows to the sums of their slices."""
    n_columns = columns.size
    for i in range(rows.size):
        own = amounts[i * n_columns : (i + 1) * n_columns]
        if by_row:
            total = 0.0
            for c in range(n_columns):
                total += own[c]
            out[rows[i]] += total
        else:
            place, total = rows[i] + columns[0], 0.0
            for c in range(n_columns):
                if rows[i] + columns[c] != place:
                    out[place] += total
                    place, total = rows[i] + columns[c], 0.0
                total += own[c]
            out[place] += total


@loop
def _whole_rows(n_columns):
    """Rows per piece, at least one, and the size of such a piece padded to whole vectors."""
    n_rows = max(1, PIECE // n_columns)
    return n_rows, -(-n_rows * n_columns // 8) * 8


@sum_loop
def _complete_slices(
    values, first, per_scale, per_weight, tau, table, noise, histogram, squares, scratch, room, fitted
):
    """Σ ln f, Σ w and the largest ρ of a tile of rows from ``first`` on, where the noise of slices differs.

    Overwrites the low-rank part by ω̄ times the completed data, and adds Σ ρ w to the squares of each slice.
    """
    relative, rows, columns, by_row = noise
    factor, rho, weight = room[0], room[1], room[2]
    kind = values.dtype.type
    precision, together = kind(tau), max(1, PIECE // columns.size)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), together):
        stop = min(start + together, len(values))
        n = (stop - start) * columns.size
        data, fit, own = values[start:stop].reshape(n), fitted[start:stop].reshape(n), rho[:n]
        places = rows[first + start : first + stop]
        _spread(relative, places, columns, by_row, factor)
        for m in range(n):
            left = data[m] * per_scale - fit[m]
            own[m] = precision * factor[m] * (left * left)
        sums = _weigh(own, tau, table, histogram, scratch, weight[:n])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        for m in range(n):
            left = data[m] * per_scale - fit[m]
            fit[m] = factor[m] * (fit[m] + weight[m] * per_weight * left)
            own[m] *= weight[m]
        _add_to_slices(own, places, columns, by_row, squares)
    return total, weight_sum, largest


@loop
def _tile_rows(values):
    """Rows per tile."""
    n_rows, n_columns = values.shape
    n_tiles = max(1, round(n_rows / max(LEAST_TILE, TILE_BYTES / (n_columns * values.itemsize))))
    return -(-n_rows // n_tiles)


@sum_loop
def _solve_tile(fresh, targets, right, covs, offset, mean, sums):
    """Solve for the new rows of a tile, and add targets times rows to the sums, or store them if these are ``fresh``.

    ``covs`` is one matrix (R, R) as a single row, or the packed upper half of one for each row.
    """
    linear = _projections(targets, right) + offset
    n_rows, rank = linear.shape
    if len(covs) == 1 and covs.shape[1] == rank * rank:
        solved = np.dot(linear, covs.reshape(rank, rank))
    else:
        solved = np.zeros((n_rows, rank), linear.dtype)
        for i in range(n_rows):
            k = 0
            for r in range(rank):
                total = covs[i, k] * linear[i, r]
                k += 1
                for s in range(r + 1, rank):
                    total += covs[i, k] * linear[i, s]
                    solved[i, s] += covs[i, k] * linear[i, r]
                    k += 1
                solved[i, r] += total
    mean[:] = solved
    _add_product(fresh, solved.T.copy(), targets, sums)


@sum_loop
def _add_transposed(own_sums, sums):
    for column in range(own_sums.shape[1]):
        for component in range(len(own_sums)):
            sums[column, component] += own_sums[component, column]


@loop
def _of_rows(covs, start, stop):
    """Covariances of some rows, or the one of all."""
    return covs if len(covs) == 1 else covs[start:stop]


@sum_loop
def solve_completed(
    values, left, right, per_scale, per_weight, tau, table, noise, covs, offset, histogram, squares, mean, sums
):
    """Form 1 tile by tile: low-rank part, completed data, their product with the other modes, new rows, sums."""
    usual, uneven, bins = table
    n_columns, tile, sliced = values.shape[1], _tile_rows(values), noise[0].size > 0
    n_room = max(PIECE, _whole_rows(n_columns)[1]) if sliced else PIECE
    scratch, room = _scratch(values, usual, n_room), np.empty((3, n_room if sliced else 0), values.dtype)
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((len(right), n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), tile):
        stop = min(start + tile, len(values))
        own, fitted = values[start:stop], low_rank[: stop - start]
        _multiply(left[start:stop], right, fitted)
        if sliced:
            found = _complete_slices(
                own, start, per_scale, per_weight, tau, table, noise, histogram, squares, scratch, room, fitted
            )
        else:
            flat = own.reshape(own.size), fitted.reshape(own.size)
            found = _complete(flat[0], per_scale, per_weight, tau, table, histogram, scratch, flat[1])
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        _solve_tile(start == 0, fitted, right, _of_rows(covs, start, stop), offset, mean[start:stop], own_sums)
    _add_transposed(own_sums, sums)
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@loop
def _soften(odds, share, softened):
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
def _look_up_branches(rho, places, fractions, spike, slab, beyond, found):
    """ln f and w of both branches, whose tables share their segments."""
    log_spike, spike_weight, log_slab, slab_weight = found
    for m in range(rho.size):
        place = places[m]
        if place < beyond:
            t = np.float64(fractions[m])
            log_spike[m], spike_weight[m] = _cubic(spike[0], place, t)
            log_slab[m], slab_weight[m] = _cubic(slab[0], place, t)
        else:
            own = min(np.float64(rho[m]), LARGEST_RHO)
            log_spike[m], spike_weight[m] = _search(own, spike)
            log_slab[m], slab_weight[m] = _search(own, slab)


@sum_loop
def _replace_slab(values, per_scale, law, log_counted, log_slab, slab_weight):
    """Replace the slab by ln h(y) minus the constant of the noise; its weight is zero."""
    log_law, law_range = law
    for m in range(values.size):
        place = int((np.float64(values[m] * per_scale) - law_range[0]) * law_range[1])
        log_slab[m] = log_law[min(max(place, 0), log_law.size - 1)] - log_counted[m]
        slab_weight[m] = 0.0


@sum_loop
def _share_odds(log_odds, log_spike, log_slab, groups, n_rows, n_channels, odds, log_together):
    """Log odds and ln f of the noise of every group in every row: sums over its entries, divided by κ."""
    n_groups, n_columns = log_together.size // n_rows, groups.size
    odds[:], log_together[:] = 0.0, 0.0
    for i in range(n_rows):
        for c in range(n_columns):
            m, place = i * n_columns + c, i * n_groups + groups[c]
            odds[place] += log_slab[m] - log_spike[m]
            log_together[place] += log_spike[m]
    for place in range(odds.size):
        odds[place] = odds[place] / n_channels + log_odds
        log_together[place] /= n_channels


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


@loop
def _count_one(deviation, amount, bins, counts, totals):
    """Add an amount to the bin of one D; ``deviation`` holds that number alone."""
    place = min(max((deviation.view(np.int64)[0] >> bins[0]) - bins[1], 0), counts.size - 1)
    counts[place] += amount
    totals[place] += amount * deviation[0]


@sum_loop
def _complete_mixture(
    values, first, per_scale, per_weight, tau, table, noise, mixture, histogram, outer, scratch, room, fitted
):
    """Σ ln f, Σ w and the largest ρ of a tile of rows from ``first`` on, under a mixture of two branches.

    Overwrites the low-rank part by ω̄ times the completed data. ``outer`` are the sums of slices and of the mixture.
    """
    relative, rows, columns, by_row = noise
    slab, log_rates, rate_rows, rate_columns, by_rate_row, log_sides, law, log_counted, groups, n_channels, clipped = (
        mixture
    )
    squares, replaced, structured = outer
    (quadratics, bits), spike, bins = table
    places, fractions, seen, n_above, outlying, rho, factor, left, log_spike, spike_weight, log_slab, slab_weight = (
        scratch
    )
    outlier, odds, softened, log_rest, amounts = room
    kind, beyond, n_columns = values.dtype.type, len(quadratics) - 1, columns.size
    n_groups = groups.max() + 1 if groups.size else 0
    replaces, sided, one = law[0].size > 0, log_sides[0] != log_sides[1], np.empty(1)
    precision, shift, together = kind(tau), kind(2.0 ** spike[3]), max(1, PIECE // n_columns)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), together):
        stop = min(start + together, len(values))
        n = (stop - start) * n_columns
        n_steps = -(-n // 8) * 8
        data, fit = values[start:stop].reshape(n), fitted[start:stop].reshape(n)
        own_rows, own_rate_rows = rows[first + start : first + stop], rate_rows[first + start : first + stop]
        _spread(relative, own_rows, columns, by_row, factor)
        rho[n:n_steps] = 0.0
        for m in range(n):
            left[m] = data[m] * per_scale - fit[m]
            rho[m] = precision * factor[m] * (left[m] * left[m])
        own_largest = locate(rho, n_steps, shift, bits, beyond, places, fractions)
        largest = max(largest, np.float64(own_largest))
        branches = log_spike[:n], spike_weight[:n], log_slab[:n], slab_weight[:n]
        _look_up_branches(rho[:n], places, fractions, spike, slab, beyond, branches)
        if replaces:
            if log_counted.size == 1:
                amounts[:n] = log_counted[0]
            else:
                _spread(log_counted, own_rows, columns, by_row, amounts)
            _replace_slab(data, per_scale, law, amounts, log_slab, slab_weight)
        if sided:
            for m in range(n):
                log_slab[m] += log_sides[0] if left[m] >= 0.0 else log_sides[1]
        if n_groups:
            n_shared = (stop - start) * n_groups
            rest, own_odds, soft, share = log_rest[:n_shared], odds[:n_shared], softened[:n_shared], amounts[:n_shared]
            log_odds = log_rates[0, 0] - log_rates[1, 0]
            _share_odds(log_odds, log_spike, log_slab, groups, stop - start, n_channels, own_odds, rest)
            _soften(own_odds, share, soft)
            own_total = n_shared * log_rates[1, 0]
            for k in range(n_shared):
                own_total += rest[k] + soft[k]
                structured[6][0] += share[k]
            total += n_channels * own_total
            structured[6][1] += n_shared
            for i in range(stop - start):
                for c in range(n_columns):
                    outlier[i * n_columns + c] = share[i * n_groups + groups[c]]
            _add_groups(rho, left, outlier, clipped, groups, stop - start, n_groups, structured[6])
        else:
            _spread(log_rates[1], own_rate_rows, rate_columns, by_rate_row, log_rest)
            _spread(log_rates[0], own_rate_rows, rate_columns, by_rate_row, odds)
            for m in range(n):
                log_rest[m] += log_spike[m]
                odds[m] += log_slab[m] - log_rest[m]
            _soften(odds[:n], outlier[:n], softened[:n])
            n_outliers = 0.0
            for m in range(n):
                total += log_rest[m] + softened[m]
                n_outliers += outlier[m]
            structured[6][0] += n_outliers
            structured[6][1] += n
        for m in range(n):
            weight = spike_weight[m] + outlier[m] * (slab_weight[m] - spike_weight[m])
            fit[m] = factor[m] * (fit[m] + kind(weight) * per_weight * left[m])
            weight_sum += weight
            amounts[m] = rho[m] * weight
        for m in range(n):
            place = places[m]
            seen[place] += 1
            outlying[place] += outlier[m]
        if squares.size:
            _add_to_slices(amounts, own_rows, columns, by_row, squares)
        if replaces:
            for m in range(n):
                place = int((np.float64(data[m] * per_scale) - law[1][0]) * law[1][1])
                structured[4][min(max(place, 0), law[0].size - 1)] += outlier[m]
            if replaced.size:
                _add_to_slices(outlier, own_rows, columns, by_row, replaced)
        if structured[5].size:
            _add_to_slices(outlier, own_rate_rows, rate_columns, by_rate_row, structured[5])
        if structured[7].size:
            positive, all_outliers = 0.0, 0.0
            for m in range(n):
                above = left[m] >= 0.0
                n_above[places[m]] += above
                positive += outlier[m] if above else 0.0
                all_outliers += outlier[m]
            structured[8][0] += positive
            structured[8][1] += all_outliers - positive
        if seen[beyond]:
            for m in range(n):
                if places[m] == beyond:
                    one[0] = min(np.float64(rho[m]), LARGEST_RHO) / tau
                    _count_one(one, 1.0, bins, histogram[0], histogram[1])
                    _count_one(one, 1.0 - outlier[m], bins, structured[0], structured[1])
                    _count_one(one, outlier[m], bins, structured[2], structured[3])
                    if structured[7].size and left[m] >= 0.0:
                        _count_one(one, 1.0, bins, structured[7], np.empty_like(structured[7]))
            seen[beyond] = 0
    return total, weight_sum, largest


@sum_loop
def _settle_mixture(seen, n_above, outlying, tau, spike, bins, histogram, structured):
    """Add the entries of usual segments to the histograms, at the middle of each: all, regular, outliers, positive."""
    rows, one, nothing = spike[0], np.empty(1), np.zeros(structured[7].size)
    for place in range(seen.size - 1):
        if seen[place]:
            one[0] = (rows[place, 0] + 0.5 / rows[place, 1]) / tau
            _count_one(one, seen[place], bins, histogram[0], histogram[1])
            _count_one(one, seen[place] - outlying[place], bins, structured[0], structured[1])
            _count_one(one, outlying[place], bins, structured[2], structured[3])
            if n_above[place]:
                _count_one(one, n_above[place], bins, structured[7], nothing)


@sum_loop
def solve_mixture(
    values, left, right, per_scale, per_weight, tau, table, noise, mixture, covs, offset, histogram, outer, mean, sums
):
    """Form 1 tile by tile, as in :func:`solve_completed`, for entries with a mixture of two branches."""
    (quadratics, bits), uneven, bins = table
    n_columns, tile, structured = values.shape[1], _tile_rows(values), outer[2]
    n_room = _whole_rows(n_columns)[1]
    seen, n_above, outlying = (np.zeros(len(quadratics)), np.zeros(len(quadratics)), np.zeros(len(quadratics)))
    reals, branches = np.empty((4, n_room), values.dtype), np.empty((4, n_room))
    scratch = (
        np.empty(n_room, bits.dtype),
        reals[0],
        seen,
        n_above,
        outlying,
        reals[1],
        reals[2],
        reals[3],
        branches[0],
        branches[1],
        branches[2],
        branches[3],
    )
    more = np.empty((5, n_room))
    room = more[0], more[1], more[2], more[3], more[4]
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((len(right), n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), tile):
        stop = min(start + tile, len(values))
        own, fitted = values[start:stop], low_rank[: stop - start]
        _multiply(left[start:stop], right, fitted)
        found = _complete_mixture(
            own, start, per_scale, per_weight, tau, table, noise, mixture, histogram, outer, scratch, room, fitted
        )
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        _solve_tile(start == 0, fitted, right, _of_rows(covs, start, stop), offset, mean[start:stop], own_sums)
    _add_transposed(own_sums, sums)
    _settle_mixture(seen, n_above, outlying, tau, uneven, bins, histogram, structured)
    return total, weight_sum, largest


@sum_loop
def _multiply(left, right, out):
    if min(len(left), len(right)) <= LARGEST_THIN:
        multiply(left, right, out)
    else:
        np.dot(left, right, out)


@sum_loop
def _projections(left, right):
    if len(right) > LARGEST_THIN:
        return np.dot(left, right.T)
    out = np.zeros((len(left), len(right)), left.dtype)
    add_projections(left, right, out)
    return out


@sum_loop
def _add_product(fresh, weights, rows, out):
    if fresh:
        _multiply(weights, rows, out)
    elif len(weights) <= LARGEST_THIN:
        add_product(weights, rows, out)
    else:
        out += np.dot(weights, rows)


@sum_loop
def complete(values, residual, weight, per_weight, out):
    for m in range(values.size):
        out[m] = values[m] - residual[m] + weight[m] * per_weight * residual[m]


@loop
def mix(log_spike, log_slab, log_evidence, share):
    for m in range(log_spike.size):
        odds = log_slab[m] - log_spike[m]
        small = np.exp(-abs(odds))
        larger = log_slab[m] if odds > 0.0 else log_spike[m]
        log_evidence[m] = larger + np.log1p(small)
        share[m] = (1.0 if odds > 0.0 else small) / (1.0 + small)


@loop
def count(pattern, deviation, bins, histogram, share):
    counts, totals = histogram
    below, first = bins
    each = share.size > 0
    for m in range(deviation.size):
        place = (pattern[m] >> below) - first
        place = min(max(place, 0), counts.size - 1)
        amount = share[m] if each else 1.0
        counts[place] += amount
        totals[place] += amount * deviation[m]
