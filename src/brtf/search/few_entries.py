"""Regression of rows with so few entries, and so many outliers among them, that another reading may be as good."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.passes import Sums, visit
from brtf.inference.entry_posterior import relative_precision
from brtf.inference.factor_update import without_smooth
from brtf.inference.point import Point
from brtf.inference.problem import Problem
from brtf.inference.statistics import row_statistics
from brtf.model.evidence_table import tabulate
from brtf.model.state import State

MOST_SUBSETS = 300
"""Subsets of a row's entries through which a regression begins: with half of the entries outliers and rank 5, nine of
them have none."""
TEMPERATURES = (10.0, 3.0, 1.0, 1.0)
"""Variance of the noise in the steps after that, over its own: what few entries say of the others is inexact."""
TINY = 1e-10
"""Added to the diagonal of a Gram matrix, over its trace: entries that are alike make it singular."""
LARGEST_WORK = 2**26
"""Entries times subsets times squared rank, of all rows together."""


@dataclass(frozen=True)
class RowEntries:
    """The entries of one row: products of the other modes (k, R), values (k,) and relative precisions (k,)."""

    products: Array
    values: Array
    relative: Array


def doubts(problem: Problem, point: Point, mode: int) -> Array:
    """How much more outliers than regular entries say of a row, in the direction in which it is most, (I,).

    Another regression could make these outliers regular, and the regular entries outliers, where it is more than one.
    The largest eigenvalue of G_out against G_in + Λ/τ̄, with G_in = Σ w b bᵀ, G_out = Σ (1 − w) b bᵀ, b the products of
    the other modes. Zero where the priors of the rows depend on each other.
    """
    state = point.state
    terms = state.row_priors[mode].shared_terms(state.lam)
    if terms is None:
        return np.zeros(state.factors[mode].n_rows)

    def regular(block: Block) -> tuple[Array, Array]:
        weight = np.minimum(point.local(block).weight, 1.0)
        return weight, weight

    def outlying(block: Block) -> tuple[Array, Array]:
        rest = 1.0 - regular(block)[0]
        return rest, rest

    inner, outer = (
        row_statistics(problem.observations, state.factors, mode, weigh)[0] for weigh in (regular, outlying)
    )
    prior, _ = terms.at(slice(None))
    inner = inner + prior / float(state.tau.mean)
    return np.asarray([eigh(out, within, eigvals_only=True)[-1] for out, within in zip(outer, inner, strict=True)])


def best_regressions(problem: Problem, state: State, mode: int, doubt: Array) -> Array:
    """The means of all rows of a mode, those in doubt by the regression of the highest evidence.

    Of many rows in doubt, the most doubtful ones. Regressions begin at subsets of R entries. Rows whose priors depend
    on each other stay as they are.
    """
    terms, means = state.row_priors[mode].shared_terms(state.lam), state.factors[mode].mean.copy()
    if terms is None:
        return means
    gathered = _entries_of(problem, state, mode, doubt > 1.0)
    table, work = tabulate(state.local_model), 0

    def evidence(rho: Array) -> tuple[Array, Array]:
        found = kernels.evidence(table, rho.ravel())
        return found[0].reshape(rho.shape), found[1].reshape(rho.shape)

    for row, entries in sorted(gathered.items(), key=lambda one: -doubt[one[0]]):
        work += entries.values.size * MOST_SUBSETS * state.rank**2
        if work > LARGEST_WORK or entries.values.size <= state.rank:
            continue
        precision, linear = (one[0] for one in terms.at(slice(row, row + 1)))
        rng = np.random.default_rng(row)
        means[row] = best_regression(entries, float(state.tau.mean), precision, linear, evidence, rng)
    return means


def best_regression(
    entries: RowEntries,
    tau: float,
    prior_precision: Array,
    prior_linear: Array,
    evidence: Callable[[Array], tuple[Array, Array]],
    rng: np.random.Generator,
) -> Array:
    """The row a that maximises Σ ln f + ln p(a), among those that regressions from subsets of R entries lead to, (R,).

    Each begins at the exact fit of its entries and goes on with the model's weights, first for larger noise.
    """
    B, y, omega = entries.products, entries.values, tau * entries.relative
    n, rank = B.shape
    weights = np.zeros((min(math.comb(n, rank), MOST_SUBSETS), n))
    if math.comb(n, rank) <= MOST_SUBSETS:
        chosen = np.array(list(itertools.combinations(range(n), rank)))
    else:
        chosen = np.argsort(rng.random(weights.shape), axis=1)[:, :rank]
    np.put_along_axis(weights, chosen, 1.0, axis=1)
    pairs = (B[:, :, None] * B[:, None, :]).reshape(n, -1)

    def solved(weights: Array) -> tuple[Array, Array]:
        grams = ((weights * omega) @ pairs).reshape(-1, rank, rank)
        grams += prior_precision + TINY * np.trace(grams, axis1=1, axis2=2)[:, None, None] * np.eye(rank)
        rows = np.asarray(
            np.linalg.solve(grams, ((weights * omega * y) @ B + prior_linear)[..., None])[..., 0], np.float64
        )
        return rows, omega * (y - rows @ B.T) ** 2

    rows, rho = solved(weights)
    for temperature in TEMPERATURES:
        rows, rho = solved(evidence(rho / temperature)[1])
    likely = evidence(rho)[0].sum(axis=1)
    likely += rows @ prior_linear - 0.5 * np.einsum("si,ij,sj->s", rows, prior_precision, rows)
    return np.asarray(rows[np.argmax(likely)])


def _entries_of(problem: Problem, state: State, mode: int, wanted: NDArray[np.bool_]) -> dict[int, RowEntries]:
    """The entries of some rows."""
    others = [other for other in range(len(state.factors)) if other != mode]

    def look(_: Sums, block: Block) -> list[tuple[int, RowEntries]]:
        row = kernels.positions(block, (mode,))
        picked = np.flatnonzero(wanted[row])
        if not picked.size:
            return []
        products = np.ones((picked.size, state.rank))
        for other in others:
            products *= state.factors[other].mean[kernels.positions(block, (other,))[picked]]
        values = without_smooth(state, block, problem.values(block))[picked].astype(np.float64)
        relative = relative_precision(state, block)
        relative = np.ones(picked.size) if relative is None else relative[picked].astype(np.float64)
        own = row[picked]
        return [(int(i), RowEntries(products[own == i], values[own == i], relative[own == i])) for i in np.unique(own)]

    _, looks = visit(problem.observations, lambda: (), look)
    parts: dict[int, list[RowEntries]] = {}
    for row, entries in itertools.chain.from_iterable(looks):
        parts.setdefault(row, []).append(entries)
    return {
        row: RowEntries(
            *(np.concatenate([getattr(one, name) for one in some]) for name in ("products", "values", "relative"))
        )
        for row, some in parts.items()
    }
