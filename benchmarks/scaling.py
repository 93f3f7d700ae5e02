"""Sweeps over data that do not fit in memory: time, memory and bytes moved, on one machine.

    python benchmarks/scaling.py dense --shape 2000 500 500 --workers 1 2 --in-memory
    python benchmarks/scaling.py coordinates --entries 10000000 --workers 1 2 --in-memory

The data are generated block by block from known factors. Every line of the output is a JSON object. A sweep learns the
noise and updates every factor once, from a start near the truth; the store is made once and reused. Times are wall time
and, as cpu_ns_per_entry, CPU time of all processes, which depends less on how busy the machine is.
"""

import argparse
import json
import resource
import time
from functools import partial
from pathlib import Path

import numpy as np

from brtf import Observations
from brtf.data import cluster, executors
from brtf.data.observe import observe
from brtf.data.passes import workers
from brtf.inference.learn_noise import with_noise
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.sweep import sweep
from brtf.search.components import add_components, empty_state
from brtf.search.starts import START_MODEL

CHUNK_ENTRIES = 2**24
OUTLIERS, OUTLIER_SIZE, NOISE = 0.02, 10.0, 0.5


def truth(shape, rank):
    return [np.random.default_rng(mode).standard_normal((length, rank)) for mode, length in enumerate(shape)]


def with_errors(values, rng):
    """Noise everywhere, and an outlier in one entry of fifty."""
    values = values + np.float32(NOISE) * rng.standard_normal(values.shape, dtype=np.float32)
    outlying = rng.random(values.shape, dtype=np.float32) < OUTLIERS
    values[outlying] += np.float32(OUTLIER_SIZE) * rng.standard_normal(int(outlying.sum()), dtype=np.float32)
    return values


def generate_rows(path, shape, rank, rows):
    import zarr

    first, *others = (factor.astype(np.float32) for factor in truth(shape, rank))
    columns = others[0]
    for factor in others[1:]:
        columns = (columns[:, None] * factor[None]).reshape(-1, rank)
    values = with_errors(first[rows] @ columns.T, np.random.default_rng(rows.start))
    zarr.open_array(path, mode="r+")[rows] = values.reshape(-1, *shape[1:])


