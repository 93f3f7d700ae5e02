"""The log of the library, which says that it compiles, and a context in which people see it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("brtf")


@contextmanager
def log_shown(*, shown: bool) -> Iterator[None]:
    """A context in which the log goes to stderr, if ``shown`` and not shown already."""
    if not shown or LOG.isEnabledFor(logging.INFO):
        yield
        return
    handler, level = logging.StreamHandler(), LOG.level
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
