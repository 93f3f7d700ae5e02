"""A page that tells what a fit found: one HTML file that needs nothing else, made from a result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brtf.data.extras import require

if TYPE_CHECKING:
    from brtf.results.result import Result

__all__ = ["require_page", "write_report"]


def require_page() -> Any:
    """The module that builds the page, or a sentence that says what to install: to be asked before a long fit."""
    require("jinja2", extra="viz", purpose="a report")
    return require("brtf.view.report.page", extra="viz", purpose="a report")


def write_report(
    result: Result,
    path: str | os.PathLike[str],
    *,
    data: Any = None,
    image_modes: Sequence[int] | None = None,
    image_size: Sequence[int] | None = None,
    title: str | None = None,
) -> None:
    """Write one self-contained HTML page about a fit, wholly or not at all.

    The page asks nothing of the network. It tells what was fitted, the strengths of the components, their factors with
    credible bands, the outliers, the residuals against the fitted law, the course of the fit, the calibration where
    entries were held out, and shows slices of the tensor as pictures. What it cannot show it names, with the reason.

    Parameters
    ----------
    result : Result
    path : path-like
        Where to write; an existing file is replaced.
    data : array-like, Observations or None
        The data, if they hold more than the result does: entries that the fit has not seen, by which the page then
        judges its intervals. They may be sparse; labelled data are put in place by their labels.
    image_modes : sequence of int or None
        The modes that make up a picture: (rows, columns) or (rows, columns, colours). None: the two longest modes.
    image_size : (height, width) or None
        With it ``image_modes`` is (pixels,) or (pixels, colours): one mode runs over all pixels, row by row.
    title : str or None
        Headline; the name of the data, or their shape, if None.

    Raises
    ------
    ValueError
        ``data`` are not those of this fit, or the image modes do not suit the tensor.
    ImportError
        jinja2 or pillow is missing: they come with ``pip install "brtf[viz]"``.
    """
    from brtf.data.observations import observe
    from brtf.io.storage import atomic_file

    build_page = require_page().build_page
    given = None if data is None else observe(data)
    page = build_page(result, given, image_modes=image_modes, image_size=image_size, title=title)
    with atomic_file(path) as file:
        file.write(page.encode("utf-8", "replace"))  # a label may hold half a surrogate pair
