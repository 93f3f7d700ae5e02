"""The part of the residuals of every fibre that repeats with a period, as a contribution to a forecast.

Where few components describe many fibres, some of what is left over repeats itself: a station that is busier on Fridays
than the others. The residuals of all fibres together tell how alike those of one, two, … periods apart are. The best
linear prediction from the last periods follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from brtf.data.arrays import Array

if TYPE_CHECKING:
    from brtf.results.result import Result

MOST_ROUNDS = 4
"""Rounds of a period that are looked back at."""
BEYOND_CHANCE = 4.0
"""Standard deviations of the likeness a period apart from which it counts: chance exceeds it once in 30,000 cases."""
SPARSE = 16
"""Entries per observed entry beyond which most fibres have no course, and none is looked for."""


@dataclass(frozen=True, eq=False)
class MisfitAhead:
    """What to add to the low-rank part at positions from ``first`` on along a mode, in units of the scale."""

    mode: int
    first: int
    values: Array

    def at(self, coords: Sequence[NDArray[np.intp]]) -> Array:
        """The values at given positions, (M,); zero before the first."""
        places = [np.asarray(places) for places in coords]
        since = places[self.mode] - self.first
        places[self.mode] = np.maximum(since, 0)
        return np.where(since >= 0, self.values[tuple(places)], 0.0)


def misfit_ahead(
    result: Result, mode: int, places: NDArray[np.int64], ahead: NDArray[np.int64], periods: Sequence[int]
) -> MisfitAhead | None:
    """C42: Σ_k c_k e_{t − kP}, with c the solution of Σ_l ρ_{|k − l|} c_l = ρ_k; None where nothing repeats itself.

    ρ_k is the correlation of residuals e, in units of their noise, that are k periods P apart in the same fibre. Of
    several periods the one that is most beyond chance counts. Outliers are left out. ``places`` are whole steps from
    the first position to each, ``ahead`` those to the ones that follow.
    """
    observations = result.observations
    if observations.n_entries > SPARSE * observations.n_observed:
        return None
    shape = observations.shape
    course = np.zeros((int(places[-1]) + 1, *(length for k, length in enumerate(shape) if k != mode)))
    regular = course.copy()
    coords = observations.entry_coords()
    at = (places[coords[mode]], *(coords[k] for k in range(observations.order) if k != mode))
    regular[at] = 1.0 - result.outlier_probability_at_entries()
    deviations = regular[at] * result.standardized_residuals()
    course[at] = deviations
    found = max((_rounds(course, period) for period in periods), key=lambda one: one[0], default=(0.0, 1, np.zeros(0)))
    beyond, period, weights = found
    if not beyond > BEYOND_CHANCE:
        return None
    course[at] = regular[at] * result.residuals_at_entries() / result.scale
    whole = np.concatenate([course, np.zeros((int(ahead[-1]) + 1 - len(course), *course.shape[1:]))])
    for step in range(len(course), len(whole)):
        for k, weight in enumerate(weights, start=1):
            if step >= k * period:
                whole[step] += weight * whole[step - k * period]
    return MisfitAhead(mode, shape[mode], np.moveaxis(whole[ahead], 0, mode))


def _rounds(course: Array, period: int) -> tuple[float, int, Array]:
    """How far the likeness a period apart is beyond chance, the period, and the weights of the last rounds."""
    likeness = [1.0]
    beyond = 0.0
    for k in range(1, min(MOST_ROUNDS, (len(course) - 1) // period) + 1):
        now, before = course[k * period :], course[: -k * period]
        both = (now != 0) & (before != 0)
        products, size = now * before, np.sqrt(np.sum((now[both]) ** 2) * np.sum(before[both] ** 2))
        if not size > 0:
            break
        likeness.append(float(products.sum() / size))
        if k == 1:
            beyond = float(products.sum() / np.sqrt(np.sum(products**2)))
    n_rounds = len(likeness) - 1
    if not n_rounds:
        return 0.0, period, np.zeros(0)
    alike = np.array(likeness)
    for n in range(n_rounds, 0, -1):  # correlations from different pairs may contradict each other
        matrix = alike[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
        if np.linalg.eigvalsh(matrix)[0] > np.finfo(float).eps ** 0.5:
            return beyond, period, np.asarray(cho_solve(cho_factor(matrix), alike[1 : n + 1]))
    return 0.0, period, np.zeros(0)
