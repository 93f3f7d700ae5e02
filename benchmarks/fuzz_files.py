"""Fuzz cases of kind files: damaged files of every format that brtf reads, and forged ``.brtf`` files."""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import xarray
import zarr
from click.testing import CliRunner
from PIL import Image
from scipy import sparse
from scipy.io import savemat

import brtf
import brtf.cli
from brtf.data.readers import read_tensor
from brtf.io.storage import read_archive, write_archive
from brtf.video import read_clip, write_clip
from fuzz_judge import DATA_NAMES, RAW, Door, Failure, Refused, check, pick

FILES = (
    *("npy", "npz", "npz-zip", "mat", "mat-zip", "mat-sparse", "mat-hdf", "csv", "csv-comma", "csv-wide", "csv-gz"),
    *("tsv", "xlsx", "parquet", "feather", "arrow", "tns", "nc3", "nc4", "zarr2", "zarr3", "zarr-group"),
    *("png", "jpg", "gif", "mp4", "brtf", "brtf-paper", "brtf-modes", "brtf-smooth", "check"),
)
SUFFIX = {"nc3": "nc", "nc4": "nc", "zarr2": "zarr", "zarr3": "zarr", "check": "brtf", "csv-gz": "csv.gz"}
FITS: dict[str, dict[str, Any]] = {
    "brtf": {},
    "brtf-paper": {"inference": "paper"},
    "brtf-modes": {"modes": {0: "ordered", 1: "nonnegative"}, "noise": "per-slice"},
    "brtf-smooth": {"smooth_residual": 0, "outlier_kind": "replacement"},
}
"""Saved fits, with the options of each."""


def suffix_of(kind: str) -> str:
    return SUFFIX.get(kind, kind.split("-")[0])


def example() -> np.ndarray:
    rng = np.random.default_rng(0)
    tensor = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (4, 3, 2))) + 3
    tensor[rng.random(tensor.shape) < 0.2] = np.nan
    tensor[-1, -1, -1] = 1.5
    return tensor


