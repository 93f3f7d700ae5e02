"""The same tensor in every file format, written by the libraries that own the formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from scipy.io import savemat

ARRAY_FORMATS = [".npy", ".npz", ".mat", ".nc", ".zarr"]
TABLE_FORMATS = [".csv", ".tsv", ".parquet"]
FORMATS = [*ARRAY_FORMATS, *TABLE_FORMATS, ".tns"]
CHECKED = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
DIMS = ("row", "column", "tube")


def example() -> np.ndarray:
    """Every slice has an observed entry, so that tables and coordinate lists have the whole shape."""
    rng = np.random.default_rng(0)
    tensor = rng.standard_normal((4, 3, 2))
    tensor[rng.random(tensor.shape) < 0.2] = np.nan
    tensor[-1, -1, -1] = 1e-300
    return tensor


def write(path: Path, tensor: np.ndarray) -> Path:
    """The tensor in the format of the suffix."""
    if path.suffix == ".npy":
        np.save(path, tensor)
    elif path.suffix == ".npz":
        np.savez(path, only=tensor)
    elif path.suffix == ".mat":
        savemat(path, {"only": tensor})
    elif path.suffix == ".nc":
        xr.DataArray(tensor, dims=DIMS[: tensor.ndim], name="only").to_netcdf(path, engine="h5netcdf")
    elif path.suffix == ".zarr":
        zarr.create_array(path, data=tensor, compressors=CHECKED, config={"write_empty_chunks": True})
    else:
        coords = np.argwhere(~np.isnan(tensor))
        frame = pd.DataFrame(coords, columns=DIMS).assign(y=tensor[~np.isnan(tensor)])
        if path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        elif path.suffix == ".tns":
            entries = zip((coords + 1).tolist(), frame["y"].tolist(), strict=True)
            lines = [" ".join(map(str, position)) + f" {value!r}" for position, value in entries]
            path.write_text("\n".join(["# comment", "", *lines, "  ", ""]))
        else:
            frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return path
