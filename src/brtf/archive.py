"""A result as header and arrays, and back: the content of a ``.brtf`` file."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.distributions import Gamma, RowGaussians
from brtf.inference import Record, StopReason
from brtf.model import MeanFieldOutliers, Prior, State
from brtf.observations import Labels, Observations
from brtf.result import Result
from brtf.settings import Settings
from brtf.storage import CorruptFile, read_archive

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


def pack(result: Result) -> tuple[Header, Arrays]:
    """Header and arrays that say everything about a result."""
    header: Header = {
        "library": result.version,
        "settings": _pack_settings(result.settings),
        "stop_reason": result.stop_reason.name,
        "seconds": result.seconds,
        "prior": asdict(result.state.prior),
    }
    arrays: Arrays = {}
    _pack_observations(result.observations, header, arrays)
    _pack_state(result.state, header, arrays)
    for field in ("sweep", "bound", "rank", "noise_variance"):
        arrays[f"trace.{field}"] = np.array([getattr(record, field) for record in result.trace])
    header["events"] = {str(i): record.event for i, record in enumerate(result.trace) if record.event}
    return header, arrays


def load_result(path: str | os.PathLike[str]) -> Result:
    """Read a ``.brtf`` file; anything that does not add up is refused in one sentence."""
    header, arrays = read_archive(path)
    try:
        return unpack(header, arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptFile(f"{os.fspath(path)} is not a result of brtf: its content does not fit ({error}).") from error


def unpack(header: Header, arrays: Arrays) -> Result:
    """The result that :func:`pack` described."""
    events = header["events"]
    columns = (arrays[f"trace.{field}"] for field in ("sweep", "bound", "rank", "noise_variance"))
    trace = tuple(
        Record(int(sweep), float(bound), int(rank), float(noise), str(events.get(str(i), "")))
        for i, (sweep, bound, rank, noise) in enumerate(zip(*columns, strict=True))
    )
    observations = _unpack_observations(header, arrays)
    state = _unpack_state(header, arrays)
    lengths = tuple(rows.n_rows for rows in state.factors)
    if lengths != observations.shape or not trace:
        raise ValueError(f"factors of {lengths} rows for data of shape {observations.shape}")
    return Result(
        observations=observations,
        state=state,
        trace=trace,
        stop_reason=StopReason[header["stop_reason"]],
        settings=Settings(**header["settings"]),
        seconds=float(header["seconds"]),
        version=str(header["library"]),
    )


def _pack_settings(settings: Settings) -> dict[str, Any]:
    packed = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    if not isinstance(packed["init"], str):  # the factors it started from are not part of what was found
        packed["init"] = "spectral"
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in packed.items()}


def _pack_observations(observations: Observations, header: Header, arrays: Arrays) -> None:
    header["shape"] = list(observations.shape)
    header["scale"] = observations.scale
    arrays["values"] = observations.values
    if observations.mask is not None:
        arrays["mask"] = observations.mask
    if observations.coords is not None:
        arrays["coords"] = observations.coords
    if observations.labels is not None:
        labels = observations.labels
        header["labels"] = {"dims": list(labels.dims), "name": labels.name}
        for mode, coords in enumerate(labels.coords):
            if coords is not None:
                plain = coords.dtype.kind in "biufUSmM"
                arrays[f"labels.{mode}"] = coords if plain else coords.astype(str)


def _unpack_observations(header: Header, arrays: Arrays) -> Observations:
    shape = tuple(int(length) for length in header["shape"])
    labels = None
    if "labels" in header:
        coords = tuple(arrays.get(f"labels.{mode}") for mode in range(len(shape)))
        labels = Labels(tuple(header["labels"]["dims"]), coords, header["labels"]["name"])
    return Observations(
        shape=shape,
        values=arrays["values"],
        mask=arrays.get("mask"),
        coords=arrays.get("coords"),
        scale=float(header["scale"]),
        labels=labels,
    )


def _pack_state(state: State, header: Header, arrays: Arrays) -> None:
    for mode, rows in enumerate(state.factors):
        arrays[f"factor.{mode}.mean"] = rows.mean
        arrays[f"factor.{mode}.cov"] = rows.cov
    _pack_gamma("lam", state.lam, arrays)
    _pack_gamma("tau", state.tau, arrays)
    if state.outliers is not None:
        header["outliers"] = {"concentration": state.outliers.concentration, "rate": state.outliers.rate}
        arrays["outliers.mean"] = state.outliers.mean
        arrays["outliers.var"] = state.outliers.var
        _pack_gamma("outliers.gamma", state.outliers.gamma, arrays)


def _unpack_state(header: Header, arrays: Arrays) -> State:
    outliers = None
    if "outliers" in header:
        outliers = MeanFieldOutliers(
            mean=arrays["outliers.mean"],
            var=arrays["outliers.var"],
            gamma=_unpack_gamma("outliers.gamma", arrays),
            concentration=float(header["outliers"]["concentration"]),
            rate=float(header["outliers"]["rate"]),
        )
    return State(
        prior=Prior(**header["prior"]),
        factors=tuple(
            RowGaussians(arrays[f"factor.{mode}.mean"], arrays[f"factor.{mode}.cov"])
            for mode in range(len(header["shape"]))
        ),
        lam=_unpack_gamma("lam", arrays),
        tau=_unpack_gamma("tau", arrays),
        outliers=outliers,
    )


def _pack_gamma(name: str, gamma: Gamma, arrays: Arrays) -> None:
    arrays[f"{name}.concentration"] = np.asarray(gamma.concentration)
    arrays[f"{name}.rate"] = np.asarray(gamma.rate)


def _unpack_gamma(name: str, arrays: Arrays) -> Gamma:
    return Gamma(arrays[f"{name}.concentration"], arrays[f"{name}.rate"])
