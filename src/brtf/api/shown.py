"""Summary, plots and report as methods, shared by results and fitted models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brtf.results.result import Result
    from brtf.results.summary import Summary


class Shown:
    """Base class of objects that hold a result and can show it."""

    def _fitted(self) -> Result:
        raise TypeError("Shown is abstract")  # every implementation defines it

    def summary(self) -> Summary:
        """The main numbers of the fit; prints as text, and as a table in a notebook."""
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
        """Draw bound and rank over the sweeps: see :func:`brtf.view.plots.plot_trace`."""
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
