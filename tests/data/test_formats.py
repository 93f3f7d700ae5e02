"""Files and tables of other tools: MATLAB 7.3, gzip, semicolons and decimal commas, Excel, Feather, DuckDB, Arrow."""

import gzip
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.io
from click.testing import CliRunner

from brtf import Observations, cli
from brtf.data.observe import observe
from brtf.data.readers import read_file, read_tensor
from brtf.io.writers import write_like

h5py = pytest.importorskip("h5py")
TENSOR = np.random.default_rng(0).normal(size=(4, 3, 2))
TENSOR[1, 2, 0] = np.nan
LONG = pd.DataFrame(
    {
        "site": np.repeat(["a", "b", "c", "d"], 6),
        "day": np.tile(np.repeat([1, 2, 3], 2), 4),
        "half": np.tile(["am", "pm"], 12),
        "level": TENSOR.ravel(),
    }
).dropna()


DIGITS = {"rtol": 1e-14, "atol": 0}
"""An Excel sheet keeps 16 digits."""


def same(observations, **tolerance):
    """The long table gives the tensor, with its labels."""
    assert observations.labels.dims == ("site", "day", "half") and observations.labels.name == "level"
    dense = np.full(observations.shape, np.nan)
    dense[tuple(observations.entry_coords())] = observations.values
    np.testing.assert_allclose(dense, TENSOR, **{"rtol": 0, "atol": 0, **tolerance})


def write_73(path, **arrays):
    """A file of MATLAB 7.3: HDF5 after 512 bytes that begin with MATLAB's header, modes in reverse order."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            stored = array.T.astype(np.uint8) if array.dtype == bool else array.T
            options = {"compression": "gzip", "chunks": stored.shape} if array.ndim > 1 else {}
            dataset = file.create_dataset(name, data=stored, **options)
            kind = {"float64": "double", "float32": "single", "bool": "logical"}.get(str(array.dtype), str(array.dtype))
            dataset.attrs["MATLAB_class"] = np.bytes_(kind)
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def save_mat(path, **arrays):
    scipy.io.savemat(path, arrays)
    return path


@pytest.mark.parametrize("write", [save_mat, write_73])
class TestVectorsBesideATensor:
    """Chemists' files hold a tensor and its wavelengths."""

    X = np.random.default_rng(0).normal(size=(6, 9, 7))
    EMISSION, EXCITATION = np.linspace(260, 340, 9)[None], np.linspace(300, 240, 7)[None]

    def test_they_label_the_modes(self, write, tmp_path):
        found = read_file(write(tmp_path / "y.mat", X=self.X, EmAx=self.EMISSION, ExAx=self.EXCITATION))
        assert found.name == "X" and found.tensor.dims == ("mode_0", "EmAx", "ExAx")
        np.testing.assert_array_equal(found.tensor, self.X)
        np.testing.assert_array_equal(found.tensor["ExAx"], self.EXCITATION[0])
        write_like(found, tmp_path / "again.mat", self.X + 1)
        np.testing.assert_array_equal(scipy.io.loadmat(tmp_path / "again.mat")["X"], self.X + 1)

    def test_only_where_it_is_clear(self, write, tmp_path):
        amounts = np.array([[3.0, 1, 2, 5, 4, 0]]).T  # neither rising nor falling
        arrays = {"X": self.X, "amounts": amounts, "a": self.EMISSION, "b": self.EMISSION + 1}
        assert type(read_tensor(write(tmp_path / "two.mat", **arrays))) is np.ndarray
        square = read_tensor(write(tmp_path / "square.mat", X=self.X[:, :7], axis=self.EXCITATION))
        assert type(square) is np.ndarray

    def test_several_tensors_are_named_with_their_sizes(self, write, tmp_path):
        path = write(tmp_path / "y.mat", X=self.X, y=np.ones((6, 3)), EmAx=self.EMISSION)
        with pytest.raises(ValueError, match=r'X \(6 × 9 × 7\), y \(6 × 3\)\. Choose one, such as --key X or key="X"'):
            read_tensor(path)
        assert read_tensor(path, key="X").dims[1] == "EmAx"


