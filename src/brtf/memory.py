"""What fits into this machine's memory: asked before anything large is allocated."""

from __future__ import annotations

import os
import sys
from tempfile import gettempdir
from typing import Any


def available_bytes() -> int:
    """Physical memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_bytes() -> int:
    """What this process may use, in bytes: the limit of a Dask worker, or the memory of the machine."""
    worker = _dask_worker()
    limit = None if worker is None else worker.memory_manager.memory_limit
    return available_bytes() if limit is None else int(limit)


def scratch_directory() -> str:
    """Where this process may put what does not fit into its memory: where a Dask worker does, or TMPDIR, or /var/tmp.

    Not /tmp, which is memory on many machines.
    """
    worker = _dask_worker()
    if worker is not None:
        return str(worker.local_directory)
    on_disk = "/var/tmp" if os.path.isdir("/var/tmp") else gettempdir()
    return os.environ.get("TMPDIR") or on_disk


def _dask_worker() -> Any:
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:  # this is none
        return None


def check_memory(n_bytes: int, what: str, advice: str) -> None:
    """Refuse what cannot fit, in one sentence that says what to do instead."""
    available = available_bytes()
    if n_bytes > available:
        raise MemoryError(
            f"{what} would take {n_bytes / 1e9:,.1f} GB, and this machine has {available / 1e9:,.1f} GB; {advice}."
        )
