"""Files from strangers: whatever their bytes, they are read as what they say or refused in one sentence.

Nothing of a file is executed, and what it claims is compared with the memory before any is allocated.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import subprocess
import sys
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import h5netcdf
import h5py
import numcodecs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from scipy.io import savemat
from scipy.sparse import csc_array

from brtf.data.observations import Observations
from brtf.data.observe import observe
from brtf.data.readers import open_file, read_tensor
from tensor_files import CHECKED, FORMATS, example, write

FILE_FORMATS = [suffix for suffix in FORMATS if suffix != ".zarr"]
BINARY_FORMATS = [".npy", ".npz", ".mat", ".nc", ".parquet"]


def refusal(path: Path, **options: Any) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(ValueError) as caught:
        read_tensor(path, **options)
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.fixture
def tiny_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of one megabyte."""
    monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 10**6)


@pytest.fixture
def trap(tmp_path: Path) -> Any:
    """An object that leaves a file behind when it is unpickled; afterwards there must be none."""
    sprung = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return open, (str(sprung), "w")

    with pickle.loads(pickle.dumps(Trap())):  # it works
        assert sprung.exists()
    sprung.unlink()
    yield Trap()
    assert not sprung.exists()


# ---- garbage, cuts and flips -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FILE_FORMATS)
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00\xff" * 300, b"\x80\x04K\x01."], ids=repr)
def test_garbage_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"y{suffix}"
    path.write_bytes(content)
    sentence = refusal(path)
    assert "pickle" not in sentence
    assert ("is empty" in sentence) == (content == b"")


def cuts(n_bytes: int) -> list[int]:
    """Every length of a small file; of a large one every length near its ends, and a few hundred between them."""
    step = max(1, n_bytes // 300)
    return sorted({*range(1, min(64, n_bytes)), *range(1, n_bytes, step), *range(max(1, n_bytes - 64), n_bytes)})


@pytest.mark.parametrize("suffix", BINARY_FORMATS)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = write(tmp_path / f"whole{suffix}", example()).read_bytes()
    path = tmp_path / f"y{suffix}"
    for length in cuts(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


def test_a_netcdf_3_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    tensor = example()
    xr.DataArray(tensor, dims=("row", "column", "tube"), name="y").to_netcdf(tmp_path / "whole.nc", engine="scipy")
    whole = (tmp_path / "whole.nc").read_bytes()
    path = tmp_path / "y.nc"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


@pytest.mark.parametrize("do_compression", [False, True])
def test_a_flipped_bit_of_a_mat_file_is_refused_or_gives_numbers(tmp_path: Path, do_compression: bool) -> None:
    savemat(tmp_path / "whole.mat", {"y": example()}, do_compression=do_compression)
    whole = (tmp_path / "whole.mat").read_bytes()
    path = tmp_path / "y.mat"
    for place in range(124, len(whole)):  # where its text ends
        for bit in (1, 16, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                read = read_tensor(path)
            except ValueError as error:
                assert path.name in str(error)
            else:
                assert read.dtype.kind in "biuf"
                if do_compression:  # which brings a checksum
                    np.testing.assert_array_equal(read, example())


@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".parquet"])
def test_a_flipped_bit_of_an_arrow_table_is_refused_in_our_words(tmp_path: Path, suffix: str) -> None:
    table = pd.DataFrame({"row": list("aabbcc"), "column": list("xyxyxy"), "value": np.arange(6.0)})
    save = table.to_parquet if suffix == ".parquet" else table.to_feather
    save(tmp_path / "whole")
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / f"y{suffix}"
    refusals = set()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :])
        try:
            read_tensor(path)
        except ValueError as error:
            assert error.__cause__ is not None
            assert "brtf" in Path(traceback.extract_tb(error.__cause__.__traceback__)[-1].filename).parts
            refusals.add(str(error).removeprefix(f"{path} cannot be read: "))
    assert "its content is damaged, or not in the format that its suffix says." in refusals


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_a_flipped_bit_is_refused_or_harmless(tmp_path: Path, suffix: str) -> None:
    tensor = example()
    whole = write(tmp_path / f"whole{suffix}", tensor).read_bytes()
    path = tmp_path / f"y{suffix}"
    n_header = len(whole) if suffix == ".npz" else len(whole) - tensor.nbytes  # an .npy file has no checksum
    for place in range(n_header):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            read = read_tensor(path)
        except ValueError as error:
            assert path.name in str(error)
        else:
            assert read.nbytes == tensor.nbytes
            if suffix == ".npz":
                np.testing.assert_array_equal(read, tensor)


