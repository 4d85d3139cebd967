"""``specfit export``: write an instance at a fixed rate for other people's solvers."""

from __future__ import annotations

import argparse
from typing import Any

from ..files import load_instance
from ..files.export import export
from ..solve import solve_instance
from .output import print_json


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "export",
        help="write an instance as a mixed-integer program (.lp or .mps)",
        description="Write the surplus problem of an instance at a fixed rate as a mixed-integer "
        "program, so that any solver can check specfit's answer. At the optimal ratio, which is "
        "the default rate, the program's optimum is 0.",
    )
    parser.add_argument("file", metavar="FILE", help="an instance (.npz or .json)")
    parser.add_argument(
        "--rate", type=float, metavar="TOKENS/S", help="default: the proven best ratio"
    )
    parser.add_argument(
        "--max-nodes", type=int, metavar="N", help="largest size allowed, roots included"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: .lp or .mps"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write the program and say at which rate."""
    instance = load_instance(args.file)
    rate = args.rate
    if rate is None:
        rate = solve_instance(instance, max_nodes=args.max_nodes).throughput
    export(args.output, instance, rate, max_nodes=args.max_nodes)
    if args.json:
        print_json({"file": args.file, "output": args.output, "rate": rate})
    else:
        print(f"{args.output}: {args.file} at {rate!r} tokens/s")
