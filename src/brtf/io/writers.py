"""Write tensors and tables to files, a tensor in the format of the input file."""

from __future__ import annotations

import csv
import gzip
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brtf.data.exports import Table, distinct_names, long_table
from brtf.data.extras import require
from brtf.data.observations import Observations
from brtf.data.readers import TensorFile
from brtf.data.readers.tables import Dialect, inert
from brtf.io.atomic_file import name_written

__all__ = ["write_csv", "write_like"]

EXCEL_ROWS, EXCEL_COLUMNS = 2**20, 2**14
"""Size of a sheet of Excel."""
ROWS_AT_ONCE = 65536
"""Number of rows of a table converted to Python objects at a time."""


def write_like(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    """Write a tensor in the format of the file that another tensor of its shape was read from.

    The name of the array, labels, attributes, index columns, separator and decimal mark are those of the source; a
    table or coordinate list has a row for every entry. Reading it back gives the tensor exactly, or to 16 digits from
    Excel.

    Parameters
    ----------
    source : the file, as returned by `brtf.data.readers.read_file`
    path : where to write; its suffix is that of the source
    tensor : finite real numbers of the shape of the source
    """
    with name_written(path):
        _WRITERS[source.suffix](source, path, tensor)


def write_csv(path: Path, table: Table, dialect: Dialect | None = None) -> None:
    """Write a table as text with a header: numbers with all digits, dates in ISO 8601; None: commas and points.

    Text that begins with = + - @, a tab or a carriage return, which spreadsheets run as a formula, is preceded by an
    apostrophe, which the readers remove.
    """
    with name_written(path):
        _write_rows(path, [inert(list(table))], table.values(), dialect or Dialect())


def _write_rows(path: Path, header: Sequence[Sequence[str]], columns: Iterable[NDArray[Any]], dialect: Dialect) -> None:
    """Write header lines and then columns, a limited number of rows at a time."""
    cells = [_as_text(column) for column in columns]
    with open(path, "w", newline="", encoding="utf-8") as file:
        # Not every Python version quotes a lone carriage return, and readers take it for the end of the row.
        returns = any(
            "\r" in str(text) for column in cells if column.dtype.kind in "OU" for text in set(column.tolist())
        )
        quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
        writer = csv.writer(file, delimiter=dialect.separator, lineterminator="\n", quoting=quoting)
        writer.writerows(header)
        for start in range(0, len(cells[0]), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            writer.writerows(zip(*(_listed(column[rows], dialect.decimal) for column in cells), strict=True))


def _listed(column: NDArray[Any], decimal: str = ".") -> list[Any]:
    """Cells as Python objects, with text escaped so that no spreadsheet takes it for a formula."""
    if column.dtype.kind == "f" and decimal != ".":
        return [repr(cell).replace(".", decimal) for cell in column.tolist()]
    return inert(column.tolist()) if column.dtype.kind in "OU" else column.tolist()


def dates_as_text(dates: NDArray[np.datetime64]) -> NDArray[np.str_]:
    """Dates in ISO 8601, with a time of day, and fractions of a second, only where one of them has any."""
    if np.datetime_data(dates.dtype)[0] in ("h", "m", "s", "ms", "us", "ns"):
        for unit in ("D", "m", "s", "ms", "us"):
            coarse = dates.astype(f"M8[{unit}]")
            if ((coarse == dates) | np.isnat(dates)).all():
                return np.datetime_as_string(coarse)
    return np.datetime_as_string(dates)


def _as_text(column: NDArray[Any]) -> NDArray[Any]:
    """Dates and bytes as text; numbers and text unchanged."""
    if column.dtype.kind == "M":
        return dates_as_text(column)
    return np.char.decode(column, "utf-8", "replace") if column.dtype.kind == "S" else column


def _write_npy(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    np.save(path, tensor, allow_pickle=False)


def _write_npz(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    # numpy.savez takes array names as keywords, some of which clash with its own.
    with zipfile.ZipFile(path, "w") as archive, archive.open(f"{source.name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, tensor, allow_pickle=False)


def _write_mat(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    from scipy.io import savemat
    from scipy.io.matlab import MatWriteError

    try:
        savemat(path, {source.name: tensor})
    except MatWriteError as error:
        raise ValueError(f"{path} cannot hold the tensor: {error}. Give the data as .npy.") from error


def _write_text(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    table = _as_table(source.tensor, tensor)
    if not source.suffix.endswith(".gz"):
        write_csv(path, table, source.dialect)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        plain = Path(folder, "table")
        write_csv(plain, table, source.dialect)
        with open(plain, "rb") as text, gzip.open(path, "wb") as packed:
            shutil.copyfileobj(text, packed)


def _write_parquet(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    pyarrow = require("pyarrow", extra="label", purpose=".parquet files")
    parquet = require("pyarrow.parquet", extra="label", purpose=".parquet files")
    parquet.write_table(pyarrow.table(_as_table(source.tensor, tensor)), path)


def _write_feather(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    pyarrow = require("pyarrow", extra="label", purpose=".feather and .arrow files")
    feather = require("pyarrow.feather", extra="label", purpose=".feather and .arrow files")
    feather.write_feather(pyarrow.table(_as_table(source.tensor, tensor)), str(path))


def _write_xlsx(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    openpyxl = require("openpyxl", extra="excel", purpose=".xlsx files")
    table = _as_table(source.tensor, tensor)
    if max(map(len, table.values())) >= EXCEL_ROWS or len(table) > EXCEL_COLUMNS:
        raise ValueError(
            f"{path} cannot hold the tensor: a sheet has at most {EXCEL_ROWS} rows and {EXCEL_COLUMNS} columns. Give "
            "the data as .parquet or .csv."
        )
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet(source.name)
    sheet.append(inert(list(table)))
    for row in zip(*(_listed(_as_text(column)) for column in table.values()), strict=True):
        sheet.append(row)
    book.save(path)


def _write_tns(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    _write_rows(path, [], [*(_coords(tensor) + 1), tensor.ravel()], Dialect(" "))


def _write_nc(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    labelled = _relabelled(source, tensor)
    with open(path, "wb") as file:  # HDF5 aborts the process if the disk is full: reserve the space first
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, labelled.nbytes)
    labelled.to_netcdf(path, engine="h5netcdf")


def _write_zarr(source: TensorFile, path: Path, tensor: NDArray[Any]) -> None:
    zarr = require("zarr", extra="big", purpose=".zarr stores")
    checked = zarr.codecs.ZstdCodec(checksum=True)  # unlike the default, which would not notice a flipped bit
    stored = {"write_empty_chunks": True}  # otherwise chunks of zeros are not stored, and look like lost ones
    if hasattr(source.tensor, "dims") and source.name is not None:
        options = {"consolidated": False, "zarr_format": 3, "encoding": {source.name: {"compressors": checked}}}
        _relabelled(source, tensor).to_zarr(path, mode="w", **options, **stored)
        return
    dims = getattr(source.tensor, "dims", None)
    options = {"compressors": checked, "dimension_names": dims, "zarr_format": 3, "config": stored}
    zarr.create_array(path, name=source.name, data=tensor, **options)


def _relabelled(source: TensorFile, tensor: NDArray[Any]) -> Any:
    """The tensor as an xarray.Dataset with the labels and attributes of the source's variable."""
    labelled = source.tensor.copy(data=tensor).drop_encoding()
    for dim, coord in labelled.coords.items():
        if coord.dtype.kind == "U":  # Zarr 3 does not specify fixed-length text
            labelled = labelled.assign_coords({dim: coord.astype(object)})
    return labelled.to_dataset(name=source.name)


def _as_table(observations: Observations, tensor: NDArray[Any]) -> Table:
    """A table with the column names of the one that was read: a row per entry, or wide if that was wide."""
    if observations.layout != "coordinates" and observations.labels is not None:
        labels, columns = observations.labels.coords
        names = [*([] if labels is None else observations.labels.dims[:1]), *np.asarray(columns).tolist()]
        return dict(zip(distinct_names(names), [*([] if labels is None else [labels]), *tensor.T], strict=True))
    return long_table(observations, _coords(tensor), [(observations.name or "value", tensor.ravel())])


def _coords(tensor: NDArray[Any]) -> NDArray[np.intp]:
    """(N, M) coordinates of all entries of a tensor."""
    return np.indices(tensor.shape, dtype=np.intp).reshape(tensor.ndim, -1)


_WRITERS: dict[str, Callable[[TensorFile, Path, NDArray[Any]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".mat": _write_mat,
    ".csv": _write_text,
    ".tsv": _write_text,
    ".csv.gz": _write_text,
    ".tsv.gz": _write_text,
    ".parquet": _write_parquet,
    ".feather": _write_feather,
    ".arrow": _write_feather,
    ".xlsx": _write_xlsx,
    ".tns": _write_tns,
    ".nc": _write_nc,
    ".zarr": _write_zarr,
}
