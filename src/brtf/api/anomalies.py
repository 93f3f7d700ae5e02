"""Anomalies as tables: a method of fitted models."""

from __future__ import annotations

from typing import Any

from brtf.api.fitted import Fitted
from brtf.api.fitting import new_data, on_new_rows
from brtf.data.exports import as_frame
from brtf.results.anomalies import Of, anomaly_table, shared_pattern


class FindsAnomalies(Fitted):
    """Base class of models that list the anomalies of their data."""

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
