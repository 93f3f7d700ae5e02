"""How the fit went: what the bound chose, the course of bound and rank, and all settings and results."""

from __future__ import annotations

from typing import Any

from brtf.inference.trace import Kind, comparable, imposed
from brtf.model.settings import Settings
from brtf.results.choice_words import Choice, choices_of, rows_in_words
from brtf.results.summary import Summary
from brtf.view.report import charts
from brtf.view.report.blocks import Card, Cards, Cell, Facts, Fold, Key, Part, Table, Words
from brtf.view.report.subject import Subject
from brtf.view.report.svg import glyph, number
from brtf.view.view_data import moves

MOST_MOVES = 200
ROWS = "How the loadings of a mode vary is chosen for every mode, without an option."
MOVE_WORDS = {"birth": "birth", "death": "death", "merge": "merge", "prune": "prune", "other": "other change"}


def choices_part(subject: Subject) -> Part:
    """What the bound chose where the options left it open, and by how many nats."""
    chosen = choices_of(subject.result)
    if not chosen:
        return Part("choices", "Choices")
    rows = [
        [
            Cell(option),
            Cell(_value_in_words(subject, choice)),
            Cell("nothing else was tried") if choice.gain is None else Cell.of(choice.gain),
            Cell(choice.sentence),
        ]
        for option, choice in chosen.items()
    ]
    about = (
        "The fit made these choices itself, by the lower bound of the log evidence: a nat more means that the data are "
        "e times as probable. Each can be made by hand through the option of the same name."
    )
    table = Table(["option", "chosen", "nats better", "in words"], rows, n_wordy=1, n_labels=2, file="choices")
    return Part("choices", "Choices", [Words(about), Words(f"{ROWS} {rows_in_words(subject.result)}"), table])


def _value_in_words(subject: Subject, choice: Choice) -> str:
    """What was chosen, with the names of the modes; nothing is said of modes that are a mere set."""
    if choice.option != "modes":
        return str(choice.value)
    said = {mode: (words,) if isinstance(words, str) else words for mode, words in choice.value.items()}
    told = {mode: [word for word in words if word != "unordered"] for mode, words in said.items()}
    named = [f"{subject.axes[mode].name}: {' and '.join(words)}" for mode, words in told.items() if words]
    return "; ".join(named) or "unordered"


def course_part(subject: Subject) -> Part:
    """Bound and rank over the sweeps, with the moves."""
    result = subject.result
    all_moves = moves(result.trace)
    kept = [move for move in all_moves if move.kept]
    kinds = [kind for kind in MOVE_WORDS if any(move.kind == kind for move in kept)]
    legend = [(glyph(kind, f"move {kind}"), MOVE_WORDS[kind]) for kind in kinds]
    if len(kept) < len(all_moves):
        legend.append((glyph("dropped", "move dropped"), "rejected"))
    blocks: list[Any] = [
        Words(_told(subject)),
        Cards([Card(charts.bound_chart(result)), Card(charts.rank_chart(result))], "pair"),
    ]
    if legend:
        blocks.append(Key(legend, in_line=True))
    if all_moves:
        listed = all_moves[:MOST_MOVES]
        rows = [
            [
                Cell(f"{move.record.sweep:,}", value=move.record.sweep),
                Cell(str(move.record.event)),
                Cell("yes" if move.kept else "no"),
                Cell(str(move.record.rank), value=move.record.rank),
            ]
            for move in listed
        ]
        first = f", the first {len(listed)} listed" if len(listed) < len(all_moves) else ""
        table = Table(["sweep", "event", "accepted", "rank"], rows, n_labels=3, file="proposals")
        blocks.append(Fold(f"{len(all_moves)} proposals{first}", [table]))
    return Part("course", "Course of the fit", blocks)


def _told(subject: Subject) -> str:
    result = subject.result
    kinds = [record.event.kind for record in result.trace]
    words = (
        f"The final lower bound of the log evidence is {number(result.bound, 8)} nats, "
        f"{number(result.bound / result.observations.n_observed, 4)} per observed entry."
    )
    if result.settings.inference == "calibrated":
        against = imposed(result.trace)
        words += " Every structural change was accepted only if it raised the bound"
        words += f", except {' and '.join(against)}." if against else "."
    if Kind.CHANNELS in kinds and result.state.structure is not None:
        words += (
            f" The bound was rescaled during the fit ({result.state.structure.n_channels:.2f} shared entries worth "
            "one), so earlier values cannot be compared with later ones."
        )
    if Kind.FORM in kinds:
        words += " Where the fit switched to another form of the bound, earlier values are shifted to match."
    if len(comparable(result.trace)) < len(result.trace):
        words += " The bound is drawn from where it is comparable with the final one."
    return words


def details_part(subject: Subject) -> Part:
    """All settings and results as text."""
    result, settings = subject.result, subject.result.settings
    rows = [
        ("modes", ", ".join(f"{axis.name} ({axis.length:,})" for axis in subject.axes)),
        *Summary.of(result).rows(),
        ("outlier model", result.state.local.description),
        ("outlier option", _outliers_asked(settings)),
        ("start", str(settings.init) if isinstance(settings.init, str) else "given factors"),
        ("noise option", settings.noise),
        ("calibration option", settings.calibrate or "none"),
        ("tolerance", f"{settings.tol:g} nats per observed entry"),
        ("most sweeps", f"{settings.max_sweeps:,}"),
        ("brtf", result.version),
    ]
    return Part("details", "Details", [Facts(rows)])


def _outliers_asked(settings: Settings) -> str:
    if not settings.robust:
        return "none"
    modes, labelled = settings.outlier_modes, settings.labelled_modes
    shared = f", shared along modes {', '.join(map(str, modes))}" if modes else ""
    rates = f", rates of labels along modes {', '.join(map(str, labelled))}" if labelled else ""
    return settings.outlier_kind + shared + rates
