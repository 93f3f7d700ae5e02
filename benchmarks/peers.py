"""How brtf compares with libraries that people use for the same tasks, on generated data with a known truth.

Run ``make peers``, or ``python benchmarks/peers.py --seeds 5 [--only gaps] [--write docs/peers.md]``. Libraries that
are not installed are left out and named. The others are told what brtf has to find out: the rank, and the share of
anomalies. Seconds are CPU time of one thread, after a first call that compiles or loads what is needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import brtf
from brtf.metrics import coverage, f_measure

BEGIN, END = "<!-- measured by benchmarks/peers.py -->", "<!-- end of what was measured -->"
Array = np.ndarray


def traffic(seed: int) -> tuple[Array, Array]:
    """Roads × days × hours: three rhythms, noise, one count in fifty wrong, seven in ten missing; and the truth."""
    rng = np.random.default_rng(seed)
    hours, days = np.arange(24), np.arange(28)

    def peak(centre: float, width: float) -> Array:
        return np.exp(-0.5 * ((hours - centre) / width) ** 2)

    by_hour = np.column_stack([peak(8, 1.3) + peak(17.5, 1.8), peak(14, 3.5), peak(1, 3) + peak(25, 3)])
    working = (days % 7 < 5)[:, None]
    by_day = np.where(working, [1.0, 0.35, 0.8], [0.15, 1.0, 0.4]) * rng.uniform(0.7, 1.3, (days.size, 3))
    truth = np.einsum("ir,jr,kr->ijk", rng.uniform(0.1, 1, (20, 3)) * [600, 350, 250], by_day, by_hour)
    counts = truth + rng.normal(0, 25, truth.shape)
    wrong = rng.uniform(size=truth.shape) < 0.02
    counts[wrong] = rng.uniform(0, 800, wrong.sum())
    counts[rng.uniform(size=truth.shape) < 0.7] = np.nan
    return counts, truth


def machines(seed: int) -> tuple[Array, Array]:
    """Samples × sensors: four causes, noise of each sensor, a tenth missing; 15 of 300 samples are broken."""
    rng = np.random.default_rng(seed)
    causes, effects = rng.normal(size=(300, 4)), rng.normal(size=(4, 20))
    normal = causes @ effects
    readings = normal + rng.normal(size=normal.shape) * rng.uniform(0.1, 0.5, 20)
    broken = np.zeros(300, dtype=bool)
    broken[rng.choice(300, 15, replace=False)] = True
    affected = rng.uniform(size=(15, 20)) < 0.3
    readings[broken] += affected * rng.normal(0, 3, (15, 20))
    readings *= rng.uniform(0.1, 10, 20)  # every sensor in its own unit
    readings[rng.uniform(size=readings.shape) < 0.1] = np.nan
    return readings, broken


def clusters(seed: int) -> tuple[Array, Array]:
    """Samples × features: six clusters, which no few causes explain, and 15 of 300 samples anywhere between them."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-5, 5, (6, 6))
    samples = centres[rng.integers(6, size=300)] + rng.normal(0, 0.5, (300, 6))
    odd = np.zeros(300, dtype=bool)
    odd[rng.choice(300, 15, replace=False)] = True
    samples[odd] = rng.uniform(-5, 5, (15, 6))
    return samples, odd


def spoiled_tensor(seed: int) -> tuple[Array, Array]:
    """A complete 30 × 30 × 30 tensor of rank 3, one entry in ten far off; and the truth."""
    data = brtf.datasets.paper_synthetic(outliers=0.1, missing=0.0, seed=seed)
    return data.observed, data.low_rank


def filmed(seed: int) -> tuple[Array, Array]:
    """A grey clip (frames, height, width) of a flickering scene, and where objects are."""
    clip = brtf.datasets.toy_video(height=40, width=64, frames=60, missing=0.0, seed=seed)
    grey = np.einsum("c,pct->pt", brtf.video.LUMA, clip.observed)
    shape = (clip.height, clip.width, 60)
    return np.moveaxis(grey.reshape(shape), 2, 0), np.moveaxis(clip.foreground_mask.reshape(shape), 2, 0)


