"""The low-rank part and the smooth residual of a finished fit, at any entries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from brtf import kernels
from brtf.data.arrangement import Arrangement
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.chains import Chains
from brtf.data.checks import check_coords
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.data.plan import BLOCK_ENTRIES
from brtf.inference.trace import Doubt, Record, StopReason
from brtf.kernels.packed import symmetric_multiplicity
from brtf.model.distributions import RowGaussians
from brtf.model.links import Link
from brtf.model.row_priors import RowPrior
from brtf.model.settings import Settings
from brtf.model.state import State, component_amplitudes
from brtf.model.uncertainty import hidden_variance, honest_rows
from brtf.results.misfit_ahead import MisfitAhead
from brtf.search.choices import Comparison

LARGEST_RATIO = 1e100
"""Largest size of new data in units of the scale of the fitted data; beyond it squares might overflow."""


@dataclass(frozen=True, eq=False)
class FittedSignal:
    """A finished fit, its numbers and its signal; everything it returns is in the user's units.

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
    widening : factor of the posterior variances that held-out entries ask for
    diagnosis : problems found with the fit, the most serious first; empty if there are none
    misfit : what fibres have beside the signal at positions of a forecast
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
    widening: float = 1.0
    diagnosis: tuple[Doubt, ...] = ()
    misfit: MisfitAhead | None = None

    # ---- numbers ---------------------------------------------------------------------------------------------

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
            name = "Y" if self.link.name is None else f"{self.link.name}(Y)"
            raise ValueError(
                f"{name} reaches {largest:.3g}, more than {LARGEST_RATIO:.0e} times the scale {self.scale:.3g} of the "
                "data that were fitted. Check its units."
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
        return in_squared_units(self._noise_variances, self.scale)

    @property
    def noise_sds(self) -> Array:
        """Standard deviation of the noise in the units of t(Y), like :attr:`noise_variances`, but without overflow."""
        return np.asarray(np.sqrt(self._noise_variances) * self.scale)

    @cached_property
    def strengths(self) -> Array:
        """Root mean square of every component's rank-one term, (R,), in the units of t(Y)."""
        return component_amplitudes(self.state) * self.scale

    @property
    def _noise_variances(self) -> Array:
        """In units of the scale."""
        if self.state.slices is None:
            return np.asarray(self.state.noise_variance)
        return np.asarray(self.state.noise_variance / self._relative_precisions)

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
        """What outliers are, in the words of the option of that name."""
        structure = self.state.structure
        if structure is None or (structure.law is None and structure.sides is None):
            return "additive"
        return "one-sided" if structure.law is None else "replacement"

    @property
    def _relative_precisions(self) -> Array:
        """ω̄ over the noise modes; 1 where the noise is common."""
        slices, shape = self.state.slices, self.observations.shape
        if slices is None:
            return np.ones(())
        lengths = [self.arrangement.shape(shape)[group] for group in slices.modes]
        return self.arrangement.along(slices.modes, slices.mean.reshape(lengths), shape)

    @cached_property
    def bound_shift(self) -> float:
        """Σ ln |dt/dy| − M ln(scale), which turns a bound for the scaled t(Y) into one for the data themselves."""
        return self.link.bound_shift(self.observations)

    @property
    def bound(self) -> float:
        """The lower bound of ln p(Y), the last finite one, for the data in the user's units."""
        finite = [record.bound for record in self.trace if np.isfinite(record.bound)]
        return (finite[-1] if finite else np.nan) + self.bound_shift

    # ---- the low-rank part -----------------------------------------------------------------------------------

    @property
    def rows(self) -> tuple[RowGaussians, ...]:
        """The posterior of the rows of every mode, in units of the scale, with corrected covariances."""
        return honest_rows(self.state, self.widening)

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
        """Means and standard deviations of the loadings of ``n_rows`` slices of the first mode, with the given rows.

        Where the mode is folded, the rows are those of its rounds, and a slice has their products with the phase's.
        """
        share = self.scale ** (1.0 / len(self.state.factors))
        (honest,) = honest_rows(replace(self.state, factors=(rows,), row_priors=(prior,)), self.widening)
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

    # ---- the smooth residual ---------------------------------------------------------------------------------

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
        smooth, misfit = self.state.smooth, 0.0 if self.misfit is None else self.misfit.at(coords)
        if smooth is None:
            return misfit, 0.0
        found = []
        for block in self._blocks(coords):
            places = block.coords
            if places is None:
                places = np.stack(np.unravel_index(np.arange(block.entries.start, block.entries.stop), block.shape))
            found.append(smooth.at(self._chains, places))
        means, variances = zip(*found, strict=True)
        return self._assemble(list(means), coords) + misfit, self._assemble(list(variances), coords)

    def signal(self, coords: Any = None) -> Array:
        """E[t⁻¹(x + g)] at the given coordinates (M,), or the whole tensor: low-rank part and smooth residual."""
        if self.state.smooth is None and self.misfit is None:
            return self.low_rank(coords)
        smooth, variance = self._smooth_at(coords)
        centre = (self._centre(coords) + smooth) * self.scale
        if self.link.name is None:
            return centre
        return self.link.mean(centre, np.sqrt(self.factor_variance(coords) + variance) * self.scale)

    # ---- entries asked for -----------------------------------------------------------------------------------

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


def in_squared_units(variance: Array, scale: float) -> Array:
    """Variances in the squared units of the data; infinite where they overflow."""
    with np.errstate(over="ignore"):
        return np.square(np.sqrt(variance) * scale)
