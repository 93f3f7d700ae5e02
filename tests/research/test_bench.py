"""The benchmark measures everything it promises, in turns, and says so; how fast anything is, is not tested."""

import json
import re
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from brtf import cli
from brtf.api.synthetic import synthetic
from brtf.cli import bench as command
from brtf.inference.trace import Event, Kind, Record
from brtf.research.bench import answers, fits, measure, page, peers


def run(*arguments):
    outcome = CliRunner().invoke(cli.main, ["bench", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One quick run of the command: its JSON and the page it wrote."""
    path = tmp_path_factory.mktemp("bench") / "performance.md"
    return json.loads(run("--quick", "--json", "--write", str(path))), path.read_text(encoding="utf-8")


def test_every_target_has_its_rows(measured):
    rows = measured[0]["rows"]
    assert {row["target"] for row in rows} == set(page.MEASUREMENTS) == set(range(1, command.N_TARGETS + 1))
    counts = {target: sum(row["target"] == target for row in rows) for target in page.MEASUREMENTS}
    assert counts == {1: 3, 2: 14, 3: 2, 4: 3, 5: 1, 6: 3, 7: 3, 8: 3, 9: 113, 10: 8, 11: 1}


def test_every_row_is_a_positive_number_or_says_why_not(measured):
    for row in measured[0]["rows"]:
        if row["value"] is None:
            assert "skipped" in row["against"]
        elif "to the power of" not in row["what"]:  # small stand-ins need not grow at all
            assert row["value"] > 0


def test_the_page_holds_every_row_and_names_no_host(measured):
    document, written = measured
    for row in document["rows"]:
        assert any(row["what"] in line and row["against"] in line for line in written.splitlines())
    assert re.search(r"^- Machine: \d+ cores", written, re.MULTILINE)
    assert "numpy" in written
    assert socket.gethostname() not in written


def test_a_single_target_as_text():
    lines = run("--quick", "--target", "2").splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:2] == ["target", "value"]
    assert len(table) == 15
    assert all(line.startswith("2 ") and ("row Grams" in line or "sweep: " in line) for line in table[1:])


def test_a_peer_that_is_not_installed_is_skipped_with_a_word():
    absent = peers.Peer("no_such_package", "nobody", lambda data: data.observed)
    (row,) = fits.whole_fits(measure.Effort(quick=True, n_repeats=1), [absent])
    assert row.value is None
    assert row.met is None
    assert "no_such_package is not installed" in row.against


def test_the_time_to_answer_stands_next_to_rank_and_errors(measured):
    rows = [row for row in measured[0]["rows"] if row["target"] == 10]
    for row in (row for row in rows if row["value"] is not None):
        said = re.search(r"rank (\d+), errors ([\d.]+)( and ([\d.]+))?, (\d+) sweeps$", row["note"])
        true_rank = int(re.search(r", rank (\d+),", row["what"])[1])
        assert int(said[1]) == true_rank
        assert float(said[2]) < 0.1  # the size of the noise: one in ten
        assert (said[4] is None) == ("one pass" in row["against"])  # which makes no estimate
    assert [row["limit"] for row in rows] == [1.0, 1.0, 4.0, 4.0, 1.0, 0.5, 100.0, None]


def test_an_answer_without_its_rival_is_skipped_with_a_word(monkeypatch):
    monkeypatch.setattr(answers, "HUBER", peers.Peer("no_such_package", "nobody", lambda data: data.observed))
    monkeypatch.setattr(answers, "QUESTIONS", answers.QUESTIONS[:1])
    (row,) = answers.answers(measure.Effort(quick=True, n_repeats=1))
    assert row.value is None
    assert "nobody: skipped, no_such_package is not installed" in row.against


@pytest.mark.parametrize("seed", range(3))
def test_a_random_start_knows_nothing_of_the_truth(seed):
    """A rival that starts from the stream that drew the data begins at the true factors, and is done at once."""
    data = synthetic((20, 20, 20), 5, seed=seed)
    for start, truth in zip(peers.random_start(data), data.factors, strict=True):
        assert abs(np.corrcoef(start.ravel(), truth.ravel())[0, 1]) < 0.5  # 5 standard errors of 100 numbers


def test_one_pass_over_coordinates_reads_every_mode(monkeypatch):
    """The reference of the coordinates, with its sums kept, is the product of the unfolded data with the others."""
    sums = []
    monkeypatch.setattr(np, "bincount", lambda *given, count=np.bincount: sums.append(count(*given)))
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, 2)) for length in (3, 4, 5)]
    data = rng.standard_normal((3, 4, 5))
    answers._one_pass(factors, np.indices(data.shape).reshape(3, -1), data.ravel())
    subscripts = ("ijk,jr,kr->ri", "ijk,ir,kr->rj", "ijk,ir,jr->rk")
    others = [[factors[k] for k in range(3) if k != mode] for mode in range(3)]
    expected = [
        row for how, with_these in zip(subscripts, others, strict=True) for row in np.einsum(how, data, *with_these)
    ]
    for found, wanted in zip(sums, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_sweeps_are_those_of_the_state_or_of_starts_and_moves():
    events = [(Kind.START, 7), (Kind.START, 12), (Kind.SWEEP, 13), (Kind.PRUNE, 14), (Kind.BIRTH, 30), (Kind.SWEEP, 31)]
    trace = tuple(Record(sweep, 0.0, 1, 1.0, Event(kind)) for kind, sweep in events)
    assert answers._of_the_state(SimpleNamespace(result_=SimpleNamespace(trace=trace))) == 7 + 3


def test_the_first_fit_after_installing_finds_no_compiled_code(monkeypatch):
    looks = "import os, time; assert not os.listdir(os.environ['NUMBA_CACHE_DIR']); time.process_time()"
    monkeypatch.setattr(fits, "FIRST_FIT", looks)
    assert fits.after_installing() >= 0.0


def test_tasks_take_turns_and_the_fastest_run_counts():
    calls, times = [], iter([0.0, 5.0, 5.0, 6.0, 6.0, 7.0, 7.0, 10.0])
    tasks = {name: lambda name=name: calls.append(name) for name in "ab"}
    assert measure.fastest(tasks, 2, clock=lambda: next(times)) == {"a": 1.0, "b": 1.0}
    assert "".join(calls) == "ababab"  # the first round is not counted


@pytest.mark.parametrize(
    ("value", "at_least", "met"), [(1.9, False, True), (2.1, False, False), (2.1, True, True), (None, False, None)]
)
def test_a_target_is_met_from_its_side(value, at_least, met):
    assert measure.Measurement(1, "", value, "", 2.0, at_least).met is met
