"""The contractions: the few functions that access the data.

There are two implementations with the same names, arguments and results to rounding: :mod:`brtf.kernels.reference`,
plain NumPy and the definition, and :mod:`brtf.kernels.compiled`, which uses Numba where NumPy needs several passes.
The environment variable ``BRTF_KERNELS`` selects one: ``numba`` (the default) or ``numpy``. It is loaded on first use;
the compiled one is then checked against the reference by :mod:`brtf.kernels.agreement`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.kernels.arguments import Gradient, Mixture, PassSums, SliceWeights, StudentNumbers
from brtf.kernels.tables import EvidenceTable

if TYPE_CHECKING:
    from brtf.kernels.agreement import Agreement
    from brtf.kernels.arguments import CompletedRows, WeighedEntries
    from brtf.kernels.reference.chains import Smoothed
    from brtf.kernels.reference.fibres import SmoothedChains

TWINS = {"numba": "brtf.kernels.compiled", "numpy": "brtf.kernels.reference"}


@cache
def twin(name: str) -> ModuleType:
    """The implementation of that name."""
    if name not in TWINS:
        raise ValueError(f"BRTF_KERNELS must be one of {', '.join(TWINS)}, got {name!r}.")
    return import_module(TWINS[name])


@cache
def _chosen() -> ModuleType:
    """The implementation selected by the environment when the first kernel is used."""
    return twin(os.environ.get("BRTF_KERNELS", "numba"))


@cache
def _agreement() -> Agreement | None:
    """The check of the selected implementation against the reference; None for the reference itself."""
    chosen, reference = _chosen(), twin("numpy")
    return None if chosen is reference else import_module("brtf.kernels.agreement").Agreement(chosen, reference)


def listed(block: Block) -> Block:
    """The block prepared for several contractions; do not keep it longer than these take."""
    return _chosen().listed(block)


def positions(block: Block, modes: tuple[int, ...]) -> NDArray[np.int64]:
    """Position of every entry of a block along the given modes, (m,), numbered in C order over them."""
    return _chosen().positions(block, modes)


def add_to_slices(block: Block, modes: tuple[int, ...], values: Array | None, out: Array) -> None:
    """Add the sums of an entry vector, or of ones, over every slice along the given modes to ``out`` (G,)."""
    out += np.bincount(positions(block, modes), values, out.size)


def smooth_fibres(
    starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array
) -> SmoothedChains:
    """The posterior of Gaussian chains g given Π_m exp(−½ p_m (g_m − t_m)²): see the reference."""
    return _chosen().smooth_fibres(starts, decay, precision, target, variance)


def fibre_evidence(starts: NDArray[np.int64], decay: Array, precision: Array, target: Array, variance: Array) -> float:
    """The log evidence of all chains, ln E[Π_m exp(−½ p_m (g_m − t_m)²)]."""
    return float(_chosen().fibre_evidence(starts, decay, precision, target, variance))


def low_rank_at(block: Block, matrices: Sequence[Array]) -> Array:
    """Sums of products at the block's entries: x_m = Σ_c Π_n M⁽ⁿ⁾[i_n, c], (m,)."""
    return _chosen().low_rank_at(block, matrices)


def variance_at(block: Block, outers: Sequence[Array], moments: Sequence[Array], covs: Sequence[Array]) -> Array:
    """Exact posterior variance of the low-rank part at the block's entries, (m,)."""
    return _chosen().variance_at(block, outers, moments, covs)


def contract(block: Block, entry_values: Array | None, matrices: Sequence[Array], mode: int, out: Array) -> None:
    """Add to ``out`` (I_n, C) the contraction of an entry vector, or of ones, with the matrices of all other modes."""
    if agreement := _agreement():
        agreement.of_contract(block, out.shape[1])
    _chosen().contract(block, entry_values, matrices, mode, out)


