"""Answers of fitted models: what lies at entries and slices, what is wrong with the data, and what comes next."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from brtf.api.answers import contained, draws_contained, entries_contained, positions_of
from brtf.api.fitted import Fitted
from brtf.api.fitting import new_data, on_new_rows
from brtf.api.sklearn_compat import generator, mask_argument
from brtf.data.checks import is_whole
from brtf.data.containers import container_of
from brtf.data.exports import as_frame
from brtf.results.anomalies import Of, anomaly_table, shared_pattern
from brtf.results.forecast import Forecast, forecast
from brtf.results.result import Quantity, check_quantity


class Predicts(Fitted):
    """Base class of models that answer questions about the data they were fitted to, and about new data."""

    def low_rank(self) -> Any:
        """The posterior mean of the low-rank part X, what all entries share, without noise and outliers.

        Returns
        -------
        array, table or xarray.DataArray
            As Y came in, of its shape and in its units, with a number for every entry, missing ones too; a long table
            has a row for each, and sparse data give an array. ``model.result_.low_rank()`` is always an array of
            ``shape_in_``.

        Notes
        -----
        With a link t it is the mean of t⁻¹(X), for X ~ N(x̄, Var x): x̄² + Var x (sqrt), exp(x̄ + Var x / 2) (log).
        """
        result = self._fitted()
        return contained(result, result.low_rank())

    def outliers(self) -> Any:
        """The posterior mean of the outliers S: by how much each observed entry is off.

        Returns
        -------
        array, table or xarray.DataArray
            As Y came in and in its units: 0 in arrays where nothing was observed, masked in masked arrays, sparse for
            sparse data; a long table has a row per observed entry.

        Notes
        -----
        With a link t it is what they make of Y: y − t⁻¹(t(y) − s̄).
        """
        result = self._fitted().at_hand
        return entries_contained(result, result.outliers_at_entries(), "outliers")

    def outlier_probability(self) -> Any:
        """The posterior probability of each observed entry that it is an outlier.

        Returns
        -------
        array, table or xarray.DataArray
            Numbers from 0 to 1, in the form of :meth:`outliers`.

        Notes
        -----
        In the paper's model, which has no indicator of outliers, it is the probability under q(s) that |s| exceeds
        three robust standard deviations of all deviations y − x̄.
        """
        result = self._fitted().at_hand
        return entries_contained(result, result.outlier_probability_at_entries(), "outlier_probability")

    def impute(self, *, replace_outliers: bool = False) -> Any:
        """Y with its missing entries filled in: by the low-rank part, and the smooth residual if there is one.

        Parameters
        ----------
        replace_outliers : bool
            Whether to correct outliers too, by subtracting :meth:`outliers` from the observed entries.

        Returns
        -------
        array, table or xarray.DataArray
            As Y came in, of its shape and in its units, with its labels and attributes; a long table has a row for
            every entry, and sparse data give an array.

        Examples
        --------
        >>> import numpy as np, brtf
        >>> Y = np.outer(np.arange(1.0, 9.0), [1.0, 2.0, 3.0, 4.0])
        >>> Y[2, 3] = np.nan
        >>> brtf.BRTF(random_state=0).fit(Y).impute()[2].round(2)
        array([ 3.,  6.,  9., 12.])
        """
        result = self._fitted().at_hand
        return contained(result, result.impute(replace_outliers=replace_outliers))

    def predict(self, coords: Any = None, return_std: bool = False, *, of: Quantity = "low_rank") -> Any:
        """What lies at some entries, or everywhere, observed or not.

        Parameters
        ----------
        coords : (N, M) array of positions, table or dict of labels, or None
            The M entries asked for: a row of positions per mode, or labels by the names of the modes, as
            ``{"shop": ["Bergen"], "week": ["2024-07-15"]}``. None: all entries.
        return_std : bool
            Whether to return standard deviations too.
        of : {"low_rank", "signal", "observation"}
            The low-rank part; or with the smooth residual, if there is one; or a new measurement, which has noise.

        Returns
        -------
        mean, or (mean, std)
            Arrays (M,), or without ``coords`` as Y came in, in the units of Y.

        Notes
        -----
        The mean for an observation is that of the signal. With a link that of an observation would be larger, by the
        noise, or infinite; where outliers are one-sided, it would lie on their side. The standard deviation of an
        observation is infinite where it does not exist: always with ``link="log"``, as the exponential of a Student-t
        has no mean. :meth:`predict_interval` is finite there too.

        Examples
        --------
        >>> import brtf
        >>> sales = brtf.datasets.toy_sales()
        >>> data = brtf.Observations.from_frame(sales.table, index=["shop", "item", "week"], value="sold")
        >>> model = brtf.BRTF(random_state=0).fit(data)
        >>> mean, std = model.predict({"shop": ["Bergen"], "item": ["fish"], "week": ["2024-07-15"]}, return_std=True)
        >>> mean.round(), std.round()
        (array([115.]), array([1.]))
        """
        result = self._fitted()
        check_quantity(of)
        places = positions_of(result.observations, coords)
        centre = result.low_rank(places) if of == "low_rank" else result.signal(places)
        mean = contained(result, centre, places)
        return (mean, contained(result, result.std(places, of=of), places, "std")) if return_std else mean

    def predict_interval(self, coords: Any = None, level: float = 0.95, of: Quantity = "low_rank") -> tuple[Any, Any]:
        """The range in which a value lies with a given probability.

        Parameters
        ----------
        coords : array, table, dict or None
            The entries asked for, as for :meth:`predict`.
        level : float
            The probability, between 0 and 1.
        of : {"low_rank", "signal", "observation"}
            The low-rank part; or with the smooth residual, if there is one: between observed entries of a fibre it is
            interpolated, and far from them its interval widens; or a new measurement, which has noise.

        Returns
        -------
        low, high
            Arrays (M,), or without ``coords`` as Y came in, in the units of Y.

        Notes
        -----
        Both tails have the same probability, so where outliers are one-sided the interval of an observation is longer
        on that side. With a link its ends are those for t(Y), transformed back; with ``"sqrt"`` its probability is
        slightly above ``level`` if it reaches zero.

        After ``calibrate="conformal"`` the half widths for a new observation are multiplied by one factor per level,
        the ⌈(n+1) level⌉-th smallest |y − centre| / half width of the n entries set aside. A new entry that is
        exchangeable with those is then covered with that probability, on average over entries, whatever the noise.
        Intervals are infinite if n is too small for the level.
        """
        result = self._fitted()
        places = positions_of(result.observations, coords)
        low, high = result.interval(places, level=level, of=of)
        return contained(result, low, places), contained(result, high, places)

    def sample(self, n: int = 1, coords: Any = None, *, of: Quantity = "observation", random_state: Any = None) -> Any:
        """Draws from the posterior: tables that might have been.

        Parameters
        ----------
        n : int
            Number of draws.
        coords : array, table, dict or None
            The entries asked for, as for :meth:`predict`.
        of : {"observation", "signal", "low_rank"}
            What to draw, as for :meth:`predict`.
        random_state : int, numpy.random.Generator, numpy.random.RandomState or None
            Seed of the draws.

        Returns
        -------
        array, table or xarray.DataArray
            Array (n, M), or without ``coords`` as Y came in: an array (n, I_0, …, I_{N−1}); a DataArray whose first
            dimension is ``draw``; wide tables one below the other, counted by ``draw``, the first level of a pandas
            index or the first column in polars; or a long table with a column ``draw``. In the units of Y.
        """
        if not is_whole(n) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}.")
        result = self._fitted()
        places = positions_of(result.observations, coords)
        drawn = result.sample(int(n), generator(random_state), places, of=of)
        return draws_contained(result, drawn) if places is None else drawn

    def score(self, Y: Any, y: Any = None, *, mask: Any = None) -> float:
        """How well held-out entries are predicted: their mean log density, in nats per entry. Larger is better.

        Parameters
        ----------
        Y : array-like
            The held-out entries, NaN elsewhere, with the shape and the rows of the fitted data: row-wise
            cross-validation, as in scikit-learn's ``GridSearchCV``, would compare different rows.
            :func:`brtf.evaluate` holds out entries instead.
        y, mask
            As in :meth:`fit`.

        Returns
        -------
        float
            With a link it is still a density of Y, so models with different links can be compared.
        """
        result = self._fitted()
        return float(np.mean(result.log_density(new_data(Y, result, mask_argument(y, mask), same_rows=True))))

    def inverse_transform(self, X: Any) -> Any:
        """The slices of the first mode that have given loadings.

        Parameters
        ----------
        X : (n, rank_) array, table or xarray.DataArray
            Loadings, as :meth:`transform` gives them.

        Returns
        -------
        (n, I_1, …, I_{N−1}) array, table or xarray.DataArray
            Their low-rank part in the units of Y: a table if X is one and the data are a matrix, an xarray.DataArray if
            X and the data are.
        """
        result = self._fitted()
        return container_of(X).slices(result.slices_with(np.asarray(X, dtype=np.float64)), result.observations)

    def anomalies(
        self, q: float = 0.1, *, of: Of = "entries", mode: int | str | None = None, level: float = 0.95, Y: Any = None
    ) -> Any:
        """List the anomalies, the most probable first, so that an expected share q of the list is wrong.

        The list is the longest one whose mean of 1 − probability is at most q.

        Entries have the columns ``observed``, ``expected`` (the low-rank part), ``low`` and ``high`` (the interval of a
        regular observation there) and ``probability``, after the labels or positions of their modes.

        Fibres, slices and rows are judged as a whole: all their entries may be off by the same amount (``kind``
        "shift"), noisier than others ("spread"), or more often outliers ("outliers"), each too little to be noticed one
        by one. ``evidence`` is the logarithm of the Bayes factor of an anomaly, in nats, with its size integrated out,
        and ``probability`` the posterior probability, with the share of anomalous groups learnt from all groups of the
        same kind. ``n_observed`` counts the observed entries and ``n_outliers`` the outliers expected among them;
        ``observed`` and ``expected`` are means over the others, with the interval ``low`` to ``high`` of such a mean
        for independent errors. Where several kinds of groups are listed, a missing label stands for all positions.
        Where the fit gave every slice a noise or a share of outliers of its own, or some slices a component, slices are
        compared with each other: those far from most others are listed.

        Parameters
        ----------
        q : float
            False discovery rate, between 0 and 1.
        of : {"entries", "fibres", "slices", "rows"}
            What to list; rows are the slices of the first mode.
        mode : int, str or None
            The mode of the slices, or the one along which the fibres run; None: every mode.
        level : float
            Probability of the intervals.
        Y : array-like (n, I_1, …, I_{N−1}) or None
            New slices of the first mode to judge, with the fit held fixed; None: the fitted data. The share of
            anomalous groups is that of the fitted data.

        Returns
        -------
        pandas.DataFrame, or polars.DataFrame if the data came in one; a dict of arrays if pandas is not installed

        Examples
        --------
        >>> import brtf
        >>> data = brtf.datasets.synthetic((30, 20, 10), 2, outliers=0.02, seed=0)
        >>> model = brtf.BRTF(random_state=0).fit(data.observed)
        >>> found = model.anomalies(q=0.1)
        >>> list(found)
        ['mode_0', 'mode_1', 'mode_2', 'observed', 'expected', 'low', 'high', 'probability']
        """
        result, shares = self._fitted().at_hand, None
        if Y is not None:
            result, shares = on_new_rows(new_data(Y, result), shared_pattern(result)), result
        return as_frame(anomaly_table(result, q, of=of, mode=mode, level=level, shares=shares), result.observations)

    def forecast(
        self,
        horizon: int,
        mode: int | str | None = None,
        *,
        level: float = 0.9,
        of: Literal["low_rank", "observation"] = "observation",
    ) -> Forecast:
        """What follows the last position of an ordered mode, with the uncertainty that grows on the way.

        Every course goes on as a mixture of all that could have made its past: levels of longer or shorter memory, and
        patterns that repeat themselves, each as probable as the past makes it. A week or a day is tried where labels
        are times, and other periods that were seen twice. Single odd rows, such as holidays, are not repeated. Answers
        are in the units of Y, also with a link.

        Parameters
        ----------
        horizon : int
            Number of positions.
        mode : int, str or None
            The mode to continue, by number or name; None: the only one in order (see ``modes_``), or the only one of
            these whose labels are times.
        level : float
            Probability of the interval.
        of : {"observation", "low_rank"}
            What the standard deviation and the interval are of: new observations, or the low-rank part.

        Returns
        -------
        Forecast
            ``mean``, ``std``, ``low`` and ``high`` of the shape of Y with ``horizon`` positions along the mode,
            ``labels`` of these, continued at their typical distance, ``to_frame()`` and ``to_xarray()``.

        Examples
        --------
        >>> import brtf, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> course = np.sin(np.arange(60) / 5)
        >>> Y = course[:, None] * rng.normal(size=8) + 0.1 * rng.normal(size=(60, 8))
        >>> ahead = brtf.BRTF(random_state=0).fit(Y).forecast(3, mode=0)
        >>> ahead.mean.shape, ahead.labels.tolist()
        ((3, 8), [60, 61, 62])
        """
        return forecast(self._fitted(), horizon, mode, level, of)