# Gaps. Every method returns the completed tensor, and brtf also its intervals.


def fill_brtf(counts: Array) -> tuple[Array, Any]:
    model = brtf.BRTF(random_state=0).fit(counts)
    return model.low_rank(), model.predict_interval()


def fill_tensorly(counts: Array) -> tuple[Array, Any]:
    import tensorly
    from tensorly.decomposition import parafac

    seen = ~np.isnan(counts)
    found = parafac(np.nan_to_num(counts), 3, mask=seen, n_iter_max=500, init="random", random_state=0)
    return tensorly.cp_to_tensor(found), None


def fill_pyttb(counts: Array) -> tuple[Array, Any]:
    import pyttb

    seen = ~np.isnan(counts)
    rng = np.random.default_rng(0)
    model, _, _ = pyttb.gcp_opt(
        pyttb.tensor(np.nan_to_num(counts)),
        3,
        pyttb.gcp.handles.Objectives.GAUSSIAN,
        pyttb.gcp.optimizers.LBFGSB(maxiter=500),
        init=[rng.uniform(size=(length, 3)) for length in counts.shape],
        mask=pyttb.tensor(seen.astype(float)),
        printitn=0,
    )
    return model.full().data, None


def _by_days(counts: Array) -> Array:
    return counts.reshape(-1, counts.shape[2])


def fill_knn(counts: Array) -> tuple[Array, Any]:
    from sklearn.impute import KNNImputer

    filled = KNNImputer(keep_empty_features=True).fit_transform(_by_days(counts))
    return filled.reshape(counts.shape), None


def fill_iterative(counts: Array) -> tuple[Array, Any]:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    filled = IterativeImputer(random_state=0, max_iter=20).fit_transform(_by_days(counts))
    return filled.reshape(counts.shape), None


def fill_saits(counts: Array) -> tuple[Array, Any]:
    import torch
    from pypots.imputation import SAITS

    torch.manual_seed(0)
    torch.set_num_threads(1)
    scale = np.nanstd(counts)
    days = np.moveaxis(counts, 1, 0).swapaxes(1, 2) / scale  # a sample per day: hours × roads
    network = SAITS(24, 20, 2, 64, 4, 16, 16, 128, epochs=300, batch_size=14, device="cpu", verbose=False)
    network.fit({"X": days})
    filled = network.predict({"X": days})["imputation"]
    return np.moveaxis(filled.swapaxes(1, 2), 0, 1) * scale, None


# Spoiled entries. Every method returns the low-rank part.


def clean_brtf(tensor: Array) -> Array:
    return brtf.BRTF(random_state=0).fit(tensor).low_rank()


def clean_parafac(tensor: Array) -> Array:
    import tensorly
    from tensorly.decomposition import parafac

    return tensorly.cp_to_tensor(parafac(tensor, 3, n_iter_max=500, random_state=0))


def clean_robust_pca(tensor: Array, weight: float) -> Array:
    from tensorly.decomposition import robust_pca

    return robust_pca(tensor, reg_E=weight, verbose=0)[0]


def clean_cp_als(tensor: Array) -> Array:
    """The best of five starts, by the fit."""
    import pyttb

    rng = np.random.default_rng(0)
    starts = [pyttb.ktensor([rng.normal(size=(length, 3)) for length in tensor.shape]) for _ in range(5)]
    runs = [pyttb.cp_als(pyttb.tensor(tensor), 3, init=start, maxiters=500, printitn=0) for start in starts]
    return max(runs, key=lambda run: run[2]["fit"])[0].full().data


# Broken samples. Every method returns a score of every sample and what it calls an anomaly.


def judge_brtf(readings: Array) -> tuple[Array, Array]:
    detector = brtf.AnomalyDetector(random_state=0).fit(readings)
    return detector.decision_scores_, detector.labels_ == 1


