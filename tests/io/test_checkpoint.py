"""A fit that was left off goes on to the same end, bit for bit, and no accident costs the last checkpoint.

A run is compared moment by moment: from every one of them, written to a file and read back, the next one follows. By
induction the whole run does, wherever it is cut.
"""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf import cli
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.inference.trace import Kind
from brtf.io import archive, checkpoint, storage
from brtf.io.archive import pack_reading
from brtf.io.checkpoint import Keeper, load_checkpoint
from brtf.io.origin import BIT_GENERATORS, Origin, as_plain, bit_generator_of
from brtf.io.storage import CorruptFile, read_archive, write_archive
from brtf.model.distributions import RowGaussians
from brtf.model.settings import Settings
from brtf.search.phases import PHASES
from brtf.search.reading import given_reading
from brtf.search.run import run
from brtf.search.settle import STAGES
from mixtures import overlapping_spectra

COMMAND = [sys.executable, "-c", "from brtf.cli import main; main()"]
SMALL = synthetic((9, 8, 7), 2, outliers=0.1, missing=0.2, seed=0).observed
PLAIN = {"link": None, "arrangement": None, "smooth_residual": None}
"""Nothing to choose, so that every moment of the search is seen."""


@pytest.fixture
def no_waiting(monkeypatch):
    """Files need not reach the disk where no power is cut: waiting for it would be all that these tests do."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class _EnoughError(Exception):
    pass


def moments_of(observations, settings, *, seed=0):
    """All moments of a run, and what it found."""
    moments = []
    found = run(observations, settings, np.random.default_rng(seed), moments.append)
    return moments, found


def content(moment, origin):
    """All that a checkpoint says, as bytes; the time aside."""
    header, arrays = checkpoint._pack(moment, origin, 0.0, ({}, {}))
    return json.dumps(header, sort_keys=True), {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}


def next_moment(observations, settings, moment):
    """The moment after a moment, by a run that knows nothing else; None if that is the end."""
    seen = []

    def watch(moment):
        seen.append(moment)
        if len(seen) == 2:
            raise _EnoughError

    rng = np.random.default_rng(99)
    try:
        run(observations, settings, rng, watch, moment)
    except _EnoughError:
        return seen[1]
    return None


def stretched(shape, rank, **options):
    """Noise that differs from slice to slice."""
    data = synthetic(shape, rank, seed=2, **options)
    return data.observed + np.random.default_rng(0).normal(size=shape) * np.linspace(0.0, 0.6, shape[0])[:, None, None]


def walking(shape, rank):
    """Components whose loadings along the first mode are random walks."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, rank)) for length in shape]
    course = np.cumsum(factors[0], axis=0)
    return np.einsum("ir,jr,kr->ijk", course, *factors[1:]) + 0.1 * rng.standard_normal(shape)


def as_coordinates(tensor):
    coords = np.nonzero(~np.isnan(tensor))
    return Observations.from_coords(coords, tensor[coords], tensor.shape)


def walk(length):
    """A random walk."""
    return np.cumsum(np.random.default_rng(3).standard_normal(length))


