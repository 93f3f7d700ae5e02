"""Summary, plots and report as methods, shared by results and fitted models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from brtf.api.fitted import Fitted

if TYPE_CHECKING:
    from brtf.results.summary import Summary


class Shown(Fitted):
    """Base class of objects that hold a result and can show it."""

    def _card(self) -> str:
        """The fit as HTML, empty before it."""
        from sklearn.exceptions import NotFittedError

        from brtf.results.notebook import card

        try:
            return card(self._fitted())
        except NotFittedError:
            return ""

    def _repr_html_inner(self) -> str:
        """In a notebook: scikit-learn's view of the options, and below it the fit in plain words."""
        return f"{super()._repr_html_inner()}{self._card()}"  # type: ignore[misc]

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """See :meth:`_repr_html_inner`; notebooks ask for this first."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def summary(self) -> Summary:
        """The main numbers of the fit and what was chosen, with doubts first.

        Returns
        -------
        Summary
            Prints as text, and shows as a table in a notebook.
        """
        from brtf.results.summary import Summary

        return Summary.of(self._fitted())

    def plot_components(self, **options: Any) -> Any:
        """Draw the strength of every component, in the units of the data, as a bar chart.

        Parameters
        ----------
        **options
            ``names`` of the components, strongest first; ``ax``, where to draw: see
            :func:`brtf.view.plots.plot_components`.

        Returns
        -------
        matplotlib Axes
        """
        from brtf.view.plots import plot_components

        return plot_components(self._fitted(), **options)

    def plot_factors(self, **options: Any) -> Any:
        """Draw the factors with their credible bands: a row of charts per component, a column per mode.

        Parameters
        ----------
        **options
            ``modes`` and ``components`` to draw, ``names`` of the components, ``level`` of the bands, ``axes``: see
            :func:`brtf.view.plots.plot_factors`.

        Returns
        -------
        array of matplotlib Axes
        """
        from brtf.view.plots import plot_factors

        return plot_factors(self._fitted(), **options)

    def plot_trace(self, **options: Any) -> Any:
        """Draw bound and rank over the sweeps of the fit.

        Parameters
        ----------
        **options
            ``axes``, where to draw: see :func:`brtf.view.plots.plot_trace`.

        Returns
        -------
        two matplotlib Axes
        """
        from brtf.view.plots import plot_trace

        return plot_trace(self._fitted(), **options)

    def plot_outliers(self, **options: Any) -> Any:
        """Draw where outliers are: their mean probability over all modes but two.

        Parameters
        ----------
        **options
            ``modes``, the vertical and the horizontal one; ``ax``, where to draw: see
            :func:`brtf.view.plots.plot_outliers`.

        Returns
        -------
        matplotlib Axes
        """
        from brtf.view.plots import plot_outliers

        return plot_outliers(self._fitted(), **options)

    def report(self, path: str | os.PathLike[str], *, split_half: bool = False, **options: Any) -> None:
        """Write one self-contained HTML page about the fit, to look at and to hand on.

        Parameters
        ----------
        path : path
            Where to write; an existing file is replaced.
        split_half : bool
            Whether to fit two halves of the data too and compare their components: see :func:`brtf.ranks.split_half`.
        **options
            ``title``, ``names`` of the components, ``data`` with held-out entries, ``image_modes`` and ``image_size``:
            see :func:`brtf.view.report.write_report`.
        """
        from brtf.api.ranks import split_half as fit_halves
        from brtf.view.report import require_page, write_report

        require_page()
        result = self._fitted()
        halves = fit_halves(result) if split_half else None
        write_report(result, path, split_half=halves, **options)
