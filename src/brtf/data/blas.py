"""BLAS held to one thread while blocks are worked on."""

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
    """Hold BLAS to one thread: the caller's, and that of the process where there is but one for all.

    Of several fits at once the first sets the limit of the process and the last to end puts it back. Each does so from
    a thread that ends at once: threadpoolctl refuses limits, silently, while the thread that last set one is alive.
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
    """The libraries at hand: looked for again, which takes milliseconds, only after imports, which may bring more."""
    return ThreadpoolController()


def _run_apart(task: Callable[[], object]) -> None:
    thread = Thread(target=task)
    thread.start()
    thread.join()
