"""Same type in, same type out: answers in the container of the data, and at labels."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr

from brtf import BRTF, Observations, load
from brtf.datasets import synthetic
from brtf.io.storage import CorruptFile, read_archive, write_archive

Y = synthetic((9, 8, 7), 2, strengths=(1, 1), outliers=0.05, missing=0.2, seed=0).observed
MATRIX = Y.reshape(9, -1)[:, :20]
SITES, DAYS = list("abcdefghi"), pd.date_range("2024-02-26", periods=8)
ANSWERS = {
    "low_rank": lambda model: model.low_rank(),
    "impute": lambda model: model.impute(),
    "outliers": lambda model: model.outliers(),
    "outlier_probability": lambda model: model.outlier_probability(),
    "predict": lambda model: model.predict(),
    "std": lambda model: model.predict(return_std=True)[1],
    "low": lambda model: model.predict_interval()[0],
    "high": lambda model: model.predict_interval(of="observation")[1],
}


def fit(data):
    return BRTF(3, tol=1e-4, random_state=0).fit(data)


def labelled(values=Y):
    coords = {"site": SITES, "day": DAYS, "height": ("site", np.arange(9.0)), "station": 5}
    attrs = {"units": "K", "source": "buoy"}
    return xr.DataArray(values, dims=("site", "day", "hour"), coords=coords, attrs=attrs, name="temperature")


@pytest.fixture(scope="module")
def plain():
    return {"tensor": fit(Y), "matrix": fit(MATRIX)}


@pytest.mark.parametrize("answer", ANSWERS)
class TestContainers:
    def check(self, model, plain, answer, kind):
        found, wanted = ANSWERS[answer](model), np.asarray(ANSWERS[answer](plain))
        assert type(found) is kind
        return found, wanted

    def test_masked(self, plain, answer):
        model = fit(np.ma.masked_invalid(Y))
        found, wanted = self.check(model, plain["tensor"], answer, np.ma.MaskedArray)
        np.testing.assert_array_equal(found.data, wanted)
        hidden = np.isnan(Y) if answer.startswith("outlier") else np.zeros(Y.shape, bool)
        np.testing.assert_array_equal(np.ma.getmaskarray(found), hidden)

    def test_xarray(self, plain, answer):
        found, wanted = self.check(fit(labelled()), plain["tensor"], answer, xr.DataArray)
        np.testing.assert_array_equal(found, wanted)
        xr.testing.assert_identical(found.coords.to_dataset(), labelled().coords.to_dataset())
        assert found.attrs == ({} if answer == "outlier_probability" else labelled().attrs)

    @pytest.mark.parametrize("chunks", [3, 9])
    def test_small_dask(self, plain, answer, chunks):
        pytest.importorskip("dask")
        model = fit(labelled().chunk({"site": chunks}))
        found, wanted = self.check(model, plain["tensor"], answer, xr.DataArray)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05)
        assert found.height.values.tolist() == list(range(9))

    def test_wide(self, plain, answer):
        frame = pd.DataFrame(MATRIX, index=pd.Index(SITES, name="site"), columns=[f"c{k}" for k in range(20)])
        found, wanted = self.check(fit(frame), plain["matrix"], answer, pd.DataFrame)
        pd.testing.assert_frame_equal(found, pd.DataFrame(wanted, frame.index, frame.columns))

    def test_long(self, plain, answer):
        coords = np.argwhere(~np.isnan(Y))
        frame = pd.DataFrame({"site": np.array(SITES)[coords[:, 0]], "day": coords[:, 1], "hour": coords[:, 2]})
        model = fit(Observations.from_frame(frame.assign(level=Y[~np.isnan(Y)])))
        found, wanted = self.check(model, plain["tensor"], answer, pd.DataFrame)
        assert list(found)[:3] == ["site", "day", "hour"]
        entries = ~np.isnan(Y) if answer.startswith("outlier") else np.ones(Y.shape, bool)
        np.testing.assert_allclose(found.iloc[:, 3], wanted[entries], rtol=0, atol=1e-3)
        named = answer if answer in ("outliers", "outlier_probability", "std") else "level"
        assert found.columns[3] == named

    @pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_array])
    def test_sparse(self, answer, kind, plain):
        model = fit(kind(np.nan_to_num(MATRIX)))
        assert type(ANSWERS[answer](model)) is (kind if answer.startswith("outlier") else np.ndarray)

    def test_polars(self, plain, answer):
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({f"c{k}": MATRIX[:, k] for k in range(20)})
        found, wanted = self.check(fit(frame), plain["matrix"], answer, polars.DataFrame)
        assert found.columns == frame.columns
        np.testing.assert_array_equal(found.to_numpy(), wanted)


def test_polars_with_a_column_of_labels(plain):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"site": SITES, **{f"c{k}": MATRIX[:, k] for k in range(20)}})
    model = fit(frame)
    for answer in ANSWERS.values():
        found = answer(model)
        assert found.columns == frame.columns and found["site"].to_list() == SITES
        np.testing.assert_array_equal(found.drop("site").to_numpy(), answer(plain["matrix"]))
    with pytest.raises(TypeError, match=r"Pass labels by the names of the modes: \{'site': \[…\], 'column': \[…\]\}"):
        model.predict([["c"], ["c4"]])
    assert model.predict({"site": ["c"], "column": ["c4"]}) == plain["matrix"].predict([[2], [4]])
    assert model.transform(frame).columns == ["brtf0", "brtf1"]  # features, without labels
    with pytest.raises(TypeError, match="let its first column label the rows, each differently, and convert or drop"):
        fit(frame.with_columns(note=polars.lit("x")))


def test_tables_of_anomalies_are_of_the_kind_of_the_data():
    polars = pytest.importorskip("polars")
    coords = np.argwhere(~np.isnan(Y))
    columns = {"site": np.array(SITES)[coords[:, 0]], "day": DAYS.to_numpy()[coords[:, 1]], "hour": coords[:, 2]}
    long = polars.DataFrame(columns | {"level": Y[~np.isnan(Y)]})
    model = fit(Observations.from_frame(long))
    known = fit(Observations.from_frame(long.to_pandas()))
    for table in (lambda m: m.anomalies(), lambda m: m.anomalies(0.99, of="slices"), lambda m: m.to_frame()):
        found, wanted = table(model), table(known)
        assert isinstance(found, polars.DataFrame) and isinstance(wanted, pd.DataFrame)
        assert found.columns == list(wanted) and len(found) == len(wanted)
    assert model.anomalies(0.99, of="slices")["site"].dtype == polars.String


def test_arrow_tables_are_refused_with_what_to_pass():
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match=r"from_frame\(Y, index=\[…\], value=…\); if it is a matrix, pass Y\.to_pandas"):
        fit(pyarrow.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}))


def test_several_levels_of_columns_name_one_mode():
    columns = pd.MultiIndex.from_product([["u", "v"], range(10)], names=["kind", "number"])
    model = fit(pd.DataFrame(MATRIX, columns=columns))
    assert list(model.anomalies())[:2] == ["row", "kind, number"]


def test_datasets_keep_coordinates_and_units(plain):
    found = fit(labelled()).to_xarray()
    assert set(found.coords) == set(labelled().coords)
    assert all(found[name].attrs["units"] == "K" for name in ("observed", "low_rank", "std", "outliers"))
    assert found["outlier_probability"].attrs == found["factor_day"].attrs == {}


def test_float32_stays_float32():
    filled = fit(labelled(Y.astype(np.float32))).impute()
    assert filled.dtype == np.float32


def brought(kind):
    """The same numbers in one of the containers that people use."""
    long = labelled().to_series().dropna().reset_index()
    frame = pd.DataFrame(MATRIX, index=pd.Index(SITES, name="site"), columns=[f"c{k}" for k in range(20)])
    if kind.startswith("polars"):
        polars = pytest.importorskip("polars")
        wide = polars.DataFrame({f"c{k}": MATRIX[:, k] for k in range(20)})
        labels = polars.Series("site", SITES)
        own = {"polars": wide, "polars, labelled": wide.clone().insert_column(0, labels)}
        return own[kind] if kind in own else Observations.from_frame(polars.from_pandas(long))
    return {
        "array": Y,
        "masked": np.ma.masked_invalid(Y),
        "sparse": scipy.sparse.csr_array(np.nan_to_num(MATRIX)),
        "wide": frame,
        "wide, numbered": pd.DataFrame(MATRIX),
        "long": Observations.from_frame(long),
    }[kind]


KINDS = ("array", "masked", "sparse", "wide", "wide, numbered", "long", "polars", "polars, labelled", "polars, long")


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_models_answer_in_the_same_type(kind, tmp_path):
    model = fit(brought(kind))
    model.save(tmp_path / "fit.brtf")
    again = load(tmp_path / "fit.brtf")
    for answer in ANSWERS.values():
        found, wanted = answer(again), answer(model)
        assert type(found) is type(wanted)
        if isinstance(wanted, pd.DataFrame):
            pd.testing.assert_frame_equal(found, wanted)
        elif hasattr(wanted, "equals"):
            assert found.equals(wanted)
        else:
            dense = [one.toarray() if scipy.sparse.issparse(one) else one for one in (found, wanted)]
            np.testing.assert_array_equal(*dense)


def test_loaded_models_keep_coordinates_and_attributes(tmp_path):
    data = labelled().assign_attrs(missing=float("nan"), flags=np.array([1, 2], np.int16), history=["a", {"b": 1}])
    data["height"].attrs["units"] = "m"
    data["site"].attrs["long_name"] = "measuring site"
    model = fit(data)
    model.save(tmp_path / "fit.brtf")
    again = load(tmp_path / "fit.brtf")
    for answer in ANSWERS.values():
        xr.testing.assert_identical(answer(again), answer(model))
    loadings = again.transform(data[:4])
    xr.testing.assert_identical(again.inverse_transform(loadings), model.inverse_transform(model.transform(data[:4])))
    xr.testing.assert_identical(again.to_xarray(), model.to_xarray())


def test_attributes_that_no_file_can_hold_are_named(tmp_path):
    model = fit(labelled().assign_attrs(made_by=print))
    with pytest.warns(UserWarning, match="The attribute 'made_by' of Y, a builtin_function_or_method, is not saved"):
        model.save(tmp_path / "fit.brtf")
    assert load(tmp_path / "fit.brtf").low_rank().attrs == labelled().attrs


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pickle"},
        {"kind": "wide"},
        {"kind": "sparse", "class": "issparse"},
        {"coords": [{"name": "site", "dims": ["day"], "is_label": True, "attrs": []}]},
        {"coords": [{"name": "x", "dims": [], "is_label": False, "attrs": []}]},
        {"attrs": [["units", None, True]]},
        {"attrs": 3},
    ],
)
def test_files_that_were_altered_are_refused(change, tmp_path):
    fit(labelled()).save(tmp_path / "fit.brtf")
    header, arrays = read_archive(tmp_path / "fit.brtf")
    header["container"] |= change
    write_archive(tmp_path / "fit.brtf", header, arrays)
    with pytest.raises(CorruptFile, match="its content does not fit"):
        load(tmp_path / "fit.brtf")


@pytest.mark.parametrize("kind", ["wide", "polars", "polars, labelled", "labelled"])
def test_tables_grow_block_by_block(kind):
    data = labelled() if kind == "labelled" else brought(kind)
    model = BRTF(2, tol=1e-4, random_state=0).partial_fit(data[:6]).partial_fit(data[6:])
    assert len(data) == 9
    for answer in ANSWERS.values():
        found = answer(model)
        assert type(found) is type(data) and found.shape == data.shape
        if kind == "wide":
            assert found.index.equals(data.index)
        elif kind == "polars, labelled":
            assert found["site"].to_list() == SITES
        elif kind == "labelled":
            assert found["site"].to_numpy().tolist() == SITES
    assert model.inverse_transform(model.transform(data[:2])).shape == (
        data[:2].shape if kind != "polars, labelled" else (2, 20)
    )


DRAWN = {
    "xarray": lambda drawn: drawn.transpose("draw", "site", "day", "hour").to_numpy(),
    "wide": lambda drawn: np.stack([drawn.loc[k].to_numpy() for k in range(2)]),
    "wide, numbered": lambda drawn: np.stack([drawn.xs(k, level="draw").to_numpy() for k in range(2)]),
    "polars": lambda drawn: np.stack([part.drop("draw").to_numpy() for part in drawn.partition_by("draw")]),
    "polars, labelled": lambda drawn: np.stack(
        [part.drop("draw", "site").to_numpy() for part in drawn.partition_by("draw")]
    ),
    "long": lambda drawn: drawn.sort_values("draw", kind="stable")["temperature"].to_numpy().reshape(2, 9, 8, 7),
    "polars, long": lambda drawn: drawn.sort("draw", maintain_order=True)["temperature"].to_numpy().reshape(2, 9, 8, 7),
}


@pytest.mark.parametrize("kind", ["xarray", *KINDS])
def test_draws_come_in_what_the_data_came_in(kind):
    data = labelled() if kind == "xarray" else brought(kind)
    model = fit(data)
    drawn, wanted = model.sample(2, random_state=1), model.result_.sample(2, np.random.default_rng(1))
    if isinstance(data, Observations):
        assert type(drawn) is type(model.low_rank()) and list(drawn.columns) == [
            "site",
            "day",
            "hour",
            "draw",
            "temperature",
        ]
    elif kind == "sparse":
        assert type(drawn) is np.ndarray
    else:
        assert type(drawn) is type(data)
    np.testing.assert_array_equal(DRAWN.get(kind, np.asarray)(drawn), wanted)
    if kind == "xarray":
        assert drawn.attrs == data.attrs and set(drawn.coords) == set(data.coords)
    if kind == "wide":
        assert drawn.index.names == ["draw", "site"] and drawn.loc[1].columns.equals(data.columns)
    if kind == "polars, labelled":
        assert drawn.columns[:2] == ["draw", "site"] and drawn["site"].to_list() == SITES * 2


def test_draws_of_data_with_a_draw_of_their_own():
    assert fit(labelled().rename(hour="draw")).sample(2).dims == ("draw_", "site", "day", "draw")


class TestForecasts:
    def ahead(self, data):
        return BRTF(2, modes={1: "ordered"}, tol=1e-4, random_state=0).fit(data).forecast(3, mode=1)

    def test_of_labelled_arrays(self):
        found = self.ahead(labelled())
        dataset = found.to_xarray()
        assert list(dataset) == ["mean", "std", "low", "high"]
        for name in dataset:
            np.testing.assert_array_equal(dataset[name], getattr(found, name))
            assert dataset[name].attrs == labelled().attrs
        assert np.array_equal(dataset.day, pd.date_range("2024-03-05", periods=3))
        assert dataset.height.values.tolist() == list(range(9)) and "station" in dataset.coords

    def test_of_arrays(self):
        found = self.ahead(Y)
        assert found.to_xarray()["mean"].dims == ("mode_0", "mode_1", "mode_2")
        assert found.to_xarray()["mode_1"].values.tolist() == found.labels.tolist() == [8, 9, 10]
        assert found.to_frame()["mode_1"].tolist()[:21:7] == [8, 9, 10]

    def test_of_polars(self):
        polars = pytest.importorskip("polars")
        assert isinstance(self.ahead(brought("polars, long")).to_frame(), polars.DataFrame)


class TestLabels:
    def test_predict_at_labels(self):
        model = fit(labelled())
        wanted = model.predict([[0, 3], [1, 1], [2, 6]])
        asked = {"site": ["a", "d"], "day": ["2024-02-27", "2024-02-27"], "hour": [2, 6]}
        for coords in (asked, pd.DataFrame(asked), {**asked, "day": DAYS[[1, 1]]}):
            np.testing.assert_array_equal(model.predict(coords), wanted)
        np.testing.assert_array_equal(model.predict_interval(asked), model.predict_interval([[0, 3], [1, 1], [2, 6]]))
        assert model.sample(4, asked, random_state=0).shape == (4, 2)

    @pytest.mark.parametrize(
        ("coords", "message"),
        [
            ({"site": ["z"], "day": DAYS[:1], "hour": [0]}, "mode 'site' has no label z"),
            ({"site": ["a"]}, "has none of"),
            ({"site": ["a", "b"], "day": DAYS[:1], "hour": [0]}, "as many labels"),
        ],
    )
    def test_refuses(self, coords, message):
        with pytest.raises(ValueError, match=message):
            fit(labelled()).predict(coords)

    def test_the_nearest_of_labels_that_are_numbers_is_named(self):
        levels = labelled().assign_coords(hour=np.linspace(0.0, 3.0, Y.shape[2]))
        with pytest.raises(ValueError, match=r"no label 2\.9 .* are 0 … 3\. The nearest is 3\.0\.$"):
            fit(levels).predict({"site": ["a"], "day": DAYS[:1], "hour": [2.9]})


class TestLoadings:
    def test_back_to_slices(self, plain):
        wanted = plain["tensor"].inverse_transform(plain["tensor"].transform(Y[:4]))
        model, tensor = fit(labelled()), labelled()[:4]
        found = model.inverse_transform(model.transform(tensor))
        np.testing.assert_array_equal(found, wanted)
        xr.testing.assert_identical(found.coords.to_dataset(), tensor.coords.to_dataset())
        assert found.attrs == tensor.attrs

    def test_back_to_tables(self, plain):
        wanted = plain["matrix"].inverse_transform(plain["matrix"].transform(MATRIX[:4]))
        frame = pd.DataFrame(MATRIX, index=pd.Index(SITES, name="site"), columns=[f"c{k}" for k in range(20)])
        model = fit(frame)
        found = model.inverse_transform(model.transform(frame[:4]))
        pd.testing.assert_frame_equal(found, pd.DataFrame(wanted, frame.index[:4], frame.columns))
        assert type(model.inverse_transform(model.transform(MATRIX[:4]))) is np.ndarray
        polars = pytest.importorskip("polars")
        assert model.inverse_transform(polars.DataFrame(np.ones((2, 2)))).columns == list(frame.columns)

    def test_transform(self, plain):
        model, tensor = fit(labelled()), labelled()[:4]
        found, std = model.transform(tensor, return_std=True)
        assert found.dims == std.dims == ("site", "component")
        assert found.site.values.tolist() == SITES[:4] and "height" in found.coords and "day" not in found.coords
        np.testing.assert_array_equal(found, plain["tensor"].transform(Y[:4]))

    def test_set_output(self, plain):
        model = fit(MATRIX).set_output(transform="pandas")
        names = [f"brtf{component}" for component in range(model.rank_)]
        assert model.get_feature_names_out().tolist() == names
        found = model.transform(pd.DataFrame(MATRIX, index=SITES))
        assert found.columns.tolist() == names and found.index.tolist() == SITES

    def test_inverse_transform(self, plain):
        model = plain["tensor"]
        slices = model.inverse_transform(model.factors_[0][:3])
        np.testing.assert_allclose(slices, model.low_rank()[:3], rtol=1e-12, atol=1e-12)
        with pytest.raises(ValueError, match="a loading per component"):
            model.inverse_transform(np.ones((3, 9)))

    def test_inverse_transform_through_a_link(self):
        model = BRTF(2, link="log", tol=1e-4, random_state=0).fit(np.exp(MATRIX))
        np.testing.assert_allclose(
            model.inverse_transform(model.factors_[0]), np.exp(model.factors_[0] @ model.factors_[1].T)
        )
