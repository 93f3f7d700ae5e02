"""Fuzz cases of kind door: arrays and containers of all kinds for ``fit``, and everything the model then answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pandas
import xarray
from scipy import sparse

import brtf
from brtf.data.containers import Container
from fuzz_judge import DATA_NAMES, Door, Refused, check, pick
from fuzz_options import random_options

TYPES = ("f8", "f8", "f8", "f4", "f2", ">f8", ">f4", "?", "i1", "u1", "i2", "i4", ">i4", "i8", "u8", "g")
WRONG_TYPES = ("c16", "c8", "O", "U8", "S4", "M8[D]", "m8[s]", [("a", "f8"), ("b", "i4")])
CONTAINERS = (
    *("array", "array", "memory", "list", "ma", "mask", "mask", "sparse", "coords", "wide", "long", "xarray", "chunks"),
)
JUNK: tuple[Any, ...] = (
    *(None, {}, {"a": 1}, "text", b"bytes", 3, 2.5, True, set(), object(), [], [[]], [[], []], [[1, 2], [3]], [None]),
    *([["a", "b"]], [[1, None], [2, 3]], [[1, "x"]], range(5), [[{}]], lambda: 0, brtf.BRTF, 1j, np.float64(1)),
    *(np.nan, np.array("x"), slice(3), iter([1, 2]), [[10**400, 1], [2, 3]], [[2**70, 1], [2, 3]]),
)


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    order = int(rng.choice(6, p=[0.02, 0.03, 0.35, 0.35, 0.15, 0.1]))
    shape = rng.integers(1, 7 if order < 4 else 4, order)
    if rng.random() < 0.03:
        shape *= rng.random(order) < 0.7
    return tuple(map(int, shape))


def random_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Float64 numbers of one of sixteen kinds."""
    rank = int(rng.integers(1, 4))
    factors = [rng.standard_normal((length, rank)) for length in shape]
    low_rank = np.ones((1, rank))
    for factor in factors:
        low_rank = (low_rank[:, None] * factor).reshape(-1, rank)
    low_rank = low_rank.sum(axis=1).reshape(shape)
    noisy = low_rank + 0.1 * rng.standard_normal(shape)
    sign = rng.choice([-1.0, 1.0], shape)

    def some_entries_over_decades() -> np.ndarray:
        decades = rng.uniform(0, 300)
        return np.where(rng.random(shape) < rng.random(), noisy * 10.0 ** rng.uniform(-decades, decades, shape), noisy)

    def slices_over_decades() -> np.ndarray:
        reach = 300 / max(len(shape), 1)
        scales = [10.0 ** rng.uniform(-reach, reach, length) for length in shape]
        return noisy * math.prod(np.ix_(*scales))

    make: Callable[[], np.ndarray] = pick(
        rng,
        lambda: low_rank,
        lambda: np.zeros(shape),
        lambda: np.full(shape, rng.standard_normal()),
        lambda: sign * 10.0 ** rng.uniform(-300, 300, shape),
        some_entries_over_decades,
        slices_over_decades,
        lambda: noisy * 10.0 ** rng.uniform(-320, 300),
        lambda: 5e-324 * rng.integers(-5, 6, shape),
        lambda: rng.integers(0, 2, shape).astype(float),
        lambda: rng.poisson(rng.uniform(0.1, 5), shape).astype(float),
        lambda: np.round(noisy * 10),
        lambda: np.where(rng.random(shape) < 0.2, noisy * 10.0 ** rng.uniform(1, 250), noisy),
        lambda: np.abs(noisy) + 1e-9,
        lambda: pick(rng, low_rank, noisy) + 10.0 ** rng.uniform(0, 17),
        lambda: rng.standard_cauchy(shape),
        lambda: noisy,
    )
    return make()