def test_a_damaged_zarr_store_is_refused(tmp_path: Path) -> None:
    for number, damage in enumerate((b"", b"garbage", b"{}")):
        path = write(tmp_path / f"{number}.zarr", example())
        (path / "zarr.json").write_bytes(damage)
        refusal(path)
        path = write(tmp_path / f"chunk_{number}.zarr", example())
        (path / "c" / "0" / "0" / "0").write_bytes(damage)
        refusal(path)
    (tmp_path / "empty.zarr").mkdir()
    refusal(tmp_path / "empty.zarr")


def test_a_zarr_chunk_of_another_size_is_refused_in_our_words(tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    zarr.create_array(path, data=np.ones((4, 3)), chunks=(2, 3), compressors=None)
    (path / "c" / "0" / "0").write_bytes(bytes(40))
    with pytest.warns(UserWarning, match="has no checksums"):
        assert "one of its stored chunks does not hold what the array declares: it is damaged" in refusal(path)


@pytest.mark.parametrize("damage", [b"{", b'{"zarr_format": 9}'])
def test_a_zarr_group_with_a_damaged_member_is_refused(
    tmp_path: Path, damage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "y.zarr"
    labels = {"row": [1, 2, 3, 4], "column": [5, 6, 7]}
    xr.DataArray(np.ones((4, 3)), coords=labels, name="y").to_dataset().to_zarr(path, consolidated=False)
    for name in ("row", "column"):
        (path / name / "zarr.json").write_bytes(damage)
    assert "Zarr cannot parse the metadata of column: they are damaged" in refusal(path)
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_a_zarr_group_with_a_lost_member_is_read_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    labelled = xr.DataArray(np.ones((4, 3)), dims=("row", "column"), coords={"row": [1, 2, 3, 4]}, name="y")
    labelled.to_dataset().to_zarr(path, consolidated=False, encoding={"y": {"compressors": CHECKED}})
    (path / "row" / "zarr.json").unlink()
    (path / "notes.txt").write_text("measured in spring")
    with pytest.warns(UserWarning, match=r"y\.zarr holds 'notes.txt', 'row', which is no Zarr array") as told:
        assert "row" not in read_tensor(path).coords
    assert len(told) == 1


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_whole_number_beyond_floats_is_no_number(tmp_path: Path, suffix: str) -> None:
    path, separator = tmp_path / f"y{suffix}", "," if suffix == ".csv" else "\t"
    rows = [["site", "day", "y"], ["a", "x", "1"], ["a", "z", "9" * 400], ["b", "x", "2"], ["b", "z", "3"]]
    path.write_text("\n".join(map(separator.join, rows)))
    assert "row 2 below the header, column 'y': 999" in refusal(path)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_store_with_a_lost_chunk_is_refused(tmp_path: Path, labelled: bool, zarr_format: int) -> None:
    path, options = tmp_path / "y.zarr", {"chunks": (2, 3, 4), "compressors": CHECKED if zarr_format == 3 else None}
    dims = {"attributes": {"_ARRAY_DIMENSIONS": ["a", "b", "c"]}} if labelled and zarr_format == 2 else {}
    dims = {"dimension_names": ["a", "b", "c"]} if labelled and zarr_format == 3 else dims
    group = zarr.create_group(path, zarr_format=zarr_format)
    group.create_array("y", data=np.ones((4, 3, 4)), **options, **dims)
    key = "c/1/0/0" if zarr_format == 3 else "1.0.0"
    (path / "y" / key).unlink()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no checksums")
        sentence = refusal(path)
        with pytest.raises(ValueError) as caught:
            Observations.from_chunks(open_file(path).tensor)
    reason = f"its stored chunk {key} does not exist (1 in all), and would be read as 0.0"
    assert reason in sentence and reason in str(caught.value)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_lost_chunk_of_nan_is_missing_with_a_warning(tmp_path: Path, grouped: bool) -> None:
    path, options = tmp_path / "y.zarr", {"chunks": (2, 3), "compressors": CHECKED, "fill_value": np.nan}
    zarr.create_array(path, name="y" if grouped else None, data=np.ones((4, 3)), **options)
    (path / ("y/c/1/0" if grouped else "c/1/0")).unlink()
    with pytest.warns(
        UserWarning, match=r"1 stored chunk of .* does not exist \(c/1/0, …\): nothing is observed there"
    ):
        assert np.isnan(read_tensor(path)).sum() == 6


def test_lost_labels_are_told_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    array = xr.DataArray(np.ones((2, 3)), dims=("row", "column"), coords={"row": [3, 4]}, name="y")
    array.to_dataset().to_zarr(path, consolidated=False, encoding={"y": {"compressors": CHECKED}})
    (path / "row/c/0").unlink()
    with pytest.warns(UserWarning, match=r"1 stored chunk of .*row does not exist .* labels are read as .*0"):
        read_tensor(path)


def test_labels_cut_short_are_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    array = xr.DataArray(np.ones((2, 3)), dims=("row", "column"), coords={"row": [3, 4]}, name="y")
    encoding = {"y": {"compressors": CHECKED}, "row": {"compressors": None}}
    array.to_dataset().to_zarr(path, consolidated=False, encoding=encoding)
    chunk = path / "row/c/0"
    chunk.write_bytes(chunk.read_bytes()[:8])
    assert "one of its stored chunks does not hold what the array declares" in refusal(path)


def test_a_zarr_store_without_checksums_is_read_with_a_warning(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 3)))
    with pytest.warns(UserWarning, match="has no checksums"):
        assert read_tensor(tmp_path / "y.zarr").shape == (4, 3)


