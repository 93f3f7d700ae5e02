"""Few outliers instead of many.

Where most entries count as outliers, the slab has become the noise: the labels are swapped, or the noise model is
wrong. Proposes the noise of the residuals with the outliers of a start, settled at fixed factors, at the cost of about
ten passes. Tried only where outliers are the majority; accepted unless the bound falls by more than a nat, as outliers
are exceptions by definition.
"""

from __future__ import annotations

from dataclasses import replace

from brtf.inference.judge import WORTH
from brtf.inference.learn_noise import settle_noise, typical_residual, with_noise
from brtf.inference.point import Point, evaluate_at
from brtf.inference.problem import Problem
from brtf.inference.trace import Kind
from brtf.model.state import State
from brtf.search.move import Once, Progress, Sweeps, Trial
from brtf.search.starts import START_MODEL

MAJORITY = 0.5


def are_mostly_outliers(state: State) -> bool:
    """Whether the model expects more entries to be outliers than not."""
    return state.local_model.probability > MAJORITY


def with_few_outliers(problem: Problem, point: Point) -> State:
    """The state of a point with the noise of its residuals and the additive outliers of a start."""
    typical = typical_residual(problem, point.state, point.fit.residual)
    tau = 1.0 / typical**2 if typical > 0 else float(point.state.tau.mean)
    state = replace(point.state, structure=None)
    return with_noise(state, tau, START_MODEL, problem.observations.n_observed)


def settled_with_few_outliers(problem: Problem, point: Point) -> Point:
    """The point of :func:`with_few_outliers`, with its noise settled at the same factors."""
    return settle_noise(problem, evaluate_at(problem, with_few_outliers(problem, point), point.fit))


class FewOutliers(Once):
    """Few outliers where most entries are."""

    name = "few outliers"

    def proposal(self, progress: Progress) -> Trial | None:
        point, problem, options = progress.point, progress.problem, progress.options
        if not are_mostly_outliers(point.state) or options.structured:
            return None
        few = settled_with_few_outliers(problem, point)
        return progress.trial(Kind.LOCAL_MODEL, "few outliers", few, worth=-WORTH, then=Sweeps(progress.roughly, 60))
