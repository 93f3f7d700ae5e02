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


@loop
def _gather(per_slice, positions, out):
    """Values of the slices at the positions of the entries, or the only one."""
    if per_slice.size == 1:
        out[:] = per_slice[0]
    else:
        for m in range(out.size):
            out[m] = per_slice[positions[m]]


@loop
def _scatter(amounts, positions, out):
    for m in range(positions.size):
        out[positions[m]] += amounts[m]


@sum_loop
def judge(residual, variance, noise, tau, table, histogram, squares, rho, weight):
    """Σ ln f, Σ w and the largest ρ, in pieces that stay in L1 cache; adds Σ ρ w to the squares of each slice."""
    usual, uneven, bins = table
    relative, positions = noise
    scratch = _scratch(residual, usual, PIECE)
    precision, room = residual.dtype.type(tau), np.empty(PIECE, residual.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, residual.size, PIECE):
        n = min(PIECE, residual.size - start)
        part, own, found = residual[start : start + n], rho[start : start + n], weight[start : start + n]
        if variance.size:
            spread = variance[start : start + n]
            for m in range(n):
                own[m] = precision * (part[m] * part[m] + spread[m])
        else:
            for m in range(n):
                own[m] = precision * (part[m] * part[m])
        if positions.size:
            places = positions[start : start + n]
            _gather(relative, places, room[:n])
            for m in range(n):
                own[m] *= room[m]
        sums = _weigh(own, tau, table, histogram, scratch, found)
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        if squares.size:
            for m in range(n):
                room[m] = own[m] * found[m]
            _scatter(room, positions[start : start + n], squares)
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
    """Log odds of every group in every row, and ln f of its larger branch: sums over its entries, divided by κ."""
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
    _soften(odds, outlier, softened)
    n_outliers = 0.0
    for m in range(odds.size):
        n_outliers += outlier[m]
    return _evidence_of(log_rest, odds, softened), n_outliers


