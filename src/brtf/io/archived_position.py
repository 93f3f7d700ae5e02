"""A position within a search as header and arrays, and back."""

from __future__ import annotations

import math
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from brtf.data.observations import Observations
from brtf.inference.acceleration import DEPTH, AndersonHistory
from brtf.inference.trace import Kind
from brtf.io.archived_state import pack_state, unpack_state
from brtf.io.contents import Arrays, Header, add_part, checked_array, part_of
from brtf.search.move import Proposal, Sweeps
from brtf.search.position import Position

POSITION_NUMBERS: dict[str, tuple[tuple[type, ...], float]] = {
    "phase": ((int,), 0),
    "move": ((int,), 0),
    "memory": ((tuple,), 0),
    "changed": ((bool,), 0),
    "mark": ((tuple, type(None)), 0),
    "ahead": ((bool,), 0),
    "trial_ahead": ((bool,), 0),
    "n_sweeps": ((int,), 0),
    "drift": ((float,), -math.inf),
    "most": ((int,), 1),
    "beyond": ((float, type(None)), -math.inf),
    "skips_rough": ((bool,), 0),
    "collapsed": ((bool,), 0),
    "bound": ((float, type(None)), -math.inf),
    "refusals": ((tuple,), 0),
}
"""The plain parts of a position: what they may be, and how small."""
PROPOSAL_NUMBERS: dict[str, tuple[tuple[type, ...], float]] = {
    "words": ((str,), 0),
    "stages": ((tuple,), 0),
    "worth": ((float,), -math.inf),
    "collapsed": ((bool,), 0),
    "price": ((float,), 0),
    "beyond": ((float, type(None)), -math.inf),
    "stage": ((int,), 0),
    "k": ((int,), 0),
    "n_before": ((int,), 0),
    "bounds": ((tuple,), 0),
}
"""The same for the plain parts of a proposal."""


def pack_position(position: Position, header: Header, arrays: Arrays) -> None:
    for name in POSITION_NUMBERS:
        header[name] = getattr(position, name)
    header["refusals"] = [(*who, _finite(until)) for *who, until in position.refusals]
    header["sweeps"] = None if position.sweeps is None else astuple(position.sweeps)
    header["damping"] = position.anderson.damping
    for name, vectors in (("points", position.anderson.points), ("images", position.anderson.images)):
        arrays[name] = np.stack(vectors) if vectors else np.empty((0, 0))
    if position.proposal is not None and position.trial is not None:
        header["proposal"] = _pack_proposal(position.proposal)
        header["trial"] = add_part(arrays, "trial.", pack_state, position.trial)


def _finite(number: float) -> float | str:
    """A number as JSON can hold it, which has no infinity."""
    return str(number) if math.isinf(number) else number


def _number(stored: Any) -> Any:
    return float(stored) if stored in ("inf", "-inf") else stored


def _pack_proposal(proposal: Proposal) -> Header:
    header = {field.name: getattr(proposal, field.name) for field in fields(Proposal)}
    header["kind"] = proposal.kind.value
    header["worth"] = _finite(proposal.worth)
    header["then"] = None if proposal.then is None else astuple(proposal.then)
    return header


def unpack_position(header: Header, arrays: Arrays, observations: Observations) -> Position:
    numbers = {name: _nested_tuples(header[name]) for name in POSITION_NUMBERS}
    numbers["refusals"] = tuple((*refusal[:-1], *map(_number, refusal[-1:])) for refusal in numbers["refusals"])
    for name, (kinds, least) in POSITION_NUMBERS.items():
        _check_number(name, numbers[name], kinds, least)
    mark = numbers["mark"]
    if mark is not None and (len(mark), *map(type, mark)) != (3, float, bool, int):
        raise ValueError(f"the mark {mark} is not a bound, a flag and a number of sweeps")
    if not all([type(part) for part in refusal] == [str, str, float] for refusal in numbers["refusals"]):
        raise ValueError("a refusal is not (move, kind of point, bound)")
    damping, points = header["damping"], arrays["points"]
    if not (type(damping) is float and 0 < damping <= 1 and points.ndim == 2 and len(points) <= DEPTH + 1):
        raise ValueError("the acceleration is out of range")
    images = checked_array(arrays, "images", checked_array(arrays, "points", points.shape).shape)
    proposal = header.get("proposal")
    return Position(
        **numbers,
        sweeps=_unpack_sweeps(header["sweeps"]),
        proposal=None if proposal is None else _unpack_proposal(proposal),
        trial=unpack_state(header["trial"], part_of(arrays, "trial."), observations) if "trial" in header else None,
        anderson=AndersonHistory(tuple(points), tuple(images), damping),
    )


def _unpack_proposal(header: Header) -> Proposal:
    values = {field.name: _nested_tuples(header[field.name]) for field in fields(Proposal)}
    values["worth"] = _number(values["worth"])
    for name, (kinds, least) in PROPOSAL_NUMBERS.items():
        _check_number(name, values[name], kinds, least)
    if not all(len(stage) == 3 and [type(part) for part in stage] == [str, int, int] for stage in values["stages"]):
        raise ValueError("a stage of the trial is not (name, first sweep, last sweep)")
    if not all(type(bound) is float for bound in values["bounds"]):
        raise ValueError("the bounds of the trial are not numbers")
    values["kind"] = Kind(values["kind"])
    values["then"] = _unpack_sweeps(header["then"])
    return Proposal(**values)


def _unpack_sweeps(values: Any) -> Sweeps | None:
    if values is None:
        return None
    if [type(value) for value in values] != [float, int, int, bool] or min(values[1:3]) < 0:
        raise ValueError(f"sweeps cannot be {values}")
    return Sweeps(*values)


def _check_number(name: str, value: Any, kinds: tuple[type, ...], least: float) -> None:
    if type(value) not in kinds or (type(value) in (int, float) and not value >= least):
        raise ValueError(f"{name} is {value!r}")


def _nested_tuples(value: Any) -> Any:
    return tuple(_nested_tuples(item) for item in value) if isinstance(value, list) else value
