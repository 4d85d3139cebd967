"""``specfit fit-router``: fit the linear map behind the predictor ``router:DIR``."""

from __future__ import annotations

import argparse
from typing import Any

from specfit_opt.cli.output import print_json, progress_bar

from .options import add_model_options, load_model, named, warnings_as_notes

#: As in `fit_router_map`, which needs torch to be imported.
_RIDGE = 1e-3


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "fit-router",
        help="fit a linear predictor of routing to recorded decoding",
        description="Fit, in closed form, the linear map from a draft token's embedding and the "
        "drafter's state to the experts of all layers. Recordings come from `specfit trace "
        "--states`. Decode with `--predictor router:DIR`.",
    )
    parser.add_argument(
        "--trace",
        nargs="+",
        required=True,
        metavar="FILE",
        help="traces of one target and drafter, recorded with --states",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="where to: a new folder"
    )
    parser.add_argument(
        "--ridge",
        type=float,
        default=_RIDGE,
        metavar="X",
        help=f"penalty on the squared weights, per node ({_RIDGE})",
    )
    add_model_options(parser.add_argument_group("the target, whose embeddings are read"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, drafter=None)


def run(args: argparse.Namespace) -> None:
    """Fit, write the map and say what it was fitted to."""
    from .._extras import require_runtime

    require_runtime()
    from specfit_opt.files import load_trace

    from ..predictors._checkpoint_folder import check_new_folder
    from ..predictors.fit_router_map import fit_router_map

    check_new_folder(args.output)
    traces = [load_trace(path) for path in args.trace]
    with warnings_as_notes():
        path, _ = named(args, needs_drafter=False)
        model = load_model(args, path)
        with progress_bar("fitting", unit="nodes") as progress:
            fitted = fit_router_map(traces, model, ridge=args.ridge, progress=progress)
    fitted.save(args.output)
    if args.json:
        print_json({"folder": args.output, **fitted.describe()})
        return
    print(
        f"{args.output}: fitted to {fitted.nodes} nodes, {fitted.n_layers} layers of "
        f"{fitted.n_experts} experts; specfit eval-router --predictor router:{args.output} "
        "measures it"
    )
