"""Random inputs, options and damaged files: every one is answered soundly, or refused in a sentence of ours.

Run ``make fuzz`` (10,000 cases, some minutes on two cores), ``make fuzz CASES=100000 SEED=7``, or
``python benchmarks/fuzz.py --cases 10000 --seed 0 [--kinds door options files] [--jobs 2]``. A case is a function of
the seed and its number: ``--case 123`` repeats one alone, with the traceback. It ends with the command that repeats
each failure, and code 1 if there is one.

Kinds of cases:

door
    arrays and containers of all kinds, orders 0 to 5, odd types, values over 600 decades, right and wrong masks, given
    to ``fit``; then everything that a model answers.
options
    valid and invalid values of every option of `brtf.BRTF` and of every argument of its methods.
files
    small files of every format that is read, cut, with bits flipped, bytes put in, huge numbers in their headers; and
    ``.brtf`` files that are forged so well that their digests are right.

An answer is sound if what should be finite is, intervals have a width, probabilities lie in [0, 1], the input is
untouched and a plain copy of it gives the same digits. A refusal is a ValueError, TypeError, MemoryError or OSError
that our code raises, which names the argument or the file and hands on no text of NumPy, SciPy or LAPACK. Nothing is
printed, nothing warns but brtf, no case takes long, and none takes more than 1 GB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import linecache
import math
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf.io.storage import read_archive, write_archive

KINDS = ("door", "options", "files")
SHARES = (0.45, 0.25, 0.3)
SECONDS = 20
"""Time of the processor that a case may take; usual ones take some hundredths."""
STALLED = 300
"""Seconds after which a worker that does not answer is ended, and its case has failed."""
MEMORY = 2**30
"""Bytes that a case may take beyond what the libraries have."""
PACKAGE = str(Path(brtf.__file__).parent)
REFUSALS = (ValueError, TypeError, MemoryError, OSError)
RAW = re.compile(
    r"zero-size|broadcast|allow_pickle|[Ss]ingular|did not converge|positive definite|leading minor|LAPACK|"
    r"cannot reshape|out of bounds|NoneType|has no attribute|not enough values|too many values|unsupported operand|"
    r"truth value|list index|setting an array element|too large to convert|math domain|not iterable|not subscriptable|"
    r"unhashable|has no len|non-finite|array must not contain|is too big|Maximum allowed (dimension|size)|"
    r"cannot be interpreted|must be real number|not supported between|cannot convert|could not convert|"
    r"overflow encountered"
)
"""Words of the libraries below, which tell a user nothing."""


class Failure(Exception):
    """A promise that was broken."""


class Refused(Exception):
    """A refusal as it should be."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: ``group`` is the kind of thing that was tried."""

    case: int
    group: str
    ending: str
    detail: str = ""


class Door:
    """Calls the library, and judges whatever comes back other than an answer."""

    def __init__(self) -> None:
        self.group = "?"
        self.told: list[str] = []

    def ask(self, call: Callable[[], Any], *names: str) -> Any:
        """The answer; or `Refused`, if the error names one of these; or `Failure`."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                answer = call()
            except Exception as error:
                self.judge(error, names)
                raise Refused(str(error)) from error
        for warning in heard:
            self.judge_warning(warning)
        return answer

    def judge(self, error: Exception, names: Sequence[str]) -> None:
        told = f"{type(error).__name__}: {error}"
        self.told.append(told)
        if not isinstance(error, REFUSALS) or isinstance(error, UnicodeError):
            raise Failure(f"a {told}") from error
        if not _ours(error):
            raise Failure(f"not raised by brtf: {told}") from error
        if RAW.search(str(error)):
            raise Failure(f"raw text: {told}") from error
        if names and not any(re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", str(error)) for name in names):
            raise Failure(f"names none of {', '.join(names)}: {told}") from error

    def judge_warning(self, warning: warnings.WarningMessage) -> None:
        told = f"{warning.category.__name__}: {warning.message}"
        self.told.append(told)
        ours = warning.category in (UserWarning, ConvergenceWarning) or warning.category.__module__.startswith("brtf")
        if not ours or RAW.search(str(warning.message)):
            raise Failure(f"{told} ({warning.filename}:{warning.lineno})")


def _ours(error: Exception) -> bool:
    """Whether the statement that raised it is a ``raise`` in brtf, or the system's about a file that it names."""
    if isinstance(error, OSError) and error.filename is not None:
        return True
    frame = traceback.extract_tb(error.__traceback__)[-1]
    statement = linecache.getline(frame.filename, frame.lineno or 0)
    return frame.filename.startswith(PACKAGE) and statement.lstrip().startswith("raise")


def check(holds: Any, promise: str) -> None:
    if not np.all(holds):
        raise Failure(promise)


def pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    """One of them, as it is."""
    return choices[int(rng.integers(len(choices)))]


# ---- the front door --------------------------------------------------------------------------------------------------

