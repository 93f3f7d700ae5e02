"""Tables, in text, Parquet, Feather or Excel: long, a row per observed entry, or wide, a row per row of a matrix."""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import count_of
from brtf.data.dataframes import LARGEST_GUESSED_ORDER, Kind, kinds_of, looks_long
from brtf.data.extras import require
from brtf.data.memory import check_memory
from brtf.data.observations import Observations
from brtf.data.observe import observe_matrix
from brtf.data.readers.sizes import choose

SEPARATORS = {".csv": ",", ".tsv": "\t"}
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


def read_csv(
    path: Path, *, index: Sequence[str] | None = None, value: str | None = None, wide: bool = False
) -> tuple[Observations, None, str]:
    """The observed entries of a table in text, plain or gzipped, with its labels, and how its cells are written."""
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
        return frame.assign(**{name: restored(frame[name].tolist()) for name in texts if _is_inert(frame[name])})

    frame = read(list(MISSING))
    if separator != "," and any(_has_decimal_commas(frame[name]) for name in frame):
        decimal = ","
        frame = read(list(MISSING))
    header = frame.columns.tolist()
    _check_header(header)
    # pandas takes surplus cells for an index, and absent ones for empty ones.
    if not isinstance(frame.index, pandas.RangeIndex) or frame[header[-1]].isna().any():
        _check_lengths(text, separator, len(header))
    note = f"cells separated by {NAMES[separator]}" + (", numbers with decimal commas" if decimal == "," else "")
    if wide or (index is None and value is None and _is_wide(frame)):
        return _from_wide(frame, _row_labels(header, index, value)), None, note
    index, value = _columns(header, index, value)
    if frame[index].isna().any(axis=None):  # in a column of labels NA is one
        frame = read({value: MISSING})
    return _from_table(frame, index, value), None, note


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
        raise ValueError(f"its sheet {name!r} has several columns of one name: {_listed(header)}. Rename them.")
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
    with pyarrow.OSFile(str(path)) as source, ipc.open_file(source) as file:
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


def _observed(
    frame: Any, header: list[str], index: Sequence[str] | None, value: str | None, wide: bool
) -> Observations:
    """The entries of a table that is read as a whole: wide if it is said to be or looks like it, or long."""
    if wide or (index is None and value is None and _is_wide(frame)):
        return _from_wide(frame, _row_labels(header, index, value))
    return _from_table(frame, *_columns(header, index, value))


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


def _is_inert(column: Any) -> bool:
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
    with parquet.ParquetFile(path) as file:
        columns = header = parquet_header(file.schema_arrow)
        guessed = index is None and value is None
        if not (wide or guessed):
            index, value = _columns(header, index, value)
            columns = [*index, value]
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        n_bytes = max(
            sum(group.total_byte_size for group in groups),
            file.metadata.num_rows * len(columns) * BYTES_PER_CELL,
        )
        check_memory(n_bytes, f"its table of {file.metadata.num_rows} rows", "cut it into smaller files")
        texts = [field.name for field in file.schema_arrow if str(field.type) in TEXT_TYPES]
    # A few bytes may repeat a long text in every row: every distinct text is stored once.
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        frame = file.read(columns=columns, use_threads=False).to_pandas(ignore_metadata=True)[columns]
    is_wide = wide or (guessed and _is_wide(frame))
    for name in set(texts) & set(frame):
        categories = np.asarray(frame[name].cat.categories, dtype=object)
        frame[name] = frame[name].cat.rename_categories(categories).astype(object)
    if is_wide:
        return _from_wide(frame, _row_labels(header, index, value)), None
    return _from_table(frame, *_columns(header, index, value)), None


