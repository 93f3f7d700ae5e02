"""A result as header and arrays, and back: the content of a ``.brtf`` file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrangement import Arrangement
from brtf.data.checks import Labels, check_labels, check_shape
from brtf.data.chunks import outline
from brtf.data.observations import Observations
from brtf.inference.trace import SWEPT, Doubt, Event, Kind, Record, StopReason
from brtf.io.storage import CorruptFile, write_archive
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.links import LINKS
from brtf.model.local_models import LOCAL_MODELS, LocalModel
from brtf.model.row_priors import ROW_PRIORS, RowPrior
from brtf.model.settings import Settings
from brtf.model.smooth_residual import SmoothResidual
from brtf.model.state import (
    MeanFieldOutliers,
    OutlierStructure,
    Prior,
    ReplacementLaw,
    Sides,
    SliceNoise,
    SliceRates,
    State,
)
from brtf.results.result import Result
from brtf.search.choices import Comparison, Reading

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
CHECKPOINT = "checkpoint"
"""Value of the header's ``kind`` for files other than results."""
PYTHON_SAYS = (
    *("instances of", "object", "unsupported operand", "unhashable", "not convert", "to unpack", "out of bounds"),
    *("zip()", "iteration over", "argument must be", "too large to convert"),
)
"""Words that identify an error message of the interpreter or NumPy, which is replaced by our own."""
SMOOTH_NUMBERS = ("mode", "memory", "variance", "concentration", "divergence")
SMOOTH_ARRAYS = ("mean", "var", "next_cov")
"""Numbers of a smooth residual, and its vectors over the entries."""
TRACE_COLUMNS = ("sweep", "bound", "rank", "noise_variance")


def pack(result: Result) -> tuple[Header, Arrays]:
    """Header and arrays that describe a result completely."""
    header: Header = {
        "library": result.version,
        "settings": _pack_settings(result.settings),
        "stop_reason": result.stop_reason.name,
        "seconds": result.seconds,
        "cap_gain": result.cap_gain,
        "diagnosis": [asdict(doubt) for doubt in result.diagnosis],
    }
    arrays: Arrays = {}
    pack_reading(Reading(result.link, result.arrangement), result.comparisons, header)
    if result.observations.in_chunks:  # the entries are not saved, but the numbers computed from all of them are
        pack_outline(result.observations, header, arrays)
        header["bound_shift"] = result.bound_shift
        header["outlier_rate"] = None if np.isnan(result.outlier_rate) else result.outlier_rate
    else:
        _pack_entries(result.observations, header, arrays)
    pack_state(result.state, header, arrays)
    if result.held_back is not None:
        arrays["held_back.coords"] = result.held_back.entry_coords()
        arrays["held_back.values"] = result.held_back.values
    pack_trace(result.trace, header, arrays)
    return header, arrays


def save_result(result: Result, path: str | os.PathLike[str]) -> None:
    """Write a result to one ``.brtf`` file, atomically."""
    write_archive(path, *pack(result))