LABELS = np.random.default_rng(7).integers(0, 3, (9, 8, 1))
ONE_SIDED = np.random.default_rng(5).uniform(0.0, 1.3, SMALL.shape)
ONE_COMPONENT = [np.random.default_rng(0).standard_normal((length, 1)) for length in (9, 8, 7)]
RUNS = {
    "missing entries": (SMALL, {}),
    "complete": (synthetic((9, 8, 7), 2, outliers=0.1, seed=0).observed, {}),
    "coordinates": (as_coordinates(SMALL), {}),
    "float32": (SMALL.astype(np.float32), {}),
    "matrix": (synthetic((15, 12), 2, outliers=0.1, missing=0.1, seed=0).observed, {}),
    "random start": (SMALL, {"init": "random"}),
    "many components": (synthetic((12, 11, 10), 16, noise=1e-6, seed=0).observed, {}),
    "too many components": (
        SMALL,
        {"init": [np.random.default_rng(1).standard_normal((length, 5)) for length in (9, 8, 7)], "tol": 0.0},
    ),
    "form 1": (synthetic((24, 23, 22), 18, outliers=0.05, seed=0).observed, {"max_rank": 22}),
    "uniform outliers": (synthetic((12, 12, 12), 2, outliers=0.3, noise=1e-4, seed=0).observed, {}),
    "positive factors": (synthetic((9, 8, 7), 2, factor_law="uniform", outliers=0.1, seed=0).observed, {}),
    "steady along a mode": (
        synthetic((9, 8, 7), 1, outliers=0.1, seed=0).observed + np.arange(1.0, 9.0)[:, None],
        {"max_rank": 4},
    ),
    "no outliers": (SMALL, {"robust": False}),
    "noise per slice": (stretched((9, 8, 7), 2, outliers=0.1), {"noise": "per-slice"}),
    "noise as the bound decides": (stretched((20, 8, 7), 2, outliers=0.1), {"noise": "auto"}),
    "shared outliers": (synthetic((9, 8, 3), 2, outliers=0.1, seed=2).observed, {"outlier_modes": (2,)}),
    "rates of labels": (synthetic((9, 8, 3), 2, outliers=0.1, seed=2).observed, {"outlier_labels": LABELS}),
    "replacement": (synthetic((9, 8, 7), 2, outliers=0.1, seed=2).observed, {"outlier_kind": "replacement"}),
    "in order": (walking((12, 8, 7), 2), {"modes": ((0, ("ordered",)),)}),
    "no negative loadings": (
        synthetic((9, 8, 7), 2, factor_law="uniform", outliers=0.1, seed=0).observed,
        {"modes": tuple((mode, ("nonnegative",)) for mode in range(3))},
    ),
    "smooth residual": (SMALL, {"smooth_residual": 0}),
    "one-sided outliers": (SMALL + ONE_SIDED * (ONE_SIDED > 1.0), {}),
    "above the cap": (overlapping_spectra((6, 15, 20)), {"max_rank": 2}),
    "kind of outliers as the bound decides": (
        synthetic((12, 10, 8), 2, outliers=0.1, seed=2).observed
        * np.where(np.arange(12) == 0, -10.0, 1.0)[:, None, None],
        {"noise": "common"},
    ),
    "order as the bound decides": (np.outer(walk(40), walk(8)) + 0.1 * walk(320).reshape(40, 8), {"modes": "auto"}),
    "rank zero": (synthetic((9, 8, 7), 0, outliers=0.1, seed=0).observed, {}),
    "few sweeps": (SMALL, {"max_sweeps": 40}),
    "paper": (SMALL, {"inference": "paper", "max_sweeps": 60}),
    "paper without outliers": (SMALL, {"inference": "paper", "robust": False, "max_sweeps": 30}),
}


QUICK = (
    "many components",
    "form 1",
    "uniform outliers",
    "noise as the bound decides",
    "shared outliers",
    "rates of labels",
    "replacement",
    "in order",
    "no negative loadings",
    "smooth residual",
    "one-sided outliers",
    "paper",
)


def next_step(moment):
    """What comes next: sweeps of the best point, a stage of a trial or its verdict, or a proposal of a move."""
    position = moment.position
    if position is None or position.is_last:
        return ""
    if position.sweeps is not None:
        return "converge"
    move = getattr((*PHASES[position.phase].moves, None)[position.move], "name", "next round")
    if position.proposal is None:
        return move
    stages = position.proposal.stages[position.proposal.stage :]
    return stages[0][0] if stages else f"judge {move}"


