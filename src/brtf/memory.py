"""What fits into this machine's memory: asked before anything large is allocated."""

from __future__ import annotations

import os


def available_bytes() -> int:
    """Physical memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(n_bytes: int, what: str, advice: str) -> None:
    """Refuse what cannot fit, in one sentence that says what to do instead."""
    available = available_bytes()
    if n_bytes > available:
        raise MemoryError(
            f"{what} would take {n_bytes / 1e9:,.1f} GB, and this machine has {available / 1e9:,.1f} GB; {advice}."
        )
