"""Processing of chunks by this process, a local cluster of processes, or the cluster of a Dask scheduler.

A task is a function of a lane, a few consecutive chunks; its results are added in a tree fixed by the order of the
lanes, so the number of workers does not change a digit. The task itself is part of the graph, which the scheduler
keeps: whatever is lost with a worker is sent and computed again.
"""

from __future__ import annotations

import io
import logging
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor as Pool
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brtf.data.arrays import SentOnce
from brtf.data.blas import blas_on_one_thread
from brtf.data.chunk_cache import HELD
from brtf.data.chunks import LEFT_BEHIND, Chunk, ChunkError, Piece, Reading
from brtf.data.extras import require
from brtf.data.plan import DEFAULT_PLAN, Plan

Value = TypeVar("Value")
Finished = TypeVar("Finished")
Lane = tuple[Chunk, ...]
"""Consecutive chunks whose sums are returned together."""
Task = Callable[[Iterable[tuple[Chunk, Reading]]], Value]
"""A function of the chunks of a lane, with functions that read them."""
Adding = Callable[[Value, Value], Value]

ALLOWED_FAILURES = 3
"""Number of workers that may die over one chunk before it is given up, in clusters started here."""
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), 2**25),
    "MALLOC_ARENA_MAX": 1,
    "DASK_LOGGING__DISTRIBUTED": "critical",
}
"""Environment of workers started here. By default Dask makes them return memory in pieces of 64 KB, so that every array
of the size of a block is allocated from the system again and sweeps take twice as long. Their logs are silenced."""
LOOPBACK = "127.0.0.1"
"""Address of clusters started here, local because anyone who can connect to a Dask process can run code in it."""
LATE_DEATHS = 1.0
"""Seconds after which the scheduler has noticed workers that died in the last pass."""
ANYWHERE = ""
"""Placeholder for the address of any worker."""
SCHEDULER_LOST = "The connection to the Dask scheduler was lost. Fit again; a fit with a checkpoint can be resumed."
FAN_IN = 8
"""Number of values added by one task: a power of two, so that the result equals pairwise addition."""
ALIGNMENT = 64
"""Alignment of received arrays in bytes."""

_client: ContextVar[Any] = ContextVar("brtf_client", default=None)


def check_executor(executor: Any) -> None:
    """Raise unless the executor is None, "processes", an address or a client."""
    if isinstance(executor, str) and executor != "processes" and not executor.rpartition(":")[2].isdigit():
        raise ValueError(
            f'executor must be "processes" or the address of a Dask scheduler with its port, such as '
            f'"tcp://host:8786", got {executor!r}.'
        )
    if executor is None or isinstance(executor, str) or hasattr(executor, "scheduler_info"):
        return
    raise TypeError(
        'executor must be None (this process), "processes" (a local cluster), the address of a Dask scheduler, or a '
        f"distributed.Client, got {executor!r}."
    )


@contextmanager
def executing(executor: Any, n_workers: int = 1, security: Any = None) -> Iterator[str | None]:
    """A context in which the executor processes chunks; its value is the address of the dashboard, if there is one.

    Parameters
    ----------
    executor
        None: this process. ``"processes"``: a temporary cluster of ``n_workers`` processes on this machine. An address
        such as ``"tcp://host:8786"``, or a ``distributed.Client``: the cluster behind it.
    security
        A ``distributed.Security`` for an address, as returned by :func:`certified`; None: Dask's configuration.
    """
    check_executor(executor)
    if executor is None:
        try:
            yield None
        finally:
            HELD.release()
        return
    with _client_of(executor, n_workers, security) as client:
        token, pieces = _client.set(client), Pieces(client)
        pieces_token = _pieces.set(pieces)
        try:
            yield str(client.dashboard_link) if client.run_on_scheduler(_has_dashboard) else None
        finally:
            _client.reset(token)
            _pieces.reset(pieces_token)
            pieces.release()
            with suppress(OSError):  # the scheduler may be lost
                if client.status == "running":
                    client.run(_release, on_error="ignore")


def _has_dashboard(dask_scheduler: Any) -> bool:
    """Run on the scheduler: whether it serves a real dashboard and not only a placeholder page."""
    return bool(getattr(dask_scheduler.http_application, "applications", ()))


