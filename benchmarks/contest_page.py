"""The page of the comparison: a section per data set, made from the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brtf.research.experiments import faces, video
from brtf.research.experiments.contenders import CONTENDERS
from brtf.research.experiments.figures import collage
from brtf.research.experiments.lines import NONE, mark_best, rank_text
from brtf.research.experiments.runs import Case, Row, Rows
from brtf.view.report.document import Cell, Document, Figure, Section, Table
from brtf.view.report.svg import number
from contest_readings import READINGS

Measure = Callable[[Mapping[str, Any]], float | None]
"""Reads one number from those of a row."""
LABELS = {name: contender.label for name, contender in CONTENDERS.items()} | {
    **video.LABELS,
    "median": "median frame",
    "bcpf": "BCPF (BRTF without outliers)",
}
COMMAND = "python benchmarks/comparison.py"
ABOUT = {
    "highway": "CDnet highway, grey, half size, 19200 pixels × 151 frames, with the true masks: 255 is moving, 0 and "
    "50 (hard shadow) are not, 85 and 170 are ignored. HORPCA sees 120 × 160 × 151, the others pixels × frames. F is "
    "given for the method’s own decision, if it makes one; for the global threshold of |S| that is best in hindsight; "
    "and for BRTF also for whole objects (smooth_mask), decided without the truth. Ranks are not tuned: methods that "
    "need one get 2, the same as max_rank of BRTF; BRMF gets 4.",
    "hall": "I2R Hall, half size, 72 × 88 × 100. There are no true masks; look at the pictures. A woman stands at the "
    "counter until about frame 55 and then leaves, so the last frames show the floor behind her. The table gives the "
    "share of the pixels she covers where the background of frame 25 is that floor, to within 20 levels, grouped by "
    "how much of the time they are covered.",
    "claus": "Fluorescence of five mixtures of three amino acids, 5 × 201 × 61. Correlation of three scores, one for "
    "each, with the known concentrations. With five samples and many components a high correlation may be chance, so "
    "look at the rank too.",
    "Birmingham": "Occupancy of 30 car parks on 77 days at 18 times, zeros missing.",
    "Hangzhou": "Passengers at 80 metro stations on 25 days at 108 times, zeros missing.",
}
TUNED = (
    "{share} of the entries are hidden by the mask of the published comparison; errors are those at hidden entries. "
    "Methods that need a rank or a weight have two sets of columns: with the value that best predicts a held-out tenth "
    "of the shown entries (by median error), which needs no truth, and separately with the value that is best in "
    "hindsight. Matrix methods have the times of day as columns. “As published” are the figures of "
    "github.com/xinychen/transdim, which does not say how its ranks were chosen."
)


def document(cases: Sequence[Case], rows: Rows, data: Path) -> Document:
    """A section per data set, and a note of the planned cases that have not been measured."""
    sections = []
    for experiment in dict.fromkeys(case.experiment for case in cases):
        mine = [case for case in cases if case.experiment == experiment]
        found = [row for case in mine if (row := rows.read(case))]
        if found:
            sections += SECTIONS[experiment](mine, found, rows, data)
    left = [case for case in cases if rows.read(case) is None]
    names = {
        name: sum(case.experiment == name for case in left) for name in dict.fromkeys(case.experiment for case in left)
    }
    notes = [
        "The data are not part of the project. One mask and one seed each, one thread. Bold marks the best of a "
        "column. Columns that mention the truth are tuned by it; no others are. Seconds are for one fit on a busy "
        "machine and only show orders of magnitude.",
    ]
    if left:
        words = ", ".join(f"{n} of {name}" for name, n in names.items())
        notes.append(f"Not measured yet: {words}; run the same command again to continue.")
    return Document("All methods on real data", f"Written by `make comparison` (`{COMMAND}`).", notes, sections)


def label(settings: Mapping[str, Any]) -> str:
    """The name of a method with its options."""
    told = ", ".join(f"{name}={value!r}" for name, value in settings["options"].items())
    return LABELS[settings["method"]] + (f" `{told}`" if told else "")


def simple_table(
    cases: Sequence[Case], rows: Rows, measures: Mapping[str, Measure], caption: str = "", *, digits: int = 3
) -> Table:
    """A line per case: measures of which more is better, rank and seconds; what failed says why."""
    table = []
    found = [rows.read(case) for case in cases]
    values = [[get(row.numbers) if row and row.numbers else None for get in measures.values()] for row in found]
    for case, row, line in zip(cases, found, values, strict=True):
        cells = [NONE if value is None else Cell(f"{value:.{digits}f}") for value in line]
        if row is None or row.numbers is None:
            cells[0] = Cell("not measured") if row is None else Cell(row.error or "", mark="bad")
            cells += [NONE, NONE]
        else:
            cells += [Cell(rank_text(row.numbers["rank"])), Cell(number(row.numbers["seconds"], 2))]
        table.append([Cell(label(case.settings)), *cells])
    for column, column_values in enumerate(zip(*values, strict=True), start=1):
        rounded = [None if value is None else round(value, digits) for value in column_values]
        mark_best(table, [True] * len(table), column, rounded, largest=True)
    return Table(["", *measures, "rank", "seconds"], table, caption)


def highway(cases: Sequence[Case], found: Sequence[Row], rows: Rows, data: Path) -> list[Section]:
    measures: dict[str, Measure] = {
        "F, own decision": lambda numbers: numbers.get("f_own"),
        "F, threshold by the truth": lambda numbers: numbers.get("f_told"),
        "F, whole objects": lambda numbers: numbers.get("f_objects"),
    }
    picture = pictures(found, rows, ["background", "foreground"])
    figure = Figure("highway", picture, "Background and |S| of frame 60")
    table = simple_table(cases, rows, measures)
    return [Section("highway", "Highway", [ABOUT["highway"]], (), [figure], [table], READINGS["highway"])]


def hall(cases: Sequence[Case], found: Sequence[Row], rows: Rows, data: Path) -> list[Section]:
    shares = next((list(row.numbers["floor"]) for row in found if row.numbers), [])
    measures = {
        f"floor found, covered {share}": lambda numbers, share=share: numbers["floor"][share] for share in shares
    }
    figure = Figure("hall", pictures(found, rows, ["background", "foreground"]), "Background and |S| of frame 25")
    return [
        Section("hall", "Hall", [ABOUT["hall"]], (), [figure], [simple_table(cases, rows, measures)], READINGS["hall"])
    ]


def pictures(found: Sequence[Row], rows: Rows, names: Sequence[str]) -> bytes:
    """The frame, and what each method makes of it."""
    able = [row for row in found if row.pictures]
    columns: dict[str, list[Any]] = {"frame": [rows.picture(able[0], "frame"), *[None] * (len(names) - 1)]}
    for row in able:
        columns[LABELS[row.settings["method"]]] = [rows.picture(row, name) for name in names]
    return collage(columns, list(names), columns_wide=-(-len(columns) // 2))


def claus(cases: Sequence[Case], found: Sequence[Row], rows: Rows, data: Path) -> list[Section]:
    measures: dict[str, Measure] = {
        f"correlation {k + 1}": lambda numbers, k=k: numbers["correlations"][k] for k in range(3)
    }
    measures["least"] = lambda numbers: min(numbers["correlations"])
    told = [case for case in cases if 3 in (case.settings["options"].get(name) for name in ("rank", "max_rank"))]
    tables = [
        simple_table(told, rows, measures, "Rank 3, or at most 3, given", digits=4),
        simple_table([case for case in cases if case not in told], rows, measures, "Rank not given", digits=4),
    ]
    return [Section("claus", "Claus", [ABOUT["claus"]], (), (), tables, READINGS["claus"])]


def traffic(cases: Sequence[Case], found: Sequence[Row], rows: Rows, data: Path) -> list[Section]:
    name = cases[0].settings["of"]
    sections = []
    for missing in dict.fromkeys(case.settings["missing"] for case in cases):
        some = [case for case in cases if case.settings["missing"] == missing]
        if not any(rows.read(case) for case in some):
            continue
        share = f"{missing:.0%}"
        title = f"{name}, {share} hidden"
        about = [f"{ABOUT[name]} {TUNED.format(share=share)}"]
        table = traffic_table(some, rows, published(data / "traffic" / "transdim_tables.md", name, missing))
        sections.append(Section(title.lower(), title, about, (), (), [table], READINGS[f"{name} {missing}"]))
    return sections


def traffic_table(cases: Sequence[Case], rows: Rows, printed: Sequence[Sequence[str]]) -> Table:
    """A line per method, with the parameter chosen by held-out entries and by the truth; then published figures."""
    table, honest, told = [], [], []
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(label(case.settings), []).append(case)
    for words, group in groups.items():
        able = [row for case in group if (row := rows.read(case)) and row.numbers]
        problems = what_is_wanting(group, rows)
        if not able:
            table.append([Cell(words), Cell("–", problems, "bad"), *[NONE] * 7])
            honest.append({})
            told.append({})
            continue
        is_tuned = "parameter" in group[0].settings
        mine = min(able, key=lambda row: row.numbers["hidden_error"] if is_tuned else 0.0)
        best = min(able, key=lambda row: row.numbers["rmse"])
        honest.append(mine.numbers)
        told.append(best.numbers if is_tuned else {})
        cells = [Cell(f"{mine.numbers['rmse']:.2f}"), Cell(f"{mine.numbers['mape']:.4f}")]
        cells.append(Cell(value_text(mine), problems) if is_tuned else NONE)
        cells += [Cell(rank_text(mine.numbers["rank"])), Cell(number(mine.numbers["seconds"], 2))]
        cells += (
            [Cell(f"{best.numbers['rmse']:.2f}"), Cell(f"{best.numbers['mape']:.4f}"), Cell(value_text(best))]
            if is_tuned
            else [NONE] * 3
        )
        table.append([Cell(words), *cells])
    for model, rank, mape, rmse, seconds in printed:
        errors = Cell(f"{float(rmse):.2f}"), Cell(f"{float(mape):.4f}")
        beside = Cell(rank or "–"), Cell(seconds)
        table.append([Cell(f"{model}, as published"), *errors, NONE, *beside, *[NONE] * 3])
        honest.append({"rmse": float(rmse), "mape": float(mape)})
        told.append({})
    for column, (numbers, measure) in {
        1: (honest, "rmse"),
        2: (honest, "mape"),
        6: (told, "rmse"),
        7: (told, "mape"),
    }.items():
        mark_best(table, [True] * len(table), column, [entry.get(measure) for entry in numbers])
    header = ["", "RMSE", "MAPE", "chosen", "rank", "seconds", "RMSE, tuned by the truth", "MAPE", "value"]
    return Table(header, table)


def what_is_wanting(cases: Sequence[Case], rows: Rows) -> str:
    """Which values have no numbers, and why."""
    reasons: dict[str, list[str]] = {}
    for case in cases:
        row = rows.read(case)
        if row is None or row.numbers is None:
            reason = "not measured" if row is None else row.error or ""
            reasons.setdefault(reason, []).extend([f"{case.settings['value']:g}"] if "value" in case.settings else [])
    return "; ".join(f"{', '.join(values)} {reason}".strip() for reason, values in reasons.items())


def value_text(row: Row) -> str:
    return f"{row.settings['parameter']} {row.settings['value']:g}"


def published(path: Path, name: str, missing: float) -> list[list[str]]:
    """Model, rank, MAPE, RMSE and seconds of the published lines for randomly missing entries."""
    lines = [[word.strip() for word in line.strip().strip("|").split("|")] for line in path.read_text().splitlines()]
    return [line[3:] for line in lines if line[:3] == [name, "RM", str(missing)]]


def portraits(cases: Sequence[Case], found: Sequence[Row], rows: Rows, data: Path) -> list[Section]:
    section = faces.render(found, rows)
    return [replace(section, title="PIE faces", figures=(), remarks=READINGS["faces"])]


SECTIONS = {
    "highway": highway,
    "hall": hall,
    "claus": claus,
    "birmingham": traffic,
    "hangzhou": traffic,
    "faces": portraits,
}
