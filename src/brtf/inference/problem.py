"""The constants of a calibrated fit, and the residuals of a state's low-rank part."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array, Cache
from brtf.data.blocks import Block
from brtf.data.chains import Chains
from brtf.data.observations import Observations
from brtf.data.passes import Field, Remembered, Sums, add_up
from brtf.inference.statistics import variance_field
from brtf.kernels.dense import khatri_rao, reduce_mode
from brtf.kernels.packed import packed_indices, symmetric_multiplicity, unpack_symmetric
from brtf.model.distributions import RowGaussians
from brtf.model.smooth_residual import SmoothResidual
from brtf.model.state import LARGEST_PRECISION, SliceNoise, State


@dataclass(frozen=True, eq=False)
class Problem:
    """The constants of a fit: the data, the order of the modes, and the form of the bound.

    ``collapsed`` is form 2, in which the outliers depend on the factors: entries are weighted, and the covariances
    reflect the weights. Form 1 completes the data instead; it is cheaper and looser. Values beyond ``limit`` are
    clipped, and ``largest_precision`` is the upper limit of the noise precision, both in units of the data's scale.
    """

    observations: Observations
    modes: tuple[int, ...]
    collapsed: bool
    limit: float = math.inf
    largest_precision: float = LARGEST_PRECISION
    packed: Cache = field(default_factory=Cache)  # of the factors last used

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """Type of per-entry numbers: complete data in single precision stay in single, and only sums are in double."""
        return self.observations.values.dtype if self.observations.layout == "complete" else np.dtype(np.float64)

    def values(self, block: Block) -> Array:
        """y of a block, in units of the data's scale, (m,)."""
        values = np.divide(block.values, self.dtype.type(self.observations.scale), dtype=self.dtype)
        return values if math.isinf(self.limit) else np.clip(values, -self.limit, self.limit)

    @property
    def rounding(self) -> Field | None:
        """Variance of the values that round to what was observed, in squared units of the scale; or None."""
        rounding, scale = self.observations.rounding, self.observations.scale
        if rounding is None:
            return None
        return Remembered(self.observations, lambda block: np.square(rounding.widths(block.values) / scale) / 12.0)

    def chains_along(self, mode: int) -> Chains:
        """The entries of every fibre along a mode, in order."""
        known: dict[int, Chains] = self.observations.cache.setdefault("chains", {})
        if mode not in known:
            known[mode] = Chains.of(self.observations, mode)
        return known[mode]

    def n_entries(self, slices: SliceNoise) -> Array:
        """Observed entries of every slice, (G,)."""
        return self.n_entries_along(slices.modes)

    def n_entries_along(self, modes: tuple[int, ...]) -> Array:
        """Observed entries at every position along the given modes, (G,)."""
        known: dict[tuple[int, ...], Array] = self.observations.cache.setdefault("n_entries_along", {})
        if modes not in known:
            n_slices = math.prod(self.observations.shape[mode] for mode in modes)

            def add(sums: Sums, block: Block) -> None:
                kernels.add_to_slices(block, modes, None, sums[0])

            (known[modes],) = add_up(self.observations, lambda: (np.zeros(n_slices),), add)
        return known[modes]


@dataclass(frozen=True, eq=False)
class Fit:
    """Residuals of a state's low-rank part and their variances, block by block; of its smooth residual g too.

    Attributes
    ----------
    residual : y − x̄ − ḡ
    variance : Var x + Var g in form 2; in form 1 only their sum is needed. That of rounding, if it counts, in both.
        None without any
    """

    residual: Field
    variance: Field | None

    @classmethod
    def of(cls, problem: Problem, state: State) -> Fit:
        """The fit of a state; for small data every block is computed once and cached."""
        found = cls.without_smooth(problem, state.factors)
        return found if state.smooth is None else found.beside(problem, state.smooth)

    @classmethod
    def without_smooth(cls, problem: Problem, factors: tuple[RowGaussians, ...]) -> Fit:
        """The fit of the low-rank part alone."""
        observations = problem.observations

        def of_block(block: Block) -> Array:
            return problem.values(block) - kernels.low_rank_at(block, [rows.mean_as(problem.dtype) for rows in factors])

        residual = Remembered(observations, of_block)
        rounding = problem.rounding
        if not problem.collapsed or not factors[0].rank:
            return cls(residual, rounding)
        variance = variance_field(factors, problem.packed)
        if rounding is None:
            return cls(residual, Remembered(observations, variance))
        return cls(residual, Remembered(observations, lambda block: variance(block) + rounding(block)))

    def beside(self, problem: Problem, smooth: SmoothResidual) -> Fit:
        """The fit with a smooth residual beside the low-rank part."""
        mean = smooth.mean.astype(problem.dtype, copy=False)
        residual = Remembered(problem.observations, lambda block: self.residual(block) - mean[block.entries])
        variance = self.variance
        if not problem.collapsed:
            return Fit(residual, variance)

        def of_block(block: Block) -> Array:
            own = smooth.var[block.entries]
            return own if variance is None else variance(block) + own

        return Fit(residual, Remembered(problem.observations, of_block))

    def at(self, block: Block) -> tuple[Array, Array | None]:
        """Residual and variance of a block's entries."""
        return self.residual(block), None if self.variance is None else self.variance(block)


