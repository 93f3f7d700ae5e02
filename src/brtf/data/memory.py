"""Memory available to this process, checked before anything large is allocated."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any


def available_bytes(root: str = "/") -> int:
    """Bytes available to this process: the memory of the machine, or less if a limit is set.

    Limits are those of the process (``ulimit -v`` and ``-d``) and of its container (control groups, version 1 and 2).

    Parameters
    ----------
    root : where the system's own files are
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_process_limits(), *_group_limits(Path(root))])


def _process_limits() -> Iterator[int]:
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            yield limit


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of the control group and its visible ancestors."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    mounted = root / "sys/fs/cgroup"
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            top, file = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            top, file = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = top / path.strip("/")  # in a container the path may be outside; then the group is mounted at the top
        for folder in (place, *place.parents):
            if folder.is_relative_to(top):
                with suppress(OSError):
                    limit = (folder / file).read_text().strip()
                    if limit != "max":
                        yield int(limit)


def process_bytes() -> int:
    """Bytes available to this process: the limit of a Dask worker, or `available_bytes`."""
    worker = _dask_worker()
    limit = None if worker is None else worker.memory_manager.memory_limit
    return available_bytes() if limit is None else int(limit)


def scratch_directory() -> str:
    """Directory for data that do not fit into memory: that of the Dask worker, or TMPDIR, or /var/tmp.

    Not /tmp, which is held in memory on many machines.
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
    except ValueError:  # not a Dask worker
        return None


def check_memory(n_bytes: int, what: str, advice: str) -> None:
    """Raise a MemoryError with advice if something would not fit into memory."""
    available = available_bytes()
    if n_bytes > available:
        size = f"{n_bytes / 1e9:,.1f} GB" if n_bytes < 2**63 else "more than 2**63 bytes"  # floats end somewhere
        raise MemoryError(f"{what} would take {size}, and this process may use {available / 1e9:,.1f} GB; {advice}.")
