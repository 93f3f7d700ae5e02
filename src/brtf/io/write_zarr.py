"""Write results for every entry to a Zarr store, chunk by chunk, by the worker that has the chunk."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from brtf import kernels
from brtf.data.arrays import Array
from brtf.data.blocks import Block
from brtf.data.checks import Labels
from brtf.data.chunks import Chunk, ChunkedObservations, ReadChunk
from brtf.data.executors import over_lanes
from brtf.data.extras import require
from brtf.inference.statistics import scaled_values, variance_field
from brtf.model.distributions import RowGaussians
from brtf.model.uncertainty import hidden_variance
from brtf.results.result import Result

Written = Literal["low_rank", "std", "outliers", "outlier_probability", "imputed"]
"""Arrays that can be written: x̄, its standard deviation, s̄ and the outlier probability (0 where missing), imputed Y."""
OfBlock = Callable[[Block], dict[str, Array]]
"""Entry vectors of a block by name, over all entries of dense data or the observed entries of coordinates."""


def write_result(result: Result, path: str | os.PathLike[str], what: Sequence[Written]) -> None:
    """Write arrays of the shape of the data into a new Zarr group, with checksums.

    Coordinates become one group per chunk, ``part-00000`` and so on, with ``coords`` (N, m) and vectors (m,). The
    attribute ``complete`` of the group is set at the end.
    """
    observations = result.observations
    unknown = [name for name in what if name not in get_args(Written)]
    if unknown or not what:
        raise ValueError(f"what must be some of {', '.join(get_args(Written))}, got {list(what)}.")
    if not isinstance(observations, ChunkedObservations):
        raise ValueError(
            "write() is for data read in chunks, but these are in memory. Use low_rank(), outliers(), "
            "outlier_probability() and impute()."
        )
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    target = os.path.abspath(path)
    if os.path.exists(target):
        raise ValueError(f"{os.fspath(path)} exists already. Name another store, or remove it.")
    group = zarr.open_group(target, mode="w-", zarr_format=3)
    if observations.layout != "coordinates":
        _create(group, observations, what)
    of_block = _of_block(result, observations, what)
    write = partial(_write_chunk, target, observations, of_block)
    over_lanes(observations.lanes, lambda lane: [write(*chunk) for chunk in lane], operator.add)
    group.attrs["complete"] = True


def _create(group: Any, observations: ChunkedObservations, what: Sequence[str]) -> None:
    """Create arrays such that no stored chunk is shared by two of our chunks, so that writers need not wait."""
    n_rows = math.gcd(*(chunk.rows.start for chunk in observations.chunks[1:])) or observations.shape[0]
    dims = observations.dim_names or None
    for name in what:
        _new_array(group, name, observations.shape, (n_rows, *observations.shape[1:]), observations.values.dtype, dims)
    _write_labels(group, observations.labels)


def _new_array(
    group: Any, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, dims: tuple[str, ...] | None
) -> Any:
    codecs = require("zarr.codecs", extra="big", purpose=".zarr stores")
    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        compressors=[codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
        fill_value=np.nan if np.dtype(dtype).kind == "f" else 0,
        dimension_names=dims,
        overwrite=True,
        config={"write_empty_chunks": True},  # a chunk that is not stored looks like a lost one
    )


def _write_labels(group: Any, labels: Labels | None) -> None:
    for dim, coords in zip(labels.dims, labels.coords, strict=True) if labels is not None else ():
        if coords is not None and coords.dtype.kind in "biuf":
            _new_array(group, dim, coords.shape, coords.shape, coords.dtype, (dim,))[...] = coords


def _of_block(result: Result, observations: ChunkedObservations, what: Sequence[str]) -> OfBlock:
    """A function that computes the requested entry vectors of a block, in the user's units."""
    factors: tuple[RowGaussians, ...] = result.rows
    means, scale, outliers_of = [rows.mean for rows in factors], result.scale, result.outliers_of_block
    variance, dense = variance_field(factors), observations.layout != "coordinates"
    hidden = hidden_variance(result.state)

    def found(block: Block) -> dict[str, Array]:
        everywhere = replace(block, mask=None) if dense else block
        low_rank = kernels.low_rank_at(everywhere, means)
        named = {"low_rank": scale * low_rank}
        if "std" in what:
            named["std"] = scale * np.sqrt(variance(everywhere) + hidden)
        if {"outliers", "outlier_probability"} & set(what):
            probability, share = outliers_of(block)
            observed = low_rank if block.mask is None else low_rank[block.mask.ravel()]
            residual = scaled_values(observations, block) - observed
            named["outliers"] = _placed(block, scale * probability * share * residual, np.zeros(low_rank.size))
            named["outlier_probability"] = _placed(block, probability, np.zeros(low_rank.size))
        if "imputed" in what:
            named["imputed"] = _placed(block, block.values.astype(np.float64), scale * low_rank)
        return {name: named[name] for name in what}

    return found


def _placed(block: Block, entry_vector: Array, elsewhere: Array) -> Array:
    """The entry vector at observed entries of the block, and ``elsewhere`` at the others."""
    if block.mask is None:
        return entry_vector
    elsewhere[block.mask.ravel()] = entry_vector
    return elsewhere


def _write_chunk(
    target: str, observations: ChunkedObservations, of_block: OfBlock, chunk: Chunk, read: ReadChunk
) -> None:
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    blocks = list(observations.cut(chunk, read))
    pieces = [of_block(block) for block in blocks]
    vectors = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    group = zarr.open_group(target, mode="r+")
    if observations.layout != "coordinates":
        lengths = (chunk.rows.stop - chunk.rows.start, *observations.shape[1:])
        for name, vector in vectors.items():
            group[name][chunk.rows] = vector.reshape(lengths).astype(observations.values.dtype)
        return
    part = group.require_group(f"part-{chunk.key[1]:05d}")
    coords = np.concatenate([np.asarray(block.coords) for block in blocks], axis=1)
    for name, array in {"coords": coords, **vectors}.items():
        dtype = array.dtype if name == "coords" else observations.values.dtype
        _new_array(part, name, array.shape, array.shape, dtype, None)[...] = array.astype(dtype)
