"""Checkpoints: files from which a run resumes and reaches the same result, to the last bit."""

from __future__ import annotations

import hashlib
import math
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf import __version__
from brtf.data.blocks import Block
from brtf.data.checks import count_of
from brtf.data.observations import Observations
from brtf.data.passes import add_up
from brtf.inference.acceleration import DEPTH, Memory
from brtf.inference.trace import Kind, StopReason
from brtf.io.archive import (
    CHECKPOINT,
    Arrays,
    Header,
    checked_array,
    pack_state,
    pack_trace,
    plain_arrangement,
    refusing,
    tell_of_entries,
    unpack,
    unpack_observations,
    unpack_reading,
    unpack_settings,
    unpack_state,
    unpack_trace,
)
from brtf.io.storage import read_archive, write_archive
from brtf.model.settings import Settings
from brtf.model.state import MeanFieldOutliers, State
from brtf.results.result import Result
from brtf.search.choices import Chosen
from brtf.search.move import Proposal, Sweeps
from brtf.search.position import Position
from brtf.search.run import Moment, end_of

POSITION_NUMBERS: dict[str, tuple[tuple[type, ...], float]] = {
    "phase": ((int,), 0),
    "move": ((int,), 0),
    "memory": ((tuple,), 0),
    "changed": ((bool,), 0),
    "mark": ((tuple, type(None)), 0),
    "n_sweeps": ((int,), 0),
    "drift": ((float,), -math.inf),
    "most": ((int,), 1),
    "beyond": ((float, type(None)), -math.inf),
    "explained": ((bool,), 0),
    "collapsed": ((bool,), 0),
    "bound": ((float, type(None)), -math.inf),
    "refusals": ((tuple,), 0),
}
"""The plain parts of a position: what they may be, and how small."""
PROPOSAL_NUMBERS: dict[str, tuple[tuple[type, ...], float]] = {
    "words": ((str,), 0),
    "stages": ((tuple,), 0),
    "worth": ((float, type(None)), -math.inf),
    "collapsed": ((bool,), 0),
    "price": ((float,), 0),
    "beyond": ((float, type(None)), -math.inf),
    "stage": ((int,), 0),
    "k": ((int,), 0),
    "n_before": ((int,), 0),
    "bounds": ((tuple,), 0),
}
"""The plain parts of a proposal, likewise."""
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
SECONDS_BETWEEN = 60.0
"""Default seconds between checkpoints."""
DATA_NAMES = ("shape", "n_observed", "layout", "dtype", "digest")
WITHOUT_EFFECT = ("max_seconds", "n_jobs")
"""Settings that do not affect the result, so that a run may resume with other values."""


@dataclass(frozen=True)
class Origin:
    """Data, settings and random state that a run began with, as plain values; resuming requires the same.

    Attributes
    ----------
    settings : all that affect the result; initial factors by their SHA-256
    data : shape, number of entries, layout, type and digest, the same for data in memory and in chunks
    rng : state of the bit generator
    """

    settings: dict[str, Any]
    data: dict[str, Any]
    rng: dict[str, Any]

    @classmethod
    def of(cls, observations: Observations, settings: Settings, rng: np.random.Generator) -> Origin:
        """The origin of a run that begins now."""
        chosen = {name: getattr(settings, name) for name in _settings_names()}
        chosen["arrangement"] = plain_arrangement(settings)
        if not isinstance(settings.init, str):
            chosen["init"] = [_digest([np.asarray(factor, dtype=np.float64)]) for factor in settings.init]
        digest = _digest_of_data(observations)
        values = (observations.shape, observations.n_observed, observations.layout, observations.values.dtype.name)
        data = dict(zip(DATA_NAMES, (*values, digest), strict=True))
        return cls(_plain(chosen), _plain(data), _plain(rng.bit_generator.state))


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
            told = [_described(data) for data in (self.origin.data, origin.data)]
            alike = "the same but for its values"
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
        rng = np.random.Generator(_bit_generator(self.origin.rng))
        if random_state is None:
            return rng
        if isinstance(random_state, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
            if type(given.bit_generator) is type(rng.bit_generator):
                given.bit_generator.state = self.origin.rng
                return given
        elif _plain(given.bit_generator.state) == self.origin.rng:
            return given
        raise ValueError(
            f"{self.path} was made with another random_state than {random_state!r}. "
            "Resume with the same one, or with None."
        )

    def chosen(self) -> Chosen:
        """How the data are read: chosen before the run began."""
        with refusing(self.path, "a checkpoint"):
            return Chosen(*unpack_reading(self.header["outline"], tuple(self.origin.data["shape"])))

    def moment(self, observations: Observations) -> Moment:
        """The moment at which the checkpoint was written; the observations are those being fitted, as they are read."""
        header, arrays = self.header, self.arrays
        with refusing(self.path, "a checkpoint"):
            trace, rng = unpack_trace(header, arrays), _bit_generator(header["rng"]).state
            if not all(math.isfinite(record.bound) for record in trace):
                raise ValueError("the trace has a bound that is not finite")
            state = unpack_state(header["state"], _part(arrays, "state."), observations) if trace else None
            position = None
            if "position" in header:
                position = _unpack_position(header["position"], _part(arrays, "position."), observations)
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
            settings, (header, arrays) = (
                unpack_settings(packed),
                (self.header["outline"], _part(self.arrays, "outline.")),
            )
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
                moment.state.in_order(),
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

    A context manager whose value is called with every moment. It writes a last checkpoint however the run ends. The
    first moment is written before anything is computed, so that a path that cannot be written to is noticed at once; if
    writing fails later, the previous file is kept, a warning is given, and the run continues.

    Attributes
    ----------
    outline : header and arrays with what a result without data needs to know about them, see
        :func:`brtf.io.archive.pack_outline`
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
            {name: packed["settings"][name] for name in _settings_names()},
            {name: packed["data"][name] for name in DATA_NAMES},
            dict(packed["rng"]),
        )
        _bit_generator(origin.rng)
        shape = origin.data["shape"]
        if not (isinstance(shape, list) and all(type(length) is int for length in shape)):
            raise ValueError(f"the shape is {shape!r}")
        return Checkpoint(name, origin, float(header["seconds"]), header, arrays)


