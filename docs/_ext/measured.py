"""The directive ``measured``: a text table that a benchmark wrote, or a note on how to get it.

The pages never hold a figure of their own: what they show is a file under ``benchmarks/results``,
word for word, and where there is none the page says which command writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


class Measured(SphinxDirective):
    """``.. measured:: FILE`` with the command that writes FILE as its content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = RESULTS / self.arguments[0]
        self.env.note_dependency(str(path))
        if path.is_file():
            text = path.read_text(encoding="utf-8").rstrip()
            return [nodes.literal_block(text, text, language="text")]
        command = "\n".join(self.content).strip()
        note = nodes.note()
        paragraph = nodes.paragraph()
        paragraph += nodes.Text("Not measured in this checkout. The table is written by ")
        paragraph += nodes.literal(command, command)
        paragraph += nodes.Text(".")
        note += paragraph
        return [note]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
