"""All measurements together, the table of them, and the page that holds it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from brtf.data.passes import workers
from brtf.research.bench import answers, fits, options, sweeps
from brtf.research.bench.measure import Effort, Measurement, copying, cube_product, fastest

MEASUREMENTS: dict[int, tuple[Callable[[Effort], Iterator[Measurement]], ...]] = {
    1: (sweeps.complete_sweeps,),
    2: (sweeps.masked_grams, sweeps.masked_sweeps),
    3: (sweeps.coordinates,),
    4: (fits.memory,),
    5: (fits.sweeps_to_a_nat,),
    6: (fits.whole_fits,),
    7: (sweeps.growth, sweeps.threads),
    8: (fits.first_use,),
    9: (options.option_sweeps,),
    10: (answers.answers,),
    11: (answers.sweeps_of_moves,),
}
"""What is measured for each target, by the target's number."""
HEADER = ("target", "measured", "value", "asked for", "met", "against", "note")
PAGE = """# Performance

Speed and memory as ratios to references measured in the same run: a copy of the data, a dense matrix product, a fit
by another library. One thread unless stated otherwise; tasks take turns, and the fastest of {n_repeats} runs of each
counts, in CPU time; of the fits of target 10, the time to answer, a single one. `make bench` prints the table and
writes this page; `brtf bench` prints it for your machine.

{machine}

{table}
"""


def measure(effort: Effort, targets: Iterable[int] = tuple(MEASUREMENTS)) -> Iterator[Measurement]:
    """The rows of the given targets, one after another, with BLAS held to one thread."""
    with workers(None):
        for target in targets:
            for measurement in MEASUREMENTS[target]:
                yield from measurement(effort)


def machine(effort: Effort) -> dict[str, str]:
    """Cores and processor, versions, and the peak rates that ratios refer to; nothing that names the host."""
    side, double = cube_product(effort)
    _, single = cube_product(effort, np.float32)
    copied = np.ones(2**20 if effort.quick else 2**24)
    with workers(None):
        seconds = fastest({"double": double, "single": single, "copy": copying(copied)}, effort.n_repeats)
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba"))
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "software": f"Python {platform.python_version()}, {packages}",
        "peaks of a core": (
            f"dgemm {2e-9 * side**3 / seconds['double']:.0f} Gflop/s, "
            f"sgemm {2e-9 * side**3 / seconds['single']:.0f} Gflop/s, "
            f"copy {1e-9 * copied.nbytes / seconds['copy']:.0f} GB/s"
        ),
    }


def _processor() -> str:
    """The processor's family, if the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = dict(re.findall(r"^(model name|cpu family)\s*: (.*)$", info.read_text(encoding="utf-8"), re.MULTILINE))
        if "model name" in found:
            return f"{found['model name']} (family {found.get('cpu family', 'unknown')})"
    return platform.processor() or platform.machine()


def cells(row: Measurement) -> tuple[str, ...]:
    """What the table shows of a row."""
    met = {True: "yes", False: "no", None: ""}[row.met]
    sign = "≥" if row.at_least else "≤"
    asked = "" if row.limit is None else f"{sign} {_number(row.limit)}"
    value = "–" if row.value is None else f"{_number(row.value)} {row.unit}".rstrip()
    return str(row.target), row.what, value, asked, met, row.against, row.note


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def text(rows: Iterable[Measurement]) -> str:
    """The table for a terminal, the words last."""
    shown = [HEADER[:1] + HEADER[2:5] + ("",)]
    for row in rows:
        target, what, value, asked, met, against, note = cells(row)
        words = what + (f"; against {against}" if against else "") + (f" ({note})" if note else "")
        shown.append((target, value, asked, met, words))
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in shown)
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Iterable[Measurement]) -> str:
    """The table in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(rows: Iterable[Measurement], words: dict[str, str], effort: Effort) -> str:
    """The page in Markdown: what was measured on which machine."""
    described = "\n".join(f"- {name.capitalize()}: {text}" for name, text in words.items())
    return PAGE.format(n_repeats=effort.n_repeats, machine=described, table=markdown(rows))
