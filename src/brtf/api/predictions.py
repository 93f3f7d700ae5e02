"""Answers for entries and slices: methods of fitted models."""

from __future__ import annotations

from typing import Any

import numpy as np

from brtf.api.answers import contained, entries_contained, positions_of
from brtf.api.fitted import Fitted
from brtf.api.fitting import new_data
from brtf.api.sklearn_compat import generator, mask_argument
from brtf.data.arrays import Array
from brtf.data.containers import container_of
from brtf.results.result import Quantity, check_quantity


class Predicts(Fitted):
    """Base class of models that say what lies at observed, missing and new entries."""

    def low_rank(self) -> Any:
        """The posterior mean of the low-rank part X, in the container that Y came in.

        Of the shape of Y; of a long table a table with a row for every entry of the tensor, missing ones too. As an
        array of ``shape_in_`` whatever Y was: ``model.result_.low_rank()``, or with labels ``model.to_xarray()``.

        With a link that of t⁻¹(X), for X ~ N(x̄, Var x): x̄² + Var x (sqrt), exp(x̄ + Var x / 2) (log).
        """
        result = self._fitted()
        return contained(result, result.low_rank())

    def outliers(self) -> Any:
        """The posterior mean of the outliers S in the container of Y: 0 where missing, or sparse for sparse data.

        With a link what they make of Y: y − t⁻¹(t(y) − s̄).
        """
        result = self._fitted().at_hand
        return entries_contained(result, result.outliers_at_entries(), "outliers")

    def outlier_probability(self) -> Any:
        """Posterior probability that an observed entry is an outlier, in the container of Y.

        0 where missing, or sparse for sparse data.

        In the paper's model, which has no indicator of outliers, it is the probability under q(s) that |s| exceeds
        three robust standard deviations of all deviations y − x̄.
        """
        result = self._fitted().at_hand
        return entries_contained(result, result.outlier_probability_at_entries(), "outlier_probability")

    def impute(self, *, replace_outliers: bool = False) -> Any:
        """Y with missing entries filled in by the low-rank part, with the smooth residual if there is one.

        On request with the outliers subtracted.

        In the container of Y: an array, a masked array, a table of pandas or polars (if long, with a row for every
        entry), or an xarray.DataArray with its attributes and coordinates; an array if Y was sparse.
        """
        result = self._fitted().at_hand
        return contained(result, result.impute(replace_outliers=replace_outliers))

    def predict(self, coords: Any = None, return_std: bool = False, *, of: Quantity = "low_rank") -> Any:
        """The low-rank part at the given entries, or everywhere, or with ``of="signal"`` with the smooth residual.

        ``coords`` are positions (N, M), or labels: a table with a column per mode, or a dict of them, by the names of
        the modes. Without it the answer is in the container of Y.

        Without a smooth residual both are the same, and the mean also predicts an observation.

        With ``return_std`` a pair (mean, standard deviation), of the low-rank part, the signal or
        ``of="observation"``. That of an observation is infinite where it does not exist: always with ``link="log"``, as
        the exponential of a Student-t has no mean. :meth:`predict_interval` is finite there too. The mean for an
        observation is that of the signal. With a link that of an observation would be larger, by the noise, or
        infinite; where outliers are one-sided, it would lie on their side.
        """
        result = self._fitted()
        check_quantity(of)
        places = positions_of(result.observations, coords)
        centre = result.low_rank(places) if of == "low_rank" else result.signal(places)
        mean = contained(result, centre, places)
        return (mean, contained(result, result.std(places, of=of), places, "std")) if return_std else mean

    def predict_interval(self, coords: Any = None, level: float = 0.95, of: Quantity = "low_rank") -> tuple[Any, Any]:
        """Central interval (low, high) of the low-rank part, the signal or a new observation, with probability level.

        The signal is the low-rank part with the smooth residual, if there is one: between observed entries of a fibre
        it is interpolated, and far from them its interval widens to the variance of the fibre.

        Both tails have the same probability, so where outliers are one-sided the interval of an observation is longer
        on that side. With a link its ends are those for t(Y), transformed back; with ``"sqrt"`` its probability is
        slightly above ``level`` if it reaches zero.

        After ``calibrate="conformal"`` the half widths for a new observation are multiplied by one factor per level,
        the ⌈(n+1) level⌉-th smallest |y − centre| / half width of the n entries set aside. A new entry that is
        exchangeable with those is then covered with that probability, on average over entries, whatever the noise.
        Intervals are infinite if n is too small for the level. ``coords`` as for :meth:`predict`.
        """
        result = self._fitted()
        places = positions_of(result.observations, coords)
        low, high = result.interval(places, level=level, of=of)
        return contained(result, low, places), contained(result, high, places)

    def sample(
        self, n: int = 1, coords: Any = None, *, of: Quantity = "observation", random_state: Any = None
    ) -> Array:
        """Draws (n, …) of new observations, or of the low-rank part, from the posterior."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}.")
        result = self._fitted()
        return result.sample(int(n), generator(random_state), positions_of(result.observations, coords), of=of)

    def score(self, Y: Any, y: Any = None, *, mask: Any = None) -> float:
        """Mean log predictive density of the observed entries of Y, which should be held-out ones.

        Y has the shape and the rows of the fitted data: row-wise cross-validation, as in scikit-learn's
        ``GridSearchCV``, would compare different rows. :func:`brtf.evaluate` holds out entries instead. ``y`` is as in
        :meth:`fit`. With a link it is still a density of Y, so models with different links can be compared.
        """
        result = self._fitted()
        return float(np.mean(result.log_density(new_data(Y, result, mask_argument(y, mask), same_rows=True))))

    def inverse_transform(self, X: Any) -> Any:
        """The slices of the first mode that have the loadings X, as :meth:`transform` gives them.

        They are t⁻¹ of the low-rank part: (n, I_1, …, I_{N−1}), an array, a table if X is one and the data are a
        matrix, or an xarray.DataArray if X and the data are.
        """
        result = self._fitted()
        return container_of(X).slices(result.slices_with(np.asarray(X, dtype=np.float64)), result.observations)
