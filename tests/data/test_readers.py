"""Files become tensors: every format says the same, and a bad file is refused in a sentence that names it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io.matlab
import xarray as xr
import zarr
from scipy.io import loadmat, savemat, whosmat
from scipy.sparse import csc_array, issparse

from brtf.data.observe import observe
from brtf.data.readers import read_file, read_mask, read_tensor
from tensor_files import ARRAY_FORMATS, FORMATS, TABLE_FORMATS, example, write


@pytest.fixture
def tensor() -> np.ndarray:
    return example()


def content(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of every file of a directory."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


def refusal(path: Path, error: type[Exception] = ValueError, **options: Any) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(error) as caught:
        read_tensor(path, **options)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_the_documents_list_every_format() -> None:
    text = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`\..*?) \|", text, flags=re.MULTILINE)
    listed = [suffix for cell in first_cells for suffix in re.findall(r"`(\.[\w.]+)`", cell)]
    known = refusal(Path("y.unknown")).partition("none of ")[2].partition(":")[0].split(", ")
    assert sorted(listed) == sorted(known)


@pytest.mark.parametrize("suffix", [*FORMATS, ".NPY"])
def test_every_format_gives_the_same_entries(tmp_path: Path, tensor: np.ndarray, suffix: str) -> None:
    written = write(tmp_path / f"y{suffix.lower()}", tensor).rename(tmp_path / f"y{suffix}")
    before = content(written)
    got, wanted = observe(read_tensor(written)), observe(tensor)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got.entry_coords(), wanted.entry_coords())
    np.testing.assert_array_equal(got.values, wanted.values)  # text holds the shortest digits that round-trip
    assert content(written) == before


def test_an_npy_file_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.ones((3, 2), dtype=np.float32, order="F"))
    assert isinstance(read_tensor(str(tmp_path / "y.npy")), np.memmap)


def save_zarr_group(path: Path, arrays: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=array, config={"write_empty_chunks": True})


SEVERAL = {
    ".npz": lambda path, arrays: np.savez(path, **arrays),
    ".mat": savemat,
    ".nc": lambda path, arrays: xr.Dataset(
        {name: ((f"{name}_row", f"{name}_column"), array) for name, array in arrays.items()}
    ).to_netcdf(path, engine="h5netcdf"),
    ".zarr": save_zarr_group,
}


@pytest.mark.parametrize("suffix", SEVERAL)
def test_key_chooses_among_arrays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"y{suffix}"
    arrays = {"first": np.zeros((2, 2)), "second": np.ones((2, 3))}
    SEVERAL[suffix](path, arrays)
    for name, array in arrays.items():
        read = read_file(path, key=name)
        assert read.name == name
        np.testing.assert_array_equal(read.tensor, array)
    assert re.search(r"first.*, second|second.*, first", refusal(path))
    assert re.search(r'such as --key (first|second) or key="', refusal(path))
    assert "'third'" in refusal(path, key="third")


@pytest.mark.parametrize("suffix", ARRAY_FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8])
def test_arrays_keep_their_type(tmp_path: Path, suffix: str, dtype: type) -> None:
    tensor = np.arange(6, dtype=dtype).reshape(2, 3)
    read = read_tensor(write(tmp_path / f"y{suffix}", tensor))
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, tensor)


def test_a_sparse_matrix_of_a_mat_file_stays_sparse(tmp_path: Path) -> None:
    savemat(tmp_path / "y.mat", {"y": csc_array(np.diag([1.0, 2.0, 3.0]))})
    assert observe(read_tensor(tmp_path / "y.mat")).n_observed == 3


pytestmark = pytest.mark.filterwarnings("ignore:.*has no checksums")  # as libraries write Zarr by default

LABELLED = xr.DataArray(
    [[1.5, np.nan, 2.0], [-1.0, 0.5, 3.0]],
    dims=("site", "day"),
    coords={
        "site": ["Åre", "Rome"],
        "day": np.array(["2024-01-31", "2024-02-29", "2024-03-31"], dtype="M8[ns]"),
        "height": ("site", [380.0, 21.0]),
    },
    name="level",
    attrs={"units": "seconds"},  # no duration, whatever the Conventions on Climate and Forecast may think
)
BY_OBJECTS = LABELLED.assign_coords(site=LABELLED.site.astype(object))


@pytest.mark.parametrize(
    ("suffix", "save"),
    [
        (".nc", lambda path: LABELLED.to_netcdf(path, engine="h5netcdf")),
        (".nc", lambda path: LABELLED.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")),
        (".zarr", lambda path: LABELLED.to_dataset().to_zarr(path, zarr_format=2, consolidated=True)),
        (".zarr", lambda path: BY_OBJECTS.to_dataset().to_zarr(path, zarr_format=3)),
    ],
    ids=["nc4", "nc3", "zarr2", "zarr3"],
)
@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:The codec")  # of zarr, about the test's files
def test_labels_of_files_are_kept(tmp_path: Path, suffix: str, save: Any) -> None:
    save(tmp_path / f"y{suffix}")
    read = read_tensor(tmp_path / f"y{suffix}")
    assert read.attrs == LABELLED.attrs
    observations = observe(read)
    assert observations.labels.dims == LABELLED.dims
    assert observations.labels.name == "level"
    for got, dim in zip(observations.labels.coords, LABELLED.dims, strict=True):
        np.testing.assert_array_equal(got, LABELLED[dim])
    np.testing.assert_array_equal(observations.mask, LABELLED.notnull())


def test_packed_numbers_are_unpacked_and_fill_values_missing(tmp_path: Path) -> None:
    encoding = {"level": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -99}}
    LABELLED.to_netcdf(tmp_path / "y.nc", engine="h5netcdf", encoding=encoding)
    np.testing.assert_array_equal(read_tensor(tmp_path / "y.nc"), LABELLED)


def test_a_variable_without_a_name_stays_without(tmp_path: Path) -> None:
    LABELLED.rename(None).to_netcdf(tmp_path / "y.nc", engine="h5netcdf")
    assert read_tensor(tmp_path / "y.nc").name is None


def test_a_zarr_array_may_name_its_modes(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((2, 3)), dimension_names=["site", "day"])
    assert read_tensor(tmp_path / "y.zarr").dims == ("site", "day")
    assert "leave key out" in refusal(tmp_path / "y.zarr", key="y")


def matlab_files() -> list[Path]:
    """MATLAB's own files of every version and byte order, where SciPy came with its tests."""
    return sorted(Path(scipy.io.matlab.__file__).parent.glob("tests/data/*.mat"))


