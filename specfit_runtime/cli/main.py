"""The entry point of ``specfit``. Nothing here needs torch: a command imports what it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from specfit_opt.cli.main import COMMANDS as SELECTION_COMMANDS
from specfit_opt.cli.main import Command, run_command
from specfit_opt.cli.main import build_parser as build_any_parser

from . import calibrate, demo, evaluate_predictor, generate, replay, trace, train_predictor

_REPLAY = "specfit_opt.cli.replay"

#: All subcommands. The runtime's replay holds the other one.
COMMANDS: tuple[Command, ...] = (
    demo,
    generate,
    calibrate,
    trace,
    replay,
    train_predictor,
    evaluate_predictor,
    *(c for c in SELECTION_COMMANDS if getattr(c, "__name__", "") != _REPLAY),
)

_DESCRIPTION = """\
Decode an offloaded mixture-of-experts model with the draft subtrees that are worth verifying, and
study how they are chosen."""
_EPILOG = """\
demo, generate, calibrate and trace run a model, train-predictor and evaluate-predictor work on what
trace recorded; they need the extra runtime, and without --model the small model that the package
ships is run. Without a file, solve, compare and replay use its recorded example. Tables are for
people; --json prints one JSON document instead.
exit codes: 0 done, 1 bad input or a file that cannot be read or written, 2 bad usage,
130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `specfit_opt.cli.main.run_command` tells what is returned."""
    return run_command(build_parser(), argv)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Returns
    -------
    argparse.ArgumentParser
    """
    return build_any_parser(COMMANDS, description=_DESCRIPTION, epilog=_EPILOG)
