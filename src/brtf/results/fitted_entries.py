"""The observed entries of a finished fit: their outliers, residuals and imputed values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.special import ndtr

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.chunks import ChunkedObservations
from brtf.data.exports import with_gaps
from brtf.data.memory import available_bytes
from brtf.data.observations import Observations, entry_positions
from brtf.data.observe import observe
from brtf.data.passes import Sums, add_up, visit
from brtf.data.scale import SD_PER_MEDIAN
from brtf.inference.entry_posterior import EntryLaw, block_outliers, grouped
from brtf.inference.statistics import fit_at_entries, scaled_values, variance_field
from brtf.model.state import MeanFieldOutliers
from brtf.results.signal import FittedSignal

COPIES = 16
"""Arrays of the shape of the data that must fit into memory for entries that come in chunks to be read at once."""


class FittedEntries(FittedSignal):
    """A finished fit with its observed entries."""

    @cached_property
    def at_hand(self) -> Self:
        """The result with its entries in memory: dense data that come in chunks are read if they are small."""
        observations = self.observations
        if not isinstance(observations, ChunkedObservations) or not observations.chunks:
            return self
        if observations.layout == "coordinates" or COPIES * 8 * observations.n_entries > available_bytes():
            return self  # what needs the entries says so

        def look(sums: Sums, block: Block) -> tuple[Array, NDArray[np.bool_] | None]:
            return np.array(block.values), block.mask

        _, pieces = visit(observations, lambda: (np.zeros(()),), look)
        values = np.concatenate([values.ravel() for values, _ in pieces])
        if observations.layout == "complete":
            here = observe(values.reshape(observations.shape))
        else:
            mask = np.concatenate([mask for _, mask in pieces if mask is not None])
            dense = np.zeros(observations.shape, values.dtype)
            dense[mask] = values
            here = observe(dense, mask)
        labels, container = observations.labels, observations.container
        return replace(self, observations=replace(here, scale=self.scale, labels=labels, container=container))

    @cached_property
    def outlier_rate(self) -> float:
        """The mean of :meth:`outlier_probability` over the observed entries."""
        if isinstance(self.state.local, MeanFieldOutliers):
            return float(np.mean(self.outlier_probability_at_entries()))
        if not self.state.local.has_outliers:
            return 0.0
        observations, of_block = self.entries_together, self.outliers_of_block

        def add(sums: Sums, block: Block) -> None:
            sums[0][...] += of_block(block)[0].sum()

        return float(add_up(observations, lambda: (np.zeros(()),), add)[0]) / observations.n_observed

    @property
    def outlier_rates(self) -> Array:
        """The rates at which outliers are expected, with an axis per mode; of length 1 where they do not differ.

        In the paper's inference, which has no rate, the share of the observed entries that are outliers.
        """
        state, shape = self.state, self.observations.shape
        rates = None if state.structure is None else state.structure.rates
        if rates is None:
            common = self.outlier_rate if isinstance(state.local, MeanFieldOutliers) else state.local_model.probability
            return np.full((1,) * len(shape), common)
        lengths = [self.arrangement.shape(shape)[mode] for mode in rates.modes]
        along = self.arrangement.along(rates.modes, rates.at_positions(rates.mean).reshape(lengths), shape)
        modes = self.arrangement.modes_of(rates.modes)
        return np.expand_dims(along, tuple(mode for mode in range(len(shape)) if mode not in modes))

    def outliers_at_entries(self) -> Array:
        """Posterior mean of s at the observed entries, (M,); with a link y − t⁻¹(t(y) − s̄)."""
        outliers = self.state.local
        if not outliers.has_outliers:
            return np.zeros(self.observations.n_observed)
        if isinstance(outliers, MeanFieldOutliers):
            mean = outliers.mean
        else:
            probability, share = self._local_posteriors()
            mean = probability * share * self._residual
        return self.link.outliers(self.observations.values.ravel(), mean * self.scale)

    def outlier_probability_at_entries(self) -> Array:
        """Posterior probability that each observed entry is an outlier, (M,).

        The paper's model has no outlier indicator, and its S absorbs much of the noise. There an entry counts as an
        outlier if |s_m| exceeds three robust standard deviations, 1.4826 · median|y − x̄|, of all deviations (or three
        of the noise, if most entries are fitted exactly), with its probability under q(s_m) = N(s̄_m, σ²_m).
        """
        outliers = self.state.local
        if not outliers.has_outliers:
            return np.zeros(self.observations.n_observed)
        if not isinstance(outliers, MeanFieldOutliers):
            return self._local_posteriors()[0]
        deviation = np.abs(fit_at_entries(self._modelled, self.state.factors).residual)
        limit = 3.0 * max(SD_PER_MEDIAN * float(np.median(deviation)), float(self.state.tau.mean) ** -0.5)
        std = np.sqrt(outliers.var)
        return ndtr((outliers.mean - limit) / std) + ndtr((-outliers.mean - limit) / std)

    def _local_posteriors(self) -> tuple[Array, Array]:
        """Responsibility of every entry, and the share of its deviation due to an outlier if it is one; (M,)."""
        pieces = list(map(self.outliers_of_block, self.entries_together.block_list))
        probability, share = (self.as_given(np.concatenate(parts)) for parts in zip(*pieces, strict=True))
        return probability, share

    def as_given(self, entry_vector: Array) -> Array:
        """A vector over the entries as the state describes them, in the order of the data."""
        return self.arrangement.entries(entry_vector, self.observations)

    @property
    def _residual(self) -> Array:
        """t(y) − x̄ − ḡ in units of the scale at the observed entries, (M,)."""
        residual = fit_at_entries(self._modelled, self.state.factors).residual
        return self.as_given(residual if self.state.smooth is None else residual - self.state.smooth.mean)

    @cached_property
    def entries_together(self) -> Observations:
        """The data in blocks that do not split groups of entries with shared outliers."""
        return grouped(self._modelled, () if self.state.structure is None else self.state.structure.modes)

    @property
    def outliers_of_block(self) -> Callable[[Block], tuple[Array, Array]]:
        """Responsibility of a block's entries, and the share of a deviation due to an outlier if it is one; (m,)."""
        observations, law, smooth = self.entries_together, EntryLaw(self.state), self.state.smooth
        means, variance = [rows.mean for rows in self.state.factors], variance_field(self.state.factors)

        def found(block: Block) -> tuple[Array, Array]:
            values, residual = scaled_values(observations, block), kernels.low_rank_at(block, means)
            np.subtract(values, residual, out=residual)
            spread = variance(block)
            if smooth is not None:
                residual, spread = residual - smooth.mean[block.entries], spread + smooth.var[block.entries]
            return block_outliers(law, block, values, residual, spread)

        return found

    def relative_precision_of(self, observations: Observations) -> Array:
        """ω̄ of the slice of every entry, (M,); ones where the noise is common."""
        if self.state.slices is None:
            return np.ones(observations.n_observed)
        return self._relative_precisions.reshape(-1)[entry_positions(observations, self.noise_modes)]

    def values_at_entries(self) -> Array:
        """t(y) at the observed entries, (M,)."""
        return self.as_given(self._modelled.values.ravel().astype(np.float64))

    def residuals_at_entries(self) -> Array:
        """t(y) − x̄ at the observed entries, in the units of t(Y), (M,)."""
        return self._residual * self.scale

    def standardized_residuals(self) -> Array:
        """t(y) − x̄ at the observed entries in standard deviations of their noise, (M,)."""
        return self._residual * np.sqrt(self.relative_precision_of(self.observations) / self.state.noise_variance)

    def place(self, entry_vector: Array) -> Any:
        """An entry vector as a tensor: dense with zeros where missing, a sparse coo_array for sparse data."""
        observations = self.observations
        if observations.coords is not None:
            return coo_array((entry_vector, tuple(observations.coords)), shape=observations.shape)
        if observations.mask is None:
            return entry_vector.reshape(observations.shape)
        dense = np.zeros(observations.shape)
        dense[observations.mask] = entry_vector
        return dense

    def impute(self, *, replace_outliers: bool = False) -> Array:
        """The data with missing entries filled in by the signal and, on request, with the outliers subtracted.

        Calibration entries have no outlier probability, so with ``replace_outliers`` they are replaced by the signal.
        """
        observed = self.observations.values.ravel().astype(np.float64)
        if replace_outliers:
            observed = observed - self.outliers_at_entries()
        filled = np.array(self.signal())
        filled[tuple(self.observations.entry_coords())] = observed
        if self.held_back is not None and not replace_outliers:
            filled[tuple(self.held_back.entry_coords())] = self.held_back.values
        return filled

    def _given(self) -> Array:
        """The data as a dense tensor, including calibration entries; NaN where nothing was given."""
        given = with_gaps(self.observations, self.observations.values.ravel())
        if self.held_back is not None:
            given[tuple(self.held_back.entry_coords())] = self.held_back.values
        return given
