"""Gaps, whole days and forecasts of real series, with nothing said but a time limit.

Run ``python benchmarks/series.py [--data DIR] [--only TEXT] [--seconds S] [--seeds N]``. The data are not part of the
project; sets that are not found are skipped with a message. Every fit is one line:

- ETT_h1, 17,420 hours × 7 variables, by the protocol of TSI-Bench (arXiv 2406.12747): entries hidden in windows of 48
  hours in the last five months, mean absolute error in standard deviations of the first fourteen months;
- Birmingham parking (30 × 77 × 18) and Hangzhou metro (80 × 25 × 108) with 40 % of the days of every place hidden;
- a week of the same two, forecast from what came before, beside the mean of the same weekdays and the last week; the
  days with their dates, and as mere numbers.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy.io import loadmat

from brtf import BRTF
from real_data import fit, modes_found

Array = NDArray[Any]
WINDOW = 48
PATTERNS = ("point 10 %", "point 50 %", "point 90 %", "subsequence", "block")
WEEK = 7
FIRST_DAYS = {"Birmingham": "2016-10-04", "Hangzhou": "2019-01-01"}


def hidden_in(shape: tuple[int, int], pattern: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """The entries that a pattern hides in windows of 48 hours, (hours, variables)."""
    if pattern.startswith("point"):
        return rng.random(shape) < float(pattern.split()[1]) / 100
    hidden = np.zeros(shape, dtype=bool)
    for first in range(0, shape[0] - WINDOW + 1, WINDOW):
        window = hidden[first : first + WINDOW]
        if pattern == "subsequence":
            for column in window.T:
                start = rng.integers(WINDOW // 2 + 1)
                column[start : start + WINDOW // 2] = True
        while pattern == "block" and window.mean() < 0.5:
            hours, variables = rng.integers(6, 25), rng.integers(1, 4)
            hour, variable = rng.integers(WINDOW - hours + 1), rng.integers(shape[1] - variables + 1)
            window[hour : hour + hours, variable : variable + variables] = True
    return hidden


def ett(data: Path, pattern: str, **options: Any) -> str:
    """Hidden entries of hourly series of a transformer."""
    with np.load(data / "tsi" / "etth1.npz") as content:
        values, months = content["values"].astype(float), content["times"].astype("M8[h]").astype("M8[M]")
    numbers = (months - months[0]).astype(int)
    train, first = numbers < 14, int(np.argmax(numbers >= 19))
    truth = (values - values[train].mean(axis=0)) / values[train].std(axis=0)
    hidden = np.zeros(truth.shape, dtype=bool)
    length = int((numbers[first:] < 24).sum()) // WINDOW * WINDOW
    hidden[first : first + length] = hidden_in((length, truth.shape[1]), pattern, np.random.default_rng(0))
    model, seconds = fit(np.where(hidden, np.nan, truth), **options)
    error = np.abs(model.predict(of="signal") - truth)[hidden]
    return f"MAE {error.mean():.3f}, {_told(model, truth, hidden, seconds)}"


def whole_days(data: Path, name: str, seed: int, **options: Any) -> str:
    """All hours of four in ten days of every place hidden."""
    truth = _tensor(data, name)
    keep = np.round(np.random.default_rng(seed).random(truth.shape[:2]) + 0.5 - 0.4)[:, :, None] != 0
    hidden = (truth != 0) & ~keep
    model, seconds = fit(np.where((truth != 0) & keep, truth, np.nan), **options)
    error = (model.predict(of="signal") - truth)[hidden]
    mape = np.mean(np.abs(error) / truth[hidden])
    return f"RMSE {np.sqrt(np.mean(error**2)):.2f}, MAPE {mape:.4f}, {_told(model, truth, hidden, seconds)}"


def next_week(data: Path, name: str, weeks_before: int, dated: bool, **options: Any) -> str:
    """A week forecast from the days before it, with their dates or without."""
    truth = _tensor(data, name)
    first = truth.shape[1] - WEEK * weeks_before
    known, ahead = truth[:, :first], truth[:, first : first + WEEK]
    past = np.where(known != 0, known, np.nan)
    days = {"day": np.datetime64(FIRST_DAYS[name], "ns") + np.arange(first).astype("m8[D]")} if dated else {}
    named = xarray.DataArray(past, dims=("place", "day", "time"), coords=days)
    model, seconds = fit(named, **{**options, "modes": {"day": "ordered"}})
    found, there = model.forecast(WEEK, mode="day", level=0.9), ahead != 0
    with np.errstate(invalid="ignore"):
        recent = [past[:, (first + day) % WEEK :: WEEK][:, -4:] for day in range(WEEK)]
        same = [np.nansum(days, axis=1) / np.isfinite(days).sum(axis=1) for days in recent]
    rivals = {"last week": past[:, -WEEK:], "mean of four weeks": np.stack(same, axis=1)}

    def error(forecast: Array) -> float:
        return float(np.sqrt(np.nanmean((forecast - ahead)[there] ** 2)))

    covered = np.mean(((found.low <= ahead) & (ahead <= found.high))[there])
    others = ", ".join(f"{rival} {error(forecast):.1f}" for rival, forecast in rivals.items())
    return (
        f"RMSE {error(found.mean):.1f} ({others}), 90 % bands hold {covered:.3f}, rank {model.rank_}, {seconds:.0f} s"
    )


def _tensor(data: Path, name: str) -> Array:
    return np.asarray(loadmat(data / "traffic" / f"{name}_tensor.mat")["tensor"], float)


def _told(model: BRTF, truth: Array, hidden: NDArray[np.bool_], seconds: float) -> str:
    low, high = model.predict_interval(of="observation")
    covered = np.mean(((low <= truth) & (truth <= high))[hidden])
    return f"coverage {covered:.3f}, rank {model.rank_}, {seconds:.0f} s{modes_found(model)}"


def jobs(data: Path, n_seeds: int, seconds: float) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and measurement of every line."""
    options: dict[str, Any] = {"max_seconds": seconds}

    def job(name: str, measure: Callable[..., str], *which: Any) -> tuple[str, Callable[[], str]]:
        return name, lambda: measure(data, *which, **options)

    for pattern in PATTERNS:
        yield job(f"ETT_h1, {pattern}", ett, pattern)
    for name in ("Birmingham", "Hangzhou"):
        for seed in range(n_seeds):
            yield job(f"{name}, whole days, draw {seed}", whole_days, name, seed)
    for name in ("Birmingham", "Hangzhou"):
        for weeks, dated in itertools.product((1, 2), (True, False)):
            how = "with dates" if dated else "without dates"
            yield job(f"{name}, forecast of the week {weeks} from the end, {how}", next_week, name, weeks, dated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--only", default="", help="only lines whose name contains this text")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of every fit")
    parser.add_argument("--seeds", type=int, default=3, help="draws of hidden days")
    options = parser.parse_args()
    print("| data | found | CPU seconds |\n| --- | --- | --- |", flush=True)
    for name, measure in jobs(options.data, options.seeds, options.seconds):
        if options.only.lower() in name.lower():
            started = time.process_time()
            try:
                print(f"| {name} | {measure()} | {time.process_time() - started:.0f} |", flush=True)
            except OSError as error:
                print(f"| {name} | skipped: {error} | |", flush=True)


if __name__ == "__main__":
    main()
