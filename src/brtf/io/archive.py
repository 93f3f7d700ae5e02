"""A result as header and arrays, and back: the content of a ``.brtf`` file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from brtf.data.arrangement import Arrangement
from brtf.inference.trace import SWEPT, Doubt, Event, Kind, Record, StopReason
from brtf.io.archived_data import pack_entries, pack_outline, unpack_held_back, unpack_observations
from brtf.io.archived_state import pack_state, unpack_state
from brtf.io.contents import Arrays, Header
from brtf.io.storage import write_archive
from brtf.model.links import LINKS
from brtf.model.settings import Settings
from brtf.results.result import Result
from brtf.search.choices import Comparison
from brtf.search.reading import Reading

CHECKPOINT = "checkpoint"
"""Value of the header's ``kind`` for files other than results."""
LABELS = "settings.outlier_labels"
"""Name of the array of the labels of outlier rates that were given."""
TRACE_COLUMNS = ("sweep", "bound", "rank", "noise_variance")


def pack(result: Result) -> tuple[Header, Arrays]:
    """Header and arrays that describe a result completely."""
    arrays: Arrays = {}
    header: Header = {
        "library": result.version,
        "settings": _pack_settings(result.settings, arrays),
        "stop_reason": result.stop_reason.name,
        "seconds": result.seconds,
        "cap_gain": result.cap_gain,
        "widening": result.widening,
        "diagnosis": [asdict(doubt) for doubt in result.diagnosis],
    }
    pack_reading(Reading(result.link, result.arrangement, result.state.smooth is not None), result.comparisons, header)
    if result.observations.in_chunks:  # the entries are not saved, but the numbers computed from all of them are
        pack_outline(result.observations, header, arrays)
        header["bound_shift"] = result.bound_shift
        header["outlier_rate"] = None if np.isnan(result.outlier_rate) else result.outlier_rate
    else:
        pack_entries(result.observations, header, arrays)
    pack_state(result.state, header, arrays)
    if result.held_back is not None:
        arrays["held_back.coords"] = result.held_back.entry_coords()
        arrays["held_back.values"] = result.held_back.values
    pack_trace(result.trace, header, arrays)
    return header, arrays


def save_result(result: Result, path: str | os.PathLike[str]) -> None:
    """Write a result to one ``.brtf`` file, atomically."""
    write_archive(path, *pack(result))


def unpack(header: Header, arrays: Arrays) -> Result:
    """The result described by :func:`pack`; raises if the content is inconsistent."""
    trace = unpack_trace(header, arrays)
    observations = unpack_observations(header, arrays)
    reading, comparisons = unpack_reading(header, observations.shape)
    state = unpack_state(header, arrays, replace(observations, shape=reading.arrangement.shape(observations.shape)))
    if not trace:
        raise ValueError("the trace is empty")
    if header["stop_reason"] not in StopReason.__members__:
        raise ValueError(f"the stop reason {header['stop_reason']!r} is unknown")
    settings = unpack_settings(header["settings"], arrays)
    settings = settings.with_numbered_modes(observations.dim_names, observations.order)  # checks them, as at a fit
    link = reading.link
    held_back = unpack_held_back(arrays, observations)
    in_memory = [data for data in (observations, held_back) if data is not None and not data.in_chunks]
    for data in in_memory:
        link.check(data)
    result = Result(
        observations=observations,
        state=state,
        trace=trace,
        stop_reason=StopReason[header["stop_reason"]],
        settings=settings,
        seconds=float(header["seconds"]),
        version=str(header["library"]),
        link=link,
        arrangement=reading.arrangement,
        comparisons=comparisons,
        held_back=held_back,
        cap_gain=None if header["cap_gain"] is None else float(header["cap_gain"]),
        widening=float(header["widening"]),
        diagnosis=tuple(Doubt(*(str(one[k]) for k in ("kind", "sentence", "remedy"))) for one in header["diagnosis"]),
    )
    for data in in_memory:
        result.as_modelled(data)  # raises where values are not of the scale that the file gives
    if observations.in_chunks:
        tell_of_entries(result, header)
    return result


def tell_of_entries(result: Result, header: Header) -> None:
    """Set the numbers that a result without its entries cannot compute: see :func:`pack_outline`."""
    rate = math.nan if header["outlier_rate"] is None else float(header["outlier_rate"])
    if not (math.isnan(rate) or 0 <= rate <= 1):
        raise ValueError(f"the outlier rate is {rate}")
    shift = float(header["bound_shift"])
    if not math.isfinite(shift):
        raise ValueError("the shift of the bound is not finite")
    result.__dict__.update(outlier_rate=rate, bound_shift=shift)


