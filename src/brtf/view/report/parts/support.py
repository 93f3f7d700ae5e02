"""How well the data support the components: core consistency, halves of the data, and the influence of single rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import beta

from brtf.data.arrays import Array
from brtf.results.core_consistency import consistency_of
from brtf.view.report import residual_charts
from brtf.view.report.blocks import Card, Cards, Cell, Heading, Part, Table, Verdict, Verdicts, Words
from brtf.view.report.subject import Subject
from brtf.view.report.svg import number
from brtf.view.view_data import Axis, leverages, slice_misfit

VERY, HARDLY = 90.0, 50.0
"""Core consistencies from which a model is very multilinear, and below which it is a problem (Bro & Kiers, 2003)."""
OWN_FIT = 0.5
"""Leverage beyond which a row determines most of its own fit."""
BY_CHANCE = 0.05
"""Probability that some row of a mode with Gaussian loadings has as much leverage as one that is named."""
MOST_NAMED = 5


def support_part(subject: Subject) -> Part:
    """Core consistency, split-half, and leverage and misfit of the rows of every mode."""
    result = subject.result
    if result.rank == 0:
        return Part("support", "Support")
    left_out, verdicts = [], []
    core = consistency_of(result)
    if isinstance(core, str):
        left_out.append(f"Core consistency. {core}")
    else:
        verdicts.append(_core(core))
    blocks: list[Any] = []
    cards = []
    if subject.has_entries:
        for modes, leverage in leverages(result).items():
            if len(modes) == 1:  # of merged modes a row is one fibre or one entry
                axis = subject.axes[modes[0]]
                verdicts += _influential(axis, leverage, result.rank)
                cards.append(Card(residual_charts.influence_chart(axis, leverage, slice_misfit(result, modes[0]))))
    if verdicts:
        blocks.append(Verdicts(verdicts))
    halves, why_not = _halves(subject)
    blocks += halves
    left_out += why_not
    if cards:
        about = (
            "Leverage: how much a position shapes the components, from 0 to 1; over a mode it adds up to the rank. "
            "Residuals: their root mean square without outliers, in units of the fitted noise. Far to the right a "
            "position shapes the components by itself, far up the components do not describe it."
        )
        blocks += [Heading("Influence"), Words(about), Cards(cards)]
    return Part("support", "Support", blocks, left_out)


def _core(core: float) -> Verdict:
    value = f"The core consistency is {number(core, 3)} % (100 is best)"
    if core >= VERY:
        return Verdict(f"{value}: the components do not interact; their number suits the data.", "good")
    if core >= HARDLY:
        return Verdict(f"{value}: the components interact somewhat. Compare with a fit of one component less.")
    return Verdict(
        f"{value}: as separate multilinear parts the data support fewer components. Each may still improve the "
        "prediction; to interpret single components, lower max_rank until the consistency rises.",
        "bad",
    )


def _influential(axis: Axis, leverage: Array, rank: int) -> list[Verdict]:
    """Positions with more leverage than chance gives: of Gaussian loadings it is Beta(R/2, (I − R)/2)."""
    if 2 * rank > axis.length:
        return []
    by_chance = axis.length * beta.sf(leverage, 0.5 * rank, 0.5 * (axis.length - rank))
    found = np.flatnonzero((leverage > OWN_FIT) & (by_chance < BY_CHANCE))
    if not found.size:
        return []
    found = found[np.argsort(-leverage[found], kind="stable")]
    names = ", ".join(f"{axis.text(int(k))} ({number(leverage[k], 2)})" for k in found[:MOST_NAMED])
    more = f" and {found.size - MOST_NAMED} more" if found.size > MOST_NAMED else ""
    return [
        Verdict(
            f"Single positions of {axis.name} shape a component by themselves: {names}{more}, by their leverage. Check "
            "their data; without them that component may be another.",
            "bad",
        )
    ]


def _halves(subject: Subject) -> tuple[list[Any], list[str]]:
    halves = subject.split_half
    if halves is None:
        return [], [
            "Split-half analysis. It takes two more fits, so it is done on request: report(…, split_half=True), or "
            "brtf.ranks.split_half."
        ]
    axis = subject.axes[halves.mode]
    compared = halves.congruence, halves.first, halves.second
    rows = [
        [Cell(name), *(Cell(f"{part[r]:.3f}", value=float(part[r])) for part in compared)]
        for r, name in enumerate(subject.names)
    ]
    header = ["component", "half with half", "first half with all", "second half with all"]
    about = (
        f"The {axis.length:,} positions of {axis.name} were split into random halves, and each was fitted on its own: "
        f"they have {halves.ranks[0]} and {halves.ranks[1]} components. Compared are the factors of the other modes, "
        "by the product of their congruences: 0.95 or more is the same component, 0.85 or more a similar one "
        "(Lorenzo-Seva & ten Berge, 2006)."
    )
    sure = int(np.count_nonzero(halves.congruence >= halves.SAME))
    everything = sure == subject.result.rank
    words = (
        "Both halves show the same components: they do not depend on which data were seen."
        if everything
        else f"{sure} of {subject.result.rank} components are the same in both halves; the others depend on which data "
        "were seen and should not be interpreted one by one."
    )
    verdict = Verdicts([Verdict(words, "good" if everything else "bad")])
    table = Table(header, rows, file="split-half")
    return [Heading("Split half"), Words(about), verdict, table], []