def _filled(readings: Array) -> Array:
    """Medians for what is missing, and unit variance: what one does before methods that need complete tables."""
    filled = np.where(np.isnan(readings), np.nanmedian(readings, axis=0), readings)
    return filled / filled.std(axis=0)


def judge_forest(readings: Array) -> tuple[Array, Array]:
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(contamination=0.05, random_state=0).fit(_filled(readings))
    return -forest.score_samples(_filled(readings)), forest.predict(_filled(readings)) == -1


def _pyod(name: str) -> Callable[[Array], tuple[Array, Array]]:
    def judge(readings: Array) -> tuple[Array, Array]:
        module = __import__(f"pyod.models.{name.lower()}", fromlist=[name])
        detector = getattr(module, name)(contamination=0.05).fit(_filled(readings))
        return detector.decision_scores_, detector.labels_ == 1

    return judge


# Moving objects. Every method returns a mask (frames, height, width).


def watch_brtf(frames: Array) -> Array:
    clip = brtf.video.read_clip(frames)
    probability = brtf.foreground.foreground_probability(brtf.BRTF(random_state=0).fit(clip.tensor), clip)
    return np.moveaxis(probability > 0.5, 2, 0)


def watch_median(frames: Array) -> Array:
    off = np.abs(frames - np.median(frames, axis=0))
    return off > 3 * 1.4826 * np.median(off, axis=0)


def _opencv(name: str) -> Callable[[Array], Array]:
    def watch(frames: Array) -> Array:
        import cv2

        cv2.setNumThreads(1)
        subtractor = getattr(cv2, f"createBackgroundSubtractor{name}")(detectShadows=False)
        images = np.clip(np.round(frames), 0, 255).astype(np.uint8)
        for image in images:  # a first look at the clip; the second is judged
            subtractor.apply(image)
        return np.array([subtractor.apply(image) > 127 for image in images])

    return watch


GAPS = [
    ("brtf", "`brtf.BRTF()`", "nothing", fill_brtf),
    ("tensorly", "TensorLy `parafac(mask=…)`", "rank", fill_tensorly),
    ("pyttb", "pyttb `gcp_opt(mask=…)`", "rank", fill_pyttb),
    ("scikit-learn", "scikit-learn `IterativeImputer`", "days as rows", fill_iterative),
    ("scikit-learn", "scikit-learn `KNNImputer`", "days as rows", fill_knn),
    ("pypots", "PyPOTS `SAITS`, 300 epochs", "days as samples", fill_saits),
]
SPOILED = [
    ("brtf", "`brtf.BRTF()`", "nothing", clean_brtf),
    ("tensorly", "TensorLy `parafac`", "rank", clean_parafac),
    *(
        ("tensorly", f"TensorLy `robust_pca(reg_E={weight})`", "weight", partial(clean_robust_pca, weight=weight))
        for weight in (0.03, 0.1, 0.3, 1.0)
    ),
    ("pyttb", "pyttb `cp_als`, best of five starts", "rank", clean_cp_als),
]
BROKEN = [
    ("brtf", "`brtf.AnomalyDetector()`", "nothing", judge_brtf),
    ("scikit-learn", "scikit-learn `IsolationForest`", "share", judge_forest),
    ("pyod", "PyOD `ECOD`", "share", _pyod("ECOD")),
    ("pyod", "PyOD `PCA`", "share", _pyod("PCA")),
    ("pyod", "PyOD `KNN`", "share", _pyod("KNN")),
    ("pyod", "PyOD `LOF`", "share", _pyod("LOF")),
]
MOVING = [
    ("brtf", "`brtf.BRTF()`", "nothing", watch_brtf),
    ("numpy", "median and MAD of every pixel, z > 3", "threshold", watch_median),
    ("opencv", "OpenCV `BackgroundSubtractorMOG2`", "nothing", _opencv("MOG2")),
    ("opencv", "OpenCV `BackgroundSubtractorKNN`", "nothing", _opencv("KNN")),
]


