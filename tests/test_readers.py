"""Files become tensors: every format says the same, and a bad file is refused in a sentence that names it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat
from scipy.sparse import csc_array

from brtf.observations import observe
from brtf.readers import read_mask, read_tensor

FORMATS = [".npy", ".npz", ".mat", ".csv", ".tsv", ".tns"]
ARRAY_FORMATS = [".npy", ".npz", ".mat"]


@pytest.fixture
def tensor() -> np.ndarray:
    """Every slice has an observed entry, so that tables and coordinate lists have the whole shape."""
    rng = np.random.default_rng(0)
    tensor = rng.standard_normal((4, 3, 2))
    tensor[rng.random(tensor.shape) < 0.2] = np.nan
    tensor[-1, -1, -1] = 1e-300
    return tensor


def write(path: Path, tensor: np.ndarray) -> Path:
    """The tensor in the format of the suffix."""
    coords = np.argwhere(~np.isnan(tensor))
    values = tensor[~np.isnan(tensor)]
    if path.suffix == ".npy":
        np.save(path, tensor)
    elif path.suffix == ".npz":
        np.savez(path, only=tensor)
    elif path.suffix == ".mat":
        savemat(path, {"only": tensor})
    elif path.suffix in (".csv", ".tsv"):
        frame = pd.DataFrame(coords, columns=["row", "column", "tube"]).assign(y=values)
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    else:
        entries = zip((coords + 1).tolist(), values.tolist(), strict=True)
        lines = [" ".join(map(str, position)) + f" {value!r}" for position, value in entries]
        path.write_text("\n".join(["# comment", "", *lines, "  ", ""]))
    return path


def refusal(path: Path, error: type[Exception] = ValueError, **options: Any) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(error) as caught:
        read_tensor(path, **options)
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [*FORMATS, ".NPY"])
def test_every_format_gives_the_same_entries(tmp_path: Path, tensor: np.ndarray, suffix: str) -> None:
    written = write(tmp_path / f"y{suffix.lower()}", tensor).rename(tmp_path / f"y{suffix}")
    before = written.read_bytes()
    got, wanted = observe(read_tensor(written)), observe(tensor)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got.entry_coords(), wanted.entry_coords())
    np.testing.assert_array_equal(got.values, wanted.values)  # text holds the shortest digits that round-trip
    assert written.read_bytes() == before


def test_an_npy_file_is_mapped_and_keeps_its_type(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.ones((3, 2), dtype=np.float32, order="F"))
    read = read_tensor(str(tmp_path / "y.npy"))
    assert isinstance(read, np.memmap)
    assert read.dtype == np.float32


@pytest.mark.parametrize("save", [lambda path, arrays: np.savez(path, **arrays), savemat], ids=["npz", "mat"])
def test_key_chooses_among_arrays(tmp_path: Path, save: Any) -> None:
    path = tmp_path / ("y.mat" if save is savemat else "y.npz")
    arrays = {"first": np.zeros((2, 2)), "second": np.ones((2, 3))}
    save(path, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read_tensor(path, key=name), array)
    assert "first, second" in refusal(path)
    assert "'third'" in refusal(path, key="third")


def test_a_sparse_matrix_of_a_mat_file_stays_sparse(tmp_path: Path) -> None:
    savemat(tmp_path / "y.mat", {"y": csc_array(np.diag([1.0, 2.0, 3.0]))})
    assert observe(read_tensor(tmp_path / "y.mat")).n_observed == 3


def test_columns_of_a_table_are_chosen_by_name_and_keep_their_labels(tmp_path: Path) -> None:
    path = tmp_path / "y.csv"
    path.write_text("y,who,note,when\n1.5,bob,x,10\n,ann,x,9\n-2,ann,x,10\n")
    read = read_tensor(path, index=["when", "who"], value="y")
    assert read.shape == (2, 2)
    assert read.labels.dims == ("when", "who")
    assert read.labels.name == "y"
    assert [names.tolist() for names in read.labels.coords] == [[9, 10], ["ann", "bob"]]
    np.testing.assert_array_equal(read.entry_coords(), [[1, 1], [0, 1]])
    np.testing.assert_array_equal(read.values, [-2.0, 1.5])
    assert "'where'" in refusal(path, index=["when", "where"])


def test_a_table_whose_first_column_numbers_the_rows_is_not_guessed_at(tmp_path: Path) -> None:
    pd.DataFrame({"row": [0, 1], "column": [0, 1], "y": [1.0, 2.0]}).to_csv(tmp_path / "y.csv")
    assert "first column" in refusal(tmp_path / "y.csv")
    assert read_tensor(tmp_path / "y.csv", index=["row", "column"]).shape == (2, 2)


def test_tables_need_pandas(tmp_path: Path, tensor: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "y.csv", tensor)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert 'pip install "brtf[label]"' in refusal(path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0 1 2.0\n", "from 1"),
        ("1 1 2.0\n1.5 1 2.0\n", "entry 2 in mode 0 is 1.5"),
        ("1 nan 2.0\n", "nan"),
        ("1 inf 2.0\n", "inf"),
        ("1 1e300 2.0\n", "1e+300"),
        ("1 1 2.0\n1 2\n", "columns"),
        ("1 one 2.0\n", "'one'"),
        ("# nothing\n\n", "no entry"),
        ("1 2.0\n", "order >= 2"),
        ("1 1 2.0\n1 1 3.0\n", "duplicates"),
        ("1 1 inf\n", "infinite"),
    ],
)
def test_bad_coordinates_are_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "y.tns").write_text(text)
    assert word in refusal(tmp_path / "y.tns")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00\xff" * 300, b"\x80\x04K\x01."], ids=repr)
def test_garbage_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"y{suffix}"
    path.write_bytes(content)
    sentence = refusal(path)
    assert "pickle" not in sentence
    assert ("is empty" in sentence) == (content == b"")


@pytest.mark.parametrize("suffix", ARRAY_FORMATS)
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"y{suffix}", np.ones((20, 20)))
    path.write_bytes(path.read_bytes()[:-100])
    refusal(path)


@pytest.mark.parametrize("suffix", ARRAY_FORMATS)
@pytest.mark.parametrize("array", [np.array([["a", "b"]]), np.array([["a", 1]], dtype=object), np.ones((2, 2)) * 1j])
def test_what_is_not_a_real_number_is_refused(tmp_path: Path, suffix: str, array: np.ndarray) -> None:
    path = tmp_path / f"y{suffix}"
    save = {".npy": np.save, ".npz": np.savez, ".mat": lambda path, array: savemat(path, {"only": array})}[suffix]
    save(path, array)
    refusal(path)


def test_a_mat_file_of_version_7_3_is_named(tmp_path: Path) -> None:
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "y.mat").write_bytes(header + bytes(512))
    assert "-v7" in refusal(tmp_path / "y.mat")


def test_other_suffixes_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    assert ".tns" in refusal(tmp_path / "y.xlsx")
    refusal(tmp_path / "y")
    assert "does not exist" in refusal(tmp_path / "y.npy", FileNotFoundError)
    (tmp_path / "d.npy").mkdir()
    assert "directory" in refusal(tmp_path / "d.npy")


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".npy", {"key": "y"}), (".npz", {"index": ["a"]}), (".csv", {"key": "y"}), (".tns", {"value": "y"})],
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
