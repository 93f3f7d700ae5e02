"""Loops over entries: what is left of each after the low-rank part, how much it counts, and which bin it is counted in.

What they know of tables and bins is handed to them: compiled code is kept on disk for as long as the files of loops are
the same, whatever numbers of others say. ``table`` is (usual segments, all segments, bins), each a tuple of arrays and
numbers; ``histogram`` its counts and totals.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.products import add_product, add_projections, multiply
from brtf.kernels.vectors import locate, locate_left, n_at_once, weigh, weigh_left

PIECE = 2048
"""Entries whose local posteriors are found together: a few kilobytes for each number of theirs."""
TILE_BYTES, LEAST_TILE = 2**19, 64
"""Bytes of entries that are fitted, completed and contracted together, and the fewest rows of them."""
LARGEST_THIN = 32
"""Rank up to which products with the own loops take less time than those with BLAS."""
NO_SHARES = np.ones(1)
"""Every entry counts in full."""
LARGEST_RHO = 1e38
"""What is larger is infinite in single precision, and counted as this."""


@sum_loop
def _cubic(rows, place, t):
    """ln f and w by the cubic of a segment, at a fraction t of it."""
    c1, c2, c3 = rows[place, 3], rows[place, 4], rows[place, 5]
    log_evidence = rows[place, 2] + t * (c1 + t * (c2 + t * c3))
    return log_evidence, -2.0 * rows[place, 1] * (c1 + t * (2.0 * c2 + 3.0 * t * c3))


@sum_loop
def _search(rho, uneven):
    """ln f and w, whatever the segments; beyond their end ln f is a power of ρ."""
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


@loop
def _scratch(rho, usual):
    """Room for what is known of a piece of entries, and the number of entries, none so far, in every usual segment."""
    quadratics, bits = usual
    places, fractions, step = np.empty(PIECE, bits.dtype), np.empty(PIECE, rho.dtype), np.empty((2, 8), rho.dtype)
    others, seen = np.empty(PIECE + 1, np.int64), np.zeros(len(quadratics), np.int64)
    return places, fractions, step, np.empty((2, PIECE)), others, seen


@sum_loop
def _weigh(rho, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of a piece, whose weights are kept.

    Entries of usual segments are counted, and c₀ is left out of their ln f. Nothing is decided entry by entry; those
    beyond usual segments are looked at once more.
    """
    n_rest = rho.size % n_at_once(rho)
    n_whole = rho.size - n_rest
    total, weight_sum, largest = _weigh_steps(rho[:n_whole], n_whole, tau, table, histogram, scratch, weight)
    if n_rest:
        rest, found = _filled(rho[n_whole:], scratch[2][0]), scratch[2][1]
        sums = _weigh_steps(rest, n_rest, tau, table, histogram, scratch, found)
        weight[n_whole:] = found[:n_rest]
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total, weight_sum, largest


@sum_loop
def _weigh_steps(rho, n, tau, table, histogram, scratch, weight):
    """The same for whole steps, of which the first ``n`` entries are somewhere."""
    (quadratics, bits), uneven, _ = table
    places, fractions, _, (own, found), others, seen = scratch
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


@loop
def _filled(entries, step):
    """Entries, fewer than a step, with so many that are nowhere that they make one."""
    step[:] = np.nan
    step[: entries.size] = entries
    return step[: n_at_once(entries)]


@loop
def _list(places, wanted, found):
    """Where the wanted place is; ``found`` has room for one more than there are. Returns their number."""
    n_found = 0
    for m in range(places.size):
        found[n_found] = m
        n_found += places[m] == wanted
    return n_found


@sum_loop
def _weigh_others(rho, tau, table, histogram, weight):
    """Σ ln f of entries that are not in usual segments, whose weights are kept, and who are counted one by one."""
    _, uneven, bins = table
    total = 0.0
    for k in range(rho.size):
        log_evidence, weight[k] = _search(min(rho[k], LARGEST_RHO), uneven)
        total += log_evidence
        rho[k] = min(rho[k], LARGEST_RHO) / tau
    count(rho.view(np.int64), rho, bins, histogram, NO_SHARES)
    return total


@sum_loop
def _settle(seen, tau, uneven, bins, histogram):
    """Σ c₀ of the entries in usual segments, which are counted at the middle of each."""
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
    """Σ ln f, Σ w and the largest ρ, in pieces that stay in the innermost cache."""
    usual, uneven, bins = table
    scratch = _scratch(rho, usual)
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
    """Σ ln f, Σ w and the largest ρ of whole steps of complete data, with the low-rank part replaced by the completed
    data; the first ``n`` entries are somewhere."""
    (quadratics, bits), uneven, _ = table
    places, fractions, _, (own, found), others, seen = scratch
    kind, beyond = values.dtype.type, len(quadratics) - 1
    n_before, size = seen[beyond], values.size
    shift = kind(2.0 ** uneven[3])
    largest = locate_left(values, size, fitted, per_scale, kind(tau), shift, bits, beyond, places, fractions)
    total, weight_sum = weigh_left(places, size, fractions, quadratics, seen, values, fitted, per_scale, per_weight)
    if seen[beyond] > n_before:  # so far their weights are zero
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
    """The same for any number of entries, in pieces that stay in the innermost cache."""
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
        fitted[n_whole:] = rest[1][:n_rest]
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total, weight_sum, largest


@sum_loop
def solve_completed(values, left, right, per_scale, per_weight, tau, table, cov, offset, histogram, mean, sums):
    """Tiles of rows: the low-rank part, the completed data, their product with the other modes, the rows, the sums."""
    usual, uneven, bins = table
    scratch = _scratch(values, usual)
    (n_rows, n_columns), rank = values.shape, len(right)
    n_tiles = max(1, round(n_rows / max(LEAST_TILE, TILE_BYTES / (n_columns * values.itemsize))))
    tile = -(-n_rows // n_tiles)
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((rank, n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, n_rows, tile):
        stop = min(start + tile, n_rows)
        n = stop - start
        fitted, flat = low_rank[:n], values[start:stop].reshape(n * n_columns)
        _multiply(left[start:stop], right, fitted)
        found = _complete(flat, per_scale, per_weight, tau, table, histogram, scratch, fitted.reshape(n * n_columns))
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        solved = np.dot(_projections(fitted, right) + offset, cov)
        mean[start:stop] = solved
        _add_product(start == 0, solved.T.copy(), fitted, own_sums)
    for column in range(n_columns):
        for component in range(rank):
            sums[column, component] += own_sums[component, column]
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


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
    each = share.size == deviation.size
    for m in range(deviation.size):
        place = (pattern[m] >> below) - first
        place = min(max(place, 0), counts.size - 1)
        amount = share[m] if each else share[0]
        counts[place] += amount
        totals[place] += amount * deviation[m]
