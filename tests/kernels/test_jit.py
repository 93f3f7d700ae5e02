"""Compiled code is kept between processes, where that is possible, and for as long as it is what it was made of."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from brtf.data.signals import signals_later
from brtf.kernels import jit
from brtf.kernels.scoring import student_scores

OUTER = "from kept.inner import inner\nfrom kept.jit import loop\n\n\n@loop\ndef outer():\n    return 10 * inner()\n"
INNER = "from kept.jit import loop\n\n\n@loop\ndef inner():\n    return {}\n"
CALL = "from kept.outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"
FIT = """
import sys
import warnings
import brtf
from brtf.kernels.jit import Loop
warnings.simplefilter("ignore")
for options in ({}, {"inference": "paper"}):
    for missing in (0.0, 0.5):
        brtf.BRTF(random_state=0, max_sweeps=3, **options).fit(brtf.datasets.paper_synthetic(missing=missing).observed)
compiled = {}
for name, module in list(sys.modules.items()):
    if name.startswith("brtf.kernels."):
        compiled |= {f"{name}.{key}": value for key, value in vars(module).items() if isinstance(value, Loop)}
print(len(compiled), [name for name, function in compiled.items() if function.stats.cache_misses])
"""


LIST = """
import numpy
from brtf.kernels.compiled.listed_block import _list_columns, _list_rows
mask = numpy.random.default_rng(0).random((2, 5, 19)) < 0.5
rows, (columns, _) = _list_rows(mask[0], mask[0].sum()), _list_columns(mask, mask.sum())
print((rows[0] == mask[0].sum(axis=1).cumsum()).all(), (rows[1][: rows[0][-1]] == mask[0].nonzero()[1]).all())
print((columns[0] == mask.sum(axis=1).cumsum()).all(), (columns[1] == mask.swapaxes(1, 2).nonzero()[2]).all())
"""
KEY = ("loop", "sources", "versions")


def run(program, directory, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
        env={name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def kept(tmp_path):
    """A package of two loops that are compiled as those of the library are."""
    package = tmp_path / "kept"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jit.py").write_text(Path(jit.__file__).read_text())
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(1))
    return package


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files of a loop."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return jit.CodeFiles(run)


def files_in(files):
    return set(Path(files.cache_path).glob("*.nbc"))


def test_a_loop_that_others_may_share_the_name_of_is_refused():
    """Code is linked by name: by a process, too, that has compiled one of them and loads what another has kept."""

    def loop():
        return 1

    with pytest.raises(TypeError, match=r"<locals>\.loop cannot be compiled, as other functions may have its name"):
        jit.loop(loop)


def test_code_made_of_another_file_is_compiled_again_when_that_changes(kept):
    assert run(CALL, kept.parent) == "10 0"
    assert run(CALL, kept.parent) == "10 1"
    (kept / "inner.py").write_text(INNER.format(2))
    assert run(CALL, kept.parent) == "20 0"
    (file,) = kept.rglob("*.nbc")  # of the outer loop, with the inner one as a part: nothing is left of before
    assert ".outer." in file.name


@pytest.mark.parametrize("shown", [True, False])
def test_people_who_look_are_told_once_that_it_compiles(kept, shown):
    call = (
        f"import sys\nsys.stderr = sys.stdout\nfrom brtf.kernels.log import log_shown\nfrom kept.outer import outer\n"
        f"from kept.inner import inner\nwith log_shown(shown={shown}):\n    inner(), outer()\n"
    )
    told = "brtf: Compiling for this processor, once. Later fits load the code."
    assert run(call, kept.parent) == (told if shown else "")
    assert run(call, kept.parent) == ""


class TestNowhereToKeepIt:
    TELL = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from kept.outer import outer
    assert outer() == 10
print(len(told), *(warning.message for warning in told))
"""

    def test_no_directory_can_be_written_to(self, kept):
        """As in a container whose package and home are read-only; here what should be directories are files."""
        (kept / "__pycache__").touch()
        told = run(self.TELL, kept.parent, XDG_CACHE_HOME=os.devnull, HOME=os.devnull)
        assert told == (
            "1 Compiled code cannot be cached: no cache directory is writable, so every process recompiles, "
            "which takes ten seconds or more. Set NUMBA_CACHE_DIR to a writable directory."
        )
        elsewhere = {"NUMBA_CACHE_DIR": str(kept.parent / "cache"), "XDG_CACHE_HOME": os.devnull}
        assert run(self.TELL, kept.parent, **elsewhere) == "0"
        assert run(CALL, kept.parent, **elsewhere) == "10 1"

    def test_the_directory_is_full_or_taken_away(self, kept):
        full = "from kept import jit\n\ndef full(*_):\n    raise OSError(28, 'No space left on device')\n\n"
        told = run(full + "jit.Path.write_bytes = full\n" + self.TELL, kept.parent)
        assert told.startswith("1 Compiled code cannot be cached: no cache directory is writable")
        assert run(CALL, kept.parent) == "10 0"