def auc(scores: Array, truth: Array) -> float:
    """Probability that a broken sample has a higher score than a sound one."""
    above = scores[truth][:, None] - scores[~truth]
    return float(np.mean(above > 0) + 0.5 * np.mean(above == 0))


def judge_gaps(answer: Any, data: Array, truth: Array) -> dict[str, float]:
    filled, interval = answer
    missing = np.isnan(data)
    error = np.linalg.norm((filled - truth)[missing]) / np.linalg.norm(truth[missing])
    covered = np.nan if interval is None else coverage(*(end[missing] for end in interval), truth[missing])
    return {"relative error": error, "truth in 95 % interval": covered}


def judge_spoiled(answer: Array, data: Array, truth: Array) -> dict[str, float]:
    return {"relative error": brtf.metrics.rrse(answer, truth)}


def judge_broken(answer: Any, data: Array, truth: Array) -> dict[str, float]:
    scores, flagged = answer
    return {"AUC": auc(scores, truth), "F-measure": f_measure(flagged, truth)}


def judge_moving(answer: Array, data: Array, truth: Array) -> dict[str, float]:
    return {"F-measure": f_measure(answer, truth)}


TASKS = {
    "gaps": ("Gaps", traffic, GAPS, judge_gaps),
    "spoiled": ("Spoiled entries", spoiled_tensor, SPOILED, judge_spoiled),
    "broken": ("Broken samples", machines, BROKEN, judge_broken),
    "clusters": ("Odd samples between clusters", clusters, BROKEN, judge_broken),
    "moving": ("Moving objects", filmed, MOVING, judge_moving),
}
DISTRIBUTIONS = {"opencv": ("opencv-python-headless", "opencv-contrib-python-headless", "opencv-python")}


def version(library: str) -> str | None:
    """The installed version of a library; None if there is none."""
    for name in DISTRIBUTIONS.get(library, (library,)):
        try:
            return importlib.metadata.version(name) if name != "brtf" else brtf.__version__
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def measure(task: str, seeds: range) -> Iterator[str]:
    """The lines of the table of a task: medians over the seeds."""
    _, make, methods, judge = TASKS[task]
    titles: list[str] = []
    for library, name, told, method in methods:
        if version(library) is None:
            continue
        rows = []
        for seed in seeds:
            data, truth = make(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if seed == seeds[0]:
                    method(data.copy())  # compiles, loads
                start = time.process_time()
                answer = method(data.copy())
                spent = time.process_time() - start
            rows.append({**judge(answer, data, truth), "seconds": spent})
        if not titles:
            titles = list(rows[0])
            yield f"| method | is told | {' | '.join(titles)} |"
            yield f"| --- | --- |{' --- |' * len(titles)}"
        cells = [_cell(float(np.median([row[title] for row in rows])), title) for title in titles]
        yield f"| {name} | {told} | {' | '.join(cells)} |"


def _cell(number: float, title: str) -> str:
    if np.isnan(number):
        return "–"
    return f"{number:.2g}" if title == "seconds" else f"{number:.3f}"


def report(tasks: list[str], seeds: range) -> Iterator[str]:
    """All tables, and what was used."""
    for task in tasks:
        yield f"### {TASKS[task][0]}\n"
        yield from measure(task, seeds)
        yield ""
    libraries = sorted({library for task in tasks for library, *_ in TASKS[task][2]})
    used = ", ".join(f"{library} {version(library)}" for library in libraries if version(library))
    left_out = [library for library in libraries if version(library) is None]
    yield f"Medians over {len(seeds)} data sets of each kind, one thread. Used: {used}."
    if left_out:
        yield f"Not installed, so not measured: {', '.join(left_out)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=list(TASKS), action="append")
    parser.add_argument("--write", type=Path, help="page whose measured part to replace")
    given = parser.parse_args()
    lines = []
    for line in report(given.only or list(TASKS), range(given.seeds)):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        before, _, rest = given.write.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        given.write.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