def contract_one(block: Block, entry_values: Array | None, matrix: Array, mode: int, out: Array) -> None:
    """Add to ``out`` (other modes…, C) the contraction of entries, or of ones, with one mode's matrix; dense only."""
    _chosen().contract_one(block, entry_values, matrix, mode, out)


def evidence(table: EvidenceTable, rho: Array) -> tuple[Array, Array]:
    """ln f and the weights of entries with the given ρ, each (m,)."""
    return _chosen().evidence(table, rho)


def local_posteriors(
    local: EvidenceTable | Mixture,
    tau: float,
    values: Array,
    residual: Array,
    variance: Array | None,
    noise: SliceWeights | None,
    sums: PassSums,
) -> WeighedEntries:
    """Local posteriors of entries with the given y, y − x̄ and Var x, one by one; adds to the sums over them."""
    if agreement := _agreement():
        agreement.of_local_posteriors(local.spike if isinstance(local, Mixture) else local, residual.dtype)
    return _chosen().local_posteriors(local, tau, values, residual, variance, noise, sums)


def completed(values: Array, residual: Array, weight: Array, largest_weight: float) -> Array:
    """The completed data, y − (1 − w/w_max)(y − x̄), (m,)."""
    return _chosen().completed(values, residual, weight, largest_weight)


def solve_completed(
    values: Array,
    scale: float,
    left: Array,
    right: Array,
    local: EvidenceTable | Mixture,
    tau: float,
    largest_weight: float,
    noise: SliceWeights | None,
    covs: Array,
    offset: Array,
    sums: PassSums,
) -> CompletedRows:
    """Form 1 for rows (b, C) of complete data in one pass: complete the data and solve for the new rows."""
    if agreement := _agreement():
        table = local if isinstance(local, EvidenceTable) else local.spike
        agreement.of_solve_completed(table, largest_weight, values.dtype)
    return _chosen().solve_completed(values, scale, left, right, local, tau, largest_weight, noise, covs, offset, sums)


def count_deviations(deviation: Array, counts: Array, totals: Array) -> None:
    """Add the entries, or a fraction of each, to a histogram of D: count and sum per bin."""
    _chosen().count_deviations(deviation, counts, totals)


def scores(
    gradient: Gradient, numbers: StudentNumbers | None, tau: float, deviation: Array, count: Array
) -> tuple[float, Array, Array]:
    """Σ ln f over bins of D; derivatives (1 + K,) of Σ (½ ln τ + ln f) by ln τ and the K parameters; information.

    ``numbers`` describe the same local model as ``gradient``, if it has a loop of its own.
    """
    return _chosen().scores(gradient, numbers, tau, deviation, count)


def solve_rows(precision: Array, linear: Array) -> tuple[Array, Array, Array]:
    """Means, packed covariances and ln|cov| of Gaussian rows from their precision matrices and linear terms."""
    return _chosen().solve_rows(precision, linear)


def solve_truncated(precision: Array, linear: Array, location: Array) -> Array:
    """Locations (I, R) of rows of truncated normals that best match densities ∝ exp(hᵀa − ½ aᵀPa), a ≥ 0."""
    return _chosen().solve_truncated(precision, linear, location)


def smooth_chain(precision: Array, beside: Array, linear: Array) -> Smoothed:
    """The distribution of rows that follow each other, from their joint block-tridiagonal precision."""
    return _chosen().smooth_chain(precision, beside, linear)


def smooth_wide_chain(precision: Array, beside: Array, far: Array, linear: Array) -> Smoothed:
    """The same where rows also depend on those two before and after them, unless ``far`` is empty."""
    if not len(far):
        return _chosen().smooth_chain(precision, beside, linear)
    return _chosen().smooth_wide_chain(precision, beside, far, linear)


def chain_evidence(precision: Array, linear: Array, scale: Array, own: Array, beside: Array, far: Array) -> Array:
    """The log evidence of every column of rows for every chain, (K, R)."""
    return _chosen().chain_evidence(precision, linear, scale, own, beside, far)
