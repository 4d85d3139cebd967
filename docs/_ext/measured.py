"""Directives for what benchmarks measured: ``measured`` for a table, ``table-figure`` to draw one.

The pages never hold a figure of their own: what they show is a file under ``benchmarks/results``,
word for word or drawn, and where there is none the page says which command writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from table_figure import KINDS, TableError, draw, read_table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

#: Columns of text beyond which a table gets smaller letters, with the class for it in specfit.css.
WIDTHS = ((110, "measured-widest"), (90, "measured-wide"))


class Measured(SphinxDirective):
    """``.. measured:: FILE`` with the command that writes FILE as its content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = RESULTS / self.arguments[0]
        self.env.note_dependency(str(path))
        command = "\n".join(self.content).strip()
        if not path.is_file():
            note = nodes.note()
            paragraph = nodes.paragraph()
            paragraph += nodes.Text("Not measured in this checkout. The table is written by ")
            paragraph += nodes.literal(command, command)
            paragraph += nodes.Text(".")
            note += paragraph
            return [note]
        text = path.read_text(encoding="utf-8").rstrip()
        widest = max(len(line) for line in text.splitlines())
        block = nodes.literal_block(text, text, language="text")
        block["classes"] += ["measured", *[name for width, name in WIDTHS if widest > width][:1]]
        source = nodes.paragraph(classes=["measured-source"])
        source += nodes.literal(path.name, f"benchmarks/results/{path.name}")
        source += nodes.Text(", written by ")
        source += nodes.literal(command, command)
        return [block, source]


class TableFigure(SphinxDirective):
    """``.. table-figure:: FILE`` draws columns of a measured table; the content is the caption."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "kind": lambda argument: directives.choice(argument, tuple(KINDS)),
        "section": directives.unchanged_required,
        "rows": directives.unchanged_required,
        "only": directives.unchanged_required,
        "columns": directives.unchanged_required,
        "label": directives.unchanged_required,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        path = RESULTS / self.arguments[0]
        self.env.note_dependency(str(path))
        if not path.is_file():
            return []  # the table beside it says how to measure
        try:
            table = read_table(path.read_text(encoding="utf-8"), self.options.get("section", ""))
            svg = draw(
                table,
                self.options["kind"],
                columns=_parts(self.options["columns"], ","),
                rows=self.options.get("rows"),
                only=_parts(self.options.get("only", ""), ";"),
                label=self.options.get("label", ""),
            )
        except TableError as error:
            raise self.error(f"{path.name}: {error}") from error
        alt = self.options["alt"]
        image = f'<div class="table-figure" role="img" aria-label="{alt}">{svg}</div>'
        figure = nodes.container(classes=["table-figure-box"])
        figure += nodes.raw("", image, format="html")
        caption = nodes.container(classes=["caption"])
        self.state.nested_parse(self.content, self.content_offset, caption)
        figure += caption
        return [figure]


def _parts(text: str, mark: str) -> list[str]:
    return [part.strip() for part in text.split(mark) if part.strip()]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured", Measured)
    app.add_directive("table-figure", TableFigure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