def test_packed_numbers_are_not_taken_for_what_they_stand_for(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 3), np.int16), attributes={"scale_factor": 0.1})
    assert "its values are packed (scale_factor)" in refusal(tmp_path / "y.zarr")


# ---- what would run ----------------------------------------------------------------------------------------------


def test_a_pickle_is_never_opened(tmp_path: Path, trap: Any) -> None:
    objects = np.array([[trap, trap]], dtype=object)
    np.save(tmp_path / "y.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "y.npz", y=objects)
    for suffix in (".npy", ".npz"):
        assert "dtype object" in refusal(tmp_path / f"y{suffix}")
    for suffix in FILE_FORMATS:
        (tmp_path / f"raw{suffix}").write_bytes(pickle.dumps(trap))
        refusal(tmp_path / f"raw{suffix}")


def zarr_2_array(path: Path, dims: list[str], chunk: bytes, **changes: Any) -> None:
    """An array of two positions per mode, written by hand."""
    path.mkdir(parents=True)
    ones = {"shape": [2] * len(dims), "chunks": [2] * len(dims), "dtype": "<f8", "fill_value": 0, "order": "C"}
    metadata = {"zarr_format": 2, "filters": None, "compressor": None, **ones, **changes}
    (path / ".zarray").write_text(json.dumps(metadata))
    (path / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": dims}))
    (path / ".".join("0" * len(dims))).write_bytes(chunk)


@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_a_zarr_codec_that_runs_code_is_refused(
    tmp_path: Path, trap: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)  # as it was once
    path, codec = tmp_path / "y.zarr", {"id": "pickle", "protocol": 5}
    changes = {"filters": [{"id": "vlen-utf8"}]}
    changes |= {"filters": [*changes["filters"], codec]} if place == "filters" else {"compressor": codec}
    zarr_2_array(path / "y", ["row", "column"], np.ones((2, 2)).tobytes())
    zarr_2_array(path / "row", ["row"], pickle.dumps(trap), dtype="|O", **changes)
    (path / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    assert "encoded with pickle" in refusal(path)


class Foreign(zarr.codecs.Crc32cCodec):  # as another package could register one
    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Foreign:
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return {"name": "foreign"}


@pytest.mark.parametrize("place", ["codecs", "index_codecs"])
def test_a_zarr_codec_is_found_however_deep(tmp_path: Path, place: str) -> None:
    zarr.registry.register_codec("foreign", Foreign)
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 4)), chunks=(2, 2), shards=(4, 4))
    assert read_tensor(tmp_path / "y.zarr").shape == (4, 4)
    metadata = json.loads((tmp_path / "y.zarr" / "zarr.json").read_text())
    (sharding,) = metadata["codecs"]
    sharding["configuration"][place][-1] = {"name": "foreign"}
    (tmp_path / "y.zarr" / "zarr.json").write_text(json.dumps(metadata))
    assert "encoded with foreign" in refusal(tmp_path / "y.zarr")


