"""Files that are written whole or not at all."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import IO

_PARTIAL = re.compile(r"\.brtf-[0-9a-f]{16}\.part")


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that is renamed to `path` when complete, and removed if something fails.

    An existing regular file is replaced and keeps its permissions; a link is followed. Until then the content is in a
    ``.brtf-….part`` file in the same directory, which is locked as long as its writer is alive; those left by killed
    writers are removed first.

    Raises
    ------
    ValueError
        `path` is a directory or a device.
    OSError
        The disk refuses; the error names `path`.
    """
    target, file = _begun(path)
    directory = os.path.dirname(target)
    try:
        with name_written(path), file:
            if os.path.exists(target):  # before any content, so that a private file is never readable by others
                shutil.copymode(target, file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(file.name)
        raise
    with contextlib.suppress(OSError):  # not every system can sync a directory; the file itself is synced
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise if :func:`atomic_file` could not begin to write there; leaves nothing behind."""
    _, file = _begun(path)
    file.close()
    os.remove(file.name)


def _begun(path: str | os.PathLike[str]) -> tuple[str, IO[bytes]]:
    """The path with links followed, and a new partial file beside it."""
    target = os.path.realpath(path)
    require_regular_file(target)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise FileNotFoundError(
            f"{os.fspath(path)} cannot be written: the directory {directory} does not exist. Create it first."
        )
    _remove_abandoned(directory)
    with name_written(path):
        return target, _partial_file(directory)


@contextlib.contextmanager
def name_written(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context for writing a file in which every OSError names it, unless the error names another file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _PARTIAL.fullmatch(os.path.basename(str(error.filename))):
            raise
        if error.errno is None:
            raise OSError(f"{os.fspath(path)} cannot be written: {error}") from error
        error.filename = os.fspath(path)
        del error.filename2  # None would be shown as a second file
        raise


@contextlib.contextmanager
def partial_directory(parent: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary directory in `parent` for incomplete output, removed at the end with everything still in it.

    Like the file of `atomic_file` it is locked meanwhile, and those left by killed processes are removed first.
    """
    _remove_abandoned(os.fspath(parent))
    while True:
        partial = _new_partial(os.fspath(parent))
        os.mkdir(partial)
        descriptor = os.open(partial, os.O_RDONLY)
        if _lock(descriptor, partial):
            break
        os.close(descriptor)
    try:
        yield partial
    finally:
        shutil.rmtree(partial)
        os.close(descriptor)


def _partial_file(directory: str) -> IO[bytes]:
    while True:
        file = open(_new_partial(directory), "xb")  # noqa: SIM115
        if _lock(file.fileno(), file.name):
            return file
        file.close()


def _new_partial(directory: str) -> str:
    return os.path.join(directory, f".brtf-{secrets.token_hex(8)}.part")


def _lock(descriptor: int, partial: str) -> bool:
    """Lock a file as a sign that its writer is alive; False if another process has just removed it."""
    with contextlib.suppress(OSError):  # not every file system has locks; there nothing is removed
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.path.exists(partial)


def _remove_abandoned(directory: str) -> None:
    """Remove files left in a directory by killed writers; those of living writers are locked."""
    with contextlib.suppress(OSError):  # a directory may be writable but not listable
        for name in filter(_PARTIAL.fullmatch, os.listdir(directory)):
            partial = os.path.join(directory, name)
            is_folder = os.path.isdir(partial)
            with contextlib.suppress(OSError):  # locked, already gone, a link, or owned by another user
                descriptor = os.open(partial, os.O_NOFOLLOW | (os.O_RDONLY if is_folder else os.O_RDWR))
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (shutil.rmtree if is_folder else os.remove)(partial)
                finally:
                    os.close(descriptor)


def require_regular_file(path: str) -> None:
    """Raise if the path exists but is not a regular file, such as a device or a pipe."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is a directory or a device; give the path of one file.")
