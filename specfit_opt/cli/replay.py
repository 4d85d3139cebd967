"""``specfit replay``: recorded decoding under every policy, with the cache in the loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..caches import CACHE_RULES, DEFAULT_CACHE_RULE
from ..files import Trace, load_trace
from ..policies import POLICIES
from ..profiles import load_profile
from ..replay import WARMUP, Overlap, ReplayResult, replay, replay_table, summarise
from ..routing_predictor import RoutingPredictor
from ..text import format_table
from .inputs import add_machine_options, check_distinct
from .output import note, print_json, progress_bar

_OVERLAP = Overlap()


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the subcommand to ``commands`` and return its parser, for more options."""
    rows = [[kind.name, kind.summary] for kind in POLICIES.values()]
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="replay recorded traces under every policy",
        description="Decode the recorded texts of traces under every policy, machine and cache "
        "size. Each pass verifies a part of the recorded tree, loads what its experts lack, which "
        "changes what later passes pay, and goes on by what the recorded acceptance commits. "
        "Traces of one shape are decoded one after the other, and what was learned is kept.",
        epilog=format_table(["policy", "what it does"], rows, left=["what it does"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_cell_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the speeds (.png, .svg, .pdf)")
    parser.set_defaults(run=run)
    return parser


def _add_cell_options(parser: argparse.ArgumentParser) -> None:
    """Add what is replayed: policies, traces, machines, caches."""
    parser.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="policies; default: plain decoding, fixed chains and trees, evict, ecospec, s2moe, "
        "ratio and specfit",
    )
    parser.add_argument(
        "files", nargs="*", metavar="TRACE", help="recorded traces (.npz); default: the example"
    )
    add_machine_options(parser)
    parser.add_argument(
        "--cache-policy",
        choices=CACHE_RULES,
        default=DEFAULT_CACHE_RULE,
        help=f"what the cache evicts ({DEFAULT_CACHE_RULE})",
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=WARMUP,
        metavar="N",
        help=f"positions per prompt that are decoded plainly and not counted ({WARMUP})",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help=f"while a layer computes, {_OVERLAP.coverage:.0%} of what the next one lacks is "
        f"fetched early, at a precision of {_OVERLAP.precision:.0%}".replace("%", "%%"),
    )


def run(
    args: argparse.Namespace, predictor: Callable[[], RoutingPredictor] | None = None
) -> None:
    """Replay every model's traces on every machine and print the results.

    Parameters
    ----------
    args : argparse.Namespace
    predictor : callable, optional
        See :func:`specfit_opt.replay.replay`.
    """
    profiles = [load_profile(name) for name in args.profile or ["pcie4"]]
    check_distinct("profiles", [profile.name for profile in profiles])
    named = _traces(args)
    models: dict[tuple[int, int, int], list[Trace]] = {}
    for trace in named:
        shape = trace.n_layers, trace.n_experts, trace.experts.shape[2]
        models.setdefault(shape, []).append(trace)
    results: list[ReplayResult] = []
    for traces in models.values():
        for profile in profiles:
            with progress_bar(f"{traces[0].name} {profile.name}") as report:
                results += replay(
                    traces,
                    policies=args.policy,
                    predictor=predictor,
                    profile=profile,
                    cache=args.cache,
                    expert_bytes=args.expert_bytes,
                    layer_repeat=args.layer_repeat,
                    cache_policy=args.cache_policy,
                    warmup=args.warmup,
                    overlap=_OVERLAP if args.overlap else None,
                    progress=report,
                )
    # As they were named, which the replays by model are not.
    names, machines = [trace.name for trace in named], [profile.name for profile in profiles]
    results.sort(key=lambda r: (names.index(r.trace), machines.index(r.profile)))
    _print_results(args, results)


def _print_results(args: argparse.Namespace, results: list[ReplayResult]) -> None:
    """Print and plot the results as the options say."""
    if args.plot:
        _plot(args.plot, results)
    if args.json:
        print_json([result.to_dict() for result in results])
        return
    print(replay_table(results))
    _print_summary(results)


def _traces(args: argparse.Namespace) -> list[Trace]:
    """Load the traces that the command names; the example, with its prices, if it names none."""
    if args.files:
        traces = [load_trace(path) for path in args.files]
        check_distinct("traces", [trace.name for trace in traces])
        return traces
    from ..data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace

    if args.expert_bytes is None:
        args.expert_bytes = EXAMPLE_EXPERT_BYTES
    if args.layer_repeat is None:
        args.layer_repeat = EXAMPLE_LAYER_REPEAT
    note(
        "no trace given: using the recorded example that the package ships, a small model whose "
        f"layers stand for {args.layer_repeat} each, with experts of {args.expert_bytes:,} bytes"
    )
    return [example_trace()]


def _cell(result: ReplayResult) -> tuple[str, str, int]:
    return result.trace, result.profile, result.slots


def _print_summary(results: list[ReplayResult]) -> None:
    """Print means over the cells, if there are several and all hold plain decoding."""
    cells = {_cell(r) for r in results}
    if len(cells) < 2 or {_cell(r) for r in results if r.policy == "ar"} != cells:
        return
    rows = [
        [
            s.policy,
            f"{s.tokens_per_second:.2f}",
            f"{s.speedup:.2f}",
            f"{s.against_best_fixed:.2f}",
            f"{s.worst_against_best_fixed:.2f}",
        ]
        for s in summarise(results)
    ]
    header = ["policy", "tokens/s", "against ar", "against best fixed", "worst"]
    print(f"\nall {len(cells)} cells (geometric means; best fixed: known in hindsight only)")
    print(format_table(header, rows))


def _plot(path: str, results: list[ReplayResult]) -> None:
    from ..plot import plot_replay, save_figure

    save_figure(plot_replay(results), path)
