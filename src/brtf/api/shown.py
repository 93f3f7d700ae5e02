"""Methods that show a fit, the same for a result and for a fitted model: each hands the result on to what draws it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brtf.results.result import Result
    from brtf.results.summary import Summary


class Shown:
    """Something that has a result to show."""

    def _fitted(self) -> Result:
        raise TypeError("Shown is abstract")  # every implementation defines it

    def summary(self) -> Summary:
        """The numbers everyone asks for; prints as text, shows as a table in a notebook."""
        from brtf.results.summary import Summary

        return Summary.of(self._fitted())

    def plot_components(self, **options: Any) -> Any:
        """Draw the strength of every component: see :func:`brtf.view.plots.plot_components`."""
        from brtf.view.plots import plot_components

        return plot_components(self._fitted(), **options)

    def plot_factors(self, **options: Any) -> Any:
        """Draw the factors with their credible bands: see :func:`brtf.view.plots.plot_factors`."""
        from brtf.view.plots import plot_factors

        return plot_factors(self._fitted(), **options)

    def plot_trace(self, **options: Any) -> Any:
        """Draw the course of the fit: see :func:`brtf.view.plots.plot_trace`."""
        from brtf.view.plots import plot_trace

        return plot_trace(self._fitted(), **options)

    def plot_outliers(self, **options: Any) -> Any:
        """Draw a map of the outliers: see :func:`brtf.view.plots.plot_outliers`."""
        from brtf.view.plots import plot_outliers

        return plot_outliers(self._fitted(), **options)

    def report(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write one self-contained HTML page about the fit: see :func:`brtf.view.report.write_report`."""
        from brtf.view.report import write_report

        write_report(self._fitted(), path, **options)
