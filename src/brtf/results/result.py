"""The result of a fit: the low-rank part, outliers and predictions in the user's units."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.special import ndtr, ndtri

from brtf import kernels
from brtf.data.arrangement import Arrangement
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.chains import Chains
from brtf.data.checks import check_coords
from brtf.data.chunks import ChunkedObservations
from brtf.data.exports import Table, long_table, to_cp_tensor, to_dataset, to_frame, with_gaps
from brtf.data.memory import available_bytes, check_memory
from brtf.data.observations import Observations, entry_positions
from brtf.data.observe import observe
from brtf.data.passes import Sums, add_up, visit
from brtf.data.plan import BLOCK_ENTRIES
from brtf.inference.entry_posterior import EntryLaw, block_outliers, grouped
from brtf.inference.statistics import fit_at_entries, scaled_values, variance_field
from brtf.inference.trace import Doubt, Record, StopReason
from brtf.kernels.reference.contractions import symmetric_multiplicity
from brtf.model.distributions import RowGaussians
from brtf.model.links import Link
from brtf.model.predictive import ErrorLaw, error_law, split_conformal
from brtf.model.row_priors import RowPrior
from brtf.model.settings import Settings
from brtf.model.state import MeanFieldOutliers, State
from brtf.model.uncertainty import hidden_variance, honest_rows
from brtf.search.choices import Comparison

if TYPE_CHECKING:
    from brtf.results.summary import Summary

COPIES = 16
"""Arrays of the shape of the data that must fit into memory for entries that come in chunks to be read at once."""
LARGEST_RATIO = 1e100
"""Largest size of new data in units of the scale of the fitted data; beyond it squares might overflow."""
Quantity = Literal["low_rank", "signal", "observation"]


@dataclass(frozen=True, eq=False)
class Result:
    """A finished fit: the data, the posterior, and how the fit went. Everything it returns is in the user's units.

    With a link t, the factors and the noise variance refer to t(Y).

    Attributes
    ----------
    observations : the data, not copied; their scale is that of t(Y)
    state : the posterior of t(Y), in units of ``observations.scale``
    trace : one record per accepted sweep and per proposal
    stop_reason, settings : why the fit ended, and its options as they were given
    seconds : wall-clock time of the fit
    link, arrangement : the link t that was applied to the data, and which modes were read as one or folded
    comparisons : how they were chosen
    held_back : calibration entries, which were not fitted, for conformal intervals; None without them
    cap_gain : nats by which one more component would raise the bound, if ``max_rank`` was reached
    diagnosis : problems found with the fit, the most serious first; empty if there are none
    """

    observations: Observations
    state: State
    trace: tuple[Record, ...]
    stop_reason: StopReason
    settings: Settings
    seconds: float
    version: str
    link: Link
    arrangement: Arrangement
    comparisons: tuple[Comparison, ...] = ()
    held_back: Observations | None = None
    cap_gain: float | None = None
    diagnosis: tuple[Doubt, ...] = ()

    def __repr__(self) -> str:
        noise = self.noise_variances
        levels = f"{noise:.4g}" if noise.ndim == 0 else f"{noise.min():.4g}…{noise.max():.4g}"
        return (
            f"Result(shape={self.observations.shape}, rank={self.rank}, bound={self.bound:.8g}, "
            f"noise_variance={levels}, outlier_rate={self.outlier_rate:.4g}, converged={self.stop_reason.converged})"
        )

    @cached_property
    def at_hand(self) -> Result:
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

    # ---- numbers -------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self.state.rank

    @property
    def scale(self) -> float:
        return self.observations.scale

    def as_modelled(self, observations: Observations) -> Observations:
        """Data in the user's units and shape as the state describes them: t(Y), merged modes, the scale of the fit."""
        modelled = self.arrangement.apply(self.link.apply(observations))
        largest = modelled.largest
        if largest > LARGEST_RATIO * self.scale:
            raise ValueError(
                f"Y reaches {largest:.3g}, more than {LARGEST_RATIO:.0e} times the scale {self.scale:.3g} of the data "
                "that were fitted. Check its units."
            )
        return replace(modelled, scale=self.scale)

    @cached_property
    def _modelled(self) -> Observations:
        return self.as_modelled(self.observations)

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in the squared units of t(Y); where slices differ, the median of theirs."""
        return float(np.median(self.noise_variances))

    @property
    def noise_variances(self) -> Array:
        """Variance of the noise in the squared units of t(Y), over the noise modes; of order 0 where it is common."""
        slices = self.state.slices
        if slices is None:
            return _in_squared_units(np.asarray(self.state.noise_variance), self.scale)
        return _in_squared_units(self.state.noise_variance / self._relative_precisions, self.scale)

    @property
    def noise_modes(self) -> tuple[int, ...]:
        """The modes along which the noise differs, ascending; empty where it is common."""
        return () if self.state.slices is None else self.arrangement.modes_of(self.state.slices.modes)

    @property
    def outlier_modes(self) -> tuple[int, ...]:
        """The modes along which outliers are shared, ascending; empty where each is on its own."""
        return () if self.state.structure is None else self.arrangement.modes_of(self.state.structure.modes)

    @property
    def outlier_kind(self) -> str:
        """Whether outliers are added to the data or replace them."""
        replaced = self.state.structure is not None and self.state.structure.law is not None
        return "replacement" if replaced else "additive"

    @property
    def _relative_precisions(self) -> Array:
        """ω̄ over the noise modes; 1 where the noise is common."""
        slices, shape = self.state.slices, self.observations.shape
        if slices is None:
            return np.ones(())
        lengths = [self.arrangement.shape(shape)[group] for group in slices.modes]
        return self.arrangement.along(slices.modes, slices.mean.reshape(lengths), shape)

    @cached_property
    def outlier_rate(self) -> float:
        """The mean of :meth:`outlier_probability` over the observed entries."""
        if isinstance(self.state.outliers, MeanFieldOutliers):
            return float(np.mean(self.outlier_probability_at_entries()))
        if not self.state.outliers.has_outliers:
            return 0.0
        observations, of_block = self.entries_together, self.outliers_of_block

        def add(sums: Sums, block: Block) -> None:
            sums[0][...] += of_block(block)[0].sum()

        return float(add_up(observations, lambda: (np.zeros(()),), add)[0]) / observations.n_observed

    @cached_property
    def bound_shift(self) -> float:
        """Σ ln |dt/dy| − M ln(scale), which turns a bound for the scaled t(Y) into one for the data themselves."""
        return self.link.bound_shift(self.observations)

    @property
    def bound(self) -> float:
        """The lower bound of ln p(Y), the last finite one, for the data in the user's units."""
        finite = [record.bound for record in self.trace if np.isfinite(record.bound)]
        return (finite[-1] if finite else np.nan) + self.bound_shift

    # ---- the low-rank part ---------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[RowGaussians, ...]:
        """The posterior of the rows of every mode, in units of the scale, with corrected covariances."""
        return honest_rows(self.state)

    def factor_means(self) -> list[Array]:
        """Posterior means (I_n, R) of every mode or group of merged modes; their products give x̄ of t(Y)."""
        share = self.scale ** (1.0 / len(self.state.factors))
        return [rows.mean * share for rows in self.state.factors]

    def mode_factors(self) -> dict[tuple[int, ...], Array]:
        """Posterior means (I_n, R) along every mode as it was given, or group of merged modes, by modes.

        That of a folded mode has at every position the product of the loadings of its round and its phase.
        """
        arrangement, means = self.arrangement, self.factor_means()
        found: dict[tuple[int, ...], Array] = {}
        for modes, mean in zip(arrangement.read_modes, means, strict=True):
            if modes in found:
                length = self.observations.shape[modes[0]]
                mean = arrangement.along_mode(modes[0], found[modes], mean, length)
            found[modes] = mean
        return found

    def loadings(self, rows: RowGaussians, prior: RowPrior, n_rows: int) -> tuple[Array, Array]:
        """Means and standard deviations of the loadings of so many slices of the first mode, with the given rows.

        Where the mode is folded, the rows are those of its rounds, and a slice has their products with the phase's.
        """
        share = self.scale ** (1.0 / len(self.state.factors))
        (honest,) = honest_rows(replace(self.state, factors=(rows,), row_priors=(prior,)))
        mean, var = rows.mean * share, np.einsum("irr->ir", honest.cov) * share**2
        var = np.broadcast_to(var, mean.shape)
        if 0 not in self.arrangement.periods:
            return mean, np.sqrt(var)
        phases = self.rows[1]
        own, own_var = phases.mean * share, np.einsum("irr->ir", phases.cov) * share**2
        own_var = np.broadcast_to(own_var, own.shape)
        squares = self.arrangement.along_mode(0, mean**2 + var, own**2 + own_var, n_rows)
        mean = self.arrangement.along_mode(0, mean, own, n_rows)
        return mean, np.sqrt(np.maximum(squares - mean**2, 0.0))

    def factor_covariances(self) -> list[Array]:
        """Posterior covariances (I_n, R, R) of the rows."""
        share = self.scale ** (2.0 / len(self.state.factors))
        return [np.broadcast_to(rows.cov * share, (rows.n_rows, rows.rank, rows.rank)) for rows in self.rows]

    @property
    def smooth_mode(self) -> int | None:
        """The mode along which there is a smooth residual; None without one."""
        smooth = self.state.smooth
        return None if smooth is None else self.arrangement.read_modes[smooth.mode][0]

    @cached_property
    def _chains(self) -> Chains:
        if self.state.smooth is None:
            raise TypeError("the fit has no smooth residual")
        return Chains.of(self._modelled, self.state.smooth.mode)

    def _smooth_at(self, coords: Any) -> tuple[Array | float, Array | float]:
        """ḡ and Var g of t(Y) at the given coordinates, or everywhere, in units of the scale; zeros without g."""
        smooth = self.state.smooth
        if smooth is None:
            return 0.0, 0.0
        found = []
        for block in self._blocks(coords):
            places = block.coords
            if places is None:
                places = np.stack(np.unravel_index(np.arange(block.entries.start, block.entries.stop), block.shape))
            found.append(smooth.at(self._chains, places))
        means, variances = zip(*found, strict=True)
        return self._assemble(list(means), coords), self._assemble(list(variances), coords)

    def signal(self, coords: Any = None) -> Array:
        """E[t⁻¹(x + g)] at the given coordinates (M,), or the whole tensor: low-rank part and smooth residual."""
        if self.state.smooth is None:
            return self.low_rank(coords)
        smooth, variance = self._smooth_at(coords)
        centre = (self._centre(coords) + smooth) * self.scale
        if self.link.name is None:
            return centre
        return self.link.mean(centre, np.sqrt(self.factor_variance(coords) + variance) * self.scale)

    def low_rank(self, coords: Any = None) -> Array:
        """E[t⁻¹(x)] at the given coordinates (M,), or the whole tensor: x̄ without a link."""
        centre = self._centre(coords) * self.scale
        if self.link.name is None:  # the mean is x̄, whatever the variance
            return centre
        return self.link.mean(centre, np.sqrt(self.factor_variance(coords)) * self.scale)

    def slices_with(self, loadings: Array) -> Array:
        """t⁻¹(x̄) of slices of the first mode with the given loadings, in the user's units.

        They are (n, R), or (n, I_k, …, R) where the first mode is read as one with others.
        """
        shape = self.observations.shape
        modes = self.arrangement.read_modes[0]
        wanted = (*(shape[mode] for mode in modes[1:]), self.rank)
        if loadings.ndim != len(wanted) + 1 or loadings.shape[1:] != wanted:
            raise ValueError(
                f"X must have shape ({', '.join(map(str, ('n', *wanted)))}), a loading per component as transform() "
                f"gives them, got {loadings.shape}."
            )
        x = loadings.reshape(-1, self.rank)
        for factor in list(self.mode_factors().values())[1:]:
            x = x[..., None, :] * factor
        rest = Arrangement(self.arrangement.groups)  # loadings are along the mode itself, also where it is folded
        return self.link.inverse(rest.tensor(x.sum(axis=-1), (len(loadings), *shape[1:])))

    def _centre(self, coords: Any) -> Array:
        """x̄ of t(Y) at the given coordinates, or everywhere, in units of the scale."""
        means = [rows.mean for rows in self.state.factors]
        pieces = [kernels.low_rank_at(block, means) for block in self._blocks(coords)]
        return self._assemble(pieces, coords)

    def low_rank_variance(self, coords: Any = None) -> Array:
        """Var x at the given coordinates (M,), or for the whole tensor, in units of the scale of t(Y) squared.

        It includes the variance of the factors and that of components too weak to be detected.
        """
        return self.factor_variance(coords) + hidden_variance(self.state)

    def factor_variance(self, coords: Any = None, *, method: Literal["exact", "first-order"] = "exact") -> Array:
        """Var x from the posterior of the factors alone; undetected components are part of the noise estimate.

        ``"exact"`` is Σ_{rs} Π_n (ããᵀ+V)_{rs} − x̄² of the posterior; ``"first-order"`` is the paper's sum over the
        modes of (⊛_{k≠n} ã)ᵀ V⁽ⁿ⁾ (⊛_{k≠n} ã), which leaves out products of covariances.
        """
        factors = self.rows
        outers = [rows.outer_packed for rows in factors]
        moments = [rows.second_moment_packed for rows in factors]
        covs = [np.broadcast_to(rows.cov_packed, m.shape) for rows, m in zip(factors, moments, strict=True)]
        if method == "exact":
            pieces = [kernels.variance_at(block, outers, moments, covs) for block in self._blocks(coords)]
        elif method == "first-order":
            multiplicity = symmetric_multiplicity(outers[0].shape[1])
            pieces = []
            for block in self._blocks(coords):
                swapped = ([*outers[:n], covs[n] * multiplicity, *outers[n + 1 :]] for n in range(len(factors)))
                pieces.append(np.sum([kernels.low_rank_at(block, matrices) for matrices in swapped], axis=0))
        else:
            raise ValueError(f"method must be 'exact' or 'first-order', got {method!r}.")
        return self._assemble(pieces, coords)

    # ---- outliers ------------------------------------------------------------------------------------------

    def outliers_at_entries(self) -> Array:
        """Posterior mean of s at the observed entries, (M,); with a link y − t⁻¹(t(y) − s̄)."""
        outliers = self.state.outliers
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
        outliers = self.state.outliers
        if not outliers.has_outliers:
            return np.zeros(self.observations.n_observed)
        if not isinstance(outliers, MeanFieldOutliers):
            return self._local_posteriors()[0]
        deviation = np.abs(fit_at_entries(self._modelled, self.state.factors).residual)
        limit = 3.0 * max(1.4826 * float(np.median(deviation)), float(self.state.tau.mean) ** -0.5)
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

    def _relative_precision(self, observations: Observations) -> Array:
        """ω̄ of the slice of every entry, (M,); ones where the noise is common."""
        if self.state.slices is None:
            return np.ones(observations.n_observed)
        return self._relative_precisions.reshape(-1)[entry_positions(observations, self.noise_modes)]

    def _relative_precision_at(self, coords: Any) -> Array | float:
        """ω̄ of the slice of every requested entry, in the shape of the answer; 1 where the noise is common."""
        if self.state.slices is None:
            return 1.0
        shape, modes, precision = self.observations.shape, self.noise_modes, self._relative_precisions
        if coords is not None:
            return precision[tuple(np.asarray(coords[mode]) for mode in modes)]
        return np.broadcast_to(precision.reshape([n if m in modes else 1 for m, n in enumerate(shape)]), shape)

    def values_at_entries(self) -> Array:
        """t(y) at the observed entries, (M,)."""
        return self.as_given(self._modelled.values.ravel().astype(np.float64))

    def residuals_at_entries(self) -> Array:
        """t(y) − x̄ at the observed entries, in the units of t(Y), (M,)."""
        return self._residual * self.scale

    def standardized_residuals(self) -> Array:
        """t(y) − x̄ at the observed entries in standard deviations of their noise, (M,)."""
        return self._residual * np.sqrt(self._relative_precision(self.observations) / self.state.noise_variance)

    def place(self, entry_vector: Array, fill: float) -> Any:
        """An entry vector as a tensor: dense with ``fill`` where missing, a sparse coo_array for sparse data."""
        observations = self.observations
        if observations.coords is not None:
            return coo_array((entry_vector, tuple(observations.coords)), shape=observations.shape)
        if observations.mask is None:
            return entry_vector.reshape(observations.shape)
        dense = np.full(observations.shape, fill)
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

    # ---- in other forms ------------------------------------------------------------------------------------

    def outlier_table(self, *, first_position: int = 0) -> Table:
        """The entries with an outlier probability above ½, the largest outliers first, as columns by name.

        Labels or positions (from ``first_position``) of the modes, then ``observed``, ``low_rank``, ``outlier`` and
        ``probability``.
        """
        probability, outliers = self.outlier_probability_at_entries(), self.outliers_at_entries()
        chosen = np.flatnonzero(probability > 0.5)
        chosen = chosen[np.argsort(-np.abs(outliers[chosen]), kind="stable")]
        coords = self.observations.entry_coords()[:, chosen]
        numbers = [
            ("observed", self.observations.values.ravel()[chosen]),
            ("low_rank", self.low_rank(coords) if chosen.size else np.empty(0)),
            ("outlier", outliers[chosen]),
            ("probability", probability[chosen]),
        ]
        return long_table(self.observations, coords, numbers, first_position=first_position)

    def imputed_table(self) -> Table:
        """Every entry of the tensor, observed or imputed, as columns by name.

        Labels or positions of the modes, then the value by its own name (``value`` without one), ``std`` of the
        low-rank part, and ``missing``: whether no value was given and the low-rank part is used.
        """
        observations = self.observations
        n_bytes = 8 * (observations.order + 3) * observations.n_entries
        check_memory(n_bytes, f"a table of all entries of shape {observations.shape}", "ask predict() for some")
        missing = np.isnan(self._given())
        name = None if observations.labels is None else observations.labels.name
        numbers = [(name or "value", self.impute().ravel()), ("std", self.std().ravel()), ("missing", missing.ravel())]
        return long_table(observations, np.indices(missing.shape).reshape(missing.ndim, -1), numbers)

    def to_frame(self, of: Literal["outliers", "imputed"] = "outliers") -> Any:
        """A pandas.DataFrame with the index columns of the data: :meth:`outlier_table` or :meth:`imputed_table`."""
        if not isinstance(of, str) or of not in ("outliers", "imputed"):
            raise ValueError(f"of must be 'outliers' or 'imputed', got {of!r}.")
        return to_frame(self.outlier_table() if of == "outliers" else self.imputed_table())

    def to_xarray(self) -> Any:
        """The results as an xarray.Dataset with the labels of the data; see :meth:`brtf.BRTF.to_xarray`."""
        observations = self.observations
        n_bytes = 5 * 8 * observations.n_entries
        check_memory(n_bytes, f"a dataset of shape {observations.shape}", "use to_frame(), or predict() with coords=")
        tensors = {
            "observed": self._given(),
            "low_rank": self.low_rank(),
            "std": self.std(),
            "outliers": with_gaps(observations, self.outliers_at_entries()),
            "outlier_probability": with_gaps(observations, self.outlier_probability_at_entries()),
        }
        attrs = {
            "rank": self.rank,
            "bound": self.bound,
            "inference": self.settings.inference,
            "link": self.link.name or "none",
            "stop_reason": self.stop_reason.value,
            "brtf_version": self.version,
        }
        noise = {"noise_variance": (self.noise_modes, self.noise_variances)}
        factors = {
            group: mean.reshape(*(observations.shape[mode] for mode in group), -1)
            for group, mean in self.mode_factors().items()
        }
        return to_dataset(observations, tensors, factors, noise, attrs)

    def to_tensorly(self) -> Any:
        """The posterior means of the factors as a tensorly.cp_tensor.CPTensor; see :meth:`brtf.BRTF.to_tensorly`."""
        return to_cp_tensor(list(self.mode_factors().values()))

    def _given(self) -> Array:
        """The data as a dense tensor, including calibration entries; NaN where nothing was given."""
        given = with_gaps(self.observations, self.observations.values.ravel())
        if self.held_back is not None:
            given[tuple(self.held_back.entry_coords())] = self.held_back.values
        return given

    # ---- predictions ---------------------------------------------------------------------------------------

    @property
    def error_law(self) -> ErrorLaw:
        return error_law(self.state)

    def std(self, coords: Any = None, *, of: Quantity = "low_rank") -> Array:
        """Standard deviation of the low-rank part, of the signal, or of a new observation; infinite where none."""
        centre, own = self._centre_and_own(coords, of)
        if of != "observation":
            return self.link.std(centre * self.scale, np.sqrt(self.low_rank_variance(coords) + own) * self.scale)
        relative, variance = self._relative_precision_at(coords), self.factor_variance(coords) + own
        law, spread, variance = self._error_law_in_slices(relative, variance)
        return self.link.observation_std(law, spread * centre, variance, self.scale / spread)

    def interval(
        self, coords: Any = None, *, level: float = 0.95, of: Quantity = "low_rank", regular: bool = False
    ) -> tuple[Array, Array]:
        """Central credible interval of the low-rank part or the signal (Gaussian in t(Y)), or of an observation (27).

        With ``regular`` that of an observation which is not an outlier, without conformal calibration.
        """
        if not isinstance(level, numbers.Real) or not 0 < level < 1:
            raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
        centre, own = self._centre_and_own(coords, of)
        if of != "observation":
            high = ndtri(0.5 * (1 + level)) * np.sqrt(self.low_rank_variance(coords) + own)
            low = -high
        else:
            relative, variance = self._relative_precision_at(coords), self.factor_variance(coords) + own
            law, spread, variance = self._error_law_in_slices(relative, variance)
            middle, half = _middle_and_half(law.without_outliers() if regular else law, level, variance)
            half = half if regular else half * self._conformal_factor(level)
            low, high = (middle - half) / spread, (middle + half) / spread
        with np.errstate(over="ignore"):  # ends that overflow are infinite
            return self.link.interval((centre + low) * self.scale, (centre + high) * self.scale)

    def _centre_and_own(self, coords: Any, of: Quantity) -> tuple[Array, Array | float]:
        """The centre of a quantity in units of the scale, and Var g where it includes the smooth residual."""
        check_quantity(of)
        smooth, variance = (0.0, 0.0) if of == "low_rank" else self._smooth_at(coords)
        return self._centre(coords) + smooth, variance

    def _conformal_factor(self, level: float) -> float:
        """Factor for the half widths at this level so that intervals cover the calibration entries; 1 without them.

        The centre of an interval, which is not x̄ where outliers are one-sided, does not change.
        """
        if self.held_back is None:
            if self.settings.calibrate is not None and self.observations.in_chunks:
                raise ValueError(
                    "A checkpoint does not contain the calibration entries that these intervals need. Resume the fit "
                    'with fit(Y, resume=…), or ask for intervals of="low_rank".'
                )
            return 1.0
        _, residual, variance = self._deviations(self.held_back)
        law, spread, variance = self._error_law_in_slices(self._relative_precision(self.held_back), variance)
        middle, half = _middle_and_half(law, level, variance)
        return split_conformal(np.abs(residual * spread - middle) / half, level)

    def _deviations(self, observations: Observations) -> tuple[Array, Array, Array]:
        """t(y), t(y) − x̄ − ḡ and Var x + Var g of entries of the same tensor, in units of the scale; (M,)."""
        modelled = self.as_modelled(observations)
        fit = fit_at_entries(modelled, self.rows, per_entry=True)
        values = np.divide(modelled.values.ravel(), self.scale, dtype=np.float64)
        residual, variance = fit.residual, np.asarray(fit.variance)
        if self.state.smooth is not None:
            smooth, own = self.state.smooth.at(self._chains, modelled.entry_coords())
            residual, variance = residual - smooth, variance + own
        vectors = values, residual, variance
        first, second, third = (self.arrangement.entries(vector, observations) for vector in vectors)
        return first, second, third

    def _error_law_in_slices(self, relative: Array | float, variance: Array) -> tuple[ErrorLaw, Array | float, Array]:
        """Error distribution, its unit (the noise of the slice) as 1/unit, and Var x in that unit.

        The deviation of replaced values does not depend on the noise: with those the unit is the scale of the data, and
        the noise of the slice is added to the variance.
        """
        law = self.error_law
        if self.state.slices is None or self.state.structure is None or self.state.structure.law is None:
            return law, np.sqrt(relative), relative * variance
        return replace(law, scale_sq=np.zeros_like(law.scale_sq)), 1.0, law.scale_sq[0] / relative + variance

    def log_density(self, observations: Observations) -> Array:
        """ln p(y) of new entries of the same tensor under the posterior predictive, in the user's units."""
        values, residual, variance = self._deviations(observations)
        relative = self._relative_precision(observations)
        spread, variance = np.sqrt(relative), relative * variance
        density = self._log_density_of_deviation(values, spread * residual, variance, spread)
        if self.link.mirrored:  # −z gives the same y
            other = self._log_density_of_deviation(-values, spread * (residual - 2.0 * values), variance, spread)
            density = np.logaddexp(density, other)
        return density + np.log(spread) - np.log(self.scale) + self.link.log_jacobian(observations.values.ravel())

    def _log_density_of_deviation(self, values: Array, deviation: Array, variance: Array, spread: Array) -> Array:
        """ln p of the deviations in units of the slice's noise; replaced values have their own distribution."""
        law = None if self.state.structure is None else self.state.structure.law
        if law is None:
            return self.error_law.log_density(deviation, variance)
        regular, rate = self.error_law.without_outliers(), self.error_law.weight[1]
        within = (values >= law.lowest) & (values <= law.highest)
        replaced = np.where(within, np.log(rate * law.density)[law.bins(values)] - np.log(spread), -np.inf)
        return np.logaddexp(np.log1p(-rate) + regular.log_density(deviation, variance), replaced)

    def sample(
        self, n_samples: int, rng: np.random.Generator, coords: Any = None, *, of: Quantity = "observation"
    ) -> Array:
        """Draws from the posterior: of the low-rank part, or of new observations; (n_samples, …)."""
        blocks = list(self._blocks(coords))
        shape = self._assembled_shape(coords)
        n_bytes = 8 * n_samples * math.prod(shape)
        check_memory(n_bytes, f"{n_samples} draws of shape {shape}", "draw fewer, or pass coords=")
        draws = np.empty((n_samples, *shape))
        roots = [np.linalg.cholesky(rows.cov) for rows in self.rows]
        for draw in draws:
            rows_drawn = [
                rows.mean + np.einsum("irs,is->ir", root, rng.standard_normal(rows.mean.shape))
                for rows, root in zip(self.rows, roots, strict=True)
            ]
            pieces = [kernels.low_rank_at(block, rows_drawn) for block in blocks]
            draw[...] = self._assemble(pieces, coords)
        check_quantity(of)
        if of != "low_rank" and self.state.smooth is not None:  # entry by entry
            smooth, variance = self._smooth_at(coords)
            draws += smooth + np.sqrt(variance) * rng.standard_normal(draws.shape)
        if of != "observation":
            draws += math.sqrt(hidden_variance(self.state)) * rng.standard_normal(draws.shape)
        else:
            self._add_errors(draws, rng, coords)
        return self.link.inverse(draws * self.scale)

    def _add_errors(self, draws: Array, rng: np.random.Generator, coords: Any) -> None:
        """Turn draws of the low-rank part into draws of observations."""
        law = None if self.state.structure is None else self.state.structure.law
        errors = self.error_law if law is None else self.error_law.without_outliers()
        draws += errors.draw(rng, draws.shape) / np.sqrt(self._relative_precision_at(coords))
        if law is not None:
            replaced = rng.uniform(size=draws.shape) < self.error_law.weight[1]
            bins = rng.choice(law.density.size, size=int(replaced.sum()), p=law.density / law.density.sum())
            width = (law.highest - law.lowest) / law.density.size
            draws[replaced] = law.lowest + width * (bins + rng.uniform(size=bins.size))

    # ---- the summary ----------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """The main numbers of the fit; prints as text, and as a table in a notebook."""
        from brtf.results.summary import Summary

        return Summary.of(self)

    def _repr_html_(self) -> str:
        from brtf.results.notebook import card

        return card(self)

    # ---- entries asked for ---------------------------------------------------------------------------------

    def _blocks(self, coords: Any) -> Iterator[Block]:
        """Blocks of the whole tensor, or of the given coordinates."""
        given, shape = self.observations.shape, self.arrangement.shape(self.observations.shape)
        nothing = np.empty(0)
        if coords is None:
            check_memory(8 * self.observations.n_entries, f"a dense tensor of shape {given}", "pass coords=")
            n_per_row = math.prod(shape[1:])
            step = max(1, BLOCK_ENTRIES // n_per_row)
            for start in range(0, shape[0], step):
                rows = slice(start, min(start + step, shape[0]))
                yield Block(slice(rows.start * n_per_row, rows.stop * n_per_row), nothing, rows, None, None, shape)
            return
        columns = list(coords if isinstance(coords, (list, tuple)) else np.atleast_1d(coords))
        n_asked = np.size(columns[0]) if len(columns) == len(given) else len(columns)
        if n_asked == 0:
            raise ValueError("coords holds no entry. Give at least one, or None for the whole tensor.")
        positions = np.stack(check_coords(columns, n_asked, given)).astype(np.intp)
        positions = self.arrangement.coords(positions, given)
        for start in range(0, positions.shape[1], BLOCK_ENTRIES):
            entries = slice(start, min(start + BLOCK_ENTRIES, positions.shape[1]))
            yield Block(entries, nothing, slice(0, shape[0]), None, positions[:, entries], shape)

    def _assembled_shape(self, coords: Any) -> tuple[int, ...]:
        return self.observations.shape if coords is None else (int(np.shape(coords[0])[0]),)

    def _assemble(self, pieces: list[Array], coords: Any) -> Array:
        vector, shape = np.concatenate(pieces), self.observations.shape
        if coords is not None:
            return vector.reshape(self._assembled_shape(coords))
        return self.arrangement.tensor(vector.reshape(self.arrangement.shape(shape)), shape)


def check_quantity(of: str) -> None:
    """Raise if ``of`` is not a known quantity."""
    if not isinstance(of, str) or of not in ("low_rank", "signal", "observation"):
        raise ValueError(f"of must be 'low_rank', 'signal' or 'observation', got {of!r}.")


def _middle_and_half(law: ErrorLaw, level: float, variance: Array) -> tuple[Array, Array]:
    """Centre and half width of the central interval of y − x̄."""
    low, high = law.interval(level, variance)
    if law.is_symmetric or np.isinf(high).any():
        return np.zeros_like(high), high
    return 0.5 * (low + high), 0.5 * (high - low)


def _in_squared_units(variance: Array, scale: float) -> Array:
    """Variances in the squared units of the data; infinite where they overflow."""
    with np.errstate(over="ignore"):
        return np.square(np.sqrt(variance) * scale)


def as_structured(trace: tuple[Record, ...], bound_shift: float, scale: float) -> NDArray[Any]:
    """The trace as a structured array, in the user's units."""
    longest = max([1, *(len(str(record.event)) for record in trace)])
    noise = _in_squared_units(np.array([record.noise_variance for record in trace]), scale)
    rows = [(r.sweep, r.bound + bound_shift, r.rank, var, str(r.event)) for r, var in zip(trace, noise, strict=True)]
    dtype = [
        ("sweep", "i8"),
        ("bound", "f8"),
        ("rank", "i8"),
        ("noise_variance", "f8"),
        ("event", f"U{longest}"),
    ]
    return np.array(rows, dtype=dtype)
