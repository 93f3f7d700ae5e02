"""Held-out accuracy on real data: parking occupancy, metro flows, surveillance video, fluorescence.

Run ``make real`` or ``python benchmarks/real_data.py [--plain] [--no-modes] [--data DIR] [--only TEXT]``. The data are
not part of the project; sets that are not found are skipped with a message. Every fit is one line, and nothing is tuned
on the truth:

- Birmingham parking (30 × 77 × 18) and Hangzhou metro (80 × 25 × 108): random entries hidden by the masks of the
  published comparison (github.com/xinychen/transdim), RMSE and MAPE on them;
- CDnet "highway", half size: grey, pixels × frames (19200 × 151), and every fourth frame in colour, pixels × colours ×
  frames (19200 × 3 × 76), noise per pixel, outliers shared by the colours; the mask is outlier_probability > ½;
- CMU PIE faces (1024 × 10 × 5 × 10, pixels × persons × poses × lights) with Poisson noise and 10 % salt and pepper:
  error against the clean images;
- claus (5 × 201 × 61): correlation of the three scores with the known concentrations;
- sugar (268 × 53 × 7): half of the entries hidden, coverage of 95 % intervals and log predictive density.
"""

from __future__ import annotations

import argparse
import io
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.optimize import linear_sum_assignment

from brtf import BRTF
from brtf.metrics import best_f_measure, f_measure, psnr, rrse
from pictures import draw_rows

Array = NDArray[Any]
PARTS = ("input", "groundtruth")
SHOWN_FRAMES = (10, 35, 60)
PICTURES: Path | None = None
"""The folder for pictures; None draws none."""
PLAIN_SECONDS = 60
"""The time limit of the fits to which nothing else is said."""


def fit(observed: Array, **options: Any) -> tuple[BRTF, float]:
    """A fitted model and the seconds it took; reaching max_sweeps is not an error here."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BRTF(random_state=0, **options).fit(observed)
    return model, time.perf_counter() - started


def held_out(model: BRTF, truth: Array, hidden: NDArray[np.bool_]) -> str:
    """Coverage of 95 % intervals and mean log density of the hidden entries."""
    low, high = model.predict_interval(of="observation")
    covered = np.mean((low <= truth)[hidden] & (truth <= high)[hidden])
    return f"coverage {covered:.3f}, log density {model.score(np.where(hidden, truth, np.nan)):.2f}"


def modes_found(model: BRTF) -> str:
    """What the fit takes the modes to be, where that was asked."""
    if model.modes is None:
        return ""
    found = [f"mode {mode} {' and '.join(words)}" for mode, words in model.modes_.items() if words != ("unordered",)]
    if model.smooth_residual_ is not None:
        found.append(f"smooth courses along mode {model.smooth_residual_}")
    return ", " + (", ".join(found) or "no order")


def hide(data: Path, name: str, missing: float) -> tuple[Array, NDArray[np.bool_]]:
    """A traffic tensor, zero where the original is missing, and a mask of the entries that are shown."""
    truth = loadmat(data / "traffic" / f"{name}_tensor.mat")["tensor"].astype(float)
    if name == "Birmingham":
        uniform = np.random.RandomState(1000).rand(*truth.shape)  # the mask of the published figures
    else:
        uniform = loadmat(data / "traffic" / f"{name}_random_tensor.mat")["random_tensor"]
    return truth, truth * np.round(uniform + 0.5 - missing) != 0


def traffic(data: Path, name: str, missing: float, **options: Any) -> str:
    """Imputation of randomly hidden entries."""
    truth, seen = hide(data, name, missing)
    hidden = (truth != 0) & ~seen
    model, seconds = fit(np.where(seen, truth, np.nan), **options)
    if PICTURES is not None and name == "Birmingham" and missing == 0.4:
        draw_day(model, truth, seen, PICTURES / "real-parking.png")
    error = (model.predict(of="signal") - truth)[hidden]
    mape = np.mean(np.abs(error) / truth[hidden])
    return (
        f"RMSE {np.sqrt(np.mean(error**2)):.2f}, MAPE {mape:.4f}, rank {model.rank_}, "
        f"{held_out(model, truth, hidden)}, {seconds:.0f} s{modes_found(model)}"
    )


def highway(data: Path, **options: Any) -> str:
    """Foreground of a surveillance clip, by the model's own decision."""
    with np.load(data / "cdnet_highway" / "highway_gray_half.npz") as clip:
        video, labels = clip["video"].astype(np.float32), clip["gt"]
    pixels = video.reshape(-1, video.shape[-1])
    return foreground(pixels, labels.reshape(pixels.shape), **options)


