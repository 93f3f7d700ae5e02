"""Who works on the chunks: this process, a local cluster of processes, or any cluster that a Dask scheduler leads.

A task is a function of a lane, a few chunks in a row; what it returns is added up in a tree that is fixed by the order
of the lanes. Who works, and how many they are, does not change a digit. A task reaches a cluster as one more part of
the graph, which the scheduler keeps: whatever a worker takes down with it is sent and computed again.
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

Value = TypeVar("Value")
Finished = TypeVar("Finished")
Lane = tuple[Chunk, ...]
"""Chunks that are worked on one after another; their sums travel as one."""
Task = Callable[[Iterable[tuple[Chunk, Reading]]], Value]
"""A function of the chunks of a lane, each of which it may read."""
Adding = Callable[[Value, Value], Value]

ALLOWED_FAILURES = 3
"""Workers that may die over one chunk before it is given up, in clusters that are started here."""
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), 2**25),
    "MALLOC_ARENA_MAX": 1,
    "DASK_LOGGING__DISTRIBUTED": "critical",
}
"""Environment of workers that are started here. Dask has them give memory back in pieces of 64 KB, and then every array
of the size of a block is fetched from the system anew: sweeps take twice as long. What goes wrong is told here."""
LOOPBACK = "127.0.0.1"
"""Where clusters that are started here listen: whoever reaches a scheduler or a worker may run anything there."""
ANSWER_SECONDS = 30.0
"""How long to wait for a scheduler to answer."""
LATE_DEATHS = 1.0
"""Seconds after which the scheduler knows of workers that died over tasks of the last pass."""
LARGEST_MESSAGE = 2**30
"""Bytes of a message from which a warning says what it is."""
LEAST_PIECE = 2**18
"""Bytes of the posterior of a mode's rows from which it is sent by itself, and kept from pass to pass."""
ANYWHERE = ""
"""Stands for the address of any worker."""
SCHEDULER_LOST = "The Dask scheduler was lost. Begin again; a fit with a checkpoint goes on from it with resume."
FAN_IN = 8
"""Values that one task adds up: a power of two, so that the tree is the one of neighbours."""
ALIGNMENT = 64
"""Addresses of arrays that arrive are multiples of it."""

_client: ContextVar[Any] = ContextVar("brtf_client", default=None)


def check_executor(executor: Any) -> None:
    """Refuse what is none of the three."""
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
    """Have the chunks worked on by the executor; the value is the address of its dashboard, if it has one.

    Parameters
    ----------
    executor
        None: this process. ``"processes"``: a cluster of ``n_workers`` processes on this machine, for the time being.
        An address such as ``"tcp://host:8786"``, or a ``distributed.Client``: the cluster behind it.
    security
        A ``distributed.Security`` for an address, such as :func:`certified` gives; None: as Dask is configured.
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
            with suppress(OSError):  # of a scheduler that was lost
                if client.status == "running":
                    client.run(_release, on_error="ignore")


def _has_dashboard(dask_scheduler: Any) -> bool:
    """On the scheduler: whether there is more behind its link than a page that says there is nothing."""
    return bool(getattr(dask_scheduler.http_application, "applications", ()))


def _release() -> None:
    HELD.release()


def is_remote() -> bool:
    """Whether others than this process work on the chunks."""
    return _client.get() is not None


@contextmanager
def _client_of(executor: Any, n_workers: int, security: Any) -> Iterator[Any]:
    if not isinstance(executor, str):
        yield executor
        return
    distributed = require("distributed", extra="big", purpose="executor=")
    if executor != "processes":
        try:
            client = distributed.Client(executor, timeout=ANSWER_SECONDS, set_as_default=False, security=security)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two of TLS without certificates
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(f"No Dask scheduler answers at {executor!r}: {reason}.{_advice(executor)}") from error
        logger = logging.getLogger("distributed.client")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # a scheduler that is lost is told in one sentence
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
    """A ``distributed.Security`` that speaks to the scheduler at an address over TLS, and in no other way.

    Parameters
    ----------
    address
        Where the scheduler is, ``tls://host:port``.
    ca_file, cert, key
        PEM files: the certificate of the authority that all sides trust, one's own, and its private key.
    """
    if address is None or not address.startswith("tls://"):
        raise ValueError(f"Certificates are for a Dask scheduler at an address such as tls://host:8786, got {address}.")
    distributed = require("distributed", extra="big", purpose="executor=")
    files = {"tls_ca_file": ca_file, "tls_client_cert": cert, "tls_client_key": key}
    return distributed.Security(**files, require_encryption=True)


@contextmanager
def local_cluster(n_workers: int, memory_limit: str = "auto") -> Iterator[Any]:
    """A ``distributed.Client`` of a cluster of processes on this machine, for the time being.

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
        with _interrupts_ignored():  # by the workers from then on: Ctrl-C is for this process, which then ends them
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


def over_lanes(lanes: tuple[Lane, ...], task: Task[Value], add: Adding[Value], pool: Pool | None = None) -> Value:
    """The task's values for all lanes, added up in the fixed tree; ``add`` returns a new value."""
    (total,) = parts_over_lanes(lanes, lambda lane: (task(lane),), 1, add, _as_it_is, pool)
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
) -> Iterator[Finished]:
    """The same for values in parts: each is added up by itself, and finished by whoever added it; part after part."""
    if not lanes:
        raise ValueError(LEFT_BEHIND)
    packed, pieces = pack_task(task)
    client, add_parts = _client.get(), partial(_add_parts, add)
    if client is not None:
        n_bytes = len(packed) + sum(rows.nbytes for rows in pieces)
        if n_bytes > LARGEST_MESSAGE:
            warnings.warn(
                f"The posterior of all rows, {n_bytes / 1e9:.1f} GB, is sent to every worker at every sweep, and this "
                "process and each worker hold several copies of it: a mode is very long. Lower max_rank, or put fewer "
                "rows into one fit.",
                UserWarning,
                stacklevel=2,
            )
        yield from _on_cluster(client, lanes, (packed, pieces), n_parts, add_parts, finish)
        return
    work = partial(_here, unpack_task(packed, pieces))  # packed here too: it is a copy, whoever works
    yield from map(finish, in_tree(map(work, lanes) if pool is None else pool.map(work, lanes), add_parts))


