"""Fuzz cases of kind options: valid and invalid values of every option of `brtf.BRTF` and argument of its methods."""

from __future__ import annotations

import copy
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

import brtf
from fuzz_judge import DATA_NAMES, Door, Refused, check, pick

STRANGE: list[Any] = [
    *(np.nan, np.inf, -1, 0.5, "x", "", b"x", [], {}, (), object(), 1j, np.array([1.0, 2.0]), [None], lambda: 0),
    *(-(2**70), np.array(["a"]), np.float64("nan"), [[]], "ä\x00", {"a": 1}, [1.5], ["a"]),
]
"""Values that are wrong for almost every argument."""
NO_HALF = [value for value in STRANGE if not isinstance(value, float) or value != 0.5]
NO_INTEGER = [value for value in STRANGE if not isinstance(value, int)]
NO_SEQUENCE = [value for value in STRANGE if not isinstance(value, (list, tuple, np.ndarray))]

Choices = tuple[list[Any], list[Any]]
"""Valid and invalid values of an argument."""
SHAPE = (5, 4, 3)


def _factors(width: int, value: Any, dtype: Any = None) -> list[np.ndarray]:
    return [np.full((length, width), value, dtype) for length in SHAPE]


WRONG_STARTS: list[Any] = [
    *(None, 1, "zeros", [np.ones((5, 2))], [np.ones((5, 2)), np.ones((4, 3)), np.ones((3, 2))], _factors(2, np.nan)),
    *(
        _factors(0, 1.0),
        _factors(2, 1, complex),
        _factors(2, 1.0, object),
        ["a", "b", "c"],
        [np.ones(n) for n in SHAPE],
    ),
    *([None, None, None], [[[1], [2, 3]]] * 3, _factors(1, 1e300), _factors(1, "a"), *STRANGE),
]
OPTIONS: dict[str, Choices] = {
    "max_rank": ([None, 1, 2, 5, np.int64(3), 300], [0, True, 2.0, "3", 2**70, *STRANGE]),
    "inference": (["calibrated", "paper"], [None, "Paper", 1, *STRANGE]),
    "robust": ([True, False], [None, 1, 0, "yes", *STRANGE]),
    "init": (["spectral", "random"], WRONG_STARTS),
    "modes": (
        ["auto", None, {0: "ordered"}, {0: "nonnegative"}, {-1: ("nonnegative",), 1: "unordered"}, {}],
        [
            "ordered?",
            {0: "odd"},
            {3: "nonnegative"},
            {0: ()},
            {0: ("ordered", "unordered")},
            {"a": "nonnegative"},
            {0.5: "unordered"},
            [0],
            *(value for value in STRANGE if not (isinstance(value, dict) and not value)),
        ],
    ),
    "noise": (["common", "per-slice", "auto"], [None, "per_slice", 0, *STRANGE]),
    "noise_modes": (
        [None, (0,), [1], (0, 1), (-1,)],
        [(3,), (0, 0), (-4,), 0, "0", (True,), (2**70,), (0.5,), *STRANGE],
    ),
    "outlier_modes": ([None, (0,), [1], (-1,)], [(3,), (0, 1, 2), (0, 0), 1, "0", (None,), (2**70,), *STRANGE]),
    "outlier_kind": (["auto", "additive", "replacement"], [None, "sparse", *STRANGE]),
    "calibrate": ([None, "conformal"], [True, "yes", 0.9, *STRANGE]),
    "link": ([None, "sqrt", "log"], ["cube", True, np.sqrt, *STRANGE]),
    "arrangement": (
        ["auto", None, ((0, 1), (2,)), [[0], [-1, 1]], {0: 2}, {-1: 2, 0: 3}],
        ["merged", ((0, 1, 2),), ((0, 1), (1, 2)), {0: 5}, {3: 2}, {0: 1}, {0: 2.0}, {"0": 2}, {0: 2, -3: 2}, *STRANGE],
    ),
    "rank_by": (["auto", "bound"], ["held out", None, 1, True]),
    "smooth_residual": (["auto", None, 0, 1, -1], [3, -4, "time", True, 0.5, (0,), *NO_INTEGER]),
    "max_sweeps": ([1, 2, 7, np.int32(4)], [0, None, 2.0, True, *STRANGE]),
    "tol": ([0, 1e-6, 1e-3, 1.0, 1e300, 5e-324, np.float32(1e-4)], [None, True, "1e-6", 10**400, *NO_HALF]),
    "dtype": (
        [None, np.float32, np.float64, "float32", "f8", "d", np.dtype("f4")],
        [int, "x", np.float16, complex, "float128", object, 3, *STRANGE],
    ),
    "n_jobs": ([None, 1, 2, -1], [0, 1.5, True, "all", *NO_INTEGER]),
    "random_state": (
        [None, 0, 2**80, np.random.default_rng(1), np.random.RandomState(1)],
        [-1, 1.5, "seed", *NO_SEQUENCE],
    ),
    "progress": ([False], []),
    "executor": ([None], [1, True, "threads", 2.5, *STRANGE]),
}
PLACES: Choices = (
    [None, np.zeros((3, 2), int), [[0], [1], [2]], (np.array([0, 4]), [0, 3], [1, 2]), np.zeros((3, 1), "u1")],
    [
        *(np.zeros((2, 3), int), [[5], [0], [0]], [[-1], [0], [0]], [[0.5], [0], [0]], [[0], [0]]),
        *([[0, 1], [0], [0]], 3, [["a"], ["b"], ["c"]], np.zeros((3, 2, 2), int), np.zeros(3, int), [[np.nan]] * 3),
        *([[2**70], [0], [0]], np.zeros((3, 0), int), *STRANGE),
    ],
)
LEVELS: Choices = ([0.5, 0.95, 1e-9, 1 - 1e-12, np.float32(0.9)], [0, 1, -1, 2, None, True, "0.5", *NO_HALF])
COUNTS: Choices = ([1, 3, np.int8(2)], [0, -1, 1.5, None, True, "2", 2**70, 10**12, *STRANGE])
OF: Choices = (["low_rank", "observation"], [None, "obs", 1, *STRANGE])
YES_NO: Choices = ([False, True], [])