def pack_reading(reading: Reading, comparisons: Sequence[Comparison], header: Header) -> None:
    """Add how the data were read, and how that was chosen, to a header."""
    header["reading"] = {
        "link": reading.link.name,
        "numbers": asdict(reading.link),
        "groups": [list(group) for group in reading.arrangement.groups],
        "folds": [list(fold) for fold in reading.arrangement.folds],
        "smooth": reading.smooth,
        "comparisons": [[one.option, one.chosen, [list(t) for t in one.tried], one.n_entries] for one in comparisons],
    }


def unpack_reading(header: Header, shape: tuple[int, ...]) -> tuple[Reading, tuple[Comparison, ...]]:
    """The reading and the comparisons described by :func:`pack_reading`."""
    packed = header["reading"]
    name, numbers = packed["link"], {key: float(number) for key, number in packed["numbers"].items()}
    if name not in LINKS or not all(0 <= number < math.inf for number in numbers.values()):
        raise ValueError(f"there is no link {name!r} with numbers {numbers}")
    comparisons = tuple(
        Comparison(str(option), str(chosen), tuple((str(other), float(gain)) for other, gain in tried), int(n_entries))
        for option, chosen, tried, n_entries in packed["comparisons"]
    )
    arrangement = Arrangement.checked(packed["groups"], len(shape))
    folds = packed.get("folds", [])  # absent in files of earlier versions
    if folds:
        if not arrangement.is_as_given:
            raise ValueError("modes are both merged and folded")
        arrangement = Arrangement.folded({int(mode): int(period) for mode, period in folds}, shape)
    return Reading(LINKS[name](**numbers), arrangement, packed.get("smooth") is True), comparisons


def plain_arrangement(settings: Settings) -> Any:
    """The option arrangement as JSON has it: with text for the keys of a dict."""
    given = settings.arrangement
    return {str(mode): int(period) for mode, period in given.items()} if isinstance(given, dict) else given


def pack_labels(settings: Settings, arrays: Arrays) -> None:
    """Add the labels of outlier rates, if any are given."""
    if settings.outlier_labels is not None:
        arrays[LABELS] = settings.outlier_labels


def unpack_settings(packed: Header, arrays: Arrays) -> Settings:
    """Settings from plain values as JSON gives them back: lists for tuples, text for the keys of a dict.

    The labels of outlier rates are among the arrays.
    """
    given, said = packed["arrangement"], packed["modes"]
    if isinstance(given, list):
        packed = {**packed, "arrangement": tuple(tuple(group) for group in given)}
    if isinstance(given, dict):
        packed = {**packed, "arrangement": {int(mode): period for mode, period in given.items()}}
    if isinstance(said, list):
        packed = {**packed, "modes": tuple((mode, tuple(words)) for mode, words in said)}
    return Settings(**{**packed, "outlier_labels": arrays.get(LABELS)})


def pack_trace(trace: Sequence[Record], header: Header, arrays: Arrays) -> None:
    """Add all records of a trace to header and arrays."""
    for field in TRACE_COLUMNS:
        arrays[f"trace.{field}"] = np.array([getattr(record, field) for record in trace])
    header["events"] = {
        str(i): [record.event.kind.value, record.event.accepted, record.event.gain, record.event.words]
        for i, record in enumerate(trace)
        if record.event is not SWEPT
    }


def unpack_trace(header: Header, arrays: Arrays) -> tuple[Record, ...]:
    """The records described by :func:`pack_trace`."""
    events = header["events"]
    columns = [arrays[f"trace.{field}"] for field in TRACE_COLUMNS]
    if not np.all(columns[-1] >= 0):
        raise ValueError("the trace has a noise variance below 0")
    return tuple(
        Record(int(sweep), float(bound), int(rank), float(noise), _unpack_event(events.get(str(i))))
        for i, (sweep, bound, rank, noise) in enumerate(zip(*columns, strict=True))
    )


def _unpack_event(packed: Any) -> Event:
    if packed is None:
        return SWEPT
    kind, accepted, gain, words = packed
    if type(accepted) is not bool or type(words) is not str:
        raise ValueError(f"an event is {packed!r}")
    return Event(Kind(kind), accepted, float(gain), words)


def _pack_settings(settings: Settings, arrays: Arrays) -> dict[str, Any]:
    packed = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    if not isinstance(packed["init"], str):  # the initial factors are not part of the result
        packed["init"] = "spectral"
    packed["arrangement"] = plain_arrangement(settings)
    packed["outlier_labels"] = None
    pack_labels(settings, arrays)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in packed.items()}
