"""The residuals against the fitted distribution, and what they say about the model, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brtf.results.headline import percent
from brtf.view.diagnostics import CHANCE, Autocorrelation, Diagnostics
from brtf.view.report import charts, residual_charts
from brtf.view.report.blocks import Beside, Card, Cards, Key, Part, Verdict, Verdicts, Words
from brtf.view.report.subject import NOT_IN_FILE, Subject
from brtf.view.report.svg import number
from brtf.view.view_data import residual_histogram

TOLD = 1.1
"""Factor by which uncertainties along a mode must be understated, or overstated, to be reported."""
LASTING = 0.5
"""Share of the correlation of neighbours that is left at long distances where whole fibres are off."""
MISSES = 0.2
"""By which share of it the rate of misses of an interval may be off: a fifth."""
LEANING = 0.05
"""By how much the share of residuals above zero may differ from what was fitted."""
WITH_LEVEL = 0.1
"""Rank correlation of the size of residuals with the level from which it is reported."""
FAR = 3.29
"""Normal score that a thousandth of the residuals exceeds in size."""


def residuals_part(subject: Subject) -> Part:
    """Findings, the histogram, the noise per slice if it differs, and diagnostic charts."""
    result = subject.result
    if not subject.has_entries:
        return Part("residuals", "Residuals", left_out=[f"Residuals. {NOT_IN_FILE}"])
    histogram = residual_histogram(result)
    with_law = not np.array_equal(histogram.noise, histogram.expected)
    key = [("bar-key", "observed entries"), ("dash-key", "expected from the fitted noise alone")]
    if with_law:
        key.append(("line-key", "expected from noise and outliers"))
    about = (
        "A good fit follows the line. Both axes are compressed so that the few large residuals are visible beside the "
        "many small ones."
    )
    if not with_law:
        about += " This model has no common distribution of outlier deviations, so only the noise is drawn."
    aside: list[Any] = [Key(key), Words(about)]
    if len(result.noise_modes) == 1:
        noise_sd = result.noise_sds.ravel()
        aside.append(Cards([Card(charts.noise_chart(subject.axes[result.noise_modes[0]], noise_sd))], "stack"))
    beside = Beside(Card(charts.residual_chart(histogram)), aside)
    found = Diagnostics(result)
    if not found.enough:
        reason = "Checks of the residuals. Too few entries do not determine most of their own fit."
        return Part("residuals", "Residuals", [beside], [reason])
    checks = list(findings(found, subject))
    if not checks:
        words = "The residuals look like the fitted noise and outliers: nothing that was checked stands out."
        checks = [Verdict(words, "good")]
    return Part("residuals", "Residuals", [Verdicts(checks), beside, *_checks(found, subject)])


def _checks(found: Diagnostics, subject: Subject) -> list[Any]:
    cards = [
        Card(
            residual_charts.quantile_chart(found),
            "Quantiles: on the dashed line the residuals are distributed as fitted; an S-shape means other tails, an "
            "offset a bias.",
        ),
        Card(
            residual_charts.probability_chart(found),
            "Probability integral transform: even if the residuals are distributed as fitted; high ends mean that the "
            "intervals are too narrow, a high middle that they are too wide.",
        ),
        *(
            Card(
                residual_charts.autocorrelation_chart(along, name),
                f"Correlation with neighbours along {name}; in the grey band it may be chance.",
            )
            for along in found.autocorrelations
            for name in [subject.axes[along.mode].name]
        ),
    ]
    of = f"a random sample of {found.sample.size:,} of the {found.n_observed:,}" if found.is_sample else "all"
    about = f"The checks look at {of} observed entries, each against the fitted distribution of noise and outliers."
    return [Words(about), Cards(cards)]


def findings(found: Diagnostics, subject: Subject) -> Iterator[Verdict]:
    """What the residuals are not as they should be, and what to do about it, the most serious first."""
    for along in found.autocorrelations:
        yield from _neighbours(along, found, subject)
    yield from _widths(found)
    yield from _leaning(found)
    yield from _level(found, subject)


def _neighbours(along: Autocorrelation, found: Diagnostics, subject: Subject) -> Iterator[Verdict]:
    name, rho, factor = subject.axes[along.mode].name, float(along.value[0]), along.understated
    lasting = list(_lasting(along, name))
    yield from lasting
    if lasting or abs(rho) < CHANCE * along.error[0] or 1.0 / TOLD < factor < TOLD:
        return
    value = f"correlation {number(rho, 2)} ± {number(float(along.error[0]), 1)}"
    if rho > 0:
        yield Verdict(
            f"Neighbouring residuals along {name} are alike ({value}): something that changes slowly along {name} is "
            f"not in the model. The true uncertainty of a mean along it is about {number(factor, 2)} times the stated "
            f"one. "
            f"{_remedy(subject)}",
            "bad",
        )
    elif -rho > CHANCE * along.error[0] + found.fitted_away:
        yield Verdict(
            f"Neighbouring residuals along {name} tend to have opposite signs ({value}), more than fitting explains: "
            f"the data alternate along {name}, or were differenced or sharpened. Uncertainties of means along it are "
            "overstated.",
            "bad",
        )


def _lasting(along: Autocorrelation, name: str) -> Iterator[Verdict]:
    """Correlations that do not fade with the distance."""
    mean, error = along.lasting
    if mean < max(CHANCE * error, LASTING * float(along.value[0])) or along.understated_far < TOLD:
        return
    yield Verdict(
        f"Residuals along {name} stay on one side for long (mean correlation {number(mean, 2)} ± {number(error, 1)} at "
        f"{along.lag[along.lag.size // 2]} to {along.lag[-1]} positions): some fibres along {name} are too high or too "
        f"low as a whole. The true uncertainty of a mean along it is about {number(along.understated_far, 2)} times "
        "the stated one. "
        'anomalies(of="fibres") lists such fibres.',
        "bad",
    )


def _remedy(subject: Subject) -> str:
    if subject.result.settings.max_rank is not None and subject.result.rank >= subject.result.settings.max_rank:
        return "The rank was capped: allow more components (max_rank)."
    return "Treat intervals of sums and means along it with care, and look there for what the components leave."


def _widths(found: Diagnostics) -> Iterator[Verdict]:
    size, n_scores = np.abs(found.score), found.score.size
    for level, reach in ((0.95, 1.959964), (0.5, 0.674490)):
        miss = float(np.mean(size > reach))
        error = np.sqrt(level * (1 - level) / n_scores)
        if abs(miss - (1 - level)) < max(CHANCE * error, MISSES * (1 - level)):
            continue
        inside, wide = percent(1 - miss), "too narrow" if miss > 1 - level else "too wide"
        cause = (
            "the noise is larger somewhere than fitted: try noise per slice, or a link"
            if miss > 1 - level
            else "the noise is smaller than fitted for most entries"
        )
        yield Verdict(
            f"{inside} of the residuals are inside their central {percent(level)} range, so such intervals are {wide}: "
            f'{cause}. calibrate="conformal" corrects the intervals of new observations.',
            "bad",
        )
    far, expected = int(np.count_nonzero(size > FAR)), 0.001 * n_scores
    if far > 2.0 * expected and far - expected > CHANCE * np.sqrt(expected):
        yield Verdict(
            f"{far:,} residuals are so large that {number(expected, 2)} were expected: the tails of noise and outliers "
            "are longer than fitted. Do not take the outlier probabilities of single entries at their word.",
            "bad",
        )


def _leaning(found: Diagnostics) -> Iterator[Verdict]:
    above = float(np.mean(found.score > 0))
    if abs(above - 0.5) > max(CHANCE * 0.5 / np.sqrt(found.score.size), LEANING):
        yield Verdict(
            f"{percent(above)} of the residuals lie above what half of them should: the errors are skewed, and the "
            f"low-rank part is pulled {'down' if above > 0.5 else 'up'}. A link (sqrt, log) or one-sided outliers suit "
            "such data.",
            "bad",
        )


def _level(found: Diagnostics, subject: Subject) -> Iterator[Verdict]:
    rho = found.rank_correlation()
    if abs(rho) < max(CHANCE / np.sqrt(found.score.size), WITH_LEVEL):
        return
    way = "larger" if rho > 0 else "smaller"
    wrong = "Intervals are too wide at one end of the scale and too narrow at the other"
    if rho > 0 and subject.result.link.name is None and subject.result.observations.values.min() >= 0:
        remedy = f"{wrong}; a link (sqrt for counts, log for relative errors) evens that out."
    else:
        remedy = f"{wrong}; noise per slice, along the mode on which the level depends most, evens out a part of it."
    yield Verdict(
        f"Residuals are {way} where the level is higher (rank correlation {number(rho, 2)}): the noise depends on the "
        f"level. {remedy}",
        "bad",
    )
