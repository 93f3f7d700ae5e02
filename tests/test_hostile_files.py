"""Files from strangers: whatever their bytes, they are read as what they say or refused in one sentence.

Nothing of a file is executed, and what it claims is compared with the memory before any is allocated.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from scipy.io import savemat
from scipy.sparse import csc_array

from brtf.observations import observe
from brtf.readers import read_tensor
from tensor_files import FORMATS, example, write

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
    monkeypatch.setattr("brtf.memory.available_bytes", lambda: 10**6)


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


def test_a_zarr_codec_is_found_however_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 4)), chunks=(2, 2), shards=(4, 4))
    assert read_tensor(tmp_path / "y.zarr").shape == (4, 4)
    monkeypatch.setattr("brtf.readers.labelled.SAFE_CODECS", {"sharding_indexed", "bytes", "zstd"})
    assert "encoded with crc32c" in refusal(tmp_path / "y.zarr")


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
    for wrong in ([0, 10**6, 2, 3], [0, -5, 2, 3], [0, 2, 1, 3]):
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
    assert "cut or altered" in refusal(tmp_path / "y.npz")


def test_a_mat_bomb_is_refused_before_it_unfolds(
    tmp_path: Path, tiny_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    savemat(tmp_path / "y.mat", {"y": np.zeros((1000, 1000))}, do_compression=True)
    assert (tmp_path / "y.mat").stat().st_size < 10**5
    monkeypatch.setattr("brtf.readers.matlab._Variable._body", lambda *_: pytest.fail("it was unfolded"))
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
    monkeypatch.setattr("brtf.memory.available_bytes", lambda: 10)
    for suffix in (".csv", ".tns"):
        assert "GB" in refusal(write(tmp_path / f"y{suffix}", example()))


def test_a_netcdf_variable_that_was_never_written_is_not_allocated(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "y.nc", "w") as file:
        file.dimensions = {"row": 2**22, "column": 2**22, "tube": 2**22}
        file.create_variable("y", ("row", "column", "tube"), float, chunks=(64, 64, 64))
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
    monkeypatch.setattr("brtf.memory.available_bytes", lambda: 2**40)
    zarr.create_array(tmp_path / "y.zarr", shape=shape, chunks=chunks, dtype="f8")
    assert "GB" in refusal(tmp_path / "y.zarr")


def test_a_huge_shape_of_a_coordinate_list_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "y.tns").write_text(f"1 1 1 1.0\n{2**40} {2**40} {2**40} 2.0\n")
    read = observe(read_tensor(tmp_path / "y.tns"))
    assert read.shape == (2**40,) * 3
    assert read.n_observed == 2


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
