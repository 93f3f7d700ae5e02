"""What the options of the model cost: a sweep with each of them against the plain sweep of the same data and form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.inference.entry_posterior import grouped, initial_law, initial_rates
from brtf.inference.learn_noise import slice_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.model.links import LINKS
from brtf.model.state import OutlierStructure, Sides, State
from brtf.research.bench.measure import Effort, Measurement, fastest
from brtf.research.bench.sweeps import LOCAL_MODEL, Sweeper, low_rank_data, sparse_data, times
from brtf.search.moves.structure import value_range

Option = Callable[[Problem, State], State]
PLAIN = "plain"
LIMIT = 3.0
"""A sweep with any options may take this many times as long as the plain one."""


def _noise(n_modes: int) -> Option:
    return lambda problem, state: slice_noise(problem, state, tuple(range(n_modes)))


def _structured(structure: Callable[[Problem], OutlierStructure]) -> Option:
    return lambda problem, state: replace(state, structure=structure(problem))


def _rates(problem: Problem) -> OutlierStructure:
    rates = initial_rates((0,), problem.observations.shape[0], LOCAL_MODEL.probability)
    return OutlierStructure(rates=rates)


TWO_MODES = _noise(2)
"""Not for matrices, where every entry would be a slice."""
OPTIONS: dict[str, Option] = {
    PLAIN: lambda _, state: state,
    "a link": lambda _, state: state,  # of the data, applied before the fit
    "noise per slice of one mode": _noise(1),
    "noise per slice of two modes": TWO_MODES,
    "outlier rates per slice": _structured(_rates),
    "one-sided outliers": _structured(lambda _: OutlierStructure(sides=Sides(2.0, 1.0))),
    "shared outliers": _structured(lambda problem: OutlierStructure((problem.observations.order - 1,))),
    "replaced outliers": _structured(lambda problem: OutlierStructure(law=initial_law(*value_range(problem)))),
    "noise and outlier rates per slice": lambda problem, state: replace(
        slice_noise(problem, state, (0,)), structure=_rates(problem)
    ),
}
"""The options, as changes of a plain state."""


def option_sweeps(effort: Effort) -> Iterator[Measurement]:
    """Target 9: a sweep with each option against the plain sweep of the same data, in both forms."""
    for words, observations, rank in _cases(effort):
        positive = replace(observations, values=np.abs(observations.values))
        linked = LINKS["sqrt"].for_data(positive.values).apply(positive)
        plain: dict[bool, float] = {}
        for collapsed in (False, True):
            tasks = {
                name: _sweeper(linked if name == "a link" else observations, rank, option, collapsed=collapsed)
                for name, option in OPTIONS.items()
                if observations.order > 2 or option is not TWO_MODES
            }
            seconds = fastest(tasks, effort.n_repeats)
            plain[collapsed] = seconds[PLAIN]
            for name in tasks:
                if name != PLAIN:
                    yield Measurement(
                        9,
                        f"sweep with {name}: {words}, form {1 + collapsed}",
                        seconds[name] / seconds[PLAIN],
                        "the plain sweep of the same form",
                        LIMIT,
                    )
        yield Measurement(9, f"plain sweep in form 2: {words}", plain[True] / plain[False], "the plain sweep in form 1")


def _cases(effort: Effort) -> Iterator[tuple[str, Observations, int]]:
    """Data of every layout: words, observations and rank."""
    matrix, cube, n_entries = ((600, 50), (30, 30, 30), 3_000) if effort.quick else ((6000, 100), (100,) * 3, 300_000)
    for shape, rank, dtype in ((matrix, 2, np.float32), (cube, 10, np.float64)):
        data = low_rank_data(shape, rank, dtype)
        yield f"complete {times(shape)}, rank {rank}", observe(data), rank
        for missing in (0.3, 0.7):
            seen = np.random.default_rng(1).random(shape) >= missing
            yield f"{times(shape)}, {100 * missing:g} % missing, rank {rank}", observe(data, seen), rank
    yield f"{n_entries:,} coordinates in {times((300,) * 3)}, rank 5", sparse_data((300,) * 3, n_entries), 5


def _sweeper(observations: Observations, rank: int, option: Option, *, collapsed: bool) -> Sweeper:
    sweeper = Sweeper(observations, rank, collapsed=collapsed)
    state = option(sweeper.problem, sweeper.point.state)
    modes = () if state.structure is None else state.structure.modes
    sweeper.problem = replace(sweeper.problem, observations=grouped(observations, modes))
    sweeper.point = evaluate(sweeper.problem, state, ahead=True)
    return sweeper
