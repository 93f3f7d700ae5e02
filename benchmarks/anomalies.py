"""How many planted anomalies ``anomalies(of="slices")`` finds, and how many of those it lists are false.

Run ``python benchmarks/anomalies.py [--seeds 1000:1192] [--q 0.1]``. Matrices and tensors of rank 2, half of them with
30 % missing, 2 % outliers of ten standard deviations of the noise. In a tenth of the slices of the first mode all
entries are shifted or noisier by 0.5 to 3 standard deviations of the noise, or 20 % of them are outliers; or nothing is
wrong.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1000:1192")
    parser.add_argument("--q", type=float, default=0.1)
    given = parser.parse_args()
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
