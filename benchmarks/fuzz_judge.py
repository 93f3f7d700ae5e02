"""What counts as a sound answer or a proper refusal: the calls of every fuzz case go through here."""

from __future__ import annotations

import linecache
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import brtf

PACKAGE = str(Path(brtf.__file__).parent)
REFUSALS = (ValueError, TypeError, MemoryError, OSError)
RAW = re.compile(
    r"zero-size|broadcast|allow_pickle|[Ss]ingular|did not converge|positive definite|leading minor|LAPACK|"
    r"cannot reshape|out of bounds|NoneType|has no attribute|not enough values|too many values|unsupported operand|"
    r"truth value|list index|setting an array element|too large to convert|math domain|not iterable|not subscriptable|"
    r"unhashable|has no len|non-finite|array must not contain|is too big|Maximum allowed (dimension|size)|"
    r"cannot be interpreted|must be real number|not supported between|cannot convert|could not convert|"
    r"overflow encountered"
)
"""Words of the libraries below, which tell a user nothing."""
DATA_NAMES = ("Y", "mask", "shape", "values", "coords", "mode")


class Failure(Exception):
    """A promise that was broken."""


class Refused(Exception):
    """A refusal as it should be."""


class Door:
    """Calls the library, and judges whatever comes back other than an answer."""

    def __init__(self) -> None:
        self.group = "?"
        self.told: list[str] = []

    def ask(self, call: Callable[[], Any], *names: str) -> Any:
        """The answer; or `Refused`, if the error names one of these; or `Failure`."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                answer = call()
            except Exception as error:
                self.judge(error, names)
                raise Refused(str(error)) from error
        for warning in heard:
            self.judge_warning(warning)
        return answer

    def judge(self, error: Exception, names: Sequence[str]) -> None:
        told = f"{type(error).__name__}: {error}"
        self.told.append(told)
        if not isinstance(error, REFUSALS) or isinstance(error, UnicodeError):
            raise Failure(f"a {told}") from error
        if not _ours(error):
            raise Failure(f"not raised by brtf: {told}") from error
        if RAW.search(str(error)):
            raise Failure(f"raw text: {told}") from error
        if names and not any(re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", str(error)) for name in names):
            raise Failure(f"names none of {', '.join(names)}: {told}") from error

    def judge_warning(self, warning: warnings.WarningMessage) -> None:
        told = f"{warning.category.__name__}: {warning.message}"
        self.told.append(told)
        ours = warning.category in (UserWarning, ConvergenceWarning) or warning.category.__module__.startswith("brtf")
        if not ours or RAW.search(str(warning.message)):
            raise Failure(f"{told} ({warning.filename}:{warning.lineno})")


def _ours(error: Exception) -> bool:
    """Whether the statement that raised it is a ``raise`` in brtf, or the system's about a file that it names."""
    if isinstance(error, OSError) and error.filename is not None:
        return True
    frame = traceback.extract_tb(error.__traceback__)[-1]
    statement = linecache.getline(frame.filename, frame.lineno or 0)
    return frame.filename.startswith(PACKAGE) and statement.lstrip().startswith("raise")


def check(holds: Any, promise: str) -> None:
    if not np.all(holds):
        raise Failure(promise)


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    """One of the choices, unchanged."""
    return choices[int(rng.integers(len(choices)))]