@pytest.mark.parametrize(
    ("value", "kind"),
    [("text", "char"), (np.array([[{"a": 1}, 2]], dtype=object), "cell"), ({"a": np.ones((2, 2))}, "struct")],
)
def test_a_mat_file_of_anything_but_numbers_is_refused(tmp_path: Path, value: Any, kind: str) -> None:
    savemat(tmp_path / "y.mat", {"y": value})
    assert f"of class {kind}" in refusal(tmp_path / "y.mat")


def test_a_mat_file_with_an_object_is_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "y.mat", {"y": {"a": np.ones((2, 2))}})
    content = bytearray((tmp_path / "y.mat").read_bytes())
    flags = content.index(b"\x06\x00\x00\x00\x08\x00\x00\x00") + 8  # the first array's flags; its class comes first
    assert content[flags] == 2  # a struct
    content[flags] = 3  # an object of some class
    (tmp_path / "y.mat").write_bytes(content)
    assert "of class object" in refusal(tmp_path / "y.mat")


TEXT, COMPLEX, DATES = np.array([["a", "b"]]), np.ones((2, 2)) * 1j, np.zeros((2, 2), dtype="M8[s]")


@pytest.mark.parametrize(
    ("suffix", "array"),
    [
        *((suffix, array) for suffix in (".npy", ".npz", ".zarr") for array in (TEXT, COMPLEX, DATES)),
        *((".mat", array) for array in (TEXT, COMPLEX)),  # which holds dates as numbers
        *((".nc", array) for array in (TEXT, DATES)),  # which holds no complex numbers
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")  # of zarr, when it writes
def test_what_is_not_a_real_number_is_refused(tmp_path: Path, suffix: str, array: np.ndarray) -> None:
    refusal(write(tmp_path / f"y{suffix}", array))


def test_sparse_positions_out_of_range_are_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "y.mat", {"y": csc_array(np.diag([1.0, 2.0, 3.0]))})
    content = (tmp_path / "y.mat").read_bytes()
    starts = np.array([0, 1, 2, 3], dtype="<i4").tobytes()
    assert content.count(starts) == 1
    # the last two store nothing, and SciPy, which then checks nothing, would write beyond its arrays
    for wrong in ([0, 10**6, 2, 3], [0, -5, 2, 3], [0, 2, 1, 3], [0, -65532, 32767, 0], [0, 2, 1, 0]):
        (tmp_path / "y.mat").write_bytes(content.replace(starts, np.array(wrong, dtype="<i4").tobytes()))
        refusal(tmp_path / "y.mat")
    rows = np.array([0, 1, 2], dtype="<i4").tobytes() + bytes(4)
    assert content.count(rows) == 1
    (tmp_path / "y.mat").write_bytes(content.replace(rows, np.array([0, 1, 2**30, 0], dtype="<i4").tobytes()))
    refusal(tmp_path / "y.mat")


# ---- what would not fit ------------------------------------------------------------------------------------------


def npy_header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("shape", ["(4194304, 4194304, 4194304)", "(2, -3)", f"(2, {2**63})", "(2**9, 3)", "(3, 4.0)"])
def test_a_forged_shape_is_refused(tmp_path: Path, shape: str) -> None:
    (tmp_path / "y.npy").write_bytes(npy_header(shape) + bytes(48))
    refusal(tmp_path / "y.npy")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("y.npy", npy_header(shape) + bytes(48))
    refusal(tmp_path / "y.npz")


def test_a_zip_bomb_is_refused_before_it_unfolds(
    tmp_path: Path, tiny_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "y.npz", y=np.zeros((1000, 1000)))
    assert (tmp_path / "y.npz").stat().st_size < 10**5
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was unfolded"))
    assert "GB" in refusal(tmp_path / "y.npz")


def test_a_zip_member_that_unfolds_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", npy_header("(10, 10)") + bytes(10**6))
    (tmp_path / "y.npz").write_bytes(stream.getvalue())
    assert "cut short or was modified" in refusal(tmp_path / "y.npz")


def test_a_mat_bomb_is_refused_before_it_unfolds(
    tmp_path: Path, tiny_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    savemat(tmp_path / "y.mat", {"y": np.zeros((1000, 1000))}, do_compression=True)
    assert (tmp_path / "y.mat").stat().st_size < 10**5
    monkeypatch.setattr("brtf.data.readers.matlab._Variable._body", lambda *_: pytest.fail("it was unfolded"))
    assert "GB" in refusal(tmp_path / "y.mat")


def test_a_parquet_bomb_is_refused_before_it_unfolds(
    tmp_path: Path, tiny_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = pa.array(np.zeros(10**6, dtype=np.int8))
    pq.write_table(pa.table({"a": column, "b": column, "y": column}), tmp_path / "y.parquet")
    assert (tmp_path / "y.parquet").stat().st_size < 10**5
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was unfolded"))
    assert "GB" in refusal(tmp_path / "y.parquet")


def test_a_text_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 10)
    for suffix in (".csv", ".tns"):
        assert "GB" in refusal(write(tmp_path / f"y{suffix}", example()))


def test_a_netcdf_variable_that_is_hardly_written_is_not_allocated(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "y.nc", "w") as file:
        file.dimensions = {"row": 2**14, "column": 2**14, "tube": 2**14}
        variable = file.create_variable("y", ("row", "column", "tube"), float, chunks=(2, 2, 2), fillvalue=np.nan)
        variable[0, 0, 0] = 1.0
    assert (tmp_path / "y.nc").stat().st_size < 10**5
    assert "GB" in refusal(tmp_path / "y.nc")


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((2**22,) * 3, (64,) * 3), ((2, 2), (2**20, 2**20)), ((30_000, 30_000), (1, 1))],
    ids=["shape", "chunk", "number of chunks"],
)
def test_a_zarr_array_that_would_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 2**40)
    zarr.create_array(tmp_path / "y.zarr", shape=shape, chunks=chunks, dtype="f8")
    assert "GB" in refusal(tmp_path / "y.zarr")


