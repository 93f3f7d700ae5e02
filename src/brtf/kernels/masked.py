"""Loops over the observed entries of masked blocks.

Sums of rows are taken four rows at a time, so that what is added up is loaded and stored once for all four, and
before they are multiplied by anything that all of them share.
"""

from __future__ import annotations

import numpy as np

from brtf.kernels.jit import loop, sum_loop


@loop
def expand(mask, entry_values, dense):
    """The entries, which are finite, at their places, zero elsewhere: without branches, which nobody could predict."""
    observed = mask.view(np.uint8)
    position, k = 0, 0
    while position < entry_values.size:
        dense[k] = entry_values[position] * observed[k]
        position += observed[k]
        k += 1
    dense[k:] = 0.0


@loop
def compress(mask, dense, out):
    """What stands at the places of the entries; ``out`` has room for one more."""
    position = 0
    for k in range(mask.size):
        out[position] = dense[k]
        position += mask[k]


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


@sum_loop
def gather(mask, entry_values, last, out):
    """out[f] += Σ_k v[f, k] last[k]."""
    observed, total = np.empty(mask.shape[1] + 1, np.int64), np.empty(last.shape[1])
    position = 0
    for f in range(mask.shape[0]):
        n_observed = _list_observed(mask[f], observed)
        _add_rows(last, observed, entry_values[position : position + n_observed], total)
        position += n_observed
        target = out[f]
        for c in range(total.size):
            target[c] += total[c]


@sum_loop
def gather_onto(mask, entry_values, last, others, n_rows, n_after, out):
    """out[i] += Σ_{a,b} others[a, b] Σ_k v[a, i, b, k] last[k], for fibres (a, i, b) with i of n_rows, b of n_after."""
    observed, total = np.empty(mask.shape[1] + 1, np.int64), np.empty(last.shape[1])
    position = 0
    for f in range(mask.shape[0]):
        n_observed = _list_observed(mask[f], observed)
        if n_observed == 0:
            continue
        _add_rows(last, observed, entry_values[position : position + n_observed], total)
        position += n_observed
        target = out[f // n_after % n_rows]
        other = others[f // (n_rows * n_after) * n_after + f % n_after]
        for c in range(total.size):
            target[c] += total[c] * other[c]


@sum_loop
def spread(mask, entry_values, matrix, out):
    """out[a, b] += Σ_n v[a, n, b] matrix[n]."""
    places, amounts, counts, observed = _empty_lists(mask)
    total = np.empty(matrix.shape[1])
    position = 0
    for a in range(mask.shape[0]):
        position = _list_columns(mask[a], entry_values, position, places, amounts, counts, observed)
        for b in range(counts.size):
            if counts[b]:
                _add_rows(matrix, places[b], amounts[b, : counts[b]], total)
                target = out[a, b]
                for c in range(total.size):
                    target[c] += total[c]


@sum_loop
def spread_onto(mask, entry_values, matrix, others, out):
    """out[b] += Σ_a others[a] Σ_n v[a, n, b] matrix[n]."""
    places, amounts, counts, observed = _empty_lists(mask)
    total = np.empty(matrix.shape[1])
    position = 0
    for a in range(mask.shape[0]):
        position = _list_columns(mask[a], entry_values, position, places, amounts, counts, observed)
        other = others[a]
        for b in range(counts.size):
            if counts[b]:
                _add_rows(matrix, places[b], amounts[b, : counts[b]], total)
                target = out[b]
                for c in range(total.size):
                    target[c] += total[c] * other[c]


@loop
def _list_observed(mask, observed):
    """Write where a fibre is observed into a list that has room for one more; returns how many there are."""
    n_observed = 0
    for k in range(mask.size):
        observed[n_observed] = k
        n_observed += mask[k]
    return n_observed


@loop
def _empty_lists(mask):
    _, n_rows, n_columns = mask.shape
    return (
        np.empty((n_columns, n_rows), np.int64),
        np.empty((n_columns, n_rows)),
        np.empty(n_columns, np.int64),
        np.empty(n_columns + 1, np.int64),
    )


@loop
def _list_columns(mask, entry_values, position, places, amounts, counts, observed):
    """List the entries of a slab (n, b) by columns: the places n and the values of each; returns the next position."""
    counts[:] = 0
    for n in range(mask.shape[0]):
        for k in range(_list_observed(mask[n], observed)):
            b = observed[k]
            places[b, counts[b]] = n
            amounts[b, counts[b]] = entry_values[position]
            counts[b] += 1
            position += 1
    return position


@sum_loop
def _add_rows(matrix, places, amounts, total):
    """total = Σ_p amounts[p] matrix[places[p]]."""
    n_columns = total.size
    total[:] = 0.0
    done = 0
    while done + 4 <= amounts.size:
        first, second = matrix[places[done]], matrix[places[done + 1]]
        third, fourth = matrix[places[done + 2]], matrix[places[done + 3]]
        v0, v1, v2, v3 = amounts[done], amounts[done + 1], amounts[done + 2], amounts[done + 3]
        for c in range(n_columns):
            total[c] += (v0 * first[c] + v1 * second[c]) + (v2 * third[c] + v3 * fourth[c])
        done += 4
    while done < amounts.size:
        only, value = matrix[places[done]], amounts[done]
        for c in range(n_columns):
            total[c] += value * only[c]
        done += 1
