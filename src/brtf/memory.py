"""What fits into this machine's memory: asked before anything large is allocated."""

from __future__ import annotations

import os
import sys


def available_bytes() -> int:
    """Physical memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_bytes() -> int:
    """What this process may use, in bytes: the limit of a Dask worker, or the memory of the machine."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            limit = get_worker().memory_manager.memory_limit
        except ValueError:  # this is no worker
            limit = None
        if limit is not None:
            return int(limit)
    return available_bytes()


def check_memory(n_bytes: int, what: str, advice: str) -> None:
    """Refuse what cannot fit, in one sentence that says what to do instead."""
    available = available_bytes()
    if n_bytes > available:
        raise MemoryError(
            f"{what} would take {n_bytes / 1e9:,.1f} GB, and this machine has {available / 1e9:,.1f} GB; {advice}."
        )
