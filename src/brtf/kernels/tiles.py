"""Loops over complete data in form 1: entries are fitted, completed and contracted with the rows tile by tile."""

from __future__ import annotations

import numpy as np

from brtf.kernels.entries import (
    PIECE,
    count_segments,
    filled,
    list_wanted,
    put_numbers,
    scratch_for,
    weigh_others,
    weigh_piece,
)
from brtf.kernels.jit import loop, sum_loop
from brtf.kernels.products import add_product, add_projections, multiply, put
from brtf.kernels.vectors import locate_left, n_at_once, weigh_left

TILE_BYTES, LEAST_TILE = 2**19, 64
"""Bytes of a tile that is fitted, completed and contracted at once, and its fewest rows."""


LARGEST_THIN = 32
"""Largest rank at which the thin-matrix products here are faster than BLAS."""


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
        n_others = list_wanted(places[:n], beyond, others)
        for k in range(n_others):
            own[k] = tau * np.float64(values[others[k]] * per_scale - fitted[others[k]]) ** 2
        total += weigh_others(own[:n_others], tau, table, histogram, found)
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
        rest = filled(values[n_whole:], scratch[2][0]), filled(fitted[n_whole:], scratch[2][1])
        sums = _complete_steps(*rest, n_rest, per_scale, per_weight, tau, table, histogram, scratch)
        put_numbers(rest[1], n_rest, fitted[n_whole:])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
    return total, weight_sum, largest


@loop
def spread(per_slice, rows, columns, by_row, out):
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
def add_to_slices(amounts, rows, columns, by_row, out):
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
def whole_rows(n_columns):
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
        spread(relative, places, columns, by_row, factor)
        for m in range(n):
            left = data[m] * per_scale - fit[m]
            own[m] = precision * factor[m] * (left * left)
        sums = weigh_piece(own, tau, table, histogram, scratch, weight[:n])
        total, weight_sum, largest = total + sums[0], weight_sum + sums[1], max(largest, sums[2])
        for m in range(n):
            left = data[m] * per_scale - fit[m]
            fit[m] = factor[m] * (fit[m] + weight[m] * per_weight * left)
            own[m] *= weight[m]
        add_to_slices(own, places, columns, by_row, squares)
    return total, weight_sum, largest


@loop
def tile_rows(values):
    """Rows per tile."""
    n_rows, n_columns = values.shape
    n_tiles = max(1, round(n_rows / max(LEAST_TILE, TILE_BYTES / (n_columns * values.itemsize))))
    return -(-n_rows // n_tiles)


@sum_loop
def solve_tile(fresh, targets, right, covs, offset, mean, sums):
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
    put(solved, mean)
    _add_product(fresh, solved.T.copy(), targets, sums)


@sum_loop
def add_transposed(own_sums, sums):
    for column in range(own_sums.shape[1]):
        for component in range(len(own_sums)):
            sums[column, component] += own_sums[component, column]


@loop
def of_rows(covs, start, stop):
    """Covariances of some rows, or the one of all."""
    return covs if len(covs) == 1 else covs[start:stop]


@sum_loop
def solve_completed(
    values, left, right, per_scale, per_weight, tau, table, noise, covs, offset, histogram, squares, mean, sums
):
    """Form 1 tile by tile: low-rank part, completed data, their product with the other modes, new rows, sums."""
    usual, uneven, bins = table
    n_columns, tile, sliced = values.shape[1], tile_rows(values), noise[0].size > 0
    n_room = max(PIECE, whole_rows(n_columns)[1]) if sliced else PIECE
    scratch, room = scratch_for(values, usual, n_room), np.empty((3, n_room if sliced else 0), values.dtype)
    low_rank, own_sums = np.empty((tile, n_columns), values.dtype), np.empty((len(right), n_columns), values.dtype)
    total, weight_sum, largest = 0.0, 0.0, 0.0
    for start in range(0, len(values), tile):
        stop = min(start + tile, len(values))
        own, fitted = values[start:stop], low_rank[: stop - start]
        multiply_tile(left[start:stop], right, fitted)
        if sliced:
            found = _complete_slices(
                own, start, per_scale, per_weight, tau, table, noise, histogram, squares, scratch, room, fitted
            )
        else:
            flat = own.reshape(own.size), fitted.reshape(own.size)
            found = _complete(flat[0], per_scale, per_weight, tau, table, histogram, scratch, flat[1])
        total, weight_sum, largest = total + found[0], weight_sum + found[1], max(largest, found[2])
        solve_tile(start == 0, fitted, right, of_rows(covs, start, stop), offset, mean[start:stop], own_sums)
    add_transposed(own_sums, sums)
    return total + count_segments(scratch[-1], tau, uneven, bins, histogram), weight_sum, largest


@sum_loop
def multiply_tile(left, right, out):
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
        multiply_tile(weights, rows, out)
    elif len(weights) <= LARGEST_THIN:
        add_product(weights, rows, out)
    else:
        out += np.dot(weights, rows)
