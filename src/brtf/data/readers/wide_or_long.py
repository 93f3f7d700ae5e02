"""What the columns of a table are: a matrix (wide), or labels and values with a row per entry (long)."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import count_of
from brtf.data.dataframes import LARGEST_GUESSED_ORDER, Kind, kinds_of, looks_long
from brtf.data.exports import distinct_names
from brtf.data.observations import Observations
from brtf.data.observe import observe_matrix


def row_labels(header: Sequence[str], index: Sequence[str] | None, value: str | None) -> list[str]:
    """The columns given as row labels of a wide table, if any."""
    if value is not None:
        raise ValueError("a wide table has its values in many columns: leave out --value, or leave out --wide.")
    for name in index or ():
        check_column(name, header)
    return list(index or ())


def is_wide(frame: Any) -> bool:
    """Whether a table is a matrix with row labels in the first column, or long; raises if it may be either."""
    frame = without_empty(frame)
    names, kinds = frame.columns.tolist(), _kinds(frame)
    first = frame[names[0]]
    if len(kinds) < 3 or len(frame) == 0:
        return False
    if kinds[0] == "labels" and "labels" not in kinds[1:] and first.is_unique and not _blank(first).any():
        return True
    if looks_long(frame, kinds) and not is_unnamed(names[0]):
        return False
    raise ValueError(_two_readings(names, kinds))


def _two_readings(names: Sequence[str], kinds: Sequence[Kind]) -> str:
    """Error message for a table that is neither clearly long nor clearly wide."""
    named_columns = [(name, kind) for name, kind in zip(names, kinds, strict=True) if not is_unnamed(name)]
    labels = [name for name, kind in named_columns if kind == "labels"]
    values = [name for name, kind in named_columns if kind != "labels"]
    index = [name for name, kind in named_columns if kind != "numbers" and name not in values[-1:]]
    named = ",".join(index) if 2 <= len(index) <= LARGEST_GUESSED_ORDER else "A,B"
    long = f"--index {quote(named)} --value {quote(values[-1]) if values else 'C'}"
    if is_unnamed(names[0]):
        wide = "--wide"
    elif labels:
        wide = f"--wide --index {quote(','.join(labels))}"
    else:
        wide = f"--wide, or --wide --index {quote(names[0])} if that column labels the rows"
    return (
        f"its {len(names)} columns do not say whether a row is one entry of a tensor or many. Long, a row per entry, "
        f"with columns that index it and one of values: {long}. Wide, with values in many columns: {wide}."
    )


def is_unnamed(name: str) -> bool:
    """Whether a column name was made up by pandas."""
    return name.startswith(("Unnamed: ", "__index_level_"))


def _kinds(frame: Any) -> list[Kind]:
    """The kind of each column; text that is mostly numbers counts as numbers, with the other cells as errors."""
    import pandas

    def holds_numbers(column: Any) -> bool:
        texts: Any = column
        counts: Any = 1
        if isinstance(column.dtype, pandas.CategoricalDtype):  # look at every distinct text once
            codes = column.cat.codes.to_numpy()
            texts = pandas.Series(column.cat.categories)
            counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        if not (pandas.api.types.is_object_dtype(texts) or pandas.api.types.is_string_dtype(texts)):
            return False
        are_numbers = _to_numbers(texts).notna()
        return bool(2 * (counts * are_numbers).sum() >= (counts * texts.notna()).sum())

    kinds = kinds_of(frame)
    return [
        "numbers" if kind == "labels" and holds_numbers(frame.iloc[:, column]) else kind
        for column, kind in enumerate(kinds)
    ]


def _to_numbers(column: Any) -> Any:
    """The cells of a column as numbers, NaN where they are none, or whole numbers that no float can hold."""
    import pandas

    try:
        return pandas.to_numeric(column, errors="coerce")
    except OverflowError:  # of whole numbers, which errors= lets through
        short = column.astype(str).str.len() <= sys.float_info.max_10_exp
        return pandas.to_numeric(column.where(short), errors="coerce")


def _blank(column: Any) -> NDArray[np.bool_]:
    """True where a column has no cell or an empty one."""
    return np.asarray(column.isna() | (column == ""))


def check_lengths(text: bytes, separator: str, n_cells: int) -> None:
    """Raise if rows are longer or shorter than the header."""
    lines = io.TextIOWrapper(io.BytesIO(text), newline="", encoding="utf-8-sig")
    for number, row in enumerate(filter(None, csv.reader(lines, delimiter=separator))):
        if len(row) != n_cells:
            raise ValueError(f"row {number} below the header has {len(row)} cells and not {n_cells}.")


def without_empty(frame: Any) -> Any:
    """The table without columns that have no cell, such as those of remarks that nobody made.

    Unchanged if two index columns and one of values would not be left: then a value is missing in every row.
    """
    filled = ~frame.isna().all().to_numpy()
    return frame.loc[:, filled] if filled.sum() > 2 else frame


def from_wide(frame: Any, named: Sequence[str]) -> Observations:
    """The matrix of a wide table, whose rows are labelled by a column: the one named, or the first if it is text.

    Several columns that label its rows are modes of a tensor, and its other columns the positions of the last mode.
    """
    first = frame.columns[0]
    if not named and (is_unnamed(first) or _kinds(frame[[first]]) == ["labels"]):
        named = [first]
    numbers = frame.drop(columns=list(named))
    if numbers.shape[1] < 2:
        raise ValueError("as a wide table it has only one column of numbers: a matrix has two or more.")
    texts = numbers.columns[[kind == "labels" for kind in kinds_of(numbers)]]
    numbers = numbers.assign(**{text: _as_numbers(numbers[text]) for text in texts}).rename_axis(columns="column")
    if len(named) > 1:
        return _stacked(frame[list(named)], numbers)
    name = next(iter(named), None)
    if name is None:
        return observe_matrix(numbers.rename_axis(index="row"))
    labels = frame[name]
    _check_labels(labels)
    repeated = labels.duplicated().to_numpy()
    if repeated.any():
        label = labels.iloc[repeated.argmax()]
        raise ValueError(
            f"rows {(labels == label).to_numpy().argmax() + 1} and {repeated.argmax() + 1} below the header both have "
            f"the label {label!r} in column {name!r} ({count_of(repeated.sum(), 'duplicate', 'duplicates')} in all). "
            "A row of a wide table has a label of its own; if a row is one entry, name the columns that index it "
            "(--index) and the one of its value (--value)."
        )
    return observe_matrix(numbers.set_axis(labels.rename("row" if is_unnamed(name) else name), axis="index"))


def _stacked(labels: Any, numbers: Any) -> Observations:
    """The tensor of a table whose rows have several labels: its columns are positions of the last mode, in order."""
    import pandas

    *_, name = distinct_names([*labels.columns, "column"])
    long = pandas.concat([labels.assign(**{name: text, "": numbers[text]}) for text in numbers], ignore_index=True)
    long[name] = pandas.Categorical(long[name], categories=list(numbers))
    return from_table(long, [*labels.columns, name], "")


def _check_labels(column: Any) -> None:
    """Raise if rows have no label; rows count from 1."""
    blank = _blank(column)
    if blank.any():
        raise ValueError(
            f"row {blank.argmax() + 1} below the header has no label in column {column.name!r} "
            f"({count_of(blank.sum(), 'such row', 'such rows')} in all). Fill it in, or drop the row."
        )


def _as_numbers(column: Any) -> Any:
    """A column of text as numbers; raises if a cell is not a number."""
    numbers = _to_numbers(column)
    wrong = (numbers.isna() & column.notna()).to_numpy()
    if wrong.any():
        raise ValueError(
            f"row {wrong.argmax() + 1} below the header, column {column.name!r}: "
            f"{column.iloc[wrong.argmax()]!r} is not a number "
            f"({count_of(wrong.sum(), 'such cell', 'such cells')} in all). "
            "Correct it, or leave the cell empty, which means missing."
        )
    return numbers.astype(float)


def from_table(frame: Any, index: list[str], value: str) -> Observations:
    """Observations from a table whose cells have been checked; rows count from 1."""
    for name in index:
        _check_labels(frame[name])
    if kinds_of(frame[[value]]) == ["labels"]:
        frame = frame.assign(**{value: _as_numbers(frame[value])})
    repeated = frame.duplicated(index).to_numpy()
    if repeated.any():
        labels = frame[index].iloc[repeated.argmax()]
        first = (frame[index] == labels).all(axis=1).to_numpy().argmax()
        place = ", ".join(f"{name}={label!s:.80}" for name, label in labels.items())  # some labels are long
        raise ValueError(
            f"rows {first + 1} and {repeated.argmax() + 1} below the header are both at [{place}] "
            f"({count_of(repeated.sum(), 'duplicate', 'duplicates')} in all). Keep one of them, or average them; if "
            "the table is a matrix, read it with --wide."
        )
    return Observations.from_frame(frame, index=index, value=value)


def check_column(name: str, header: Sequence[str]) -> None:
    if name not in header:
        raise ValueError(f"it has no column {name!r}; its columns are: {name_list(header)}.")


def name_list(names: Sequence[str]) -> str:
    """Names, or the first of many."""
    return ", ".join(names if len(names) <= 12 else [*names[:10], f"… ({len(names)} in all)"])
