"""``specfit eval-router``: what routing predictors are worth on recorded decoding."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.inputs import check_distinct
from specfit_opt.cli.output import print_json, progress_bar

from ..predictors import PREDICTORS, RoutingPredictor, make_predictor
from .options import (
    add_drafter_option,
    add_model_options,
    check_output,
    load_model,
    named,
    warnings_as_notes,
)

if TYPE_CHECKING:
    from specfit_opt.files import Trace

    from ..router_evaluation import RouterEvaluation

#: What is evaluated unless named otherwise: what needs no model and no checkpoint.
_DEFAULT = ("last-token", "frequency", "oracle")


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    usages = ", ".join(kind.usage for kind in PREDICTORS.values())
    parser = commands.add_parser(
        "eval-router",
        help="measure predictors of routing on recorded traces",
        description="Run predictors over recorded traces as a decode runs them and compare with "
        "the recorded routing: recall by layer and depth, the size of unions, time, and the "
        "throughput of the subtrees that they lead to, as a share of the best there is. Predictors "
        "that read a model (router, learned) get --model and --drafter, by default the shipped "
        "ones, and need traces recorded with --states; the drafter's levels are then timed too.",
    )
    parser.add_argument("files", nargs="+", metavar="TRACE", help="recorded traces (.npz)")
    parser.add_argument(
        "--predictor",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"predictors: {usages} ({' '.join(_DEFAULT)})",
    )
    parser.add_argument(
        "--taught",
        nargs="+",
        action="extend",
        default=[],
        metavar="TRACE",
        help="traces whose text every predictor observes first, for those that learn as they go",
    )
    parser.add_argument(
        "--profile", nargs="+", action="extend", metavar="NAME|FILE", help="machines (pcie4)"
    )
    parser.add_argument(
        "--cache",
        nargs="+",
        action="extend",
        metavar="SIZE",
        help="cache sizes as in specfit replay (12.5%% 25%% 50%%)",
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
    group = parser.add_argument_group("the model, for predictors that read it")
    add_model_options(group)
    add_drafter_option(group, "default with the shipped model: its EAGLE-3 head")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the figures (.png, .svg, .pdf)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Evaluate every predictor on every trace and print the figures."""
    check_output(args.plot, "--plot")
    if args.plot:
        from specfit_opt.plot import require_matplotlib

        require_matplotlib()
    from .._extras import require_runtime

    require_runtime()
    with warnings_as_notes():
        evaluations, level_seconds = _evaluate(args)
    if args.plot:
        from specfit_opt.plot import save_figure

        from ..router_evaluation.plot import plot_evaluations

        save_figure(plot_evaluations(evaluations), args.plot)
    if args.json:
        print_json(
            {
                "level_seconds": level_seconds,
                "evaluations": [evaluation.to_dict() for evaluation in evaluations],
            }
        )
        return
    from ..router_evaluation.table import evaluation_table

    print(evaluation_table(evaluations, level_seconds))


def _evaluate(args: argparse.Namespace) -> tuple[list[RouterEvaluation], tuple[float, ...]]:
    from specfit_opt.files import load_trace

    from ..router_evaluation import evaluate_router, teach

    names = args.predictor or list(_DEFAULT)
    for name in names:
        make_predictor(name)  # a wrong name or folder is refused before the work
    traces, taught = ([load_trace(path) for path in files] for files in (args.files, args.taught))
    check_distinct("traces", [trace.name for trace in traces])
    check_distinct("predictors", names)
    options = {
        "profiles": args.profile,
        "cache": args.cache,
        "expert_bytes": args.expert_bytes,
        "layer_repeat": args.layer_repeat,
    }
    given = {key: value for key, value in options.items() if value is not None}
    setting = _Setting(args, traces) if any(map(_reads_a_model, names)) else None
    evaluations = []
    for trace in traces:
        for name in names:
            # Each trace begins with the same knowledge.
            predictor = make_predictor(name)
            if setting is not None:
                predictor.bind(setting.model, setting.drafter)
            for text in taught:
                teach(predictor, text)
            with progress_bar(f"{trace.name} {name}") as progress:
                evaluations.append(
                    evaluate_router(trace, predictor, name=name, progress=progress, **given)
                )
    return evaluations, () if setting is None else setting.level_seconds


class _Setting:
    """The model and its drafter, and what drafting takes here."""

    def __init__(self, args: argparse.Namespace, traces: list[Trace]) -> None:
        from ..calibration import calibrate
        from ..drafters import make_drafter

        path, name = named(args, needs_drafter=True)
        assert name is not None
        self.model = load_model(args, path)
        self.drafter = make_drafter(name)
        self.drafter.bind(self.model)
        profile = calibrate(
            self.model,
            self.drafter,
            max_nodes=1,
            draft_levels=max(1, max(trace.max_depth for trace in traces)),
        )
        self.level_seconds = profile.draft_time


def _reads_a_model(name: str) -> bool:
    return type(make_predictor(name)).bind is not RoutingPredictor.bind
