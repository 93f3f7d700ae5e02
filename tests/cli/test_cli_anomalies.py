"""``brtf anomalies``: lists on the terminal, as CSV, as JSON and as a page."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from brtf import cli
from brtf.datasets import synthetic
from brtf.results.anomalies import anomaly_table
from pages import Page, looked_at


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A long table whose slice s3 is shifted by three standard deviations of the noise, and a fit of it."""
    path = tmp_path_factory.mktemp("anomalies")
    data = synthetic((12, 10, 8), 2, outliers=0.03, missing=0.2, seed=1).observed
    data[3] += 0.3
    coords = np.argwhere(~np.isnan(data))
    columns = {"site": [f"s{i}" for i in coords[:, 0]], "day": coords[:, 1], "<hour>": coords[:, 2]}
    pd.DataFrame({**columns, "temperature": data[~np.isnan(data)]}).to_csv(path / "data.csv", index=False)
    assert run("fit", path / "data.csv", "--out", path / "fitted").exit_code == 0
    return path


def run(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_lists_and_files(folder):
    out = folder / "out"
    done = run("anomalies", folder / "data.csv", "--out", out, "--q", 0.2)
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+ of 768 entries look wrong; expect about \d", done.stdout)
    assert "1 slice looks wrong." in done.stdout
    assert "s3    all  all" in done.stdout
    entries, slices = pd.read_csv(out / "anomalies.csv"), pd.read_csv(out / "anomalies-slices.csv")
    assert list(entries)[3:] == ["observed", "expected", "low", "high", "probability"]
    assert (1 - entries.probability).mean() <= 0.2
    assert slices.site.tolist() == ["s3"] and slices.day.isna().all() and slices.kind[0] == "shift"
    page = (out / "anomalies.html").read_text(encoding="utf-8")
    assert "&lt;hour&gt;" in page and "<hour>" not in page
    assert "Anomalies in data.csv" in page
    assert run("anomalies", folder / "data.csv", "--out", out).exit_code == 2  # refuses to overwrite


def test_the_page_says_it_in_words_and_shows_it_among_its_neighbours(folder, tmp_path, visit):
    result = folder / "fitted" / "result.brtf"
    kinds = ("--of", "entries", "--of", "slices", "--of", "fibres", "--mode", "day")
    assert run("anomalies", result, *kinds, "--out", tmp_path).exit_code == 0
    page = (tmp_path / "anomalies.html").read_text(encoding="utf-8")
    listed = pd.read_csv(tmp_path / "anomalies.csv")
    assert f"{len(listed)} of 768 entries look wrong" in page
    assert "Observed and expected along day" in page and "> 0.999" in page.replace("&gt;", ">")
    seen = looked_at(visit, tmp_path / "anomalies.html")
    first = seen.tab.locator("#entries table tbody tr").first.locator("td").all_text_contents()
    assert first[:3] == [str(listed.iloc[0][name]) for name in ("site", "day", "<hour>")]
    probability = seen.tab.locator("#entries th", has_text="probability")
    probability.click()
    probability.click()  # the least certain comes first
    last = seen.tab.locator("#entries table tbody tr").first.locator("td").last
    assert float(last.get_attribute("data-value")) == pytest.approx(listed.probability.min())


def test_groups_are_described_in_words(folder):
    from brtf import load
    from brtf.view.report.anomalies import anomalies_page

    model = load(folder / "fitted" / "result.brtf")
    tables = {"slices": anomaly_table(model.result_, 0.1, of="slices")}
    page = Page(anomalies_page(model.result_, tables, 0.1, "Anomalies", "0"))
    row = tables["slices"]
    by = float(row["observed"][0] - row["expected"][0])
    assert by > 0
    assert f"1 slice looks wrong: site s3 is {by:.3g} too high on average." in page.text


def test_a_saved_fit_gives_the_same(folder):
    options = ("--json", "--of", "rows", "--of", "entries")
    fresh, saved = (
        json.loads(run("anomalies", path, *options).stdout)
        for path in (folder / "data.csv", folder / "fitted" / "result.brtf")
    )
    assert fresh == saved
    assert [row["site"] for row in fresh["rows"]] == ["s3"]
    assert fresh["entries"][0].keys() == {
        *("site", "day", "<hour>", "observed", "expected", "low", "high", "probability")
    }


def test_nothing_found(folder, tmp_path):
    np.save(tmp_path / "plain.npy", synthetic((9, 8, 7), 1, outliers=0, seed=0).observed)
    done = run("anomalies", tmp_path / "plain.npy", "--of", "slices")
    assert done.exit_code == 0
    assert "No slice looks wrong, at a false discovery rate of 10 %." in done.stdout


@pytest.mark.parametrize(
    "options", [("--q", "0"), ("--of", "cells"), ("--of", "rows", "--mode", "1"), ("--of", "slices", "--mode", "7")]
)
def test_refuses(folder, options):
    done = run("anomalies", folder / "fitted" / "result.brtf", *options)
    assert done.exit_code == 2 and done.stderr.startswith("brtf: error: ")


def test_refuses_options_of_data_with_a_saved_fit(folder):
    done = run("anomalies", folder / "fitted" / "result.brtf", "--wide")
    assert done.exit_code == 2 and "is a saved fit" in done.stderr
