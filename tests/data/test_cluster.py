"""A real cluster of two processes gives the digits of one process, whatever dies on the way."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import brtf
from brtf import BRTF, Observations, cli
from brtf.data import chunk_cache as held
from brtf.data import chunks, cluster, executors, passes, tasks
from brtf.data.plan import Plan
from brtf.io import checkpoint
from brtf.model.distributions import RowGaussians
from test_chunks import ROUNDING, add_values, as_large, as_parts, stored

distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
sizeof = pytest.importorskip("dask.sizeof").sizeof

SHAPE = (40, 16, 12)
FEW = {"max_rank": 4, "max_sweeps": 5, "random_state": 0}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # sockets and log files of processes that were killed on purpose
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def client():
    options = {
        "distributed.scheduler.allowed-failures": 1,  # soon enough for a test
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
    }
    with (
        dask.config.set(options),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs="CRITICAL"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def tensor():
    data = brtf.datasets.synthetic(SHAPE, 3, outliers=0.05, noise=0.1, seed=1)
    return np.array(data.observed)


def with_missing(tensor):
    return np.where(np.random.default_rng(2).random(tensor.shape) < 0.3, np.nan, tensor)


def rows_of_ten(path, tensor):
    return Observations.from_chunks(stored(path, tensor, rows=10), n_entries=10 * tensor[0].size)


def same_digits(one, other):
    assert one.bound_ == other.bound_
    assert one.outlier_rate_ == other.outlier_rate_
    assert all(map(np.array_equal, one.factors_, other.factors_))
    assert all(map(np.array_equal, one.factor_covariances_, other.factor_covariances_))


def interrupted_fit(model, data, path):
    """A fit that is stopped when its second sweep is done, and leaves a checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        keep = checkpoint.Keeper.keep

        def interrupting(self, moment):
            keep(self, moment)
            if moment.n_sweeps >= 2:
                raise KeyboardInterrupt

        patch.setattr(checkpoint.Keeper, "keep", interrupting)
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, checkpoint=path)