def _seconds(every: Any) -> float:
    if isinstance(every, bool) or not isinstance(every, numbers.Real) or not float(every) >= 0:
        raise ValueError(f"every must be a number of seconds of at least 0, got {every!r}.")
    return float(every)


def _settings_names() -> list[str]:
    return [field.name for field in fields(Settings) if field.name not in WITHOUT_EFFECT]


def _pack(
    moment: Moment, origin: Origin, seconds: float, outline: tuple[Header, Arrays] = ({}, {})
) -> tuple[Header, Arrays]:
    header: Header = {
        "kind": CHECKPOINT,
        "library": __version__,
        "origin": {field.name: getattr(origin, field.name) for field in fields(origin)},
        "seconds": seconds,
        "rng": _plain(moment.rng),
        "outline": outline[0],
    }
    arrays: Arrays = {"outline." + name: array for name, array in outline[1].items()}
    pack_trace(moment.trace, header, arrays)
    if moment.state is not None:
        header["state"] = _put(arrays, "state.", pack_state, moment.state)
    if moment.position is not None:
        header["position"] = _put(arrays, "position.", _pack_position, moment.position)
    return header, arrays


def _put(arrays: Arrays, prefix: str, pack: Callable[[Any, Header, Arrays], None], value: Any) -> Header:
    """Pack a value under a prefix; returns its header."""
    header: Header = {}
    own: Arrays = {}
    pack(value, header, own)
    arrays.update({prefix + name: array for name, array in own.items()})
    return header