def _holes(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    values = np.array(values)
    share = rng.choice([0.0, 0.0, 0.3, 0.6, 0.95])
    if rng.random() < 0.02:
        share = 1.0
    values[rng.random(values.shape) < share] = np.nan
    if rng.random() < 0.04 and values.size:
        values.flat[rng.integers(values.size)] = pick(rng, np.inf, -np.inf)
    return values


def _as_type(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    kind = pick(rng, *(WRONG_TYPES if rng.random() < 0.06 else TYPES))
    dtype = np.dtype(kind)
    if dtype.kind in "iu?":
        clean = np.nan_to_num(np.clip(values, -1e18, 1e18))
        return (np.abs(clean) if dtype.kind == "u" else clean).astype(dtype)
    if dtype.kind in "Mm":
        return np.nan_to_num(np.clip(values, -1e3, 1e3)).astype("i8").astype(dtype)
    if dtype.kind == "V":
        return np.zeros(values.shape, dtype)
    return values.astype(dtype)


def _strange_memory(rng: np.random.Generator, array: np.ndarray, directory: Path) -> np.ndarray:
    """The same numbers in another memory layout."""

    def read_only() -> np.ndarray:
        still = array.copy()
        still.flags.writeable = False
        return still

    def mapped() -> np.ndarray:
        if not array.size or array.dtype.kind == "O":
            return array
        np.save(directory / "mapped.npy", array)
        return np.load(directory / "mapped.npy", mmap_mode="r")

    def unaligned() -> np.ndarray:
        if not array.ndim or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            return array
        odd = np.ndarray(array.shape, array.dtype, buffer=bytearray(array.nbytes + 1), offset=1)
        odd[...] = array
        return odd

    lay_out: Callable[[], np.ndarray] = pick(
        rng,
        lambda: np.asfortranarray(array),
        lambda: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
        lambda: np.flip(np.flip(array).copy()),
        *(read_only, mapped, unaligned),
    )
    return lay_out()


@dataclass
class Given:
    """What is given to ``fit``."""

    group: str
    Y: Any
    mask: Any = None
    plain: Any = None
    """The same data as a plain array, where there is one."""


def random_input(rng: np.random.Generator, door: Door, directory: Path) -> Given:
    if rng.random() < 0.03:
        return Given("junk", pick(rng, *JUNK))
    shape = random_shape(rng)
    values = _holes(rng, random_numbers(rng, shape))
    array = np.asarray(_as_type(rng, values))
    usual = array.dtype.kind in "biuf"
    container = pick(rng, *CONTAINERS)
    if not usual and container in ("sparse", "coords"):
        container = "array"
    door.group = container
    match container:
        case "memory":
            return Given(container, _strange_memory(rng, array, directory), None, array if usual else None)
        case "list":
            return Given(container, tuple(array.tolist()) if array.ndim and rng.random() < 0.3 else array.tolist())
        case "ma":
            hidden = rng.random(shape) < rng.random()
            masked = np.ma.masked_array(array, pick(rng, hidden, np.ma.nomask))
            return Given(container, masked, pick(rng, None, np.ones(shape, bool)))
        case "mask":
            return _with_mask(rng, array, shape)
        case "sparse":
            return _sparse(rng, array)
        case "coords":
            return _coords(rng, door, array)
        case "wide":
            return _wide(rng, array)
        case "long":
            return _long(rng, door, array)
        case "xarray":
            coords = {f"m{n}": list("abcdefg"[:length]) for n, length in enumerate(shape) if rng.random() < 0.4}
            return Given(container, xarray.DataArray(array, dims=[f"m{n}" for n in range(array.ndim)], coords=coords))
        case "chunks" if usual and array.ndim and array.size:
            chunks = tuple(int(rng.integers(1, length + 1)) for length in shape)
            mask = dask.array.from_array(rng.random(shape) < 0.7, chunks=chunks) if rng.random() < 0.3 else None
            return Given(container, dask.array.from_array(array, chunks=chunks), mask)
    return Given("array", array, None, np.array(array) if usual else None)


def _with_mask(rng: np.random.Generator, array: np.ndarray, shape: tuple[int, ...]) -> Given:
    mask: Any = rng.random(shape) < rng.choice([0.0, 0.3, 0.7, 1.0], p=[0.05, 0.25, 0.4, 0.3])
    if array.dtype.kind == "f" and rng.random() < 0.7:
        mask &= ~np.isnan(array)
    if rng.random() >= 0.15:
        return Given("mask", array, pick(rng, mask, np.asfortranarray(mask)))
    wrong = [
        *(mask.astype(int), mask.astype("f4"), mask.T, mask[..., None], mask.ravel(), mask.tolist(), True, "mask", {}),
        *(np.ones((2, 9), bool), mask.astype("U1"), [], 3, object(), np.ma.masked_array(mask, mask)),
    ]
    return Given("wrong mask", array, pick(rng, *wrong))


def _sparse(rng: np.random.Generator, array: np.ndarray) -> Given:
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.char in "eg":
        array = array.astype("f8")
    if array.ndim == 2:
        form = pick(rng, "coo", "csr", "csc", "lil", "dok", "bsr", "dia")
        make = pick(rng, sparse.coo_array, sparse.coo_matrix)
        return Given("sparse", make(array).asformat(form if array.size and array.dtype.kind != "b" else "coo"))
    return Given("sparse", sparse.coo_array(array)) if array.ndim else Given("sparse", array)


def _coords(rng: np.random.Generator, door: Door, array: np.ndarray) -> Given:
    keep = rng.random(array.shape) < 0.6
    coords: Any = np.stack(np.nonzero(keep)) if array.ndim else np.zeros((0, 1), int)
    given: dict[str, Any] = {"coords": coords, "values": array[keep], "shape": array.shape}
    wrong = int(rng.integers(14))
    if coords.size:
        given |= _wrong_coords(rng, wrong, int(rng.integers(coords.shape[1])), **given)
    return Given("coords", door.ask(lambda: brtf.Observations.from_coords(**given), *DATA_NAMES))


def _wrong_coords(
    rng: np.random.Generator, wrong: int, column: int, coords: np.ndarray, values: np.ndarray, shape: tuple[int, ...]
) -> dict[str, Any]:
    """What is wrong with the arguments of ``from_coords``; nothing if ``wrong`` exceeds 7."""
    order = len(shape)
    match wrong:
        case 0:  # a place twice
            return {"coords": np.c_[coords, coords[:, column]], "values": np.r_[values, values[:1]]}
        case 1:
            coords[int(rng.integers(order)), column] = pick(rng, -1, 99, 2**62, -(2**63))
        case 2:
            return {"coords": coords.T}
        case 3:
            return {"coords": coords.astype(pick(rng, "f8", "U2", "O", "c16", "?", "M8[s]"))}
        case 4:
            return {"values": values[:-1]}
        case 5:
            shapes = [shape[:-1], (*shape, 1), (2.5,) * order, None, 4, "ab", (-1,) * order, (2**62,) * order]
            return {"shape": pick(rng, *shapes, (2**70, 4), [[2], [3]])}
        case 6:
            places = [None, [], {}, 5, coords.tolist(), tuple(coords), "coords", coords[0], [[0], [0, 1]]]
            return {"coords": pick(rng, *places, coords.astype("u8"), coords.astype("i1"), [None] * order)}
        case 7:
            others = [None, 5.0, values[:, None], values.tolist(), "values", {}, values.astype("U8")]
            return {"values": pick(rng, *others)}
    return {}


def _table_type(array: np.ndarray, kinds: str) -> bool:
    """Whether pandas has a column of this type."""
    return array.dtype.kind in kinds and array.dtype.str[0] != ">" and array.dtype.char not in "eg"


def _wide(rng: np.random.Generator, array: np.ndarray) -> Given:
    if array.ndim != 2 or not _table_type(array, "biufOUcM"):
        return Given("array", array)
    width = array.shape[1]
    columns = pick(rng, None, list("abcdefg"[:width]), ["a"] * width, list(range(width))[::-1])
    table = pandas.DataFrame(array, columns=columns)
    labelled, nullable = rng.random() < 0.15, rng.random() < 0.1
    if labelled:
        table[pick(rng, "label", 77)] = pick(rng, list("pqrstuvw"[: len(table)]), pandas.NaT, None, 1j)
    elif nullable and array.dtype.kind in "iu":
        table = table.astype("Int64")
    return Given("wide", table)


def _long(rng: np.random.Generator, door: Door, array: np.ndarray) -> Given:
    order = array.ndim
    if not _table_type(array, "biufOUc") or not order:
        return Given("array", array)
    keep = np.nonzero(rng.random(array.shape) < 0.7)
    table = pandas.DataFrame({f"m{n}": positions for n, positions in enumerate(keep)})
    table["y"] = array[keep]
    given: dict[str, Any] = {"index": [f"m{n}" for n in range(order)], "value": "y"}
    given["shape"] = pick(rng, None, array.shape)
    if rng.random() < 0.3 and len(table):
        match int(rng.integers(8)):
            case 0:
                table = pandas.concat([table, table.iloc[:1]])
            case 1:
                table["m0"] = pick(rng, table["m0"].astype(str), table["m0"] / 2, pandas.NaT, None, True)
            case 2:
                wrong = ["m0", None, [], ["m0", "m0"], ["m0", "zz"], ["m0", "y"], 3, ("m0",), [None], [["m0"]]]
                given["index"] = pick(rng, *wrong)
            case 3:
                given["value"] = pick(rng, "zz", None, 3, "m0", ["y"], {})
            case 4:
                given["shape"] = pick(rng, (1,) * order, (2, 3), "ab", 5, (0,), (2.5,) * order, (2**70,) * order)
            case 5:
                table.columns = ["y"] * len(table.columns)
            case 6:
                table = pick(rng, table.to_numpy(), None, "table", table["y"], table.iloc[:0], {"a": [1]})
            case 7:
                table["y"] = pick(rng, "text", None, pandas.NaT, 1j, [[1]] * len(table))
    if rng.random() < 0.1:
        return Given("long", table, None)
    names = ("frame", "index", "value", *DATA_NAMES)
    return Given("long", door.ask(lambda: brtf.Observations.from_frame(table, **given), *names))


def fingerprint(data: Any) -> Any:
    """Something that changes if the data do."""
    if isinstance(data, np.ma.MaskedArray):
        return data.data.tobytes(), np.ma.getmaskarray(data).tobytes()
    if isinstance(data, np.ndarray):
        return data.dtype, data.shape, data.tobytes() if data.dtype.kind != "O" else repr(data)
    if isinstance(data, brtf.Observations):
        return None if data.in_chunks else (data.shape, data.values.tobytes(), repr(data.mask), repr(data.coords))
    if sparse.issparse(data):
        entries = data.tocoo()
        return data.shape, data.format, entries.data.tobytes(), repr(entries.coords)
    return repr(data) if isinstance(data, (list, tuple)) or hasattr(data, "columns") or hasattr(data, "dims") else None


def door_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    given = random_input(rng, door, directory)
    door.group = given.group
    Y, mask = given.Y, given.mask
    shape = tuple(getattr(Y, "shape", ()) or ())
    options = random_options(rng, len(shape))
    if rng.random() < 0.1 and len(shape) > 1 and 0 < math.prod(shape) < 10_000:
        rank = int(rng.integers(1, 4))
        size = 10.0 ** (rng.uniform(-100, 100) if rng.random() < 0.5 else 0.0)
        options["init"] = [rng.standard_normal((length, rank)) * size for length in shape]
        options.pop("max_rank", None)
    before = fingerprint(Y), fingerprint(mask)
    model = brtf.BRTF(**options)
    names = (*DATA_NAMES, *options, "outlier_modes", "noise_modes")
    door.ask(lambda: model.fit(Y, mask=mask), *names)
    check((fingerprint(Y), fingerprint(mask)) == before, "the input was modified")
    digits, bound = model.low_rank() if math.prod(model.shape_in_) <= 10_000 else None, model.bound_
    sound(door, model, rng, directory)
    check((fingerprint(Y), fingerprint(mask)) == before, "the input was modified by a question")
    if given.plain is not None:
        other = brtf.BRTF(**options)
        door.ask(lambda: other.fit(np.ascontiguousarray(given.plain, given.plain.dtype.newbyteorder("="))))
        check(np.array_equal(digits, other.low_rank()), "a plain copy of the input gives other digits")
        check(bound == other.bound_, "a plain copy of the input gives another bound")


def sound(door: Door, model: brtf.BRTF, rng: np.random.Generator, directory: Path) -> None:
    """Ask a fitted model everything, and look at the answers."""
    shape = model.shape_in_
    check(np.isfinite(model.bound_), f"bound_ is {model.bound_}")
    check(np.asarray(model.noise_variance_) >= 0, f"noise_variance_ is {model.noise_variance_}")
    check(0 <= model.outlier_rate_ <= 1, f"outlier_rate_ is {model.outlier_rate_}")
    check(all(np.isfinite(factor).all() for factor in model.factors_), "factors_ are not finite")
    if math.prod(shape) > 10_000:
        door.ask(model.low_rank, "shape", "max_rank", "coords")
        return
    door.ask(model.low_rank)
    # what follows compares numbers, so the answers of a table are asked for as arrays
    plain = replace(model.result_.observations, container=Container())
    model.result_ = replace(model.result_, observations=plain)
    low_rank = door.ask(model.low_rank)
    check(low_rank.shape == shape, f"low_rank has shape {low_rank.shape}")
    link = model.link
    finite: Callable[[Any], Any] = np.isfinite if link is None else lambda x: ~np.isnan(x)  # exp overflows
    check(finite(low_rank), "low_rank is not finite")
    of = pick(rng, "low_rank", "observation")
    level = float(pick(rng, 0.5, 0.95, 0.999))
    mean, std = door.ask(lambda: model.predict(return_std=True, of=of))
    check(finite(mean), "predict is not finite")
    check(std >= 0, "a standard deviation is negative or NaN")
    low, high = door.ask(lambda: model.predict_interval(level=level, of=of))
    check(low <= high, f"an interval of the {of} is upside down or NaN")
    rounded = (np.abs(low_rank) < 1e-290) | (np.abs(low_rank) * 1e-14 > std) | np.isinf(low)  # exp overflows
    check((low < high) | rounded, f"an interval of the {of} has no width")
    if not model.result_.observations.in_chunks:
        probability, outliers = door.ask(model.outlier_probability), door.ask(model.outliers)
        probability, outliers = (x.data if sparse.issparse(x) else x for x in (probability, outliers))
        check((probability >= 0) & (probability <= 1), "an outlier probability is outside [0, 1]")
        check(np.isfinite(outliers), "outliers are not finite")
        filled = np.asarray(door.ask(model.impute))
        check(finite(filled), "impute is not finite")
        given = model.result_.observations
        check(filled[tuple(given.entry_coords())] == given.values.ravel(), "impute changes what was observed")
        check(np.isfinite(door.ask(lambda: model.score(given), "Y")), "score is not finite")
        if rng.random() < 0.3:
            listed = door.ask(
                lambda: model.anomalies(of=pick(rng, "entries", "fibres", "slices", "rows")), "of", "mode"
            )
            chance = listed["probability"].to_numpy()
            check((chance >= 0) & (chance <= 1), "the probability of an anomaly is outside [0, 1]")
        if rng.random() < 0.3:
            with contextlib.suppress(Refused):
                ahead = door.ask(lambda: model.forecast(3), "mode", "modes", "smooth_residual")
                check(finite(ahead.mean) & (ahead.low <= ahead.high), "a forecast is not finite or upside down")
        with contextlib.suppress(Refused):
            check(np.isfinite(door.ask(lambda: model.transform(Y=given), "Y")), "transform is not finite")
    draws = door.ask(lambda: model.sample(2, of=of, random_state=0))
    check(~np.isnan(draws), "a draw is NaN")
    check(len(str(door.ask(model.summary))) > 0, "summary is empty")
    if rng.random() < 0.1:
        with contextlib.suppress(Refused):
            path = directory / "model.brtf"
            door.ask(lambda: model.save(path), "save", "chunks", str(path))
            again = door.ask(lambda: brtf.load(path), str(path))
            restored = replace(again.result_.observations, container=Container())
            again.result_ = replace(again.result_, observations=restored)
            check(np.array_equal(again.low_rank(), low_rank), "a saved model says something else")
    if rng.random() < 0.1 and not model.result_.observations.in_chunks:
        with contextlib.suppress(Refused):
            block = given.values if given.layout == "complete" else given
            door.ask(lambda: model.partial_fit(block), "partial_fit", "Y", "noise", "calibrate", "link")
            check(np.isfinite(door.ask(model.low_rank)), "low_rank is not finite after partial_fit")
