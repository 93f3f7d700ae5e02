"""Work that is cut short is not lost: Ctrl-C, a limit of time, signals, and what one can do with a checkpoint."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.exceptions import ConvergenceWarning

import brtf
from brtf import cli
from brtf.api import fitting
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.inference.point import evaluate
from brtf.inference.problem import Problem
from brtf.inference.trace import StopReason
from brtf.io.checkpoint import Keeper
from brtf.model.settings import Settings
from brtf.search import moment as moments
from brtf.search import race, streaming
from brtf.search.problems import sweep_order
from brtf.search.run import run

COMMAND = [sys.executable, "-c", "from brtf.cli import main; main()"]
SMALL = synthetic((9, 8, 7), 2, outliers=0.1, missing=0.2, seed=0).observed
COMPLETE = synthetic((24, 23, 22), 18, outliers=0.05, seed=0).observed
PLAIN = {"link": None, "arrangement": None, "smooth_residual": None}
"""Nothing to choose, so that every moment of the search is seen."""
FOREVER = ("--max-sweeps", "100000", "--tol", "0", "--inference", "paper")


class Clock:
    """A second passes whenever somebody looks."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(moments, "time", Clock())


def interrupt_after(monkeypatch, n_moments):
    """Ctrl-C after so many moments of a run."""
    follow = fitting.run

    def interrupted(observations, settings, rng, watch, since):
        left = [n_moments]

        def watched(moment):
            watch(moment)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        return follow(observations, settings, rng, watched, since)

    monkeypatch.setattr(fitting, "run", interrupted)


def interrupted(monkeypatch, n_moments, data, **options):
    """A model whose fit was interrupted, and the notes of the interrupt."""
    model = brtf.BRTF(random_state=0, **{**PLAIN, **options})
    with monkeypatch.context() as patch:
        interrupt_after(patch, n_moments)
        with pytest.raises(KeyboardInterrupt) as caught:
            model.fit(data)
    return model, getattr(caught.value, "__notes__", [])


CASES = {
    "calibrated": (SMALL, {}),
    "paper": (SMALL, {"inference": "paper"}),
    "held back": (SMALL, {"calibrate": "conformal"}),
    "square root": (SMALL**2, {"link": "sqrt"}),
    "threads": (SMALL, {"n_jobs": 2}),
}