def assert_leads_on(name, path, *, everywhere):
    """From every moment, or the first before each kind of move, and from the last, the next one follows."""
    data, options = RUNS[name]
    observations, settings = observe(data), Settings(**options)
    moments, found = moments_of(observations, settings)
    assert len(moments) > 20
    assert moments[-1].trace == found.trace
    origin = Origin.of(observations, settings, np.random.default_rng(0))
    kinds = [next_step(moment) for moment in moments]
    first = {kinds.index(kind) for kind in kinds} | {len(moments) - 1, len(moments) // 2}
    for k in range(len(moments)) if everywhere else sorted(first):
        Keeper(path, origin).write(moments[k])
        reached = next_moment(observations, settings, load_checkpoint(path).moment(observations))
        if k + 1 == len(moments):
            assert reached is None
        else:
            assert content(reached, origin) == content(moments[k + 1], origin)


@pytest.mark.usefixtures("no_waiting")
class TestMoments:
    @pytest.mark.parametrize("name", QUICK)
    def test_the_next_one_follows_from_the_file(self, name, tmp_path):
        assert_leads_on(name, tmp_path / "c.brtf", everywhere=False)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", RUNS)
    def test_the_next_one_follows_everywhere(self, name, tmp_path):
        assert_leads_on(name, tmp_path / "c.brtf", everywhere=True)

    @pytest.mark.slow
    def test_all_stages_and_moves_are_among_them(self):
        made, judged = set(), set()
        for data, options in RUNS.values():
            moments, found = moments_of(observe(data), Settings(**options))
            made |= {next_step(moment) for moment in moments}
            judged |= {record.event.kind for record in found.trace}
        assert set(STAGES) <= made
        # lost rows, and values that turn out not to be replaced, take longer searches
        assert set(Kind) - {Kind.ADDITIVE, Kind.REFRESH} <= judged


def test_rows_have_one_layout_in_memory():
    """Files keep none, and NumPy sums another layout in another order: pruning would leave one that is lost."""
    rng = np.random.default_rng(0)
    rows = RowGaussians(rng.normal(size=(40, 6)), np.broadcast_to(np.eye(6), (40, 6, 6)))
    pruned = rows.select(np.array([True, False, True, True, False, True]))
    for array in (rows.cov, pruned.mean, pruned.cov):
        assert array.flags.c_contiguous


def interrupt_after(monkeypatch, n_moments):
    """Ctrl-C after so many moments, once."""
    keep, left = Keeper.keep, [n_moments]

    def interrupted(self, moment):
        keep(self, moment)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "keep", interrupted)


def told(model):
    """All that a fit left behind, but for the time it took."""
    header, arrays = archive.pack(model.result_)
    del header["seconds"]
    return json.dumps(header, sort_keys=True), {name: a.tobytes() for name, a in arrays.items()}