def test_a_huge_shape_of_a_coordinate_list_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "y.tns").write_text(f"1 1 1 1.0\n{2**40} {2**40} {2**40} 2.0\n")
    read = observe(read_tensor(tmp_path / "y.tns"))
    assert read.shape == (2**40,) * 3
    assert read.n_observed == 2


# ---- small files that would take gigabytes -----------------------------------------------------------------------

READER = """
import re, sys, warnings
from pathlib import Path
from brtf.data.readers import read_tensor
warnings.simplefilter("ignore")
try:
    print(read_tensor(sys.argv[1]).shape)
except ValueError as error:
    print(error)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""
"""Not getrusage, whose peak a process takes over from the one that started it."""
MANY = 10**9
"""What the files below claim to hold, of a byte or more each."""


def outcome(path: Path) -> str:
    """The sentence with which a small file is refused, or its shape; its reader takes little memory for it."""
    assert (path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*"))) < 2 * 10**6
    ended = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    *sentence, megabytes = ended.stdout.splitlines()
    assert int(megabytes) < 500  # the libraries take up to 250
    assert len(sentence) == 1
    return sentence[0]


@pytest.mark.parametrize("logical", [True, False])
def test_a_sparse_matrix_that_claims_more_than_it_stores(tmp_path: Path, logical: bool) -> None:
    path = tmp_path / "y.mat"
    savemat(path, {"y": csc_array(np.diag([1.0, 0.0, 2.0]).astype(bool if logical else float))})
    content, starts = path.read_bytes(), np.array([0, 1, 1, 2], dtype="<i4").tobytes()
    assert content.count(starts) == 1
    path.write_bytes(content.replace(starts, np.array([0, 1, 1, MANY], dtype="<i4").tobytes()))
    assert f"claims {MANY} stored entries, but it stores 2 positions" in outcome(path)


def test_an_npz_member_with_a_huge_header(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("y.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x02\x00" + MANY.to_bytes(4, "little"))
        for _ in range(MANY // 10**7):
            member.write(b" " * 10**7)
    sentence = outcome(tmp_path / "y.npz")
    assert f"its header claims {MANY} bytes" in sentence
    assert "pickle" not in sentence


@pytest.mark.parametrize("store_schema", [False, True])
def test_a_parquet_table_that_repeats_a_long_label(tmp_path: Path, store_schema: bool) -> None:
    label, n_rows = "x" * 10**5, 30_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n_rows, np.int32)), pa.array([label]))
    numbers = pa.array(np.arange(n_rows))
    table = pa.table({"a": column, "b": numbers, "y": numbers})
    pq.write_table(table, tmp_path / "y.parquet", store_schema=store_schema)
    assert outcome(tmp_path / "y.parquet") == f"(1, {n_rows})"


def packed(name: str, n_bytes: int) -> bytes:
    """So many zeros, of which no list is ever in memory where that can be avoided."""
    if name == "zstd":  # a frame of unknown size: blocks that repeat one byte
        block = 2**17
        blocks = [(block << 3 | 2).to_bytes(3, "little") + b"\0"] * (n_bytes // block)
        return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks) + b"\x01\0\0"
    packer = zlib.compressobj(9, wbits=31 if name == "gzip" else 15)
    piece = bytes(10**7)
    return b"".join(packer.compress(piece) for _ in range(n_bytes // 10**7)) + packer.flush()


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_zarr_chunk_that_unfolds_to_more_than_is_declared(tmp_path: Path, codec: str, sharded: bool) -> None:
    path, bomb = tmp_path / "y.zarr", packed(codec, MANY)
    packer = {"zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec()}[codec]
    shards = {"shards": (2, 2)} if sharded else {}
    zarr.create_array(path, data=np.ones((2, 2)), chunks=(2, 2), compressors=packer, **shards)
    if sharded:
        index = np.array([0, len(bomb)], "<u8").tobytes()
        bomb += index + google_crc32c.value(index).to_bytes(4, "little")
    (path / "c/0/0").write_bytes(bomb)
    sentence = outcome(path)
    assert "its stored chunk c/0/0" in sentence and "where 4 entries are declared" in sentence


@pytest.mark.parametrize("forged", ["number", "length"])
def test_zarr_labels_that_unfold_to_more_than_is_declared(tmp_path: Path, forged: str) -> None:
    path = tmp_path / "y.zarr"
    labels = np.array(["a", "b"], dtype=object)
    xr.DataArray(np.ones((2, 2)), dims=("row", "column"), coords={"row": labels}, name="y").to_dataset().to_zarr(
        path, zarr_format=2, consolidated=False, encoding={"row": {"compressors": numcodecs.Zlib()}}
    )
    (chunk,) = (file for file in (path / "row").iterdir() if not file.name.startswith("."))
    if forged == "number":
        chunk.write_bytes(zlib.compress(MANY.to_bytes(4, "little") + bytes(8)))
    else:
        chunk.write_bytes(packed("zlib", MANY))
    assert ("claims 1000000000 labels" if forged == "number" else "decompresses to more than") in outcome(path)


def test_a_netcdf_variable_that_was_never_written_is_refused(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "y.nc", "w") as file:
        file.dimensions = {"row": 10_000, "column": 10_000}
        file.create_variable("y", ("row", "column"), float, chunks=(100, 100))
    assert "was never written" in outcome(tmp_path / "y.nc")


def test_netcdf_labels_that_were_never_written_are_refused(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "y.nc", "w") as file:
        file.dimensions = {"row": 10**8, "column": 2}
        file.create_variable("row", ("row",), float, chunks=(10**6,))
        file.create_variable("y", ("column", "column"), float)[...] = 1.0
    assert "its variable 'row' of shape (100000000,) was never written" in outcome(tmp_path / "y.nc")


def test_a_netcdf_variable_of_which_a_chunk_is_missing_is_refused(tmp_path: Path) -> None:
    for fill in (None, np.nan):
        path = tmp_path / f"{fill}.nc"
        with h5netcdf.File(path, "w") as file:
            file.dimensions = {"row": 4, "column": 2}
            variable = file.create_variable("y", ("row", "column"), float, chunks=(2, 2), fillvalue=fill)
            variable[:2] = 1.0
        if fill is None:
            assert "has 1 of 2 chunks, and the others would be read as 0.0" in refusal(path)
        else:
            np.testing.assert_array_equal(np.isnan(read_tensor(path)).sum(), 4)


def test_a_netcdf_chunk_that_unfolds_to_more_than_is_declared(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "y.nc", "w") as file:
        dataset = file.create_dataset("y", (2, 2), float, chunks=(2, 2), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), packed("zlib", MANY))
    assert "where 4 entries are declared" in outcome(tmp_path / "y.nc")


# ---- what lies elsewhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "storage", "virtual"])
def test_a_netcdf_file_does_not_open_others(tmp_path: Path, kind: str) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.ones((2, 2))
    with h5py.File(tmp_path / "y.nc", "w") as file:
        if kind == "link":
            file["y"] = h5py.ExternalLink("other.h5", "secret")
        elif kind == "storage":
            file.create_dataset("y", (2, 2), float, external=[("other.h5", 0, 32)])
        else:
            layout = h5py.VirtualLayout((2, 2), float)
            layout[:] = h5py.VirtualSource("other.h5", "secret", (2, 2))
            file.create_virtual_dataset("y", layout)
    assert "another file" in refusal(tmp_path / "y.nc")
