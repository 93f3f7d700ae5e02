"""Build the report page: a dictionary of texts and charts for the template, which escapes everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from brtf.data.arrays import Array
from brtf.data.checks import count_of
from brtf.data.observations import Observations, entry_positions
from brtf.inference.trace import Kind, comparable, imposed
from brtf.model.settings import Settings
from brtf.results.result import Result
from brtf.results.summary import Summary, fitted_to
from brtf.view.report import charts
from brtf.view.report.entries import unseen
from brtf.view.report.frames import Layout, Still, Viewer, layout_of, make_viewer, pixel_picture
from brtf.view.report.svg import glyph, number
from brtf.view.report.template import asset, render
from brtf.view.view_data import (
    Move,
    axis_of,
    axis_of_factor,
    by_strength,
    calibration,
    component_strengths,
    factor_profiles,
    largest_outliers,
    moves,
    outlier_rates,
    residual_histogram,
)

NOT_IN_FILE = "A checkpoint, or the result of a fit to data in chunks, does not contain the entries."
MOST_COMPONENTS = 12
"""Number of components whose factors are drawn, the strongest first."""
MOST_OUTLIERS = 20
MOST_MOVES = 200
MOVE_WORDS = {"birth": "birth", "death": "death", "merge": "merge", "prune": "prune", "other": "other change"}


@dataclass(frozen=True)
class Panel:
    """A chart, or a picture with its legend, and a caption."""

    shown: Markup | Still
    caption: str

    @property
    def is_picture(self) -> bool:
        return isinstance(self.shown, Still)


def build_page(
    result: Result,
    data: Observations | None = None,
    *,
    image_modes: Sequence[int] | None = None,
    image_size: Sequence[int] | None = None,
    title: str | None = None,
    most_components: int = MOST_COMPONENTS,
) -> str:
    """The page as text, with the factors of at most so many components; see :func:`brtf.view.report.write_report`."""
    here = not result.observations.in_chunks
    if data is not None and not here:
        raise ValueError(f"data= cannot be compared with the fitted entries. {NOT_IN_FILE} Leave out data=.")
    layout = layout_of(result.observations, image_modes, image_size)
    held_out = result.held_back if data is None else unseen(result, data)
    known = [part for part in (result.observations, result.held_back, held_out) if part is not None]
    viewer = make_viewer(result, known, layout) if here else NOT_IN_FILE
    probability = result.outlier_probability_at_entries() if here else None
    has_outliers = result.state.outliers.has_outliers
    context = {
        "title": title or _title(result.observations),
        "version": result.version,
        "converged": result.stop_reason.converged,
        "stop_reason": result.stop_reason.value,
        "doubts": [doubt for doubt in result.diagnosis if doubt.kind != "not converged"],
        "lead": _lead(result),
        "tiles": _tiles(result, probability),
        "complete": result.observations.layout == "complete",
        "viewer": viewer if isinstance(viewer, Viewer) else None,
        "strengths": charts.strengths_chart(result) if result.rank else None,
        "units": fitted_to(result.link.name),
        "factors": _factors(result, layout, most_components),
        "outliers": None if probability is None or not has_outliers else _outliers(result, probability, layout),
        "residuals": _residuals(result) if here else None,
        "course": _course(result),
        "calibration": _calibration(result, held_out, given=data is not None),
        "details": _details(result),
        "absent": _absent(result, viewer, held_out, most_components, given=data is not None),
        "number": number,
        "js": Markup(asset("page.js")),
    }
    return render("page.html", css=asset("page.css"), **context)


def _shape(observations: Observations) -> str:
    return " × ".join(f"{length:,}" for length in observations.shape)


def _described(observations: Observations) -> str:
    return f"{_shape(observations)} {'matrix' if observations.order == 2 else 'tensor'}"


def _title(observations: Observations) -> str:
    name = None if observations.labels is None else observations.labels.name
    return _described(observations) if name is None else name


def _percent(share: float) -> str:
    return f"{number(100 * share, 3)}\N{NO-BREAK SPACE}%"


def _noise_sd(result: Result) -> tuple[Array, bool]:
    """Standard deviations of the noise, and whether they differ between slices."""
    return np.sqrt(np.atleast_1d(result.noise_variances)).ravel(), result.state.slices is not None


def _lead(result: Result) -> str:
    observations = result.observations
    found = [count_of(result.rank, "component", "components")]
    rate = result.outlier_rate
    if result.state.outliers.has_outliers and not np.isnan(rate):
        found.append("no outliers" if rate < 1e-5 else f"outliers in {_percent(rate)} of the observed entries")
    sd, differ = _noise_sd(result)
    found.append(
        f"noise of standard deviation {number(float(np.median(sd)), 3)}" + (" in a typical slice" if differ else "")
    )
    of = "" if result.link.name is None else f" (fitted to {fitted_to(result.link.name)})"
    n_observed, n_entries = observations.n_observed, observations.n_entries
    seen = f"All {n_entries:,}" if n_observed == n_entries else f"{n_observed:,} of the {n_entries:,}"
    return (
        f"{seen} entries of a {_described(observations)} were observed. The fit split them into "
        f"{', '.join(found[:-1])} and {found[-1]}{of}."
    )


def _tiles(result: Result, probability: Array | None) -> list[tuple[str, str, str]]:
    """Name, value and remark of the most important numbers."""
    observations, settings = result.observations, result.settings
    sd, differ = _noise_sd(result)
    noise = "standard deviation, typical slice" if differ else "standard deviation"
    if not result.state.outliers.has_outliers:
        outliers = "the model has none"
    elif probability is None:
        outliers = "of the observed entries"
    else:
        likely = np.count_nonzero(probability > 0.5)
        outliers = f"{likely:,} entries with p\N{NO-BREAK SPACE}>\N{NO-BREAK SPACE}½"
    rate = "?" if np.isnan(result.outlier_rate) else _percent(result.outlier_rate)
    return [
        ("Rank", str(result.rank), "no cap" if settings.max_rank is None else f"capped at {settings.max_rank}"),
        ("Noise", number(float(np.median(sd)), 3), noise),
        ("Outliers", rate, outliers),
        (
            "Observed",
            _percent(observations.n_observed / observations.n_entries),
            f"{observations.n_observed:,} entries",
        ),
        ("Sweeps", f"{result.trace[-1].sweep:,}", f"{number(result.seconds, 3)} seconds"),
    ]


def _factors(result: Result, layout: Layout, most: int) -> list[dict[str, Any]]:
    """For every mode its name and a figure per component, the strongest first."""
    if result.rank == 0:
        return []
    strengths = component_strengths(result)
    shown = by_strength(result)[:most].tolist()
    sections = []
    for mode, (mean, std) in enumerate(factor_profiles(result)):
        axis, group = axis_of_factor(result, mode), result.arrangement.groups[mode]
        size = layout.size if layout.pixels and group == (layout.rows,) else None
        if len(group) == 2:  # merged modes: a map
            size = result.observations.shape[group[0]], result.observations.shape[group[1]]
        figures = []
        for component in shown:
            caption = f"component {component}, strength {number(float(strengths[component]), 3)}"
            if size is not None:
                picture = pixel_picture(mean[:, component], size, caption, signed=True)
                figures.append(Panel(picture, caption))
            else:
                chart = charts.profile_chart(axis, mean[:, component], std[:, component], component)
                figures.append(Panel(chart, caption))
        sections.append({"name": axis.name, "length": f"{axis.length:,}", "figures": figures})
    return sections


def _outliers(result: Result, probability: Array, layout: Layout) -> dict[str, Any]:
    observations = result.observations
    axes = [axis_of(observations, mode) for mode in range(observations.order)]
    found = largest_outliers(result, MOST_OUTLIERS)
    pixels = layout.rows if layout.pixels else None

    def place(mode: int, position: int) -> str:
        if mode == pixels:
            return "{}, {}".format(*divmod(position, layout.size[1]))
        return axes[mode].text(position)

    rows = [
        [
            *(place(mode, int(position)) for mode, position in enumerate(found.coords[:, k])),
            number(float(found.observed[k])),
            number(float(found.low_rank[k])),
            number(float(found.outlier[k])),
            f"{found.probability[k]:.3f}" if found.probability[k] < 0.9995 else "> 0.999",
        ]
        for k in range(found.outlier.size)
    ]
    any_likely = bool(np.any(probability > 0.5))
    return {
        "header": [
            *("row, column" if mode == pixels else axis.name for mode, axis in enumerate(axes)),
            *("observed", "low rank", "outlier", "probability"),
        ],
        "n_labels": len(axes),
        "rows": rows,
        "n_likely": f"{np.count_nonzero(probability > 0.5):,}",
        "map": _outlier_map(observations, probability, layout) if any_likely else None,
        "rates": [
            charts.rates_chart(observations, probability, mode)
            for mode in range(observations.order)
            if any_likely and mode != pixels
        ],
    }


def _outlier_map(observations: Observations, probability: Array, layout: Layout) -> Panel:
    caption = "Mean outlier probability over all other modes. Grey: nothing observed."
    if layout.pixels:
        rates = 100.0 * outlier_rates(observations, probability, layout.rows)
        return Panel(pixel_picture(rates, layout.size, "outliers, % of the observed", signed=False), caption)
    return Panel(charts.map_chart(observations, probability, (layout.rows, layout.columns)), caption)


def _residuals(result: Result) -> dict[str, Any]:
    histogram = residual_histogram(result)
    with_law = not np.array_equal(histogram.noise, histogram.expected)
    noise = None
    if len(result.noise_modes) == 1:
        noise = charts.noise_chart(axis_of(result.observations, result.noise_modes[0]), _noise_sd(result)[0])
    return {"chart": charts.residual_chart(histogram), "with_law": with_law, "noise": noise}


def _course(result: Result) -> dict[str, Any]:
    all_moves = moves(result.trace)
    kept = [move for move in all_moves if move.kept]
    kinds = [kind for kind in MOVE_WORDS if any(move.kind == kind for move in kept)]
    legend = [(glyph(kind, f"move {kind}"), MOVE_WORDS[kind]) for kind in kinds]
    if len(kept) < len(all_moves):
        legend.append((glyph("dropped", "move dropped"), "rejected"))
    return {
        "judged": result.settings.inference == "calibrated",
        "imposed": imposed(result.trace),
        "rescaled": [
            record.event.words.split(": ")[1] for record in result.trace if record.event.kind is Kind.CHANNELS
        ],
        "reformed": any(record.event.kind is Kind.FORM for record in result.trace),
        "cut": len(comparable(result.trace)) < len(result.trace),
        "bound": charts.bound_chart(result),
        "rank": charts.rank_chart(result),
        "legend": legend,
        "moves": [_move_row(move) for move in all_moves[:MOST_MOVES]],
        "n_moves": len(all_moves),
        "total": number(result.bound, 8),
        "per_entry": number(result.bound / result.observations.n_observed, 4),
    }


def _move_row(move: Move) -> tuple[str, str, str, bool]:
    return f"{move.record.sweep:,}", str(move.record.event), str(move.record.rank), move.kept


def _calibration(result: Result, held_out: Observations | None, *, given: bool) -> dict[str, Any] | None:
    if held_out is None:
        return None
    found, n_held_out = calibration(result, held_out), held_out.n_observed
    covered = {f"{100 * level:g} %": _percent(share) for level, share in zip(found.level, found.covered, strict=True)}
    return {
        "chart": charts.calibration_chart(found),
        "source": "of the given data that the fit has not seen" if given else "set aside for calibration",
        "compared": f"{found.n_entries:,}" + (f" of {n_held_out:,}" if n_held_out > found.n_entries else ""),
        "rows": [
            ("root mean square error", number(found.rmse)),
            ("mean error", number(found.mae)),
            ("log predictive density", f"{number(found.log_density)} nats per entry"),
            *((f"inside {level} intervals", covered[level]) for level in ("50 %", "80 %", "95 %")),
        ],
        "conformal": result.held_back is not None,
    }


def _details(result: Result) -> list[tuple[str, str]]:
    """All settings and results as text."""
    observations, settings = result.observations, result.settings
    modes = ", ".join(
        f"{axis.name} ({axis.length:,})" for axis in (axis_of(observations, mode) for mode in range(observations.order))
    )
    return [
        ("modes", modes),
        *Summary.of(result).rows(),
        ("outlier model", result.state.outliers.description),
        ("outlier option", _outliers_asked(settings)),
        ("start", str(settings.init) if isinstance(settings.init, str) else "given factors"),
        ("noise option", settings.noise),
        ("calibration option", settings.calibrate or "none"),
        ("tolerance", f"{settings.tol:g} nats per observed entry"),
        ("most sweeps", f"{settings.max_sweeps:,}"),
        ("brtf", result.version),
    ]


def _outliers_asked(settings: Settings) -> str:
    if not settings.robust:
        return "none"
    modes = settings.outlier_modes
    return settings.outlier_kind + (f", shared along modes {', '.join(map(str, modes))}" if modes else "")


def _absent(
    result: Result, viewer: Viewer | str, held_out: Observations | None, most_components: int, *, given: bool
) -> list[str]:
    """What is missing from the page, and why."""
    reasons = []
    if isinstance(viewer, str):
        reasons.append(f"Pictures of slices. {viewer}")
    if result.rank > most_components:
        n_weaker = result.rank - most_components
        reasons.append(f"The factors of {n_weaker} weaker components: the page draws {most_components}.")
    if not result.state.outliers.has_outliers:
        reasons.append("Outliers. The model was fitted without them.")
    if result.observations.in_chunks:
        reasons.append(f"Residuals, and which entries are outliers. {NOT_IN_FILE}")
        return reasons
    if held_out is None and given:
        reasons.append("Calibration. The fit has seen every entry of the given data.")
    elif held_out is None:
        reasons.append(
            'Calibration. No entry was held out: fit with calibrate="conformal", or pass data with held-out entries '
            "(brtf report --data)."
        )
    observations = result.observations
    seen = np.zeros(observations.shape[0], dtype=bool)
    seen[entry_positions(observations, [0])] = True
    if not seen.all():
        axis = axis_of(observations, 0)
        unheld = count_of(np.count_nonzero(~seen), "position", "positions")
        reasons.append(
            f"Data, residuals and outliers at {unheld} of {axis.name}. The result has no entry there: nothing was "
            "observed, or it was fitted in an earlier block, whose entries are not kept."
        )
    return reasons
