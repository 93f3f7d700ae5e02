"""What is still to be done in a search: moves by name and arguments, so that it can be kept and taken up again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from brtf.inference.acceleration import Memory
from brtf.model.state import State

Move = partial[Any]
"""A method of the search with its arguments. It does one thing, a sweep or a proposal, puts on the agenda what comes
next, and returns what happened, or None where that is not worth a line of the trace."""
Agenda = tuple[tuple[str, tuple[Any, ...]], ...]
"""Name and arguments of the moves still to be made, the next one last."""
MOVES: dict[str, Callable[..., str | None]] = {}
"""All moves by name."""
Method = TypeVar("Method", bound=Callable[..., str | None])


@dataclass(frozen=True, eq=False)
class Position:
    """Where a search stands between two moves: with its best state and the generator's, all that decides the rest.

    Attributes
    ----------
    agenda : see :data:`Agenda`
    n_sweeps, drift, bounds : see :class:`brtf.search.settle.Trials`
    collapsed : the form of the bound
    bound : of the best state, in that form; None where there is no state yet
    most : the largest rank on the way
    beyond : the bound with one component more than the cap allows, in that form; None where it was not needed
    trial : the state that is being tried, if any
    anderson : what the acceleration of the present sweeps remembers
    """

    agenda: Agenda
    n_sweeps: int
    drift: float
    bounds: tuple[float, ...]
    collapsed: bool
    bound: float | None
    most: int
    beyond: float | None
    trial: State | None
    anderson: Memory


def move(method: Method) -> Method:
    """A method that may stand on the agenda."""
    MOVES[method.__name__] = method
    return method


def check_agenda(agenda: Agenda, limits: Mapping[str, int]) -> None:
    """Refuse moves that do not exist and arguments that are out of range: the agenda comes from a file.

    ``limits`` says, for whole numbers by the names of the parameters, below what they must be.
    """
    for name, arguments in agenda:
        if name not in MOVES:
            raise ValueError(f"there is no move {name!r}")
        given = inspect.signature(MOVES[name]).bind(None, *arguments).arguments
        for parameter, argument in list(given.items())[1:]:
            if parameter in limits:
                fits = all(type(n) is int and 0 <= n < limits[parameter] for n in np.ravel(argument).tolist())
            elif parameter == "event":
                fits = type(argument) is str
            elif parameter == "hopeless":
                fits = type(argument) is tuple and all(type(kind) is bool for kind in argument)
            else:
                fits = type(argument) in (bool, int, float) and math.isfinite(argument)
            if not fits:
                raise ValueError(f"the move {name!r} has {parameter}={argument!r}")