PAPER = {"inference": "paper", "max_sweeps": 80}
FITS = {
    "calibrated": (SMALL, {}),
    "paper": (SMALL, PAPER),
    "held back": (SMALL, {**PAPER, "calibrate": "conformal"}),
    "square root": (SMALL**2, {**PAPER, "link": "sqrt"}),
    "given factors": (SMALL, {**PAPER, "init": ONE_COMPONENT}),
    "any seed, held back": (SMALL, {"random_state": None, "calibrate": "conformal", "init": "random"}),
}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.filterwarnings("ignore:Stopped after max_sweeps")
class TestFit:
    @pytest.mark.parametrize(("name", "n_moments"), [("calibrated", 1), *((name, 20) for name in FITS)])
    def test_an_interrupted_one_ends_where_it_would_have_ended(self, name, n_moments, tmp_path, monkeypatch):
        data, options = FITS[name]
        path = tmp_path / "c.brtf"
        with monkeypatch.context() as patch:
            interrupt_after(patch, n_moments)
            with pytest.raises(KeyboardInterrupt) as caught:
                brtf.BRTF(**{"random_state": 0, **PLAIN, **options}).fit(data, checkpoint=path, every=1e9)
        assert str(path) in caught.value.__notes__[0]
        seed = load_checkpoint(path).origin.rng
        resumed = brtf.BRTF(**{"random_state": 0, **PLAIN, **options}).fit(data, resume=path)
        uninterrupted = np.random.Generator(np.random.PCG64())
        uninterrupted.bit_generator.state = seed
        assert told(resumed) == told(brtf.BRTF(**{**PLAIN, **options, "random_state": uninterrupted}).fit(data))

    def test_a_generator_of_the_users_ends_where_it_would_have_ended(self, tmp_path, monkeypatch):
        interrupted, uninterrupted = (np.random.RandomState(5) for _ in range(2))
        model, path = brtf.BRTF(init="random", random_state=interrupted, **PLAIN), tmp_path / "c.brtf"
        with monkeypatch.context() as patch:
            interrupt_after(patch, 20)
            with pytest.raises(KeyboardInterrupt):
                model.fit(SMALL, checkpoint=path)
        model.fit(SMALL, resume=path)
        assert told(model) == told(brtf.BRTF(init="random", random_state=uninterrupted, **PLAIN).fit(SMALL))
        assert interrupted.bytes(8) == uninterrupted.bytes(8)

    @pytest.mark.parametrize("kind", BIT_GENERATORS)
    def test_generators_of_all_kinds_come_back(self, kind):
        rng = np.random.Generator(getattr(np.random, kind)(5))
        rng.integers(5, size=7, dtype=np.int32)  # half of a number is left over
        back = bit_generator_of(json.loads(json.dumps(as_plain(rng.bit_generator.state))))
        np.testing.assert_array_equal(
            np.random.Generator(back).integers(5, size=9, dtype=np.int32), rng.integers(5, size=9, dtype=np.int32)
        )
        np.testing.assert_array_equal(np.random.Generator(back).normal(size=999), rng.normal(size=999))

    def test_a_finished_one_ends_at_once(self, tmp_path):
        for options in ({}, {"inference": "paper"}, {"max_sweeps": 50}):
            path = tmp_path / f"{len(os.listdir(tmp_path))}.brtf"
            fitted = brtf.BRTF(random_state=0, **options).fit(SMALL, checkpoint=path)
            again = brtf.BRTF(random_state=0, n_jobs=2, **options).fit(SMALL, resume=path)
            assert told(again)[1] == told(fitted)[1]
            assert (
                again.result_.seconds > 0.5 * fitted.result_.seconds
            )  # the time before counts, all but the last write

    def test_threads_may_differ(self, tmp_path, monkeypatch):
        path = tmp_path / "c.brtf"
        with monkeypatch.context() as patch:
            interrupt_after(patch, 20)
            with pytest.raises(KeyboardInterrupt):
                brtf.BRTF(random_state=0, n_jobs=2, **PLAIN).fit(SMALL, checkpoint=path)
        resumed = brtf.BRTF(random_state=0, **PLAIN).fit(SMALL, resume=path)
        assert told(resumed) == told(brtf.BRTF(random_state=0, **PLAIN).fit(SMALL))

    def test_the_file_is_written_as_often_as_asked_for(self, tmp_path, monkeypatch):
        written = []
        monkeypatch.setattr(checkpoint, "write_archive", lambda path, *_: written.append(path))
        clock = iter(range(10**6))
        monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))  # a second for every look at it
        for every, n_looks in ((0, 2), (100, 102)):
            written.clear()
            moments = moments_of(observe(SMALL), Settings())[0]
            with Keeper(tmp_path / "c.brtf", None, every=every) as keep:
                monkeypatch.setattr(checkpoint, "_pack", lambda *_: ((), ()))
                for moment in moments:
                    keep(moment)
            assert len(written) == pytest.approx(2 * len(moments) / n_looks, abs=2)


