"""All methods side by side on real data.

Run ``make comparison`` or ``python benchmarks/comparison.py [--data DIR] [--only TEXT] [--limit SECONDS]``. The data
are not part of the project. Every measurement is stored as a row, a JSON file in ``reproduction/rows``. Stored rows are
not measured again, so an interrupted run can be continued. ``--page-only`` measures nothing and writes the page from
the stored rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from brtf.research.experiments import faces
from brtf.research.experiments.runs import Case, Rows, measure
from brtf.view.report.document import markdown
from contest_page import document

OUT = Path("reproduction")
N_LIGHTS = 7
FACE_GRIDS: dict[str, tuple[float, ...]] = {"horpca": (1.0, 2.0), "cp-als": (20, 60), "hosvd": (0.1, 0.2, 0.4)}
"""Fewer values than brtf reproduce --full uses, which takes hours on these faces."""
MISSING = (0.4, 0.6)
CP_RANKS = {"Birmingham": (5, 10, 20, 40), "Hangzhou": (5, 10, 20)}
PUBLISHED_RANKS = {"Birmingham": 20, "Hangzhou": 30}
"""Ranks of the factorizations in the published comparison."""
OUR_OPTIONS: dict[str, dict[str, Any]] = {
    "Birmingham": {"max_rank": 100},
    "Hangzhou": {"max_rank": 40, "link": "sqrt"},
}
"""The options of BRTF that real_data.py uses."""
VIDEO_METHODS: list[tuple[str, dict[str, Any]]] = [
    ("median", {}),
    ("brtf", {"max_rank": 2, "noise": "per-slice"}),
    ("pcp", {}),
    ("drmf", {"rank": 2, "outlier_fraction": 0.1}),
    ("prmf", {"rank": 2}),
    ("vbrpca", {}),
    ("godec", {"rank": 2, "outlier_fraction": 0.1}),
    ("regl1alm", {"rank": 2}),
    ("brmf", {"rank": 4}),
    ("decolor", {}),
    ("horpca", {"tol": 1e-4, "max_sweeps": 300}),
    ("brtf-paper", {"inference": "paper", "max_rank": 10}),
]
"""Methods for the clips and their options; BRMF gets twice the expected rank, as its authors recommend."""
CLAUS_METHODS: list[tuple[str, dict[str, Any]]] = [
    *((method, {"rank": 3}) for method in ("cp-als", "cpwopt", "cpnls", "huber")),
    *((method, {"max_rank": 3}) for method in ("cp-ard", "mgpcp", "bcpf", "brtf", "brtf-paper")),
    ("brtf", {"max_rank": 3, "robust": False, "noise": "auto"}),
    *((method, {}) for method in ("cp-ard", "mgpcp", "bcpf", "brtf", "brtf-paper")),
    ("huber", {"max_rank": 6}),
]
"""First with the rank given, or as an upper limit; then methods that find it themselves."""


def video_cases(name: str) -> Iterator[Case]:
    for method, options in VIDEO_METHODS:
        yield case(name, method, options)


def traffic_cases(name: str, missing: float) -> Iterator[Case]:
    bound = {"max_rank": PUBLISHED_RANKS[name]}
    yield case(name, "brtf", bound, missing=missing)
    yield case(name, "brtf", OUR_OPTIONS[name], missing=missing)
    yield case(name, "bcpf", bound, missing=missing)
    grids: dict[str, tuple[str, tuple[float, ...], dict[str, Any]]] = {
        "horpca": ("sparsity", (1.0, 2.0, 4.0, 8.0), {"max_sweeps": 300}),
        "cpwopt": ("rank", CP_RANKS[name], {"n_starts": 1}),
        "cpnls": ("rank", CP_RANKS[name], {"n_starts": 1, "max_sweeps": 50}),
        "huber": ("rank", CP_RANKS[name], {"n_starts": 1}),
        "prmf": ("rank", (2, 5, 10), {}),
        "regl1alm": ("rank", (2, 5, 10), {}),
        "brmf": ("rank", (2, 5, 10), {}),
    }
    for method, (parameter, grid, options) in grids.items():
        for value in grid:
            yield case(name, method, options, missing=missing, parameter=parameter, value=value)
    yield case(name, "mgpcp", {"max_rank": 20, "n_sweeps": 300}, missing=missing)
    yield case(name, "brtf-paper", bound, missing=missing)


def case(of: str, method: str, options: dict[str, Any], **more: Any) -> Case:
    return Case(of.lower(), {"of": of, "method": method, "seed": 0, "options": options, **more}, "contests")


def face_file(data: Path) -> Path:
    """Write a file with the first lights of the faces only, unless there is one, and return its path."""
    path = OUT / f"pie-1024x10x5x{N_LIGHTS}.npy"
    if not path.exists():
        with np.load(data / "pie_faces" / "pie_1024x10x5x21.npz") as content:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, content["X"][:, :, :, :N_LIGHTS])
    return path


def plan(data: Path) -> Iterator[Case]:
    """All cases whose data are in the folder."""
    if (data / "chemometrics").exists():
        yield from (case("claus", method, options) for method, options in CLAUS_METHODS)
    if (data / "cdnet_highway").exists():
        yield from video_cases("highway")
    if (data / "traffic").exists():
        for name in OUR_OPTIONS:
            for missing in MISSING:
                yield from traffic_cases(name, missing)
    if (data / "i2r_video").exists():
        yield from video_cases("hall")
    if (data / "pie_faces").exists():
        for one in faces.plan(False, 0, {"faces": str(face_file(data))}):
            grid = FACE_GRIDS.get(one.settings["method"], one.settings["grid"])
            yield Case(one.experiment, {**one.settings, "grid": list(grid)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--only", default="", help="measure only data sets whose name contains this text")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a method may take")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--write", type=Path, default=Path("docs/comparison.md"), help="the file to write the page to")
    options = parser.parse_args()
    rows = Rows(OUT / "rows")
    inputs = {"data": str(options.data), "faces": str(face_file(options.data))}
    cases = [one for one in plan(options.data) if options.only.lower() in one.experiment]
    if not options.page_only:
        for row in measure(cases, rows, inputs, options.limit):
            print(row.experiment, row.settings, row.error or row.numbers, flush=True)
    text = markdown(document(list(plan(options.data)), rows, options.data), options.write.parent, options.write.stem)
    options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
