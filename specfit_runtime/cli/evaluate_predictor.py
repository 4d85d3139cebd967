"""``specfit evaluate-predictor``: what routing predictors are worth on recorded decoding."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.inputs import add_machine_options, check_distinct
from specfit_opt.cli.output import print_json, progress_bar

from ..predictors import PREDICTORS, make_predictor
from .options import warnings_as_notes

if TYPE_CHECKING:
    from ..predictor_evaluation import PredictorEvaluation

#: What is evaluated unless named otherwise: what needs no checkpoint.
_DEFAULT = ("frequency", "oracle")


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    usages = ", ".join(kind.usage for kind in PREDICTORS.values())
    parser = commands.add_parser(
        "evaluate-predictor",
        help="measure predictors of routing on recorded traces",
        description="Run predictors over recorded traces as a decode runs them and compare with "
        "the recorded routing: recall by layer and depth, the size of unions, time, and the "
        "throughput of the subtrees that they lead to, as a share of the best there is. Record "
        "traces with --states for learned, which otherwise predicts from token and depth.",
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
    add_machine_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Evaluate every predictor on every trace and print the figures."""
    from .._extras import require_runtime

    require_runtime()
    from ..predictor_evaluation.table import evaluation_table

    with warnings_as_notes():
        evaluations = _evaluate(args)
    if args.json:
        print_json({"evaluations": [evaluation.to_dict() for evaluation in evaluations]})
    else:
        print(evaluation_table(evaluations))


def _evaluate(args: argparse.Namespace) -> list[PredictorEvaluation]:
    from specfit_opt.files import load_trace

    from ..predictor_evaluation import evaluate_predictor, teach

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
    evaluations = []
    for trace in traces:
        for name in names:
            # Each trace begins with the same knowledge.
            predictor = make_predictor(name)
            for text in taught:
                teach(predictor, text)
            with progress_bar(f"{trace.name} {name}") as progress:
                evaluations.append(
                    evaluate_predictor(trace, predictor, name=name, progress=progress, **given)
                )
    return evaluations