class TestCtrlC:
    @pytest.mark.parametrize("name", CASES)
    def test_the_best_so_far_is_kept(self, name, monkeypatch):
        data, options = CASES[name]
        model, notes = interrupted(monkeypatch, 26, data, **options)
        assert model.stop_reason_ == StopReason.INTERRUPTED.value
        assert not model.converged_
        assert notes[-1].startswith("The model keeps the best of ")
        assert notes[-1].endswith(f"sweeps: rank {model.rank_}, not converged.")
        assert np.isfinite(model.bound_)
        for numbers in (model.low_rank(), *model.predict_interval(of="observation"), model.outlier_probability()):
            assert np.isfinite(numbers).all()
        assert "Interrupted before the bound settled" in str(model.summary())

    def test_nothing_is_kept_where_nothing_was_found(self, monkeypatch):
        model, notes = interrupted(monkeypatch, 2, SMALL)
        assert not hasattr(model, "result_")
        assert notes == []

    def test_an_earlier_fit_stays_where_nothing_was_found(self, monkeypatch):
        model = brtf.BRTF(random_state=0, inference="paper", tol=1e-2).fit(SMALL)
        before = model.result_
        with monkeypatch.context() as patch:
            interrupt_after(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                model.fit(SMALL)
        assert model.result_ is before

    @pytest.mark.parametrize("n_moments", [1, 90])
    def test_the_best_so_far_is_kept_while_readings_race(self, n_moments, monkeypatch, tmp_path):
        """At any moment at which the reading that leads has a state; the whole choice is made again on resuming."""
        left, seen, path = [n_moments], [], tmp_path / "c.brtf"

        def advanced(observations, settings, rng, since, until):
            def watched(moment):
                done = until(moment)
                seen.append(moment)
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
                return done

            return advance(observations, settings, rng, since, watched)

        advance = race.advance
        model = brtf.BRTF(random_state=0)
        with monkeypatch.context() as patch:
            patch.setattr(race, "advance", advanced)
            with pytest.raises(KeyboardInterrupt) as caught:
                model.fit(COMPLETE, checkpoint=path)
        found = any(moment.state is not None for moment in seen)
        assert left == [0]
        assert found == (n_moments > 1)
        assert hasattr(model, "result_") == path.exists() == found
        if not found:
            return
        assert model.stop_reason_ == StopReason.INTERRUPTED.value
        assert any(note.startswith("The model keeps the best of ") for note in caught.value.__notes__)
        assert np.isfinite(model.low_rank()).all()
        assert "cut short before others were compared" in model.choices_["arrangement"].sentence
        with pytest.warns(UserWarning, match="unfinished fit"):
            loaded = brtf.load(path)
        assert loaded.rank_ == model.rank_
        assert loaded.choices_["arrangement"].sentence == "Every mode is read on its own: no other was compared."
        whole, resumed = brtf.BRTF(random_state=0).fit(COMPLETE), brtf.BRTF(random_state=0).fit(COMPLETE, resume=path)
        assert resumed.bound_ == whole.bound_
        assert str(resumed.choices_["arrangement"]) == str(whole.choices_["arrangement"])

    def test_it_can_be_saved(self, monkeypatch, tmp_path):
        model, _ = interrupted(monkeypatch, 26, SMALL)
        model.save(tmp_path / "a.brtf")
        assert brtf.load(tmp_path / "a.brtf").stop_reason_ == model.stop_reason_

    def test_data_in_chunks(self, monkeypatch, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        model, _ = interrupted(monkeypatch, 26, Observations.from_chunks(np.load(tmp_path / "y.npy", mmap_mode="r")))
        assert model.result_.observations.in_chunks
        assert model.stop_reason_ == StopReason.INTERRUPTED.value
        assert 0 < model.outlier_rate_ < 0.5

    def test_a_block_is_taken_in_wholly_or_not_at_all(self, monkeypatch):
        data = synthetic((30, 8, 7), 2, outliers=0.1, seed=0).observed
        model = brtf.BRTF(random_state=0).fit(data[:20])
        before = model.result_

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(streaming, "stop_reason", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(data[20:])
        assert model.result_ is before

    def test_a_real_one(self, tmp_path):
        """In a script that goes on to use the model, as one does in a notebook."""
        script = (
            "import numpy as np, brtf\n"
            f"Y = np.load({str(tmp_path / 'y.npy')!r})\n"
            "model = brtf.BRTF(max_sweeps=10**6, tol=0, inference='paper', random_state=0)\n"
            "print('begun', flush=True)\n"
            "try:\n    model.fit(Y, checkpoint='c.brtf', every=0)\nexcept KeyboardInterrupt:\n"
            "    print(model.stop_reason_, model.n_sweeps_ > 0)\n"
        )
        np.save(tmp_path / "y.npy", SMALL)
        process = started([sys.executable, "-c", script], tmp_path)
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > 2)
        process.send_signal(signal.SIGINT)
        printed, complained = process.communicate(timeout=60)
        assert process.returncode == 0, complained
        assert printed.splitlines()[1] == f"{StopReason.INTERRUPTED.value} True"


class TestMaxSeconds:
    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("seconds", [1, 5, 20])
    def test_the_best_so_far_is_kept(self, name, seconds):
        data, options = CASES[name]
        model = brtf.BRTF(random_state=0, max_seconds=seconds, **options)
        with pytest.warns(ConvergenceWarning, match="Stopped after max_seconds .* Raise max_seconds"):
            model.fit(data)
        assert model.stop_reason_ == StopReason.MAX_SECONDS.value
        assert not model.converged_
        assert model.n_sweeps_ <= seconds + 1
        assert np.isfinite(model.bound_)
        for numbers in (model.low_rank(), *model.predict_interval(of="observation"), model.outlier_probability()):
            assert np.isfinite(numbers).all()

    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize("seconds", [1, 30, 90, 140])
    def test_the_bound_is_one_of_the_state(self, seconds):
        """Complete data with many components are searched in form 1, whose bound is the lower one."""
        observations = observe(COMPLETE)
        found = run(observations, Settings(max_rank=22, max_seconds=seconds), np.random.default_rng(0))
        assert found.stop_reason is StopReason.MAX_SECONDS
        bounds = [
            evaluate(Problem(observations, sweep_order(observations), collapsed=collapsed), found.state).bound
            for collapsed in (False, True)
        ]
        assert found.trace[-1].bound == pytest.approx(bounds[0], rel=1e-9) or found.trace[-1].bound == pytest.approx(
            bounds[1], rel=1e-9
        )
        assert bounds[0] <= bounds[1] + 1e-6

    @pytest.mark.usefixtures("clock")
    def test_a_fit_that_has_ended_is_not_cut_short(self):
        n_looks = []
        for seconds in (10**6, None):
            moments.time.now = 0.0
            model = brtf.BRTF(random_state=0, max_seconds=seconds, **PLAIN).fit(SMALL)
            n_looks.append(moments.time.now)
            assert model.converged_
        last = brtf.BRTF(random_state=0, max_seconds=n_looks[0] - 1.0, **PLAIN).fit(SMALL)
        assert last.stop_reason_ == model.stop_reason_
        assert last.bound_ == model.bound_

    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize("options", [{}, {"inference": "paper", "max_sweeps": 80, "tol": 1e-3}])
    def test_a_checkpoint_leads_on_to_the_same_end(self, options, tmp_path):
        """Whenever the time is up, even before the first start is settled; every run has a time of its own."""
        path = tmp_path / "c.brtf"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            brtf.BRTF(random_state=0, max_seconds=4, **options).fit(SMALL, checkpoint=path)
            for seconds in (9, 30):
                brtf.BRTF(random_state=0, max_seconds=seconds, **options).fit(SMALL, resume=path)
            resumed = brtf.BRTF(random_state=0, **options).fit(SMALL, resume=path)
            whole = brtf.BRTF(random_state=0, **options).fit(SMALL)
        assert resumed.bound_ == whole.bound_
        np.testing.assert_array_equal(resumed.trace_, whole.trace_)
        assert all(map(np.array_equal, resumed.factors_, whole.factors_))

    def test_a_resumed_fit_has_all_of_its_own_time(self, tmp_path, monkeypatch):
        path, as_given = tmp_path / "c.brtf", {"link": None, "arrangement": None, "smooth_residual": None}
        monkeypatch.setitem(Keeper.__init__.__kwdefaults__, "seconds", 1000.0)  # that the first fit is said to take
        with pytest.warns(ConvergenceWarning, match="Stopped after max_seconds"):
            brtf.BRTF(random_state=0, max_seconds=1e-9, **as_given).fit(SMALL, checkpoint=path)
        assert brtf.BRTF(random_state=0, max_seconds=500.0, **as_given).fit(SMALL, resume=path).converged_

    def test_of_a_block(self, monkeypatch):
        data = synthetic((30, 8, 7), 2, outliers=0.1, seed=0).observed
        model = brtf.BRTF(random_state=0, max_seconds=10**6, tol=0.0, max_sweeps=2000).fit(data[:20])
        monkeypatch.setattr(moments.time, "monotonic", iter(10.0**7 * np.arange(9)).__next__)
        with pytest.warns(ConvergenceWarning, match="Stopped after max_seconds"):
            model.partial_fit(data[20:])
        assert (model.n_sweeps_, model.shape_in_) == (1, data.shape)

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "long", True])
    def test_its_range(self, seconds):
        with pytest.raises(ValueError, match="max_seconds must be None or a number above 0, got"):
            brtf.BRTF(max_seconds=seconds).fit(SMALL)

    def test_on_the_command_line(self, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        outcome = CliRunner().invoke(
            cli.main, ["fit", f"{tmp_path / 'y.npy'}", "--out", f"{tmp_path / 'out'}", "--max-seconds", "0.3", *FOREVER]
        )
        assert outcome.exit_code == 1
        assert outcome.stderr == f"brtf: warning: {StopReason.MAX_SECONDS.value}\n"
        assert brtf.load(tmp_path / "out" / "result.brtf").stop_reason_ == StopReason.MAX_SECONDS.value
        assert not [name for name in os.listdir(tmp_path / "out") if "checkpoint" in name]


def write_checkpoint(path, n_moments, data, **options):
    """A checkpoint after so many moments of a fit, and the model that was interrupted then."""
    model = brtf.BRTF(random_state=0, **{**PLAIN, **options})
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, n_moments)
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, checkpoint=path)
    return model