@pytest.mark.skipif(not matlab_files(), reason="SciPy came without its tests")
@pytest.mark.filterwarnings("ignore")  # of SciPy, about the files
def test_files_of_matlab_are_read_as_scipy_reads_them() -> None:
    n_compared = 0
    for path in matlab_files():
        try:
            names = [name for name, _, _ in whosmat(path)]
        except Exception:  # some are there to be refused
            continue
        for name in names:
            try:
                read = read_tensor(path, key=name)
            except ValueError:
                continue
            wanted = loadmat(path, variable_names=[name], mat_dtype=True)[name]
            if issparse(read):  # of which SciPy keeps the narrow type in which small numbers are stored
                read, wanted = read.toarray(), wanted.toarray().astype(read.dtype)
            assert read.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("=")
            np.testing.assert_array_equal(read, wanted, err_msg=f"{path.name}, {name}")
            n_compared += 1
    assert n_compared > 30  # the others hold text, cells, structs and complex numbers


@pytest.mark.parametrize("dtype", [bool, float])
@pytest.mark.parametrize("do_compression", [False, True])
def test_sparse_matrices_of_mat_files(tmp_path: Path, dtype: type, do_compression: bool) -> None:
    matrix = np.diag([1, 0, 1, 1])[:, :3].astype(dtype)
    savemat(tmp_path / "y.mat", {"y": csc_array(matrix)}, do_compression=do_compression)
    np.testing.assert_array_equal(read_tensor(tmp_path / "y.mat").toarray(), matrix)


