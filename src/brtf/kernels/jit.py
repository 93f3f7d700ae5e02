"""How loops are compiled: once per type, kept on disk, without the interpreter's lock."""

from __future__ import annotations

import hashlib
import pickle
import sys
import uuid
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()
"""Stands for all files of loops as they are: compiled code holds what it calls in other files, too."""
DIGEST_BYTES = hashlib.sha256().digest_size


class CodeFiles:
    """Compiled code of one function, kept on disk for other processes: a file for every signature.

    A file is named by all that its code depends on, and holds it: the files of loops, the versions of the compiler and
    of Python, the processor, the types of the arguments. Processes that compile at the same time can therefore only
    write the same code to the same file, there is no list of files that one of them might overwrite, and nothing is
    run that was compiled for something else. Whatever is damaged counts as absent, and is written anew.

    Stands where a dispatcher of Numba has its own cache, and has the methods of that.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._numba = CompileResultCacheImpl(function)
        self.cache_path = self._numba.locator.get_cache_path()
        self._name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What was compiled for a signature, or None."""
        context.refresh()
        code = self.read(self._key(signature, context.codegen()))
        return None if code is None else self._numba.rebuild(context, code)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled for a signature."""
        if self._numba.check_cachable(compiled):
            self.write(self._key(signature, compiled.codegen), self._numba.reduce(compiled))

    def flush(self) -> None:
        """Forget all code of the function."""
        for path in Path(self.cache_path).glob(f"{self._name}-*.nbc"):
            path.unlink(missing_ok=True)

    def read(self, key: tuple[Any, ...]) -> Any:
        """What is kept for a key, or None."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, packed = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != digest:
            return None
        kept, code = pickle.loads(packed)
        return code if kept == key else None

    def write(self, key: tuple[Any, ...], code: Any) -> None:
        """Keep code for a key, in place of what was made of other files of loops."""
        path, packed = self._path(key), dumps((key, code))
        own = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            self._numba.locator.ensure_cache_path()
            own.write_bytes(hashlib.sha256(packed).digest() + packed)
            own.replace(path)  # seen by others as a whole, or not at all
            for other in path.parent.glob(f"{self._name}-*.nbc"):
                if not other.name.startswith(self._prefix):
                    other.unlink(missing_ok=True)
        except OSError:
            own.unlink(missing_ok=True)
            if not path.exists():  # the directory is full, or was taken away; no other process was first
                _warn_that_nothing_is_kept()

    @property
    def _prefix(self) -> str:
        return f"{self._name}-{SOURCES[:16]}-"

    def _path(self, key: tuple[Any, ...]) -> Path:
        return Path(self.cache_path) / f"{self._prefix}{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.nbc"

    def _key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        types_of_arguments, _ = normalize_signature(signature)
        versions = numba.__version__, llvmlite.__version__, sys.version
        return self._name, SOURCES, versions, codegen.magic_tuple(), types_of_arguments


class Loop(CPUDispatcher):
    """A compiled function whose code is kept in :class:`CodeFiles`."""

    def enable_caching(self) -> None:
        self._cache = CodeFiles(self.py_func)


@cache
def _warn_that_nothing_is_kept() -> None:
    """Say so, once."""
    warnings.warn(
        "Compiled code cannot be kept, as no directory for it can be written to: every process compiles anew, which "
        "takes ten seconds or more. Set NUMBA_CACHE_DIR to a directory that can be written to.",
        UserWarning,
        stacklevel=2,
    )


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for loops."""

    def decorate(function: Callable[..., Any]) -> Any:
        if "<locals>" in function.__qualname__:
            raise TypeError(
                f"{function.__qualname__} cannot be compiled, as other functions may have its name: code that one "
                "process has kept and another loads is linked by name, so that one of them would run for both. Define "
                "it at the top of a module, and give what it depends on as the type of an argument."
            )
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]  # made of the environment
            return function
        dispatcher = Loop(function, targetoptions={"nopython": True, "nogil": True, "boundscheck": None, **options})
        try:
            dispatcher.enable_caching()
        except RuntimeError:  # there is no directory that can be written to
            _warn_that_nothing_is_kept()
        return dispatcher

    return decorate


loop = _compiled()
"""A loop compiled as it stands."""
sum_loop = _compiled(fastmath={"reassoc", "contract", "nsz"})
"""A loop whose sums may be taken in any order, so that a processor adds several terms at once."""
