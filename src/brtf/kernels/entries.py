"""Loops over entries: what is left of each after the low-rank part, how much it counts, and which bin it is counted in.

What they know of tables and bins is handed to them: compiled code is kept on disk for as long as its own file is the
same, whatever numbers of other files say. ``table`` is (even segments, all segments, bins), each a tuple of arrays and
numbers; ``histogram`` its counts and totals.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.kernels.jit import loop, sum_loop

PIECE = 512
"""Entries whose local posteriors are found together: a few kilobytes for each number of theirs."""
TILE, LEAST_TILE = 2**15, 64
"""Entries that are fitted, completed and contracted together, and the fewest rows of them."""
NO_SHARES = np.ones(1)
"""Every entry counts in full."""
LARGEST_RHO = 1e38
"""What is larger is infinite in single precision, and counted as this."""


@sum_loop
def _cubic(rows, place, rho):
    """ln f and w by the cubic of a segment."""
    per_width, c1, c2, c3 = rows[place, 1], rows[place, 3], rows[place, 4], rows[place, 5]
    step = (rho - rows[place, 0]) * per_width
    log_evidence = rows[place, 2] + step * (c1 + step * (c2 + step * c3))
    return log_evidence, -2.0 * per_width * (c1 + step * (2.0 * c2 + 3.0 * step * c3))


@sum_loop
def _search(rho, uneven):
    """ln f and w, whatever the segments; beyond their end ln f is a power of ρ."""
    rows, first, log2_segments, first_octave = uneven
    mantissa, exponent = math.frexp(rho + 2.0**first_octave)
    octave = exponent - 1 - first_octave
    if octave < first.size and np.isfinite(rho):
        return _cubic(rows, first[octave] + int((2.0 * mantissa - 1.0) * (1 << log2_segments[octave])), rho)
    end, fall = rows[-1, 0], rows[-1, 0] * rows[-1, 3]
    return rows[-1, 2] + fall * np.log(rho / end), -2.0 * fall / rho


@sum_loop
def look_up(rho, table, log_evidence, weight):
    """ln f and w of entries in double precision."""
    (cubics, bits), uneven, _ = table
    rows, n_even, n_below, before = uneven[0], cubics.shape[0] - 1, bits[0], bits[5]
    shifted, shift = np.empty(PIECE), 2.0 ** uneven[3]
    pattern = shifted.view(np.int64)
    for start in range(0, rho.size, PIECE):
        n = min(PIECE, rho.size - start)
        part, found, slopes = rho[start : start + n], log_evidence[start : start + n], weight[start : start + n]
        for m in range(n):
            shifted[m] = part[m] + shift
        for m in range(n):
            place = (pattern[m] >> n_below) - before
            if 0 <= place < n_even:
                found[m], slopes[m] = _cubic(rows, place, part[m])
            else:
                found[m], slopes[m] = _search(part[m], uneven)


@loop
def _scratch(even):
    """Room for what is known of a piece of entries, and the number of entries in every even segment, none so far."""
    cubics, bits = even
    return (
        np.empty((3, PIECE), cubics.dtype),
        np.empty((2, PIECE), bits.dtype),
        np.empty(PIECE),
        np.empty(PIECE + 1, np.int64),
        np.zeros(cubics.shape[0], np.int64),
    )


@sum_loop
def _weigh(rho, tau, table, histogram, scratch, weight):
    """Σ ln f, Σ w and the largest ρ of a piece, whose weights are kept.

    Entries of even segments are counted, and c₀ is left out of their ln f. Bits below those of the segment are the
    fraction t of it, the exponent its width: both are found for all entries at once, and nothing is decided entry by
    entry. Those beyond even segments are looked at once more.
    """
    (cubics, bits), uneven, bins = table
    floats, integers, deviations, others, seen = scratch
    n_below, from_segment, octave, both, n_segments, before = bits
    n, beyond = rho.size, cubics.shape[0] - 1
    shifted, fraction, gain = floats[0, :n], floats[1, :n], floats[2, :n]
    lower_bits, width_bits, pattern = integers[0, :n], integers[1, :n], shifted.view(bits.dtype)
    lower, per_width = lower_bits.view(rho.dtype), width_bits.view(rho.dtype)
    shift, n_each = rho.dtype.type(2.0 ** uneven[3]), rho.dtype.type(n_segments)
    for m in range(n):
        shifted[m] = rho[m] + shift
    for m in range(n):
        lower_bits[m] = pattern[m] & from_segment
        width_bits[m] = both - (pattern[m] & octave)
    for m in range(n):
        per_width[m] *= n_each
        fraction[m] = (shifted[m] - lower[m]) * per_width[m]
    plain = rho.view(bits.dtype)
    largest = plain[0]  # numbers that are not negative are ordered as their bits are
    for m in range(n):
        largest = max(largest, plain[m])
    two, three, n_before = rho.dtype.type(2.0), rho.dtype.type(3.0), seen[beyond]
    for m in range(n):
        place = min((pattern[m] >> n_below) - before, beyond)
        c1, c2, c3, t = cubics[place, 0], cubics[place, 1], cubics[place, 2], fraction[m]
        gain[m] = t * (c1 + t * (c2 + t * c3))
        weight[m] = c1 + t * (two * c2 + three * t * c3)
        seen[place] += 1
    for m in range(n):
        weight[m] *= -two * per_width[m]
    total, n_others = 0.0, 0
    if seen[beyond] > n_before:
        for m in range(n):
            others[n_others] = m
            n_others += (pattern[m] >> n_below) - before >= beyond
        total = _weigh_others(rho, tau, uneven, bins, histogram, deviations, others[:n_others], weight)
    gain_sum, weight_sum = rho.dtype.type(0.0), rho.dtype.type(0.0)
    for m in range(n):
        gain_sum += gain[m]
        weight_sum += weight[m]
    lower_bits[0] = largest
    return total + gain_sum, np.float64(weight_sum), np.float64(lower[0])


@sum_loop
def _weigh_others(rho, tau, uneven, bins, histogram, deviations, others, weight):
    """The same for entries that are not in even segments, one by one."""
    own, total = deviations[: others.size], 0.0
    for k in range(others.size):
        value = min(np.float64(rho[others[k]]), LARGEST_RHO)
        log_evidence, found = _search(value, uneven)
        weight[others[k]] = found
        total += log_evidence
        own[k] = value / tau
    count(own.view(np.int64), own, bins, histogram, NO_SHARES)
    return total


@sum_loop
def _settle(seen, tau, uneven, bins, histogram):
    """Σ c₀ of the entries in even segments, which are counted at the middle of each."""
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
    even, uneven, bins = table
    scratch = _scratch(even)
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
def _judge_and_complete(values, per_scale, per_weight, tau, table, histogram, scratch, low_rank):
    """The same for the low-rank part at complete data, which the data less their outliers replace."""
    residual, rho, weight = np.empty(PIECE, values.dtype), np.empty(PIECE, values.dtype), np.empty(PIECE, values.dtype)
    precision = values.dtype.type(tau)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, values.size, PIECE):
        n = min(PIECE, values.size - start)
        part, fitted = values[start : start + n], low_rank[start : start + n]
        left, own, found = residual[:n], rho[:n], weight[:n]
        for m in range(n):
            left[m] = part[m] * per_scale - fitted[m]
        for m in range(n):
            own[m] = precision * (left[m] * left[m])
        sums = _weigh(own, tau, table, histogram, scratch, found)
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        for m in range(n):
            fitted[m] += found[m] * per_weight * left[m]
    return total, weight_sum, largest


@sum_loop
def solve_completed(values, left, right, per_scale, per_weight, tau, table, cov, offset, histogram, mean, sums):
    """Tiles of rows: the low-rank part, the completed data, their product with the other modes, the rows, the sums."""
    even, uneven, bins = table
    scratch = _scratch(even)
    n_rows, n_columns = values.shape
    n_tiles = max(1, round(n_rows / max(LEAST_TILE, TILE / n_columns)))
    tile = -(-n_rows // n_tiles)
    low_rank = np.empty((tile, n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, n_rows, tile):
        stop = min(start + tile, n_rows)
        n = stop - start
        fitted, flat = low_rank[:n], values[start:stop].reshape(n * n_columns)
        np.dot(left[start:stop], right.T, fitted)
        found = _judge_and_complete(
            flat, per_scale, per_weight, tau, table, histogram, scratch, fitted.reshape(n * n_columns)
        )
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        solved = np.dot(np.dot(fitted, right) + offset, cov)
        mean[start:stop] = solved
        sums += np.dot(fitted.T, solved)
    return total + _settle(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


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
