"""The entry point: parse, run a subcommand, turn what goes wrong into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from .. import __version__, kernel
from ..errors import SpecfitError
from . import compare, export, generate, info, methods, replay, solve

#: Exit codes. 2 is what argparse uses too; the last two are what a shell reports for a program
#: ended by SIGINT and by SIGPIPE.
EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141


class Command(Protocol):
    """A subcommand: a module with a function that adds its parser."""

    def add_parser(self, commands: Any) -> None:
        """Add the subcommand to ``commands``, with the default ``run``: what it does."""


#: The subcommands of this package.
COMMANDS: tuple[Command, ...] = (solve, compare, replay, generate, export, methods, info)

_DESCRIPTION = "Choose which draft subtree a mixture-of-experts model should verify."
_EPILOG = """\
Without a file, solve, compare and replay use the small recorded example that the package ships.
Tables are for people; --json prints one JSON document instead.
exit codes: 0 done, 1 bad input or a file that cannot be read or written, 2 bad usage,
130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of this package alone; `run_command` tells what is returned.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; default those of the process.

    Returns
    -------
    int
        The exit code.
    """
    return run_command(build_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that ``argv`` names and return the exit code.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        As `build_parser` returns it.
    argv : sequence of str, optional
        Arguments without the program's name; default those of the process.

    Returns
    -------
    int
        0 when done, 1 for an error that specfit or the system reports (one line on standard
        error, no traceback), 130 when interrupted, 141 when the reader of standard output went
        away. Bad usage raises SystemExit(2), as argparse does.
    """
    args = parser.parse_args(argv)
    try:
        kernel.NAME  # noqa: B018  # one that cannot be used is reported before anything is done
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_ERROR)
    except SpecfitError as error:
        return _fail(str(error), EXIT_ERROR)
    return EXIT_OK


def build_parser(
    commands: Sequence[Command] = COMMANDS,
    *,
    description: str = _DESCRIPTION,
    epilog: str = _EPILOG,
) -> argparse.ArgumentParser:
    """Return the parser of a whole command line.

    Parameters
    ----------
    commands : sequence of Command, optional
        The subcommands, in the order of the help text; default those of this package.
    description, epilog : str, optional
        What the help text says before and after them.

    Returns
    -------
    argparse.ArgumentParser
    """
    parser = argparse.ArgumentParser(
        prog="specfit",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specfit {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        command.add_parser(subparsers)
    return parser


def _fail(message: str, code: int) -> int:
    print(f"specfit: error: {message}", file=sys.stderr)
    return code
