"""Summary of a fit in a dozen lines: numbers for a script, text for a terminal, a table for a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from brtf.data.exports import mode_names
from brtf.data.scatter import scatter_cells
from brtf.results.choice_words import FEWEST, choices_of, named_modes, rows_in_words
from brtf.results.result import Result

WIDEST = 96
"""Length of a line of the summary."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The main numbers of a fit; prints as text, and as a table in a notebook.

    Attributes
    ----------
    numbers : the numbers by name, as plain Python types: what ``brtf show --json`` prints
    """

    numbers: dict[str, Any]

    @classmethod
    def of(cls, result: Result) -> Summary:
        """The summary of a finished fit."""
        observations, settings = result.observations, result.settings
        noise_variance, chosen = result.noise_variances, choices_of(result).items()
        return cls(
            {
                "shape": list(observations.shape),
                "n_observed": observations.n_observed,
                "observed_share": observations.n_observed / observations.n_entries,
                "scatter": scatter_in_words(result),
                "inference": settings.inference,
                "link": result.link.name,
                "arrangement": [list(group) for group in result.arrangement.groups],
                "folding": {str(mode): period for mode, period in result.arrangement.folds},
                "smooth_residual": result.smooth_mode,
                "choices": {option: {"value": c.value, "gain": c.gain, "sentence": c.sentence} for option, c in chosen},
                "rows": rows_in_words(result),
                "rank": result.rank,
                "max_rank": settings.max_rank,
                "noise_sd": result.noise_sds.tolist(),
                "noise_variance": noise_variance.tolist(),
                "noise_modes": list(result.noise_modes) or None,
                "noise_along": named_modes(result, result.noise_modes) if result.noise_modes else None,
                "outlier_rate": result.outlier_rate,
                "bound": result.bound,
                "sweeps": result.trace[-1].sweep,
                "seconds": result.seconds,
                "converged": result.stop_reason.converged,
                "stop_reason": result.stop_reason.value,
                "diagnosis": [asdict(doubt) for doubt in result.diagnosis],
            }
        )

    def rows(self) -> list[tuple[str, str]]:
        """Pairs of a name and a text."""
        numbers = self.numbers
        return [
            *(("doubt", f"{doubt['sentence']} {doubt['remedy']}") for doubt in numbers["diagnosis"]),
            ("shape", times(numbers["shape"])),
            ("observed", f"{numbers['n_observed']:,} entries, {100 * numbers['observed_share']:.4g} % of all"),
            *([] if numbers["scatter"] is None else [("scatter", numbers["scatter"])]),
            ("inference", numbers["inference"]),
            ("fitted to", fitted_to(numbers["link"])),
            ("rank", rank_in_words(numbers)),
            ("rows", numbers["rows"]),
            ("noise", self._noise()),
            ("outliers", self._outliers()),
            ("bound", f"{numbers['bound']:.8g} nats"),
            ("sweeps", f"{numbers['sweeps']} in {numbers['seconds']:.2f} s"),
            ("stopped", numbers["stop_reason"]),
            *(("chosen", choice["sentence"]) for choice in numbers["choices"].values()),
        ]

    def _noise(self) -> str:
        numbers = self.numbers
        if numbers["noise_modes"] is None:
            return f"standard deviation {numbers['noise_sd']:.4g}, variance {numbers['noise_variance']:.4g}"
        low, middle, high = np.quantile(numbers["noise_sd"], (0.0, 0.5, 1.0))
        along = numbers["noise_along"]
        return f"differs along {along}: standard deviation {low:.4g} to {high:.4g}, typically {middle:.4g}"

    def _outliers(self) -> str:
        rate = self.numbers["outlier_rate"]
        if np.isnan(rate):
            return "not known without the data"
        return "none" if rate < FEWEST else f"{100 * rate:.3g} % of the observed entries"

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        indent = " " * (width + 4)
        return "\n".join(
            textwrap.fill(f"  {name:<{width}}  {text}", WIDEST, subsequent_indent=indent, break_long_words=False)
            for name, text in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self.rows())
        return f"<table>{''.join(cells)}</table>"


def scatter_in_words(result: Result) -> str | None:
    """How many cells were left out as scattered light, and which; None where the option was not used."""
    said, observations = result.settings.scatter, result.observations
    if said is None:
        return None
    cells = scatter_cells(said, observations.labels)
    raman = "" if said["raman"] is None else f" and about the Raman lines of {said['raman']:,.0f} per cm"
    names = mode_names(observations)
    return (
        f"{np.count_nonzero(cells):,} of {cells.size:,} cells of {names[said['emission']]} and "
        f"{names[said['excitation']]} left out: {said['width']:g} nm above the excitation and all below, "
        f"{said['width']:g} nm about its second order{raman}"
    )


def fitted_to(link: str | None) -> str:
    """What was fitted, the data or their transform: the units of the components and the noise."""
    return "the data" if link is None else f"{link}(data)"


def times(shape: Iterable[int]) -> str:
    """The lengths of the modes as text, such as 30 x 20 x 10."""
    return " x ".join(map(str, shape))


def rank_in_words(numbers: dict[str, Any]) -> str:
    """The rank found and the largest rank allowed, as text."""
    cap = "no cap" if numbers["max_rank"] is None else f"capped at {numbers['max_rank']}"
    return f"{numbers['rank']} ({cap})"