def write_examples(directory: Path) -> None:
    """One small file of every format."""
    tensor = example()
    np.save(directory / "npy.npy", tensor)
    np.savez(directory / "npz.npz", y=tensor)
    np.savez_compressed(directory / "npz-zip.npz", y=tensor)
    savemat(directory / "mat.mat", {"y": tensor})
    savemat(directory / "mat-zip.mat", {"y": tensor}, do_compression=True)
    savemat(directory / "mat-sparse.mat", {"y": sparse.csc_array(np.nan_to_num(tensor[:, :, 0]))})
    coords = np.argwhere(~np.isnan(tensor))
    table = pandas.DataFrame(coords, columns=["row", "column", "tube"]).assign(y=tensor[~np.isnan(tensor)])
    table.to_csv(directory / "csv.csv", index=False)
    table.to_csv(directory / "tsv.tsv", index=False, sep="\t")
    table.to_csv(directory / "csv-comma.csv", index=False, sep=";", decimal=",")
    table.to_csv(directory / "csv-gz.csv.gz", index=False)
    pandas.DataFrame(tensor[:, :, 0], list("abcd"), list("xyz")).to_csv(directory / "csv-wide.csv", index_label="row")
    table.to_excel(directory / "xlsx.xlsx", index=False)
    table.to_parquet(directory / "parquet.parquet", index=False)
    for kind in ("feather", "arrow"):
        table.to_feather(directory / f"{kind}.{kind}")
    with h5py.File(directory / "mat-hdf.mat", "w", userblock_size=512) as file:
        file.create_dataset("y", data=tensor.T).attrs["MATLAB_class"] = np.bytes_("double")
    with open(directory / "mat-hdf.mat", "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    lines = [" ".join(map(str, [*(place + 1), value])) for place, value in zip(coords, table["y"], strict=True)]
    (directory / "tns.tns").write_text("\n".join(lines) + "\n")
    labelled = xarray.DataArray(tensor, dims=("row", "column", "tube"), coords={"row": list("abcd")}, name="y")
    labelled.to_netcdf(directory / "nc3.nc", engine="scipy")
    labelled.to_netcdf(directory / "nc4.nc", engine="h5netcdf")
    zarr.create_array(directory / "zarr2.zarr", data=tensor, chunks=(2, 3, 2), zarr_format=2)
    zarr.create_array(directory / "zarr3.zarr", data=tensor, chunks=(2, 3, 2))
    labelled.to_dataset().to_zarr(directory / "zarr-group.zarr", consolidated=False)
    frames = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    for kind in ("png", "jpg"):
        (directory / f"{kind}.{kind}").mkdir()
        for number, frame in enumerate(frames):
            Image.fromarray(frame).save(directory / f"{kind}.{kind}" / f"{number}.{kind}")
    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(directory / "gif.gif", save_all=True, append_images=pictures[1:])
    write_clip(directory / "mp4.mp4", frames.astype(float))
    for name, options in FITS.items():
        brtf.BRTF(**options, max_sweeps=3, random_state=0).fit(tensor).save(directory / f"{name}.brtf")
    brtf.BRTF(max_sweeps=3, random_state=0).fit(tensor, checkpoint=directory / "check.brtf", every=0)


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """The content with bytes cut, flipped, put in, taken out, or with another number or word in it."""
    raw = bytearray(content)
    if not raw:
        return bytes(rng.integers(0, 256, 20, dtype=np.uint8))
    place = int(rng.integers(min(len(raw), int(pick(rng, 64, 256, 10**9)))))
    match int(rng.integers(11)):
        case 0:
            return content[:place]
        case 1 | 2:
            for _ in range(int(rng.integers(1, 9))):
                raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        case 3:
            raw[place] ^= 1 << int(rng.integers(8))
        case 4:
            raw[place:place] = rng.integers(0, 256, int(rng.integers(1, 40)), dtype=np.uint8).tobytes()
        case 5:
            del raw[place : place + int(rng.integers(1, 40))]
        case 6:
            length = int(rng.integers(1, 9))
            raw[place : place + length] = pick(rng, b"\xff", b"\x00", b"\x7f") * length
        case 7:
            number = pick(rng, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 10**9)
            raw[place : place + 8] = number.to_bytes(8, pick(rng, "little", "big"))
        case 8 | 9 as which:
            pattern, others = NUMBER if which == 8 else WORD
            if found := list(re.finditer(pattern, content)):
                part = pick(rng, *found)
                raw[part.start() : part.end()] = pick(rng, *others)
        case 10:
            raw += content[place:] if rng.random() < 0.5 else b"\x00" * 50
    return bytes(raw)


NUMBER = rb"\d+", (b"99999999999", b"-1", b"0", b"1e999", b"9" * 400, b"4294967296", b"nan", b"1.5", b"", b"3")
WORD = rb"[A-Za-z_]{2,}", (b"", b"x", b"null", b"\xff\xfe", b"A" * 300, b"object", b"<script>", b"NaN", b"|O")
FORGED_FLOATS = (np.nan, np.inf, -1.0, 0.0, 1e300, -1e300, 1e-320)
FORGED_FIELDS: tuple[Any, ...] = (
    *(None, -1, 0, 1, 3, 2**70, 1e300, -1.5, "x", "", [], {}, [1], True, [[0]], [2**40] * 3, {"a": 1}),
)


def forge(rng: np.random.Generator, path: Path) -> None:
    """Change what a .brtf file says, with digests that are right."""
    header, arrays = read_archive(path)
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() >= 0.5 or not arrays:
            holder, key = pick(rng, *_leaves(header))
            holder[key] = copy.deepcopy(pick(rng, *FORGED_FIELDS))
            continue
        name = pick(rng, *sorted(arrays))
        array = arrays.pop(name).copy()
        match int(rng.integers(6)):
            case 0:
                continue
            case 1:
                array = array[..., None] if rng.random() < 0.5 else array.ravel()[:-1]
            case 2 if array.dtype.kind in "iufb":
                array = array.astype(pick(rng, "f4", "i8", "U3", "?", "f8"))
            case 3 | 4 if array.size and array.dtype.kind == "f":
                array.flat[int(rng.integers(array.size))] = pick(rng, *FORGED_FLOATS)
            case _ if array.size and array.dtype.kind in "iu":
                array.flat[int(rng.integers(array.size))] = pick(rng, 0, 99, 2**7 - 1)
        arrays[name] = array
    write_archive(path, header, arrays)


def _leaves(document: Any) -> Iterator[tuple[Any, Any]]:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _leaves(value)


def files_case(rng: np.random.Generator, door: Door, directory: Path) -> None:
    door.group = kind = pick(rng, *FILES)
    suffix = suffix_of(kind)
    original = directory.parent / "examples" / f"{kind}.{suffix}"
    path = directory / f"damaged.{suffix}"
    if original.is_dir():
        shutil.copytree(original, path)
        victim = pick(rng, *sorted(file for file in path.rglob("*") if file.is_file()))
        victim.write_bytes(damage(rng, victim.read_bytes()))
        if rng.random() < 0.1:
            victim.unlink()
    else:
        path.write_bytes(original.read_bytes())
        if suffix == "brtf" and rng.random() < 0.7:
            forge(rng, path)
        else:
            content = path.read_bytes()
            for _ in range(int(rng.integers(1, 3))):
                content = damage(rng, content)
            path.write_bytes(content)
        if rng.random() < 0.03:
            path = path.rename(directory / f"damaged.{suffix_of(pick(rng, *FILES))}")
            suffix = path.suffix[1:]
    read = _command if rng.random() < 0.15 and suffix not in ("png", "jpg", "gif", "mp4") else _read
    read(rng, door, path, kind)


def _read(rng: np.random.Generator, door: Door, path: Path, kind: str) -> None:
    if path.suffix in (".png", ".jpg", ".gif", ".mp4"):
        clip = door.ask(lambda: read_clip(path), path.name)
        check(np.isfinite(clip.tensor), "a clip is not finite")
    elif kind == "check" and path.suffix == ".brtf":
        door.ask(lambda: brtf.BRTF(max_sweeps=3, random_state=0).fit(example(), resume=path), path.name)
    elif path.suffix == ".brtf":
        model = door.ask(lambda: brtf.load(path), path.name)
        door.ask(model.summary)
        door.ask(model.anomalies)
        door.ask(lambda: model.forecast(2), "mode", "modes")
    else:
        tensor = door.ask(lambda: read_tensor(path), path.name)
        door.ask(lambda: brtf.data.observe.observe(tensor), *DATA_NAMES)


def _command(rng: np.random.Generator, door: Door, path: Path, kind: str) -> None:
    """The same by the command line, which says one line and ends with a code."""
    if path.suffix == ".brtf":
        arguments = pick(rng, ["show"], ["anomalies"], ["forecast", "--horizon", "2"])
    else:
        arguments = [*pick(rng, ["fit", "--quiet"], ["anomalies"]), "--max-sweeps", "2"]
    arguments.append(str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the command shows its own
        done = CliRunner().invoke(brtf.cli.main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failure(f"a traceback at the command line: {type(done.exception).__name__}: {done.exception}")
    check(done.exit_code in (0, 1, 2), f"exit code {done.exit_code}")
    if done.exit_code == 2:
        said = done.stderr.strip().splitlines()
        check(said and said[-1].startswith("brtf: error: "), f"no sentence at the command line: {said}")
        check(not RAW.search(said[-1]), f"raw text at the command line: {said[-1]}")
        raise Refused(said[-1])