@pytest.mark.parametrize("suffix", TABLE_FORMATS)
def test_columns_of_a_table_are_chosen_by_name_and_keep_their_labels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"y{suffix}"
    frame = pd.DataFrame({"y": [1.5, np.nan, -2], "who": ["bob", "NA", "NA"], "note": ["x"] * 3, "when": [10, 9, 10]})
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if suffix == ".tsv" else ",", index=False)
    read = read_tensor(path, index=["when", "who"], value="y")
    assert read.shape == (2, 2)
    assert read.labels.dims == ("when", "who")
    assert read.labels.name == "y"
    assert [names.tolist() for names in read.labels.coords] == [[9, 10], ["NA", "bob"]]  # NA is a label, not a gap
    np.testing.assert_array_equal(read.entry_coords(), [[1, 1], [0, 1]])
    np.testing.assert_array_equal(read.values, [-2.0, 1.5])
    assert "no column 'where'; its columns are: y, who, note, when" in refusal(path, index=["when", "where"])
    assert "hold the values" in refusal(path, index=["y", "who", "note", "when"])


def test_a_table_whose_first_column_numbers_the_rows_is_not_guessed_at(tmp_path: Path) -> None:
    pd.DataFrame({"row": [0, 1], "column": [0, 1], "y": [1.0, 2.0]}).to_csv(tmp_path / "y.csv")
    sentence = refusal(tmp_path / "y.csv")
    assert "--index row,column --value y." in sentence
    assert sentence.endswith("Wide, with values in many columns: --wide.")
    assert read_tensor(tmp_path / "y.csv", index=["row", "column"]).shape == (2, 2)


