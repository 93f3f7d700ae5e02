"""Forecasts: a method of fitted models."""

from __future__ import annotations

from typing import Literal

from brtf.api.fitted import Fitted
from brtf.results.forecast import Forecast, forecast


class Forecasts(Fitted):
    """Base class of models that can continue an ordered mode."""

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
