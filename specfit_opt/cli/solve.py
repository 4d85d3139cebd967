"""``specfit solve``: the best subtree of each instance."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from ..errors import InvalidInputError
from ..instance import Instance
from ..solution import Solution
from ..solve import solve_instance
from ..text import figure, format_table, seconds
from .inputs import add_instance_arguments, describe, parse_options, read_instances
from .output import note, print_json


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "solve",
        help="choose the subtree to verify",
        description="Choose the ancestor-closed subtree with the best predicted throughput.",
    )
    add_instance_arguments(parser)
    parser.add_argument(
        "--method", default="exact", help="one of those that `specfit methods` lists (exact)"
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="then the best so far, with its bound"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the method; may be repeated",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the tree with the chosen nodes (.png, .svg, .pdf)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Solve every instance and print the solutions."""
    options = parse_options(args.option)
    instances = read_instances(args.files)
    if args.plot and len(instances) > 1:
        if args.files:
            raise InvalidInputError(f"--plot draws one tree, but {len(instances)} files are given")
        instances = instances[:1]
        note(f"--plot draws one tree: {instances[0][0]} alone")
    solved = [
        (
            label,
            instance,
            solve_instance(
                instance,
                method=args.method,
                rate=args.rate,
                max_nodes=args.max_nodes,
                time_limit=args.time_limit,
                **options,
            ),
        )
        for label, instance in instances
    ]
    if args.plot:
        _plot(args.plot, solved[0][1], solved[0][2])
    if args.json:
        print_json([{"file": label, **solution.to_dict()} for label, _, solution in solved])
    elif len(solved) == 1:
        _print_one(*solved[0])
    else:
        _print_many(solved)


def _print_one(label: str, instance: Instance, solution: Solution) -> None:
    print(f"{label}: {describe(instance)}")
    print(solution.summary())
    nodes = " ".join(str(v) for v in solution.nodes.tolist())
    indent = " " * 19
    print(textwrap.fill(nodes, 100, initial_indent="  nodes            ", subsequent_indent=indent))


def _print_many(solved: list[tuple[str, Instance, Solution]]) -> None:
    rows = [
        [
            label,
            f"{solution.n_selected}/{instance.tree.n_nodes}",
            f"{solution.expected_tokens:.3f}",
            str(int(solution.experts_loaded.sum())),
            seconds(solution.cycle_time),
            figure(solution.throughput),
            solution.status.value if not solution.gap else f"gap {_gap(solution)}",
        ]
        for label, instance, solution in solved
    ]
    header = ["instance", "nodes", "tokens", "experts", "cycle", "tokens/s", "status"]
    if solved[0][2].rate is not None:
        header.insert(6, "surplus")
        for row, (_, _, solution) in zip(rows, solved, strict=True):
            row.insert(6, f"{solution.objective:.4g}")
    print(format_table(header, rows, left=["status"]))


def _gap(solution: Solution) -> str:
    gap = solution.gap or 0.0
    return f"{100.0 * gap:.2g}%" if solution.rate is None else f"{gap:.2g} tokens"


def _plot(path: str, instance: Instance, solution: Solution) -> None:
    from ..plot import plot_tree, save_figure

    figure = plot_tree(instance.tree, solution).figure.figure  # the root, of a subfigure too
    save_figure(figure, path)
