"""Fig. 4 and 5: background and foreground of a clip, complete and with nine pixels in ten missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brtf.api.estimator import BRTF
from brtf.api.metrics import best_f_measure, f_measure, rrse
from brtf.api.toy_video import ToyVideo, toy_video
from brtf.research.baselines.algebra import Array
from brtf.research.baselines.registry import Mask
from brtf.research.experiments.contenders import honest, trials
from brtf.research.experiments.figures import collage
from brtf.research.experiments.lines import NONE, SEARCHES, UNKNOWN, Loss, chosen, loss, mark_best, rank_text
from brtf.research.experiments.runs import GENERATED, Case, Inputs, Measured, Picture, Row, Rows, source_of
from brtf.video.clips import LUMA, Clip, read_clip
from brtf.video.foreground import foreground_probability, smooth_mask
from brtf.view.report.document import Cell, Figure, Section, Table, Verdict
from brtf.view.report.svg import number

RANKS = (1, 2, 3)
OUTLIER_FRACTION = 0.1
OURS: dict[str, dict[str, Any]] = {
    "brtf": {"noise": "per-slice"},
    "brtf-paper": {"inference": "paper", "max_rank": 10},
}
"""Ours as `brtf video --low-rank` calls it, and as in the paper."""
BASELINES: dict[str, tuple[str | None, tuple[Any, ...], dict[str, Any]]] = {
    "pcp": (None, (), {}),
    "godec": ("rank", RANKS, {"outlier_fraction": OUTLIER_FRACTION}),
    "drmf": ("rank", RANKS, {"outlier_fraction": OUTLIER_FRACTION}),
    "regl1alm": ("rank", RANKS, {}),
    "vbrpca": (None, (), {}),
    "prmf": ("rank", RANKS, {}),
    "brmf": (None, (), {"rank": 4}),
    "decolor": ("max_rank", RANKS, {}),
    "horpca": ("sparsity", (1.0, 2.0, 4.0), {"tol": 1e-4, "max_sweeps": 300}),
}
"""The others in the order of the paper, HORPCA on the colours, the rest on grey levels: the parameter that
is tuned by held-out pixels, its values, and the other options."""
KNOW_MISSING = ("regl1alm", "prmf", "brmf", "horpca")
SHOWN = (0.3, 0.7)
"""Frames on the picture, as shares of the clip."""
MISSING = (0.0, 0.9)
SIZES = {True: (36, 48, 40), False: (48, 64, 60)}
"""Height, width and frames of the generated clip, quick and full."""


@dataclass(frozen=True, eq=False)
class Parted:
    """A clip split into background and foreground.

    Attributes
    ----------
    background : levels (pixels, colours, frames), or grey ones (pixels, frames)
    foreground : size of the outliers in levels, (pixels, frames)
    score, decided : what tells foreground from background, and the method's own decision, (pixels, frames)
    rank, seconds : of the fit
    """

    background: Array
    foreground: Array
    score: Array
    decided: Mask
    rank: Any
    seconds: float


def plan(quick: bool, seed: int, inputs: Inputs) -> list[Case]:
    """The clip itself and every method on it, complete and with missing pixels."""
    source = source_of("clip", inputs)
    clip = {"source": source} | ({"size": list(SIZES[quick])} if source == GENERATED else {})
    return [
        Case("video", {**clip, "missing": missing, "method": method, "seed": seed})
        for missing in MISSING
        for method in ("data", *(BASELINES if missing == 0 else KNOW_MISSING), *OURS)
    ]


def measure(settings: Mapping[str, Any], inputs: Inputs) -> Measured:
    """Background and foreground by one method; for the generated clip also their errors."""
    truth = None
    if settings["source"] == GENERATED:
        height, width, frames = settings["size"]
        truth = toy_video(height=height, width=width, frames=frames, missing=settings["missing"], seed=settings["seed"])
        clip = Clip(truth.observed.astype(np.float32), height, width)
    else:
        clip = read_clip(inputs["clip"], drop=settings["missing"], seed=settings["seed"])
    if settings["method"] == "data":
        return _describe(clip, truth)
    if settings["method"] in OURS:
        found = part_by_ours(clip, **OURS[settings["method"]])
    else:
        parameter, grid, told = BASELINES[settings["method"]]
        found = part_by_baseline(clip, settings["method"], parameter, grid, seed=settings["seed"], **told)
    numbers: dict[str, Any] = {"seconds": found.seconds, "rank": found.rank}
    if truth is not None:
        alive = ~truth.dead
        background = grey(found.background) if found.background.ndim == 3 else found.background
        seen = np.isfinite(clip.values[:, 0])
        ignore = ~seen | truth.dead[:, None]
        numbers["background_error"] = rrse(background[alive], grey(truth.background)[alive])
        numbers["f_told"] = best_f_measure(found.score, truth.foreground_mask, ignore=ignore)[0]
        if settings["method"] in (*OURS, "decolor"):  # the others leave the threshold to whoever looks at them
            numbers["f_own"] = f_measure(found.decided, truth.foreground_mask, ignore=ignore)
        if settings["method"] in OURS:
            probability = np.where(seen, found.score, np.nan).reshape(clip.height, clip.width, -1)
            whole = smooth_mask(probability).reshape(seen.shape)
            numbers["f_objects"] = f_measure(whole, truth.foreground_mask, ignore=ignore)
    return Measured(numbers, _pictures(clip, found.background, found.foreground))


def grey(values: Array) -> Array:
    """Grey levels (pixels, frames) of colours (pixels, 3, frames); of one channel, that channel."""
    return values[:, 0] if values.shape[1] == 1 else np.einsum("pcf,c->pf", values, LUMA)


def shown_frames(n_frames: int) -> list[int]:
    """The frames that the picture shows."""
    return [int(share * (n_frames - 1)) for share in SHOWN]


def part_by_ours(clip: Clip, **options: Any) -> Parted:
    """Split a clip with BRTF; the score is the probability of an outlier."""
    if "inference" not in options:
        shared = None if clip.tensor.ndim == 2 else (1,)
        options = {"max_rank": max(2, clip.n_channels), "outlier_modes": shared} | options
    model = BRTF(random_state=0, **options).fit(clip.tensor)
    probability = np.nan_to_num(foreground_probability(model, clip).reshape(-1, clip.n_frames))
    size = _size(np.nan_to_num(model.outliers()))
    seconds = model.result_.seconds
    return Parted(model.low_rank(), size, probability, probability > 0.5, model.rank_, seconds)


def part_by_baseline(
    clip: Clip, method: str, parameter: str | None = None, grid: Sequence[Any] = (), *, seed: int = 0, **told: Any
) -> Parted:
    """Split a clip with another method; the score is the size of an outlier, and seconds are for one fit."""
    if method == "decolor":
        told = told | {"frame_shape": (clip.height, clip.width)}
    levels = clip.tensor.astype(np.float64) if method == "horpca" else grey(clip.values.astype(np.float64))
    tried = trials(method, levels / 255.0, parameter, grid, seed=seed, **told)
    trial = tried[honest(tried)]
    outliers = np.zeros(levels.shape) if trial.found.outliers is None else trial.found.outliers
    size = 255.0 * _size(outliers)
    return Parted(255.0 * trial.found.low_rank, size, size, size > 0, trial.found.rank, trial.seconds)


def _size(outliers: Array) -> Array:
    """The size of outliers per pixel of each frame: the largest over the colours."""
    size = np.abs(outliers)
    return size if size.ndim == 2 else size.max(axis=1)


def _describe(clip: Clip, truth: ToyVideo | None) -> Measured:
    """The clip itself, and where it is known, its true background and foreground."""
    numbers = {"shape": list(clip.values.shape), "height": clip.height, "width": clip.width}
    shown = np.nan_to_num(clip.values.astype(np.float64))
    if truth is None:
        return Measured(numbers, _pictures(clip, shown, np.zeros((len(shown), clip.n_frames))))
    pictures = _pictures(clip, truth.background, truth.foreground_mask.astype(np.float64))
    originals = _pictures(clip, shown, np.zeros((len(shown), clip.n_frames)))
    return Measured(numbers, {f"true-{name}": picture for name, picture in pictures.items()} | originals)


def _pictures(clip: Clip, background: Array, foreground: Array) -> dict[str, Picture]:
    """The frames to be shown: the background as it is, the foreground from black to white."""
    brightest = float(np.quantile(foreground[foreground > 0], 0.98)) if (foreground > 0).any() else 1.0
    pictures = {}
    for k, frame in enumerate(shown_frames(clip.n_frames)):
        levels = background[..., frame].reshape(clip.height, clip.width, -1).squeeze()
        pictures[f"background-{k}"] = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        bright = foreground[:, frame].reshape(clip.height, clip.width) / brightest
        pictures[f"foreground-{k}"] = np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8)
    return pictures


TITLE = "Fig. 4 and 5: background of a video"
LABELS = {
    "pcp": "PCP",
    "godec": "GoDec",
    "drmf": "DRMF",
    "regl1alm": "RegL1ALM",
    "vbrpca": "VBRPCA",
    "prmf": "PRMF",
    "brmf": "BRMF",
    "decolor": "DECOLOR",
    "horpca": "HORPCA",
    "brtf": "BRTF, calibrated",
    "brtf-paper": "BRTF, as in the paper",
}
MEASURES = {
    "background_error": "background RRSE, grey",
    "f_own": "F, own decision",
    "f_told": "F, threshold by the truth",
    "f_objects": "F, whole objects",
}
SCORES = (
    "F is for the foreground over observed pixels: for the method’s own decision if it makes one, for the "
    "threshold on |S| that is best in hindsight, and for ours also for whole objects, as brtf video --low-rank --clean "
    "finds them."
)
WORDS = {0.0: "all pixels observed", 0.9: "nine pixels in ten missing"}


def render(rows: Sequence[Row], store: Rows) -> Section:
    """Pictures side by side; for the generated clip also their errors."""
    generated = rows[0].settings["source"] == GENERATED
    data = next(row for row in rows if row.settings["method"] == "data")
    if data.numbers is None:
        return Section("video", TITLE, [f"The clip could not be read: {data.error}"])
    described = data.numbers
    size = f"{described['width']} × {described['height']} pixels, {described['shape'][2]} frames"
    clip = (
        f"A generated clip ({size}), not one of the paper’s: a scene under flickering light, three moving objects, "
        "a noise level per pixel, and stuck sensors. Its background and foreground are known. It "
        "suits ours: noise per pixel is what ours assumes, and its rank of 3 is the largest that ours considers, one "
        "component per colour. One draw."
        if generated
        else f"The clip {rows[0].settings['source']} ({size}). Its true background is not known: look at the pictures."
    )
    figures, tables = [], []
    for missing, words in WORDS.items():
        some = chosen(rows, missing=missing)
        figures.append(
            Figure(f"video-{100 * missing:g}", _side_by_side(some, store), f"Background and foreground, {words}")
        )
        tables.append(_table(some, words, MEASURES if generated else {}))
    return Section(
        "video",
        TITLE,
        [
            clip,
            "Matrix methods see grey levels, HORPCA and ours the colours, if there are any. Ranks and weights of the "
            "others are chosen by pixels that they were not shown. Ours is called as brtf video --low-rank does it "
            "(a noise level per pixel, outliers shared by the colours), and as in the paper from rank 10. Missing "
            "pixels lose all colours.",
            *([SCORES] if generated else []),
        ],
        _verdicts(rows) if generated else [],
        figures,
        tables,
    )


def _table(rows: Sequence[Row], words: str, measures: Mapping[str, str]) -> Table:
    """A line per method, with these measures, rank and seconds."""
    shown = [row for row in rows if row.settings["method"] != "data"]
    body = []
    for row in shown:
        found = row.numbers or {}
        cells = [Cell(number(found[name], 3)) if name in found else NONE for name in measures]
        cells.append(Cell(rank_text(found["rank"])) if "rank" in found else NONE)
        cells.append(Cell(number(found["seconds"], 2)) if "seconds" in found else NONE)
        if row.error:
            cells[0] = Cell("failed", row.error, "bad")
        body.append([Cell(LABELS[row.settings["method"]]), *cells])
    for column, name in enumerate(measures, start=1):
        if name == "f_objects":  # which only ours have
            continue
        numbers = [(row.numbers or {}).get(name) for row in shown]
        mark_best(body, [True] * len(body), column, numbers, largest=name != "background_error")
    return Table(("", *measures.values(), "rank", "seconds"), body, words[0].upper() + words[1:])


def _side_by_side(rows: Sequence[Row], store: Rows) -> bytes:
    """The clip, its truth where it is known, and every method: background above foreground for every frame shown."""
    names = [f"{part}-{k}" for k in range(len(SHOWN)) for part in ("background", "foreground")]
    columns: dict[str, list[Picture | None]] = {}
    for row in rows:
        if row.settings["method"] == "data":
            originals = [store.picture(row, name) if name.startswith("background") else None for name in names]
            columns["clip"] = originals
            if f"true-{names[0]}" in row.pictures:
                columns["truth"] = [store.picture(row, f"true-{name}") for name in names]
        elif row.pictures:
            columns[LABELS[row.settings["method"]]] = [store.picture(row, name) for name in names]
    ordered = {name: columns[name] for name in (*("clip", "truth"), *LABELS.values()) if name in columns}
    wide = len(ordered) if len(ordered) <= 8 else -(-len(ordered) // 2)
    return collage(ordered, [name.split("-")[0] for name in names], columns_wide=wide)


def _verdicts(rows: Sequence[Row]) -> list[Verdict]:
    found = []
    for missing, words in WORDS.items():
        numbers = {row.settings["method"]: row.numbers for row in chosen(rows, missing=missing) if row.numbers}
        if "brtf" not in numbers:
            continue
        ours = numbers["brtf"]
        others = {name: entry for name, entry in numbers.items() if name not in (*OURS, "data")}
        nearest = min(others, key=lambda name: others[name]["background_error"])
        sharpest = max(others, key=lambda name: others[name]["f_told"])
        better = (
            ours["background_error"] < others[nearest]["background_error"]
            and ours["f_own"] > others[sharpest]["f_told"]
        )
        found.append(
            Verdict(
                f"With {words}, the background of calibrated inference is off by "
                f"{number(ours['background_error'], 3)} and its foreground, at its own decision, has F = "
                f"{number(ours['f_own'], 3)}; the nearest of the others are {LABELS[nearest]} with "
                f"{number(others[nearest]['background_error'], 3)} and {LABELS[sharpest]} with F = "
                f"{number(others[sharpest]['f_told'], 3)} at the best threshold in hindsight.",
                "good" if better else "bad",
            )
        )
        if ours["f_objects"] < ours["f_own"]:
            found.append(
                Verdict(
                    f"Joining pixels into whole objects there lowers F from {number(ours['f_own'], 3)} to "
                    f"{number(ours['f_objects'], 3)}.",
                    "bad",
                )
            )
        if "brtf-paper" in numbers:
            theirs = numbers["brtf-paper"]
            found.append(
                Verdict(
                    f"The paper’s inference finds rank {theirs['rank']} of 3 there: background "
                    f"{number(theirs['background_error'], 3)}, F = {number(theirs['f_own'], 3)}.",
                    "bad" if theirs["rank"] != 3 else "good",
                )
            )
    return found


def losses(rows: Sequence[Row]) -> list[Loss]:
    """The cells where ours is not the best; F of our own decision against the best thresholds in hindsight."""
    found = []
    for missing, words in WORDS.items():
        numbers = {row.settings["method"]: row.numbers for row in chosen(rows, missing=missing) if row.numbers}
        if "background_error" not in numbers.get("brtf", {}):
            continue
        backgrounds = {LABELS[name]: entry["background_error"] for name, entry in numbers.items() if name in LABELS}
        f_measures = {
            LABELS[name]: entry["f_own" if name == "brtf" else "f_told"]
            for name, entry in numbers.items()
            if name in LABELS
        }
        seconds = {LABELS[name]: entry["seconds"] for name, entry in numbers.items() if name in LABELS}
        found += [
            loss(f"Video, {words}", "background RRSE", backgrounds, LABELS["brtf"], lambda who, factor: UNKNOWN),
            loss(f"Video, {words}", "F", f_measures, LABELS["brtf"], _why_foreground, largest=True),
            loss(f"Video, {words}", "seconds", seconds, LABELS["brtf"], lambda who, factor: SEARCHES),
        ]
    return [entry for entry in found if entry]


def _why_foreground(who: str, factor: float) -> str:
    return UNKNOWN if "paper" in who else "Its threshold is the best in hindsight; ours comes from the model."
