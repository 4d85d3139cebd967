"""``specfit methods``: the selection methods and where their rules come from."""

from __future__ import annotations

import argparse
from typing import Any

from ..methods import METHODS
from .output import print_json


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "methods",
        help="list the selection methods",
        description="List the selection methods, their options and where their rules come from.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    if args.json:
        print_json(
            [
                {
                    "name": method.name,
                    "summary": method.summary,
                    "source": method.source,
                    "proves": method.proves,
                    "options": {key: repr(value) for key, value in method.options.items()},
                }
                for method in METHODS.values()
            ]
        )
        return
    width = max(map(len, METHODS)) + 2
    for method in METHODS.values():
        print(f"{method.name.ljust(width)}{method.summary}")
        options = ", ".join(f"{key}={value!r}" for key, value in method.options.items())
        if options:
            print(f"{' ' * width}options: {options}")
        print(f"{' ' * width}source: {method.source}")
