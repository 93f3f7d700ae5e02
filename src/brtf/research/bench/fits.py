"""Whole fits: their memory, their sweeps, their time against other programs, and the time of the first one."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from brtf.api.estimator import BRTF
from brtf.api.metrics import rrse
from brtf.api.synthetic import Synthetic, paper_synthetic
from brtf.data.observations import Observations
from brtf.data.plan import DEFAULT_PLAN
from brtf.research.bench.measure import Array, Effort, Measurement, fastest
from brtf.research.bench.peers import PEERS, Peer
from brtf.research.bench.sweeps import low_rank_data, sparse_data

FIRST_FIT = "import brtf; brtf.BRTF(random_state=0).fit(brtf.datasets.paper_synthetic(seed=1).observed)"


def memory(effort: Effort) -> Iterator[Measurement]:
    """Target 4: the peak of what a fit allocates, with the data it was given, against the data and their index."""
    shape = (2000, 3, 30) if effort.quick else (25344, 3, 300)
    frames = low_rank_data(shape, 3, np.float32)
    yield _memory_row("complete, float32", frames, frames.nbytes)
    half = np.where(np.random.default_rng(0).random(shape, np.float32) < 0.5, frames, np.float32(np.nan))
    del frames
    n_bytes = 4 * int(np.count_nonzero(~np.isnan(half))) + half.size  # a byte of mask an entry
    yield _memory_row("half missing, float32", half, n_bytes, shared=False)
    del half
    entries = sparse_data((10_000, 10_000, 1_000), 10_000 if effort.quick else 3_000_000)
    n_bytes = entries.values.nbytes + (0 if entries.coords is None else entries.coords.nbytes)
    yield _memory_row("coordinates", entries, n_bytes)


def _memory_row(name: str, data: Array | Observations, n_bytes: int, *, shared: bool = True) -> Measurement:
    """``n_bytes`` of data and index, which the fit shares with its caller, or has to make."""
    few_sweeps = {"max_rank": 3, "max_sweeps": 3}
    quiet_fit(_small(data), **few_sweeps)  # modules, kernels and tables are not the data's
    tracemalloc.start()
    try:
        quiet_fit(data, **few_sweeps)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Measurement(
        4,
        f"memory at the peak of a fit: {name}",
        (peak + n_bytes if shared else peak) / n_bytes,
        f"{n_bytes / 1e6:.0f} MB of data and index",
        1.15,
        note="" if shared else "in addition to the caller's array",
    )


def _small(data: Array | Observations) -> Array | Observations:
    """A part of the tensor that is processed like the whole: still too large for one pass per mode."""
    n_entries = DEFAULT_PLAN.small_data
    if isinstance(data, Observations):
        return data.select(np.arange(data.n_observed) <= n_entries)
    return data[: 1 + 4 * n_entries // data[:1].size]


def sweeps_to_a_nat(effort: Effort) -> Iterator[Measurement]:
    """Target 5: sweeps, those of dropped proposals included, until the bound is within a nat of where it ends."""
    problems = list(paper_problems(1 if effort.quick else 3))
    if effort.quick:
        problems = problems[:1]
    counts = []
    for data in problems:
        trace = quiet_fit(data.observed).trace_
        counts.append(int(trace["sweep"][np.argmax(trace["bound"] >= trace["bound"][-1] - 1.0)]))
    yield Measurement(
        5,
        f"sweeps to within a nat of the end: {len(problems)} of the paper's problems, median",
        float(np.median(counts)),
        "",
        40.0,
        unit="sweeps",
        note=f"{min(counts)} to {max(counts)}",
    )


def paper_problems(n_seeds: int) -> Iterator[Synthetic]:
    """The paper's 30³ tensors: complete and incomplete, with outliers of either magnitude."""
    for seed in range(n_seeds):
        for missing in (0.0, 0.5, 0.8):
            yield paper_synthetic(outliers=0.1, missing=missing, magnitude="10std", seed=seed)
        yield paper_synthetic(outliers=0.2, magnitude="max", seed=seed)


def whole_fits(effort: Effort, peers: Sequence[Peer] = PEERS) -> Iterator[Measurement]:
    """Target 6: a whole fit with default settings against other libraries that are given the rank."""
    present = [peer for peer in peers if find_spec(peer.package) is not None]
    own = "a fit with default settings"
    programs = {own: _own} | {peer.words: peer.low_rank for peer in present}
    for missing in (0.5,) if effort.quick else (0.0, 0.5):
        data = paper_synthetic(outliers=0.1, missing=missing, seed=1)
        errors: dict[str, float] = {}
        tasks = {words: partial(_fit_and_compare, data, words, fit, errors) for words, fit in programs.items()}
        seconds = fastest(tasks, effort.n_repeats)
        what = f"{own}: 30×30×30, {100 * missing:.0f} % missing, 10 % outliers"
        for peer in peers:
            if peer not in present:
                reason = f'{peer.package} is not installed: pip install "brtf[baselines]"'
                yield Measurement(6, what, None, f"{peer.words}: skipped, {reason}", peer.limit)
                continue
            times = f"{seconds[own]:.2f} and {seconds[peer.words]:.2f} s"
            note = f"{times}, errors {errors[own]:.3f} and {errors[peer.words]:.3f}"
            yield Measurement(6, what, seconds[own] / seconds[peer.words], peer.words, peer.limit, note=note)


def _fit_and_compare(
    data: Synthetic, words: str, low_rank: Callable[[Synthetic], Array], errors: dict[str, float]
) -> None:
    errors[words] = rrse(low_rank(data), data.low_rank)


def _own(data: Synthetic) -> Array:
    return quiet_fit(data.observed).low_rank()


def quiet_fit(data: Array | Observations, **options: Any) -> BRTF:
    """A fit, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few sweeps, or nothing seen of a row: not what is measured
        return BRTF(random_state=0, **options).fit(data)


def first_use(effort: Effort) -> Iterator[Measurement]:
    """Target 8: importing the package, and the first fit of a fresh process, with compiled kernels and without."""
    own, plain = "import brtf", "import numpy, scipy.special"
    seconds: dict[str, list[float]] = {own: [], plain: []}
    for _ in range(effort.n_repeats):
        for statement, runs in seconds.items():
            runs.append(_in_a_fresh_process(statement, "process_time"))
    yield Measurement(8, own, min(seconds[own]) / min(seconds[plain]), plain, 1.5)
    shortest = min(_in_a_fresh_process(FIRST_FIT, "perf_counter") for _ in range(effort.n_repeats))
    yield Measurement(8, "first fit of a fresh process: 30×30×30, import included", shortest, "", 2.0, unit="s")
    what = "first fit after installing: 30×30×30, everything compiled"
    if effort.quick:
        yield Measurement(8, what, None, "skipped, compiling takes long: leave out --quick", 8.0, unit="s")
        return
    yield Measurement(8, what, after_installing(), "", 8.0, unit="s", note="CPU time")


def after_installing() -> float:
    """CPU seconds of the first fit where no compiled code is kept yet."""
    with TemporaryDirectory() as empty:
        return _in_a_fresh_process(FIRST_FIT, "process_time", {"NUMBA_CACHE_DIR": empty})


def _in_a_fresh_process(statement: str, clock: str, variables: Mapping[str, str] | None = None) -> float:
    """Seconds that a statement takes in a new interpreter, whose own start is not counted; with more variables."""
    program = f"from time import {clock} as clock; started = clock(); {statement}; print(clock() - started)"
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)