class TestMatlab73:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.bool_])
    def test_arrays(self, tmp_path, dtype):
        array = np.nan_to_num(TENSOR * 10).astype(dtype)
        found = read_file(write_73(tmp_path / "y.mat", y=array))
        assert found.name == "y" and found.tensor.dtype == dtype
        np.testing.assert_array_equal(found.tensor, array)

    def test_key_and_nan(self, tmp_path):
        path = write_73(tmp_path / "y.mat", y=TENSOR, other=np.ones((2, 2)))
        np.testing.assert_array_equal(read_tensor(path, key="y"), TENSOR)
        with pytest.raises(
            ValueError, match=r"its arrays are: other \(2 × 2\), y \(4 × 3 × 2\)\. Choose one, such as --key y "
        ):
            read_tensor(path)

    def test_sparse(self, tmp_path):
        path = write_73(tmp_path / "y.mat")
        with h5py.File(path, "r+") as file:
            group = file.create_group("s")
            group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"] = np.bytes_("double"), np.uint64(3)
            for name, numbers in (("jc", [0, 1, 3]), ("ir", [2, 0, 1]), ("data", [5.0, 6.0, 7.0])):
                group[name] = np.array(numbers, dtype=np.float64 if name == "data" else np.uint64)
        np.testing.assert_array_equal(read_tensor(path).toarray(), [[0, 6], [0, 7], [5, 0]])
        with h5py.File(path, "r+") as file:
            file["s/jc"][2] = 9
        with pytest.raises(ValueError, match="do not agree with its entries"):
            read_tensor(path)

    def test_refuses(self, tmp_path, monkeypatch):
        path = write_73(tmp_path / "y.mat", y=TENSOR)
        whole = path.read_bytes()
        with h5py.File(path, "r+") as file:
            file["y"].attrs["MATLAB_class"] = np.bytes_("cell")
        with pytest.raises(ValueError, match=r"y\.mat cannot be read: its array 'y' is of class cell"):
            read_tensor(path)
        with h5py.File(path, "r+") as file:
            file["elsewhere"] = h5py.ExternalLink("other.mat", "/y")
        with pytest.raises(ValueError, match="is stored in another file"):
            read_tensor(path)
        for cut in (600, len(whole) // 2):
            path.write_bytes(whole[:cut])
            with pytest.raises(ValueError, match="cannot be read"):
                read_tensor(path)
        huge = write_73(tmp_path / "huge.mat")
        with h5py.File(huge, "r+") as file:
            file.create_dataset("y", shape=(2**22,) * 2, dtype="f8", chunks=(64, 64)).attrs["MATLAB_class"] = b"double"
        with pytest.raises((ValueError, MemoryError), match="would take"):
            read_tensor(huge)


class TestText:
    @pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
    def test_separators(self, tmp_path, separator, suffix):
        LONG.to_csv(tmp_path / f"y{suffix}", sep=separator, index=False)
        found = read_file(tmp_path / f"y{suffix}")
        same(found.tensor)
        assert {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}[separator] in str(found.dialect)

    def test_decimal_commas(self, tmp_path):
        LONG.to_csv(tmp_path / "y.csv", sep=";", decimal=",", index=False)
        found = read_file(tmp_path / "y.csv")
        same(found.tensor)
        assert "decimal commas" in str(found.dialect)

    def test_labels_with_commas_are_labels(self, tmp_path):
        """A comma in text, or in quotes, neither separates cells nor makes decimals of points."""
        frame = LONG.assign(site="Rome, " + LONG.site)
        frame.to_csv(tmp_path / "y.csv", sep=";", index=False)
        found = read_file(tmp_path / "y.csv")
        assert found.tensor.labels.coords[0].tolist()[0] == "Rome, a" and "decimal" not in str(found.dialect)
        frame.to_csv(tmp_path / "z.csv", index=False)
        assert read_tensor(tmp_path / "z.csv").labels.coords[0].tolist()[0] == "Rome, a"

    def test_gzip_bombs_and_damage(self, tmp_path, monkeypatch):
        path = tmp_path / "y.csv.gz"
        path.write_bytes(gzip.compress(b"a,b,y\n" + b"0" * 2**26))
        monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 2**25)
        with pytest.raises((ValueError, MemoryError), match="its unpacked text"):
            read_tensor(path)
        monkeypatch.undo()
        LONG.to_csv(path, index=False)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r"y\.csv\.gz cannot be read"):
            read_tensor(path)


