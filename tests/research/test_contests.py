"""The comparison on real data: which fits its page shows, and what is measured where the data are there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brtf.research.experiments.runs import Case, Measured, Rows, attempt

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as they do when they are run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def parking(method: str, value: int | None = None) -> Case:
    settings: dict[str, Any] = {"of": "Birmingham", "method": method, "seed": 0, "options": {}, "missing": 0.4}
    if value is not None:
        settings |= {"parameter": "rank", "value": value}
    return Case("birmingham", settings, "contests")


def numbers(rmse: float, hidden_error: float | None) -> Measured:
    found = {"rmse": rmse, "mape": rmse / 100, "hidden_error": hidden_error, "rank": 3, "seconds": 1.0}
    return Measured(found)


def test_the_truth_does_not_choose_the_honest_column(tmp_path: Path) -> None:
    from contest_page import traffic_table

    rows = Rows(tmp_path)
    cases = [parking("brtf"), *(parking("cpwopt", value) for value in (5, 10, 20, 40)), parking("mgpcp")]
    rows.write(cases[0], numbers(12.0, None), 1.0)
    rows.write(cases[1], numbers(11.0, 3.0), 1.0)  # the truth would take this one
    rows.write(cases[2], numbers(13.0, 2.0), 1.0)
    rows.write(cases[3], "took longer than 600 s", 600.0)
    table = traffic_table(cases, rows, [["BTMF", "20", "0.1", "14.5", "9"]])
    lines = {line[0].text: line[1:] for line in table.rows}
    assert lines["BRTF, calibrated"][0].text == "12.00"
    assert lines["BRTF, calibrated"][0].mark == "best"
    assert [cell.text for cell in lines["CPWOPT"]] == [
        "13.00",
        "0.1300",
        "rank 10",
        "3",
        "1",
        "11.00",
        "0.1100",
        "rank 5",
    ]
    assert lines["CPWOPT"][2].remark == "20 took longer than 600 s; 40 not measured"
    assert lines["MGPCP"][0].remark == "not measured"
    assert lines["BTMF, as published"][0].text == "14.50"


def test_published_lines_are_those_of_the_scenario(tmp_path: Path) -> None:
    from contest_page import published

    path = tmp_path / "tables.md"
    path.write_text(
        "| data | scenario | missing | model | rank | MAPE | RMSE | s |\n|---|---|---|---|---|---|---|---|\n"
        "| Birmingham | NM | 0.4 | BATF | 20 | 0.17 | 113.0 | 20 |\n"
        "| Birmingham | RM | 0.4 | BGCP | 20 | 0.07 | 25.5 | 19 |\n"
        "| Hangzhou | RM | 0.4 | HaLRTC |  | 0.19 | 31.8 | 2 |\n"
    )
    assert published(path, "Birmingham", 0.4) == [["BGCP", "20", "0.07", "25.5", "19"]]
    assert published(path, "Hangzhou", 0.4) == [["HaLRTC", "", "0.19", "31.8", "2"]]


def test_each_score_stands_for_one_concentration() -> None:
    from real_data import score_correlations

    rng = np.random.default_rng(0)
    known = rng.normal(size=(20, 3))
    scores = np.column_stack([rng.normal(size=20), -known[:, 2], 5 * known[:, 0] + 1])
    first, second, third = score_correlations(scores, known)
    assert first == pytest.approx(1.0)
    assert third == pytest.approx(1.0)
    assert second < 0.9  # only noise is left for it
    assert score_correlations(scores[:, 1:2], known)[:2] == [0.0, 0.0]


@pytest.mark.skipif(not (DATA / "chemometrics").exists(), reason="the data are not part of the project")
def test_least_squares_of_the_true_rank_finds_the_concentrations() -> None:
    case = Case("claus", {"of": "claus", "method": "cp-als", "seed": 0, "options": {"rank": 3}}, "contests")
    found, _ = attempt(case, {"data": str(DATA)})
    assert isinstance(found, Measured), found
    assert min(found.numbers["correlations"]) > 0.998  # known of these data


@pytest.mark.skipif(not (DATA / "cdnet_highway").exists(), reason="the data are not part of the project")
def test_the_median_frame_has_its_known_f_measure() -> None:
    case = Case("highway", {"of": "highway", "method": "median", "seed": 0, "options": {}}, "contests")
    found, _ = attempt(case, {"data": str(DATA)})
    assert isinstance(found, Measured), found
    assert found.numbers["f_told"] == pytest.approx(0.844, abs=5e-4)


@pytest.mark.skipif(not (DATA / "i2r_video").exists(), reason="the data are not part of the project")
def test_the_median_frame_finds_the_floor_where_it_is_seen_most_of_the_time() -> None:
    case = Case("hall", {"of": "hall", "method": "median", "seed": 0, "options": {}}, "contests")
    found, _ = attempt(case, {"data": str(DATA)})
    assert isinstance(found, Measured), found
    assert found.numbers["floor"]["0%–50%"] > 0.75  # she may be within 25 levels of the floor, which does not count
    assert found.numbers["floor"]["60%–100%"] < 0.1
