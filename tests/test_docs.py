"""The documents are true: examples run, numbers and sentences are those that come out, every formula has its place."""

import ast
import contextlib
import io
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import brtf
from brtf import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INPUTS = (ROOT / "docs" / "inputs.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

KEY = r"[URPC]\d+"
NUMBER = r"\(\d+\)(?:–\(\d+\))?"
KEYED = re.compile(rf"({KEY}(?:, {KEY})*)(?: ({NUMBER}))?: ")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def table_rows(text, first_cell):
    """Cells of the rows whose first cell matches; a bar inside a cell is written with a backslash."""
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.splitlines() if line.startswith("|")]
    stripped = ([cell.strip() for cell in row] for row in rows)
    return [row for row in stripped if re.fullmatch(first_cell, row[0])]


def keyed_docstrings():
    """Every key in the package: where its function stands, and the number of the paper's equation."""
    found = []

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = f"{path}.{child.name}"
                match = KEYED.match(ast.get_docstring(child) or "")
                if match:
                    found.extend((key, name, match[2] or "") for key in match[1].split(", "))
                visit(child, name)

    for module in sorted(Path(brtf.__file__).parent.rglob("*.py")):
        visit(ast.parse(module.read_text(encoding="utf-8")), module.stem)
    return found


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What every Python block of the README prints, run one after another as a reader would."""
    namespace, outputs = {}, []
    with contextlib.chdir(tmp_path_factory.mktemp("readme")):
        for block in blocks(README, "python"):
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(block, namespace)
            outputs.append(stream.getvalue().splitlines())
    return outputs


class TestReadme:
    def test_prints_what_its_comments_say(self, printed):
        promised = [
            re.findall(r"^print\(.*\)  # (.+)$", block, flags=re.MULTILINE) for block in blocks(README, "python")
        ]
        assert sum(map(len, promised)) >= 5
        for said, came in zip(promised, printed, strict=True):
            if said:
                assert came == said

    def test_accuracy_table_is_what_its_code_prints(self, printed):
        shown = table_rows(README, r"\d+%, \w+")
        came = table_rows("\n".join(printed[-1]), r"\d+%, \w+")
        assert len(shown) == len(came) > 0
        for ours, theirs in zip(shown, came, strict=True):
            assert ours[:4] == theirs[:4]
            # Other rounding, as of another BLAS, may end a search a nat elsewhere; more than this is out of date.
            np.testing.assert_allclose(np.array(ours[4:], float), np.array(theirs[4:], float), rtol=0.1, atol=0.005)

    def test_commands_exist(self):
        shell = "\n".join(blocks(README, "bash"))
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        named = re.findall(r"`make ([a-z-]+)`", README) + re.findall(r"^make ([a-z-]+)", shell, flags=re.MULTILINE)
        assert {"demo", "test"} <= set(named) <= set(targets)
        used = set(re.findall(r"^brtf ([a-z]+)", shell, flags=re.MULTILINE))
        assert used == set(cli.COMMANDS)
        options = {
            name for command in cli.COMMANDS for p in cli.main.get_command(None, command).params for name in p.opts
        }
        assert set(re.findall(r"--[a-z-]+", shell)) <= options

    def test_attributes_exist(self):
        model = brtf.BRTF(random_state=0).fit(np.outer(np.arange(1.0, 9.0), np.arange(1.0, 8.0)))
        named = set(re.findall(r"`model\.(\w+)", README))
        assert len(named) > 10
        assert [name for name in sorted(named) if not hasattr(model, name)] == []


def test_equations_and_docstrings_agree():
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    listed = []
    for key, _, function, paper in table_rows(text, KEY):
        number = re.search(NUMBER, paper)
        listed.append((key, function.strip("`"), number[0] if number else ""))
    assert sorted(listed) == sorted(keyed_docstrings())
    keys = [key for key, *_ in listed]
    assert len(keys) == len(set(keys)) > 8


def test_examples_of_inputs_run(tmp_path):
    namespace = {}
    with contextlib.chdir(tmp_path):
        for block in blocks(INPUTS, "python"):
            exec(block, namespace)
    assert namespace["best"] == "log"


BAD_INPUTS = [row for row in table_rows(INPUTS, "`.+`") if re.fullmatch(r"\w+(Error|Warning)", row[1])]


def test_the_bad_inputs_are_read():
    assert len(BAD_INPUTS) > 20


@pytest.mark.parametrize(("line", "raised", "sentence"), BAD_INPUTS, ids=[row[0].strip("`") for row in BAD_INPUTS])
def test_bad_input_gets_its_sentence(line, raised, sentence):
    namespace = {}
    exec(blocks(INPUTS, "python")[0], namespace)
    with pytest.raises(Exception) as caught:
        eval(line.strip("`"), namespace)
    assert (type(caught.value).__name__, str(caught.value)) == (raised, sentence)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {brtf.__version__}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
    assert f"\n## [{brtf.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
