"""The problem that a search solves: at its beginning, and at a later moment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brtf import kernels
from brtf.data.blocks import Block
from brtf.data.observations import Observations
from brtf.data.passes import Sums
from brtf.inference.entry_posterior import grouped
from brtf.inference.problem import Problem
from brtf.inference.rounding import largest_precision
from brtf.inference.statistics import add_up_rows, scaled_values
from brtf.model.settings import Settings
from brtf.search.moment import Moment
from brtf.search.moves.outlier_kind import undivided


def first_problem(observations: Observations, settings: Settings) -> Problem:
    """The problem with which the search begins."""
    observations = grouped(observations, settings.shared_modes(observations.order))
    finest = largest_precision(observations, linked=settings.link is not None)
    return Problem(observations, sweep_order(observations), collapsed=True, largest_precision=finest)


def problem_at(observations: Observations, settings: Settings, moment: Moment) -> Problem:
    """The problem of a search at a moment, in the form of the bound that it then has."""
    problem = first_problem(observations, settings)
    if moment.state is not None:
        problem = undivided(problem, moment.state)
    return problem if moment.position is None else replace(problem, collapsed=moment.position.collapsed)


def sweep_order(observations: Observations) -> tuple[int, ...]:
    """The modes in an order independent of how the tensor is stored: by length, then by energy."""
    ones = [np.ones((length, 1)) for length in observations.shape]
    keys = []
    for mode, length in enumerate(observations.shape):

        def add(sums: Sums, block: Block, mode: int = mode) -> None:
            kernels.contract(block, scaled_values(observations, block) ** 2, ones, mode, sums[0])

        (energies,) = add_up_rows(observations, mode, [(length, 1)], add)
        total = float(energies.sum()) or 1.0
        keys.append((length, float(np.sum((energies / total) ** 2)), mode))
    return tuple(mode for _, _, mode in sorted(keys))