@contextmanager
def refusing(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """A context in which inconsistent content of a file raises CorruptFile with the name of the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        if any(words in reason for words in PYTHON_SAYS):
            reason = "a value has the wrong type or size"
        raise CorruptFile(f"{os.fspath(path)} is not {what} of brtf: its content does not fit ({reason}).") from error


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
    settings, link = unpack_settings(header["settings"]), reading.link
    held_back = _unpack_held_back(arrays, observations)
    for data in (observations, held_back):
        if data is not None and not data.in_chunks:
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
        diagnosis=tuple(Doubt(*(str(one[k]) for k in ("kind", "sentence", "remedy"))) for one in header["diagnosis"]),
    )
    if observations.in_chunks:
        tell_of_entries(result, header)
    return result


def tell_of_entries(result: Result, header: Header) -> None:
    """Set the numbers of a result without entries that depend on all of them: see :func:`pack_outline`."""
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
        "comparisons": [[one.option, one.chosen, [list(t) for t in one.tried], one.n_entries] for one in comparisons],
    }


def unpack_reading(header: Header, shape: tuple[int, ...]) -> tuple[Reading, tuple[Comparison, ...]]:
    """The reading and the comparisons described by :func:`pack_reading`."""
    packed = header["reading"]
    name, numbers = packed["link"], {key: float(number) for key, number in packed["numbers"].items()}
    if name not in LINKS or not all(0 < number < math.inf for number in numbers.values()):
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
    return Reading(LINKS[name](**numbers), arrangement), comparisons


def plain_arrangement(settings: Settings) -> Any:
    """The option arrangement as JSON has it: with text for the keys of a dict."""
    given = settings.arrangement
    return {str(mode): int(period) for mode, period in given.items()} if isinstance(given, dict) else given


def unpack_settings(packed: Header) -> Settings:
    """Settings from plain values as JSON gives them back: lists for tuples, text for the keys of a dict."""
    given, said = packed["arrangement"], packed["modes"]
    if isinstance(given, list):
        packed = {**packed, "arrangement": tuple(tuple(group) for group in given)}
    if isinstance(given, dict):
        packed = {**packed, "arrangement": {int(mode): period for mode, period in given.items()}}
    if isinstance(said, list):
        packed = {**packed, "modes": tuple((mode, tuple(words)) for mode, words in said)}
    return Settings(**packed)


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


def _positive(array: NDArray[Any], name: str) -> NDArray[Any]:
    if not (array > 0).all():
        raise ValueError(f"{name} is not positive")
    return array


def _unpack_event(packed: Any) -> Event:
    if packed is None:
        return SWEPT
    kind, accepted, gain, words = packed
    if type(accepted) is not bool or type(words) is not str:
        raise ValueError(f"an event is {packed!r}")
    return Event(Kind(kind), accepted, float(gain), words)


def _pack_settings(settings: Settings) -> dict[str, Any]:
    packed = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    if not isinstance(packed["init"], str):  # the initial factors are not part of the result
        packed["init"] = "spectral"
    packed["arrangement"] = plain_arrangement(settings)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in packed.items()}


def pack_outline(observations: Observations, header: Header, arrays: Arrays) -> None:
    """Add what a result needs to know about its data, without the entries, to header and arrays."""
    _pack_frame(observations, header, arrays)
    header["chunked"] = {
        "layout": observations.layout,
        "dtype": observations.values.dtype.name,
        "n_observed": observations.n_observed,
        "largest": observations.largest,
    }


def _pack_entries(observations: Observations, header: Header, arrays: Arrays) -> None:
    _pack_frame(observations, header, arrays)
    arrays["values"] = observations.values
    if observations.mask is not None:
        arrays["mask"] = observations.mask
    if observations.coords is not None:
        arrays["coords"] = observations.coords


def _pack_frame(observations: Observations, header: Header, arrays: Arrays) -> None:
    header["shape"] = list(observations.shape)
    header["scale"] = observations.scale
    if observations.labels is not None:
        labels = observations.labels
        header["labels"] = {"dims": list(labels.dims), "name": labels.name}
        for mode, coords in enumerate(labels.coords):
            if coords is not None:
                plain = coords.dtype.kind in "biufUSmM"
                arrays[f"labels.{mode}"] = coords if plain else coords.astype(str)


def unpack_observations(header: Header, arrays: Arrays) -> Observations:
    """The data, or an outline of data that were not saved."""
    shape = check_shape(header["shape"], "shape")
    scale = float(header["scale"])
    if not 0 < scale < np.inf:
        raise ValueError(f"the scale is {scale}")
    labels = None
    if "labels" in header:
        names = tuple(arrays.get(f"labels.{mode}") for mode in range(len(shape)))
        labels = Labels(tuple(header["labels"]["dims"]), names, header["labels"]["name"])
    if "chunked" in header:
        check_labels(labels, shape)
        return _unpack_outline(shape, scale, labels, **header["chunked"])
    if "coords" in arrays:
        coords = checked_array(arrays, "coords", (len(shape), arrays["values"].size), kind="i")
        values = checked_array(arrays, "values", coords.shape[1:])
        return replace(Observations.from_coords(coords, values, shape, labels=labels), scale=scale)
    check_labels(labels, shape)
    mask = checked_array(arrays, "mask", shape, kind="b") if "mask" in arrays else None
    values = checked_array(arrays, "values", shape if mask is None else (int(np.count_nonzero(mask)),))
    return Observations(shape, values, mask, None, scale, labels)


def _unpack_outline(
    shape: tuple[int, ...],
    scale: float,
    labels: Labels | None,
    layout: Literal["complete", "masked", "coordinates"],
    dtype: str,
    n_observed: int,
    largest: float,
) -> Observations:
    """Outline of data in chunks, whose entries were not saved."""
    if layout not in ("complete", "masked", "coordinates") or dtype not in ("float32", "float64"):
        raise ValueError(f"there is no layout {layout!r} of {dtype!r}")
    if type(n_observed) is not int or not 0 < n_observed <= math.prod(shape) or not 0 <= float(largest) < np.inf:
        raise ValueError(f"{n_observed} entries of size {largest} are not what a tensor of shape {shape} can have")
    return outline(
        shape, scale, labels, layout=layout, dtype=np.dtype(dtype), n_observed=n_observed, largest=float(largest)
    )


def _unpack_held_back(arrays: Arrays, observations: Observations) -> Observations | None:
    if "held_back.values" not in arrays:
        return None
    n_held_back = arrays["held_back.values"].size
    coords = checked_array(arrays, "held_back.coords", (observations.order, n_held_back), kind="i")
    values = checked_array(arrays, "held_back.values", (n_held_back,))
    return Observations.from_coords(coords, values, observations.shape)


def pack_state(state: State, header: Header, arrays: Arrays) -> None:
    """Add all numbers of a state to header and arrays."""
    header["prior"] = asdict(state.prior)
    for mode, rows in enumerate(state.factors):
        arrays[f"factor.{mode}.mean"] = rows.mean
        arrays[f"factor.{mode}.cov"] = rows.cov
        arrays[f"factor.{mode}.log_det_cov"] = rows.log_det_cov
    header["row_priors"] = [prior.name for prior in state.row_priors]
    for mode, prior in enumerate(state.row_priors):
        for name in prior.shapes(state.factors[mode].n_rows, state.rank):
            arrays[f"row_prior.{mode}.{name}"] = getattr(prior, name)
    _pack_gamma("lam", state.lam, arrays)
    _pack_gamma("tau", state.tau, arrays)
    if state.slices is not None:
        header["slices"] = {"modes": list(state.slices.modes), "concentration": state.slices.concentration}
        _pack_gamma("slices", state.slices.precision, arrays)
    if state.smooth is not None:
        _pack_smooth(state.smooth, header, arrays)
    if state.structure is not None:
        _pack_structure(state.structure, header, arrays)
    if isinstance(state.outliers, MeanFieldOutliers):
        header["outliers"] = {"concentration": state.outliers.concentration, "rate": state.outliers.rate}
        arrays["outliers.mean"] = state.outliers.mean
        arrays["outliers.var"] = state.outliers.var
        _pack_gamma("outliers.gamma", state.outliers.gamma, arrays)
    else:
        model = state.outliers
        numbers = {name: getattr(model, name) for name in _learnt_numbers(type(model))}
        header["local_model"] = {"kind": type(model).__name__, **numbers}


def unpack_state(header: Header, arrays: Arrays, observations: Observations) -> State:
    """The state described by :func:`pack_state`, of a fit to these observations, of the shape as they are read."""
    entries = (observations.n_observed,)
    outliers: MeanFieldOutliers | LocalModel
    if "local_model" in header:
        outliers = _unpack_local_model(**header["local_model"])
    else:
        outliers = MeanFieldOutliers(
            mean=checked_array(arrays, "outliers.mean", entries),
            var=_positive(checked_array(arrays, "outliers.var", entries), "outliers.var"),
            gamma=_unpack_gamma("outliers.gamma", arrays, (), entries),
            concentration=float(header["outliers"]["concentration"]),
            rate=float(header["outliers"]["rate"]),
        )
    rank = arrays["lam.rate"].size
    return State(
        prior=_unpack_prior(header["prior"]),
        factors=tuple(_unpack_rows(f"factor.{mode}", arrays, n, rank) for mode, n in enumerate(observations.shape)),
        lam=_unpack_gamma("lam", arrays, (rank,), (rank,)),
        tau=_unpack_gamma("tau", arrays, (), ()),
        outliers=outliers,
        slices=_unpack_slices(header, arrays, observations.shape),
        row_priors=_unpack_row_priors(header, arrays, observations.shape, rank),
        structure=_unpack_structure(header, arrays, observations.shape, outliers),
        smooth=_unpack_smooth(header, arrays, observations),
    )


def _pack_smooth(smooth: SmoothResidual, header: Header, arrays: Arrays) -> None:
    header["smooth"] = {name: getattr(smooth, name) for name in SMOOTH_NUMBERS}
    for name in SMOOTH_ARRAYS:
        arrays[f"smooth.{name}"] = getattr(smooth, name)
    _pack_gamma("smooth.relative", smooth.relative, arrays)


def _unpack_smooth(header: Header, arrays: Arrays, observations: Observations) -> SmoothResidual | None:
    packed = header.get("smooth")
    if packed is None:
        return None
    (mode,) = _modes([packed["mode"]], observations.shape, least=1)
    numbers = {name: float(packed[name]) for name in SMOOTH_NUMBERS[1:]}
    if not (0 < numbers["memory"] < 1 and 0 < numbers["variance"] < math.inf and numbers["concentration"] > 0):
        raise ValueError(f"a smooth residual has the numbers {numbers}")
    if not math.isfinite(numbers["divergence"]):
        raise ValueError("the divergence of a smooth residual is not finite")
    n_fibres = (arrays["smooth.relative.rate"].size,)
    vectors = {name: checked_array(arrays, f"smooth.{name}", (observations.n_observed,)) for name in SMOOTH_ARRAYS}
    relative = _unpack_gamma("smooth.relative", arrays, n_fibres, n_fibres)
    memory, variance, concentration, divergence = numbers.values()
    mean, var, next_cov = vectors.values()
    return SmoothResidual(mode, memory, variance, relative, concentration, mean, var, next_cov, divergence)


def _pack_structure(structure: OutlierStructure, header: Header, arrays: Arrays) -> None:
    packed: Header = {"modes": list(structure.modes), "n_channels": structure.n_channels}
    if structure.law is not None:
        packed["range"] = [structure.law.lowest, structure.law.highest]
        arrays["structure.law"] = structure.law.density
    if structure.rates is not None:
        packed["rate_modes"], packed["rate_prior"] = list(structure.rates.modes), list(structure.rates.prior)
        arrays["structure.outlying"], arrays["structure.regular"] = structure.rates.outlying, structure.rates.regular
    if structure.sides is not None:
        packed["sides"] = [structure.sides.positive, structure.sides.negative]
    header["structure"] = packed


def _unpack_structure(
    header: Header, arrays: Arrays, shape: tuple[int, ...], outliers: MeanFieldOutliers | LocalModel
) -> OutlierStructure | None:
    if "structure" not in header:
        return None
    packed = header["structure"]
    if isinstance(outliers, MeanFieldOutliers) or not outliers.has_outliers:
        raise ValueError("a structure of outliers needs a local model with outliers")
    law, rates, sides = None, None, None
    if "range" in packed:
        lowest, highest = (float(end) for end in packed["range"])
        law = ReplacementLaw(lowest, highest, checked_array(arrays, "structure.law", arrays["structure.law"].shape[:1]))
        if not (0 < highest - lowest < np.inf and law.density.size and (law.density > 0).all()):
            raise ValueError("the law of replaced values is not one")
    if "rate_modes" in packed:
        modes = _modes(packed["rate_modes"], shape, least=1)
        n_slices = (math.prod(shape[mode] for mode in modes),)
        outlying, regular = (checked_array(arrays, f"structure.{part}", n_slices) for part in ("outlying", "regular"))
        prior = (float(packed["rate_prior"][0]), float(packed["rate_prior"][1]))
        if not ((outlying > 0).all() and (regular > 0).all() and 0 < min(prior) <= max(prior) < np.inf):
            raise ValueError("the outlier rates are out of range")
        rates = SliceRates(modes, outlying, regular, prior)
    n_channels = float(packed["n_channels"])
    if not 1 <= n_channels < np.inf:
        raise ValueError("the number of channels is out of range")
    shared = _modes(packed["modes"], shape)
    if len(shared) == len(shape) or (shared and rates is not None):
        raise ValueError(f"outliers cannot be shared along modes {shared} here")
    if "sides" in packed:
        positive, negative = (float(number) for number in packed["sides"])
        if shared or law is not None or not 1 <= min(positive, negative) <= max(positive, negative) < np.inf:
            raise ValueError("the sides of the outliers are out of range")
        sides = Sides(positive, negative)
    return OutlierStructure(shared, n_channels, law, rates, sides)


def _modes(given: Any, shape: tuple[int, ...], *, least: int = 0) -> tuple[int, ...]:
    modes = tuple(int(mode) for mode in given)
    if len(modes) < least or list(modes) != sorted(set(modes)) or not set(modes) <= set(range(len(shape))):
        raise ValueError(f"{given} are not modes of a tensor of order {len(shape)}")
    return modes


def _unpack_slices(header: Header, arrays: Arrays, shape: tuple[int, ...]) -> SliceNoise | None:
    if "slices" not in header:
        return None
    modes = _modes(header["slices"]["modes"], shape, least=1)
    concentration = float(header["slices"]["concentration"])
    if not 0 < concentration < np.inf:
        raise ValueError("the numbers of the slices' noise are out of range")
    n_slices = (math.prod(shape[mode] for mode in modes),)
    return SliceNoise(modes, _unpack_gamma("slices", arrays, n_slices, n_slices), concentration)


def _unpack_local_model(kind: str, **numbers: float) -> LocalModel:
    if kind not in LOCAL_MODELS:
        raise ValueError(f"the local model {kind!r} is unknown")
    if set(numbers) != set(_learnt_numbers(LOCAL_MODELS[kind])):
        raise ValueError(f"the numbers of the local model {kind!r} are not {', '.join(numbers)}")
    if not (all(0 < number < np.inf for number in numbers.values()) and numbers.get("probability", 0.5) < 1):
        raise ValueError("the numbers of the local model are out of range")
    model = LOCAL_MODELS[kind](**{name: float(number) for name, number in numbers.items()})
    for parameter, (least, largest) in zip(model.parameters[1:], model.limits()[1:], strict=True):
        if not abs(parameter - 0.5 * (least + largest)) <= 0.51 * (largest - least):  # limits, and room for rounding
            raise ValueError("the numbers of the local model are out of range")
    return model


def _learnt_numbers(kind: type[LocalModel]) -> list[str]:
    """The names of a local model's numbers."""
    return [number.name for number in fields(kind) if number.init]


def _unpack_rows(name: str, arrays: Arrays, n_rows: int, rank: int) -> RowGaussians:
    shared = arrays[f"{name}.cov"].shape[0] == 1
    n_covariances = 1 if shared else n_rows
    rows = RowGaussians(
        checked_array(arrays, f"{name}.mean", (n_rows, rank)),
        checked_array(arrays, f"{name}.cov", (n_covariances, rank, rank)),
    )
    # stored as it was: recomputed from cov it would differ by rounding
    rows.__dict__["log_det_cov"] = checked_array(arrays, f"{name}.log_det_cov", (n_covariances,))
    return rows


def _unpack_row_priors(header: Header, arrays: Arrays, shape: tuple[int, ...], rank: int) -> tuple[RowPrior, ...]:
    row_priors = []
    for mode, (name, n_rows) in enumerate(zip(header["row_priors"], shape, strict=True)):
        if name not in ROW_PRIORS:
            raise ValueError(f"the row prior {name!r} is unknown")
        shapes = ROW_PRIORS[name].shapes(n_rows, rank)
        numbers = {key: checked_array(arrays, f"row_prior.{mode}.{key}", shape) for key, shape in shapes.items()}
        row_priors.append(ROW_PRIORS[name](**numbers))
    return tuple(row_priors)


def _pack_gamma(name: str, gamma: Gamma, arrays: Arrays) -> None:
    arrays[f"{name}.concentration"] = np.asarray(gamma.concentration)
    arrays[f"{name}.rate"] = np.asarray(gamma.rate)


def _unpack_prior(numbers: Header) -> Prior:
    """The prior's numbers, each positive and finite."""
    if not all(type(number) is float and 0 < number < np.inf for number in numbers.values()):
        raise ValueError("the numbers of the prior are out of range")
    return Prior(**numbers)


def _unpack_gamma(
    name: str, arrays: Arrays, concentration_shape: tuple[int, ...], rate_shape: tuple[int, ...]
) -> Gamma:
    concentration = checked_array(arrays, f"{name}.concentration", concentration_shape)
    rate = checked_array(arrays, f"{name}.rate", rate_shape)
    if not ((concentration > 0).all() and (rate > 0).all()):
        raise ValueError(f"{name} is not positive")
    with np.errstate(over="ignore"):
        if not np.isfinite(concentration / rate).all():
            raise ValueError(f"{name} has no finite mean")
    return Gamma(concentration, rate)


def checked_array(arrays: Arrays, name: str, shape: tuple[int, ...], *, kind: str = "f") -> NDArray[Any]:
    """An array of the file; raises unless it has the expected shape, in which −1 is any length, and kind."""
    array = arrays[name]
    fits = len(array.shape) == len(shape) and all(n in (-1, own) for n, own in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind != kind or not np.isfinite(array).all():
        raise ValueError(f"{name} is not what it should be, finite numbers of shape {shape}")
    return array
