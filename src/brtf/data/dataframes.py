"""pandas tables: the kinds of their columns, and whether a row is an entry (long) or a row of a matrix (wide).

A table does not say which it is, so the layout is inferred only if the other one makes no sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.checks import type_name
from brtf.data.extras import require

LARGEST_GUESSED_ORDER = 8
"""Largest number of index columns inferred: with more, a wide table is likelier than a long one."""
MOST_WHOLE_COLUMNS = 4
"""Largest number of columns, including the value, of an all-integer long table: with more it may hold counts."""

Kind = Literal["labels", "whole", "numbers"]
"""Labels (text, dates); integers; other numbers, or integers with some missing."""


def as_pandas(frame: Any) -> Any:
    """A table of another library as a pandas.DataFrame; pandas tables are unchanged."""
    package = type(frame).__module__.partition(".")[0].lstrip("_")
    if package == "pandas" and hasattr(frame, "columns"):
        return frame
    known = {"polars": "get_columns", "pyarrow": "to_pandas", "duckdb": "df"}
    if package not in known or not hasattr(frame, known[package]):
        raise TypeError(
            f"frame must be a pandas or polars DataFrame, an Arrow table or a DuckDB relation, got {type_name(frame)}."
        )
    pandas = require("pandas", extra="label", purpose="tables")
    if package != "polars":
        return getattr(frame, known[package])()
    return pandas.DataFrame({column.name: column.to_numpy() for column in frame.get_columns()})


def row_label(frame: Any) -> str | None:
    """The column of a polars table that labels the rows of a matrix: the first one, if it alone holds no numbers."""
    others = [name for name, dtype in frame.schema.items() if not (dtype.is_numeric() or str(dtype) == "Boolean")]
    if len(frame.columns) < 3 or others != frame.columns[:1]:
        return None
    return str(others[0]) if frame[others[0]].is_unique().all() else None


def kinds_of(frame: Any) -> list[Kind]:
    """The kind of each column of a table, by its type."""
    from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

    def kind(dtype: Any) -> Kind:
        if is_integer_dtype(dtype) or is_bool_dtype(dtype):
            return "whole"
        return "numbers" if is_numeric_dtype(dtype) else "labels"

    known = {dtype: kind(dtype) for dtype in frame.dtypes.unique()}
    return [known[dtype] for dtype in frame.dtypes]


def looks_long(frame: Any, kinds: Sequence[Kind]) -> bool:
    """Whether every column but the last indexes a mode, and the last holds the values.

    Index columns hold labels or integers (next to labels, any numbers), and there are enough rows: at least as many as
    a tensor of rank one has parameters, Σ_n (I_n − 1) + 1, or twice as many if the values are integers too. In a table
    of measurements nearly all numbers are distinct, so there are never enough.
    """
    if not kinds:
        return False
    *index, last = kinds
    if not 2 <= len(index) <= LARGEST_GUESSED_ORDER or last == "labels":
        return False
    if {*index} == {"labels"}:
        return True
    if "numbers" in index and "labels" not in index:
        return False
    only_whole = {*kinds} == {"whole"}
    if only_whole and len(kinds) > MOST_WHOLE_COLUMNS:
        return False
    n_free = 1 + sum(frame.iloc[:, mode].nunique() - 1 for mode in range(len(index)))
    return len(frame) >= (2 * n_free if only_whole else n_free)


def refuse_long(frame: Any, *, has_index: bool = True) -> None:
    """Raise if this is a long table or has label columns; the message says how to pass it.

    Tables of other libraries than pandas have no index: there the first column may label the rows.
    """
    kinds = kinds_of(frame)
    if "labels" in kinds:
        found = [
            (name, dtype) for name, dtype, kind in zip(frame, frame.dtypes, kinds, strict=True) if kind == "labels"
        ]
        listed = ", ".join(f"{name!r} (dtype {dtype})" for name, dtype in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        remedy = f"make the column that labels its rows the index, Y.set_index({found[0][0]!r})"
        if not has_index:
            remedy = "let its first column label the rows, each differently"
        raise TypeError(
            f"Y must hold real numbers, got a table with other columns: {listed}{more}. If a row is one entry of a "
            f"tensor, pass brtf.Observations.from_frame(Y, {_named(frame, kinds)}). If the table is a matrix, "
            f"{remedy}, and convert or drop the others."
        )
    unlabelled = frame.index.name is None and kinds_of(frame.index.to_frame()) != ["labels"]
    if unlabelled and looks_long(frame, kinds) and not frame.iloc[:, :-1].duplicated().any():
        raise ValueError(
            f"Y looks like a long table, a row per entry: its columns but {frame.columns[-1]!r} hold whole numbers "
            f"that repeat, and no combination twice. Pass brtf.Observations.from_frame(Y, {_named(frame, kinds)}), or "
            "Y.to_numpy() if it is a matrix."
        )


def _named(frame: Any, kinds: Sequence[Kind]) -> str:
    """Arguments of `from_frame` with the last numeric column as value and all others as index."""
    names = list(frame.columns)
    values = [name for name, kind in zip(names, kinds, strict=True) if kind != "labels"]
    if not values or not 3 <= len(names) <= 1 + LARGEST_GUESSED_ORDER:
        return "index=[…], value=…"
    return f"index={[name for name in names if name != values[-1]]}, value={values[-1]!r}"


def numbers_in(frame: Any) -> NDArray[Any]:
    """The numbers of a table as one array; mixed and nullable numeric columns have no common NumPy type."""
    array: NDArray[Any] = frame.to_numpy()
    if array.dtype == object and "labels" not in kinds_of(frame):
        array = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return array
