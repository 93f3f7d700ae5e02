"""The comparison with other libraries: what is scored, what is installed, and which part of the page it writes."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers

    yield peers
    del sys.modules["peers"]


def test_scores(peers):
    truth = np.array([True, False, True, False])
    assert peers.auc(np.array([2.0, 1.0, 3.0, 0.0]), truth) == 1
    assert peers.auc(np.zeros(4), truth) == 0.5
    data = np.array([[np.nan, 1.0], [2.0, np.nan]])
    true = np.array([[3.0, 1.0], [2.0, 4.0]])
    found = peers.judge_gaps((true + np.array([[0.5, 9.0], [9.0, 0.0]]), (true - 1, true + 1)), data, true)
    assert found == {"relative error": 0.1, "truth in 95 % interval": 1.0}


def test_truth_is_where_it_should_be(peers):
    counts, truth = peers.traffic(1)
    seen = ~np.isnan(counts)
    assert 0.25 < seen.mean() < 0.35
    assert np.median(np.abs(counts - truth)[seen]) < 25
    for make in (peers.machines, peers.clusters):
        data, odd = make(1)
        assert odd.sum() == 15 and data.shape[0] == odd.size
    frames, objects = peers.filmed(1)
    assert frames.shape == objects.shape == (60, 40, 64)


def test_a_table_and_its_place_on_the_page(peers, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{peers.BEGIN}\nstale\n{peers.END}\nafter\n", encoding="utf-8")
    monkeypatch.setitem(peers.TASKS, "spoiled", (*peers.TASKS["spoiled"][:2], peers.SPOILED[:2], peers.judge_spoiled))
    monkeypatch.setattr(sys, "argv", ["peers.py", "--seeds", "1", "--only", "spoiled", "--write", str(page)])
    peers.main()
    told = capsys.readouterr().out
    ours, theirs = (float(line.split("|")[3]) for line in told.splitlines() if "`" in line)
    assert ours < 0.02 < theirs
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "stale" not in text
    assert told.strip() in text


def test_what_is_not_installed_is_named(peers, monkeypatch):
    monkeypatch.setattr(peers, "version", lambda library: "1" if library == "brtf" else None)
    monkeypatch.setitem(peers.TASKS, "spoiled", (*peers.TASKS["spoiled"][:2], peers.SPOILED, peers.judge_spoiled))
    lines = list(peers.report(["spoiled"], range(1)))
    assert lines[-1] == "Not installed, so not measured: pyttb, tensorly."
    assert sum("`" in line for line in lines) == 1