class TestSameDigits:
    @pytest.mark.parametrize("masked", [False, True])
    def test_of_stored_rows(self, masked, client, tensor, tmp_path):
        chunked = rows_of_ten(tmp_path / "a.zarr", with_missing(tensor) if masked else tensor)
        there = BRTF(**FEW, executor=client).fit(chunked)
        same_digits(BRTF(**FEW).fit(chunked), there)
        there.write(tmp_path / "there.zarr")
        BRTF(**FEW).fit(chunked).write(tmp_path / "here.zarr")
        zarr = pytest.importorskip("zarr")
        here, written = (zarr.open_group(tmp_path / name, mode="r") for name in ("here.zarr", "there.zarr"))
        for name in ("low_rank", "outliers", "outlier_probability", "imputed"):
            np.testing.assert_array_equal(here[name][...], written[name][...])

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("rank", [3, 5, 7])
    def test_of_any_rank_and_resumed_elsewhere(self, rank, masked, client, tmp_path):
        """What a fit begins here may be ended there, and the other way round."""
        tensor = brtf.datasets.synthetic(SHAPE, rank, outliers=0.05, noise=0.1, seed=1).observed
        chunked = rows_of_ten(tmp_path / "a.zarr", with_missing(tensor) if masked else tensor)
        options = FEW | {"max_rank": rank, "max_sweeps": 60}
        here = BRTF(**options).fit(chunked)
        assert here.rank_ == rank
        same_digits(here, BRTF(**options, executor=client).fit(chunked))
        for began, ended in ((None, client), (client, None)):
            kept = tmp_path / f"{began is None}.ckpt"
            interrupted_fit(BRTF(**options, executor=began), chunked, kept)
            same_digits(here, BRTF(**options, executor=ended).fit(chunked, resume=kept))

    def test_of_what_began_or_ends_in_memory_to_rounding(self, client, tensor, tmp_path):
        chunked, options = rows_of_ten(tmp_path / "a.zarr", with_missing(tensor)), FEW | {"max_rank": 5}
        ways = {"here": (as_large(with_missing(tensor)), None), "there": (chunked, client)}
        expected = BRTF(**options).fit(chunked)
        for began, ended in (("here", "there"), ("there", "here")):
            data, executor = ways[began]
            interrupted_fit(BRTF(**options, executor=executor), data, tmp_path / began)
            data, executor = ways[ended]
            resumed = BRTF(**options, executor=executor).fit(data, resume=tmp_path / began)
            np.testing.assert_allclose(resumed.bound_, expected.bound_, rtol=ROUNDING)

    def test_of_a_dask_array_with_a_mask(self, client, tensor):
        mask = da.from_array(np.isfinite(with_missing(tensor)), chunks=(10, -1, -1))
        array = da.from_array(tensor, chunks=(10, -1, -1))
        persisted = client.persist(array)
        fits = [
            BRTF(**FEW).fit(array, mask=mask),
            BRTF(**FEW, executor=client).fit(array, mask=mask),
            BRTF(**FEW, executor=client).fit(persisted, mask=mask),
        ]
        same_digits(fits[0], fits[1])
        same_digits(fits[0], fits[2])

    def test_of_coordinates(self, client, tensor, tmp_path):
        parts = as_parts(tmp_path / "parts", with_missing(tensor))
        with executors.executing(client):
            chunked = Observations.from_parts(parts, shape=SHAPE)
        assert chunked.scale == Observations.from_parts(parts, shape=SHAPE).scale
        same_digits(BRTF(**FEW).fit(chunked), BRTF(**FEW, executor=client).fit(chunked))

    def test_of_a_long_mode(self, client, tensor, tmp_path, monkeypatch):
        """Sums in runs of rows, and the posterior sent by itself: once, however many passes need it."""
        chunked = Observations.from_parts(as_parts(tmp_path / "parts", with_missing(tensor)), shape=SHAPE)
        expected = BRTF(**FEW).fit(chunked)
        divided = replace(chunked, plan=Plan(run_bytes=2**11, sparse_sums=1, separate_bytes=0))
        wanted, sent, of, submit = [], [], cluster.Pieces.of, client.submit

        def asked(self, pieces, addresses):
            wanted.extend(pieces)
            return of(self, pieces, addresses)

        def submitted(task, given, **options):
            if isinstance(given, cluster.Parcel):
                sent.append(given)
            return submit(task, given, **options)

        monkeypatch.setattr(cluster.Pieces, "of", asked)
        monkeypatch.setattr(client, "submit", submitted)
        same_digits(expected, BRTF(**FEW, executor=client).fit(divided))
        assert 0 < len(sent) < 0.6 * len(wanted)

    def test_of_one_process_started_for_the_fit(self, tensor, tmp_path):
        chunked = rows_of_ten(tmp_path / "a.zarr", tensor)
        same_digits(BRTF(**FEW).fit(chunked), BRTF(**FEW, executor="processes", n_jobs=1).fit(chunked))


def count_reads():
    """On a worker: have its readings of stored rows counted from now on."""
    counted = []
    original = chunks.StoredRows.__dict__.get("original", chunks.StoredRows.read)
    chunks.StoredRows.original, chunks.StoredRows.counted = original, counted
    chunks.StoredRows.read = lambda self, *given: (counted.append(self.rows.start), original(self, *given))[1]


