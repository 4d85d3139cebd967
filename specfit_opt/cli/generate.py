"""``specfit generate``: write a generated instance to a file."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from ..files import save_instance
from ..generate import KINDS, NODE_TIMES, generate
from ..text import format_table
from .inputs import describe
from .output import print_json

_INTEGERS = {
    "nodes": "nodes, roots included",
    "roots": "sequences of the batch",
    "layers": "MoE layers",
    "experts": "experts per layer",
    "top-k": "experts per token and layer",
    "budget": "largest size allowed, with --node-time budget",
}
_REALS = {
    "resident": "share of experts in fast memory, 0 to 1",
    "overlap": "share of a parent's experts that a child shares, 0 to 1",
    "skew": "Zipf exponent of the experts' popularity",
    "bandwidth": "bytes per second of the link that experts come over",
    "resident-time": "seconds that a resident expert costs",
    "token-time": "seconds per node",
    "time-spread": "standard deviation of the logarithm of the expert times",
}


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "generate",
        help="write a generated instance to a file",
        description="Write a generated instance to a file. The same arguments give the same one.",
        epilog=kinds_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", help="one of the kinds below")
    parser.add_argument("--seed", type=int, help="of the random numbers (0)")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: .npz or .json"
    )
    add_kind_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def kinds_table() -> str:
    """Return what the kinds are, as a table."""
    rows = [[kind.name, kind.summary] for kind in KINDS.values()]
    return format_table(["kind", "what it is"], rows, left=["what it is"])


def add_kind_options(
    parser: argparse._ActionsContainer, *, leave_out: Collection[str] = ()
) -> None:
    """Add the options of the kinds, except those named in ``leave_out``. None is: not given."""
    for name, text in _INTEGERS.items():
        if name not in leave_out:
            parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for name, text in _REALS.items():
        if name not in leave_out:
            parser.add_argument(f"--{name}", type=float, metavar="X", help=text)
    parser.add_argument(
        "--node-time", choices=NODE_TIMES, help="how the time of a pass grows with its size"
    )


def run(args: argparse.Namespace) -> None:
    """Generate, write and say what was written."""
    names = [name.replace("-", "_") for name in (*_INTEGERS, *_REALS, "node-time")]
    options = {name: getattr(args, name) for name in names}
    instance = generate(args.kind, seed=0 if args.seed is None else args.seed, **options)
    save_instance(args.output, instance)
    if args.json:
        print_json(
            {
                "file": args.output,
                "name": instance.name,
                "n_nodes": instance.tree.n_nodes,
                "n_roots": instance.tree.n_roots,
                "n_layers": instance.routing.n_layers,
                "n_experts": instance.routing.n_experts,
            }
        )
    else:
        print(f"{args.output}: {instance.name}, {describe(instance)}")
