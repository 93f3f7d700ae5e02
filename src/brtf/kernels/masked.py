"""Loops over the observed entries of masked blocks.

A contraction sums the matrix rows of the observed entries of each fibre. The entries of all fibres are listed first;
then the lists are summed, a few columns of the matrix at a time, so that the columns stay in L1 cache and the sums in
registers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.vectors import add_rows, list_eight

WIDEST = 32
"""Columns summed at once: as many as registers hold."""
INNERMOST = 3328
"""Matrix elements that stay in L1 cache while lists and sums stream through it."""
Lists = tuple[NDArray[np.int64], NDArray[np.int32]]
"""End of each list, where the next one starts, and the positions of all entries."""
SPARE = 8
"""Padding at the end of a list, which is written eight positions at a time."""
PLACES_OF_BITS = np.argsort(np.arange(256)[:, None] >> np.arange(8) & 1 == 0, kind="stable").astype(np.int32)
"""For every byte, the positions of its ones, then those of its zeros."""


@loop
def expand(observed, entry_values, dense):
    """Scatter the entries, which are finite, to their positions, zero elsewhere; without unpredictable branches."""
    position, k = 0, 0
    while position < entry_values.size:
        dense[k] = entry_values[position] * observed[k]
        position += observed[k]
        k += 1
    dense[k:] = 0.0


@loop
def compress(mask, dense, out):
    """Gather the observed values; ``out`` has one element of padding."""
    position = 0
    for k in range(mask.size):
        out[position] = dense[k]
        position += mask[k]


@loop
def positions(mask, rows, columns, out):
    """rows[i] + columns[c] at the observed (i, c), or everywhere if the mask has no columns."""
    n_columns, m = columns.size, 0
    for i in range(rows.size):
        if mask.shape[1] == 0:
            for c in range(n_columns):
                out[i * n_columns + c] = rows[i] + columns[c]
        else:
            for c in range(n_columns):
                if mask[i, c]:
                    out[m] = rows[i] + columns[c]
                    m += 1


@sum_loop
def products_at(mask, left, last, out):
    """Σ_c left[f, c] last[k, c] at the observed (f, k)."""
    observed = np.empty(mask.shape[1] + 1, np.int64)
    position = 0
    for f in range(mask.shape[0]):
        row = left[f]
        for place in range(_list_observed(mask[f], observed)):
            other = last[observed[place]]
            total = 0.0
            for c in range(row.size):
                total += row[c] * other[c]
            out[position] = total
            position += 1


@loop
def list_rows(mask, table, stops, places):
    """The entries (f, k) by f: those of f are at k = places[stops[f-1]:stops[f]]."""
    n_fibres, length = mask.shape
    flat = mask.reshape(mask.size)
    position, start = 0, 0
    for f in range(n_fibres):
        k = 0
        while k + 8 <= length:
            position += list_eight(flat, start + k, table, k, places, position)
            k += 8
        while k < length:
            places[position] = k
            position += flat[start + k]
            k += 1
        stops[f] = position
        start += length


@loop
def list_columns(mask, table, stops, places, numbers):
    """The entries (a, n, b) by (a, b): the n of each, and their numbers within the block."""
    n_slabs, n_rows, n_columns = mask.shape
    row_stops, row_places = np.empty(n_rows, np.int64), np.empty(n_rows * n_columns + SPARE, np.int32)
    columns, place = row_places.view(np.uint32), np.empty(n_columns, np.uint32)  # unsigned: no negative indices
    done = np.uint32(0)
    for a in range(n_slabs):
        list_rows(mask[a], table, row_stops, row_places)
        place[:] = 0
        for p in range(row_stops[-1]):
            place[columns[p]] += np.uint32(1)
        total = done
        for b in range(n_columns):
            place[b], total = total, total + place[b]
        start = 0
        for n in range(n_rows):
            own = columns[start : row_stops[n]]
            for p in range(own.size):
                at = place[own[p]]
                places[at] = n
                numbers[at] = done + start + p
                place[own[p]] = at + np.uint32(1)
            start = row_stops[n]
        for b in range(n_columns):
            stops[a * n_columns + b] = place[b]
        done = total


@loop
def take(entry_values, numbers, out):
    """out[p] = v[numbers[p]]."""
    for p in range(numbers.size):
        out[p] = entry_values[numbers[p]]


@loop
def _plan_lists(stops, n_rows, n_after, plan):
    """Start, stop, i and (a, b) of every list (a, i, b) that has entries; returns their number."""
    start, g, n_lists = 0, 0, 0
    for a in range(stops.size // (n_rows * n_after)):
        for i in range(n_rows):
            for b in range(n_after):
                step = plan[n_lists]
                step[0], step[1], step[2], step[3] = start, stops[g], i, a * n_after + b
                n_lists += stops[g] > start
                start = stops[g]
                g += 1
    return n_lists


def add_lists(
    lists: Lists, amounts: Array, matrix: Array, others: Array, n_rows: int, n_after: int, out: Array
) -> None:
    """out[i] += Σ_{a,b} others[a, b] Σ_p amounts[p] matrix[places[p]], p over the list (a, i, b).

    Lists are numbered in C order, with i of ``n_rows`` and b of ``n_after``.
    """
    n_columns = matrix.shape[1]
    if n_columns:
        half = max(1, min(WIDEST, 1 << (n_columns - 1).bit_length()) // 2)
        _add((0,) * half, *lists, amounts, matrix, others, n_rows, n_after, out)


@sum_loop
def _add(lanes, stops, places, amounts, matrix, others, n_rows, n_after, out):
    """The loop over lists, which sums twice as many columns at once as ``lanes`` has elements.

    The number of columns is the length of a tuple, part of its type, and so known at compile time.
    """
    half = len(lanes)
    plan = np.empty((stops.size + 1, 4), np.int64)
    n_lists = _plan_lists(stops, n_rows, n_after, plan)
    length, n_columns = matrix.shape
    width, end = 2 * half, n_columns - half
    together = max(1, INNERMOST // (length * width)) * width
    panels = np.empty((min(together, n_columns + width) // width * length, width))
    for first in range(0, n_columns, together):
        last = min(first + together, n_columns)
        before = 0
        for done in range(first, last, width):
            left, right = min(done, end), min(done + half, end)  # the last ones overlap the previous, with zeros
            for k in range(length):
                target, one, other = panels[before + k], matrix[k, left:], matrix[k, right:]
                for c in range(half):
                    target[c] = one[c] if left + c >= done else 0.0
                    target[half + c] = other[c] if right + c >= done + half else 0.0
            before += length
        for q in range(n_lists):
            start, stop, i, other = plan[q, 0], plan[q, 1], plan[q, 2], plan[q, 3]
            before = 0
            for done in range(first, last, width):
                left, right = min(done, end), min(done + half, end)
                add_rows(lanes, panels, before, places, amounts, start, stop, others, other, out, i, left, right)
                before += length


@loop
def _list_observed(mask, observed):
    """List the observed positions of a fibre, with one element of padding at the end; returns their number."""
    n_observed = 0
    for k in range(mask.size):
        observed[n_observed] = k
        n_observed += mask[k]
    return n_observed