@contextmanager
def file_size_limit(n_bytes):
    """No file may grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestAccidents:
    @pytest.mark.parametrize("n_kills", [2, pytest.param(20, marks=pytest.mark.slow)])
    def test_killed_at_any_moment(self, n_kills, tmp_path):
        """The file is being written nearly all the time; whenever the process dies, it is there, and leads on."""
        delays = random.Random(n_kills)
        np.save(tmp_path / "y.npy", SMALL)
        path, out = tmp_path / "c.brtf", tmp_path / "out"
        sweeps = []
        for _ in range(n_kills):
            keep = ["--resume" if path.exists() else "--checkpoint", path, "--every", "0"]
            process = subprocess.Popen(
                [*COMMAND, "fit", tmp_path / "y.npy", "--out", out, "--overwrite", *keep],
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            before = path.stat().st_mtime_ns if path.exists() else 0
            while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
                time.sleep(0.002)
            time.sleep(delays.uniform(0.0, 0.3))
            process.kill()
            process.communicate()
            sweeps.append(load_checkpoint(path).moment(observe(SMALL)).n_sweeps)
        assert sweeps == sorted(sweeps)
        command = ["fit", f"{tmp_path / 'y.npy'}", "--resume", f"{path}", "--out", f"{out}", "--overwrite"]
        ended = CliRunner().invoke(cli.main, command)
        assert ended.exit_code == 0, ended.output
        assert told(brtf.load(out / "result.brtf")) == told(brtf.BRTF(random_state=0).fit(SMALL))

    def test_ctrl_c_on_the_command_line(self, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        path, out = tmp_path / "c.brtf", tmp_path / "out"
        command = ["fit", f"{tmp_path / 'y.npy'}", "--out", f"{out}", "--max-sweeps", "5000", "--tol", "0"]
        process = subprocess.Popen(
            [*COMMAND, *command, "--checkpoint", f"{path}"],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        while process.poll() is None and not path.exists():
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        printed, complained = process.communicate()
        assert process.returncode == 130
        assert printed.startswith("Read y.npy: ")
        assert len(printed.splitlines()) <= 2  # nothing of a result follows
        assert complained.startswith(f"brtf: interrupted; the same command with --resume {path} continues")
        assert sorted(os.listdir(tmp_path)) == ["c.brtf", "y.npy"]
        ended = CliRunner().invoke(cli.main, [*command, "--resume", f"{path}"])
        assert ended.exit_code == 0, ended.output
        uninterrupted = brtf.BRTF(random_state=0, max_sweeps=5000, tol=0.0).fit(SMALL)
        assert told(brtf.load(out / "result.brtf")) == told(uninterrupted)

    def test_a_full_disk(self, tmp_path):
        """Only the first checkpoint, of nothing done yet, fits: it stays, and the fit goes on without others."""
        path = tmp_path / "c.brtf"
        with file_size_limit(4000), pytest.warns(UserWarning, match="could not be written .File too large"):
            model = brtf.BRTF(random_state=0, **PLAIN).fit(SMALL, checkpoint=path, every=0.1)
        assert os.listdir(tmp_path) == ["c.brtf"]
        assert load_checkpoint(path).moment(observe(SMALL)).n_sweeps == 0
        with file_size_limit(4000), pytest.warns(UserWarning, match="could not be written"):
            resumed = brtf.BRTF(random_state=0, **PLAIN).fit(SMALL, resume=path)
        assert told(resumed) == told(model)

    def test_a_disk_that_fills_up(self, tmp_path, monkeypatch):
        path = tmp_path / "c.brtf"
        left = [30]

        def fsync(descriptor):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(storage.os, "fsync", fsync)
        with pytest.warns(UserWarning, match="No space left on device.; the last one is still in"):
            model = brtf.BRTF(random_state=0, **PLAIN).fit(SMALL, checkpoint=path, every=0)
        assert os.listdir(tmp_path) == ["c.brtf"]
        assert load_checkpoint(path).moment(observe(SMALL)).n_sweeps > 0
        left[0] = 10**6
        assert told(brtf.BRTF(random_state=0, **PLAIN).fit(SMALL, resume=path)) == told(model)

    def test_a_path_that_cannot_be_written_to_is_noticed_at_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr("brtf.api.fitting.choose", None)  # nothing can be fitted
        with pytest.raises(OSError, match="absent"):
            brtf.BRTF().fit(SMALL, checkpoint=tmp_path / "absent" / "c.brtf")
        with pytest.raises(TypeError):
            brtf.BRTF().fit(SMALL, checkpoint=tmp_path / "c.brtf")
        assert os.listdir(tmp_path) == []

    def test_no_other_file_is_lost(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years of work")
        with pytest.raises(ValueError, match="exists, and a checkpoint would overwrite it"):
            brtf.BRTF().fit(SMALL, checkpoint=tmp_path / "thesis.tex")
        assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A checkpoint in the middle of a trial, one between trials, and the model they are of."""
    directory = tmp_path_factory.mktemp("kept")
    observations, settings = observe(SMALL), Settings()
    origin = Origin.of(observations, settings, np.random.default_rng(0))
    moments, _ = moments_of(observations, settings)
    trial = [moment for moment in moments if moment.position and moment.position.trial and moment.state][-1]
    between = [moment for moment in moments if moment.position and not moment.position.trial][-5]
    paths = []
    for moment in (trial, between):
        paths.append(directory / f"{len(paths)}.brtf")
        keeper = Keeper(paths[-1], origin)
        pack_reading(given_reading(observations, settings), (), keeper.outline[0])
        keeper.write(moment)
    return paths


