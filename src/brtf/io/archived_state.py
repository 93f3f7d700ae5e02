"""A state as header and arrays, and back."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.observations import Observations
from brtf.io.contents import Arrays, Header, check_positive, checked_array
from brtf.model.distributions import Gamma, RowGaussians
from brtf.model.local_models import LOCAL_MODELS, LocalModel
from brtf.model.row_priors import ROW_PRIORS, RowPrior
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

LARGEST_MEAN = 1e100
"""Largest mean of a loading, of data of unit scale: larger ones cannot be squared and multiplied."""
SMOOTH_NUMBERS = ("mode", "memory", "variance", "concentration", "divergence")
SMOOTH_ARRAYS = ("mean", "var", "next_cov")
"""Numbers of a smooth residual, and its vectors over the entries."""


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
    if isinstance(state.local, MeanFieldOutliers):
        header["outliers"] = {"concentration": state.local.concentration, "rate": state.local.rate}
        arrays["outliers.mean"] = state.local.mean
        arrays["outliers.var"] = state.local.var
        _pack_gamma("outliers.gamma", state.local.gamma, arrays)
    else:
        model = state.local
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
            var=check_positive(checked_array(arrays, "outliers.var", entries), "outliers.var"),
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
        local=outliers,
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
        if structure.rates.labels is not None:
            arrays["structure.labels"] = structure.rates.labels
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
        labels = _unpack_labels(arrays, n_slices)
        n_rates = n_slices if labels is None else (int(labels.max(initial=-1)) + 1,)
        outlying, regular = (checked_array(arrays, f"structure.{part}", n_rates) for part in ("outlying", "regular"))
        prior = (float(packed["rate_prior"][0]), float(packed["rate_prior"][1]))
        if not ((outlying > 0).all() and (regular > 0).all() and 0 < min(prior) <= max(prior) < np.inf):
            raise ValueError("the outlier rates are out of range")
        rates = SliceRates(modes, outlying, regular, prior, labels)
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


def _unpack_labels(arrays: Arrays, n_slices: tuple[int, ...]) -> NDArray[np.int64] | None:
    """The labels of slices that share an outlier rate, if any do."""
    if "structure.labels" not in arrays:
        return None
    labels = checked_array(arrays, "structure.labels", n_slices, kind="i")
    if labels.min(initial=0) < 0:
        raise ValueError("the labels of the outlier rates are not numbers of at least 0")
    return labels.astype(np.int64)


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
        checked_array(arrays, f"{name}.log_det_cov", (n_covariances,)),  # from cov it would differ by rounding
    )
    if float(np.abs(rows.mean).max(initial=0.0)) > LARGEST_MEAN:
        raise ValueError(f"the means of {name} exceed {LARGEST_MEAN:g}")
    if not rows.variances.min(initial=1.0) >= np.finfo(np.float64).tiny:  # their inverses would overflow
        raise ValueError(f"{name}.cov has variances that are not positive")
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