TYPES = ("f8", "f8", "f8", "f4", "f2", ">f8", ">f4", "?", "i1", "u1", "i2", "i4", ">i4", "i8", "u8", "g")
WRONG_TYPES = ("c16", "c8", "O", "U8", "S4", "M8[D]", "m8[s]", [("a", "f8"), ("b", "i4")])
JUNK = (
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
    """Float64 of very many kinds."""
    rank = int(rng.integers(1, 4))
    factors = [rng.standard_normal((length, rank)) for length in shape]
    low_rank = np.ones((1, rank))
    for factor in factors:
        low_rank = (low_rank[:, None] * factor).reshape(-1, rank)
    low_rank = low_rank.sum(axis=1).reshape(shape)
    noisy = low_rank + 0.1 * rng.standard_normal(shape)
    sign = rng.choice([-1.0, 1.0], shape)
    match int(rng.integers(16)):
        case 0:
            return low_rank
        case 1:
            return np.zeros(shape)
        case 2:
            return np.full(shape, rng.standard_normal())
        case 3:  # every entry in a decade of its own
            return sign * 10.0 ** rng.uniform(-300, 300, shape)
        case 4:  # a part of the entries, a range of decades
            decades = rng.uniform(0, 300)
            return np.where(
                rng.random(shape) < rng.random(), noisy * 10.0 ** rng.uniform(-decades, decades, shape), noisy
            )
        case 5:  # slices of very different size
            for mode, length in enumerate(shape):
                lengths = [1] * len(shape)
                lengths[mode] = length
                noisy = noisy * 10.0 ** rng.uniform(-300 / len(shape), 300 / len(shape), lengths)
            return noisy
        case 6:
            return noisy * 10.0 ** rng.uniform(-320, 300)
        case 7:
            return 5e-324 * rng.integers(-5, 6, shape)
        case 8:
            return rng.integers(0, 2, shape).astype(float)
        case 9:
            return rng.poisson(rng.uniform(0.1, 5), shape).astype(float)
        case 10:
            return np.round(noisy * 10)
        case 11:
            return np.where(rng.random(shape) < 0.2, noisy * 10.0 ** rng.uniform(1, 250), noisy)
        case 12:
            return np.abs(noisy) + 1e-9
        case 13:
            return pick(rng, [low_rank, noisy]) + 10.0 ** rng.uniform(0, 17)
        case 14:
            return rng.standard_cauchy(shape)
        case _:
            return noisy


def _holes(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    values = np.array(values)
    share = rng.choice([0.0, 0.0, 0.3, 0.6, 0.95])
    if rng.random() < 0.02:
        share = 1.0
    values[rng.random(values.shape) < share] = np.nan
    if rng.random() < 0.04 and values.size:
        values.flat[rng.integers(values.size)] = pick(rng, [np.inf, -np.inf])
    return values


def _as_type(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    kind = pick(rng, WRONG_TYPES) if rng.random() < 0.06 else pick(rng, TYPES)
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
    """The same numbers, otherwise laid out."""
    match int(rng.integers(6)):
        case 0:
            return np.asfortranarray(array)
        case 1:
            return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
        case 2:
            return np.flip(np.flip(array).copy())
        case 3:
            still = array.copy()
            still.flags.writeable = False
            return still
        case 4 if array.size and array.dtype.kind != "O":
            np.save(directory / "mapped.npy", array)
            return np.load(directory / "mapped.npy", mmap_mode="r")
        case 5 if array.ndim:
            raw = np.zeros(array.nbytes + 1, np.uint8)
            odd = raw[1:].view(np.uint8)[: array.nbytes]
            if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
                unaligned = np.ndarray(array.shape, array.dtype, buffer=odd.data)
                unaligned[...] = array
                return unaligned
    return array


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
        return Given("junk", pick(rng, JUNK))
    shape = random_shape(rng)
    values = _holes(rng, random_numbers(rng, shape))
    array = np.asarray(_as_type(rng, values))
    usual = array.dtype.kind in "biuf"
    container = pick(
        rng,
        [
            *("array", "array", "memory", "list", "ma", "mask", "mask", "sparse", "coords", "wide", "long", "xarray"),
            "chunks",
        ],
    )
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
            masked = np.ma.masked_array(array, pick(rng, [hidden, np.ma.nomask]))
            return Given(container, masked, pick(rng, [None, np.ones(shape, bool)]))
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
            import xarray

            coords = {f"m{n}": list("abcdefg"[:length]) for n, length in enumerate(shape) if rng.random() < 0.4}
            return Given(container, xarray.DataArray(array, dims=[f"m{n}" for n in range(array.ndim)], coords=coords))
        case "chunks" if usual and array.ndim and array.size:
            return _chunks(rng, array)
    return Given("array", array, None, np.array(array) if usual else None)


def _with_mask(rng: np.random.Generator, array: np.ndarray, shape: tuple[int, ...]) -> Given:
    mask: Any = rng.random(shape) < rng.choice([0.0, 0.3, 0.7, 1.0], p=[0.05, 0.25, 0.4, 0.3])
    if array.dtype.kind == "f" and rng.random() < 0.7:
        mask &= ~np.isnan(array)
    if rng.random() < 0.15:
        mask = pick(
            rng,
            [
                *(mask.astype(int), mask.astype("f4"), mask.T, mask[..., None], mask.ravel(), mask.tolist(), True),
                *("mask", {}, np.ones((2, 9), bool), mask.astype("U1"), [], 3, object()),
                np.ma.masked_array(mask, mask),
            ],
        )
        return Given("wrong mask", array, mask)
    return Given("mask", array, pick(rng, [mask, np.asfortranarray(mask)]))


def _sparse(rng: np.random.Generator, array: np.ndarray) -> Given:
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.char in "eg":
        array = array.astype("f8")
    if array.ndim == 2:
        form = pick(rng, ["coo", "csr", "csc", "lil", "dok", "bsr", "dia"])
        make = pick(rng, [sparse.coo_array, sparse.coo_matrix])
        return Given("sparse", make(array).asformat(form if array.size and array.dtype.kind != "b" else "coo"))
    return Given("sparse", sparse.coo_array(array)) if array.ndim else Given("sparse", array)


def _coords(rng: np.random.Generator, door: Door, array: np.ndarray) -> Given:
    keep = rng.random(array.shape) < 0.6
    coords: Any = np.stack(np.nonzero(keep)) if array.ndim else np.zeros((0, 1), int)
    values, shape = array[keep], array.shape
    wrong = int(rng.integers(14))
    if coords.size:
        column = int(rng.integers(coords.shape[1]))
        match wrong:
            case 0:
                coords = np.concatenate([coords, coords[:, column : column + 1]], axis=1)
                values = np.concatenate([values, values[:1]])
            case 1:
                coords[int(rng.integers(len(coords))), column] = pick(rng, [-1, 99, 2**62, -(2**63)])
            case 2:
                coords = coords.T
            case 3:
                coords = coords.astype(pick(rng, ["f8", "U2", "O", "c16", "?", "M8[s]"]))
            case 4:
                values = values[:-1]
            case 5:
                shape = pick(
                    rng,
                    [
                        *(shape[:-1], (*shape, 1), tuple(2.5 for _ in shape), None, 4, "ab", (-1,) * len(shape)),
                        *((2**62,) * len(shape), (2**70, 4), [[2], [3]]),
                    ],
                )
            case 6:
                coords = pick(
                    rng,
                    [
                        *(None, [], {}, 5, coords.tolist(), tuple(coords), "coords", coords[0], [[0], [0, 1]]),
                        *(coords.astype("u8"), coords.astype("i1"), [None] * len(coords)),
                    ],
                )
            case 7:
                values = pick(rng, [None, 5.0, values[:, None], values.tolist(), "values", {}, values.astype("U8")])
    return Given("coords", door.ask(lambda: brtf.Observations.from_coords(coords, values, shape), *DATA_NAMES))


def _wide(rng: np.random.Generator, array: np.ndarray) -> Given:
    import pandas

    if array.ndim != 2 or array.dtype.kind not in "biufOUcM" or array.dtype.str[0] == ">" or array.dtype.char in "eg":
        return Given("array", array)
    columns = pick(
        rng, [None, list("abcdefg"[: array.shape[1]]), ["a"] * array.shape[1], list(range(array.shape[1]))[::-1]]
    )
    table = pandas.DataFrame(array, columns=columns)
    labelled, nullable = rng.random() < 0.15, rng.random() < 0.1
    if labelled:
        table[pick(rng, ["label", 77])] = pick(rng, [list("pqrstuvw"[: len(table)]), pandas.NaT, None, 1j])
    elif nullable and array.dtype.kind in "iu":
        table = table.astype("Int64")
    return Given("wide", table)


def _long(rng: np.random.Generator, door: Door, array: np.ndarray) -> Given:
    import pandas

    if array.dtype.kind not in "biufOUc" or array.dtype.str[0] == ">" or array.dtype.char in "eg" or not array.ndim:
        return Given("array", array)
    keep = np.nonzero(rng.random(array.shape) < 0.7)
    table = pandas.DataFrame({f"m{n}": positions for n, positions in enumerate(keep)})
    table["y"] = array[keep]
    index: Any = [f"m{n}" for n in range(array.ndim)]
    value: Any = "y"
    shape: Any = pick(rng, [None, array.shape])
    if rng.random() < 0.3 and len(table):
        match int(rng.integers(8)):
            case 0:
                table = pandas.concat([table, table.iloc[:1]])
            case 1:
                table["m0"] = pick(rng, [table["m0"].astype(str), table["m0"] / 2, pandas.NaT, None, True])
            case 2:
                index = pick(
                    rng, ["m0", None, [], ["m0", "m0"], ["m0", "zz"], ["m0", "y"], 3, ("m0",), [None], [["m0"]]]
                )
            case 3:
                value = pick(rng, ["zz", None, 3, "m0", ["y"], {}])
            case 4:
                shape = pick(
                    rng, [(1,) * array.ndim, (2, 3), "ab", 5, (0,), (2.5,) * array.ndim, (2**70,) * array.ndim]
                )
            case 5:
                table.columns = ["y"] * len(table.columns)
            case 6:
                table = pick(rng, [table.to_numpy(), None, "table", table["y"], table.iloc[:0], {"a": [1]}])
            case 7:
                table["y"] = pick(rng, ["text", None, pandas.NaT, 1j, [[1]] * len(table)])
    if rng.random() < 0.1:
        return Given("long", table, None)
    Y = door.ask(
        lambda: brtf.Observations.from_frame(table, index=index, value=value, shape=shape),
        *("frame", "index", "value", *DATA_NAMES),
    )
    return Given("long", Y)


def _chunks(rng: np.random.Generator, array: np.ndarray) -> Given:
    import dask.array

    chunks = tuple(int(rng.integers(1, length + 1)) for length in array.shape)
    mask = None
    if rng.random() < 0.3:
        mask = dask.array.from_array(rng.random(array.shape) < 0.7, chunks=chunks)
    return Given("chunks", dask.array.from_array(array, chunks=chunks), mask)


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


DATA_NAMES = ("Y", "mask", "shape", "values", "coords", "mode")


def random_options(rng: np.random.Generator, order: int) -> dict[str, Any]:
    """Options that are valid, at least one by one."""
    options: dict[str, Any] = {"max_sweeps": int(rng.integers(1, 6)), "random_state": int(rng.integers(100))}
    if rng.random() < 0.25:
        options["max_sweeps"] = 40
    if rng.random() < 0.2:
        options["inference"] = "paper"
    if rng.random() < 0.6:
        return options
    paper = "inference" in options
    for name, values in VALID.items():
        if name in ("noise", "outlier_kind", "outlier_modes", "noise_modes") and paper:
            continue
        if (
            name not in ("max_sweeps", "init", "executor", "noise_modes", "outlier_modes", "random_state")
            and rng.random() < 0.2
        ):
            options[name] = pick(rng, values)
    if not paper and options.get("robust", True) and order > 1 and rng.random() < 0.2:
        options["outlier_modes"] = [int(rng.integers(order))]
    if options.get("noise", "common") != "common" and order > 1 and rng.random() < 0.5:
        options["noise_modes"] = [int(rng.integers(order))]
    if not options.get("robust", True):
        options.pop("outlier_kind", None)
    return options


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
    low_rank = door.ask(model.low_rank)
    check(low_rank.shape == shape, f"low_rank has shape {low_rank.shape}")
    link = model.link
    finite: Callable[[Any], Any] = np.isfinite if link is None else lambda x: ~np.isnan(x)  # exp overflows
    check(finite(low_rank), "low_rank is not finite")
    of = pick(rng, ["low_rank", "observation"])
    level = float(pick(rng, [0.5, 0.95, 0.999]))
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
        with contextlib.suppress(Refused):
            check(np.isfinite(door.ask(lambda: model.transform(given), "Y")), "transform is not finite")
    draws = door.ask(lambda: model.sample(2, of=of, random_state=0))
    check(~np.isnan(draws), "a draw is NaN")
    check(len(str(door.ask(model.summary))) > 0, "summary is empty")
    if rng.random() < 0.1:
        with contextlib.suppress(Refused):
            path = directory / "model.brtf"
            door.ask(lambda: model.save(path), "save", "chunks", str(path))
            again = door.ask(lambda: brtf.load(path), str(path))
            check(np.array_equal(again.low_rank(), low_rank), "a saved model says something else")
    if rng.random() < 0.1 and not model.result_.observations.in_chunks:
        with contextlib.suppress(Refused):
            block = given.values if given.layout == "complete" else given
            door.ask(lambda: model.partial_fit(block), "partial_fit", "Y", "noise", "calibrate", "link")
            check(np.isfinite(door.ask(model.low_rank)), "low_rank is not finite after partial_fit")


# ---- options ---------------------------------------------------------------------------------------------------------

VALID: dict[str, list[Any]] = {
    "max_rank": [None, 1, 2, 5, np.int64(3), 300],
    "inference": ["calibrated", "paper"],
    "robust": [True, False],
    "init": ["spectral", "random"],
    "noise": ["common", "per-slice", "auto"],
    "noise_modes": [None, (0,), [1], (0, 1), (-1,)],
    "outlier_modes": [None, (0,), [1], (-1,)],
    "outlier_kind": ["additive", "replacement"],
    "calibrate": [None, "conformal"],
    "link": [None, "sqrt", "log"],
    "max_sweeps": [1, 2, 7, np.int32(4)],
    "tol": [0, 1e-6, 1e-3, 1.0, 1e300, 5e-324, np.float32(1e-4)],
    "dtype": [None, np.float32, np.float64, "float32", "f8", "d", np.dtype("f4")],
    "n_jobs": [None, 1, 2, -1],
    "random_state": [None, 0, 2**80, np.random.default_rng(1), np.random.RandomState(1)],
    "progress": [False],
    "executor": [None],
}
STRANGE: list[Any] = [
    *(np.nan, np.inf, -1, 0.5, "x", "", b"x", [], {}, (), object(), 1j, np.array([1.0, 2.0]), [None], lambda: 0),
    *(-(2**70), np.array(["a"]), np.float64("nan"), [[]], "ä\x00", {"a": 1}, [1.5], ["a"]),
]
WRONG: dict[str, list[Any]] = {
    "max_rank": [0, True, 2.0, "3", 2**70, *STRANGE],
    "inference": [None, "Paper", 1, *STRANGE],
    "robust": [None, 1, 0, "yes", *STRANGE],
    "init": [
        *(None, 1, "zeros", [np.ones((5, 2))], [np.ones((5, 2)), np.ones((4, 3)), np.ones((3, 2))]),
        *([np.full((n, 2), np.nan) for n in (5, 4, 3)], [np.ones((n, 0)) for n in (5, 4, 3)]),
        *([np.ones((n, 2), complex) for n in (5, 4, 3)], [np.ones((n, 2), object) for n in (5, 4, 3)]),
        *(["a", "b", "c"], [np.ones(n) for n in (5, 4, 3)], [None, None, None], [[[1], [2, 3]]] * 3),
        *([np.full((n, 1), 1e300) for n in (5, 4, 3)], [np.full((n, 1), "a") for n in (5, 4, 3)], *STRANGE),
    ],
    "noise": [None, "per_slice", 0, *STRANGE],
    "noise_modes": [(3,), (0, 0), (-4,), 0, "0", (True,), (2**70,), (0.5,), *STRANGE],
    "outlier_modes": [(3,), (0, 1, 2), (0, 0), 1, "0", (None,), (2**70,), *STRANGE],
    "outlier_kind": [None, "sparse", *STRANGE],
    "calibrate": [True, "yes", 0.9, *STRANGE],
    "link": ["cube", True, np.sqrt, *STRANGE],
    "max_sweeps": [0, None, 2.0, True, *STRANGE],
    "tol": [None, True, "1e-6", 10**400, *[value for value in STRANGE if not isinstance(value, float) or value != 0.5]],
    "dtype": [int, "x", np.float16, complex, "float128", object, 3, *STRANGE],
    "n_jobs": [0, 1.5, True, "all", *[value for value in STRANGE if not isinstance(value, int)]],
    "random_state": [
        -1,
        1.5,
        "seed",
        *[value for value in STRANGE if not isinstance(value, (list, tuple, np.ndarray))],
    ],
    "executor": [1, True, "threads", 2.5, *STRANGE],
}
WRONG = {
    name: [value for value in values if value is not None or None not in VALID[name]] for name, values in WRONG.items()
}

Arguments = dict[str, tuple[list[Any], list[Any]]]


def _places(shape: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Right and wrong coordinates in a tensor of order 3."""
    right: list[Any] = [
        None,
        np.zeros((3, 2), int),
        [[0], [1], [2]],
        (np.array([0, 4]), [0, 3], [1, 2]),
        np.zeros((3, 1), "u1"),
    ]
    wrong = [
        *(np.zeros((2, 3), int), [[5], [0], [0]], [[-1], [0], [0]], [[0.5], [0], [0]], [[0], [0]]),
        *([[0, 1], [0], [0]], 3, [["a"], ["b"], ["c"]], np.zeros((3, 2, 2), int), np.zeros(3, int), [[np.nan]] * 3),
        *([[2**70], [0], [0]], np.zeros((3, 0), int), *STRANGE),
    ]
    return right, wrong


def _methods(Y: np.ndarray) -> dict[str, Arguments]:
    other = [Y, Y.astype("f4"), np.where(Y > 1, np.nan, Y), Y.tolist(), np.asfortranarray(Y)]
    infinite = np.where(Y.max() == Y, np.inf, Y)
    never = [
        *(np.full(Y.shape, np.nan), Y.astype(complex), infinite, None, Y.astype(object), Y.astype("U9"), Y[:0]),
        *STRANGE,
    ]
    wrong = [Y[:, :2], Y[0], Y[..., None], Y * 1e200, *never]
    masks: tuple[list[Any], list[Any]] = (
        [None, np.ones(Y.shape, bool), Y > -9],
        [np.ones((2, 2), bool), np.ones(Y.shape), np.zeros(Y.shape, bool), "mask", 1, [], {}, True],
    )
    of: tuple[list[Any], list[Any]] = (["low_rank", "observation"], [None, "obs", 1, *STRANGE])
    return {
        "predict": {"coords": _places(Y.shape), "return_std": ([False, True], []), "of": of},
        "predict_interval": {
            "coords": _places(Y.shape),
            "level": (
                [0.5, 0.95, 1e-9, 1 - 1e-12, np.float32(0.9)],
                [0, 1, -1, 2, None, True, "0.5", *[v for v in STRANGE if v is not STRANGE[3]]],
            ),
            "of": of,
        },
        "sample": {
            "n": ([1, 3, np.int8(2)], [0, -1, 1.5, None, True, "2", 2**70, 10**12, *STRANGE]),
            "coords": _places(Y.shape),
            "of": of,
            "random_state": (VALID["random_state"], WRONG["random_state"]),
        },
        "score": {"Y": (other, wrong), "mask": masks},
        "transform": {"Y": ([*other, Y[:2], Y[:1]], wrong), "return_std": ([True, False], [])},
        "fit_transform": {"Y": (other, never), "mask": masks},
        "partial_fit": {"Y": ([*other, Y[:2]], wrong), "mask": masks},
        "impute": {"replace_outliers": ([True, False], [])},
        "to_frame": {"of": (["outliers", "imputed"], [None, "all", *STRANGE])},
        "to_xarray": {},
        "low_rank": {},
        "outliers": {},
        "outlier_probability": {},
        "summary": {},
    }


def options_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    Y = np.abs(random_numbers(np.random.default_rng(0), (5, 4, 3))) + 0.1 * np.abs(rng.standard_normal((5, 4, 3)))
    options = {name: copy.deepcopy(pick(rng, values)) for name, values in VALID.items() if rng.random() < 0.15}
    options.setdefault("max_sweeps", 2)
    wrong: list[str] = []
    if rng.random() < 0.6:
        wrong = [str(name) for name in rng.choice(list(WRONG), int(rng.integers(1, 3)), replace=False)]
        options.update({name: pick(rng, WRONG[name]) for name in wrong})
    door.group = "constructor" if wrong else "method"
    model = brtf.BRTF(**options)
    fitted = door.ask(lambda: model.fit(Y), *options, "outlier_modes", "noise_modes")
    check(not wrong, f"accepted {', '.join(f'{name}={options[name]!r}' for name in wrong)}")
    check(len(repr(model)) > 0, "repr")
    methods = _methods(Y)
    for name in rng.choice(list(methods), 3, replace=False):
        door.group = str(name)
        arguments = {
            argument: copy.deepcopy(pick(rng, right))
            for argument, (right, _) in methods[name].items()
            if rng.random() < 0.7
        }
        if "Y" in methods[name]:
            arguments.setdefault("Y", Y)
        bad = [argument for argument, (_, values) in methods[name].items() if values and rng.random() < 0.35]
        arguments.update({argument: pick(rng, methods[name][argument][1]) for argument in bad})
        refused = False
        try:
            answer = door.ask(
                lambda name=name, arguments=arguments: getattr(fitted, name)(**arguments),
                *(*(bad or arguments), *DATA_NAMES, "X", str(name), *options),
            )
        except Refused:
            refused = True
        if bad and not refused:
            harmless = set(bad) <= {"of", "random_state"} and name in ("predict", "sample")
            shown = ", ".join(f"{argument}={arguments[argument]!r}" for argument in bad)
            check(harmless, f"{name} accepted {shown}"[:400])
        elif not refused:
            for numbers in answer if isinstance(answer, tuple) else (answer,):
                if isinstance(numbers, np.ndarray):
                    check(~np.isnan(numbers), f"{name} gives NaN")


# ---- files -----------------------------------------------------------------------------------------------------------

FILES = (
    *("npy", "npz", "npz-zip", "mat", "mat-zip", "mat-sparse", "csv", "tsv", "parquet", "tns", "nc3", "nc4", "zarr2"),
    *("zarr3", "zarr-group", "png", "jpg", "gif", "mp4", "brtf", "brtf-paper", "check"),
)
SUFFIX = {"nc3": "nc", "nc4": "nc", "zarr2": "zarr", "zarr3": "zarr", "check": "brtf"}


def suffix_of(kind: str) -> str:
    return SUFFIX.get(kind, kind.split("-")[0])


def example() -> np.ndarray:
    rng = np.random.default_rng(0)
    tensor = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (4, 3, 2))) + 3
    tensor[rng.random(tensor.shape) < 0.2] = np.nan
    tensor[-1, -1, -1] = 1.5
    return tensor


def write_examples(directory: Path) -> None:
    """One small file of every format."""
    import pandas
    import xarray
    import zarr
    from PIL import Image
    from scipy.io import savemat

    from brtf.video import write_clip

    tensor = example()
    np.save(directory / "npy.npy", tensor)
    np.savez(directory / "npz.npz", y=tensor)
    np.savez_compressed(directory / "npz-zip.npz", y=tensor)
    savemat(directory / "mat.mat", {"y": tensor})
    savemat(directory / "mat-zip.mat", {"y": tensor}, do_compression=True)
    savemat(directory / "mat-sparse.mat", {"y": sparse.csc_array(np.nan_to_num(tensor[:, :, 0]))})
    coords = np.argwhere(~np.isnan(tensor))
    table = pandas.DataFrame(coords, columns=["row", "column", "tube"]).assign(y=tensor[~np.isnan(tensor)])
    table.to_csv(directory / "csv.csv", index=False)
    table.to_csv(directory / "tsv.tsv", index=False, sep="\t")
    table.to_parquet(directory / "parquet.parquet", index=False)
    lines = [" ".join(map(str, [*(place + 1), value])) for place, value in zip(coords, table["y"], strict=True)]
    (directory / "tns.tns").write_text("\n".join(lines) + "\n")
    labelled = xarray.DataArray(tensor, dims=("row", "column", "tube"), coords={"row": list("abcd")}, name="y")
    labelled.to_netcdf(directory / "nc3.nc", engine="scipy")
    labelled.to_netcdf(directory / "nc4.nc", engine="h5netcdf")
    zarr.create_array(directory / "zarr2.zarr", data=tensor, chunks=(2, 3, 2), zarr_format=2)
    zarr.create_array(directory / "zarr3.zarr", data=tensor, chunks=(2, 3, 2))
    labelled.to_dataset().to_zarr(directory / "zarr-group.zarr", consolidated=False)
    frames = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    for kind in ("png", "jpg"):
        (directory / f"{kind}.{kind}").mkdir()
        for number, frame in enumerate(frames):
            Image.fromarray(frame).save(directory / f"{kind}.{kind}" / f"{number}.{kind}")
    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(directory / "gif.gif", save_all=True, append_images=pictures[1:])
    write_clip(directory / "mp4.mp4", frames.astype(float))
    for inference, name in (("calibrated", "brtf"), ("paper", "brtf-paper")):
        brtf.BRTF(inference=inference, max_sweeps=3, random_state=0).fit(tensor).save(directory / f"{name}.brtf")
    brtf.BRTF(max_sweeps=3, random_state=0).fit(tensor, checkpoint=directory / "check.brtf", every=0)


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """Other bytes."""
    raw = bytearray(content)
    if not raw:
        return bytes(rng.integers(0, 256, 20, dtype=np.uint8))
    place = int(rng.integers(min(len(raw), int(pick(rng, [64, 256, 10**9])))))
    match int(rng.integers(11)):
        case 0:
            return content[:place]
        case 1 | 2:
            for _ in range(int(rng.integers(1, 9))):
                raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        case 3:
            raw[place] ^= 1 << int(rng.integers(8))
        case 4:
            raw[place:place] = rng.integers(0, 256, int(rng.integers(1, 40)), dtype=np.uint8).tobytes()
        case 5:
            del raw[place : place + int(rng.integers(1, 40))]
        case 6:
            length = int(rng.integers(1, 9))
            raw[place : place + length] = pick(rng, [b"\xff", b"\x00", b"\x7f"]) * length
        case 7:
            number = pick(rng, [2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 10**9])
            raw[place : place + 8] = number.to_bytes(8, pick(rng, ["little", "big"]))
        case 8:
            numbers = list(re.finditer(rb"\d+", content))
            if numbers:
                found = pick(rng, numbers)
                huge = pick(
                    rng, [b"99999999999", b"-1", b"0", b"1e999", b"9" * 400, b"4294967296", b"nan", b"1.5", b"", b"3"]
                )
                raw[found.start() : found.end()] = huge
        case 9:
            words = list(re.finditer(rb"[A-Za-z_]{2,}", content))
            if words:
                found = pick(rng, words)
                raw[found.start() : found.end()] = pick(
                    rng, [b"", b"x", b"null", b"\xff\xfe", b"A" * 300, b"object", b"<script>", b"NaN", b"|O"]
                )
        case 10:
            raw += content[place:] if rng.random() < 0.5 else b"\x00" * 50
    return bytes(raw)


def forge(rng: np.random.Generator, path: Path) -> None:
    """Change what a .brtf file says, with digests that are right."""
    header, arrays = read_archive(path)
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.5 and arrays:
            name = pick(rng, sorted(arrays))
            array = arrays[name].copy()
            match int(rng.integers(6)):
                case 0:
                    del arrays[name]
                    continue
                case 1:
                    array = array[..., None] if rng.random() < 0.5 else array.ravel()[:-1]
                case 2 if array.dtype.kind in "iufb":
                    array = array.astype(pick(rng, ["f4", "i8", "U3", "?", "f8"]))
                case 3 | 4 if array.size and array.dtype.kind == "f":
                    array.flat[int(rng.integers(array.size))] = pick(
                        rng, [np.nan, np.inf, -1.0, 0.0, 1e300, -1e300, 1e-320]
                    )
                case _ if array.size and array.dtype.kind in "iu":
                    array.flat[int(rng.integers(array.size))] = pick(rng, [0, 99, 2**7 - 1])
            arrays[name] = array
        else:
            holder, key = pick(rng, list(_leaves(header)))
            holder[key] = pick(
                rng, [None, -1, 0, 1, 3, 2**70, 1e300, -1.5, "x", "", [], {}, [1], True, [[0]], [2**40] * 3, {"a": 1}]
            )
    write_archive(path, header, arrays)


def _leaves(document: Any) -> Iterator[tuple[Any, Any]]:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _leaves(value)


def files_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    door.group = kind = pick(rng, FILES)
    suffix = suffix_of(kind)
    original = directory.parent / "examples" / f"{kind}.{suffix}"
    path = directory / f"damaged.{suffix}"
    if original.is_dir():
        shutil.copytree(original, path)
        victim = pick(rng, sorted(file for file in path.rglob("*") if file.is_file()))
        victim.write_bytes(damage(rng, victim.read_bytes()))
        if rng.random() < 0.1:
            victim.unlink()
    else:
        path.write_bytes(original.read_bytes())
        if suffix == "brtf" and rng.random() < 0.7:
            forge(rng, path)
        else:
            content = path.read_bytes()
            for _ in range(int(rng.integers(1, 3))):
                content = damage(rng, content)
            path.write_bytes(content)
        if rng.random() < 0.03:
            path = path.rename(path.with_suffix("." + suffix_of(pick(rng, FILES))))
            suffix = path.suffix[1:]
    read = _command if rng.random() < 0.15 and suffix not in ("png", "jpg", "gif", "mp4") else _read
    read(door, path, kind)


def _read(door: Door, path: Path, kind: str) -> None:
    from brtf.data.readers import read_tensor
    from brtf.video import read_clip

    if path.suffix in (".png", ".jpg", ".gif", ".mp4"):
        clip = door.ask(lambda: read_clip(path), path.name)
        check(np.isfinite(clip.tensor), "a clip is not finite")
    elif kind == "check" and path.suffix == ".brtf":
        door.ask(lambda: brtf.BRTF(max_sweeps=3, random_state=0).fit(example(), resume=path), path.name)
    elif path.suffix == ".brtf":
        model = door.ask(lambda: brtf.load(path), path.name)
        door.ask(model.summary)
    else:
        tensor = door.ask(lambda: read_tensor(path), path.name)
        door.ask(lambda: brtf.data.observations.observe(tensor), *DATA_NAMES)


def _command(door: Door, path: Path, kind: str) -> None:
    """The same by the command line, which says one line and ends with a code."""
    from click.testing import CliRunner

    from brtf.cli import main

    arguments = ["show", str(path)] if path.suffix == ".brtf" else ["fit", str(path), "--max-sweeps", "2", "--quiet"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the command shows its own
        done = CliRunner().invoke(main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failure(f"a traceback at the command line: {type(done.exception).__name__}: {done.exception}")
    check(done.exit_code in (0, 1, 2), f"exit code {done.exit_code}")
    if done.exit_code == 2:
        said = done.stderr.strip().splitlines()
        check(said and said[-1].startswith("brtf: error: "), f"no sentence at the command line: {said}")
        check(not RAW.search(said[-1]), f"raw text at the command line: {said[-1]}")
        raise Refused(said[-1])


# ---- running them ----------------------------------------------------------------------------------------------------

CASES = {"door": door_case, "options": options_case, "files": files_case}


class TooSlow(BaseException):
    """Raised into a case that takes too long; no handler of the library's stops it."""


def run_case(seed: int, case: int, kinds: Sequence[str], home: Path, *, show: bool = False) -> Outcome:
    """One case, alone: everything in it is drawn from the seed and its number."""
    rng = np.random.default_rng([seed, case])
    shares = np.array([SHARES[KINDS.index(kind)] for kind in kinds])
    kind = str(rng.choice(list(kinds), p=shares / shares.sum()))
    door, ending, detail = Door(), "answered", ""
    began = time.process_time()
    with tempfile.TemporaryDirectory(dir=home) as directory, _silence(home) as said:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                CASES[kind](rng, door, Path(directory))
        except Refused as error:
            ending, detail = "refused", str(error)
        except TooSlow as error:
            ending, detail = "failed", f"not done after {SECONDS} s\n{_where(error)}"
        except Exception as error:
            ending, detail = "failed", f"{error if isinstance(error, Failure) else repr(error)}\n{_where(error)}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    if ending != "failed" and said:
        ending, detail = "failed", f"printed: {said[0]}"
    if show:
        print(
            f"case {case} of seed {seed}: {kind}, {door.group}, {time.process_time() - began:.2f} s",
            *door.told,
            sep="\n  ",
        )
    return Outcome(case, f"{kind}: {door.group}", ending, detail)


def _where(error: BaseException) -> str:
    """The traceback of the first cause."""
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, TooSlow):
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)[-6:]
    return "\n".join(f"    {frame.filename.replace(PACKAGE, 'brtf')}:{frame.lineno} {frame.line}" for frame in frames)


@contextlib.contextmanager
def _silence(home: Path) -> Iterator[list[str]]:
    """What anyone writes to the terminal meanwhile, the libraries in C included."""
    said: list[str] = []
    with open(home / "said", "w+b") as file:
        sys.stdout.flush(), sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            text = file.read().decode(errors="replace").strip()
            if text:
                said.append(text[:500])


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A directory for the files of cases, with an example of every format, and limits of time and memory."""

    def stop(*_: Any) -> None:
        raise TooSlow

    with tempfile.TemporaryDirectory(prefix="brtf-fuzz-") as directory:
        home = Path(directory)
        (home / "examples").mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_examples(home / "examples")
            _compile()
        earlier, limits = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
        try:
            yield home
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            signal.signal(signal.SIGPROF, earlier)


def _compile() -> None:
    """Have kernels compiled, and libraries imported, before time and memory count."""
    import dask.array
    import h5netcdf  # noqa: F401

    rng = np.random.default_rng(0)
    for order in (2, 3, 4, 5):
        Y = rng.standard_normal((3,) * order)
        holes = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
        listed = sparse.coo_array(Y) if order > 2 else sparse.csr_array(Y)
        brtf.BRTF(max_sweeps=2, random_state=0).fit(dask.array.from_array(holes))
        for given in (Y, holes, listed):
            for options in ({}, {"dtype": np.float32}, {"inference": "paper"}, {"noise": "per-slice"}):
                model = brtf.BRTF(max_sweeps=2, random_state=0, **options).fit(given)
                model.predict_interval()


def _work(pipe: Connection, seed: int, kinds: Sequence[str]) -> None:
    """Run the cases that come through the pipe."""
    with workshop() as home:
        pipe.send(None)
        while (case := pipe.recv()) is not None:
            pipe.send(run_case(seed, case, kinds, home))


class Worker:
    """A process that runs one case at a time."""

    def __init__(self, seed: int, kinds: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed, kinds), daemon=True)
        self.process.start()
        theirs.close()
        self.case: int | None = None
        self.since = math.inf  # until it is ready

    def give(self, case: int | None) -> None:
        self.case, self.since = case, time.monotonic()
        self.pipe.send(case)


def run(seed: int, cases: Sequence[int], kinds: Sequence[str], n_jobs: int) -> Iterator[Outcome]:
    """The outcomes of all cases, as they come; a worker that dies or stalls is replaced."""
    todo = iter(cases)
    workers = [Worker(seed, kinds) for _ in range(min(n_jobs, len(cases)))]
    while workers:
        ready = wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in list(workers):
            try:
                if worker.pipe not in ready:
                    if time.monotonic() - worker.since < STALLED:
                        continue
                    worker.process.kill()
                    raise EOFError(f"stalled for {STALLED} s in compiled code")
                outcome = worker.pipe.recv()
            except EOFError as error:
                worker.process.join()
                if worker.case is None:
                    raise RuntimeError("A worker ended before its first case.") from error
                yield Outcome(worker.case, "?", "failed", str(error) or f"the process died ({worker.process.exitcode})")
                workers[workers.index(worker)] = Worker(seed, kinds)
                continue
            if outcome is not None:
                yield outcome
            case = next(todo, None)
            worker.give(case)
            if case is None:
                worker.process.join()
                workers.remove(worker)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    parser.add_argument("--case", type=int, help="repeat this one alone")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    command = f"python {sys.argv[0]} --seed {asked.seed}" + (
        f" --kinds {' '.join(asked.kinds)}" if asked.kinds != list(KINDS) else ""
    )
    if asked.case is not None:
        with workshop() as home:
            outcome = run_case(asked.seed, asked.case, asked.kinds, home, show=True)
        print(f"{outcome.ending}: {outcome.detail}")
        return int(outcome.ending == "failed")
    print(
        f"seed {asked.seed}, cases {asked.start} to {asked.start + asked.cases - 1}, {asked.jobs} processes", flush=True
    )
    began, counts, failures = time.monotonic(), Counter[tuple[str, str]](), []
    for outcome in run(asked.seed, range(asked.start, asked.start + asked.cases), asked.kinds, asked.jobs):
        counts[outcome.group, outcome.ending] += 1
        if outcome.ending == "failed":
            failures.append(outcome)
            print(
                f"\n{outcome.group}, case {outcome.case}: {outcome.detail}\n  {command} --case {outcome.case}",
                flush=True,
            )
    endings = ("answered", "refused", "failed")
    print(f"\n{'':28}" + "".join(f"{ending:>10}" for ending in endings))
    for group in sorted({group for group, _ in counts}):
        print(f"{group:28}" + "".join(f"{counts[group, ending]:10}" for ending in endings))
    totals = [sum(count for (_, end), count in counts.items() if end == ending) for ending in endings]
    print(f"{'all':28}" + "".join(f"{total:10}" for total in totals))
    print(f"\nseed {asked.seed}: {sum(totals)} cases in {time.monotonic() - began:.0f} s, {len(failures)} failed")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