def test_the_index_of_a_pandas_table_in_parquet_is_the_index(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": [5, 6, 6], "column": ["b", "a", "b"], "y": np.array([1, 2, 3], dtype=np.float32)})
    frame.set_index(["row", "column"]).to_parquet(tmp_path / "y.parquet")
    read = read_tensor(tmp_path / "y.parquet")
    assert read.labels.dims == ("row", "column")
    assert read.values.dtype == np.float32
    frame[frame["y"] > 1].to_parquet(tmp_path / "y.parquet")  # with the numbers of the rows that are left
    assert read_tensor(tmp_path / "y.parquet").labels.dims == ("row", "column")


@pytest.mark.parametrize(
    ("suffix", "module", "extra"),
    [
        (".csv", "pandas", "label"),
        (".parquet", "pandas", "label"),
        (".parquet", "pyarrow.parquet", "label"),
        (".nc", "xarray", "label"),
        (".nc", "h5netcdf", "label"),
        (".nc", "h5py", "label"),
        (".zarr", "zarr", "big"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, tensor: np.ndarray, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str, extra: str
) -> None:
    path = write(tmp_path / f"y{suffix}", tensor)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"{module} is needed for" in refusal(path)
    assert f'pip install "brtf[{extra}]"' in refusal(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b,y\n1,2,3\n1,3,4.5x\n", "row 2 below the header, column 'y': '4.5x' is not a number (1 such cell in all)"),
        ("a,y,b\nx,3,4\n,4,5\n,4,6\n", "row 2 below the header has no label in column 'a' (2 such rows in all)"),
        ("a,b,y\n1,2,.5\n2,2,3\n1,2,4\n", "rows 1 and 3 below the header are both at [a=1, b=2] (1 duplicate in all)"),
        ("a,b,y\n1,2,3\n\n1,3\n", "row 2 below the header has 2 cells and not 3"),
        ("a,b,y\n1,2,3,4\n1,3,4,5\n", "row 1 below the header has 4 cells and not 3"),
        ("a,b,y\n1,2,3\n1,3,4,5\n", "line 3"),
        ("a,b,y\n1,2,inf\n", "[a=1, b=2] is inf"),
        ("a,b,y\n", "no observed entry"),
        ("a,b,y\n1,2,NA\n", "no observed entry"),
        ("a,y\n1,2\n", "order >= 2"),
    ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "y.csv").write_text(text)
    assert sentence in refusal(tmp_path / "y.csv")


GRID = {"row": np.repeat(range(5), 4), "column": np.tile(range(4), 5)}
MEASURED = pd.DataFrame(np.random.default_rng(0).standard_normal((6, 52)).round(3)).add_prefix("w")


@pytest.mark.parametrize("suffix", TABLE_FORMATS)
@pytest.mark.parametrize("labels", [list("ABCDEF"), pd.date_range("2024-01-31", periods=6).astype(str)])
@pytest.mark.parametrize("name", ["site", None])
def test_labels_and_numbers_are_a_matrix(tmp_path: Path, suffix: str, labels: Any, name: str | None) -> None:
    frame = MEASURED.set_axis(pd.Index(labels, name=name)).copy()
    frame.iloc[2, 3] = np.nan
    path = tmp_path / f"y{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if suffix == ".tsv" else ",")
    read = read_tensor(path)
    assert read.labels.dims == (name or "row", "column")
    assert [names.tolist() for names in read.labels.coords] == [list(labels), frame.columns.tolist()]
    np.testing.assert_array_equal(read.mask, frame.notna())
    np.testing.assert_array_equal(read.values, frame.to_numpy()[frame.notna()])


@pytest.mark.parametrize(
    "long",
    [
        pd.DataFrame({"site": ["a", "b"], "kind": ["x", "y"], "y": [0.5, 1.5]}),
        pd.DataFrame({"site": ["a", "a", "b"], "year": [2001, 2002, 2001], "y": [0.5, 1.5, 2.0]}),
        pd.DataFrame({**GRID, "y": np.arange(20) / 2}),
        pd.DataFrame({**GRID, "y": np.arange(20)}),
    ],
    ids=["labels", "label and years", "positions", "whole values"],
)
def test_a_long_table_needs_no_names(tmp_path: Path, long: pd.DataFrame) -> None:
    long.to_csv(tmp_path / "y.csv", index=False)
    assert read_tensor(tmp_path / "y.csv").labels.dims == tuple(long.columns[:2])


@pytest.mark.parametrize(
    ("frame", "long", "wide"),
    [
        (MEASURED, "--index A,B --value w51.", "--wide, or --wide --index w0 if that column labels the rows."),
        (
            pd.DataFrame({"day": ["d", "d", "e"], "a site": ["a", "b", "a"], "temp": [1.5, 2, 3], "rain": [0.1, 2, 3]}),
            "--index 'day,a site' --value rain.",
            "--wide --index 'day,a site'.",
        ),
        (
            pd.DataFrame({"group": list("aabb"), "x": [0.1, 2, 3, 4], "y": [2.5, 3, 4, 5]}),
            "A,B",
            "--wide --index group.",
        ),
        (pd.DataFrame({"year": [1, 2, 3], "wins": [4, 6, 8], "losses": [9, 7, 5]}), "year,wins", "--wide --index year"),
        (pd.DataFrame(np.eye(20, dtype=int)).add_prefix("q"), "--index A,B", "--wide, or"),
    ],
    ids=["measurements", "two labels", "labels that repeat", "counts", "zeros and ones"],
)
def test_a_table_of_two_readings_is_refused_with_both(
    tmp_path: Path, frame: pd.DataFrame, long: str, wide: str
) -> None:
    frame.to_csv(tmp_path / "y.csv", index=False)
    sentence = refusal(tmp_path / "y.csv")
    assert long in sentence
    assert wide in sentence


def test_a_table_that_is_said_to_be_wide(tmp_path: Path) -> None:
    MEASURED.assign(year=range(2001, 2007)).to_csv(tmp_path / "y.csv", index=False)
    named = read_tensor(tmp_path / "y.csv", wide=True, index=["year"])
    assert named.labels.dims == ("year", "column")
    np.testing.assert_array_equal(named.values, MEASURED)
    assert read_tensor(tmp_path / "y.csv", wide=True).shape == (6, 53)
    assert "leave out --value" in refusal(tmp_path / "y.csv", wide=True, value="w0")
    assert "52 columns besides its values" in refusal(tmp_path / "y.csv", value="year")


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_wide_table_whose_rows_have_several_labels_is_a_tensor(tmp_path: Path, suffix: str) -> None:
    """As a pivot table has them; the columns keep their order."""
    frame = pd.DataFrame(
        {"shop": list("aabb"), "item": list("xyxy"), "Jan": [1.0, 2, 3, 4], "Feb": [5, 6, None, 8], "Mar": [9.0] * 4}
    )
    path = tmp_path / f"y{suffix}"
    (frame.to_csv if suffix == ".csv" else frame.to_excel)(path, index=False)
    assert "--wide --index shop,item." in refusal(path)
    read = read_tensor(path, wide=True, index=["shop", "item"])
    assert read.labels.dims == ("shop", "item", "column")
    assert [names.tolist() for names in read.labels.coords] == [["a", "b"], ["x", "y"], ["Jan", "Feb", "Mar"]]
    numbers = frame[["Jan", "Feb", "Mar"]].to_numpy().reshape(2, 2, 3)
    np.testing.assert_array_equal(read.values, numbers[~np.isnan(numbers)])
    (tmp_path / "y.csv").write_text("shop,item,Jan,Feb\na,x,1,2\nb,y,n.d.,3\n")
    told = refusal(tmp_path / "y.csv", wide=True, index=["shop", "item"])
    assert "row 2 below the header, column 'Jan': 'n.d.' is not a number" in told


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_a_column_of_remarks_that_nobody_made_is_ignored(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame({"day": [1, 1, 2], "site": ["a", "b", "a"], "rain": [0.5, 1.5, np.nan], "remark": None})
    path = tmp_path / f"y{suffix}"
    getattr(frame, {".csv": "to_csv", ".xlsx": "to_excel", ".parquet": "to_parquet"}[suffix])(path, index=False)
    read = read_tensor(path)
    assert (read.labels.dims, read.labels.name, read.n_observed) == (("day", "site"), "rain", 2)
    frame.assign(rain=["€ 5", "€ 6", "€ 7"]).to_csv(tmp_path / "y.csv", index=False)
    assert "column 'rain': '€ 5' is not a number" in refusal(tmp_path / "y.csv", index=["day", "site"])


def test_a_clip_is_sent_to_the_command_that_reads_it(tmp_path: Path) -> None:
    assert "brtf video" in refusal(tmp_path / "clip.mp4")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.5,1.5\n2.5,3\n", "its first line holds numbers"),
        ("s,a,b\nx,1,2\ny,3,n.d.\n", "row 2 below the header, column 'b': 'n.d.' is not a number"),
    ],
)
def test_a_table_of_another_form_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "y.csv").write_text(text)
    assert sentence in refusal(tmp_path / "y.csv")


def test_a_label_of_a_wide_table_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("s,a,b\nx,1,2\ny,3,4\nx,5,6\n")
    assert "rows 1 and 3 below the header both have the label 'x'" in refusal(tmp_path / "y.csv", wide=True)


def test_numbers_that_pandas_cannot_hold_as_integers_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text(f"a,b,y\n1,2,{10**30}\n2,2,3\n")
    np.testing.assert_array_equal(read_tensor(tmp_path / "y.csv").values, [1e30, 3.0])


def test_text_in_a_parquet_column_of_values_is_named(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 1], "b": [1, 2], "y": ["1.5", "x"]}).to_parquet(tmp_path / "y.parquet")
    assert "row 2 below the header, column 'y': 'x' is not a number" in refusal(tmp_path / "y.parquet")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0 1 2.0\n", "from 1"),
        ("1 1 2.0\n1.5 1 2.0\n", "entry 2 in mode 0 is 1.5"),
        ("1 nan 2.0\n", "nan"),
        ("1 inf 2.0\n", "inf"),
        ("1 1e300 2.0\n", "1e+300"),
        ("1 1 2.0\n1 2\n", "line 2 holds 2 numbers, but those before it 3"),
        ("1 one 2.0\n", "line 1 holds 'one', which is no number"),
        ("# nothing\n\n", "no entry"),
        ("1 2.0\n", "order >= 2"),
        ("1 1 2.0\n2 1 4.0\n1 1 3.0\n", "entry 3 is at [1, 1], where another one is already (1 duplicate in all)"),
        ("1 1 inf\n", "infinite"),
    ],
)
def test_bad_coordinates_are_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "y.tns").write_text(text)
    assert word in refusal(tmp_path / "y.tns")