def refused(path, data=SMALL, *, error=ValueError, **options):
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        brtf.BRTF(**{"random_state": 0, **options}).fit(data, resume=path)
    assert path.read_bytes() == before
    return str(caught.value)


class TestRefusals:
    def test_other_data(self, kept):
        other = SMALL.copy()
        other[0, 0, 0] += 1e-12
        n_observed = np.isfinite(SMALL).sum()
        about = f"of shape (9, 8, 7) with {n_observed} observed entries (masked, float64)"
        go_on = "Resume with the same data, or start again without resume."
        assert refused(kept[0], other) == (
            f"{kept[0]} is a checkpoint of other data, {about}; Y is the same but for its values. {go_on}"
        )
        for data in (SMALL[:8], SMALL.astype(np.float32), as_coordinates(SMALL), np.nan_to_num(SMALL)):
            assert f"{kept[0]} is a checkpoint of other data, {about}; Y is shape (" in refused(kept[0], data)

    def test_other_labels(self, tmp_path):
        """Times say how far rows are apart, and all labels are told with the answers."""
        rows = walk(20)[:, None] * np.arange(1.0, 6.0)
        daily, hourly = (xr.DataArray(rows, {"t": np.arange(20).astype(f"M8[{unit}]")}, ("t", "x")) for unit in "Dh")
        options = {"modes": {"t": "ordered"}, "max_sweeps": 30}
        with pytest.warns(ConvergenceWarning):
            brtf.BRTF(random_state=0, **options).fit(daily, checkpoint=tmp_path / "c.brtf")
        assert "Y is the same but for its labels." in refused(tmp_path / "c.brtf", hourly, **options)

    def test_other_settings(self, kept):
        for name, made, got in (
            ("max_rank", None, 5),
            ("tol", 1e-6, 1e-7),
            ("max_sweeps", 500, 501),
            ("inference", "calibrated", "paper"),
            ("calibrate", None, "conformal"),
            ("noise", "auto", "common"),
        ):
            assert refused(kept[0], **{name: got}) == (
                f"{kept[0]} was made with {name}={made!r}, got {name}={got!r}. "
                "Resume with the same options, or start again without resume."
            )
        assert "was made with init='spectral', got init=[" in refused(kept[0], init=ONE_COMPONENT)

    def test_another_seed(self, kept):
        assert refused(kept[0], random_state=1) == (
            f"{kept[0]} was made with another random_state than 1. Resume with the same one, or with None."
        )
        assert "another random_state" in refused(kept[0], random_state=np.random.RandomState(0))

    def test_other_factors_to_start_from(self, tmp_path, monkeypatch):
        path = tmp_path / "c.brtf"
        brtf.BRTF(random_state=0, init=ONE_COMPONENT, inference="paper", tol=1e-2).fit(SMALL, checkpoint=path)
        other = [factor.copy() for factor in ONE_COMPONENT]
        other[2][0, 0] += 1e-12
        assert "was made with init=[" in refused(path, init=other, inference="paper", tol=1e-2)

    def test_results_and_checkpoints_are_told_apart(self, kept, tmp_path):
        model = brtf.BRTF(inference="paper", tol=1e-2).fit(SMALL)
        model.save(tmp_path / "result.brtf")
        assert "result.brtf is not a checkpoint" in refused(tmp_path / "result.brtf")

    def test_another_version(self, kept, tmp_path, monkeypatch):
        header, arrays = read_archive(kept[0])
        write_archive(tmp_path / "c.brtf", {**header, "library": "0.0.1"}, arrays)
        assert "was written by brtf 0.0.1, but this is brtf" in refused(tmp_path / "c.brtf")

    def test_a_bound_that_is_not_finite(self, kept, tmp_path):
        header, arrays = read_archive(kept[0])
        arrays["trace.bound"][-1] = np.inf
        write_archive(tmp_path / "c.brtf", header, arrays)
        assert "c.brtf is not a checkpoint of brtf: its content does not fit (the trace has a bound" in refused(
            tmp_path / "c.brtf"
        )

    def test_a_generator_that_numpy_refuses(self, kept, tmp_path):
        header, arrays = read_archive(kept[0])
        header["rng"]["state"]["state"] = -1
        write_archive(tmp_path / "c.brtf", header, arrays)
        assert "the state of the bit generator PCG64 is out of range" in refused(tmp_path / "c.brtf")

    @pytest.mark.parametrize("damage", ["cut", "flipped", "pickle", "empty"])
    def test_damaged_files(self, kept, tmp_path, damage):
        whole, path = kept[0].read_bytes(), tmp_path / "c.brtf"
        with zipfile.ZipFile(kept[0]) as parts:  # within the largest array: some bytes between parts mean nothing
            largest = max(parts.infolist(), key=lambda part: part.compress_size)
        middle = largest.header_offset + largest.compress_size // 2
        path.write_bytes(
            {
                "cut": whole[:middle],
                "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "pickle": b"\x80\x04N.",
                "empty": b"",
            }[damage]
        )
        assert f"{path} cannot be read" in refused(path, error=CorruptFile)

    def test_every_is_a_number_of_seconds(self, tmp_path):
        for every in (-1, float("nan"), "often", True):
            with pytest.raises(ValueError, match="every must be a number of seconds of at least 0"):
                brtf.BRTF().fit(SMALL, checkpoint=tmp_path / "c.brtf", every=every)
        with pytest.raises(ValueError, match="say where, checkpoint=path"):
            brtf.BRTF().fit(SMALL, every=5)


