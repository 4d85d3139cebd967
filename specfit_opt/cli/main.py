"""The entry point: parse, run a subcommand, turn what goes wrong into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Protocol

from .. import __version__, kernel
from ..errors import SpecfitError
from ..files.regular_file import printable
from . import compare, export, info, make_instance, methods, replay, solve

#: Exit codes. 2 is what argparse uses too; the last ones are what a shell reports for a program
#: ended by SIGINT, SIGPIPE and, with the signal's number added, SIGTERM and SIGHUP.
EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_SIGNAL = 0, 1, 2, 130, 141, 128


class Command(Protocol):
    """A subcommand: a module with a function that adds its parser."""

    def add_parser(self, commands: Any) -> Any:
        """Add the subcommand to ``commands``, with the default ``run``: what it does."""


#: The subcommands of this package.
COMMANDS: tuple[Command, ...] = (solve, compare, replay, make_instance, export, methods, info)

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
    _open_standard_files()
    if sys.stdout is None:
        return _fail("standard output is closed", EXIT_ERROR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name may hold bytes that are no text, and a terminal may not know a letter.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _ended_by_signals():
            try:
                args = parser.parse_args(argv)
                kernel.NAME  # noqa: B018  # one that cannot be used is reported before anything else
                args.run(args)
            except SystemExit:  # after help and bad usage
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return EXIT_PIPE
    except _Ended as signalled:
        return _fail("terminated", EXIT_SIGNAL + signalled.number)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except SpecfitError as error:
        return _fail(str(error), EXIT_ERROR)
    except OSError as error:
        return _fail(_where(error) + (error.strerror or str(error)), EXIT_ERROR)
    except MemoryError:
        return _fail("not enough memory", EXIT_ERROR)
    except Exception as error:
        # One line here too: what is wrong, and for a report where.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}, line {place.lineno}"
        name = type(error).__name__
        return _fail(f"this should not happen, please report it: {name}: {error} ({where})", 1)
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
    parser = _Parser(
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


class _Parser(argparse.ArgumentParser):
    """A parser whose help is not lost in silence where it cannot be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (file or sys.stderr).write(message)


class _Ended(KeyboardInterrupt):
    """The process was asked to end; what is being written is cleared away first.

    Attributes
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise `_Ended` for SIGTERM and SIGHUP, where nobody else has asked for them."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended(number)

    main_thread = threading.current_thread() is threading.main_thread()
    wanted = (signal.SIGTERM, signal.SIGHUP) if main_thread else ()
    ours = [number for number in wanted if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, end)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _open_standard_files() -> None:
    """Make sure that no file of ours becomes standard output or error because those are closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _drop_output() -> None:
    """Give the interpreter, which flushes standard output once more, somewhere to go."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _where(error: OSError) -> str:
    """Return the beginning of a message about ``error``: which file."""
    if error.filename is not None:
        return f"{printable(error.filename)}: "
    # Files are named in all errors; standard output has no name.
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        _drop_output()
        return "standard output: "
    return ""


def _fail(message: str, code: int) -> int:
    # Where standard error is closed or full, the exit code has to tell.
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"specfit: error: {message}", file=sys.stderr)
    return code
