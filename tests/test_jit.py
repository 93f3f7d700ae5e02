"""Compiled code is kept between processes, and only for as long as nothing that it is made of has changed."""

import subprocess
import sys
from pathlib import Path

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


def run(program, directory):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=directory, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_code_made_of_another_file_is_compiled_again_when_that_changes(tmp_path):
    package = tmp_path / "kept"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jit.py").write_text(Path(jit.__file__).read_text())
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(1))
    assert run(CALL, tmp_path) == "10 0"
    assert run(CALL, tmp_path) == "10 1"
    (package / "inner.py").write_text(INNER.format(2))
    assert run(CALL, tmp_path) == "20 0"


def test_a_fit_compiles_nothing_that_an_earlier_process_has_compiled(tmp_path):
    run(FIT, tmp_path)
    n_compiled, compiled_again = run(FIT, tmp_path).split(" ", 1)
    assert int(n_compiled) > 10
    assert compiled_again == "[]"
