"""Compiled code is kept between processes, where that is possible, and for as long as it is what it was made of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brtf.kernels import jit

OUTER = "from kept.inner import inner\nfrom kept.jit import loop\n\n\n@loop\ndef outer():\n    return 10 * inner()\n"
INNER = "from kept.jit import loop\n\n\n@loop\ndef inner():\n    return {}\n"
CALL = "from kept.outer import outer; print(outer(), sum(outer.stats.cache_hits.values()))"
FIT = """
import sys
import warnings
import brtf
warnings.simplefilter("ignore")
for options in ({}, {"inference": "paper"}):
    for missing in (0.0, 0.5):
        brtf.BRTF(random_state=0, max_sweeps=3, **options).fit(brtf.datasets.paper_synthetic(missing=missing).observed)
compiled = {}
for name, module in list(sys.modules.items()):
    if name.startswith("brtf.kernels."):
        compiled |= {f"{name}.{key}": value for key, value in vars(module).items() if hasattr(value, "stats")}
print(len(compiled), [name for name, function in compiled.items() if function.stats.cache_misses])
"""


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


def test_code_made_of_another_file_is_compiled_again_when_that_changes(kept):
    assert run(CALL, kept.parent) == "10 0"
    assert run(CALL, kept.parent) == "10 1"
    (kept / "inner.py").write_text(INNER.format(2))
    assert run(CALL, kept.parent) == "20 0"


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
            "1 Compiled code cannot be kept, as no directory for it can be written to: every process compiles anew, "
            "which takes ten seconds or more. Set NUMBA_CACHE_DIR to a directory that can be written to."
        )
        elsewhere = {"NUMBA_CACHE_DIR": str(kept.parent / "cache"), "XDG_CACHE_HOME": os.devnull}
        assert run(self.TELL, kept.parent, **elsewhere) == "0"
        assert run(CALL, kept.parent, **elsewhere) == "10 1"

    def test_the_directory_is_full_or_taken_away(self, kept):
        full = "from kept import jit\n\ndef full(*_):\n    raise OSError(28, 'No space left on device')\n\n"
        told = run(full + "jit.CheckedFile._open_for_write = full\n" + self.TELL, kept.parent)
        assert told.startswith("1 Compiled code cannot be kept, as no directory for it can be written to: every")
        assert run(CALL, kept.parent) == "10 0"


class TestDamagedFiles:
    DAMAGES = (
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
        lambda content: b"\x80\x04N.",  # a pickle of something else
    )

    @pytest.mark.parametrize("damage", DAMAGES, ids=["empty", "cut", "flipped", "other"])
    @pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
    def test_count_as_absent(self, suffix, damage, tmp_path):
        file, code = jit.CheckedFile(str(tmp_path), "loop", "stamp"), bytes(range(256))
        file.save("key", code)
        assert file.load("key") == code
        (path,) = tmp_path.glob(f"*{suffix}")
        path.write_bytes(damage(path.read_bytes()))
        assert file.load("key") is None
        file.save("key", code)
        assert file.load("key") == code
        assert jit.CheckedFile(str(tmp_path), "loop", "another stamp").load("key") is None

    def test_are_compiled_anew_once(self, kept):
        assert run(CALL, kept.parent) == "10 0"
        (index,), (code,) = kept.rglob("inner*.nbi"), kept.rglob("outer*.nbc")
        index.write_bytes(b"")
        content = bytearray(code.read_bytes())
        content[len(content) // 2] ^= 1
        code.write_bytes(content)
        assert run(CALL, kept.parent) == "10 0"
        assert run(CALL, kept.parent) == "10 1"


def test_a_fit_compiles_nothing_that_an_earlier_process_has_compiled(tmp_path):
    run(FIT, tmp_path)
    n_compiled, compiled_again = run(FIT, tmp_path).split(" ", 1)
    assert int(n_compiled) > 10
    assert compiled_again == "[]"
