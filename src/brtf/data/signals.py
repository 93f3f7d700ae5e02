"""Signals that end a process: they end the running code as Ctrl-C does, so that it can save its work, or wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """A signal that ends what runs as Ctrl-C does; its number is the argument."""


@contextmanager
def ended_by_signals() -> Iterator[frozenset[int]]:
    """A context in which SIGTERM and SIGHUP raise like Ctrl-C; gives the numbers of the signals that do.

    Signals that are ignored, as under nohup, or that the program handles itself are left alone. They can be handled
    only in the main thread; in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield frozenset()
        return

    def end(number: int, _: FrameType | None) -> None:
        raise Terminated(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    changed = frozenset(number for number in numbers if signal.getsignal(number) is signal.SIG_DFL)
    for number in changed:
        signal.signal(number, end)
    try:
        yield changed
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def dying_of_signals() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP first raise like Ctrl-C, and end the process once the context is left.

    The code inside can save its work, and the sender of the signal still sees the process die of it.
    """
    own: frozenset[int] = frozenset()
    try:
        with ended_by_signals() as own:
            yield
    except Terminated as ended:
        if ended.args[0] in own:
            signal.raise_signal(ended.args[0])
        raise


@contextmanager
def signals_later() -> Iterator[None]:
    """A context that defers Ctrl-C, SIGTERM and SIGHUP to its end, so that the code inside is not interrupted.

    Handlers run only in the main thread: in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """A context in which Ctrl-C does nothing; processes that it starts inherit that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
