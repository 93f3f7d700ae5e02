"""Print the oldest versions that pyproject.toml allows of what brtf needs, alone and with its extras, for pip."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
TOOLS = ("docs", "dev")
"""Extras of those who work on brtf: any version will do."""


def floors(project):
    """Requirements such as ``numpy==1.26``, from the table ``[project]``."""
    groups = [project["dependencies"]]
    groups += [group for name, group in project["optional-dependencies"].items() if name not in TOOLS]
    needed = {one for group in groups for one in group if not one.startswith(f"{project['name']}[")}
    return sorted(map(floor, needed))


def floor(requirement):
    """The requirement with its lower bound as the only version."""
    match = re.fullmatch(r"([\w.\[\],-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} in {PROJECT.name} must have a lower bound: NAME>=VERSION.")
    return f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    print(*floors(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]), sep="\n")
