"""An analyst with a table: gaps are filled, wrong values listed, and there is a page for the meeting."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import brtf
from pages import looked_at
from people import Sales, brtf_command, page_text, sales

INDEX = list(Sales.INDEX)


@pytest.fixture(scope="module")
def brought():
    return sales()


@pytest.fixture(scope="module")
def model(brought):
    observations = brtf.Observations.from_frame(brought.table, index=INDEX, value="sold")
    return brtf.BRTF(random_state=0).fit(observations)


def places(table):
    return {tuple(row) for row in table[INDEX].itertuples(index=False)}


def test_data_say_what_they_are(brought):
    assert repr(brtf.Observations.from_frame(brought.table, index=INDEX, value="sold")) == (
        "<Observations: 12 shop (shop 00 … shop 11) × 7 item (apples … garlic) × 30 week (2024-01-01 … 2024-07-22); "
        "2,020 values, 19.8 % missing; sold>"
    )


def test_a_long_table_passed_as_a_matrix_is_refused_with_the_call_to_use(brought):
    with pytest.raises(TypeError, match=r"from_frame\(Y, index=\['shop', 'item', 'week'\], value='sold'\)"):
        brtf.BRTF().fit(brought.table)


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        (lambda table, model: brtf.BRTF().fit("sales.csv"), r"read_tensor\('sales.csv'\)"),
        (lambda table, model: brtf.BRTF(rank=3), r"max_rank= caps it"),
        (lambda table, model: brtf.BRTF(max_ranks=3), r"did you mean max_rank="),
        (
            lambda table, model: brtf.Observations.from_frame(table, ["shop", "items", "week"], "sold"),
            r"Did you mean 'item'\?",
        ),
        (
            lambda table, model: brtf.Observations.from_frame(table, ["shop", "item"], "sold"),
            r"index=\['shop', 'item', 'week'\]",
        ),
        (
            lambda table, model: brtf.Observations.from_frame(
                table.assign(sold=table["sold"].astype(str)), INDEX, "sold"
            ),
            r"'sold', must hold real numbers.* pandas.to_numeric",
        ),
        (
            lambda table, model: model.predict({"shop": ["shop 3"], "item": ["fish"], "week": ["2024-02-26"]}),
            r"has no label shop 3 .*labels are shop 00 … shop 11\. Did you mean 'shop \d+'\?",
        ),
        (
            lambda table, model: model.predict({"shop": ["shop 03"], "item": ["fish"], "week": ["2024-02-27"]}),
            r"has no label 2024-02-27 .*labels are 2024-01-01 … 2024-07-22\.$",
        ),
        (lambda table, model: model.predict([0, 0, 0]), r"For one entry pass \[\[0\], \[0\], \[0\]\]"),
        (
            lambda table, model: brtf.BRTF(modes={"weak": "ordered"}).fit(model.result_.observations),
            r"Did you mean 'week'\?",
        ),
        (lambda table, model: model.report("p.html", names=["a"] * 9), r"names must be a text for each of the"),
        (lambda table, model: brtf.datasets.synthetic(30, 2), r"such as \(30, 20\)"),
    ],
)
def test_the_likeliest_mistakes_are_answered_with_what_was_meant(mistake, answer, brought, model):
    with pytest.raises((TypeError, ValueError), match=answer):
        mistake(brought.table, model)


def test_gaps_are_filled_in_a_table_like_the_one_brought(model, brought):
    filled = model.impute(replace_outliers=True)
    assert list(filled.columns) == [*INDEX, "sold"]
    assert filled["week"].dtype == brought.table["week"].dtype
    error = filled["sold"].to_numpy().reshape(model.shape_in_) - brought.truth
    # Observed values keep their noise of 3; missing ones and those replaced are known better than that.
    assert np.sqrt(np.mean(error**2)) < 3
    # The same numbers as an array of the shape of the tensor.
    np.testing.assert_array_equal(model.result_.low_rank().ravel(), model.low_rank()["sold"])
    assert model.to_xarray()["low_rank"].shape == model.result_.low_rank().shape == model.shape_in_


def test_wrong_values_are_listed(model, brought):
    listed = model.anomalies(q=0.05)
    found = places(listed)
    assert len(found & brought.wrong) >= 0.8 * len(brought.wrong)
    assert len(found - brought.wrong) <= 3
    assert (listed["observed"] > listed["high"]).all()


def test_questions_are_asked_with_labels(model, brought):
    at = {"shop": ["shop 03"], "item": ["fish"], "week": ["2024-02-26"]}
    mean, std = model.predict(at, return_std=True)
    truth = brought.truth[3, 5, 8]
    assert abs(mean[0] - truth) < 5 * std[0]


def test_loadings_carry_the_names_of_the_shops(model, brought):
    loadings = model.transform(Y=brtf.Observations.from_frame(brought.table, index=INDEX, value="sold"))
    assert loadings.index.name == "shop"
    assert list(loadings.index) == sorted(brought.table["shop"].unique())
    assert loadings.shape == (12, model.rank_)
    np.testing.assert_allclose(loadings, model.factors_[0], atol=0.05 * np.abs(model.factors_[0]).max())


def test_polars_in_polars_out(brought, model):
    table = pl.DataFrame({name: brought.table[name].to_numpy() for name in brought.table.columns})
    ours = brtf.BRTF(random_state=0).fit(brtf.Observations.from_frame(table, index=INDEX, value="sold"))
    assert isinstance(ours.impute(), pl.DataFrame)
    np.testing.assert_array_equal(ours.impute()["sold"], model.impute()["sold"])
    assert isinstance(ours.transform(ours.result_.observations), pl.DataFrame)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".xlsx", ".parquet"])
def test_files_in_files_out(suffix, brought, model, tmp_path, visit):
    source = tmp_path / f"sales{suffix}"
    save = {".xlsx": brought.table.to_excel, ".parquet": brought.table.to_parquet}.get(suffix)
    if save is None:
        brought.table.to_csv(source, index=False, sep=";", decimal=",")
    else:
        save(source, index=False)
    told = brtf_command("fit", source, "--out", tmp_path / "out")
    assert "12 shop (shop 00 … shop 11) × 7 item (apples … garlic) × 30 week (2024-01-01 … 2024-07-22)" in told
    written = tmp_path / "out" / f"imputed{suffix}"
    if suffix == ".xlsx":
        filled = pd.read_excel(written)
    elif suffix == ".parquet":
        filled = pd.read_parquet(written)
    else:
        filled = pd.read_csv(written, sep=";", decimal=",")
        outliers = pd.read_csv(tmp_path / "out" / "outliers.csv", sep=";", decimal=",")
        assert (outliers["probability"] > 0.5).all()
    np.testing.assert_allclose(filled["sold"].astype(float), model.impute()["sold"], rtol=1e-9)
    page = page_text(tmp_path / "out" / "report.html")
    assert f"sold in sales{suffix}" in page and "12 × 7 × 30" in page
    looked_at(visit, tmp_path / "out" / "report.html")
    if suffix == ".xlsx":
        told = brtf_command("anomalies", tmp_path / "out" / "result.brtf", "--q", "0.05", "--out", tmp_path / "lists")
        listed = pd.read_csv(tmp_path / "lists" / "anomalies.csv", parse_dates=["week"])
        assert places(listed) == places(model.anomalies(q=0.05))
        first = model.anomalies(q=0.05).iloc[0]
        assert f"{first['shop']}  {first['item']}" in " ".join(told.split("\n")[2:3])
        assert "00:00:00" not in told
        assert first["shop"] in page_text(tmp_path / "lists" / "anomalies.html")
