"""What the subcommands read: instances from files, or the shipped example."""

from __future__ import annotations

import argparse
from typing import Any

from ..checks import Anything
from ..errors import InvalidInputError
from ..files import load_instance
from ..files.strict_json import parse_json
from ..instance import Instance
from ..methods.method import COMMON
from ..profiles import PROFILES
from .output import note


def add_instance_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name instances and say what to maximise."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="instances (.npz or .json); default: the example"
    )
    parser.add_argument(
        "--rate",
        type=float,
        metavar="TOKENS/S",
        help="maximise the surplus P - rate * T instead of the ratio P / T",
    )
    parser.add_argument(
        "--max-nodes", type=int, metavar="N", help="largest size allowed, roots included"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def read_instances(files: list[str]) -> list[tuple[str, Instance]]:
    """Return each instance with the name it goes by in the output.

    Raises
    ------
    InvalidInputError
        If a file holds no valid instance.
    OSError
        If a file cannot be read.
    """
    if files:
        return [(path, load_instance(path)) for path in files]
    from ..data import example_instances

    note("no file given: using the recorded example that the package ships")
    return [(f"example:{instance.name}", instance) for instance in example_instances()]


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs; a value is taken as JSON where it is (numbers, true, null).

    Raises
    ------
    InvalidInputError
        If a pair has no ``=`` or a key comes twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not separator or not key:
            raise InvalidInputError(f"--option {pair}: write KEY=VALUE, for example --option k=4")
        if key in ("method", *COMMON):
            raise InvalidInputError(
                f"--option {key}: not an option of a method; say --{key.replace('_', '-')} instead"
            )
        if key in options:
            raise InvalidInputError(f"--option {key} is given twice")
        try:
            options[key] = parse_json(text, key, Anything())
        except InvalidInputError:
            options[key] = text
    return options


def check_distinct(what: str, names: list[str]) -> None:
    """Check that no two of the ``what``, such as traces, go by the same name.

    Raises
    ------
    InvalidInputError
        If two do.
    """
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(
                f"two {what} are named {name!r}; results are told apart by name, so rename one"
            )


def describe(instance: Instance) -> str:
    """Return the size of an instance in a line."""
    tree, routing = instance.tree, instance.routing
    roots = "" if tree.n_roots == 1 else f" ({tree.n_roots} roots)"
    return (
        f"{tree.n_nodes} nodes{roots}, depth {int(tree.depth.max())}, {routing.n_layers} layers of "
        f"{routing.n_experts} experts, {float(routing.resident.mean()):.0%} resident"
    )


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which machines and caches, and what a trace's experts weigh."""
    parser.add_argument(
        "--profile",
        nargs="+",
        action="extend",
        metavar="NAME|FILE",
        help=f"machines: {', '.join(PROFILES)}, or JSON files (pcie4)",
    )
    parser.add_argument(
        "--cache",
        nargs="+",
        action="extend",
        metavar="SIZE",
        help="cache sizes: experts per layer (32), a share (25%%) or bytes (8GB) "
        "(12.5%% 25%% 50%%)",
    )
    parser.add_argument(
        "--expert-bytes",
        type=int,
        metavar="N",
        help="bytes of one expert; default: what the trace or the profile says",
    )
    parser.add_argument(
        "--layer-repeat",
        type=int,
        metavar="N",
        help="layers of the machine's model that each recorded layer stands for",
    )
