"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import brtf
from brtf import cli
from brtf.cli.fit import DENSE_LIMIT
from brtf.cli.output import NOT_CONVERGED, print_json
from brtf.data.observe import observe
from brtf.data.readers import read_tensor
from brtf.model.settings import INFERENCES
from tensor_files import FORMATS, write

DATA = brtf.datasets.synthetic((8, 7, 6), 1, outliers=0.05, missing=0.2, noise=0.01, seed=3)
# A loose tolerance: the fit converges within a few dozen sweeps, and what is tested here does not depend on it.
SETTINGS = ["--inference", "paper", "--tol", "1e-2", "--max-rank", "4"]
COMMAND = [sys.executable, "-c", "from brtf.cli import main; main()"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> dict[str, Any]:
    outcome = run(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "y.npy", DATA.observed)
    return tmp_path / "y.npy"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The same entries as a long table in no order, with labels that sort as the positions do."""
    row, column, tube = np.nonzero(DATA.mask)
    frame = pd.DataFrame(
        {
            "site, name": [f"é{position}" for position in row],
            "year": 2000 + column,
            "kind": [chr(ord("a") + position) for position in tube],
            "level": DATA.observed[DATA.mask],
        }
    )
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "y.csv", index=False)
    return tmp_path / "y.csv"


@pytest.fixture
def coordinates(tmp_path: Path) -> Path:
    """The same entries as FROSTT coordinates."""
    positions = np.argwhere(DATA.mask) + 1
    np.savetxt(tmp_path / "y.tns", np.column_stack([positions, DATA.observed[DATA.mask]]), fmt="%d %d %d %.17g")
    return tmp_path / "y.tns"


def test_fit_prints_and_writes_what_the_estimator_finds(source: Path, tmp_path: Path) -> None:
    numbers = run_json("fit", source, "--out", tmp_path / "new" / "out", *SETTINGS)
    out = tmp_path / "new" / "out"
    model = brtf.BRTF(4, inference="paper", tol=1e-2, random_state=0).fit(DATA.observed)
    assert numbers["bound"] == model.bound_
    assert numbers["rank"] == model.rank_
    assert numbers["sweeps"] == model.n_sweeps_
    assert numbers["noise_sd"] ** 2 == pytest.approx(numbers["noise_variance"])  # a square root, rounded
    assert numbers["shape"] == [8, 7, 6]
    assert numbers["n_observed"] == DATA.mask.sum()
    assert sorted(os.listdir(out)) == ["imputed.npy", "outliers.csv", "report.html", "result.brtf"]
    assert sorted(numbers["written"]) == sorted(str(path) for path in out.iterdir())
    assert brtf.load(out / "result.brtf").bound_ == model.bound_
    np.testing.assert_array_equal(np.load(out / "imputed.npy"), model.impute())

    header, rows = read_rows(out / "outliers.csv")
    assert header == ["mode_0", "mode_1", "mode_2", "observed", "low_rank", "outlier", "probability"]
    listed = np.array(rows, dtype=float)
    at = tuple(listed[:, :3].astype(int).T)
    assert len(set(zip(*at, strict=True))) == len(rows) == np.count_nonzero(model.outlier_probability() > 0.5) > 0
    np.testing.assert_array_equal(listed[:, 3], DATA.observed[at])
    np.testing.assert_allclose(listed[:, 4], model.low_rank()[at], rtol=1e-12)  # another order of summation
    np.testing.assert_array_equal(listed[:, 5], model.outliers()[at])
    np.testing.assert_array_equal(listed[:, 6], model.outlier_probability()[at])
    assert np.all(np.diff(np.abs(listed[:, 5])) <= 0)


def test_the_format_of_the_input_does_not_matter(source: Path, table: Path, coordinates: Path) -> None:
    bounds = [run_json("fit", path, *SETTINGS)["bound"] for path in (source, table, coordinates)]
    assert bounds == pytest.approx([bounds[0]] * 3, rel=1e-6)  # other kernels, and hence another rounding


def test_a_table_comes_back_as_a_table_with_its_own_labels(table: Path, tmp_path: Path) -> None:
    run_json("fit", table, "--out", tmp_path / "out", *SETTINGS)
    assert sorted(os.listdir(tmp_path / "out")) == ["imputed.csv", "outliers.csv", "report.html", "result.brtf"]
    index = ["site, name", "year", "kind"]
    given = pd.read_csv(table).set_index(index)["level"]
    imputed = pd.read_csv(tmp_path / "out" / "imputed.csv").set_index(index)["level"]
    assert imputed.index.is_unique
    assert len(imputed) == DATA.observed.size
    assert imputed.notna().all()
    np.testing.assert_array_equal(imputed[given.index], given)
    outliers = pd.read_csv(tmp_path / "out" / "outliers.csv").set_index(index)
    np.testing.assert_array_equal(outliers["observed"], given[outliers.index])


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_imputed_data_have_the_format_of_the_input(tmp_path: Path, suffix: str) -> None:
    path, out = write(tmp_path / f"y{suffix}", DATA.observed), tmp_path / "out"
    for _ in range(2):  # the second time over the first
        numbers = run_json("fit", path, "--out", out, "--overwrite", *SETTINGS)
        assert sorted(os.listdir(out)) == sorted([f"imputed{suffix}", "outliers.csv", "report.html", "result.brtf"])
        assert sorted(numbers["written"]) == sorted(str(file) for file in out.iterdir())
        imputed = observe(read_tensor(out / f"imputed{suffix}"))
        np.testing.assert_array_equal(
            imputed.values.reshape(imputed.shape), brtf.load(out / "result.brtf").result_.impute()
        )


def test_float32_stays_float32(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", DATA.observed.astype(np.float32))
    run_json("fit", tmp_path / "y.npy", "--out", tmp_path / "out", *SETTINGS)
    assert np.load(tmp_path / "out" / "imputed.npy").dtype == np.float32


def test_nothing_is_moved_where_something_is_in_the_way(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "outliers.csv").mkdir(parents=True)
    outcome = run("fit", source, "--out", out, "--overwrite", *SETTINGS)
    assert outcome.exit_code == 2
    assert outcome.stderr.endswith("outliers.csv is in the way of a file. Move it first.\n")
    assert sorted(os.listdir(out)) == ["checkpoint.brtf", "outliers.csv"]


def test_columns_of_a_table_are_options(table: Path) -> None:
    frame = pd.read_csv(table).rename(columns={"site, name": "site"})
    frame[["level", "kind", "year", "site"]].to_csv(table, index=False)
    numbers = run_json("fit", table, "--index", "site, kind,year", "--value", "level", *SETTINGS)
    assert numbers["shape"] == [8, 6, 7]


def test_coordinates_count_from_one_as_in_the_file(coordinates: Path, source: Path, tmp_path: Path) -> None:
    for path in (source, coordinates):
        run_json("fit", path, "--out", tmp_path / path.suffix, *SETTINGS)
    assert sorted(os.listdir(tmp_path / ".tns")) == ["imputed.tns", "outliers.csv", "report.html", "result.brtf"]
    from_zero, from_one = (
        np.array(read_rows(tmp_path / suffix / "outliers.csv")[1], dtype=float)[:, :3] for suffix in (".npy", ".tns")
    )
    np.testing.assert_array_equal(from_one, from_zero + 1)


def test_a_large_sparse_tensor_is_not_made_dense(tmp_path: Path) -> None:
    rng, length, n_per_row = np.random.default_rng(0), math.ceil(DENSE_LIMIT ** (1 / 3)), 10
    rows = rng.standard_normal((3, length))
    positions = np.stack([rng.permutation(np.tile(np.arange(length), n_per_row)) for _ in range(3)])
    values = rows[0][positions[0]] * rows[1][positions[1]] * rows[2][positions[2]]
    np.savetxt(tmp_path / "y.tns", np.column_stack([*(positions + 1), values]), fmt="%d %d %d %.17g")
    outcome = run("fit", tmp_path / "y.tns", "--out", tmp_path / "out", "--max-rank", 1, "--max-sweeps", 5)
    assert outcome.exit_code == NOT_CONVERGED
    assert "No imputed tensor" in outcome.stdout
    assert sorted(os.listdir(tmp_path / "out")) == ["outliers.csv", "report.html", "result.brtf"]


def test_without_out_nothing_is_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("fit", source, *SETTINGS)
    assert outcome.exit_code == 0
    assert "8 x 7 x 6" in outcome.stdout
    assert "Nothing was written" in outcome.stdout
    assert outcome.stderr == ""
    assert os.listdir(tmp_path) == ["y.npy"]


def test_a_mask_says_what_is_observed(source: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "filled.npy", np.nan_to_num(DATA.observed, nan=7.0))
    np.save(tmp_path / "mask.npy", DATA.mask.astype(np.uint8))
    masked = run_json("fit", tmp_path / "filled.npy", "--mask", tmp_path / "mask.npy", *SETTINGS)
    assert masked["bound"] == run_json("fit", source, *SETTINGS)["bound"]


def test_key_and_model_options_reach_the_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "y.npz", y=DATA.observed, other=np.zeros(3))
    options = ["--key", "y", "--no-robust", "--init", "random", "--seed", "5", "--out", tmp_path / "out", *SETTINGS]
    numbers = run_json("fit", tmp_path / "y.npz", *options)
    assert numbers["max_rank"] == 4
    assert read_rows(tmp_path / "out" / "outliers.csv")[1] == []
    model = brtf.BRTF(4, inference="paper", robust=False, init="random", tol=1e-2, random_state=5).fit(DATA.observed)
    assert numbers["bound"] == model.bound_


@pytest.mark.parametrize(("old", "new"), [("--no-outliers", "--no-robust"), ("--transform", "--link")])
def test_an_option_by_its_old_name_is_answered_with_the_new_one(source: Path, old: str, new: str) -> None:
    done = run("fit", source, old)
    assert done.exit_code == 2
    assert done.stderr == f"brtf: error: {old} is now {new}.\n"
    assert "is now" not in run("show", source, old).stderr  # which has it under no name


@pytest.mark.parametrize("command", ["fit", "anomalies"])
def test_what_was_read_is_said_before_the_fit(source: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time to stop then; options that are wrong are said alone."""

    def late(*arguments: Any, **options: Any) -> None:
        raise ValueError("the fit has begun")

    monkeypatch.setattr(brtf.BRTF, "fit", late)
    began = run(command, source)
    assert began.stdout == "Read y.npy: 8 × 7 × 6; 269 values, 19.9 % missing.\n\n"
    assert "the fit has begun" in began.stderr
    for options in (["--max-rank", "0"], ["--modes", "time=ordered"]):
        wrong = run(command, source, *options)
        assert (wrong.stdout, wrong.exit_code) == ("", 2)


def test_not_converged_is_said_and_the_results_are_kept(source: Path, tmp_path: Path) -> None:
    outcome = run("fit", source, "--out", tmp_path / "out", "--max-sweeps", 2, "--json", "--inference", "paper")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["converged"] is False
    assert outcome.stderr.startswith("brtf: warning: Stopped after max_sweeps")
    assert outcome.stderr.count("\n") == 1
    assert len(os.listdir(tmp_path / "out")) == 4


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    tensor = DATA.observed.copy()
    tensor[3] = np.nan
    np.save(tmp_path / "y.npy", tensor)
    outcome = run("fit", tmp_path / "y.npy", *SETTINGS)
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith("brtf: warning: Mode 0 has 1 empty slice (index 3)")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fit", "absent.npy"], "absent.npy does not exist"),
        (["fit", "garbage.mat"], "garbage.mat"),
        (["fit", "vector.npy"], "order >= 2"),
        (["fit", "infinite.npy"], "infinite"),
        (["fit", "y.npy", "--mask", "vector.npy"], "vector.npy is not a mask"),
        (["fit", "y.npy", "--mask", "ones.npy"], "mask has shape"),
        (["fit", "y.npy", "--key", "y"], "key does not apply"),
        (["fit", "y.npy", "--max-rank", "0"], "max_rank"),
        (["fit", "y.npy", "--max-rank", "many"], "--max-rank"),
        (["fit", "y.npy", "--tol", "nan"], "tol"),
        (["fit", "y.npy", "--seed", "-1"], "--seed"),
        (["fit", "y.npy", "--inference", "guess"], INFERENCES[0]),
        (["fit", "huge.tns"], "GB"),
        (["fit"], "INPUT"),
        (["show", "y.npy"], "y.npy"),
        (["show", "absent.brtf"], "absent.brtf"),
        (["show"], "RESULT.brtf"),
        (["--colour"], "--colour"),
        (["unknown"], "unknown"),
    ],
    ids=lambda arguments: " ".join(arguments) if isinstance(arguments, list) else "",
)
def test_bad_input_is_one_sentence(
    source: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], word: str
) -> None:
    monkeypatch.chdir(source.parent)
    Path("garbage.mat").write_bytes(b"garbage")
    Path("huge.tns").write_text("1 1 1 1.0\n4000000000000 2 2 1.0\n")
    np.save("vector.npy", np.arange(5.0))
    np.save("ones.npy", np.ones((2, 2)))
    np.save("infinite.npy", np.array([[1.0, np.inf], [2.0, 3.0]]))
    before = sorted(os.listdir())
    outcome = run(*arguments, *(["--out", "out"] if arguments[0] == "fit" else []))
    assert outcome.exit_code == 2
    was_read = (
        "Read huge.tns: 4,000,000,000,000 × 2 × 2; 2 values, 100 % missing.\n\n" if "huge.tns" in arguments else ""
    )
    assert outcome.stdout == was_read  # what cannot be fitted is said to be what was read
    *warned, sentence = outcome.stderr.splitlines()
    assert all(line.startswith("brtf: warning: ") for line in warned)
    assert sentence.startswith("brtf: error: ")
    assert word in sentence
    assert sorted(os.listdir()) == before