CHOSEN_APART = ("modes", "max_sweeps", "init", "executor", "noise_modes", "outlier_modes", "random_state")
"""Options that `random_options` chooses to fit the data and each other."""


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
    for name, (values, _) in OPTIONS.items():
        if name in ("modes", "noise", "outlier_kind", "outlier_modes", "noise_modes") and paper:
            continue
        if name not in CHOSEN_APART and rng.random() < 0.2:
            options[name] = pick(rng, *values)
    if not paper and options.get("robust", True) and order > 1 and rng.random() < 0.2:
        options["outlier_modes"] = [int(rng.integers(order))]
    if options.get("noise", "common") != "common" and order > 1 and rng.random() < 0.5:
        options["noise_modes"] = [int(rng.integers(order))]
    if not paper and order > 0 and rng.random() < 0.2:
        options["modes"] = {int(rng.integers(order)): ("nonnegative", "ordered")[int(rng.integers(2))]}
    if not options.get("robust", True):
        options.pop("outlier_kind", None)
    return options


def _methods(Y: np.ndarray, link: str | None) -> dict[str, dict[str, Choices]]:
    """The methods of a model that was fitted to ``Y``, with valid and invalid values of each argument.

    Data of other units are invalid, except to a logarithm, to which a factor only adds.
    """
    other = [Y, Y.astype("f4"), np.where(Y > 1, np.nan, Y), Y.tolist(), np.asfortranarray(Y)]
    infinite = np.where(Y.max() == Y, np.inf, Y)
    never = [np.full(Y.shape, np.nan), Y.astype(complex), infinite, None, Y.astype(object), Y.astype("U9"), Y[:0]]
    never += STRANGE
    wrong = [Y[:, :2], Y[0], Y[..., None], *([] if link in ("log", "log1p") else [Y * 1e220]), *never]
    mask: Choices = (
        [None, np.ones(Y.shape, bool), Y > -9],
        [np.ones((2, 2), bool), np.ones(Y.shape), np.zeros(Y.shape, bool), "mask", 1, [], {}, True],
    )
    return {
        "predict": {"coords": PLACES, "return_std": YES_NO, "of": OF},
        "predict_interval": {"coords": PLACES, "level": LEVELS, "of": OF},
        "sample": {"n": COUNTS, "coords": PLACES, "of": OF, "random_state": OPTIONS["random_state"]},
        "score": {"Y": (other, wrong), "mask": mask},
        "transform": {"Y": ([*other, Y[:2], Y[:1]], wrong), "return_std": YES_NO},
        "fit_transform": {"Y": (other, never), "mask": mask},
        "partial_fit": {"Y": ([*other, Y[:2]], wrong), "mask": mask},
        "impute": {"replace_outliers": YES_NO},
        "to_frame": {"of": (["outliers", "imputed"], [None, "all", *STRANGE])},
        "anomalies": {
            "q": LEVELS,
            "of": (["entries", "fibres", "slices", "rows"], [None, "all", 1, *STRANGE]),
            "mode": ([None], [9, 0.5, "time", True, *NO_INTEGER]),
            "level": LEVELS,
            "Y": ([None, *other, Y[:2]], [one for one in wrong if one is not None]),
        },
        "forecast": {
            "horizon": COUNTS,
            "mode": ([None, 0], [3, -4, "time", True, *NO_INTEGER]),
            "level": LEVELS,
            "of": OF,
        },
        **{name: {} for name in ("to_xarray", "low_rank", "outliers", "outlier_probability", "summary")},
    }