class TestTables:
    @pytest.mark.parametrize("suffix", [".feather", ".arrow"])
    def test_feather(self, tmp_path, suffix):
        pytest.importorskip("pyarrow")
        LONG.reset_index(drop=True).to_feather(tmp_path / f"y{suffix}")
        same(read_tensor(tmp_path / f"y{suffix}"))
        content = (tmp_path / f"y{suffix}").read_bytes()
        (tmp_path / f"y{suffix}").write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="cannot be read"):
            read_tensor(tmp_path / f"y{suffix}")

    def test_arrow_and_duckdb(self):
        pyarrow = pytest.importorskip("pyarrow")
        same(Observations.from_frame(pyarrow.Table.from_pandas(LONG, preserve_index=False)))
        duckdb = pytest.importorskip("duckdb")
        same(Observations.from_frame(duckdb.from_df(LONG)))

    def test_polars_long(self):
        polars = pytest.importorskip("polars")
        same(Observations.from_frame(polars.DataFrame(LONG.to_dict("list"))))

    def test_others_are_refused(self):
        with pytest.raises(TypeError, match="pandas or polars DataFrame, an Arrow table or a DuckDB relation, got a d"):
            Observations.from_frame({"a": [1]})


class TestExcel:
    @pytest.fixture(autouse=True)
    def openpyxl(self):
        return pytest.importorskip("openpyxl")

    def test_long_wide_and_sheets(self, tmp_path):
        path = tmp_path / "y.xlsx"
        matrix = pd.DataFrame(TENSOR[:, :, 0], index=pd.Index(list("abcd"), name="site"), columns=["x", "y", "z"])
        with pd.ExcelWriter(path) as writer:
            LONG.to_excel(writer, sheet_name="long", index=False)
            matrix.to_excel(writer, sheet_name="wide")
        same(read_tensor(path, key="long"), **DIGITS)
        found = observe(read_tensor(path, key="wide"))
        assert found.labels.coords[0].tolist() == list("abcd") and found.labels.coords[1].tolist() == ["x", "y", "z"]
        with pytest.raises(ValueError, match="its arrays are: long, wide"):
            read_tensor(path)

    def test_refuses(self, tmp_path, monkeypatch):
        path = tmp_path / "y.xlsx"
        path.write_bytes(b"PK nothing")
        with pytest.raises(ValueError, match="not an Excel workbook"):
            read_tensor(path)
        LONG.to_excel(path, index=False)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("xl/evil.xml", '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x/>')
        with pytest.raises(ValueError, match="defines entities"):
            read_tensor(path)
        LONG.to_excel(path, index=False)
        monkeypatch.setattr("brtf.data.memory.available_bytes", lambda: 1000)
        with pytest.raises((ValueError, MemoryError), match="its unpacked"):
            read_tensor(path)


@pytest.mark.parametrize("suffix", [".csv.gz", ".feather", ".arrow", ".xlsx"])
def test_what_is_read_can_be_written(tmp_path, suffix):
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    path, frame = tmp_path / f"y{suffix}", LONG.reset_index(drop=True)
    save = {".csv.gz": frame.to_csv, ".xlsx": frame.to_excel}.get(suffix)
    frame.to_feather(path) if save is None else save(path, index=False)
    filled = np.nan_to_num(TENSOR)
    write_like(read_file(path), tmp_path / f"z{suffix}", filled)
    again = read_tensor(tmp_path / f"z{suffix}")
    exact = {"rtol": 0, "atol": 0}
    np.testing.assert_allclose(again.values.reshape(again.shape), filled, **(DIGITS if suffix == ".xlsx" else exact))
    assert again.labels.dims == ("site", "day", "half")


def test_fit_says_what_it_understood(tmp_path):
    LONG.to_csv(tmp_path / "y.csv", sep=";", decimal=",", index=False)
    done = CliRunner().invoke(cli.main, ["fit", str(tmp_path / "y.csv"), "--inference", "paper", "--max-rank", "1"])
    assert (
        "Read y.csv: 4 site (a … d) × 3 day (1 … 3) × 2 half (am … pm); 23 values, 4.17 % missing; level; cells "
        "separated by semicolons, numbers with decimal commas."
    ) in done.stdout