def _add_parts(add: Adding[Value], first: tuple[Value, ...], second: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(map(add, first, second))


def pack_task(task: Task[Value]) -> tuple[bytes, list[SentOnce]]:
    """A task as bytes, without the posterior of many rows: that is sent by itself, and once."""
    cloudpickle = require("cloudpickle", extra="big", purpose="data in chunks")
    pieces: list[SentOnce] = []

    class Packing(cloudpickle.Pickler):  # type: ignore[name-defined]
        def persistent_id(self, thing: Any) -> int | None:
            if not isinstance(thing, SentOnce) or thing.nbytes < LEAST_PIECE:
                return None
            if not any(thing is rows for rows in pieces):
                pieces.append(thing)
            return next(number for number, rows in enumerate(pieces) if rows is thing)

    file = io.BytesIO()
    Packing(file).dump(task)
    return file.getvalue(), pieces


def unpack_task(packed: bytes, pieces: Sequence[SentOnce]) -> Task[Any]:
    """The task, with the posterior of many rows in its places."""

    class Unpacking(pickle.Unpickler):
        def persistent_load(self, number: int) -> SentOnce:
            return pieces[number]

    task: Task[Any] = Unpacking(io.BytesIO(packed)).load()
    return task


def in_tree(values: Iterable[Value], add: Adding[Value]) -> Value:
    """Values added up as neighbours, and sums of neighbours as neighbours; at most log₂ of them are held at a time."""
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
    """A value on its way: the arrays in it arrive where arrays that are made here would be.

    Dask leaves them at any address of what it received, and NumPy takes other ways with numbers that are not at
    multiples of their size: its products of matrices would end in other last digits.
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
    """A copy of some bytes, at an address that suits every kind of number."""
    room = np.empty(given.size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + given.size]
    copy[...] = given
    return copy


class Message:
    """A task on its way: travels as bytes, and is unpacked once by every worker that has lanes."""

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
    """On a worker: the same, of what Dask computed before; a lane that needs such inputs has but one chunk."""
    with blas_on_one_thread():
        task = message.task([piece.value for piece in pieces])
        return Parcel(task((chunk, partial(chunk.read, *given)) for chunk in lane))


class Pieces:
    """The posterior of many rows, as workers were sent it: that of the last pass stays with them until the next.

    So what does not change from pass to pass is sent once, and what follows from it is computed once by every worker.
    A worker's own copy is a task of its own, which Dask does not take for a replica that memory could be saved by. It
    depends on one whose arguments the scheduler keeps: a worker that dies loses nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._copies: list[tuple[SentOnce, dict[str, Any]]] = []

    def release(self) -> None:
        """Let the workers forget them."""
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
    """Which worker a lane goes to: the one that had it last, and so may still hold its chunks, if it is alive.

    Nobody has more than a fair share. Neighbours go together, so that most of their sums are added where they are.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def of(self, lanes: tuple[Lane, ...], n_threads: dict[str, int]) -> list[str]:
        """An address for each lane, of workers with that many threads."""
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
    """One graph: the message, the lanes that depend on it, and for every part the tree of its sums."""
    dask, distributed = (require(name, extra="big", purpose="executor=") for name in ("dask", "distributed"))
    packed, pieces = message
    parts = range(n_parts)
    try:
        n_threads = _n_threads(client)
        sent = dask.delayed(Message, pure=False)(packed)
        if lanes[0][0].source.inputs or not n_threads:  # Dask knows where its own data are
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
    """Threads of every worker, by its address."""
    try:
        n_threads = dict(client.nthreads())
    except OSError as error:
        raise ConnectionError(SCHEDULER_LOST) from error
    if not n_threads:
        warnings.warn("The cluster has no workers: waiting until one comes.", UserWarning, stacklevel=2)
    return n_threads


def _delayed(lane: Lane, sent: Any, pieces: list[Any]) -> Any:
    dask = require("dask", extra="big", purpose="executor=")
    return dask.delayed(partial(_there, lane), pure=False)(sent, pieces, *lane[0].source.inputs)


def _summed(
    client: Any, values: list[Any], parts: range, add: Adding[tuple[Value, ...]], finish: Callable[[Value], Finished]
) -> Iterator[Finished]:
    """Parts of the values of delayed tasks, or of futures, added up and finished where they are."""
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
            future.release()  # so that tasks which are tried again are new ones


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
    """Dask warns of more than 10 MB, and says to change it."""
    dask = require("dask", extra="big", purpose="executor=")
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": 2**60})


def _one_after_another(client: Any, lanes: tuple[Lane, ...], packed: bytes, pieces: list[SentOnce]) -> list[Any]:
    """The values of the lanes as futures, and the name of the first over which workers die.

    Dask blames all that a worker had been given for its death: several deaths in one pass are nobody's fault yet, and
    one that the last pass left behind may still be counted against a lane. So a lane is given up at its second trial.
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
                "perhaps for want of memory. Make the chunks smaller, or look into what it holds."
            ) from error
        futures.append(future)
    return futures


def _name(lane: Lane) -> str:
    return lane[0].name if len(lane) == 1 else f"{lane[0].name}, or one of the next {len(lane) - 1}, which"
