"""Pages about several fits: text, tables and figures in sections, as one HTML file or as Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brtf.io.atomic_file import atomic_file
from brtf.view.report.blocks import Cell, Table, Verdict
from brtf.view.report.svg import number
from brtf.view.report.template import asset, render

__all__ = ["Cell", "Document", "Figure", "Section", "Table", "Verdict", "html", "markdown"]

STANDALONE = """<style>
svg { background: #ffffff; color-scheme: light; }
%s
</style>"""
"""Styles that a standalone SVG file needs and a chart inside the page inherits."""


@dataclass(frozen=True)
class Figure:
    """A chart as SVG or a picture as PNG, with a file name and a caption."""

    name: str
    content: str | bytes
    caption: str

    @property
    def address(self) -> str:
        """The picture as a data URI."""
        content = self.content.encode() if isinstance(self.content, str) else self.content
        return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


@dataclass(frozen=True)
class Section:
    """A part of the page, in the order in which its parts are shown.

    Attributes
    ----------
    name : its anchor within the page
    title : str
    about : what was done, a paragraph each
    verdicts : conclusions, the most important first
    figures, tables : sequences, shown in this order
    remarks : notes on the tables, a paragraph each
    """

    name: str
    title: str
    about: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A page: its title, a lead paragraph, notes and sections."""

    title: str
    lead: str
    notes: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def html(document: Document, version: str) -> str:
    """The page as one self-contained HTML file; all text is escaped."""
    from markupsafe import Markup

    return render(
        "document.html",
        css=asset("page.css") + asset("document.css"),
        title=document.title,
        document=document,
        version=version,
        number=number,
        js=Markup(asset("tips.js") + asset("tables.js")),
        drawing=lambda figure: Markup(figure.content) if isinstance(figure.content, str) else None,
    )


def markdown(document: Document, pictures: Path, prefix: str) -> str:
    """The page as Markdown; figures are written to a folder under names that begin with the prefix.

    The text refers to figures by bare file names, so it belongs in the same folder.
    """
    parts = [f"# {document.title}", document.lead, *document.notes]
    for section in document.sections:
        parts += [f"## {section.title}", *section.about]
        if section.verdicts:
            parts.append("\n".join(f"- {verdict.text}" for verdict in section.verdicts))
        for figure in section.figures:
            is_chart = isinstance(figure.content, str)
            file_name = f"{prefix}-{figure.name}.{'svg' if is_chart else 'png'}"
            with atomic_file(pictures / file_name) as file:
                file.write(_standalone(figure.content) if isinstance(figure.content, str) else figure.content)
            parts.append(f"![{figure.caption}]({file_name})")
        for table in section.tables:
            lines = [table.header, ["---"] * len(table.header), *(map(_markdown_cell, row) for row in table.rows)]
            parts += [f"**{table.caption}**"] * bool(table.caption)
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts += section.remarks
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.mark == "best" else cell.text
    return (f"{text} ({cell.remark})" if cell.remark else text).replace("|", "\\|").replace("\n", " ")


def _standalone(chart: str) -> bytes:
    """A chart as a standalone SVG file on a white background."""
    css = asset("page.css") + asset("document.css")
    css = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", css)
    kept = [
        rule
        for rule in re.findall(r"[^{}]+\{[^{}]*\}", css)
        if re.search(r":root|chart|\.line|\.guide|\.band|\.dashed|\.dot", rule)
    ]
    opening, rest = chart.split(">", 1)
    if "xmlns=" not in opening:
        opening += ' xmlns="http://www.w3.org/2000/svg"'
    return f"{opening}>{STANDALONE % ''.join(kept).strip()}{rest}\n".encode()
