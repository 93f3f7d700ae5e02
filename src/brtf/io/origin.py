"""What a run began with: data, settings and random state, as plain values that can be compared."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.blocks import Block
from brtf.data.checks import Labels
from brtf.data.observations import Observations
from brtf.data.passes import add_up
from brtf.io.archive import plain_arrangement
from brtf.model.settings import Settings

BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
DATA_NAMES = ("shape", "n_observed", "layout", "dtype", "digest", "labels")
WITHOUT_EFFECT = ("max_seconds", "n_jobs")
"""Settings that do not affect the result, so that a run may resume with other values."""


@dataclass(frozen=True)
class Origin:
    """Data, settings and random state that a run began with, as plain values; resuming requires the same.

    Attributes
    ----------
    settings : all that affect the result; initial factors and labels of outlier rates by their SHA-256
    data : shape, number of entries, layout, type, and digests of the entries and of the labels, the same for data in
        memory and in chunks
    rng : state of the bit generator
    """

    settings: dict[str, Any]
    data: dict[str, Any]
    rng: dict[str, Any]

    @classmethod
    def of(cls, observations: Observations, settings: Settings, rng: np.random.Generator) -> Origin:
        """The origin of a run that begins now."""
        chosen = {name: getattr(settings, name) for name in settings_names()}
        chosen["arrangement"] = plain_arrangement(settings)
        if not isinstance(settings.init, str):
            chosen["init"] = [_digest(np.asarray(factor, dtype=np.float64)) for factor in settings.init]
        if settings.outlier_labels is not None:
            chosen["outlier_labels"] = _digest(settings.outlier_labels.astype(np.int64))
        digests = _digest_of_data(observations), _digest_of_labels(observations.labels)
        values = (observations.shape, observations.n_observed, observations.layout, observations.values.dtype.name)
        data = dict(zip(DATA_NAMES, (*values, *digests), strict=True))
        return cls(as_plain(chosen), as_plain(data), as_plain(rng.bit_generator.state))


def settings_names() -> list[str]:
    return [field.name for field in fields(Settings) if field.name not in WITHOUT_EFFECT]


def bit_generator_of(state: Mapping[str, Any]) -> np.random.BitGenerator:
    """A bit generator of one of NumPy's kinds in the given state."""
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise ValueError(f"the bit generator {name!r} is unknown")
    # NumPy does not check that these lie within its buffers
    if not (0 <= state["state"].get("pos", 0) <= 624 and 0 <= state.get("buffer_pos", 0) <= 4):
        raise ValueError(f"the state of the bit generator {name} is out of range")
    generator: np.random.BitGenerator = getattr(np.random, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 takes numbers that do not fit
        try:
            generator.state = state
        except (DeprecationWarning, OverflowError) as refusal:
            raise ValueError(f"the state of the bit generator {name} is out of range") from refusal
    return generator


def as_plain(value: Any) -> Any:
    """A value converted to JSON types."""
    if isinstance(value, Mapping):
        return {name: as_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _digest_of_data(observations: Observations) -> str:
    """128-bit digest of the positions and values of all entries: a sum, so order and chunks do not matter."""

    def add(sums: Any, block: Block) -> None:
        bits = block.values.reshape(-1).view(f"u{block.values.dtype.itemsize}").astype(np.uint64)
        first = _scrambled(_places(block) + _scrambled(bits))
        sums[0][...] += np.array([first.sum(), _scrambled(first).sum()])

    zeros: Any = lambda: (np.zeros(2, np.uint64),)  # noqa: E731
    return add_up(observations, zeros, add)[0].tobytes().hex()


def _digest_of_labels(labels: Labels | None) -> str | None:
    """SHA-256 of the labels, since times and numbers set the distances of rows in order; None if there are none."""
    coords = [] if labels is None else [None if one is None else one.astype(str).tolist() for one in labels.coords]
    return hashlib.sha256(repr(coords).encode()).hexdigest() if any(one is not None for one in coords) else None


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


def _digest(array: NDArray[Any]) -> str:
    """SHA-256 of the type, the shape and the bytes of an array."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode("ascii"))
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def describe_data(data: Mapping[str, Any]) -> str:
    return (
        f"shape {tuple(data['shape'])} with {data['n_observed']} observed entries ({data['layout']}, {data['dtype']})"
    )
