"""The paper's experiments: rows that a run can leave and take up, a page with every cell, and the paper's numbers."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from brtf import cli
from brtf.baselines import Recovery
from brtf.datasets import paper_synthetic
from brtf.metrics import rrse
from brtf.research.experiments import (
    EXPERIMENTS,
    contenders,
    faces,
    fig2,
    page,
    portraits,
    published,
    runs,
    synthetic,
    video,
)
from brtf.view.report import document
from pages import Page

TEX = Path(__file__).parents[3] / "shared" / "paper" / "brtf.tex"
QUICK_METHODS = ("oracle", "hosvd", "cp-als", "cp-ard")
CASES = [
    case
    for case in fig2.plan(True, 0, {})
    if case.settings["method"] in QUICK_METHODS
    and (case.settings["outliers"], case.settings["magnitude"]) == (0.1, "max")
]


def without_seconds(row):
    """Everything of a row that does not depend on the machine's haste."""

    def kept(entry):
        if isinstance(entry, dict):
            return {name: kept(value) for name, value in entry.items() if name != "seconds"}
        return entry

    numbers = kept(json.loads(json.dumps(row.numbers)))
    numbers["grid"] = [[value, error] for value, error, _ in numbers["grid"]]
    return row.settings, row.version, row.error, numbers


def run(*arguments):
    return CliRunner().invoke(cli.main, ["reproduce", *map(str, arguments)])


def made_up(case):
    """Numbers of the right shape for a case, small for ours and different for everybody, without fitting anything."""
    method = case.settings.get("method", "")
    rank = 3 if method in ("brtf", "oracle") else [4, 4, 4] if method in ("hosvd", "horpca", "tucker-ard") else 4
    error = {"oracle": 0.01, "brtf": 0.011}.get(method, 0.02 + 0.001 * len(method))
    picture = np.zeros((6, 8), dtype=np.uint8)
    if case.experiment == "table2":
        named = (*contenders.OURS, *("cpwopt", "cpnls", "huber", "horpca", "mgpcp"))
        return runs.Measured({"seconds": {name: 1.0 + 0.1 * k for k, name in enumerate(named)}})
    if case.experiment == "video":
        names = [f"{part}-{k}" for part in ("background", "foreground") for k in range(2)]
        if method == "data":
            names += [f"true-{name}" for name in names]
            return runs.Measured({"shape": [48, 3, 10], "height": 6, "width": 8}, dict.fromkeys(names, picture))
        numbers = {"seconds": 1.0, "rank": rank, "background_error": error, "f_told": 1 - error}
        numbers |= {"f_own": 1 - error, "f_objects": 1.0} if method in video.OURS else {}
        return runs.Measured(numbers, dict.fromkeys(names, picture))
    if case.experiment == "faces" and method == "data":
        return runs.Measured({"shape": [36, 2, 5, 2], "rrse": 0.5, "psnr": 14.0}, {"clean": picture, "noisy": picture})
    told = {"value": None, "rank": rank, "rrse": error, "seconds": 1.0, "fme": error, "psnr": 30.0}
    if isinstance(rank, list):
        del told["fme"]
        told |= {"fme_direct": 0.9, "fme_refit": 0.5}
    honest = told | {"rrse": 1.5 * error}
    if not case.settings["grid"]:
        honest = told
    numbers = {"told": told, "honest": honest, "grid": [[None, error, 1.0]], "sensitivity": 0.1}
    return runs.Measured(numbers, {"told": picture} if case.experiment == "faces" else {})