@sum_loop
def _tally(data, per_scale, left, rho, outlier, tau, bins, law, scratch, structured):
    """Add the entries of a piece to the bins, to the law of replaced values, and to the sides."""
    deviation, binned, sided = scratch[2], scratch[3], structured[7].size > 0
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
            structured[4][min(max(place, 0), law[0].size - 1)] += outlier[m]
    if sided:
        positive, n_outliers = 0.0, 0.0
        for m in range(left.size):
            positive += outlier[m] if left[m] >= 0.0 else 0.0
            n_outliers += outlier[m]
        structured[8][0] += positive
        structured[8][1] += n_outliers - positive


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
        if structured[7].size:
            structured[7][place] += own[6]


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
        _spread(relative, own_rows, columns, by_row, factor)
        for m in range(n):
            left[m] = data[m] * per_scale - fit[m]
            rho[m] = precision * factor[m] * (left[m] * left[m])
        if law[0].size:
            if log_counted.size == 1:
                amounts[:n] = log_counted[0]
            else:
                _spread(log_counted, own_rows, columns, by_row, amounts)
        padded = rho[: -(-n // 8) * 8]
        largest = max(largest, _find_branches(data, per_scale, left, padded, amounts, table, branches, scratch))
        if n_groups:
            n_shared = (stop - start) * n_groups
            rest, own_odds, soft, share = log_rest[:n_shared], odds[:n_shared], softened[:n_shared], amounts[:n_shared]
            _share_odds(log_rates, log_spike, log_slab, groups, stop - start, n_channels, own_odds, rest)
            _soften(own_odds, share, soft)
            total += n_channels * _evidence_of(rest, own_odds, soft)
            for k in range(n_shared):
                structured[6][0] += share[k]
            structured[6][1] += n_shared
            for i in range(stop - start):
                for c in range(n_columns):
                    outlier[i * n_columns + c] = share[i * n_groups + groups[c]]
            _add_groups(rho, left, outlier, clipped, groups, stop - start, n_groups, structured[6])
        else:
            _spread(log_rates[1], own_rate_rows, rate_columns, by_rate_row, log_rest)
            _spread(log_rates[0], own_rate_rows, rate_columns, by_rate_row, odds)
            own_total, n_outliers = _mix(log_rest[:n], odds[:n], log_spike, log_slab, outlier[:n], softened[:n])
            total += own_total
            structured[6][0] += n_outliers
            structured[6][1] += n
        for m in range(n):
            weight = spike_weight[m] + outlier[m] * (slab_weight[m] - spike_weight[m])
            fit[m] = factor[m] * (fit[m] + kind(weight) * per_weight * left[m])
            weight_sum += weight
            amounts[m] = rho[m] * weight
        _tally(data, per_scale, left, rho, outlier, tau, table[2], law, scratch, structured)
        if squares.size:
            _add_to_slices(amounts, own_rows, columns, by_row, squares)
        if replaced.size and law[0].size:
            _add_to_slices(outlier, own_rows, columns, by_row, replaced)
        if structured[5].size:
            _add_to_slices(outlier, own_rate_rows, rate_columns, by_rate_row, structured[5])
    return total, weight_sum, largest


@sum_loop
def solve_mixture(
    values, left, right, per_scale, per_weight, tau, table, noise, mixture, covs, offset, histogram, outer, mean, sums
):
    """Form 1 tile by tile, as in :func:`solve_completed`, for entries with a mixture of two branches."""
    n_columns, tile = values.shape[1], _tile_rows(values)
    n_room = _whole_rows(n_columns)[1]
    scratch = _mixture_scratch(table[0], values, n_room, histogram[0].size)
    reals, more = np.empty((3, n_room), values.dtype), np.empty((5, n_room))
    room = (reals[0], reals[1], reals[2]), (more[0], more[1], more[2], more[3], more[4])
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((len(right), n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), tile):
        stop = min(start + tile, len(values))
        own, fitted = values[start:stop], low_rank[: stop - start]
        _multiply(left[start:stop], right, fitted)
        found = _complete_mixture(
            own, start, per_scale, per_weight, tau, table, noise, mixture, outer, scratch, room, fitted
        )
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        _solve_tile(start == 0, fitted, right, _of_rows(covs, start, stop), offset, mean[start:stop], own_sums)
    _add_transposed(own_sums, sums)
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
def _judge_groups(values, residual, variance, tau, table, noise, mixture, scratch, room, share, others):
    """Σ ln f of all groups of entries that share an outlier indicator, and the responsibility of each."""
    relative, positions = noise
    branches, log_rates, _, log_counted, groups, n_channels, _ = mixture
    (rho, factor), (_, counted, _, _) = room
    log_spike, log_slab = scratch[4], scratch[6]
    odds, larger, sizes = np.zeros(share.size), np.zeros(share.size), np.zeros(share.size)
    for start in range(0, residual.size, PIECE):
        stop = min(start + PIECE, residual.size)
        n, left = stop - start, residual[start:stop]
        _gather(relative, positions[start:stop], factor[:n])
        _gather(log_counted, positions[start:stop], counted[:n])
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
    _soften(odds, share, softened)
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
        total = _judge_groups(
            values, residual, variance, tau, table, noise, mixture, scratch, ((rho, factor), room), share, structured[6]
        )
    for start in range(0, residual.size, PIECE):
        stop = min(start + PIECE, residual.size)
        n, left, data, own = stop - start, residual[start:stop], values[start:stop], outlier[start:stop]
        _gather(relative, positions[start:stop], factor[:n])
        _gather(log_counted, positions[start:stop], counted[:n])
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
                    structured[6][3] += size * size
        else:
            _gather(log_rates[1], rate_positions[start:stop], log_rest[:n])
            _gather(log_rates[0], rate_positions[start:stop], amounts[:n])
            own_total, n_outliers = _mix(log_rest[:n], amounts[:n], log_spike, log_slab, own, softened[:n])
            total += own_total
            structured[6][0] += n_outliers
            structured[6][1] += n
        for m in range(n):
            found_weight = spike_weight[m] + own[m] * (slab_weight[m] - spike_weight[m])
            scaled[start + m] = rho[m]
            weight[start + m] = found_weight
            weight_sum += found_weight
            amounts[m] = rho[m] * found_weight
        _tally(data, values.dtype.type(1.0), left, rho, own, tau, table[2], law, scratch, structured)
        if squares.size:
            _scatter(amounts, positions[start:stop], squares)
        if replaced.size and law[0].size:
            _scatter(own, positions[start:stop], replaced)
        if structured[5].size:
            _scatter(own, rate_positions[start:stop], structured[5])
    for group in range(share.size):
        structured[6][2] += clipped_sums[group] * clipped_sums[group]
    _settle_mixture(scratch[3], histogram, structured)
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
