"""``specfit simulate``: recorded decoding under the runtime's own policies and predictors."""

from __future__ import annotations

import argparse
from typing import Any

from specfit_opt.cli.inputs import check_distinct
from specfit_opt.cli.output import progress_bar
from specfit_opt.cli.replay import add_machine_options, print_results, traces_of
from specfit_opt.files import Trace
from specfit_opt.profiles import load_profile
from specfit_opt.replay import FIXED_POLICIES, ReplayResult
from specfit_opt.text import format_table

from ..policies import POLICIES
from ..predictors import PREDICTORS


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    policies = [[kind.name, kind.summary] for kind in POLICIES.values()]
    predictors = [[kind.usage, kind.summary] for kind in PREDICTORS.values()]
    parser = commands.add_parser(
        "simulate",
        help="decode recorded traces as the runtime would",
        description="Decode recorded texts on a simulated machine with the runtime's policies, "
        "which know what they know in a live decode: predicted routing, and acceptance and prices "
        "as learned so far. Traces of one shape are decoded one after the other, and what was "
        "learned is kept.",
        epilog=format_table(["policy", "what it does"], policies, left=["what it does"])
        + "\n\n"
        + format_table(["predictor", "what it predicts"], predictors, left=["what it predicts"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_machine_options(parser)
    parser.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="policies; default: plain decoding, fixed chains and trees, and specfit",
    )
    parser.add_argument(
        "--predictor", default="frequency", metavar="NAME", help="see below (frequency)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Simulate every model's traces on every machine and print the results."""
    from .._extras import require_runtime

    require_runtime()
    from ..simulation import simulate

    profiles = [load_profile(name) for name in args.profile or ["pcie4"]]
    check_distinct("profiles", [profile.name for profile in profiles])
    shapes: dict[tuple[int, int, int], list[Trace]] = {}
    for trace in traces_of(args):
        shape = trace.n_layers, trace.n_experts, trace.experts.shape[2]
        shapes.setdefault(shape, []).append(trace)
    results: list[ReplayResult] = []
    for traces in shapes.values():
        policies = args.policy or [*_fixed(traces), "specfit"]
        for profile in profiles:
            with progress_bar(f"{traces[0].name} {profile.name}") as report:
                results += simulate(
                    traces,
                    policies=policies,
                    predictor=args.predictor,
                    profile=profile,
                    cache=args.cache,
                    expert_bytes=args.expert_bytes,
                    layer_repeat=args.layer_repeat,
                    cache_policy=args.cache_policy,
                    warmup=args.warmup,
                    progress=report,
                )
    print_results(args, sorted(results, key=lambda r: (r.trace, r.profile, r.slots)))


def _fixed(traces: list[Trace]) -> list[str]:
    """Return the fixed policies that all pools can serve."""
    depth = min(t.max_depth for t in traces)
    return [n for n in FIXED_POLICIES if not n.startswith("chain-") or int(n[6:]) <= depth]
