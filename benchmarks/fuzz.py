"""Random inputs, options and damaged files: brtf must answer each one soundly, or refuse it in a sentence of its own.

Run ``make fuzz`` (10,000 cases, a few minutes on two cores), ``make fuzz CASES=100000 SEED=7``, or
``python benchmarks/fuzz.py --cases 10000 --seed 0 [--kinds door options files clips] [--jobs 2]``. A case depends
only on the seed and its number: ``--case 123`` repeats that one, with its traceback. The run prints the command that
repeats each failure, and exits with code 1 if there was any.

Kinds of cases:

door (``fuzz_inputs.py``)
    arrays and containers of all kinds, of order 0 to 5, with unusual types, values over 600 decades, valid and invalid
    masks, given to ``fit``; then everything that the model can answer.
options (``fuzz_options.py``)
    valid and invalid values of every option of `brtf.BRTF` and of every argument of its methods.
files (``fuzz_files.py``)
    small files of every format that brtf reads, cut short, with flipped bits, extra bytes or huge numbers in their
    headers; and ``.brtf`` files with false contents and correct digests.
clips (``fuzz_clips.py``)
    small clips, still, moving, missing or no clips at all, given to ``brtf.foreground``.

An answer is sound if what should be finite is, intervals have a width, probabilities lie in [0, 1], the input is
unchanged, and a plain copy of it gives the same digits. A refusal is a ValueError, TypeError, MemoryError or OSError
raised by brtf that names the argument or the file and does not pass on the text of NumPy, SciPy or LAPACK. Nothing is
printed, only brtf warns, no case takes long, and none takes more than 1 GB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array
import h5netcdf  # noqa: F401 - imported before memory is limited
import numpy as np
import pyarrow
from scipy import sparse

import brtf
from fuzz_clips import clips_case
from fuzz_files import files_case, write_examples
from fuzz_inputs import door_case
from fuzz_judge import PACKAGE, Door, Failure, Refused
from fuzz_options import options_case

CASES = {
    "door": (0.4, door_case),
    "options": (0.25, options_case),
    "files": (0.3, files_case),
    "clips": (0.05, clips_case),
}
"""Each kind of case: its share of all cases, and the function that runs one."""
KINDS = tuple(CASES)
SECONDS = 20
"""CPU time that a case may take; most take a few hundredths of a second."""
STALLED = 300
"""Seconds after which the system ends a process whose case is stuck in compiled code."""
MEMORY = 2**30
"""Bytes that a case may take beyond what the libraries have."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: ``group`` is the kind of thing that was tried."""

    case: int
    group: str
    ending: str
    detail: str = ""


class TooSlow(BaseException):
    """Raised into a case that takes too long; no handler of the library's stops it."""


def run_case(seed: int, case: int, kinds: Sequence[str], home: Path, *, show: bool = False) -> Outcome:
    """One case, alone: everything in it is drawn from the seed and its number."""
    rng = np.random.default_rng([seed, case])
    shares = np.array([CASES[kind][0] for kind in kinds])
    kind = str(rng.choice(list(kinds), p=shares / shares.sum()))
    door, ending, detail = Door(), "answered", ""
    began = time.process_time()
    limit_memory()
    with tempfile.TemporaryDirectory(dir=home) as directory, _silence(Path(directory)) as said:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(STALLED)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                CASES[kind][1](rng, door, Path(directory))
        except Refused as error:
            ending, detail = "refused", str(error)
        except TooSlow as error:
            ending, detail = "failed", f"not done after {SECONDS} s\n{_where(error)}"
        except Exception as error:
            ending, detail = "failed", f"{error if isinstance(error, Failure) else repr(error)}\n{_where(error)}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
    if ending != "failed" and said:
        ending, detail = "failed", f"printed: {said[0]}"
    if show:
        seconds = time.process_time() - began
        print(f"case {case} of seed {seed}: {kind}, {door.group}, {seconds:.2f} s", *door.told, sep="\n  ")
    return Outcome(case, f"{kind}: {door.group}", ending, detail)


def _where(error: BaseException) -> str:
    """The traceback of the first cause."""
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, TooSlow):
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)[-6:]
    return "\n".join(f"    {frame.filename.replace(PACKAGE, 'brtf')}:{frame.lineno} {frame.line}" for frame in frames)


