"""What the residuals say about a fit: the numbers behind the diagnostic charts and findings.

The residual of an entry is turned into its normal score, Φ⁻¹(P(deviation ≤ residual)) under the fitted distribution of
noise and outliers. If the model is right, scores are independent standard normal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from brtf.data.arrays import Array
from brtf.data.observations import entry_positions
from brtf.model.state import MeanFieldOutliers
from brtf.results.result import Result
from brtf.view.entries import EntryVector

MOST_SCORED, MOST_ANCHORS = 50_000, 5000
"""Largest number of entries whose distribution is examined, and of those whose neighbours along a mode are."""
FEWEST = 100
"""Number of entries below which nothing is concluded."""
LONGEST_LAG, SHORTEST_MODE, N_QUANTILES = 10, 6, 101
OWN_FIT = 0.5
"""Share of its own fit that an entry may determine: residuals of entries beyond it say little about the model."""
CHANCE = 4.0
"""Number of standard errors from which a deviation is not due to chance; hundreds of them are looked at."""


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """Correlation of the scores with those of neighbours along a mode.

    Attributes
    ----------
    mode : the mode
    lag : (L,) distances in positions, from 1
    value, error : (L,) correlations, and their standard errors by chance
    """

    mode: int
    lag: NDArray[np.intp]
    value: Array
    error: Array

    @property
    def understated(self) -> float:
        """By which factor the uncertainty of a mean along the mode is understated: √((1+ρ)/(1−ρ)), ρ at lag one."""
        rho = float(np.clip(self.value[0], -0.99, 0.99))
        return float(np.sqrt((1.0 + rho) / (1.0 - rho)))

    @property
    def lasting(self) -> tuple[float, float]:
        """Mean of the correlations over the longer half of the lags, and its standard error.

        It fades where neighbours are alike, and stays where whole fibres are off.
        """
        far = self.lag.size // 2
        error = float(np.sqrt(np.sum(np.square(self.error[far:])))) / (self.lag.size - far)
        return float(self.value[far:].mean()), error

    @property
    def understated_far(self) -> float:
        """The factor of :attr:`understated` by the correlations of all lags, without a law for them: √(1 + 2 Σ ρ)."""
        return float(np.sqrt(max(1.0 + 2.0 * float(self.value.sum()), 0.0)))


class Diagnostics:
    """Normal scores of the residuals of a result with its entries, and what follows from them.

    Attributes
    ----------
    n_observed : observed entries
    sample : entries that are examined, all of them or a random sample
    score : their normal scores, without those of entries that determine most of their own fit
    level : x̄ of the entries of ``score``, in the units of t(Y)
    """

    def __init__(self, result: Result, *, most_scored: int = MOST_SCORED, most_anchors: int = MOST_ANCHORS) -> None:
        self.result, self.n_observed = result, result.observations.n_observed
        self.rng, self.most_anchors = np.random.default_rng(0), most_anchors
        self.sample = self._draw(most_scored)
        score = self.scores(self.sample)
        usable = np.isfinite(score)
        self.score = score[usable]
        chosen = self.sample[usable]
        self.level = result.values_at_entries()[chosen] - self._residual[chosen]

    def _draw(self, most: int) -> NDArray[np.intp]:
        if self.n_observed <= most:
            return np.arange(self.n_observed)
        return np.sort(self.rng.choice(self.n_observed, most, replace=False))

    @property
    def is_sample(self) -> bool:
        return self.sample.size < self.n_observed

    @property
    def enough(self) -> bool:
        """Whether there are entries enough to conclude anything."""
        return self.score.size >= FEWEST

    @cached_property
    def _residual(self) -> Array:
        return self.result.residuals_at_entries()

    @cached_property
    def _noise_variance(self) -> Array:
        """Of every entry, (M,), in the squared units of t(Y)."""
        variances = self.result.noise_variances
        if variances.ndim == 0:
            return np.full(self.n_observed, float(variances))
        return variances.ravel()[entry_positions(self.result.observations, self.result.noise_modes)]

    @cached_property
    def _regular(self) -> NDArray[np.bool_] | None:
        """Entries that are compared with the noise alone, where outliers have no distribution; None: all, with it."""
        state = self.result.state
        replaced = state.structure is not None and state.structure.law is not None
        if not replaced and not isinstance(state.local, MeanFieldOutliers):
            return None
        return self._outlying <= 0.5

    @cached_property
    def _outlying(self) -> Array:
        return self.result.outlier_probability_at_entries()

    def scores(self, entries: NDArray[np.intp]) -> Array:
        """Normal scores of some entries, NaN where an entry determines most of its own fit.

        A fit takes up a share h = Var x / σ² of the variance of the residual of an entry that it trusts, so residuals
        are divided by √(1 − (1 − p) h), with p the probability of an outlier.
        """
        result = self.result
        noise, own = self._noise_variance[entries], self._own_share(entries)
        kept = (own <= OWN_FIT) & (noise > 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            unit = np.sqrt(noise)
            taken = np.where(kept, own * (1.0 - self._outlying[entries]), 0.0)
            deviation = self._residual[entries] / unit / np.sqrt(1.0 - taken)
        law = result.error_law
        if self._regular is not None:
            law, kept = law.without_outliers(), kept & self._regular[entries]
        deviation = np.where(kept, deviation, 0.0) * np.sqrt(result.state.noise_variance)
        below = law.below(deviation, np.zeros_like(deviation))
        tiny = np.finfo(float).eps
        return np.where(kept, ndtri(np.clip(below, tiny, 1.0 - tiny)), np.nan)

    def _own_share(self, entries: NDArray[np.intp]) -> Array:
        """The share h of their own fit that entries determine."""
        result = self.result
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            unit = result.scale / np.sqrt(self._noise_variance[entries])
            return result.factor_variance(result.observations.coords_at(entries)) * unit**2

    @cached_property
    def fitted_away(self) -> float:
        """Largest correlation between residuals that fitting itself can cause, below zero: |H_ij| ≤ h, over 1 − h."""
        own = self._own_share(self.sample)
        own = own[own <= OWN_FIT]
        share = float(own.mean()) if own.size else 0.0
        return share / (1.0 - share)

    @property
    def probability(self) -> Array:
        """P(deviation ≤ residual) of the examined entries: uniform if the model is right."""
        return np.asarray(ndtr(self.score))

    def quantiles(self) -> tuple[Array, Array]:
        """Quantiles of the standard normal distribution, and those of the scores."""
        share = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
        ends = np.array([0.5, 2.5]) / max(self.score.size, 10)
        share = np.unique(np.concatenate([ends, share, 1.0 - ends]))
        return np.asarray(ndtri(share)), np.quantile(self.score, share)

    @cached_property
    def autocorrelations(self) -> list[Autocorrelation]:
        """Along every mode that is long enough and has neighbours that were observed."""
        return [found for mode in range(self.result.observations.order) if (found := self._along(mode)) is not None]

    def _along(self, mode: int) -> Autocorrelation | None:
        observations = self.result.observations
        length = observations.shape[mode]
        if length < SHORTEST_MODE:
            return None
        anchors = self._draw(self.most_anchors)
        coords = observations.coords_at(anchors)
        lags = np.arange(1, min(LONGEST_LAG, length // 3) + 1)
        numbers = EntryVector.of(observations, np.arange(self.n_observed, dtype=np.float64))
        pairs = []
        for lag in lags:
            moved = coords.copy()
            moved[mode] = np.minimum(moved[mode] + lag, length - 1)
            other = np.where(coords[mode] + lag < length, numbers.at(moved), np.nan)
            there = np.isfinite(other)
            pairs.append((anchors[there], other[there].astype(np.intp)))
        entries, inverse = np.unique(np.concatenate([part for pair in pairs for part in pair]), return_inverse=True)
        score = self.scores(entries) if entries.size else np.empty(0)
        values, errors, start = [], [], 0
        for first, second in pairs:
            a, b = score[inverse[start : start + first.size]], score[inverse[start + first.size :][: second.size]]
            start += first.size + second.size
            usable = np.isfinite(a) & np.isfinite(b)
            n_pairs = int(np.count_nonzero(usable))
            size = np.sqrt(float(a[usable] @ a[usable]) * float(b[usable] @ b[usable]))
            values.append(float(a[usable] @ b[usable]) / size if size > 0 else 0.0)
            errors.append(1.0 / np.sqrt(n_pairs) if n_pairs else np.inf)
        if not errors[0] < 1.0 / np.sqrt(FEWEST):
            return None
        return Autocorrelation(mode, lags, np.array(values), np.array(errors))

    def rank_correlation(self) -> float:
        """Spearman's correlation of |score| and |x̄|: whether the noise depends on the level."""
        size, level = rankdata(np.abs(self.score)), rankdata(np.abs(self.level))
        spread = float(np.std(size) * np.std(level))
        return float(np.mean((size - size.mean()) * (level - level.mean()))) / spread if spread > 0 else 0.0
