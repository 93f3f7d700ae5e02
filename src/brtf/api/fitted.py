"""What the methods of fitted models start from: the result of the fit, and its numbers as attributes."""

from __future__ import annotations

import math
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from brtf.api.sklearn_compat import feature_names
from brtf.inference.trace import FitWarning
from brtf.results.choice_words import choices_of, modes_of
from brtf.results.result import Result
from brtf.results.tables import as_structured


class Fitted:
    """Base class of models that hold the result of a fit and show it as attributes ending in an underscore."""

    def _warn(self) -> None:
        """Issue one warning for every problem in the diagnosis."""
        for doubt in self.diagnosis_:
            unconverged = doubt.kind == "not converged"
            told = self.stop_reason_ if unconverged else str(doubt)
            warnings.warn(told, ConvergenceWarning if unconverged else FitWarning, stacklevel=3)

    def _adopt(self, result: Result) -> None:
        """Set the fitted attributes from a result."""
        self.result_ = result
        self.rank_ = result.rank
        self.factors_ = result.factor_means()
        self.factor_covariances_ = result.factor_covariances()
        self.component_precisions_ = np.asarray(result.state.lam.mean)
        self.noise_variance_ = result.noise_variance
        self.noise_variances_ = result.noise_variances
        self.noise_ = "common" if result.state.slices is None else "per-slice"
        self.noise_modes_ = result.noise_modes
        self.outlier_kind_, self.outlier_modes_ = result.outlier_kind, result.outlier_modes
        self.modes_ = modes_of(result)
        self.choices_ = choices_of(result)
        self.link_ = result.link.name
        self.arrangement_ = result.arrangement.groups
        self.folding_ = result.arrangement.periods
        self.smooth_residual_ = result.smooth_mode
        self.outlier_rate_ = result.outlier_rate
        self.outlier_rates_ = result.outlier_rates
        self.bound_ = result.bound
        self.trace_ = as_structured(result.trace, result.bound_shift, result.scale)
        self.n_sweeps_ = result.trace[-1].sweep
        self.converged_ = result.stop_reason.converged
        self.stop_reason_ = result.stop_reason.value
        self.diagnosis_ = result.diagnosis
        self.shape_in_ = result.observations.shape
        self.n_observed_ = result.observations.n_observed
        self.n_features_in_ = math.prod(self.shape_in_[1:])
        self.n_iter_ = self.n_sweeps_
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        names = feature_names(result.observations)
        if names is not None:
            self.feature_names_in_ = names

    def _fitted(self) -> Result:
        """The result; raises NotFittedError before the fit."""
        if not hasattr(self, "result_"):
            raise NotFittedError(
                "This BRTF instance is not fitted yet. Call 'fit' with appropriate arguments before using it."
            )
        return self.result_

    @property
    def _n_features_out(self) -> int:
        return self.rank_
