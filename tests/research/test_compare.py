"""Methods side by side on the user's data: scored on what none was shown, and nobody left out without a word."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from brtf import cli
from brtf.api.evaluation import draw_hidden
from brtf.baselines import describe, recover
from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.datasets import synthetic
from brtf.research import comparison
from pages import Page

DATA = synthetic((9, 8, 7), 2, outliers=0.05, missing=0.2, noise=0.01, seed=3)
# A loose tolerance: what is tested here does not depend on where the fits stop.
OPTIONS = {"tol": 1e-2, "max_rank": 4}
FEW = ["--tol", "1e-2", "--max-rank", "4"]


def run(*arguments):
    return CliRunner().invoke(cli.main, ["compare", *map(str, arguments)])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, DATA.observed)
    return path


def test_everybody_has_numbers_or_a_reason():
    rows = list(comparison.compare(observe(DATA.observed), comparison.METHODS, options=OPTIONS))
    assert sorted(row["method"] for row in rows) == sorted(comparison.METHODS)
    for row in rows:
        assert (row["error"] is None) == (row["rmse"] is not None)
        if row["error"] is None:
            assert row["rmse"] > 0 and row["seconds"] > 0
            assert (row["log_density"] is not None) == (row["method"] in comparison.OURS)
    able = {row["method"] for row in rows if row["error"] is None}
    others = set(comparison.METHODS) - set(comparison.OURS)
    assert able == set(comparison.OURS) | {name for name in others if describe(name).missing}


def test_what_is_scored_was_shown_to_nobody():
    data = observe(DATA.observed)
    hidden = draw_hidden(data, 0.25, np.random.default_rng(5), pattern="entries", mode=0)
    assert np.count_nonzero(hidden) == round(0.25 * data.n_observed)
    places, values = tuple(data.entry_coords()[:, hidden]), data.values[hidden]
    found = recover("horpca", data.select(~hidden)).low_rank[places]
    for factor in (1.0, -3.0):  # other values where nobody looks give another score, not another fit
        changed = DATA.observed.copy()
        changed[places] = factor * values
        (row,) = comparison.compare(observe(changed), ["horpca"], hold_out=0.25, seed=5)
        error = factor * values - found
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
        assert row["median_error"] == pytest.approx(np.median(np.abs(error)))
        assert row["relative_error"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(factor * values))


def test_methods_that_need_a_rank_take_ours_or_the_one_given():
    data = observe(DATA.observed)
    ours, theirs = comparison.compare(data, ["prmf", "brtf"], options=OPTIONS)
    assert ours["method"] == "brtf"  # first, whatever the order
    assert theirs["told"] == theirs["rank"] == ours["rank"]
    (row,) = comparison.compare(data, ["prmf"], rank=50)
    assert row["told"] == row["rank"] == 7  # no larger than the unfolding's shorter side
    (row,) = comparison.compare(data, ["prmf"])
    assert "needs a rank" in row["error"]


def test_a_method_that_fails_is_a_row():
    rows = list(comparison.compare(observe(np.zeros((9, 8, 7))), ["horpca", "brtf-paper"], options=OPTIONS))
    errors = {row["method"]: row["error"] for row in rows}
    assert errors["brtf-paper"] is None
    assert "there is nothing to recover" in errors["horpca"]
    assert "horpca: Y is zero at every observed entry" in comparison.as_text(rows)


def test_the_same_seed_gives_the_same_rows():
    def numbers(seed):
        rows = comparison.compare(observe(DATA.observed), ["brtf-paper", "horpca"], options=OPTIONS, seed=seed)
        return [{**row, "seconds": None} for row in rows]

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)


def test_defaults_suit_the_data():
    matrix, tensor = observe(np.eye(4)), observe(np.ones((3, 3, 3)))
    coords = np.stack([np.arange(5)] * 3)
    sparse = Observations.from_coords(coords, np.ones(5), (1000, 1000, 1000))
    for data in (matrix, tensor, sparse):
        for method in comparison.default_methods(data):
            assert comparison.reason_against(method, comparison.default_methods(data), None) is None
    assert "regl1alm" in comparison.default_methods(matrix) and "horpca" in comparison.default_methods(tensor)
    assert set(comparison.default_methods(sparse)) == set(comparison.OURS)  # others would hold a billion entries


class TestCommand:
    def test_prints_a_table_and_writes_a_page(self, source, tmp_path):
        outcome = run(source, "--methods", "brtf,horpca,cp-als", "--out", tmp_path / "out", *FEW)
        assert outcome.exit_code in (0, 1), outcome.output
        lines = outcome.stdout.splitlines()
        assert {line.split()[0] for line in lines[1:3]} == {"brtf", "horpca"}
        assert "cp-als: needs complete data" in outcome.stdout
        assert "Not compared: brtf-paper" in outcome.stdout
        text = Page((tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")).text
        for words in ("horpca", "needs complete data", "9 × 8 × 7", "data.npy"):
            assert words in text

    def test_json_has_every_row(self, source):
        outcome = run(source, "--methods", "brtf-paper,pcp", "--json", "--repeats", "2", *FEW)
        document = json.loads(outcome.stdout)
        assert [(row["method"], row["repeat"]) for row in document["rows"]] == [
            ("brtf-paper", 0),
            ("pcp", 0),
            ("brtf-paper", 1),
            ("pcp", 1),
        ]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--methods", "magic"], "magic"),
            (["--methods", ","], "methods"),
            (["--rank", "0"], "rank"),
            (["--hold-out", "2"], "hold_out"),
        ],
    )
    def test_bad_arguments_are_one_line(self, source, arguments, words):
        outcome = run(source, *arguments)
        assert outcome.exit_code == 2
        assert len(outcome.stderr.strip().splitlines()) == 1
        assert words in outcome.stderr


def test_methods_without_patience_are_named():
    """What would take longer than the caller waits is not run, and its row says so; brtf always runs."""
    data = observe(synthetic((12, 10, 8), 2, outliers=0.05, seed=0).observed)
    rows = {row["method"]: row for row in comparison.compare(data, ("brtf", "horpca"), patience=1e-9)}
    assert rows["brtf"]["error"] is None
    assert rows["horpca"]["rmse"] is None
    assert re.fullmatch(r"would take about \d+ seconds: --all runs it", rows["horpca"]["error"])
    assert all(row["error"] is None for row in comparison.compare(data, ("brtf", "horpca"), patience=600))
