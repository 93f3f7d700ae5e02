"""Optional libraries, imported where they are needed, with errors that name the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingLibraryError(ImportError, ValueError):
    """An optional library is not installed; the message names the extra to install."""


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional library, or raise with how to install it.

    Parameters
    ----------
    module : what to import
    extra : the extra of this package that installs it
    purpose : what it is needed for, to end "is needed for …"
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f'{error.name or module} is needed for {purpose}: pip install "brtf[{extra}]".'
        ) from None
