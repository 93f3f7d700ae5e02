"""Tables, in text, Parquet, Feather or Excel: long, a row per observed entry, or wide, a row per row of a matrix."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brtf.data.dataframes import LARGEST_GUESSED_ORDER, kinds_of
from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.data.readers.sizes import choose
from brtf.data.readers.wide_or_long import (
    check_column,
    check_lengths,
    from_table,
    from_wide,
    is_unnamed,
    is_wide,
    name_list,
    row_labels,
    without_empty,
)

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""What usually separates the cells, by suffix."""
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Marks that may separate the cells of a table in text, in the order in which they are tried."""
SAMPLE_BYTES, PIECE_BYTES = 2**16, 2**24
"""Beginning of a table by which its separator is determined, and the piece in which a gzipped one is unpacked."""
BYTES_PER_EXCEL_CELL = 64
"""Approximate size of a cell of a sheet as a Python object."""
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")
"""Cells that mean missing in the value column. In a column of labels all but the first are labels."""
FORMULA = tuple("=+-@\t\r")
"""First characters of text that a spreadsheet takes for a formula."""
BYTES_PER_CELL = 8
"""Smallest size of a cell in memory: columns of a few bytes may claim any number of rows."""

TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
"""Arrow types of variable length."""


@dataclass(frozen=True)
class Dialect:
    """How a table in text is written: what separates its cells, and what begins the fraction of a number."""

    separator: str = ","
    decimal: str = "."

    def __str__(self) -> str:
        commas = ", numbers with decimal commas" if self.decimal == "," else ""
        return f"cells separated by {NAMES[self.separator]}{commas}"


def read_csv(
    path: Path, *, index: Sequence[str] | None = None, value: str | None = None, wide: bool = False
) -> tuple[Observations, None, Dialect]:
    """The observed entries of a table in text, plain or gzipped, with its labels, and how it is written."""
    pandas = require("pandas", extra="label", purpose="tables")
    text = _text_of(path)
    separator = _separator(text, SEPARATORS[path.name.lower().removesuffix(".gz")[-4:]])
    decimal = "."

    def read(missing: Any) -> Any:
        frame = pandas.read_csv(
            io.BytesIO(text),
            sep=separator,
            decimal=decimal,
            keep_default_na=False,
            na_values=missing,
            low_memory=False,  # read in pieces, labels could be numbers in one piece and text in the next
            **exact_numbers(pandas),
        )
        frame.columns = restored(frame.columns.tolist())
        texts = frame.columns[[kind == "labels" for kind in kinds_of(frame)]]
        return frame.assign(**{name: restored(frame[name].tolist()) for name in texts if _has_apostrophes(frame[name])})

    frame = read(list(MISSING))
    if separator != "," and any(_has_decimal_commas(frame[name]) for name in frame):
        decimal = ","
        frame = read(list(MISSING))
    header = frame.columns.tolist()
    _check_header(header)
    # pandas takes surplus cells for an index, and absent ones for empty ones.
    if not isinstance(frame.index, pandas.RangeIndex) or frame[header[-1]].isna().any():
        check_lengths(text, separator, len(header))
    dialect = Dialect(separator, decimal)
    if wide or (index is None and value is None and is_wide(frame)):
        return from_wide(frame, row_labels(header, index, value)), None, dialect
    index, value = _columns(_with_cells(frame, index, value), index, value)
    if frame[index].isna().any(axis=None):  # in a column of labels NA is one
        frame = read({value: MISSING})
    return from_table(frame, index, value), None, dialect


def _text_of(path: Path) -> bytes:
    """The text of a table, unpacked if it is gzipped; refused if it does not fit into memory."""
    check_memory(path.stat().st_size, "its text", "cut it into smaller files")
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    pieces, n_bytes = [], 0
    with gzip.open(path) as file:
        while piece := file.read(PIECE_BYTES):
            n_bytes += len(piece)
            check_memory(2 * n_bytes, "its unpacked text", "cut it into smaller files")
            pieces.append(piece)
    return b"".join(pieces)


def _separator(text: bytes, usual: str) -> str:
    """What separates the cells: the usual mark if the first rows agree on it, or else the first other they agree on."""
    sample = text[:SAMPLE_BYTES].decode("utf-8-sig", "replace")
    complete = sample if len(text) <= SAMPLE_BYTES else sample.rpartition("\n")[0]
    for separator in (usual, *(mark for mark in NAMES if mark != usual)):
        rows = list(filter(None, csv.reader(io.StringIO(complete, newline=""), delimiter=separator)))
        if rows and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1:
            return separator
    return usual


def _has_decimal_commas(column: Any) -> bool:
    """Whether a column of text holds numbers written like 1,5."""
    texts = column.dropna()
    if kinds_of(texts.to_frame()) != ["labels"]:
        return False
    is_number = texts.astype(str).str.fullmatch(r"\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*")
    return bool(2 * is_number.sum() >= len(texts) and texts[is_number].astype(str).str.contains(",").any())


def read_excel(
    path: Path,
    *,
    key: str | None = None,
    index: Sequence[str] | None = None,
    value: str | None = None,
    wide: bool = False,
) -> tuple[Observations, str]:
    """The observed entries of a sheet of an Excel file, and its name; formulas count as the values saved for them."""
    pandas = require("pandas", extra="excel", purpose="tables")
    openpyxl = require("openpyxl", extra="excel", purpose=".xlsx files")
    _check_workbook(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        name = choose(book.sheetnames, key)
        rows: list[tuple[Any, ...]] = []
        n_cells = 0
        for row in book[name].iter_rows(values_only=True):
            n_cells += len(row)
            if len(rows) % 1024 == 0:
                check_memory(n_cells * BYTES_PER_EXCEL_CELL, f"its sheet of {n_cells} cells", "save it as .parquet")
            if any(cell is not None for cell in row):
                rows.append(row)
    finally:
        book.close()
    if len(rows) < 2:
        raise ValueError(f"its sheet {name!r} has no rows below a header.")
    n_columns = max(max((k for k, cell in enumerate(row) if cell is not None), default=-1) for row in rows) + 1
    header = [f"Unnamed: {k}" if cell is None else str(cell) for k, cell in enumerate(rows[0][:n_columns])]
    if len({*header}) < len(header):
        raise ValueError(f"its sheet {name!r} has several columns of one name: {name_list(header)}. Rename them.")
    body = [[None if cell in MISSING else cell for cell in row[:n_columns]] for row in rows[1:]]
    frame = pandas.DataFrame(body, columns=header).infer_objects()
    _check_header(header)
    return _observed(frame, header, index, value, wide), name


def _check_workbook(path: Path) -> None:
    """Raise unless an Excel file is a zip archive that fits into memory, without definitions that could expand."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an Excel workbook of type .xlsx.")
    with zipfile.ZipFile(path) as archive:
        n_bytes = sum(info.file_size for info in archive.infolist())
        check_memory(n_bytes, "its unpacked content", "cut it into smaller files")
        for info in archive.infolist():
            with archive.open(info) as part:
                if b"<!DOCTYPE" in part.read(SAMPLE_BYTES):
                    raise ValueError(f"its part {info.filename!r} defines entities, as no workbook does.")


