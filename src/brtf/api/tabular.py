"""Estimators for tables of samples and features: an anomaly detector and an imputer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from brtf.api.estimator import BRTF
from brtf.api.fitting import on_new_rows
from brtf.api.sklearn_compat import suggests_options
from brtf.data.arrays import Array
from brtf.data.observe import observe
from brtf.data.scale import SD_PER_MEDIAN
from brtf.inference.trace import Doubt, FitWarning
from brtf.results.anomalies import discoveries, shared_pattern
from brtf.results.group_evidence import Evidence

HALF = 0.5
"""Share of an anomaly from which the detector says that loadings take it up."""
FAR = 1e3
"""Evidence, in nats, at which the probability of an anomaly is one for any share of anomalies."""


class _OnSamples(BaseEstimator):
    """Base class of estimators that fit a BRTF to samples, with the columns of a matrix brought to one scale."""

    model: BRTF | None
    scale: bool
    random_state: Any

    def _fit(self, X: Any, *, allow_nd: bool) -> Array:
        """Fit the model; returns the samples as fitted."""
        samples = self._samples(X, reset=True, allow_nd=allow_nd)
        plain = np.zeros(samples.shape[1:]), np.ones(samples.shape[1:])
        self.center_, self.scale_ = _column_scales(samples) if self.scale and samples.ndim == 2 else plain
        model = clone(self._plain if self.model is None else self.model)
        if not isinstance(model, BRTF) or model.inference == "paper":
            raise ValueError(f'model must be None or a BRTF with inference="calibrated", got {self.model!r}.')
        scaled = np.asarray((samples - self.center_) / self.scale_)
        self._prepare(model, scaled.ndim)
        with warnings.catch_warnings():
            # wholly missing samples or features are common in tables
            warnings.filterwarnings("ignore", "Mode . has .* empty slice", UserWarning)
            self.model_ = model.fit(scaled)
        self.n_iter_ = self.model_.n_iter_
        return scaled

    @property
    def _plain(self) -> BRTF:
        """The model where none is given: samples have no outlier rates of their own."""
        return BRTF(outlier_kind="additive", random_state=self.random_state)

    def _prepare(self, model: BRTF, order: int) -> None:
        """Settle what the estimator needs of a model for samples of that order and the model leaves open."""

    def _new(self, X: Any, *, allow_nd: bool) -> tuple[Array, Array]:
        """New samples as given, and scaled like the fitted ones."""
        check_is_fitted(self)
        samples = self._samples(X, reset=False, allow_nd=allow_nd)
        return samples, np.asarray((samples - self.center_) / self.scale_)

    def _samples(self, X: Any, *, reset: bool, allow_nd: bool) -> Array:
        options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "allow_nd": allow_nd}
        return np.asarray(validate_data(self, X, reset=reset, ensure_min_samples=2 if reset else 1, **options))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class AnomalyDetector(_OnSamples):
    """Find the samples that do not follow the pattern of the others, with the names and signs of PyOD.

    A sample is a row of a matrix, or a slice of the first mode of a tensor; entries may be missing. It is judged as a
    whole by the evidence that its entries are shifted, noisier than those of other samples or more often outliers: see
    :meth:`BRTF.anomalies`. A large sample that follows the pattern is not an anomaly.

    Parameters
    ----------
    q : float
        Expected share of false alarms among the samples labelled 1.
    model : BRTF or None
        The model to fit, which is cloned; None: a BRTF with ``outlier_kind="additive"``, as an outlier
        rate per sample would explain anomalies away. With ``noise="auto"`` its noise
        may differ between features but not between samples: a sample that is noisier than others is an anomaly.
    scale : bool
        Whether the columns of a matrix, which may have different units, are centred at their medians and divided by
        their robust standard deviations. Tensors are never scaled.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        Seed of the fit if ``model`` is None.

    Attributes
    ----------
    decision_scores_ : (n,) evidence of every fitted sample in nats: the logarithm of the Bayes factor of an anomaly; 0
        where nothing is observed
    labels_ : (n,) 1 for an anomaly, 0 otherwise
    threshold_ : the score above which a sample is labelled 1
    diagnosis_ : problems found with the fit, and with what it can tell about samples; each is a warning too
    model_ : the fitted BRTF
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np, brtf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(100, 12))
    >>> X[7] += 0.6 * rng.normal(size=12)
    >>> detector = brtf.AnomalyDetector(random_state=0).fit(X)
    >>> np.flatnonzero(detector.labels_)
    array([7])
    """

    @suggests_options
    def __init__(
        self, q: float = 0.1, *, model: BRTF | None = None, scale: bool = True, random_state: Any = None
    ) -> None:
        self.q = q
        self.model = model
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> AnomalyDetector:
        """Fit the model to samples X, (n, features) or (n, I_1, …), and judge every one of them; y is ignored."""
        samples = self._fit(X, allow_nd=True)
        self.decision_scores_ = _evidence(self.model_, len(samples))
        self._seen = self.decision_scores_
        probability = self._probability(self.decision_scores_)
        self.labels_ = np.zeros(len(samples), dtype=int)
        self.labels_[discoveries(probability, self.q)] = 1
        self.threshold_ = self._threshold()
        doubt = _weak(self.model_)
        self.diagnosis_ = self.model_.diagnosis_ + (() if doubt is None else (doubt,))
        if doubt is not None:
            warnings.warn(str(doubt), FitWarning, stacklevel=2)
        return self

    def _prepare(self, model: BRTF, order: int) -> None:
        if model.noise == "auto" and model.noise_modes is None:
            model.set_params(noise_modes=tuple(range(1, order)))

    def _threshold(self) -> float:
        """The score from which a sample alone would be labelled 1, as far as the labels of the fitted ones allow."""
        alone = brentq(lambda score: float(self._probability(np.array([score]))[0]) - (1.0 - self.q), -FAR, FAR)
        most_regular = self.decision_scores_[self.labels_ == 0].max(initial=-np.inf)
        least_anomalous = self.decision_scores_[self.labels_ == 1].min(initial=np.inf)
        return float(max(most_regular, min(alone, np.nextafter(least_anomalous, -np.inf))))

    def _probability(self, scores: Array) -> Array:
        return Evidence.probability_of(scores, self._seen)

    def decision_function(self, X: Any) -> Array:
        """Scores (n,) of new samples X by the fit: evidence in nats, larger for anomalies; 0 for empty ones."""
        _, scaled = self._new(X, allow_nd=True)
        if np.isnan(scaled).all():
            return np.zeros(len(scaled))
        return _evidence(self.model_, len(scaled), scaled)

    def score_samples(self, X: Any) -> Array:
        """Minus the scores (n,) of new samples X: smaller for anomalies, as scikit-learn's detectors have it."""
        return -self.decision_function(X)

    def predict(self, X: Any) -> NDArray[np.int_]:
        """Labels (n,) of new samples X: 1 where the score is above ``threshold_``, as in PyOD, 0 elsewhere."""
        return (self.decision_function(X) > self.threshold_).astype(int)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, 2) that new samples X are regular, and that they are anomalies."""
        probability = self._probability(self.decision_function(X))
        return np.stack([1.0 - probability, probability], axis=1)

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int_]:
        """Fit to samples X, and return their labels (n,); y is ignored."""
        return self.fit(X).labels_


class Imputer(OneToOneFeatureMixin, TransformerMixin, _OnSamples):
    """Fill in the missing values of a table by what its features have in common, for scikit-learn's pipelines.

    The samples that were fitted determine the factors; every sample, fitted or new, is completed from its own observed
    values, which outliers among them hardly influence. Observed values are kept. A sample of which nothing is observed
    gets the medians of the features, a feature of which nothing was observed 0.

    Parameters
    ----------
    model : BRTF or None
        The model to fit, which is cloned; None: a BRTF with ``outlier_kind="additive"``.
    scale, random_state
        As for :class:`AnomalyDetector`.

    Attributes
    ----------
    model_ : the fitted BRTF
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np, brtf
    >>> X = np.outer(np.arange(1.0, 9.0), [1.0, 2.0, 3.0])
    >>> X[5, 1] = np.nan
    >>> brtf.Imputer(scale=False, random_state=0).fit_transform(X)[5].round(2)
    array([ 6., 12., 18.])
    """

    @suggests_options
    def __init__(self, *, model: BRTF | None = None, scale: bool = True, random_state: Any = None) -> None:
        self.model = model
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Imputer:
        """Fit the model to samples X (n, features), NaN = missing; y is ignored."""
        self._fit(X, allow_nd=False)
        return self

    def transform(self, X: Any) -> Array:
        """The samples X, (n, features), with their missing values filled in; a table after ``set_output``."""
        samples, scaled = self._new(X, allow_nd=False)
        known = ~np.isnan(scaled).all(axis=1)
        filled = np.zeros_like(scaled)
        if known.any():
            filled[known] = on_new_rows(observe(scaled[known]), self.model_.result_).impute()
        return np.where(np.isnan(samples), filled * self.scale_ + self.center_, samples)


def _weak(model: BRTF) -> Doubt | None:
    """That little of what is odd about a sample can show, because its own loadings take up most of it, or all of it.

    Fitting R loadings to a sample of n observed entries takes R / n off the square of an error in a direction of its
    own, on average over the directions.
    """
    observed = model.result_.observations
    per_sample = observed.n_observed / observed.positions_seen(0).size
    advice = "Methods by distance, such as nearest neighbours or an isolation forest, suit such data better."
    if model.rank_ == 0:
        return Doubt(
            "samples",
            "The samples share no pattern from which one could deviate: each is only compared with the typical sample.",
            advice,
        )
    taken = model.rank_ / per_sample
    if taken < HALF:
        return None
    return Doubt(
        "samples",
        f"{model.rank_} patterns were found in samples of {per_sample:.3g} values each, and take up about "
        f"{100 * min(taken, 1.0):.0f} % of whatever is odd about a sample: most anomalies will be missed. Separate "
        "clusters look like this.",
        advice,
    )


def _column_scales(samples: Array) -> tuple[Array, Array]:
    """Median and robust standard deviation of every column; the plain one, or 1, where that is zero."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice|Degrees of freedom", RuntimeWarning)
        center = np.nan_to_num(np.nanmedian(samples, axis=0))
        robust = SD_PER_MEDIAN * np.nan_to_num(np.nanmedian(np.abs(samples - center), axis=0))
        plain = np.nan_to_num(np.nanstd(samples, axis=0))
    spread = np.where(robust > 0, robust, plain)
    return center, np.where(spread > 0, spread, 1.0)


def _evidence(model: BRTF, n: int, samples: Array | None = None) -> Array:
    """(n,) evidence of an anomaly of every sample: the fitted ones, or new ones; 0 where nothing is observed."""
    result = model.result_ if samples is None else on_new_rows(observe(samples), shared_pattern(model.result_))
    found = Evidence.of(result, (0,), fitted=False)  # the same scores for fitted and new samples
    scores = np.zeros(n)
    scores[found.positions[0]] = found.total
    return scores