def _without(name):
    return lambda header: header.pop(name)


def _position(**changes):
    return lambda header: header["position"].update(changes)


def _proposal(**changes):
    return lambda header: header["position"]["proposal"].update(changes)


def _at(move, memory):
    """A position in the fine phase, at a move that remembers this."""
    phase = next(phase for phase in PHASES if phase.name == "fine")
    at = [one.name for one in phase.moves].index(move)
    return _position(phase=PHASES.index(phase), move=at, memory=memory)


def _bit_generator(**changes):
    return lambda header: header["rng"].update(changes)


FORGED_HEADERS = {
    "no position": _without("position"),
    "no state": _without("state"),
    "no trace": _without("events"),
    "no generator": _without("rng"),
    "no origin": _without("origin"),
    "number for an outline": lambda header: header.update(outline=3),
    "text for a number of the prior": lambda header: header["state"]["prior"].update(tau_rate="1"),
    "whole number beyond floats": lambda header: header["state"]["prior"].update(tau_rate=10**400),
    "number for a shape": lambda header: header["origin"]["data"].update(shape=3),
    "no trial": lambda header: header["position"].pop("trial"),
    "no proposal": lambda header: header["position"].pop("proposal"),
    "phase that is not there": _position(phase=99),
    "phase from behind": _position(phase=-1),
    "float for a phase": _position(phase=1.0),
    "move that is not there": _position(move=99),
    "text for a memory": _position(memory="asked"),
    "memory of another move": _at("birth", ["asked"]),
    "mode from behind": _at("refresh and doubt", [-1]),
    "component that is not there": _at("death", [[99]]),
    "component from behind": _at("death", [[-1]]),
    "text for components": _at("death", [["0"]]),
    "pairs of three": _at("merge", [[[0, 1, 2]]]),
    "sweeps of text": _position(sweeps=["1e-3", 5, 0, False]),
    "too few sweeps": _position(sweeps=[1.0]),
    "mark that is none": _position(mark=[3]),
    "stage that is not there": _proposal(stages=[["__init__", 0, 1]]),
    "stages that are none": _proposal(stages=[3]),
    "stage beyond the last": _proposal(stage=99),
    "kind that is not there": _proposal(kind="miracle"),
    "number for words": _proposal(words=3),
    "bounds as text": _proposal(bounds=["0"]),
    "sweeps below zero": _position(n_sweeps=-1),
    "no bound": _position(bound=None),
    "sweeps as text": _position(n_sweeps="3"),
    "damping beyond one": _position(damping=2.0),
    "form as a number": _position(collapsed=1),
    "unknown generator": _bit_generator(bit_generator="default_rng"),
    "generator outside its buffer": _bit_generator(
        bit_generator="MT19937", state={"key": [0] * 624, "pos": 10**6}, has_uint32=0, uinteger=0
    ),
    "generator with a short key": _bit_generator(bit_generator="MT19937", state={"key": [0] * 6, "pos": 0}),
}
FORGED_ARRAYS = {
    "state.factor.0.mean": lambda array: array[:-1],
    "state.factor.1.cov": lambda array: np.full_like(array, np.nan),
    "state.factor.2.cov": np.zeros_like,
    "state.factor.1.mean": lambda array: 1e200 * array,
    "state.factor.2.log_det_cov": lambda array: array[:-1],
    "state.tau.rate": lambda array: np.asarray(-array),
    "state.lam.rate": lambda array: array[:-1],
    "position.trial.factor.0.mean": lambda array: array.astype(int),
    "position.points": lambda array: np.zeros((7, 3)),
    "position.images": lambda array: np.zeros((1, 3)),
}