def invoke(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


class TestCheckpoints:
    @pytest.mark.parametrize("name", CASES)
    def test_load_gives_the_best_so_far(self, name, tmp_path):
        data, options = CASES[name]
        model = write_checkpoint(tmp_path / "c.brtf", 26, data, **options)
        with pytest.warns(UserWarning, match=r"c.brtf is a checkpoint of an unfinished fit: .* after \d+ sweeps\."):
            loaded = brtf.load(tmp_path / "c.brtf")
        assert loaded.stop_reason_ == StopReason.UNFINISHED.value
        assert not loaded.converged_
        for attribute in ("rank_", "bound_", "noise_variance_", "n_sweeps_", "n_observed_", "shape_in_"):
            assert getattr(loaded, attribute) == getattr(model, attribute)
        np.testing.assert_array_equal(loaded.low_rank(), model.low_rank())
        np.testing.assert_array_equal(loaded.trace_, model.trace_)
        if options.get("inference") == "paper":
            assert np.isnan(loaded.outlier_rate_)
        else:
            assert loaded.outlier_rate_ == pytest.approx(model.outlier_rate_, abs=0.02)
        with pytest.raises(ValueError, match=r"does not contain the data .* from a checkpoint with fit"):
            loaded.outliers()
        loaded.save(tmp_path / "saved.brtf")
        assert str(brtf.load(tmp_path / "saved.brtf").summary()) == str(loaded.summary())

    def test_intervals_that_need_entries_held_back_are_refused(self, tmp_path):
        write_checkpoint(tmp_path / "c.brtf", 26, SMALL, calibrate="conformal")
        with pytest.warns(UserWarning, match="unfinished"):
            loaded = brtf.load(tmp_path / "c.brtf")
        assert np.isfinite(loaded.predict_interval()).all()
        with pytest.raises(ValueError, match=r"A checkpoint does not contain the calibration entries"):
            loaded.predict_interval(of="observation")

    def test_what_was_loaded_goes_on(self, tmp_path):
        write_checkpoint(tmp_path / "c.brtf", 26, SMALL)
        with pytest.warns(UserWarning, match="unfinished"):
            loaded = brtf.load(tmp_path / "c.brtf")
        loaded.fit(SMALL, resume=tmp_path / "c.brtf")
        assert loaded.bound_ == brtf.BRTF(random_state=0, **PLAIN).fit(SMALL).bound_
        finished = brtf.load(tmp_path / "c.brtf")  # no warning: it is
        assert finished.stop_reason_ == loaded.stop_reason_
        assert finished.bound_ == loaded.bound_

    def test_labels_are_kept(self, tmp_path):
        xarray = pytest.importorskip("xarray")
        labelled = xarray.DataArray(SMALL, dims=("day", "site", "kind"), name="flow")
        write_checkpoint(tmp_path / "c.brtf", 26, labelled)
        with pytest.warns(UserWarning, match="unfinished"):
            assert brtf.load(tmp_path / "c.brtf").result_.observations.labels.dims == ("day", "site", "kind")

    def test_nothing_found_yet(self, tmp_path):
        write_checkpoint(tmp_path / "c.brtf", 2, SMALL)
        said = (
            f"{tmp_path / 'c.brtf'} is a checkpoint of a fit that has no result yet, after 1 sweep. Resume it with "
            "fit(Y, resume=…) or brtf fit --resume."
        )
        with pytest.raises(ValueError) as caught:
            brtf.load(tmp_path / "c.brtf")
        assert str(caught.value) == said
        for command in ("show", "report"):
            outcome = invoke(command, tmp_path / "c.brtf")
            assert (outcome.exit_code, outcome.stderr) == (2, f"brtf: error: {said}\n")

    def test_show(self, tmp_path):
        model = write_checkpoint(tmp_path / "c.brtf", 26, SMALL)
        outcome = invoke("show", tmp_path / "c.brtf")
        assert outcome.exit_code == 0
        assert "c.brtf is a checkpoint of an unfinished fit: this is the best state so far, after " in outcome.stderr
        assert StopReason.UNFINISHED.value in " ".join(outcome.stdout.split())
        numbers = json.loads(invoke("show", tmp_path / "c.brtf", "--json").stdout)
        assert (numbers["rank"], numbers["bound"], numbers["converged"]) == (model.rank_, model.bound_, False)

    @pytest.mark.parametrize("options", [{}, {"inference": "paper"}])
    def test_report(self, tmp_path, options):
        write_checkpoint(tmp_path / "c.brtf", 26, SMALL, **options)
        outcome = invoke("report", tmp_path / "c.brtf")
        assert outcome.exit_code == 0, outcome.stderr
        assert "c.brtf is a checkpoint of an unfinished fit" in outcome.stderr
        page = (tmp_path / "c.html").read_text(encoding="utf-8")
        assert StopReason.UNFINISHED.value in page
        assert 'id="components"' in page
        assert 'id="residuals"' not in page
        assert "Residuals. A checkpoint, or the result" in page
        np.save(tmp_path / "y.npy", SMALL)
        outcome = invoke("report", tmp_path / "c.brtf", "--overwrite", "--data", tmp_path / "y.npy")
        assert outcome.exit_code == 2
        assert "cannot be compared with the fitted entries" in outcome.stderr

    def test_of_another_version(self, tmp_path):
        """It cannot be gone on from, but looked at."""
        write_checkpoint(tmp_path / "c.brtf", 26, SMALL)
        header, arrays = brtf.io.storage.read_archive(tmp_path / "c.brtf")
        brtf.io.storage.write_archive(tmp_path / "c.brtf", {**header, "library": "0.0.1"}, arrays)
        with pytest.warns(UserWarning, match="unfinished"):
            assert brtf.load(tmp_path / "c.brtf").result_.version == "0.0.1"

    @pytest.mark.parametrize(
        "forge",
        [
            lambda header: header.pop("outline"),
            lambda header: header["outline"].pop("scale"),
            lambda header: header["outline"].update(shape=[9, 8, 6]),
            lambda header: header["outline"]["chunked"].update(n_observed=10**9),
            lambda header: header["outline"].update(bound_shift=None),
            lambda header: header["outline"]["reading"].update(numbers={"smallest": "small"}),
            lambda header: header["origin"]["settings"].update(max_rank=0),
        ],
    )
    def test_forged_files(self, forge, tmp_path):
        write_checkpoint(tmp_path / "c.brtf", 26, SMALL**2, link="sqrt")
        header, arrays = brtf.io.storage.read_archive(tmp_path / "c.brtf")
        forge(header)
        brtf.io.storage.write_archive(tmp_path / "c.brtf", header, arrays)
        with pytest.raises(ValueError, match="is not a checkpoint of brtf: its content does not fit"):
            brtf.load(tmp_path / "c.brtf")


def started(command, directory, **options):
    """A process in its own directory, in which Ctrl-C works whatever this one does with it."""
    return subprocess.Popen(
        command,
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


def sweeps_in(path):
    """How many records a checkpoint has; none where there is no file yet."""
    return len(brtf.io.storage.read_archive(path)[1]["trace.sweep"]) if path.exists() else 0


def wait_for(process, happened):
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        if happened():
            return
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"ended too soon or too late: {process.communicate()}")


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
    )
    def test_with_a_checkpoint(self, number, code, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        process = started([*COMMAND, "fit", "y.npy", "--checkpoint", "c.brtf", "--every", "0", *FOREVER], tmp_path)
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > 2)
        process.send_signal(number)
        printed, complained = process.communicate(timeout=60)
        assert process.returncode == code
        assert says_only_what_was_read(printed)
        assert complained.startswith(
            "brtf: interrupted; the same command with --resume c.brtf continues, and brtf show c.brtf shows "
            "the results so far.\n"
        )
        assert sorted(os.listdir(tmp_path)) == ["c.brtf", "y.npy"]
        assert invoke("show", tmp_path / "c.brtf").exit_code == 0

    def test_without_a_checkpoint_the_fit_is_kept_beside_the_results(self, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "checkpoint.brtf").write_text("of an earlier fit")
        process = started([*COMMAND, "fit", "y.npy", "--out", "out", "--every", "0", *FOREVER], tmp_path)
        wait_for(process, lambda: sweeps_in(tmp_path / "out" / "checkpoint-2.brtf") > 2)
        process.send_signal(signal.SIGTERM)
        printed, complained = process.communicate(timeout=60)
        assert process.returncode == 143
        assert says_only_what_was_read(printed)
        assert complained.startswith(
            "brtf: interrupted; the same command with --resume out/checkpoint-2.brtf continues"
        )
        assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-2.brtf", "checkpoint.brtf"]
        assert (tmp_path / "out" / "checkpoint.brtf").read_text() == "of an earlier fit"
        assert invoke("show", tmp_path / "out" / "checkpoint-2.brtf").exit_code == 0

    def test_nohup_is_respected(self, tmp_path):
        np.save(tmp_path / "y.npy", SMALL)
        command = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from brtf.cli import main; main()"
        process = started(
            [sys.executable, "-c", command, "fit", "y.npy", "--checkpoint", "c.brtf", "--every", "0", *FOREVER],
            tmp_path,
        )
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > 2)
        process.send_signal(signal.SIGHUP)
        n_sweeps = sweeps_in(tmp_path / "c.brtf")
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > n_sweeps + 2)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 143

    def test_a_terminal_that_is_gone(self, tmp_path):
        """SIGHUP says that nobody listens any more: the sentence is lost, the checkpoint is not."""
        np.save(tmp_path / "y.npy", SMALL)
        process = started([*COMMAND, "fit", "y.npy", "--checkpoint", "c.brtf", "--every", "0", *FOREVER], tmp_path)
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > 2)
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) == 129
        process.stdout.close()
        assert sweeps_in(tmp_path / "c.brtf") > 0

    def test_signals_are_as_they_were_afterwards(self, tmp_path):
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
        assert invoke("show", tmp_path / "absent.brtf").exit_code == 2
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def says_only_what_was_read(printed):
    """Before the fit the command says what it understood; nothing of a result follows."""
    return printed.startswith("Read y.npy: ") and len(printed.splitlines()) <= 2


