"""Data that look like what people bring, fitted with nothing said, beside an expert's settings and simple methods.

Run ``python benchmarks/lookalikes.py [--only TEXT] [--seeds N] [--first SEED] [--methods TEXT]``. Nothing is tuned on
hidden entries. ``least`` is the error of the mean from which the data were generated: nothing can be below it by more
than chance. Coverage is that of 95 % intervals for new observations. Where nothing is hidden, the error is that of the
mean at all entries. Where entries are known to be hit, AUC is that of the outlier probability, with the share of
entries above one half among those hit and among the others; where chemicals are known, the correlations of their
amounts with the components most like them follow.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded
from scipy.stats import rankdata

from brtf import BRTF
from lookalike_data import GENERATORS, Lookalike

Array = NDArray[Any]
EXPERT: dict[str, list[dict[str, Any]]] = {
    "trips": [
        {"link": "sqrt", "arrangement": ((0, 1), (2,)), "modes": "auto"},
        {"link": "sqrt", "arrangement": None, "modes": "auto"},
    ],
    "network": [
        {"link": "sqrt", "arrangement": ((0,), (1, 2)), "modes": "auto", "smooth_residual": "auto"},
        {"link": "log", "arrangement": ((0,), (1, 2)), "modes": "auto"},
        {"link": "log", "arrangement": None, "smooth_residual": 0},
    ],
    "sea": [
        {"link": None, "arrangement": ((0, 1), (2,)), "modes": "auto"},
        {"link": None, "arrangement": None, "smooth_residual": 2},
    ],
    "spectra": [{"link": None, "arrangement": None, "modes": None}, {"link": "sqrt", "arrangement": None}],
    "sensors": [{"link": None, "modes": "auto", "noise": "per-slice", "noise_modes": (1,)}],
    "sales": [{"link": "sqrt", "arrangement": None, "modes": None}, {"link": "log1p", "arrangement": None}],
    "bursts": [{"link": "sqrt", "arrangement": ((0, 1), (2,)), "modes": "auto"}, {"link": "sqrt", "arrangement": None}],
    "parks": [{"link": None, "arrangement": None, "modes": None}, {"link": "sqrt", "arrangement": ((0, 1), (2,))}],
    "metro": [{"link": "sqrt", "arrangement": None, "modes": None}, {"link": "sqrt", "arrangement": ((0, 1), (2,))}],
    "households": [{"link": "sqrt", "arrangement": None, "modes": None}, {"link": "log1p", "arrangement": None}],
    "air": [{"link": None, "modes": "auto", "noise": "per-slice", "noise_modes": (1,)}],
    "climate": [
        {"link": None, "arrangement": ((0, 1), (2,)), "modes": "auto"},
        {"link": None, "arrangement": None, "smooth_residual": 2},
    ],
    "mixtures": [{"link": None, "arrangement": None, "modes": None, "max_rank": 4}],
    "faces": [{"link": None, "arrangement": None, "modes": None, "outlier_kind": "replacement"}],
    "trees": [{"link": None, "modes": None, "noise": "per-slice", "noise_modes": (0,)}],
    "genes": [{"link": None, "modes": None, "noise": "per-slice", "noise_modes": (0,)}],
    "bands": [
        {"link": None, "arrangement": ((0, 1), (2,)), "modes": "auto", "noise": "per-slice", "noise_modes": (2,)},
        {"link": None, "arrangement": None, "noise": "per-slice", "noise_modes": (2,)},
    ],
    "ratings": [{"link": None, "modes": None, "robust": False}],
}
"""What an expert would say, some guesses for every set."""


def interpolated(data: Lookalike) -> Array:
    """Straight lines in time between observed entries of a fibre."""
    courses = np.moveaxis(data.observed, data.time, 0)
    lines = courses.reshape(len(courses), -1).copy()
    steps, overall = np.arange(len(lines)), np.nanmean(lines)
    for column in lines.T:
        seen = np.isfinite(column)
        column[~seen] = np.interp(steps[~seen], steps[seen], column[seen]) if seen.any() else overall
    return np.moveaxis(lines.reshape(courses.shape), 0, data.time)


def means(data: Lookalike) -> Array:
    """Mean of the fibre in time plus the mean deviation at that time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fibre = np.nanmean(data.observed, axis=data.time, keepdims=True)
        fibre = np.where(np.isfinite(fibre), fibre, np.nanmean(data.observed))
        others = tuple(mode for mode in range(data.observed.ndim) if mode != data.time)
        moment = np.nanmean(data.observed - fibre, axis=others, keepdims=True)
    return np.asarray(fibre + np.where(np.isfinite(moment), moment, 0.0))