class TestLanesStay:
    def add_up(self, chunked):
        return passes.add_up(chunked, lambda: (np.zeros(()),), add_values)[0]

    def test_a_second_pass_reads_nothing(self, client, tensor, tmp_path):
        """Whoever read a chunk has kept it, and gets it again."""
        array = stored(tmp_path / "a.zarr", tensor, rows=2)
        with executors.executing(client):
            client.run(count_reads)
            chunked = Observations.from_chunks(array, n_entries=2 * tensor[0].size)
            surveyed = client.run(lambda: list(chunks.StoredRows.counted))
            # a first look at ten chunks each, and what is kept; on a busy machine one may be looked at by both
            assert sum(map(len, surveyed.values())) in range(40, 45)
            for _ in range(3):
                np.testing.assert_allclose(self.add_up(chunked), tensor.sum(), rtol=1e-10)  # sums in another order
            assert client.run(lambda: list(chunks.StoredRows.counted)) == surveyed
        assert set(client.run(lambda: len(held.HELD._parts)).values()) == {0}

    def lanes(self, n_lanes):
        return tuple((chunks.Chunk("", None, ("data", number), slice(0, 1)),) for number in range(n_lanes))

    @pytest.mark.parametrize(("n_lanes", "n_workers"), [(1, 3), (9, 8), (10, 3), (64, 5), (149, 100)])
    def test_runs_of_neighbours_in_fair_shares(self, n_lanes, n_workers):
        addresses = {f"tcp://{number:03d}": 1 for number in range(n_workers)}
        homes = cluster.Homes().of(self.lanes(n_lanes), addresses)
        assert homes == sorted(homes)
        counts = [homes.count(address) for address in addresses]
        assert max(counts) - min(counts) <= 1

    def test_threads_count(self):
        homes = cluster.Homes().of(self.lanes(12), {"a": 1, "b": 3, "c": 2})
        assert [homes.count(address) for address in "abc"] == [2, 6, 4]

    def test_only_lanes_of_the_dead_and_a_share_for_the_new_move(self):
        homes, lanes = cluster.Homes(), self.lanes(12)
        before = homes.of(lanes, {"a": 1, "b": 1, "c": 1})
        without = homes.of(lanes, {"a": 1, "c": 1})
        assert all(now == then for now, then in zip(without, before, strict=True) if then != "b")
        assert [without.count(address) for address in "ac"] == [6, 6]
        again = homes.of(lanes, {"a": 1, "c": 1, "d": 1})
        assert sum(now != then for now, then in zip(again, without, strict=True)) == again.count("d") == 4
        assert homes.of(self.lanes(3), {"z": 1}) == ["z"] * 3


