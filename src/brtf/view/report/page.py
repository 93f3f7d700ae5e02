"""Build the report page: a dictionary of texts and parts for the template, which escapes everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from brtf.data.arrays import Array
from brtf.data.checks import count_of
from brtf.data.observations import Observations
from brtf.results.choice_words import FEWEST
from brtf.results.headline import headline as findings
from brtf.results.headline import percent
from brtf.results.result import Result
from brtf.results.split_half import SplitHalf
from brtf.results.summary import fitted_to, scatter_in_words
from brtf.view.entries import unseen
from brtf.view.report.blocks import Part, Sides
from brtf.view.report.layout import layout_of
from brtf.view.report.parts import PARTS
from brtf.view.report.pictures import palette
from brtf.view.report.subject import MOST_COMPONENTS, NOT_IN_FILE, Subject
from brtf.view.report.svg import number
from brtf.view.report.template import asset, render
from brtf.view.view_data import component_names


def laid_out(
    title: str,
    version: str,
    *,
    lead: str,
    parts: Sequence[Part],
    sides: Sides,
    result: Result | None = None,
    headline: Sequence[str] = (),
    tiles: Sequence[tuple[str, str, str]] = (),
) -> str:
    """A page as text.

    Parameters
    ----------
    title, version : str
    lead : what the page is about
    parts : in their order; those without blocks are not shown, and what parts leave out is listed at the end
    sides : of all pictures of the parts
    result : the fit, of which it is said whether it converged, and what is doubted
    headline : the most important findings
    tiles : name, value and remark of the most important numbers
    """
    return render(
        "page.html",
        css=asset("page.css"),
        title=title,
        version=version,
        converged=result is None or result.stop_reason.converged,
        stop_reason=None if result is None else result.stop_reason.value,
        doubts=[doubt for doubt in (() if result is None else result.diagnosis) if doubt.kind != "not converged"],
        headline=headline,
        lead=lead,
        tiles=tiles,
        parts=[part for part in parts if part.blocks],
        left_out=[reason for part in parts for reason in part.left_out],
        scales={"sides": sides.numbers, "palette": palette().tolist()},
        number=number,
        js=Markup("".join(map(asset, ("tips.js", "tables.js", "viewer.js")))),
    )


def build_page(
    result: Result,
    data: Observations | None = None,
    *,
    image_modes: Sequence[int] | None = None,
    image_size: Sequence[int] | None = None,
    title: str | None = None,
    names: Sequence[str] | None = None,
    split_half: SplitHalf | None = None,
    most_components: int = MOST_COMPONENTS,
) -> str:
    """The page as text; see :func:`brtf.view.report.write_report`."""
    if data is not None and result.observations.in_chunks:
        raise ValueError(f"data= cannot be compared with the fitted entries. {NOT_IN_FILE} Leave out data=.")
    subject = Subject(
        result,
        layout=layout_of(result.observations, image_modes, image_size),
        names=component_names(result, names),
        held_out=result.held_back if data is None else unseen(result, data),
        given=data is not None,
        most_components=most_components,
        split_half=split_half,
    )
    parts = [part(subject) for part in PARTS]
    return laid_out(
        title or _title(result.observations),
        result.version,
        lead=_lead(result),
        parts=parts,
        sides=subject.sides,
        result=result,
        headline=findings(result, subject.held_out),
        tiles=_tiles(subject),
    )


def _described(observations: Observations) -> str:
    shape = " × ".join(f"{length:,}" for length in observations.shape)
    return f"{shape} {'matrix' if observations.order == 2 else 'tensor'}"


def _title(observations: Observations) -> str:
    return _described(observations) if observations.name is None else observations.name


def _units(result: Result) -> str:
    """The units of the noise, if the data came with some and no link changes them."""
    attributes = getattr(result.observations.container, "attrs", {})
    return str(attributes.get("units", "")) if result.link.name is None else ""


def _noise_sd(result: Result) -> tuple[Array, bool]:
    """Standard deviations of the noise, and whether they differ between slices."""
    return result.noise_sds.ravel(), result.state.slices is not None


def _lead(result: Result) -> str:
    observations = result.observations
    found = [count_of(result.rank, "component", "components")]
    rate = result.outlier_rate
    if result.state.local.has_outliers and not np.isnan(rate):
        found.append("no outliers" if rate < FEWEST else f"outliers in {percent(rate)} of the observed entries")
    sd, differ = _noise_sd(result)
    units = _units(result)
    found.append(
        f"noise of standard deviation {number(float(np.median(sd)), 3)}{f' {units}' if units else ''}"
        + (" in a typical slice" if differ else "")
    )
    of = "" if result.link.name is None else f" (fitted to {fitted_to(result.link.name)})"
    n_observed, n_entries = observations.n_observed, observations.n_entries
    seen = f"All {n_entries:,}" if n_observed == n_entries else f"{n_observed:,} of the {n_entries:,}"
    scatter = scatter_in_words(result)
    aside = "" if scatter is None else f" Scattered light: {scatter}."
    told = f"The fit split them into {', '.join(found[:-1])} and {found[-1]}{of}".removesuffix(".")  # as in "a.u."
    return f"{seen} entries of a {_described(observations)} were observed.{aside} {told}."


def _tiles(subject: Subject) -> list[tuple[str, str, str]]:
    """Name, value and remark of the most important numbers."""
    result = subject.result
    observations, settings = result.observations, result.settings
    sd, differ = _noise_sd(result)
    units = _units(result)
    noise = f"{f'{units}, ' if units else ''}standard deviation{', typical slice' if differ else ''}"
    if not result.state.local.has_outliers:
        outliers = "the model has none"
    elif not subject.has_entries:
        outliers = "of the observed entries"
    else:
        likely = np.count_nonzero(subject.probability > 0.5)
        outliers = f"{likely:,} entries with p\N{NO-BREAK SPACE}>\N{NO-BREAK SPACE}½"
    rate = "?" if np.isnan(result.outlier_rate) else percent(result.outlier_rate)
    if result.outlier_rate < FEWEST:
        rate = "none"
    return [
        ("Rank", str(result.rank), "no cap" if settings.max_rank is None else f"capped at {settings.max_rank}"),
        ("Noise", number(float(np.median(sd)), 3), noise),
        ("Outliers", rate, outliers),
        ("Observed", percent(observations.n_observed / observations.n_entries), f"{observations.n_observed:,} entries"),
        ("Sweeps", f"{result.trace[-1].sweep:,}", f"{number(result.seconds, 3)} seconds"),
    ]