def fill(directory, names=("fig2",)):
    """Cases and rows of a whole quick run, made up."""
    rows = runs.Rows(directory)
    cases = page.plan(names, quick=True, seed=0, inputs={})
    for case in cases:
        rows.write(case, made_up(case), 1.0)
    return cases, rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of a whole quick run."""
    cases, rows = fill(tmp_path_factory.mktemp("whole"), EXPERIMENTS)
    return page.page(cases, rows, quick=True)


class TestRows:
    def test_a_run_taken_up_again_has_the_rows_of_one_that_never_stopped(self, tmp_path):
        straight = list(runs.measure(CASES, runs.Rows(tmp_path / "straight"), {}, 60.0))
        stopped = runs.Rows(tmp_path / "stopped")
        running = runs.measure(CASES, stopped, {}, 60.0)
        first = next(running)
        running.close()
        written = stopped.path(CASES[0]).stat().st_mtime_ns
        resumed = list(runs.measure(CASES, stopped, {}, 60.0))
        assert stopped.path(CASES[0]).stat().st_mtime_ns == written  # not measured again
        assert resumed[0] == first
        assert list(map(without_seconds, resumed)) == list(map(without_seconds, straight))
        assert all(row.error is None for row in resumed)

    def test_cases_have_different_files(self):
        for quick in (True, False):
            cases = page.plan(EXPERIMENTS, quick=quick, seed=0, inputs={})
            assert len({(case.experiment, case.name) for case in cases}) == len(cases)

    def test_full_runs_repeat_ten_times(self):
        for name in ("fig2", "fig3", "table1"):
            seeds = {case.settings["seed"] for case in page.plan([name], quick=False, seed=5, inputs={})}
            assert seeds == set(range(5, 15))

    @pytest.mark.parametrize("damage", ["{", "[]", '{"experiment": 1}'])
    def test_a_damaged_row_is_measured_again(self, tmp_path, damage):
        rows = runs.Rows(tmp_path)
        rows.write(CASES[0], "no", 1.0)
        assert rows.read(CASES[0]).error == "no"
        rows.path(CASES[0]).write_text(damage)
        assert rows.read(CASES[0]) is None

    def test_a_row_of_another_version_is_measured_again(self, tmp_path, monkeypatch):
        rows = runs.Rows(tmp_path)
        rows.write(CASES[0], "no", 1.0)
        monkeypatch.setattr(runs, "__version__", "another")
        assert rows.read(CASES[0]) is None

    def test_pictures_come_back_as_they_were(self, tmp_path):
        rows = runs.Rows(tmp_path)
        picture = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
        row = rows.write(CASES[0], runs.Measured({}, {"shown": picture}), 1.0)
        np.testing.assert_array_equal(rows.picture(row, "shown"), picture)

    def test_another_file_is_another_case(self, tmp_path):
        paths = [tmp_path / "one" / "clip.npy", tmp_path / "other" / "clip.npy"]
        for number, path in enumerate(paths):
            path.parent.mkdir()
            path.write_bytes(bytes([number]))
        one, other = (runs.source_of("clip", {"clip": str(path)}) for path in paths)
        assert one != other
        assert "clip.npy" in one and str(tmp_path) not in one
        assert runs.source_of("clip", {}) == runs.GENERATED


class TestFailures:
    def test_a_method_that_fails_is_a_row_that_says_so(self, tmp_path):
        settings = {**CASES[0].settings, "method": "cp-als", "grid": [3], "missing": 0.5}
        rows = runs.Rows(tmp_path)
        case = synthetic.case("fig3", settings)
        row = rows.write(case, *runs.attempt(case, {}))
        assert row.numbers is None
        assert "needs complete data" in row.error
        assert rows.read(case) == row

    def test_a_method_that_takes_too_long_is_a_row_that_says_so(self, tmp_path):
        (row,) = runs.measure(CASES[1:2], runs.Rows(tmp_path), {}, 1e-3)
        assert row.error == "took longer than 0.001 s"

    def test_a_process_that_dies_is_a_row_that_says_so(self, tmp_path):
        rows = runs.Rows(tmp_path)
        with runs.Worker(60.0) as worker:
            worker._begin()
            worker._process.kill()
            row = rows.write(CASES[0], *worker.measure(CASES[0], {}))
            assert "process ended" in row.error
            assert worker.measure(CASES[0], {})[0].numbers["told"]["rrse"] < 0.02  # the next case has a new process

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes run")
    def test_no_process_outlives_the_one_that_started_it(self):
        busy = {**CASES[0].settings, "method": "mgpcp", "params": {"n_sweeps": 10**6}}  # hours
        code = (
            "import os, time; from brtf.research.experiments import runs, synthetic\n"
            "if __name__ == '__main__':\n"
            "    worker = runs.Worker(60.0); line = worker._begin()\n"
            f"    line.send((synthetic.case('fig2', {busy!r}), {{}}))\n"
            "    print(worker._process.pid, flush=True); time.sleep(4); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False, timeout=60)
        status = Path(f"/proc/{int(done.stdout)}/stat")
        deadline = time.monotonic() + 20.0
        while (running := status.exists() and ") Z" not in status.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running

    def test_the_page_names_what_failed(self, tmp_path):
        cases, rows = fill(tmp_path)
        case = next(case for case in cases if case.settings.get("method") == "horpca" and case.experiment == "fig2")
        rows.write(case, "took longer than 7 s", 7.0)
        assert "took longer than 7 s" in Page(document.html(page.page(cases, rows, quick=True), "1")).text

    def test_a_page_of_nothing_but_failures_is_a_page(self, tmp_path):
        cases, rows = fill(tmp_path, EXPERIMENTS)
        for case in cases:
            rows.write(case, "no luck", 1.0)
        found = page.page(cases, rows, quick=True)
        assert "no luck" in Page(document.html(found, "1")).text


class TestPage:
    def test_has_every_experiment_method_and_number(self, whole):
        assert [section.name for section in whole.sections] == [*EXPERIMENTS, "not-best"]
        text = Page(document.html(whole, "1")).text
        for contender in contenders.CONTENDERS.values():
            assert contender.label in text
        for label in video.LABELS.values():
            assert label in text
        tables = {section.name: section.tables for section in whole.sections}
        for name, n_levels in (("fig2", 3), ("fig3", 2)):
            for table in tables[name]:
                assert all(len(row) == n_levels + 1 == len(table.header) for row in table.rows)
            for table in tables[name]:
                if table.caption.startswith("RRSE"):
                    assert all(cell.text not in ("–", "failed") for row in table.rows for cell in row)

    def test_keeps_told_and_honest_apart(self, whole):
        table = whole.sections[0].tables[0]
        errors = {row[0].text: float(row[1].text) for row in table.rows}
        honest = errors["HORPCA, tuned honestly"]
        assert honest == pytest.approx(1.5 * errors["HORPCA, tuned by the truth"], rel=1e-2)  # three digits are shown

    def test_shows_the_papers_numbers(self, whole):
        sections = {section.name: section for section in whole.sections}
        shown = [cell.remark for row in sections["table1"].tables[0].rows for cell in row]
        for printed in published.TABLE1.values():
            assert any(f"paper: {printed.rrse:g}" in remark for remark in shown)
        cells = [cell.text for row in sections["table2"].tables[0].rows for cell in row]
        assert "91 ± 10" in cells

    def test_does_not_set_generated_faces_beside_the_paper(self, whole):
        shown = next(section for section in whole.sections if section.name == "faces")
        assert not any("paper:" in name for name in shown.tables[0].header)
        assert "stand-in" in shown.about[0]

    def test_sets_given_faces_beside_the_paper(self, tmp_path):
        path = tmp_path / "faces.npy"
        path.write_bytes(b"faces")
        rows = runs.Rows(tmp_path / "rows")
        cases = page.plan(["faces"], quick=True, seed=0, inputs={"faces": str(path)})
        for case in cases:
            rows.write(case, made_up(case), 1.0)
        table = page.page(cases, rows, quick=True).sections[0].tables[0]
        assert {cell.text for row in table.rows for cell in row} >= {"0.0892", "28.05", "4528", "[9, 29, 4, 9]"}

    def test_claims_nothing_of_a_clip_whose_truth_is_not_known(self, tmp_path):
        path = tmp_path / "clip.avi"
        path.write_bytes(b"clip")
        rows = runs.Rows(tmp_path / "rows")
        cases = page.plan(["video"], quick=True, seed=0, inputs={"clip": str(path)})
        for case in cases:
            measured = made_up(case)
            kept = {name: value for name, value in measured.numbers.items() if name in ("seconds", "rank")}
            rows.write(case, measured if case.settings["method"] == "data" else replace(measured, numbers=kept), 1.0)
        (section,) = page.page(cases, rows, quick=True).sections  # none on who is the best
        assert all(table.header == ("", "rank", "seconds") for table in section.tables)
        assert not section.verdicts
        assert "F is" not in " ".join(section.about)

    def test_lists_where_ours_is_not_the_best_and_nothing_else(self, tmp_path):
        cases, rows = fill(tmp_path)

        def lost():
            section = page.page(cases, rows, quick=True).sections[-1]
            return [[cell.text for cell in row] for table in section.tables for row in table.rows]

        before = lost()
        assert not [line for line in before if line[0].startswith("Fig. 2")]
        wanted = {"outliers": 0.4, "magnitude": "max", "method": "cpwopt"}
        case = next(
            case for case in cases if case.experiment == "fig2" and wanted.items() <= dict(case.settings).items()
        )
        better = dict(made_up(case).numbers)
        better["told"] = better["told"] | {"rrse": 0.005}
        rows.write(case, runs.Measured(better), 1.0)
        (new,) = [line for line in lost() if line not in before]
        assert new[:5] == ["Fig. 2, 40 % outliers, H = max", "RRSE", "0.011", "0.005", "CPWOPT, tuned by the truth"]
        assert new[5]

    def test_of_a_run_that_was_cut_short_counts_what_is_left(self, tmp_path):
        cases, rows = fill(tmp_path)
        later = replace(cases[-1], settings={**cases[-1].settings, "seed": 1})
        found = page.page([*cases, later], rows, quick=True)
        assert "1 of fig2 rows are missing" in " ".join(found.notes)
        assert found.sections[0].tables
        rows.path(cases[-1]).unlink()
        found = page.page(cases, rows, quick=True)
        assert "Not measured yet" in found.sections[0].about[0]

    def test_in_markdown_brings_its_pictures(self, whole, tmp_path):
        text = document.markdown(whole, tmp_path, "shown")
        named = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
        assert len(named) == 11
        for name in named:
            content = (tmp_path / name).read_bytes()
            assert content.startswith(b"\x89PNG") if name.endswith(".png") else b"xmlns" in content

    def test_words_stay_words(self):
        hostile = "<script>alert(1)</script>"
        table = document.Table(["", hostile], [[document.Cell(hostile, hostile), document.Cell("1|2")]], hostile)
        section = document.Section("name", hostile, [hostile], [document.Verdict(hostile)], (), [table])
        made = document.html(document.Document(hostile, hostile, [hostile], [section]), "1")
        assert "<script>" not in made  # the page's own have a nonce
        assert Page(made).text.count(hostile) == 12  # and all are there, the title of the window among them


class TestMeasures:
    def test_the_oracle_is_the_least_squares_fit(self):
        data = paper_synthetic(outliers=0.2, missing=0.5, seed=1)
        factors = synthetic.least_squares(data)
        good = data.mask & (data.outliers == 0)
        residual = np.where(good, data.observed - np.einsum("ir,jr,kr->ijk", *factors), 0.0)
        gradient = np.einsum("ijk,jr,kr->ir", residual, *factors[1:])
        size = np.einsum("ijk,jr,kr->ir", np.abs(residual), *map(np.abs, factors[1:]))
        assert np.abs(gradient).max() < 1e-4 * size.max()  # X still moves by 1e-7 of itself in a sweep
        error = rrse(np.einsum("ir,jr,kr->ijk", *factors), data.low_rank)
        expected = np.sqrt(0.01 * 3 * 88 * data.low_rank.size / good.sum()) / np.linalg.norm(data.low_rank)
        assert error == pytest.approx(expected, rel=0.15)  # 264 squares of errors: a spread of 9 % in their sum

    def test_an_honest_choice_needs_no_truth_and_finds_the_rank(self):
        observed = paper_synthetic(outliers=0.0, seed=2).observed
        for method, parameter in (("hosvd", "ranks"), ("cpwopt", "rank")):
            tried = contenders.trials(method, observed, parameter, [1, 3, 6], seed=2)
            assert tried[contenders.honest(tried)].value == 3

    def test_methods_that_need_complete_data_get_it(self, monkeypatch):
        shown = []

        def complete(method, observed, **told):
            shown.append(observed)
            return Recovery(np.zeros(observed.shape), None, 1, None)

        monkeypatch.setattr(contenders, "fit", complete)
        observed = paper_synthetic(seed=0).observed
        contenders.trials("hosvd", observed, "ranks", [2], seed=0)
        assert len(shown) == 1 + contenders.N_FILLS
        assert all(np.isfinite(tensor).all() for tensor in shown)
        changed = np.mean(shown[1] != observed)
        assert changed == pytest.approx(contenders.HIDDEN, abs=0.01)  # 27,000 draws: a spread of 0.002

    def test_faces_are_hit_as_often_as_said(self):
        clean = portraits.portraits(8, 3, 4, seed=1)
        assert clean.shape == (64, 3, 5, 4)
        assert clean.min() >= 0 and clean.max() <= 255
        np.testing.assert_array_equal(clean, portraits.portraits(8, 3, 4, seed=1))
        noisy = faces.corrupt(np.full((64, 30, 5, 4), 100.0), seed=0)
        assert np.mean((noisy == 0) | (noisy == 255)) == pytest.approx(0.1, abs=0.01)  # 38,400 pixels: ± 0.0015
        assert np.mean(noisy == 255) == pytest.approx(0.05, abs=0.01)

    def test_ours_parts_the_generated_clip(self):
        case = next(
            case
            for case in video.plan(True, 0, {})
            if case.settings["method"] == "drmf" and case.settings["missing"] == 0.0
        )
        settings = {**case.settings, "size": [16, 20, 12]}
        found = video.measure(settings, {})
        assert found.numbers["background_error"] < 0.1
        assert found.numbers["f_told"] > 0.5
        assert set(found.pictures) == {f"{part}-{k}" for part in ("background", "foreground") for k in range(2)}

    def test_hosvd_is_not_asked_for_more_than_few_faces_have(self, tmp_path):
        path = tmp_path / "faces.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (256, 2, 2, 3)))  # 12 images: no rank above 12
        (case,) = (one for one in faces.plan(True, 0, {"faces": str(path)}) if one.settings["method"] == "hosvd")
        outcome, _ = runs.attempt(case, {"faces": str(path)})
        assert isinstance(outcome, runs.Measured), outcome
        assert max(outcome.numbers["told"]["rank"]) <= 12

    def test_faces_of_the_wrong_shape_are_refused(self, tmp_path):
        path = tmp_path / "faces.npy"
        np.save(path, np.zeros((10, 2, 2, 2)))
        case = faces.plan(True, 0, {"faces": str(path)})[0]
        outcome, _ = runs.attempt(case, {"faces": str(path)})
        assert "got shape (10, 2, 2, 2)" in outcome


class TestPublished:
    @pytest.fixture
    def printed(self):
        if not TEX.exists():
            pytest.skip("the paper's source is not here")
        text = TEX.read_text(encoding="utf-8", errors="replace")

        def cells(label):
            body = text.split(rf"\label{{{label}}}")[1].split(r"\end{tabular}")[0].split(r"\begin{tabular}")[1]
            lines = re.sub(r"\\hline", "", body).split(r"\\")
            return [[cell.strip() for cell in line.split("\n")[-1].split("&")] for line in lines if "&" in line]

        return cells

    @pytest.mark.parametrize(
        ("label", "table", "names"),
        [
            ("tab:result1", published.TABLE1, ("brtf", "horpca", "cp-als", "hosvd", "cp-ard")),
            ("tab:CMU", published.TABLE3, ("brtf", "horpca", "cp-als", "tucker-ard", "hosvd")),
        ],
    )
    def test_tables_are_those_of_the_paper(self, printed, label, table, names):
        fields = {"Rank": "rank", "R": "rank", "RRSE": "rrse", "FME": "fme", "Sensitivity": "sensitivity"}
        fields |= {"PSNR": "psnr", "Runtime": "seconds"}
        lines = {line[0]: line[1:] for line in printed(label) if line[0] in fields}
        assert len(lines) >= 4
        for name, cells in lines.items():
            for method, cell in zip(names, cells, strict=True):
                ours = getattr(table[method], fields[name])
                if fields[name] == "rank":
                    assert (ours or "N/A") == cell
                else:
                    assert ours == (None if cell == "N/A" else float(cell.rstrip(" s")))

    def test_runtimes_are_those_of_the_paper(self, printed):
        names, numbers = printed("tab:TimeCost")
        for name, cell in zip(names, numbers, strict=True):
            mean, sd = (float(part) for part in cell.split(r"$\pm$"))
            ours = published.TABLE2[name.lower()]
            assert (ours.seconds, ours.seconds_sd) == (mean, sd)


class TestCommand:
    def test_measures_writes_and_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fig2, "plan", lambda quick, seed, inputs: CASES[:2])
        arguments = ("fig2", "--out", tmp_path / "out", "--markdown", tmp_path / "page.md")
        monkeypatch.setattr(page, "_has_a_repeat", lambda cases, rows: False)  # two methods make no figure
        outcome = run(*arguments)
        assert outcome.exit_code == 0, outcome.output
        assert "0 of 2 rows exist, 2 are left." in outcome.stderr
        assert len(list((tmp_path / "out" / "rows" / "fig2").glob("*.json"))) == 2
        assert (tmp_path / "out" / "reproduction.html").exists()
        assert (tmp_path / "page.md").read_text().startswith("# ")
        again = run(*arguments)
        assert again.exit_code == 0
        assert "2 of 2 rows exist, 0 are left." in again.stderr

    def test_interrupted_says_what_is_left_and_keeps_the_rest(self, tmp_path, monkeypatch):
        def interrupted(cases, rows, inputs, limit):
            yield rows.write(cases[0], "no", 1.0)
            raise KeyboardInterrupt

        monkeypatch.setattr(runs, "measure", interrupted)
        outcome = run("table1", "--out", tmp_path)
        assert outcome.exit_code == 130
        assert "13 rows are left" in outcome.stderr
        assert len(list((tmp_path / "rows" / "table1").glob("*.json"))) == 1

    def test_page_only_measures_nothing(self, tmp_path):
        outcome = run("--page-only", "--out", tmp_path)
        assert outcome.exit_code == 0, outcome.output
        assert "Not measured yet" in (tmp_path / "reproduction.html").read_text()
        assert not list(tmp_path.rglob("*.json"))

    @pytest.mark.parametrize(
        "arguments",
        [
            ("fig7",),
            ("--limit", "0"),
            ("--faces", "absent.npy"),
            ("--clip", "absent.avi"),
            ("--seed", "-1"),
            ("--out",),
        ],
    )
    def test_bad_arguments_are_one_line(self, tmp_path, monkeypatch, arguments):
        monkeypatch.chdir(tmp_path)
        outcome = run(*arguments)
        assert outcome.exit_code == 2
        assert len(outcome.stderr.strip().splitlines()) == 1
        assert not list(tmp_path.iterdir())


def test_rows_say_what_they_are(tmp_path):
    row = runs.Rows(tmp_path).write(CASES[0], made_up(CASES[0]), 2.5)
    content = json.loads(runs.Rows(tmp_path).path(CASES[0]).read_text())
    assert content["settings"]["seed"] == 0
    assert content["version"] == row.version
    assert replace(row, seconds=0.0) != row
