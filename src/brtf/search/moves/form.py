"""Change of the form of the bound for complete data: form 1 completes the data and is cheap, form 2 is tighter.

Proposes the current state in the other form, at the cost of one pass. Complete data that are large or need many
components are searched in form 1 and finished in form 2 where that is affordable.
"""

from __future__ import annotations

import math
from dataclasses import replace

from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.search.move import Once, Progress, Trial

COLLAPSED_WORK, LARGEST_COLLAPSED_WORK = 2**26, 2**31
"""Entries times packed products of components up to which complete data are searched, and finished, in form 2."""


def begins_collapsed(problem: Problem, rank: int) -> bool:
    """Whether a search of that rank begins in form 2."""
    affordable = problem.observations.n_observed * rank * (rank + 1) / 2 <= COLLAPSED_WORK
    return problem.collapsed and (problem.observations.layout != "complete" or affordable)


def cheaper_form(progress: Progress, rank: int) -> Trial | None:
    """Form 1, where the data are complete and the rank makes weighted Grams expensive."""
    if not is_expensive(progress, rank) or progress.point.state.smooth is not None:
        return None
    return _in_form(progress, collapsed=False)


def is_expensive(progress: Progress, rank: int) -> bool:
    """Whether form 2 of complete data makes weighted Grams of that rank expensive."""
    many = rank > progress.problem.observations.plan.weighted_rank or not progress.affords(rank, COLLAPSED_WORK)
    return progress.problem.collapsed and many and progress.is_complete


class Cheaper(Once):
    """Form 1 where the rank makes form 2 expensive."""

    name = "cheaper form"

    def proposal(self, progress: Progress) -> Trial | None:
        return cheaper_form(progress, progress.point.rank)


class Tighter(Once):
    """Form 2 after a search in form 1."""

    name = "tighter form"

    def proposal(self, progress: Progress) -> Trial | None:
        if progress.problem.collapsed or not progress.affords(progress.point.rank, LARGEST_COLLAPSED_WORK):
            return None
        return _in_form(progress, collapsed=True)


def _in_form(progress: Progress, *, collapsed: bool) -> Trial:
    state = progress.point.state
    if not collapsed:  # rows then share one covariance
        for mode, (rows, prior) in enumerate(zip(state.factors, state.row_priors, strict=True)):
            state = state.with_factor(mode, rows, prior.evened(rows, state.lam))
    point = evaluate(replace(progress.problem, collapsed=collapsed), state)
    words = f"another form of the bound: {'weighted entries' if collapsed else 'completed data'}"
    return progress.trial(Kind.FORM, words, point, worth=-math.inf, collapsed=collapsed)