class TestFaults:
    def test_workers_that_are_killed_during_a_sweep(self, client, tensor, tmp_path, monkeypatch):
        """Twice: a pass begins, and one of the workers is gone before it ends."""
        chunked = rows_of_ten(tmp_path / "a.zarr", with_missing(tensor))
        passes, killed, original = [], [], executors.on_cluster

        def deadly(client, lanes, *others):
            passes.append(len(lanes))
            if len(passes) in (20, 26):
                pids = client.run(os.getpid)
                victim = sorted(pids.values())[0]
                killed.append(victim)
                threading.Timer(0.02, os.kill, (victim, signal.SIGKILL)).start()
            return original(client, lanes, *others)

        monkeypatch.setattr(executors, "on_cluster", deadly)
        there = BRTF(**FEW, executor=client).fit(chunked)
        client.wait_for_workers(2, timeout=30)
        assert len(set(killed)) == 2
        assert not set(killed) & set(client.run(os.getpid).values())
        same_digits(BRTF(**FEW).fit(chunked), there)

    def test_deaths_of_which_no_chunk_is_guilty(self, client, tensor, tmp_path, monkeypatch):
        """Dask gives up after so many in one pass; lanes one after another give the same sums."""
        chunked = rows_of_ten(tmp_path / "a.zarr", with_missing(tensor))
        passes, original = [], cluster._summed

        def giving_up(client, values, *others):
            passes.append(len(values))
            if len(passes) == 20:
                raise distributed.KilledWorker("a task", None, 1)
            return original(client, values, *others)

        monkeypatch.setattr(cluster, "_summed", giving_up)
        there = BRTF(**FEW, executor=client).fit(chunked)
        assert len(passes) > 21
        same_digits(BRTF(**FEW).fit(chunked), there)

    def test_a_damaged_chunk_is_named(self, client, tensor, tmp_path):
        array = stored(tmp_path / "a.zarr", tensor, rows=5)
        file = tmp_path / "a.zarr" / "c" / "3" / "0" / "0"
        content = bytearray(file.read_bytes())
        content[7] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows 0:40 of .*a\.zarr cannot be read: .*checksum"):
            BRTF(**FEW, executor=client).fit(array)

    def test_a_scheduler_that_is_lost_leaves_the_checkpoint(self, tensor, tmp_path, monkeypatch):
        chunked = rows_of_ten(tmp_path / "a.zarr", tensor)
        kept, passes, original = tmp_path / "fit.ckpt", [], executors.on_cluster
        with alone(tmp_path) as (address, processes):

            def dying(client, lanes, *others):
                passes.append(len(lanes))
                if len(passes) == 20:
                    processes[0].kill()
                return original(client, lanes, *others)

            monkeypatch.setattr(executors, "on_cluster", dying)
            with pytest.raises(ConnectionError, match="The connection to the Dask scheduler was lost"):
                BRTF(**FEW, executor=address).fit(chunked, checkpoint=kept, every=0)
        resumed = BRTF(**FEW).fit(chunked, resume=kept)
        same_digits(BRTF(**FEW).fit(chunked), resumed)

    def test_a_cluster_without_workers_is_warned_of(self):
        class Nobody:
            nthreads = staticmethod(dict)

        with pytest.warns(UserWarning, match="The cluster has no workers: waiting"):
            assert cluster._n_threads(Nobody) == {}

    @pytest.mark.parametrize("address", ["process", "localhost", "tcp://host"])
    def test_an_address_has_a_port(self, address):
        with pytest.raises(ValueError, match=r"such as \"tcp://host:8786\", got"):
            BRTF(executor=address).fit(np.ones((3, 3)))

    def test_a_long_mode_is_warned_of(self, client, tensor, tmp_path):
        chunked = replace(rows_of_ten(tmp_path / "a.zarr", tensor), plan=Plan(message_bytes=10))
        with executors.executing(client), pytest.warns(UserWarning, match="The posterior of all rows, 0.0 GB, is sent"):
            passes.add_up(chunked, lambda: (np.zeros(()),), add_values)

    def test_no_scheduler_at_all(self, tensor):
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
            pytest.raises(ValueError, match="No Dask scheduler answers at 'tcp:"),
        ):
            BRTF(executor="tcp://127.0.0.1:1").fit(da.from_array(tensor))


class TestCommandLine:
    def fit(self, *arguments):
        run = CliRunner().invoke(cli.main, ["fit", *map(str, arguments), "--max-rank", "4", "--max-sweeps", "5"])
        assert run.exit_code == 1, run.output  # not converged after so few sweeps
        return run

    def test_a_store(self, client, tensor, tmp_path):
        zarr = pytest.importorskip("zarr")
        stored(tmp_path / "a.zarr", with_missing(tensor), rows=5)
        address = client.scheduler.address
        run = self.fit(tmp_path / "a.zarr", "--scheduler", address, "--out", tmp_path / "out")
        assert "Dashboard" not in run.stderr  # this cluster has none
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fitted.zarr", "result.brtf"]
        imputed = zarr.open_group(tmp_path / "out" / "fitted.zarr", mode="r")["imputed"][...]
        seen = np.isfinite(with_missing(tensor))
        np.testing.assert_array_equal(imputed[seen], tensor[seen])
        loaded = brtf.load(tmp_path / "out" / "result.brtf")
        np.testing.assert_allclose(imputed[~seen], loaded.low_rank()[~seen], rtol=1e-12)

    def test_a_dashboard(self, client, monkeypatch):
        monkeypatch.setattr(executors, "_has_dashboard", lambda dask_scheduler: bool(dask_scheduler.http_application))
        with executors.executing(client) as link:
            assert link == str(client.dashboard_link)

    def test_a_directory_of_tables(self, tensor, tmp_path):
        as_parts(tmp_path / "parts", with_missing(tensor))
        run = self.fit(tmp_path / "parts", "--json")
        assert json.loads(run.stdout)["shape"] == list(SHAPE)

    def test_what_cannot_be_read_in_chunks(self, client, tmp_path):
        (tmp_path / "a.csv").write_text("i,j,value\n0,0,1.0\n")
        address = client.scheduler.address
        run = CliRunner().invoke(cli.main, ["fit", str(tmp_path / "a.csv"), "--scheduler", address])
        assert run.exit_code == 2
        assert "a.csv cannot be read in chunks: a .zarr store" in run.stderr