def colour_highway(data: Path, **options: Any) -> str:
    """Foreground of every fourth frame of the clip in colour, by the model's own decision."""
    from PIL import Image

    with zipfile.ZipFile(data / "cdnet_highway" / "highway_frames.zip") as clip:
        names = [sorted(n for n in clip.namelist() if f"{part}/" in n and n[-4:] in (".jpg", ".png")) for part in PARTS]
        frames, masks = [], []
        for frame, mask in list(zip(*names, strict=True))[::4]:
            frames.append(np.asarray(Image.open(io.BytesIO(clip.read(frame))).resize((160, 120), Image.Resampling.BOX)))
            small = Image.open(io.BytesIO(clip.read(mask))).resize((160, 120), Image.Resampling.NEAREST)
            masks.append(np.asarray(small))
    pixels = np.stack(frames, axis=-1).reshape(120 * 160, 3, -1).astype(np.float32)
    return foreground(pixels, np.stack(masks, axis=-1).reshape(120 * 160, -1), **options)


def foreground(pixels: Array, labels: Array, **options: Any) -> str:
    """F-measure of the model's own decision, beside distances from the median frame."""
    moving, ignored = labels == 255, (labels == 85) | (labels == 170)
    distance = np.abs(pixels - np.median(pixels, axis=-1, keepdims=True))
    robust = distance / (1.4826 * np.median(distance, axis=-1, keepdims=True) + 1)
    model, seconds = fit(pixels, **options)
    probability = model.outlier_probability()
    if PICTURES is not None and pixels.ndim == 3:
        draw_frames(model, pixels, probability, labels, PICTURES / "real-highway.png")
    if pixels.ndim == 3:
        probability, distance, robust = probability.max(axis=1), distance.max(axis=1), robust.max(axis=1)
    own = f_measure(probability > 0.5, moving, ignore=ignored)
    median = best_f_measure(distance, moving, ignore=ignored)[0]
    scaled = f_measure(robust > 3, moving, ignore=ignored)
    return (
        f"F {own:.3f} (median background at its best threshold {median:.3f}, per-pixel MAD at z > 3 {scaled:.3f}), "
        f"rank {model.rank_}, "
        f"outlier rate {model.outlier_rate_:.3f}, {seconds:.0f} s"
    )


def faces(data: Path, **options: Any) -> str:
    """Faces with photon noise and salt and pepper, against the clean ones."""
    with np.load(data / "pie_faces" / "pie_1024x10x5x21.npz") as content:
        clean = content["X"][:, :, :, :10].astype(float)
    rng = np.random.default_rng(0)
    hit = rng.random(clean.shape) < 0.1
    noisy = np.where(hit, np.where(rng.random(clean.shape) < 0.5, 0.0, 255.0), rng.poisson(clean))
    model, seconds = fit(noisy, **options)
    flagged = model.outlier_probability() > 0.5
    if PICTURES is not None:
        draw_faces(model, clean, noisy, PICTURES / "real-faces.png")
    return (
        f"RRSE {rrse(model.low_rank(), clean):.4f}, PSNR {psnr(model.low_rank(), clean):.2f} dB, rank {model.rank_}, "
        f"{flagged[hit].mean():.3f} of the hits and {flagged[~hit].mean():.4f} of the others flagged, {seconds:.0f} s"
    )


def draw_frames(model: BRTF, pixels: Array, probability: Array, labels: Array, path: Path) -> None:
    """Three frames: data, background, the model's own mask, the true one."""
    background = np.clip(model.low_rank(), 0, 255).astype(np.uint8)
    rows = [
        (
            pixels[:, :, frame].reshape(120, 160, 3).astype(np.uint8),
            background[:, :, frame].reshape(120, 160, 3),
            (probability[:, 0, frame] > 0.5).reshape(120, 160),
            (labels[:, frame] == 255).reshape(120, 160),
        )
        for frame in SHOWN_FRAMES
    ]
    titles = ("data", "background", "mask", "true mask")
    draw_rows(rows, titles, path, [f"frame {frame}" for frame in SHOWN_FRAMES])


def draw_faces(model: BRTF, clean: Array, noisy: Array, path: Path) -> None:
    """Six images: with noise, recovered, clean."""
    places = [*((person, column, 3 + column) for column, person in enumerate(range(0, 10, 2))), (9, 2, 9)]
    tensors = {"noisy": noisy, "recovered": model.low_rank(), "clean": clean}
    rows = [
        [tensor[:, person, pose, light].reshape(32, 32).T for person, pose, light in places]
        for tensor in tensors.values()
    ]
    draw_rows(rows, [f"person {person + 1}" for person, _, _ in places], path, list(tensors))


