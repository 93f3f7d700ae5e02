"""Components of merged modes as components of these modes themselves: a start for the search that lost to merging.

Merged modes explain much with few components, and their search is easier: it may be over while that of the tensor as it
was still misses some. Where the rows that it found, read as matrices of the two modes, have few singular values beyond
their uncertainty, the tensor as it was needs fewer numbers, and begins anew from these products.
"""

from __future__ import annotations

import math

import numpy as np

from brtf.data.arrangement import Arrangement
from brtf.data.arrays import Array
from brtf.model.state import State


def split_components(
    state: State, merged: Arrangement, finer: Arrangement, shape: tuple[int, ...]
) -> list[Array] | None:
    """The factor columns of the finer arrangement for a state of the merged one; None where these are more numbers.

    None too where there are no components. A row of a merged mode, read as p × q matrix, has as many terms as singular
    values s > √v (√p + √q), with v the mean posterior variance of its entries, and at least one.
    """
    whole = next(k for k, group in enumerate(merged.groups) if group not in finer.groups)
    group, rows = merged.groups[whole], state.factors[whole]
    first, second = (part for part in finer.groups if set(part) <= set(group))
    p, q = (math.prod(shape[mode] for mode in part) for part in (first, second))
    axes = [group.index(mode) for mode in (*first, *second)]
    edges = np.sqrt(np.mean(rows.variances, axis=0)) * (math.sqrt(p) + math.sqrt(q))
    columns: dict[tuple[int, ...], list[Array]] = {part: [] for part in finer.groups}
    for r, edge in enumerate(edges):
        matrix = rows.mean[:, r].reshape([shape[mode] for mode in group]).transpose(axes).reshape(p, q)
        left, strengths, right = np.linalg.svd(matrix, full_matrices=False)
        for k in range(max(int(np.count_nonzero(strengths > edge)), 1)):
            terms = {first: left[:, k] * strengths[k], second: right[k]}
            for part, found in columns.items():
                found.append(terms[part] if part in terms else state.factors[merged.groups.index(part)].mean[:, r])
    n_terms = len(columns[first])
    if not n_terms or n_terms * numbers_of_one(finer.shape(shape)) > state.rank * numbers_of_one(merged.shape(shape)):
        return None
    return [np.stack(found, axis=1) for found in columns.values()]


def numbers_of_one(shape: tuple[int, ...]) -> int:
    """Free numbers of one component: Σ I_n − N + 1."""
    return sum(shape) - len(shape) + 1
