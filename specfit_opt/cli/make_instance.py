"""``specfit make-instance``: write a generated instance to a file."""

from __future__ import annotations

import argparse
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
    kinds = [[kind.name, kind.summary] for kind in KINDS.values()]
    parser = commands.add_parser(
        "make-instance",
        help="write a generated selection problem to a file",
        description="Write a generated instance to a file. The same arguments give the same one.",
        epilog=format_table(["kind", "what it is"], kinds, left=["what it is"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", help="one of the kinds below")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: .npz or .json"
    )
    for name, text in _INTEGERS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for name, text in _REALS.items():
        parser.add_argument(f"--{name}", type=float, metavar="X", help=text)
    parser.add_argument(
        "--node-time", choices=NODE_TIMES, help="how the time of a pass grows with its size"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Generate, write and say what was written."""
    names = [name.replace("-", "_") for name in (*_INTEGERS, *_REALS, "node-time")]
    options = {name: getattr(args, name) for name in names}
    instance = generate(args.kind, seed=args.seed, **options)
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