def _release() -> None:
    HELD.release()


def is_remote() -> bool:
    """Whether other processes than this one process the chunks."""
    return _client.get() is not None


@contextmanager
def _client_of(executor: Any, n_workers: int, security: Any) -> Iterator[Any]:
    if not isinstance(executor, str):
        yield executor
        return
    distributed = require("distributed", extra="big", purpose="executor=")
    if executor != "processes":
        try:
            client = distributed.Client(executor, set_as_default=False, security=security)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two if TLS certificates are missing
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(f"No Dask scheduler answers at {executor!r}: {reason}.{_advice(executor)}") from error
        logger = logging.getLogger("distributed.client")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # a lost scheduler is reported by one error
        try:
            with client:
                yield client
        finally:
            logger.setLevel(level)
        return
    with local_cluster(n_workers) as client:
        yield client


def _advice(address: str) -> str:
    if not address.startswith("tls://"):
        return ""
    return " Over tls:// both sides need certificates of the same authority: see docs/scaling.md."


def certified(address: str | None, ca_file: str, cert: str, key: str) -> Any:
    """A ``distributed.Security`` that allows only TLS connections to the scheduler at an address.

    Parameters
    ----------
    address
        Where the scheduler is, ``tls://host:port``.
    ca_file, cert, key
        PEM files: the CA certificate that all sides trust, your own certificate, and its private key.
    """
    if address is None or not address.startswith("tls://"):
        raise ValueError(f"Certificates are for a Dask scheduler at an address such as tls://host:8786, got {address}.")
    distributed = require("distributed", extra="big", purpose="executor=")
    files = {"tls_ca_file": ca_file, "tls_client_cert": cert, "tls_client_key": key}
    return distributed.Security(**files, require_encryption=True)


@contextmanager
def local_cluster(n_workers: int, memory_limit: str = "auto") -> Iterator[Any]:
    """A ``distributed.Client`` of a temporary cluster of processes on this machine.

    Parameters
    ----------
    n_workers
        Processes, each with one thread.
    memory_limit
        Of each, as Dask writes it; its share of the machine's memory by default.
    """
    dask, distributed = (require(name, extra="big", purpose="executor=") for name in ("dask", "distributed"))
    options = {
        "distributed.scheduler.allowed-failures": ALLOWED_FAILURES,
        "distributed.nanny.pre-spawn-environ": ENVIRONMENT,
    }
    with dask.config.set(options):
        with _interrupts_ignored():  # inherited by the workers: Ctrl-C is for this process, which then stops them
            cluster = distributed.LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                memory_limit=memory_limit,
                host=LOOPBACK,
                dashboard_address=f"{LOOPBACK}:0",
                worker_dashboard_address=f"{LOOPBACK}:0",
            )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield client


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def over_lanes(
    lanes: tuple[Lane, ...],
    task: Task[Value],
    add: Adding[Value],
    pool: Pool | None = None,
    plan: Plan = DEFAULT_PLAN,
) -> Value:
    """Run the task on all lanes and add the values in the fixed tree; ``add`` returns a new value."""
    (total,) = parts_over_lanes(lanes, lambda lane: (task(lane),), 1, add, _as_it_is, pool, plan)
    return total


def _as_it_is(total: Value) -> Value:
    return total


def parts_over_lanes(
    lanes: tuple[Lane, ...],
    task: Task[tuple[Value, ...]],
    n_parts: int,
    add: Adding[Value],
    finish: Callable[[Value], Finished],
    pool: Pool | None = None,
    plan: Plan = DEFAULT_PLAN,
) -> Iterator[Finished]:
    """Run the task on all lanes and yield its values part by part; each part is added and finished where it is."""
    if not lanes:
        raise ValueError(LEFT_BEHIND)
    packed, pieces = pack_task(task, plan.separate_bytes)
    client, add_parts = _client.get(), partial(_add_parts, add)
    if client is not None:
        n_bytes = len(packed) + sum(rows.nbytes for rows in pieces)
        if n_bytes > plan.message_bytes:
            warnings.warn(
                f"The posterior of all rows, {n_bytes / 1e9:.1f} GB, is sent to every worker at every sweep, and this "
                "process and each worker hold several copies of it, because a mode is very long. Lower max_rank, or "
                "fit fewer rows at once.",
                UserWarning,
                stacklevel=2,
            )
        yield from _on_cluster(client, lanes, (packed, pieces), n_parts, add_parts, finish)
        return
    work = partial(_here, unpack_task(packed, pieces))  # packed here too, so that every executor works on a copy
    yield from map(finish, in_tree(map(work, lanes) if pool is None else pool.map(work, lanes), add_parts))


