"""Fig. 6 and Table 3: faces with photon noise, and one pixel in ten black or white."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brtf.api.metrics import psnr, rrse
from brtf.data.readers import read_file
from brtf.research.baselines.algebra import Array
from brtf.research.experiments.contenders import CONTENDERS, Trial, honest, trials
from brtf.research.experiments.figures import collage
from brtf.research.experiments.lines import NONE, SEARCHES, UNKNOWN, Line, Loss, lines, loss, mark_best, rank_text
from brtf.research.experiments.portraits import portraits
from brtf.research.experiments.published import TABLE3
from brtf.research.experiments.runs import GENERATED, Case, Inputs, Measured, Picture, Row, Rows, source_of
from brtf.view.report.document import Cell, Figure, Section, Table, Verdict
from brtf.view.report.svg import number

HIT = 0.1
"""Share of pixels that turn black or white, half of them each."""
MAX_RANK = {True: 60, False: 300}
"""Where the search for the rank of given faces starts from, quick and full; 300 as in the paper."""
MAX_RANK_DRAWN = {True: 60, False: 100}
"""The same for generated ones, which are simpler: about thirty components are found."""
SIZES = {True: (16, 8, 6), False: (32, 8, 8)}
"""Side of an image, persons and lights of the generated faces, quick and full; there are five poses."""
METHODS = ("brtf", "brtf-replacement", "brtf-paper", "horpca", "cp-als", "cp-ard", "tucker-ard", "hosvd")
GRIDS = {
    "horpca": (0.5, 1.0, 2.0, 4.0),
    "cp-als": (10, 25, 50, 100, 200),
    "hosvd": (0.05, 0.1, 0.2, 0.4),
}
"""Weights, ranks, and for HOSVD the share of a mode's length, at least two, that its rank is."""
QUICK_GRIDS = {"horpca": (1.0, 2.0, 4.0), "cp-als": (5, 10, 20), "hosvd": (0.1, 0.2, 0.4)}


