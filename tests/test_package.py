"""The package as people install it: its versions agree, it runs as a module, completes words, imports quietly."""

import hashlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import brtf

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MINORS = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))


def run(*command, **environment):
    """What a command prints, in a process of its own in which every warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


def test_versions_of_python_agree():
    assert PROJECT["requires-python"] == f">={MINORS[0]}"
    assert [int(minor.partition(".")[2]) for minor in MINORS] == list(range(11, 11 + len(MINORS)))
    workflow = ROOT / ".github" / "workflows" / "test.yml"
    if workflow.exists():  # in the repository, not in the source distribution
        tested = re.findall(r'"(3\.\d+)"', workflow.read_text(encoding="utf-8"))
        assert tested == MINORS
        assert "make test" in workflow.read_text(encoding="utf-8")


def test_module_is_the_command_line():
    assert run("-m", "brtf", "--version") == f"brtf, version {brtf.__version__}\n"
    assert run("-m", "brtf", "--help").startswith("Usage: brtf [OPTIONS] [COMMAND]")


def test_import_is_quiet():
    # Numba warns of old versions of others, of missing caches and of itself: none of that reaches the user.
    fit = (
        "import brtf; model = brtf.BRTF(random_state=0).fit([[1.0, 2, 3], [2, 4, 6], [3, 6, 9.1]]); print(model.rank_)"
    )
    assert run("-c", fit) == "1\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_a_script(shell):
    assert "_BRTF_COMPLETE" in run("-m", "brtf", _BRTF_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("brtf ano", ["anomalies"]),
        ("brtf fit --noi", ["--noise", "--noise-modes"]),
        ("brtf fit --noise ", ["auto", "common", "per-slice"]),
    ],
)
def test_completion_offers_commands_options_and_choices(words, offered):
    told = run("-m", "brtf", _BRTF_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert sorted(re.findall(r"^plain,(.*)$", told, re.MULTILINE)) == offered


def test_recipe_follows_from_the_project(tmp_path):
    source = tmp_path / "brtf-9.8.7.tar.gz"
    source.write_bytes(b"not really")
    recipe = runpy.run_path(str(ROOT / "packaging" / "recipe.py"))["recipe"]
    text = recipe(source, PROJECT)
    assert 'version: "9.8.7"' in text
    assert hashlib.sha256(b"not really").hexdigest() in text
    listed = re.findall(r"^    - (.+)$", text.partition("\n  run:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert [line.replace(" ", "") for line in listed[1:]] == PROJECT["dependencies"]
    with pytest.raises(ValueError, match=r"got other\.zip"):
        recipe(tmp_path / "other.zip", PROJECT)