def test_other_suffixes_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    assert ".tns" in refusal(tmp_path / "y.ods")
    refusal(tmp_path / "y")
    assert "does not exist" in refusal(tmp_path / "y.npy", FileNotFoundError)
    (tmp_path / "d.npy").mkdir()
    assert "directory" in refusal(tmp_path / "d.npy")
    (tmp_path / "f.zarr").write_bytes(b"archive")
    assert "directory" in refusal(tmp_path / "f.zarr")


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".npy", {"key": "y"}), (".nc", {"index": ["a"]}), (".csv", {"key": "y"}), (".tns", {"value": "y"})],
)
def test_an_argument_that_does_not_apply_is_refused(
    tmp_path: Path, tensor: np.ndarray, suffix: str, options: dict[str, Any]
) -> None:
    sentence = refusal(write(tmp_path / f"y{suffix}", tensor), **options)
    assert f"{next(iter(options))} does not apply" in sentence


@pytest.mark.parametrize("suffix", ARRAY_FORMATS)
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64])
def test_a_mask_is_boolean_whatever_its_file(tmp_path: Path, suffix: str, dtype: type) -> None:
    mask = np.array([[True, False, True], [False, True, True]])
    read = read_mask(write(tmp_path / f"m{suffix}", mask.astype(dtype)))
    assert read.dtype == np.bool_
    np.testing.assert_array_equal(read, mask)


