"""Optional libraries: imported where they are needed, and asked for by the name of their extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingLibraryError(ImportError, ValueError):
    """An optional library is not installed; the sentence says which extra brings it."""


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional library, or say how to get it.

    Parameters
    ----------
    module
        What to import.
    extra
        The extra of this package that brings it.
    purpose
        What it is needed for, to end "is needed for …".
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f'{error.name or module} is needed for {purpose}: pip install "brtf[{extra}]".'
        ) from None