def _add_parts(add: Adding[Value], first: tuple[Value, ...], second: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(map(add, first, second))


def pack_task(task: Task[Value], separate_bytes: int) -> tuple[bytes, list[SentOnce]]:
    """A task as bytes, without posteriors of rows of ``separate_bytes`` or more, which are sent separately and once."""
    cloudpickle = require("cloudpickle", extra="big", purpose="data in chunks")
    pieces: list[SentOnce] = []

    class Packing(cloudpickle.Pickler):  # type: ignore[name-defined]
        def persistent_id(self, thing: Any) -> int | None:
            if not isinstance(thing, SentOnce) or thing.nbytes < separate_bytes:
                return None
            if not any(thing is rows for rows in pieces):
                pieces.append(thing)
            return next(number for number, rows in enumerate(pieces) if rows is thing)

    file = io.BytesIO()
    Packing(file).dump(task)
    return file.getvalue(), pieces


def unpack_task(packed: bytes, pieces: Sequence[SentOnce]) -> Task[Any]:
    """The task, with the large posteriors of rows put back in place."""

    class Unpacking(pickle.Unpickler):
        def persistent_load(self, number: int) -> SentOnce:
            return pieces[number]

    task: Task[Any] = Unpacking(io.BytesIO(packed)).load()
    return task


def in_tree(values: Iterable[Value], add: Adding[Value]) -> Value:
    """Pairwise sum of values in order; at most log₂ of their number are in memory at a time."""
    held: list[tuple[int, Value]] = []
    for value in values:
        size = 1
        while held and held[-1][0] == size:
            value, size = add(held.pop()[1], value), 2 * size
        held.append((size, value))
    _, total = held.pop()
    while held:
        total = add(held.pop()[1], total)
    return total


def _here(task: Task[Value], lane: Lane) -> Value:
    return task((chunk, partial(_read_here, chunk)) for chunk in lane)


def _read_here(chunk: Chunk) -> Piece:
    given = chunk.source.inputs
    if given:
        dask = require("dask", extra="big", purpose="Dask arrays")
        try:
            given = dask.compute(*given)
        except Exception as error:
            raise ChunkError(f"{chunk.name} cannot be computed: {error}") from error
    return chunk.read(*given)


class Parcel(Generic[Value]):
    """A value being sent, whose arrays are aligned when it is received.

    Dask leaves them at arbitrary addresses in its receive buffer, and NumPy's matrix products of unaligned arrays
    differ in the last digits.
    """

    def __init__(self, value: Value) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(self.value, protocol=5, buffer_callback=buffers.append)
        return _received, (packed, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])

    def __sizeof__(self) -> int:
        return int(require("dask.sizeof", extra="big", purpose="executor=").sizeof(self.value))


def _received(packed: bytes, given: list[NDArray[np.uint8]]) -> Parcel[Any]:
    return Parcel(pickle.loads(packed, buffers=map(_aligned, given)))