def read_feather(
    path: Path, *, index: Sequence[str] | None = None, value: str | None = None, wide: bool = False
) -> tuple[Observations, None]:
    """The observed entries of a Feather file, or any other file in Arrow's IPC format, with its labels."""
    require("pandas", extra="label", purpose="tables")
    ipc = require("pyarrow.ipc", extra="label", purpose=".feather and .arrow files")
    pyarrow = require("pyarrow", extra="label", purpose=".feather and .arrow files")
    check_memory(path.stat().st_size, "its content", "cut it into smaller files")
    with _arrow_content(pyarrow), pyarrow.OSFile(str(path)) as source, ipc.open_file(source) as file:
        batches, n_bytes = [], 0
        for number in range(file.num_record_batches):
            batches.append(file.get_batch(number))
            n_bytes += batches[-1].nbytes
            check_memory(2 * n_bytes, "its table", "cut it into smaller files")
        table = pyarrow.Table.from_batches(batches, schema=file.schema)
        table.validate(full=True)
        header = parquet_header(file.schema)
        frame = table.to_pandas(ignore_metadata=True)[header]
    return _observed(frame, header, index, value, wide), None


@contextmanager
def _arrow_content(pyarrow: Any) -> Iterator[None]:
    """Say of content that Arrow cannot decode that it is damaged; what the system lacks is passed on."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        if isinstance(error, NotImplementedError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        other = "larger than the memory" if isinstance(error, MemoryError) else "not in the format that its suffix says"
        raise ValueError(f"its content is damaged, or {other}.") from error


def _observed(
    frame: Any, header: list[str], index: Sequence[str] | None, value: str | None, wide: bool
) -> Observations:
    """The entries of a table: of a wide one if the caller says so or it looks wide, otherwise of a long one."""
    if wide or (index is None and value is None and is_wide(frame)):
        return from_wide(frame, row_labels(header, index, value))
    return from_table(frame, *_columns(_with_cells(frame, index, value), index, value))


def inert(cells: Sequence[Any]) -> list[Any]:
    """Cells with an apostrophe before text that a spreadsheet takes for a formula, or that begins with one."""
    return [f"'{cell}" if isinstance(cell, str) and cell.lstrip("'").startswith(FORMULA) else cell for cell in cells]


def restored(cells: Sequence[Any]) -> list[Any]:
    """Undo `inert`; cells are unchanged if one of them cannot be the output of `inert`."""
    if any(isinstance(cell, str) and cell.startswith(FORMULA) for cell in cells):
        return list(cells)
    return [
        cell[1:] if isinstance(cell, str) and cell != (bare := cell.lstrip("'")) and bare.startswith(FORMULA) else cell
        for cell in cells
    ]


def _has_apostrophes(column: Any) -> bool:
    """Whether a column has cells that begin with an apostrophe."""
    return any(isinstance(cell, str) and cell.startswith("'") for cell in column.unique())


def exact_numbers(pandas: Any) -> dict[str, str]:
    """Options with which ``pandas.read_csv`` loses no digits; from version 3.1 on they are not needed and warned of."""
    major, minor = (int(part) for part in pandas.__version__.split(".")[:2])
    return {"float_precision": "round_trip"} if (major, minor) < (3, 1) else {}


def read_parquet(
    path: Path, *, index: Sequence[str] | None = None, value: str | None = None, wide: bool = False
) -> tuple[Observations, None]:
    """The observed entries of a Parquet table, with its labels."""
    require("pandas", extra="label", purpose="tables")
    parquet = require("pyarrow.parquet", extra="label", purpose=".parquet files")
    pyarrow = require("pyarrow", extra="label", purpose=".parquet files")
    with _arrow_content(pyarrow), parquet.ParquetFile(path) as file:
        columns = header = parquet_header(file.schema_arrow)
        guessed = index is None and value is None
        if not (wide or guessed):
            index, value = _columns(header, index, value)
            columns = [*index, value]
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        n_bytes = max(
            sum(group.total_byte_size for group in groups), file.metadata.num_rows * len(columns) * BYTES_PER_CELL
        )
        check_memory(n_bytes, f"its table of {file.metadata.num_rows} rows", "cut it into smaller files")
        texts = [field.name for field in file.schema_arrow if str(_stored_once(pyarrow, field.type)) in TEXT_TYPES]
    # A few bytes may repeat a long text in every row: every distinct text is stored once.
    with _arrow_content(pyarrow), parquet.ParquetFile(path, read_dictionary=texts) as file:
        frame = file.read(columns=columns, use_threads=False).to_pandas(ignore_metadata=True)[columns]
    as_matrix = wide or (guessed and is_wide(frame))
    for name in set(texts) & set(frame):
        categories = np.asarray(frame[name].cat.categories, dtype=object)
        frame[name] = frame[name].cat.rename_categories(categories).astype(object)
    if as_matrix:
        return from_wide(frame, row_labels(header, index, value)), None
    return from_table(frame, *_columns(_with_cells(frame, index, value), index, value)), None


def _stored_once(pyarrow: Any, kind: Any) -> Any:
    """The type of a column's values, also where the table that was written had each of them only once."""
    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def parquet_header(schema: Any) -> list[str]:
    """The columns of a Parquet table, the index of a pandas table first.

    It comes last in the file; a level of integers without a name only numbers the rows, and is left out.
    """
    levels = [name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
    columns = [name for name in schema.names if name not in levels]
    numbering = {name for name in levels if is_unnamed(name) and "int" in str(schema.field(name).type)}
    return [*(name for name in levels if name not in numbering), *columns]


def _check_header(header: Sequence[str]) -> None:
    """Raise if a table begins with numbers."""
    if len(header) > 1 and all(map(_is_number, header)):
        raise ValueError(
            "its first line holds numbers and no names of columns. Put such a line before it: for entries of a tensor "
            "such as i,j,value, and for a matrix any names, which --wide then reads. Or save a matrix as .npy."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_cells(frame: Any, index: Sequence[str] | None, value: str | None) -> list[str]:
    """The columns of a table that are named or have a cell: remarks that nobody made are no values."""
    named, filled = {*(index or ()), value}, {*without_empty(frame)}
    return [name for name in frame if name in named or name in filled]


def _columns(header: Sequence[str], index: Sequence[str] | None, value: str | None) -> tuple[list[str], str]:
    """The columns that index the modes, and the column of values."""
    for name in [*(index or ()), *([] if value is None else [value])]:
        check_column(name, header)
    if value is None:
        taken = {*(index or ())}
        rest = [name for name in header if name not in taken]
        if not rest:
            raise ValueError(f"all of its columns are index columns: {', '.join(header)}. One has to hold the values.")
        value = rest[-1]
    if index is not None:
        return list(index), value
    index = [name for name in header if name != value]
    if len(index) > LARGEST_GUESSED_ORDER:
        raise ValueError(
            f"it has {len(index)} columns besides its values: name those that index the modes (--index), or read it "
            "as a matrix (--wide)."
        )
    return index, value
