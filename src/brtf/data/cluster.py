"""One pass over lanes of chunks on the workers of a Dask scheduler."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from brtf.data.arrays import SentOnce
from brtf.data.blas import blas_on_one_thread
from brtf.data.chunks import ChunkError
from brtf.data.extras import require
from brtf.data.tasks import Adding, Finished, Lane, Message, Parcel, Value, as_it_is, in_tree

LATE_DEATHS = 1.0
"""Seconds after which the scheduler has noticed workers that died in the last pass."""
ANYWHERE = ""
"""Placeholder for the address of any worker."""
SCHEDULER_LOST = "The connection to the Dask scheduler was lost. Fit again; a fit with a checkpoint can be resumed."
FAN_IN = 8
"""Number of values added by one task: a power of two, so that the result equals pairwise addition."""


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
            if missing:
                with _large_graphs():
                    sent = self._client.submit(as_it_is, Parcel(piece), pure=False)
            for address in missing:
                home = [address] if address else None
                own[address] = self._client.submit(as_it_is, sent, workers=home, allow_other_workers=True, pure=False)
        return {address: [own[address] for own in copies] for address in addresses}


PIECES: ContextVar[Pieces] = ContextVar("brtf_pieces")


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


def on_cluster(
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
            received = PIECES.get().of(pieces, [ANYWHERE])[ANYWHERE]
            values = [_delayed(lane, sent, received) for lane in lanes]
        else:
            homes = HOMES.of(lanes, n_threads)
            copies = PIECES.get().of(pieces, dict.fromkeys(homes))
            values = []
            for lane, home in zip(lanes, homes, strict=True):
                with dask.annotate(workers=[home], allow_other_workers=True):  # if it dies
                    values.append(_delayed(lane, sent, copies[home]))
        try:
            for total in _summed(client, values, parts, add, finish):
                parts = parts[1:]
                yield total
        except distributed.KilledWorker:
            PIECES.get().release()
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
        (future,) = _compute(client, [_delayed(lane, sent, PIECES.get().of(pieces, [ANYWHERE])[ANYWHERE])])
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
