"""``specfit calibrate``: measure what passes, draft levels and experts cost on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.output import print_json
from specfit_opt.cli.table import format_table
from specfit_opt.cli.units import byte_size, seconds

from ..errors import InvalidInputError
from .options import (
    add_drafter_option,
    add_model_options,
    check_output,
    load_model,
    named,
    warnings_as_notes,
)

if TYPE_CHECKING:
    from ..calibration import Quartiles, RuntimeProfile


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "calibrate",
        help="measure what a pass, a draft level and an expert cost here",
        description="Measure, with the experts in place, the time of a pass over 1 to N tokens, "
        "the time of each draft level, and per layer the time to bring in an expert from the "
        "store. The profile serves `specfit generate --profile FILE`.",
    )
    add_model_options(parser)
    add_drafter_option(parser, "default with the shipped model: its EAGLE-3 head; else none")
    parser.add_argument("--max-nodes", type=int, metavar="N", help="largest pass to measure")
    parser.add_argument("--repeats", type=int, metavar="N", help="measurements of each figure")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: a profile, .json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, write the profile and print it."""
    if not args.output.endswith(".json"):
        raise InvalidInputError(f"{args.output}: a profile must end in .json")
    check_output(args.output, "--output")
    from .._extras import require_runtime

    require_runtime()
    with warnings_as_notes():
        profile = _measure(args)
    profile.save(args.output)
    if args.json:
        print_json({"file": args.output, **profile.to_dict()})
    else:
        print(f"{args.output}: {_headline(profile)}")
        print(_table(profile))


def _measure(args: argparse.Namespace) -> RuntimeProfile:
    from ..calibration import calibrate
    from ..drafters import make_drafter
    from ..offload import offload_of

    path, name = named(args, needs_drafter=args.model is None)
    drafter = None if name is None else make_drafter(name)
    options = {"max_nodes": args.max_nodes, "repeats": args.repeats}
    model = load_model(args, path)
    with offload_of(model):
        return calibrate(model, drafter, **{k: v for k, v in options.items() if v is not None})


def _headline(profile: RuntimeProfile) -> str:
    link = profile.link_bandwidth
    store = profile.store if link is None else (
        f"{profile.store} behind an emulated link of {byte_size(link)}/s, which the machine does "
        "not have"
    )
    return (
        f"{profile.model.name} ({profile.model.type}), {profile.dtype} on {profile.device}, "
        f"experts: {store}; {profile.repeats} measurements each"
    )


def _table(profile: RuntimeProfile) -> str:
    """Return every figure with its quartiles."""
    rows = []

    def add(what: str, spread: Quartiles, i: int, text: str = "") -> None:
        rows.append(
            [
                what,
                *(seconds(q[i]) for q in (spread.median, spread.lower, spread.upper)),
                text,
            ]
        )

    for i, size in enumerate(profile.node_sizes):
        add(f"pass over {size} token{'s' * (size > 1)}", profile.node_quartiles, i)
    for i in range(len(profile.draft_time)):
        add(
            f"draft level {i + 1}",
            profile.draft_quartiles,
            i,
            f"{profile.drafter}, {profile.draft_top_k} children of {profile.draft_width} nodes",
        )
    for i, moved in enumerate(profile.moved_bytes):
        time = profile.expert_time[i]
        speed = f", {byte_size(moved / time)}/s" if time else ""
        add(f"expert of layer {i}", profile.expert_quartiles, i, f"{byte_size(moved)}{speed}")
    return format_table(["", "median", "lower quartile", "upper", "what"], rows, left=["what"])