def _aligned(given: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of some bytes at an aligned address."""
    room = np.empty(given.size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + given.size]
    copy[...] = given
    return copy


class Message:
    """A task being sent as bytes, unpacked once by every worker that has lanes."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self._task: Task[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"packed": self.packed, "_task": None}

    def __sizeof__(self) -> int:
        return len(self.packed)

    def task(self, pieces: Sequence[SentOnce]) -> Task[Any]:
        """The function of a lane."""
        if self._task is None:
            self._task = unpack_task(self.packed, pieces)
        return self._task


def _there(lane: Lane, message: Message, pieces: Sequence[Parcel[SentOnce]], *given: Any) -> Parcel[Any]:
    """Run a task on a worker, with the inputs that Dask computed; a lane that needs inputs has only one chunk."""
    with blas_on_one_thread():
        task = message.task([piece.value for piece in pieces])
        return Parcel(task((chunk, partial(chunk.read, *given)) for chunk in lane))


class Pieces:
    """Large posteriors of rows on the workers: those of the last pass are kept until the next.

    So whatever does not change between passes is sent once, and every worker computes derived quantities once. Each
    worker's copy is a separate task, so that Dask does not drop it as a redundant replica. It depends on a task whose
    arguments the scheduler keeps, so nothing is lost if a worker dies.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._copies: list[tuple[SentOnce, dict[str, Any]]] = []

    def release(self) -> None:
        """Release the copies on the workers."""
        self._copies = []

    def of(self, pieces: list[SentOnce], addresses: Iterable[str]) -> dict[str, list[Any]]:
        """A future of each piece for every address."""
        self._copies = [known for known in self._copies if any(known[0] is piece for piece in pieces)]
        for piece in pieces:
            if not any(rows is piece for rows, _ in self._copies):
                self._copies.append((piece, {}))
        copies = [next(copies for rows, copies in self._copies if rows is piece) for piece in pieces]
        for piece, own in zip(pieces, copies, strict=True):
            missing = [address for address in addresses if address not in own]
            sent = self._send(piece) if missing else None
            for address in missing:
                home = [address] if address else None
                own[address] = self._client.submit(_as_it_is, sent, workers=home, allow_other_workers=True, pure=False)
        return {address: [own[address] for own in copies] for address in addresses}

    def _send(self, rows: SentOnce) -> Any:
        with _large_graphs():
            return self._client.submit(_as_it_is, Parcel(rows), pure=False)


_pieces: ContextVar[Pieces] = ContextVar("brtf_pieces")


class Homes:
    """Assignment of lanes to workers: a lane goes to the worker that had it last and may have its chunks in the cache.

    No worker gets more than its fair share. Neighbouring lanes stay together, so that most sums are added locally.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def of(self, lanes: tuple[Lane, ...], n_threads: dict[str, int]) -> list[str]:
        """The address of a worker for each lane, given the number of threads of every worker."""
        shares = accumulate((n_threads[address] for address in sorted(n_threads)), initial=0)
        total = sum(n_threads.values())
        room = {
            address: end * len(lanes) // total - start * len(lanes) // total
            for address, (start, end) in zip(sorted(n_threads), pairwise(shares), strict=True)
        }
        homes: dict[tuple[str, int], str] = {}
        for key in (lane[0].key for lane in lanes):
            last = self._known.get(key)
            if last is not None and room.get(last, 0) > 0:
                homes[key] = last
                room[last] -= 1
        free = (address for address, n_lanes in room.items() for _ in range(n_lanes))
        for lane in lanes:
            if lane[0].key not in homes:
                homes[lane[0].key] = next(free)
        self._known = homes
        return [homes[lane[0].key] for lane in lanes]


HOMES = Homes()


def _on_cluster(
    client: Any,
    lanes: tuple[Lane, ...],
    message: tuple[bytes, list[SentOnce]],
    n_parts: int,
    add: Adding[tuple[Value, ...]],
    finish: Callable[[Value], Finished],
) -> Iterator[Finished]:
    """Build and run one graph: the message, the lanes that depend on it, and a tree of sums for every part."""
    dask, distributed = (require(name, extra="big", purpose="executor=") for name in ("dask", "distributed"))
    packed, pieces = message
    parts = range(n_parts)
    try:
        n_threads = _n_threads(client)
        sent = dask.delayed(Message, pure=False)(packed)
        if lanes[0][0].source.inputs or not n_threads:  # Dask knows where its own data are stored
            received = _pieces.get().of(pieces, [ANYWHERE])[ANYWHERE]
            values = [_delayed(lane, sent, received) for lane in lanes]
        else:
            homes = HOMES.of(lanes, n_threads)
            copies = _pieces.get().of(pieces, dict.fromkeys(homes))
            values = []
            for lane, home in zip(lanes, homes, strict=True):
                with dask.annotate(workers=[home], allow_other_workers=True):  # if it dies
                    values.append(_delayed(lane, sent, copies[home]))
        try:
            for total in _summed(client, values, parts, add, finish):
                parts = parts[1:]
                yield total
        except distributed.KilledWorker:
            _pieces.get().release()
            values = _one_after_another(client, lanes, packed, pieces)
            yield from _summed(client, values, parts, add, finish)
    except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as error:
        raise ConnectionError(SCHEDULER_LOST) from error


def _n_threads(client: Any) -> dict[str, int]:
    """Number of threads of every worker, by address."""
    try:
        n_threads = dict(client.nthreads())
    except OSError as error:
        raise ConnectionError(SCHEDULER_LOST) from error
    if not n_threads:
        warnings.warn("The cluster has no workers: waiting for one.", UserWarning, stacklevel=2)
    return n_threads


def _delayed(lane: Lane, sent: Any, pieces: list[Any]) -> Any:
    dask = require("dask", extra="big", purpose="executor=")
    return dask.delayed(partial(_there, lane), pure=False)(sent, pieces, *lane[0].source.inputs)


def _summed(
    client: Any, values: list[Any], parts: range, add: Adding[tuple[Value, ...]], finish: Callable[[Value], Finished]
) -> Iterator[Finished]:
    """Yield the parts of the values of delayed tasks or futures, added and finished on the workers."""
    dask = require("dask", extra="big", purpose="executor=")
    cut, adding = dask.delayed(_part, pure=False), dask.delayed(partial(_added, add), pure=False)
    totals = []
    for number in parts:
        level = values if len(parts) == 1 and not number else [cut(value, number) for value in values]
        while len(level) > FAN_IN:
            level = [adding(level[start : start + FAN_IN]) for start in range(0, len(level), FAN_IN)]
        totals.append(dask.delayed(partial(_finished, add, finish), pure=False)(level))
    futures = _compute(client, totals)
    try:
        while futures:
            total: Finished = futures[0].result().value
            futures.pop(0).release()
            yield total
    finally:
        for future in futures:
            future.release()  # so that retried tasks are new ones


def _part(parcel: Parcel[tuple[Value, ...]], number: int) -> Parcel[tuple[Value, ...]]:
    return Parcel(parcel.value[number : number + 1])


def _added(add: Adding[Value], parcels: list[Parcel[Value]]) -> Parcel[Value]:
    return Parcel(in_tree((parcel.value for parcel in parcels), add))


def _finished(
    add: Adding[tuple[Value, ...]], finish: Callable[[Value], Finished], parcels: list[Parcel[tuple[Value, ...]]]
) -> Parcel[Finished]:
    with blas_on_one_thread():
        return Parcel(finish(_added(add, parcels).value[0]))


def _compute(client: Any, values: list[Any]) -> list[Any]:
    with _large_graphs():
        return list(client.compute(values, optimize_graph=False))


def _large_graphs() -> Any:
    """Dask configuration that allows large graphs, for which it warns above 10 MB."""
    dask = require("dask", extra="big", purpose="executor=")
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": 2**60})


def _one_after_another(client: Any, lanes: tuple[Lane, ...], packed: bytes, pieces: list[SentOnce]) -> list[Any]:
    """Run the lanes one by one and return their futures; raise with the name of the first lane over which workers die.

    Dask blames every task of a worker for its death, so several deaths in one pass do not identify a lane, and a death
    in the last pass may still be counted against one. A lane is therefore given up only at its second trial.
    """
    dask, distributed = (require(name, extra="big", purpose="executor=") for name in ("dask", "distributed"))
    sent = dask.delayed(Message, pure=False)(packed)

    def computed(lane: Lane) -> tuple[Any, Exception | None]:
        (future,) = _compute(client, [_delayed(lane, sent, _pieces.get().of(pieces, [ANYWHERE])[ANYWHERE])])
        return future, future.exception()

    futures = []
    for lane in lanes:
        future, error = computed(lane)
        if isinstance(error, distributed.KilledWorker):
            future.release()
            time.sleep(LATE_DEATHS)
            future, error = computed(lane)
        if isinstance(error, distributed.KilledWorker):
            raise ChunkError(
                f"{_name(lane)} was given up: {error.allowed_failures + 1} workers died over it, one after another, "
                "perhaps out of memory. Make the chunks smaller, or check its content."
            ) from error
        futures.append(future)
    return futures


def _name(lane: Lane) -> str:
    return lane[0].name if len(lane) == 1 else f"{lane[0].name}, or one of the next {len(lane) - 1}, which"
