"""The documents are true: examples run, numbers and sentences are those that come out, every formula has its place."""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import re
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest

import brtf
from brtf import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INPUTS = (ROOT / "docs" / "inputs.md").read_text(encoding="utf-8")
RUN = [
    "tutorial",
    "modes",
    "anomalies",
    "howto-gaps",
    "howto-images",
    "howto-chemistry",
    "howto-settings",
    "howto-large",
]
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
        questions = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
        named = set(re.findall(r"`model\.(\w+)", README + questions))
        assert len(named) > 30
        assert [name for name in sorted(named) if not hasattr(model, name)] == []

    def test_peers_are_those_measured(self):
        section = README.partition("## How it compares")[2].partition("\n## ")[0]
        measured = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
        numbers = re.findall(r"\d\.\d{3}", section)
        assert len(numbers) > 10
        assert [number for number in numbers if f" {number} |" not in measured] == []

    def test_badges_are_true(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        minors = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
        said = {
            "version": brtf.__version__,
            "python": f"{minors[0]}–{minors[-1]}",
            "licence": project["license"],
            "types": "mypy strict",
        }
        assert set(re.findall(r"docs/pictures/badge-(\w+)\.svg", README)) == set(said)
        for name, words in said.items():
            assert f">{words}</text>" in (ROOT / "docs" / "pictures" / f"badge-{name}.svg").read_text(encoding="utf-8")


def test_equations_and_docstrings_agree():
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    listed = []
    for key, _, function, paper in table_rows(text, KEY):
        number = re.search(NUMBER, paper)
        listed.append((key, function.strip("`"), number[0] if number else ""))
    assert sorted(listed) == sorted(keyed_docstrings())
    keys = [key for key, *_ in listed]
    assert len(keys) == len(set(keys)) > 8


@pytest.mark.parametrize("page", RUN)
def test_code_of_a_page_runs_and_prints_what_its_comments_say(page, tmp_path):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    namespace = {}
    data = ROOT.parent / "shared" / "data" / "chemometrics" / "claus.mat"
    with contextlib.chdir(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fits that are stopped early, and the like
        warnings.simplefilter("ignore", ResourceWarning)
        for block in blocks(text, "python"):
            if "claus.mat" in block:
                if not data.exists():
                    continue
                block = block.replace("claus.mat", str(data))
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(block, namespace)
            said = re.findall(r"^print\(.*\)  # (.+)$", block, flags=re.MULTILINE)
            came = stream.getvalue().splitlines()
            assert [line for line in said if line not in came] == []


def test_tutorial_shows_what_is_printed(tmp_path):
    """The blocks of text, but for columns of digits, and lines that are left out."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as stream:
        namespace = {}
        for block in blocks(text, "python"):
            exec(block, namespace)
    came = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    shown = [" ".join(line.split()) for block in blocks(text, "text") for line in block.splitlines()]
    digits = r"(?<=\d)\.\d+|\d+ nats"
    came = {re.sub(digits, "", line) for line in came}
    assert len(shown) > 10
    assert [line for line in shown if line != "..." and re.sub(digits, "", line) not in came] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_commands_of_a_page_exist(page):
    """Every `brtf` command in a block of shell, with its options."""
    for line in "\n".join(blocks(page.read_text(encoding="utf-8"), "bash")).splitlines():
        words = line.partition(" #")[0].split()
        if not words or words[0] != "brtf":
            continue
        assert words[1] in cli.COMMANDS
        known = {name for p in cli.main.get_command(None, words[1]).params for name in (*p.opts, *p.secondary_opts)}
        assert [word for word in words if word.startswith("--") and word not in known] == []


USER_PAGES = [
    "tutorial",
    "modes",
    "model",
    "limits",
    "peers",
    "anomalies",
    "inputs",
    "command-line",
    "evaluation",
    "scaling",
]


@pytest.mark.parametrize("page", [*USER_PAGES, *(page for page in RUN if page.startswith("howto")), "howto-cluster"])
def test_pages_for_users_have_pictures(page):
    assert re.search(r"!\[[^\]]+\]\([^)]+\.(?:png|svg)\)", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


def test_every_picture_is_shown_and_small():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs").rglob("pictures/*"))
    assert [path.name for path in pictures if path.name not in text] == []
    assert max(path.stat().st_size for path in pictures) < 100_000


def test_every_page_is_on_the_site():
    listed = {word.strip("<>") for word in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split()}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= listed


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


def public_objects():
    """What the reference lists: classes with their public methods and properties, and functions."""
    api = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    place = ""
    for kind, name in re.findall(r"^\.\. (currentmodule|autoclass|autofunction):: (\S+)$", api, flags=re.MULTILINE):
        if kind == "currentmodule":
            place = name
            continue
        found = brtf
        for part in (name if name.startswith("brtf.") else f"{place}.{name}").split(".")[1:]:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        yield name, found


OWN_WORDS = {name: found for name, found in public_objects() if inspect.isclass(found)}


@pytest.mark.parametrize("name", [name for name, _ in public_objects()])
def test_examples_in_the_reference_print_what_they_say(name, tmp_path):
    found = dict(public_objects())[name]
    tests = doctest.DocTestFinder(exclude_empty=True).find(found, name, globs={})
    with contextlib.chdir(tmp_path):
        for test in tests:
            assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0, test.name


def test_reference_says_what_every_fitted_attribute_and_argument_is():
    """Every attribute that a fit sets, and every argument of a method, is named in the docstring of its owner."""
    model = brtf.BRTF(random_state=0).fit(np.outer(np.arange(1.0, 9.0), np.arange(1.0, 8.0)))
    names = {name for name in dir(model) if name.endswith("_") and not name.startswith("_")}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", brtf.BRTF.__doc__)] == []
    unnamed = []
    for owner, found in OWN_WORDS.items():
        for name, method in inspect.getmembers(found, inspect.isfunction):
            if name.startswith(("_", "set_", "get_")) or not method.__module__.startswith("brtf."):
                continue
            words = inspect.getdoc(method) or ""
            arguments = [argument for argument in inspect.signature(method).parameters if argument != "self"]
            missing = [argument for argument in arguments if not re.search(rf"\b{argument}\b", words)]
            unnamed += [f"{owner}.{name}({argument})" for argument in missing]
    assert unnamed == []


def anchors(page):
    """The anchors of the headings of a page, as they are where the files are browsed and on the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    missing = []
    for link in links:
        target, _, anchor = link.partition("#")
        path = page if not target else page.parent / target
        if "://" in link or (path.exists() and (not anchor or anchor in anchors(path))):
            continue
        missing.append(link)
    assert missing == []


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {brtf.__version__}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
    assert f"\n## [{brtf.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