def seasonal(data: Lookalike) -> Array:
    """Mean of the fibre at the same phase of the period."""
    courses = np.moveaxis(data.observed, data.time, 0)
    found, plain = np.moveaxis(means(data), data.time, 0).copy(), np.arange(len(courses)) % data.period
    for phase in range(data.period if data.period > 1 else 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mean = np.nanmean(courses[plain == phase], axis=0)
        found[plain == phase] = np.where(np.isfinite(mean), mean, found[plain == phase])
    return np.moveaxis(found, 0, data.time)


def singular(data: Lookalike) -> Array:
    """Fibres × time completed by soft-thresholded singular values; the threshold predicts a twentieth held out best."""
    courses = np.moveaxis(data.observed, data.time, 0)
    matrix = courses.reshape(len(courses), -1)
    seen = np.isfinite(matrix)
    held = seen & (np.random.default_rng(0).random(matrix.shape) < 0.05)
    start = np.moveaxis(means(data), data.time, 0).reshape(matrix.shape)

    def completed(given: Array, share: float) -> Array:
        found = np.zeros(matrix.shape)
        for _ in range(60):
            left, sizes, right = np.linalg.svd(np.where(given, matrix - start, found), full_matrices=False)
            found = (left * np.maximum(sizes - share * sizes[0], 0)) @ right
        return np.asarray(found + start)

    shares = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
    errors = [np.mean((completed(seen & ~held, share) - matrix)[held] ** 2) for share in shares]
    return np.moveaxis(completed(seen, shares[int(np.argmin(errors))]).reshape(courses.shape), 0, data.time)


def neighbours(data: Lookalike) -> Array:
    """scikit-learn's KNNImputer of times by fibres."""
    from sklearn.impute import KNNImputer

    courses = np.moveaxis(data.observed, data.time, 0)
    matrix = courses.reshape(len(courses), -1)
    found = means(data).copy()
    back = np.moveaxis(found, data.time, 0).reshape(matrix.shape).copy()
    some = np.isfinite(matrix).any(axis=0)
    back[:, some] = KNNImputer(n_neighbors=5, weights="distance").fit_transform(matrix[:, some])
    return np.moveaxis(back.reshape(courses.shape), 0, data.time)


def in_time(data: Lookalike) -> Array:
    """Fibres × time as a product of which one factor changes slowly, by alternating least squares.

    Rank and smoothness are those that predict a twentieth held out best.
    """
    courses = np.moveaxis(data.observed, data.time, 0)
    matrix = courses.reshape(len(courses), -1)
    start = np.moveaxis(means(data), data.time, 0).reshape(matrix.shape)
    seen = np.isfinite(matrix)
    held = seen & (np.random.default_rng(0).random(matrix.shape) < 0.05)
    scale = np.nanstd(matrix - start, axis=0)
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    left = np.where(seen, (matrix - start) / scale, 0.0)

    def completed(given: Array, rank: int, pull: float) -> Array:
        rng = np.random.default_rng(1)
        slow, loads = rng.standard_normal((len(left), rank)), rng.standard_normal((left.shape[1], rank))
        for _ in range(12):
            grams = np.einsum("tf,fr,fs->trs", given, loads, loads, optimize=True) + 0.1 * np.eye(rank)
            slow = _slow_rows(grams, (left * given) @ loads, pull)
            grams = np.einsum("tf,tr,ts->frs", given, slow, slow, optimize=True) + 0.5 * np.eye(rank)
            loads = np.linalg.solve(grams, ((left * given).T @ slow)[:, :, None])[:, :, 0]
        return np.asarray(slow @ loads.T * scale + start)

    tried = [(rank, pull) for rank in (2, 5, 10) for pull in (0.0, 2.0, 20.0) if rank < min(matrix.shape)]
    errors = [np.mean((completed(seen & ~held, *one) - matrix)[held] ** 2) for one in tried]
    return np.moveaxis(completed(seen, *tried[int(np.argmin(errors))]).reshape(courses.shape), 0, data.time)


def _slow_rows(grams: Array, products: Array, pull: float) -> Array:
    """The rows x_t that minimise Σ x_tᵀ G_t x_t − 2 b_tᵀ x_t + pull · |x_t − x_{t−1}|², by a banded solution."""
    n, rank = products.shape
    bands = np.zeros((rank + 1, n * rank))  # lower form: bands[k, i] is entry (i + k, i)
    neighbours = np.full(n, 2.0) - np.isin(np.arange(n), (0, n - 1))
    for offset in range(rank):
        diagonal = np.zeros((n, rank))
        diagonal[:, : rank - offset] = np.diagonal(grams, -offset, 1, 2)
        bands[offset] = (diagonal + pull * neighbours[:, None] * (offset == 0)).ravel()
    bands[rank, : (n - 1) * rank] = -pull
    return solveh_banded(bands, products.ravel(), lower=True).reshape(n, rank)


CONTROLS: dict[str, Callable[[Lookalike], Array]] = {
    "interpolation": interpolated,
    "means": means,
    "seasonal means": seasonal,
    "singular values": singular,
    "nearest times": neighbours,
    "slow factors": in_time,
}


def rmse(found: Array, data: Lookalike) -> float:
    """Root mean square error of hidden values, or of the mean where none are hidden."""
    if not data.hidden.any():
        return float(np.sqrt(np.nanmean((found - data.mean) ** 2)))
    return float(np.sqrt(np.mean((found - data.values)[data.hidden] ** 2)))


def ours(data: Lookalike, seconds: float | None, **options: Any) -> str:
    """Error, coverage and log density of a fit, and what it chose."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BRTF(random_state=0, max_seconds=seconds, **options).fit(data.observed)
        cpu = time.process_time() - started
        error = rmse(model.predict(of="signal"), data)
    covered, density = np.nan, np.nan
    if data.hidden.any():
        low, high = model.predict_interval(of="observation")
        covered = np.mean(((low <= data.values) & (data.values <= high))[data.hidden])
        density = model.score(np.where(data.hidden, data.values, np.nan))
    chosen = [str(model.link_), str(model.folding_ or model.arrangement_), f"noise {model.noise_} {model.noise_modes_}"]
    kinds = [f"{mode} {' '.join(words)}" for mode, words in model.modes_.items() if words != ("unordered",)]
    chosen += [f"smooth {model.smooth_residual_}", f"outliers {model.outlier_rate_:.2f}", *kinds]
    chosen += [*known(model, data), f"{model.result_.stop_reason.name.lower()} {model.n_sweeps_}"]
    return f"{error:.4g} | {density:.3f} | {covered:.3f} | {cpu:.0f} | {model.rank_}, {', '.join(chosen)}"


def known(model: BRTF, data: Lookalike) -> list[str]:
    """How well what is known of hits and amounts was found."""
    found = []
    if data.hits is not None:
        seen = np.isfinite(data.observed)
        score, hits = model.outlier_probability()[seen], data.hits[seen]
        found += [f"AUC {auc(score, hits):.3f}", f"hits {np.mean(score[hits] > 0.5):.2f}"]
        found += [f"others {np.mean(score[~hits] > 0.5):.3f}"]
    if data.amounts is not None and len(model.arrangement_[0]) == 1:
        scores = model.factors_[0]
        alike = np.abs(np.corrcoef(scores.T, data.amounts.T)[: scores.shape[1], scores.shape[1] :])
        found += ["correlations " + " ".join(f"{one:.3f}" for one in alike.max(axis=0))]
    return found


def from_median(data: Lookalike) -> str:
    """How well the deviation from the median in time, in units of the median deviation, finds what was hit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        away = np.abs(data.observed - np.nanmedian(data.observed, axis=data.time, keepdims=True))
        away = away / (np.nanmedian(away, axis=data.time, keepdims=True) + 1e-9 * np.nanmax(away))
    seen = np.isfinite(data.observed)
    return f"| | | | AUC {auc(away[seen], data.hits[seen]):.3f}"


def auc(score: Array, hits: Array) -> float:
    """Probability that an entry that was hit has the higher score; ties count half."""
    ranks = rankdata(score)
    return float((ranks[hits].mean() - (hits.sum() + 1) / 2) / (~hits).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only sets whose name contains this text")
    parser.add_argument("--methods", default="", help="only methods whose name contains this text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=None, help="time limit of every fit")
    options = parser.parse_args()
    print("| data | method | RMSE | log density | coverage | CPU s | found |\n" + "| --- " * 7 + "|", flush=True)
    for name, generate in GENERATORS.items():
        if options.only not in name:
            continue
        for seed in range(options.first, options.first + options.seeds):
            data = generate(seed)
            lines: dict[str, Callable[[], str]] = {}
            if data.hidden.any():
                lines["least"] = lambda data=data: f"{rmse(data.mean, data):.4g} | | | |"
                for control, impute in CONTROLS.items():
                    if data.period > 1 or impute is not seasonal:
                        lines[control] = lambda data=data, impute=impute: f"{rmse(impute(data), data):.4g} | | | |"
            if data.hits is not None:
                lines["median"] = lambda data=data: from_median(data)
            lines["BRTF()"] = lambda data=data: ours(data, options.seconds)
            for said in EXPERT[name]:
                lines[f"BRTF({', '.join(f'{k}={v!r}' for k, v in said.items())})"] = lambda data=data, said=said: ours(
                    data, options.seconds, **said
                )
            for method, line in lines.items():
                if options.methods in method:
                    print(f"| {name} {seed} {data.observed.shape} | {method} | {line()} |", flush=True)


if __name__ == "__main__":
    main()