def test_a_chunk_that_kills_whoever_touches_it(client, tensor):
    driver = os.getpid()

    def poisoned(block, block_info=None):
        if block_info[0]["chunk-location"][0] == 2 and os.getpid() != driver:
            time.sleep(0.5)  # whoever watches over the worker has to know it before it can start another
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    array = da.from_array(tensor, chunks=(10, -1, -1)).map_blocks(poisoned, dtype=tensor.dtype)
    # Given up after a few deaths: with Dask's own patience of many more, each of some seconds, it would not be.
    with pytest.raises(ValueError, match=r"The chunk of rows 20:30 of the Dask array was given up: 2 workers died"):
        BRTF(**FEW, executor=client).fit(array)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    return [certificate(tmp_path_factory.mktemp(name)) for name in ("ours", "theirs")]


class TestWhoMayConnect:
    def test_a_local_cluster_listens_to_this_machine_only(self):
        psutil = pytest.importorskip("psutil")
        with executors.executing("processes", 1) as dashboard:
            me = psutil.Process()
            open_at = {
                connection.laddr.ip
                for process in (me, *me.children(recursive=True))
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN and connection.laddr.ip != "::1"
            }
            assert dashboard is None or "//127.0.0.1:" in dashboard
        assert open_at == {"127.0.0.1"}

    def test_tls(self, certificates, tensor, tmp_path):
        """The same digits with our certificates; nobody without them is let in, whatever they speak.

        Strangers come in processes of their own: after a refusal Dask cannot always try again in the same one.
        """
        ours, theirs = certificates
        stored(tmp_path / "a.zarr", tensor, rows=10)
        options = ["--max-rank", "3", "--max-sweeps", "5"]

        def fit(*arguments):
            return CliRunner().invoke(cli.main, ["fit", str(tmp_path / "a.zarr"), *options, *arguments])

        security = executors.certified("tls://", *ours)
        with alone(tmp_path, tls_options(ours), security) as (address, _):
            assert address.startswith("tls://127.0.0.1:")
            run = fit("--scheduler", address, *tls_options(ours), "--out", str(tmp_path / "there"))
            assert run.exit_code == 1, run.output  # not converged after so few sweeps
            strangers = (tls_options(theirs), address), ([], address), ([], address.replace("tls", "tcp"))
            for shown, door in strangers:
                command = [
                    sys.executable,
                    "-c",
                    IMPATIENT,
                    "fit",
                    str(tmp_path / "a.zarr"),
                    "--scheduler",
                    door,
                    *shown,
                ]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                assert done.returncode == 2, done.stderr
                assert f"No Dask scheduler answers at '{door}'" in done.stderr
                assert ("Over tls:// both sides need certificates" in done.stderr) == door.startswith("tls")
        chunked = Observations.from_chunks(stored(tmp_path / "b.zarr", tensor, rows=10))
        here = BRTF(max_rank=3, max_sweeps=5, random_state=0).fit(chunked)
        same_digits(here, brtf.load(tmp_path / "there" / "result.brtf"))

    def test_certificates_that_do_not_belong(self, certificates, tensor, tmp_path):
        np.save(tmp_path / "a.npy", tensor)
        for arguments, sentence in (
            (
                ["--scheduler", "tls://127.0.0.1:1", *tls_options(certificates[0])[:4]],
                "belong together: give all three",
            ),
            (["--scheduler", "tcp://127.0.0.1:1", *tls_options(certificates[0])], "such as tls://host:8786, got tcp:"),
            (tls_options(certificates[0]), "such as tls://host:8786, got None"),
            (["--tls-key", str(tmp_path / "absent.pem")], "absent.pem' does not exist"),
        ):
            run = CliRunner().invoke(cli.main, ["fit", str(tmp_path / "a.npy"), *arguments])
            assert run.exit_code == 2
            assert sentence in " ".join(run.stderr.split())