def _part(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays that :func:`_put` stored under a prefix."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _pack_position(position: Position, header: Header, arrays: Arrays) -> None:
    for name in POSITION_NUMBERS:
        header[name] = getattr(position, name)
    header["sweeps"] = None if position.sweeps is None else astuple(position.sweeps)
    header["damping"] = position.anderson.damping
    for name, vectors in (("points", position.anderson.points), ("images", position.anderson.images)):
        arrays[name] = np.stack(vectors) if vectors else np.empty((0, 0))
    if position.proposal is not None and position.trial is not None:
        header["proposal"] = _pack_proposal(position.proposal)
        header["trial"] = _put(arrays, "trial.", pack_state, position.trial)


def _pack_proposal(proposal: Proposal) -> Header:
    header = {field.name: getattr(proposal, field.name) for field in fields(Proposal)}
    header["kind"] = proposal.kind.value
    header["worth"] = None if math.isinf(proposal.worth) else proposal.worth
    header["then"] = None if proposal.then is None else astuple(proposal.then)
    return header


def _unpack_position(header: Header, arrays: Arrays, observations: Observations) -> Position:
    numbers = {name: _nested_tuples(header[name]) for name in POSITION_NUMBERS}
    for name, (kinds, least) in POSITION_NUMBERS.items():
        _check_number(name, numbers[name], kinds, least)
    mark = numbers["mark"]
    if mark is not None and (len(mark), *map(type, mark)) != (2, float, bool):
        raise ValueError(f"the mark is {mark}")
    if not all([type(part) for part in refusal] == [str, str, float] for refusal in numbers["refusals"]):
        raise ValueError("the refusals are none")
    damping, points = header["damping"], arrays["points"]
    if not (type(damping) is float and 0 < damping <= 1 and points.ndim == 2 and len(points) <= DEPTH + 1):
        raise ValueError("the acceleration is out of range")
    images = checked_array(arrays, "images", checked_array(arrays, "points", points.shape).shape)
    proposal = header.get("proposal")
    return Position(
        **numbers,
        sweeps=_unpack_sweeps(header["sweeps"]),
        proposal=None if proposal is None else _unpack_proposal(proposal),
        trial=unpack_state(header["trial"], _part(arrays, "trial."), observations) if "trial" in header else None,
        anderson=Memory(tuple(points), tuple(images), damping),
    )


def _unpack_proposal(header: Header) -> Proposal:
    values = {field.name: _nested_tuples(header[field.name]) for field in fields(Proposal)}
    for name, (kinds, least) in PROPOSAL_NUMBERS.items():
        _check_number(name, values[name], kinds, least)
    if not all(len(stage) == 3 and [type(part) for part in stage] == [str, int, int] for stage in values["stages"]):
        raise ValueError("the stages of the trial are none")
    if not all(type(bound) is float for bound in values["bounds"]):
        raise ValueError("the bounds of the trial are no numbers")
    values["kind"] = Kind(values["kind"])
    values["worth"] = -math.inf if values["worth"] is None else values["worth"]
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


def _expected_outlier_rate(state: State) -> float | None:
    """The mean outlier rate according to the state; None if it depends on the entries."""
    if isinstance(state.outliers, MeanFieldOutliers):
        return None
    rates = None if state.structure is None else state.structure.rates
    return float(state.outliers.probability if rates is None else rates.mean.mean())


def _bit_generator(state: Mapping[str, Any]) -> np.random.BitGenerator:
    """A bit generator of one of NumPy's kinds in the given state."""
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise ValueError(f"the bit generator {name!r} is unknown")
    # NumPy does not check that these lie within its buffers
    if not (0 <= state["state"].get("pos", 0) <= 624 and 0 <= state.get("buffer_pos", 0) <= 4):
        raise ValueError(f"the state of the bit generator {name} is out of range")
    generator: np.random.BitGenerator = getattr(np.random, name)()
    generator.state = state
    return generator


def _plain(value: Any) -> Any:
    """A value converted to JSON types."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _digest_of_data(observations: Observations) -> str:
    """128-bit digest of the positions and values of all entries: a sum, so order and chunks do not matter."""

    def add(sums: Any, block: Block) -> None:
        bits = block.values.reshape(-1).view(f"u{block.values.dtype.itemsize}").astype(np.uint64)
        first = _scrambled(_places(block) + _scrambled(bits))
        sums[0][...] += np.array([first.sum(), _scrambled(first).sum()])

    zeros: Any = lambda: (np.zeros(2, np.uint64),)  # noqa: E731
    return add_up(observations, zeros, add)[0].tobytes().hex()


def _places(block: Block) -> NDArray[np.uint64]:
    """Position of every entry of a block in the whole tensor, in C order, modulo 2⁶⁴, (m,)."""
    if block.coords is None:
        n_inner = math.prod(block.shape[1:])
        places = np.arange(block.rows.start * n_inner, block.rows.stop * n_inner, dtype=np.uint64)
        return places if block.mask is None else places[block.mask.reshape(-1)]
    places = np.zeros(block.coords.shape[1], np.uint64)
    for positions, length in zip(block.coords, block.shape, strict=True):
        places = places * np.uint64(length) + positions.astype(np.uint64)
    return places


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of 64-bit words (m,): the final mixing steps of SplitMix64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _digest(arrays: list[Any]) -> str:
    """SHA-256 of the types, shapes and bytes of arrays; None is skipped."""
    digest = hashlib.sha256()
    for place, array in enumerate(arrays):
        if array is not None:
            digest.update(f"{place} {array.dtype.str} {array.shape} ".encode("ascii"))
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _described(data: Mapping[str, Any]) -> str:
    return (
        f"shape {tuple(data['shape'])} with {data['n_observed']} observed entries ({data['layout']}, {data['dtype']})"
    )
