"""Compilation of loops: once per type, cached on disk, without the GIL."""

from __future__ import annotations

import hashlib
import pickle
import sys
import uuid
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba import types
from numba.core.caching import CompileResultCacheImpl
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from brtf.data.signals import signals_later
from brtf.kernels.log import LOG

SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
).hexdigest()
"""Hash of all files of loops: compiled code includes what it calls in other files."""
DIGEST_BYTES = hashlib.sha256().digest_size


class CodeFiles:
    """Disk cache of the compiled code of one function: one file per signature.

    The file name is made from everything the code depends on, which the file also stores: the files of loops, the
    versions of the compiler and of Python, the processor, the argument types. Processes that compile at the same time
    thus write the same code to the same file, there is no index that one of them could overwrite, and code compiled for
    something else is never run. Damaged files count as absent and are rewritten.

    Takes the place of the cache of a Numba dispatcher and has its methods.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._numba = CompileResultCacheImpl(function)
        self.cache_path = self._numba.locator.get_cache_path()
        self._name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The cached code for a signature, or None."""
        context.refresh()
        code = self.read(self._key(signature, context.codegen()))
        if code is None:
            _tell_that_it_compiles()
            return None
        return self._numba.rebuild(context, code)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store the code compiled for a signature."""
        if self._numba.check_cachable(compiled):
            self.write(self._key(signature, compiled.codegen), self._numba.reduce(compiled))

    def flush(self) -> None:
        """Delete all cached code of the function."""
        for path in Path(self.cache_path).glob(f"{self._name}-*.nbc"):
            path.unlink(missing_ok=True)

    def read(self, key: tuple[Any, ...]) -> Any:
        """The cached code for a key, or None."""
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
        """Store code for a key, and delete code made from other versions of the files of loops."""
        path, packed = self._path(key), dumps((key, code))
        own = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            self._numba.locator.ensure_cache_path()
            own.write_bytes(hashlib.sha256(packed).digest() + packed)
            own.replace(path)  # atomic for other processes
            for other in path.parent.glob(f"{self._name}-*.nbc"):
                if not other.name.startswith(self._prefix):
                    other.unlink(missing_ok=True)
        except OSError:
            own.unlink(missing_ok=True)
            if not path.exists():  # the disk is full or the directory gone, and no other process was first
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
    """A compiled function cached by :class:`CodeFiles`, compiled or loaded without interruption."""

    def enable_caching(self) -> None:
        self._cache = CodeFiles(self.py_func)

    @cached_property
    def _part(self) -> CPUDispatcher:
        """The function as part of the loops that call it: they keep its code, and nothing else calls it."""
        return CPUDispatcher(self.py_func, targetoptions={**self.targetoptions, "no_cpython_wrapper": True})

    @property
    def _numba_type_(self) -> Any:
        """The type that the compiler finds where another loop calls this one."""
        return types.Dispatcher(self._part)

    def compile(self, sig: Any) -> Any:
        # a handler that raises while the compiler hands over code leaves memory with two owners or none: a crash later
        with signals_later():
            return super().compile(sig)


@cache
def _tell_that_it_compiles() -> None:
    """Log once, as the first fit takes longer."""
    LOG.info("Compiling for this processor, once. Later fits load the code.")


@cache
def _warn_that_nothing_is_kept() -> None:
    """Warn once that compiled code cannot be cached."""
    warnings.warn(
        "Compiled code cannot be cached: no cache directory is writable, so every process recompiles, which takes ten "
        "seconds or more. Set NUMBA_CACHE_DIR to a writable directory.",
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
        except RuntimeError:  # no writable directory
            _warn_that_nothing_is_kept()
        return dispatcher

    return decorate


loop = _compiled()
"""A loop compiled with strict floating-point order."""
sum_loop = _compiled(fastmath={"reassoc", "contract", "nsz"})
"""A loop whose sums may be reordered, so that they vectorize."""
inlined = _compiled(inline="always")
"""A loop that is compiled with the one that calls it, as if written there."""
