"""How `make docs` builds the site, without a network: the README, the documents, the gallery, the reference."""

import re
from pathlib import Path

from sphinx.errors import ExtensionError

import brtf

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"

project = "brtf"
author = "The brtf developers"
version = release = brtf.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3  # links to headings work as they do where the files are browsed
autosummary_generate = False  # the reference is written out in api.rst
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings say it in words
numpydoc_show_class_members = False
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "image_srcset": ["2x"],
    "thumbnail_size": (480, 330),
    "show_signature": False,
    "write_computation_times": False,  # that page loads a script from a CDN
}

html_theme = "furo"
html_title = f"brtf {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False


def place_on_site(app, docname, source):
    """The README as the first page; links to where the repository keeps a thing lead to where the site does."""
    text = source[0]
    if docname == "index":
        readme = re.sub(r"^\[!\[(?:Version|Licence)\].*\n", "", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
        text = readme.partition("\n## Support")[0] + "\n\n" + text
        app.env.note_dependency(str(README))
    text = re.sub(r"\]\((?:\.\./)?README\.md", "](index.md", text)
    text = re.sub(r"\]\((?:\.\./)?examples/(\w+)\.py\)", r"](gallery/\1.rst)", text)
    text = re.sub(r"\]\((?:\.\./)?examples/?\)", "](gallery/index.rst)", text)
    source[0] = text.replace("](docs/", "](")


def take_literally(app, what, name, obj, options, lines):
    """Docstrings are words and formulas: |y| is no substitution in them and rank_ no reference."""
    for number, line in enumerate(lines):
        pieces = re.split(r"(``.*?``|:\w+:`.*?`)", line)
        pieces[::2] = [re.sub(r"(?<=\w)_(?!\w)|[|*]", r"\\\g<0>", piece) for piece in pieces[::2]]
        lines[number] = "".join(pieces)


def refuse_remote_parts(app, exception):
    """A page that would load a script, a style, a font or a picture from elsewhere fails the build."""
    if exception is not None or app.builder.name != "html":
        return
    elsewhere = r"[\"']?(?:https?:)?//"
    loaded = rf"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?={elsewhere}|<link\b[^>]*\bhref={elsewhere}"
    fetched = rf"(?:url\(|@import)\s*{elsewhere}"
    for pattern, kinds in ((loaded, ["*.html"]), (fetched, ["*.html", "*.css"])):
        for path in (path for kind in kinds for path in Path(app.outdir).rglob(kind)):
            found = re.search(pattern, path.read_text(encoding="utf-8"))
            if found:
                raise ExtensionError(f"{path.name} loads a part from elsewhere: {found[0]}")


def setup(app):
    app.connect("source-read", place_on_site)
    app.connect("autodoc-process-docstring", take_literally, priority=400)  # before numpydoc adds markup of its own
    app.connect("build-finished", refuse_remote_parts)
