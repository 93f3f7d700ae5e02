"""A tensor goes back in the form of the file that another one came from, and reads back as it was."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from scipy.io import savemat
from scipy.sparse import csc_array

from brtf.data.observe import observe
from brtf.data.readers import read_file, read_tensor
from brtf.io.writers import ROWS_AT_ONCE, dates_as_text, write_csv, write_like
from tensor_files import FORMATS, example, write

pytestmark = pytest.mark.filterwarnings("ignore:.*has no checksums")  # as libraries write Zarr by default

LABELLED = xr.DataArray(
    np.array([[1.5, np.nan, 2.0], [-1.0, 0.5, 3.0]]),
    dims=("site", "day"),
    coords={
        "site": ["Åre, S", "Rome\t2"],
        "day": np.array(["2024-01-31", "2024-02-29", "2024-03-31"], dtype="M8[ns]"),
        "height": ("site", [380.0, 21.0]),
    },
    name="level",
    attrs={"units": "m"},
)
LONG = LABELLED.drop_vars("height").to_dataframe().reset_index().dropna()
NUMBERED = LONG.assign(site=LONG["site"].astype("category"), day=LONG["day"].dt.month)


def rewritten(source: Path, tensor: np.ndarray) -> Path:
    """The file that is written of a tensor in the form of another file."""
    path = source.with_name(f"imputed{source.suffix}")
    write_like(read_file(source), path, tensor)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tensor_comes_back_exactly(tmp_path: Path, suffix: str, dtype: type) -> None:
    source = write(tmp_path / f"y{suffix}", example())
    tensor = np.random.default_rng(1).standard_normal((4, 3, 2)).astype(dtype)
    before, after = read_file(source), read_file(rewritten(source, tensor))
    assert (after.suffix, after.name, type(after.tensor)) == (before.suffix, before.name, type(before.tensor))
    read = observe(after.tensor)
    np.testing.assert_array_equal(read.values.ravel(), tensor.ravel())
    assert read.values.dtype == (np.float64 if suffix in (".csv", ".tsv", ".tns") else dtype)  # text has no type
    assert read.shape == tensor.shape
    labels = observe(before.tensor).labels
    if labels is not None:
        assert (read.labels.dims, read.labels.name) == (labels.dims, labels.name)


@pytest.mark.parametrize(
    ("suffix", "save"),
    [
        (".nc", lambda path: LABELLED.to_netcdf(path, engine="h5netcdf")),
        (".nc", lambda path: LABELLED.to_netcdf(path, engine="scipy")),
        (".nc", lambda path: LABELLED.rename(None).to_netcdf(path, engine="h5netcdf")),
        (".zarr", lambda path: LABELLED.to_dataset().to_zarr(path, zarr_format=2)),
    ],
    ids=["nc4", "nc3", "nameless", "zarr"],
)
def test_labels_and_attributes_come_back(tmp_path: Path, suffix: str, save: Any) -> None:
    save(tmp_path / f"y{suffix}")
    tensor = np.arange(6.0).reshape(2, 3)
    before = read_tensor(tmp_path / f"y{suffix}")
    after = read_tensor(rewritten(tmp_path / f"y{suffix}", tensor))
    xr.testing.assert_identical(after, before.copy(data=tensor).assign_coords(site=after["site"]))
    assert after["site"].values.tolist() == before["site"].values.tolist()  # text may be an array of either type


def test_packed_numbers_come_back_unpacked(tmp_path: Path) -> None:
    encoding = {"level": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -99}}
    LABELLED.to_netcdf(tmp_path / "y.nc", engine="h5netcdf", encoding=encoding)
    tensor = np.full((2, 3), 0.123456789)
    np.testing.assert_array_equal(read_tensor(rewritten(tmp_path / "y.nc", tensor)), tensor)


@pytest.mark.parametrize(
    ("suffix", "save"),
    [
        (".csv", lambda path: LONG.to_csv(path, index=False)),
        (".tsv", lambda path: LONG.to_csv(path, index=False, sep="\t")),
        (".parquet", lambda path: LONG.to_parquet(path)),
        (".parquet", lambda path: LONG.set_index(["site", "day"]).to_parquet(path)),
        (".parquet", lambda path: NUMBERED.to_parquet(path)),
    ],
    ids=["csv", "tsv", "parquet", "indexed", "categories"],
)
def test_a_table_comes_back_with_every_entry_once(tmp_path: Path, suffix: str, save: Any) -> None:
    save(tmp_path / f"y{suffix}")
    before = read_tensor(tmp_path / f"y{suffix}")
    after = read_tensor(rewritten(tmp_path / f"y{suffix}", np.arange(6.0).reshape(2, 3)))
    np.testing.assert_array_equal(after.values, np.arange(6.0))
    assert (after.labels.dims, after.labels.name) == (("site", "day"), "level")
    for got, wanted in zip(after.labels.coords, before.labels.coords, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_wide_table_comes_back_wide(tmp_path: Path, suffix: str, labelled: bool) -> None:
    text = "site,row,a b\nA,1,\nB,3.5,4\n" if labelled else "row,a b\n1,\n3.5,4\n"
    source, tensor = tmp_path / f"y{suffix}", np.array([[1.0, 0.1], [3.5, 4.0]])
    if suffix == ".parquet":
        pd.read_csv(io.StringIO(text)).to_parquet(source)
    else:
        source.write_text(text.replace(",", "," if suffix == ".csv" else "\t"))
    write_like(read_file(source, wide=True), tmp_path / f"imputed{suffix}", tensor)
    if suffix == ".csv":
        assert (tmp_path / "imputed.csv").read_text() == text.replace("1,\n", "1.0,0.1\n").replace(",4\n", ",4.0\n")
    before, after = read_tensor(source, wide=True), read_tensor(tmp_path / f"imputed{suffix}", wide=True)
    np.testing.assert_array_equal(after.values, tensor)
    assert after.labels.dims == before.labels.dims


def test_labels_that_spreadsheets_would_run_are_inert_and_come_back(tmp_path: Path) -> None:
    labels = ["=1+2", "+x", "-y", "@z", "\tt", "\rr", "'=q", "''-q", "'plain", "a=b"]
    names = ["=site", "-day", "@y"]
    long = pd.DataFrame({names[0]: np.repeat(labels, 2), names[1]: [1, -2] * 10, names[2]: np.arange(20) - 9.5})
    long.to_parquet(tmp_path / "y.parquet")
    source = read_file(tmp_path / "y.parquet")
    written = tmp_path / "imputed.csv"
    write_like(type(source)(".csv", source.tensor), written, source.tensor.values.reshape(10, 2))
    with open(written, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert not any(cell.startswith(tuple("=+-@\t\r")) for cell in [*header, *(row[0] for row in rows)])
    assert {row[1] for row in rows} == {"1", "-2"}  # numbers stay numbers
    read = read_tensor(written)
    assert (*read.labels.dims, read.labels.name) == tuple(names)
    assert sorted(read.labels.coords[0].tolist()) == sorted(labels)


def test_labels_of_others_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("a,b,y\n=x,k,1\n'=x,k,2\n")
    assert read_tensor(tmp_path / "y.csv").labels.coords[0].tolist() == ["'=x", "=x"]


def test_arrays_of_several_keep_their_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "y.npz", allow_pickle_=np.zeros(2), y=np.ones((2, 3)))
    savemat(tmp_path / "y.mat", {"a": np.zeros(2), "y": csc_array(np.eye(2, 3))})
    group = zarr.open_group(tmp_path / "y.zarr", mode="w")
    group.create_array("y", data=np.ones((2, 3)))
    group.create_array("a", data=np.ones(2))
    for suffix in (".npz", ".mat", ".zarr"):
        path = tmp_path / f"imputed{suffix}"
        write_like(read_file(tmp_path / f"y{suffix}", key="y"), path, np.arange(6.0).reshape(2, 3))
        after = read_file(path)  # alone: no key is needed
        assert after.name == "y"
        np.testing.assert_array_equal(after.tensor, np.arange(6.0).reshape(2, 3))


def test_an_array_of_any_name_can_be_written(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.ones((2, 2)))
    source = read_file(tmp_path / "y.npy")
    for name in ("file", "allow_pickle", "a/b"):
        write_like(type(source)(".npz", source.tensor, name), tmp_path / "y.npz", np.ones((2, 2)))
        assert read_file(tmp_path / "y.npz").name == name


def test_a_bit_that_flips_in_a_zarr_store_is_noticed(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 4)))
    path = rewritten(tmp_path / "y.zarr", np.random.default_rng(0).standard_normal((4, 4)))
    chunk = path / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 4
    chunk.write_bytes(content)
    with pytest.raises(ValueError, match=r"imputed\.zarr"):
        read_tensor(path)


def test_a_table_of_text_holds_every_digit_and_plain_dates(tmp_path: Path) -> None:
    table = {
        "day": np.array(["2024-02-29", "NaT"], dtype="M8[D]"),
        "code": np.array([b"a", "é".encode()]),
        "y": np.array([0.1 + 0.2, 1e-300]),
    }
    write_csv(tmp_path / "y.csv", table)
    text = (tmp_path / "y.csv").read_text(encoding="utf-8")
    assert text == "day,code,y\n2024-02-29,a,0.30000000000000004\nNaT,é,1e-300\n"
    write_csv(tmp_path / "none.csv", {name: column[:0] for name, column in table.items()})
    assert (tmp_path / "none.csv").read_text() == "day,code,y\n"


def test_a_long_table_is_written_whole(tmp_path: Path) -> None:
    n_rows = 2 * ROWS_AT_ONCE + 3
    write_csv(tmp_path / "y.csv", {"a": np.arange(n_rows)})
    assert pd.read_csv(tmp_path / "y.csv")["a"].tolist() == list(range(n_rows))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, suffix: str) -> None:
    resource = pytest.importorskip("resource")
    source = read_file(write(tmp_path / f"y{suffix}", np.ones((20, 20, 20))))
    path, limits = tmp_path / f"imputed{suffix}", resource.getrlimit(resource.RLIMIT_FSIZE)
    tensor = np.random.default_rng(0).standard_normal((20, 20, 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # no file may grow beyond
    try:
        with pytest.raises(OSError, match=re.escape(str(path))):
            write_like(source, path, tensor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("named", [False, True])
def test_zeros_in_a_zarr_store_are_written_and_not_only_meant(tmp_path: Path, named: bool) -> None:
    if named:
        LABELLED.drop_vars("site").to_dataset().to_zarr(tmp_path / "y.zarr", zarr_format=3, consolidated=False)
    else:
        zarr.create_array(tmp_path / "y.zarr", data=np.ones((2, 3)))
    np.testing.assert_array_equal(read_tensor(rewritten(tmp_path / "y.zarr", np.zeros((2, 3)))), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("dates", "written"),
    [
        (np.array(["2024-01-30", "NaT"], "M8[ns]"), ["2024-01-30", "NaT"]),
        (np.array(["2024-01-30", "2024-01-30T06"], "M8[ns]"), ["2024-01-30T00:00", "2024-01-30T06:00"]),
        (np.array(["2024-01-30", "2024-01-30T06:00:00.25"], "M8[ns]"), None),
        (np.array(["2024-01", "2024-02"], "M8[M]"), ["2024-01", "2024-02"]),
    ],
)
def test_dates_are_written_as_short_as_they_are(dates, written):
    text = dates_as_text(dates)
    np.testing.assert_array_equal(text.astype(dates.dtype), dates)
    assert text.tolist() == (written or ["2024-01-30T00:00:00.000", "2024-01-30T06:00:00.250"])
