"""Limit BLAS to one thread while blocks are processed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, Thread
from typing import Any

from threadpoolctl import ThreadpoolController

_blas_lock, _blas_limits = Lock(), list[Any]()


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Limit BLAS to one thread, for the calling thread or, if BLAS has only a global limit, for the process.

    If several fits run at once, the first sets the limit of the process and the last to end restores it. Each does so
    from a short-lived thread, because threadpoolctl silently ignores limits while the thread that last set one is
    alive.
    """
    with _blas_lock:
        if _blas_limits:
            _blas_limits.append(_blas_limits[0])
        else:
            _run_apart(lambda: _blas_limits.append(_one_thread()))
    try:
        with _one_thread():
            yield
    finally:
        with _blas_lock:
            limits = _blas_limits.pop()
            if not _blas_limits:
                _run_apart(limits.restore_original_limits)


def _one_thread() -> Any:
    return _libraries(len(sys.modules)).limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """The loaded BLAS libraries; searched again, which takes milliseconds, only after new imports."""
    return ThreadpoolController()


def _run_apart(task: Callable[[], object]) -> None:
    thread = Thread(target=task)
    thread.start()
    thread.join()