class TestForgedFiles:
    @pytest.mark.parametrize("name", FORGED_HEADERS)
    def test_headers(self, kept, tmp_path, name):
        header, arrays = read_archive(kept[0])
        FORGED_HEADERS[name](header)
        write_archive(tmp_path / "c.brtf", header, arrays)
        assert "is not a checkpoint of brtf: its content does not fit (" in refused(tmp_path / "c.brtf")

    @pytest.mark.parametrize("name", FORGED_ARRAYS)
    def test_arrays(self, kept, tmp_path, name):
        header, arrays = read_archive(kept[0])
        write_archive(tmp_path / "c.brtf", header, arrays | {name: FORGED_ARRAYS[name](arrays[name])})
        assert "is not a checkpoint of brtf: its content does not fit (" in refused(tmp_path / "c.brtf")

    def test_a_state_of_other_data(self, kept, tmp_path):
        header, arrays = read_archive(kept[1])
        arrays["state.factor.0.mean"] = arrays["state.factor.0.mean"][::-1]
        write_archive(tmp_path / "c.brtf", header, arrays)
        assert "it is not of these data, or was altered. Start anew." in refused(tmp_path / "c.brtf")

    def test_other_rounding_is_said_and_the_fit_goes_on(self, kept, tmp_path):
        header, arrays = read_archive(kept[1])
        header["position"]["bound"] *= 1 + 1e-12
        write_archive(tmp_path / "c.brtf", header, arrays)
        with pytest.warns(UserWarning, match="Numbers are rounded otherwise here"):
            brtf.BRTF(random_state=0).fit(SMALL, resume=tmp_path / "c.brtf")

    def test_a_finished_fit_with_another_state(self, tmp_path):
        """Nothing is left to do, and still what the file says of the state is compared with the data."""
        path = tmp_path / "c.brtf"
        with pytest.warns(UserWarning, match="max_sweeps"):
            brtf.BRTF(max_sweeps=3, random_state=0).fit(SMALL, checkpoint=path)
        header, arrays = read_archive(path)
        arrays["state.factor.0.mean"] = 1e50 * arrays["state.factor.0.mean"]
        write_archive(path, header, arrays)
        assert f"{path} cannot be resumed. The state" in refused(path, max_sweeps=3)
