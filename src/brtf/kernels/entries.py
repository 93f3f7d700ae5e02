"""Loops over entries: residual, weight, and histogram bin.

Tables and bins are passed as arguments, since compiled code is cached on disk as long as the files of loops are
unchanged, whatever constants other files define. ``table`` is (usual segments, all segments, bins), each a tuple of
arrays and numbers; ``histogram`` is (counts, totals).
"""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.jit import inlined, loop, sum_loop
from brtf.kernels.vectors import locate, n_at_once, weigh

PIECE = 2048
"""Entries per piece in L1 cache: a few kilobytes per array."""


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
def search_segments(rho, uneven):
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
                found[m], slopes[m] = search_segments(part[m], uneven)
    for m in range(n_whole, rho.size):
        log_evidence[m], weight[m] = search_segments(rho[m], uneven)


@inlined
def scratch_for(rho, usual, size):
    """Scratch arrays for a piece of ``size`` entries, and zero counts of the usual segments."""
    quadratics, bits = usual
    places, fractions, step = np.empty(size, bits.dtype), np.empty(size, rho.dtype), np.empty((2, 8), rho.dtype)
    others, seen = np.empty(size + 1, np.int64), np.zeros(len(quadratics), np.int64)
    return places, fractions, step, np.empty((2, size)), others, seen


@sum_loop
def weigh_piece(rho, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of a piece; stores the weights.

    Entries in usual segments are counted per segment, and c₀ is left out of their ln f. There are no branches per
    entry; entries beyond the usual segments are processed again afterwards.
    """
    n_rest = rho.size % n_at_once(rho)
    n_whole = rho.size - n_rest
    total, weight_sum, largest = _weigh_steps(rho[:n_whole], n_whole, tau, table, histogram, scratch, weight)
    if n_rest:
        rest, found = filled(rho[n_whole:], scratch[2][0]), scratch[2][1]
        sums = _weigh_steps(rest, n_rest, tau, table, histogram, scratch, found)
        put_numbers(found, n_rest, weight[n_whole:])
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
        n_others = list_wanted(places[:n], beyond, others)
        for k in range(n_others):
            own[k] = rho[others[k]]
        total += weigh_others(own[:n_others], tau, table, histogram, found)
        for k in range(n_others):
            weight[others[k]] = found[k]
            weight_sum += found[k]
    return total, weight_sum, np.float64(largest)


@inlined
def filled(entries, step):
    """Fewer entries than a vector has, padded to a whole vector."""
    step[:] = np.nan
    put_numbers(entries, entries.size, step)
    return step[: n_at_once(entries)]


@inlined
def put_numbers(numbers, n, out):
    """Copy the first ``n`` numbers; an assignment of slices takes seconds to compile, with its error messages."""
    for m in range(n):
        out[m] = numbers[m]


@inlined
def list_wanted(places, wanted, found):
    """List the positions of the wanted place in ``found``, which has one element of padding; returns their number."""
    n_found = 0
    for m in range(places.size):
        found[n_found] = m
        n_found += places[m] == wanted
    return n_found


@inlined
def weigh_others(rho, tau, table, histogram, weight):
    """Σ ln f of entries beyond the usual segments; stores their weights and counts them one by one."""
    _, uneven, bins = table
    total = 0.0
    for k in range(rho.size):
        log_evidence, weight[k] = search_segments(min(rho[k], LARGEST_RHO), uneven)
        total += log_evidence
        rho[k] = min(rho[k], LARGEST_RHO) / tau
    count(rho.view(np.int64), rho, bins, histogram, weight[:0])
    return total


@inlined
def count_segments(seen, tau, uneven, bins, histogram):
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
def gather(per_slice, positions, out):
    """Values of the slices at the positions of the entries, or the only one."""
    if per_slice.size == 1:
        out[:] = per_slice[0]
    else:
        for m in range(out.size):
            out[m] = per_slice[positions[m]]


@loop
def scatter(amounts, positions, out):
    for m in range(positions.size):
        out[positions[m]] += amounts[m]


@sum_loop
def weigh_entries(residual, variance, noise, tau, table, histogram, squares, rho, weight):
    """Σ ln f, Σ w and the largest ρ, in pieces that stay in L1 cache; adds Σ ρ w to the squares of each slice."""
    usual, uneven, bins = table
    relative, positions = noise
    scratch = scratch_for(residual, usual, PIECE)
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
            gather(relative, places, room[:n])
            for m in range(n):
                own[m] *= room[m]
        sums = weigh_piece(own, tau, table, histogram, scratch, found)
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        if squares.size:
            for m in range(n):
                room[m] = own[m] * found[m]
            scatter(room, positions[start : start + n], squares)
    return total + count_segments(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@sum_loop
def complete(values, residual, weight, per_weight, out):
    for m in range(values.size):
        out[m] = values[m] - residual[m] + weight[m] * per_weight * residual[m]


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