def parquet_header(schema: Any) -> list[str]:
    """The columns of a Parquet table, the index of a pandas table first.

    It comes last in the file; a level of integers without a name only numbers the rows, and is left out.
    """
    levels = [name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
    columns = [name for name in schema.names if name not in levels]
    numbering = {name for name in levels if _is_unnamed(name) and "int" in str(schema.field(name).type)}
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


def _columns(header: Sequence[str], index: Sequence[str] | None, value: str | None) -> tuple[list[str], str]:
    """The columns that index the modes, and the column of values."""
    for name in [*(index or ()), *([] if value is None else [value])]:
        _check_column(name, header)
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


def _check_column(name: str, header: Sequence[str]) -> None:
    if name not in header:
        raise ValueError(f"it has no column {name!r}; its columns are: {_listed(header)}.")


def _listed(names: Sequence[str]) -> str:
    """Names, or the first of many."""
    return ", ".join(names if len(names) <= 12 else [*names[:10], f"… ({len(names)} in all)"])


def _row_labels(header: Sequence[str], index: Sequence[str] | None, value: str | None) -> str | None:
    """The column given as row labels of a wide table, if any."""
    if value is not None:
        raise ValueError("a wide table has its values in many columns: leave out --value, or leave out --wide.")
    if index is None:
        return None
    for name in index:
        _check_column(name, header)
    if len(index) != 1:
        raise ValueError(f"a wide table has one column that labels its rows, got --index {','.join(index)}. Name one.")
    return index[0]


def _is_wide(frame: Any) -> bool:
    """Whether a table is a matrix with row labels in the first column, or long; raises if it may be either."""
    names, kinds = frame.columns.tolist(), _kinds(frame)
    first = frame[names[0]]
    if len(kinds) < 3 or len(frame) == 0:
        return False
    if kinds[0] == "labels" and "labels" not in kinds[1:] and first.is_unique and not _blank(first).any():
        return True
    if looks_long(frame, kinds) and not _is_unnamed(names[0]):
        return False
    raise ValueError(_two_readings(names, kinds))


def _two_readings(names: Sequence[str], kinds: Sequence[Kind]) -> str:
    """Error message for a table that is neither clearly long nor clearly wide."""
    named_columns = [(name, kind) for name, kind in zip(names, kinds, strict=True) if not _is_unnamed(name)]
    labels = [name for name, kind in named_columns if kind == "labels"]
    values = [name for name, kind in named_columns if kind != "labels"]
    index = [name for name, kind in named_columns if kind != "numbers" and name not in values[-1:]]
    named = ",".join(index) if 2 <= len(index) <= LARGEST_GUESSED_ORDER else "A,B"
    long = f"--index {quote(named)} --value {quote(values[-1]) if values else 'C'}"
    if len(labels) > 1:
        wide = f"--wide --index {quote(labels[0])}, once {quote(labels[1])} and other columns of text are dropped"
    elif labels or _is_unnamed(names[0]):
        wide = "--wide" if _is_unnamed(names[0]) else f"--wide --index {quote(labels[0])}"
    else:
        wide = f"--wide, or --wide --index {quote(names[0])} if that column labels the rows"
    return (
        f"its {len(names)} columns do not say whether a row is one entry of a tensor or a row of a matrix. Long, a row "
        f"per entry, with columns that index it and one of values: {long}. Wide, a matrix: {wide}."
    )


def _is_unnamed(name: str) -> bool:
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


def _check_lengths(text: bytes, separator: str, n_cells: int) -> None:
    """Raise if rows are longer or shorter than the header."""
    lines = io.TextIOWrapper(io.BytesIO(text), newline="", encoding="utf-8-sig")
    for number, row in enumerate(filter(None, csv.reader(lines, delimiter=separator))):
        if len(row) != n_cells:
            raise ValueError(f"row {number} below the header has {len(row)} cells and not {n_cells}.")


def _from_wide(frame: Any, name: str | None) -> Observations:
    """The matrix of a wide table, whose rows are labelled by a column: the one named, or the first if it is text."""
    first = frame.columns[0]
    if name is None and (_is_unnamed(first) or _kinds(frame[[first]]) == ["labels"]):
        name = first
    numbers = frame if name is None else frame.drop(columns=name)
    if numbers.shape[1] < 2:
        raise ValueError("as a wide table it has only one column of numbers: a matrix has two or more.")
    texts = numbers.columns[[kind == "labels" for kind in kinds_of(numbers)]]
    numbers = numbers.assign(**{text: _as_numbers(numbers[text]) for text in texts}).rename_axis(columns="column")
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
    return observe_matrix(numbers.set_axis(labels.rename("row" if _is_unnamed(name) else name), axis="index"))


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


def _from_table(frame: Any, index: list[str], value: str) -> Observations:
    """Observations from a table whose cells have been checked; rows count from 1."""
    for name in index:
        _check_labels(frame[name])
    if kinds_of(frame[[value]]) == ["labels"]:
        frame = frame.assign(**{value: _as_numbers(frame[value])})
    repeated = frame.duplicated(index).to_numpy()
    if repeated.any():
        labels = frame[index].iloc[repeated.argmax()]
        first = (frame[index] == labels).all(axis=1).to_numpy().argmax()
        place = ", ".join(f"{name}={label}" for name, label in labels.items())
        raise ValueError(
            f"rows {first + 1} and {repeated.argmax() + 1} below the header are both at [{place}] "
            f"({count_of(repeated.sum(), 'duplicate', 'duplicates')} in all). Keep one of them, or average them; if "
            "the table is a matrix, read it with --wide."
        )
    return Observations.from_frame(frame, index=index, value=value)
