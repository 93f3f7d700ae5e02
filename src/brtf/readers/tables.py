"""Long tables, a row per observed entry: ``.csv``, ``.tsv`` and ``.parquet``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.checks import count_of
from brtf.extras import require
from brtf.memory import check_memory
from brtf.observations import Observations

SEPARATORS = {".csv": ",", ".tsv": "\t"}
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""Cells of the value column that say nothing. In a column of labels they are labels, but for the first."""
BYTES_PER_CELL = 8
"""The least that a cell takes in memory: columns of a few bytes may claim any number of rows."""

TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
"""What Arrow calls columns whose cells are of any length."""


def read_csv(path: Path, *, index: Sequence[str] | None = None, value: str | None = None) -> tuple[Observations, None]:
    """The observed entries of a table in text, with its labels."""
    pandas = require("pandas", extra="label", purpose="tables")
    separator = SEPARATORS[path.suffix.lower()]
    check_memory(path.stat().st_size, "its text", "cut it into smaller files")
    header = pandas.read_csv(path, sep=separator, nrows=0).columns.tolist()
    if index is None and header[0].startswith("Unnamed: "):
        raise ValueError(
            "its first column has no name; it may only number the rows. Say which columns index the modes (index)."
        )
    index, value = _columns(header, index, value)
    frame = pandas.read_csv(
        path,
        sep=separator,
        keep_default_na=False,
        na_values={value: MISSING},
        low_memory=False,  # in pieces, a column's labels could be numbers in one and text in the next
    )
    # Pandas takes cells that are too many for an index, and those that lack for empty ones.
    if not isinstance(frame.index, pandas.RangeIndex) or _blank(frame[header[-1]]).any():
        _check_lengths(path, separator, len(header))
    return _from_table(frame, index, value), None


def read_parquet(
    path: Path, *, index: Sequence[str] | None = None, value: str | None = None
) -> tuple[Observations, None]:
    """The observed entries of a Parquet table, with its labels."""
    require("pandas", extra="label", purpose="tables")
    parquet = require("pyarrow.parquet", extra="label", purpose=".parquet files")
    with parquet.ParquetFile(path) as file:
        index, value = _columns(parquet_header(file.schema_arrow), index, value)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        n_bytes = max(
            sum(group.total_byte_size for group in groups),
            file.metadata.num_rows * (len(index) + 1) * BYTES_PER_CELL,
        )
        check_memory(n_bytes, f"its table of {file.metadata.num_rows} rows", "cut it into smaller files")
        texts = [field.name for field in file.schema_arrow if str(field.type) in TEXT_TYPES]
    # A few bytes may repeat a long text in every row: every text is held once.
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        frame = file.read(columns=[*index, value], use_threads=False).to_pandas(ignore_metadata=True)
    for name in set(texts) & set(frame):
        categories = np.asarray(frame[name].cat.categories, dtype=object)
        frame[name] = frame[name].cat.rename_categories(categories).astype(object)
    return _from_table(frame, index, value), None


def parquet_header(schema: Any) -> list[str]:
    """The columns of a Parquet table, the index of a pandas table first.

    It comes last in the file; a level without a name only numbers the rows, and is left out.
    """
    levels = [name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
    columns = [name for name in schema.names if name not in levels]
    return [*(name for name in levels if not name.startswith("__index_level_")), *columns]


def _columns(header: Sequence[str], index: Sequence[str] | None, value: str | None) -> tuple[list[str], str]:
    """The columns that index the modes, and the one of values."""
    for name in [*(index or ()), *([] if value is None else [value])]:
        if name not in header:
            raise ValueError(f"it has no column {name!r}; its columns are: {', '.join(header)}.")
    if value is None:
        rest = [name for name in header if name not in (index or ())]
        if not rest:
            raise ValueError(f"all of its columns are index columns: {', '.join(header)}. One has to hold the values.")
        value = rest[-1]
    return [name for name in header if name != value] if index is None else list(index), value


def _blank(column: Any) -> NDArray[np.bool_]:
    """Where a column has no cell, or an empty one."""
    return np.asarray(column.isna() | (column == ""))


def _check_lengths(path: Path, separator: str, n_cells: int) -> None:
    """Refuse rows that are longer or shorter than the header."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(filter(None, csv.reader(file, delimiter=separator))):
            if len(row) != n_cells:
                raise ValueError(f"row {number} below the header has {len(row)} cells and not {n_cells}.")


def _from_table(frame: Any, index: list[str], value: str) -> Observations:
    """Observations from a table, once every cell is known to be a label or a number; rows count from 1."""
    import pandas

    for name in index:
        blank = _blank(frame[name])
        if blank.any():
            raise ValueError(
                f"row {blank.argmax() + 1} below the header has no label in column {name!r} "
                f"({count_of(blank.sum(), 'such row', 'such rows')} in all). Fill it in, or drop the row."
            )
    if not pandas.api.types.is_numeric_dtype(frame[value]):
        numbers = pandas.to_numeric(frame[value], errors="coerce")
        wrong = (numbers.isna() & frame[value].notna()).to_numpy()
        if wrong.any():
            raise ValueError(
                f"row {wrong.argmax() + 1} below the header, column {value!r}: "
                f"{frame[value].iloc[wrong.argmax()]!r} is not a number "
                f"({count_of(wrong.sum(), 'such cell', 'such cells')} in all). "
                "Correct it, or leave the cell empty, which means missing."
            )
        frame = frame.assign(**{value: numbers.astype(float)})
    repeated = frame.duplicated(index).to_numpy()
    if repeated.any():
        labels = frame[index].iloc[repeated.argmax()]
        first = (frame[index] == labels).all(axis=1).to_numpy().argmax()
        place = ", ".join(f"{name}={label}" for name, label in labels.items())
        raise ValueError(
            f"rows {first + 1} and {repeated.argmax() + 1} below the header are both at [{place}] "
            f"({count_of(repeated.sum(), 'duplicate', 'duplicates')} in all). Keep one of them, or average them."
        )
    return Observations.from_frame(frame, index=index, value=value)
