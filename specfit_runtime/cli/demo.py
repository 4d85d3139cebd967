"""``specfit demo``: policies side by side on the shipped model, and one draft tree, solved."""

from __future__ import annotations

import argparse
import textwrap
from statistics import median
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.output import print_json, progress_bar
from specfit_opt.policies import POLICIES, make_policy
from specfit_opt.text import byte_size, format_table

from ..demo_files import demo_prompts
from ..errors import InvalidInputError
from .options import link_bandwidth, no_progress_bars, warnings_as_notes

if TYPE_CHECKING:
    from ..report import DecodeReport

#: The first is what the others are measured by.
DEMO_POLICIES = ("ar", "chain-2", "eagle-60", "specfit")

#: GB/s: a missing expert of the shipped model then takes 1.2 ms. Its 25 kB would otherwise come
#: from the system's page cache for next to nothing, which the experts of no large model do.
_LINK = 0.02

#: Characters of the longest bar.
_WIDTH = 40


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "demo",
        help="decode with the shipped model under several policies, and show a solved draft tree",
        description="Decode the same texts with the shipped model, plainly and with draft trees, "
        "its experts behind an emulated slow link. Policies take turns at each text, greedily in "
        "float32; the first text is not counted. Token ids that differ from those of the stock "
        "model, which has all its weights in memory, are an error. Then one draft tree with what "
        "is verified of it, and why.",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        metavar="NAME",
        help=f"what to compare with plain decoding: {', '.join(POLICIES)} "
        f"({' '.join(DEMO_POLICIES[1:])})",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=40, metavar="N", help="tokens of each text (40)"
    )
    parser.add_argument(
        "--expert-cache",
        default="25%",
        metavar="SIZE",
        help="experts kept in memory: a share, bytes, or experts per layer (25%%)",
    )
    parser.add_argument(
        "--emulate-link",
        type=float,
        default=_LINK,
        metavar="GB/S",
        help=f"bandwidth at which the other experts come; 0: as fast as the disk ({_LINK:g})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Decode, and print the table, the bars and the tree."""
    if args.max_new_tokens < 2:
        raise InvalidInputError(
            f"--max-new-tokens {args.max_new_tokens}: must be at least 2; the first token comes "
            "from the prompt, which every policy reads alike"
        )
    policies = list(dict.fromkeys([DEMO_POLICIES[0], *(args.policy or DEMO_POLICIES)]))
    for name in policies:
        make_policy(name)  # refuses an unknown one before anything is decoded
    bandwidth = link_bandwidth(args.emulate_link or None)
    from .._extras import require_runtime

    require_runtime()
    import torch

    from ..report import DecodeReport

    torch.set_num_threads(1)  # the model is so small that more would only wait for each other
    no_progress_bars()
    with warnings_as_notes():
        reports, tree = _decode(policies, args.max_new_tokens, args.expert_cache, bandwidth)
    plain = reports[policies[0]]
    speeds = {name: _speeds(found, plain) for name, found in reports.items()}
    merged = {name: DecodeReport.merge(found) for name, found in reports.items()}
    if args.json:
        figures = {
            name: {
                "speed": speeds[name],
                **{k: v for k, v in report.to_dict().items() if k != "cycles"},
            }
            for name, report in merged.items()
        }
        print_json({"policies": figures, "tree": tree.splitlines()})
    else:
        print(_setting(merged[policies[0]]))
        print(f"\n{_table(speeds, merged)}\n\n{_bars(speeds)}\n\n{tree}")


def _decode(
    policies: list[str], new_tokens: int, expert_cache: str, bandwidth: float | None
) -> tuple[dict[str, list[DecodeReport]], str]:
    """Return the reports of each policy by text, and a solved tree."""
    from ..side_by_side import SideBySide
    from ..solved_tree import solved_tree

    warm_up, *prompts = demo_prompts()
    with (
        progress_bar("decoding", unit="texts") as progress,
        SideBySide(
            policies, new_tokens=new_tokens, expert_cache=expert_cache, link_bandwidth=bandwidth
        ) as sides,
    ):
        sides.decode(warm_up)
        reports: dict[str, list[DecodeReport]] = {name: [] for name in policies}
        for i, prompt in enumerate(prompts):
            progress(i, len(prompts))
            for name, report in sides.decode(prompt, i).items():
                reports[name].append(report)
        return reports, solved_tree(sides, warm_up)


def _speeds(reports: list[DecodeReport], plain: list[DecodeReport]) -> list[float]:
    """Return tokens per second relative to plain decoding, for each text."""
    pairs = zip(reports, plain, strict=True)
    return [a.totals.tokens_per_second / b.totals.tokens_per_second for a, b in pairs]


def _setting(report: DecodeReport) -> str:
    link = report.link_bandwidth
    way = "from disk" if link is None else f"over an emulated link of {byte_size(link)}/s"
    return textwrap.fill(
        f"A model of {report.n_layers} layers of {report.n_experts} experts, {report.top_k} per "
        f"token; {report.slots[0]} per layer are cached, the others come {way}. All "
        f"{report.new_tokens} tokens of {report.prompts} texts equal those of the stock model with "
        "all its weights in memory, under every policy (greedy, float32, one thread). speed: "
        "tokens per second relative to plain decoding, of the median text, the slowest and the "
        "fastest; waiting: share of the time that passes wait for experts.",
        96,
    )


def _table(speeds: dict[str, list[float]], reports: dict[str, DecodeReport]) -> str:
    header = ["policy", "speed", "slowest", "fastest", "tokens/pass", "nodes/pass"]
    rows = []
    for name, report in reports.items():
        totals = report.totals
        ratios = (median(speeds[name]), min(speeds[name]), max(speeds[name]))
        rows.append(
            [
                name,
                *(f"{ratio:.2f}" for ratio in ratios),
                f"{totals.tokens_per_pass:.2f}",
                f"{totals.verified_per_pass:.2f}",
                byte_size(totals.bytes_per_token),
                f"{totals.share('transfer'):.0%}",
            ]
        )
    return format_table([*header, "bytes/token", "waiting"], rows)


def _bars(speeds: dict[str, list[float]]) -> str:
    """Return a line for each policy, as long as it is fast, the fastest on top."""
    middle = {name: median(ratios) for name, ratios in speeds.items()}
    scale = _WIDTH / max(middle.values())
    wide = max(map(len, middle))
    return "\n".join(
        f"{name.ljust(wide)}  {'#' * round(scale * speed)} {speed:.2f}"
        for name, speed in sorted(middle.items(), key=lambda item: -item[1])
    )