def slice_variances(problem: Problem, state: State, modes: tuple[int, ...]) -> Array:
    """Σ Var x over the observed entries of each slice, (G,); for a complete tensor from sums over the other modes."""
    n_slices = math.prod(problem.observations.shape[mode] for mode in modes)
    if problem.observations.layout != "complete":
        variance = variance_field(state.factors, problem.packed)

        def add(sums: Sums, block: Block) -> None:
            kernels.add_to_slices(block, modes, variance(block), sums[0])

        return add_up(problem.observations, lambda: (np.zeros(n_slices),), add)[0]
    upper = packed_indices(state.rank)
    spread, product = np.zeros((1, upper[0].size)), np.ones((1, upper[0].size))
    for rows in (rows for mode, rows in enumerate(state.factors) if mode not in modes):
        outer, cov = rows.gram[upper], rows.cov_sum[upper]
        spread, product = spread * (outer + cov) + product * cov, product * outer
    *others, last = (state.factors[mode] for mode in modes)
    for rows in others:
        cov = np.broadcast_to(rows.cov_packed, rows.outer_packed.shape)
        spread = khatri_rao([spread, rows.second_moment_packed]) + khatri_rao([product, cov])
        product = khatri_rao([product, rows.outer_packed])
    multiplicity = symmetric_multiplicity(upper[0].size)
    of_cov = (multiplicity * (spread + product)) @ np.broadcast_to(last.cov_packed.T, (upper[0].size, last.n_rows))
    if len(spread) == 1:  # ãᵀ S ã avoids packed products of the means
        matrix = unpack_symmetric(spread[0], state.rank)
        return np.einsum("ir,ir->i", last.mean @ matrix, last.mean) + of_cov[0]
    return ((multiplicity * spread) @ last.outer_packed.T + of_cov).reshape(-1)


def slice_grams(slices: SliceNoise, factors: tuple[RowGaussians, ...], mode: int) -> Array:
    """Row Grams of complete data weighted by ω̄, without access to the data; (I_n, R, R), or (1, R, R) if shared."""
    rank = factors[mode].rank
    upper = packed_indices(rank)
    sums = [(rows.gram + rows.cov_sum)[upper] for k, rows in enumerate(factors) if k not in (*slices.modes, mode)]
    shared = np.prod(sums, axis=0) if sums else np.ones(upper[0].size)
    relative = slices.mean
    if mode not in slices.modes and len(slices.modes) == 1:  # Σ ω̄ E[aaᵀ] avoids packed products of the means
        (rows,) = (factors[k] for k in slices.modes)
        of_cov = relative.sum() * rows.cov_packed[0] if rows.shared else relative @ rows.cov_packed
        outer = (relative[:, None] * rows.mean).T @ rows.mean
        return unpack_symmetric(shared * (outer[upper] + of_cov), rank)[None]
    weighted = relative.reshape(*(factors[k].n_rows for k in slices.modes), 1) * shared
    kept = list(slices.modes)
    for k in slices.modes:
        if k != mode:
            weighted = reduce_mode(weighted, factors[k].second_moment_packed, kept.index(k))
            kept.remove(k)
    return unpack_symmetric(weighted.reshape(-1, upper[0].size), rank)