def draw_day(model: BRTF, truth: Array, seen: NDArray[np.bool_], path: Path) -> None:
    """A day of four car parks: what was seen, what was hidden, and the band meant to hold 95 % of it."""
    import matplotlib.pyplot as plt

    low, high = model.predict_interval(of="observation")
    middle = model.low_rank()
    day, hours = 40, 8 + 0.5 * np.arange(truth.shape[2])
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.7), layout="constrained")
    for axis, place in zip(axes, (2, 8, 15, 24), strict=True):
        shown, hidden = seen[place, day], (truth[place, day] != 0) & ~seen[place, day]
        axis.fill_between(hours, low[place, day], high[place, day], alpha=0.2, lw=0, label="95 % band")
        axis.plot(hours, middle[place, day], lw=1, label="low-rank part")
        axis.plot(hours[shown], truth[place, day][shown], "k.", ms=5, label="seen")
        axis.plot(hours[hidden], truth[place, day][hidden], "o", mfc="none", ms=5, color="tab:red", label="hidden")
        axis.set(xlabel="hour", title=f"car park {place}")
    axes[0].set_ylabel("cars")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def claus(data: Path, **options: Any) -> str:
    """Scores of three fluorophores against their known concentrations."""
    content = loadmat(data / "chemometrics" / "claus.mat")
    model, seconds = fit(content["X"].astype(float), **options)
    found = score_correlations(model.factors_[0], content["y"].astype(float))
    scores = ", ".join(f"{value:.4f}" for value in found)
    return f"correlations {scores}, rank {model.rank_}, {seconds:.1f} s{modes_found(model)}"


def score_correlations(scores: Array, known: Array) -> list[float]:
    """The correlation of each known concentration with its best-matching score; no score is used twice."""
    agreement = np.abs(np.corrcoef(scores.T, known.T)[: scores.shape[1], scores.shape[1] :])
    found = [0.0] * known.shape[1]  # a concentration for which no score is left
    for score, concentration in zip(*linear_sum_assignment(agreement, maximize=True), strict=True):
        found[concentration] = float(agreement[score, concentration])
    return found


def sugar(data: Path, **options: Any) -> str:
    """Prediction of half of the entries from the other half."""
    truth = loadmat(data / "chemometrics" / "sugar.mat")["X"].astype(float)
    truth = truth.reshape(268, 53, 7) if truth.ndim == 2 else truth
    hidden = (np.random.default_rng(0).random(truth.shape) < 0.5) & ~np.isnan(truth)
    model, seconds = fit(np.where(hidden, np.nan, truth), **options)
    return f"rank {model.rank_}, {held_out(model, np.nan_to_num(truth), hidden)}, {seconds:.0f} s{modes_found(model)}"


def jobs(data: Path, *, plain: bool, no_modes: bool) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """The lines of a table: name, settings and the function that measures.

    If ``plain``, nothing is said but a limit, and with ``no_modes`` that rows are in no order.
    """

    def job(name: str, measure: Callable[..., str], *which: Any, **options: Any) -> tuple[str, str, Callable[[], str]]:
        options = {"max_seconds": PLAIN_SECONDS} if plain else options
        if no_modes:
            options |= {"modes": None}
        settings = ", ".join(f"{key}={value!r}" for key, value in options.items())
        return name, f"BRTF({settings})", lambda: measure(data, *which, **options)

    for missing in (0.4, 0.6):
        yield job(f"Birmingham, {missing:.0%} hidden", traffic, "Birmingham", missing, max_rank=100)
    for missing in (0.4, 0.6):
        options = {"max_rank": 40, "link": "sqrt"}
        yield job(f"Hangzhou, {missing:.0%} hidden", traffic, "Hangzhou", missing, **options)
    yield job("CDnet highway, grey", highway, max_rank=2, noise="per-slice")
    options = {"max_rank": 3, "noise": "per-slice", "outlier_modes": (1,), "max_sweeps": 200}
    yield job("CDnet highway, colour", colour_highway, **options)
    yield job("PIE faces, salt and pepper", faces, max_rank=300, outlier_kind="replacement")
    yield job("claus", claus, max_rank=3, robust=False)
    yield job("sugar, half hidden", sugar, max_rank=20, noise="auto")


def main() -> None:
    global PICTURES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--only", default="", help="only sets whose name contains this text")
    parser.add_argument("--plain", action="store_true", help="say nothing to the fits but a time limit")
    parser.add_argument("--no-modes", action="store_true", help="rows are in no order, and loadings have either sign")
    parser.add_argument("--pictures", type=Path, help="also draw frames, faces and a day of parking into this folder")
    options = parser.parse_args()
    PICTURES = options.pictures
    print("| data | settings | held out |\n| --- | --- | --- |", flush=True)
    for name, settings, measure in jobs(options.data, plain=options.plain, no_modes=options.no_modes):
        if options.only.lower() in name.lower():
            try:
                print(f"| {name} | `{settings}` | {measure()} |", flush=True)
            except OSError as error:
                print(f"| {name} | `{settings}` | skipped: {error} |", flush=True)


if __name__ == "__main__":
    main()
