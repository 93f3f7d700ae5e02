"""The .brtf container: what goes in comes out, and anything else is refused."""

import errno
import hashlib
import io
import json
import os
import pickle
import re
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from brtf.io import atomic_file, storage
from brtf.io.storage import FORMAT_VERSION, MAX_HEADER_BYTES, CorruptFile, read_archive, write_archive

HEADER = {
    "library": "0.1.0",
    "rank": 3,
    "bound": -1.5e-300,
    "converged": True,
    "nothing": None,
    "labels": ["λ", "\ud800", "a\nb"],
    "nested": {"one": [1, [2.5]], "empty": {}},
}
ARRAYS = {
    "factor.0": np.arange(6.0).reshape(2, 3),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 2)),
    "tau": np.array(2.5, dtype=np.float32),
}
DTYPES = [
    *[
        "?",
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "f2",
        "f4",
        "f8",
        ">f8",
        ">i4",
        "S1",
        "S7",
        "U1",
        "U5",
    ],
    *[">U3", "M8[ns]", "M8[D]", ">M8[s]", "M8", "m8[us]", "m8[25s]", "m8"],
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.brtf"


@pytest.fixture
def written(path: Path) -> Path:
    write_archive(path, HEADER, ARRAYS)
    return path


def same(got: tuple, header: dict = HEADER, arrays: dict = ARRAYS) -> bool:
    """Whether header and arrays are those, to the last bit."""
    return (
        got[0] == header
        and list(got[1]) == sorted(arrays)
        and all(
            (got[1][name].dtype, got[1][name].shape, got[1][name].tobytes())
            == (array.dtype, array.shape, array.tobytes())
            for name, array in arrays.items()
        )
    )


def plain(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    """Describe a member as the writer does."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def npy(array: np.ndarray, **options: object) -> bytes:
    """Return an array as numpy itself writes it."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def forge(path: Path, *, members: dict | None = None, document: dict | None = None, **options: object) -> None:
    """Write the file again with other members (None: left out) or header.json keys, all CRCs in order."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["header.json"] = json.dumps(json.loads(content["header.json"]) | (document or {})).encode()
    content |= members or {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            if data is not None:
                archive.writestr(plain(name), data, **options)


def entry(array: np.ndarray, **changes: object) -> dict:
    """Return what header.json says of an array, or something else."""
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest} | changes


def refusal(path: Path) -> str:
    """Return the reason for which a file is refused: one sentence that names the file."""
    with pytest.raises(CorruptFile) as caught:
        read_archive(path)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be read: ")
    assert not message.endswith(": .") and message.endswith(".") and "\n" not in message
    return message.removeprefix(f"{path} cannot be read: ").removesuffix(".")


class TestRoundTrip:
    def test_header_and_arrays(self, written: Path) -> None:
        assert same(read_archive(written))

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 1), (1,) * 32], ids=str)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_type_and_shape(self, path: Path, dtype: str, shape: tuple) -> None:
        array = np.arange(1, np.prod(shape, dtype=int) + 1).astype(dtype).reshape(shape)
        write_archive(path, {}, {"array": array})
        assert same(read_archive(path), {}, {"array": array})

    def test_values_that_comparisons_lose(self, path: Path) -> None:
        array = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324])
        times = np.array(["NaT", "2020-01-01"], dtype="M8[D]")
        write_archive(path, {}, {"array": array, "times": times})
        assert same(read_archive(path), {}, {"array": array, "times": times})

    def test_larger_than_one_block(self, path: Path) -> None:
        array = np.random.default_rng(0).integers(0, 256, 2 * storage._BLOCK_BYTES + 7, dtype=np.uint8)
        write_archive(path, {}, {"array": array, "mask": array > 9})
        assert same(read_archive(path), {}, {"array": array, "mask": array > 9})

    @pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::-2, ::-1], lambda a: np.asfortranarray(a)])
    def test_memory_layout_does_not_matter(self, path: Path, view) -> None:
        array = view(np.arange(24).reshape(4, 6))
        array.setflags(write=False)
        write_archive(path, {}, {"array": array})
        got = read_archive(path)[1]["array"]
        np.testing.assert_array_equal(got, array)
        assert got.flags.c_contiguous and got.flags.writeable and got.flags.aligned

    def test_nothing_at_all(self, path: Path) -> None:
        write_archive(path, {}, {})
        assert read_archive(path) == ({}, {})

    def test_tuples_become_lists(self, path: Path) -> None:
        write_archive(path, {"shape": (2, (3,))}, {})
        assert read_archive(path)[0] == {"shape": [2, [3]]}

    def test_same_content_same_bytes(self, written: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.brtf"
        backwards = {name: np.array(ARRAYS[name], order="F") for name in reversed(ARRAYS)}
        write_archive(other, dict(reversed(HEADER.items())), backwards)
        assert other.read_bytes() == written.read_bytes()

    def test_zip_and_numpy_read_it(self, written: Path) -> None:
        with np.load(written, allow_pickle=False) as archive:
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(archive[name], array)
        with zipfile.ZipFile(written) as archive:
            document = json.loads(archive.read("header.json"))
        assert (document["format"], document["version"], document["library"]) == (
            "brtf",
            FORMAT_VERSION,
            "0.1.0",
        )

    def test_paths_may_be_strings(self, path: Path) -> None:
        write_archive(str(path), HEADER, ARRAYS)
        assert same(read_archive(str(path)))

    def test_sizes_beyond_the_plain_zip_format(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Members of over 2 GB use the 64-bit zip fields; here everything over 100 bytes does."""
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
        write_archive(path, HEADER, ARRAYS)
        assert b"PK\x06\x06" in path.read_bytes()
        assert same(read_archive(path))


class TestRefusedAtWriting:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float64("nan")])
    def test_float_not_finite_names_its_key(self, path: Path, value: float) -> None:
        with pytest.raises(ValueError, match=r"header\['trace'\]\[1\]\['bound'\] is -?(nan|inf)"):
            write_archive(path, {"trace": [{}, {"bound": value}]}, {})

    @pytest.mark.parametrize("value", [np.int64(1), np.zeros(2), b"x", {1}, 1j, object()])
    def test_value_without_json_form_names_its_key(self, path: Path, value: object) -> None:
        with pytest.raises(TypeError, match=r"header\['key'\] is a \w+, which JSON cannot hold"):
            write_archive(path, {"key": value}, {})

    def test_key_that_is_no_string(self, path: Path) -> None:
        with pytest.raises(TypeError, match=r"header\['noise'\] has the key 0"):
            write_archive(path, {"noise": {0: 1.0}}, {})

    def test_header_too_large(self, path: Path) -> None:
        with pytest.raises(ValueError, match=r"header takes \d+ bytes as JSON, more than 67108864"):
            write_archive(path, {"text": "x" * MAX_HEADER_BYTES}, {})

    @pytest.mark.parametrize(
        "array",
        [
            np.array([None]),
            np.zeros(2, dtype=complex),
            np.zeros(2, dtype=[("x", "f8")]),
            np.zeros(2, dtype=np.longdouble),
            np.ma.masked_array([1.0, 2.0], mask=[True, False]),
            [1.0, 2.0],
            np.float64(1.0),
        ],
    )
    def test_array_type(self, path: Path, array: object) -> None:
        if isinstance(array, np.ndarray) and array.dtype == np.float64 and array.dtype == np.longdouble:
            pytest.skip("long double is double on this machine")
        with pytest.raises(TypeError, match=r"arrays\['array'\] (has dtype|is a)"):
            write_archive(path, {}, {"array": array})

    @pytest.mark.parametrize("name", ["", ".a", "A", "a/b", "a\\b", "..", "a b", "a\n", "é", "a" * 65, 3])
    def test_array_name(self, path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="arrays has the name"):
            write_archive(path, {}, {name: np.zeros(2)})

    @pytest.mark.parametrize("name", ["a" * 64, "header.json", "-", "0", "_a..b"])
    def test_array_names_allowed(self, path: Path, name: str) -> None:
        write_archive(path, {}, {name: np.zeros(2)})
        assert list(read_archive(path)[1]) == [name]

    @pytest.mark.parametrize("call", [lambda path: write_archive(path, {}, {}), read_archive])
    def test_directory(self, tmp_path: Path, call) -> None:
        with pytest.raises(ValueError, match=f"{tmp_path} is a directory or a device"):
            call(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_device_is_not_replaced(self, path: Path) -> None:
        os.mkfifo(path)
        with pytest.raises(ValueError, match="is a directory or a device"):
            write_archive(path, {}, {})
        assert stat.S_ISFIFO(path.stat().st_mode)


class TestAllOrNothing:
    """Whatever fails during writing, the earlier file is intact and nothing is left beside it."""

    def check(self, written: Path, failure: type[BaseException]) -> None:
        before = written.read_bytes()
        with pytest.raises(failure):
            write_archive(written, {"new": 1}, {"array": np.zeros(100_000)})
        assert written.read_bytes() == before
        assert list(written.parent.iterdir()) == [written]

    @pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
    @pytest.mark.parametrize(
        "step",
        ["os.fsync", "os.replace", "zipfile.ZipFile.open", "zipfile._ZipWriteFile.write", "shutil.copymode"],
    )
    def test_failure_at_each_step(
        self, written: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
    ) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise failure

        monkeypatch.setattr(step, fail)
        self.check(written, type(failure))

    def test_full_disk(self, written: Path) -> None:
        resource = pytest.importorskip("resource")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            self.check(written, OSError)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def test_bad_content(self, written: Path) -> None:
        before = written.read_bytes()
        with pytest.raises(TypeError):
            write_archive(written, {}, {"array": np.array([None])})
        assert written.read_bytes() == before
        assert list(written.parent.iterdir()) == [written]

    def test_content_is_on_disk_before_it_takes_the_name(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = []
        for name in ("fsync", "replace"):
            original = getattr(os, name)

            def record(*args: object, name: str = name, original=original) -> None:
                steps.append(name)
                original(*args)

            monkeypatch.setattr(os, name, record)
        write_archive(written, HEADER, ARRAYS)
        assert steps == ["fsync", "replace", "fsync"]
        assert list(written.parent.iterdir()) == [written]

    def test_permissions_and_links_are_kept(self, written: Path) -> None:
        written.chmod(0o600)
        link = written.with_name("link.brtf")
        link.symlink_to(written)
        write_archive(link, {"new": 1}, {})
        assert link.is_symlink() and read_archive(written)[0] == {"new": 1}
        assert stat.S_IMODE(written.stat().st_mode) == 0o600

    def test_missing_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "missing" / "result.brtf"
        with pytest.raises(FileNotFoundError) as caught:
            write_archive(path, {}, {})
        assert str(caught.value) == (
            f"{path} cannot be written: the directory {tmp_path / 'missing'} does not exist. Create it first."
        )

    @pytest.mark.parametrize("step", ["os.fsync", "os.replace", "zipfile._ZipWriteFile.write"])
    def test_a_full_disk_names_the_file(self, written: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", *(args[:1] if step == "os.replace" else ()))

        monkeypatch.setattr(step, fail)
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_archive(written, {"new": 1}, {"array": np.zeros(1000)})
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(written))
        assert str(caught.value) == f"[Errno {errno.ENOSPC}] No space left on device: {str(written)!r}"
        assert ".part" not in str(caught.value)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_directory_without_permission_names_the_file(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError) as caught:
            write_archive(tmp_path / "result.brtf", {}, {})
        assert caught.value.filename == str(tmp_path / "result.brtf")

    def test_an_error_of_the_content_is_not_the_files(self, path: Path) -> None:
        with pytest.raises(OSError) as caught, atomic_file.atomic_file(path):
            raise OSError(errno.ENOENT, "No such file or directory", "elsewhere.png")
        assert caught.value.filename == "elsewhere.png"


WRITER = """
import sys, time
from brtf.io.atomic_file import atomic_file
with atomic_file(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
"""


class TestLeftBehind:
    """What a process that was killed leaves beside the file goes when the next one writes; a living one's stays."""

    def writer(self, path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout.read(7) == b"writing"
        return process

    def test_of_the_dead_and_of_the_living(self, path: Path) -> None:
        with self.writer(path) as killed, self.writer(path.with_name("other.brtf")) as living:
            try:
                killed.kill()
                killed.wait()
                assert len(list(path.parent.iterdir())) == 2
                write_archive(path, HEADER, ARRAYS)
                (left,) = set(path.parent.iterdir()) - {path}
                assert left.suffix == ".part" and left.read_bytes() == b"half"
            finally:
                living.kill()
        write_archive(path, HEADER, ARRAYS)
        assert list(path.parent.iterdir()) == [path]

    def test_of_this_process(self, path: Path) -> None:
        with atomic_file.atomic_file(path) as file:
            file.write(b"first")
            with atomic_file.atomic_file(path.with_name("other")) as other:
                other.write(b"second")
        assert path.read_bytes() == b"first"

    def test_nothing_else_is_removed(self, path: Path) -> None:
        others = [path.with_name(name) for name in ("download.part", ".brtf-notes", ".brtf-notes.part", "x.brtf")]
        for other in others:
            other.write_bytes(b"mine")
        link = path.with_name(f".brtf-{'1' * 16}.part")
        link.symlink_to(others[0])
        write_archive(path, HEADER, ARRAYS)
        assert set(path.parent.iterdir()) == {path, link, *others}

    def test_directories(self, path: Path) -> None:
        abandoned = path.with_name(f".brtf-{'0' * 16}.part")
        abandoned.mkdir()
        (abandoned / "half").write_bytes(b"half")
        with atomic_file.partial_directory(path.parent) as own:
            with atomic_file.partial_directory(path.parent):
                pass
            assert list(path.parent.iterdir()) == [Path(own)]
        assert list(path.parent.iterdir()) == []


class TestDamage:
    def test_every_flipped_byte(self, path: Path) -> None:
        """A damaged byte is noticed, or it carried no information (dates and counts of the zip itself)."""
        arrays = {"factor": np.array([1.5, -2.0]), "label": np.array("ab")}
        write_archive(path, {"rank": 2}, arrays)
        good = path.read_bytes()
        unnoticed = set()
        with open(path, "r+b", buffering=0) as file:
            for place, byte in enumerate(good):
                for flip in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0):
                    file.seek(place)
                    file.write(bytes([byte ^ flip]))
                    try:
                        assert same(read_archive(path), {"rank": 2}, arrays), f"byte {place} ^ {flip}: other data"
                    except CorruptFile:
                        assert flip != 0
                    else:
                        if flip:
                            unnoticed.add(place)
        # Before the zip's directory, only the fields of a member's local header that the directory repeats.
        with zipfile.ZipFile(path) as archive:
            repeated = {info.header_offset + field for info in archive.infolist() for field in range(4, 26)}
            assert {place for place in unnoticed if place < archive.start_dir} <= repeated

    def test_every_truncation(self, written: Path) -> None:
        for length in reversed(range(written.stat().st_size)):
            os.truncate(written, length)
            refusal(written)

    def test_truncated(self, written: Path) -> None:
        written.write_bytes(written.read_bytes()[:-1])
        assert "cut short" in refusal(written)

    def test_member_that_begins_past_the_end(self, written: Path) -> None:
        data = bytearray(written.read_bytes())
        place = data.index(b"tau.npy") - 2  # the length of the extra field in its local header
        data[place : place + 2] = b"\xff\xff"
        written.write_bytes(data)
        # From Python 3.13 on zipfile itself sees that the member reaches into what follows.
        assert re.fullmatch("it ends in the middle of a member|Overlapped entries: 'tau.npy' .*", refusal(written))

    def test_bytes_added(self, written: Path) -> None:
        good = written.read_bytes()
        written.write_bytes(good + b"\0")
        assert "bytes added" in refusal(written)
        written.write_bytes(b"#!/bin/sh\n" + good)
        assert "not a zip" in refusal(written)

    def test_bytes_cut_from_the_middle(self, written: Path) -> None:
        good = written.read_bytes()
        for start in range(4, len(good) - 60, 7):
            written.write_bytes(good[:start] + good[start + 40 :])
            with pytest.raises(CorruptFile):
                read_archive(written)

    def test_not_a_zip(self, path: Path) -> None:
        path.write_bytes(b"")
        assert refusal(path) == "it is empty"
        path.write_bytes(npy(np.zeros(3)))
        assert "not a zip" in refusal(path)
        path.write_bytes(pickle.dumps({"a": 1}))
        assert "pickle" in refusal(path)

    def test_missing_file(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_archive(path)

    @pytest.mark.parametrize("place", ["digest", "crc"])
    def test_refused_before_memory_is_allocated(self, path: Path, place: str) -> None:
        array = np.zeros(20 * 2**20, dtype=np.uint8)
        if place == "digest":
            write_archive(path, {}, {"array": array})
            forge(path, document={"arrays": {"array": entry(array[:-1], shape=[array.size])}})
        else:
            write_archive(path, {}, {"array": array})
            with open(path, "r+b") as file:
                file.seek(-1000, os.SEEK_END)  # the last bytes of the array, before the zip's directory
                file.write(b"\1")
        del array
        tracemalloc.start()
        try:
            reason = refusal(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert ("sha256" if place == "digest" else "CRC-32") in reason
        # A few blocks of 1 MiB are in flight inside zipfile; the array would take 20.
        assert peak < 6 * storage._BLOCK_BYTES


class TestForgery:
    """Files whose checksums are in order, made by someone who knows the format."""

    def test_an_honest_copy_is_read(self, written: Path) -> None:
        forge(written)
        assert same(read_archive(written))

    def test_newer_format(self, written: Path) -> None:
        document = {"version": FORMAT_VERSION + 1, "arrays": ["laid", "out", "otherwise"]}
        forge(written, document=document, members={"mask.npy": None})
        assert refusal(written) == (
            f"it was written by a newer brtf (format {FORMAT_VERSION + 1}); upgrade brtf to read it"
        )

    def test_older_format(self, written: Path) -> None:
        forge(written, document={"version": 1})
        assert refusal(written) == "it was written by an older brtf (format 1) that this one does not read; fit again"

    @pytest.mark.parametrize(
        "document",
        [
            {"format": "npz"},
            {"version": 0},
            {"version": "1"},
            {"version": True},
            {"version": None},
            {"arrays": None},
            {"header": []},
        ],
        ids=str,
    )
    def test_header_document(self, written: Path, document: dict) -> None:
        forge(written, document=document)
        refusal(written)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"{",
            b"\xff",
            b"[" * 10**5,
        ],
        ids=lambda text: repr(text[:9]),
    )
    def test_header_text(self, written: Path, text: bytes) -> None:
        forge(written, members={"header.json": text})
        refusal(written)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_header_beyond_json(self, written: Path, value: float) -> None:
        forge(written, document={"header": {"bound": value}})
        assert refusal(written).endswith("which is not JSON")

    def test_header_too_large(self, written: Path) -> None:
        forge(written, document={"text": "x" * MAX_HEADER_BYTES})
        assert "larger than 67108864 bytes" in refusal(written)

    def test_no_header(self, path: Path) -> None:
        np.savez(path.with_suffix(".npz"), x=np.zeros(2))
        path.write_bytes(path.with_suffix(".npz").read_bytes())
        assert "no header.json inside" in refusal(path)

    def test_members_unlisted_and_missing(self, written: Path) -> None:
        good = written.read_bytes()
        for name in (
            "extra.npy",
            "../../etc/passwd",
            "/absolute.npy",
            "a\\b.npy",
            "C:x.npy",
            "folder/",
            "mask",
            "é.npy",
        ):
            written.write_bytes(good)
            forge(written, members={name: b""})
            assert refusal(written) == f"member {name!r} is not listed in the header"
        written.write_bytes(good)
        forge(written, members={"mask.npy": None})
        assert refusal(written) == "member 'mask.npy' is missing"

    @pytest.mark.parametrize("name", ["../up", "/abs", "a\\b", "..", "", "A", ".hidden", "a" * 65])
    def test_strange_names_that_are_listed(self, path: Path, name: str) -> None:
        write_archive(path, {}, {})
        array = np.zeros(2)
        forge(path, document={"arrays": {name: entry(array)}}, members={f"{name}.npy": npy(array)})
        assert refusal(path) == f"header.json lists an array under the name {name!r}"

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    @pytest.mark.parametrize("name", ["mask.npy", "header.json"])
    def test_member_twice(self, written: Path, name: str) -> None:
        with zipfile.ZipFile(written, "a") as archive:
            archive.writestr(plain(name), archive.read(name))
        assert refusal(written) == f"member {name!r} is there twice"

    def test_name_cut_by_a_null_byte(self, written: Path) -> None:
        with zipfile.ZipFile(written, "a") as archive:
            archive.writestr(plain("mask_npyXXX"), b"")
        written.write_bytes(written.read_bytes().replace(b"mask_npyXXX", b"mask.npy\0XX"))
        refusal(written)

    @pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755, stat.S_IFIFO, 0])
    @pytest.mark.parametrize("name", ["mask.npy", "header.json"])
    def test_link_or_directory(self, written: Path, name: str, mode: int) -> None:
        data = written.read_bytes()
        place = data.rindex(name.encode()) - 46  # its entry in the zip's directory; attributes at 38
        written.write_bytes(data[: place + 38] + struct.pack("<L", mode << 16) + data[place + 42 :])
        assert refusal(written) == f"member {name!r} is a link or a directory, not a file"

    def test_encrypted(self, written: Path) -> None:
        data = bytearray(written.read_bytes())
        data[data.rindex(b"mask.npy") - 46 + 8] |= 1  # the flags of its directory entry
        written.write_bytes(data)
        assert refusal(written) == "member 'mask.npy' is encrypted"

    def test_compressed(self, written: Path) -> None:
        forge(written, compress_type=zipfile.ZIP_DEFLATED)
        assert refusal(written).startswith("member 'header.json' is compressed")

    def test_zip_bomb(self, path: Path) -> None:
        array = np.zeros(2**20)
        write_archive(path, {}, {})
        with zipfile.ZipFile(path) as archive:
            document = json.loads(archive.read("header.json")) | {"arrays": {"array": entry(array)}}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(plain("header.json"), json.dumps(document))
            archive.writestr(plain("array.npy"), npy(array), compress_type=zipfile.ZIP_DEFLATED)
        assert path.stat().st_size < array.nbytes / 500
        assert refusal(path).startswith("member 'array.npy' is compressed")

    def test_overlapping_members(self, path: Path) -> None:
        """Many directory entries that point at the same bytes ask for more memory than the file has."""
        array = np.zeros(1000)
        write_archive(path, {}, {"a": array, "b": array})
        data = path.read_bytes()
        first, second = data.index(b"a.npy") - 30, data.rindex(b"b.npy") - 46
        path.write_bytes(data[: second + 42] + struct.pack("<L", first) + data[second + 46 :])
        assert refusal(path).endswith("overlaps another")

    def test_members_larger_than_the_file(self, path: Path) -> None:
        write_archive(path, {}, {"array": np.zeros(1000)})
        data = path.read_bytes()
        place = data.rindex(b"array.npy") - 46 + 20  # both sizes in the directory entry
        path.write_bytes(data[:place] + struct.pack("<LL", 2**31, 2**31) + data[place + 8 :])
        assert refusal(path) == "its members claim more bytes than the file has"

    @pytest.mark.parametrize(
        "changes",
        [
            {"dtype": "|O"},
            {"dtype": "O"},
            {"dtype": "<f8,<f8"},
            {"dtype": "<c16"},
            {"dtype": "|V8"},
            {"dtype": "<U0"},
            {"dtype": "<M8[0s]"},
            {"dtype": ["<f8"]},
            {"shape": "23"},
            {"shape": [2, -3]},
            {"shape": [2, 3.0]},
            {"shape": [True]},
            {"shape": [1] * 65},
            {"shape": [2**63, 0]},
            {"sha256": None},
        ],
        ids=str,
    )
    def test_declared_type_and_shape(self, written: Path, changes: dict) -> None:
        arrays = {name: entry(array) for name, array in ARRAYS.items()}
        arrays["factor.0"] |= changes
        forge(written, document={"arrays": arrays})
        assert refusal(written) == "header.json describes array 'factor.0' by a type or shape that is not allowed"

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"shape": [3, 2]}, "type and shape that the header says"),
            ({"shape": [6]}, "type and shape that the header says"),
            ({"dtype": "<i8"}, "type and shape that the header says"),
            ({"shape": [2**40, 2**40]}, "size"),
            ({"shape": [2, 2]}, "size"),
            ({"shape": [0, 2**62]}, "size"),
            ({"dtype": "<U99999999"}, "size"),
            ({"sha256": "0" * 64}, "does not match its sha256"),
        ],
        ids=str,
    )
    def test_declaration_that_differs_from_the_member(self, written: Path, changes: dict, reason: str) -> None:
        arrays = {name: entry(array) for name, array in ARRAYS.items()}
        arrays["factor.0"] |= changes
        forge(written, document={"arrays": arrays})
        assert reason in refusal(written)

    def test_shape_that_numpy_cannot_hold(self, path: Path) -> None:
        write_archive(path, {}, {})
        empty, shape = np.zeros(0), (0, 2**62, 2**62)
        forge(
            path,
            document={"arrays": {"array": entry(empty, shape=shape)}},
            members={"array.npy": storage._npy_header(empty.dtype, shape)},
        )
        refusal(path)

    @pytest.mark.parametrize(
        "member",
        [
            npy(np.asfortranarray(ARRAYS["factor.0"])),
            npy(ARRAYS["factor.0"], version=(2, 0)),
            npy(np.array([None] * 6).reshape(2, 3)),
            pickle.dumps(ARRAYS["factor.0"]),
            npy(ARRAYS["factor.0"]) + b"\0",
            b"",
        ],
        ids=["fortran", "version", "object", "pickle", "longer", "empty"],
    )
    def test_npy_member(self, written: Path, member: bytes) -> None:
        forge(written, members={"factor.0.npy": member})
        assert "'factor.0.npy'" in refusal(written)

    def test_npy_header_of_the_right_length(self, path: Path) -> None:
        array = np.arange(4.0).reshape(2, 2)
        write_archive(path, {}, {"array": array})
        with zipfile.ZipFile(path) as archive:
            member = archive.read("array.npy")
        for old, new in (
            (b"False,", b"True, "),
            (b"'<f8'", b"'>f8'"),
            (b"'<f8'", b"'|O8'"),
            (b"NUMPY\1", b"NUMPY\2"),
        ):
            assert old in member
            forge(path, members={"array.npy": member.replace(old, new)})
            assert "type and shape that the header says" in refusal(path)

    def test_bools_are_zero_or_one(self, path: Path) -> None:
        write_archive(path, {}, {"mask": np.array([True, False])})
        with zipfile.ZipFile(path) as archive:
            member = archive.read("mask.npy")
        bad = np.array([1, 255], dtype=np.uint8)
        forge(
            path,
            document={"arrays": {"mask": entry(bad, dtype="|b1")}},
            members={"mask.npy": member[:-2] + bad.tobytes()},
        )
        assert "bools other than 0 and 1" in refusal(path)
