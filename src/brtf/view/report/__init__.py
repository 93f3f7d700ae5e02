"""The report: one self-contained HTML page about a fit, made from a result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brtf.data.extras import require

if TYPE_CHECKING:
    from brtf.results.result import Result
    from brtf.results.split_half import SplitHalf

__all__ = ["require_page", "write_report"]


def require_page() -> Any:
    """Import the module that builds the page, or raise with what to install; call it before a long fit."""
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
    names: Sequence[str] | None = None,
    split_half: SplitHalf | None = None,
) -> None:
    """Write one self-contained HTML page about a fit, atomically.

    The page works offline. It begins with the findings in plain words, and shows slices of the tensor as pictures, the
    strengths of the components, their factors with credible bands, the outliers, the residuals against the fitted
    distribution and what they say about the model, the calibration if entries were held out, how well the data support
    the components, what the bound chose, and the course of the fit. Whatever it cannot show is listed with the reason.

    Parameters
    ----------
    result : Result
    path : path-like
        Where to write; an existing file is replaced.
    data : array-like, Observations or None
        Data with entries that the fit has not seen, on which the intervals are evaluated. They may be sparse; labelled
        data are aligned by their labels.
    image_modes : sequence of int or None
        The modes that make up a picture: (rows, columns) or (rows, columns, colours). None: the two longest modes.
    image_size : (height, width) or None
        If given, ``image_modes`` is (pixels,) or (pixels, colours): one mode runs over all pixels, row by row.
    title : str or None
        Title of the page; the name of the data, or their shape, if None.
    names : sequence of str or None
        What to call the components, one name each, in the order of the columns of ``factors_``; "component 0" and so
        on if None.
    split_half : SplitHalf or None
        The components compared with those of halves of the data: see :func:`brtf.ranks.split_half`.

    Raises
    ------
    ValueError
        ``data`` disagree with the fitted data, the image modes do not match the tensor, or there are not as many
        names as components.
    ImportError
        jinja2 or pillow is missing: they come with ``pip install "brtf[viz]"``.
    """
    from brtf.data.observe import observe
    from brtf.io.atomic_file import atomic_file

    build_page = require_page().build_page
    given = None if data is None else observe(data)
    page = build_page(
        result, given, image_modes=image_modes, image_size=image_size, title=title, names=names, split_half=split_half
    )
    with atomic_file(path) as file:
        file.write(page.encode("utf-8", "replace"))  # a label may hold half a surrogate pair
