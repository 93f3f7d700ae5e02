"""Print the conda-forge recipe of a source distribution: `python packaging/recipe.py dist/brtf-0.2.0.tar.gz`.

Everything in it follows from pyproject.toml and the file, so there is nothing to keep in step by hand.
"""

import hashlib
import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
TEMPLATE = """\
schema_version: 1

context:
  version: "{version}"

package:
  name: {name}
  version: ${{{{ version }}}}

source:
  url: https://pypi.org/packages/source/{name[0]}/{name}/{name}-${{{{ version }}}}.tar.gz
  sha256: {digest}

build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
{entry_points}

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
    - hatchling
  run:
    - python >=${{{{ python_min }}}}
{run}

tests:
  - python:
      imports: [{name}, {name}.cli]
      python_version: ${{{{ python_min }}}}.*
  - script:
      - {name} --version
      - python -m {name} --version

about:
  summary: "{summary}"
  license: {license}
  license_file: LICENSE
"""


def recipe(source: Path, project: dict) -> str:
    """The recipe of a source distribution that pyproject.toml describes."""
    found = re.fullmatch(rf"{project['name']}-(.+)\.tar\.gz", source.name)
    if found is None:
        raise ValueError(f"a source distribution of {project['name']} is called {project['name']}-VERSION.tar.gz, "
                         f"got {source.name}. `make dist` writes one.")  # fmt: skip
    return TEMPLATE.format(
        name=project["name"],
        version=found[1],
        digest=hashlib.sha256(source.read_bytes()).hexdigest(),
        entry_points="\n".join(f"      - {name} = {place}" for name, place in project["scripts"].items()),
        run="\n".join(f"    - {_spaced(requirement)}" for requirement in project["dependencies"]),
        summary=project["description"],
        license=project["license"],
    )


def _spaced(requirement: str) -> str:
    """ "numpy>=1.26" as conda writes it: a space between the name and the versions."""
    name, versions = re.fullmatch(r"([A-Za-z0-9._-]+)(.*)", requirement).groups()
    return f"{name} {versions}".rstrip()


if __name__ == "__main__":
    print(recipe(Path(sys.argv[1]), tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]), end="")