FIT_FOREVER = """
import pathlib, signal, sys, numpy as np, brtf
from brtf.io.checkpoint import Keeper
{before}
keep = Keeper.keep

def told(self, moment):
    keep(self, moment)
    if moment.n_records > 3:
        pathlib.Path("swept").touch()

Keeper.keep = told
model = brtf.BRTF(inference="paper", max_sweeps=10**6, tol=0)
model.fit(np.load("y.npy"), checkpoint="c.brtf", every={every})
"""


class TestSignalsInPython:
    """A script, as a batch system runs it."""

    def begin(self, directory, before="", every=1e9):
        np.save(directory / "y.npy", SMALL)
        process = started([sys.executable, "-c", FIT_FOREVER.format(before=before, every=every)], directory)
        wait_for(process, (directory / "swept").exists)
        return process

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)
    def test_the_checkpoint_is_written_and_the_process_dies_of_the_signal(self, number, tmp_path):
        process = self.begin(tmp_path)
        assert sweeps_in(tmp_path / "c.brtf") <= 1
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == -number
        assert sweeps_in(tmp_path / "c.brtf") > 1
        assert sorted(os.listdir(tmp_path)) == ["c.brtf", "swept", "y.npy"]

    def test_what_the_program_handles_is_left_to_it(self, tmp_path):
        handler = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(7)))"
        process = self.begin(tmp_path, handler)
        process.terminate()
        printed, _ = process.communicate(timeout=60)
        assert (process.returncode, printed) == (7, "mine\n")
        assert sweeps_in(tmp_path / "c.brtf") > 1

    def test_what_is_ignored_stays_ignored(self, tmp_path):
        process = self.begin(tmp_path, "signal.signal(signal.SIGHUP, signal.SIG_IGN)", every=0)
        process.send_signal(signal.SIGHUP)
        n_sweeps = sweeps_in(tmp_path / "c.brtf")
        wait_for(process, lambda: sweeps_in(tmp_path / "c.brtf") > n_sweeps + 2)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM

    def test_without_a_checkpoint_nothing_is_handled(self, monkeypatch):
        def look(*_, **__):
            seen.append(signal.getsignal(signal.SIGTERM))
            raise ValueError("seen")

        seen = []
        monkeypatch.setattr("brtf.api.estimator.fit", look)
        with pytest.raises(ValueError, match="seen"):
            brtf.BRTF().fit(SMALL)
        assert seen == [signal.SIG_DFL]

    def test_threads_leave_signals_alone_and_handlers_come_back(self, tmp_path, monkeypatch):
        follow, seen = fitting.run, []

        def look(*given):
            seen.append(signal.getsignal(signal.SIGTERM))
            return follow(*given)

        monkeypatch.setattr(fitting, "run", look)
        model = brtf.BRTF(random_state=0)
        thread = threading.Thread(target=model.fit, args=(SMALL,), kwargs={"checkpoint": tmp_path / "thread.brtf"})
        thread.start()
        thread.join()
        model.fit(SMALL, checkpoint=tmp_path / "c.brtf")
        assert seen[0] is signal.SIG_DFL
        assert callable(seen[1])
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_results_that_cannot_be_written_do_not_cost_the_fit(tmp_path, monkeypatch):
    np.save(tmp_path / "y.npy", SMALL)

    def refuse(*_):
        raise OSError("No space left on device")

    command = ["fit", tmp_path / "y.npy", "--out", tmp_path / "out", "--inference", "paper", "--tol", "1e-2"]
    with monkeypatch.context() as patch:
        patch.setattr(brtf.BRTF, "save", refuse)
        outcome = invoke(*command)
    path = tmp_path / "out" / "checkpoint.brtf"
    assert outcome.exit_code == 2
    assert f"brtf: the fit so far is saved; the same command with --resume {path} continues" in outcome.stderr
    assert invoke(*command, "--resume", path).exit_code == 0


def test_a_fit_that_fails_at_its_beginning_leaves_no_checkpoint(tmp_path, monkeypatch):
    np.save(tmp_path / "y.npy", SMALL)

    def refuse(*_):
        raise ValueError("nothing can be fitted")

    monkeypatch.setattr("brtf.search.run.INFERENCES", {"calibrated": refuse})
    plain = ("--link", "none", "--arrangement", "none", "--smooth-residual", "none")
    outcome = invoke("fit", tmp_path / "y.npy", "--out", tmp_path / "out", *plain)
    assert (outcome.exit_code, outcome.stderr) == (2, "brtf: error: nothing can be fitted\n")
    assert os.listdir(tmp_path / "out") == []


def test_the_keeper_writes_what_a_result_needs(tmp_path):
    write_checkpoint(tmp_path / "c.brtf", 26, SMALL)
    outline = brtf.io.storage.read_archive(tmp_path / "c.brtf")[0]["outline"]
    assert outline["shape"] == list(SMALL.shape)
    assert Keeper(tmp_path / "d.brtf", None).outline == ({}, {})