@contextlib.contextmanager
def _silence(directory: Path) -> Iterator[list[str]]:
    """Collect whatever is written to the terminal, by libraries in C too."""
    said: list[str] = []
    with open(directory / "said", "w+b") as file:
        sys.stdout.flush(), sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            text = file.read().decode(errors="replace").strip()
            if text:
                said.append(text[:500])


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A directory for the files of cases, with an example of every format."""
    with tempfile.TemporaryDirectory(prefix="brtf-fuzz-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (Path(directory) / "examples").mkdir()
        write_examples(Path(directory) / "examples")
        yield Path(directory)


def prepare() -> None:
    """Compile the kernels, then limit the time of every case that this process runs."""

    def stop(*_: Any) -> None:
        raise TooSlow

    rng = np.random.default_rng(0)
    pyarrow.array(["x"])  # Arrow reserves address space at its first allocation, which is not a case's
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for order in (2, 3, 4, 5):
            Y = rng.standard_normal((3,) * order)
            holes = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
            listed = sparse.coo_array(Y) if order > 2 else sparse.csr_array(Y)
            brtf.BRTF(max_sweeps=2, random_state=0).fit(dask.array.from_array(holes))
            for given in (Y, holes, listed):
                for options in ({}, {"dtype": np.float32}, {"inference": "paper"}, {"noise": "per-slice"}):
                    model = brtf.BRTF(max_sweeps=2, random_state=0, **options).fit(given)
                    model.predict_interval()
    signal.signal(signal.SIGPROF, stop)


def limit_memory() -> None:
    """Limit the memory of a case beyond what the process has; code compiled for the cases before does not count."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run(seed: int, cases: Sequence[int], kinds: Sequence[str], home: Path, n_jobs: int) -> Iterator[Outcome]:
    """The outcomes of all cases, in order; a process that dies is replaced."""
    mine = threading.local()

    def one(case: int) -> Outcome:
        if not hasattr(mine, "process"):
            mine.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare)
            mine.process.submit(int).result()  # raises if the process cannot start
        try:
            return mine.process.submit(run_case, seed, case, kinds, home).result()
        except BrokenProcessPool:
            del mine.process
            return Outcome(case, "?", "failed", f"the process died, or stalled for {STALLED} s in compiled code")

    with ThreadPoolExecutor(n_jobs) as threads:
        yield from threads.map(one, cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    parser.add_argument("--case", type=int, help="repeat this one alone")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    command = f"python {sys.argv[0]} --seed {asked.seed}" + (
        f" --kinds {' '.join(asked.kinds)}" if asked.kinds != list(KINDS) else ""
    )
    cases = range(asked.start, asked.start + asked.cases)
    began, counts, failures = time.monotonic(), Counter[tuple[str, str]](), 0
    with workshop() as home:
        if asked.case is not None:
            prepare()
            outcome = run_case(asked.seed, asked.case, asked.kinds, home, show=True)
            print(f"{outcome.ending}: {outcome.detail}")
            return int(outcome.ending == "failed")
        print(f"seed {asked.seed}, cases {cases[0]} to {cases[-1]}, {asked.jobs} processes", flush=True)
        for outcome in run(asked.seed, cases, asked.kinds, home, asked.jobs):
            counts[outcome.group, outcome.ending] += 1
            if outcome.ending == "failed":
                failures += 1
                print(f"\n{outcome.group}, case {outcome.case}: {outcome.detail}", flush=True)
                print(f"  {command} --case {outcome.case}", flush=True)
    endings = ("answered", "refused", "failed")
    print(f"\n{'':28}" + "".join(f"{ending:>10}" for ending in endings))
    for group in sorted({group for group, _ in counts}):
        print(f"{group:28}" + "".join(f"{counts[group, ending]:10}" for ending in endings))
    totals = [sum(count for (_, end), count in counts.items() if end == ending) for ending in endings]
    print(f"{'all':28}" + "".join(f"{total:10}" for total in totals))
    print(f"\nseed {asked.seed}: {sum(totals)} cases in {time.monotonic() - began:.0f} s, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
