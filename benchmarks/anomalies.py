"""How many planted anomalies ``anomalies(of="slices")`` and ``of="fibres"`` find, and how many listed ones are false.

Run ``python benchmarks/anomalies.py [--seeds 1000:1192] [--q 0.1] [--fibres]``. Matrices and tensors of rank 2, half of
them with 30 % missing, 2 % outliers of ten standard deviations of the noise. In a tenth of the slices of the first mode
all entries are shifted or noisier by 0.5 to 3 standard deviations of the noise, or 20 % of them are outliers; or
nothing is wrong. With ``--fibres``, tensors in which one to four fibres along the last mode are shifted by 1 to 5
standard deviations of the noise: how many of those are listed whose mean is off by over seven of its standard
deviations.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import brtf

KINDS = ("shift", "spread", "outliers", "none")
SHAPES = ((30, 20, 10), (40, 30), (25, 12, 15), (60, 15))


def planted(seed: int) -> tuple[str, np.ndarray, set[int]]:
    """What is wrong, the data, and the slices that are."""
    rng = np.random.default_rng(seed)
    kind, shape = KINDS[seed % 4], SHAPES[seed // 4 % 4]
    factors = [rng.normal(size=(length, 2)) for length in shape]
    low_rank = np.einsum("ir,jr->ij" if len(shape) == 2 else "ir,jr,kr->ijk", *factors)
    noise = 0.1 * low_rank.std()
    data = low_rank + rng.normal(0, noise, shape)
    outlying = rng.random(shape) < 0.02
    data[outlying] += rng.normal(0, 10 * noise, outlying.sum())
    wrong = rng.choice(shape[0], shape[0] // 10, replace=False) if kind != "none" else []
    for place in wrong:
        size = noise * rng.uniform(0.5, 3)
        if kind == "shift":
            data[place] += size * rng.choice([-1, 1])
        elif kind == "spread":
            data[place] += rng.normal(0, size, shape[1:])
        else:
            more = rng.random(shape[1:]) < 0.2
            data[place][more] += rng.normal(0, 10 * noise, more.sum())
    if seed // 16 % 2:
        data[rng.random(shape) < 0.3] = np.nan
    return kind, data, {int(place) for place in wrong}


def with_shifted_fibres(seed: int) -> tuple[np.ndarray, set[tuple[int, ...]], set[tuple[int, ...]]]:
    """The data, the fibres that are off, and those of them that are clearly off."""
    rng = np.random.default_rng(seed)
    shape = ((14, 9, 30), (12, 20, 15), (8, 7, 6, 9), (6, 5, 40))[seed % 4]
    draw = rng.normal if seed // 4 % 2 else lambda size: rng.gamma(3, 1, size)
    rank = int(rng.integers(1, 5))
    modes = "abcd"[: len(shape)]
    low_rank = np.einsum(f"{','.join(f'{mode}r' for mode in modes)}->{modes}", *(draw(size=(n, rank)) for n in shape))
    noise = 0.08 * low_rank.std()
    error = rng.normal(0, noise, shape)
    outlying = rng.random(shape) < 0.015
    error[outlying] += rng.choice([-1, 1], outlying.sum()) * rng.uniform(4, 30, outlying.sum()) * noise
    places = rng.choice(int(np.prod(shape[:-1])), int(rng.integers(1, 5)), replace=False)
    wrong = [tuple(int(k) for k in np.unravel_index(place, shape[:-1])) for place in places]
    for place in wrong:
        error[place] += noise * rng.uniform(1, 5) * rng.choice([-1, 1])
    missing = rng.random(shape) < (0.25 if seed // 8 % 2 else 0.0)
    regular = ~missing & ~outlying
    clear = {p for p in wrong if abs(error[p][regular[p]].sum()) > 7 * noise * np.sqrt(regular[p].sum())}
    return np.where(missing, np.nan, low_rank + error), set(wrong), clear


def fibres(seeds: range, q: float) -> None:
    """Print how many shifted fibres are listed."""
    n_clear, n_found, n_listed, n_false = 0, 0, 0, 0
    for seed in seeds:
        data, wrong, clear = with_shifted_fibres(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", brtf.FitWarning)
            table = brtf.BRTF(random_state=0).fit(data).anomalies(q, of="fibres", mode=data.ndim - 1)
        found = {*map(tuple, table.iloc[:, : data.ndim - 1].to_numpy(dtype=int).tolist())}
        n_clear, n_found = n_clear + len(clear), n_found + len(clear & found)
        n_listed, n_false = n_listed + len(found), n_false + len(found - wrong)
    print(f"{n_found} of {n_clear} clearly shifted fibres found; {n_false} of {n_listed} listed are false alarms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1000:1192")
    parser.add_argument("--q", type=float, default=0.1)
    parser.add_argument("--fibres", action="store_true")
    given = parser.parse_args()
    if given.fibres:
        fibres(range(*map(int, given.seeds.split(":"))), given.q)
        return
    totals = {kind: np.zeros(3, dtype=int) for kind in KINDS}
    for seed in range(*map(int, given.seeds.split(":"))):
        kind, data, wrong = planted(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", brtf.FitWarning)
            found = brtf.BRTF(random_state=0).fit(data).anomalies(given.q, of="slices")
        right = wrong & {int(place) for place in found["mode_0"].dropna()}
        totals[kind] += [len(wrong), len(right), len(found) - len(right)]
    print("| planted | slices | found | false alarms |\n| --- | --- | --- | --- |")
    for kind, counts in totals.items():
        print(f"| {kind} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
