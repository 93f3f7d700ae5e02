"""Fill in the templates of pages; text from the data is escaped."""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import Any


def asset(name: str) -> str:
    """A file that lies beside this one, as text."""
    return files("brtf.view.report").joinpath(name).read_text(encoding="utf-8")


def render(name: str, *, css: str, **context: Any) -> str:
    """The template of that name, filled in with styles, a nonce for its scripts, and the context."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    nonce = secrets.token_urlsafe(16)
    return environment.get_template(name).render(css=Markup(css), nonce=nonce, **context)
