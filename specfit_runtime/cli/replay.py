"""``specfit replay`` with what is known of the routing as an option."""

from __future__ import annotations

import argparse
from typing import Any

from specfit_opt.cli import replay
from specfit_opt.text import format_table

from ..predictors import PREDICTORS, make_predictor


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = replay.add_parser(commands)
    rows = [[kind.usage, kind.summary] for kind in PREDICTORS.values()]
    table = format_table(["predictor", "what it predicts"], rows, left=["what it predicts"])
    parser.epilog = f"{parser.epilog}\n\n{table}"
    parser.add_argument(
        "--predictor",
        metavar="NAME",
        help="what policies know of the routing, see below; default: the recorded routing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Replay with the predictor that is named."""
    name = args.predictor
    replay.run(args, None if name is None else lambda: make_predictor(name))