def make_dense(path, shape, rank, client):
    import zarr

    n_rows = max(1, CHUNK_ENTRIES // int(np.prod(shape[1:])))
    chunks = (n_rows, *shape[1:])
    zarr.create_array(path, shape=shape, chunks=chunks, dtype="f4", compressors=[zarr.codecs.Crc32cCodec()])
    runs = [slice(start, min(start + n_rows, shape[0])) for start in range(0, shape[0], n_rows)]
    client.gather(client.map(partial(generate_rows, str(path), shape, rank), runs, pure=False))


def generate_part(path, shape, rank, n_entries, n_parts, number):
    """Random entries in some rows of the first mode, without repetition."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(number)
    low, high = (shape[0] * k // n_parts for k in (number, number + 1))
    size = (high - low) * int(np.prod(shape[1:]))
    places = np.unique(rng.integers(0, size, int(1.02 * n_entries / n_parts)))[: n_entries // n_parts]
    coords = np.unravel_index(places, (high - low, *shape[1:]))
    coords = (coords[0] + low, *coords[1:])
    product = np.ones((places.size, rank))
    for factor, positions in zip(truth(shape, rank), coords, strict=True):
        product *= factor[positions]
    values = with_errors(product.sum(axis=1).astype(np.float32), rng)
    columns = {f"mode_{mode}": positions.astype(np.int32) for mode, positions in enumerate(coords)}
    pyarrow.parquet.write_table(pyarrow.table(columns | {"value": values}), path / f"{number:05d}.parquet")


def make_coordinates(path, shape, rank, n_entries, client):
    path.mkdir(parents=True)
    n_parts = max(4, n_entries // 2**20)
    tasks = partial(generate_part, path, shape, rank, n_entries, n_parts)
    client.gather(client.map(tasks, range(n_parts), pure=False))


def near(shape, rank, scale):
    """Factors near the truth, in units of the data's scale."""
    share = scale ** (1.0 / len(shape))
    rng = np.random.default_rng(99)
    return [(factor + 0.1 * rng.standard_normal(factor.shape)) / share for factor in truth(shape, rank)]


def time_sweeps(observations, rank, n_sweeps, count):
    """Seconds of every sweep and the counters after it; the first sweep also compiles and fills caches."""
    collapsed = observations.layout != "complete"
    problem = Problem(observations, (*range(1, observations.order), 0), collapsed)
    scale = observations.scale
    start = add_components(problem, empty_state(problem, START_MODEL), near(observations.shape, rank, scale))
    start = with_noise(start, (scale / NOISE) ** 2, START_MODEL, observations.n_observed)
    point, seconds, counts = evaluate(problem, start, ahead=True), [], []
    for _ in range(n_sweeps):
        began = time.perf_counter()
        point = sweep(problem, point, ahead=True)
        seconds.append(time.perf_counter() - began)
        counts.append(count())
    return seconds, counts, {"error": error(point.state, scale, rank), "bound": point.bound}


def error(state, scale, rank):
    """Relative error of the low-rank part, at a hundred thousand entries."""
    rng = np.random.default_rng(7)
    found, true = 1.0, 1.0
    for rows, factor in zip(state.factors, truth([rows.n_rows for rows in state.factors], rank), strict=True):
        chosen = rng.integers(0, rows.n_rows, 10**5)
        found, true = found * rows.mean[chosen], true * factor[chosen]
    found, true = scale * found.sum(axis=1), true.sum(axis=1)
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def report(what, observations, seconds, cpu_seconds, **numbers):
    """Print one line of results; the seconds are those of all sweeps but the first."""
    typical = float(np.median(seconds))
    line = {
        "what": what,
        "shape": observations.shape,
        "entries": observations.n_observed,
        "gigabytes": observations.values.nbytes / 1e9,
        "sweep_seconds": typical,
        "ns_per_entry": 1e9 * typical / observations.n_observed,
        "cpu_ns_per_entry": 1e9 * cpu_seconds / observations.n_observed,
        "largest_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(json.dumps(line | numbers), flush=True)


def of_workers(client):
    """Bytes that the workers have sent so far, and their CPU seconds."""
    spent = client.run(lambda dask_worker: (dask_worker.transfer_outgoing_bytes_total, time.process_time()))
    return [sum(numbers) for numbers in zip(*spent.values(), strict=True)]


def in_this_process(what, observations, options):
    seconds, counts, found = time_sweeps(observations, options.rank, 1 + options.sweeps, time.process_time)
    report(what, observations, seconds[1:], (counts[-1] - counts[0]) / options.sweeps, **found)


def on_workers(options, n_workers, read):
    """Run sweeps on a local cluster and count the messages between its workers."""
    passes, pieces = [], []
    pack, send = executors.pack_task, cluster.Pieces._send

    def packed(task):
        message = pack(task)
        passes.append(len(message[0]))
        return message

    def sent(self, rows):
        pieces.append(rows.nbytes)
        return send(self, rows)

    with executors.local_cluster(n_workers, options.memory) as client:
        with executors.executing(client):
            began = time.perf_counter()
            observations = read()
            surveyed = time.perf_counter() - began
            executors.pack_task, cluster.Pieces._send = packed, sent
            count = lambda: (len(passes), sum(passes) + sum(pieces), *of_workers(client))  # noqa: E731
            seconds, counts, found = time_sweeps(observations, options.rank, 1 + options.sweeps, count)
            executors.pack_task, cluster.Pieces._send = pack, send
        n_passes, n_sent, n_moved, cpu = (np.array(counts[-1]) - counts[0]) / options.sweeps
        peak = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        packed = options.rank * (options.rank + 1) // 2
        report(
            f"{n_workers} workers of {options.memory}",
            observations,
            seconds[1:],
            cpu,
            survey_seconds=surveyed,
            lanes=len(observations.lanes),
            chunks=len(observations.chunks),
            worker_rss_gb=max(peak.values()),
            passes_per_sweep=n_passes,
            sent_bytes_per_sweep=n_sent,
            moved_bytes_per_sweep=n_moved,
            theoretical_bytes_per_mode=[8 * length * (packed + options.rank) for length in observations.shape],
            **found,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["dense", "coordinates"])
    parser.add_argument("--shape", type=int, nargs="+", default=[2000, 500, 500])
    parser.add_argument("--entries", type=int, default=10**7, help="observed entries, of coordinates")
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--memory", default="2GB", help="limit of every worker")
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--in-memory", action="store_true", help="compare with the same data in memory")
    parser.add_argument("--streamed", action="store_true", help="and with this process, chunk after chunk")
    parser.add_argument("--directory", type=Path, default=Path("scaling-data"))
    options = parser.parse_args()
    shape = tuple(options.shape)
    dense = options.what == "dense"
    name = "x".join(map(str, shape)) + (".zarr" if dense else f"-{options.entries}")
    path = options.directory / name
    if not path.exists():
        from distributed import Client, LocalCluster

        began = time.perf_counter()
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            if dense:
                make_dense(path, shape, options.rank, client)
            else:
                make_coordinates(path, shape, options.rank, options.entries, client)
        print(json.dumps({"what": "generated", "path": name, "seconds": time.perf_counter() - began}), flush=True)

    def read():
        if dense:
            import zarr

            return Observations.from_chunks(zarr.open_array(path, mode="r"))
        return Observations.from_parts(path, shape=shape)

    with workers(1):
        if options.in_memory:
            observations = in_memory(path, shape, dense)
            in_this_process("in memory", observations, options)
            del observations
        if options.streamed:
            in_this_process("streamed by one process", read(), options)
    for n_workers in options.workers:
        on_workers(options, n_workers, read)


def in_memory(path, shape, dense):
    if dense:
        import zarr

        return observe(zarr.open_array(path, mode="r")[...])
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(file) for file in sorted(path.iterdir())]
    *coords, values = (np.concatenate([table[name].to_numpy() for table in tables]) for name in tables[0].column_names)
    return Observations.from_coords(coords, values, shape)


if __name__ == "__main__":
    main()