IMPATIENT = (
    "import dask; from brtf import cli; from brtf.data import executors; executors.ANSWER_SECONDS = 2.0; "
    "dask.config.set({'distributed.comm.timeouts.connect': '2s'}); cli.main()"
)
"""The command line, which waits two seconds for an answer."""


def certificate(directory):
    """Paths of an authority's certificate, of one that it has signed, and of the key of that."""
    new, days = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"], ["-days", "2"]
    authority = ["-x509", *days, "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem"]
    request = ["-subj", "/CN=brtf", "-keyout", "key.pem", "-out", "request.pem"]
    sign = ["openssl", "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem"]
    for command in ([*new, *authority], [*new, *request], [*sign, "-CAcreateserial", *days, "-out", "cert.pem"]):
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return [str(directory / name) for name in ("ca.pem", "cert.pem", "key.pem")]


def tls_options(files):
    return [part for pair in zip(("--tls-ca-file", "--tls-cert", "--tls-key"), files, strict=True) for part in pair]


class alone:
    """A scheduler and a worker as processes of their own, over TLS if told how."""

    def __init__(self, directory, tls=(), security=None):
        self.file = directory / "scheduler.json"
        self.tls = [*tls, "--host", "tls://127.0.0.1" if tls else "127.0.0.1"]
        self.security = security

    def __enter__(self):
        run = [sys.executable, "-m", "dask"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        scheduler = [*run, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file), *self.tls]
        worker = [*run, "worker", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--scheduler-file", str(self.file)]
        worker += self.tls
        self.processes = [subprocess.Popen(command, **quiet) for command in (scheduler, worker)]
        began = time.monotonic()
        while not self.file.exists() and time.monotonic() - began < 30:
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(self.file), set_as_default=False, security=self.security) as client:
            client.wait_for_workers(1, timeout=30)
            return client.scheduler.address, self.processes

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.wait()


class TestParcels:
    """Whatever arrives lies where NumPy and the compiled loops take it as they take what is made here."""

    @pytest.mark.parametrize("protocol", [4, 5])
    def test_arrays_arrive_at_whole_addresses(self, protocol):
        rows = RowGaussians(np.arange(6.0).reshape(2, 3), np.arange(6.0)[None])
        sent = {"rows": rows, "bits": np.array([True]), "short": np.arange(5, dtype=np.float32)}
        sent["fortran"] = np.asfortranarray(rows.mean)
        buffers = []
        collected = {"buffer_callback": buffers.append} if protocol == 5 else {}
        packed = pickle.dumps(tasks.Parcel(sent), protocol, **collected)
        assert bool(buffers) == (protocol == 5)
        odd = [misplaced(buffer.raw()) for buffer in buffers]
        got = pickle.loads(packed, buffers=odd).value
        arrays = [got["rows"].mean, got["rows"].cov_packed, *map(got.get, list(sent)[1:])]
        assert [array.ctypes.data % tasks.ALIGNMENT for array in arrays] == [0] * len(arrays)
        assert all(array.flags.writeable for array in arrays)
        np.testing.assert_array_equal(got["rows"].mean, rows.mean)
        for name in list(sent)[1:]:
            np.testing.assert_array_equal(got[name], sent[name])
            assert got[name].flags.f_contiguous == sent[name].flags.f_contiguous

    def test_dask_knows_how_large_they_are(self):
        array = np.zeros(10**5)
        assert sizeof(tasks.Parcel((array, [array]))) > 2 * array.nbytes


def misplaced(content):
    """The same bytes at an odd address."""
    room = np.empty(len(content) + 64, np.uint8)
    place = -room.ctypes.data % 64 + 5
    room[place : place + len(content)] = np.frombuffer(content, np.uint8)
    return memoryview(room)[place : place + len(content)]
