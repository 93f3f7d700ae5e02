"""Checkpoints: files from which a run resumes and reaches the same result, to the last bit."""

from __future__ import annotations

import math
import numbers
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any

import numpy as np

from brtf import __version__
from brtf.data.checks import count_of
from brtf.data.observations import Observations
from brtf.inference.trace import StopReason
from brtf.io.archive import (
    CHECKPOINT,
    pack_trace,
    tell_of_entries,
    unpack,
    unpack_reading,
    unpack_settings,
    unpack_trace,
)
from brtf.io.archived_data import unpack_observations
from brtf.io.archived_position import pack_position, unpack_position
from brtf.io.archived_state import pack_state, unpack_state
from brtf.io.atomic_file import require_writable
from brtf.io.contents import Arrays, Header, add_part, part_of, refusing
from brtf.io.origin import DATA_NAMES, Origin, as_plain, bit_generator_of, describe_data, settings_names
from brtf.io.storage import read_archive, write_archive
from brtf.model.settings import Settings
from brtf.model.state import MeanFieldOutliers, State
from brtf.results.result import Result
from brtf.search.choices import Chosen
from brtf.search.moment import Moment
from brtf.search.stopping import end_of

SECONDS_BETWEEN = 60.0
"""Default seconds between checkpoints."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read: the origin of the run, its time so far, and its state."""

    path: str
    origin: Origin
    seconds: float
    header: Header
    arrays: Arrays

    @property
    def version(self) -> str:
        """The version of brtf that wrote it."""
        return str(self.header["library"])

    def check(self, origin: Origin) -> None:
        """Raise if data or settings differ from those the run began with."""
        if self.origin.data != origin.data:
            told = [describe_data(data) for data in (self.origin.data, origin.data)]
            same_entries = self.origin.data["digest"] == origin.data["digest"]
            alike = f"the same but for its {'labels' if same_entries else 'values'}"
            difference = alike if told[0] == told[1] else told[1]
            raise ValueError(
                f"{self.path} is a checkpoint of other data, of {told[0]}; Y is {difference}. "
                "Resume with the same data, or start again without resume."
            )
        others = [name for name, value in origin.settings.items() if self.origin.settings[name] != value]
        if others:
            made, got = (
                ", ".join(f"{name}={settings[name]!r}" for name in others)
                for settings in (self.origin.settings, origin.settings)
            )
            raise ValueError(
                f"{self.path} was made with {made}, got {got}. "
                "Resume with the same options, or start again without resume."
            )

    def generator(self, random_state: Any, given: np.random.Generator) -> np.random.Generator:
        """The generator that the run began with: the user's own, reset, or a new one; raises for another seed.

        ``given`` is the generator made from ``random_state``.
        """
        rng = np.random.Generator(bit_generator_of(self.origin.rng))
        if random_state is None:
            return rng
        if isinstance(random_state, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
            if type(given.bit_generator) is type(rng.bit_generator):
                given.bit_generator.state = self.origin.rng
                return given
        elif as_plain(given.bit_generator.state) == self.origin.rng:
            return given
        raise ValueError(
            f"{self.path} was made with another random_state than {random_state!r}. "
            "Resume with the same one, or with None."
        )

    @property
    def is_decided(self) -> bool:
        """Whether it was decided how the data are read; if not, a run that resumes begins with that choice again."""
        return not self.header["outline"].get("undecided", False)

    def chosen(self) -> Chosen:
        """How the data are read: chosen before the run began, or leading when the choice was interrupted."""
        with refusing(self.path, "a checkpoint"):
            return Chosen(*unpack_reading(self.header["outline"], tuple(self.origin.data["shape"])))

    def moment(self, observations: Observations) -> Moment:
        """The moment at which the checkpoint was written; the observations are those being fitted, as they are read."""
        header, arrays = self.header, self.arrays
        with refusing(self.path, "a checkpoint"):
            trace, rng = unpack_trace(header, arrays), bit_generator_of(header["rng"]).state
            if not all(math.isfinite(record.bound) for record in trace):
                raise ValueError("the trace has a bound that is not finite")
            state = unpack_state(header["state"], part_of(arrays, "state."), observations) if trace else None
            position = None
            if "position" in header:
                position = unpack_position(header["position"], part_of(arrays, "position."), observations)
                position.check(state)
            elif trace and self.origin.settings["inference"] == "calibrated":
                raise ValueError("the position is missing")
            return Moment(state, position, trace, len(trace), rng)

    def result(self) -> Result:
        """The best state so far as a result without the data."""
        packed = dict(self.origin.settings)
        if not isinstance(packed["init"], str):
            packed["init"] = "spectral"  # as in every result that is read: the initial factors are not in the file
        with refusing(self.path, "a checkpoint"):
            header, arrays = self.header["outline"], part_of(self.arrays, "outline.")
            settings = unpack_settings(packed, arrays)
            observations = unpack_observations(header, arrays)
        chosen = self.chosen()
        moment = self.moment(replace(observations, shape=chosen.reading.arrangement.shape(observations.shape)))
        if moment.state is None:
            n_sweeps = count_of(moment.n_sweeps, "sweep", "sweeps")
            raise ValueError(
                f"{self.path} is a checkpoint of a fit that has no result yet, after {n_sweeps}. Resume it with "
                "fit(Y, resume=…) or brtf fit --resume."
            )
        reason = end_of(moment, settings, observations.n_observed) or StopReason.UNFINISHED
        with refusing(self.path, "a checkpoint"):
            result = Result(
                observations,
                moment.state.strongest_first(),
                moment.trace,
                reason,
                settings,
                self.seconds,
                self.version,
                chosen.reading.link,
                chosen.reading.arrangement,
                chosen.comparisons,
                cap_gain=moment.cap_gain,
            )
            tell_of_entries(result, {**header, "outlier_rate": _expected_outlier_rate(moment.state)})
        if reason is StopReason.UNFINISHED:
            n_sweeps = count_of(moment.n_sweeps, "sweep", "sweeps")
            warnings.warn(
                f"{self.path} is a checkpoint of an unfinished fit: this is the best state so far, after {n_sweeps}. "
                "Resume it with fit(Y, resume=…) or brtf fit --resume.",
                UserWarning,
                stacklevel=4,
            )
        return result


class Keeper:
    """Writes checkpoints of a run: keeps the latest moment in memory, and writes it at intervals and at the end.

    A context manager whose value is called with every moment. It writes a last checkpoint however the run ends. If
    writing fails, the previous file is kept, a warning is given, and the run continues, but for the first moment.

    Attributes
    ----------
    outline : header and arrays with what a result without data needs to know about them, see
        :func:`brtf.io.archived_data.pack_outline`
    """

    def __init__(
        self, path: str | os.PathLike[str], origin: Origin, *, every: float | None = None, seconds: float = 0.0
    ) -> None:
        self.path = os.fspath(path)
        self.origin = origin
        self.every = SECONDS_BETWEEN if every is None else _seconds(every)
        self.outline: tuple[Header, Arrays] = {}, {}
        self.began = time.monotonic() - seconds
        self.latest: Moment | None = None
        self.written: Moment | None = None
        self.written_at = time.monotonic()

    def __enter__(self) -> Callable[[Moment], None]:
        return self.keep

    def keep(self, moment: Moment) -> None:
        """Remember the latest moment, and write it if it is due."""
        first, self.latest = self.latest is None, moment
        if first and os.path.exists(self.path):
            self.written = moment  # the run resumes from it
        elif self.written is None:
            self.write(moment)
        elif time.monotonic() - self.written_at >= self.every:
            self._write_if_possible(moment)

    def write(self, moment: Moment) -> None:
        """Write a moment, atomically."""
        self.written_at = time.monotonic()
        write_archive(self.path, *_pack(moment, self.origin, self.written_at - self.began, self.outline))
        self.written = moment

    def _write_if_possible(self, moment: Moment) -> None:
        try:
            self.write(moment)
        except OSError as error:
            warnings.warn(
                f"The checkpoint could not be written ({error.strerror or error}); the last one is still in "
                f"{self.path}.",
                UserWarning,
                stacklevel=2,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.written is not None and self.latest is not None and self.latest is not self.written:
            self._write_if_possible(self.latest)
        if isinstance(error, KeyboardInterrupt) and self.written is not None:
            error.add_note(f"The fit so far is in {self.path}; continue with fit(Y, resume={self.path!r}).")


def begin(
    observations: Observations,
    settings: Settings,
    rng: np.random.Generator,
    checkpoint: str | os.PathLike[str] | None,
    every: float | None,
    resume: str | os.PathLike[str] | None,
) -> tuple[Checkpoint | None, Keeper | None]:
    """The checkpoint to resume from, if any, and the keeper that writes checkpoints, if any.

    Raises if data or settings have changed, or if another file would be overwritten.
    """
    path = resume if checkpoint is None else checkpoint
    if path is None:
        if every is not None:
            raise ValueError(f"every={every!r} says how often to write a checkpoint: say where, checkpoint=path.")
        return None, None
    origin = Origin.of(observations, settings, rng)
    if resume is None:
        earlier, keeper = None, Keeper(path, origin, every=every)
    else:
        earlier = load_checkpoint(resume)
        earlier.check(origin)
        keeper = Keeper(path, earlier.origin, every=every, seconds=earlier.seconds)
    if os.path.exists(path) and (resume is None or not os.path.samefile(path, resume)):
        raise ValueError(
            f"{os.fspath(path)} exists, and a checkpoint would overwrite it. Resume from it, name another file, or "
            "remove it."
        )
    require_writable(path)  # now, and not after hours
    return earlier, keeper


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint to resume from; raises unless it is a checkpoint of this version."""
    header, arrays = read_archive(path)
    name = os.fspath(path)
    if header.get("kind") != CHECKPOINT:
        raise ValueError(f"{name} is not a checkpoint: it holds a finished fit, or something else. Use brtf.load(…).")
    if header.get("library") != __version__:
        raise ValueError(
            f"{name} was written by brtf {header.get('library')}, but this is brtf {__version__}: a fit can be resumed "
            "only with the version that began it. Start again without resume."
        )
    return _unpack(name, header, arrays)


def load_result(path: str | os.PathLike[str]) -> Result:
    """Read a result, or the best state so far of a checkpoint; raises if the file is inconsistent."""
    header, arrays = read_archive(path)
    if header.get("kind") == CHECKPOINT:
        return _unpack(os.fspath(path), header, arrays).result()
    with refusing(path, "a result"):
        return unpack(header, arrays)


def _unpack(name: str, header: Header, arrays: Arrays) -> Checkpoint:
    with refusing(name, "a checkpoint"):
        packed = header["origin"]
        origin = Origin(
            {name: packed["settings"][name] for name in settings_names()},
            {name: packed["data"][name] for name in DATA_NAMES},
            dict(packed["rng"]),
        )
        bit_generator_of(origin.rng)
        shape = origin.data["shape"]
        if not (isinstance(shape, list) and all(type(length) is int for length in shape)):
            raise ValueError(f"the shape is {shape!r}")
        if not isinstance(header["outline"], dict):
            raise ValueError(f"the outline is {header['outline']!r}")
        return Checkpoint(name, origin, float(header["seconds"]), header, arrays)


def _seconds(every: Any) -> float:
    if isinstance(every, bool) or not isinstance(every, numbers.Real) or not float(every) >= 0:
        raise ValueError(f"every must be a number of seconds of at least 0, got {every!r}.")
    return float(every)


def _pack(moment: Moment, origin: Origin, seconds: float, outline: tuple[Header, Arrays]) -> tuple[Header, Arrays]:
    header: Header = {
        "kind": CHECKPOINT,
        "library": __version__,
        "origin": {field.name: getattr(origin, field.name) for field in fields(origin)},
        "seconds": seconds,
        "rng": as_plain(moment.rng),
        "outline": outline[0],
    }
    arrays: Arrays = {"outline." + name: array for name, array in outline[1].items()}
    pack_trace(moment.trace, header, arrays)
    if moment.state is not None:
        header["state"] = add_part(arrays, "state.", pack_state, moment.state)
    if moment.position is not None:
        header["position"] = add_part(arrays, "position.", pack_position, moment.position)
    return header, arrays


def _expected_outlier_rate(state: State) -> float | None:
    """The mean outlier rate according to the state; None if it depends on the entries."""
    if isinstance(state.local, MeanFieldOutliers):
        return None
    rates = None if state.structure is None else state.structure.rates
    return float(state.local.probability if rates is None else rates.typical)