def options_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    factors = (np.random.default_rng(length).standard_normal((length, 2)) for length in SHAPE)
    Y = np.abs(np.einsum("ir,jr,kr->ijk", *factors)) + 0.1 * np.abs(rng.standard_normal(SHAPE))
    options = {name: copy.deepcopy(pick(rng, *valid)) for name, (valid, _) in OPTIONS.items() if rng.random() < 0.15}
    options.setdefault("max_sweeps", 2)
    wrong: list[str] = []
    if rng.random() < 0.6:
        names = [name for name, (_, invalid) in OPTIONS.items() if invalid]
        wrong = [str(name) for name in rng.choice(names, int(rng.integers(1, 3)), replace=False)]
        options.update({name: pick(rng, *OPTIONS[name][1]) for name in wrong})
    door.group = "constructor" if wrong else "method"
    model = brtf.BRTF(**options)
    fitted = door.ask(lambda: model.fit(Y), *options, "outlier_modes", "noise_modes")
    check(not wrong, f"accepted {', '.join(f'{name}={options[name]!r}' for name in wrong)}")
    check(len(repr(model)) > 0, "repr")
    methods = _methods(Y, fitted.link_)
    for name in map(str, rng.choice(list(methods), 3, replace=False)):
        door.group = name
        choices = methods[name].items()
        arguments = {
            argument: copy.deepcopy(pick(rng, *valid)) for argument, (valid, _) in choices if rng.random() < 0.7
        }
        if "Y" in methods[name]:
            arguments.setdefault("Y", Y)
        if name == "forecast":
            arguments.setdefault("horizon", 2)
        bad = [argument for argument, (_, invalid) in choices if invalid and rng.random() < 0.35]
        arguments.update({argument: pick(rng, *methods[name][argument][1]) for argument in bad})
        mentioned = (*(bad or arguments), *DATA_NAMES, "X", name, *options)
        try:
            answer = door.ask(partial(methodcaller(name, **arguments), fitted), *mentioned)
        except Refused:
            continue
        if bad:
            harmless = set(bad) <= {"of", "random_state"} and name in ("predict", "sample")
            shown = ", ".join(f"{argument}={arguments[argument]!r}" for argument in bad)
            check(harmless, f"{name} accepted {shown}"[:400])
        else:
            for numbers in answer if isinstance(answer, tuple) else (answer,):
                check(not isinstance(numbers, np.ndarray) or ~np.isnan(numbers), f"{name} gives NaN")
