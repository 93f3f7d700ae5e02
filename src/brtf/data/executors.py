"""Processing of chunks by this process, a local cluster of processes, or the cluster of a Dask scheduler.

A task is a function of a lane, a few consecutive chunks; its results are added in a tree fixed by the order of the
lanes, so the number of workers does not change a digit. The task itself is part of the graph, which the scheduler
keeps: whatever is lost with a worker is sent and computed again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as Pool
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from brtf.data.chunk_cache import HELD
from brtf.data.chunks import LEFT_BEHIND, Chunk, ChunkError, Piece
from brtf.data.cluster import PIECES, Pieces, on_cluster
from brtf.data.extras import require
from brtf.data.plan import DEFAULT_PLAN, Plan
from brtf.data.signals import interrupts_ignored
from brtf.data.tasks import Adding, Finished, Lane, Task, Value, as_it_is, in_tree, pack_task, unpack_task

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
    executor : None: this process. ``"processes"``: a temporary cluster of ``n_workers`` processes on this machine. An
        address such as ``"tcp://host:8786"``, or a ``distributed.Client``: the cluster behind it.
    security : a ``distributed.Security`` for an address, as returned by :func:`certified`; None: Dask's configuration
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
        pieces_token = PIECES.set(pieces)
        try:
            yield str(client.dashboard_link) if client.run_on_scheduler(_has_dashboard) else None
        finally:
            _client.reset(token)
            PIECES.reset(pieces_token)
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
    address : where the scheduler is, ``tls://host:port``
    ca_file, cert, key : PEM files: the CA certificate that all sides trust, your own certificate, and its private key
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
    n_workers : processes, each with one thread
    memory_limit : of each, as Dask writes it; its share of the machine's memory by default
    """
    dask, distributed = (require(name, extra="big", purpose="executor=") for name in ("dask", "distributed"))
    options = {
        "distributed.scheduler.allowed-failures": ALLOWED_FAILURES,
        "distributed.nanny.pre-spawn-environ": ENVIRONMENT,
    }
    with dask.config.set(options):
        with interrupts_ignored():  # by the workers too: Ctrl-C is for this process, which then stops them
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


def over_lanes(
    lanes: tuple[Lane, ...], task: Task[Value], add: Adding[Value], pool: Pool | None = None, plan: Plan = DEFAULT_PLAN
) -> Value:
    """Run the task on all lanes and add the values in the fixed tree; ``add`` returns a new value."""
    (total,) = parts_over_lanes(lanes, lambda lane: (task(lane),), 1, add, as_it_is, pool, plan)
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
        yield from on_cluster(client, lanes, (packed, pieces), n_parts, add_parts, finish)
        return
    work = partial(_here, unpack_task(packed, pieces))  # packed here too, so that every executor works on a copy
    yield from map(finish, in_tree(map(work, lanes) if pool is None else pool.map(work, lanes), add_parts))


def _add_parts(add: Adding[Value], first: tuple[Value, ...], second: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(map(add, first, second))


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