def plan(quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """The faces themselves, and every method on them."""
    source = source_of("faces", inputs)
    data = {"source": source} | ({"size": list(SIZES[quick])} if source == GENERATED else {})
    grids = QUICK_GRIDS if quick else GRIDS
    max_rank = (MAX_RANK_DRAWN if source == GENERATED else MAX_RANK)[quick]
    return [
        Case(
            "faces",
            {**data, "method": method, "seed": seed, "grid": list(grids.get(method, ())), "max_rank": max_rank},
        )
        for method in ("data", *METHODS)
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """The clean faces as one method recovers them from the noisy ones."""
    clean = _clean(settings, inputs)
    noisy = corrupt(clean, settings["seed"])
    if settings["method"] == "data":
        numbers = {"shape": list(clean.shape), **_errors(noisy, clean)}
        return Measured(numbers, {"clean": _mosaic(clean), "noisy": _mosaic(noisy)})
    method = settings["method"]
    params: dict[str, Any] = {"max_sweeps": 100} if method == "cp-als" else {}
    if method.startswith("brtf") or method == "cp-ard":
        params = {"max_rank": settings["max_rank"]}
    if method == "brtf-replacement":
        method, params = "brtf", params | {"outlier_kind": "replacement"}
    grid: Sequence[Any] = settings["grid"]
    if method == "hosvd":
        grid = [_multilinear_rank(share, clean.shape) for share in grid]
    started = time.perf_counter()
    tried = trials(method, noisy / 255.0, CONTENDERS[method].tuned, grid, seed=settings["seed"], **params)
    total = time.perf_counter() - started
    errors = [rrse(255.0 * trial.found.low_rank, clean) for trial in tried]
    told = tried[int(np.argmin(errors))]
    return Measured(
        {"told": _numbers(told, clean), "honest": _numbers(tried[honest(tried)], clean), "total_seconds": total},
        {"told": _mosaic(255.0 * told.found.low_rank)},
    )


def _multilinear_rank(share: float, shape: Sequence[int]) -> tuple[int, ...]:
    """The rank of every mode: this share of its length, at least two, and at most what its unfolding allows."""
    return tuple(min(max(2, round(share * length)), length, math.prod(shape) // length) for length in shape)


def corrupt(clean: Array, seed: int) -> Array:
    """Photon noise, rounded to levels of 0 to 255, and then salt and pepper in place of a tenth of the pixels."""
    rng = np.random.default_rng(seed)
    noisy = np.minimum(rng.poisson(clean), 255).astype(np.float64)
    hit = rng.random(clean.shape) < HIT
    return np.where(hit, np.where(rng.random(clean.shape) < 0.5, 0.0, 255.0), noisy)


def _clean(settings: Mapping[str, Any], inputs: Inputs) -> Array:
    if settings["source"] == GENERATED:
        side, n_persons, n_lights = settings["size"]
        return portraits(side, n_persons, n_lights, settings["seed"])
    tensor = np.asarray(read_file(inputs["faces"]).tensor, dtype=np.float64)
    side = int(np.sqrt(len(tensor))) if tensor.ndim else 0
    if tensor.ndim != 4 or side * side != len(tensor) or not (np.isfinite(tensor).all() and tensor.min() >= 0):
        raise ValueError(
            "faces must be levels of 0 to 255, pixels × persons × poses × lights, of square images whose pixels are "
            f"counted down the columns; got shape {tensor.shape}."
        )
    return tensor


def _errors(estimate: Array, clean: Array) -> dict[str, float]:
    return {"rrse": rrse(estimate, clean), "psnr": psnr(estimate, clean)}


def _numbers(trial: Trial, clean: Array) -> dict[str, Any]:
    """What the table shows of a fit; the estimate is not clipped to 0 … 255."""
    found = trial.found
    numbers = {"value": trial.value, "rank": found.rank, "seconds": trial.seconds}
    return numbers | _errors(255.0 * found.low_rank, clean)


def _mosaic(faces: Array) -> Picture:
    """Two persons under two lights in all poses, as in the paper: a row each."""
    side = int(np.sqrt(len(faces)))
    persons, lights = (0, faces.shape[1] // 2), (faces.shape[3] // 4, (3 * faces.shape[3]) // 4)
    rows = [
        np.hstack([faces[:, person, pose, light].reshape(side, side).T for pose in range(faces.shape[2])])
        for person in persons
        for light in lights
    ]
    return np.clip(np.rint(np.vstack(rows)), 0, 255).astype(np.uint8)


TITLE = "Fig. 6 and Table 3: faces"
LABELS = {"brtf-replacement": "BRTF, calibrated, values replaced"}
"""A method that only this experiment has: its outliers replace the values of pixels."""


def render(rows: Sequence[Row], store: Rows) -> Section:
    """Pictures side by side and the table; the paper's numbers only beside faces that the user gave."""
    generated = rows[0].settings["source"] == GENERATED
    data = next(row for row in rows if row.settings["method"] == "data")
    if data.numbers is None:
        return Section("faces", TITLE, [f"The faces could not be read: {data.error}"])
    found = data.numbers
    shape = " × ".join(map(str, found["shape"]))
    noisy = f"Noisy, they have RRSE {number(found['rrse'], 3)} and PSNR {number(found['psnr'], 4)} dB."
    about = (
        f"A generated stand-in, not the paper’s faces: drawn heads, {shape} (pixels × persons × poses × lights), whose "
        "numbers cannot be compared with the paper’s. Give photographs with --faces to see them side by side."
        if generated
        else f"The faces {rows[0].settings['source']}, {shape} (pixels × persons × poses × lights); the paper’s are "
        "1024 × 30 × 5 × 10."
    )
    noise = (
        f"Photon noise, then a tenth of the pixels black or white. {noisy} BRTF starts from rank "
        f"{data.settings['max_rank']}. In the paper CP-ALS takes BRTF’s rank and HOSVD Tucker-ARD’s; here they are "
        "tuned, which helps them. “Values replaced” assumes, correctly, that outliers replace the values. One draw. "
        "Errors are those of unclipped estimates."
    )
    columns = {"clean": [store.picture(data, "clean")], "noisy": [store.picture(data, "noisy")]}
    for line in _lines():
        row = _row(rows, line)
        if row is not None and row.pictures and (line.column == "told" or _is_untuned(line)):
            columns[line.label.removesuffix(", tuned by the truth")] = [store.picture(row, "told")]
    picture = collage(columns, [""], columns_wide=-(-len(columns) // 2))
    return Section(
        "faces",
        TITLE,
        [about, noise],
        _verdicts(rows),
        [Figure("faces", picture, "Two persons under two lights in five poses; parameters tuned by the truth")],
        [_table(rows, paper=not generated)],
    )


def _is_untuned(line: Line) -> bool:
    return line.method not in GRIDS


def _lines() -> list[Line]:
    return lines(METHODS, LABELS)


def _row(rows: Sequence[Row], line: Line) -> Row | None:
    return next((row for row in rows if row.settings["method"] == line.method), None)


def _numbers_of(rows: Sequence[Row], line: Line) -> Mapping[str, Any]:
    row = _row(rows, line)
    return row.numbers[line.column] if row is not None and row.numbers else {}


def _table(rows: Sequence[Row], *, paper: bool) -> Table:
    """A line per method, with the paper's numbers next to methods that it tuned in the same way."""
    header = ["", "RRSE", "PSNR, dB", "rank", "seconds of the fit"]
    header += ["paper: RRSE", "PSNR", "rank", "seconds"] if paper else []
    body = []
    for line in _lines():
        row, found = _row(rows, line), _numbers_of(rows, line)
        cells = [Cell(number(found["rrse"], 3)), Cell(f"{found['psnr']:.2f}")] if found else [NONE, NONE]
        if row is not None and row.error:
            cells[0] = Cell("failed", row.error, "bad")
        cells += [Cell(rank_text(found["rank"])), Cell(number(found["seconds"], 2))] if found else [NONE, NONE]
        if paper:
            printed = TABLE3.get(line.method)
            beside = line.column == "told" or _is_untuned(line)
            numbers = (printed.rrse, printed.psnr, printed.rank, printed.seconds) if printed and beside else (None,) * 4
            cells += [NONE if value is None else Cell(str(value)) for value in numbers]
        body.append([Cell(line.label), *cells])
    errors = [_numbers_of(rows, line).get("rrse") for line in _lines()]
    mark_best(body, [True] * len(body), 1, errors)
    mark_best(body, [True] * len(body), 2, [None if e is None else -e for e in errors], largest=True)
    return Table(header, body, "Recovery of the clean faces")


def _medians(rows: Sequence[Row], measure: str = "rrse") -> dict[str, float]:
    return {line.label: found[measure] for line in _lines() if (found := _numbers_of(rows, line))}


def _verdicts(rows: Sequence[Row]) -> list[Verdict]:
    errors = _medians(rows)
    labels = {line.method: line.label for line in _lines() if line.kind == "ours"}
    others = {label: error for label, error in errors.items() if label not in labels.values()}
    ours = {label: error for label, error in errors.items() if label in (labels["brtf"], labels["brtf-replacement"])}
    if not ours or not others:
        return []
    rival = min(others, key=lambda label: others[label])
    named = " and ".join(f"{label} has RRSE {number(error, 3)}" for label, error in ours.items())
    found = [
        Verdict(
            f"The paper says that BRTF is best, ahead of HORPCA tuned by the truth. Here {named}; the best of the "
            f"others, {rival}, has {number(others[rival], 3)}.",
            "good" if max(ours.values()) < others[rival] else "bad",
        )
    ]
    if labels["brtf-paper"] in errors:
        theirs = errors[labels["brtf-paper"]]
        found.append(
            Verdict(
                f"The paper’s inference ends at RRSE {number(theirs, 3)}.", "good" if theirs < others[rival] else "bad"
            )
        )
    return found


def losses(rows: Sequence[Row]) -> list[Loss]:
    """The cells where ours, with defaults, is not the best."""
    ours = next(line.label for line in _lines() if line.method == "brtf")
    if ours not in _medians(rows):
        return []
    found = [
        loss("Faces", "RRSE", _medians(rows), ours, _reason),
        loss("Faces", "seconds", _medians(rows, "seconds"), ours, lambda who, factor: SEARCHES),
    ]
    return [entry for entry in found if entry]


def _reason(who: str, factor: float) -> str:
    if who == LABELS["brtf-replacement"]:
        return "This is BRTF too, with outliers that replace the pixels’ values, as they do in these data."
    return UNKNOWN