class TestDamagedFiles:
    DAMAGES = (
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
        lambda content: b"\x80\x04N.",  # a pickle of something else
    )

    @pytest.mark.parametrize("damage", DAMAGES, ids=["empty", "cut", "flipped", "other"])
    def test_count_as_absent(self, damage, files):
        code = bytes(range(256))
        files.write(KEY, code)
        assert files.read(KEY) == code
        (path,) = files_in(files)
        path.write_bytes(damage(path.read_bytes()))
        assert files.read(KEY) is None
        files.write(KEY, code)
        assert files.read(KEY) == code

    def test_are_compiled_anew_once(self, kept):
        assert run(CALL, kept.parent) == "10 0"
        (outer,) = kept.rglob("*.nbc")
        content = bytearray(outer.read_bytes())
        content[len(content) // 2] ^= 1
        outer.write_bytes(content)
        assert run(CALL, kept.parent) == "10 0"
        assert run(CALL, kept.parent) == "10 1"


class TestProcessesThatCompileAtTheSameTime:
    """Two that have read the same files, or none, and write what they have compiled after that, in any order."""

    def test_keep_what_each_has_compiled(self, files, monkeypatch):
        other = ("another", *KEY[1:])
        write_bytes, at_once = Path.write_bytes, []

        def write_while_another_process_writes(path, content):
            if not at_once:
                at_once.append(path)
                files.write(other, b"of the other")
            write_bytes(path, content)

        monkeypatch.setattr(Path, "write_bytes", write_while_another_process_writes)
        files.write(KEY, b"own")
        assert at_once
        assert (files.read(KEY), files.read(other)) == (b"own", b"of the other")

    def test_never_read_what_was_compiled_for_something_else(self, files):
        files.write(KEY, b"own")
        (path,) = files_in(files)
        files.write(("another", *KEY[1:]), b"of the other")
        (other,) = files_in(files) - {path}
        other.replace(path)
        assert files.read(KEY) is None

    @pytest.mark.parametrize("lost", ["list_rows", "list_columns"])
    def test_give_what_one_process_gives(self, tmp_path, lost):
        """A process loads one of two loops, the second of which has the first as a part, and compiles the other."""
        seed = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": "0"}
        assert run(LIST, tmp_path, **seed) == "True True\nTrue True"
        (path,) = tmp_path.rglob(f"*.{lost}.*.nbc")
        path.unlink()
        assert run(LIST, tmp_path, **seed) == "True True\nTrue True"


def test_a_fit_compiles_nothing_that_an_earlier_process_has_compiled(tmp_path):
    run(FIT, tmp_path)
    n_compiled, compiled_again = run(FIT, tmp_path).split(" ", 1)
    assert int(n_compiled) > 10
    assert compiled_again == "[]"


class TestInterrupts:
    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
    def test_a_signal_waits_until_the_compiler_is_done(self, name, monkeypatch):
        """A handler that raises in the middle would leave code of the compiler with two owners."""

        class Ended(Exception):
            pass

        def end(*_):
            raise Ended

        number, done = getattr(signal, name), []
        before = signal.signal(number, end)

        def compile_(self, sig):
            signal.raise_signal(number)
            done.append(sig)

        monkeypatch.setattr(numba.core.registry.CPUDispatcher, "compile", compile_)
        try:
            with pytest.raises(Ended):
                student_scores.compile("a signature")
            assert done == ["a signature"]
            assert signal.getsignal(number) is end
        finally:
            signal.signal(number, before)

    def test_ignored_signals_stay_ignored(self):
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            with signals_later():
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
                signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGTERM, before)