def test_out_must_be_a_directory(source: Path) -> None:
    outcome = run("fit", source, "--out", source, *SETTINGS)
    assert outcome.exit_code == 2
    assert outcome.stderr == f"brtf: error: {source}: File exists.\n"
    np.testing.assert_array_equal(np.load(source), DATA.observed)


def test_a_full_disk_leaves_the_earlier_results(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    run_json("fit", source, "--out", out, *SETTINGS)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("brtf.io.writers.write_csv", refuse)
    outcome = run("fit", source, "--out", out, "--overwrite", "--max-sweeps", 1, "--inference", "paper")
    assert outcome.exit_code == 2
    assert outcome.stderr.splitlines()[-1] == f"brtf: error: {out / 'outliers.csv'}: No space left on device."
    (out / "checkpoint.brtf").unlink()  # the fit itself is kept
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_interrupt_leaves_nothing_but_a_checkpoint_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(brtf.BRTF, "save", interrupt)
    outcome = run("fit", source, "--out", tmp_path / "out", *SETTINGS)
    assert outcome.exit_code == 130
    assert "interrupted" in outcome.stderr
    assert sorted(os.listdir(tmp_path)) == ["out", "y.npy"]
    assert os.listdir(tmp_path / "out") == ["checkpoint.brtf"]


def test_a_checkpoint_is_no_earlier_result(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that goes on from what was interrupted needs no --overwrite."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(brtf.BRTF, "save", interrupt)
        assert run("fit", source, "--out", out, *SETTINGS).exit_code == 130
    (out / "checkpoint-2.brtf").write_bytes((out / "checkpoint.brtf").read_bytes())
    assert run("fit", source, "--out", out, "--resume", out / "checkpoint.brtf", *SETTINGS).exit_code == 0
    assert {"checkpoint.brtf", "checkpoint-2.brtf", "result.brtf"} <= {*os.listdir(out)}
    outcome = run("fit", source, "--out", out, "--resume", out / "checkpoint-2.brtf", *SETTINGS)
    assert outcome.exit_code == 2
    assert f"{out / 'result.brtf'}" in outcome.stderr
    assert f"{out / 'checkpoint'}" not in outcome.stderr


def test_show_repeats_the_summary_and_adds_strengths_and_trace(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fitted = run_json("fit", source, "--out", out, *SETTINGS)
    shown = run_json("show", out / "result.brtf")
    assert {name: shown[name] for name in fitted if name not in ("read", "written")} == {
        name: number for name, number in fitted.items() if name not in ("read", "written")
    }
    model = brtf.load(out / "result.brtf")
    terms = np.einsum("ir,jr,kr->rijk", *model.factors_)
    strengths = np.sqrt(np.mean(terms**2, axis=(1, 2, 3)))
    np.testing.assert_allclose(shown["component_strengths"], strengths, rtol=1e-12)  # another order of the products
    assert shown["trace"][-1] == {
        "sweep": model.n_sweeps_,
        "bound": model.bound_,
        "rank": model.rank_,
        "noise_variance": model.trace_["noise_variance"][-1],
        "event": model.trace_["event"][-1],
    }
    text = run("show", out / "result.brtf").stdout
    assert model.stop_reason_ in text
    assert f"{strengths[0]:.4g}" in text
    assert f"Last sweeps of {model.n_sweeps_}" in text


def test_show_a_result_of_rank_zero(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.zeros((8, 7, 6)))
    fitted = run_json("fit", tmp_path / "y.npy", "--no-robust", "--out", tmp_path, "--inference", "paper")
    assert fitted["rank"] == 0
    assert run_json("show", tmp_path / "result.brtf")["component_strengths"] == []
    assert run("show", tmp_path / "result.brtf").exit_code == 0


def test_the_demo_recovers_the_truth_and_shows_it(tmp_path: Path) -> None:
    comparison = run_json("demo", "--out", tmp_path)["comparison"]
    assert comparison["rank"]["found"] == comparison["rank"]["true"] == 3
    assert comparison["rrse"]["found"] < 0.02  # noise of 3 levels in some 120, averaged over the frames
    assert comparison["outlier_f_measure"]["found"] > 0.95
    assert abs(comparison["coverage"]["found"] - 0.95) < 0.05
    assert sorted(os.listdir(tmp_path)) == ["report.html", "result.brtf"]
    assert brtf.load(tmp_path / "result.brtf").rank_ == 3


def test_the_demo_explains_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("brtf.cli.demo.SIZE", {"height": 16, "width": 16, "frames": 8})
    outcome = run("demo", "--out", tmp_path / "page")
    assert outcome.exit_code in (0, 1)  # so small a clip need not converge
    for words in ("camera", "rank", "F-measure", "intervals", "report.html", "Wrote"):
        assert words in outcome.stdout


def test_memory_that_the_interpreter_lacks_is_told_in_a_sentence(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(brtf.BRTF, "fit", lacking)
    outcome = run("fit", str(source))
    assert outcome.exit_code == 2
    assert "GB that this process may use are not enough: raise its limit." in outcome.stderr


@pytest.mark.parametrize("module", ["jinja2", "PIL"])
@pytest.mark.parametrize("command", [["demo"], ["report", "absent.brtf"], ["video", "absent.mp4", "--out", "d"]])
def test_a_page_that_cannot_be_made_is_said_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    without(monkeypatch, module)
    monkeypatch.setattr(brtf.BRTF, "fit", None)
    outcome = run(*command)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr == f'brtf: error: {module} is needed for a report: pip install "brtf[viz]".\n'
    assert os.listdir(tmp_path) == []


def test_results_without_a_page(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "jinja2")
    outcome = run("fit", source, "--out", tmp_path / "out", *SETTINGS)
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith("brtf: warning: There will be no report.html: jinja2 is needed")
    assert sorted(os.listdir(tmp_path / "out")) == ["imputed.npy", "outliers.csv", "result.brtf"]


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """As if a library that draws pages were not installed."""
    for name in [*sys.modules]:
        if name.startswith("brtf.view.report."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("arguments", "there"),
    [
        (["fit", "y.npy", "--out", "d"], "outliers.csv"),
        (["fit", "y.npy", "--out", "d"], "imputed.npy"),
        (["demo", "--out", "d"], "result.brtf"),
        (["video", "absent.mp4", "--out", "d"], "mask.mp4"),
        (["compare", "y.npy", "--out", "d"], "comparison.html"),
        (["report", "d/y.brtf"], "y.html"),
    ],
)
def test_nothing_is_replaced_unasked(
    source: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], there: str
) -> None:
    monkeypatch.chdir(source.parent)
    Path("d").mkdir()
    Path("d", there).write_text("mine")
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    start = f"brtf: error: {Path('d', there)} exists already."
    assert outcome.stderr == f"{start} Pass --overwrite to replace, or choose another --out.\n"
    assert [(path.name, path.read_text()) for path in Path("d").iterdir()] == [(there, "mine")]


def test_the_demo_may_be_run_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("brtf.cli.demo.SIZE", {"height": 16, "width": 16, "frames": 8})
    for _ in range(2):
        assert run("demo").exit_code in (0, 1)
    assert sorted(os.listdir("brtf-demo")) == ["report.html", "result.brtf"]


def test_json_has_neither_nan_nor_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.inf, "b": [math.nan, 1.0, {"c": -math.inf}], "d": "nan"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.0, {"c": None}], "d": "nan"}


def test_version_and_help() -> None:
    assert run("--version").stdout == f"brtf, version {brtf.__version__}\n"
    assert run().stdout == run("--help").stdout
    assert run().exit_code == 0
    help_text = run("fit", "--help").stdout
    for inference in INFERENCES:
        assert inference in help_text


def test_help_does_not_wait_for_heavy_libraries() -> None:
    listing = "import sys; from brtf.cli import main; main.get_help(main.make_context('brtf', []))"
    code = f"{listing}; print({{'sklearn', 'scipy', 'pandas', 'xarray', 'tqdm'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_command_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, brtf.cli as cli; print({f'brtf.cli.{name}' for name in cli.COMMANDS} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    for name in cli.COMMANDS:
        assert cli.main.get_command(None, name).name == name


def test_an_error_of_the_program_itself() -> None:
    done = subprocess.run([*COMMAND, "fit", "absent.npy"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "brtf: error: absent.npy does not exist.\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_stdout_is_json_while_the_terminal_shows_the_rest(source: Path, quiet: bool) -> None:
    arguments = ["fit", str(source), "--json", "--max-sweeps", "2", "--inference", "paper"]
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(stderr, (24, 200))
    try:
        command = [*COMMAND, *arguments, *(["--quiet"] if quiet else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
        shown = os.read(terminal, 65536).decode()
    finally:
        os.close(stderr)
        os.close(terminal)
    assert done.returncode == 1
    assert json.loads(done.stdout)["sweeps"] == 2
    assert "brtf: warning: Stopped" in shown
    assert ("2/2 sweeps, bound=" in shown) == (not quiet)  # the progress bar
