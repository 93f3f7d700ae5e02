"""Imports follow the flow of the data, one way, and the package comes up without its heavy companions."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import brtf

ROOT = Path(brtf.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# A room imports from itself and from those to its left, wherever the import stands. The public doors at the top of the
# package, which re-export names, stand to the right of all but the command line.
ROOMS = (
    "data",
    "kernels",  # knows arrays, not the model
    "model",
    "inference",
    "search",
    "results",
    "io",
    "view",
    "api",
    "video",
    "research",
    "public",
    "cli",
)
HEAVY = (
    "sklearn",
    "pandas",
    "xarray",
    "pyarrow",
    "zarr",
    "h5py",
    "h5netcdf",
    "tensorly",
    "pyttb",
    "matplotlib",
    "PIL",
    "jinja2",
    "numba",
    "av",
    "click",
    "dask",
    "distributed",
    "joblib",
)


def room(module):
    """The room of the package that a module belongs to."""
    first = module.relative_to(ROOT).parts[0]
    if first == "__main__.py":
        return "cli"
    return "public" if first.endswith(".py") else first


def tree_of(module):
    return ast.parse(module.read_text(encoding="utf-8"))


def imported_rooms(tree):
    """Every room of the package that a syntax tree imports from, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"relative import in line {node.lineno}: write it from brtf.")
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            head = rest.split(".")[0]
            if package == "brtf" and head != "__version__":
                yield head if head in ROOMS else "public"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
class TestEveryModule:
    def test_imports_only_from_its_left(self, module):
        left = ROOMS[: ROOMS.index(room(module)) + 1]
        assert set(imported_rooms(tree_of(module))) <= set(left)

    def test_is_short_enough_to_read_at_once(self, module):
        assert len(module.read_text(encoding="utf-8").splitlines()) < 450

    def test_checks_by_exceptions_not_assert(self, module):
        assert not [node.lineno for node in ast.walk(tree_of(module)) if isinstance(node, ast.Assert)]

    def test_prints_only_from_the_command_line(self, module):
        if room(module) == "cli":
            return
        printed = [
            node.lineno
            for node in ast.walk(tree_of(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
        assert not printed


def test_only_research_knows_the_programs_it_compares_with():
    """Beside the export to TensorLy, which the user asks for by name."""
    outside = (module for module in MODULES if room(module) != "research" and module.name != "exports.py")
    assert not [
        module
        for module in outside
        if re.search(r"\b(import|from|require\(.)\s*(tensorly|pyttb)", module.read_text(encoding="utf-8"))
    ]


def test_only_kernels_know_of_which_implementation_they_are():
    """Elsewhere the data are touched through :mod:`brtf.kernels` alone, which chooses the implementation."""
    outside = (module for module in MODULES if room(module) not in ("kernels", "research"))
    named = re.compile(r"brtf\.kernels(\.| import .*)(reference|compiled)")
    assert not [module for module in outside if named.search(module.read_text(encoding="utf-8"))]


def test_the_reader_of_imports_sees_every_form():
    tree = ast.parse(
        "import numpy\nimport brtf.model.state\nfrom brtf import kernels, __version__\n"
        "def later():\n    from brtf.kernels.reference.contractions import contract\n    from brtf import BRTF\n"
    )
    assert sorted(imported_rooms(tree)) == ["kernels", "kernels", "model", "public"]


def test_import_is_light():
    listed = "import brtf, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "brtf" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize(
    "name", ["compiled.rows", "compiled.variances", "coordinates", "entries", "masked", "products", "scoring"]
)
def test_compiled_loops_contain_no_numbers_of_other_files(name):
    """Compiled code is kept for as long as its own file is the same: it would not notice that another one changed."""
    module = importlib.import_module(f"brtf.kernels.{name}")
    assigned = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.Assign)]
    own = {part.id for node in assigned for part in ast.walk(node) if isinstance(part, ast.Name)}
    loops = [one.py_func for one in vars(module).values() if hasattr(one, "py_func")]
    assert loops
    for function in loops:
        numbers = {key for key in function.__code__.co_names if isinstance(vars(module).get(key), int | float | tuple)}
        assert numbers <= own, f"{function.__name__} contains {numbers - own}"
