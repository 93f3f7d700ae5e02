"""The result of a fit: the low-rank part, outliers and predictions in the user's units."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.checks import is_real
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.inference.statistics import fit_at_entries
from brtf.model.predictive import ErrorLaw, error_law, split_conformal
from brtf.model.uncertainty import hidden_law
from brtf.results.fitted_entries import FittedEntries

if TYPE_CHECKING:
    from brtf.results.summary import Summary

Quantity = Literal["low_rank", "signal", "observation"]


class Result(FittedEntries):
    """A finished fit: the data, the posterior, how the fit went, and what it predicts, in the user's units.

    Its fields are those of :class:`~brtf.results.signal.FittedSignal`; it is the only thing that is saved.
    """

    def __repr__(self) -> str:
        noise = self.noise_variances
        levels = f"{noise:.4g}" if noise.ndim == 0 else f"{noise.min():.4g}…{noise.max():.4g}"
        return (
            f"Result(shape={self.observations.shape}, rank={self.rank}, bound={self.bound:.8g}, "
            f"noise_variance={levels}, outlier_rate={self.outlier_rate:.4g}, converged={self.stop_reason.converged})"
        )

    # ---- predictions -----------------------------------------------------------------------------------------

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
        """Central credible interval of the low-rank part, the signal or an observation (27).

        With ``regular`` that of an observation which is not an outlier, without conformal calibration.
        """
        if not is_real(level) or not 0 < level < 1:
            raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
        centre, own = self._centre_and_own(coords, of)
        if of != "observation":
            low, high = hidden_law(self.state).interval(level, self.factor_variance(coords) + own)
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

    def _relative_precision_at(self, coords: Any) -> Array | float:
        """ω̄ of the slice of every requested entry, in the shape of the answer; 1 where the noise is common."""
        if self.state.slices is None:
            return 1.0
        shape, modes, precision = self.observations.shape, self.noise_modes, self._relative_precisions
        if coords is not None:
            return precision[tuple(np.asarray(coords[mode]) for mode in modes)]
        return np.broadcast_to(precision.reshape([n if m in modes else 1 for m, n in enumerate(shape)]), shape)

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
        law, spread, variance = self._error_law_in_slices(self.relative_precision_of(self.held_back), variance)
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
        relative = self.relative_precision_of(observations)
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
        check_quantity(of)
        blocks = list(self._blocks(coords))
        shape = self._assembled_shape(coords)
        n_bytes = 8 * n_samples * math.prod(shape)
        check_memory(n_bytes, f"{n_samples} draws of shape {shape}", "draw fewer, or pass coords=")
        draws = np.empty((n_samples, *shape))
        posteriors = zip(self.state.row_priors, self.state.factors, self.rows, strict=True)
        samplers = [prior.sampler(rows, reported) for prior, rows, reported in posteriors]
        for draw in draws:
            rows_drawn = [sampler(rng) for sampler in samplers]
            pieces = [kernels.low_rank_at(block, rows_drawn) for block in blocks]
            draw[...] = self._assemble(pieces, coords)
        if of != "low_rank" and self.state.smooth is not None:  # entry by entry
            smooth, variance = self._smooth_at(coords)
            draws += smooth + np.sqrt(variance) * rng.standard_normal(draws.shape)
        if of != "observation":
            draws += hidden_law(self.state).draw(rng, draws.shape)
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
            draws[replaced] = law.draw(rng, (int(replaced.sum()),))

    # ---- the summary -----------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """The main numbers of the fit; prints as text, and as a table in a notebook."""
        from brtf.results.summary import Summary

        return Summary.of(self)

    def _repr_html_(self) -> str:
        from brtf.results.notebook import card

        return card(self)


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