@pytest.mark.parametrize("entry", [2.0, 0.5, -1.0, np.nan])
def test_a_mask_of_other_numbers_is_refused(tmp_path: Path, entry: float) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.array([[1.0, entry]]))
    with pytest.raises(ValueError, match=rf"m\.npy is not a mask: it holds {entry}"):
        read_mask(path)


def test_a_mask_is_neither_sparse_nor_a_table(tmp_path: Path, tensor: np.ndarray) -> None:
    savemat(tmp_path / "m.mat", {"m": csc_array(np.eye(3))})
    with pytest.raises(ValueError, match=r"m\.mat holds a sparse matrix"):
        read_mask(tmp_path / "m.mat")
    with pytest.raises(ValueError, match=r"m\.csv has the suffix"):
        read_mask(write(tmp_path / "m.csv", tensor))


def test_numbers_stored_as_text_in_parquet_count_as_often_as_they_are_there(tmp_path: Path) -> None:
    """Others among them are mistakes, even where they are more different ones."""
    frame = pd.DataFrame({"name": list("abcdefg"), "x": ["1", "1", None, "1", "1", "2", "2"], "y": np.arange(7.0)})
    frame.to_parquet(tmp_path / "y.parquet")
    read = read_tensor(tmp_path / "y.parquet")
    assert (read.shape, read.n_observed) == ((7, 2), 13)
    frame.assign(x=["1", "1", None, "1", "1", "p", "q"]).to_parquet(tmp_path / "y.parquet")
    assert "row 6 below the header, column 'x': 'p' is not a number" in refusal(tmp_path / "y.parquet")
