"""Directives that print what the package itself says.

``cli-help``, ``profile-table`` and ``registry-table``.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """``.. cli-help:: [COMMAND]``: a section with the help text of ``specfit [COMMAND]``."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        from specfit_runtime.cli.main import build_parser

        command = self.arguments[0] if self.arguments else ""
        title = f"specfit {command}".strip()
        # argparse wraps to the terminal and may colour; a page does neither.
        with mock.patch.dict(os.environ, {"COLUMNS": "88", "NO_COLOR": "1"}):
            parser = build_parser()
            text = (_subparser(parser, command) if command else parser).format_help()
        section = nodes.section(ids=[nodes.make_id(title)], names=[title.replace(" ", "-")])
        section += nodes.title("", "", nodes.literal(title, title))
        section += nodes.literal_block(text, text.rstrip(), language="text")
        self.state.document.note_implicit_target(section)
        return [section]


class ProfileTable(SphinxDirective):
    """``.. profile-table::``: the shipped profiles, from their files."""

    def run(self) -> list[nodes.Node]:
        from specfit_opt.profiles import PROFILES

        entries = nodes.definition_list()
        for name, profile in PROFILES.items():
            body = nodes.definition("", nodes.paragraph("", profile.summary))
            sources = nodes.bullet_list()
            for figure, source in profile.source.items():
                line = nodes.paragraph(
                    "", "", nodes.literal(figure, figure), nodes.Text(f": {source}")
                )
                sources += nodes.list_item("", line)
            body += sources
            term = nodes.term("", "", nodes.literal(name, name))
            entries += nodes.definition_list_item("", term, body)
        return [entries]


class RegistryTable(SphinxDirective):
    """``.. registry-table:: MODULE:NAME``: the entries of a registry, each in its own words."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        entries = nodes.definition_list()
        for key, entry in getattr(import_module(module), name).items():
            body = nodes.definition("", nodes.paragraph("", entry.summary))
            term = nodes.term("", "", nodes.literal(key, key))
            entries += nodes.definition_list_item("", term, body)
        return [entries]


def _subparser(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[command]
    raise LookupError(f"specfit has no command {command!r}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("cli-help", CommandHelp)
    app.add_directive("profile-table", ProfileTable)
    app.add_directive("registry-table", RegistryTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
