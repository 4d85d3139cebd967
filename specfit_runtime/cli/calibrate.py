"""``specfit calibrate``: measure what passes, draft levels and experts cost on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.output import print_json, progress_bar
from specfit_opt.text import byte_size, format_table, seconds

from ..errors import InvalidInputError
from .options import (
    add_drafter_option,
    add_model_options,
    check_output,
    load_model,
    load_tokenizer,
    named,
    warnings_as_notes,
)
from .prompts import one_prompt

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
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        "--prompt",
        metavar="TEXT",
        help="a text like those that will be decoded; default: a few random tokens",
    )
    text.add_argument(
        "--prompt-file", metavar="FILE", help="a file with that text; - is standard input"
    )
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
    options: dict[str, Any] = {"max_nodes": args.max_nodes, "repeats": args.repeats}
    drafter = None if name is None else make_drafter(name)
    if args.prompt is not None or args.prompt_file is not None:
        text = one_prompt(args.prompt, args.prompt_file)
        options["prompt"] = load_tokenizer(path)(text)["input_ids"]
    given = {key: value for key, value in options.items() if value is not None}
    model = load_model(args, path)
    with offload_of(model), progress_bar("calibrating", unit="steps") as progress:
        return calibrate(model, drafter, progress=progress, **given)


def _headline(profile: RuntimeProfile) -> str:
    setup, link = profile.setup, profile.setup.link_bandwidth
    emulated = "" if link is None else (
        f" over a link of {byte_size(link)}/s that the machine does not have"
    )
    return (
        f"{profile.name} ({setup.type}, {setup.dtype} on {setup.device}){emulated}; "
        f"{profile.repeats} measurements each"
    )


def _table(profile: RuntimeProfile) -> str:
    """Return every figure as the cost model takes it, with the quartiles of its measurements."""
    rows = []

    def add(what: str, used: float, spread: Quartiles, i: int, note: str = "") -> None:
        quartiles = (spread.lower[i], spread.median[i], spread.upper[i])
        rows.append([what, *map(seconds, (used, *quartiles)), note])

    for i, size in enumerate(profile.node_sizes):
        plural = "s" * (size > 1)
        used = profile.fixed_time + profile.node_time * size
        missed = profile.node_misses[i]
        note = f"the cache lacks {missed:g} of its experts" if missed else ""
        add(f"pass over {size} token{plural}", used, profile.node_quartiles, i, note)
    for i, used in enumerate(profile.draft_time):
        add(f"draft level {i + 1}", used, profile.draft_quartiles, i, profile.drafter or "")
    for i, used in enumerate(profile.expert_time):
        moved = profile.setup.moved_bytes[i]
        speed = f", {byte_size(moved / used)}/s" if used else ""
        note = f"{byte_size(moved)}{speed}"
        add(f"expert of layer {i}", used, profile.expert_quartiles, i, note)
    header = ["step", "used", "lower quartile", "median", "upper", "note"]
    return format_table(header, rows, left=["note"])
