"""Tables of pandas: what their columns hold, and whether a row is an entry (long) or a row of a matrix (wide).

A table alone does not say which it is, so it is guessed only where the other reading makes no sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LARGEST_GUESSED_ORDER = 8
"""Of a tensor with more modes the index columns must be named: a long table of so many is rarer than a wide one."""
MOST_WHOLE_COLUMNS = 4
"""Columns, the value included, of a long table of whole numbers alone: with more it may be a table of counts."""

Kind = Literal["labels", "whole", "numbers"]
"""Text, dates and the like; whole numbers; other numbers, or some missing."""


def kinds_of(frame: Any) -> list[Kind]:
    """What each column of a table holds, by its type."""
    from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

    def kind(dtype: Any) -> Kind:
        if is_integer_dtype(dtype) or is_bool_dtype(dtype):
            return "whole"
        return "numbers" if is_numeric_dtype(dtype) else "labels"

    known = {dtype: kind(dtype) for dtype in frame.dtypes.unique()}
    return [known[dtype] for dtype in frame.dtypes]


def looks_long(frame: Any, kinds: Sequence[Kind]) -> bool:
    """Whether every column but the last indexes a mode, and the last holds the values.

    Labels index, and so do whole numbers, and beside labels any numbers, if there are enough rows: as many as a tensor
    of rank one has numbers of its own, Σ_n (I_n − 1) + 1, or twice as many where the values are whole numbers too. In a
    table of measurements nearly every number is another, so there never are.
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


def refuse_long(frame: Any) -> None:
    """Raise what says how to pass a long table, or one with labels among its columns, if this is one."""
    kinds = kinds_of(frame)
    if "labels" in kinds:
        found = [
            (name, dtype) for name, dtype, kind in zip(frame, frame.dtypes, kinds, strict=True) if kind == "labels"
        ]
        listed = ", ".join(f"{name!r} (dtype {dtype})" for name, dtype in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise TypeError(
            f"Y must hold real numbers, got a table with other columns: {listed}{more}. If a row is one entry of a "
            f"tensor, pass brtf.Observations.from_frame(Y, {_named(frame, kinds)}). If the table is a matrix, make the "
            f"column that labels its rows the index, Y.set_index({found[0][0]!r}), and convert or drop the others."
        )
    unlabelled = frame.index.name is None and kinds_of(frame.index.to_frame()) != ["labels"]
    if unlabelled and looks_long(frame, kinds) and not frame.iloc[:, :-1].duplicated().any():
        raise ValueError(
            f"Y looks like a long table, a row per entry: its columns but {frame.columns[-1]!r} hold whole numbers "
            f"that repeat, and no combination twice. Pass brtf.Observations.from_frame(Y, {_named(frame, kinds)}), or "
            "Y.to_numpy() if it is a matrix."
        )


def _named(frame: Any, kinds: Sequence[Kind]) -> str:
    """The arguments of `from_frame` by which the last column of numbers is the value and all others index the modes."""
    names = list(frame.columns)
    values = [name for name, kind in zip(names, kinds, strict=True) if kind != "labels"]
    if not values or not 3 <= len(names) <= 1 + LARGEST_GUESSED_ORDER:
        return "index=[…], value=…"
    return f"index={[name for name in names if name != values[-1]]}, value={values[-1]!r}"


def numbers_in(frame: Any) -> NDArray[Any]:
    """The numbers of a table; mixed and nullable numeric columns have no common NumPy type."""
    array: NDArray[Any] = frame.to_numpy()
    if array.dtype == object and "labels" not in kinds_of(frame):
        array = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return array
